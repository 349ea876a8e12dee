// Traces as arrays: copies out, checked copies in, so that no array can outlive or break a trace.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "core/error.h"
#include "core/trace.h"
#include "python/bindings.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

// Tensors, ops, kernels and details of a trace as rows of NumPy arrays, and back with every number checked.

inline constexpr std::size_t device_count = 2, duration_source_count = 2, op_stream_count = 2;

struct TensorRow {
  std::uint64_t bytes, stored_bytes;
  std::uint32_t name;
  std::uint16_t profiled_uses;
  std::uint8_t role;
  bool persistent;
};

struct OpRow {
  std::int64_t duration_ns, gap_before_ns, issue_ns;
  std::uint64_t flops, bytes;
  std::uint32_t name, module, rendezvous, kernel, detail;
  std::int32_t group;
  std::uint16_t rank;
  std::uint8_t phase, device, duration_source, stream;
  bool placeable, reorderable;
};

struct KernelRow {
  std::uint64_t shape[6];
  std::uint32_t launches;
  std::uint8_t kind, attention;
  bool causal, unaligned, fp8;
};

struct DetailRow {
  std::int64_t cpu_duration_ns;
  std::uint32_t step, revealed_by;
};

template <typename T>
using ArrayColumn = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
void check_line(const ArrayColumn<T>& array, const char* name) {
  if (array.ndim() != 1) throw Error(std::string(name) + ": must have one dimension");
}

// Throws Error where the value is not below the count of what there is.
void check_below(std::uint64_t value, std::uint64_t count, const char* what, std::size_t row) {
  if (value < count) return;
  throw Error("row " + std::to_string(row) + ": " + what + " " + std::to_string(value) + " does not exist; there are " +
              std::to_string(count));
}

TensorRow row_of(const Tensor& tensor) {
  return {
      tensor.bytes,     tensor.stored_bytes, tensor.name, tensor.profiled_uses, static_cast<std::uint8_t>(tensor.role),
      tensor.persistent};
}

OpRow row_of(const Op& op) {
  return {op.duration_ns,
          op.gap_before_ns,
          op.issue_ns,
          op.flops,
          op.bytes,
          op.name,
          op.module,
          op.rendezvous,
          op.kernel,
          op.detail,
          op.group,
          op.rank,
          static_cast<std::uint8_t>(op.phase),
          static_cast<std::uint8_t>(op.device),
          static_cast<std::uint8_t>(op.duration_source),
          static_cast<std::uint8_t>(op.stream),
          op.placeable,
          op.reorderable};
}

KernelRow row_of(const Kernel& kernel) {
  KernelRow row{{},
                kernel.launches,
                static_cast<std::uint8_t>(kernel.kind),
                static_cast<std::uint8_t>(kernel.attention),
                kernel.causal,
                kernel.unaligned,
                kernel.fp8};
  std::ranges::copy(kernel.shape, row.shape);
  return row;
}

DetailRow row_of(const OpDetail& detail) { return {detail.cpu_duration_ns, detail.step, detail.revealed_by}; }

Tensor tensor_of(const TensorRow& row, const NamePool& names, std::size_t index) {
  check_below(row.name, names.size(), "name", index);
  check_below(row.role, role_count, "role", index);
  return {.name = row.name,
          .role = static_cast<Role>(row.role),
          .persistent = row.persistent,
          .profiled_uses = row.profiled_uses,
          .bytes = row.bytes,
          .stored_bytes = row.stored_bytes};
}

// All but the accesses. The names, kernels and details are the trace's.
Op op_of(const OpRow& row, const Trace& trace, std::size_t index) {
  const NamePool& names = trace.names;
  check_below(row.name, names.size(), "name", index);
  check_below(row.module, names.size(), "module", index);
  check_below(row.rendezvous, names.size(), "rendezvous", index);
  check_below(row.kernel, trace.kernels.size(), "kernel", index);
  check_below(row.detail, trace.details.size(), "detail", index);
  check_below(row.phase, phase_count, "phase", index);
  check_below(row.device, device_count, "device", index);
  check_below(row.duration_source, duration_source_count, "duration_source", index);
  check_below(row.stream, op_stream_count, "stream", index);
  Op op;
  op.name = row.name;
  op.module = row.module;
  op.rendezvous = row.rendezvous;
  op.kernel = row.kernel;
  op.detail = row.detail;
  op.group = row.group;
  op.phase = static_cast<Phase>(row.phase);
  op.device = static_cast<Device>(row.device);
  op.duration_source = static_cast<DurationSource>(row.duration_source);
  op.stream = static_cast<OpStream>(row.stream);
  op.placeable = row.placeable;
  op.reorderable = row.reorderable;
  op.rank = row.rank;
  op.duration_ns = row.duration_ns;
  op.gap_before_ns = row.gap_before_ns;
  op.issue_ns = row.issue_ns;
  op.flops = row.flops;
  op.bytes = row.bytes;
  return op;
}

// All of a trace that has none yet. Row 0 is that of ops of which nothing is known.
void take_kernels(Trace& trace, const ArrayColumn<KernelRow>& rows) {
  check_line(rows, "kernels");
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()); ++i) {
    const KernelRow& row = rows.data()[i];
    check_below(row.kind, kernel_kind_count, "kind", i);
    check_below(row.attention, attention_kernel_count, "attention", i);
    Kernel kernel{static_cast<KernelKind>(row.kind),
                  static_cast<AttentionKernel>(row.attention),
                  row.causal,
                  row.unaligned,
                  row.fp8,
                  row.launches,
                  std::to_array(row.shape)};
    if (trace.kernels.intern(kernel) == i) continue;
    throw Error("kernels: row " + std::to_string(i) +
                (i == 0 ? " is for ops without a kernel: unknown, launched once" : " came before"));
  }
}

void take_details(Trace& trace, const ArrayColumn<DetailRow>& rows) {
  check_line(rows, "details");
  trace.details.clear();
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()); ++i) {
    const DetailRow& row = rows.data()[i];
    trace.details.push_back({row.step, row.revealed_by, row.cpu_duration_ns});
  }
  if (trace.details.empty() || trace.details.front() != OpDetail{}) {
    throw Error("details: row 0 is for ops without a detail: step 0, revealed_by NONE, cpu_duration_ns 0");
  }
}

template <typename Row, typename Items>
py::array rows_of(const Items& items) {
  std::vector<Row> rows;
  rows.reserve(items.size());
  for (const auto& item : items) rows.push_back(row_of(item));
  return to_array(rows);
}

void set_tensors(PythonTrace& self, const ArrayColumn<TensorRow>& rows) {
  check_line(rows, "tensors");
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()); ++i) {
    tensors.push_back(tensor_of(rows.data()[i], self.trace.names, i));
  }
  if (tensors.size() != self.trace.tensors.size()) {
    throw Error("tensors: the trace has " + std::to_string(self.trace.tensors.size()) + ", these are " +
                std::to_string(tensors.size()) + "; make a new trace with Trace.from_arrays");
  }
  self.trace.tensors = std::move(tensors);
  ++self.revision;
}

void set_ops(PythonTrace& self, const ArrayColumn<OpRow>& rows) {
  check_line(rows, "ops");
  if (static_cast<std::size_t>(rows.size()) != self.trace.ops.size()) {
    throw Error("ops: the trace has " + std::to_string(self.trace.ops.size()) + ", these are " +
                std::to_string(rows.size()) + "; make a new trace with Trace.from_arrays");
  }
  std::vector<Op> ops;
  for (std::size_t i = 0; i < self.trace.ops.size(); ++i) {
    Op op = op_of(rows.data()[i], self.trace, i);
    op.accesses = self.trace.ops[i].accesses;
    ops.push_back(op);
  }
  self.trace.ops = std::move(ops);
  ++self.revision;
}

py::tuple accesses(const PythonTrace& self, std::span<const TensorId> (Trace::*of)(const Op&) const) {
  std::vector<std::int64_t> offsets{0};
  std::vector<TensorId> ids;
  for (const Op& op : self.trace.ops) {
    const std::span<const TensorId> list = (self.trace.*of)(op);
    ids.insert(ids.end(), list.begin(), list.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  return py::make_tuple(to_array(offsets), to_array(ids));
}

py::dict header_of(const PythonTrace& self) {
  const TraceHeader& header = self.trace.header;
  py::dict result;
  result["model"] = to_text(header.model);
  result["batch"] = header.batch;
  result["sequence_length"] = header.sequence_length;
  result["precision"] = to_text(header.precision);
  result["hardware"] = to_text(header.hardware);
  result["made_by"] = to_text(to_string(header.provenance.made_by));
  py::dict made_with;
  for (const auto& [name, text] : header.provenance.made_with) made_with[to_text(name)] = to_text(text);
  result["made_with"] = made_with;
  result["recorded_by"] = to_text(header.recorded_by);
  result["stack"] = to_text(header.stack);
  return result;
}

void set_header(PythonTrace& self, const py::dict& values) {
  static const std::map<std::string_view, std::string TraceHeader::*> texts = {
      {"model", &TraceHeader::model},
      {"precision", &TraceHeader::precision},
      {"hardware", &TraceHeader::hardware},
      {"recorded_by", &TraceHeader::recorded_by},
      {"stack", &TraceHeader::stack}};
  TraceHeader header;
  for (const auto& [key, value] : values) {
    const std::string name = py::cast<std::string>(key);
    if (const auto words = texts.find(name); words != texts.end()) {
      header.*words->second = py::cast<std::string>(value);
    } else if (name == "batch" || name == "sequence_length") {
      (name == "batch" ? header.batch : header.sequence_length) = py::cast<std::uint64_t>(value);
    } else if (name == "made_by") {
      const std::string text = py::cast<std::string>(value);  // empty: not known
      if (!text.empty()) header.provenance.made_by = named<MadeBy>(text, "made_by");
    } else if (name == "made_with") {
      for (const auto& [option, text] : py::cast<py::dict>(value)) {
        header.provenance.made_with.emplace_back(py::cast<std::string>(option), py::cast<std::string>(text));
      }
    } else {
      throw Error("header: unknown key '" + name +
                  "'; valid are model, batch, sequence_length, precision, hardware, made_by, made_with, recorded_by, "
                  "stack");
    }
  }
  self.trace.header = std::move(header);
  ++self.revision;
}

py::list choices_of(const PythonTrace& self) {
  py::list choices;
  for (const RecomputeChoice& choice : self.trace.choices) {
    py::dict one;
    one["module"] = to_text(self.trace.names[choice.module]);
    one["micro_batch"] = choice.micro_batch;
    one["before"] = choice.before;
    for (std::size_t level = 1; level < recompute_level_count; ++level) {
      if (choice.again[level].empty()) continue;
      one[py::str(std::string(enum_texts<RecomputeLevel>[level]))] = choice.again[level];
    }
    choices.append(std::move(one));
  }
  return choices;
}

void set_choices(PythonTrace& self, const py::list& values) {
  Trace with = self.trace;
  with.choices.clear();
  for (const auto& value : values) {
    RecomputeChoice choice;
    for (const auto& [key, given] : py::cast<py::dict>(value)) {
      const auto name = py::cast<std::string>(key);
      if (name == "module") {
        choice.module = with.names.intern(py::cast<std::string>(given));
      } else if (name == "micro_batch" || name == "before") {
        (name == "before" ? choice.before : choice.micro_batch) = py::cast<std::uint32_t>(given);
      } else if (name != "kind") {
        choice.again[static_cast<std::size_t>(named<RecomputeLevel>(name, "level"))] =
            py::cast<std::vector<OpIndex>>(given);
      }
    }
    with.choices.push_back(std::move(choice));
  }
  with.validate();
  self.trace = std::move(with);
  ++self.revision;
}

template <typename Items, typename Name>
py::list texts_of(const Items& items, Name name) {
  py::list texts(items.size());
  std::size_t i = 0;
  for (const auto& item : items) texts[i++] = to_text(name(item));
  return texts;
}

// One side of the accesses: offsets[i] to offsets[i + 1] are those of op i.
struct Lists {
  ArrayColumn<std::int64_t> offsets;
  ArrayColumn<TensorId> ids;

  Lists(const py::object& pair, const char* name, std::size_t ops, std::size_t tensors) {
    const auto two = py::cast<std::pair<ArrayColumn<std::int64_t>, ArrayColumn<TensorId>>>(pair);
    offsets = two.first;
    ids = two.second;
    check_line(offsets, name);
    check_line(ids, name);
    bool good = static_cast<std::size_t>(offsets.size()) == ops + 1 && offsets.data()[0] == 0 &&
                offsets.data()[ops] == ids.size();
    for (std::size_t i = 0; good && i < ops; ++i) good = offsets.data()[i] <= offsets.data()[i + 1];
    if (!good) {
      throw Error(std::string(name) +
                  ": write (offsets, tensor ids) with one offset more than ops, from 0 to the number "
                  "of ids, none below the one before");
    }
    for (py::ssize_t i = 0; i < ids.size(); ++i) {
      check_below(ids.data()[i], tensors, "tensor", static_cast<std::size_t>(i));
    }
  }
  std::span<const TensorId> of(std::size_t op) const {
    return {ids.data() + offsets.data()[op], ids.data() + offsets.data()[op + 1]};
  }
};

std::shared_ptr<PythonTrace> from_arrays(const py::dict& header, const std::vector<std::string>& names,
                                         const ArrayColumn<TensorRow>& tensors, const ArrayColumn<OpRow>& ops,
                                         const py::object& reads, const py::object& writes,
                                         const std::optional<ArrayColumn<KernelRow>>& kernels,
                                         const std::optional<ArrayColumn<DetailRow>>& details,
                                         const std::optional<py::object>& frees) {
  auto made = std::make_shared<PythonTrace>();
  set_header(*made, header);
  Trace& trace = made->trace;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (trace.names.intern(names[i]) == i) continue;
    throw Error("names: '" + names[i] + "' has index " + std::to_string(i) +
                (i == 0 ? ", which is for \"\"" : ", and came before"));
  }
  if (kernels) take_kernels(trace, *kernels);
  if (details) take_details(trace, *details);
  check_line(tensors, "tensors");
  check_line(ops, "ops");
  const auto tensor_count = static_cast<std::size_t>(tensors.size()), op_count = static_cast<std::size_t>(ops.size());
  for (std::size_t i = 0; i < tensor_count; ++i) trace.tensors.push_back(tensor_of(tensors.data()[i], trace.names, i));
  const Lists read(reads, "reads", op_count, tensor_count), write(writes, "writes", op_count, tensor_count);
  std::optional<Lists> freed;
  if (frees) freed.emplace(*frees, "frees", op_count, tensor_count);
  for (std::size_t i = 0; i < op_count; ++i) {
    const std::span<const TensorId> none_or_some = freed ? freed->of(i) : std::span<const TensorId>();
    trace.add_op(op_of(ops.data()[i], trace, i), read.of(i), write.of(i), none_or_some);
  }
  return made;
}

TensorId add_tensor(PythonTrace& self, const std::string& name, Bytes bytes, const std::string& role, bool persistent,
                    Bytes stored_bytes, std::uint16_t profiled_uses) {
  const TensorId id = self.trace.add_tensor(name, bytes, named<Role>(role, "role"), persistent);
  self.trace.tensors[id].stored_bytes = stored_bytes;
  self.trace.tensors[id].profiled_uses = profiled_uses;
  ++self.revision;
  return id;
}

// The texts are empty where that is not known.
Kernel kernel_of(const std::string& kind, const std::vector<std::uint64_t>& shape, bool causal,
                 const std::string& attention_kernel, bool unaligned, bool fp8, std::uint32_t launches) {
  Kernel kernel;
  if (!kind.empty()) kernel.kind = named<KernelKind>(kind, "kernel");
  if (!attention_kernel.empty()) {
    kernel.attention = named<AttentionKernel>(attention_kernel, "attention_kernel");
  }
  kernel.causal = causal;
  kernel.unaligned = unaligned;
  kernel.fp8 = fp8;
  kernel.launches = launches;
  if (shape.size() != shape_size(kernel.kind)) {
    throw Error("shape: has " + std::to_string(shape.size()) + " numbers; a kernel of kind '" + to_string(kernel.kind) +
                "' takes " + std::to_string(shape_size(kernel.kind)));
  }
  std::ranges::copy(shape, kernel.shape.begin());
  return kernel;
}

OpIndex add_op(PythonTrace& self, const std::string& name, const std::vector<TensorId>& reads,
               const std::vector<TensorId>& writes, Nanoseconds duration_ns, const std::string& phase,
               const std::string& device, const std::string& duration_source, const std::string& module,
               Nanoseconds gap_before_ns, std::uint64_t flops, Bytes bytes, std::int32_t group, bool placeable,
               bool reorderable, std::uint16_t rank, const std::string& rendezvous, const std::string& kernel,
               const std::vector<std::uint64_t>& shape, bool causal, const std::string& attention_kernel,
               bool unaligned, bool fp8, std::uint32_t launches, std::uint32_t step, std::optional<OpIndex> revealed_by,
               Nanoseconds cpu_duration_ns, const std::string& stream, Nanoseconds issue_ns,
               const std::vector<TensorId>& frees) {
  for (const std::vector<TensorId>* list : {&reads, &writes, &frees}) {
    for (const TensorId id : *list) check_below(id, self.trace.tensors.size(), "tensor", self.trace.ops.size());
  }
  if (revealed_by) check_below(*revealed_by, self.trace.ops.size(), "revealed_by", self.trace.ops.size());
  const Kernel launched = kernel_of(kernel, shape, causal, attention_kernel, unaligned, fp8, launches);
  Op op;
  op.name = self.trace.names.intern(name);
  op.module = self.trace.names.intern(module);
  op.rendezvous = self.trace.names.intern(rendezvous);
  op.group = group;
  op.phase = named<Phase>(phase, "phase");
  op.device = named<Device>(device, "device");
  op.duration_source = named<DurationSource>(duration_source, "duration_source");
  op.stream = named<OpStream>(stream, "stream");
  op.placeable = placeable;
  op.reorderable = reorderable;
  op.rank = rank;
  op.duration_ns = duration_ns;
  op.gap_before_ns = gap_before_ns;
  op.issue_ns = issue_ns;
  op.flops = flops;
  op.bytes = bytes;
  op.kernel = self.trace.kernels.intern(launched);
  op.detail = self.trace.add_detail({step, revealed_by.value_or(none), cpu_duration_ns});
  ++self.revision;
  return self.trace.add_op(op, reads, writes, frees);
}

using TraceClass = py::class_<PythonTrace, std::shared_ptr<PythonTrace>>;

// From a file, from arrays, op by op.
void bind_making(TraceClass& trace) {
  trace.def(py::init([](const py::kwargs& header) {
              auto made = std::make_shared<PythonTrace>();
              set_header(*made, header);
              return made;
            }),
            "An empty trace; keywords are the header's: model, batch, sequence_length, precision, hardware, "
            "made_by, made_with, recorded_by, stack.");
  trace.def_static(
      "_load",
      [](const std::string& path) {
        const py::gil_scoped_release others_may_run;
        return std::make_shared<PythonTrace>(PythonTrace{read_trace(path)});
      },
      py::arg("path"));
  trace.def(
      "_save",
      [](const PythonTrace& self, const std::string& path) {
        self.trace.validate();
        write_trace(self.trace, path);
      },
      py::arg("path"));
  trace.def_static("from_arrays", &from_arrays, py::arg("header"), py::arg("names"), py::arg("tensors"), py::arg("ops"),
                   py::arg("reads"), py::arg("writes"), py::arg("kernels") = py::none(),
                   py::arg("details") = py::none(), py::arg("frees") = py::none(),
                   "A trace from what `header`, `names`, `tensors`, `ops`, `reads` and `writes` of another give, and "
                   "`kernels`, `details` and `frees` if its ops have any. names[0] is ''.");
  trace.def("add_tensor", &add_tensor, py::arg("name"), py::arg("bytes"), py::arg("role"),
            py::arg("persistent") = false, py::arg("stored_bytes") = 0, py::arg("profiled_uses") = 0,
            "Appends a tensor; returns its id.");
  trace.def(
      "add_op", &add_op, py::arg("name"), py::kw_only(), py::arg("reads"), py::arg("writes"), py::arg("duration_ns"),
      py::arg("phase"), py::arg("device") = "gpu", py::arg("duration_source") = "measured", py::arg("module") = "",
      py::arg("gap_before_ns") = 0, py::arg("flops") = 0, py::arg("bytes") = 0, py::arg("group") = -1,
      py::arg("placeable") = false, py::arg("reorderable") = false, py::arg("rank") = 0, py::arg("rendezvous") = "",
      py::arg("kernel") = "", py::arg("shape") = std::vector<std::uint64_t>(), py::arg("causal") = false,
      py::arg("attention_kernel") = "", py::arg("unaligned") = false, py::arg("fp8") = false, py::arg("launches") = 1,
      py::arg("step") = 0, py::arg("revealed_by") = py::none(), py::arg("cpu_duration_ns") = 0,
      py::arg("stream") = "compute", py::arg("issue_ns") = 0, py::arg("frees") = std::vector<TensorId>(),
      "Appends an op; `reads`, `writes` and `frees` are tensor ids. Returns its index.");
  trace.def(
      "name_id",
      [](PythonTrace& self, const std::string& text) {
        ++self.revision;
        return self.trace.names.intern(text);
      },
      py::arg("text"), "The index of the text in `names`, where it is added if it is new.");
  trace.def(
      "validate", [](const PythonTrace& self) { self.trace.validate(); },
      "Raises Error where the trace cannot be run: no ops, a tensor of 0 bytes, a tensor read before it is written.");
}

void bind_contents(TraceClass& trace) {
  trace.def_readonly("_revision", &PythonTrace::revision);
  trace.def_property("header", &header_of, &set_header, "A dict: model, batch, sequence_length, precision, …; a copy.");
  trace.def_property(
      "tensors", [](const PythonTrace& self) { return rows_of<TensorRow>(self.trace.tensors); }, &set_tensors,
      "A structured array: bytes, name (an index of `names`), role (of ROLES), persistent, stored_bytes (0: bytes), "
      "profiled_uses.");
  trace.def_property(
      "ops", [](const PythonTrace& self) { return rows_of<OpRow>(self.trace.ops); }, &set_ops,
      "A structured array: duration_ns, gap_before_ns, issue_ns, flops, bytes, name, module, rendezvous (indices of "
      "`names`), kernel (of `kernels`), detail (of `details`), group, rank, phase (of PHASES), device (of DEVICES), "
      "duration_source, stream (of STREAMS), placeable, reorderable.");
  trace.def_property(
      "choices", &choices_of, &set_choices,
      "How else what layers made can be had for their backward passes (docs/trace-format.md): dicts of module, "
      "micro_batch, before, and by level the ops that run again.");
  trace.def_property_readonly(
      "kernels",
      [](const PythonTrace& self) {
        std::vector<KernelRow> rows;
        for (std::size_t i = 0; i < self.trace.kernels.size(); ++i) {
          rows.push_back(row_of(self.trace.kernels[static_cast<KernelId>(i)]));
        }
        return to_array(rows);
      },
      "A structured array: kind (of KERNELS), shape, causal, attention (of ATTENTION_KERNELS), unaligned, fp8, "
      "launches. Row 0 is that "
      "of ops whose kernel is not known.");
  trace.def_property_readonly(
      "details", [](const PythonTrace& self) { return rows_of<DetailRow>(self.trace.details); },
      "A structured array: step, revealed_by (an op, or NONE), cpu_duration_ns (0: not known). Row 0 is that of ops "
      "of which no more is known.");
  trace.def_property_readonly(
      "reads", [](const PythonTrace& self) { return accesses(self, &Trace::reads); },
      "(offsets, tensor ids): op i reads ids[offsets[i]:offsets[i + 1]], in access order.");
  trace.def_property_readonly(
      "writes", [](const PythonTrace& self) { return accesses(self, &Trace::writes); },
      "(offsets, tensor ids): op i writes ids[offsets[i]:offsets[i + 1]], in access order.");
  trace.def_property_readonly(
      "frees", [](const PythonTrace& self) { return accesses(self, &Trace::frees); },
      "(offsets, tensor ids): with op i the program lets go of ids[offsets[i]:offsets[i + 1]], later than their last "
      "use.");
  trace.def_property_readonly(
      "names",
      [](const PythonTrace& self) {
        py::list texts(self.trace.names.size());
        for (std::size_t i = 0; i < self.trace.names.size(); ++i) {
          texts[i] = to_text(self.trace.names[static_cast<NameId>(i)]);
        }
        return texts;
      },
      "All names, by index.");
  trace.def_property_readonly(
      "tensor_names",
      [](const PythonTrace& self) {
        return texts_of(self.trace.tensors, [&](const Tensor& tensor) { return self.trace.name(tensor); });
      },
      "A name a tensor.");
  trace.def_property_readonly(
      "op_names",
      [](const PythonTrace& self) {
        return texts_of(self.trace.ops, [&](const Op& op) { return self.trace.name(op); });
      },
      "A name an op.");
  trace.def_property_readonly(
      "op_modules",
      [](const PythonTrace& self) {
        return texts_of(self.trace.ops, [&](const Op& op) { return self.trace.module(op); });
      },
      "The module of each op, '' where it has none.");
  trace.def_property_readonly(
      "op_phases",
      [](const PythonTrace& self) {
        return texts_of(self.trace.ops, [](const Op& op) { return to_string(op.phase); });
      },
      "The phase of each op.");
  trace.def_property_readonly(
      "persistent_tensors",
      [](const PythonTrace& self) {
        std::vector<TensorId> ids;
        for (TensorId id = 0; id < self.trace.tensors.size(); ++id) {
          if (self.trace.tensors[id].persistent) ids.push_back(id);
        }
        return ids;
      },
      "The ids of tensors that keep their content from one iteration to the next.");
  trace.def("__repr__", [](const PythonTrace& self) {
    return "<tencache.Trace of " + (self.trace.header.model.empty() ? "a model" : self.trace.header.model) + ": " +
           std::to_string(self.trace.ops.size()) + " ops, " + std::to_string(self.trace.tensors.size()) + " tensors>";
  });
}

}  // namespace

void bind_trace(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(TensorRow, bytes, stored_bytes, name, profiled_uses, role, persistent);
  PYBIND11_NUMPY_DTYPE(OpRow, duration_ns, gap_before_ns, issue_ns, flops, bytes, name, module, rendezvous, kernel,
                       detail, group, rank, phase, device, duration_source, stream, placeable, reorderable);
  PYBIND11_NUMPY_DTYPE(KernelRow, shape, launches, kind, attention, causal, unaligned, fp8);
  PYBIND11_NUMPY_DTYPE(DetailRow, cpu_duration_ns, step, revealed_by);
  module.attr("ROLES") = names_of<Role>(role_count);
  module.attr("PHASES") = names_of<Phase>(phase_count);
  module.attr("DEVICES") = names_of<Device>(device_count);
  module.attr("STREAMS") = names_of<OpStream>(op_stream_count);
  module.attr("DURATION_SOURCES") = names_of<DurationSource>(duration_source_count);
  module.attr("KERNELS") = names_of<KernelKind>(kernel_kind_count);
  module.attr("ATTENTION_KERNELS") = names_of<AttentionKernel>(attention_kernel_count);
  module.attr("KERNEL_DTYPE") = py::dtype::of<KernelRow>();
  module.attr("DETAIL_DTYPE") = py::dtype::of<DetailRow>();
  module.attr("TENSOR_DTYPE") = py::dtype::of<TensorRow>();
  module.attr("OP_DTYPE") = py::dtype::of<OpRow>();

  TraceClass trace(
      module, "Trace", py::dynamic_attr(),
      "One steady training iteration: ops that read and write tensors, each named by its index. Arrays are copies; "
      "assign them to change the trace.");
  trace.attr("__module__") = "tencache";
  bind_making(trace);
  bind_contents(trace);
}

}  // namespace tencache
