// foresight: TenCache's own policy. What the others do one by one, at once; and planned by rehearsing itself.
//
// Before the run:
//   1. Updates of the optimizer are shared out between the GPU and the CPU, which takes the last: the share for which
//      an estimate of compute, links, CPU and storage is least. Sub-groups are updated in the order in which the next
//      forward pass needs them (placement.h).
//   2. Of a known future: which periods between two uses the GPU's memory cannot bridge, and which not even CPU memory
//      (Belady's choice; spill.h).
// In the run, whenever something has happened (flow.h):
//   3. A horizon goes through the GPU's ops to come, up to a round ahead, as long as all that they need will have room:
//      what is used now, born and dead by then, missing, less the clean bytes that no op before the horizon needs. Each
//      access is looked at once; it goes back only for what has left.
//   4. Up to there, missing chunks are fetched in the order of their ops, on each link a few at a time. What leaves for
//      them is clean, needed farthest in the future, and never before what is fetched.
//   5. Whenever a way out is idle, it cleans: first what the CPU waits for, then what step 2 says will have to leave,
//      of that what is needed last; and, if the horizon is held up for want of room, whatever is needed beyond it. To
//      CPU memory if there is room; to storage that the GPU reaches, as many bytes an iteration as step 2 sends there.
//   6. What an op itself has no room for: clean chunks, the farthest first, then dirty ones.
//   7. CPU memory over storage is such a cache too: the next chunk that is in neither memory is read ahead if there is
//      room beside what the GPU will have to copy down, what step 2 says is copied down whenever the store is idle, and
//      a reserve is kept free: first of copies that the GPU holds and will write, then of what lies in storage too and
//      is needed later than what the GPU will have to copy down.
// Planning, when the schedule is known and a rehearsal is to be had:
//   8. The policy is simulated, on the clock that has the stalls in it, then again with one decision changed: how much
//      of the GPU's memory step 2 counts on; whether what it keeps leaves last; whether it goes by the clock of the
//      best rehearsal, and holds bytes dearer that are needed where the GPU waited in it. A change that makes the
//      iteration shorter and writes not much more to storage stays, and so on until none does, the GPU never waits, or
//      `plan_events` completions are simulated. A rehearsal that the budget cuts off counts for nothing. Only foresight
//      itself is ever rehearsed.
#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "policies/common_options.h"
#include "policies/foresight/flow.h"
#include "policies/foresight/placement.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class Foresight final : public Policy {
 public:
  explicit Foresight(Options& options) {
    options.choice("updates", updates_, {"auto", "gpu", "cpu"}, "where the updates of the optimizer run");
    options.number("plan_events", plan_events_, "events", "simulated completions that planning may take; 0: no plan")
        .fixed("what planning may cost");
    options.real("storage_limit", storage_limit_, "times",
                 "of the bytes that the first rehearsal writes to storage: a plan may write no more");
    options.number("in_flight", knobs_.in_flight, "chunks", "asked for on each link at once");
    options.real("gpu_share", knobs_.gpu_share, "share", "of GPU memory that the plan counts on; planning may");
    options.flag("follow", knobs_.follow, "what the plan keeps leaves after what it spills; planning may");
    add_chunk_option(options, layout_.chunk_bytes);
    if (knobs_.in_flight == 0) throw Error("policy 'foresight': option in_flight must be above 0");
    knobs_.in_flight = std::min<std::uint64_t>(knobs_.in_flight, 1'000'000);
  }
  // A candidate: it rehearses nothing.
  Foresight(const Layout& layout, const ForesightKnobs& knobs, ForesightClock clock)
      : candidate_(true), layout_(layout), knobs_(knobs), flow_(layout.chunk_bytes, knobs, std::move(clock)) {}

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = layout_;
    if (program != nullptr) choose_initial_tiers(program->trace, machine, layout);
    return layout;
  }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    if (updates_ == "auto") place_updates(trace, machine, devices);
    if (updates_ == "cpu") place_updates_on_cpu(trace, devices);
  }

  void order(const Trace& trace, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    order_by_next_use(trace, groups);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      if (!candidate_) {
        ForesightClock clock = compute_clock(view.program->trace);
        if (plan_events_ > 0 && view.can_rehearse()) plan(view, clock);
        flow_ = ForesightFlow(layout_.chunk_bytes, knobs_, std::move(clock));
      }
      flow_.start(view);
    } else if (event.kind == EventKind::iteration_end) {
      stored_ = flow_.stored() - stored_before_;
      stored_before_ = flow_.stored();
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
  // Step 8. Leaves the best decisions in `knobs_` and what they go by in `clock`.
  void plan(const View& view, ForesightClock& clock);

  bool candidate_ = false;
  std::string updates_ = "auto";
  Layout layout_;
  ForesightKnobs knobs_;
  std::uint64_t plan_events_ = 3'000'000;
  double storage_limit_ = 1.1;
  std::vector<std::string> notes_;
  ForesightFlow flow_{0, {}, {}};
  Bytes stored_ = 0, stored_before_ = 0;  // written to storage in the last iteration, and before it
};

// Of a rehearsal: when each op was issued, made to rise over the lanes, and the iteration's end. Bytes are as dear as
// `weight` says where the GPU waited for a quarter of the time or more (by parts of the iteration).
ForesightClock clock_of(const Rehearsal& told, double weight) {
  ForesightClock clock{told.issued_ns, {}};
  clock.times_ns.push_back(told.iteration_ns);
  for (std::size_t i = 1; i < clock.times_ns.size(); ++i) {
    clock.times_ns[i] = std::max(clock.times_ns[i], clock.times_ns[i - 1]);
  }
  if (weight <= 1) return clock;
  constexpr Nanoseconds parts = 64;
  std::array<Nanoseconds, parts> waited{};
  const Nanoseconds part_ns = clock.times_ns.back() / parts + 1;
  const auto part = [&](std::size_t op) { return static_cast<std::size_t>(clock.times_ns[op] / part_ns); };
  for (std::size_t op = 0; op < told.issued_ns.size(); ++op) {
    for (Nanoseconds from = told.issued_ns[op]; from < told.ready_ns[op];) {  // a long wait is spread over its parts
      const Nanoseconds at = std::min(from / part_ns, parts - 1);
      const Nanoseconds to = at == parts - 1 ? told.ready_ns[op] : std::min(told.ready_ns[op], (at + 1) * part_ns);
      waited[static_cast<std::size_t>(at)] += to - from;
      from = to;
    }
  }
  for (std::size_t op = 0; op < told.issued_ns.size(); ++op) {
    const std::size_t last = std::min<std::size_t>(static_cast<std::size_t>(told.ready_ns[op] / part_ns), parts - 1);
    clock.weights.push_back(std::max(waited[part(op)], waited[last]) >= part_ns / 4 ? weight : 1);
  }
  return clock;
}

void Foresight::plan(const View& view, ForesightClock& clock) {
  constexpr Nanoseconds worth = 1000;  // of its thousandths an iteration has to become shorter by one
  const Nanoseconds compute_ns = clock.times_ns.back();
  Rehearsal best;  // up to now
  std::uint64_t used = 0, rehearsals = 0;
  Nanoseconds least_ns = 0;
  double most_written = 0;  // to storage, bytes an iteration
  const auto rehearse = [&](const ForesightKnobs& knobs, const ForesightClock& by, const std::string& change) {
    if (used >= plan_events_) return false;
    Foresight candidate(layout_, knobs, by);
    Rehearsal told = view.rehearse(candidate, plan_events_ - used);
    used += told.events;
    ++rehearsals;
    if (!told.fits || !told.complete || told.iteration_ns == 0) return false;  // of a part of a run nothing follows
    const double stored = static_cast<double>(candidate.stored_);
    if (least_ns == 0) {
      most_written = storage_limit_ * stored;
    } else if (told.iteration_ns >= least_ns - least_ns / worth || stored > most_written) {
      return false;
    }
    least_ns = told.iteration_ns;
    knobs_ = knobs;
    clock = by;
    best = std::move(told);
    notes_.push_back(format_duration(least_ns) + (change.empty() ? " before planning" : " with " + change));
    return true;
  };
  const auto never_waits = [&] { return least_ns <= compute_ns + compute_ns / worth; };
  rehearse(knobs_, clock, "");
  bool better = least_ns != 0;
  while (better && !never_waits() && used < plan_events_) {
    better = false;
    const auto attempt = [&](auto change, const std::string& what) {
      ForesightKnobs knobs = knobs_;
      change(knobs);
      if (!never_waits() && rehearse(knobs, clock, what)) better = true;
    };
    for (const double share : {1.0, 0.9, 0.8, 0.6}) {
      attempt([&](ForesightKnobs& knobs) { knobs.gpu_share = share; },
              "gpu_share=" + std::to_string(share).substr(0, 4));
    }
    attempt([](ForesightKnobs& knobs) { knobs.follow = !knobs.follow; }, "follow changed");
    for (const double weight : {1.0, 4.0, 1000.0}) {
      ForesightKnobs knobs = knobs_;
      knobs.follow = knobs.follow || weight > 1;
      const std::string what =
          weight > 1 ? "waits weighted " + std::to_string(static_cast<int>(weight)) + " times" : "the stalled clock";
      if (!never_waits() && rehearse(knobs, clock_of(best, weight), what)) better = true;
    }
  }
  notes_.push_back("planning stopped after " + std::to_string(rehearsals) + " rehearsals, " + std::to_string(used) +
                   " of " + std::to_string(plan_events_) + " events: " +
                   (least_ns == 0          ? "no rehearsal came to its end, so nothing was changed"
                    : never_waits()        ? "the GPU never waits"
                    : used >= plan_events_ ? "the budget is used"
                                           : "no change makes the iteration shorter"));
  const auto share = [](double value) { return std::to_string(value).substr(0, 4); };
  notes_.push_back("it runs with gpu_share=" + share(knobs_.gpu_share) +
                   " follow=" + (knobs_.follow ? "true" : "false"));
}

}  // namespace

TENCACHE_POLICY(
    {"foresight",
     "fetches in trace order, cleans what will have to leave, drops what is needed last; planned by rehearsal",
     "TenCache; docs/policies.md", make_policy_of<Foresight>, 90})

}  // namespace tencache
