#include "traces/transform/lower.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <ranges>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/cpu_op.h"
#include "core/error.h"
#include "core/metrics.h"
#include "core/recompute.h"
#include "core/reveal.h"

namespace tencache {
namespace {

constexpr const char* update_rate = "cpu.adam_parameters_per_second (run 'tencache calibrate' to measure it)";
constexpr const char* compute_rates = "cpu.tflops and cpu.bandwidth";

// `what` runs on the CPU, for which the machine does not state `rates`.
[[noreturn]] void throw_no_rate(const MachineSpec& machine, const std::string& what, const char* rates) {
  const std::string where = machine.file.empty() ? "machine '" + machine.name + "'" : machine.file;
  if (machine.tier_of(Device::cpu) == no_tier) {
    throw Error(where, 0,
                what +
                    " on the CPU, and the machine has no CPU memory: take a machine with a tier of kind 'cpu' or "
                    "another policy");
  }
  throw Error(where, 0, what + " on the CPU; state " + rates);
}

// What the policy may see of a trace.
class Shown {
 public:
  Shown(const Trace& trace, const Policy& policy) : trace_(trace) {
    if (!policy.oracle() && has_gates(trace)) sealed_ = std::make_unique<const Trace>(sealed(trace));
  }
  const Trace& operator*() const { return sealed_ ? *sealed_ : trace_; }

 private:
  const Trace& trace_;
  std::unique_ptr<const Trace> sealed_;
};

// Returns what was chosen, by choice.
std::vector<RecomputeLevel> choose_recomputation(Trace& trace, const Policy& policy, const MachineSpec& machine,
                                                 std::vector<std::string>& changes) {
  std::vector<RecomputeLevel> levels(trace.choices.size(), RecomputeLevel::keep);
  if (levels.empty()) return levels;
  policy.recompute(*Shown(trace, policy), machine, levels);
  const bool generates = trace.ops[trace.choices.front().before].phase == Phase::decode;
  const char* const what = generates ? " choices of keys and values" : " layers' results";
  trace = with_levels(trace, levels);
  for (std::size_t level = 1; level < recompute_level_count; ++level) {
    const auto chosen = std::ranges::count(levels, static_cast<RecomputeLevel>(level));
    if (chosen == 0) continue;
    changes.push_back(std::to_string(chosen) + " of " + std::to_string(levels.size()) + what +
                      " recomputed at level '" + std::string(to_string(static_cast<RecomputeLevel>(level))) + "'");
  }
  return levels;
}

void place_ops(Trace& trace, const Policy& policy, const MachineSpec& machine, std::vector<std::string>& changes) {
  const PlacedOps placed = place_on_cpu(trace, policy, machine, may_move_to_cpu);
  const auto say = [&](const PlacedOps::Moved& moved, const char* what, const std::string& rate) {
    changes.push_back(std::to_string(moved.count) + " " + what + " moved from the GPU (" +
                      format_duration(moved.before_ns) + ") to the CPU (" + format_duration(moved.after_ns) + rate +
                      ")");
  };
  if (placed.updates.count > 0) {
    if (machine.cpu.adam_parameters_per_second <= 0) {
      throw_no_rate(machine, "the policy runs the optimizer", update_rate);
    }
    const auto rate = static_cast<std::uint64_t>(machine.cpu.adam_parameters_per_second);
    say(placed.updates, "optimizer ops", " at " + std::to_string(rate) + " parameters/s of AdamW");
  }
  if (placed.others.count > 0) {
    if (placed.without_rate) throw_no_rate(machine, "the policy computes", compute_rates);
    say(placed.others, "ops", "");
  }
}

void note_cpu_ops(const CpuOps& timed, std::vector<std::string>& changes) {
  if (timed.count == 0) return;
  changes.push_back(std::to_string(timed.count) +
                    " ops on the CPU timed by its rates: " + format_duration(timed.duration_ns));
}

// At which GPU ops read CPU memory in place.
BytesPerSecond rate_in_place(const MachineSpec& machine) {
  const TierId cpu = machine.tier_of(Device::cpu);
  const LinkId link = cpu == no_tier ? no_link : machine.link_between(cpu, 0);
  if (link == no_link) {
    throw Error(machine.file.empty() ? "machine '" + machine.name + "'" : machine.file, 0,
                "the policy's kernels read CPU memory in place, and no link leads from CPU memory to the GPU; take "
                "another machine or policy");
  }
  BytesPerSecond rate = machine.links[link].bandwidth;
  for (const std::uint8_t resource : machine.links[link].uses) {
    rate = std::min(rate, machine.resources[resource].bandwidth);
  }
  return rate;
}

void read_in_place(Trace& trace, const Policy& policy, const MachineSpec& machine, std::vector<std::string>& changes) {
  std::vector<bool> in_place(trace.tensors.size(), false);
  policy.read_in_place(*Shown(trace, policy), machine, in_place);
  TENCACHE_CHECK(in_place.size() == trace.tensors.size());
  if (std::ranges::find(in_place, true) == in_place.end()) return;
  const BytesPerSecond rate = rate_in_place(machine);
  const std::vector<Op> ops = std::exchange(trace.ops, {});
  const std::vector<TensorId> accesses = std::exchange(trace.accesses, {});
  std::size_t count = 0;
  Bytes bytes = 0;
  Nanoseconds before_ns = 0, after_ns = 0;
  for (Op op : ops) {
    const auto at = accesses.begin() + op.accesses.first;
    std::vector<TensorId> reads(at, at + op.accesses.reads);
    const std::vector<TensorId> writes(at + op.accesses.reads, at + op.accesses.reads + op.accesses.writes);
    const std::vector<TensorId> frees(at + op.accesses.reads + op.accesses.writes,
                                      at + op.accesses.reads + op.accesses.writes + op.accesses.frees);
    Bytes read = 0;
    if (op.device == Device::gpu) {
      std::erase_if(reads, [&](TensorId id) {
        if (in_place[id]) read += trace.tensors[id].bytes;
        return in_place[id];
      });
    }
    if (read > 0) {
      ++count;
      bytes += read;
      before_ns += op.duration_ns;
      const uint128 over_link = static_cast<uint128>(read) * second_ns + rate - 1;  // rounded up
      op.duration_ns = std::max(op.duration_ns, static_cast<Nanoseconds>(over_link / rate));
      after_ns += op.duration_ns;
    }
    trace.add_op(op, reads, writes, frees);
  }
  changes.push_back(std::to_string(count) + " ops read " + format_bytes(bytes) + " in place over the link: " +
                    format_duration(before_ns) + " of kernels take " + format_duration(after_ns));
}

// What hooks of the framework cost the host at each GPU op that enters another module than the one before it, the last
// op of the iteration coming before the first.
void add_host_time(Trace& trace, const Policy& policy, const MachineSpec& machine, std::vector<std::string>& changes) {
  if (!policy.requirements().module_hooks || machine.host.per_module_ns == 0) return;
  NameId module = 0;
  for (const Op& op : trace.ops) {
    if (op.device == Device::gpu) module = op.module;
  }
  std::uint64_t entered = 0;
  for (Op& op : trace.ops) {
    if (op.device != Device::gpu) continue;
    if (op.module != 0 && op.module != module) {
      op.gap_before_ns += machine.host.per_module_ns;
      if (op.issue_ns > 0) op.issue_ns += machine.host.per_module_ns;
      ++entered;
    }
    module = op.module;
  }
  if (entered > 0) {
    changes.push_back("host time of module hooks: " + format_duration(machine.host.per_module_ns) + " at each of " +
                      std::to_string(entered) + " modules entered");
  }
}

// `ordered`: the sub-groups of the runs that the policy orders otherwise than recorded.
std::vector<OpIndex> order_of(const Trace& trace, const Policy& policy, const MachineSpec& machine,
                              std::set<std::int32_t>& ordered) {
  std::vector<OpIndex> order(trace.ops.size());
  std::iota(order.begin(), order.end(), OpIndex{0});
  if (std::ranges::none_of(trace.ops, &Op::reorderable)) return order;
  const Shown shown(trace, policy);
  for (std::size_t begin = 0; begin < trace.ops.size();) {
    if (!trace.ops[begin].reorderable) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    std::vector<std::int32_t> groups;
    std::set<std::int32_t> seen;
    for (; end < trace.ops.size() && trace.ops[end].reorderable; ++end) {
      if (seen.insert(trace.ops[end].group).second) groups.push_back(trace.ops[end].group);
    }
    std::vector<std::int32_t> wanted = groups;
    policy.order(*shown, machine, wanted);
    if (wanted != groups) {
      std::map<std::int32_t, std::size_t> ranks;
      for (std::size_t i = 0; i < wanted.size(); ++i) ranks.emplace(wanted[i], i);
      if (wanted.size() != groups.size() || !std::ranges::equal(ranks | std::views::keys, seen)) {
        throw Error("the policy's order of sub-groups is not a permutation of them");
      }
      const auto rank = [&](OpIndex op) { return ranks.at(trace.ops[op].group); };
      std::stable_sort(order.begin() + static_cast<std::ptrdiff_t>(begin),
                       order.begin() + static_cast<std::ptrdiff_t>(end),
                       [&rank](OpIndex a, OpIndex b) { return rank(a) < rank(b); });
      ordered.insert(groups.begin(),
                     groups.end());  // a group may be in several runs: its gradients' norms, its updates
    }
    begin = end;
  }
  return order;
}

// After the ops were put into this order.
void renumber_revealing(Trace& trace, const std::vector<OpIndex>& order) {
  if (trace.details.size() == 1) return;
  std::vector<OpIndex> now(order.size());
  for (OpIndex i = 0; i < order.size(); ++i) now[order[i]] = i;
  for (OpDetail& detail : trace.details) {
    if (detail.revealed_by != none) detail.revealed_by = now[detail.revealed_by];
  }
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const OpIndex revealing = trace.detail(trace.ops[i]).revealed_by;
    if (revealing == none || revealing < i) continue;
    throw Error("the policy orders op '" + trace.name(trace.ops[i]) + "' before op '" +
                trace.name(trace.ops[revealing]) + "', which decides whether it runs; mark neither as reorderable");
  }
}

void order_groups(Trace& trace, const Policy& policy, const MachineSpec& machine, std::vector<std::string>& changes) {
  std::set<std::int32_t> ordered;
  const std::vector<OpIndex> order = order_of(trace, policy, machine, ordered);
  if (ordered.empty()) return;
  const std::vector<Op> recorded = trace.ops;
  std::ranges::transform(order, trace.ops.begin(), [&recorded](OpIndex op) { return recorded[op]; });
  renumber_revealing(trace, order);
  changes.push_back(std::to_string(ordered.size()) + " optimizer sub-groups put into the policy's order");
}

// What gates decide is told gate by gate.
void place_decided(const Trace& trace, const Trace& shown, const Policy& policy, const MachineSpec& machine,
                   std::vector<Device>& devices) {
  const std::unique_ptr<DecidedPlaces> places = policy.place_decided(shown, machine);
  if (!places) return;
  std::map<OpIndex, std::vector<OpIndex>> decided;  // by gate
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (const OpIndex gate = trace.detail(trace.ops[op]).revealed_by; gate != none) decided[gate].push_back(op);
  }
  std::vector<TensorId> experts;
  std::vector<std::size_t> ends;
  std::vector<DecidedOp> told;
  std::vector<Device> chosen;
  for (const auto& [gate, ops] : decided) {
    experts.clear();
    ends.clear();
    for (const OpIndex op : ops) {
      for (const TensorId tensor : trace.reads(trace.ops[op])) {
        if (trace.tensors[tensor].role == Role::expert) experts.push_back(tensor);
      }
      ends.push_back(experts.size());
    }
    told.clear();
    chosen.clear();
    for (std::size_t i = 0, begin = 0; i < ops.size(); begin = ends[i++]) {
      told.push_back({ops[i], std::span<const TensorId>(experts).subspan(begin, ends[i] - begin)});
      chosen.push_back(devices[ops[i]]);
    }
    places->place(gate, told, chosen);
    for (std::size_t i = 0; i < ops.size(); ++i) devices[ops[i]] = chosen[i];
  }
}

}  // namespace

std::vector<OpIndex> policy_order(const Trace& trace, const Policy& policy, const MachineSpec& machine) {
  std::set<std::int32_t> ordered;
  return order_of(trace, policy, machine, ordered);
}

PlacedOps place_on_cpu(Trace& trace, const Policy& policy, const MachineSpec& machine,
                       const std::function<bool(const Op&)>& movable) {
  std::vector<Device> devices;
  for (const Op& op : trace.ops) devices.push_back(op.device);
  {
    const Shown shown(trace, policy);
    policy.place(*shown, machine, devices);
    TENCACHE_CHECK(devices.size() == trace.ops.size());
    place_decided(trace, *shown, policy, machine, devices);
  }
  PlacedOps placed;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    Op& op = trace.ops[index];
    if (devices[index] != Device::cpu || !may_move_to_cpu(op) || !movable(op)) continue;
    const std::optional<Nanoseconds> duration = duration_on_cpu(trace, op, machine);
    const bool update = op.phase == Phase::optimizer;
    PlacedOps::Moved& moved = update ? placed.updates : placed.others;
    ++moved.count;
    moved.before_ns += op.duration_ns;
    op.device = Device::cpu;
    if (update) op.bytes = bytes_touched(trace, op);
    if (duration) {
      op.duration_ns = *duration;
      op.duration_source = DurationSource::modelled;
    } else {
      placed.without_rate = true;
    }
    moved.after_ns += op.duration_ns;
  }
  return placed;
}

bool lacks_cpu_time(const Op& op) {
  return op.device == Device::cpu && op.duration_ns == 0 && op.duration_source == DurationSource::modelled &&
         op.phase != Phase::optimizer;
}

CpuOps time_cpu_ops(Trace& trace, const MachineSpec& machine) {
  CpuOps timed;
  for (Op& op : trace.ops) {
    if (!lacks_cpu_time(op)) continue;
    const std::optional<Nanoseconds> duration = forward_duration_on_cpu(trace, op, machine);
    if (!duration) throw_no_rate(machine, "op '" + trace.name(op) + "' computes", compute_rates);
    op.duration_ns = *duration;
    timed.duration_ns += *duration;
    ++timed.count;
  }
  return timed;
}

void prepare(const Trace& trace, Policy& policy, const MachineSpec& machine, const Rehearse& rehearse) {
  policy.prepare(*Shown(trace, policy), machine,
                 [&](const Trace& tried, const MachineSpec& on, Policy& candidate, const RehearsalLimits& limits) {
                   return rehearse(lower(draw_experts(tried), candidate, on), on, candidate, limits);
                 });
}

Program lower(Trace trace, const Policy& policy, const MachineSpec& machine, std::vector<RecomputeLevel>* levels) {
  Program program{std::move(trace), {}};
  std::vector<RecomputeLevel> chosen = choose_recomputation(program.trace, policy, machine, program.changes);
  if (levels != nullptr) *levels = std::move(chosen);
  place_ops(program.trace, policy, machine, program.changes);
  note_cpu_ops(time_cpu_ops(program.trace, machine), program.changes);
  read_in_place(program.trace, policy, machine, program.changes);
  order_groups(program.trace, policy, machine, program.changes);
  add_host_time(program.trace, policy, machine, program.changes);
  program.trace.names.settle();
  return program;
}

}  // namespace tencache
