// Watches the ops of a PyTorch program from inside its process, for the recorder that loads this library
// (traces/recorder).
//
// RecordFunction callbacks see every call of the dispatcher, on all threads, with its arguments and results; they
// change nothing about the program. Ops made of other ops are looked through, as op_schema.h has it. A storage is known
// by its StorageImpl: a weak reference keeps the address from being used again while it means a tensor, so each
// allocation is a tensor of its own. Times: of the host for CPU tensors, of events on the op's stream for an
// accelerator's.
//
// One observer a process. The functions below are C: PyTorch's own Python bindings differ between versions, this need
// not. Callbacks of RecordFunction swallow exceptions, so that whatever fails inside is kept and told by `failure`.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "executor/torch/recorder/observed_step.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache {
namespace {

struct Context final : at::ObserverContext {
  std::uint32_t op = 0;
  std::uint64_t generation = 0;  // of the step that the op is part of
  enum Kind { nothing, op_outermost, op_inside, backward, engine, optimizer, region } kind = nothing;
  std::int64_t start_ns = 0;
};

std::mutex mutex;
Step step;
std::string failed;  // why, once something did
std::string text;    // what `take` gave out last
c10::DeviceType device_type = c10::DeviceType::CPU;
std::unique_ptr<c10::impl::VirtualGuardImpl> device_guard;  // of an accelerator
at::CallbackHandle op_callback = 0, scope_callback = 0;
bool observing_ops = false;
std::uint64_t generation = 0;      // counts the steps that were begun or taken
std::atomic<bool> foreign{false};  // a child of the process that is observed
std::atomic<int> optimizers_open{0};
void (*on_optimizer_step)(int) = nullptr;

// Of this thread.
thread_local int ops_open = 0;
thread_local int backward_open = 0;
thread_local bool engine_open = false;  // autograd's own work around a node's function: it sums gradients
thread_local std::vector<int> modules;
thread_local std::vector<std::pair<WeakStorage, std::size_t>> temporaries;  // made within the op that is open
thread_local std::size_t temporary_peak = 0;

// Loader workers and other children go on without the observer, and find its lock free.
void leave_children_alone() {
  static const int registered = pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); },
                                               [] {
                                                 mutex.unlock();
                                                 foreign = true;
                                               });
  static_cast<void>(registered);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void fail(const char* where, const char* what) {
  if (failed.empty()) failed = std::string(where) + ": " + what;
}

// ---- Accelerators ---------------------------------------------------------------------------------------------------

void* record_event() {
  if (device_guard == nullptr) return nullptr;
  void* event = nullptr;
  const c10::Device device = device_guard->getDevice();
  device_guard->record(&event, device_guard->getStream(device), device.index(), c10::EventFlag::BACKEND_DEFAULT);
  return event;
}

// PyTorch before 2.4 cannot ask an event for its time without CUDA's own headers.
template <typename Guard>
constexpr bool measures_events = requires(const Guard& guard, void* event) {
  guard.elapsedTime(event, event, 0);
};

template <typename Guard>
std::int64_t event_ns(const Guard& guard, void* begin, void* event) {
  if constexpr (measures_events<Guard>) {
    return static_cast<std::int64_t>(guard.elapsedTime(begin, event, guard.getDevice().index()) * 1e6);
  } else {
    return 0;
  }
}

// ---- What ops touch -------------------------------------------------------------------------------------------------

bool on_device(const c10::StorageImpl& storage) {
  return storage.device_type() == device_type || storage.device_type() == c10::DeviceType::Meta;
}

// `none` for no memory, and for memory of another device.
constexpr std::uint32_t none = 0xffff'ffff;
std::uint32_t tensor_of(const c10::Storage& storage, bool born_here) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  const std::size_t bytes = impl->nbytes();
  if (bytes == 0 || !on_device(*impl)) return none;
  const auto [entry, added] = step.tensor_of.try_emplace(impl, static_cast<std::uint32_t>(step.tensors.size()));
  if (added) {
    step.tensors.push_back({impl,
                            WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl)),
                            bytes, !born_here});
    if (born_here) step.young.push_back(entry->second);
  }
  SeenTensor& tensor = step.tensors[entry->second];
  tensor.bytes = std::max(tensor.bytes, bytes);
  return entry->second;
}

// Gives the addresses of the dead back. Kept to the step's end, thousands of small objects would lie between the blocks
// that the program frees: its heap would grow by a fifth of the step's memory, new pages and all.
void forget_the_dead() {
  const auto dead = [](std::uint32_t id) {
    SeenTensor& tensor = step.tensors[id];
    if (!tensor.alive.expired()) return false;
    step.tensor_of.erase(tensor.storage);
    tensor.storage = nullptr;
    tensor.alive.reset();
    return true;
  };
  step.young.erase(std::remove_if(step.young.begin(), step.young.end(), dead), step.young.end());
}

bool contains(const Uses& list, std::uint32_t tensor) {
  return std::find(list.begin(), list.end(), tensor) != list.end();
}
void add_unique(Uses& list, std::uint32_t tensor) {
  if (tensor != none && !contains(list, tensor)) list.push_back(tensor);
}

// ---- Callbacks ------------------------------------------------------------------------------------------------------

struct KnownOp {
  const OpSchema* schema = nullptr;
  Arithmetic arithmetic = Arithmetic::none;
};

// nullptr for a function that is no op. An op's name stands in its schema, so that its address tells overloads apart,
// too. (That of a function which is no op may be used again: only ops are remembered.)
const KnownOp* known_op(const at::RecordFunction& function) {
  thread_local std::unordered_map<const char*, KnownOp> seen;
  const auto found = seen.find(function.name());
  if (found != seen.end()) return &found->second;
  const auto name = function.operator_name();
  if (!name.has_value()) return nullptr;
  const auto handle = c10::Dispatcher::singleton().findSchema(*name);
  if (!handle.has_value()) return nullptr;
  const OpSchema& schema = op_schema(*handle);
  const KnownOp op{&schema, arithmetic_of(schema.base_name)};
  if (function.name() == handle->schema().name().c_str()) return &seen.emplace(function.name(), op).first->second;
  thread_local KnownOp other;
  other = op;
  return &other;
}

bool is_compiled_region(std::string_view name) {
  return name.starts_with("## Call CompiledFxGraph") || name.starts_with("Torch-Compiled Region");
}

void note_region(const at::RecordFunction& function, const Context& context) {
  const std::lock_guard lock(mutex);
  Region& region = step.regions[function.name()];
  region.duration_ns += now_ns() - context.start_ns;
  ++region.calls;
}

void note_uses(SeenOp& op, c10::ArrayRef<const c10::IValue> inputs) {
  for (const ArgumentInfo& argument : op.schema->arguments) {
    if (argument.position >= inputs.size()) continue;
    const c10::IValue& value = inputs[argument.position];
    // A number of Python's that takes the place of a tensor.
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
      continue;
    }
    const bool overwritten = argument.overwritten || argument.name == "out";
    if (argument.content) op.bytes += viewed_bytes(value) * (argument.written && !overwritten ? 2 : 1);
    visit_storages(value, [&](const c10::Storage& storage, bool whole) {
      if (!argument.content) return;
      const std::uint32_t tensor = tensor_of(storage, false);
      if (!(overwritten && whole)) add_unique(op.reads, tensor);
      if (argument.written) add_unique(op.writes, tensor);
    });
  }
}

// What an op of the forward pass has left to do belongs to that op's module. -1: not known.
void begin_backward(std::int64_t sequence) {
  const std::lock_guard lock(mutex);
  const auto found = step.module_of_sequence.find(sequence);
  int module = modules.empty() ? -1 : modules.back();
  if (sequence >= 0 && found != step.module_of_sequence.end()) module = found->second;
  if (backward_open > 0) modules.back() = module;
  modules.push_back(module);
  ++backward_open;
}

// Backward functions belong to the module of the op that has their sequence number, which is that of the calls within
// the op as well.
void note_sequence(std::int64_t sequence) {
  thread_local std::int64_t last = -1;
  thread_local std::uint64_t last_generation = 0;
  if (backward_open > 0 || sequence < 0 || (sequence == last && last_generation == generation)) return;
  const std::lock_guard lock(mutex);
  step.module_of_sequence[sequence] = modules.empty() ? -1 : modules.back();
  last = sequence;
  last_generation = generation;
}

std::unique_ptr<Context> context_of(Context::Kind kind) {
  auto context = std::make_unique<Context>();
  context->kind = kind;
  return context;
}

std::unique_ptr<at::ObserverContext> start_op(const at::RecordFunction& function) {
  const KnownOp* const known = known_op(function);
  note_sequence(function.seqNr());
  if (known == nullptr && std::string_view(function.name()).starts_with("autograd::engine::evaluate_function")) {
    begin_backward(-1);  // the node's own function is within; it also sums gradients
    engine_open = true;
    return context_of(Context::engine);
  }
  if (known == nullptr && is_compiled_region(function.name())) {
    auto context = context_of(Context::region);
    context->start_ns = now_ns();
    return context;
  }
  if (known == nullptr || !known->schema->touches_memory) return nullptr;
  if (ops_open > 0) return context_of(Context::op_inside);
  auto context = context_of(Context::op_outermost);
  const std::lock_guard lock(mutex);
  context->op = static_cast<std::uint32_t>(step.ops.size());
  context->generation = generation;
  SeenOp& op = step.ops.emplace_back();
  op.schema = known->schema;
  op.module = modules.empty() ? -1 : modules.back();
  op.backward = backward_open > 0;
  op.graph = c10::GradMode::is_enabled();
  // A closure that an optimizer calls has gradients enabled, what the optimizer does itself has not.
  op.optimizer = optimizers_open > 0 && backward_open == 0 && !op.graph;
  note_uses(op, function.inputs());
  op.arithmetic = known->arithmetic;
  op.flops = flops_of_inputs(op.arithmetic, function.inputs());
  op.kernel = kernel_of_inputs(*known->schema, function.inputs());
  op.input = first_tensor(function.inputs());
  // Autograd adds nothing into a view, such as a gradient that was given another shape: its base holds the memory, too.
  op.sum = engine_open && known->schema->base_name == "aten::add" && function.inputs()[0].isTensor() &&
           !function.inputs()[0].toTensor().is_view();
  ++ops_open;
  temporaries.clear();
  temporary_peak = 0;
  op.start_event = record_event();
  op.start_ns = now_ns();
  return context;
}

// Memory that the op allocates for itself counts while it lives.
void note_temporary(const at::RecordFunction& function) {
  for (const c10::IValue& output : function.outputs()) {
    visit_storages(output, [](const c10::Storage& storage, bool) {
      c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
      if (impl->nbytes() == 0 || !on_device(*impl)) return;
      {
        const std::lock_guard lock(mutex);
        if (step.tensor_of.contains(impl)) return;
      }
      for (const auto& [known, size] : temporaries) {
        if (known._unsafe_get_target() == impl) return;
      }
      temporaries.emplace_back(WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
                                   storage.unsafeGetStorageImpl())),
                               storage.nbytes());
    });
  }
  std::size_t bytes = 0;
  for (const auto& [storage, size] : temporaries) bytes += storage.expired() ? 0 : size;
  temporary_peak = std::max(temporary_peak, bytes);
}

void end_op(const at::RecordFunction& function, const Context& context) {
  const std::int64_t end_ns = now_ns();
  void* const end_event = record_event();
  const std::lock_guard lock(mutex);
  --ops_open;
  if (context.generation != generation) return;  // its step is over
  SeenOp& op = step.ops[context.op];
  op.end_ns = end_ns;
  op.end_event = end_event;
  std::size_t returned = 0;
  for (const c10::IValue& output : function.outputs()) {
    bool made = false;
    visit_storages(output, [&](const c10::Storage& storage, bool) {
      const std::size_t known = step.tensors.size();
      const std::uint32_t tensor = tensor_of(storage, true);
      if (tensor == none) return;
      if (step.tensors.size() > known) returned += storage.nbytes();
      const bool input = contains(op.reads, tensor) || contains(op.writes, tensor);  // itself, or a view of it
      if (!input) op.writes.push_back(tensor);
      made = made || !input;
    });
    if (made) op.bytes += viewed_bytes(output);
  }
  for (const auto& [storage, size] : temporaries) {  // what the op made and did not return, but somebody keeps
    const auto kept = storage.lock();
    if (kept == nullptr || step.tensor_of.contains(kept.get())) continue;
    op.writes.push_back(tensor_of(c10::Storage(kept), true));
    returned += size;
  }
  finish_kernel(op.kernel, op.schema->base_name, op.input, first_tensor(function.outputs()));
  op.bytes = static_cast<std::uint64_t>(std::max(1.0, static_cast<double>(op.bytes) + op.kernel.more_bytes));
  if (op.schema->uninitialised) op.bytes = 1;  // launches nothing
  op.flops = scaled_by_results(op.arithmetic, op.flops, function.outputs());
  op.temporary_bytes = temporary_peak > returned ? temporary_peak - returned : 0;
  temporaries.clear();
  if (context.op % 16 == 15) forget_the_dead();
}

std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
  if (foreign) return nullptr;
  try {
    switch (function.scope()) {
      case at::RecordScope::BACKWARD_FUNCTION:
        begin_backward(function.seqNr());
        engine_open = false;
        return context_of(Context::backward);
      case at::RecordScope::FUNCTION:
        return start_op(function);
      default:
        return nullptr;
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    fail(function.name(), error.what());
    return nullptr;
  }
}

void end(const at::RecordFunction& function, at::ObserverContext* observed) {
  const auto* const context = static_cast<const Context*>(observed);
  if (context == nullptr) return;
  try {
    switch (context->kind) {
      case Context::backward:
      case Context::engine:
        --backward_open;
        modules.pop_back();
        engine_open = context->kind == Context::backward && backward_open > 0;
        break;
      case Context::op_outermost:
        end_op(function, *context);
        break;
      case Context::op_inside:
        note_temporary(function);
        break;
      case Context::region:
        note_region(function, *context);
        break;
      default:
        break;
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    fail(function.name(), error.what());
  }
}

// Optimizers announce themselves.
std::unique_ptr<at::ObserverContext> start_scope(const at::RecordFunction& function) {
  if (foreign) return nullptr;
  const std::string_view name = function.name();
  auto context = std::make_unique<Context>();
  if (name.starts_with("Optimizer.step#")) {
    context->kind = Context::optimizer;
    if (optimizers_open++ == 0 && on_optimizer_step != nullptr) on_optimizer_step(0);
  } else if (observing_ops && is_compiled_region(name)) {
    context->kind = Context::region;
    context->start_ns = now_ns();
  } else {
    return nullptr;
  }
  return context;
}

void end_scope(const at::RecordFunction& function, at::ObserverContext* observed) {
  const auto* const context = static_cast<const Context*>(observed);
  if (context == nullptr) return;
  if (context->kind == Context::optimizer) {
    if (--optimizers_open == 0 && on_optimizer_step != nullptr) on_optimizer_step(1);
  } else {
    note_region(function, *context);
  }
}

// Accelerators know when their ops ran only now.
void finish_times() {
  for (SeenOp& op : step.ops) op.unfinished = op.end_ns == 0 || op.end_ns > step.end_ns;
  if (step.begin_event == nullptr) return;
  step.end_ns = step.begin_ns + event_ns(*device_guard, step.begin_event, step.end_event);
  for (SeenOp& op : step.ops) {
    if (op.start_event == nullptr || op.end_event == nullptr) continue;
    op.start_ns = step.begin_ns + event_ns(*device_guard, step.begin_event, op.start_event);
    op.end_ns = step.begin_ns + event_ns(*device_guard, step.begin_event, op.end_event);
  }
}

void destroy_events() {
  if (device_guard == nullptr) return;
  const c10::DeviceIndex index = device_guard->getDevice().index();
  const auto destroy = [index](void* event) {
    if (event != nullptr) device_guard->destroyEvent(event, index);
  };
  destroy(step.begin_event);
  destroy(step.end_event);
  for (const SeenOp& op : step.ops) {
    destroy(op.start_event);
    destroy(op.end_event);
  }
}

template <typename Function>
int guarded(const char* where, const Function& function) {
  try {
    function();
    return 0;
  } catch (const std::exception& error) {
    fail(where, error.what());
    return 1;
  }
}

}  // namespace
}  // namespace tencache

// ---- What Python calls; 0: done, 1: see tencache_failure ------------------------------------------------------------

#pragma GCC visibility push(default)
extern "C" {

using namespace tencache;

// Calls listener(0) when an optimizer's step begins and listener(1) when it has ended, on the thread that does it.
// `type`: whose memory and times are observed, as c10::DeviceType.
int tencache_start(int type, void (*listener)(int)) {
  return guarded("start", [&] {
    failed.clear();
    leave_children_alone();
    foreign = false;  // a child may record for itself
    device_type = static_cast<c10::DeviceType>(type);
    if (device_type != c10::DeviceType::CPU && device_type != c10::DeviceType::Meta) {
      device_guard = std::make_unique<c10::impl::VirtualGuardImpl>(device_type);
      if (!measures_events<c10::impl::VirtualGuardImpl>) {
        throw std::runtime_error("the times of ops on an accelerator need PyTorch 2.4 or newer");
      }
    }
    on_optimizer_step = listener;
    scope_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&start_scope, &end_scope).scopes({at::RecordScope::USER_SCOPE}));
  });
}

// From here on ops are observed, until tencache_end_step. `known`: storages that are there now, whose addresses are not
// used again within the step; they may be freed.
int tencache_begin_step(c10::StorageImpl** known, int count) {
  return guarded("begin", [=] {
    modules.clear();
    const std::lock_guard lock(mutex);
    step = Step();
    ++generation;
    for (int i = 0; i < count; ++i) {
      step.held.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(known[i]));
    }
    step.ops.reserve(1 << 14);
    step.tensors.reserve(1 << 14);
    step.tensor_of.reserve(1 << 14);
    if (!observing_ops) {
      op_callback = at::addGlobalCallback(at::RecordFunctionCallback(&start, &end)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    }
    observing_ops = true;
    step.begin_event = record_event();
    step.begin_ns = now_ns();
  });
}

int tencache_end_step() {
  return guarded("end", [] {
    const std::int64_t end_ns = now_ns();
    const std::lock_guard lock(mutex);
    step.end_ns = end_ns;
    step.end_event = record_event();
    if (observing_ops) at::removeCallback(op_callback);
    observing_ops = false;
    if (device_guard != nullptr) {
      const c10::Device device = device_guard->getDevice();
      device_guard->synchronizeStream(device_guard->getStream(device));
    }
  });
}

// The observed step as JSON, valid until the next call; nullptr where that failed. Tensors are marked as alive that are
// at the time of this call.
const char* tencache_take() {
  const int failure = guarded("take", [] {
    const std::lock_guard lock(mutex);
    finish_times();
    text = to_json(step);
    destroy_events();
    step = Step();
    ++generation;
  });
  return failure != 0 || !failed.empty() ? nullptr : text.c_str();
}

void tencache_stop() {
  guarded("stop", [] {
    if (observing_ops) at::removeCallback(op_callback);
    if (scope_callback != 0) at::removeCallback(scope_callback);
    observing_ops = false;
    scope_callback = 0;
    on_optimizer_step = nullptr;
    device_guard.reset();
  });
}

void tencache_enter_module(int module) { modules.push_back(module); }
void tencache_leave_module() {
  if (!modules.empty()) modules.pop_back();
}
const char* tencache_failure() { return failed.c_str(); }
}
#pragma GCC visibility pop
