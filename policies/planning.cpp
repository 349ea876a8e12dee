#include "policies/planning.h"

#include <algorithm>
#include <limits>

#include "core/check.h"

namespace tencache {
namespace {

// What the link moves in that time, rounded down, but no more than `most`.
Bytes moved_in(Nanoseconds duration_ns, BytesPerSecond bandwidth, Bytes most) {
  const uint128 bytes = static_cast<uint128>(duration_ns) * bandwidth / second_ns;
  return static_cast<Bytes>(std::min<uint128>(bytes, most));
}

}  // namespace

Kernels::Kernels(const Trace& trace, const Schedule& schedule) {
  std::vector<KernelIndex> kernel_of(trace.ops.size(), -1);
  Nanoseconds time_ns = 0;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].device != Device::gpu) continue;
    kernel_of[op] = count();
    ops.push_back(op);
    durations_ns.push_back(trace.ops[op].gap_before_ns + trace.ops[op].duration_ns);
    starts_ns.push_back(time_ns);
    time_ns += durations_ns.back();
  }
  TENCACHE_CHECK(!ops.empty());
  starts_ns.push_back(time_ns);
  first_use.push_back(0);
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    for (const OpIndex op : schedule.ops_of(tensor)) {
      if (kernel_of[op] >= 0) uses.push_back(kernel_of[op]);
    }
    first_use.push_back(uses.size());
  }
}

KernelIndex Kernels::at_time(Nanoseconds time_ns) const {
  const Nanoseconds iteration_ns = starts_ns.back();
  if (iteration_ns == 0) return 0;
  const auto after = std::upper_bound(starts_ns.begin(), starts_ns.end(), time_ns % iteration_ns);
  return time_ns / iteration_ns * count() + (after - starts_ns.begin()) - 1;
}

std::vector<InactivePeriod> inactive_periods(const Kernels& kernels, const Trace& trace) {
  std::vector<InactivePeriod> periods;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const std::span<const KernelIndex> uses = kernels.uses_of(tensor);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const bool last = i + 1 == uses.size();
      if (last && !trace.tensors[tensor].persistent) break;
      // Of the last use the period begins in the next iteration if no kernel follows: it is this one's all the same.
      KernelIndex begin = uses[i] + 1, end = last ? uses[0] + kernels.count() : uses[i + 1];
      if (begin >= end) continue;
      if (begin == kernels.count()) begin -= kernels.count(), end -= kernels.count();
      periods.push_back({tensor, trace.tensors[tensor].bytes, begin, end, kernels.between(begin, end)});
    }
  }
  return periods;
}

// ---- CyclicSums -----------------------------------------------------------------------------------------------------

CyclicSums::CyclicSums(std::vector<std::int64_t> values) : values_(std::move(values)), tree_(values_.size() + 1, 0) {
  for (std::size_t i = 1; i < tree_.size(); ++i) {
    total_ += values_[i - 1];
    tree_[i] += values_[i - 1];
    const std::size_t parent = i + (i & (~i + 1));
    if (parent < tree_.size()) tree_[parent] += tree_[i];
  }
}

void CyclicSums::set(KernelIndex kernel, std::int64_t value) {
  const std::size_t at = slot(kernel);
  const std::int64_t change = value - values_[at];
  if (change == 0) return;
  values_[at] = value;
  total_ += change;
  for (std::size_t i = at + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += change;
}

std::int64_t CyclicSums::between(KernelIndex from, KernelIndex to) const {
  if (to < from) return -between(to, from);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min<uint128>(before(to) - before(from), most));
}

uint128 CyclicSums::before(KernelIndex kernel) const {
  const KernelIndex size = static_cast<KernelIndex>(values_.size());
  std::int64_t sum = 0;
  for (std::size_t i = static_cast<std::size_t>(kernel % size); i > 0; i &= i - 1) sum += tree_[i];
  return static_cast<uint128>(kernel / size) * static_cast<uint128>(total_) + static_cast<uint128>(sum);
}

std::size_t CyclicSums::descend(std::int64_t amount, bool or_equal) const {
  std::size_t step = 1, at = 0;
  while (2 * step < tree_.size()) step *= 2;
  for (; step > 0; step /= 2) {
    if (at + step >= tree_.size()) continue;
    const std::int64_t sum = tree_[at + step];
    if (sum < amount || (or_equal && sum == amount)) {
      at += step;
      amount -= sum;
    }
  }
  return at;
}

KernelIndex CyclicSums::forward(KernelIndex from, std::int64_t amount) const {
  if (total_ == 0) return -1;
  const uint128 total = static_cast<uint128>(total_), target = before(from) + static_cast<uint128>(amount);
  const KernelIndex rounds = static_cast<KernelIndex>((target - 1) / total);
  const std::size_t slots = descend(static_cast<std::int64_t>((target - 1) % total) + 1, false) + 1;
  return rounds * static_cast<KernelIndex>(values_.size()) + static_cast<KernelIndex>(slots);
}

KernelIndex CyclicSums::backward(KernelIndex to, std::int64_t amount) const {
  const uint128 all = before(to), wanted = static_cast<uint128>(amount);
  if (total_ == 0 || all < wanted) return -1;
  const uint128 total = static_cast<uint128>(total_), target = all - wanted;
  const KernelIndex rounds = static_cast<KernelIndex>(target / total);
  const std::size_t slots = descend(static_cast<std::int64_t>(target % total), true);
  return rounds * static_cast<KernelIndex>(values_.size()) + static_cast<KernelIndex>(slots);
}

// ---- BandwidthPlan --------------------------------------------------------------------------------------------------

BandwidthPlan::BandwidthPlan(const Kernels& kernels, const MachineSpec& machine)
    : tier_count_(machine.tiers.size()), paths_(tier_count_ * tier_count_) {
  const Bytes most = (Bytes{1} << 61) / kernels.ops.size();  // so that an iteration's sum is an int64
  const auto add_part = [&](BytesPerSecond bandwidth) {
    std::vector<Bytes>& part = parts_.emplace_back();
    for (const Nanoseconds duration_ns : kernels.durations_ns) part.push_back(moved_in(duration_ns, bandwidth, most));
  };
  for (const Link& link : machine.links) add_part(link.bandwidth);
  for (const Resource& resource : machine.resources) add_part(resource.bandwidth);
  users_.resize(parts_.size());
  for (TierId from = 0; from < tier_count_; ++from) {
    for (TierId to = 0; to < tier_count_; ++to) {
      Path& path = paths_[index(from, to)];
      for (const LinkId id : machine.path_between(from, to)) {
        const Link& link = machine.links[id];
        path.bandwidth = path.bandwidth == 0 ? link.bandwidth : std::min(path.bandwidth, link.bandwidth);
        path.latency_ns += link.latency_ns;
        path.parts.push_back(id);
        for (const std::uint8_t resource : link.uses) {
          const std::size_t part = machine.links.size() + resource;
          path.bandwidth = std::min(path.bandwidth, machine.resources[resource].bandwidth);
          if (std::find(path.parts.begin(), path.parts.end(), part) == path.parts.end()) path.parts.push_back(part);
        }
      }
      if (path.bandwidth == 0) continue;
      path.left = lefts_.size();
      std::vector<std::int64_t> left(kernels.ops.size());
      for (std::size_t kernel = 0; kernel < left.size(); ++kernel) {
        Bytes least = unlimited;
        for (const std::size_t part : path.parts) least = std::min(least, parts_[part][kernel]);
        left[kernel] = static_cast<std::int64_t>(least);
      }
      lefts_.emplace_back(std::move(left));
      for (const std::size_t part : path.parts) users_[part].push_back(index(from, to));
    }
  }
}

Nanoseconds BandwidthPlan::trip_ns(TierId from, TierId to, Bytes bytes) const {
  const Path& path = paths_[index(from, to)];
  const uint128 moving_ns = static_cast<uint128>(bytes) * second_ns / path.bandwidth;
  return path.latency_ns + static_cast<Nanoseconds>(moving_ns);
}

Bytes BandwidthPlan::take(const Path& path, KernelIndex kernel, Bytes bytes) {
  const Bytes taken = std::min(bytes, static_cast<Bytes>(lefts_[path.left].at(kernel)));
  if (taken == 0) return 0;
  const std::size_t slot = static_cast<std::size_t>(kernel) % parts_.front().size();
  for (const std::size_t part : path.parts) parts_[part][slot] -= taken;
  for (const std::size_t part : path.parts) {  // whoever shares it has at most what it has left
    for (const std::size_t user : users_[part]) {
      CyclicSums& left = lefts_[paths_[user].left];
      left.set(kernel, std::min(left.at(kernel), static_cast<std::int64_t>(parts_[part][slot])));
    }
  }
  return taken;
}

void BandwidthPlan::take_earliest(TierId from, TierId to, KernelIndex begin, KernelIndex end, Bytes bytes) {
  const Path& path = paths_[index(from, to)];
  for (KernelIndex kernel = begin; kernel < end && bytes > 0; ++kernel) bytes -= take(path, kernel, bytes);
}

// ---- MemoryProfile --------------------------------------------------------------------------------------------------

MemoryProfile::MemoryProfile(const Kernels& kernels, const Trace& trace, Bytes limit, KernelIndex allocated_ahead)
    : limit_(static_cast<std::int64_t>(limit)),
      durations_ns_(kernels.durations_ns),
      bytes_(kernels.ops.size(), 0),
      over_(std::vector<std::int64_t>(kernels.ops.size(), 0)) {
  std::vector<std::int64_t> change(kernels.ops.size() + 1, 0);
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const std::span<const KernelIndex> uses = kernels.uses_of(tensor);
    if (uses.empty()) continue;
    const std::int64_t bytes = static_cast<std::int64_t>(trace.tensors[tensor].bytes);
    const bool persistent = trace.tensors[tensor].persistent;
    const KernelIndex born = persistent ? 0 : std::max<KernelIndex>(uses.front() - allocated_ahead, 0);
    change[static_cast<std::size_t>(born)] += bytes;
    change[persistent ? kernels.ops.size() : static_cast<std::size_t>(uses.back()) + 1] -= bytes;
  }
  std::int64_t now = 0;
  for (std::size_t kernel = 0; kernel < bytes_.size(); ++kernel) {
    now += change[kernel];
    add(static_cast<KernelIndex>(kernel), static_cast<KernelIndex>(kernel) + 1, now);
  }
}

void MemoryProfile::add(KernelIndex from, KernelIndex to, std::int64_t bytes) {
  for (KernelIndex kernel = from; kernel < to; ++kernel) {
    const std::size_t slot = static_cast<std::size_t>(kernel) % bytes_.size();
    bytes_[slot] += bytes;
    over_.set(kernel, bytes_[slot] > limit_ ? durations_ns_[slot] : 0);
  }
}

}  // namespace tencache
