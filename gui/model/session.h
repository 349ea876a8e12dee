// What the views share: the runs on the screen, the part of time they show, cursor, selection, search, files.
//
// Times that views exchange are relative to the start of the aligned iteration of each run, in nanoseconds, so that
// predicted and measured lie one above the other on the same scale. One thread owns a session; opening files and
// simulating happen on others, whose results `update` takes over between two frames.
#pragma once

#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/document.h"
#include "gui/model/followed_run.h"
#include "gui/model/simulator.h"
#include "gui/model/what_if.h"

namespace tencache::gui {

struct TimeWindow {
  double begin_ns = 0, end_ns = 1;
  double length_ns() const { return end_ns - begin_ns; }
  // Keeps the time at `anchor_ns` where it is; factors below 1 show less.
  void zoom(double factor, double anchor_ns);
  void pan(double by_ns) { begin_ns += by_ns, end_ns += by_ns; }
};

// An op or a tensor of a run; `span` is the one that was chosen.
struct Selection {
  enum class Kind : std::uint8_t { nothing, op, tensor };
  Kind kind = Kind::nothing;
  std::uint32_t id = none;
  std::size_t run = 0;
  std::uint32_t span = none;
  bool operator==(const Selection&) const = default;
};

// The id in `to` of what is selected in `from`: of the same name, in the same order of those that have it; or `none`.
std::uint32_t same_thing(const Run& from, const Run& to, const Selection& selection);

// How far an op's time in the prediction lies off the measured one; an op's time counts from the end of the GPU's op
// before it.
struct OpError {
  double begin_ns = 0, end_ns = 0;  // in the measured run, relative to its aligned iteration
  OpIndex op = none;
  double predicted_ns = 0, measured_ns = 0;
  double predicted_before_ns = 0, measured_before_ns = 0;  // of all ops before it
};
// Predicted over measured time of the ops that have a part between two times; nothing where there are none. Logarithmic
// in the ops, so that a strip of it costs by its pixels.
std::optional<double> error_between(const std::vector<OpError>& errors, double begin_ns, double end_ns);

// What a stretch of a run's time went into, of the GPU's lane; and what was moved in it.
struct Measurement {
  Nanoseconds length_ns = 0;
  std::array<Nanoseconds, slot_count> covered_ns{};  // by slot of track.h
  std::vector<std::pair<std::string, Bytes>> moved;  // by link; copies that end in it
};

class Session {
 public:
  Session();

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
  bool busy() const { return !opening_.empty() || simulator_.busy() || plotting() || marking_.valid(); }
  // The timeline of a result, simulated again, in the background.
  void show_result(const Json& result, const std::string& file);
  bool watching() const { return followed_ != nullptr; }
  // Until nothing is under way, and something of a watched run is there: for tests and pictures without a window.
  void wait();
  const std::vector<DocumentPointer>& documents() const { return documents_; }
  // Of all result files, in order of opening.
  std::vector<const Json*> results() const;
  // Of all sensitivity files that are open, and of those that a slider asked for; the newest last.
  const std::vector<std::shared_ptr<const SensitivityPlot>>& plots() const { return plots_; }
  // Time against this knob of the what-if, under its policy and some others, in the background.
  void plot(const Knob& knob);
  bool plotting() const { return plotting_.valid(); }
  // Of all sweeps that are open.
  const std::vector<SweepRow>& sweep_rows() const { return sweep_rows_; }
  // The view that shows best what was opened last, or the one that something asks for that the user did in another;
  // taken once, without a name: none.
  struct WantedView {
    std::string name;
    bool asked_for = false;
  };
  WantedView take_view() { return std::exchange(view_, {}); }
  const std::string& message() const { return message_; }  // the last thing worth saying
  bool message_is_error() const { return message_is_error_; }
  // What went wrong since nothing was under way and something new began: what is said later does not hide it.
  const std::vector<std::string>& errors() const { return errors_; }
  void say(std::string message, bool error = false);

  // ---- What-if: edited by views; `rerun` simulates it. Empty where no trace is known.
  std::optional<WhatIf> what_if;
  void rerun();
  SimulatedPointer simulated() const { return simulated_; }
  // The result to compare with: that of the moment of the last `keep_ghost`, which views call before they change
  // something. Null if there is none.
  SimulatedPointer ghost() const { return ghost_; }
  void keep_ghost();
  bool simulating() const { return simulator_.simulating(); }

  // ---- Runs on the screen, predicted above measured.
  const std::vector<RunPointer>& runs() const { return runs_; }
  void show(std::vector<RunPointer> runs);
  // All that there are, such as the ranks of a trace of several; `runs` are those of them that are chosen. Of a
  // simulation of several ranks that is the slowest until the user says otherwise.
  const std::vector<RunPointer>& all_runs() const { return all_runs_; }
  bool is_chosen(std::size_t of_all) const { return chosen_[of_all] != 0; }
  void choose(std::size_t of_all, bool chosen);  // one remains
  // The first of that origin; null if there is none.
  RunPointer run_of(Origin origin) const;

  // ---- Time.
  TimeWindow window;
  std::optional<double> cursor_ns;                      // where the mouse points, in any view
  std::optional<std::pair<double, double>> time_range;  // selected, begin before end
  // Iterations to align at, and one of them: counted from the first. New runs begin at the last, the steady one.
  std::size_t iterations() const;
  std::size_t aligned_iteration() const { return aligned_; }
  void align(std::size_t iteration);
  // What the longest run calls its first iteration.
  std::uint64_t first_iteration() const;
  // The start of the aligned iteration of the run; runs of fewer iterations show their last.
  Nanoseconds origin_ns(std::size_t run) const;
  Nanoseconds aligned_length_ns(std::size_t run) const;
  void fit();  // one iteration, of the slowest run
  void fit_all();
  Measurement measure(std::size_t run, double begin_ns, double end_ns) const;

  // ---- Selection and search.
  Selection selection;
  // The same op or tensor in another run: the same name, in the same order of those that have it.
  std::uint32_t selected_in(std::size_t run) const;
  void select_span(std::size_t run, std::uint32_t span);
  // Shows the part of time around the selected thing, in the aligned iteration.
  void show_selection();
  void search(const std::string& text);
  const std::string& search_text() const { return search_text_; }
  // Of the first run: ops whose name or module, and tensors whose name holds the text (in any case).
  const std::vector<OpIndex>& found_ops() const { return found_ops_; }
  const std::vector<TensorId>& found_tensors() const { return found_tensors_; }
  bool matches(std::size_t run, const Span& span) const;
  // Where the matching spans of a track lie; null where there are none, and as long as many of them are being sought.
  const Track* marks(std::size_t run, std::size_t track) const;
  void select_next_match(int step);

  // By op, in order of the measured time; empty without a predicted and a measured run of the same program.
  const std::vector<OpError>& op_errors() const { return op_errors_; }

  // Counts changes of what `runs` shows: views that prepare something keep it until this changes.
  std::uint64_t generation() const { return generation_; }

 private:
  void begin();
  void remark(std::string text);
  void take(const DocumentPointer& document);
  void take(const SimulatedPointer& done);
  void watch();
  // Shows other runs in the place of those that were there: what the user looks at stays.
  void replace(std::vector<RunPointer> runs);
  void take_chosen();
  void make_changes();
  void compare_ops();
  void find_matches();
  void mark_matches();
  bool take_marks();

  struct Opened {
    DocumentPointer document;
    std::optional<Workload> workload;
    std::string error;
  };
  std::vector<std::future<Opened>> opening_;
  struct Plotted {
    std::shared_ptr<const SensitivityPlot> plot;
    std::string error;
  };
  std::future<Plotted> plotting_;
  std::vector<std::shared_ptr<const SensitivityPlot>> plots_;
  std::vector<SweepRow> sweep_rows_;
  WantedView view_;
  std::vector<DocumentPointer> documents_;
  std::unique_ptr<FollowedRun> followed_;
  std::vector<RunPointer> runs_, all_runs_;
  std::vector<std::uint8_t> chosen_;  // of all_runs_
  Simulator simulator_;
  SimulatedPointer simulated_, ghost_;
  std::string message_;
  bool message_is_error_ = false, misfit_said_ = false, settled_ = false;
  std::vector<std::string> errors_;
  std::size_t aligned_ = 0;
  std::string search_text_;
  std::vector<OpIndex> found_ops_;
  std::vector<TensorId> found_tensors_;
  std::vector<std::vector<std::uint8_t>> op_matches_, tensor_matches_;  // by run and id
  std::optional<std::size_t> match_;                                    // of ops and tensors found; none chosen yet
  using Marks = std::vector<std::vector<Track>>;                        // by run and track
  Marks marks_;
  std::future<Marks> marking_;
  bool mark_again_ = false;  // what is being sought is out of date
  struct SameThing {         // what `selected_in` found, which it is asked in every frame
    Selection selection;
    std::uint64_t generation = 0;
    std::vector<std::uint32_t> ids;  // by run
  };
  mutable std::optional<SameThing> same_;
  std::vector<OpError> op_errors_;
  std::uint64_t generation_ = 0;
};

}  // namespace tencache::gui
