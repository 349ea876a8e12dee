// The policy's side of the engine: the view, events out, actions in.
#include <algorithm>

#include "core/check.h"
#include "core/engine/engine.h"

namespace tencache {

namespace {

constexpr int refusal_rounds =
    2;  // a policy hears of refusals of what it asked for in answer to a refusal only so often

}  // namespace

// ---- Events and actions ---------------------------------------------------------------------------------------------

View Engine::view() const {
  View v{.machine = spec_, .memory = memory_};
  v.program = program_;
  v.schedule = schedule_.get();
  v.now = now_;
  v.iteration = iteration_;
  v.op = position_;
  if (live_ && program_ != nullptr) {
    v.to_memory = &to_memory_;
    v.to_program = &to_program_;
  }
  v.dead_flags = &dead_;
  v.link_load = {link_load_.data(), spec_.links.size()};
  v.rehearsals = &options_.rehearse;
  return v;
}

// Events are told at once, in order; those that arise while one is being told come after it.
void Engine::emit(const Event& event) {
  if (draining_) {
    events_.push_back({event, refusal_depth_});
    return;
  }
  draining_ = true;
  const auto tell = [this](const PendingEvent& next) {
    Actions actions;
    std::swap(actions.list(), applying_);
    actions.list().clear();
    const Because because(*this, {.reason = Reason::policy, .event = next.event.kind, .op = next.event.op});
    policy_.on(next.event, view(), actions);
    refusal_depth_ = next.event.kind == EventKind::refused ? next.refusal_depth + 1 : 0;
    for (const Action& action : actions.list()) apply(action);
    refusal_depth_ = 0;
    std::swap(actions.list(), applying_);
  };
  tell({event, refusal_depth_});
  while (!events_.empty()) {
    const PendingEvent next = events_.front();
    events_.pop_front();
    tell(next);
  }
  draining_ = false;
}

void Engine::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  ++counters_.refusals;
  decide(Decision::Kind::refuse, chunk, action.tier, action.destination, reason);
  if (refusal_depth_ > refusal_rounds) return;
  emit({.kind = EventKind::refused,
        .refusal = reason,
        .from = action.tier,
        .to = action.destination,
        .op = position_,
        .tensor = action.tensor,
        .chunk = chunk});
}

void Engine::apply(const Action& action) {
  if (action.tensor >= memory_.tensor_count() || action.tier >= memory_.tier_count() || doomed_[action.tensor] != 0) {
    refuse(Refusal::stale, action, none);
    return;
  }
  if (out_of_patience()) {
    refuse(Refusal::no_room, action, none);
    return;
  }
  if (action.verb == Verb::hold) {
    for (Lane& lane : lanes_) {
      // One that runs beside arrivals, or waits for an allocation, has started: the hold is for the next time.
      if (!lane.waiting || lane.active.back().started || lane.active.back().op != action.op) continue;
      lane.active.back().holds.push_back({action.tensor, action.tier});
      lane.active.back().late = true;
      return;
    }
    holds_.emplace(action.op, Hold{action.tensor, action.tier});
    return;
  }
  const ChunkId first = memory_.first_chunk(action.tensor);
  const std::uint32_t count = memory_.chunk_count(action.tensor);
  if (action.chunk != all_chunks && action.chunk >= count) {
    refuse(Refusal::stale, action, none);
    return;
  }
  const ChunkId begin = action.chunk == all_chunks ? first : first + action.chunk;
  const ChunkId end = action.chunk == all_chunks ? first + count : begin + 1;
  for (ChunkId chunk = begin; chunk < end; ++chunk) {
    const Refusal refusal = apply_to_chunk(action, chunk);
    if (refusal != Refusal::none) refuse(refusal, action, chunk);
  }
}

Refusal Engine::apply_to_chunk(const Action& action, ChunkId chunk) {
  Refusal refusal = Refusal::none;
  const Priority priority = action.urgent ? urgent : normal;
  switch (action.verb) {
    case Verb::fetch:
      // What a waiting op lacks is its own affair: it asked already, or needs room and no content.
      if (memory_.copy(chunk, action.tier).state == CopyState::absent && memory_.copy(chunk, action.tier).pins > 0 &&
          find_transfer(chunk, action.tier) == none) {
        refusal = Refusal::stale;
        break;
      }
      request_fetch(chunk, action.tier, priority, action.not_before, refusal);
      break;
    case Verb::evict:
      evict(chunk, action.tier, action.destination, priority, refusal);
      break;
    case Verb::clean:
      request_out(chunk, action.tier, action.destination, Purpose::clean, action.urgent ? urgent : background, refusal);
      break;
    case Verb::drop:
      if (memory_.evictable(chunk, action.tier) && can_drop(chunk, action.tier)) {
        evict(chunk, action.tier, no_tier, priority, refusal);
      } else {
        refusal = Refusal::stale;
      }
      break;
    case Verb::cancel:
      if (const TransferId id = find_transfer(chunk, action.tier);
          id != none && !transfers_[id].in_flight && transfers_[id].hop == 0 &&
          transfers_[id].purpose == Purpose::fetch && memory_.copy(chunk, action.tier).pins == 0) {
        decide(Decision::Kind::cancel, chunk, transfers_[id].from, action.tier);
        withdraw(id);
      } else {
        refusal = Refusal::stale;
      }
      break;
    case Verb::hold:
      break;
  }
  return refusal;
}

}  // namespace tencache
