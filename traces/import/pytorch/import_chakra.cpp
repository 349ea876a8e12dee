#include <algorithm>
#include <map>

#include "core/error.h"
#include "traces/import/pytorch/chakra.h"
#include "traces/import/pytorch/import_pytorch.h"

namespace tencache {
namespace {

std::vector<Part> parts_by_thread(const ExecutionTrace& calls) {
  std::vector<Part> parts(calls.nodes.size());
  const std::uint32_t main = calls.nodes.front().thread;
  std::uint32_t last_backward = none;
  for (std::uint32_t i = 0; i < calls.nodes.size(); ++i) {
    const CallNode& node = calls.nodes[i];
    if (node.thread != main) {
      parts[i].phase = Phase::backward;
      last_backward = i;
    } else if (is_loss(calls.name(node))) {
      parts[i].phase = Phase::loss;
    }
  }
  for (std::uint32_t i = last_backward; last_backward != none && ++i < calls.nodes.size();) {
    parts[i] = {Phase::optimizer, true, false};
  }
  return parts;
}

bool is_collective(std::string_view name) { return name.starts_with("c10d::") || name.starts_with("nccl:"); }

ImportedTrace import_rank(const ChakraImportOptions& options, const std::string& file) {
  const ChakraTrace chakra = read_chakra(file, options.progress);
  const ExecutionTrace& calls = chakra.calls;
  const Storages storages = find_storages(calls);
  const std::vector<CallOp> ops = find_ops(calls, storages);
  const Iteration iteration{0, static_cast<std::uint32_t>(calls.nodes.size()), 0, true};
  const std::vector<Part> parts = parts_by_thread(calls);
  const Roles roles = find_roles(calls, storages, ops, parts, iteration);
  MeasuredIteration measured;
  measured.matched.assign(calls.nodes.size(), true);
  const std::vector<Nanoseconds>& times = chakra.kernels > 0 ? chakra.kernel_ns : chakra.host_ns;
  for (std::uint32_t i = 0; i < times.size(); ++i) {
    if (times[i] == 0) continue;
    measured.activities.push_back({measured.duration_ns, measured.duration_ns + times[i], i});
    measured.duration_ns += times[i];
  }
  if (measured.activities.empty()) {
    throw Error(calls.file, 0, "no node has a duration; convert it again, linked with a Kineto trace of the same run");
  }
  ImportedTrace imported =
      make_trace({calls, storages, ops, parts, roles, iteration, nullptr, &measured, options.as_recorded});
  std::vector<std::string> notes{
      std::to_string(chakra.messages - 1) + " nodes: " + std::to_string(calls.nodes.size()) + " calls, " +
          std::to_string(chakra.kernels) + " kernels" +
          (chakra.other_nodes > 0 ? ", " + std::to_string(chakra.other_nodes) + " without a call or a duration" : ""),
      chakra.kernels > 0 ? "an op's time is that of its kernels" : "no kernels: an op's time is its own on the host",
      "there are no start times: ops follow each other without gaps",
      ("there are no annotations: the whole file is one iteration, another thread than the first call's is the "
       "backward pass, what follows it is the optimizer's step"),
      ("what is not in the file (calls within calls, gradients' accumulation) leaves no trace: "
       "a call that was left out may have written what is read as an input")};
  notes.insert(notes.end(), roles.evidence.begin(), roles.evidence.end());
  imported.notes.insert(imported.notes.begin(), notes.begin(), notes.end());
  imported.trace.header.provenance.made_by = MadeBy::imported;
  imported.trace.header.recorded_by = "import chakra (roles inferred: " + roles.summary + ")";
  return imported;
}

// The ops and tensors of another rank, after those that are there.
void append_rank(Trace& trace, const Trace& other, std::uint16_t rank) {
  const auto first = static_cast<TensorId>(trace.tensors.size());
  const auto first_op = static_cast<OpIndex>(trace.ops.size());
  for (const Tensor& tensor : other.tensors) {
    const TensorId id = trace.add_tensor("rank" + std::to_string(rank) + "." + other.name(tensor), tensor.bytes,
                                         tensor.role, tensor.persistent);
    trace.tensors[id].stored_bytes = tensor.stored_bytes;
  }
  std::vector<TensorId> reads, writes;
  for (const Op& recorded : other.ops) {
    reads.clear();
    writes.clear();
    for (const TensorId id : other.reads(recorded)) reads.push_back(first + id);
    for (const TensorId id : other.writes(recorded)) writes.push_back(first + id);
    Op op = recorded;
    op.name = trace.names.intern(other.name(recorded));
    op.module = trace.names.intern(other.module(recorded));
    op.kernel = trace.kernels.intern(other.kernel(recorded));
    OpDetail detail = other.detail(recorded);
    if (detail.revealed_by != none) detail.revealed_by += first_op;
    op.detail = trace.add_detail(detail);
    op.rank = rank;
    trace.add_op(op, reads, writes);
  }
}

void join_collectives(Trace& trace) {
  std::map<std::uint16_t, std::uint64_t> count;  // by rank
  for (Op& op : trace.ops) {
    const std::string name(trace.name(op));
    if (is_collective(name)) op.rendezvous = trace.names.intern(name + "." + std::to_string(count[op.rank]++));
  }
}

}  // namespace

ImportedTrace import_chakra(const ChakraImportOptions& options) {
  if (options.files.size() > 0xffff) throw Error("more than 65535 ranks");
  ImportedTrace imported = import_rank(options, options.files.front());
  for (std::size_t rank = 1; rank < options.files.size(); ++rank) {
    const ImportedTrace other = import_rank(options, options.files[rank]);
    append_rank(imported.trace, other.trace, static_cast<std::uint16_t>(rank));
    for (const std::string& note : other.notes) {
      imported.notes.push_back("rank " + std::to_string(rank) + ": " + note);
    }
  }
  if (options.files.size() > 1) join_collectives(imported.trace);
  TraceHeader& header = imported.trace.header;
  header.model = options.model.empty() ? model_name_of(options.files.front()) : options.model;
  header.batch = options.batch;
  header.sequence_length = options.sequence_length;
  imported.trace.validate(options.files.front());
  return imported;
}

}  // namespace tencache
