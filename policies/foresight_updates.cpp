#include "policies/foresight_updates.h"

#include <algorithm>
#include <limits>

#include "core/schedule.h"
#include "policies/foresight_future.h"
#include "policies/updates.h"

namespace tencache {
namespace {

constexpr double adam_bytes_per_parameter = 28;  // what the CPU's rate counts: lower.cpp

Bytes bytes_touched(const Trace& trace, const Op& op) {
  Bytes bytes = 0;
  for (const TensorId tensor : trace.reads(op)) bytes += trace.tensors[tensor].bytes;
  for (const TensorId tensor : trace.writes(op)) bytes += trace.tensors[tensor].bytes;
  return bytes;
}

class Estimate {
 public:
  Estimate(const Trace& trace, const MachineSpec& machine)
      : trace_(trace), machine_(machine), schedule_(trace), clock_ns_(1, 0) {
    for (const Op& op : trace.ops) clock_ns_.push_back(clock_ns_.back() + op.duration_ns + op.gap_before_ns);
  }

  // Seconds of an iteration: the passes, then the updates. Those of the CPU may go on in the next iteration, each until
  // its parameters are used.
  double seconds(const std::vector<Device>& devices) const {
    const Seen seen{trace_, schedule_, devices, clock_ns_, true};
    const Moved moved = moved_by(seen, spilled(seen, machine_.tiers[0].capacity / 20 * 19));
    double compute = 0, updates = 0;
    std::vector<double> first_used(trace_.tensors.size(), -1);  // by the GPU, after so much compute
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      const Op& o = trace_.ops[op];
      if (devices[op] == Device::cpu) continue;
      for (const Use& use : schedule_.uses(op)) {
        if (first_used[use.tensor] < 0) first_used[use.tensor] = compute;
      }
      (o.phase == Phase::optimizer ? updates : compute) += seconds_of(op, Device::gpu);
    }
    const TierId host = machine_.tier_of(Device::cpu);
    const double in = static_cast<double>(machine_.links[machine_.link_between(host, 0)].bandwidth);
    const double out = static_cast<double>(machine_.links[machine_.link_between(0, host)].bandwidth);
    const auto n = [](Bytes bytes) { return static_cast<double>(bytes); };
    const double passes =
        std::max({compute, n(moved.up - moved.up_for_updates) / in, n(moved.down - moved.down_of_updates) / out});
    updates = std::max({updates, n(moved.up_for_updates) / in, n(moved.down_of_updates) / out});
    double cpu = 0, late = 0;
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      if (devices[op] != Device::cpu) continue;
      cpu += seconds_of(op, Device::cpu);
      for (const Use& use : schedule_.uses(op)) {
        const double used = first_used[use.tensor];
        if (use.write && used >= 0) late = std::max(late, cpu - used * (compute > 0 ? passes / compute : 1));
      }
    }
    return std::max({passes + std::max(updates, late), cpu, storage_seconds(devices, host)});
  }

  // Of what neither the GPU, as far as it has a use for it, nor CPU memory can hold.
  double storage_seconds(const std::vector<Device>& devices, TierId host) const {
    Bytes held = 0, only_cpu = 0;  // by persistent tensors that GPU ops use, and the others
    std::int64_t passing = 0, most_passing = 0;
    std::vector<std::uint8_t> by_gpu(trace_.tensors.size(), 0);
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      for (const Use& use : schedule_.uses(op)) {
        const Tensor& tensor = trace_.tensors[use.tensor];
        const auto ops = schedule_.ops_of(use.tensor);
        if (devices[op] == Device::gpu) by_gpu[use.tensor] = 1;
        if (tensor.persistent) continue;
        if (ops.front() == op)
          most_passing = std::max(most_passing, passing += static_cast<std::int64_t>(tensor.bytes));
        if (ops.back() == op) passing -= static_cast<std::int64_t>(tensor.bytes);
      }
    }
    for (TensorId tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
      if (trace_.tensors[tensor].persistent) (by_gpu[tensor] != 0 ? held : only_cpu) += trace_.tensors[tensor].bytes;
    }
    const Bytes gpu = std::min(machine_.tiers[0].capacity, held + static_cast<Bytes>(most_passing));
    const Bytes cpu = machine_.tiers[host].capacity / 20 * 19;
    const Seen seen{trace_, schedule_, devices, clock_ns_, false};
    const Moved moved = moved_by(seen, spilled(seen, gpu + cpu));
    double read = 0, write = 0;
    for (TierId tier = 0; tier < machine_.tiers.size(); ++tier) {
      if (machine_.tiers[tier].kind != TierKind::nvme) continue;
      for (const Link& link : machine_.links) {
        if (link.from == tier) read = std::max(read, static_cast<double>(link.bandwidth));
        if (link.to == tier) write = std::max(write, static_cast<double>(link.bandwidth));
      }
      // What the CPU updates has no way there from the SSD: all of its kind has to start, and stay, in CPU memory.
      if (only_cpu > 0 && machine_.path_between(tier, host).empty() &&
          (moved.down > 0 || bytes_of(roles_of_cpu(trace_, devices)) > cpu)) {
        return std::numeric_limits<double>::infinity();
      }
    }
    if (read == 0 || write == 0) return 0;
    return std::max(static_cast<double>(moved.up) / read, static_cast<double>(moved.down) / write);
  }

 private:
  double seconds_of(OpIndex op, Device device) const {
    const Op& o = trace_.ops[op];
    if (device == o.device) return static_cast<double>(o.duration_ns + o.gap_before_ns) * 1e-9;
    return static_cast<double>(bytes_touched(trace_, o)) /
           (adam_bytes_per_parameter * machine_.cpu_adam_parameters_per_second);
  }

  Bytes bytes_of(const std::array<bool, role_count>& roles) const {
    Bytes bytes = 0;
    for (const Tensor& tensor : trace_.tensors) {
      if (tensor.persistent && roles[static_cast<std::size_t>(tensor.role)]) bytes += tensor.bytes;
    }
    return bytes;
  }

  const Trace& trace_;
  const MachineSpec& machine_;
  Schedule schedule_;
  std::vector<Nanoseconds> clock_ns_;
};

}  // namespace

std::array<bool, role_count> roles_of_cpu(const Trace& trace, const std::vector<Device>& devices) {
  std::array<bool, role_count> roles{};
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (devices[op] != Device::cpu) continue;
    for (const TensorId tensor : trace.reads(trace.ops[op])) {
      roles[static_cast<std::size_t>(trace.tensors[tensor].role)] |= trace.tensors[tensor].persistent;
    }
  }
  return roles;
}

void place_share(const Trace& trace, double share, std::vector<Device>& devices) {
  double owed = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (devices[op] != Device::gpu || !is_update(trace, trace.ops[op])) continue;
    const double bytes = static_cast<double>(bytes_touched(trace, trace.ops[op]));
    owed += share * bytes;
    if (owed < bytes / 2) continue;
    owed -= bytes;
    devices[op] = Device::cpu;
  }
}

void place_updates(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) {
  const TierId host = machine.tier_of(Device::cpu);
  if (host == no_tier || machine.cpu_adam_parameters_per_second <= 0) return;
  if (machine.link_between(host, 0) == no_link || machine.link_between(0, host) == no_link) return;
  const Estimate estimate(trace, machine);
  constexpr double worth = 0.98;  // an estimate: for less the CPU is left alone
  double least = worth * estimate.seconds(devices);
  std::vector<Device> best = devices;
  for (int sixteenths = 1; sixteenths <= 16; ++sixteenths) {
    std::vector<Device> moved = devices;
    place_share(trace, sixteenths / 16.0, moved);
    const double seconds = estimate.seconds(moved);
    if (seconds >= least) continue;
    least = seconds;
    best = moved;
  }
  devices = best;
}

}  // namespace tencache
