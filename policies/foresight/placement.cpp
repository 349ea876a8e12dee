#include "policies/foresight/placement.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "core/cpu_op.h"
#include "policies/footprint.h"
#include "policies/foresight/spill.h"
#include "policies/planning/memory_profile.h"
#include "policies/updates.h"

namespace tencache {
namespace {

bool writes_what_persists(const Trace& trace, const Op& op) {
  const auto writes = trace.writes(op);
  return std::ranges::any_of(writes, [&](TensorId id) { return trace.tensors[id].persistent; });
}

// The roles of persistent tensors that ops of the CPU read.
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

// CPU memory for what its ops use, then for what no op writes, then for what is used late in the iteration; the GPU's
// for the rest. What has no room in either starts as the roles say.
std::vector<std::uint8_t> start_in_both(const Trace& trace, const MachineSpec& machine, Bytes chunk_bytes) {
  const TierId host = machine.tier_of(Device::cpu);
  struct Wish {
    int rank = 2;
    OpIndex first_use = none;
    TensorId tensor = none;
  };
  std::vector<Wish> wishes(trace.tensors.size());
  std::vector<bool> written(trace.tensors.size(), false);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    const auto use = [&](TensorId tensor) {
      wishes[tensor].first_use = std::min(wishes[tensor].first_use, index);
      if (op.device == Device::cpu) wishes[tensor].rank = 0;
    };
    for (const TensorId tensor : trace.reads(op)) use(tensor);
    for (const TensorId tensor : trace.writes(op)) {
      use(tensor);
      written[tensor] = true;
    }
  }
  std::vector<std::uint64_t> first_chunk(1, 0);
  const auto chunks_of = [&](const Tensor& tensor) {
    return chunk_bytes == 0 ? 1 : (tensor.bytes + chunk_bytes - 1) / chunk_bytes;
  };
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    wishes[tensor].tensor = tensor;
    if (wishes[tensor].rank != 0 && !written[tensor]) wishes[tensor].rank = 1;
    first_chunk.push_back(first_chunk.back() + chunks_of(trace.tensors[tensor]));
  }
  std::erase_if(wishes, [&](const Wish& wish) { return !trace.tensors[wish.tensor].persistent; });
  std::ranges::stable_sort(wishes, [](const Wish& a, const Wish& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.first_use > b.first_use;
  });
  const auto share = [&](TierId tier) { return machine.tiers[tier].capacity / 20 * 19; };
  Bytes on_host = 0, on_gpu = 0;
  std::vector<std::uint8_t> start(first_chunk.back(), 0);
  for (const Wish& wish : wishes) {
    const Bytes bytes = trace.tensors[wish.tensor].bytes;
    const bool to_host = on_host + bytes <= share(host);
    if (!to_host && on_gpu + bytes > share(0)) continue;
    (to_host ? on_host : on_gpu) += bytes;
    std::fill(start.begin() + static_cast<std::ptrdiff_t>(first_chunk[wish.tensor]),
              start.begin() + static_cast<std::ptrdiff_t>(first_chunk[wish.tensor + 1]),
              static_cast<std::uint8_t>(to_host ? 1u << host : 1u));
  }
  return start;
}

class Estimate {
 public:
  Estimate(const Trace& trace, const MachineSpec& machine)
      : trace_(trace), machine_(machine), schedule_(trace), clock_ns_(1, 0) {
    for (const Op& op : trace.ops) clock_ns_.push_back(clock_ns_.back() + op.occupied_ns());
  }

  // Seconds of an iteration: phase by phase what takes longest. The CPU's updates may go on in the next forward pass,
  // each until its parameters are used.
  double seconds(const std::vector<Device>& devices) const {
    const Seen seen{trace_, schedule_, devices, clock_ns_, true, true};
    const Bytes capacity = machine_.tiers[0].capacity / 20 * 19;
    const std::vector<std::uint8_t> away = spilled(seen, capacity);
    Moved moved = moved_by(seen, away);
    std::array<double, phase_count> phases{};
    std::vector<double> first_used(trace_.tensors.size(), -1);  // by the GPU in the forward pass, after so much compute
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      if (devices[op] == Device::cpu) continue;
      double& taken = phases[static_cast<std::size_t>(trace_.ops[op].phase)];
      for (const Use& use : schedule_.uses(op)) {
        if (trace_.ops[op].phase == Phase::forward && first_used[use.tensor] < 0) first_used[use.tensor] = taken;
      }
      taken += seconds_of(op, Device::gpu);
    }
    const std::array<double, phase_count> compute = phases;
    const auto stretch = [&](std::size_t phase) { return compute[phase] > 0 ? phases[phase] / compute[phase] : 1; };
    const TierId host = machine_.tier_of(Device::cpu);
    const double in = static_cast<double>(machine_.links[machine_.link_between(host, 0)].bandwidth);
    const double out = static_cast<double>(machine_.links[machine_.link_between(0, host)].bandwidth);
    // Links that a pass leaves idle work for the updates before and after it.
    const auto shift = [&](Phase idle, std::array<Bytes, phase_count>& bytes, double bandwidth) {
      Bytes& of_updates = bytes[static_cast<std::size_t>(Phase::optimizer)];
      const std::size_t pass = static_cast<std::size_t>(idle);
      const double left = std::max(0.0, phases[pass] * bandwidth - static_cast<double>(bytes[pass]));
      const Bytes moves = std::min(of_updates, static_cast<Bytes>(left));
      of_updates -= moves;
      bytes[pass] += moves;
    };
    shift(Phase::backward, moved.up, in);
    shift(Phase::forward, moved.down, out);
    for (std::size_t phase = 0; phase < phases.size(); ++phase) {
      phases[phase] = std::max(
          {phases[phase], static_cast<double>(moved.up[phase]) / in, static_cast<double>(moved.down[phase]) / out});
    }
    // The two lanes: an update on the CPU begins when what it reads is written, and must end before the next forward
    // pass uses what it writes.
    std::vector<double> written(trace_.tensors.size(), 0);
    double gpu = 0, cpu = 0, busy = 0, least = 0;
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      const std::size_t phase = static_cast<std::size_t>(trace_.ops[op].phase);
      const bool on_cpu = devices[op] == Device::cpu;
      double& done = on_cpu ? cpu : gpu;
      if (on_cpu) {
        for (const Use& use : schedule_.uses(op)) done = std::max(done, use.read ? written[use.tensor] : 0);
        busy += seconds_of(op, Device::cpu);
      }
      done += on_cpu ? seconds_of(op, Device::cpu) : seconds_of(op, Device::gpu) * stretch(phase);
      for (const Use& use : schedule_.uses(op)) {
        if (!use.write) continue;
        written[use.tensor] = done;
        const double used = first_used[use.tensor];
        if (on_cpu && used >= 0) least = std::max(least, done - used * stretch(0));
      }
    }
    return std::max({phases[0] + phases[1] + phases[2] + phases[3], least, busy});
  }

  // What storage takes for what the two memories do not hold. Infinite if it could not get to the CPU.
  double storage_seconds(const std::vector<Device>& devices) const {
    const TierId host = machine_.tier_of(Device::cpu);
    const Kernels kernels = kernels_of({trace_, schedule_, devices, clock_ns_, true, true});
    const std::int64_t used = MemoryProfile(kernels, trace_, 0).most(0, kernels.count());
    const Bytes gpu = std::min(machine_.tiers[0].capacity / 10 * 9, static_cast<Bytes>(used));
    const Bytes cpu = machine_.tiers[host].capacity / 20 * 19;
    const Seen seen{trace_, schedule_, devices, clock_ns_, false, true};
    const Moved moved = moved_by(seen, spilled(seen, gpu + cpu));
    double read = 0, write = 0;
    for (TierId tier = 0; tier < machine_.tiers.size(); ++tier) {
      if (machine_.tiers[tier].kind != TierKind::nvme) continue;
      const std::vector<LinkId> up = machine_.path_between(tier, host), down = machine_.path_between(host, tier);
      if (up.empty() || down.empty()) continue;
      read += static_cast<double>(machine_.links[up.front()].bandwidth);
      write += static_cast<double>(machine_.links[down.front()].bandwidth);
    }
    if (read > 0)
      return std::max(static_cast<double>(moved.all_up()) / read, static_cast<double>(moved.all_down()) / write);
    // All that the CPU's updates are of has to start, and stay, in CPU memory.
    const bool fits = moved.all_down() == 0 && bytes_of(roles_of_cpu(trace_, devices)) <= cpu;
    return fits ? 0 : std::numeric_limits<double>::infinity();
  }

 private:
  double seconds_of(OpIndex op, Device device) const {
    const Op& o = trace_.ops[op];
    if (device == o.device) return static_cast<double>(o.occupied_ns()) * 1e-9;
    return static_cast<double>(*duration_on_cpu(trace_, o, machine_)) * 1e-9;
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

void choose_initial_tiers(const Trace& trace, const MachineSpec& machine, Layout& layout) {
  const TierId host = machine.tier_of(Device::cpu);
  if (host == no_tier) return;
  std::vector<Device> devices;
  for (const Op& op : trace.ops) devices.push_back(op.device);
  if (machine.initial_tier == host && persistent_bytes(trace) > machine.tiers[host].capacity) {
    layout.start = start_in_both(trace, machine, layout.chunk_bytes);
  }
  const std::array<bool, role_count> of_cpu = roles_of_cpu(trace, devices);
  // What no op writes stays where it starts: nothing evicts it, and reading it from storage leaves no copy on the way.
  const std::vector<bool> written = written_by(trace);
  std::array<Bytes, role_count> persistent{}, frozen{};
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const Tensor& tensor = trace.tensors[id];
    if (!tensor.persistent) continue;
    persistent[static_cast<std::size_t>(tensor.role)] += tensor.bytes;
    if (!written[id]) frozen[static_cast<std::size_t>(tensor.role)] += tensor.bytes;
  }
  Bytes taken = 0;
  for (std::size_t role = 0; role < role_count; ++role) taken += of_cpu[role] ? persistent[role] : 0;
  for (std::size_t role = 0; role < role_count; ++role) {
    const bool stays = frozen[role] > persistent[role] / 2 && taken + persistent[role] <= machine.tiers[host].capacity;
    if (stays && !of_cpu[role]) taken += persistent[role];
    if (of_cpu[role] || stays) layout.initial[role] = host;
  }
}

void place_share(const Trace& trace, double share, std::vector<Device>& devices) {
  double stays = 0, seen = 0;
  const auto each_update = [&](auto visit) {
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (devices[op] != Device::gpu || !is_update(trace, trace.ops[op])) continue;
      visit(op, static_cast<double>(bytes_touched(trace, trace.ops[op])));
    }
  };
  each_update([&](OpIndex, double bytes) { stays += (1 - share) * bytes; });
  each_update([&](OpIndex op, double bytes) {
    seen += bytes;
    if (seen - stays >= bytes / 2) devices[op] = Device::cpu;
  });
}

void place_launches(const Trace& trace, std::vector<Device>& devices) {
  constexpr double mostly_launch = 4;
  double all_bytes = 0, all_ns = 0;
  for (const Op& op : trace.ops) {
    if (!is_update(trace, op)) continue;
    all_bytes += static_cast<double>(bytes_touched(trace, op));
    all_ns += static_cast<double>(op.occupied_ns());
  }
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (devices[index] != Device::gpu || !is_update(trace, op) || !writes_what_persists(trace, op)) continue;
    const double usual_ns = all_ns / all_bytes * static_cast<double>(bytes_touched(trace, op));
    if (static_cast<double>(op.occupied_ns()) > mostly_launch * usual_ns) devices[index] = Device::cpu;
  }
}

void place_norms(const Trace& trace, std::vector<Device>& devices) {
  std::vector<bool> goes_down(trace.tensors.size(), false);
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (devices[index] != Device::cpu || !is_update(trace, op) || !writes_what_persists(trace, op)) continue;
    for (const TensorId tensor : trace.reads(op)) goes_down[tensor] = true;
  }
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (devices[index] != Device::gpu || !is_update(trace, op) || writes_what_persists(trace, op)) continue;
    const auto reads = trace.reads(op);
    if (!reads.empty() && std::ranges::all_of(reads, [&](TensorId id) { return goes_down[id]; }))
      devices[index] = Device::cpu;
  }
}

Nanoseconds gpu_time(const Trace& trace, const std::vector<Device>& devices) {
  Nanoseconds time_ns = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op)
    time_ns += devices[op] == Device::gpu ? trace.ops[op].occupied_ns() : 0;
  return time_ns;
}

void order_by_next_use(const Trace& trace, std::vector<std::int32_t>& groups) {
  std::vector<OpIndex> first_read(trace.tensors.size(), none);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const TensorId tensor : trace.reads(trace.ops[op])) {
      if (trace.ops[op].phase != Phase::optimizer) first_read[tensor] = std::min(first_read[tensor], op);
    }
  }
  std::map<std::int32_t, OpIndex> needed;
  for (const Op& op : trace.ops) {
    if (!op.reorderable) continue;
    OpIndex& first = needed.try_emplace(op.group, none).first->second;
    for (const TensorId tensor : trace.writes(op)) first = std::min(first, first_read[tensor]);
  }
  std::ranges::stable_sort(groups, [&](std::int32_t a, std::int32_t b) { return needed[a] < needed[b]; });
}

bool is_mostly_read(const Trace& trace) {
  const std::vector<bool> written = written_by(trace);
  Bytes persistent = 0, read = 0;
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    if (!trace.tensors[id].persistent) continue;
    persistent += trace.tensors[id].bytes;
    if (!written[id]) read += trace.tensors[id].bytes;
  }
  return read > persistent / 2;
}

bool may_share_updates(const Trace& trace, const MachineSpec& machine) {
  const TierId host = machine.tier_of(Device::cpu);
  if (host == no_tier || machine.cpu.adam_parameters_per_second <= 0) return false;
  if (machine.link_between(host, 0) == no_link || machine.link_between(0, host) == no_link) return false;
  const auto update = [&](const Op& op) { return is_update(trace, op); };
  return std::ranges::any_of(trace.ops, update) && !std::ranges::all_of(trace.ops, update);
}

bool is_tight_for_updates(const Trace& trace, const MachineSpec& machine) {
  const TierId host = machine.tier_of(Device::cpu);
  if (host == no_tier) return false;
  for (TierId tier = 0; tier < machine.tiers.size(); ++tier) {
    if (machine.tiers[tier].kind == TierKind::nvme && machine.link_between(tier, host) != no_link) return false;
  }
  Bytes bytes = 0;
  for (const Op& op : trace.ops) bytes += is_update(trace, op) ? bytes_touched(trace, op) : 0;
  return bytes > machine.tiers[host].capacity;
}

double estimate_share(const Trace& trace, const MachineSpec& machine) {
  const Estimate estimate(trace, machine);
  constexpr double worth = 0.995;  // an estimate: for less the CPU is left alone
  constexpr int parts = 16;
  std::vector<Device> devices;
  for (const Op& op : trace.ops) devices.push_back(op.device);
  double least = worth * estimate.seconds(devices);
  int share = 0;
  const auto attempt = [&](int part) {
    if (part < 1 || part > parts) return;
    std::vector<Device> moved = devices;
    place_share(trace, static_cast<double>(part) / parts, moved);
    const double seconds = estimate.seconds(moved) + estimate.storage_seconds(moved);
    if (seconds >= least) return;
    least = seconds;
    share = part;
  };
  // Coarsely, then around the best, as it has one minimum but for rounding.
  for (int part = 4; part <= parts; part += 4) attempt(part);
  for (const int step : {2, 1}) {
    const int around = share;
    attempt(around - step);
    attempt(around + step);
  }
  return static_cast<double>(share) / parts;
}

}  // namespace tencache
