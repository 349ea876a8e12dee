// What the views share: the runs on the screen, the part of time they show, cursor, selection, search, files.
//
// Times that views exchange are relative to the start of the aligned iteration of each run, in nanoseconds, so that
// predicted and measured lie one above the other on the same scale. One thread owns a session; opening files and
// simulating happen on others, whose results `update` takes over between two frames.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/followed_run.h"
#include "gui/model/open_documents.h"
#include "gui/model/search.h"
#include "gui/model/shown_runs.h"
#include "gui/model/what_if.h"

namespace tencache::gui {

// The last thing worth saying to the user, and what went wrong that a later message must not hide.
class Messages {
 public:
  const std::string& last() const { return last_; }
  bool last_is_error() const { return last_is_error_; }
  // Since nothing was under way and something new began.
  const std::vector<std::string>& errors() const { return errors_; }

  void say(std::string text, bool error = false) {
    if (error) errors_.push_back(text);
    last_ = std::move(text);
    last_is_error_ = error;
    misfit_ = false;
  }
  // What hides no error.
  void remark(std::string text) {
    if (errors_.empty()) say(std::move(text));
  }
  // An answer, not a mishap.
  void say_misfit(std::string text) {
    last_ = std::move(text);
    last_is_error_ = misfit_ = true;
  }
  // What was said of a misfit holds no more.
  void forget_misfit(const std::string& instead) {
    if (!misfit_ && !last_.empty()) return;
    last_ = errors_.empty() ? instead : errors_.back();
    last_is_error_ = !errors_.empty();
    misfit_ = false;
  }
  // Something new after all that was asked for is done: old errors have been read.
  void begin() {
    if (!std::exchange(settled_, false)) return;
    errors_.clear();
    if (last_is_error_) say("");
  }
  void settle(bool settled) { settled_ = settled; }

 private:
  std::string last_;
  bool last_is_error_ = false, misfit_ = false, settled_ = false;
  std::vector<std::string> errors_;
};

struct TimeWindow {
  double begin_ns = 0, end_ns = 1;
  double length_ns() const { return end_ns - begin_ns; }
  // Keeps the time at `anchor_ns` where it is; factors below 1 show less.
  void zoom(double factor, double anchor_ns);
  void pan(double by_ns) { begin_ns += by_ns, end_ns += by_ns; }
};

class Session {
 public:
  // ---- Files and simulations.
  // In the background. A socket is that of a run which is going on: it is watched from then on.
  void open(const std::string& path);
  // A bundled sample, on a machine too small for it.
  void open_sample();
  // What a trace is simulated on until the user says otherwise; empty: g10-a100 under foresight, and for the sample a
  // machine that is a little too small for it, under on-demand, so that there is something to see.
  Scenario wanted;
  // What to change (WhatIf::change) once the next trace or result is simulated, which stays as the ghost.
  std::vector<std::string> changes;
  // Takes over what the background has finished; call once a frame. True if anything changed.
  bool update();
  bool busy() const { return documents_.busy() || simulator_.busy() || search_.busy(); }
  // The timeline of a result, simulated again, in the background.
  void show_result(const Json& result, const std::string& file);
  bool watching() const { return followed_ != nullptr; }
  // Until nothing is under way, and something of a watched run is there: for tests and pictures without a window.
  void wait();
  const OpenDocuments& documents() const { return documents_; }
  // Time against this knob of the what-if, under its policy and some others, in the background.
  void plot(const Knob& knob);
  // The view that shows best what was opened last, or the one that something asks for that the user did in another;
  // taken once, without a name: none.
  struct WantedView {
    std::string name;
    bool asked_for = false;
  };
  WantedView take_view() { return std::exchange(view_, {}); }
  const Messages& messages() const { return messages_; }
  void say(std::string message, bool error = false) { messages_.say(std::move(message), error); }

  // ---- What-if: edited by views; `rerun` simulates it. Empty where no trace is known.
  std::optional<WhatIf> what_if;
  void rerun();
  SimulatedPointer simulated() const { return simulated_; }
  // The result to compare with: that of the moment of the last `keep_ghost`, which views call before they change
  // something. Null if there is none.
  SimulatedPointer ghost() const { return ghost_; }
  void keep_ghost();
  bool simulating() const { return simulator_.simulating(); }

  // ---- Runs on the screen. Of a simulation of several ranks that is the slowest until the user says otherwise.
  const ShownRuns& shown() const { return shown_; }
  const std::vector<RunPointer>& runs() const { return shown_.runs(); }
  void show(std::vector<RunPointer> runs);
  void choose(std::size_t of_all, bool chosen);  // one remains
  void align(std::size_t iteration) { shown_.align(iteration); }

  // ---- Time.
  TimeWindow window;
  std::optional<double> cursor_ns;                      // where the mouse points, in any view
  std::optional<std::pair<double, double>> time_range;  // selected, begin before end
  void fit();                                           // one iteration, of the slowest run
  void fit_all();

  // ---- Selection and search.
  Selection selection;
  // The same op or tensor in another run: the same name, in the same order of those that have it.
  std::uint32_t selected_in(std::size_t run) const;
  void select_span(std::size_t run, std::uint32_t span);
  // Shows the part of time around the selected thing, in the aligned iteration.
  void show_selection();
  void look_for(const std::string& text) { search_.look_for(text); }
  const Search& search() const { return search_; }
  void select_next_match(int step);

 private:
  void take(const Document& document);
  void take(const SimulatedPointer& done);
  void watch();
  // Shows other runs in the place of those that were there: what the user looks at stays.
  void replace(std::vector<RunPointer> others);
  void look_at_chosen();
  void make_changes();

  OpenDocuments documents_;
  WantedView view_;
  std::unique_ptr<FollowedRun> followed_;
  ShownRuns shown_;
  Simulator simulator_;
  SimulatedPointer simulated_, ghost_;
  Messages messages_;
  Search search_;
  mutable SelectedInRuns selected_in_runs_;
};

}  // namespace tencache::gui
