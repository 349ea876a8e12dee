#include "policies/foresight_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "core/cpu_update.h"
#include "policies/updates.h"

namespace tencache {
namespace {

// The greatest of a range, and adding to one: a segment tree over the ops.
class Peaks {
 public:
  explicit Peaks(const std::vector<std::int64_t>& values) {
    while (size_ < values.size()) size_ *= 2;
    most_.assign(2 * size_, 0);
    added_.assign(2 * size_, 0);
    std::copy(values.begin(), values.end(), most_.begin() + static_cast<std::ptrdiff_t>(size_));
    for (std::size_t i = size_; i-- > 1;) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
  }
  void add(std::size_t from, std::size_t to, std::int64_t bytes) { change(1, 0, size_, from, to, bytes); }
  std::int64_t most(std::size_t from, std::size_t to) const { return find(1, 0, size_, from, to); }

 private:
  void change(std::size_t node, std::size_t begin, std::size_t end, std::size_t from, std::size_t to,
              std::int64_t bytes) {
    if (to <= begin || end <= from) return;
    if (from <= begin && end <= to) {
      most_[node] += bytes;
      added_[node] += bytes;
      return;
    }
    const std::size_t middle = (begin + end) / 2;
    change(2 * node, begin, middle, from, to, bytes);
    change(2 * node + 1, middle, end, from, to, bytes);
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
  std::int64_t find(std::size_t node, std::size_t begin, std::size_t end, std::size_t from, std::size_t to) const {
    if (to <= begin || end <= from) return 0;
    if (from <= begin && end <= to) return most_[node];
    const std::size_t middle = (begin + end) / 2;
    return std::max(find(2 * node, begin, middle, from, to), find(2 * node + 1, middle, end, from, to)) + added_[node];
  }

  std::size_t size_ = 1;
  std::vector<std::int64_t> most_, added_;
};

}  // namespace

std::vector<std::uint8_t> spilled(const Seen& seen, Bytes capacity) {
  struct Period {
    Nanoseconds length_ns = 0;
    std::size_t use = 0;  // index over all
    std::size_t begin = 0, end = 0;
    std::int64_t bytes = 0;
  };
  const std::size_t ops = seen.schedule.op_count();
  std::vector<std::int64_t> pinned(ops, 0);
  std::vector<Period> periods;
  std::vector<std::size_t> first_use(1, 0);
  for (OpIndex op = 0; op < ops; ++op) first_use.push_back(first_use.back() + seen.schedule.uses(op).size());
  std::vector<std::uint8_t> out(first_use.back(), 0);
  // Backwards over two rounds: the next use in `next`, by tensor; `none`: the content comes from the CPU, or dies.
  std::vector<std::size_t> next(seen.trace.tensors.size(), none);
  std::vector<std::uint8_t> read_next(seen.trace.tensors.size(), 0);
  for (std::size_t place = 2 * ops; place-- > 0;) {
    const OpIndex op = static_cast<OpIndex>(place % ops);
    const auto uses = seen.schedule.uses(op);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const Use& use = uses[i];
      const Tensor& tensor = seen.trace.tensors[use.tensor];
      if (!tensor.persistent && seen.schedule.ops_of(use.tensor).back() == op) next[use.tensor] = none;
      if (seen.gpu_only && seen.devices[op] == Device::cpu) {
        if (use.write) next[use.tensor] = none;
        if (place < ops && use.write) out[first_use[op] + i] = 1;
        continue;
      }
      if (place < ops) {
        const std::int64_t bytes = static_cast<std::int64_t>(tensor.bytes);
        pinned[op] += bytes;
        const std::size_t end = next[use.tensor];
        if (end != none && end > place + 1) {
          const Nanoseconds until = end < ops ? seen.clock_ns[end] : seen.clock_ns[end - ops] + seen.clock_ns.back();
          const double weight = seen.weights.empty() ? 1 : seen.weights[end % ops];
          // What is overwritten next need not come back: it leaves before all that has to.
          const Nanoseconds cheap = read_next[use.tensor] != 0 ? 0 : 2 * seen.clock_ns.back();
          const Nanoseconds length = until - seen.clock_ns[op + 1] + cheap;
          periods.push_back({static_cast<Nanoseconds>(static_cast<double>(length) / weight), first_use[op] + i,
                             place + 1, end, bytes});
        }
      }
      next[use.tensor] = use.read || tensor.persistent ? place : none;
      read_next[use.tensor] = use.read ? 1 : 0;
    }
  }
  std::stable_sort(periods.begin(), periods.end(),
                   [](const Period& a, const Period& b) { return a.length_ns < b.length_ns; });
  Peaks peaks(pinned);
  for (const Period& period : periods) {
    const std::size_t end = std::min(period.end, ops), wrapped = period.end > ops ? period.end - ops : 0;
    const std::int64_t most = std::max(peaks.most(period.begin, end), peaks.most(0, wrapped));
    if (most + period.bytes > static_cast<std::int64_t>(capacity)) {
      out[period.use] = 1;
      continue;
    }
    peaks.add(period.begin, end, period.bytes);
    peaks.add(0, wrapped, period.bytes);
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
      const bool here = !seen.gpu_only || seen.devices[op] == Device::gpu;
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
    std::array<double, 4> phases{};
    std::vector<double> first_used(trace_.tensors.size(), -1);  // by the GPU in the forward pass, after so much compute
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      if (devices[op] == Device::cpu) continue;
      double& compute = phases[static_cast<std::size_t>(trace_.ops[op].phase)];
      for (const Use& use : schedule_.uses(op)) {
        if (trace_.ops[op].phase == Phase::forward && first_used[use.tensor] < 0) first_used[use.tensor] = compute;
      }
      compute += seconds_of(op, Device::gpu);
    }
    const double compute = phases[0];
    const TierId host = machine_.tier_of(Device::cpu);
    const double in = static_cast<double>(machine_.links[machine_.link_between(host, 0)].bandwidth);
    const double out = static_cast<double>(machine_.links[machine_.link_between(0, host)].bandwidth);
    // Where there is room, links that a pass leaves idle work for the updates before and after it.
    const double room = static_cast<double>(capacity - std::min(capacity, kept_at_updates(devices, away)));
    const auto shift = [&](Phase idle, std::array<Bytes, 4>& bytes, double bandwidth) {
      Bytes& of_updates = bytes[static_cast<std::size_t>(Phase::optimizer)];
      const std::size_t pass = static_cast<std::size_t>(idle);
      const double left = std::max(0.0, phases[pass] * bandwidth - static_cast<double>(bytes[pass]));
      const Bytes moves = std::min(of_updates, static_cast<Bytes>(std::min(left, room)));
      of_updates -= moves;
      bytes[pass] += moves;
    };
    shift(Phase::backward, moved.up, in);
    shift(Phase::forward, moved.down, out);
    for (std::size_t phase = 0; phase < phases.size(); ++phase) {
      phases[phase] = std::max(
          {phases[phase], static_cast<double>(moved.up[phase]) / in, static_cast<double>(moved.down[phase]) / out});
    }
    double cpu = 0, late = 0;
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      if (devices[op] != Device::cpu) continue;
      cpu += seconds_of(op, Device::cpu);
      for (const Use& use : schedule_.uses(op)) {
        const double used = first_used[use.tensor];
        if (use.write && used >= 0) late = std::max(late, cpu - used * (compute > 0 ? phases[0] / compute : 1));
      }
    }
    const double updates = std::max(phases[static_cast<std::size_t>(Phase::optimizer)], late);
    return std::max(phases[0] + phases[1] + phases[2] + updates, cpu);
  }

  // What the GPU holds when the updates begin.
  Bytes kept_at_updates(const std::vector<Device>& devices, const std::vector<std::uint8_t>& away) const {
    const std::size_t ops = trace_.ops.size();
    std::size_t at = 0;
    while (at < ops && !is_update(trace_, trace_.ops[at])) ++at;
    Bytes kept = 0;
    std::size_t index = 0;
    for (OpIndex op = 0; op < ops; ++op) {
      for (const Use& use : schedule_.uses(op)) {
        const bool held = away[index++] == 0 && devices[op] == Device::gpu;
        const Tensor& tensor = trace_.tensors[use.tensor];
        if (!held || (!tensor.persistent && schedule_.ops_of(use.tensor).back() == op)) continue;
        const std::size_t next = op + schedule_.distance_to_next_use(use.tensor, op);
        if ((op < at && next >= at) || next >= at + ops) kept += tensor.bytes;
      }
    }
    return kept;
  }

  // If the CPU updates: what storage then takes for what the two memories do not hold with room to spare, tensors that
  // both devices use counted twice. Infinite if it could not get to the CPU.
  double storage_seconds(const std::vector<Device>& devices) const {
    const TierId host = machine_.tier_of(Device::cpu);
    Bytes held = 0;   // by persistent tensors that GPU ops use
    Bytes twice = 0;  // of tensors that both use
    std::int64_t passing = 0, most_passing = 0;
    std::vector<std::uint8_t> by_gpu(trace_.tensors.size(), 0), by_cpu = by_gpu;
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      for (const Use& use : schedule_.uses(op)) {
        const Tensor& tensor = trace_.tensors[use.tensor];
        const auto ops = schedule_.ops_of(use.tensor);
        (devices[op] == Device::gpu ? by_gpu : by_cpu)[use.tensor] = 1;
        if (tensor.persistent) continue;
        if (ops.front() == op) passing += static_cast<std::int64_t>(tensor.bytes);
        most_passing = std::max(most_passing, passing);
        if (ops.back() == op) passing -= static_cast<std::int64_t>(tensor.bytes);
      }
    }
    for (TensorId tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
      if (by_gpu[tensor] == 0) continue;
      if (by_cpu[tensor] != 0) twice += trace_.tensors[tensor].bytes;
      if (trace_.tensors[tensor].persistent) held += trace_.tensors[tensor].bytes;
    }
    const Bytes gpu = std::min(machine_.tiers[0].capacity / 10 * 9, held + static_cast<Bytes>(most_passing));
    const Bytes cpu = machine_.tiers[host].capacity / 4 * 3;
    const Seen seen{trace_, schedule_, devices, clock_ns_, {}, false};
    const Moved moved = moved_by(seen, spilled(seen, gpu + cpu - std::min(cpu, twice)));
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

void place_share(const Trace& trace, double share, bool last, std::vector<Device>& devices) {
  const auto moves = [&](OpIndex op) { return devices[op] == Device::gpu && is_update(trace, trace.ops[op]); };
  double left = 0, owed = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (last && moves(op)) left += (1 - share) * static_cast<double>(bytes_touched(trace, trace.ops[op]));
  }
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (!moves(op)) continue;
    const double bytes = static_cast<double>(bytes_touched(trace, trace.ops[op]));
    owed += last ? bytes : share * bytes;
    if (owed - left < bytes / 2) continue;
    if (!last) owed -= bytes;
    devices[op] = Device::cpu;
  }
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
  const Estimate estimate(trace, machine);
  constexpr double worth = 0.98;  // an estimate: for less the CPU is left alone
  constexpr int parts = 16;
  double least = worth * estimate.seconds(devices);
  std::vector<Device> best = devices;
  int share = 0;
  const auto attempt = [&](int part, bool last) {
    if (part < 1 || part > parts) return;
    std::vector<Device> moved = devices;
    place_share(trace, static_cast<double>(part) / parts, last, moved);
    const double seconds = std::max(estimate.seconds(moved), estimate.storage_seconds(moved));
    if (seconds >= least) return;
    least = seconds;
    share = part;
    best = std::move(moved);
  };
  // Coarsely, then around the best, as it has one minimum but for rounding.
  for (int part = 4; part <= parts; part += 4) attempt(part, true);
  for (const int step : {2, 1}) {
    const int around = share;
    attempt(around - step, true);
    attempt(around + step, true);
  }
  const int around = share;
  for (int part = around - 1; part <= around + 1; ++part) attempt(part, false);
  devices = best;
}

}  // namespace tencache
