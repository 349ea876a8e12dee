#include "traces/import/pytorch/chakra.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "core/error.h"
#include "traces/import/pytorch/literal.h"

namespace tencache {
namespace {

constexpr std::uint64_t largest_message = std::uint64_t{64} << 20;

// Numbers of the fields of a node, and of its parts.
namespace field {
enum : std::uint64_t { id = 1, name = 2, duration_us = 7, inputs = 8, outputs = 9, attribute = 10 };
enum : std::uint64_t { values = 1, shapes = 2, types = 3 };
}  // namespace field

// One field after the other of a message.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  // False at the end, and where the message is damaged: then ok() is false.
  bool next() {
    if (rest_.empty() || !ok_) return false;
    const std::optional<std::uint64_t> key = varint();
    if (!key || *key >> 3 == 0) return fail();
    number = *key >> 3;
    value = 0;
    bytes = {};
    std::uint64_t size = 0;
    switch (*key & 7) {
      case 0: {
        const std::optional<std::uint64_t> read = varint();
        if (!read) return fail();
        value = *read;
        return true;
      }
      case 1:
        size = 8;
        break;
      case 2: {
        const std::optional<std::uint64_t> read = varint();
        if (!read) return fail();
        size = *read;
        break;
      }
      case 5:
        size = 4;
        break;
      default:
        return fail();
    }
    if (size > rest_.size()) return fail();
    bytes = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(bytes.size());
    return true;
  }
  bool ok() const { return ok_; }

  std::uint64_t number = 0, value = 0;
  std::string_view bytes;

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t result = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      result |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return result;
    }
    return std::nullopt;
  }
  bool fail() {
    ok_ = false;
    return false;
  }

  std::string_view rest_;
  bool ok_ = true;
};

struct Side {
  std::string_view values, shapes, types;
};

struct Node {
  std::uint64_t id = 0, rf_id = 0, thread = 0, scope = 0, duration_us = 0;
  std::int64_t sequence = -1;
  std::string_view name, schema;
  Side inputs, outputs;
  bool on_host = true, has_duration = false;
};

class ChakraReader {
 public:
  ChakraReader(const std::string& path, const ImportProgress& progress) : stream_(path, ".et"), progress_(progress) {}

  ChakraTrace read() {
    trace_.calls.file = stream_.name();
    trace_.calls.schema = "chakra";
    std::string message;
    while (next_message(message)) {
      if (trace_.messages++ == 0) continue;  // metadata
      take(parse(message));
    }
    if (trace_.calls.nodes.empty()) {
      throw Error(stream_.name(), 0,
                  "has no nodes of PyTorch calls; it is no Chakra trace converted from PyTorch, or an empty one");
    }
    const std::vector<std::uint64_t> no_parents(trace_.calls.nodes.size(), 0);
    // Identifiers increase in the file, so that the order stays.
    link_nodes(trace_.calls, no_parents);
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(
        stream_.name(), 0,
        "byte " + std::to_string(message_offset_) + ", message " + std::to_string(trace_.messages) + ": " + what);
  }

  int byte() {
    if (position_ == buffer_.size()) {
      buffer_.resize(std::size_t{1} << 18);
      buffer_.resize(stream_.read(buffer_.data(), buffer_.size()));
      position_ = 0;
      if (progress_) progress_(stream_.consumed_bytes(), stream_.file_bytes());
      if (buffer_.empty()) return -1;
    }
    ++offset_;
    return static_cast<unsigned char>(buffer_[position_++]);
  }

  bool next_message(std::string& message) {
    message_offset_ = offset_;
    std::uint64_t size = 0;
    int shift = 0;
    while (true) {
      const int next = byte();
      if (next < 0 && shift == 0) return false;
      if (next < 0) fail("the file ends within a length; it was cut short");
      if (shift > 28) fail("no length of a message; this is no Chakra trace, or it is damaged");
      size |= static_cast<std::uint64_t>(next & 127) << shift;
      if (next < 128) break;
      shift += 7;
    }
    if (size > largest_message) fail("a message of more than 64 MiB; this is no Chakra trace, or it is damaged");
    message.clear();
    while (message.size() < size) {
      const int next = byte();
      if (next < 0) fail("the file ends within a message; it was cut short, or is no Chakra trace");
      const std::size_t count =
          std::min<std::size_t>(static_cast<std::size_t>(size) - message.size(), buffer_.size() - position_ + 1);
      message.append(buffer_, position_ - 1, count);
      position_ += count - 1;
      offset_ += count - 1;
    }
    return true;
  }

  Side side_of(std::string_view bytes) {
    Side side;
    Message message(bytes);
    while (message.next()) {
      if (message.number == field::values) side.values = message.bytes;
      if (message.number == field::shapes) side.shapes = message.bytes;
      if (message.number == field::types) side.types = message.bytes;
    }
    if (!message.ok()) fail("a node's tensors are damaged");
    return side;
  }

  Node parse(std::string_view bytes) {
    Node node;
    Message message(bytes);
    while (message.next()) {
      switch (message.number) {
        case field::id:
          node.id = message.value;
          break;
        case field::name:
          node.name = message.bytes;
          break;
        case field::duration_us:
          node.duration_us = message.value;
          node.has_duration = true;
          break;
        case field::inputs:
          node.inputs = side_of(message.bytes);
          break;
        case field::outputs:
          node.outputs = side_of(message.bytes);
          break;
        case field::attribute:
          read_attribute(message.bytes, node);
          break;
        default:
          break;
      }
    }
    if (!message.ok() && stream_.name().ends_with(".json")) {
      fail("Chakra's JSON, which holds no tensors; import the .et file that it was made from, or beside");
    }
    if (!message.ok()) fail("not a protobuf message; this is no Chakra trace, or it is damaged");
    if (node.duration_us > std::uint64_t{1} << 40) fail("a duration that cannot be right");
    return node;
  }

  // A name (field 1) and one value, whose field depends on its type.
  void read_attribute(std::string_view bytes, Node& node) {
    Message message(bytes);
    std::string_view name, text;
    std::uint64_t value = 0;
    while (message.next()) {
      if (message.number == 1) {
        name = message.bytes;
      } else if (message.number != 2) {
        value = message.value;
        text = message.bytes;
      }
    }
    if (!message.ok()) fail("an attribute of a node is damaged");
    if (name == "is_cpu_op") node.on_host = value != 0;
    if (name == "rf_id") node.rf_id = value;
    if (name == "seq_id") node.sequence = static_cast<std::int64_t>(value);
    if (name == "tid") node.thread = value;
    if (name == "scope") node.scope = value;
    if (name == "op_schema") node.schema = text;
  }

  void take(const Node& node) {
    ExecutionTrace& calls = trace_.calls;
    if (!node.on_host) {
      // After the piece that launched it.
      if (calls.nodes.empty() || !node.has_duration) {
        ++trace_.other_nodes;
        return;
      }
      ++trace_.kernels;
      trace_.kernel_ns.back() += static_cast<Nanoseconds>(node.duration_us) * 1000;
      return;
    }
    if (!calls.nodes.empty() && node.id <= last_id_) fail("the nodes' ids do not increase");
    const Nanoseconds host_ns = static_cast<Nanoseconds>(node.duration_us) * 1000;
    if (node.rf_id != 0 && !calls.nodes.empty() && calls.nodes.back().rf_id == node.rf_id) {  // another piece
      trace_.host_ns.back() += host_ns;
      last_id_ = node.id;
      return;
    }
    CallNode call;
    call.id = node.id;
    call.rf_id = node.rf_id;
    call.sequence = node.sequence;
    call.thread = static_cast<std::uint32_t>(node.thread);
    call.scope = static_cast<std::uint32_t>(node.scope);
    call.name = calls.names.intern(without_piece(node.name));
    call.schema = calls.names.intern(node.schema);
    call.first_ref = static_cast<std::uint32_t>(calls.refs.size());
    call.input_count = read_side(node.inputs);
    call.output_count = read_side(node.outputs);
    calls.nodes.push_back(call);
    last_id_ = node.id;
    trace_.kernel_ns.push_back(0);
    trace_.host_ns.push_back(host_ns);
  }

  // "aten::mm" of "aten::mm(1)".
  static std::string_view without_piece(std::string_view name) {
    if (!name.ends_with(')')) return name;
    const std::size_t open = name.rfind('(');
    const std::string_view digits = name.substr(open + 1, name.size() - open - 2);
    const bool piece = open != std::string_view::npos && !digits.empty() &&
                       std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    return piece ? name.substr(0, open) : name;
  }

  std::uint32_t read_side(const Side& side) {
    try {
      return read_literal_tensors(side.values, side.shapes, side.types, trace_.calls);
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  ByteStream stream_;
  ImportProgress progress_;
  ChakraTrace trace_;
  std::string buffer_;
  std::size_t position_ = 0;
  std::uint64_t offset_ = 0, message_offset_ = 0, last_id_ = 0;
};

}  // namespace

ChakraTrace read_chakra(const std::string& path, const ImportProgress& progress) {
  return ChakraReader(path, progress).read();
}

}  // namespace tencache
