// Ops of a live program: their beginning and end, what they allocate, and raw access between them.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "executor/live/live_runtime_parts.h"

namespace tencache {

void LiveRuntime::take_op(Lock& lock) {
  while (op_taken_) {
    changed_.wait(lock);
    enter();
  }
  op_taken_ = true;
}

void LiveRuntime::give_op() {
  op_taken_ = false;
  op_tensors_.clear();
  op_bytes_ = 0;
  changed_.notify_all();
}

// The engine knows nothing of an op; the message gets its name.
void LiveRuntime::give_up(const OutOfMemory& error, const std::string& op) {
  engine_->abandon(machine_->now());
  std::string message = error.what();
  const std::string unnamed = "'" + error.op() + "'";
  if (const std::size_t at = message.find(unnamed); at != std::string::npos) {
    message.replace(at, unnamed.size(), "'" + op + "'");
  } else {
    message = "op '" + op + "': " + message;
  }
  throw OutOfMemory(message, op, error.bytes_missing());
}

void LiveRuntime::start_op(Lock& lock, NameId name, std::span<const Use> uses) {
  wait_for_cpu(lock, [&] { return !in_use_by_tasks(uses); });
  const Nanoseconds at = machine_->now();
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  StepFollower::OpInfo info;
  info.name = name;
  const OpIndex op = follower_.begin_op(info, uses, at - last_end_ns_, signal);
  tell(signal, at);
  op_name_ = name;
  op_wait_ns_ = 0;
  for (const Use& use : uses) add_to_op(use.tensor);
  tell_engine([&] { engine_->begin(op, uses, at); });
  try {
    if (!engine_->ready()) wait_until(lock, [this] { return engine_->ready(); });
  } catch (const OutOfMemory& error) {
    follower_.end_op(0);
    give_up(error, std::string(follower_.names()[name]));
  } catch (...) {
    follower_.end_op(0);
    throw;
  }
  op_ready_ns_ = machine_->now();
  device_busy_ = options_.fence != nullptr;
}

void LiveRuntime::finish_op() {
  const Nanoseconds at = machine_->now();
  tell_engine([&] { engine_->end(at); });
  follower_.end_op(at - op_ready_ns_ - op_wait_ns_);
  last_end_ns_ = at;
}

void LiveRuntime::begin_op(std::string_view name, std::span<const Use> uses) {
  Lock lock(mutex_);
  enter();
  take_op(lock);
  try {
    if (options_.settle) wait_until(lock, [this] { return tap_->idle(); });
    start_op(lock, follower_.names().intern(name), uses);
  } catch (...) {
    give_op();
    throw;
  }
}

void LiveRuntime::end_op(bool linger) {
  std::exception_ptr device_failure;
  if (!linger) {
    try {
      await_device();  // not under the mutex: completions go on being heard
    } catch (...) {
      device_failure = std::current_exception();
    }
    device_busy_ = false;
  }
  const Lock lock(mutex_);
  if (linger) {
    op_lingers_ = true;
    changed_.notify_all();  // a thread that waits for its turn ends it
    return;
  }
  if (failure_ == nullptr) failure_ = device_failure;
  try {
    hear_of_frees();  // what the op freed was its workspace
    finish_op();
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

TensorId LiveRuntime::allocate_in_op(Lock& lock, Bytes bytes) {
  const TensorId tensor = create(bytes, Role::activation, false);
  if (const TensorId recorded = follower_.born(tensor); recorded != none) {
    engine_->set_program_tensor(tensor, recorded);
    labels_.named(tensor, recorded, machine_->now());
    const Role role = follower_.program().trace.tensors[recorded].role;
    if (role != Role::activation) engine_->set_role(tensor, role);
  }
  add_to_op(tensor);
  const Nanoseconds asked_ns = machine_->now();
  bool given_up = false;
  try {
    tell_engine([&] { engine_->allocate(tensor, asked_ns); });
    try {
      if (!engine_->ready()) wait_until(lock, [this] { return engine_->ready(); });
    } catch (const OutOfMemory& error) {
      given_up = true;
      give_up(error, std::string(follower_.names()[op_name_]));
    }
  } catch (...) {  // nobody will let go of it
    if (given_up) {
      destroy(tensor);
    } else {
      entries_[tensor].alive = false;  // the engine stopped in the middle of something: it is told no more
    }
    throw;
  }
  op_wait_ns_ += machine_->now() - asked_ns;
  return tensor;
}

LiveRuntime::Storage LiveRuntime::allocate(Bytes bytes, bool inside_op) {
  Lock lock(mutex_);
  enter();
  if (!inside_op) {
    take_op(lock);
    try {
      start_op(lock, follower_.names().intern("allocate"), {});
    } catch (...) {
      give_op();
      throw;
    }
  }
  TensorId tensor = none;
  try {
    tensor = allocate_in_op(lock, bytes);
  } catch (...) {
    if (!inside_op) {
      if (failure_ == nullptr) finish_op();
      give_op();
    }
    throw;
  }
  op_lingers_ = !inside_op;
  if (op_lingers_) changed_.notify_all();  // a thread that waits for its turn ends it
  return {tensor, machine_->address(tensor, 0)};
}

// An op of ours around `inside`, which is called when the tensors are there, after the op.
void LiveRuntime::brief_op(Lock& lock, NameId name, std::span<const TensorId> tensors, bool written,
                           const std::function<void()>& inside) {
  std::vector<Use> uses;
  for (const TensorId tensor : tensors) {
    const bool known = std::any_of(uses.begin(), uses.end(), [tensor](const Use& use) { return use.tensor == tensor; });
    if (!known) uses.push_back({tensor, true, written});
  }
  take_op(lock);
  try {
    start_op(lock, name, uses);
    inside();
    finish_op();
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

void LiveRuntime::pin(std::span<const TensorId> tensors, bool written) {
  Lock lock(mutex_);
  enter();
  brief_op(lock, follower_.names().intern("pin"), tensors, written, [&] {
    for (const TensorId tensor : tensors) engine_->pin(tensor);
  });
}

void LiveRuntime::unpin(std::span<const TensorId> tensors, bool written) {
  std::exception_ptr failure;
  Lock lock(mutex_, std::defer_lock);
  try {
    if (options_.fence) options_.fence();  // code that is no op may have started something
    lock.lock();
    enter();
    // A policy may have cleaned them meanwhile: such copies are stale now.
    if (written) brief_op(lock, follower_.names().intern("unpin"), tensors, true, [] {});
  } catch (...) {
    failure = std::current_exception();
  }
  if (!lock.owns_lock()) lock.lock();
  if (failure_ == nullptr) {  // else the engine stopped in the middle of something
    for (const TensorId tensor : tensors) engine_->unpin(tensor);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void LiveRuntime::fail(std::exception_ptr failure) noexcept {
  const Lock lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
}

void LiveRuntime::keep(std::span<const TensorId> tensors) {
  const Lock lock(mutex_);
  if (failure_ != nullptr) return;
  for (const TensorId tensor : tensors) {
    if (std::exchange(entries_[tensor].stays, true)) continue;
    engine_->pin(tensor);
  }
}

void LiveRuntime::announce_write(std::span<const TensorId> tensors) {
  const Lock lock(mutex_);
  for (const TensorId tensor : tensors) engine_->late_write(tensor);
}

}  // namespace tencache
