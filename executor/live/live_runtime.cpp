#include "executor/live/live_runtime.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache {
namespace {

// The first one; no_tier: none is.
TierId tier_of_files(const MachineSpec& spec) {
  for (TierId tier = 0; tier < spec.tiers.size(); ++tier) {
    if (spec.tiers[tier].kind == TierKind::nvme) return tier;
  }
  return no_tier;
}

// Whether one of the tasks uses a tensor whose address is known outside.
bool use_exposed(const CpuTasks& tasks, const RawAccess& raw) {
  return raw.any_exposed() && tasks.use_any([&raw](TensorId tensor) { return raw.is_exposed(tensor); });
}

}  // namespace

// ---- Beginning and end ----------------------------------------------------------------------------------------------

LiveRuntime::LiveRuntime(const MachineSpec& spec, Policy& policy, LiveOptions options)
    : spec_(with_real_pages(spec, options.machine.accelerator.get())),
      options_(std::move(options)),
      abi_(live_abi(*this, spec_, options_.machine.accelerator != nullptr)),
      bodies_(std::make_unique<TaskBodies>()),
      labels_(options_.engine.timeline),
      plan_(spec_, policy),
      feed_(spec_, policy, options_.machine, engine_options(), *bodies_,
            [this](std::span<Span> added) TENCACHE_REQUIRES(feed_.mutex) { completion_handled(added); }) {
  follower_.set_follow(options_.follow_schedule);
  op_clock_.pause(feed_.now());
}

EngineOptions LiveRuntime::engine_options() {
  EngineOptions engine = options_.engine;
  engine.on_iteration = [this](std::uint64_t iteration) TENCACHE_REQUIRES(feed_.mutex) {
    labels_.label();
    if (options_.engine.on_iteration) options_.engine.on_iteration(iteration);
    labels_.was_read();
  };
  return engine;
}

LiveRuntime::~LiveRuntime() {
  if (close_listener_) close_listener_();
  std::size_t lost = 0;
  Bytes lost_bytes = 0;
  {
    MutexLock lock(feed_.mutex);
    try {
      enter();
      wait_until(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.engine().idle(); });
      hear_of_frees();
      labels_.label();
    } catch (...) {  // said before, by the call that failed; or tasks for which there is no room
    }
    for (const TensorId tensor : tensors_.lost()) {
      ++lost;
      lost_bytes += feed_.engine().memory().bytes(tensor);
    }
  }
  feed_.stop();
  if (lost == 0) return;
  std::fprintf(stderr,
               "tencache: %zu tensors (%s) outlive their runtime. Their content is lost; let go of them before the "
               "runtime ends, or take copies with bring_back().\n",
               lost, format_bytes(lost_bytes).c_str());
  feed_.leak_memory();
  static_cast<void>(bodies_.release());
}

void LiveRuntime::completion_handled(std::span<Span> added) {
  cpu_tasks_.settle(feed_.engine().tasks_left(1));
  // The engine says the memory's tensors, whose ids are used again; readers know the recording's.
  for (Span& span : added) {
    if (span.kind == SpanKind::transfer) span.tensor = follower_.program_tensor(span.tensor);
  }
}

void LiveRuntime::enter() {
  let_go_of_touched();
  end_lingering();
  hear_of_frees();
}

void LiveRuntime::end_lingering() {
  if (!turn_.end_lingering()) return;
  await_device_or_fail();
  device_busy_ = false;
  hear_of_frees();
  finish_op();
  give_op();
}

void LiveRuntime::hear_of_frees() {
  if (released_.any() || cpu_tasks_.any_to_free()) free_unused();
  if (feed_.failure() != nullptr) std::rethrow_exception(feed_.failure());
}

void LiveRuntime::free_unused() {
  std::vector<TensorId> freed = cpu_tasks_.take_kept();
  const std::vector<TensorId> released = released_.take();
  freed.insert(freed.end(), released.begin(), released.end());
  await_device_or_fail();
  for (const TensorId tensor : freed) {
    if (feed_.failure() != nullptr) {
      tensors_.forget(tensor);
      continue;
    }
    if (cpu_tasks_.use(tensor)) {
      cpu_tasks_.keep(tensor);
      continue;
    }
    try {
      destroy(tensor);
    } catch (...) {
      feed_.fail(std::current_exception());
      tensors_.forget(tensor);
    }
  }
}

// Not the end of an op in whose middle it is called: that goes on starting work.
void LiveRuntime::await_device() {
  if (device_busy_) options_.fence();
}

void LiveRuntime::await_device_or_fail() {
  try {
    await_device();
  } catch (...) {
    feed_.fail(std::current_exception());
  }
}

// Waits, while completions come in, until `done`. Throws OutOfMemory when nothing is under way that could help.
void LiveRuntime::wait_until(MutexLock& lock, const std::function<bool()>& done) {
  while (!done()) {
    hear_of_frees();
    if (done()) return;
    if (feed_.idle()) check_progress();
    if (!done() && (!feed_.idle() || raw_.any_comes_back())) feed_.wait(lock);
  }
}

void LiveRuntime::check_progress() {
  try {
    feed_.check_progress();
  } catch (const OutOfMemory&) {
    if (!raw_.any_comes_back()) throw;
  }
}

// ---- What the program announces -------------------------------------------------------------------------------------

void LiveRuntime::iteration_boundary() {
  MutexLock lock(feed_.mutex);
  enter();
  as_op(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    if (follower_.records_next()) {  // its frees are not the step's
      wait_for_cpu(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.engine().idle(); });
    }
    take_task_results();
    const Nanoseconds at = feed_.now();
    tell(follower_.iteration_boundary(), at);
    feed_.tell([at](Engine& engine) { engine.iteration_boundary(at); });
  });
}

void LiveRuntime::tell(StepFollower::Signal signal, Nanoseconds now) {
  if (signal == StepFollower::Signal::deviated) feed_.tell([now](Engine& engine) { engine.schedule_deviated(now); });
  if (signal != StepFollower::Signal::profile) return;
  plan_.learn(follower_);
  auto program = std::make_unique<const Program>(follower_.program());
  const std::vector<TensorId> to_memory = follower_.to_memory(), to_program = follower_.to_program();
  feed_.tell([&](Engine& engine) { engine.set_profile(*program, to_memory, to_program, now); });
  labels_.named(to_program, now);
  profile_ = std::move(program);  // the one before lives until nobody looks at it any more
}

void LiveRuntime::set_phase(Phase phase) {
  const MutexLock lock(feed_.mutex);
  follower_.set_phase(phase);
}

void LiveRuntime::module_begin(std::string_view name) {
  const MutexLock lock(feed_.mutex);
  enter();
  const NameId module = follower_.names().intern(name);
  follower_.module_begin(module);
  feed_.tell([&](Engine& engine) { engine.module_begin(module, feed_.now()); });
}

void LiveRuntime::module_end() {
  const MutexLock lock(feed_.mutex);
  enter();
  const NameId module = follower_.module_end();
  feed_.tell([&](Engine& engine) { engine.module_end(module, feed_.now()); });
}

void LiveRuntime::set_aside(bool on) {
  const MutexLock lock(feed_.mutex);
  enter();
  follower_.set_aside(on);
}

void LiveRuntime::mark(TensorId tensor, Role role, std::string_view name) {
  const MutexLock lock(feed_.mutex);
  TENCACHE_CHECK(tensors_.alive(tensor));
  follower_.marked(tensor, role, name);
  if (feed_.engine().memory().role(tensor) != role) feed_.engine().set_role(tensor, role);
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

TensorId LiveRuntime::create(Bytes bytes) {
  labels_.label();
  const TensorId tensor = feed_.engine().create(bytes, Role::activation, false, feed_.now());
  labels_.created(tensor);
  const Residency& memory = feed_.engine().memory();
  const ChunkId begin = memory.first_chunk(tensor);
  Bytes room = 0;
  for (ChunkId chunk = begin; chunk < begin + memory.chunk_count(tensor); ++chunk) room += memory.footprint(chunk, 0);
  tensors_.born(tensor, room);
  follower_.created(tensor, bytes, Role::activation);
  return tensor;
}

void LiveRuntime::destroy(TensorId tensor) {
  TENCACHE_CHECK(tensors_.alive(tensor));
  tensors_.gone(tensor);
  op_.remove(tensor, tensors_.room(tensor));
  if (tensors_.stays(tensor)) feed_.engine().unpin(tensor);
  for (std::size_t left = raw_.forget(tensor); left > 0; --left) feed_.engine().unpin(tensor);
  feed_.machine().retire(tensor);
  follower_.destroyed(tensor);
  feed_.engine().destroy(tensor, feed_.now());
}

Bytes LiveRuntime::bytes(TensorId tensor) const {
  const MutexLock lock(feed_.mutex);
  TENCACHE_CHECK(tensors_.alive(tensor));
  return feed_.engine().memory().bytes(tensor);
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

void LiveRuntime::take_op(MutexLock& lock) {
  while (turn_.taken()) {
    feed_.wait(lock);
    enter();
  }
  turn_.take();
}

void LiveRuntime::give_op() {
  turn_.give();
  op_.clear();
  feed_.wake();
}

template <typename Work>
void LiveRuntime::as_op(MutexLock& lock, const Work& work) {
  take_op(lock);
  try {
    work();
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

// The engine knows nothing of an op; the message gets its name, and what would do.
void LiveRuntime::give_up(const OutOfMemory& error, const std::string& op) {
  feed_.engine().abandon(feed_.now());
  std::string message = error.what();
  const std::string unnamed = "'" + error.op() + "'";
  if (const std::size_t at = message.find(unnamed); at != std::string::npos) {
    message.replace(at, unnamed.size(), "'" + op + "'");
  } else {
    message = "op '" + op + "': " + message;
  }
  if (const Bytes needed = op_.give_up(); needed != 0) message += "; it needs at least " + format_bytes(needed) + " at once";
  throw OutOfMemory(message, op, error.bytes_missing());
}

void LiveRuntime::start_op(MutexLock& lock, NameId name, std::span<const Use> uses, Bytes part_bytes) {
  wait_for_cpu(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) { return !cpu_tasks_.conflict(uses); });
  const Nanoseconds at = feed_.now();
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  Op announced;
  announced.name = name;
  announced.gap_before_ns = op_clock_.gap(at);
  const OpIndex op = follower_.begin_op(announced, uses, signal);
  tell(signal, at);
  op_.begin(name, part_bytes);
  for (const Use& use : uses) op_.add(use.tensor, tensors_.room(use.tensor), use.write);
  for (const RawAccess::Lent& lent : raw_.lent()) {  // what cannot leave meanwhile is needed, too
    const bool used = std::ranges::any_of(uses, [&lent](const Use& use) { return use.tensor == lent.tensor; });
    if (!lent.comes_back && !used) op_.add(lent.tensor, tensors_.room(lent.tensor), lent.written);
  }
  feed_.tell([&](Engine& engine) { engine.begin(op, uses, at); });
  try {
    await_room(lock);
  } catch (const OutOfMemory& error) {
    follower_.end_op(0);
    give_up(error, std::string(follower_.names()[name]));
  } catch (...) {
    follower_.end_op(0);
    throw;
  }
  if (raw_.any_exposed()) {
    for (const Use& use : uses) {
      if (use.write) feed_.machine().open_for_writing(use.tensor);
    }
  }
  op_clock_.begin(feed_.now());
  device_busy_ = options_.fence != nullptr;
}

void LiveRuntime::await_room(MutexLock& lock) {
  wait_until(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.engine().ready(); });
}

void LiveRuntime::finish_op() {
  const Nanoseconds at = feed_.now();
  feed_.tell([at](Engine& engine) { engine.end(at); });
  follower_.end_op(op_clock_.end(at));
}

void LiveRuntime::begin_op(std::string_view name, std::span<const Use> uses, Bytes part_bytes) {
  MutexLock lock(feed_.mutex);
  enter();
  take_op(lock);
  try {
    if (options_.settle) wait_until(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.idle(); });
    start_op(lock, follower_.names().intern(name), uses, part_bytes);
  } catch (...) {
    give_op();
    throw;
  }
  turn_.body_begins();
}

void LiveRuntime::end_op(bool linger) {
  std::exception_ptr device_failure;
  if (!linger) {
    try {
      await_device();  // not holding the mutex: completions go on being heard
    } catch (...) {
      device_failure = std::current_exception();
    }
    device_busy_ = false;
  }
  const MutexLock lock(feed_.mutex);
  if (linger) {
    turn_.linger();
    feed_.wake();  // a thread that waits for its turn ends it
    return;
  }
  feed_.fail(device_failure);
  try {
    hear_of_frees();  // what the op freed was its workspace
    finish_op();
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

TensorId LiveRuntime::allocate_in_op(MutexLock& lock, Bytes bytes) {
  const TensorId tensor = create(bytes);
  if (const TensorId recorded = follower_.born(tensor); recorded != none) {
    feed_.engine().set_program_tensor(tensor, recorded);
    labels_.named(tensor, recorded, feed_.now());
    const Role role = follower_.program().trace.tensors[recorded].role;
    if (role != Role::activation) feed_.engine().set_role(tensor, role);
  }
  op_.add(tensor, tensors_.room(tensor), true);
  const Nanoseconds asked_ns = feed_.now();
  bool given_up = false;
  try {
    feed_.tell([&](Engine& engine) { engine.allocate(tensor, asked_ns); });
    try {
      await_room(lock);
    } catch (const OutOfMemory& error) {
      given_up = true;
      give_up(error, std::string(follower_.names()[op_.op()]));
    }
  } catch (...) {  // nobody will let go of it
    given_up ? destroy(tensor) : tensors_.forget(tensor);
    throw;
  }
  op_clock_.wait(feed_.now() - asked_ns);
  return tensor;
}

LiveRuntime::Storage LiveRuntime::allocate(Bytes bytes, bool inside_op) {
  MutexLock lock(feed_.mutex);
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
      if (feed_.failure() == nullptr) finish_op();
      give_op();
    }
    throw;
  }
  if (!inside_op) turn_.linger();
  if (!inside_op) feed_.wake();  // a thread that waits for its turn ends it
  return {tensor, feed_.machine().address(tensor, 0)};
}

LiveRuntime::Storage LiveRuntime::store_in_file(Bytes bytes, SourceFile file) {
  MutexLock lock(feed_.mutex);
  enter();
  const TierId tier = tier_of_files(spec_);
  if (tier == no_tier || options_.machine.accelerator != nullptr) return {};
  const TensorId tensor = create(bytes);
  const Residency& memory = feed_.engine().memory();
  Bytes room = 0;
  for (const ChunkId chunk : memory.chunks_of(tensor)) room += memory.footprint(chunk, tier);
  if (room > memory.free(tier)) {
    destroy(tensor);
    return {};
  }
  if (options_.machine.files.direct) file.bypass_page_cache();
  const auto shared = std::make_shared<const SourceFile>(std::move(file));
  for (const ChunkId chunk : memory.chunks_of(tensor)) {
    const Bytes begin = memory.begin_of(chunk);
    feed_.machine().store_in_file(tensor, begin, memory.bytes_of(chunk), tier, shared);
  }
  feed_.tell([&](Engine& engine) { engine.stored(tensor, tier, feed_.now()); });
  return {tensor, feed_.machine().address(tensor, 0)};
}

// An op of ours around `inside`, which is called when the tensors are there, after the op.
void LiveRuntime::brief_op(MutexLock& lock, NameId name, std::span<const TensorId> tensors, bool written,
                           const std::function<void()>& inside) {
  std::vector<Use> uses;
  for (const TensorId tensor : tensors) {
    const bool known = std::ranges::any_of(uses, [tensor](const Use& use) { return use.tensor == tensor; });
    if (!known) uses.push_back({tensor, true, written});
  }
  as_op(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    start_op(lock, name, uses);
    inside();
    finish_op();
  });
}

void LiveRuntime::pin(std::span<const TensorId> tensors, bool written) {
  MutexLock lock(feed_.mutex);
  enter();
  brief_op(lock, follower_.names().intern("pin"), tensors, written, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    for (const TensorId tensor : tensors) feed_.engine().pin(tensor, written);
  });
}

void LiveRuntime::unpin(std::span<const TensorId> tensors, bool written) {
  std::exception_ptr failure;
  try {
    if (options_.fence) options_.fence();  // code that is no op may have started something
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(feed_.mutex);
  if (feed_.failure() == nullptr) {  // else the engine stopped in the middle of something
    for (const TensorId tensor : tensors) feed_.engine().unpin(tensor, written);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void LiveRuntime::lend(std::span<const Use> uses, bool comes_back) {
  const MutexLock lock(feed_.mutex);
  if (feed_.failure() != nullptr) std::rethrow_exception(feed_.failure());
  for (const Use& use : uses) feed_.engine().pin(use.tensor, use.write);
  raw_.lent(uses, comes_back);
}

void LiveRuntime::take_back(std::span<const Use> uses, bool comes_back) noexcept {
  const MutexLock lock(feed_.mutex);
  raw_.taken_back(uses, comes_back);
  if (feed_.failure() == nullptr) {
    for (const Use& use : uses) feed_.engine().unpin(use.tensor, use.write);
  }
  feed_.wake();  // who waits for memory looks again
}

// ---- Raw access without a word ---------------------------------------------------------------------------------------

void LiveRuntime::let_go_of_touched() {
  if (feed_.failure() != nullptr) return;
  for (const TensorId tensor : raw_.take_touched()) {
    if (tensors_.alive(tensor)) feed_.engine().unpin(tensor);
  }
}

bool LiveRuntime::touch(const void* address, bool written) {
  const TensorId tensor = feed_.machine().tensor_at(address);
  if (tensor == none) return false;
  MutexLock lock(feed_.mutex);
  if (!tensors_.alive(tensor)) return false;
  end_lingering();
  if (turn_.inside_body()) {
    throw Error("op '" + std::string(follower_.names()[op_.op()]) +
                "' touches memory of a tensor that it was not given, or writes to one that its schema says it reads");
  }
  take_op(lock);
  try {
    const Use use{tensor, true, written};
    wait_beside(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) { return !cpu_tasks_.conflict(std::span(&use, 1)); });
    for (bool there = false; !there;) {
      const Nanoseconds at = feed_.now();
      feed_.tell([&](Engine& engine) { engine.begin(none, std::span(&use, 1), at); });
      try {
        await_room(lock);
        there = true;
      } catch (const OutOfMemory& error) {
        if (!raw_.any_touched()) give_up(error, "access to memory outside of ops");
        feed_.engine().abandon(feed_.now());
        let_go_of_touched();  // what was touched before may leave again
      }
    }
    feed_.engine().pin(tensor);
    raw_.touched(tensor);
    expose_now(tensor);
    if (written) feed_.machine().open_for_writing(tensor);
    const Nanoseconds end = feed_.now();
    feed_.tell([end](Engine& engine) { engine.end(end); });
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
  return true;
}

// Not while ops and tasks write it, but for the calling thread's own op.
void LiveRuntime::expose(TensorId tensor) {
  MutexLock lock(feed_.mutex);
  if (!options_.machine.raw_access || !tensors_.alive(tensor)) return;
  const auto mark = [&]() TENCACHE_REQUIRES(feed_.mutex) {
    raw_.exposed(tensor);
    expose_now(tensor);
  };
  if (turn_.inside_body()) return mark();
  end_lingering();
  as_op(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    wait_beside(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) { return !cpu_tasks_.use(tensor); });
    mark();
  });
}

// Who may write it goes on: the op whose body asks for the address, and threads that the tensor is lent to, which a
// protection may not hold up, as system calls do not survive it.
void LiveRuntime::expose_now(TensorId tensor) {
  const bool by_this_op = turn_.inside_body() && op_.writes(tensor);
  feed_.machine().expose(tensor, by_this_op || raw_.is_written_by_others(tensor));
}

std::uint64_t LiveRuntime::touches() const {
  const MutexLock lock(feed_.mutex);
  return raw_.count();
}

void LiveRuntime::fail(std::exception_ptr failure) noexcept {
  const MutexLock lock(feed_.mutex);
  feed_.fail(std::move(failure));
}

void LiveRuntime::keep(std::span<const TensorId> tensors) {
  const MutexLock lock(feed_.mutex);
  if (feed_.failure() != nullptr) return;
  for (const TensorId tensor : tensors) {
    if (tensors_.keep(tensor)) feed_.engine().pin(tensor);
  }
}

void LiveRuntime::announce_write(std::span<const TensorId> tensors) {
  const MutexLock lock(feed_.mutex);
  for (const TensorId tensor : tensors) feed_.engine().late_write(tensor);
}

// ---- Tasks ----------------------------------------------------------------------------------------------------------

// To the engine and, for the machine's thread, to the bodies.
void LiveRuntime::give_task(std::shared_ptr<const LiveTask> task, std::uint8_t lane, Nanoseconds gap_ns) {
  const Nanoseconds at = feed_.now();
  Op announced;
  announced.name = follower_.names().intern(task->name);
  announced.device = task->device;
  announced.group = task->group;
  announced.placeable = task->placeable;
  announced.reorderable = task->reorderable;
  announced.gap_before_ns = gap_ns;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const OpIndex op = follower_.begin_op(announced, task->uses, signal);
  bodies_->push(lane, {task, follower_.recorded_op()});
  follower_.end_op(0);
  tell(signal, at);
  op_.begin(announced.name);
  if (lane == 0) {
    for (const Use& use : task->uses) op_.add(use.tensor, tensors_.room(use.tensor), use.write);
  } else {
    cpu_tasks_.add(task);
  }
  feed_.tell([&](Engine& engine) { engine.task(lane, op, 0, task->uses, task->duration_ns, at); });
}

// If there is no room for a task, all that have not begun are given up.
void LiveRuntime::wait_for_tasks(MutexLock& lock, const std::function<bool()>& done) {
  try {
    wait_until(lock, done);
  } catch (const OutOfMemory& error) {
    const std::string waiting = bodies_->next(feed_.engine().ready() ? 1 : 0);
    try {
      give_up(error, waiting);
    } catch (...) {
      while (!feed_.engine().idle() && feed_.failure() == nullptr) feed_.wait(lock);
      cpu_tasks_.settle(feed_.engine().tasks_left(1));
      bodies_->clear();
      throw;
    }
  }
}

// The GPU's lane has nothing to do meanwhile.
void LiveRuntime::wait_beside(MutexLock& lock, const std::function<bool()>& done) {
  if (done()) return;
  const Nanoseconds since_ns = feed_.now();
  wait_for_tasks(lock, done);
  feed_.engine().waited_for_tasks(since_ns, feed_.now());
}

void LiveRuntime::wait_for_cpu(MutexLock& lock, const std::function<bool()>& done) {
  wait_beside(lock, done);
  take_task_results();
}

void LiveRuntime::take_task_results() {
  for (const auto& [record, duration_ns] : bodies_->take_durations()) follower_.set_duration(record, duration_ns);
  if (const std::exception_ptr failure = bodies_->take_failure(); failure != nullptr) std::rethrow_exception(failure);
}

void LiveRuntime::run_tasks(std::vector<LiveTask> tasks) {
  TENCACHE_CHECK(options_.machine.accelerator == nullptr);
  MutexLock lock(feed_.mutex);
  enter();
  as_op(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    plan_.put_in_order(tasks);
    Nanoseconds gap_ns = op_clock_.gap(feed_.now());
    std::vector<std::uint8_t> lanes;  // of all before the first is given: it may throw
    for (const LiveTask& task : tasks) lanes.push_back(plan_.lane_of(task, feed_.engine().memory()));
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      give_task(std::make_shared<const LiveTask>(std::move(tasks[i])), lanes[i], std::exchange(gap_ns, 0));
    }
    wait_for_tasks(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.engine().tasks_left(0) == 0; });
    const bool blocking = plan_.blocking_step() || follower_.recording() || !follower_.recorded();
    wait_for_cpu(lock, [this, blocking]() TENCACHE_REQUIRES(feed_.mutex) {
      return blocking ? feed_.engine().idle() : !use_exposed(cpu_tasks_, raw_);
    });
    op_clock_.pause(feed_.now());
  });
}

void LiveRuntime::finish_tasks() {
  MutexLock lock(feed_.mutex);
  enter();
  as_op(lock, [&]() TENCACHE_REQUIRES(feed_.mutex) {
    wait_for_cpu(lock, [this]() TENCACHE_REQUIRES(feed_.mutex) { return feed_.engine().idle(); });
  });
}

// ---- Figures --------------------------------------------------------------------------------------------------------

const Trace& LiveRuntime::recorded() const {
  const MutexLock lock(feed_.mutex);
  return follower_.recorded_trace();
}
const Program& LiveRuntime::program() const {
  const MutexLock lock(feed_.mutex);
  return follower_.program();
}
bool LiveRuntime::has_recorded() const {
  const MutexLock lock(feed_.mutex);
  return follower_.recorded();
}
void LiveRuntime::record_next() {
  const MutexLock lock(feed_.mutex);
  follower_.record_next();
}
RunResult LiveRuntime::result() const {
  const MutexLock lock(feed_.mutex);
  return feed_.engine().result();
}
Counters LiveRuntime::counters() const {
  const MutexLock lock(feed_.mutex);
  return feed_.engine().counters();
}
std::uint64_t LiveRuntime::deviations() const {
  const MutexLock lock(feed_.mutex);
  return follower_.deviations();
}
std::string LiveRuntime::first_deviation() const {
  const MutexLock lock(feed_.mutex);
  return follower_.first_deviation();
}
std::uint64_t LiveRuntime::ops() const {
  const MutexLock lock(feed_.mutex);
  return follower_.ops();
}
std::uint64_t LiveRuntime::ops_on_schedule() const {
  const MutexLock lock(feed_.mutex);
  return follower_.ops_on_schedule();
}
Bytes LiveRuntime::live_bytes() const {
  const MutexLock lock(feed_.mutex);
  return tensors_.bytes();
}
FaultCounts LiveRuntime::fault_counts() const {
  const MutexLock lock(feed_.mutex);
  return feed_.machine().fault_counts();
}
Bytes LiveRuntime::peak_live_bytes() const {
  const MutexLock lock(feed_.mutex);
  return tensors_.peak_bytes();
}
Bytes LiveRuntime::largest_op_bytes() const {
  const MutexLock lock(feed_.mutex);
  return op_.largest_bytes();
}
std::string LiveRuntime::largest_op() const {
  const MutexLock lock(feed_.mutex);
  return std::string(follower_.names()[op_.largest_op()]);
}

}  // namespace tencache
