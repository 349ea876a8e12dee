#include "tests/live/rules/rules_driver.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "tests/live/rules/rules_state.h"

namespace tencache::rules {

const CUcontext the_context = reinterpret_cast<CUcontext>(0xc0de);
RulesState* RulesState::active = nullptr;

RulesState::RulesState(RulesOptions made)
    : options(std::move(made)),
      own_order(options.host == nullptr ? std::make_unique<ObservedOrder>() : nullptr),
      host(own_order ? *own_order : *options.host),
      memory(options.memory, options.content),
      queue(options.cost, [this](const DeviceJob& job) { job_over(job); }),
      adversary(options.strategy, options.seed) {
  const Line legacy = host.new_line();
  queue.add_stream(legacy, true);
  streams[nullptr] = legacy;
  if (options.model != nullptr) engines.emplace(queue, *options.model);
}

void RulesState::job_over(const DeviceJob& job) const {
  if (options.watch != nullptr) options.watch->job_over(job);
}

void RulesState::let_the_device_run() {
  if (held) return;
  if (engines) return engines->advance(host.now());
  while (true) {
    const std::vector<Enabled> enabled = queue.enabled();
    const std::optional<std::size_t> chosen = adversary.choose(enabled);
    if (!chosen) return;
    queue.run_first(enabled[*chosen].stream);
  }
}

// The device's clock goes on with the host's; how long jobs take may change while somebody waits.
void RulesState::pass_time(const std::vector<Moment>& works, HowToWait how) {
  const bool was_over = over(works);
  while (!over(works) && broken == CUDA_SUCCESS) {
    const std::optional<Nanoseconds> next_ns = engines->next_ns();
    TENCACHE_CHECK(next_ns.has_value());
    host.spend(*next_ns - host.now());
    engines->advance(host.now());
  }
  if (!was_over) host.spend(how == HowToWait::asking ? options.model->spin_ns : options.model->wake_ns);
}

std::vector<Moment> RulesState::works_of(Line line) const {
  std::vector<Moment> works = queue.waits(line);
  works.push_back(queue.last(line));
  return works;
}

bool RulesState::over(const std::vector<Moment>& works) const {
  return std::ranges::all_of(works, [this](const Moment& work) { return queue.over(work); });
}

CUresult RulesState::wait(std::unique_lock<std::mutex>& lock, const std::vector<Moment>& works,
                          const VectorClock& known, HowToWait how) {
  const VectorClock promised = known;  // the event may be recorded again meanwhile
  const std::vector<Moment> awaited = works;
  if (engines) pass_time(awaited, how);
  for (std::uint64_t turns = engines ? 0 : adversary.patience(); turns > 0 && broken == CUDA_SUCCESS; --turns) {
    const bool locked = lock.owns_lock();
    if (locked) lock.unlock();
    host.pass_turn();
    if (locked) lock.lock();
    let_the_device_run();
  }
  while (held && broken == CUDA_SUCCESS) changed.wait(lock);
  if (broken != CUDA_SUCCESS) return broken;
  for (const Moment& work : awaited) queue.force(work);
  counts.waits++;
  if (!host.clock().learn(promised)) counts.implied_waits++;
  log.forget_known(host.clock());
  changed.notify_all();
  return CUDA_SUCCESS;
}

// "If the local thread has an ongoing capture sequence that was not initiated with CU_STREAM_CAPTURE_MODE_RELAXED …, or
// if any other thread has a concurrent capture sequence initiated with CU_STREAM_CAPTURE_MODE_GLOBAL, this thread is
// prohibited from potentially unsafe API calls." In THREAD_LOCAL "concurrent capture sequences in other threads are
// ignored", in RELAXED "the local thread is not prohibited" (cuThreadExchangeStreamCaptureMode).
bool RulesState::capture_prohibits() {
  const CUstreamCaptureMode own = capture_modes[host.line()];
  return std::ranges::any_of(captures, [&](const auto& entry) {
    const Capture& capture = entry.second;
    if (own == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (capture.by == host.line()) return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return own == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  });
}

// "The device has encountered an error … the process must be terminated and relaunched" (CUDA_ERROR_LAUNCH_FAILED).
void RulesState::break_context(CUresult result) {
  broken = result;
  queue.drop_all();
  changed.notify_all();
}

namespace {

const std::set<std::string_view> potentially_unsafe = {
    "cuMemCreate",    "cuMemRelease",        "cuMemMap",           "cuMemUnmap",          "cuMemSetAccess",
    "cuMemAlloc",     "cuMemFree",           "cuMemHostRegister",  "cuMemHostUnregister", "cuModuleLoadData",
    "cuStreamCreate", "cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery"};

}  // namespace

Call::Call(const char* function, Needs needs) : function_(function), state_(*RulesState::active) {
  state_.host.pass_turn();
  lock_ = std::unique_lock(state_.mutex, std::defer_lock);
  if (!state_.host.one_at_a_time()) {
    const std::lock_guard next(state_.next_to_call);
    lock_.lock();
  }
  state_.counts.calls++;
  begin_ns_ = state_.host.now();
  if (const ModelGpu* model = state_.options.model; model != nullptr) {
    const auto cost = model->call_ns.find(function);
    if (cost != model->call_ns.end()) state_.host.spend(cost->second);
  }
  if (needs == Needs::context) {
    if (state_.host.own() != the_context) {
      failed_ = breaks("a context is current on each thread that calls (cuCtxSetCurrent)", CUDA_ERROR_INVALID_CONTEXT);
      return;
    }
    // "This leaves the process in an inconsistent state and any further CUDA work will return the same error."
    failed_ = state_.broken;
    if (failed_ != CUDA_SUCCESS) return;
  }
  // "Some actions, such as a call to cudaMalloc, may be unsafe": what is not enqueued to a stream.
  if (!state_.captures.empty() && potentially_unsafe.contains(function) && state_.capture_prohibits()) {
    failed_ = breaks("no potentially unsafe call beside a capture (cuThreadExchangeStreamCaptureMode)",
                     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return;
  }
  state_.let_the_device_run();
  failed_ = state_.failures.next(function);
  if (failed_ == CUDA_ERROR_LAUNCH_FAILED) state_.break_context(failed_);
}

Call::~Call() {
  if (state_.options.watch != nullptr) {
    state_.options.watch->returned(function_, state_.host.line(), begin_ns_, state_.host.now());
  }
  state_.host.returned();
}

CallStack Call::caller() const { return state_.options.call_stacks ? CallStack::here() : CallStack(); }

CUresult Call::breaks(const std::string& rule, CUresult answer) {
  if (state_.violation.empty()) {
    state_.violation = std::string(function_) + ": " + rule + "\n" + caller().describe();
  }
  return answer;
}

void Call::judge(const Access& access, Moment moment, const VectorClock& known) {
  if (!state_.violation.empty()) return;  // what follows from the first is no news
  state_.violation = state_.log.access(access, {moment, function_, caller()}, known);
}

void Call::change(const Range& range) {
  VectorClock& clock = state_.host.clock();
  judge({range, true, false}, clock.tick(state_.host.line()), clock);
}

CUresult Call::submit(CUstream stream, DeviceJob job) {
  const auto found = state_.streams.find(stream);
  if (found == state_.streams.end()) return breaks("the stream exists", CUDA_ERROR_INVALID_HANDLE);
  const Line line = found->second, legacy = state_.streams.at(nullptr);
  DeviceQueue& queue = state_.queue;
  // "When a stream is in capture mode, all operations pushed into the stream will not be executed, but will instead be
  // captured into a graph."
  if (state_.captures.contains(stream)) return CUDA_SUCCESS;
  // "The operation would have resulted in a disallowed implicit dependency on a current capture sequence from
  // cudaStreamLegacy" (CUDA_ERROR_STREAM_CAPTURE_IMPLICIT).
  const bool joins = line == legacy && std::ranges::any_of(state_.captures, [&](const auto& capture) {
                       return queue.find(state_.streams.at(capture.first))->blocking;
                     });
  if (joins) {
    return breaks("no work on the legacy stream beside a capture of a blocking one",
                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  // "The legacy default stream … synchronizes with all other streams in the same CUcontext except for non-blocking
  // streams" (stream synchronization behavior).
  if (line == legacy) {
    for (const auto& [handle, other] : state_.streams) {
      if (other != legacy && queue.find(other)->blocking) queue.wait(line, queue.last(other), queue.known_after(other));
    }
  } else if (queue.find(line)->blocking) {
    queue.wait(line, queue.last(legacy), queue.known_after(legacy));
  }
  const std::vector<Access> accesses = job.accesses;
  VectorClock& clock = state_.host.clock();
  clock.tick(state_.host.line());
  const ModelGpu* model = state_.options.model;
  const Nanoseconds latest_ns = model == nullptr ? 0 : state_.host.now() + model->latency_ns(job.kind);
  if (!state_.options.content) job.run = [] {};
  const Moment moment = queue.submit(line, std::move(job), clock, latest_ns);
  VectorClock known = queue.known_after(line);
  for (const Access& access : accesses) judge(access, moment, known);
  state_.changed.notify_all();
  state_.let_the_device_run();
  return CUDA_SUCCESS;
}

bool Call::touch_device(DeviceJob& job, CUdeviceptr address, Bytes bytes, bool write) const {
  const std::optional<std::vector<Range>> places = state_.memory.place(Range{address, bytes});
  if (!places) return false;
  for (const Range& range : *places) job.accesses.push_back({range, write, false});
  return true;
}

RulesDriver::RulesDriver(RulesOptions options) : state_(std::make_unique<RulesState>(std::move(options))) {
  TENCACHE_CHECK(RulesState::active == nullptr);
  RulesState::active = state_.get();
  add_device_rules(table_);
  add_memory_rules(table_);
  add_work_rules(table_);
}

RulesDriver::~RulesDriver() { RulesState::active = nullptr; }

CUresult RulesDriver::launch(CUstream stream, DeviceJob job, std::span<const ProgramAccess> accesses) {
  RULES_CALL("a kernel of the program");
  for (const ProgramAccess& access : accesses) {
    RULE(call.touch_device(job, access.begin, access.bytes, access.write),
         "all that the kernel touches is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  at.counts.kernels++;
  return call.submit(stream, std::move(job));
}

void RulesDriver::fail(const std::string& function, CUresult result, std::uint64_t calls) {
  const std::lock_guard lock(state_->mutex);
  state_->failures.add(function, result, calls);
}

void RulesDriver::set_budget(Bytes bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->budget = bytes;
}

void RulesDriver::keep_addresses() { state_->memory.keep_addresses(); }

void RulesDriver::hold() {
  const std::lock_guard lock(state_->mutex);
  state_->held = true;
}

void RulesDriver::go_on() {
  const std::lock_guard lock(state_->mutex);
  state_->held = false;
  state_->changed.notify_all();
}

void RulesDriver::wait_for_jobs(std::size_t count) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->queue.waiting() >= count; });
}

bool RulesDriver::context_is_current() const { return state_->host.own() == the_context; }

std::string RulesDriver::violation() const {
  const std::lock_guard lock(state_->mutex);
  return state_->violation;
}

std::string RulesDriver::leftovers() const {
  if (std::string found = violation(); !found.empty()) return found;
  const RulesCounts left = counts();
  std::string text;
  const std::pair<std::size_t, const char*> all[] = {{left.handles, "handles of memory"},
                                                     {left.mappings, "mappings"},
                                                     {left.reservations, "reservations"},
                                                     {left.pinned, "page-locked ranges"},
                                                     {left.allocations, "allocations"},
                                                     {left.streams, "streams"},
                                                     {left.events, "events"},
                                                     {left.modules, "modules"},
                                                     {left.contexts, "references to the context"}};
  for (const auto& [count, what] : all) {
    if (count != 0) text += (text.empty() ? "not given back: " : ", ") + std::to_string(count) + " " + what;
  }
  return text;
}

RulesCounts RulesDriver::counts() const {
  const std::lock_guard lock(state_->mutex);
  RulesCounts counts = state_->counts;
  const DeviceMemory& memory = state_->memory;
  counts.handles = memory.handles.size();
  counts.mappings = memory.mappings.size();
  counts.reservations = memory.reservations.size();
  counts.pinned = memory.locked.size();
  counts.allocations = memory.allocations.size();
  counts.memory = memory.used();
  counts.streams = state_->streams.size() - 1;
  counts.events = state_->events.size();
  counts.modules = state_->modules.size();
  return counts;
}

}  // namespace tencache::rules
