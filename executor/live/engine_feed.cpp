#include "executor/live/engine_feed.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::chrono::milliseconds patience{200};

}  // namespace

EngineFeed::EngineFeed(const MachineSpec& spec, Policy& policy, HostMachineOptions machine, EngineOptions engine,
                       OpBodies& bodies, Handled handled)
    : timeline_(engine.timeline), handled_(std::move(handled)) {
  if (machine.addressed.empty()) machine.addressed = addressed_tiers(spec, policy.layout(spec, nullptr));
  machine_ = std::make_unique<HostMachine>(spec, bodies, std::move(machine));
  ordered_ = machine_->completes() == Completes::ordered;
  engine_ = std::make_unique<Engine>(spec, *machine_, policy, nullptr, std::move(engine));
  if (machine_->shared_tier() != no_tier) {
    const MutexLock lock(mutex);
    set_shared_memory(machine_->held_memory());
  }
  thread_ = std::thread([this] { feed(); });
}

EngineFeed::~EngineFeed() {
  if (thread_.joinable()) stop();
}

void EngineFeed::stop() {
  stopping_ = true;
  machine_->stop();
  thread_.join();
}

void EngineFeed::leak_memory() {
  engine_.reset();
  static_cast<void>(machine_.release());
}

bool EngineFeed::idle() const { return machine_->submitted() == completions_; }

void EngineFeed::feed() {
  while (!stopping_) {
    if (!machine_->await(patience)) continue;
    const MutexLock lock(mutex);
    take_completions();
    wake();
  }
}

bool EngineFeed::take(Completion& completion) {
  try {
    return machine_->take(completion);
  } catch (...) {
    fail(std::current_exception());
    return false;
  }
}

// All that there are, in order: nobody takes one without the mutex.
void EngineFeed::take_completions() {
  for (Completion completion; take(completion);) {
    if (completion.status != CompletionStatus::observed) ++completions_;
    const std::size_t before = timeline_ != nullptr ? timeline_->spans.size() : 0;
    try {
      if (failure_ != nullptr) continue;
      engine_->handle(completion);
      // Whoever reads the timeline may have emptied it meanwhile.
      std::span<Span> spans;
      if (timeline_ != nullptr) spans = timeline_->spans;
      handled_(spans.subspan(std::min(before, spans.size())));
      follow_share();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
}

// A step more than is used, if other ranks leave it: the engine has to know of room before it looks for some.
void EngineFeed::keep_memory_ahead() {
  const TierId tier = machine_->shared_tier();
  most_shared_ = std::max(most_shared_, engine_->memory().used(tier));
  if (engine_->memory().free(tier) >= machine_->share()->step()) return machine_->has_enough_memory();
  set_shared_memory(machine_->take_more_memory());
}

void EngineFeed::give_back_memory() {
  const TierId tier = machine_->shared_tier();
  if (tier == no_tier) return;
  const Bytes most = std::max(most_shared_, engine_->memory().used(tier));
  const Bytes held = machine_->give_back_memory(most + most / 4 + machine_->share()->step());
  most_shared_ = 0;
  if (held == engine_->memory().capacity(tier)) return;
  const Nanoseconds at = now();
  tell([tier, held, at](Engine& engine) { engine.set_capacity(tier, held, at); });
}

void EngineFeed::set_shared_memory(Bytes capacity) {
  const TierId tier = machine_->shared_tier();
  if (capacity != engine_->memory().capacity(tier)) engine_->set_capacity(tier, capacity, now());
}

void EngineFeed::check_progress() {
  std::optional<OutOfMemory> answer;
  tell([&answer](Engine& engine) {
    try {
      engine.check_progress();
    } catch (const OutOfMemory& error) {
      answer = error;
    }
  });
  if (answer) throw *answer;
}

}  // namespace tencache
