#include "gui/model/shown_runs.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tencache::gui {

void ShownRuns::show(std::vector<RunPointer> runs) {
  std::ranges::stable_sort(runs, {}, [](const RunPointer& run) { return run->origin(); });
  all_ = std::move(runs);
  aligned_ = std::numeric_limits<std::size_t>::max();  // the last
  choose(std::vector<std::uint8_t>(all_.size(), 1));
}

void ShownRuns::choose(std::vector<std::uint8_t> chosen) {
  chosen_ = std::move(chosen);
  runs_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (chosen_[i] != 0) runs_.push_back(all_[i]);
  }
  ++generation_;
  aligned_ = std::min(aligned_, iterations() == 0 ? 0 : iterations() - 1);
  compare_ops();
}

RunPointer ShownRuns::of(Origin origin) const {
  const auto found = std::ranges::find(runs_, origin, [](const RunPointer& run) { return run->origin(); });
  return found == runs_.end() ? nullptr : *found;
}

std::size_t ShownRuns::iterations() const {
  std::size_t most = 0;
  for (const RunPointer& run : runs_) most = std::max(most, run->iteration_count());
  return most;
}

std::uint64_t ShownRuns::first_iteration() const {
  const auto longest =
      std::ranges::max_element(runs_, {}, [](const RunPointer& run) { return run->iteration_count(); });
  return longest == runs_.end() ? 0 : (*longest)->first_iteration();
}

void ShownRuns::align(std::size_t iteration) {
  if (runs_.empty()) return;
  aligned_ = std::min(iteration, iterations() - 1);
  ++generation_;
  compare_ops();
}

// A run that became steady sooner stands for all later iterations with its last.
Nanoseconds ShownRuns::origin_ns(std::size_t run) const {
  const Run& r = *runs_[run];
  return r.iteration_begin_ns(std::min(aligned_, r.iteration_count() - 1));
}

Nanoseconds ShownRuns::aligned_length_ns(std::size_t run) const {
  const Run& r = *runs_[run];
  return r.iteration_ns(std::min(aligned_, r.iteration_count() - 1));
}

Measurement ShownRuns::measure(std::size_t run, double begin_ns, double end_ns) const {
  Measurement measurement;
  const Run& r = *runs_[run];
  const Nanoseconds begin = origin_ns(run) + static_cast<Nanoseconds>(begin_ns);
  const Nanoseconds end = origin_ns(run) + static_cast<Nanoseconds>(end_ns);
  measurement.length_ns = end - begin;
  for (std::size_t t = 0; t < r.tracks().size(); ++t) {
    const Track& track = r.tracks()[t];
    if (track.lane() == 0) measurement.covered_ns = track.covered(begin, end);
    if (track.is_link()) measurement.moved.emplace_back(track.name(), r.moved(t, begin, end));
  }
  return measurement;
}

void ShownRuns::compare_ops() {
  op_errors_.clear();
  const RunPointer predicted = of(Origin::predicted), measured = of(Origin::measured);
  if (predicted == nullptr || measured == nullptr) return;
  // Time from the end of the op before, by op, of one iteration on the GPU's lane.
  struct Taken {
    OpIndex op;
    Nanoseconds begin_ns, end_ns;
  };
  const auto taken = [this](const Run& run) {
    std::vector<Taken> list;
    const std::size_t iteration = std::min(aligned_, run.iteration_count() - 1);
    const Nanoseconds begin = run.iteration_begin_ns(iteration), end = run.iteration_begin_ns(iteration + 1);
    Nanoseconds before = begin;
    for (const TrackItem& item : run.tracks().front().items()) {
      if (item.begin_ns < begin || item.end_ns > end || run.spans()[item.span].kind != SpanKind::op) continue;
      list.push_back({run.spans()[item.span].op, before, item.end_ns});
      before = item.end_ns;
    }
    return list;
  };
  std::vector<double> predicted_ns(predicted->trace().ops.size(), -1);
  for (const Taken& op : taken(*predicted)) {
    if (op.op < predicted_ns.size()) predicted_ns[op.op] = static_cast<double>(op.end_ns - op.begin_ns);
  }
  const auto origin =
      static_cast<double>(measured->iteration_begin_ns(std::min(aligned_, measured->iteration_count() - 1)));
  for (const Taken& op : taken(*measured)) {
    if (op.op >= predicted_ns.size() || predicted_ns[op.op] < 0) continue;
    if (predicted->op_name(op.op) != measured->op_name(op.op)) continue;
    OpError error{static_cast<double>(op.begin_ns) - origin,
                  static_cast<double>(op.end_ns) - origin,
                  op.op,
                  predicted_ns[op.op],
                  static_cast<double>(op.end_ns - op.begin_ns),
                  0,
                  0};
    if (!op_errors_.empty()) {
      const OpError& before = op_errors_.back();
      error.predicted_before_ns = before.predicted_before_ns + before.predicted_ns;
      error.measured_before_ns = before.measured_before_ns + before.measured_ns;
    }
    op_errors_.push_back(error);
  }
}

std::optional<double> error_between(const std::vector<OpError>& errors, double begin_ns, double end_ns) {
  const auto first = std::ranges::upper_bound(errors, begin_ns, {}, &OpError::end_ns);
  const auto last = std::ranges::lower_bound(first, errors.end(), end_ns, {}, &OpError::begin_ns);
  if (first == last) return std::nullopt;
  const OpError& end = *std::prev(last);
  const double predicted = end.predicted_before_ns + end.predicted_ns - first->predicted_before_ns;
  const double measured = end.measured_before_ns + end.measured_ns - first->measured_before_ns;
  return measured > 0 ? std::optional(predicted / measured) : std::nullopt;
}

}  // namespace tencache::gui
