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

}  // namespace

void TimeWindow::zoom(double factor, double anchor_ns) {
  const double length = std::clamp(length_ns() * factor, least_window_ns, most_window_ns);
  const double scale = length / length_ns();
  begin_ns = anchor_ns - (anchor_ns - begin_ns) * scale;
  end_ns = begin_ns + length;
}

// ---- Files ----------------------------------------------------------------------------------------------------------

void Session::open(const std::string& path) {
  messages_.begin();
  if (std::unique_ptr<FollowedRun> run = FollowedRun::follow(path); run != nullptr) {
    followed_ = std::move(run);
    return messages_.remark("following " + path);
  }
  messages_.remark("opening " + path);
  documents_.open(path, wanted);
}

void Session::show_result(const Json& result, const std::string& file) {
  messages_.begin();
  documents_.open_result(result, file);
}

void Session::open_sample() { open(sample_file()); }

void Session::take(const Document& document) {
  messages_.remark(document.note.empty() ? document.path : document.note);
  if (!document.runs.empty()) show(document.runs);
  if (document.kind == Document::Kind::sensitivity) view_ = {"sensitivity", false};
  if (document.kind == Document::Kind::sweep) view_ = {"cost", false};
  if (document.kind == Document::Kind::table) view_ = {"table", false};
}

void Session::plot(const Knob& knob) {
  if (!what_if || documents_.plotting()) return;
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
  documents_.plot(workload, parameter, knob.least, knob.most, policies);
}

void Session::take(const SimulatedPointer& done) {
  const bool only_more_figures = simulated_ != nullptr && done->run != nullptr && simulated_->run == done->run;
  const bool first = simulated_ == nullptr;
  simulated_ = done;
  if (!done->fits) messages_.say_misfit(done->workload.scenario.policy.name + " does not fit: " + done->reason);
  if (only_more_figures) {
    shown_.note_change();
    return;
  }
  if (done->fits) messages_.forget_misfit(trace_name(done->workload));
  if (done->run == nullptr || !done->fits) return make_changes();
  std::vector<RunPointer> runs = done->ranks.empty() ? std::vector{done->run} : done->ranks;
  for (const RunPointer& run : shown_.all()) {
    if (run->origin() == Origin::measured) runs.push_back(run);
  }
  if (!first && runs.size() == shown_.all().size()) {
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

void Session::replace(std::vector<RunPointer> others) {
  const TimeWindow window_before = window;
  const Selection selected = selection;
  const RunPointer selected_of = selected.run < runs().size() ? runs()[selected.run] : nullptr;
  const auto range_before = time_range;
  const std::vector<std::uint8_t> chosen_before = shown_.chosen();
  show(std::move(others));
  if (chosen_before.size() == shown_.chosen().size()) {
    shown_.choose(chosen_before);
    look_at_chosen();
  }
  window = window_before;
  time_range = range_before;
  if (selected.kind == Selection::Kind::nothing || selected_of == nullptr || selected.run >= runs().size()) return;
  const std::uint32_t same = same_thing(*selected_of, *runs()[selected.run], selected);
  if (same != none) selection = {selected.kind, same, selected.run, none};
}

// A new iteration is looked at as it arrives, where the last one was looked at before.
void Session::watch() {
  if (followed_ == nullptr) return;
  const bool over = followed_->over();  // before what came last is taken
  std::vector<RunPointer> runs = followed_->take();
  if (!runs.empty()) {
    const bool first = shown_.of(Origin::measured) == nullptr;
    const std::uint64_t aligned = shown_.first_iteration() + shown_.aligned();
    const bool at_the_end = shown_.iterations() == 0 || shown_.aligned() + 1 == shown_.iterations();
    if (first) {
      show(std::move(runs));
    } else {
      replace(std::move(runs));
    }
    if (!at_the_end) align(aligned - std::min(aligned, shown_.first_iteration()));
  }
  if (over) {
    if (followed_->error().empty()) {
      messages_.remark(followed_->note().empty() ? "the run that was followed is over" : followed_->note());
    } else {
      say(followed_->error(), true);
    }
    followed_.reset();
  }
}

bool Session::update() {
  bool changed = followed_ != nullptr;
  watch();
  while (std::optional<OpenDocuments::Opened> opened = documents_.take()) {
    changed = true;
    if (opened->document != nullptr) take(*opened->document);
    if (opened->workload) {
      what_if.emplace(std::move(*opened->workload));
      simulated_ = ghost_ = nullptr;
      simulator_.forget();
      rerun();
    }
    if (!opened->error.empty()) say(opened->error, true);
  }
  try {
    changed = documents_.take_plot() || changed;
  } catch (const std::exception& error) {
    changed = true;
    say(error.what(), true);
  }
  if (const SimulatedPointer done = simulator_.take(); done != nullptr) {
    changed = true;
    take(done);
  }
  changed = search_.update() || changed;
  messages_.settle(!busy());
  return changed;
}

void Session::wait() {
  do {
    documents_.wait();
    simulator_.wait();
    search_.wait();
    if (followed_ != nullptr && runs().empty()) followed_->wait();
    update();
  } while (busy());
  update();
}

void Session::rerun() {
  messages_.begin();
  if (what_if) simulator_.request(what_if->workload());
}

void Session::keep_ghost() {
  if (simulated_ != nullptr && simulated_->fits && !simulated_->old_plan) ghost_ = simulated_;
}

// ---- Runs and time --------------------------------------------------------------------------------------------------

void Session::show(std::vector<RunPointer> runs) {
  shown_.show(std::move(runs));
  look_at_chosen();
  fit();
}

void Session::look_at_chosen() {
  selection = {};
  time_range.reset();
  search_.set_runs(runs());
}

void Session::choose(std::size_t of_all, bool chosen) {
  if (!chosen && runs().size() == 1) return;
  std::vector<std::uint8_t> all_chosen = shown_.chosen();
  all_chosen[of_all] = chosen;
  shown_.choose(std::move(all_chosen));
  look_at_chosen();
}

void Session::fit() {
  double longest = 1000;
  for (std::size_t run = 0; run < runs().size(); ++run) {
    longest = std::max(longest, static_cast<double>(shown_.aligned_length_ns(run)));
  }
  window = {-0.01 * longest, 1.01 * longest};
}

void Session::fit_all() {
  if (runs().empty()) return;
  double begin = 0, end = 1000;
  for (std::size_t run = 0; run < runs().size(); ++run) {
    const Run& r = *runs()[run];
    begin = std::min(begin, static_cast<double>(r.iteration_begin_ns(0) - shown_.origin_ns(run)));
    end = std::max(end, static_cast<double>(r.iteration_begin_ns(r.iteration_count()) - shown_.origin_ns(run)));
  }
  const double margin = 0.01 * (end - begin);
  window = {begin - margin, end + margin};
}

// ---- Selection ------------------------------------------------------------------------------------------------------

std::uint32_t Session::selected_in(std::size_t run) const {
  if (selection.kind == Selection::Kind::nothing || selection.run >= runs().size()) return none;
  if (run == selection.run) return selection.id;
  return selected_in_runs_.find(selection, runs(), shown_.generation())[run];
}

void Session::select_span(std::size_t run, std::uint32_t span) {
  const Span& s = runs()[run]->spans()[span];
  if (s.kind == SpanKind::transfer) {
    selection = {Selection::Kind::tensor, s.tensor, run, span};
  } else {
    selection = {Selection::Kind::op, s.op, run, span};
  }
}

void Session::show_selection() {
  if (selection.kind == Selection::Kind::nothing || selection.run >= runs().size()) return;
  const Run& run = *runs()[selection.run];
  const std::span<const std::uint32_t> spans =
      selection.kind == Selection::Kind::op ? run.spans_of_op(selection.id) : run.transfers_of(selection.id);
  const Nanoseconds origin = shown_.origin_ns(selection.run), end = origin + shown_.aligned_length_ns(selection.run);
  std::uint32_t chosen = none;
  for (const std::uint32_t span : spans) {
    const Nanoseconds start = run.spans()[span].start_ns;
    if (chosen == none || (start >= origin && start < end && run.spans()[chosen].start_ns < origin)) chosen = span;
  }
  if (chosen == none) return;
  selection.span = chosen;
  const Span& span = run.spans()[chosen];
  const auto length = static_cast<double>(std::max<Nanoseconds>(span.end_ns - span.start_ns, 1));
  const double middle = static_cast<double>(span.start_ns - origin) + length / 2;
  const double shown = std::clamp(window.length_ns(), 4 * length, 40 * length);
  window = {middle - shown / 2, middle + shown / 2};
}

void Session::select_next_match(int step) {
  const auto next = runs().empty() ? std::nullopt : search_.next(step, selection.kind != Selection::Kind::nothing);
  if (!next) return;
  selection = *next;
  show_selection();
}

}  // namespace tencache::gui
