#include "traces/generate/pipeline_schedule.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace tencache::generator {
namespace {

using Count = std::uint64_t;
using Kind = PipelineAction::Kind;
using Messages = std::vector<PipelineMessage>;

// The messages of two neighbours: the first one that is sent goes with the first one that is received, and so on.
void add_exchanges(std::vector<PipelineAction>& actions, Count peer, const Messages& sent, const Messages& received) {
  for (std::size_t i = 0; i < std::max(sent.size(), received.size()); ++i) {
    PipelineAction& action = actions.emplace_back();
    action.kind = Kind::exchange;
    action.peer = peer;
    if (i < sent.size()) action.sent = sent[i];
    if (i < received.size()) action.received = received[i];
  }
}

// A stage runs as many forward passes ahead as there are stages behind it, then alternates. With one stage that is
// plain accumulation of gradients.
class OneChunk {
 public:
  OneChunk(const PipelinePlan& plan, Count stage) : plan_(plan), stage_(stage) {}

  std::vector<PipelineAction> run() {
    const Count count = plan_.micro_batches;
    const Count ahead = plan_.forward_only ? count : std::min(plan_.stages - stage_ - 1, count);
    for (Count i = 0; i < ahead; ++i) {
      before({}, activation_in(i));
      compute(Kind::forward, i);
      behind(activation_out(i), {});
    }
    if (plan_.forward_only) return std::move(actions_);
    for (Count i = 0; i + ahead < count; ++i) {
      // Both directions between two stages are one exchange, or two neighbours would wait for each other.
      if (i == 0) before({}, activation_in(ahead));
      compute(Kind::forward, i + ahead);
      behind(activation_out(i + ahead), gradient_in(i));
      compute(Kind::backward, i);
      before(gradient_out(i), i + ahead + 1 < count ? activation_in(i + ahead + 1) : Messages{});
    }
    for (Count i = count - ahead; i < count; ++i) {
      behind({}, gradient_in(i));
      compute(Kind::backward, i);
      before(gradient_out(i), {});
    }
    return std::move(actions_);
  }

 private:
  Messages activation_in(Count i) const { return {{Phase::forward, stage_ - 1, stage_, i}}; }
  Messages activation_out(Count i) const { return {{Phase::forward, stage_, stage_ + 1, i}}; }
  Messages gradient_in(Count i) const { return {{Phase::backward, stage_ + 1, stage_, i}}; }
  Messages gradient_out(Count i) const { return {{Phase::backward, stage_, stage_ - 1, i}}; }
  void compute(Kind kind, Count i) { actions_.push_back({.kind = kind, .micro_batch = i}); }
  void before(const Messages& sent, const Messages& received) {
    if (stage_ > 0) add_exchanges(actions_, stage_ - 1, sent, received);
  }
  void behind(const Messages& sent, const Messages& received) {
    if (stage_ + 1 < plan_.stages) add_exchanges(actions_, stage_ + 1, sent, received);
  }

  const PipelinePlan& plan_;
  Count stage_;
  std::vector<PipelineAction> actions_;
};

// Megatron-LM's order in closed form. Time is cut into slots, in which a stage runs at most one forward and then one
// backward pass of a chunk. Stage s runs its k-th forward pass in slot s + k, and its k-th backward pass in slot
// 2 (stages − 1) + (chunks − 1) stages − s + k; the difference is Megatron's number of warm-up passes. So whatever a
// slot makes is needed by the neighbour in the next slot, and is exchanged between the two. Times of forward and
// backward passes do not matter: the stages are in step, and each is idle for the time of stages − 1 passes.
class Interleaved {
 public:
  Interleaved(const PipelinePlan& plan, Count stage)
      : plan_(plan), stage_(stage), passes_(plan.micro_batches * plan.chunks) {}

  std::vector<PipelineAction> run() {
    const Count end = (plan_.forward_only ? stage_ : first_backward()) + passes_;
    for (Count slot = 0; slot < end; ++slot) {
      const std::optional<Pass> forward = forward_in(slot), backward = backward_in(slot);
      if (forward) actions_.push_back({.chunk = forward->chunk, .micro_batch = forward->micro_batch});
      if (backward) {
        actions_.push_back({.kind = Kind::backward, .chunk = backward->chunk, .micro_batch = backward->micro_batch});
      }
      exchange(forward, backward, forward_in(slot + 1), backward_in(slot + 1));
    }
    return std::move(actions_);
  }

 private:
  struct Pass {
    Count chunk, micro_batch;
  };

  Count first_backward() const { return 2 * (plan_.stages - 1) + (plan_.chunks - 1) * plan_.stages - stage_; }
  // As many micro-batches as there are stages go through the first chunk, then through the second, …
  std::optional<Pass> pass(Count first, Count slot) const {
    if (slot < first || slot - first >= passes_) return std::nullopt;
    const Count k = slot - first, group = plan_.virtual_stages();
    return Pass{k % group / plan_.stages, k / group * plan_.stages + k % plan_.stages};
  }
  std::optional<Pass> forward_in(Count slot) const { return pass(stage_, slot); }
  std::optional<Pass> backward_in(Count slot) const {
    if (plan_.forward_only) return std::nullopt;
    std::optional<Pass> found = pass(first_backward(), slot);
    if (found) found->chunk = plan_.chunks - 1 - found->chunk;
    return found;
  }
  Count virtual_stage(const Pass& pass) const { return pass.chunk * plan_.stages + stage_; }

  // After a slot: sends what it has made, and receives what the next one needs.
  void exchange(const std::optional<Pass>& forward, const std::optional<Pass>& backward,
                const std::optional<Pass>& next_forward, const std::optional<Pass>& next_backward) {
    Messages activation_out, gradient_out, activation_in, gradient_in;
    const Count last = plan_.virtual_stages() - 1;
    if (forward && virtual_stage(*forward) < last) {
      const Count at = virtual_stage(*forward);
      activation_out.push_back({Phase::forward, at, at + 1, forward->micro_batch});
    }
    if (backward && virtual_stage(*backward) > 0) {
      const Count at = virtual_stage(*backward);
      gradient_out.push_back({Phase::backward, at, at - 1, backward->micro_batch});
    }
    if (next_forward && virtual_stage(*next_forward) > 0) {
      const Count at = virtual_stage(*next_forward);
      activation_in.push_back({Phase::forward, at - 1, at, next_forward->micro_batch});
    }
    if (next_backward && virtual_stage(*next_backward) < last) {
      const Count at = virtual_stage(*next_backward);
      gradient_in.push_back({Phase::backward, at + 1, at, next_backward->micro_batch});
    }
    const Count next = (stage_ + 1) % plan_.stages, previous = (stage_ + plan_.stages - 1) % plan_.stages;
    if (next == previous) {
      activation_out.insert(activation_out.end(), gradient_out.begin(), gradient_out.end());
      activation_in.insert(activation_in.end(), gradient_in.begin(), gradient_in.end());
      add_exchanges(actions_, next, activation_out, activation_in);
      return;
    }
    // Every second pair of neighbours at once, then the others: no chain of stages that wait for each other.
    const bool next_first = round(stage_) < round(previous);
    if (next_first) add_exchanges(actions_, next, activation_out, gradient_in);
    add_exchanges(actions_, previous, gradient_out, activation_in);
    if (!next_first) add_exchanges(actions_, next, activation_out, gradient_in);
  }
  // Of the exchange between a stage and the next one. The last and the first of an odd number of stages are left over.
  int round(Count stage) const {
    if (stage + 1 == plan_.stages && plan_.stages % 2 != 0) return 2;
    return stage % 2 == 0 ? 0 : 1;
  }

  const PipelinePlan& plan_;
  Count stage_, passes_;
  std::vector<PipelineAction> actions_;
};

}  // namespace

const PipelineMessage& PipelineAction::occurrence() const {
  TENCACHE_CHECK(sent || received);
  if (!sent) return *received;
  return received && *received < *sent ? *received : *sent;
}

std::vector<PipelineAction> pipeline_schedule(const PipelinePlan& plan, std::uint64_t stage) {
  TENCACHE_CHECK(stage < plan.stages);
  if (plan.chunks == 1) return OneChunk(plan, stage).run();
  TENCACHE_CHECK(plan.stages > 1 && plan.micro_batches % plan.stages == 0);
  return Interleaved(plan, stage).run();
}

}  // namespace tencache::generator
