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

std::vector<OpIndex> ops_of_gpu(const Trace& trace) {
  std::vector<OpIndex> ops;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].device == Device::gpu) ops.push_back(op);
  }
  return ops;
}

std::vector<Nanoseconds> starts_without_stalls(const Trace& trace) {
  std::vector<Nanoseconds> starts_ns(1, 0);
  for (const OpIndex op : ops_of_gpu(trace)) {
    starts_ns.push_back(starts_ns.back() + trace.ops[op].gap_before_ns + trace.ops[op].duration_ns);
  }
  return starts_ns;
}

}  // namespace

Kernels::Kernels(const Trace& trace, const Schedule& schedule)
    : Kernels(schedule, ops_of_gpu(trace), starts_without_stalls(trace)) {}

Kernels::Kernels(const Schedule& schedule, std::vector<OpIndex> of, std::vector<Nanoseconds> starts)
    : ops(std::move(of)), starts_ns(std::move(starts)) {
  TENCACHE_CHECK(!ops.empty() && starts_ns.size() == ops.size() + 1);
  std::vector<KernelIndex> kernel_of(schedule.op_count(), -1);
  for (std::size_t kernel = 0; kernel < ops.size(); ++kernel) {
    kernel_of[ops[kernel]] = static_cast<KernelIndex>(kernel);
    durations_ns.push_back(starts_ns[kernel + 1] - starts_ns[kernel]);
  }
  first_use.push_back(0);
  for (TensorId tensor = 0; tensor < schedule.tensor_count(); ++tensor) {
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
  uint128 rounds = 0;
  if (kernel >= size) {  // rarely: a division takes longer than all the rest
    rounds = static_cast<uint128>(kernel / size) * static_cast<uint128>(total_);
    kernel %= size;
  }
  std::int64_t sum = 0;
  for (std::size_t i = static_cast<std::size_t>(kernel); i > 0; i &= i - 1) sum += tree_[i];
  return rounds + static_cast<uint128>(sum);
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
  if (target <= total) return static_cast<KernelIndex>(descend(static_cast<std::int64_t>(target), false)) + 1;
  const KernelIndex rounds = static_cast<KernelIndex>((target - 1) / total);
  const std::size_t slots = descend(static_cast<std::int64_t>((target - 1) % total) + 1, false) + 1;
  return rounds * static_cast<KernelIndex>(values_.size()) + static_cast<KernelIndex>(slots);
}

KernelIndex CyclicSums::backward(KernelIndex to, std::int64_t amount) const {
  const uint128 all = before(to), wanted = static_cast<uint128>(amount);
  if (total_ == 0 || all < wanted) return -1;
  const uint128 total = static_cast<uint128>(total_), target = all - wanted;
  if (target < total) return static_cast<KernelIndex>(descend(static_cast<std::int64_t>(target), true));
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
  for (KernelIndex kernel = begin; bytes > 0; ++kernel) {
    kernel = std::max(kernel, lefts_[path.left].forward(kernel, 1) - 1);  // the next that has anything left
    if (kernel >= end) return;
    bytes -= take(path, kernel, bytes);
  }
}

bool nothing_left_for(const Kernels& kernels, const BandwidthPlan& bandwidth, TierId from, TierId to, KernelIndex begin,
                      Bytes bytes) {
  const KernelIndex end = kernels.at_time(kernels.start_of(begin) + bandwidth.trip_ns(from, to, bytes));
  return bandwidth.left(from, to).between(begin, end) == 0;
}

// ---- MemoryProfile --------------------------------------------------------------------------------------------------

// A leaf that crosses the limit changes sides. The tree finds those: a node knows how low those above the limit are,
// and how high the others.

MemoryProfile::MemoryProfile(const Kernels& kernels, Bytes limit)
    : limit_(static_cast<std::int64_t>(limit)),
      durations_ns_(kernels.durations_ns),
      over_(std::vector<std::int64_t>(kernels.ops.size(), 0)) {
  while (leaf_count_ < durations_ns_.size()) leaf_count_ *= 2;
  nodes_.resize(2 * leaf_count_);
  for (std::size_t kernel = 0; kernel < durations_ns_.size(); ++kernel) set_leaf(leaf_count_ + kernel, 0);
  build();
}

MemoryProfile::MemoryProfile(const Kernels& kernels, const Trace& trace, Bytes limit, KernelIndex allocated_ahead,
                             Bytes granularity)
    : MemoryProfile(kernels, limit) {
  std::vector<std::int64_t> change(kernels.ops.size() + 1, 0);
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const std::span<const KernelIndex> uses = kernels.uses_of(tensor);
    if (uses.empty()) continue;
    const Bytes rounded = (trace.tensors[tensor].bytes + granularity - 1) / granularity * granularity;
    const std::int64_t bytes = static_cast<std::int64_t>(rounded);
    const bool persistent = trace.tensors[tensor].persistent;
    const KernelIndex born = persistent ? 0 : std::max<KernelIndex>(uses.front() - allocated_ahead, 0);
    change[static_cast<std::size_t>(born)] += bytes;
    change[persistent ? kernels.ops.size() : static_cast<std::size_t>(uses.back()) + 1] -= bytes;
  }
  std::int64_t now = 0;
  for (std::size_t kernel = 0; kernel < durations_ns_.size(); ++kernel) {
    now += change[kernel];
    set_leaf(leaf_count_ + kernel, now);
  }
  build();
}

void MemoryProfile::build() {
  for (std::size_t node = leaf_count_; node-- > 1;) pull(node);
}

void MemoryProfile::set_leaf(std::size_t node, std::int64_t bytes) {
  const std::size_t kernel = node - leaf_count_;
  const bool over = bytes > limit_;
  Node& leaf = nodes_[node];
  leaf = {};
  leaf.most = bytes;
  (over ? leaf.least_over : leaf.most_under) = bytes;
  (over ? leaf.over_count : leaf.under_count) = 1;
  leaf.time_over = over ? durations_ns_[kernel] : 0;
  leaf.excess = over ? int128{bytes - limit_} * leaf.time_over : 0;
  over_.set(static_cast<KernelIndex>(kernel), leaf.time_over);
}

void MemoryProfile::raise(Node& node, std::int64_t bytes) {
  if (node.over_count + node.under_count == 0) return;
  node.added += bytes;
  node.most += bytes;
  if (node.over_count > 0) node.least_over += bytes;
  if (node.under_count > 0) node.most_under += bytes;
  node.excess += int128{bytes} * node.time_over;
}

void MemoryProfile::push(std::size_t node) {
  raise(nodes_[2 * node], nodes_[node].added);
  raise(nodes_[2 * node + 1], nodes_[node].added);
  nodes_[node].added = 0;
}

void MemoryProfile::pull(std::size_t node) {
  const Node &left = nodes_[2 * node], &right = nodes_[2 * node + 1];
  nodes_[node] = {.added = 0,
                  .most = std::max(left.most, right.most),
                  .least_over = std::min(left.least_over, right.least_over),
                  .most_under = std::max(left.most_under, right.most_under),
                  .over_count = left.over_count + right.over_count,
                  .under_count = left.under_count + right.under_count,
                  .time_over = left.time_over + right.time_over,
                  .excess = left.excess + right.excess};
}

// After the node's figures have changed: those below that are on the wrong side change sides.
void MemoryProfile::settle(std::size_t node, Range below) {
  const Node& now = nodes_[node];
  if ((now.over_count == 0 || now.least_over > limit_) && (now.under_count == 0 || now.most_under <= limit_)) return;
  if (below.length() == 1) {
    set_leaf(node, now.most);
    return;
  }
  push(node);
  const std::size_t middle = below.begin + below.length() / 2;
  settle(2 * node, {below.begin, middle});
  settle(2 * node + 1, {middle, below.end});
  pull(node);
}

template <typename Visit>
void MemoryProfile::each_part(KernelIndex from, KernelIndex to, Visit visit) const {
  const std::size_t count = durations_ns_.size(),
                    length = static_cast<std::size_t>(std::max<KernelIndex>(to - from, 0));
  TENCACHE_CHECK(length <= count);
  const std::size_t begin = static_cast<std::size_t>(from) % count;
  if (const Range part{begin, std::min(begin + length, count)}; part.length() > 0) visit(part);
  if (begin + length > count) visit(Range{0, begin + length - count});
}

void MemoryProfile::add(KernelIndex from, KernelIndex to, std::int64_t bytes) {
  each_part(from, to, [&](Range part) { add(1, {0, leaf_count_}, part, bytes); });
}

void MemoryProfile::add(std::size_t node, Range below, Range range, std::int64_t bytes) {
  if (range.begin >= below.end || range.end <= below.begin) return;
  if (range.begin <= below.begin && below.end <= range.end) {
    raise(nodes_[node], bytes);
    settle(node, below);
    return;
  }
  push(node);
  const std::size_t middle = below.begin + below.length() / 2;
  add(2 * node, {below.begin, middle}, range, bytes);
  add(2 * node + 1, {middle, below.end}, range, bytes);
  pull(node);
}

std::int64_t MemoryProfile::at(KernelIndex kernel) const {
  std::size_t node = leaf_count_ + static_cast<std::size_t>(kernel) % durations_ns_.size();
  std::int64_t bytes = nodes_[node].most;
  while (node > 1) bytes += nodes_[node /= 2].added;
  return bytes;
}

int128 MemoryProfile::excess(KernelIndex from, KernelIndex to, Bytes most) const {
  int128 sum = 0;
  each_part(from, to, [&](Range part) {
    sum += excess(1, {0, leaf_count_}, part, 0, static_cast<std::int64_t>(most));
  });
  return sum;
}

int128 MemoryProfile::excess(std::size_t node, Range below, Range range, std::int64_t added, std::int64_t most) const {
  const Node& now = nodes_[node];
  if (range.begin >= below.end || range.end <= below.begin || now.time_over == 0) return 0;
  if (range.begin <= below.begin && below.end <= range.end) {
    if (now.least_over + added - limit_ >= most) return int128{most} * now.time_over;
    if (now.most + added - limit_ <= most) return now.excess + int128{added} * now.time_over;
  }
  const std::size_t middle = below.begin + below.length() / 2;
  added += now.added;
  return excess(2 * node, {below.begin, middle}, range, added, most) +
         excess(2 * node + 1, {middle, below.end}, range, added, most);
}

std::int64_t MemoryProfile::most(KernelIndex from, KernelIndex to) const {
  std::int64_t result = std::numeric_limits<std::int64_t>::min();
  each_part(from, to, [&](Range part) { result = std::max(result, most(1, {0, leaf_count_}, part)); });
  return result;
}

std::int64_t MemoryProfile::most(std::size_t node, Range below, Range range) const {
  if (range.begin <= below.begin && below.end <= range.end) return nodes_[node].most;
  const std::size_t middle = below.begin + below.length() / 2;
  std::int64_t result = std::numeric_limits<std::int64_t>::min();
  if (range.begin < middle) result = most(2 * node, {below.begin, middle}, range);
  if (range.end > middle) result = std::max(result, most(2 * node + 1, {middle, below.end}, range));
  return result + nodes_[node].added;
}

KernelIndex MemoryProfile::peak() const {
  std::size_t node = 1;
  while (node < leaf_count_) node = 2 * node + (nodes_[2 * node].most >= nodes_[2 * node + 1].most ? 0 : 1);
  return static_cast<KernelIndex>(node - leaf_count_);
}

// ---- SwapSpace ------------------------------------------------------------------------------------------------------

SwapSpace::SwapSpace(const Kernels& kernels, const MachineSpec& machine, const BandwidthPlan& bandwidth) {
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    if (!bandwidth.exists(0, tier) || !bandwidth.exists(tier, 0)) continue;
    tiers_.push_back(tier);
    used_.emplace_back(kernels, machine.tiers[tier].capacity);
  }
}

TierId SwapSpace::tier_for(const InactivePeriod& period) const {
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const std::int64_t bytes = static_cast<std::int64_t>(period.bytes);
    if (used_[i].most(period.begin, period.end) + bytes <= used_[i].limit()) return tiers_[i];
  }
  return no_tier;
}

void SwapSpace::take(const InactivePeriod& period, TierId tier) {
  const std::size_t i = static_cast<std::size_t>(std::find(tiers_.begin(), tiers_.end(), tier) - tiers_.begin());
  used_[i].add(period.begin, period.end, static_cast<std::int64_t>(period.bytes));
}

// ---- At run time ----------------------------------------------------------------------------------------------------

Bytes unit_that_moves(const MachineSpec& machine, Bytes chunk_bytes) {
  for (TierId tier = 1; chunk_bytes == 0 && tier < machine.tiers.size(); ++tier) {
    if (machine.path_between(0, tier).size() > 1 || machine.path_between(tier, 0).size() > 1) {
      return machine.staging.bytes;
    }
  }
  return chunk_bytes;
}

Bytes unit_of_whole_tensors(const MachineSpec& machine, const Program* program, Bytes chunk_bytes) {
  const TierId cpu = machine.tier_of(Device::cpu);
  if (chunk_bytes != 0 || program == nullptr || cpu == no_tier || unit_that_moves(machine, 0) == 0) return chunk_bytes;
  Bytes persistent = 0;
  for (const Tensor& tensor : program->trace.tensors) persistent += tensor.persistent ? tensor.bytes : 0;
  return persistent > machine.tiers[cpu].capacity ? machine.staging.count * machine.staging.bytes : 0;
}

void Hints::sort() {
  for (std::vector<Hint>* hints : {&evictions_, &prefetches_}) {
    std::stable_sort(hints->begin(), hints->end(), [](const Hint& a, const Hint& b) { return a.op < b.op; });
  }
}

void Hints::give(OpIndex issued, const View& view, Actions& actions) const {
  const auto at = [issued](const std::vector<Hint>& hints) {
    return std::equal_range(hints.begin(), hints.end(), Hint{issued, none, no_tier},
                            [](const Hint& a, const Hint& b) { return a.op < b.op; });
  };
  for (auto [hint, end] = at(evictions_); hint != end; ++hint) {
    if (const TensorId id = view.memory_tensor(hint->tensor); id != none) actions.evict(id, hint->destination);
  }
  for (auto [hint, end] = at(prefetches_); hint != end; ++hint) {
    if (const TensorId id = view.memory_tensor(hint->tensor); id != none) actions.fetch(id);
  }
}

void evict_coldest_for(const Event& issued, const View& view, TierId destination, Actions& actions) {
  const Residency& memory = view.memory;
  Bytes lacking = 0;
  for (const Use& use : issued.uses) {
    if (use.tensor == none) continue;
    const ChunkId first = memory.first_chunk(use.tensor);
    for (ChunkId chunk = first; chunk < first + memory.chunk_count(use.tensor); ++chunk) {
      if (memory.copy(chunk, 0).state == CopyState::absent) lacking += memory.footprint(chunk, 0);
    }
  }
  const Bytes coming = memory.free(0) + memory.leaving(0);
  if (lacking <= coming) return;
  lacking -= coming;
  for (ChunkId chunk = memory.coldest(0); chunk != none && lacking > 0; chunk = memory.warmer(chunk, 0)) {
    if (!memory.evictable(chunk, 0)) continue;
    const TensorId tensor = memory.tensor_of(chunk);
    actions.push({.verb = Verb::evict,
                  .tier = 0,
                  .destination = destination,
                  .urgent = true,
                  .tensor = tensor,
                  .chunk = chunk - memory.first_chunk(tensor)});
    lacking -= std::min(lacking, memory.footprint(chunk, 0));
  }
}

}  // namespace tencache
