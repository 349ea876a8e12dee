#include "traces/import/allocation_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

constexpr std::array<std::string_view, 3> log_marks = {"Iteration Index", "micro-batch", "Layer"};

bool is_mark(std::string_view line) {
  return std::ranges::any_of(log_marks,
                             [&](std::string_view mark) { return line.find(mark) != std::string_view::npos; });
}

bool is_event(std::string_view line) { return line.starts_with("1 ") || line.starts_with("0 "); }

// With 0x before it or without, as C++ prints pointers.
bool parse(std::string_view text, int base, std::uint64_t& number) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

class LogReader {
 public:
  LogReader(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Allocations read() {
    while (!text_.empty()) {
      const std::size_t end = text_.find('\n');
      std::string_view line = text_.substr(0, end);
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      if (is_event(line)) {
        take(line);
      } else if (line.find(log_marks[0]) != std::string_view::npos) {
        events_.begin_iteration();
      } else if (!line.empty() && !is_mark(line)) {
        fail("is neither an event (\"1 ADDRESS BYTES STREAM\" or \"0 …\") nor a mark of STAlloc's");
      }
    }
    Allocations made = events_.finish();
    if (made.blocks == 0) throw Error(file_, 0, "has no allocation");
    return made;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(file_, line_, message); }

  void take(std::string_view line) {
    std::array<std::string_view, 4> fields;
    std::size_t count = 0;
    for (std::string_view rest = line; !rest.empty() && count < fields.size(); ++count) {
      const std::size_t end = rest.find(' ');
      fields[count] = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
    std::uint64_t address = 0, bytes = 0, stream = 0;
    if (count < 4 || !parse(fields[1], 16, address) || !parse(fields[2], 10, bytes) || !parse(fields[3], 16, stream)) {
      fail("an event is \"1 ADDRESS BYTES STREAM\" or \"0 ADDRESS BYTES STREAM\"");
    }
    if (address == 0 || bytes == 0) return;
    if (fields[0] == "1") {
      const auto number = static_cast<std::uint32_t>(streams_.emplace(stream, streams_.size()).first->second);
      if (!events_.allocate(address, bytes, number)) {
        fail(fmt::format("{} is allocated, but a block there is alive already; lines are missing before", fields[1]));
      }
    } else if (!events_.release(address)) {
      fail(fmt::format("{} is freed, but no block there is alive; lines are missing before", fields[1]));
    }
  }

  std::string_view text_;
  const std::string& file_;
  std::uint64_t line_ = 0;
  std::map<std::uint64_t, std::size_t> streams_;  // numbered as they appear
  AddressedAllocations events_;
};

}  // namespace

bool is_allocation_log(std::string_view head) {
  while (!head.empty()) {
    const std::size_t end = head.find('\n');
    const std::string_view line = head.substr(0, end);
    if (is_event(line)) return true;
    if (!line.empty() && !is_mark(line)) return false;
    if (end == std::string_view::npos) break;
    head.remove_prefix(end + 1);
  }
  return false;
}

Allocations parse_allocation_log(std::string_view text, const std::string& file) {
  return LogReader(text, file).read();
}

Allocations read_allocation_log(const std::string& path) { return parse_allocation_log(read_file(path), path); }

}  // namespace tencache
