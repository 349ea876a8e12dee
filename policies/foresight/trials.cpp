#include "policies/foresight/trials.h"

#include <algorithm>
#include <utility>

namespace tencache {
namespace {

constexpr Nanoseconds hope = 50;  // as far above the best, a plan may still settle below it
constexpr std::uint64_t least_events_of_first = 1'000'000, events_per_op_of_first = 100;
constexpr std::uint64_t events_over_first = 8;

}  // namespace

ForesightTrials::ForesightTrials(const RehearseTrace& rehearse, Make make, const CoarseTrace& trace)
    : rehearse_(rehearse), make_(std::move(make)), trace_(&trace) {}

void ForesightTrials::on(const CoarseTrace& trace) {
  trace_ = &trace;
  too_slow_.clear();
  most_events_ = 0;
}

Rehearsal ForesightTrials::run(const ForesightPlan& plan, Length length, Nanoseconds least_ns) {
  const auto alike = [&plan](const ForesightPlan& other) { return decides_the_same(plan, other); };
  if (std::ranges::any_of(too_slow_, alike)) {
    ++events_;  // a search that finds nothing new ends all the same
    return {};
  }
  const bool is_first = most_events_ == 0;
  const std::unique_ptr<Policy> candidate = make_(plan, trace_->chunk_bytes());
  RehearsalLimits limits;
  limits.events =
      is_first ? std::max<std::uint64_t>(least_events_of_first, events_per_op_of_first * trace_->trace().ops.size())
               : most_events_;
  limits.iterations = length.settling + length.measured;
  if (least_ns != 0) limits.hopeless_ns = least_ns + least_ns / hope;
  limits.settling = length.settling;
  Rehearsal told = rehearse_(trace_->trace(), trace_->machine(), *candidate, limits);
  events_ += told.events;
  ++count_;
  if (is_first) most_events_ = events_over_first * told.events;
  if (told.fits && !told.complete && !plan.start.empty()) too_slow_.push_back(plan);
  return told;
}

}  // namespace tencache
