// Reading; trace_writer.cpp writes.
#include "traces/file/trace_file.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

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

enum class Kind { header, tensor, op, choice };

// The numbers of a kernel's shape, for messages.
std::string shape_names(KernelKind kind) {
  if (kind == KernelKind::collective) return "ranks";
  return kind == KernelKind::matmul ? "batch, m, n, k" : "batch, heads, key-value heads, queries, keys, head dimension";
}

// An op, and what of its line is kept apart.
struct OpLine : Op, Kernel, OpDetail {
  std::size_t shape_numbers = 0;
};

class Reader : public TraceLine {
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

  // What reads the values of single keys.
  void read_version(json::value& value, std::string_view key, TraceHeader&) {
    version = static_cast<int>(number(value, key, 1, 1'000'000));
    if (version > newest_trace_version) {
      fail("format version " + std::to_string(version) + " is not supported; this program reads versions 1 to " +
           std::to_string(newest_trace_version) + ": read it with the TenCache that wrote it, or a newer one");
    }
  }

  void read_made_by(json::value& value, std::string_view key, TraceHeader& header) const {
    header.provenance.made_by = choice<MadeBy>(value, key);
  }

  void read_made_with(json::value& value, std::string_view key, TraceHeader& header) {
    json::object options;
    if (value.get_object().get(options)) fail_value(value, key, "an object of names and texts");
    Provenance& provenance = header.provenance;
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

  void read_tensor_count(json::value& value, std::string_view key, TraceHeader&) {
    tensor_count_ = number(value, key, 0, none - 1);
  }
  void read_op_count(json::value& value, std::string_view key, TraceHeader&) {
    op_count_ = number(value, key, 0, none - 1);
  }

  void read_choice_count(json::value& value, std::string_view key, TraceHeader&) {
    choice_count_ = number(value, key, 0, none - 1);
  }

  // Ids say nothing that the order of the lines does not, but a gap shows lost or reordered lines.
  void check_id(json::value& value, std::size_t expected, std::string_view kind) const {
    if (number(value, "id", 0, none - 1) != expected) {
      fail_value(value, "id",
                 std::to_string(expected) + ": the ids of " + std::string(kind) + "s count up from 0 without gaps");
    }
  }
  void read_tensor_id(json::value& value, std::string_view, Tensor&) const {
    check_id(value, trace_.tensors.size(), "tensor");
  }
  void read_op_id(json::value& value, std::string_view, OpLine&) const { check_id(value, trace_.ops.size(), "op"); }

  void read_tensor_name(json::value& value, std::string_view key, Tensor&) { tensor_name_ = text(value, key); }
  NameId name(json::value& value, std::string_view key) { return trace_.names.intern(text(value, key)); }

  void read_shape(json::value& value, std::string_view key, OpLine& line) const {
    json::array array;
    if (value.get_array().get(array)) fail_value(value, key, "a list of whole numbers");
    for (auto next : array) {
      json::value element;
      check(std::move(next).get(element));  // NOLINT(performance-move-const-arg): asked for by simdjson
      if (line.shape_numbers == line.shape.size()) fail("'shape' has more than 6 numbers; no kernel has more");
      line.shape[line.shape_numbers++] = number(element, key, 0, largest_shape_number);
    }
  }

  void read_revealed_by(json::value& value, std::string_view key, OpLine& line) const {
    line.revealed_by = static_cast<OpIndex>(number(value, key, 0, none - 1));
    if (line.revealed_by >= trace_.ops.size()) fail_value(value, key, "the id of an earlier op");
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

  template <RecomputeLevel level>
  void read_again(json::value& value, std::string_view key, RecomputeChoice& choice) const {
    std::vector<OpIndex>& again = choice.again[static_cast<std::size_t>(level)];
    json::array array;
    if (value.get_array().get(array)) fail_value(value, key, "a list of op ids");
    for (auto next : array) {
      json::value element;
      check(std::move(next).get(element));  // NOLINT(performance-move-const-arg): asked for by simdjson
      again.push_back(static_cast<OpIndex>(number(element, key, 0, trace_.ops.size() - 1)));
    }
  }

  void read_reads(json::value& value, std::string_view key, OpLine&) { read_ids(value, key, reads_); }
  void read_writes(json::value& value, std::string_view key, OpLine&) { read_ids(value, key, writes_); }
  void read_frees(json::value& value, std::string_view key, OpLine&) { read_ids(value, key, frees_); }

 private:
  void read_header(json::object& object);
  void read_tensor(json::object& object);
  void read_op(json::object& object);
  void read_choice(json::object& object);

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
      case Kind::choice:
        read_choice(object);
        break;
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS) {
      fail("something follows the JSON object; a trace has one object a line");
    }
  }

  Kind read_kind(json::object& object) {
    json::value value;
    const simdjson::error_code error = object.find_field("kind").get(value);
    if (error == simdjson::NO_SUCH_FIELD) fail("the key 'kind' is missing; it is header, tensor, op or choice");
    check(error);
    const std::string_view kind = text(value, "kind");
    Kind result = Kind::header;
    if (kind == "tensor") {
      result = Kind::tensor;
    } else if (kind == "op") {
      result = Kind::op;
    } else if (kind == "choice") {
      result = Kind::choice;
    } else if (kind != "header") {
      fail("unknown kind '" + std::string(kind) + "'; it is header, tensor, op or choice");
    }
    check(object.reset().error());
    return result;
  }

  void add_to_total(std::uint64_t& total, std::uint64_t amount, const char* what) const {
    total += amount;  // both at most largest_quantity
    if (total > largest_quantity) fail("the " + std::string(what) + " add up to more than 2^61, which cannot be right");
  }

  void check_end() const {
    const auto check_count = [&](std::optional<std::uint64_t> announced, std::size_t found, const char* what) {
      if (announced.value_or(found) == found) return;
      throw Error(file_, 0,
                  "the header announces " + std::to_string(*announced) + " " + what + ", the file has " +
                      std::to_string(found) + "; lines were lost or added");
    };
    check_count(tensor_count_, trace_.tensors.size(), "tensors");
    check_count(op_count_, trace_.ops.size(), "ops");
    check_count(choice_count_, trace_.choices.size(), "choices");
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
  std::vector<TensorId> reads_, writes_, frees_;
  std::optional<std::uint64_t> tensor_count_, op_count_, choice_count_;
  std::string_view tensor_name_;
  std::uint64_t total_stored_bytes_ = 0, total_cpu_ns_ = 0, total_host_ns_ = 0;
  std::uint64_t total_bytes_ = 0, total_ns_ = 0, total_flops_ = 0, total_traffic_ = 0;
};

template <typename Line>
using Key = TraceKey<void (*)(Reader&, json::value&, std::string_view key, Line&)>;

template <auto member, std::uint64_t largest = largest_quantity, std::uint64_t smallest = 0, typename Line>
void number(Reader& reader, json::value& value, std::string_view key, Line& line) {
  auto& field = line.*member;
  field = static_cast<std::decay_t<decltype(field)>>(reader.number(value, key, smallest, largest));
}
template <auto member, typename Line>
void truth(Reader& reader, json::value& value, std::string_view key, Line& line) {
  line.*member = reader.truth(value, key);
}
template <auto member, typename Line>
void text(Reader& reader, json::value& value, std::string_view key, Line& line) {
  line.*member = reader.text(value, key);
}
template <auto member, typename Line>
void name(Reader& reader, json::value& value, std::string_view key, Line& line) {
  line.*member = reader.name(value, key);
}
template <auto member, typename Line>
void choice(Reader& reader, json::value& value, std::string_view key, Line& line) {
  auto& field = line.*member;
  using Enum = std::decay_t<decltype(field)>;
  if constexpr (requires(Enum any) { is_of_version_1(any); }) {
    field = reader.versioned_choice<Enum>(value, key);
  } else {
    field = reader.choice<Enum>(value, key);
  }
}
template <auto function, typename Line>
void by(Reader& reader, json::value& value, std::string_view key, Line& line) {
  (reader.*function)(value, key, line);
}
template <typename Line>
void known(Reader&, json::value&, std::string_view, Line&) {}  // what kind of line it is

using enum KeySince;

constexpr TraceKeys header_keys = std::to_array<Key<TraceHeader>>({
    {"kind", required, known},
    {"format_version", required, by<&Reader::read_version>},
    {"model", version_1, text<&TraceHeader::model>},
    {"batch", version_1, number<&TraceHeader::batch, 1 << 30>},
    {"sequence_length", version_1, number<&TraceHeader::sequence_length, 1 << 30>},
    {"precision", version_1, text<&TraceHeader::precision>},
    {"hardware", version_1, text<&TraceHeader::hardware>},
    {"made_by", version_3, by<&Reader::read_made_by>},
    {"made_with", version_3, by<&Reader::read_made_with>},
    {"recorded_by", version_1, text<&TraceHeader::recorded_by>},
    {"stack", version_2, text<&TraceHeader::stack>},
    {"tensor_count", version_1, by<&Reader::read_tensor_count>},
    {"op_count", version_1, by<&Reader::read_op_count>},
    {"choice_count", version_6, by<&Reader::read_choice_count>},
});

constexpr TraceKeys tensor_keys = std::to_array<Key<Tensor>>({
    {"kind", required, known},
    {"id", required, by<&Reader::read_tensor_id>},
    {"name", required, by<&Reader::read_tensor_name>},
    {"bytes", required, number<&Tensor::bytes, largest_tensor_bytes, 1>},
    {"role", required, choice<&Tensor::role>},
    {"persistent", required, truth<&Tensor::persistent>},
    {"stored_bytes", version_2, number<&Tensor::stored_bytes, largest_tensor_bytes>},
    {"profiled_uses", version_7, number<&Tensor::profiled_uses, 0xffff>},
});

constexpr TraceKeys op_keys = std::to_array<Key<OpLine>>({
    {"kind", required, known},
    {"id", required, by<&Reader::read_op_id>},
    {"name", required, name<&Op::name>},
    {"phase", required, choice<&Op::phase>},
    {"device", required, choice<&Op::device>},
    {"module", version_1, name<&Op::module>},
    {"duration_ns", required, number<&Op::duration_ns>},
    {"duration_source", required, choice<&Op::duration_source>},
    {"gap_before_ns", version_1, number<&Op::gap_before_ns>},
    {"issue_ns", version_4, number<&Op::issue_ns>},
    {"flops", version_1, number<&Op::flops>},
    {"bytes", version_1, number<&Op::bytes>},
    {"group", version_1, number<&Op::group, 0x7fff'ffff>},
    {"placeable", version_1, truth<&Op::placeable>},
    {"reorderable", version_1, truth<&Op::reorderable>},
    {"stream", version_2, choice<&Op::stream>},
    {"rank", version_1, number<&Op::rank, 0xffff>},
    {"rendezvous", version_1, name<&Op::rendezvous>},
    {"kernel", version_2, choice<&Kernel::kind>},
    {"shape", version_2, by<&Reader::read_shape>},
    {"causal", version_2, truth<&Kernel::causal>},
    {"attention_kernel", version_2, choice<&Kernel::attention>},
    {"unaligned", version_2, truth<&Kernel::unaligned>},
    {"fp8", version_2, truth<&Kernel::fp8>},
    {"launches", version_2, number<&Kernel::launches, 0xffff'ffff, 1>},
    {"step", version_2, number<&OpDetail::step, 0xffff'ffff>},
    {"revealed_by", version_2, by<&Reader::read_revealed_by>},
    {"cpu_duration_ns", version_2, number<&OpDetail::cpu_duration_ns>},
    {"reads", required, by<&Reader::read_reads>},
    {"writes", required, by<&Reader::read_writes>},
    {"frees", version_5, by<&Reader::read_frees>},
});
constexpr TraceKeys choice_keys = std::to_array<Key<RecomputeChoice>>({
    {"kind", required, known},
    {"module", required, name<&RecomputeChoice::module>},
    {"micro_batch", version_6, number<&RecomputeChoice::micro_batch, 0xffff'ffff>},
    {"before", required, number<&RecomputeChoice::before, none - 1>},
    {"elementwise", version_6, by<&Reader::read_again<RecomputeLevel::elementwise>>},
    {"attention", version_6, by<&Reader::read_again<RecomputeLevel::attention>>},
    {"block", version_6, by<&Reader::read_again<RecomputeLevel::block>>},
});

constexpr std::uint32_t of_kernel =
    op_keys.bits({"kernel", "shape", "causal", "attention_kernel", "unaligned", "fp8", "launches"});
constexpr std::uint32_t of_detail = op_keys.bits({"step", "revealed_by", "cpu_duration_ns"});

void Reader::read_header(json::object& object) {
  if (number_in_file != 1) fail("a second header; a trace has one, on its first line");
  TraceHeader& header = trace_.header;
  each_field(object, header_keys,
             [&](const auto& key, json::value value) { key.read(*this, value, key.name, header); });
  if (version < 3) header.provenance = provenance_of_sentence(header.recorded_by);
  // A wrong count is found at the end; until then it may not cost memory that the file itself does not justify.
  trace_.tensors.reserve(std::min<std::size_t>(tensor_count_.value_or(0), text_.size() / shortest_line_bytes));
  trace_.ops.reserve(std::min<std::size_t>(op_count_.value_or(0), text_.size() / shortest_line_bytes));
  trace_.names.reserve(trace_.tensors.capacity());  // theirs differ, those of ops mostly do not
}

void Reader::read_tensor(json::object& object) {
  if (number_in_file == 1) fail("a tensor before the header; the first line of a trace is the header");
  if (!trace_.ops.empty()) fail("a tensor after the first op; all tensors come before all ops");
  Tensor tensor;
  each_field(object, tensor_keys,
             [&](const auto& key, json::value value) { key.read(*this, value, key.name, tensor); });
  add_to_total(total_bytes_, tensor.bytes, "sizes of the tensors");
  add_to_total(total_stored_bytes_, tensor.stored_bytes, "stored sizes of the tensors");
  const TensorId added = trace_.add_tensor(tensor_name_, tensor.bytes, tensor.role, tensor.persistent);
  if (tensor.stored_bytes != tensor.bytes) trace_.tensors[added].stored_bytes = tensor.stored_bytes;
  trace_.tensors[added].profiled_uses = tensor.profiled_uses;
}

// What the keys of a kernel demand of each other.
void check_kernel(const Reader& reader, const OpLine& line, std::uint32_t seen) {
  constexpr std::uint32_t shape = op_keys.bits({"shape"});
  const std::size_t wanted = shape_size(line.kind);
  if ((seen & shape) != 0 && wanted == 0) {
    reader.fail(
        "'shape' is for the kernels matmul, attention, attention_backward and collective; leave it out of others");
  }
  if (line.shape_numbers != wanted) {
    reader.fail(((seen & shape) != 0 ? "'shape' has " + std::to_string(line.shape_numbers) + " numbers"
                                     : "'shape' is missing") +
                "; a kernel of kind '" + std::string(to_string(line.kind)) + "' takes " + std::to_string(wanted) +
                ": " + shape_names(line.kind));
  }
  const auto check = [&](std::uint32_t keys, bool belong, const char* where) {
    if (belong || (seen & keys) == 0) return;
    const auto first = static_cast<std::size_t>(std::countr_zero(seen & keys));
    reader.fail("'" + std::string(op_keys.all[first].name) + "' is for the " + where + "; leave it out of others");
  };
  constexpr std::uint32_t of_attention = op_keys.bits({"causal", "attention_kernel"});
  constexpr std::uint32_t of_matmul = op_keys.bits({"unaligned", "fp8"});
  check(of_attention, is_attention(line.kind), "kernels attention and attention_backward");
  check(of_matmul, line.kind == KernelKind::matmul, "kernel matmul");
}

void Reader::read_op(json::object& object) {
  if (number_in_file == 1) fail("an op before the header; the first line of a trace is the header");
  if (!trace_.choices.empty()) fail("an op after the first choice; all ops come before all choices");
  OpLine line;
  frees_.clear();
  const std::uint32_t seen =
      each_field(object, op_keys, [&](const auto& key, json::value value) { key.read(*this, value, key.name, line); });
  Op& op = line;
  if ((seen & of_kernel) != 0) {
    check_kernel(*this, line, seen);
    op.kernel = trace_.kernels.intern(line);
  }
  if ((seen & of_detail) != 0) {
    add_to_total(total_cpu_ns_, static_cast<std::uint64_t>(line.cpu_duration_ns), "times on the CPU");
    op.detail = trace_.add_detail(line);
  }
  add_to_total(total_ns_, static_cast<std::uint64_t>(op.duration_ns), "durations");
  add_to_total(total_ns_, static_cast<std::uint64_t>(op.gap_before_ns), "durations and gaps");
  add_to_total(total_host_ns_, static_cast<std::uint64_t>(op.issue_ns), "times of the host");
  add_to_total(total_flops_, op.flops, "flops");
  add_to_total(total_traffic_, op.bytes, "bytes of the ops");
  trace_.add_op(op, reads_, writes_, frees_);
}

void Reader::read_choice(json::object& object) {
  if (version < 6) fail_version("kind 'choice'", 6);
  if (trace_.ops.empty()) fail("a choice before the first op; choices come after all ops");
  RecomputeChoice choice;
  each_field(object, choice_keys,
             [&](const auto& key, json::value value) { key.read(*this, value, key.name, choice); });
  trace_.choices.push_back(std::move(choice));
}

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
