#include "executor/torch/interception.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/torch/paged_storage.h"
#include "executor/torch/recorder/op_schema.h"
#include "executor/torch/torch_cuda.h"

namespace tencache {
namespace {

// Above autograd, so that views, in-place ops and saved tensors are all seen from outside.
constexpr c10::DispatchKey paging_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

constexpr std::size_t scalar_bytes = 64;

std::atomic<LiveRuntime*> active_runtime{nullptr};
std::atomic<c10::DeviceType> paged_device{c10::DeviceType::CPU};  // whose storages are the runtime's
thread_local int ops_open = 0;                                    // on this thread: allocations belong to the op
thread_local std::vector<LiveRuntime::Storage> op_storages;       // that this thread's op has allocated

bool guarded() { return c10::impl::tls_is_dispatch_key_included(paging_key); }

// ---- Storages -------------------------------------------------------------------------------------------------------

// From a storage's address, which never changes, to the runtime's tensor.
class Registry {
 public:
  struct Owner {
    LiveRuntime* runtime = nullptr;  // nullptr: its runtime has ended
    TensorId tensor = none;
  };

  void add(const void* address, Owner owner) {
    const std::lock_guard lock(mutex_);
    owners_[address] = owner;
  }
  // False if the address is not ours.
  bool let_go(const void* address) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(address);
    if (found == owners_.end()) return false;
    if (found->second.runtime != nullptr) found->second.runtime->release(found->second.tensor);
    owners_.erase(found);
    return true;
  }
  TensorId find(const void* address, const LiveRuntime* runtime) const {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(address);
    return found == owners_.end() || found->second.runtime != runtime ? none : found->second.tensor;
  }
  void orphan(const LiveRuntime* runtime) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, owner] : owners_) {
      if (owner.runtime == runtime) owner.runtime = nullptr;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Owner> owners_;
};

// LibTorch keeps storages beyond the end of main: never destroyed.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

c10::Allocator* plain_allocator = nullptr;

void let_go(void* address) {
  if (!release_paged(address)) plain_allocator->raw_deleter()(address);
}

c10::DataPtr hand_out(std::size_t bytes) {
  c10::DataPtr paged = allocate_paged(bytes, c10::Device(c10::DeviceType::CPU), &let_go);
  return paged ? std::move(paged) : plain_allocator->allocate(bytes);
}

// c10::Allocator::allocate is const in some versions of LibTorch and not in others; copy_data came later. Of each pair
// the one that the base class knows overrides it.
class PagedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const { return hand_out(bytes); }
  c10::DataPtr allocate(std::size_t bytes) { return hand_out(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};

void install_allocator() {
  static const bool installed = [] {
    static PagedAllocator allocator;
    plain_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator, 100);
    return true;
  }();
  static_cast<void>(installed);
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

void add_use(std::vector<Use>& uses, const Use& use) {
  for (Use& known : uses) {
    if (known.tensor != use.tensor) continue;
    known.read = known.read || use.read;
    known.write = known.write || use.write;
    return;
  }
  uses.push_back(use);
}

void collect_uses(const OpSchema& info, const torch::jit::Stack& stack, const LiveRuntime& runtime,
                  std::vector<Use>& uses) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const ArgumentInfo& argument : info.arguments) {
    if (!argument.content) continue;
    visit_storages(stack[first + argument.position], [&](const c10::Storage& storage, bool whole) {
      const TensorId tensor = registry().find(base_address(storage), &runtime);
      if (tensor != none) add_use(uses, {tensor, !(argument.overwritten && whole), argument.written});
    });
  }
}

// ---- Audit ----------------------------------------------------------------------------------------------------------

std::atomic<bool> auditing{false};
std::mutex findings_mutex;
std::vector<AuditFinding> findings;

std::uint64_t checksum(const void* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  const auto* at = static_cast<const std::byte*>(data);
  const auto mix = [&sum](std::uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
    sum ^= sum >> 32;
  };
  for (; bytes >= sizeof(std::uint64_t); bytes -= sizeof(std::uint64_t), at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    mix(word);
  }
  for (; bytes > 0; --bytes, ++at) mix(std::to_integer<std::uint64_t>(*at));
  return sum;
}

// Checksums what an op says it only reads, before and after.
class OpAudit {
 public:
  OpAudit(OpSchema& info, const torch::jit::Stack& stack, const LiveRuntime& runtime, const std::vector<Use>& uses)
      : info_(info) {
    const std::size_t first = stack.size() - info.argument_count;
    for (ArgumentInfo& argument : info.arguments) {
      if (!argument.content) continue;
      const c10::IValue& value = stack[first + argument.position];
      visit_storages(value, [&](const c10::Storage& storage, bool) {
        const TensorId tensor = registry().find(base_address(storage), &runtime);
        const bool read_only = std::any_of(uses.begin(), uses.end(),
                                           [tensor](const Use& use) { return use.tensor == tensor && !use.write; });
        if (tensor == none || !read_only) return;
        watched_.push_back({&argument, tensor, storage, checksum(base_address(storage), storage.nbytes())});
      });
    }
  }

  // Those that changed. Call while they are still pinned.
  std::vector<TensorId> changed() const {
    std::vector<TensorId> tensors;
    for (const Watched& watched : watched_) {
      if (checksum(base_address(watched.storage), watched.storage.nbytes()) == watched.sum) continue;
      tensors.push_back(watched.tensor);
      watched.argument->written = true;
      const AuditFinding finding{info_.name, watched.argument->name};
      const std::lock_guard lock(findings_mutex);
      if (std::find(findings.begin(), findings.end(), finding) == findings.end()) findings.push_back(finding);
    }
    return tensors;
  }

 private:
  struct Watched {
    ArgumentInfo* argument;
    TensorId tensor;
    c10::Storage storage;  // held: the op may let go of its inputs
    std::uint64_t sum;
  };
  OpSchema& info_;
  std::vector<Watched> watched_;
};

// ---- The fallback ---------------------------------------------------------------------------------------------------

// What the op has allocated, has not let go of and is not among the `returns` values on top of the stack: a library's
// workspace that later ops use unsaid (cuBLAS).
std::vector<TensorId> hidden_storages(const torch::jit::Stack& stack, std::size_t returns, const LiveRuntime& runtime) {
  std::vector<TensorId> hidden;
  if (op_storages.empty()) return hidden;
  std::set<const void*> returned;
  for (std::size_t i = stack.size() - returns; i < stack.size(); ++i) {
    visit_storages(stack[i], [&](const c10::Storage& storage, bool) { returned.insert(base_address(storage)); });
  }
  for (const LiveRuntime::Storage& storage : op_storages) {
    const bool alive = registry().find(storage.address, &runtime) == storage.tensor;
    if (alive && !returned.contains(storage.address)) hidden.push_back(storage.tensor);
  }
  std::sort(hidden.begin(), hidden.end());
  hidden.erase(std::unique(hidden.begin(), hidden.end()), hidden.end());
  return hidden;
}

void run_paged(OpSchema& info, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
               LiveRuntime& runtime) {
  thread_local std::vector<Use> uses;
  uses.clear();
  collect_uses(info, *stack, runtime, uses);
  runtime.begin_op(info.name, uses);
  if (ops_open++ == 0) op_storages.clear();
  const bool keeps = runtime.machine().accelerator() != nullptr;
  try {
    const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
    if (auditing && paged_device == c10::DeviceType::CPU) {
      const OpAudit audit(info, *stack, runtime, uses);
      op.redispatchBoxed(below, stack);
      runtime.announce_write(audit.changed());
    } else {
      op.redispatchBoxed(below, stack);
    }
    if (keeps) runtime.keep(hidden_storages(*stack, op.schema().returns().size(), runtime));
  } catch (...) {
    if (keeps) runtime.keep(hidden_storages(*stack, 0, runtime));
    --ops_open;
    runtime.end_op();
    throw;
  }
  --ops_open;
  runtime.end_op(info.uninitialised);
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, paging_key);
  LiveRuntime* const runtime = active_runtime;
  OpSchema& info = op_schema(op);
  if (runtime == nullptr || !info.touches_memory) {
    op.redispatchBoxed(below, stack);
  } else {
    run_paged(info, op, below, stack, *runtime);
  }
}

LiveRuntime& attach(LiveRuntime& runtime, c10::DeviceType device) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  LiveRuntime* const present = active_runtime;
  if (present == &runtime && device == paged_device) return runtime;
  if (present == &runtime) throw Error("a live runtime pages the tensors of one device only");
  if (present != nullptr) throw Error("a thread is guarded by a second live runtime while the first one still exists");
  if (device == c10::DeviceType::CPU) {
    install_allocator();
  } else {
    if (runtime.machine().accelerator() == nullptr) throw Error("the runtime has no GPU for LibTorch's CUDA tensors");
    torch_cuda::install_allocator();
  }
  paged_device = device;
  active_runtime = &runtime;
  runtime.set_close_listener([&runtime] {
    if (paged_device != c10::DeviceType::CPU) torch_cuda::let_go_of_workspaces();
    active_runtime = nullptr;
    registry().orphan(&runtime);
  });
  return runtime;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

// ---- What paged_storage.h promises ----------------------------------------------------------------------------------

c10::DataPtr allocate_paged(std::size_t bytes, c10::Device device, c10::DeleterFnPtr deleter) {
  LiveRuntime* const runtime = active_runtime;
  // Outside ops LibTorch allocates scalars that it wraps as tensors: paging them would cost more than they are.
  const bool scalar = ops_open == 0 && bytes <= scalar_bytes;
  if (bytes == 0 || scalar || runtime == nullptr || device.type() != paged_device || !guarded()) return {};
  const LiveRuntime::Storage storage = runtime->allocate(bytes, ops_open > 0);
  registry().add(storage.address, {runtime, storage.tensor});
  if (ops_open > 0) op_storages.push_back(storage);
  return {storage.address, storage.address, deleter, device};
}

bool release_paged(void* address) noexcept { return registry().let_go(address); }

// ---- What interception.h promises -----------------------------------------------------------------------------------

ThreadGuard::ThreadGuard(LiveRuntime& runtime, c10::DeviceType device)
    : include_((static_cast<void>(attach(runtime, device)), paging_key)) {}
ThreadGuard::~ThreadGuard() = default;

TensorId live_id(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return none;
  return registry().find(base_address(tensor.storage()), active_runtime);
}

void mark(LiveRuntime& runtime, const at::Tensor& tensor, Role role, std::string_view name) {
  if (const TensorId id = live_id(tensor); id != none) runtime.mark(id, role, name);
}

PinnedTensors::PinnedTensors(LiveRuntime& runtime, std::vector<at::Tensor> tensors, bool written)
    : runtime_(runtime), tensors_(std::move(tensors)), written_(written) {
  for (const at::Tensor& tensor : tensors_) {
    visit_storages(tensor, [this, &runtime](const c10::Storage& storage, bool) {
      const TensorId id = registry().find(base_address(storage), &runtime);
      if (id != none) ids_.push_back(id);
    });
  }
  std::sort(ids_.begin(), ids_.end());
  ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
  runtime_.pin(ids_, written_);
}

PinnedTensors::~PinnedTensors() {
  try {
    runtime_.unpin(ids_, written_);
  } catch (...) {  // what was given up with it is lost: the runtime's next call throws it again
    runtime_.fail(std::current_exception());
  }
}

at::Tensor bring_back(LiveRuntime&, const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  auto* const memory = new std::byte[std::max<std::size_t>(bytes, 1)];
  at::Tensor copy = at::from_blob(
      memory, tensor.sizes(), [](void* data) { delete[] static_cast<std::byte*>(data); },
      at::TensorOptions().dtype(tensor.dtype()));
  copy.copy_(tensor);
  return copy;
}

void set_audit(bool on) {
  const std::lock_guard lock(findings_mutex);
  if (on) findings.clear();
  auditing = on;
}

std::vector<AuditFinding> audit_findings() {
  const std::lock_guard lock(findings_mutex);
  return findings;
}

}  // namespace tencache
