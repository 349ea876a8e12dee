#include "policies/foresight/coarse.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/machine.h"
#include "core/movable_allocator.h"
#include "policies/footprint.h"
#include "policies/moving_unit.h"
#include "policies/updates.h"

namespace tencache {
namespace {

struct Access {
  std::uint32_t op = 0;  // merged
  bool read = false;     // before it is written there
  bool write = false;
  auto operator<=>(const Access&) const = default;
};

bool may_join(const Trace& trace, const Op& a, const Op& b) {
  return a.device == b.device && a.phase == b.phase && a.group == b.group && a.reorderable == b.reorderable &&
         a.placeable == b.placeable && a.rank == b.rank && a.rendezvous == 0 && b.rendezvous == 0 &&
         a.stream == OpStream::compute && b.stream == OpStream::compute && is_update(trace, a) == is_update(trace, b);
}

}  // namespace

CoarseTrace::CoarseTrace(const Trace& trace, const MachineSpec& machine, Bytes chunk_bytes, std::size_t parts)
    : wanted_parts_(parts),
      machine_(machine),
      fine_chunk_bytes_(moves_whole_tensors(machine) ? 0 : chunk_bytes),
      chunk_bytes_(fine_chunk_bytes_) {
  // What moves here is many of the run's tensors, which lie where they may.
  if (moves_whole_tensors(machine)) {
    machine_.tiers[0].allocator = AllocatorKind::exact;
    machine_.tiers[0].capacity = MovableAllocator::usable(machine_.tiers[0].capacity);
  }
  if (trace.ops.size() <= parts) {
    trace_ = trace;
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      parts_.push_back({.tensor = tensor, .begin = 0, .bytes = trace.tensors[tensor].bytes});
    }
  } else {
    merge_tensors(trace, merge_ops(trace));
  }
  choose_chunks();
}

// An op that was put together touches no more of its memory than one of so many parts, nor is a tensor larger.
Bytes CoarseTrace::parts_of_gpu() const { return std::clamp<Bytes>(wanted_parts_ / 16, 8, 128); }

// Of each op, in which it is.
std::vector<std::uint32_t> CoarseTrace::merge_ops(const Trace& trace) const {
  Nanoseconds all_ns = 0;
  for (const Op& op : trace.ops) all_ns += op.occupied_ns();
  const Bytes most_bytes = machine_.tiers[0].capacity / parts_of_gpu();
  std::vector<std::uint32_t> merged;
  std::vector<OpIndex> touched_by(trace.tensors.size(), none);  // the first op of the merged one that touched it last
  OpIndex first = 0;
  Nanoseconds time_ns = 0;
  Bytes bytes = 0;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    const Nanoseconds op_ns = op.occupied_ns();
    const auto new_bytes = [&] {
      Bytes sum = 0;
      for (std::uint64_t i = op.accesses.first; i < op.accesses.end(); ++i) {
        const TensorId tensor = trace.accesses[i];
        if (touched_by[tensor] == first) continue;
        touched_by[tensor] = first;
        sum += trace.tensors[tensor].bytes;
      }
      return sum;
    };
    const Bytes more = new_bytes();
    const bool joins = index > 0 && may_join(trace, trace.ops[first], op) &&
                       time_ns + op_ns <= all_ns / static_cast<Nanoseconds>(wanted_parts_) &&
                       bytes + more <= most_bytes;
    if (!joins) {
      first = index;
      time_ns = 0;
      bytes = 0;
    }
    merged.push_back(index == 0 ? 0 : merged.back() + (joins ? 0 : 1));
    time_ns += op_ns;
    bytes += joins ? more : new_bytes();
  }
  return merged;
}

void CoarseTrace::merge_tensors(const Trace& trace, const std::vector<std::uint32_t>& merged) {
  std::vector<std::vector<Access>> accesses(trace.tensors.size());
  std::vector<OpIndex> first_use(trace.tensors.size(), none);
  const std::vector<OpIndex> deaths = trace.deaths();
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const auto use = [&](TensorId tensor, bool write) {
      std::vector<Access>& list = accesses[tensor];
      if (list.empty() || list.back().op != merged[index]) list.push_back({.op = merged[index]});
      Access& access = list.back();
      if (write) access.write = true;
      if (!write && !access.write) access.read = true;
      first_use[tensor] = std::min(first_use[tensor], index);
    };
    for (const TensorId tensor : trace.reads(trace.ops[index])) use(tensor, false);
    for (const TensorId tensor : trace.writes(trace.ops[index])) use(tensor, true);
  }

  trace_.header = trace.header;
  parts_.resize(trace.tensors.size());
  const Bytes largest = std::max<Bytes>(1, machine_.tiers[0].capacity / parts_of_gpu());
  const std::size_t op_count = merged.back() + std::size_t{1};
  std::vector<std::vector<TensorId>> reads(op_count), writes(op_count), frees(op_count);
  // What is born with an op and what dies with it, of what lives within one merged op.
  std::vector<Bytes> born(trace.ops.size(), 0), died(trace.ops.size(), 0);
  std::map<std::tuple<Role, bool, std::vector<Access>, OpIndex>, TensorId> alike;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const Tensor& fine = trace.tensors[tensor];
    parts_[tensor].bytes = fine.bytes;
    if (accesses[tensor].empty() && !fine.persistent) continue;
    std::vector<Access>& list = accesses[tensor];
    const OpIndex death = fine.persistent ? none : merged[deaths[tensor]];
    if (!fine.persistent && list.front().op == death) {
      born[first_use[tensor]] += fine.bytes;
      died[deaths[tensor]] += fine.bytes;
      continue;
    }
    auto [found, is_new] = alike.try_emplace({fine.role, fine.persistent, list, death}, none);
    if (found->second == none || trace_.tensors[found->second].bytes + fine.bytes > largest) {
      found->second = trace_.add_tensor(trace.name(fine), 0, fine.role, fine.persistent);
      for (const Access& access : list) {
        if (access.read) reads[access.op].push_back(found->second);
        if (access.write) writes[access.op].push_back(found->second);
      }
      if (death != none && list.back().op != death) frees[death].push_back(found->second);
    }
    Tensor& into = trace_.tensors[found->second];
    parts_[tensor] = {.tensor = found->second, .begin = into.bytes, .bytes = fine.bytes};
    into.bytes += fine.bytes;
  }
  OpIndex index = 0;
  for (std::uint32_t number = 0; number < op_count; ++number) {
    Op op = trace.ops[index];
    op.name = trace_.names.intern(trace.name(op));
    op.module = trace_.names.intern(trace.module(op));
    op.rendezvous = trace_.names.intern(trace.names[op.rendezvous]);
    op.kernel = op.detail = 0;
    op.duration_ns = 0;
    op.flops = op.bytes = 0;
    Bytes alive = 0, most = 0;
    for (bool first = true; index < trace.ops.size() && merged[index] == number; ++index, first = false) {
      const Op& fine = trace.ops[index];
      op.duration_ns += fine.duration_ns + (first ? 0 : fine.gap_before_ns);
      op.flops += fine.flops;
      op.bytes += fine.bytes;
      alive += born[index];
      most = std::max(most, alive);
      alive -= died[index];
    }
    if (most > 0) writes[number].push_back(trace_.add_tensor("workspace", most, Role::workspace, false));
    trace_.add_op(op, reads[number], writes[number], frees[number]);
  }
}

void CoarseTrace::choose_chunks() {
  if (chunk_bytes_ == 0) return;
  const Bytes all = persistent_bytes(trace_);
  // Where a chunk is much of a memory, what is on its way is, too.
  Bytes least = machine_.tiers[0].capacity;
  if (const TierId host = machine_.tier_of(Device::cpu); host != no_tier) {
    least = std::min(least, machine_.tiers[host].capacity);
  }
  const Bytes largest = least / std::max<std::size_t>(50, wanted_parts_ / 8);
  while (all / chunk_bytes_ > wanted_parts_ && chunk_bytes_ * 2 <= largest) chunk_bytes_ *= 2;
  Staging& staging = machine_.staging;
  if (staging.count == 0 || staging.bytes >= chunk_bytes_) return;
  const Bytes buffers =
      std::max<Bytes>(2, staging.all_bytes() / chunk_bytes_);  // as many bytes as before, if it can be
  staging.count = static_cast<std::uint32_t>(buffers);
  staging.bytes = chunk_bytes_;
}

// visit(chunk here or `none`), by chunk of the given trace.
template <typename Visit>
void CoarseTrace::each_chunk(Visit visit) const {
  const auto chunks = [](Bytes bytes, Bytes chunk) { return chunk == 0 ? 1 : (bytes + chunk - 1) / chunk; };
  std::vector<ChunkId> first(1, 0);  // of each tensor here
  for (const Tensor& tensor : trace_.tensors) {
    first.push_back(first.back() + static_cast<ChunkId>(chunks(tensor.bytes, chunk_bytes_)));
  }
  for (const Part& part : parts_) {
    for (std::size_t i = 0; i < chunks(part.bytes, fine_chunk_bytes_); ++i) {
      const Bytes at = part.begin + i * fine_chunk_bytes_;
      visit(part.tensor == none ? none
                                : first[part.tensor] + static_cast<ChunkId>(chunk_bytes_ == 0 ? 0 : at / chunk_bytes_));
    }
  }
}

bool CoarseTrace::has_storage() const {
  const auto stores = [](const Tier& tier) { return tier.kind == TierKind::nvme; };
  return std::ranges::any_of(machine_.tiers, stores);
}

std::vector<std::uint8_t> CoarseTrace::refined(const std::vector<std::uint8_t>& tiers) const {
  if (tiers.empty()) return {};
  std::vector<std::uint8_t> result;
  each_chunk([&](ChunkId chunk) { result.push_back(chunk == none ? 0 : tiers[chunk]); });
  return result;
}

std::vector<std::uint8_t> CoarseTrace::coarsened(const std::vector<std::uint8_t>& tiers) const {
  if (tiers.empty()) return {};
  std::vector<std::uint8_t> result;
  std::size_t fine = 0;
  each_chunk([&](ChunkId chunk) {
    const std::uint8_t there = tiers[fine++];
    if (chunk == none) return;
    if (chunk >= result.size()) result.resize(chunk + std::size_t{1}, 0);
    result[chunk] = there;
  });
  return result;
}

}  // namespace tencache
