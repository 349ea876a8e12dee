#include "gui/model/session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/remark.h"

namespace tencache::gui {
namespace {

constexpr double least_window_ns = 10;
constexpr double most_window_ns = 1e15;

// Beside an installed program, else in the source tree.
std::string sample_file() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path installed = fs::read_symlink("/proc/self/exe", error).parent_path() / "../share/tencache/samples";
  for (const fs::path& folder : {installed, fs::path(TENCACHE_SAMPLES_OF_THE_SOURCE_TREE)}) {
    const fs::path file = folder / "gpt-small.trace.jsonl.zst";
    if (fs::exists(file, error)) return file.lexically_normal().string();
  }
  return "gpt-small.trace.jsonl.zst";
}

}  // namespace

void TimeWindow::zoom(double factor, double anchor_ns) {
  const double length = std::clamp(length_ns() * factor, least_window_ns, most_window_ns);
  const double scale = length / length_ns();
  begin_ns = anchor_ns - (anchor_ns - begin_ns) * scale;
  end_ns = begin_ns + length;
}

Session::Session() = default;

void Session::say(std::string message, bool error) {
  if (error) errors_.push_back(message);
  message_ = std::move(message);
  message_is_error_ = error;
  misfit_said_ = false;
}

// Something new after all that was asked for is done: old errors have been read.
void Session::begin() {
  if (!std::exchange(settled_, false)) return;
  errors_.clear();
  if (message_is_error_) say("");
}

// What hides no error.
void Session::remark(std::string text) {
  if (errors_.empty()) say(std::move(text));
}

// ---- Files ----------------------------------------------------------------------------------------------------------

void Session::open(const std::string& path) {
  begin();
  if (std::unique_ptr<FollowedRun> run = FollowedRun::follow(path); run != nullptr) {
    followed_ = std::move(run);
    return remark("following " + path);
  }
  remark("opening " + path);
  const bool sample = path == sample_file();
  Scenario scenario = wanted;
  scenario.trace.file = path;
  scenario.trace.rescale.where_known = true;
  if (scenario.machine.name.empty()) scenario.machine.name = sample ? "demo-small-gpu" : "g10-a100";
  if (scenario.policy.name.empty()) scenario.policy.name = sample ? "on-demand" : "foresight";
  opening_.push_back(std::async(std::launch::async, [path, scenario]() mutable {
    Opened opened;
    try {
      opened.document = open_document(path);
      if (opened.document->kind == Document::Kind::trace) {
        scenario.trace.loaded = opened.document->trace;
        opened.workload = load_workload(scenario);
      } else if (opened.document->kind == Document::Kind::results) {
        for (const Json& result : opened.document->results) {
          if (result["fits"] != true || result["policy"] == "bound" || result["policy"] == "ideal") continue;
          opened.workload = workload_of(result, path);  // `compare` gives the fastest first
          break;
        }
      }
    } catch (const std::exception& error) {
      opened.error = error.what();
    }
    return opened;
  }));
}

void Session::show_result(const Json& result, const std::string& file) {
  begin();
  opening_.push_back(std::async(std::launch::async, [result, file] {
    Opened opened;
    try {
      opened.workload = workload_of(result, file);
    } catch (const std::exception& error) {
      opened.error = error.what();
    }
    return opened;
  }));
}

void Session::open_sample() { open(sample_file()); }

void Session::take(const DocumentPointer& document) {
  documents_.push_back(document);
  if (!document->runs.empty()) show(document->runs);
  if (document->sensitivity != nullptr) plots_.push_back(document->sensitivity);
  sweep_rows_.insert(sweep_rows_.end(), document->sweep_rows.begin(), document->sweep_rows.end());
  if (document->kind == Document::Kind::sensitivity) view_ = {"sensitivity", false};
  if (document->kind == Document::Kind::sweep) view_ = {"cost", false};
  if (document->kind == Document::Kind::table) view_ = {"table", false};
}

void Session::plot(const Knob& knob) {
  if (!what_if || plotting()) return;
  const Workload workload = what_if->workload();
  const std::string parameter = parameter_of_knob(workload, knob.name);
  if (parameter.empty()) return say("no figure of the machine to vary", true);
  std::vector<std::string> policies{workload.scenario.policy.name};
  const auto add = [&policies](const std::string& policy) {
    if (std::ranges::find(policies, policy) == policies.end()) policies.push_back(policy);
  };
  if (ghost_ != nullptr) add(ghost_->workload.scenario.policy.name);
  for (const char* policy : {"on-demand", "10cache", "zero-infinity"}) add(policy);
  view_ = {"sensitivity", true};
  plotting_ = std::async(std::launch::async, [workload, parameter, policies, from = knob.least, to = knob.most] {
    simulate_behind_drawing();
    Plotted plotted;
    try {
      plotted.plot = std::make_shared<const SensitivityPlot>(plot_sensitivity(workload, parameter, from, to, policies));
    } catch (const std::exception& error) {
      plotted.error = error.what();
    }
    return plotted;
  });
}

void Session::take(const SimulatedPointer& done) {
  const bool only_more_figures = simulated_ != nullptr && done->run != nullptr && simulated_->run == done->run;
  const bool first = simulated_ == nullptr;
  simulated_ = done;
  if (!done->fits) {  // an answer, not a mishap
    message_ = done->workload.scenario.policy.name + " does not fit: " + done->reason;
    message_is_error_ = misfit_said_ = true;
  }
  if (only_more_figures) {
    ++generation_;
    return;
  }
  if (done->fits && (misfit_said_ || message_.empty())) {
    message_ = errors_.empty() ? trace_name(done->workload) : errors_.back();
    message_is_error_ = !errors_.empty();
    misfit_said_ = false;
  }
  if (done->run == nullptr || !done->fits) return make_changes();
  std::vector<RunPointer> runs = done->ranks.empty() ? std::vector{done->run} : done->ranks;
  for (const RunPointer& run : all_runs_) {
    if (run->origin() == Origin::measured) runs.push_back(run);
  }
  if (!first && runs.size() == all_runs_.size()) {
    replace(std::move(runs));
  } else {
    show(std::move(runs));
    for (std::size_t i = 0; i < done->ranks.size(); ++i) choose(i, done->ranks[i] == done->run);
    fit();
  }
  make_changes();
}

void Session::make_changes() {
  if (changes.empty() || !what_if || simulated_->old_plan) return;
  try {
    WhatIf changed = *what_if;  // all changes or none
    for (const std::string& assignment : std::exchange(changes, {})) changed.change(assignment);
    keep_ghost();
    *what_if = std::move(changed);
    rerun();
  } catch (const Error& error) {
    say(error.what(), true);
  }
}

void Session::replace(std::vector<RunPointer> runs) {
  const TimeWindow window_before = window;
  const Selection selected = selection;
  const RunPointer selected_of = selected.run < runs_.size() ? runs_[selected.run] : nullptr;
  const auto range_before = time_range;
  const std::vector<std::uint8_t> chosen_before = chosen_;
  show(std::move(runs));
  if (chosen_before.size() == chosen_.size()) {
    chosen_ = chosen_before;
    take_chosen();
  }
  window = window_before;
  time_range = range_before;
  if (selected.kind == Selection::Kind::nothing || selected_of == nullptr || selected.run >= runs_.size()) return;
  const std::uint32_t same = same_thing(*selected_of, *runs_[selected.run], selected);
  if (same != none) selection = {selected.kind, same, selected.run, none};
}

// A new iteration is looked at as it arrives, where the last one was looked at before.
void Session::watch() {
  if (followed_ == nullptr) return;
  const bool over = followed_->over();  // before what came last is taken
  std::vector<RunPointer> runs = followed_->take();
  if (!runs.empty()) {
    const bool first = runs_.empty() || run_of(Origin::measured) == nullptr;
    const std::uint64_t aligned = first_iteration() + aligned_;
    const bool at_the_end = iterations() == 0 || aligned_ + 1 == iterations();
    if (first) {
      show(std::move(runs));
    } else {
      replace(std::move(runs));
    }
    if (!at_the_end) align(aligned > first_iteration() ? aligned - first_iteration() : 0);
  }
  if (over) {
    if (followed_->error().empty()) {
      remark(followed_->note().empty() ? "the run that was followed is over" : followed_->note());
    } else {
      say(followed_->error(), true);
    }
    followed_.reset();
  }
}

bool Session::update() {
  bool changed = followed_ != nullptr;
  watch();
  // In the order in which they were asked for, whichever is read first.
  while (!opening_.empty() && opening_.front().wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    Opened opened = opening_.front().get();
    opening_.erase(opening_.begin());
    changed = true;
    if (opened.document != nullptr) {
      remark(opened.document->note.empty() ? opened.document->path : opened.document->note);
      take(opened.document);
    }
    if (opened.workload) {
      what_if.emplace(std::move(*opened.workload));
      simulated_ = ghost_ = nullptr;
      simulator_.forget();
      rerun();
    }
    if (!opened.error.empty()) say(opened.error, true);
  }
  if (plotting() && plotting_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    Plotted plotted = plotting_.get();
    changed = true;
    if (plotted.plot != nullptr) plots_.push_back(std::move(plotted.plot));
    if (!plotted.error.empty()) say(plotted.error, true);
  }
  if (const SimulatedPointer done = simulator_.take(); done != nullptr) {
    changed = true;
    take(done);
  }
  changed = take_marks() || changed;
  settled_ = !busy();
  return changed;
}

void Session::wait() {
  do {
    for (const std::future<Opened>& future : opening_) future.wait();
    simulator_.wait();
    if (plotting()) plotting_.wait();
    if (marking_.valid()) marking_.wait();
    if (followed_ != nullptr && runs_.empty()) followed_->wait();
    update();
  } while (busy());
  update();
}

std::vector<const Json*> Session::results() const {
  std::vector<const Json*> list;
  for (const DocumentPointer& document : documents_) {
    for (const Json& result : document->results) list.push_back(&result);
  }
  return list;
}

void Session::rerun() {
  begin();
  if (what_if) simulator_.request(what_if->workload());
}

void Session::keep_ghost() {
  if (simulated_ != nullptr && simulated_->fits && !simulated_->old_plan) ghost_ = simulated_;
}

// ---- Runs and time --------------------------------------------------------------------------------------------------

void Session::show(std::vector<RunPointer> runs) {
  std::ranges::stable_sort(runs, {}, [](const RunPointer& run) { return run->origin(); });
  all_runs_ = std::move(runs);
  chosen_.assign(all_runs_.size(), 1);
  aligned_ = std::numeric_limits<std::size_t>::max();  // the last
  take_chosen();
  fit();
}

void Session::take_chosen() {
  runs_.clear();
  for (std::size_t i = 0; i < all_runs_.size(); ++i) {
    if (chosen_[i] != 0) runs_.push_back(all_runs_[i]);
  }
  ++generation_;
  selection = {};
  time_range.reset();
  aligned_ = std::min(aligned_, iterations() == 0 ? 0 : iterations() - 1);
  compare_ops();
  find_matches();
}

void Session::choose(std::size_t of_all, bool chosen) {
  if (!chosen && runs_.size() == 1) return;
  chosen_[of_all] = chosen;
  take_chosen();
}

RunPointer Session::run_of(Origin origin) const {
  const auto found = std::ranges::find(runs_, origin, [](const RunPointer& run) { return run->origin(); });
  return found == runs_.end() ? nullptr : *found;
}

std::size_t Session::iterations() const {
  std::size_t most = 0;
  for (const RunPointer& run : runs_) most = std::max(most, run->iteration_count());
  return most;
}

std::uint64_t Session::first_iteration() const {
  const auto longest =
      std::ranges::max_element(runs_, {}, [](const RunPointer& run) { return run->iteration_count(); });
  return longest == runs_.end() ? 0 : (*longest)->first_iteration();
}

void Session::align(std::size_t iteration) {
  if (runs_.empty()) return;
  aligned_ = std::min(iteration, iterations() - 1);
  ++generation_;
  compare_ops();
}

// A run that became steady sooner stands for all later iterations with its last.
Nanoseconds Session::origin_ns(std::size_t run) const {
  const Run& r = *runs_[run];
  return r.iteration_begin_ns(std::min(aligned_, r.iteration_count() - 1));
}

Nanoseconds Session::aligned_length_ns(std::size_t run) const {
  const Run& r = *runs_[run];
  return r.iteration_ns(std::min(aligned_, r.iteration_count() - 1));
}

void Session::fit() {
  double longest = 1000;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    longest = std::max(longest, static_cast<double>(aligned_length_ns(run)));
  }
  window = {-0.01 * longest, 1.01 * longest};
}

void Session::fit_all() {
  if (runs_.empty()) return;
  double begin = 0, end = 1000;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    const Run& r = *runs_[run];
    begin = std::min(begin, static_cast<double>(r.iteration_begin_ns(0) - origin_ns(run)));
    end = std::max(end, static_cast<double>(r.iteration_begin_ns(r.iteration_count()) - origin_ns(run)));
  }
  const double margin = 0.01 * (end - begin);
  window = {begin - margin, end + margin};
}

Measurement Session::measure(std::size_t run, double begin_ns, double end_ns) const {
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

void Session::compare_ops() {
  op_errors_.clear();
  const RunPointer predicted = run_of(Origin::predicted), measured = run_of(Origin::measured);
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
