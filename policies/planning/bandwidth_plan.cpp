#include "policies/planning/bandwidth_plan.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

// What the link moves in that time, rounded down, but no more than `most`.
Bytes moved_in(Nanoseconds duration_ns, BytesPerSecond bandwidth, Bytes most) {
  const uint128 bytes = static_cast<uint128>(duration_ns) * bandwidth / second_ns;
  return static_cast<Bytes>(std::min<uint128>(bytes, most));
}

}  // namespace

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
          if (std::ranges::find(path.parts, part) == path.parts.end()) path.parts.push_back(part);
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

}  // namespace tencache
