// The conversation with the policy: the view it gets, events out, actions in, and the record of what the engine decides
// and why.
//
// Events are told at once, in order; those that arise while one is being told come after it, so a policy is never
// called while it runs. Its actions are handed to an ActionTaker, which may decide, emit and refuse in turn.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "core/engine/event_log.h"
#include "core/engine/ledger.h"
#include "core/engine/moment.h"
#include "core/engine/program_source.h"
#include "core/policy.h"

namespace tencache {

struct EngineOptions {
  Timeline* timeline = nullptr;                               // recorded if given
  EventLog* log = nullptr;                                    // inputs and decisions recorded if given
  std::function<void(std::uint64_t iteration)> on_iteration;  // progress; called at each boundary
  DecisionSink on_decision = {};                              // if given; costs a view each
  Rehearse rehearse = {};                                     // what the policy's planner may simulate with, if given
};

// Carries out what a policy wants, by the engine's rules.
class ActionTaker {
 public:
  virtual void take(const Action& action) = 0;

 protected:
  ~ActionTaker() = default;
};

class PolicySession {
 public:
  // `view`: what a policy sees, but for the moment and the program. All must outlive this object.
  PolicySession(Policy& policy, const View& view, const Moment& moment, const ProgramSource& program, Ledger& ledger,
                ActionTaker& taker, const EngineOptions& options)
      : policy_(policy),
        view_(view),
        moment_(moment),
        program_(program),
        ledger_(ledger),
        taker_(taker),
        options_(options) {
    for (std::size_t kind = 0; kind < event_kind_count; ++kind) hears_[kind] = policy.hears(EventKind(kind));
    program_known();
  }

  const Policy& policy() const { return policy_; }
  // More is known of the program: from now on the view shows it.
  void program_known() { program_.show(view_); }
  // As things are; valid until the next call.
  const View& view();
  void emit(const Event& event) {
    if (hears_[static_cast<std::size_t>(event.kind)]) deliver(event);
  }
  // Appends the victims that the policy names.
  void ask_for_room(const RoomRequest& request, std::vector<ChunkId>& victims) {
    policy_.make_room(request, view(), victims);
  }
  // An action was not taken. A policy that answers refusals with actions that are refused hears of them only so often.
  void refuse(Refusal reason, const Action& action, ChunkId chunk);

  // ---- Decisions: recorded before they show in the view.
  void decide(Decision::Kind kind, ChunkId chunk, TierId from, TierId to, Refusal refusal = Refusal::none) {
    if (from == 0 && (kind == Decision::Kind::evict || kind == Decision::Kind::drop)) ++ledger_.counters().evictions;
    decide({.kind = kind, .from = from, .to = to, .chunk = chunk, .refusal = refusal, .why = {}});
  }
  void decide_move(const Relocation& move, TierId tier) {
    decide({.kind = Decision::Kind::move, .from = tier, .to = tier, .chunk = move.chunk, .offset = move.to, .why = {}});
  }
  // What is decided in its life is decided for this reason.
  class Because {
   public:
    Because(PolicySession& session, const Why& why) : session_(session), before_(session.why_) { session.why_ = why; }
    ~Because() { session_.why_ = before_; }
    Because(const Because&) = delete;
    Because& operator=(const Because&) = delete;

   private:
    PolicySession& session_;
    Why before_;
  };

 private:
  struct Pending {
    Event event;
    int refusals;
  };

  void deliver(const Event& event);
  void tell(const Event& event, int refusals);
  void decide(const Decision& decision) {
    if (options_.log != nullptr || options_.on_decision) record(decision);
  }
  void record(Decision decision);

  Policy& policy_;
  View view_;
  const Moment& moment_;
  const ProgramSource& program_;
  Ledger& ledger_;
  ActionTaker& taker_;
  const EngineOptions& options_;
  std::array<bool, event_kind_count> hears_{};
  bool telling_ = false;
  std::deque<Pending> pending_;   // not empty only while telling_
  int refusals_ = 0;              // the refusals that led to the actions being taken, one in answer to the other
  std::vector<Action> applying_;  // memory for the next list of actions
  Why why_;
};

}  // namespace tencache
