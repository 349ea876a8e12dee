// The runs on the screen, predicted above measured, and the iteration at which they are aligned.
//
// Times are relative to the start of the aligned iteration of each run, in nanoseconds. Iterations count from the
// first; new runs are aligned at the last, the steady one. Runs of fewer iterations show their last.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

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

class ShownRuns {
 public:
  void show(std::vector<RunPointer> runs);  // all of them
  // All that there are, such as the ranks of a trace of several; `runs` are those of them that are chosen.
  const std::vector<RunPointer>& all() const { return all_; }
  const std::vector<RunPointer>& runs() const { return runs_; }
  const std::vector<std::uint8_t>& chosen() const { return chosen_; }  // of all
  void choose(std::vector<std::uint8_t> chosen);
  // The first of that origin; null if there is none.
  RunPointer of(Origin origin) const;

  std::size_t iterations() const;  // to align at
  std::size_t aligned() const { return aligned_; }
  void align(std::size_t iteration);
  // What the longest run calls its first iteration.
  std::uint64_t first_iteration() const;
  Nanoseconds origin_ns(std::size_t run) const;
  Nanoseconds aligned_length_ns(std::size_t run) const;
  Measurement measure(std::size_t run, double begin_ns, double end_ns) const;
  // By op, in order of the measured time; empty without a predicted and a measured run of the same program.
  const std::vector<OpError>& op_errors() const { return op_errors_; }

  // Counts changes: views that prepare something keep it until this changes.
  std::uint64_t generation() const { return generation_; }
  void note_change() { ++generation_; }

 private:
  void compare_ops();

  std::vector<RunPointer> all_, runs_;
  std::vector<std::uint8_t> chosen_;
  std::size_t aligned_ = 0;
  std::vector<OpError> op_errors_;
  std::uint64_t generation_ = 0;
};

}  // namespace tencache::gui
