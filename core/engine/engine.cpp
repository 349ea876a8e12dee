#include "core/engine/engine.h"

#include <string>
#include <variant>

#include "core/check.h"
#include "core/engine/tags.h"

namespace tencache {
namespace {

using Because = PolicySession::Because;

Layout checked_layout(const MachineSpec& spec, const Machine& machine, Policy& policy, const Program* program) {
  Layout layout = policy.layout(spec, program);
  if (layout.allocators.empty()) layout.allocators.resize(spec.tiers.size());
  if (layout.allocators.size() != spec.tiers.size()) {
    throw Error("the policy lays out " + std::to_string(layout.allocators.size()) + " tiers, machine '" + spec.name +
                "' has " + std::to_string(spec.tiers.size()));
  }
  for (TierId tier = 0; tier < spec.tiers.size(); ++tier) {
    if (spec.tiers[tier].allocator == AllocatorKind::exact) continue;
    if (!machine.pretends()) {
      throw Error("machine '" + spec.name + "': tier '" + spec.tiers[tier].name + "' has the allocator '" +
                  std::string(to_string(spec.tiers[tier].allocator)) +
                  "', which is for simulations: on hardware memory is mapped page by page; leave the key out");
    }
    if (layout.allocators[tier].kind == AllocatorKind::exact) layout.allocators[tier].kind = spec.tiers[tier].allocator;
  }
  if (layout.overlap_faults && (program == nullptr || !machine.pretends() || spec.issue_ahead != 1)) {
    throw Error("machine '" + spec.name +
                "': overlap_faults lets an op run before its data is there, which only a simulation that issues one op "
                "at a time can do; leave the option off");
  }
  return layout;
}

std::unique_ptr<ProgramSource> source_of(const Program* program, const MachineSpec& spec, const Machine& machine,
                                         const Policy& policy, const Layout& layout) {
  if (program == nullptr) return std::make_unique<LiveProgram>();
  return std::make_unique<OwnedProgram>(*program, spec, policy.requirements().governed, layout, machine.pretends());
}

}  // namespace

Engine::Engine(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, EngineOptions options)
    : spec_(spec),
      machine_(machine),
      options_(std::move(options)),
      layout_(checked_layout(spec, machine, policy, program)),
      memory_(spec, layout_.allocators, layout_.chunk_bytes, layout_.unlimited_gpu),
      program_(source_of(program, spec, machine, policy, layout_)),
      transfers_(spec),
      lanes_(spec),
      ledger_(moment_, options_.timeline, program == nullptr),
      copies_(spec, machine, memory_, *program_, moment_, options_.timeline),
      session_(policy, first_view(), moment_, *program_, ledger_, mover_, options_),
      mover_(parts()),
      runner_(parts(), mover_, policy.requirements().governed) {
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) lanes_[lane].used = program_->uses(lane);
  if (options_.log != nullptr) options_.log->pretended = machine.pretends();
  if (program == nullptr) return;
  ledger_.follow(program);
  memory_.reserve(program->trace.tensors);
  lives_.reserve(program->trace.tensors.size());
  for (const Tensor& tensor : program->trace.tensors) {
    // A machine that moves real bytes moves them as they are.
    const Bytes stored = machine.pretends() ? tensor.stored_bytes : 0;
    lives_.begin(memory_.add_tensor(tensor.bytes, tensor.role, tensor.persistent, stored));
  }
  transfers_.follow(memory_.chunk_total());
}

View Engine::first_view() const {
  View view{.machine = spec_, .memory = memory_};
  view.dead_flags = &lives_.dead;
  view.link_load = transfers_.link_load();
  view.rehearsals = &options_.rehearse;
  return view;
}

Mover::Parts Engine::parts() {
  return {spec_,  layout_,   moment_,    machine_, memory_, copies_,
          lives_, *program_, transfers_, lanes_,   ledger_, session_};
}

LiveProgram& Engine::live() {
  auto* program = dynamic_cast<LiveProgram*>(program_.get());
  TENCACHE_CHECK(program != nullptr);
  return *program;
}

// ---- The door -------------------------------------------------------------------------------------------------------

void Engine::handle(Input input) {
  std::visit([&](auto& what) { enter(input.now, what); }, input.what);
}

// A live program reads the clock before it is its turn, and may have called before a completion was looked at: what is
// older than the engine's time happens now.
void Engine::advance_time(Nanoseconds now) {
  const Nanoseconds passed = std::max<Nanoseconds>(now - moment_.now, 0);
  moment_.now += passed;
  ++moment_.input;
  ledger_.advance(passed, memory_);
}

void Engine::take(const Completion& completion) {
  ++ledger_.counters().completions;
  const std::uint64_t value = tag_value(completion.tag);
  switch (tag_kind(completion.tag)) {
    case TagKind::transfer:
      lanes_.copy_ended();
      mover_.complete(static_cast<TransferId>(value), completion);
      break;
    case TagKind::op: {
      const std::uint8_t lane = static_cast<std::uint8_t>(value & 0xff);
      if (completion.status != CompletionStatus::done) throw_op_failed(lane);
      runner_.computed(lane, completion.start_ns, completion.end_ns);
      break;
    }
    case TagKind::gap: {
      OpLane& lane = lanes_[value];
      TENCACHE_CHECK(lane.gap_pending);
      lane.gap_pending = false;
      lane.gap_done = true;
      break;
    }
  }
}

void Engine::throw_op_failed(std::uint8_t lane) {
  const OpIndex op = lanes_[lane].active.front().times.op;
  const std::string name = program_->op(op) == nullptr ? "of the program" : "'" + program_->name_of(op) + "'";
  throw Error("op " + name + " failed on the machine" + reason_of_failure(machine_) +
              "; what it should have written is lost");
}

// ---- Calls of a live program ----------------------------------------------------------------------------------------

TensorId Engine::create(Bytes bytes, Role role, bool persistent, Nanoseconds now) {
  const TensorId tensor = memory_.next_tensor(bytes);
  enter(now, input::Create{tensor, bytes, role, persistent});
  return tensor;
}

void Engine::take(input::Create& create) {
  const TensorId tensor = memory_.add_tensor(create.bytes, create.role, create.persistent);
  TENCACHE_CHECK(tensor == create.tensor);
  lives_.begin(tensor);
  transfers_.follow(memory_.chunk_total());
  live().created(tensor);
  machine_.tensor_created(tensor, create.bytes);
  session_.emit({.kind = EventKind::tensor_created, .tensor = tensor});
}

void Engine::take(input::Stored& stored) {
  for (const ChunkId chunk : memory_.chunks_of(stored.tensor)) {
    TENCACHE_CHECK(copies_.take(chunk, stored.tier));
    memory_.commit(chunk, stored.tier);
  }
  lives_.born[stored.tensor] = 1;
}

void Engine::take(input::Destroy& destroy) {
  runner_.forget(destroy.tensor);
  session_.emit({.kind = EventKind::tensor_freed, .tensor = destroy.tensor});
  mover_.kill(destroy.tensor);
  lives_.doomed[destroy.tensor] = 1;
  mover_.remove_if_gone(destroy.tensor);
}

void Engine::take(input::Begin& begin) {
  TENCACHE_CHECK(lanes_[0].active.empty());
  ActiveOp& op = lanes_[0].active.add();
  op.times.op = begin.op;
  op.times.iteration = moment_.iteration;
  op.external = true;
  op.own_uses = std::move(begin.uses);
  op.uses = op.own_uses;
  issue(0);
}

void Engine::take(input::End&) {
  TENCACHE_CHECK(ready());
  runner_.finish(0, moment_.now, moment_.now);
}

void Engine::take(input::Task& task) {
  TENCACHE_CHECK(task.lane < lane_count && lanes_[task.lane].tier != no_tier);
  live().add_task(task.lane, task.op, task.tag, std::move(task.uses), task.duration_ns);
}

void Engine::take(input::WaitedForTasks& waited) {
  TENCACHE_CHECK(lanes_[0].active.empty());
  ledger_.gap(0, std::min(moment_.now - waited.duration_ns, moment_.now), none, true);
  ledger_.stall(0, moment_.now, StallCause::cpu_optimizer, moment_.position);
}

void Engine::take(input::ModuleBegin& begin) {
  session_.emit({.kind = EventKind::module_begin, .op = moment_.position, .module = begin.module});
}

void Engine::take(input::ModuleEnd& end) {
  session_.emit({.kind = EventKind::module_end, .op = moment_.position, .module = end.module});
}

void Engine::take(input::Boundary&) {
  if (ledger_.begun()) {
    cross_boundary();
  } else {  // what came before is preparation
    ledger_.forget_gpu_time();
    ledger_.boundary();
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
                     memory_.tensor_count());
  ledger_.follow(program_->program());
  session_.emit({.kind = EventKind::profile_ready});
}

void Engine::take(input::Deviated&) {
  moment_.position = none;
  live().deviate();
  session_.emit({.kind = EventKind::schedule_deviated});
}

void Engine::take(input::CheckProgress&) {
  if (waiting() && !lift_standstill() && waiting()) throw_out_of_memory();
}

void Engine::take(input::Abandon&) {
  const bool op_alone = lanes_[0].waiting && lanes_[0].active.back().external;
  for (std::uint8_t lane = 0; lane < (op_alone ? 1 : lane_count); ++lane) {
    live().drop_tasks(lane);
    lanes_[lane].blocked_since_ns = -1;
    if (lanes_[lane].waiting) runner_.abandon(lane);
  }
}

void Engine::take(input::Pin& pin) {
  TENCACHE_CHECK(memory_.resident(pin.tensor, 0));
  for (const ChunkId chunk : memory_.chunks_of(pin.tensor)) {
    if (memory_.copy(chunk, 0).evicting) mover_.rescue(chunk, 0);
    memory_.pin(chunk, 0);
    if (!pin.written) continue;
    TENCACHE_CHECK(memory_.copy(chunk, 0).writers > 0);
    memory_.add_writer(chunk, 0);
  }
}

void Engine::take(input::Unpin& unpin) {
  for (const ChunkId chunk : memory_.chunks_of(unpin.tensor)) {
    memory_.unpin(chunk, 0);
    if (unpin.written) memory_.remove_writer(chunk, 0);
  }
}

// ---- An owned program, from start to result -------------------------------------------------------------------------

RunResult Engine::run(const RunLimits& limits) {
  try {
    start(limits);
    Completion completion;
    while (!finished_) {
      if (machine_.wait(completion)) {
        handle(completion);
      } else if (!stand_still()) {
        throw_out_of_memory();
      }
    }
  } catch (const OutOfMemory& error) {
    give_up(error);
  }
  return result();
}

void Engine::start(const RunLimits& limits) {
  auto* owned = dynamic_cast<OwnedProgram*>(program_.get());
  TENCACHE_CHECK(owned != nullptr && !ledger_.begun());
  owned->limit(limits);
  for (TensorId tensor = 0; tensor < memory_.tensor_count(); ++tensor) {
    machine_.tensor_created(tensor, memory_.bytes(tensor));
    if (memory_.persistent(tensor)) place_initially(tensor);
  }
  advance_time(machine_.now());
  if (options_.log != nullptr) options_.log->start_ns = moment_.now;
  ledger_.start();
  ledger_.boundary();
  session_.emit({.kind = EventKind::profile_ready});
  session_.emit({.kind = EventKind::iteration_begin});
  pump();
}

void Engine::place_initially(TensorId tensor) {
  const TierId wanted = layout_.initial[static_cast<std::size_t>(memory_.role(tensor))];
  const TierId first = layout_.unlimited_gpu ? TierId{0} : wanted != no_tier ? wanted : spec_.initial_tier;
  for (const ChunkId chunk : memory_.chunks_of(tensor)) {
    if (start_where_laid_out(tensor, chunk)) continue;
    TierId tier = first;
    while (tier < memory_.tier_count() && !copies_.take(chunk, tier)) ++tier;
    if (tier == memory_.tier_count()) {
      throw OutOfMemory("out of memory before the first op: no tier has room for " + program_->title_of(tensor) + " (" +
                            format_bytes(memory_.bytes(tensor)) + "); persistent tensors start in tier '" +
                            spec_.tiers[first].name + "' and spill to slower ones",
                        "", memory_.bytes_of(chunk));
    }
    initialise(tensor, chunk, tier);
  }
  lives_.born[tensor] = 1;
}

// The room is taken.
void Engine::initialise(TensorId tensor, ChunkId chunk, TierId tier) {
  machine_.initialise(tensor, chunk, memory_.begin_of(chunk), memory_.bytes_in(chunk, tier),
                      {tier, memory_.offset(chunk, tier)});
  memory_.commit(chunk, tier);
}

// In the tiers that Layout::start names, as far as there is room; false if it is in none then.
bool Engine::start_where_laid_out(TensorId tensor, ChunkId chunk) {
  if (chunk >= layout_.start.size() || layout_.unlimited_gpu) return false;
  bool placed = false;
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    if ((layout_.start[chunk] >> tier & 1) == 0 || !copies_.take(chunk, tier)) continue;
    initialise(tensor, chunk, tier);
    placed = true;
  }
  return placed;
}

// The last iteration ends with its ops: transfers that none will need are not part of it.
void Engine::finish_if_done() {
  if (!finished_ && lanes_.empty() && program_->all_done()) cross_boundary();
}

void Engine::give_up(const OutOfMemory& reason) {
  finished_ = true;
  misfit_.emplace(reason);
}

void Engine::finish_period(std::size_t first_boundary) {
  ledger_.set_period(first_boundary);
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
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    r.peak_bytes[tier] = memory_.peak(tier);
    r.allocators[tier] = layout_.allocators[tier].kind;
  }
  session_.policy().notes(r.policy_notes);
  ledger_.report(r);
  return r;
}

// ---- The pump -------------------------------------------------------------------------------------------------------

void Engine::pump() {
  const std::size_t links = spec_.links.size();
  bool progress = true;
  while (progress && !finished_) {
    progress = false;
    for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
      if (lanes_[lane].may_advance(spec_.issue_ahead)) progress |= advance_lane(lane);
    }
    const std::uint64_t enqueued = transfers_.enqueued();  // victims may leave over a link that had its turn
    for (LinkId link = 0; link < links; ++link) {
      if (!transfers_.empty(link) && transfers_.takes_another(link)) progress |= mover_.start_from(link);
    }
    progress |= transfers_.enqueued() != enqueued;
  }
}

bool Engine::advance_lane(std::uint8_t index) {
  const OpLane& lane = lanes_[index];
  bool progress = false;
  if (lane.waiting) {
    if (!runner_.go_on(index)) return false;
    progress = true;
  }
  while (!finished_ && !lane.waiting && lane.active.size() < spec_.issue_ahead && issue_next(index)) progress = true;
  return progress;
}

// Issues the lane's next op if there is one that may be. An op goes through: dependencies, boundary, gap, issue.
bool Engine::issue_next(std::uint8_t index) {
  OpLane& lane = lanes_[index];
  if (lane.gap_pending) return false;
  const std::optional<NextOp> next = program_->next(index);
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
    machine_.execute({.lane = index, .op = none, .idle = true, .duration_ns = next->gap_before_ns, .uses = {}},
                     make_tag(TagKind::gap, index));
    return false;
  }
  lane.gap_done = lane.boundary_crossed = false;
  program_->issue(index, moment_.iteration, lane.active.add());
  issue(index);
  return true;
}

// Whether the lane's next op waits for one of another lane. What it has waited for is told apart by what it was.
bool Engine::blocked(std::uint8_t index, OpIndex next) {
  OpLane& lane = lanes_[index];
  const std::optional<StallCause> cause = program_->blocked_by(index, lanes_);
  if (lane.blocked_since_ns >= 0 && cause != lane.blocked_by) {
    if (index == gpu_lane && lane.active.empty() && moment_.now > ledger_.idle_since(index)) {
      ledger_.gap(index, lane.blocked_since_ns, none, lane.blocked_by == StallCause::cpu_optimizer);
      ledger_.stall(index, moment_.now, lane.blocked_by, next);
    }
    lane.blocked_since_ns = -1;
  }
  if (!cause) return false;
  if (lane.blocked_since_ns < 0) lane.blocked_since_ns = moment_.now;
  lane.blocked_by = *cause;
  return true;
}

void Engine::issue(std::uint8_t lane) {
  if (lane == 0) moment_.position = lanes_[0].active.back().times.op;
  runner_.issue(lane);
}

void Engine::cross_boundary() {
  if (lanes_[0].active.empty()) ledger_.gap(0, moment_.now, none, true);
  runner_.count_held();
  ledger_.boundary();
  session_.emit({.kind = EventKind::iteration_end});
  ++moment_.iteration;
  ledger_.next_iteration();
  if (options_.on_iteration) options_.on_iteration(moment_.iteration);
  if (program_->looks_for_steady_state()) {
    const std::uint64_t hash = (state_hash(moment_.now) ^ machine_.state()) * 1099511628211ull;
    if (ledger_.recurs(hash)) finished_ = true;
  }
  if (program_->stops_at(moment_.iteration)) finished_ = true;
}

std::uint64_t Engine::state_hash(Nanoseconds now) const {
  std::uint64_t hash = 1469598103934665603ull;
  const auto mix = [&hash](std::uint64_t value) {
    hash ^= value;
    hash *= 1099511628211ull;
    hash ^= hash >> 29;
  };
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    for (ChunkId chunk = memory_.coldest(tier); chunk != none; chunk = memory_.warmer(chunk, tier)) {
      mix(chunk);
      mix(memory_.offset(chunk, tier));
    }
    mix(none);
  }
  mix(transfers_.hash(now));
  for (const std::uint8_t dead : lives_.dead) mix(dead);
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
    for (const std::uint64_t count : program_->progress(lane, moment_.iteration)) mix(count);
    const auto& active = lanes_[lane].active;
    if (lane == communication_lane) mix(active.size());
    if (active.empty()) {
      mix(0);
    } else {
      const OpTiming& front = active.front().times;
      mix(static_cast<std::uint64_t>(now - (active.front().started ? front.ready_ns : front.issued_ns)));
    }
  }
  mix(session_.policy().fingerprint());
  return hash;
}

// ---- When nothing is under way --------------------------------------------------------------------------------------

bool Engine::stand_still() {
  const std::uint64_t before = lanes_.ops_given();
  enter(moment_.now, input::Standstill{});
  return under_way(before);
}

// Anything, or an op that was given to the machine since.
bool Engine::under_way(std::uint64_t ops_given_before) const {
  if (lanes_.ops_given() > ops_given_before || transfers_.in_flight() > 0) return true;
  for (const OpLane& lane : lanes_) {
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
  const std::uint64_t before = lanes_.ops_given();
  const auto goes_on = [&] {
    ++moment_.input;
    pump();
    return under_way(before);
  };
  if (goes_on()) return true;
  const Because because(session_, {.reason = Reason::standstill});
  for (OpLane& lane : lanes_) {
    if (!lane.waiting) continue;
    mover_.lift_what_it_waits_for(lane);
    lane.active.back().demand.holds.clear();
  }
  if (goes_on()) return true;
  ++moment_.input;
  mover_.start_behind_blocked();
  pump();
  return under_way(before);
}

void Engine::throw_out_of_memory() {
  const auto waits = std::ranges::find_if(lanes_, [](const OpLane& lane) { return lane.waiting; });
  TENCACHE_CHECK(waits != lanes_.end());  // or an op waits where the program stands still
  const ActiveOp& op = waits->active.back();
  const TierId tier = waits->tier;
  Bytes needs = 0;
  for (const Use& use : op.uses) {
    if (use.tensor == none) continue;
    for (const ChunkId chunk : memory_.chunks_of(use.tensor)) needs += memory_.footprint(chunk, tier);
  }
  const Bytes free = memory_.free(tier);
  const Bytes missing = op.demand.room_needed > free ? op.demand.room_needed - free : op.demand.room_needed;
  const OpIndex index = op.times.op;
  const Op* const known = program_->op(index);
  const std::string name = known == nullptr ? "unscheduled op" : program_->name_of(index);
  std::string place = index == none ? "" : " (op " + std::to_string(index);
  if (known != nullptr && (known->phase == Phase::prefill || known->phase == Phase::decode)) {
    place += ", " + std::string(to_string(known->phase));
    if (known->phase == Phase::decode)
      place += " step " + std::to_string(program_->program()->trace.detail(*known).step);
  }
  if (!place.empty()) place += ")";
  std::string message = "out of memory: op '" + name + "'" + place + " needs " + format_bytes(needs) + " in tier '" +
                        spec_.tiers[tier].name + "' of " + format_bytes(memory_.capacity(tier)) + "; " +
                        format_bytes(missing) + " are missing";
  if (needs <= memory_.capacity(tier)) {
    message += " because nothing else can leave:";
    for (TierId other = 0; other < memory_.tier_count(); ++other) {
      message += " " + spec_.tiers[other].name + " " + format_bytes(memory_.used(other)) + " of " +
                 format_bytes(memory_.capacity(other)) + " used" + (other + 1u < memory_.tier_count() ? "," : "");
    }
  }
  throw OutOfMemory(message, name, missing);
}

}  // namespace tencache
