// How the engine goes on: completions, all that can start after one, and a standstill, which lifts what blocks itself
// or ends the run.
#include "core/check.h"
#include "core/engine/engine.h"
#include "core/engine/engine_tags.h"
#include "core/error.h"

namespace tencache {

void Engine::handle(Input input) {
  advance_time(input.now);
  input.now = now_;
  if (options_.log != nullptr) options_.log->inputs.push_back(input);
  std::visit(
      [this](auto& what) {
        take(what);
        if constexpr (may_start_something<std::remove_reference_t<decltype(what)>>) pump();
      },
      input.what);
  finish_if_done();
}

void Engine::take(Completion& completion) {
  ++counters_.completions;
  const std::uint64_t value = tag_value(completion.tag);
  switch (tag_kind(completion.tag)) {
    case TagKind::transfer:
      copies_waited_ = runs_an_op() ? 0 : copies_waited_ + 1;
      complete_transfer(static_cast<TransferId>(value), completion);
      break;
    case TagKind::op: {
      const std::uint8_t lane = static_cast<std::uint8_t>(value & 0xff);
      if (completion.status != CompletionStatus::done) throw_op_failed(lane);
      computed(lane, completion.start_ns, completion.end_ns);
      break;
    }
    case TagKind::gap: {
      Lane& lane = lanes_[value];
      lane.gap_pending = false;
      lane.gap_done = true;
      break;
    }
  }
}

void Engine::pump() {
  bool progress = true;
  while (progress && !finished_) {
    progress = false;
    for (std::uint8_t lane = 0; lane < lane_count; ++lane) progress |= advance_lane(lane);
    const std::uint64_t enqueued = enqueued_;  // victims' way out may be a link that had its turn
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      if (queues_[link].length > 0) progress |= start_transfers(link);
    }
    progress |= enqueued_ != enqueued;
  }
}

bool Engine::runs_an_op() const {
  for (const Lane& lane : lanes_) {
    for (const ActiveOp& op : lane.active) {
      if (op.started && !(lane.waiting && &op == &lane.active.back())) return true;
    }
    if (lane.gap_pending) return true;
  }
  return false;
}

// Anything, or anything that began since the machine was given that many commands.
bool Engine::under_way(std::uint64_t commands) const {
  if (commands_ > commands || transfers_in_flight_ > 0 || lanes_[0].gap_pending || lanes_[1].gap_pending) return true;
  for (const Lane& lane : lanes_) {
    for (const ActiveOp& op : lane.active) {
      // An external one runs in the program, which waits; one that meets others may wait for them.
      if (op.started && op.computed_ns < 0 && !op.external && !op.meets) return true;
    }
  }
  return finished_;
}

// Nothing is under way although the program is not over. Lifts what can be lifted; false if the op can never start.
bool Engine::standstill() {
  const std::uint64_t commands = commands_;
  ++epoch_;
  pump();
  if (under_way(commands)) return true;
  const Because because(*this, {.reason = Reason::standstill});
  for (Lane& lane : lanes_) {
    if (!lane.waiting) continue;
    lift_what_it_waits_for(lane);
    lane.active.back().holds.clear();
  }
  ++epoch_;
  pump();
  if (under_way(commands)) return true;
  ++epoch_;
  start_behind_blocked();
  pump();
  return under_way(commands);
}

// Wanted, but left in its place in the queue: the op's chunks, then what is to leave its tier.
void Engine::lift_what_it_waits_for(const Lane& lane) {
  for (const Use& use : lane.active.back().uses) {
    if (use.tensor == none) continue;
    const ChunkId begin = memory_.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(use.tensor); ++chunk) {
      if (const TransferId id = find_transfer(chunk, lane.tier); id != none && !transfers_[id].in_flight) lift(id);
    }
  }
  for (const Queue& queue : queues_) {
    for (TransferId id = queue.first[normal]; id != none;) {
      const TransferId next = transfers_[id].next;
      if (transfers_[id].purpose == Purpose::evict && transfers_[id].from == lane.tier) lift(id);
      id = next;
    }
  }
}

bool Engine::stand_still() {
  const std::uint64_t commands = commands_;
  handle({now_, input::Standstill{}});
  return under_way(commands);
}

void Engine::take(input::Standstill&) { standstill(); }

void Engine::take(input::CheckProgress&) {
  if (waiting() && !standstill() && waiting()) throw_out_of_memory();
}

void Engine::throw_op_failed(std::uint8_t lane) {
  const OpIndex op = lanes_[lane].active.front().op;
  const bool known = op != none && program_ != nullptr;
  throw Error("op " +
              (known ? "'" + program_->trace.name(program_->trace.ops[op]) + "'" : std::string("of the program")) +
              " failed on the machine" + reason_of_failure(machine_) + "; what it should have written is lost");
}

void Engine::throw_out_of_memory() {
  for (std::uint8_t index = 0; index < lane_count; ++index) {
    const Lane& lane = lanes_[index];
    if (!lane.waiting) continue;
    const ActiveOp& op = lane.active.back();
    const Tier& tier = spec_.tiers[lane.tier];
    Bytes needs = 0;
    for (const Use& use : op.uses) {
      if (use.tensor == none) continue;
      const ChunkId begin = memory_.first_chunk(use.tensor);
      for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(use.tensor); ++chunk)
        needs += memory_.footprint(chunk, lane.tier);
    }
    const Bytes free = memory_.free(lane.tier);
    const Bytes missing = op.room_needed > free ? op.room_needed - free : op.room_needed;
    const std::string name(op.op != none && program_ != nullptr ? program_->trace.name(program_->trace.ops[op.op])
                                                                : "unscheduled op");
    std::string message = "out of memory: op '" + name + "'" +
                          (op.op != none ? " (op " + std::to_string(op.op) + ")" : std::string()) + " needs " +
                          format_bytes(needs) + " in tier '" + tier.name + "' of " +
                          format_bytes(memory_.capacity(lane.tier)) + "; " + format_bytes(missing) + " are missing";
    if (needs <= memory_.capacity(lane.tier)) {
      message += " because nothing else can leave:";
      for (TierId other = 0; other < memory_.tier_count(); ++other) {
        message += " " + spec_.tiers[other].name + " " + format_bytes(memory_.used(other)) + " of " +
                   format_bytes(memory_.capacity(other)) + " used" + (other + 1u < memory_.tier_count() ? "," : "");
      }
    }
    throw OutOfMemory(message, name, missing);
  }
  check_failed("an op waits where the program stands still", __FILE__, __LINE__);
}

}  // namespace tencache
