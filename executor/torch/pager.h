// The state of paging: what a process has (Pager) and what each of its threads has (PagedThread). Of the files that
// implement paging.h; nobody else includes it.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/torch/op_touch.h"
#include "executor/torch/paging.h"
#include "executor/torch/storage_owners.h"
#include "executor/torch/storage_record.h"

namespace tencache::paging {

// Above autograd, so that views, in-place ops and saved tensors are all seen from outside.
constexpr c10::DispatchKey paging_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Any thread may call, but for `attach`: one at a time.
class Pager {
 public:
  // Never destroyed: PyTorch keeps storages beyond the end of main.
  static Pager& get();

  // As paging.h.
  void attach(const tencache_live& live, const Host& host);
  const tencache_live* live() const { return live_; }
  // Of the runtime that is attached.
  const Host& host() const { return host_; }
  bool on_cpu() const { return host_.device == c10::DeviceType::CPU; }
  void check(const tencache_live& live, int status) const {
    if (status != tencache_ok) host_.raise(live, status);
  }
  // The runtime's number for an op's name: asked once for each op.
  std::uint32_t name_of(const tencache_live& live, OpSchema& op) const {
    const std::uint64_t known = op.numbered.load(std::memory_order_relaxed);
    if (known >> 32 == run_) return static_cast<std::uint32_t>(known);
    const std::uint32_t name = live.name_id(live.runtime, op.name.data(), op.name.size());
    op.numbered.store(std::uint64_t{run_} << 32 | name, std::memory_order_relaxed);
    return name;
  }
  // This is a child of the process with the runtime: its tensors stayed there.
  bool forked() const { return forked_; }

  // The attached runtime's tensor; tencache_no_tensor: it is not its memory. Where tensors move: holding `addresses`.
  std::uint32_t tensor_of(const c10::StorageImpl& storage) const {
    const StorageOwner owner = owner_of(storage);
    return owner.run == open_run_ ? owner.tensor : tencache_no_tensor;
  }
  // The same, of a storage that other threads may use.
  std::uint32_t tensor_of_shared(const c10::StorageImpl& storage) {
    const tencache_live* const live = live_;
    if (live == nullptr || live->moves == 0) return tensor_of(storage);
    const std::lock_guard lock(addresses_);
    return tensor_of(storage);
  }
  // It is the memory of a runtime that has ended, or that this process was forked from.
  bool is_left_behind(const c10::StorageImpl& storage) const {
    const StorageOwner owner = owner_of(storage);
    return owner.run != 0 && owner.run != open_run_;
  }
  // The storage is the attached runtime's from here on, made inside an op or outside. `let_go`: of its allocator.
  c10::DataPtr take_over(const tencache_storage& storage, bool inside_op, c10::DeleterFnPtr let_go);
  // It has a record.
  static bool is_recorded(const c10::DataPtr& data) { return data.get_deleter() == &let_go_of_recorded; }
  // PyTorch lets go of it. False if it is no runtime's.
  bool let_go(const void* address) noexcept;

  // ---- Where tensors move (tencache_live::moves), or there is an accelerator: each tensor has a StorageRecord.
  // The addresses of storages change under it, and are read: threads announce ops at the same time.
  std::mutex& addresses() { return addresses_; }
  // What the coming op touches is found, and its memory is that of storages which do not follow (of others' allocators,
  // copies on write): those tensors stay where they are.
  void keep_in_place(const tencache_live& live, const OpTouch& touch);
  // The op has begun, or could not: its storages lie where their tensors do.
  void follow(const OpTouch& touch);
  // The op has begun: who has left since the last one is not at an address that may be somebody else's.
  void leave(const tencache_live& live);
  // A tensor's storage, which an op has had for a result or an argument.
  void see(c10::StorageImpl& storage);
  // Those that no op has.
  std::vector<std::uint32_t> unseen(const std::vector<std::uint32_t>& tensors);
  // It stays where it is from now on, and its storage is there.
  void find_at_its_place(const tencache_live& live, c10::StorageImpl& storage);
  void find_all_at_their_places(const tencache_live& live);

  std::atomic<Allocations> allocations = Allocations::all;
  std::atomic<bool> split_all_lists = false;
  std::atomic<std::uint64_t> split_ops = 0;
  std::atomic<c10::DeleterFnPtr> deleter_of_parts = nullptr;  // adoption.h; null: not known

 private:
  Pager() = default;
  StorageOwner owner_of(const c10::StorageImpl& storage) const {
    const c10::DataPtr& data = storage.data_ptr();
    const StorageRecord* const record = data.cast_context<StorageRecord>(&let_go_of_recorded);
    return record != nullptr ? record->owner : owners_.find(data.get());
  }
  static void let_go_of_recorded(void* record);
  void release(StorageOwner owner) noexcept;
  StorageRecord* record_of(c10::StorageImpl& storage);
  StorageRecord* record_at(std::uint32_t tensor) const { return tensor < records_.size() ? records_[tensor] : nullptr; }
  static bool uses(const OpTouch& touch, std::uint32_t tensor);
  void forget(const StorageRecord& record);
  void point(c10::StorageImpl& storage, void* address);
  void point_those(std::span<const tencache_storage> tensors);
  void let_all_go();
  void leave_children_alone();
  void close(const tencache_live& live);

  std::atomic<const tencache_live*> live_ = nullptr;
  std::uint32_t run_ = 0;                    // goes up with each `attach` of another one
  std::atomic<std::uint32_t> open_run_ = 0;  // `run_` while it is attached, else 0
  std::atomic<int> letting_go_ = 0;          // threads that may call the runtime, which waits for them when it ends
  Host host_;
  std::atomic<bool> forked_ = false;
  std::atomic<c10::DeleterFnPtr> deleter_ = nullptr;  // of storages that have not moved
  std::mutex addresses_;
  std::vector<StorageRecord*> records_;    // of the runtime's tensors, by number; the others' are null
  std::atomic<bool> has_records_ = false;  // the tensors of the runtime that was attached last do
  void* guard_ = nullptr;                  // tencache_live::guard
  static constinit StorageOwners owners_;
};

// Whether ops of guarded threads come to `intercept`. If not, they cost what they cost without a guard. No guarded
// thread runs an op meanwhile, unless it is in the middle of one and has called this.
void set_intercepting(bool on);

struct PagedThread {
  int ops_open = 0;                       // allocations belong to the op
  bool op_is_paged = false;               // it uses memory of the runtime
  std::vector<std::uint32_t> op_tensors;  // that it has allocated on an accelerator
  OpTaker* taker = nullptr;
  OpTouch touch;  // of the op that is about to run

  // The calling one.
  static PagedThread& get();
};

// The same for a name of ours.
inline std::uint32_t name_of(const tencache_live& live, std::string_view name) {
  return live.name_id(live.runtime, name.data(), name.size());
}

// One op of ours or of PyTorch's, on the calling thread: `call` runs with all that it touches there. `part_bytes`: it
// would run as well in parts, of which the largest uses so much; 0: it would not.
template <typename Call>
void as_op(PagedThread& thread, const tencache_live& live, std::uint32_t name, OpTouch& touch, bool linger,
           std::uint64_t part_bytes, const Call& call) {
  Pager& pager = Pager::get();
  std::vector<tencache_use>& uses = touch.uses;
  if (live.moves != 0) pager.keep_in_place(live, touch);
  const int status = live.begin_op(live.runtime, name, uses.data(), uses.size(), part_bytes);
  if (live.moves != 0) pager.follow(touch);
  pager.check(live, status);
  if (live.moves != 0) pager.leave(live);
  const bool paged_before = std::exchange(thread.op_is_paged, thread.op_is_paged || !uses.empty());
  if (thread.ops_open++ == 0) thread.op_tensors.clear();
  try {
    const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
    call();
  } catch (...) {
    --thread.ops_open;
    thread.op_is_paged = paged_before;
    live.end_op(live.runtime, 0);
    throw;
  }
  --thread.ops_open;
  thread.op_is_paged = paged_before;
  pager.check(live, live.end_op(live.runtime, linger ? 1 : 0));
}

}  // namespace tencache::paging
