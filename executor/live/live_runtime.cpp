#include "executor/live/live_runtime.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/cpu_update.h"
#include "core/error.h"
#include "traces/lower.h"

namespace tencache {
namespace {

constexpr std::chrono::milliseconds feeder_patience{200};

// Which tiers have offsets: the policy's allocators say.
std::vector<bool> addressed_tiers(const MachineSpec& spec, const Layout& layout) {
  std::vector<bool> addressed(spec.tiers.size(), false);
  for (std::size_t tier = 0; tier < std::min(layout.allocators.size(), addressed.size()); ++tier) {
    addressed[tier] = layout.allocators[tier].kind != AllocatorKind::exact;
  }
  return addressed;
}

}  // namespace

class LiveRuntime::Tap final : public Machine {
 public:
  explicit Tap(HostMachine& machine) : machine_(machine) {}

  bool idle() const { return under_way_ == 0; }
  void completed() { --under_way_; }

  Fence submit(const CopyCommand& copy, Fence after, Tag tag) override {
    ++under_way_;
    return machine_.submit(copy, after, tag);
  }
  Fence execute(const OpCommand& op, Fence after, Tag tag) override {
    ++under_way_;
    return machine_.execute(op, after, tag);
  }
  Fence last_of_lane(std::uint8_t lane) const override { return machine_.last_of_lane(lane); }
  void cancel(Fence fence) override { machine_.cancel(fence); }
  bool wait(Completion& completion) override { return machine_.wait(completion); }
  Nanoseconds now() const override { return machine_.now(); }
  std::string last_error() const override { return machine_.last_error(); }
  void map(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.map(tensor, chunk, begin, bytes, place);
  }
  void unmap(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.unmap(tensor, chunk, begin, bytes, place);
  }
  void tensor_created(TensorId tensor, Bytes bytes) override { machine_.tensor_created(tensor, bytes); }
  void tensor_destroyed(TensorId tensor) override { machine_.tensor_destroyed(tensor); }
  void initialise(TensorId tensor, ChunkId chunk, Bytes begin, Bytes bytes, Place place) override {
    machine_.initialise(tensor, chunk, begin, bytes, place);
  }

 private:
  HostMachine& machine_;
  std::uint64_t under_way_ = 0;
};

class LiveRuntime::Bodies final : public OpBodies {
 public:
  struct Body {
    std::shared_ptr<const LiveTask> task;
    std::uint32_t record = none;  // in the step that is recorded
  };

  // Tasks of a lane run in the order in which they were given to the engine.
  void push(std::uint8_t lane, Body body) {
    const std::lock_guard lock(mutex_);
    queues_[lane].push_back(std::move(body));
  }
  // The name of the lane's first task that has not begun.
  std::string next(std::uint8_t lane) {
    const std::lock_guard lock(mutex_);
    return queues_[lane].empty() ? std::string("task") : queues_[lane].front().task->name;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    for (auto& queue : queues_) queue.clear();
  }
  // What the bodies that ran since the last call took, and what the first of them threw.
  std::vector<std::pair<std::uint32_t, Nanoseconds>> take_durations() {
    const std::lock_guard lock(mutex_);
    return std::exchange(durations_, {});
  }
  std::exception_ptr take_failure() {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, nullptr);
  }

  void run(std::uint8_t lane, OpIndex, std::span<const Use>, HostMachine& machine) override {
    Body body;
    {
      const std::lock_guard lock(mutex_);
      TENCACHE_CHECK(!queues_[lane].empty());
      body = std::move(queues_[lane].front());
      queues_[lane].pop_front();
    }
    std::vector<std::byte*> addresses;
    for (const Use& use : body.task->uses) addresses.push_back(machine.address(use.tensor, machine.tier_of_lane(lane)));
    const Nanoseconds start_ns = machine.now();
    const bool on_device = lane == 0 && machine.accelerator() != nullptr;
    std::exception_ptr failure;
    try {
      TENCACHE_CHECK(!on_device || body.task->device_body != nullptr);
      on_device ? body.task->device_body(addresses) : body.task->body(addresses);
    } catch (...) {  // the tasks behind it still run; run_tasks throws it on
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    durations_.emplace_back(body.record, machine.now() - start_ns);
    if (failure_ == nullptr) failure_ = failure;
  }

 private:
  std::mutex mutex_;
  std::array<std::deque<Body>, lane_count> queues_;
  std::vector<std::pair<std::uint32_t, Nanoseconds>> durations_;
  std::exception_ptr failure_;
};

// ---- Beginning and end ----------------------------------------------------------------------------------------------

LiveRuntime::LiveRuntime(const MachineSpec& spec, Policy& policy, LiveOptions options)
    : spec_(with_real_pages(spec, options.machine.accelerator.get())),
      policy_(policy),
      options_(std::move(options)),
      bodies_(std::make_unique<Bodies>()),
      blocking_step_(policy.layout(spec_, nullptr).blocking_step) {
  HostMachineOptions machine = options_.machine;
  if (machine.addressed.empty()) machine.addressed = addressed_tiers(spec_, policy.layout(spec_, nullptr));
  machine_ = std::make_unique<HostMachine>(spec_, *bodies_, std::move(machine));
  tap_ = std::make_unique<Tap>(*machine_);
  engine_ = std::make_unique<Engine>(spec_, *tap_, policy, nullptr, options_.engine);
  follower_.set_follow(options_.follow_schedule);
  last_end_ns_ = machine_->now();
  feeder_ = std::thread([this] { feed_completions(); });
}

LiveRuntime::~LiveRuntime() {
  if (close_listener_) close_listener_();
  {
    Lock lock(mutex_);
    try {
      enter();
      wait_until(lock, [this] { return engine_->idle(); });
      hear_of_frees();
    } catch (...) {  // said before, by the call that failed; or tasks for which there is no room
    }
  }
  stopping_ = true;
  machine_->stop();
  feeder_.join();
  Bytes lost_bytes = 0;
  std::size_t lost = 0;
  for (const Entry& entry : entries_) {
    if (!entry.alive || entry.owned) continue;
    ++lost;
    lost_bytes += entry.bytes;
  }
  if (lost == 0) return;
  std::fprintf(stderr,
               "tencache: %zu tensors (%s) outlive their runtime. Their content is lost; let go of them before the "
               "runtime ends, or take copies with bring_back().\n",
               lost, format_bytes(lost_bytes).c_str());
  // Their addresses must not become somebody else's memory.
  engine_.reset();
  static_cast<void>(machine_.release());
  static_cast<void>(bodies_.release());
}

void LiveRuntime::feed_completions() {
  Completion completion;
  std::size_t translated = 0;  // spans of the timeline
  while (!stopping_) {
    if (!machine_->wait_for(completion, feeder_patience)) continue;
    const Lock lock(mutex_);
    tap_->completed();
    try {
      if (failure_ == nullptr) {
        engine_->handle(completion);
        settle_tasks();
      }
      if (options_.engine.timeline != nullptr) {
        // The engine says the memory's tensors, whose ids are used again; readers know the recording's.
        std::vector<Span>& spans = options_.engine.timeline->spans;
        for (; translated < spans.size(); ++translated) {
          Span& span = spans[translated];
          if (span.kind == SpanKind::transfer) span.tensor = follower_.program_tensor(span.tensor);
        }
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

void LiveRuntime::enter() {
  if (op_lingers_) {
    op_lingers_ = false;
    try {
      await_device();
    } catch (...) {
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    device_busy_ = false;
    hear_of_frees();
    finish_op();
    give_op();
  }
  hear_of_frees();
}

void LiveRuntime::hear_of_frees() {
  if (any_released_ || !kept_.empty()) {
    {
      const std::lock_guard lock(released_mutex_);
      std::swap(released_, releasing_);
      any_released_ = false;
    }
    releasing_.insert(releasing_.begin(), kept_.begin(), kept_.end());
    kept_.clear();
    try {
      await_device();
    } catch (...) {
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
    for (const TensorId tensor : releasing_) {
      if (failure_ == nullptr && entries_[tensor].task_uses > 0) {
        kept_.push_back(tensor);
        continue;
      }
      if (failure_ == nullptr) {
        try {
          destroy(tensor);
          continue;
        } catch (...) {
          failure_ = std::current_exception();
        }
      }
      entries_[tensor].alive = false;  // the engine stopped in the middle of something: it is told no more
    }
    releasing_.clear();
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// Not the end of an op in whose middle it is called: that goes on starting work.
void LiveRuntime::await_device() {
  if (device_busy_) options_.fence();
}

// Waits, while completions come in, until `done`. Throws OutOfMemory when nothing is under way that could help.
void LiveRuntime::wait_until(Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    hear_of_frees();
    if (done()) return;
    if (tap_->idle()) engine_->check_progress();
    if (!done() && !tap_->idle()) changed_.wait(lock);
  }
}

// ---- What the program announces -------------------------------------------------------------------------------------

void LiveRuntime::iteration_boundary() {
  Lock lock(mutex_);
  enter();
  take_op(lock);
  try {
    if (follower_.records_next())
      wait_for_cpu(lock, [this] { return engine_->idle(); });  // its frees are not the step's
    take_task_results();
  } catch (...) {
    give_op();
    throw;
  }
  const Nanoseconds at = machine_->now();
  tell(follower_.iteration_boundary(), at);
  engine_->iteration_boundary(at);
  give_op();
}

void LiveRuntime::tell(StepFollower::Signal signal, Nanoseconds now) {
  if (signal == StepFollower::Signal::deviated) engine_->schedule_deviated(now);
  if (signal != StepFollower::Signal::profile) return;
  plan_tasks();
  auto program = std::make_unique<const Program>(follower_.program());
  engine_->set_profile(*program, follower_.to_memory(), follower_.to_program(), now);
  profile_ = std::move(program);  // the one before lives until nobody looks at it any more
}

void LiveRuntime::set_phase(Phase phase) {
  const Lock lock(mutex_);
  follower_.set_phase(phase);
}

void LiveRuntime::module_begin(std::string_view name) {
  const Lock lock(mutex_);
  enter();
  const NameId module = follower_.names().intern(name);
  follower_.module_begin(module);
  engine_->module_begin(module, machine_->now());
}

void LiveRuntime::module_end() {
  const Lock lock(mutex_);
  enter();
  engine_->module_end(follower_.module_end(), machine_->now());
}

void LiveRuntime::set_aside(bool on) {
  const Lock lock(mutex_);
  enter();
  follower_.set_aside(on);
}

void LiveRuntime::mark(TensorId tensor, Role role, std::string_view name) {
  const Lock lock(mutex_);
  TENCACHE_CHECK(tensor < entries_.size() && entries_[tensor].alive);
  follower_.marked(tensor, role, name);
  if (engine_->memory().role(tensor) != role) engine_->set_role(tensor, role);
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

TensorId LiveRuntime::create(Bytes bytes, Role role, bool owned) {
  const TensorId tensor = engine_->create(bytes, role, owned, machine_->now());
  if (tensor >= entries_.size()) entries_.resize(tensor + std::size_t{1});
  entries_[tensor] = {.bytes = bytes, .alive = true, .owned = owned};
  live_bytes_ += room_of(tensor);
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
  follower_.created(tensor, bytes, role);
  return tensor;
}

void LiveRuntime::destroy(TensorId tensor) {
  TENCACHE_CHECK(tensor < entries_.size() && entries_[tensor].alive);
  const Bytes room = room_of(tensor);
  live_bytes_ -= room;
  if (const auto found = std::find(op_tensors_.begin(), op_tensors_.end(), tensor); found != op_tensors_.end()) {
    op_tensors_.erase(found);
    op_bytes_ -= room;
  }
  entries_[tensor].alive = false;
  if (entries_[tensor].stays) engine_->unpin(tensor);
  machine_->retire(tensor);
  follower_.destroyed(tensor);
  engine_->destroy(tensor, machine_->now());
}

// What the tensor takes in the GPU tier when all of it is there.
Bytes LiveRuntime::room_of(TensorId tensor) const {
  const Residency& memory = engine_->memory();
  const ChunkId begin = memory.first_chunk(tensor);
  Bytes room = 0;
  for (ChunkId chunk = begin; chunk < begin + memory.chunk_count(tensor); ++chunk) room += memory.footprint(chunk, 0);
  return room;
}

void LiveRuntime::add_to_op(TensorId tensor) {
  op_tensors_.push_back(tensor);
  op_bytes_ += room_of(tensor);
  if (op_bytes_ <= largest_op_bytes_) return;
  largest_op_bytes_ = op_bytes_;
  largest_op_ = op_name_;
}

TensorId LiveRuntime::create_owned(Bytes bytes, Role role, std::string_view name) {
  TENCACHE_CHECK(bytes > 0);
  const Lock lock(mutex_);
  enter();
  const TensorId tensor = create(bytes, role, true);
  follower_.marked(tensor, role, name);
  return tensor;
}

void LiveRuntime::destroy_owned(TensorId tensor) {
  const Lock lock(mutex_);
  enter();
  if (entries_[tensor].task_uses > 0) {
    kept_.push_back(tensor);
  } else {
    destroy(tensor);
  }
}

Bytes LiveRuntime::bytes(TensorId tensor) const {
  const Lock lock(mutex_);
  TENCACHE_CHECK(tensor < entries_.size() && entries_[tensor].alive);
  return entries_[tensor].bytes;
}

void LiveRuntime::release(TensorId tensor) noexcept {
  const std::lock_guard lock(released_mutex_);
  released_.push_back(tensor);
  any_released_ = true;
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

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
  engine_->begin(op, uses, at);
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
  engine_->end(at);
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
    const Role role = follower_.program().trace.tensors[recorded].role;
    if (role != Role::activation) engine_->set_role(tensor, role);
  }
  add_to_op(tensor);
  const Nanoseconds asked_ns = machine_->now();
  engine_->allocate(tensor, asked_ns);
  try {
    if (!engine_->ready()) wait_until(lock, [this] { return engine_->ready(); });
  } catch (const OutOfMemory& error) {
    try {
      give_up(error, std::string(follower_.names()[op_name_]));
    } catch (...) {
      destroy(tensor);
      throw;
    }
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
      finish_op();
      give_op();
    }
    throw;
  }
  op_lingers_ = !inside_op;
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
  if (options_.fence) options_.fence();  // code that is no op may have started something
  Lock lock(mutex_);
  enter();
  // A policy may have cleaned them meanwhile: such copies are stale now.
  if (written) brief_op(lock, follower_.names().intern("unpin"), tensors, true, [] {});
  for (const TensorId tensor : tensors) engine_->unpin(tensor);
}

void LiveRuntime::keep(std::span<const TensorId> tensors) {
  const Lock lock(mutex_);
  for (const TensorId tensor : tensors) {
    engine_->pin(tensor);
    entries_[tensor].stays = true;
  }
}

void LiveRuntime::announce_write(std::span<const TensorId> tensors) {
  const Lock lock(mutex_);
  for (const TensorId tensor : tensors) engine_->late_write(tensor);
}

// ---- Tasks ----------------------------------------------------------------------------------------------------------

// As traces/lower.h does it for a prediction.
void LiveRuntime::plan_tasks() {
  Trace trace = follower_.recorded_trace();
  std::vector<Device> devices;
  for (const Op& op : trace.ops) devices.push_back(op.device);
  policy_.place(trace, spec_, devices);
  TENCACHE_CHECK(devices.size() == trace.ops.size());
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    Op& op = trace.ops[index];
    if (!op.placeable || op.device == Device::cpu || devices[index] != Device::cpu) continue;
    op.device = Device::cpu;
    op.bytes = bytes_touched(trace, op);
    if (spec_.cpu_adam_parameters_per_second > 0) op.duration_ns = duration_on_cpu(trace, op, spec_);
  }
  const std::vector<OpIndex> order = policy_order(trace, policy_, spec_);
  planned_.clear();
  for (std::size_t position = 0; position < order.size(); ++position) {
    const Op& op = trace.ops[order[position]];
    if (op.placeable || op.reorderable) {
      planned_.try_emplace({std::string(trace.name(op)), op.group}, Planned{op.device, position});
    }
  }
  follower_.arrange(trace.ops, order);
}

void LiveRuntime::put_in_order(std::vector<LiveTask>& tasks) const {
  const auto position = [this](const LiveTask& task) {
    const auto found = planned_.find({task.name, task.group});
    return found == planned_.end() ? std::numeric_limits<std::size_t>::max() : found->second.position;
  };
  for (auto begin = tasks.begin(); begin != tasks.end();) {
    const auto end = std::find_if(begin, tasks.end(), [](const LiveTask& task) { return !task.reorderable; });
    std::ranges::stable_sort(begin, end, {}, position);
    begin = end == tasks.end() ? end : end + 1;
  }
}

std::uint8_t LiveRuntime::lane_of(const LiveTask& task) const {
  Device device = task.device;
  const auto planned = planned_.find({task.name, task.group});
  if (task.placeable && planned != planned_.end()) {
    device = planned->second.device;
  } else if (task.placeable) {  // the policy judges it as it would judge an op of a trace
    Trace trace;
    std::vector<TensorId> reads, writes;
    for (const Use& use : task.uses) {
      const TensorId id = trace.add_tensor("", entries_[use.tensor].bytes, engine_->memory().role(use.tensor), true);
      if (use.read) reads.push_back(id);
      if (use.write) writes.push_back(id);
    }
    Op op;
    op.name = trace.names.intern(task.name);
    op.phase = Phase::optimizer;
    op.device = task.device;
    op.group = task.group;
    op.placeable = true;
    op.reorderable = task.reorderable;
    op.duration_ns = task.duration_ns;
    trace.add_op(op, reads, writes);
    std::vector<Device> devices = {task.device};
    policy_.place(trace, spec_, devices);
    device = devices.front();
  }
  if (device == Device::gpu) return 0;
  if (spec_.tier_of(Device::cpu) == no_tier) {
    throw Error("task '" + task.name + "' is to run on the CPU, but machine '" + spec_.name +
                "' has no tier of kind cpu");
  }
  return 1;
}

// To the engine and, for the machine's thread, to the bodies.
void LiveRuntime::give_task(std::shared_ptr<const LiveTask> task, Nanoseconds gap_ns) {
  const std::uint8_t lane = lane_of(*task);
  const Nanoseconds at = machine_->now();
  StepFollower::OpInfo info;
  info.name = follower_.names().intern(task->name);
  info.device = task->device;
  info.group = task->group;
  info.placeable = task->placeable;
  info.reorderable = task->reorderable;
  StepFollower::Signal signal = StepFollower::Signal::nothing;
  const OpIndex op = follower_.begin_op(info, task->uses, gap_ns, signal);
  bodies_->push(lane, {task, follower_.recorded_op()});
  follower_.end_op(0);
  tell(signal, at);
  op_name_ = info.name;
  op_tensors_.clear();
  op_bytes_ = 0;
  if (lane == 0) {
    for (const Use& use : task->uses) add_to_op(use.tensor);
  } else {
    for (const Use& use : task->uses) {
      ++entries_[use.tensor].task_uses;
      if (use.write) ++entries_[use.tensor].task_writes;
    }
    cpu_tasks_.push_back(task);
  }
  engine_->task(lane, op, 0, task->uses, task->duration_ns, at);
}

// Those of the CPU's lane that are done, the first ones, are nobody's any more.
void LiveRuntime::settle_tasks() {
  while (cpu_tasks_.size() > engine_->tasks_left(1)) {
    for (const Use& use : cpu_tasks_.front()->uses) {
      --entries_[use.tensor].task_uses;
      if (use.write) --entries_[use.tensor].task_writes;
    }
    cpu_tasks_.pop_front();
  }
}

bool LiveRuntime::in_use_by_tasks(std::span<const Use> uses) const {
  return !cpu_tasks_.empty() && std::any_of(uses.begin(), uses.end(), [this](const Use& use) {
    const Entry& entry = entries_[use.tensor];
    return entry.task_writes > 0 || (use.write && entry.task_uses > 0);
  });
}

// If there is no room for a task, all that have not begun are given up.
void LiveRuntime::wait_for_tasks(Lock& lock, const std::function<bool()>& done) {
  try {
    wait_until(lock, done);
  } catch (const OutOfMemory& error) {
    const std::string waiting = bodies_->next(engine_->ready() ? 1 : 0);
    try {
      give_up(error, waiting);
    } catch (...) {
      changed_.wait(lock, [this] { return engine_->idle() || failure_ != nullptr; });
      settle_tasks();
      bodies_->clear();
      static_cast<void>(bodies_->take_durations());
      static_cast<void>(bodies_->take_failure());
      throw;
    }
  }
  take_task_results();
}

// The GPU's lane has nothing to do meanwhile.
void LiveRuntime::wait_for_cpu(Lock& lock, const std::function<bool()>& done) {
  if (done()) return;
  const Nanoseconds since_ns = machine_->now();
  wait_for_tasks(lock, done);
  engine_->waited_for_tasks(since_ns, machine_->now());
}

void LiveRuntime::take_task_results() {
  for (const auto& [record, duration_ns] : bodies_->take_durations()) follower_.set_duration(record, duration_ns);
  if (!engine_->idle()) return;
  if (const std::exception_ptr failure = bodies_->take_failure(); failure != nullptr) std::rethrow_exception(failure);
}

void LiveRuntime::run_tasks(std::vector<LiveTask> tasks) {
  Lock lock(mutex_);
  enter();
  take_op(lock);
  try {
    put_in_order(tasks);
    Nanoseconds gap_ns = machine_->now() - last_end_ns_;
    for (LiveTask& task : tasks) give_task(std::make_shared<const LiveTask>(std::move(task)), std::exchange(gap_ns, 0));
    wait_for_tasks(lock, [this] { return engine_->tasks_left(0) == 0; });
    if (blocking_step_ || follower_.recording() || !follower_.recorded()) {
      wait_for_cpu(lock, [this] { return engine_->idle(); });
    }
  } catch (...) {
    give_op();
    throw;
  }
  last_end_ns_ = machine_->now();
  give_op();
}

// ---- Figures --------------------------------------------------------------------------------------------------------

const Trace& LiveRuntime::recorded() const {
  const Lock lock(mutex_);
  return follower_.recorded_trace();
}
const Program& LiveRuntime::program() const {
  const Lock lock(mutex_);
  return follower_.program();
}
bool LiveRuntime::has_recorded() const {
  const Lock lock(mutex_);
  return follower_.recorded();
}
void LiveRuntime::record_next() {
  const Lock lock(mutex_);
  follower_.record_next();
}
void LiveRuntime::describe_recording(const TraceHeader& header) {
  const Lock lock(mutex_);
  follower_.set_header(header);
}
RunResult LiveRuntime::result() const {
  const Lock lock(mutex_);
  return engine_->result();
}
Counters LiveRuntime::counters() const {
  const Lock lock(mutex_);
  return engine_->counters();
}
std::uint64_t LiveRuntime::deviations() const {
  const Lock lock(mutex_);
  return follower_.deviations();
}
std::string LiveRuntime::first_deviation() const {
  const Lock lock(mutex_);
  return follower_.first_deviation();
}
Bytes LiveRuntime::live_bytes() const {
  const Lock lock(mutex_);
  return live_bytes_;
}
Bytes LiveRuntime::peak_live_bytes() const {
  const Lock lock(mutex_);
  return peak_live_bytes_;
}
void LiveRuntime::reset_peak_live_bytes() {
  const Lock lock(mutex_);
  peak_live_bytes_ = live_bytes_;
}
Bytes LiveRuntime::largest_op_bytes() const {
  const Lock lock(mutex_);
  return largest_op_bytes_;
}
std::string LiveRuntime::largest_op() const {
  const Lock lock(mutex_);
  return std::string(follower_.names()[largest_op_]);
}

}  // namespace tencache
