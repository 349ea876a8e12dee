#include "executor/live/live_runtime.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/live/live_runtime_parts.h"

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

// ---- Beginning and end ----------------------------------------------------------------------------------------------

LiveRuntime::LiveRuntime(const MachineSpec& spec, Policy& policy, LiveOptions options)
    : spec_(with_real_pages(spec, options.machine.accelerator.get())),
      policy_(policy),
      options_(std::move(options)),
      bodies_(std::make_unique<Bodies>()),
      blocking_step_(policy.layout(spec_, nullptr).blocking_step),
      labels_(options_.engine.timeline) {
  HostMachineOptions machine = options_.machine;
  if (machine.addressed.empty()) machine.addressed = addressed_tiers(spec_, policy.layout(spec_, nullptr));
  machine_ = std::make_unique<HostMachine>(spec_, *bodies_, std::move(machine));
  tap_ = std::make_unique<Tap>(*machine_);
  EngineOptions engine = options_.engine;
  engine.on_iteration = [this](std::uint64_t iteration) {
    labels_.label();
    if (options_.engine.on_iteration) options_.engine.on_iteration(iteration);
    labels_.was_read();
  };
  engine_ = std::make_unique<Engine>(spec_, *tap_, policy, nullptr, std::move(engine));
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
      labels_.label();
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
  while (!stopping_) {
    if (!machine_->wait_for(completion, feeder_patience)) continue;
    const Lock lock(mutex_);
    tap_->completed();
    Timeline* const timeline = options_.engine.timeline;
    const std::size_t before = timeline != nullptr ? timeline->spans.size() : 0;  // whoever reads it may empty it
    try {
      if (failure_ == nullptr) {
        engine_->handle(completion);
        settle_tasks();
      }
      if (timeline != nullptr) {
        // The engine says the memory's tensors, whose ids are used again; readers know the recording's.
        std::vector<Span>& spans = timeline->spans;
        for (std::size_t i = std::min(before, spans.size()); i < spans.size(); ++i) {
          if (spans[i].kind == SpanKind::transfer) spans[i].tensor = follower_.program_tensor(spans[i].tensor);
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
  const auto unused = [this](TensorId tensor) { return entries_[tensor].task_uses == 0; };
  if (any_released_ || std::any_of(kept_.begin(), kept_.end(), unused)) {
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

// Out of memory is an answer, after which the engine can go on.
void LiveRuntime::check_progress() {
  std::optional<OutOfMemory> answer;
  tell_engine([&] {
    try {
      engine_->check_progress();
    } catch (const OutOfMemory& error) {
      answer = error;
    }
  });
  if (answer) throw *answer;
}

// Waits, while completions come in, until `done`. Throws OutOfMemory when nothing is under way that could help.
void LiveRuntime::wait_until(Lock& lock, const std::function<bool()>& done) {
  while (!done()) {
    hear_of_frees();
    if (done()) return;
    if (tap_->idle()) check_progress();
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
    const Nanoseconds at = machine_->now();
    tell(follower_.iteration_boundary(), at);
    tell_engine([&] { engine_->iteration_boundary(at); });
  } catch (...) {
    give_op();
    throw;
  }
  give_op();
}

void LiveRuntime::tell(StepFollower::Signal signal, Nanoseconds now) {
  if (signal == StepFollower::Signal::deviated) tell_engine([&] { engine_->schedule_deviated(now); });
  if (signal != StepFollower::Signal::profile) return;
  plan_tasks();
  auto program = std::make_unique<const Program>(follower_.program());
  tell_engine([&] { engine_->set_profile(*program, follower_.to_memory(), follower_.to_program(), now); });
  labels_.named(follower_.to_program(), now);
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
  tell_engine([&] { engine_->module_begin(module, machine_->now()); });
}

void LiveRuntime::module_end() {
  const Lock lock(mutex_);
  enter();
  tell_engine([&] { engine_->module_end(follower_.module_end(), machine_->now()); });
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
  labels_.label();
  const TensorId tensor = engine_->create(bytes, role, owned, machine_->now());
  labels_.created(tensor);
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
FaultCounts LiveRuntime::fault_counts() const {
  const Lock lock(mutex_);
  return machine_->fault_counts();
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
