// One run as the views show it: a timeline with the names it needs, indexed once, off the frame path. Immutable
// afterwards, so any thread may read it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"
#include "gui/model/occupancy.h"
#include "gui/model/track.h"

namespace tencache::gui {

enum class Origin : std::uint8_t { predicted, measured };

// What a simulation or a file gives.
struct Recording {
  std::string title;   // "predicted: g10"
  std::string source;  // the file, or what was simulated
  Origin origin = Origin::predicted;
  MachineSpec machine;  // of files: name, tiers and links
  Trace trace;          // the lowered program; of files: names, roles, sizes, phases and accesses
  Timeline timeline;
};

// Where a step of a text generation begins: with the first of its ops.
struct StepBegin {
  Nanoseconds time_ns = 0;
  Phase phase = Phase::prefill;
  std::uint32_t step = 0;  // of decode
};

class Run {
 public:
  explicit Run(Recording recording);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  const std::string& title() const { return recording_.title; }
  const std::string& source() const { return recording_.source; }
  Origin origin() const { return recording_.origin; }
  const MachineSpec& machine() const { return recording_.machine; }
  const Trace& trace() const { return recording_.trace; }
  const std::vector<Span>& spans() const { return recording_.timeline.spans; }
  const std::vector<OccupancySample>& occupancy_changes() const { return recording_.timeline.occupancy; }
  // The GPU's, the CPU's where it does anything, one a link that is used.
  const std::vector<Track>& tracks() const { return tracks_; }
  const Occupancy& occupancy() const { return occupancy_; }

  // Iterations of which something is recorded are numbered from 0; a run has at least one.
  std::size_t iteration_count() const { return boundaries_.size() - 1; }
  // What the run itself calls the first of them: of one that is watched, old iterations are forgotten.
  std::uint64_t first_iteration() const { return iteration_ids_.front(); }
  // What its spans carry.
  std::uint64_t iteration_id(std::size_t iteration) const { return iteration_ids_[iteration]; }
  Nanoseconds iteration_begin_ns(std::size_t iteration) const { return boundaries_[iteration]; }
  Nanoseconds iteration_ns(std::size_t iteration) const { return boundaries_[iteration + 1] - boundaries_[iteration]; }

  // Whether the op makes something again (core/recompute.h).
  bool recomputes(OpIndex op) const { return op < again_.size() && again_[op]; }

  // Of a text generation, in order of time; of others none.
  const std::vector<StepBegin>& steps() const { return steps_; }

  // Spans by what they are of, in order of time.
  std::span<const std::uint32_t> spans_of_op(OpIndex op) const { return of(spans_of_op_, first_of_op_, op); }
  std::span<const std::uint32_t> transfers_of(TensorId tensor) const {
    return of(transfers_, first_of_tensor_, tensor);
  }
  // The op's span that used first what a transfer brought; `none` if none did.
  std::uint32_t used_by(std::uint32_t transfer) const { return used_by_[transfer]; }
  // Those transfers, of an op's span.
  std::vector<std::uint32_t> brought_for(std::uint32_t op_span) const;

  // Of the copies of a link's track: the bytes of those that end between two times, the second one included.
  Bytes moved(std::size_t track, Nanoseconds begin_ns, Nanoseconds end_ns) const;

  // Empty where the run does not know.
  std::string_view op_name(OpIndex op) const;
  std::string_view module_name(OpIndex op) const;
  std::string_view tensor_name(TensorId tensor) const;
  std::string_view tier_name(TierId tier) const;
  std::size_t memory_bytes() const;

 private:
  static std::span<const std::uint32_t> of(const std::vector<std::uint32_t>& list,
                                           const std::vector<std::uint32_t>& first, std::uint32_t id) {
    if (id + std::size_t{1} >= first.size()) return {};
    return {list.data() + first[id], list.data() + first[id + 1]};
  }
  void make_tracks();
  void find_iterations();
  void index_spans();
  void find_steps();
  void match_uses();
  void add_up_traffic();

  Recording recording_;
  std::vector<bool> again_;  // by op of the trace
  std::vector<Track> tracks_;
  Occupancy occupancy_;
  std::vector<Nanoseconds> boundaries_;
  std::vector<std::uint64_t> iteration_ids_;
  std::vector<StepBegin> steps_;
  std::vector<std::uint32_t> spans_of_op_, first_of_op_, transfers_, first_of_tensor_;
  std::vector<std::uint32_t> used_by_;
  struct Arrival {
    Nanoseconds end_ns = 0;
    Bytes bytes = 0;  // of all until then
  };
  std::vector<std::vector<Arrival>> arrivals_;  // by track, in order of time
};

using RunPointer = std::shared_ptr<const Run>;

}  // namespace tencache::gui
