#include "executor/live/live_sleep.h"

#include <algorithm>

#include "core/error.h"

namespace tencache {

LiveSleep::LiveSleep(EngineFeed& feed, OpGate& gate, StepFollower& follower, LiveTensors& tensors, TouchServer& touch,
                     bool possible)
    : feed_(feed), gate_(gate), follower_(follower), tensors_(tensors), touch_(touch), possible_(possible) {}

// ---- When -----------------------------------------------------------------------------------------------------------

bool LiveSleep::restless() const { return allocated_ > 16 * tensors_.count(); }

void LiveSleep::step_begins(MutexLock& lock) {
  feed_.assert_held();
  const bool fitted = tensors_.step_peak_bytes() <= feed_.engine().memory().capacity(0);
  tensors_.step_begins();
  if (gate_.asleep()) {
    ++slept_;
    ++steps_;
    return;
  }
  seen_ = fitted && !woke_ ? seen_ + 1 : 0;
  if (std::exchange(woke_, false)) touch_.forget_unannounced();
  if (!may_begin()) return;
  const std::vector<Use> uses = everything();
  if (uses.empty()) return;
  touch_.open_for_writing(uses);
  if (!gate_.fall_asleep(lock, uses)) return;
  follower_.set_unseen(true);
  slept_ = allocated_ = 0;
  ++steps_;
  listener_(true);
}

bool LiveSleep::may_begin() const {
  feed_.assert_held();
  return possible_ && listener_ && follower_.recorded() && !follower_.recording() && seen_ >= wanted_ &&
         feed_.engine().idle() && feed_.idle();
}

// Each tensor, from the coldest on, so that they are as cold afterwards; none where one of them is elsewhere.
std::vector<Use> LiveSleep::everything() const {
  feed_.assert_held();
  const Residency& memory = feed_.engine().memory();
  std::vector<Use> uses;
  std::vector<bool> known(memory.tensor_count());
  for (ChunkId chunk = memory.coldest(0); chunk != none; chunk = memory.warmer(chunk, 0)) {
    const TensorId tensor = memory.tensor_of(chunk);
    if (known[tensor]) continue;
    if (!memory.resident(tensor, 0)) return {};
    known[tensor] = true;
    uses.push_back({tensor, true, true});
  }
  if (uses.size() != tensors_.count()) uses.clear();
  return uses;
}

std::vector<TensorId> LiveSleep::wake() {
  feed_.assert_held();
  listener_(false);
  constexpr std::uint64_t most = 1024;
  wanted_ = slept_ < wanted_ ? std::min(2 * wanted_, most) : 1;
  woke_ = true;
  follower_.set_unseen(false);
  const Nanoseconds at = feed_.now();
  feed_.tell([at](Engine& engine) { engine.schedule_deviated(at); });
  for (const TensorId tensor : tensors_.all()) touch_.expose_to_unannounced(tensor);
  std::vector<TensorId> spares;
  while (!spares_.empty()) spares.push_back(spares_.take_oldest());
  return spares;
}

// ---- While asleep ---------------------------------------------------------------------------------------------------

void LiveSleep::keep(TensorId tensor) {
  feed_.assert_held();
  Engine& engine = feed_.engine();
  if (follower_.program_tensor(tensor) != none) engine.set_program_tensor(tensor, none);
  if (engine.memory().role(tensor) != Role::activation) engine.set_role(tensor, Role::activation);
  follower_.destroyed(tensor);
  touch_.conceal(tensor);
  tensors_.set_spare(tensor, true);
  spares_.add(engine.memory().bytes(tensor), tensor, feed_.machine().address(tensor));
}

std::optional<SpareTensors::Spare> LiveSleep::take(Bytes bytes) {
  const std::optional<SpareTensors::Spare> spare = spares_.take(bytes);
  if (!spare) return {};
  tensors_.set_spare(spare->tensor, false);
  follower_.created(spare->tensor, bytes, Role::activation);
  return spare;
}

bool LiveSleep::allocate(TensorId tensor, const std::function<void(TensorId)>& drop) {
  feed_.assert_held();
  const auto there_is_room = [&] {
    feed_.assert_held();
    return tensors_.room(tensor) <= feed_.engine().memory().free(0);
  };
  while (!there_is_room() && !spares_.empty()) drop(spares_.take_oldest());
  if (!there_is_room()) return false;
  ++allocated_;
  const Nanoseconds at = feed_.now();
  feed_.tell([tensor, at](Engine& engine) { engine.allocate(tensor, at); });
  if (feed_.engine().ready()) return true;
  feed_.tell([at](Engine& engine) { engine.abandon(at); });  // there is, but in pieces
  return false;
}

}  // namespace tencache
