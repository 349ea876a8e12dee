// foresight: TenCache's own policy. What the others do one by one, at once; and planned by rehearsing itself.
//
// Before the run:
//   1. Updates of the optimizer are shared out between the GPU and the CPU, which takes the last: at first the share
//      for which an estimate of compute, links, CPU and storage is least. Sub-groups are updated in the order in which
//      the next forward pass needs them, or in the opposite one (placement.h). Values that are overwritten before they
//      are read die with their last read.
//   2. Of a known future: which periods between two uses the GPU's memory cannot bridge, and which not even CPU memory
//      (Belady's choice; spill.h).
// In the run, whenever something has happened (flow.h):
//   3. A horizon goes through the GPU's ops to come, up to a round ahead, as long as all that they need will have room:
//      what is used now, born and dead by then, missing, less the clean bytes that no op before the horizon needs. Each
//      access is looked at once; it goes back only for what has left.
//   4. Up to there, missing chunks are fetched in the order of their ops, on each link a few at a time. What leaves for
//      them is clean, needed farthest in the future, and never before what is fetched.
//   5. Whenever a way out is idle, it cleans: first what the CPU waits for, then what step 2 says will have to leave,
//      of that what is needed last; and, if the horizon is held up for want of room, whatever is needed beyond it, but
//      no whole tensors while storage is in use. To CPU memory if there is room; to storage that the GPU reaches, as
//      many bytes an iteration as step 2 sends there.
//   6. What an op itself has no room for: clean chunks, the farthest first, then dirty ones. While copies are on their
//      way out it waits for these, which make room when they arrive: the same chunks would go to storage besides. Where
//      the memories are exclusive of each other (spill_plan.h), clean chunks that only storage has besides come after
//      the others, and leave for an op only, not for what is fetched ahead.
//   7. CPU memory over storage is such a cache too: the next chunk that is in neither memory is read ahead if there is
//      room beside what the GPU will have to copy down, what step 2 says is copied down whenever the store is idle, and
//      a reserve is kept free: first of copies that the GPU holds and will write, then of what lies in storage too and
//      is needed later than what the GPU will have to copy down.
// Planning, before the program is made or, live, when the schedule is known, if rehearsals are to be had:
//   8. The policy is simulated on a coarse trace (coarse.h), then again with decisions changed: the share and the order
//      of updates, how much of the GPU's memory step 2 counts on, whether what it keeps leaves last, whether the
//      memories are exclusive of each other. A change that makes the iteration shorter and writes not much more to
//      storage stays (planner.h). Rehearsals, and the run, begin where the best one left the tensors. Only foresight
//      itself is ever rehearsed. A coarse trace has neither small tensors nor norms of gradients: if the GPU never
//      waits, the CPU takes these off it as well (placement.h), where a rehearsal of the trace itself is faster so.
// Of a program whose gates choose experts (core/reveal.h):
//   - an expert's next use is guessed, from what gates chose so far (planning/expert_odds.h): by that it leaves, and
//     nothing is made ready for a guess. Once its gate has chosen it, it is fetched before all else;
//   - planning rehearses with experts drawn;
//   - if the CPU can compute experts, the GPU is home to some of each layer, and those of the others that a gate
//     chooses are copied or computed by the CPU, whatever ends first (expert_homes.h).
// Planning, too:
//   9. Of a trace with choices of recomputation, before all else: which layers' results are recomputed, by rehearsals
//      of the policy as it is without step 8 (choose_levels.h). With nothing and with every layer recomputed step 8 may
//      gain more: they are planned, too, and the one stays of which a rehearsal of the trace itself is fastest.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/recompute.h"
#include "core/reveal.h"
#include "policies/common_options.h"
#include "policies/footprint.h"
#include "policies/foresight/expert_homes.h"
#include "policies/foresight/flow.h"
#include "policies/foresight/placement.h"
#include "policies/foresight/planner.h"
#include "policies/moving_unit.h"
#include "policies/planning/choose_levels.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

// What the GPU's lane takes if nothing has to be moved: it waits for ops of the CPU only. Without updates if they may
// run on the CPU.
Nanoseconds least_gpu_time(const Trace& trace, bool without_updates) {
  Nanoseconds gpu = 0, cpu = 0;
  std::vector<Nanoseconds> written(trace.tensors.size(), 0), used(trace.tensors.size(), 0);
  for (const Op& op : trace.ops) {
    if (without_updates && is_update(trace, op)) continue;
    Nanoseconds& lane = op.device == Device::gpu ? gpu : cpu;
    for (const TensorId tensor : trace.reads(op)) lane = std::max(lane, written[tensor]);
    for (const TensorId tensor : trace.writes(op)) lane = std::max({lane, written[tensor], used[tensor]});
    lane += op.occupied_ns();
    for (const TensorId tensor : trace.reads(op)) used[tensor] = std::max(used[tensor], lane);
    for (const TensorId tensor : trace.writes(op)) written[tensor] = lane;
  }
  return gpu;
}

// An estimate needs no more than a coarse trace.
double estimated_share(const Trace& trace, const MachineSpec& machine) {
  constexpr std::size_t parts = 150;
  return estimate_share(CoarseTrace(trace, machine, 0, parts).trace(), machine);
}

constexpr double parts_for_each_use = 400;
constexpr std::size_t most_ops = 20'000;  // a rehearsal of more takes seconds

// How many times as fine the coarse trace of a large one has to be. With many of the run's chunks in one of its own it
// tells the traffic of storage wrong (of 70 billion parameters, with 64 in one, by a seventh), and what is best there
// is not in the run. What is mostly read is read often, and has parts enough. The numbers were chosen by trial.
std::uint64_t fineness_for_size(const Trace& trace, Bytes chunk_bytes) {
  constexpr double large = 12'800, chunks_in_one = 8, most = 20;
  const double chunks = chunk_bytes == 0 ? 0 : static_cast<double>(persistent_bytes(trace) / chunk_bytes);
  if (chunks < large || is_mostly_read(trace)) return 1;
  return static_cast<std::uint64_t>(std::min(chunks / (chunks_in_one * parts_for_each_use), most));
}

// Of how many parts a trace has to be to show what moves: so many for each time that a byte which persists is read, as
// each is a chance to keep it or not.
std::size_t parts_for(const Trace& trace, std::uint64_t fineness) {
  constexpr double most = 2'000;
  const double for_each_use = parts_for_each_use * static_cast<double>(fineness);
  double read = 0;
  for (const Op& op : trace.ops) {
    for (const TensorId id : trace.reads(op)) {
      read += trace.tensors[id].persistent ? static_cast<double>(trace.tensors[id].bytes) : 0;
    }
  }
  const double uses = std::max(1.0, read / std::max(1.0, static_cast<double>(persistent_bytes(trace))));
  return static_cast<std::size_t>(std::min(std::max(most, for_each_use), for_each_use * uses));
}

// As large as makes the fixed cost of a copy a small part of it, on the links to and from the GPU; no more than a small
// part of the GPU's memory.
Bytes chunk_of(const MachineSpec& machine) {
  constexpr Bytes least = 16 * MiB, parts_of_copy = 64, parts_of_memory = 128;
  Bytes chunk = least;
  for (const Link& link : machine.links) {
    if ((link.from != 0 && link.to != 0) || link.bandwidth >= unlimited) continue;
    const double fixed_cost =
        static_cast<double>(link.latency_ns) * 1e-9 * static_cast<double>(link.bandwidth) / link.queue_depth;
    while (static_cast<double>(chunk) < fixed_cost * parts_of_copy &&
           2 * chunk <= machine.tiers[0].capacity / parts_of_memory)
      chunk *= 2;
  }
  return chunk;
}

class Foresight final : public Policy {
 public:
  explicit Foresight(Options& options) {
    options.choice("updates", updates_, {"auto", "gpu", "cpu"}, "where the updates of the optimizer run");
    options
        .number(
            "plan_events", plan_events_, "events",
            "simulated completions that planning may take, about: a few rehearsals are made in any case, and up to 20 "
            "times as many for large models; 0: no plan")
        .fixed("what planning may cost");
    options.choice("search", search_, {"local", "wide"},
                   "local: until no change alone makes it faster; wide: until plan_events are spent");
    options.real("storage_limit", storage_limit_, "times",
                 "of the bytes that the first rehearsal writes to storage: a plan may write no more, but for a "
                 "ten-thousandth of what persists");
    options.number("in_flight", plan_.knobs.in_flight, "chunks", "asked for on each link at once");
    options.real("gpu_share", plan_.knobs.gpu_share, "share", "of GPU memory that the plan counts on; planning may");
    options.flag("follow", plan_.knobs.follow, "what the plan keeps leaves after what it spills; planning may");
    options.choice(
        "exclusive", exclusive_, {"auto", "none", "gpu", "both"},
        "gpu: what only storage has besides leaves the GPU last; both: and what the GPU has leaves CPU memory "
        "first; auto: gpu where most of what persists is never written; planning may");
    options.bytes("chunk", chunk_bytes_, "unit that moves; auto: as large as the links' latencies make it", "auto")
        .of_pieces();
    add_oracle_option(options, oracle_);
    plan_.knobs.exclusive = exclusive_ == "both"  ? Exclusive::both
                            : exclusive_ == "gpu" ? Exclusive::gpu
                                                  : Exclusive::none;
    if (plan_.knobs.in_flight == 0) throw Error("policy 'foresight': option in_flight must be above 0");
    plan_.knobs.in_flight = std::min<std::uint64_t>(plan_.knobs.in_flight, 1'000'000);
  }
  // A candidate: it rehearses nothing. It has as many bytes on their way as the run has, whose chunks are that large.
  Foresight(ForesightPlan plan, const std::string& updates, bool forgets, bool whole, Bytes chunk_bytes,
            Bytes chunk_of_run)
      : planned_(true),
        updates_(updates),
        forgets_(forgets),
        whole_(whole),
        chunk_bytes_(chunk_bytes),
        chunk_of_run_(chunk_of_run),
        plan_(std::move(plan)) {}

  void prepare(const Trace& trace, const MachineSpec& machine, const RehearseTrace& rehearse) override {
    choose_exclusive(trace);
    if (plan_events_ == 0) return;
    if (trace.choices.empty()) {
      plan_placed(trace, machine, rehearse);
      return;
    }
    const auto takes = [&](const Trace& program, Nanoseconds least_ns) {
      return rehearsed(program, machine, rehearse, least_ns);
    };
    // Chosen by trial. A program has to be made, and made coarse, each time.
    constexpr std::uint64_t budgets = 10, programs = 40;
    ChosenLevels chosen =
        choose_levels(trace, takes, std::max<std::uint64_t>(budgets * plan_events_, programs * trace.ops.size()));
    plan_fastest(trace,
                 {std::move(chosen.levels), all_at(trace, RecomputeLevel::keep), all_at(trace, RecomputeLevel::block)},
                 machine, rehearse);
    if (!chosen.note.empty()) notes_.push_back(std::move(chosen.note));
  }

  bool oracle() const override { return oracle_; }

  void recompute(const Trace&, const MachineSpec&, std::vector<RecomputeLevel>& levels) const override {
    if (levels_.size() == levels.size()) levels = levels_;
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = whole(machine) ? 0 : chunk_bytes(machine);
    layout.forgets_overwritten = forgets_;
    layout.fallback_eviction = false;  // step 6 names all there is
    if (program == nullptr) return layout;
    choose_initial_tiers(program->trace, machine, layout);
    if (!plan_.start.empty()) layout.start = plan_.start;
    if (computes_experts(program->trace, machine)) start_in_homes(program->trace, machine, layout);
    return layout;
  }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    if (updates_ == "cpu") place_updates_on_cpu(trace, devices);
    if (updates_ != "auto" || !may_share_updates(trace, machine)) return;
    place_share(trace, plan_.cpu_share ? *plan_.cpu_share : estimated_share(trace, machine), devices);
    if (plan_.relieves_gpu) {
      place_norms(trace, devices);
      place_launches(trace, devices);
    }
  }

  std::unique_ptr<DecidedPlaces> place_decided(const Trace& trace, const MachineSpec& machine) const override {
    return place_by_homes(trace, machine);
  }

  void order(const Trace& trace, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    order_by_next_use(trace, groups);
    if (plan_.latest_first) std::reverse(groups.begin(), groups.end());
  }

  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready || ForesightFlow::hears(kind); }
  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      if (view.to_memory != nullptr) forgets_ = false;  // a live program may look at its values whenever it likes
      if (!planned_) choose_exclusive(view.program->trace);
      // A program that was lowered does not show what the GPU would have taken.
      const bool hides = computes_experts(view.program->trace, view.machine);
      if (!planned_ && plan_events_ > 0 && view.can_rehearse() && !hides) {
        plan(view.program->trace, view.machine,
             [&view](const Trace& trace, const MachineSpec& machine, Policy& candidate, const RehearsalLimits& limits) {
               return (*view.rehearsals)({trace, {}}, machine, candidate, limits);  // ops are where they are to be
             });
      }
      flow_ =
          ForesightFlow(chunk_bytes(view.machine), window(view.machine), whole(view.machine), forgets_, plan_.knobs);
      flow_.start(view);
    }
    flow_.on(event, view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    flow_.make_room(request, view, victims);
  }
  std::uint64_t fingerprint() const override { return flow_.fingerprint(); }
  void notes(std::vector<std::string>& notes) const override {
    notes.insert(notes.end(), notes_.begin(), notes_.end());
  }

 private:
  static bool computes_experts(const Trace& trace, const MachineSpec& machine) {
    return has_gates(trace) && ExpertHomes::apply(trace, machine);
  }
  bool whole(const MachineSpec& machine) const { return whole_ || moves_whole_tensors(machine); }
  Bytes chunk_bytes(const MachineSpec& machine) const { return chunk_bytes_ == 0 ? chunk_of(machine) : chunk_bytes_; }
  // A coarse chunk is many of the run's: what is on its way, and what is kept free for it, would be too much.
  Bytes window(const MachineSpec& machine) const {
    const Bytes chunk = chunk_bytes(machine), unit = chunk_of_run_ == 0 ? chunk : chunk_of_run_;
    return std::max(plan_.knobs.in_flight * (unit == 0 ? 64 * MiB : unit), chunk);
  }
  void choose_exclusive(const Trace& trace) {
    if (exclusive_ == "auto" && is_mostly_read(trace)) plan_.knobs.exclusive = Exclusive::gpu;
  }
  // Under the plan, as it was rehearsed.
  bool only_computes(const ForesightPlanner& planner) const {
    std::vector<Device> devices;
    for (const Op& op : planner.trace().ops) devices.push_back(op.device);
    place_share(planner.trace(), *plan_.cpu_share, devices);
    return planner.iteration_ns() != 0 && hardly_waits(planner.iteration_ns(), gpu_time(planner.trace(), devices));
  }
  // A program under the policy as it is before planning, on a very coarse trace. Its work: ops and completions.
  ProgramRun rehearsed(const Trace& program, const MachineSpec& machine, const RehearseTrace& rehearse,
                       Nanoseconds least_ns) const;
  // Step 8, with a first guess at where updates run.
  void plan_placed(const Trace& trace, const MachineSpec& machine, const RehearseTrace& rehearse) {
    if (updates_ == "auto" && may_share_updates(trace, machine)) plan_.cpu_share = estimated_share(trace, machine);
    plan(trace, machine, rehearse);
  }
  void plan(const Trace& trace, const MachineSpec& machine, const RehearseTrace& rehearse);
  // The same of the programs of all these levels; keeps the fastest, of large traces the first.
  void plan_fastest(const Trace& trace, const std::vector<std::vector<RecomputeLevel>>& candidates,
                    const MachineSpec& machine, const RehearseTrace& rehearse);

  bool planned_ = false;
  bool oracle_ = false;
  std::string updates_ = "auto";
  bool forgets_ = true;
  bool whole_ = false;      // a candidate that moves whole tensors, as the run does
  Bytes chunk_bytes_ = 0;   // 0: chunk_of the machine
  Bytes chunk_of_run_ = 0;  // of a candidate, on a coarse trace: of the trace itself; 0: the same
  std::uint64_t plan_events_ = 120'000;
  std::string search_ = "local", exclusive_ = "auto";
  double storage_limit_ = 1.1;
  ForesightPlan plan_;
  std::vector<RecomputeLevel> levels_;  // of the trace's choices; empty: all as the trace has them
  std::vector<std::string> notes_;
  ForesightFlow flow_{0, 0, false, false, {}};
};

ProgramRun Foresight::rehearsed(const Trace& program, const MachineSpec& machine, const RehearseTrace& rehearse,
                                Nanoseconds least_ns) const {
  const Bytes chunk = chunk_bytes(machine);
  ForesightPlan plan = plan_;
  if (updates_ == "auto" && may_share_updates(program, machine)) plan.cpu_share = estimated_share(program, machine);
  if (least_gpu_time(program, plan.cpu_share.has_value()) >= least_ns) return {.work = program.ops.size() / 4};
  constexpr std::size_t coarser = 20;  // than what the plan is made on; by trial
  const CoarseTrace coarse(program, machine, chunk, parts_for(program, 1) / coarser);
  Foresight candidate(plan, updates_, forgets_, moves_whole_tensors(machine), coarse.chunk_bytes(), chunk);
  constexpr std::uint64_t iterations = 3;
  const Rehearsal told =
      rehearse(coarse.trace(), coarse.machine(), candidate, {.iterations = iterations, .hopeless_ns = least_ns});
  const bool ended = told.fits && told.complete && told.iteration_ns > 0;
  return {ended ? told.iteration_ns : longest_clock_ns, told.events + program.ops.size()};
}

void Foresight::plan(const Trace& known, const MachineSpec& machine, const RehearseTrace& rehearse) {
  std::optional<Trace> drawn;  // coarse traces have no gates
  if (has_gates(known)) {
    drawn = draw_experts(known);
    place_drawn(known, machine, *drawn);
  }
  const Trace& trace = drawn ? *drawn : known;
  const Bytes chunk = chunk_bytes(machine);
  const bool wide = search_ == "wide";
  // Sizes were chosen by trial, on the grid of bench/policy_grid.py.
  // Where little decides what fits, a trace is not as coarse, and what is on its way there leaves less room than in the
  // run.
  const bool is_tight = plan_.cpu_share && is_tight_for_updates(trace, machine);
  const auto make = [this, of_run = is_tight ? 0 : chunk, whole = moves_whole_tensors(machine)](
                        const ForesightPlan& plan, Bytes coarse_chunk) {
    return std::make_unique<Foresight>(plan, updates_, forgets_, whole, coarse_chunk, of_run);
  };
  constexpr std::uint64_t fine = 5;
  const std::uint64_t fineness = is_tight ? fine : fineness_for_size(trace, chunk);
  const std::size_t many = parts_for(trace, wide ? std::max(fine, fineness) : fineness), few = many * 3 / 20;
  std::vector<CoarseTrace> traces;
  traces.emplace_back(trace, machine, chunk, trace.ops.size() > few ? few : many);
  if (const std::size_t ops = traces[0].trace().ops.size(); trace.ops.size() > few && ops < most_ops / 4) {
    traces.emplace_back(trace, machine, chunk, many);
    const std::size_t finer = traces[1].trace().ops.size();
    if (finer > most_ops) traces.pop_back();
    if (finer <= most_ops && (finer < 2 * ops || is_tight))
      traces.erase(traces.begin());  // the coarser one would cost as much, or tell what does not fit
  }
  ForesightPlanner planner(
      rehearse, make, traces,
      {.events = plan_events_ * fineness, .storage_limit = storage_limit_, .careful = is_tight, .wide = wide},
      least_gpu_time(trace, plan_.cpu_share.has_value()));
  plan_ = planner.plan(plan_);
  notes_ = planner.notes();
  planned_ = true;
  if (!plan_.cpu_share || *plan_.cpu_share == 0 || !only_computes(planner) || trace.ops.size() > most_ops) return;
  const auto takes = [&](bool relieves_gpu) {
    ForesightPlan candidate = plan_;
    candidate.relieves_gpu = relieves_gpu;
    const Rehearsal told = rehearse(trace, machine, *make(candidate, chunk), {});
    return told.fits && told.complete && told.iteration_ns > 0 ? told.iteration_ns : longest_clock_ns;
  };
  plan_.relieves_gpu = takes(true) < takes(false);
  if (!plan_.relieves_gpu) return;
  notes_.push_back(
      "the GPU never waits: norms of what the CPU updates, and updates of small tensors, run on the CPU, too");
}

void Foresight::plan_fastest(const Trace& trace, const std::vector<std::vector<RecomputeLevel>>& candidates,
                             const MachineSpec& machine, const RehearseTrace& rehearse) {
  const ForesightPlan unplanned = plan_;
  ForesightPlan best;
  std::vector<std::string> notes;
  Nanoseconds best_ns = longest_clock_ns;
  for (std::ptrdiff_t i = 0; i < std::ssize(candidates); ++i) {
    const bool is_new = std::find(candidates.begin(), candidates.begin() + i,
                                  candidates[static_cast<std::size_t>(i)]) == candidates.begin() + i;
    if (i > 0 && (trace.ops.size() > most_ops || !is_new)) continue;
    const Trace program = with_levels(trace, candidates[static_cast<std::size_t>(i)]);
    plan_ = unplanned;
    plan_placed(program, machine, rehearse);
    Foresight planned(plan_, updates_, forgets_, moves_whole_tensors(machine), chunk_bytes(machine), 0);
    const Rehearsal told = rehearse(program, machine, planned, {});
    const bool ended = told.fits && told.complete && told.iteration_ns > 0;
    if (i > 0 && (!ended || told.iteration_ns >= best_ns)) continue;
    if (ended) best_ns = told.iteration_ns;
    levels_ = candidates[static_cast<std::size_t>(i)];
    best = plan_;
    notes = notes_;
  }
  plan_ = best;
  notes_ = notes;
}

}  // namespace

TENCACHE_POLICY(
    {"foresight",
     "fetches in trace order, cleans what will have to leave, drops what is needed last; planned by rehearsal",
     "TenCache; docs/policies.md", make_policy_of<Foresight>, 90})

}  // namespace tencache
