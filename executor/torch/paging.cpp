#include "executor/torch/paging.h"

#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "executor/torch/lent_tensors.h"
#include "executor/torch/loading.h"
#include "executor/torch/op_audit.h"
#include "executor/torch/op_groups.h"
#include "executor/torch/op_touch.h"
#include "executor/torch/paged_storage.h"
#include "executor/torch/pager.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache {
namespace paging {
namespace {

constexpr std::size_t scalar_bytes = 64;

// An op on its way to its kernel.
struct Intercepted {
  const c10::OperatorHandle& op;
  c10::DispatchKeySet below;  // redispatch to these
  OpSchema& info;
  const tencache_live& live;
  PagedThread& thread;
};

void sort_unique(std::vector<std::uint32_t>& tensors) {
  std::ranges::sort(tensors);
  const auto repeated = std::ranges::unique(tensors);
  tensors.erase(repeated.begin(), repeated.end());
}

// What the op has allocated, has not let go of and is not among the `returns` values on top of the stack stays: a
// library's workspace that later ops use unsaid (cuBLAS).
void keep_hidden(const torch::jit::Stack& stack, std::size_t returns, const tencache_live& live) {
  if (live.on_accelerator == 0) return;
  const std::vector<std::uint32_t>& allocated = PagedThread::get().op_tensors;
  if (allocated.empty()) return;
  Pager& pager = Pager::get();
  for (std::size_t i = stack.size() - returns; i < stack.size(); ++i) {
    visit_storages(stack[i], [&](const c10::Storage& storage, bool) { pager.see(*storage.unsafeGetStorageImpl()); });
  }
  std::vector<std::uint32_t> hidden = pager.unseen(allocated);
  sort_unique(hidden);
  if (!hidden.empty()) pager.check(live, live.keep(live.runtime, hidden.data(), hidden.size()));
}

void run_audited(const Intercepted& at, const OpTouch& touch, torch::jit::Stack* stack) {
  const OpAudit audit(at.info, touch);
  at.op.redispatchBoxed(at.below, stack);
  const std::vector<std::uint32_t> changed = audit.changed();
  if (changed.empty()) return;
  check(at.live, at.live.announce_write(at.live.runtime, changed.data(), changed.size()));
}

// What an op that goes on will still use.
Loan loan_of(const Intercepted& at, const OpTouch& touch) {
  Loan loan;
  if (!at.info.goes_on) return loan;
  loan.live = &at.live;
  loan.uses = touch.uses;
  for (const OpTouch::Argument& argument : touch.arguments) loan.storages.push_back(argument.hold());
  return loan;
}

void run_paged(const Intercepted& at, OpTouch& touch, torch::jit::Stack* stack, std::uint64_t part_bytes) {
  Loan loan = loan_of(at, touch);
  as_op(at.thread, at.live, Pager::get().name_of(at.live, at.info), touch, at.info.uninitialised, part_bytes, [&] {
    try {
      if (auditing() && Pager::get().on_cpu()) {
        run_audited(at, touch, stack);
      } else if (!load(at.info, at.below, at.live, Pager::get(), *stack)) {
        at.op.redispatchBoxed(at.below, stack);
      }
    } catch (...) {
      keep_hidden(*stack, 0, at.live);
      throw;
    }
    keep_hidden(*stack, at.info.return_count, at.live);
    if (at.info.goes_on) lend(std::move(loan), torch::jit::last(*stack, at.info.return_count), check);
  });
}

void run_in_groups(const Intercepted& at, OpTouch& touch, torch::jit::Stack* stack) {
  Pager& pager = Pager::get();
  const std::size_t count = at.info.argument_count, returns = at.info.return_count;
  const std::uint64_t group_bytes = pager.split_all_lists ? 0 : at.live.group_bytes;
  const std::vector<Group> groups = groups_of(*stack, count, returns, touch, group_bytes);
  if (groups.size() <= 1) return run_paged(at, touch, stack, groups.empty() ? 0 : groups.front().part_bytes);
  ++pager.split_ops;
  run_groups(*stack, count, returns, groups, [&](torch::jit::Stack& part, const Group& group) {
    touch.find(at.info, part, pager, at.live.moves != 0);
    run_paged(at, touch, &part, group.part_bytes);
  });
}

// In a child of the process: memory of the runtime stayed behind.
void refuse_paged(const OpSchema& info, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const ArgumentInfo& argument : info.arguments) {
    visit_storages(stack[first + argument.position], [&](const c10::Storage& storage, bool) {
      if (!Pager::get().is_left_behind(*storage.unsafeGetStorageImpl())) return;
      TORCH_CHECK(false, info.name, ": its argument '", argument.name,
                  "' is paged by tencache in the process that this one was forked from, and is not here: hand workers "
                  "copies, or start them by spawn");
    });
  }
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, paging_key);
  Pager& pager = Pager::get();
  PagedThread& thread = PagedThread::get();
  if (pager.live() == nullptr && thread.taker == nullptr && !pager.forked()) return op.redispatchBoxed(below, stack);
  OpSchema& info = op_schema(op);
  take_back_finished();
  if (!info.touches_memory) return op.redispatchBoxed(below, stack);
  if (thread.taker != nullptr) {
    const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
    return thread.taker->take(op, below, *stack);
  }
  const tencache_live* const live = pager.live();
  if (live == nullptr && pager.forked()) refuse_paged(info, *stack);
  if (live == nullptr || thread.ops_open > 0) return op.redispatchBoxed(below, stack);
  OpTouch& touch = thread.touch;
  touch.find(info, *stack, pager, live->moves != 0);
  if (touch.has_wrapper) return op.redispatchBoxed(below, stack);  // it is seen again inside
  const Intercepted at{op, below, info, *live, thread};
  if (info.on_lists) {
    run_in_groups(at, touch, stack);
  } else if (!store(info, below, *live, pager, *stack)) {
    run_paged(at, touch, stack, 0);
  }
}

}  // namespace

// For all threads, and not by what is in a thread's set of keys: autograd takes that down when a backward pass begins,
// and puts it back with each of its ops, so who woke in the middle of one would go on unseen. Takes some milliseconds.
// Threads without a guard may run ops meanwhile: to them the key does not matter, either way.
void set_intercepting(bool on) {
  static torch::Library* fallback = nullptr;  // never destroyed: PyTorch runs ops beyond the end of main
  delete fallback;                            // there is one at a time
  fallback = new torch::Library(torch::Library::IMPL, "_", paging_key, __FILE__, __LINE__);
  fallback->fallback(on ? torch::CppFunction::makeFromBoxedFunction<&intercept>()
                        : torch::CppFunction::makeFallthrough());
}

namespace {
[[maybe_unused]] const bool intercepting = (set_intercepting(true), true);
}  // namespace

// ---- What paging.h promises -----------------------------------------------------------------------------------------

void attach(const tencache_live& live, const Host& host) { Pager::get().attach(live, host); }
const tencache_live* attached() { return Pager::get().live(); }
void check(const tencache_live& live, int status) { Pager::get().check(live, status); }
void set_allocations(Allocations which) { Pager::get().allocations = which; }
std::uint64_t split_ops() { return Pager::get().split_ops; }
void split_all_lists(bool on) { Pager::get().split_all_lists = on; }

Guard::Guard() : include_(paging_key) {}
void set_guarded(bool on) { c10::impl::tls_set_dispatch_key_included(paging_key, on); }
// Threads that inherit the state of a thread inside an op (gloo's) are not.
bool guarded() {
  return c10::impl::tls_is_dispatch_key_included(paging_key) &&
         (PagedThread::get().ops_open > 0 || !c10::impl::tls_is_dispatch_key_excluded(paging_key));
}

void set_op_taker(OpTaker* taker) { PagedThread::get().taker = taker; }
bool between_ops() { return guarded() && PagedThread::get().ops_open == 0 && PagedThread::get().taker == nullptr; }

std::uint32_t tensor_of(const c10::Storage& storage) {
  return storage ? Pager::get().tensor_of_shared(*storage.unsafeGetStorageImpl()) : tencache_no_tensor;
}

std::vector<std::uint32_t> tensors_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> ids;
  for (const at::Tensor& tensor : tensors) {
    visit_storages(tensor, [&ids](const c10::Storage& storage, bool) {
      if (const std::uint32_t id = tensor_of(storage); id != tencache_no_tensor) ids.push_back(id);
    });
  }
  sort_unique(ids);
  return ids;
}

void find_at_their_places(const std::vector<at::Tensor>& tensors) {
  Pager& pager = Pager::get();
  const tencache_live* const live = pager.live();
  if (live == nullptr || live->moves == 0) return;
  for (const at::Tensor& tensor : tensors) {
    visit_storages(tensor, [&](const c10::Storage& storage, bool) {
      pager.find_at_its_place(*live, *storage.unsafeGetStorageImpl());
    });
  }
}

}  // namespace paging

// ---- What paged_storage.h promises ----------------------------------------------------------------------------------

c10::DataPtr allocate_paged(std::size_t bytes, c10::Device device, c10::DeleterFnPtr deleter) {
  using namespace paging;
  Pager& pager = Pager::get();
  PagedThread& thread = PagedThread::get();
  const tencache_live* const live = pager.live();
  const bool inside_op = thread.ops_open > 0;
  // Outside ops PyTorch allocates scalars that it wraps as tensors: paging them would cost more than they are.
  const bool scalar = !inside_op && bytes <= scalar_bytes;
  if (bytes == 0 || scalar || live == nullptr || device.type() != pager.host().device || !guarded()) return {};
  if (thread.taker != nullptr) return {};
  if (pager.allocations == Allocations::beside_paged && !thread.op_is_paged) return {};
  tencache_storage storage = {tencache_no_tensor, nullptr};
  pager.check(*live, live->allocate(live->runtime, bytes, inside_op ? 1 : 0, &storage));
  c10::DataPtr taken = pager.take_over(storage, inside_op, deleter);
  if (inside_op && live->on_accelerator != 0) thread.op_tensors.push_back(storage.tensor);  // keep_hidden asks
  return taken;
}

bool is_paged(const c10::DataPtr& data) noexcept { return paging::Pager::is_recorded(data); }
bool release_paged(void* address) noexcept { return paging::Pager::get().let_go(address); }

}  // namespace tencache
