#include "policies/foresight/spill.h"

#include <algorithm>
#include <utility>

#include "policies/planning/range_peaks.h"

namespace tencache {
namespace {

bool sees(const Seen& seen, OpIndex op) { return !seen.gpu_only || seen.devices[op] == Device::gpu; }

std::size_t place_of(const Schedule& schedule, OpIndex op, TensorId tensor) {
  const auto uses = schedule.uses(op);
  const auto found = std::ranges::find(uses, tensor, &Use::tensor);
  return static_cast<std::size_t>(found - uses.begin());
}

// Whether an op that is not seen writes the tensor after `from` and before `to`, round the iteration's end if need be.
bool replaced_between(const Seen& seen, TensorId tensor, OpIndex from, OpIndex to) {
  if (!seen.gpu_only) return false;
  const auto ops = seen.schedule.ops_of(tensor);
  const auto replaces = [&](OpIndex op) {
    return !sees(seen, op) && seen.schedule.uses(op)[place_of(seen.schedule, op, tensor)].write;
  };
  const auto after = std::ranges::upper_bound(ops, from), before = std::ranges::lower_bound(ops, to);
  if (from < to) return std::any_of(after, before, replaces);
  return std::any_of(after, ops.end(), replaces) || std::any_of(ops.begin(), before, replaces);
}

}  // namespace

std::vector<bool> written_by(const Trace& trace) {
  std::vector<bool> written(trace.tensors.size(), false);
  for (const Op& op : trace.ops) {
    for (const TensorId tensor : trace.writes(op)) written[tensor] = true;
  }
  return written;
}

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

std::vector<std::uint8_t> spilled(const Seen& seen, Bytes capacity) {
  struct Period {
    Nanoseconds length_ns = 0;
    InactivePeriod of;
    std::size_t use = 0;  // index over all
  };
  const Kernels kernels = kernels_of(seen);
  std::vector<std::int64_t> used_by;  // each kernel
  std::vector<std::size_t> first_use(1, 0);
  std::vector<std::uint8_t> out;
  for (OpIndex op = 0; op < seen.schedule.op_count(); ++op) {
    Bytes used = 0;
    for (const Use& use : seen.schedule.uses(op)) {
      used += seen.trace.tensors[use.tensor].bytes;
      out.push_back(!sees(seen, op) && use.write ? 1 : 0);
    }
    first_use.push_back(out.size());
    if (!sees(seen, op)) continue;
    used_by.push_back(static_cast<std::int64_t>(used));
  }
  const std::vector<bool> written = written_by(seen.trace);
  std::vector<Period> periods;
  for (const InactivePeriod& period : inactive_periods(kernels, seen.trace)) {
    const OpIndex from = kernels.op_of(period.begin + kernels.count() - 1), to = kernels.op_of(period.end);
    const bool read = seen.schedule.uses(to)[place_of(seen.schedule, to, period.tensor)].read;
    const bool forgotten = !seen.trace.tensors[period.tensor].persistent || (seen.forgets && from < to);
    if (!read && forgotten) continue;
    if (replaced_between(seen, period.tensor, from, to)) continue;
    // What is overwritten next need not come back: it leaves before all that has to.
    // In storage, what no op writes lies already; of all else there has to be a copy first.
    const bool costs_a_write = !seen.gpu_only && written[period.tensor];
    const Nanoseconds length_ns =
        (costs_a_write ? period.length_ns / 2 : period.length_ns) + (read ? 0 : 2 * seen.clock_ns.back());
    periods.push_back({length_ns, period, first_use[from] + place_of(seen.schedule, from, period.tensor)});
  }
  std::ranges::sort(periods, [](const Period& a, const Period& b) {
    return a.length_ns != b.length_ns ? a.length_ns < b.length_ns : a.use > b.use;
  });
  RangePeaks memory(used_by);
  const std::int64_t limit = static_cast<std::int64_t>(capacity);
  for (const auto& [length_ns, period, use] : periods) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    if (memory.most(period.begin, period.end) + bytes > limit) {
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

}  // namespace tencache
