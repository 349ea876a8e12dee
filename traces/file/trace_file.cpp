// Reading; trace_writer.cpp writes.
#include "traces/file/trace_file.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "traces/file/trace_line.h"

namespace tencache {
namespace {

namespace json = simdjson::ondemand;

static_assert(read_padding_bytes >= simdjson::SIMDJSON_PADDING);

constexpr std::uint64_t largest_tensor_bytes = std::uint64_t{1} << 50;

constexpr std::size_t shortest_line_bytes = 64;  // a line with all its required keys is longer

constexpr std::size_t most_options = 256;  // that a trace was made with

enum class Kind { header, tensor, op };

// The numbers of a kernel's shape, for messages.
std::string shape_names(KernelKind kind) {
  if (kind == KernelKind::collective) return "ranks";
  return kind == KernelKind::matmul ? "batch, m, n, k" : "batch, heads, key-value heads, queries, keys, head dimension";
}

class Reader : TraceLine {
 public:
  Reader(std::string_view padded_text, std::size_t readable, const std::string& file)
      : TraceLine(file), text_(padded_text), readable_(readable), file_(file) {}

  Trace read() {
    if (text_.empty()) throw Error(file_, 0, "is empty; a trace begins with a line of kind 'header'");
    for (std::size_t begin = 0; begin < text_.size();) {
      const void* newline = std::memchr(text_.data() + begin, '\n', text_.size() - begin);
      const std::size_t end =
          newline ? static_cast<std::size_t>(static_cast<const char*>(newline) - text_.data()) : text_.size();
      ++number_in_file;
      read_line(begin, end - begin);
      begin = end + 1;
    }
    check_end();
    return std::move(trace_);
  }

 private:
  void read_line(std::size_t begin, std::size_t size) {
    if (size == 0) fail("the line is empty; a trace has one JSON object a line");
    if (size > parser_.capacity()) check(parser_.allocate(std::max<std::size_t>(2 * size, 4096)));
    json::document document;
    check(parser_.iterate(text_.data() + begin, size, readable_ - begin).get(document));
    json::object object;
    if (document.get_object().get(object)) fail("not a JSON object; a trace has one JSON object a line");
    switch (read_kind(object)) {
      case Kind::header:
        read_header(object);
        break;
      case Kind::tensor:
        read_tensor(object);
        break;
      case Kind::op:
        read_op(object);
        break;
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
      fail("something follows the JSON object; a trace has one object a line");
    }
  }

  Kind read_kind(json::object& object) {
    json::value value;
    const simdjson::error_code error = object.find_field("kind").get(value);
    if (error == simdjson::NO_SUCH_FIELD) fail("the key 'kind' is missing; it is header, tensor or op");
    check(error);
    const std::string_view kind = text(value, "kind");
    Kind result = Kind::header;
    if (kind == "tensor") {
      result = Kind::tensor;
    } else if (kind == "op") {
      result = Kind::op;
    } else if (kind != "header") {
      fail("unknown kind '" + std::string(kind) + "'; it is header, tensor or op");
    }
    check(object.reset().error());
    return result;
  }

  // Ids say nothing that the order of the lines does not, but a gap shows lost or reordered lines.
  void check_id(json::value& value, std::size_t expected, std::string_view kind) const {
    if (number(value, "id", 0, none - 1) != expected) {
      fail_value(value, "id",
                 std::to_string(expected) + ": the ids of " + std::string(kind) + "s count up from 0 without gaps");
    }
  }

  void add_to_total(std::uint64_t& total, std::uint64_t amount, const char* what) const {
    total += amount;  // both at most largest_quantity
    if (total > largest_quantity) fail("the " + std::string(what) + " add up to more than 2^61, which cannot be right");
  }

  void read_header(json::object& object) {
    if (number_in_file != 1) fail("a second header; a trace has one, on its first line");
    using namespace header_key;
    TraceHeader& header = trace_.header;
    const std::uint32_t seen = each_field(object, header_keys, [&](std::size_t key, json::value value) {
      const std::string_view name = header_keys.names[key];
      switch (key) {
        case header_key::format_version:
          version = static_cast<int>(number(value, name, 1, 1'000'000));
          if (version > newest_trace_version) {
            fail("format version " + std::to_string(version) + " is not supported; this program reads versions 1 to " +
                 std::to_string(newest_trace_version) + ": read it with the TenCache that wrote it, or a newer one");
          }
          break;
        case model:
          header.model = text(value, name);
          break;
        case batch:
          header.batch = number(value, name, 0, 1u << 30);
          break;
        case sequence_length:
          header.sequence_length = number(value, name, 0, 1u << 30);
          break;
        case precision:
          header.precision = text(value, name);
          break;
        case hardware:
          header.hardware = text(value, name);
          break;
        case made_by:
          header.provenance.made_by = choice<MadeBy>(value, name);
          break;
        case made_with:
          read_made_with(value, name);
          break;
        case recorded_by:
          header.recorded_by = text(value, name);
          break;
        case stack:
          header.stack = text(value, name);
          break;
        case tensor_count:
          tensor_count_ = number(value, name, 0, none - 1);
          break;
        case op_count:
          op_count_ = number(value, name, 0, none - 1);
          break;
        default:
          break;  // kind is known
      }
    });
    if (version < 3) header.provenance = provenance_of_sentence(header.recorded_by);
    has_tensor_count_ = seen >> tensor_count & 1;
    has_op_count_ = seen >> op_count & 1;
    // A wrong count is found at the end; until then it may not cost memory that the file itself does not justify.
    trace_.tensors.reserve(std::min<std::size_t>(tensor_count_, text_.size() / shortest_line_bytes));
    trace_.ops.reserve(std::min<std::size_t>(op_count_, text_.size() / shortest_line_bytes));
    trace_.names.reserve(trace_.tensors.capacity());  // theirs differ, those of ops mostly do not
  }

  void read_made_with(json::value& value, std::string_view key) {
    json::object options;
    if (value.get_object().get(options)) fail_value(value, key, "an object of names and texts");
    Provenance& provenance = trace_.header.provenance;
    for (auto next : options) {
      json::field field;
      check(std::move(next).get(field));
      std::string_view name;
      check(simdjson::simdjson_result<json::field>(json::field(field)).unescaped_key().get(name));
      std::string option(name);
      if (provenance.made_with.size() == most_options) {
        fail("'" + std::string(key) + "' has more than " + std::to_string(most_options) + " options");
      }
      if (provenance.option(option) != nullptr) fail("'" + option + "' stands twice in '" + std::string(key) + "'");
      json::value given = field.value();
      std::string text_of_option(text(given, option));
      provenance.made_with.emplace_back(std::move(option), std::move(text_of_option));
    }
  }

  void read_tensor(json::object& object) {
    if (number_in_file == 1) fail("a tensor before the header; the first line of a trace is the header");
    if (!trace_.ops.empty()) fail("a tensor after the first op; all tensors come before all ops");
    using namespace tensor_key;
    Bytes size = 0;
    Role tensor_role = Role::activation;
    bool keeps = false;
    Bytes stored = 0;
    std::string_view tensor_name;
    each_field(object, tensor_keys, [&](std::size_t key, json::value value) {
      const std::string_view key_name = tensor_keys.names[key];
      switch (key) {
        case id:
          check_id(value, trace_.tensors.size(), "tensor");
          break;
        case name:
          tensor_name = text(value, key_name);
          break;
        case bytes:
          size = number(value, key_name, 1, largest_tensor_bytes);
          break;
        case role:
          tensor_role = versioned_choice<Role>(value, key_name);
          break;
        case persistent:
          keeps = truth(value, key_name);
          break;
        case stored_bytes:
          stored = number(value, key_name, 0, largest_tensor_bytes);
          break;
        default:
          break;
      }
    });
    add_to_total(total_bytes_, size, "sizes of the tensors");
    add_to_total(total_stored_bytes_, stored, "stored sizes of the tensors");
    const TensorId added = trace_.add_tensor(tensor_name, size, tensor_role, keeps);
    if (stored != size) trace_.tensors[added].stored_bytes = stored;
  }

  void read_op(json::object& object) {
    if (number_in_file == 1) fail("an op before the header; the first line of a trace is the header");
    using namespace op_key;
    Op op;
    Kernel launched;
    std::size_t numbers = 0;  // of its shape
    OpDetail more;
    const std::uint32_t seen = each_field(object, op_keys, [&](std::size_t key, json::value value) {
      const std::string_view key_name = op_keys.names[key];
      switch (key) {
        case id:
          check_id(value, trace_.ops.size(), "op");
          break;
        case name:
          op.name = trace_.names.intern(text(value, key_name));
          break;
        case phase:
          op.phase = versioned_choice<Phase>(value, key_name);
          break;
        case device:
          op.device = choice<Device>(value, key_name);
          break;
        case module:
          op.module = trace_.names.intern(text(value, key_name));
          break;
        case duration_ns:
          op.duration_ns = static_cast<Nanoseconds>(number(value, key_name, 0, largest_quantity));
          break;
        case duration_source:
          op.duration_source = choice<DurationSource>(value, key_name);
          break;
        case gap_before_ns:
          op.gap_before_ns = static_cast<Nanoseconds>(number(value, key_name, 0, largest_quantity));
          break;
        case flops:
          op.flops = number(value, key_name, 0, largest_quantity);
          break;
        case bytes:
          op.bytes = number(value, key_name, 0, largest_quantity);
          break;
        case group:
          op.group = static_cast<std::int32_t>(number(value, key_name, 0, 0x7fff'ffff));
          break;
        case placeable:
          op.placeable = truth(value, key_name);
          break;
        case reorderable:
          op.reorderable = truth(value, key_name);
          break;
        case stream:
          op.stream = choice<OpStream>(value, key_name);
          break;
        case rank:
          op.rank = static_cast<std::uint16_t>(number(value, key_name, 0, 0xffff));
          break;
        case rendezvous:
          op.rendezvous = trace_.names.intern(text(value, key_name));
          break;
        case kernel:
          launched.kind = choice<KernelKind>(value, key_name);
          break;
        case shape:
          numbers = read_shape(value, key_name, launched.shape);
          break;
        case causal:
          launched.causal = truth(value, key_name);
          break;
        case attention_kernel:
          launched.attention = choice<AttentionKernel>(value, key_name);
          break;
        case unaligned:
          launched.unaligned = truth(value, key_name);
          break;
        case fp8:
          launched.fp8 = truth(value, key_name);
          break;
        case launches:
          launched.launches = static_cast<std::uint32_t>(number(value, key_name, 1, 0xffff'ffff));
          break;
        case step:
          more.step = static_cast<std::uint32_t>(number(value, key_name, 0, 0xffff'ffff));
          break;
        case revealed_by:
          more.revealed_by = static_cast<OpIndex>(number(value, key_name, 0, none - 1));
          if (more.revealed_by >= trace_.ops.size()) fail_value(value, key_name, "the id of an earlier op");
          break;
        case cpu_duration_ns:
          more.cpu_duration_ns = static_cast<Nanoseconds>(number(value, key_name, 0, largest_quantity));
          break;
        case reads:
          read_ids(value, key_name, reads_);
          break;
        case writes:
          read_ids(value, key_name, writes_);
          break;
        default:
          break;
      }
    });
    if ((seen & of_kernel) != 0) {
      check_kernel(launched, numbers, seen);
      op.kernel = trace_.kernels.intern(launched);
    }
    if ((seen & of_detail) != 0) {
      add_to_total(total_cpu_ns_, static_cast<std::uint64_t>(more.cpu_duration_ns), "times on the CPU");
      op.detail = trace_.add_detail(more);
    }
    add_to_total(total_ns_, static_cast<std::uint64_t>(op.duration_ns), "durations");
    add_to_total(total_ns_, static_cast<std::uint64_t>(op.gap_before_ns), "durations and gaps");
    add_to_total(total_flops_, op.flops, "flops");
    add_to_total(total_traffic_, op.bytes, "bytes of the ops");
    trace_.add_op(op, reads_, writes_);
  }

  // Returns how many numbers it has.
  std::size_t read_shape(json::value& value, std::string_view key, std::array<std::uint64_t, 6>& shape) const {
    json::array array;
    if (value.get_array().get(array)) fail_value(value, key, "a list of whole numbers");
    std::size_t count = 0;
    for (auto next : array) {
      json::value element;
      check(std::move(next).get(element));  // NOLINT(performance-move-const-arg): asked for by simdjson
      if (count == shape.size()) fail("'shape' has more than 6 numbers; no kernel has more");
      shape[count++] = number(element, key, 0, largest_shape_number);
    }
    return count;
  }

  // What the keys of a kernel demand of each other.
  void check_kernel(const Kernel& kernel, std::size_t numbers, std::uint32_t seen) const {
    const auto has = [seen](std::size_t key) { return (seen >> key & 1) != 0; };
    const std::size_t wanted = shape_size(kernel.kind);
    if (has(op_key::shape) && wanted == 0) {
      fail("'shape' is for the kernels matmul, attention, attention_backward and collective; leave it out of others");
    }
    if (numbers != wanted) {
      fail((has(op_key::shape) ? "'shape' has " + std::to_string(numbers) + " numbers" : "'shape' is missing") +
           "; a kernel of kind '" + std::string(to_string(kernel.kind)) + "' takes " + std::to_string(wanted) + ": " +
           shape_names(kernel.kind));
    }
    for (const std::size_t key : {op_key::causal, op_key::attention_kernel}) {
      if (has(key) && !is_attention(kernel.kind)) {
        fail("'" + std::string(op_keys.names[key]) +
             "' is for the kernels attention and attention_backward; leave it out of others");
      }
    }
    for (const std::size_t key : {op_key::unaligned, op_key::fp8}) {
      if (has(key) && kernel.kind != KernelKind::matmul) {
        fail("'" + std::string(op_keys.names[key]) + "' is for the kernel matmul; leave it out of others");
      }
    }
  }

  void read_ids(json::value& value, std::string_view key, std::vector<TensorId>& ids) const {
    ids.clear();
    json::array array;
    if (value.get_array().get(array)) fail_value(value, key, "a list of tensor ids");
    for (auto next : array) {
      json::value element;
      check(std::move(next).get(element));  // NOLINT(performance-move-const-arg): asked for by simdjson
      std::uint64_t id = 0;
      if (element.get_uint64().get(id)) fail_value(element, key, "a list of tensor ids, which are whole numbers");
      if (id >= trace_.tensors.size()) {
        fail("'" + std::string(key) + "' names tensor " + std::to_string(id) + ", but the file has only " +
             std::to_string(trace_.tensors.size()) + " tensors before this op");
      }
      ids.push_back(static_cast<TensorId>(id));
    }
  }

  void check_end() const {
    const auto check_count = [&](bool known, std::uint64_t announced, std::size_t found, const char* what) {
      if (!known || announced == found) return;
      throw Error(file_, 0,
                  "the header announces " + std::to_string(announced) + " " + what + ", the file has " +
                      std::to_string(found) + "; lines were lost or added");
    };
    check_count(has_tensor_count_, tensor_count_, trace_.tensors.size(), "tensors");
    check_count(has_op_count_, op_count_, trace_.ops.size(), "ops");
    try {
      trace_.validate(file_);
    } catch (const Error&) {
      std::vector<std::uint64_t> lines(trace_.ops.size());  // one object a line, no empty lines
      for (std::size_t i = 0; i < lines.size(); ++i) lines[i] = 2 + trace_.tensors.size() + i;
      trace_.validate(file_, lines);
      throw;
    }
  }

  std::string_view text_;
  std::size_t readable_;
  const std::string& file_;
  mutable json::parser parser_;
  Trace trace_;
  std::vector<TensorId> reads_, writes_;
  bool has_tensor_count_ = false, has_op_count_ = false;
  std::uint64_t tensor_count_ = 0, op_count_ = 0;
  std::uint64_t total_stored_bytes_ = 0, total_cpu_ns_ = 0;
  std::uint64_t total_bytes_ = 0, total_ns_ = 0, total_flops_ = 0, total_traffic_ = 0;
};

Trace read_padded(const std::string& text, const std::string& name) {
  TENCACHE_CHECK(text.capacity() >= text.size() + read_padding_bytes);
  return Reader(text, text.size() + read_padding_bytes, name).read();
}

}  // namespace

Trace read_trace(const std::string& path, Bytes maximum_bytes) {
  const auto check = [&path](std::string_view head) {
    const std::size_t first = head.find_first_not_of(" \t\r\n");
    if (first != head.npos && head[first] != '{') {
      throw Error(path, 1, "not a JSON object; a trace has one JSON object a line");
    }
  };
  return read_padded(read_file(path, maximum_bytes, check), path);
}

Trace parse_trace(std::string_view text, const std::string& name) {
  std::string padded;
  padded.reserve(text.size() + read_padding_bytes);
  padded += text;
  padded.append(read_padding_bytes, '\0');
  padded.resize(text.size());
  return read_padded(padded, name);
}

}  // namespace tencache
