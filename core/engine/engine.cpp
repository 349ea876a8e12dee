#include "core/engine/engine.h"

#include <string>
#include <variant>

#include "core/check.h"
#include "core/error.h"
#include "core/state_hash.h"

namespace tencache {

using Because = PolicySession::Because;

Engine::Engine(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, EngineOptions options)
    : options_(std::move(options)),
      state_(spec, machine, policy, program, options_.timeline),
      session_(policy, first_view(), state_.moment, *state_.program, state_.ledger, mover_, options_),
      mover_(state_, session_),
      runner_(state_, session_, mover_, policy.requirements().governed),
      live_(dynamic_cast<LiveProgram*>(state_.program.get())) {
  if (options_.log != nullptr) options_.log->pretended = machine.pretends();
  follows_capacities_ = std::ranges::any_of(spec.tiers, [](const Tier& tier) { return tier.over_time.any(); });
}

View Engine::first_view() const {
  View view{.machine = state_.spec, .memory = state_.memory};
  view.dead_flags = &state_.lives.dead;
  view.link_load = state_.transfers.link_load();
  view.rehearsals = &options_.rehearse;
  return view;
}

// ---- The door -------------------------------------------------------------------------------------------------------

void Engine::handle(Input input) {
  std::visit([&](auto& what) { enter(input.now, what); }, input.what);
}

// A live program reads the clock before it is its turn, and may have called before a completion was looked at: what is
// older than the engine's time happens now.
void Engine::advance_time(Nanoseconds now) {
  const Nanoseconds passed = std::max<Nanoseconds>(now - state_.moment.now, 0);
  state_.moment.now += passed;
  ++state_.moment.input;
  state_.ledger.advance(passed, state_.memory);
}

void Engine::follow_capacities() {
  if (finished_) return;
  for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
    const Tier& of = state_.spec.tiers[tier];
    if (!of.over_time.any()) continue;
    const Bytes before = state_.memory.capacity(tier);
    const Bytes capacity = of.over_time.at(state_.moment.now - started_ns_, of.capacity);
    state_.memory.set_capacity(tier, capacity);
    if (capacity < before) mover_.give_up_fetches(tier);
    mover_.rooms().shrink(tier);
    if (capacity != before) session_.emit({.kind = EventKind::capacity_changed, .to = tier});
  }
}

void Engine::take(const Completion& completion) {
  ++state_.ledger.counters().completions;
  const std::uint64_t value = tag_value(completion.tag);
  switch (tag_kind(completion.tag)) {
    case TagKind::transfer:
      state_.lanes.copy_ended();
      mover_.complete(static_cast<TransferId>(value), completion);
      break;
    case TagKind::op: {
      const std::uint8_t lane = static_cast<std::uint8_t>(value & 0xff);
      if (completion.status != CompletionStatus::done) throw_op_failed(lane);
      runner_.computed(lane, completion);
      break;
    }
    case TagKind::gap: {
      OpLane& lane = state_.lanes[value];
      TENCACHE_CHECK(lane.gap_pending);
      lane.gap_pending = false;
      lane.gap_done = true;
      break;
    }
  }
}

void Engine::take(const input::Observed& observed) {
  const Completion& over = observed.completion;
  if (tag_kind(over.tag) == TagKind::transfer) {
    state_.ledger.observe_copy(over);
    return;
  }
  const std::uint8_t lane = static_cast<std::uint8_t>(tag_value(over.tag) & 0xff);
  DeviceWait waited{.until_ns = over.waited_until_ns};
  if (over.waited_for >= first_link_lane) {
    waited.cause = cause_of(state_.spec, static_cast<LinkId>(over.waited_for - first_link_lane));
  } else if (over.waited_for == lane) {
    waited.cause = StallCause::memory;
  } else {
    waited.cause = over.waited_for == communication_lane ? StallCause::collective : StallCause::cpu_compute;
  }
  state_.ledger.observe_op(lane, over, waited);
}

void Engine::throw_op_failed(std::uint8_t lane) {
  const OpIndex op = state_.lanes[lane].active.front().times.op;
  const std::string name =
      state_.program->op(op) == nullptr ? "of the program" : "'" + state_.program->name_of(op) + "'";
  throw Error("op " + name + " failed on the machine" + reason_of_failure(state_.machine) +
              "; what it should have written is lost");
}

// ---- Calls of a live program ----------------------------------------------------------------------------------------

TensorId Engine::create(Bytes bytes, Role role, bool persistent, Nanoseconds now) {
  const TensorId tensor = state_.memory.next_tensor(bytes);
  enter(now, input::Create{tensor, bytes, role, persistent});
  return tensor;
}

void Engine::take(input::Create& create) {
  const TensorId tensor = state_.memory.add_tensor(create.bytes, create.role, create.persistent);
  TENCACHE_CHECK(tensor == create.tensor);
  state_.lives.begin(tensor);
  state_.transfers.follow(state_.memory.chunk_total());
  live().created(tensor);
  state_.machine.tensor_created(tensor, create.bytes);
  session_.emit({.kind = EventKind::tensor_created, .tensor = tensor});
}

void Engine::take(input::Stored& stored) {
  for (const ChunkId chunk : state_.memory.chunks_of(stored.tensor)) {
    TENCACHE_CHECK(state_.copies.take(chunk, stored.tier));
    state_.memory.commit(chunk, stored.tier);
  }
  state_.lives.born[stored.tensor] = 1;
}

void Engine::take(input::Destroy& destroy) {
  runner_.forget(destroy.tensor);
  session_.emit({.kind = EventKind::tensor_freed, .tensor = destroy.tensor});
  mover_.kill(destroy.tensor);
  state_.lives.doomed[destroy.tensor] = 1;
  mover_.remove_if_gone(destroy.tensor);
}

void Engine::take(input::Begin& begin) {
  TENCACHE_CHECK(state_.lanes[0].active.empty());
  ActiveOp& op = state_.lanes[0].active.add();
  op.times.op = begin.op;
  op.times.iteration = state_.moment.iteration;
  op.external = true;
  op.own_uses.swap(begin.uses);
  op.uses = op.own_uses;
  issue(0);
}

void Engine::take(input::End&) {
  TENCACHE_CHECK(ready());
  runner_.finish(0, state_.moment.now, state_.moment.now);
}

void Engine::take(input::Task& task) {
  TENCACHE_CHECK(task.lane < lane_count && state_.lanes[task.lane].tier != no_tier);
  live().add_task(task.lane, task.op, task.tag, std::move(task.uses), task.duration_ns);
}

void Engine::take(input::WaitedForTasks& waited) {
  TENCACHE_CHECK(state_.lanes[0].active.empty());
  state_.ledger.gap(0, std::min(state_.moment.now - waited.duration_ns, state_.moment.now), none, true);
  state_.ledger.stall(0, state_.moment.now, StallCause::cpu_optimizer, state_.moment.position);
}

void Engine::take(input::ModuleBegin& begin) {
  session_.emit({.kind = EventKind::module_begin, .op = state_.moment.position, .module = begin.module});
}

void Engine::take(input::ModuleEnd& end) {
  session_.emit({.kind = EventKind::module_end, .op = state_.moment.position, .module = end.module});
}

void Engine::take(input::Boundary&) {
  if (state_.ledger.begun()) {
    cross_boundary();
  } else {  // what came before is preparation
    state_.ledger.forget_gpu_time();
    state_.ledger.boundary();
  }
  if (live().return_to_schedule()) session_.emit({.kind = EventKind::profile_ready});
  session_.emit({.kind = EventKind::iteration_begin});
}

void Engine::set_profile(const Program& program, std::vector<TensorId> to_memory, std::vector<TensorId> to_program,
                         Nanoseconds now) {
  // A log outlives the caller's program.
  auto kept = options_.log != nullptr ? std::make_shared<const Program>(program)
                                      : std::shared_ptr<const Program>(std::shared_ptr<void>(), &program);
  enter(now, input::Profile{std::move(kept), std::move(to_memory), std::move(to_program)});
}

void Engine::take(input::Profile& profile) {
  live().set_profile(std::move(profile.program), std::move(profile.to_memory), std::move(profile.to_program),
                     state_.memory.tensor_count());
  state_.ledger.follow(state_.program->program());
  session_.program_known();
  session_.emit({.kind = EventKind::profile_ready});
}

void Engine::take(input::Deviated&) {
  state_.moment.position = none;
  live().deviate();
  session_.emit({.kind = EventKind::schedule_deviated});
}

void Engine::take(input::Revealed& revealed) {
  const std::span<const Use> decided = live().reveal(revealed.gate, revealed.chosen);
  if (decided.empty()) return;
  state_.moment.position = revealed.gate;
  session_.emit({.kind = EventKind::revealed, .op = revealed.gate, .uses = decided});
}

void Engine::take(input::Capacity& capacity) {
  TENCACHE_CHECK(capacity.tier > 0 && !state_.memory.addressed(capacity.tier) && state_.memory.keeps(capacity.tier));
  TENCACHE_CHECK(state_.memory.used(capacity.tier) <= capacity.bytes);
  state_.memory.set_capacity(capacity.tier, capacity.bytes);
  session_.emit({.kind = EventKind::capacity_changed, .to = capacity.tier});
}

void Engine::take(input::CheckProgress&) {
  if (waiting() && !lift_standstill() && waiting()) throw_out_of_memory();
}

void Engine::take(input::Abandon&) {
  const bool op_alone = state_.lanes[0].waiting && state_.lanes[0].active.back().external;
  for (std::uint8_t lane = 0; lane < (op_alone ? 1 : lane_count); ++lane) {
    live().drop_tasks(lane);
    state_.lanes[lane].blocked_since_ns = -1;
    if (state_.lanes[lane].waiting) runner_.abandon(lane);
  }
}

void Engine::take(input::Pin& pin) {
  TENCACHE_CHECK(state_.memory.resident(pin.tensor, 0));
  for (const ChunkId chunk : state_.memory.chunks_of(pin.tensor)) {
    if (state_.memory.copy(chunk, 0).evicting) mover_.rescue(chunk, 0);
    state_.memory.pin(chunk, 0);
    if (!pin.written) continue;
    TENCACHE_CHECK(state_.memory.copy(chunk, 0).writers > 0);
    state_.memory.add_writer(chunk, 0);
  }
}

void Engine::take(input::Unpin& unpin) {
  for (const ChunkId chunk : state_.memory.chunks_of(unpin.tensor)) {
    state_.memory.unpin(chunk, 0);
    if (unpin.written) state_.memory.remove_writer(chunk, 0);
  }
}

// ---- An owned program, from start to result -------------------------------------------------------------------------

RunResult Engine::run(const RunLimits& limits) {
  try {
    start(limits);
    Completion completion;
    while (!settled()) {
      if (state_.machine.wait(completion)) {
        handle(completion);
      } else if (finished_) {
        break;
      } else if (!stand_still()) {
        throw_out_of_memory();
      }
    }
    settle();
  } catch (const OutOfMemory& error) {
    give_up(error);
  }
  return result();
}

void Engine::start(const RunLimits& limits) {
  auto* owned = dynamic_cast<OwnedProgram*>(state_.program.get());
  TENCACHE_CHECK(owned != nullptr && !state_.ledger.begun());
  // Where chunks move their places hardly ever recur, and what only the end of a run waits for is no iteration's.
  owned->limit(limits, limits.ends_as_others && state_.memory.movable(0));
  for (TensorId tensor = 0; tensor < state_.memory.tensor_count(); ++tensor) {
    state_.machine.tensor_created(tensor, state_.memory.bytes(tensor));
    if (state_.memory.persistent(tensor)) place_initially(tensor);
  }
  advance_time(state_.machine.now());
  started_ns_ = state_.moment.now;
  if (options_.log != nullptr) options_.log->start_ns = state_.moment.now;
  state_.ledger.start();
  state_.ledger.boundary();
  session_.emit({.kind = EventKind::profile_ready});
  session_.emit({.kind = EventKind::iteration_begin});
  pump();
}

namespace {

// To place this persistent tensor and those after it, if all go that way.
Bytes missing_at_start(const Residency& memory, TensorId tensor, TierId first) {
  Bytes missing = memory.bytes(tensor);
  for (TensorId next = tensor + 1; next < memory.tensor_count(); ++next) {
    if (memory.persistent(next)) missing += memory.bytes(next);
  }
  for (TierId tier = first; tier < memory.tier_count(); ++tier) missing -= std::min(missing, memory.free(tier));
  return std::max(missing, Bytes{1});
}

}  // namespace

void Engine::place_initially(TensorId tensor) {
  const TierId wanted = state_.layout.initial[static_cast<std::size_t>(state_.memory.role(tensor))];
  const TierId first = state_.layout.unlimited_gpu ? TierId{0} : wanted != no_tier ? wanted : state_.spec.initial_tier;
  for (const ChunkId chunk : state_.memory.chunks_of(tensor)) {
    if (start_where_laid_out(tensor, chunk)) continue;
    TierId tier = first;
    const auto takes = [&] { return state_.memory.keeps(tier) && state_.copies.take(chunk, tier); };
    while (tier < state_.memory.tier_count() && !takes()) ++tier;
    if (tier == state_.memory.tier_count()) {
      throw OutOfMemory("out of memory before the first op: no tier has room for " + state_.program->title_of(tensor) +
                            " (" + format_bytes(state_.memory.bytes(tensor)) + "); persistent tensors start in tier '" +
                            state_.spec.tiers[first].name + "' and spill to slower ones",
                        "", missing_at_start(state_.memory, tensor, first));
    }
    initialise(tensor, chunk, tier);
  }
  state_.lives.born[tensor] = 1;
}

// The room is taken.
void Engine::initialise(TensorId tensor, ChunkId chunk, TierId tier) {
  state_.machine.initialise(tensor, chunk, state_.memory.begin_of(chunk), state_.memory.bytes_in(chunk, tier),
                            {tier, state_.memory.offset(chunk, tier)});
  state_.memory.commit(chunk, tier);
}

// In the tiers that Layout::start names, as far as there is room; false if it is in none then.
bool Engine::start_where_laid_out(TensorId tensor, ChunkId chunk) {
  if (chunk >= state_.layout.start.size() || state_.layout.unlimited_gpu) return false;
  bool placed = false;
  for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
    if ((state_.layout.start[chunk] >> tier & 1) == 0 || !state_.memory.keeps(tier)) continue;
    if (!state_.copies.take(chunk, tier)) continue;
    initialise(tensor, chunk, tier);
    placed = true;
  }
  return placed;
}

// The last iteration ends with its ops: transfers that none will need are not part of it.
void Engine::finish_if_done() {
  if (live_ == nullptr && !finished_ && state_.lanes.empty() && state_.program->all_done()) cross_boundary(true);
}

void Engine::give_up(const OutOfMemory& reason) {
  finished_ = true;
  misfit_.emplace(reason);
}

void Engine::finish_period(std::size_t first_boundary) {
  state_.ledger.set_period(first_boundary);
  finished_ = true;
}

RunResult Engine::result() const {
  RunResult r;
  r.fits = !misfit_.has_value();
  if (misfit_) {
    r.misfit = misfit_->what();
    r.misfit_op = misfit_->op();
    r.misfit_bytes = misfit_->bytes_missing();
  }
  for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
    r.peak_bytes[tier] = state_.memory.peak(tier);
    r.allocators[tier] = state_.layout.allocators[tier].kind;
  }
  session_.policy().notes(r.policy_notes);
  state_.ledger.report(r);
  return r;
}

// ---- The pump -------------------------------------------------------------------------------------------------------

void Engine::pump() {
  const std::size_t links = state_.spec.links.size();
  bool progress = true;
  while (progress && !finished_) {
    progress = false;
    for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
      if (state_.lanes[lane].may_advance(state_.spec.issue_ahead)) progress |= advance_lane(lane);
    }
    const std::uint64_t enqueued = state_.transfers.enqueued();  // victims may leave over a link that had its turn
    for (LinkId link = 0; link < links; ++link) {
      if (!state_.transfers.empty(link) && state_.transfers.takes_another(link)) progress |= mover_.start_from(link);
    }
    progress |= state_.transfers.enqueued() != enqueued;
  }
}

bool Engine::advance_lane(std::uint8_t index) {
  const OpLane& lane = state_.lanes[index];
  bool progress = false;
  if (!lane.waiting && live_ != nullptr && live_->pending(index) == 0) return false;
  if (lane.waiting) {
    if (!runner_.go_on(index)) return false;
    progress = true;
  }
  while (!finished_ && !lane.waiting && lane.active.size() < state_.spec.issue_ahead && issue_next(index))
    progress = true;
  return progress;
}

// Issues the lane's next op if there is one that may be. An op goes through: dependencies, boundary, gap, issue.
bool Engine::issue_next(std::uint8_t index) {
  OpLane& lane = state_.lanes[index];
  if (lane.gap_pending) return false;
  const std::optional<NextOp> next = state_.program->next(index);
  if (!next) return false;
  if (blocked(index, next->op)) return false;
  if (next->begins_iteration && !lane.gap_done && !lane.boundary_crossed) {
    lane.boundary_crossed = true;
    cross_boundary();
    if (finished_) return false;
    session_.emit({.kind = EventKind::iteration_begin});
  }
  if (next->gap_before_ns > 0 && !lane.gap_done) {  // host time: what the lane would wait for anyway runs meanwhile
    lane.gap_pending = true;
    state_.machine.execute({.lane = index, .op = none, .idle = true, .duration_ns = next->gap_before_ns, .uses = {}},
                           make_tag(TagKind::gap, index));
    return false;
  }
  lane.gap_done = lane.boundary_crossed = false;
  state_.program->issue(index, state_.moment.iteration, lane.active.add());
  issue(index);
  return true;
}

// Whether the lane's next op waits for one of another lane. What it has waited for is told apart by what it was.
bool Engine::blocked(std::uint8_t index, OpIndex next) {
  OpLane& lane = state_.lanes[index];
  const std::optional<StallCause> cause = state_.program->blocked_by(index, state_.lanes);
  if (lane.blocked_since_ns >= 0 && cause != lane.blocked_by) {
    if (index == gpu_lane && lane.active.empty()) {
      state_.ledger.gap(index, lane.blocked_since_ns, none, lane.blocked_by == StallCause::cpu_optimizer);
      state_.ledger.stall(index, state_.moment.now, lane.blocked_by, next);
    }
    lane.blocked_since_ns = -1;
  }
  if (!cause) return false;
  if (lane.blocked_since_ns < 0) lane.blocked_since_ns = state_.moment.now;
  lane.blocked_by = *cause;
  return true;
}

void Engine::issue(std::uint8_t lane) {
  if (lane == 0) state_.moment.position = state_.lanes[0].active.back().times.op;
  runner_.issue(lane);
}

namespace {

// Of a run that does not recur. Its result is the mean of the second half of its iterations, whatever their number; of
// a large program it is nearly the same after a few, which take seconds each.
bool has_run_long_enough(std::uint64_t iterations, std::uint64_t completions) {
  constexpr std::uint64_t least_iterations = 4, many_completions = 2'000'000;
  return iterations >= least_iterations && completions >= many_completions;
}

}  // namespace

void Engine::cross_boundary(bool last) {
  const OpLane& lane = state_.lanes[0];
  if (lane.active.empty()) {
    state_.ledger.gap(0, state_.moment.now, none, true);
  } else if (lane.active.front().external) {  // it goes on: each iteration has its part
    state_.ledger.compute(0, lane.active.front().times, state_.moment.now);
  }
  runner_.count_held();
  state_.ledger.boundary(last);
  session_.emit({.kind = EventKind::iteration_end});
  ++state_.moment.iteration;
  state_.ledger.next_iteration();
  if (options_.on_iteration) options_.on_iteration(state_.moment.iteration);
  if (state_.program->looks_for_steady_state()) {
    const std::uint64_t hash = (state_hash(state_.moment.now) ^ state_.machine.state()) * 1099511628211ull;
    if (state_.ledger.recurs(hash)) finished_ = true;
    if (has_run_long_enough(state_.moment.iteration, state_.ledger.counters().completions)) finished_ = true;
  }
  if (state_.program->stops_at(state_.moment.iteration)) finished_ = true;
}

std::uint64_t Engine::state_hash(Nanoseconds now) const {
  StateHash hash;
  for (TierId tier = 0; tier < state_.memory.tier_count(); ++tier) {
    for (ChunkId chunk = state_.memory.coldest(tier); chunk != none; chunk = state_.memory.warmer(chunk, tier)) {
      hash.mix(chunk);
      hash.mix(state_.memory.offset(chunk, tier));
    }
    hash.mix(none);
    if (const CapacityOverTime& over_time = state_.spec.tiers[tier].over_time; over_time.any()) {
      hash.mix(static_cast<std::uint64_t>(over_time.phase(now - started_ns_)));
    }
  }
  hash.mix(state_.transfers.hash(now));
  for (const std::uint8_t dead : state_.lives.dead) hash.mix(dead);
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
    for (const std::uint64_t count : state_.program->progress(lane, state_.moment.iteration)) hash.mix(count);
    const auto& active = state_.lanes[lane].active;
    if (lane == communication_lane) hash.mix(active.size());
    if (active.empty()) {
      hash.mix(0);
    } else {
      const OpTiming& front = active.front().times;
      hash.mix(static_cast<std::uint64_t>(now - (active.front().started ? front.ready_ns : front.issued_ns)));
    }
  }
  hash.mix(session_.policy().fingerprint());
  return hash.value();
}

// ---- When nothing is under way --------------------------------------------------------------------------------------

bool Engine::stand_still() {
  const std::uint64_t before = state_.lanes.ops_given();
  enter(state_.moment.now, input::Standstill{});
  return under_way(before);
}

// Anything, or an op that was given to the machine since.
bool Engine::under_way(std::uint64_t ops_given_before) const {
  if (state_.lanes.ops_given() > ops_given_before || state_.transfers.in_flight() > 0) return true;
  for (const OpLane& lane : state_.lanes) {
    if (lane.gap_pending) return true;
    for (const ActiveOp& op : lane.active) {
      // An external one runs in the program, which waits; one that meets others may wait for them.
      if (op.started && op.computed_ns < 0 && !op.external && !op.times.meets) return true;
    }
  }
  return finished_;
}

// Nothing is under way although the program is not over. Lifts what can be lifted; false if the op can never start.
bool Engine::lift_standstill() {
  const std::uint64_t before = state_.lanes.ops_given();
  const auto goes_on = [&] {
    ++state_.moment.input;
    pump();
    return under_way(before);
  };
  if (goes_on()) return true;
  const Because because(session_, {.reason = Reason::standstill});
  for (OpLane& lane : state_.lanes) {
    if (!lane.waiting) continue;
    mover_.lift_what_it_waits_for(lane);
    OpDemand& demand = lane.active.back().demand;
    demand.holds.clear();
    if (demand.missing == 0) state_.lanes.got_room(lane.tier, demand, demand.births);
    demand.births = 0;
  }
  if (goes_on()) return true;
  ++state_.moment.input;
  mover_.start_behind_blocked();
  pump();
  return under_way(before);
}

namespace {

// Of an op that has room in its tier: which operand has no way there; empty: none.
std::string unreachable_operand(const EngineState& state, const ActiveOp& op, TierId tier) {
  for (const Use& use : op.uses) {
    if (use.tensor == none || !use.read) continue;
    for (const ChunkId chunk : state.memory.chunks_of(use.tensor)) {
      if (state.memory.valid(chunk, tier)) continue;
      for (TierId from = 0; from < state.memory.tier_count(); ++from) {
        if (!state.memory.valid(chunk, from) || !state.spec.path_between(from, tier).empty()) continue;
        return "operand of " + format_bytes(state.memory.bytes(use.tensor)) + " is in tier '" +
               state.spec.tiers[from].name + "', from where no link leads there";
      }
    }
  }
  return "";
}

}  // namespace

void Engine::throw_out_of_memory() {
  const auto waits = std::ranges::find_if(state_.lanes, [](const OpLane& lane) { return lane.waiting; });
  TENCACHE_CHECK(waits != state_.lanes.end());  // or an op waits where the program stands still
  const ActiveOp& op = waits->active.back();
  const TierId tier = waits->tier;
  Bytes needs = 0;
  for (const Use& use : op.uses) {
    if (use.tensor == none) continue;
    for (const ChunkId chunk : state_.memory.chunks_of(use.tensor)) needs += state_.memory.footprint(chunk, tier);
  }
  const Bytes free = state_.memory.free(tier);
  const Bytes missing = op.demand.room_needed > free ? op.demand.room_needed - free : op.demand.room_needed;
  const OpIndex index = op.times.op;
  const Op* const known = state_.program->op(index);
  const std::string name = known == nullptr ? "unscheduled op" : state_.program->name_of(index);
  std::string place = index == none ? "" : " (op " + std::to_string(index);
  if (known != nullptr && (known->phase == Phase::prefill || known->phase == Phase::decode)) {
    place += ", " + std::string(to_string(known->phase));
    if (known->phase == Phase::decode)
      place += " step " + std::to_string(state_.program->program()->trace.detail(*known).step);
  }
  if (!place.empty()) place += ")";
  if (const std::string operand = op.demand.room_needed <= free ? unreachable_operand(state_, op, tier) : "";
      !operand.empty()) {
    throw OutOfMemory("op '" + name + "'" + place + " runs on tier '" + state_.spec.tiers[tier].name + "', which has " +
                          format_bytes(free) + " of " + format_bytes(state_.memory.capacity(tier)) + " free, but its " +
                          operand,
                      name, missing);
  }
  std::string message = "out of memory: op '" + name + "'" + place + " needs " + format_bytes(needs) + " in tier '" +
                        state_.spec.tiers[tier].name + "' of " + format_bytes(state_.memory.capacity(tier)) + "; " +
                        format_bytes(missing) + " are missing";
  if (needs <= state_.memory.capacity(tier)) {
    message += " because nothing else can leave:";
    for (TierId other = 0; other < state_.memory.tier_count(); ++other) {
      message += " " + state_.spec.tiers[other].name + " " + format_bytes(state_.memory.used(other)) + " of " +
                 format_bytes(state_.memory.capacity(other)) + " used" +
                 (other + 1u < state_.memory.tier_count() ? "," : "");
    }
  }
  throw OutOfMemory(message, name, missing);
}

}  // namespace tencache
