#include "traces/import/pytorch/roles.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "core/units.h"

namespace tencache {
namespace {

// What happened to a storage, over the whole recording unless it says otherwise.
struct History {
  bool before = false;      // there when the iteration begins
  bool used = false;        // by the iteration
  bool read_first = false;  // in the iteration: its content comes from before
  bool read_outside_step = false, written_outside_step = false;
  bool read_in_step = false, written_in_step = false;
  bool forward = false, written_forward = false, written_backward = false, backward = false;
  bool accumulated = false;  // given to AccumulateGrad, or written by it
  struct BySchema {
    bool weight = false;                      // is named so
    bool written = false;                     // by an op with one: what a compiled kernel updates may be anything
    bool table = false, table_state = false;  // of FBGEMM's embedding tables, which their backward op updates
  };
  BySchema by_schema;
  bool filled_first = false;   // its first op filled it or copied something there
  bool updated_later = false;  // a later op of the step wrote it
  bool from_host = false;      // written from host memory only
  bool floating = false;
  bool seen = false;
  bool used_later = false;  // after the iteration

  bool is_trained() const { return before && written_in_step && read_outside_step && forward && floating; }
  bool is_of_step_alone() const {
    return (read_in_step || written_in_step) && !read_outside_step && !written_outside_step;
  }
  void note(const StorageUse& use, const Part& part) {
    if (part.in_step) {
      read_in_step = read_in_step || use.read;
      updated_later = updated_later || (seen && use.write);
      written_in_step = written_in_step || use.write;
    } else {
      read_outside_step = read_outside_step || use.read;
      written_outside_step = written_outside_step || use.write;
      const bool in_backward = part.phase == Phase::backward;
      const bool in_forward = part.phase == Phase::forward || part.phase == Phase::loss;
      forward = forward || in_forward;
      backward = backward || in_backward;
      written_forward = written_forward || (in_forward && use.write);
      written_backward = written_backward || (in_backward && use.write);
    }
    if (use.write && part.in_accumulation) accumulated = true;
  }
};

bool fills_or_copies(std::string_view name) {
  return name == "aten::fill_" || name == "aten::zero_" || name == "aten::copy_" || name == "aten::_foreach_zero_";
}

class RoleFinder {
 public:
  RoleFinder(const ExecutionTrace& trace, const Storages& storages, const std::vector<CallOp>& ops,
             const std::vector<Part>& parts, const Iteration& iteration)
      : trace_(trace),
        storages_(storages),
        ops_(ops),
        parts_(parts),
        iteration_(iteration),
        histories_(storages.storages.size()) {}

  Roles find() {
    for (std::uint32_t i = 0; i < histories_.size(); ++i) {
      const std::uint32_t born = storages_.storages[i].born;
      histories_[i].before = born == none || born < iteration_.begin;
    }
    for (const CallOp& op : ops_) note_op(op);
    for (std::uint32_t i = 0; i < histories_.size(); ++i) {
      gpu_recording_ =
          gpu_recording_ || (histories_[i].used && storages_.storages[i].device == TensorDevice::accelerator);
    }
    note_calls();
    found_.of_storage.resize(histories_.size());
    decide_parameters();
    for (std::uint32_t i = 0; i < histories_.size(); ++i) {
      if (histories_[i].used) decide(i);
    }
    describe();
    return std::move(found_);
  }

 private:
  enum Kind {
    trained,
    table,
    frozen,
    buffer,
    gradient,
    bucket,
    kept_state,
    new_state,
    scratch,
    given,
    copied_in,
    activation_gradient,
    activation,
    kind_count
  };

  void note_op(const CallOp& op) {
    const Part& part = parts_[op.node];
    const bool inside = op.node >= iteration_.begin && op.node < iteration_.end;
    const bool fills = fills_or_copies(trace_.name(trace_.nodes[op.node]));
    bool host_source = false, device_source = false;
    for (const StorageUse& use : op.uses) {
      if (!use.read) continue;
      (storages_.storages[use.storage].device == TensorDevice::host ? host_source : device_source) = true;
    }
    for (const StorageUse& use : op.uses) {
      History& history = histories_[use.storage];
      if (use.ref != none && trace_.refs[use.ref].type != ElementType::other) history.floating = true;
      if (inside && !history.used) {
        history.used = true;
        history.read_first = use.read;
      }
      if (op.node >= iteration_.end) history.used_later = true;
      history.note(use, part);
      history.by_schema.written = history.by_schema.written || (use.write && trace_.nodes[op.node].schema != 0);
      if (!history.seen) history.filled_first = fills && use.write;
      history.seen = true;
      if (use.write && host_source && !device_source) history.from_host = true;
    }
  }

  // What only the calls around the ops tell.
  void note_calls() {
    std::unordered_map<NameId, SchemaArguments> arguments;
    for (std::uint32_t i = 0; i < trace_.nodes.size(); ++i) {
      const CallNode& node = trace_.nodes[i];
      const bool accumulation = trace_.name(node) == "torch::autograd::AccumulateGrad";
      const auto [schema, added] = arguments.try_emplace(node.schema);
      if (added) schema->second = parse_schema(trace_.schema_of(node));
      const bool addmm = trace_.name(node) == "aten::addmm";
      for (std::uint32_t input = 0; input < node.input_count; ++input) {
        const std::uint32_t storage = storages_.of_ref[node.first_ref + input];
        if (storage == none) continue;
        if (accumulation) histories_[storage].accumulated = true;
        const std::uint16_t argument = trace_.refs[node.first_ref + input].argument;
        if (argument >= schema->second.names.size() || parts_[i].phase == Phase::optimizer) continue;
        const std::string_view name = schema->second.names[argument];
        if (name.find("weight") != std::string_view::npos || name == "bias" || (addmm && name == "mat2")) {
          histories_[storage].by_schema.weight = true;
        }
        if (name.starts_with("running_")) histories_[storage].by_schema.weight = true;
        if (trace_.name(node).starts_with("fbgemm::split_embedding")) {
          histories_[storage].by_schema.table |= name == "dev_weights" || name == "uvm_weights";
          histories_[storage].by_schema.table_state |=
              name.starts_with("momentum") && !name.ends_with("s");  // no offsets
        }
      }
    }
    has_step_ = std::ranges::any_of(ops_, [&](const CallOp& op) { return parts_[op.node].in_step; });
    has_later_step_ = std::ranges::any_of(
        ops_, [&](const CallOp& op) { return parts_[op.node].in_step && op.node >= iteration_.end; });
    has_earlier_step_ = std::ranges::any_of(
        ops_, [&](const CallOp& op) { return parts_[op.node].in_step && op.node < iteration_.begin; });
  }

  void decide_parameters() {
    for (std::uint32_t i = 0; i < histories_.size(); ++i) {
      if (histories_[i].is_trained()) parameter_bytes_.insert(storages_.storages[i].bytes);
    }
  }

  Kind kind_of(std::uint32_t storage) const {
    const History& history = histories_[storage];
    const Bytes bytes = storages_.storages[storage].bytes;
    if (history.is_trained()) return trained;
    if (history.before && history.by_schema.table) return table;
    if (history.before && history.by_schema.table_state) return kept_state;
    if (history.read_in_step && history.written_backward && (history.accumulated || parameter_bytes_.contains(bytes))) {
      return gradient;
    }
    if (!has_step_ && history.accumulated) return gradient;
    if (history.is_of_step_alone()) {
      if (history.before || (history.used_later && has_later_step_)) return kept_state;
      if (!has_later_step_ && !has_earlier_step_ && history.filled_first && history.updated_later) return new_state;
      return scratch;
    }
    if (history.before) {
      if (history.written_forward && history.read_first && history.by_schema.written) return buffer;
      if (history.backward && !history.forward && history.written_backward) return bucket;
      if (!history.written_outside_step && history.floating && history.by_schema.weight) return frozen;
      if (!history.written_outside_step || history.read_first) return given;
    }
    if (history.from_host && gpu_recording_) return copied_in;
    if (is_made_by_backward(storage)) return activation_gradient;
    return activation;
  }

  bool is_made_by_backward(std::uint32_t storage) const {
    std::uint32_t node = storages_.storages[storage].born;
    if (node == none || parts_[node].phase != Phase::backward) return false;
    for (; node != none && trace_.nodes[node].scope != 1; node = trace_.nodes[node].parent) {
      if (trace_.nodes[node].schema != 0 && trace_.nodes[node].sequence >= 0) return false;
    }
    return true;
  }

  void decide(std::uint32_t storage) {
    const Kind kind = kind_of(storage);
    const History& history = histories_[storage];
    StorageRole& role = found_.of_storage[storage];
    constexpr std::array<Role, kind_count> roles{
        Role::parameter, Role::parameter,       Role::parameter,       Role::parameter, Role::gradient,
        Role::gradient,  Role::optimizer_state, Role::optimizer_state, Role::workspace, Role::input,
        Role::input,     Role::gradient,        Role::activation};
    role.role = roles[kind];
    role.persistent =
        (history.before && history.read_first) || role.role == Role::parameter || role.role == Role::optimizer_state;
    role.created_on_first_use = kind == new_state;
    role.of_activation = kind == activation_gradient;
    if (gpu_recording_ && storages_.storages[storage].device == TensorDevice::host) return;  // none of the trace's
    ++counts_[kind];
    bytes_[kind] += storages_.storages[storage].bytes;
  }

  void describe() {
    constexpr std::array<const char*, kind_count> texts{
        "parameter: there before, read outside the optimizer's step and written by it",
        "parameter, embedding table: read by rows, which its own backward op updates; here whole",
        "parameter, frozen: there before, never written, passed as a weight or bias",
        "parameter, buffer: there before, its content updated by the forward pass",
        "gradient: written by the backward pass (AccumulateGrad), read by the optimizer's step",
        "gradient: there before, used by the backward pass only (a bucket)",
        "optimizer_state: used by the optimizer's step only, kept from one to the next",
        "optimizer_state, created on first use: filled within the only recorded step, then updated in place",
        "workspace: temporary of the optimizer's step",
        "input: there before, not written by the optimizer",
        "input: copied from the host's memory",
        "gradient, of an activation: made by the backward pass, not by computing activations again",
        "activation: the others",
    };
    constexpr std::array<const char*, kind_count> short_texts{"parameters written by the step",
                                                              "embedding tables",
                                                              "frozen parameters named by schemas",
                                                              "buffers",
                                                              "gradients read by the step",
                                                              "buckets of gradients",
                                                              "states kept by the step",
                                                              "states created in the step",
                                                              "temporaries of the step",
                                                              "inputs",
                                                              "copies from the host",
                                                              "gradients of activations",
                                                              "activations"};
    for (std::size_t kind = 0; kind < kind_count; ++kind) {
      if (counts_[kind] == 0) continue;
      found_.summary += (found_.summary.empty() ? "" : ", ") + std::to_string(counts_[kind]) + " " + short_texts[kind];
      found_.evidence.push_back(std::string(texts[kind]) + ": " + std::to_string(counts_[kind]) + " of " +
                                format_bytes(bytes_[kind]));
    }
    if (!has_step_) {
      found_.evidence.push_back(
          "no optimizer's step recorded: parameters are known by schemas only, there are no optimizer states");
    }
  }

  const ExecutionTrace& trace_;
  const Storages& storages_;
  const std::vector<CallOp>& ops_;
  const std::vector<Part>& parts_;
  const Iteration& iteration_;
  std::vector<History> histories_;
  std::set<Bytes> parameter_bytes_;
  bool gpu_recording_ = false;
  bool has_step_ = false, has_later_step_ = false, has_earlier_step_ = false;
  std::array<std::uint64_t, kind_count> counts_{};
  std::array<Bytes, kind_count> bytes_{};
  Roles found_;
};

}  // namespace

Roles find_roles(const ExecutionTrace& trace, const Storages& storages, const std::vector<CallOp>& ops,
                 const std::vector<Part>& parts, const Iteration& iteration) {
  return RoleFinder(trace, storages, ops, parts, iteration).find();
}

}  // namespace tencache
