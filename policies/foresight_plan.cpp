#include "policies/foresight_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/cpu_update.h"
#include "policies/planning.h"
#include "policies/updates.h"

namespace tencache {
namespace {

bool sees(const Seen& seen, OpIndex op) { return !seen.gpu_only || seen.devices[op] == Device::gpu; }

Kernels kernels_of(const Seen& seen) {
  std::vector<OpIndex> ops;
  std::vector<Nanoseconds> starts_ns;
  for (OpIndex op = 0; op < seen.schedule.op_count(); ++op) {
    if (!sees(seen, op)) continue;
    ops.push_back(op);
    starts_ns.push_back(seen.clock_ns[op]);
  }
  starts_ns.push_back(seen.clock_ns.back());
  return Kernels(seen.schedule, std::move(ops), std::move(starts_ns));
}

std::size_t place_of(const Schedule& schedule, OpIndex op, TensorId tensor) {
  const auto uses = schedule.uses(op);
  const auto found = std::find_if(uses.begin(), uses.end(), [tensor](const Use& use) { return use.tensor == tensor; });
  return static_cast<std::size_t>(found - uses.begin());
}

// Whether an op that is not seen writes the tensor after `from` and before `to`, round the iteration's end if need be.
bool replaced_between(const Seen& seen, TensorId tensor, OpIndex from, OpIndex to) {
  if (!seen.gpu_only) return false;
  const auto ops = seen.schedule.ops_of(tensor);
  return std::any_of(ops.begin(), ops.end(), [&](OpIndex op) {
    const bool between = from < to ? from < op && op < to : op > from || op < to;
    return between && !sees(seen, op) && seen.schedule.uses(op)[place_of(seen.schedule, op, tensor)].write;
  });
}

}  // namespace

std::vector<std::uint8_t> spilled(const Seen& seen, Bytes capacity) {
  struct Period {
    Nanoseconds length_ns = 0;
    InactivePeriod of;
    std::size_t use = 0;  // index over all
  };
  const Kernels kernels = kernels_of(seen);
  MemoryProfile memory(kernels, capacity);
  std::vector<std::size_t> first_use(1, 0);
  std::vector<std::uint8_t> out;
  KernelIndex kernel = 0;
  for (OpIndex op = 0; op < seen.schedule.op_count(); ++op) {
    Bytes used = 0;
    for (const Use& use : seen.schedule.uses(op)) {
      used += seen.trace.tensors[use.tensor].bytes;
      out.push_back(!sees(seen, op) && use.write ? 1 : 0);
    }
    first_use.push_back(out.size());
    if (!sees(seen, op)) continue;
    memory.add(kernel, kernel + 1, static_cast<std::int64_t>(used));
    ++kernel;
  }
  std::vector<Period> periods;
  for (const InactivePeriod& period : inactive_periods(kernels, seen.trace)) {
    const OpIndex from = kernels.op_of(period.begin + kernels.count() - 1), to = kernels.op_of(period.end);
    const bool read = seen.schedule.uses(to)[place_of(seen.schedule, to, period.tensor)].read;
    if (!read && !seen.trace.tensors[period.tensor].persistent) continue;
    if (replaced_between(seen, period.tensor, from, to)) continue;
    // What is overwritten next need not come back: it leaves before all that has to.
    const Nanoseconds length_ns = period.length_ns + (read ? 0 : 2 * seen.clock_ns.back());
    const double weight = seen.weights.empty() ? 1 : seen.weights[to];
    periods.push_back({static_cast<Nanoseconds>(static_cast<double>(length_ns) / weight), period,
                       first_use[from] + place_of(seen.schedule, from, period.tensor)});
  }
  std::sort(periods.begin(), periods.end(), [](const Period& a, const Period& b) {
    return a.length_ns != b.length_ns ? a.length_ns < b.length_ns : a.use > b.use;
  });
  for (const auto& [length_ns, period, use] : periods) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    if (memory.most(period.begin, period.end) + bytes > memory.limit()) {
      out[use] = 1;
    } else {
      memory.add(period.begin, period.end, bytes);
    }
  }
  return out;
}

std::vector<std::uint8_t> worth_cleaning(const Seen& seen, const std::vector<std::uint8_t>& spilled) {
  std::vector<std::uint8_t> worth(spilled.size(), 0), next(seen.trace.tensors.size(), 0);
  for (int round = 0; round < 2; ++round) {  // the second sees over the iteration's end
    std::size_t index = spilled.size();
    for (OpIndex op = static_cast<OpIndex>(seen.schedule.op_count()); op-- > 0;) {
      const auto uses = seen.schedule.uses(op);
      for (std::size_t i = uses.size(); i-- > 0;) {
        --index;
        if (seen.gpu_only && seen.devices[op] == Device::cpu) {
          next[uses[i].tensor] = uses[i].read ? 1 : 0;  // it has to get there
          continue;
        }
        std::uint8_t& after = next[uses[i].tensor];
        worth[index] = spilled[index] != 0 || after != 0 ? 1 : 0;
        after = uses[i].write ? 0 : worth[index];
      }
    }
  }
  return worth;
}

Moved moved_by(const Seen& seen, const std::vector<std::uint8_t>& spilled) {
  const std::vector<std::uint8_t> worth = worth_cleaning(seen, spilled);
  Moved moved;
  std::vector<std::uint8_t> away(seen.trace.tensors.size(), 0);
  for (int round = 0; round < 2; ++round) {
    std::size_t index = 0;
    for (OpIndex op = 0; op < seen.schedule.op_count(); ++op) {
      const bool here = sees(seen, op);
      const std::size_t phase = static_cast<std::size_t>(seen.trace.ops[op].phase);
      for (const Use& use : seen.schedule.uses(op)) {
        const Bytes bytes = seen.trace.tensors[use.tensor].bytes;
        if (round == 1 && here && use.read && away[use.tensor] != 0) {
          moved.up[phase] += bytes;
        }
        if (round == 1 && here && use.write && worth[index] != 0) {
          moved.down[phase] += bytes;
        }
        if (here || use.write) away[use.tensor] = spilled[index];
        ++index;
      }
    }
  }
  return moved;
}

namespace {

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

class Estimate {
 public:
  Estimate(const Trace& trace, const MachineSpec& machine)
      : trace_(trace), machine_(machine), schedule_(trace), clock_ns_(1, 0) {
    for (const Op& op : trace.ops) clock_ns_.push_back(clock_ns_.back() + op.duration_ns + op.gap_before_ns);
  }

  // Seconds of an iteration: phase by phase what takes longest. The CPU's updates may go on in the next forward pass,
  // each until its parameters are used.
  double seconds(const std::vector<Device>& devices) const {
    const Seen seen{trace_, schedule_, devices, clock_ns_, {}, true};
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
    const Kernels kernels = kernels_of({trace_, schedule_, devices, clock_ns_, {}, true});
    const std::int64_t used = MemoryProfile(kernels, trace_, 0).most(0, kernels.count());
    const Bytes gpu = std::min(machine_.tiers[0].capacity / 10 * 9, static_cast<Bytes>(used));
    const Bytes cpu = machine_.tiers[host].capacity / 20 * 19;
    const Seen seen{trace_, schedule_, devices, clock_ns_, {}, false};
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
    if (device == o.device) return static_cast<double>(o.duration_ns + o.gap_before_ns) * 1e-9;
    return static_cast<double>(duration_on_cpu(trace_, o, machine_)) * 1e-9;
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
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) bytes += tensor.persistent ? tensor.bytes : 0;
  const std::array<bool, role_count> of_cpu = roles_of_cpu(trace, devices);
  // What no op writes stays where it starts: nothing evicts it, and reading it from storage leaves no copy on the way.
  std::vector<bool> written(trace.tensors.size(), false);
  for (const Op& op : trace.ops) {
    for (const TensorId tensor : trace.writes(op)) written[tensor] = true;
  }
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
    if (of_cpu[role] || stays) {
      layout.initial[role] = host;
    } else if (machine.initial_tier == host && bytes > machine.tiers[host].capacity) {
      layout.initial[role] = 0;
    }
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
  std::stable_sort(groups.begin(), groups.end(), [&](std::int32_t a, std::int32_t b) { return needed[a] < needed[b]; });
}

void place_updates(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) {
  const TierId host = machine.tier_of(Device::cpu);
  if (host == no_tier || machine.cpu_adam_parameters_per_second <= 0) return;
  if (machine.link_between(host, 0) == no_link || machine.link_between(0, host) == no_link) return;
  // A live program asks about an update alone: there is nothing to weigh it against, it stays where it was.
  if (std::all_of(trace.ops.begin(), trace.ops.end(), [&](const Op& op) { return is_update(trace, op); })) return;
  const Estimate estimate(trace, machine);
  constexpr double worth = 0.995;  // an estimate: for less the CPU is left alone
  constexpr int parts = 16;
  double least = worth * estimate.seconds(devices);
  std::vector<Device> best = devices;
  int share = 0;
  const auto attempt = [&](int part) {
    if (part < 1 || part > parts) return;
    std::vector<Device> moved = devices;
    place_share(trace, static_cast<double>(part) / parts, moved);
    const double seconds = estimate.seconds(moved) + estimate.storage_seconds(moved);
    if (seconds >= least) return;
    least = seconds;
    share = part;
    best = std::move(moved);
  };
  // Coarsely, then around the best, as it has one minimum but for rounding.
  for (int part = 4; part <= parts; part += 4) attempt(part);
  for (const int step : {2, 1}) {
    const int around = share;
    attempt(around - step);
    attempt(around + step);
  }
  devices = best;
}

}  // namespace tencache
