#include "core/bandwidth.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

constexpr std::uint32_t most_bits = 64;
constexpr std::size_t most_known = 4096;  // sets of flows whose rates are remembered

}  // namespace

Bandwidth::Bandwidth(std::vector<BytesPerSecond> capacities, std::vector<std::vector<std::uint32_t>> uses,
                     std::vector<BytesPerSecond> usual_caps)
    : filling_(std::move(capacities)), flows_(uses.size()) {
  for (std::size_t flow = 0; flow < flows_.size(); ++flow) {
    flows_[flow].uses = std::move(uses[flow]);
    flows_[flow].usual_cap = usual_caps[flow];
  }
  form_groups();
}

// Flows joined by resources, transitively: each takes over the groups of the flows before it that share one with it.
void Bandwidth::form_groups() {
  std::vector<std::uint32_t> group_of_resource(filling_.resource_count());
  for (std::uint32_t i = 0; i < group_of_resource.size(); ++i) group_of_resource[i] = i;
  for (const Flow& flow : flows_) {
    for (const std::uint32_t resource : flow.uses) {
      const std::uint32_t from = group_of_resource[resource], to = group_of_resource[flow.uses.front()];
      std::replace(group_of_resource.begin(), group_of_resource.end(), from, to);
    }
  }
  groups_.resize(group_of_resource.size());
  for (std::uint32_t i = 0; i < group_of_resource.size(); ++i) groups_[group_of_resource[i]].resources.push_back(i);
  for (Flow& flow : flows_) {
    if (flow.uses.empty()) continue;
    flow.group = group_of_resource[flow.uses.front()];
    flow.bit = groups_[flow.group].size++;
  }
}

void Bandwidth::mark(std::uint32_t index) {
  if (groups_[index].pending) return;
  groups_[index].pending = true;
  pending_.push_back(index);
}

void Bandwidth::set(std::uint32_t index, BytesPerSecond cap) {
  Flow& flow = flows_[index];
  TENCACHE_CHECK(!flow.uses.empty());
  Group& group = groups_[flow.group];
  cap = std::max<BytesPerSecond>(cap, 1);
  if (flow.cap == 0) {
    group.running.insert(std::upper_bound(group.running.begin(), group.running.end(), index), index);
    if (group.size <= most_bits) group.set |= std::uint64_t{1} << flow.bit;
  } else if (flow.cap != flow.usual_cap) {
    --group.unusual;
  }
  if (cap != flow.usual_cap) ++group.unusual;
  flow.cap = cap;
  mark(flow.group);
}

void Bandwidth::stop(std::uint32_t index) {
  Flow& flow = flows_[index];
  Group& group = groups_[flow.group];
  TENCACHE_CHECK(flow.cap != 0);
  if (flow.cap != flow.usual_cap) --group.unusual;
  flow.cap = 0;
  group.running.erase(std::lower_bound(group.running.begin(), group.running.end(), index));
  if (group.size <= most_bits) group.set &= ~(std::uint64_t{1} << flow.bit);
  mark(flow.group);
}

std::span<const std::uint32_t> Bandwidth::share() {
  Group& group = groups_[pending_.back()];
  pending_.pop_back();
  group.pending = false;
  work_out(group);
  return group.running;
}

void Bandwidth::work_out(Group& group) {
  if (group.running.empty()) return;
  if (group.unusual > 0 || group.size > most_bits) {
    filling_.fill(group, flows_);
    group.shared_set = 0;
    return;
  }
  if (group.set == group.shared_set) return;
  group.shared_set = group.set;
  auto known = group.known.find(group.set);
  if (known == group.known.end()) {
    filling_.fill(group, flows_);
    if (group.known.size() >= most_known) group.known.clear();
    known = group.known.emplace(group.set, std::vector<BytesPerSecond>()).first;
    for (const std::uint32_t flow : group.running) known->second.push_back(flows_[flow].rate);
  } else {
    for (std::size_t i = 0; i < group.running.size(); ++i) flows_[group.running[i]].rate = known->second[i];
  }
}

Bandwidth::Filling::Filling(std::vector<BytesPerSecond> capacities)
    : capacities_(std::move(capacities)), left_(capacities_.size(), 0), users_(capacities_.size(), 0) {}

void Bandwidth::Filling::fill(const Group& group, std::vector<Flow>& flows) {
  for (const std::uint32_t resource : group.resources) left_[resource] = capacities_[resource];
  open_ = group.running;
  while (!open_.empty()) {
    for (const std::uint32_t resource : group.resources) users_[resource] = 0;
    for (const std::uint32_t flow : open_) {
      for (const std::uint32_t resource : flows[flow].uses) ++users_[resource];
    }
    const auto offer = [this](const Flow& flow) {
      BytesPerSecond least = flow.cap;
      for (const std::uint32_t resource : flow.uses) least = std::min(least, left_[resource] / users_[resource]);
      return least;
    };
    BytesPerSecond least = std::numeric_limits<BytesPerSecond>::max();
    for (const std::uint32_t flow : open_) least = std::min(least, offer(flows[flow]));
    bound_.clear();
    for (const std::uint32_t flow : open_) {
      if (offer(flows[flow]) == least) bound_.push_back(flow);
    }
    for (const std::uint32_t flow : bound_) {
      flows[flow].rate = std::max<BytesPerSecond>(least, 1);
      for (const std::uint32_t resource : flows[flow].uses) left_[resource] -= std::min(left_[resource], least);
    }
    std::erase_if(open_, [&](std::uint32_t flow) { return std::binary_search(bound_.begin(), bound_.end(), flow); });
  }
}

}  // namespace tencache
