#include "core/engine/policy_session.h"

#include <utility>

#include "core/check.h"

namespace tencache {
namespace {

constexpr int refusals_told = 2;  // one in answer to the other

}  // namespace

const View& PolicySession::view() {
  view_.now = moment_.now;
  view_.iteration = moment_.iteration;
  view_.op = moment_.position;
  return view_;
}

void PolicySession::deliver(const Event& event) {
  if (telling_) {
    pending_.push_back({event, refusals_});
    return;
  }
  TENCACHE_CHECK(pending_.empty());
  telling_ = true;
  tell(event, refusals_);
  while (!pending_.empty()) {
    const Pending next = pending_.front();
    pending_.pop_front();
    tell(next.event, next.refusals);
  }
  telling_ = false;
}

void PolicySession::tell(const Event& event, int refusals) {
  Actions actions;
  std::swap(actions.list(), applying_);
  actions.list().clear();
  const Because because(*this, {.reason = Reason::policy, .event = event.kind, .op = event.op});
  policy_.on(event, view(), actions);
  refusals_ = event.kind == EventKind::refused ? refusals + 1 : 0;
  for (const Action& action : actions.list()) taker_.take(action);
  refusals_ = 0;
  std::swap(actions.list(), applying_);
}

void PolicySession::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  ++ledger_.counters().refusals;
  decide(Decision::Kind::refuse, chunk, action.tier, action.destination, reason);
  if (refusals_ > refusals_told) return;
  emit({.kind = EventKind::refused,
        .refusal = reason,
        .from = action.tier,
        .to = action.destination,
        .op = moment_.position,
        .tensor = action.tensor,
        .chunk = chunk});
}

void PolicySession::record(Decision decision) {
  decision.op = moment_.position;
  decision.now = moment_.now;
  decision.why = why_;
  if (options_.log != nullptr) options_.log->decisions.push_back(decision);
  if (options_.on_decision) options_.on_decision(decision, view());
}

}  // namespace tencache
