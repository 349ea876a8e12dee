#include "traces/file/allocation_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <cstring>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t largest_block_bytes = std::uint64_t{1} << 50;

class EventReader {
 public:
  EventReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Allocations read() {
    for (std::size_t begin = 0; begin < text_.size();) {
      const void* newline = std::memchr(text_.data() + begin, '\n', text_.size() - begin);
      const std::size_t end =
          newline ? static_cast<std::size_t>(static_cast<const char*>(newline) - text_.data()) : text_.size();
      ++line_;
      take(text_.substr(begin, end - begin));
      begin = end + 1;
    }
    Allocations made = events_.finish();
    if (made.blocks == 0) throw Error(file_, 0, "has no allocation; see docs/fragment.md for the format");
    made.recorded_allocated = allocated_;
    made.recorded_reserved = reserved_;
    return made;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(file_, line_, message); }

  void take(std::string_view line) {
    dom::object object;
    if (parser_.parse(line.data(), line.size()).get_object().get(object)) {
      fail(
          "is no JSON object; the file has one a line: {\"alloc\": 7, \"bytes\": 512}, {\"free\": 7}, "
          "{\"mark\": \"iteration\"}");
    }
    dom::element value;
    if (!object["alloc"].get(value)) {
      check_keys(object, {"alloc", "bytes", "stream"});
      const std::uint64_t block = number(value, "alloc", ~std::uint64_t{0});
      const Bytes bytes = number(object, "bytes", largest_block_bytes);
      if (bytes == 0) fail("'bytes' is 0; an allocation has some");
      const std::uint64_t stream = object["stream"].error() ? 0 : number(object, "stream", 0xffff'ffff);
      if (!events_.allocate(block, bytes, static_cast<std::uint32_t>(stream))) {
        fail(fmt::format("block {} is allocated, but it is alive already; a line that frees it is missing", block));
      }
    } else if (!object["free"].get(value)) {
      check_keys(object, {"free"});
      const std::uint64_t block = number(value, "free", ~std::uint64_t{0});
      if (!events_.release(block)) {
        fail(
            fmt::format("block {} is freed, but no block with that number is alive: the line that allocates it is "
                        "missing, or it is freed twice",
                        block));
      }
    } else if (!object["mark"].get(value)) {
      check_keys(object, {"mark"});
      std::string_view mark;
      if (value.get_string().get(mark) || mark != "iteration") fail("'mark' is \"iteration\" or not there");
      events_.begin_iteration();
    } else if (!object["recorded"].get(value)) {
      check_keys(object, {"recorded"});
      dom::object recorded;
      if (value.get_object().get(recorded)) fail("'recorded' is no object");
      check_keys(recorded, {"allocated_bytes", "reserved_bytes"});
      if (!recorded["allocated_bytes"].error()) allocated_ = number(recorded, "allocated_bytes", largest_block_bytes);
      if (!recorded["reserved_bytes"].error()) reserved_ = number(recorded, "reserved_bytes", largest_block_bytes);
    } else {
      fail("has none of the keys 'alloc', 'free', 'mark', 'recorded'");
    }
  }

  void check_keys(const dom::object& object, std::initializer_list<std::string_view> known) const {
    for (const auto field : object) {
      bool found = false;
      for (const std::string_view key : known) found = found || key == field.key;
      if (!found) fail(fmt::format("unknown key '{}'", field.key));
    }
  }
  std::uint64_t number(const dom::object& object, const char* key, std::uint64_t largest) const {
    dom::element value;
    if (object[key].get(value)) fail(fmt::format("'{}' is missing", key));
    return number(value, key, largest);
  }
  std::uint64_t number(const dom::element& value, const char* key, std::uint64_t largest) const {
    std::uint64_t result = 0;
    if (value.get_uint64().get(result) || result > largest) {
      fail(fmt::format("'{}' is no whole number from 0 to {}", key, largest));
    }
    return result;
  }

  std::string_view text_;
  const std::string& file_;
  std::uint64_t line_ = 0;
  dom::parser parser_;
  AddressedAllocations events_;
  std::optional<Bytes> allocated_, reserved_;
};

}  // namespace

bool is_allocation_file(std::string_view head) {
  const std::string_view line = head.substr(0, head.find('\n'));
  if (!line.starts_with('{')) return false;
  for (const std::string_view key : {"{\"alloc\"", "{\"free\"", "{\"mark\"", "{\"recorded\""}) {
    if (line.starts_with(key)) return true;
  }
  return false;
}

Allocations parse_allocations(std::string_view text, const std::string& file) { return EventReader(text, file).read(); }

Allocations read_allocations(const std::string& path) { return parse_allocations(read_file(path), path); }

void write_allocations(const Allocations& allocations, const std::string& path) {
  AtomicFile file(path);
  std::string text;
  if (allocations.recorded_allocated || allocations.recorded_reserved) {
    std::string members;
    if (allocations.recorded_allocated)
      members = fmt::format("\"allocated_bytes\":{}", *allocations.recorded_allocated);
    if (allocations.recorded_reserved) {
      members += fmt::format("{}\"reserved_bytes\":{}", members.empty() ? "" : ",", *allocations.recorded_reserved);
    }
    file.write(fmt::format("{{\"recorded\":{{{}}}}}\n", members));
  }
  for (const AllocationEvent& event : allocations.events) {
    switch (event.kind) {
      case AllocationEvent::Kind::allocate:
        text = fmt::format("{{\"alloc\":{},\"bytes\":{},\"stream\":{}}}\n", event.block, event.bytes, event.stream);
        break;
      case AllocationEvent::Kind::release:
        text = fmt::format("{{\"free\":{}}}\n", event.block);
        break;
      case AllocationEvent::Kind::iteration:
        text = "{\"mark\":\"iteration\"}\n";
        break;
    }
    file.write(text);
  }
  file.commit();
}

}  // namespace tencache
