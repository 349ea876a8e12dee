#include "executor/live/followed_step.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace tencache {

void FollowedStep::set(RecordedStep step) {
  recorded_ = step.trace;
  program_ = {std::move(step.trace), {}};
  uses_ = std::move(step.uses);
  births_of_ = std::move(step.births);
  boundaries_ = std::move(step.boundaries);
  regions_ = std::move(step.regions);
  experts_.reset();
  if (!regions_.empty()) experts_.emplace(program_.trace);
  leave();
}

void FollowedStep::arrange(const std::vector<Op>& ops, const std::vector<OpIndex>& order) {
  TENCACHE_CHECK(ops.size() == program_.trace.ops.size() && order.size() == ops.size());
  const std::vector<std::vector<Use>> uses = std::move(uses_);
  const std::vector<std::vector<TensorId>> births_of = std::move(births_of_);
  uses_.clear();
  births_of_.clear();
  for (std::size_t i = 0; i < order.size(); ++i) {
    program_.trace.ops[i] = ops[order[i]];
    uses_.push_back(uses[order[i]]);
    births_of_.push_back(births_of[order[i]]);
  }
}

void FollowedStep::begin_step() {
  leave();
  next_ = known() ? 0 : none;
  next_boundary_ = 0;
  last_ = none;
}

std::string FollowedStep::mismatch(std::string_view name, NameId id) const {
  const std::string op = "op '" + std::string(name) + "'";
  if (next_ == program_.trace.ops.size()) return op + " after the recorded step's last op";
  const Op& recorded = program_.trace.ops[next_];
  const std::string place = "(op " + std::to_string(next_) + ")";
  if (recorded.name == id) return op + " " + place + " with other tensors than recorded";
  return op + " where '" + std::string(program_.trace.name(recorded)) + "' was recorded " + place;
}

OpIndex FollowedStep::begin_op() {
  running_ = last_ = next_++;
  next_birth_ = 0;
  const auto region = std::ranges::lower_bound(regions_, running_, {}, &GatedRegion::gate);
  if (region != regions_.end() && region->gate == running_) {
    region_ = static_cast<std::uint32_t>(region - regions_.begin());
    calls_ = 0;
    expert_ = 0;
  }
  if (next_ < program_.trace.ops.size()) {  // a step is more than caches hold
    __builtin_prefetch(&program_.trace.ops[next_].name);
    __builtin_prefetch(uses_[next_].data());
    __builtin_prefetch(births_of_[next_].data());
  }
  return running_;
}

TensorId FollowedStep::next_birth() {
  if (running_ == none || next_birth_ >= births_of_[running_].size()) return none;
  return births_of_[running_][next_birth_++];
}

void FollowedStep::module_boundary(NameId module, std::string_view name, bool begins) {
  if (!known()) return;
  if (in_region()) return region_boundary(module, name, begins);
  for (std::size_t i = next_boundary_; i < boundaries_.size(); ++i) {
    const ModuleBoundary& boundary = boundaries_[i];
    if (boundary.module != module || boundary.begins != begins) continue;
    if (next_ != none && boundary.op != next_) continue;  // on the schedule the op says where we are
    next_ = boundary.op;
    next_boundary_ = i + 1;
    return;
  }
}

bool FollowedStep::is_expert(const GatedRegion& region, std::string_view module) const {
  const std::string before = program_.trace.names[region.block] + ".";
  return module.starts_with(before) && experts_->find(region.gate, module.substr(before.size())) != none;
}

void FollowedStep::region_boundary(NameId module, std::string_view name, bool begins) {
  const GatedRegion& region = regions_[region_];
  const auto forward_to = [this](OpIndex op) { next_ = std::max(next_, op); };
  if (module == region.block && !begins) {
    next_ = region.end;
    next_boundary_ = region.boundaries;
    region_ = none;
  } else if (begins && expert_ == 0 && is_expert(region, name)) {
    expert_ = module;
    if (calls_ < region.calls.size()) forward_to(region.calls[calls_].begin);
  } else if (!begins && module == expert_) {
    expert_ = 0;
    if (calls_ < region.calls.size()) forward_to(region.calls[calls_++].end);
  }
}

OpIndex FollowedStep::gate(NameId block) const {
  const bool is_gate = in_region() && last_ == regions_[region_].gate && regions_[region_].block == block;
  return is_gate ? last_ : none;
}

std::vector<std::uint32_t> FollowedStep::numbers(OpIndex gate, std::span<const std::string> experts) const {
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : experts) {
    if (const std::uint32_t number = experts_->find(gate, name); number != none) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace tencache
