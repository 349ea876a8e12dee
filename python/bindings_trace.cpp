// Traces as arrays: copies out, checked copies in, so that no array can outlive or break a trace.
#include <array>

#include "core/error.h"
#include "python/bindings.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

constexpr std::size_t device_count = 2, duration_source_count = 2;

struct TensorRow {
  std::uint64_t bytes;
  std::uint32_t name;
  std::uint8_t role;
  bool persistent;
};

struct OpRow {
  std::int64_t duration_ns, gap_before_ns;
  std::uint64_t flops, bytes;
  std::uint32_t name, module, rendezvous;
  std::int32_t group;
  std::uint16_t rank;
  std::uint8_t phase, device, duration_source;
  bool placeable, reorderable;
};

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

void check_below(std::uint64_t value, std::uint64_t count, const char* what, std::size_t row) {
  if (value < count) return;
  throw Error("row " + std::to_string(row) + ": " + what + " " + std::to_string(value) + " does not exist; there are " +
              std::to_string(count));
}

template <typename T>
void check_line(const Column<T>& array, const char* name) {
  if (array.ndim() != 1) throw Error(std::string(name) + ": must have one dimension");
}

TensorRow row_of(const Tensor& tensor) {
  return {tensor.bytes, tensor.name, static_cast<std::uint8_t>(tensor.role), tensor.persistent};
}

OpRow row_of(const Op& op) {
  return {op.duration_ns,
          op.gap_before_ns,
          op.flops,
          op.bytes,
          op.name,
          op.module,
          op.rendezvous,
          op.group,
          op.rank,
          static_cast<std::uint8_t>(op.phase),
          static_cast<std::uint8_t>(op.device),
          static_cast<std::uint8_t>(op.duration_source),
          op.placeable,
          op.reorderable};
}

Tensor tensor_of(const TensorRow& row, const NamePool& names, std::size_t index) {
  check_below(row.name, names.size(), "name", index);
  check_below(row.role, role_count, "role", index);
  return {row.name, row.bytes, static_cast<Role>(row.role), row.persistent};
}

// All but the accesses.
Op op_of(const OpRow& row, const NamePool& names, std::size_t index) {
  check_below(row.name, names.size(), "name", index);
  check_below(row.module, names.size(), "module", index);
  check_below(row.rendezvous, names.size(), "rendezvous", index);
  check_below(row.phase, phase_count, "phase", index);
  check_below(row.device, device_count, "device", index);
  check_below(row.duration_source, duration_source_count, "duration_source", index);
  Op op;
  op.name = row.name;
  op.module = row.module;
  op.rendezvous = row.rendezvous;
  op.group = row.group;
  op.phase = static_cast<Phase>(row.phase);
  op.device = static_cast<Device>(row.device);
  op.duration_source = static_cast<DurationSource>(row.duration_source);
  op.placeable = row.placeable;
  op.reorderable = row.reorderable;
  op.rank = row.rank;
  op.duration_ns = row.duration_ns;
  op.gap_before_ns = row.gap_before_ns;
  op.flops = row.flops;
  op.bytes = row.bytes;
  return op;
}

template <typename Row, typename Items>
py::array rows_of(const Items& items) {
  std::vector<Row> rows;
  rows.reserve(items.size());
  for (const auto& item : items) rows.push_back(row_of(item));
  return to_array(rows);
}

void set_tensors(PythonTrace& self, const Column<TensorRow>& rows) {
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

void set_ops(PythonTrace& self, const Column<OpRow>& rows) {
  check_line(rows, "ops");
  if (static_cast<std::size_t>(rows.size()) != self.trace.ops.size()) {
    throw Error("ops: the trace has " + std::to_string(self.trace.ops.size()) + ", these are " +
                std::to_string(rows.size()) + "; make a new trace with Trace.from_arrays");
  }
  std::vector<Op> ops;
  for (std::size_t i = 0; i < self.trace.ops.size(); ++i) {
    Op op = op_of(rows.data()[i], self.trace.names, i);
    op.first_access = self.trace.ops[i].first_access;
    op.read_count = self.trace.ops[i].read_count;
    op.write_count = self.trace.ops[i].write_count;
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
  result["recorded_by"] = to_text(header.recorded_by);
  return result;
}

void set_header(PythonTrace& self, const py::dict& values) {
  TraceHeader header;
  for (const auto& [key, value] : values) {
    const std::string name = py::cast<std::string>(key);
    if (name == "model") {
      header.model = py::cast<std::string>(value);
    } else if (name == "batch") {
      header.batch = py::cast<std::uint64_t>(value);
    } else if (name == "sequence_length") {
      header.sequence_length = py::cast<std::uint64_t>(value);
    } else if (name == "precision") {
      header.precision = py::cast<std::string>(value);
    } else if (name == "hardware") {
      header.hardware = py::cast<std::string>(value);
    } else if (name == "recorded_by") {
      header.recorded_by = py::cast<std::string>(value);
    } else {
      throw Error("header: unknown key '" + name +
                  "'; valid are model, batch, sequence_length, precision, hardware, recorded_by");
    }
  }
  self.trace.header = std::move(header);
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
  Column<std::int64_t> offsets;
  Column<TensorId> ids;

  Lists(const py::object& pair, const char* name, std::size_t ops, std::size_t tensors) {
    const auto two = py::cast<std::pair<Column<std::int64_t>, Column<TensorId>>>(pair);
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
                                         const Column<TensorRow>& tensors, const Column<OpRow>& ops,
                                         const py::object& reads, const py::object& writes) {
  auto made = std::make_shared<PythonTrace>();
  set_header(*made, header);
  Trace& trace = made->trace;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (trace.names.intern(names[i]) == i) continue;
    throw Error("names: '" + names[i] + "' has index " + std::to_string(i) +
                (i == 0 ? ", which is for \"\"" : ", and came before"));
  }
  check_line(tensors, "tensors");
  check_line(ops, "ops");
  const auto tensor_count = static_cast<std::size_t>(tensors.size()), op_count = static_cast<std::size_t>(ops.size());
  for (std::size_t i = 0; i < tensor_count; ++i) trace.tensors.push_back(tensor_of(tensors.data()[i], trace.names, i));
  const Lists read(reads, "reads", op_count, tensor_count), write(writes, "writes", op_count, tensor_count);
  for (std::size_t i = 0; i < op_count; ++i) {
    trace.add_op(op_of(ops.data()[i], trace.names, i), read.of(i), write.of(i));
  }
  return made;
}

template <typename Enum>
Enum parse(const std::string& text, std::optional<Enum> (*parser)(std::string_view), const char* what,
           std::size_t count) {
  if (const std::optional<Enum> value = parser(text)) return *value;
  std::string valid;
  for (std::size_t i = 0; i < count; ++i) valid += (i == 0 ? "" : ", ") + to_string(static_cast<Enum>(i));
  throw Error(std::string(what) + ": unknown '" + text + "'; valid are " + valid);
}

TensorId add_tensor(PythonTrace& self, const std::string& name, Bytes bytes, const std::string& role, bool persistent) {
  ++self.revision;
  return self.trace.add_tensor(name, bytes, parse(role, parse_role, "role", role_count), persistent);
}

OpIndex add_op(PythonTrace& self, const std::string& name, const std::vector<TensorId>& reads,
               const std::vector<TensorId>& writes, Nanoseconds duration_ns, const std::string& phase,
               const std::string& device, const std::string& duration_source, const std::string& module,
               Nanoseconds gap_before_ns, std::uint64_t flops, Bytes bytes, std::int32_t group, bool placeable,
               bool reorderable, std::uint16_t rank, const std::string& rendezvous) {
  for (const std::vector<TensorId>* list : {&reads, &writes}) {
    for (const TensorId id : *list) check_below(id, self.trace.tensors.size(), "tensor", self.trace.ops.size());
  }
  Op op;
  op.name = self.trace.names.intern(name);
  op.module = self.trace.names.intern(module);
  op.rendezvous = self.trace.names.intern(rendezvous);
  op.group = group;
  op.phase = parse(phase, parse_phase, "phase", phase_count);
  op.device = parse(device, parse_device, "device", device_count);
  op.duration_source = parse(duration_source, parse_duration_source, "duration_source", duration_source_count);
  op.placeable = placeable;
  op.reorderable = reorderable;
  op.rank = rank;
  op.duration_ns = duration_ns;
  op.gap_before_ns = gap_before_ns;
  op.flops = flops;
  op.bytes = bytes;
  ++self.revision;
  return self.trace.add_op(op, reads, writes);
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
            "recorded_by.");
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
                   py::arg("reads"), py::arg("writes"),
                   "A trace from what `header`, `names`, `tensors`, `ops`, `reads` and `writes` of another give. "
                   "names[0] is ''.");
  trace.def("add_tensor", &add_tensor, py::arg("name"), py::arg("bytes"), py::arg("role"),
            py::arg("persistent") = false, "Appends a tensor; returns its id.");
  trace.def("add_op", &add_op, py::arg("name"), py::kw_only(), py::arg("reads"), py::arg("writes"),
            py::arg("duration_ns"), py::arg("phase"), py::arg("device") = "gpu",
            py::arg("duration_source") = "measured", py::arg("module") = "", py::arg("gap_before_ns") = 0,
            py::arg("flops") = 0, py::arg("bytes") = 0, py::arg("group") = -1, py::arg("placeable") = false,
            py::arg("reorderable") = false, py::arg("rank") = 0, py::arg("rendezvous") = "",
            "Appends an op; `reads` and `writes` are tensor ids. Returns its index.");
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
      "A structured array: bytes, name (an index of `names`), role (of ROLES), persistent.");
  trace.def_property(
      "ops", [](const PythonTrace& self) { return rows_of<OpRow>(self.trace.ops); }, &set_ops,
      "A structured array: duration_ns, gap_before_ns, flops, bytes, name, module, rendezvous (indices of `names`), "
      "group, rank, phase (of PHASES), device (of DEVICES), duration_source, placeable, reorderable.");
  trace.def_property_readonly(
      "reads", [](const PythonTrace& self) { return accesses(self, &Trace::reads); },
      "(offsets, tensor ids): op i reads ids[offsets[i]:offsets[i + 1]], in access order.");
  trace.def_property_readonly(
      "writes", [](const PythonTrace& self) { return accesses(self, &Trace::writes); },
      "(offsets, tensor ids): op i writes ids[offsets[i]:offsets[i + 1]], in access order.");
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
  trace.def("__repr__", [](const PythonTrace& self) {
    return "<tencache.Trace of " + (self.trace.header.model.empty() ? "a model" : self.trace.header.model) + ": " +
           std::to_string(self.trace.ops.size()) + " ops, " + std::to_string(self.trace.tensors.size()) + " tensors>";
  });
}

}  // namespace

void bind_trace(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(TensorRow, bytes, name, role, persistent);
  PYBIND11_NUMPY_DTYPE(OpRow, duration_ns, gap_before_ns, flops, bytes, name, module, rendezvous, group, rank, phase,
                       device, duration_source, placeable, reorderable);
  module.attr("ROLES") = names_of<Role>(role_count);
  module.attr("PHASES") = names_of<Phase>(phase_count);
  module.attr("DEVICES") = names_of<Device>(device_count);
  module.attr("DURATION_SOURCES") = names_of<DurationSource>(duration_source_count);
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
