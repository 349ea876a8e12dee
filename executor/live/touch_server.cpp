#include "executor/live/touch_server.h"

#include <optional>
#include <utility>

#include "core/error.h"
#include "executor/order_site.h"

namespace tencache {

TouchServer::TouchServer(EngineFeed& feed, OpGate& gate, LiveTasks& tasks, const LiveTensors& tensors,
                         Exposure exposure)
    : feed_(feed), gate_(gate), tasks_(tasks), tensors_(tensors), exposure_(exposure) {}

void TouchServer::touch(MutexLock& lock, TensorId tensor, bool written) {
  feed_.assert_held();
  gate_.end_lingering();
  if (gate_.inside_body()) {
    throw Error("op '" + gate_.op_name() +
                "' touches memory of a tensor that it was not given, or writes to one that its schema says it reads");
  }
  const OpGate::Turn turn(gate_, lock);
  bring_in(lock, {tensor, true, written});
  gate_.hold(tensor);
  if (exposed_.try_emplace(tensor, To::program).second) ++ever_exposed_;
  ++touches_;
  protect(tensor);
  if (written) feed_.machine().open_for_writing(tensor);
  const Nanoseconds end = feed_.now();
  feed_.tell([end](Engine& engine) { engine.end(end); });
}

// As an op that is none of the step's.
void TouchServer::bring_in(MutexLock& lock, const Use& use) {
  feed_.assert_held();
  const std::span<const Use> uses(&use, 1);
  tasks_.wait_beside(lock, [this, uses] { return !tasks_.conflict(uses); });
  for (bool there = false; !there;) {
    const Nanoseconds at = feed_.now();
    feed_.tell([uses, at](Engine& engine) { engine.begin(none, uses, at); });
    try {
      gate_.await_memory(lock);
      there = true;
    } catch (const OutOfMemory& error) {
      if (!gate_.holds_any()) gate_.give_up(error, "access to memory outside of ops");
      feed_.engine().abandon(feed_.now());
      gate_.let_go();  // what was touched before may leave again
    }
  }
}

void TouchServer::expose(MutexLock& lock, TensorId tensor) {
  if (exposure_ == Exposure::nothing) return;
  if (exposure_ == Exposure::pins) return pin(lock, tensor);
  std::optional<OpGate::Turn> turn;
  if (!gate_.inside_body() && !gate_.asleep()) {
    gate_.end_lingering();
    turn.emplace(gate_, lock);
    tasks_.wait_beside(lock, [this, tensor] { return !tasks_.use(tensor); });
  }
  const auto [known, is_new] = exposed_.try_emplace(tensor, To::program);
  if (is_new || std::exchange(known->second, To::program) != To::program) ++ever_exposed_;
  protect(tensor);
}

void TouchServer::pin(MutexLock& lock, TensorId tensor) {
  feed_.assert_held();
  if (pinned_.contains(tensor)) return;
  const bool inside_body = gate_.inside_body();
  const Use use{tensor, true, !inside_body};
  if (inside_body) {
    if (!feed_.engine().memory().resident(tensor, 0)) {
      throw Error("op '" + gate_.op_name() + "' asks for the address of a tensor that it was not given");
    }
    feed_.engine().pin(tensor);
    await_use(use);
  } else {
    gate_.enter();
    const OpGate::Turn turn(gate_, lock);
    if (!tensors_.alive(tensor) || pinned_.contains(tensor)) return;
    bring_in(lock, use);
    await_use(use);
    feed_.engine().pin(tensor, true);
    const Nanoseconds end = feed_.now();
    feed_.tell([end](Engine& engine) { engine.end(end); });
  }
  pinned_[tensor] = use.write;
  ++ever_exposed_;
}

// Code that is no op may use it on any stream, or on the host.
void TouchServer::await_use(const Use& use) {
  feed_.assert_held();
  HostMachine& machine = feed_.machine();
  if (machine.completes() != Completes::ordered) return;
  feed_.tell([&](Engine&) { TENCACHE_ORDER_SITE("wait", machine.await_uses({&use, 1})); });
}

void TouchServer::forget(TensorId tensor) {
  feed_.assert_held();
  if (!exposed_.empty()) exposed_.erase(tensor);
  if (pinned_.empty()) return;
  const auto pinned = pinned_.find(tensor);
  if (pinned == pinned_.end()) return;
  feed_.engine().unpin(tensor, pinned->second);
  pinned_.erase(pinned);
}

void TouchServer::expose_to_unannounced(TensorId tensor) {
  if (exposed_.try_emplace(tensor, To::unannounced).second) feed_.machine().expose(tensor, true);
}

void TouchServer::forget_unannounced() {
  std::erase_if(exposed_, [this](const auto& exposed) {
    if (exposed.second != To::unannounced) return false;
    feed_.machine().conceal(exposed.first);
    return true;
  });
}

void TouchServer::conceal(TensorId tensor) {
  if (exposed_.erase(tensor) != 0) feed_.machine().conceal(tensor);
}

void TouchServer::protect(TensorId tensor) { feed_.machine().expose(tensor, gate_.may_be_written(tensor)); }

void TouchServer::open_for_writing(std::span<const Use> uses) {
  if (exposed_.empty()) return;
  for (const Use& use : uses) {
    if (use.write) feed_.machine().open_for_writing(use.tensor);
  }
}

void TouchServer::await_tasks(MutexLock& lock) {
  const auto exposed = [this](TensorId tensor) { return exposed_.contains(tensor); };
  tasks_.wait_for(lock, [this, exposed] { return exposed_.empty() || !tasks_.use_any(exposed); });
}

}  // namespace tencache
