#include "executor/live/occupancy_labels.h"

#include <algorithm>

#include "core/check.h"

namespace tencache {

OccupancyLabels::Label& OccupancyLabels::of(TensorId tensor) {
  if (tensor >= labels_.size()) labels_.resize(tensor + std::size_t{1});
  return labels_[tensor];
}

void OccupancyLabels::change(Label& label, TensorId program, Role role, Nanoseconds now_ns) {
  if (label.program == program && label.role == role) return;
  for (TierId tier = 0; tier < max_tiers; ++tier) {
    const std::int64_t held = label.held[tier];
    if (held == 0) continue;
    const Bytes without = used_[tier] - static_cast<Bytes>(held);
    timeline_->occupancy.push_back({now_ns, tier, label.role, label.program, without, -held});
    timeline_->occupancy.push_back({now_ns, tier, role, program, used_[tier], held});
  }
  label.program = program;
  label.role = role;
}

void OccupancyLabels::label() {
  if (timeline_ == nullptr) return;
  std::vector<OccupancySample>& samples = timeline_->occupancy;
  TENCACHE_CHECK(labelled_ <= samples.size());
  const auto begin = samples.begin() + static_cast<std::ptrdiff_t>(labelled_);
  fresh_.assign(begin, samples.end());
  samples.erase(begin, samples.end());
  for (OccupancySample& sample : fresh_) {
    Label& label = of(sample.tensor);
    change(label, label.program, sample.role, sample.time_ns);
    label.held[sample.tier] += sample.change;
    used_[sample.tier] = sample.used;
    sample.tensor = label.program;
    samples.push_back(sample);
  }
  labelled_ = samples.size();
}

void OccupancyLabels::was_read() {
  if (timeline_ != nullptr) labelled_ = timeline_->occupancy.size();
}

void OccupancyLabels::created(TensorId tensor) {
  if (timeline_ == nullptr) return;
  Label& label = of(tensor);
  TENCACHE_CHECK(std::ranges::all_of(label.held, [](std::int64_t held) { return held == 0; }));
  label.program = none;
}

void OccupancyLabels::marked(TensorId tensor, Role role, Nanoseconds now_ns) {
  label();  // first: it may tell a role
  relabel(tensor, of(tensor).program, role, now_ns);
}

void OccupancyLabels::named(TensorId tensor, TensorId program, Nanoseconds now_ns) {
  label();
  relabel(tensor, program, of(tensor).role, now_ns);
}

void OccupancyLabels::relabel(TensorId tensor, TensorId program, Role role, Nanoseconds now_ns) {
  if (timeline_ == nullptr) return;
  change(of(tensor), program, role, now_ns);
  labelled_ = timeline_->occupancy.size();
}

void OccupancyLabels::named(std::span<const TensorId> programs, Nanoseconds now_ns) {
  for (TensorId tensor = 0; tensor < programs.size(); ++tensor) named(tensor, programs[tensor], now_ns);
}

}  // namespace tencache
