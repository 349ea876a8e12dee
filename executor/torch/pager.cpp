#include "executor/torch/pager.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "executor/torch/lent_tensors.h"
#include "executor/torch/op_audit.h"
#include "executor/torch/torch_cpu.h"

namespace tencache::paging {

constinit StorageOwners Pager::owners_;

Pager& Pager::get() {
  static Pager* const instance = new Pager;
  return *instance;
}

PagedThread& PagedThread::get() {
  thread_local PagedThread instance;
  return instance;
}

void Pager::attach(const tencache_live& live, const Host& host) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const tencache_live* const present = live_;
  if (present == &live && host.device == host_.device) return;
  if (present == &live) throw Error("a live runtime pages the tensors of one device only");
  if (present != nullptr) {
    throw Error("a thread is guarded by a second live runtime while the first one still exists");
  }
  ++run_;
  split_ops = 0;
  if (host.device == c10::DeviceType::CPU) {
    torch_cpu::install_allocator();
  } else {
    if (live.on_accelerator == 0) throw Error("the runtime has no GPU for PyTorch's CUDA tensors");
    host.install_allocator();
  }
  leave_children_alone();
  host_ = host;
  live_ = &live;
  open_run_ = run_;
  live.set_close_listener(
      live.runtime, [](void* closing) { get().close(*static_cast<const tencache_live*>(closing)); },
      const_cast<tencache_live*>(&live));
  if (auditing()) return;  // it has to see the ops
  live.set_sleep_listener(
      live.runtime, [](void*, int asleep) { set_intercepting(asleep == 0); }, nullptr);
}

void Pager::close(const tencache_live& live) {
  if (host_.let_go_of_workspaces != nullptr) host_.let_go_of_workspaces();
  open_run_ = 0;
  while (letting_go_ != 0) std::this_thread::yield();
  live_ = nullptr;
  forget_loans(live);
}

void Pager::leave_children_alone() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    Pager& pager = get();
    pager.letting_go_ = 0;
    pager.open_run_ = 0;
    if (pager.live_.exchange(nullptr) != nullptr) pager.forked_ = true;
  });
  static_cast<void>(registered);
}

c10::DataPtr Pager::take_over(const tencache_storage& storage, c10::DeleterFnPtr let_go) {
  if (deleter_.load(std::memory_order_relaxed) != let_go) deleter_ = let_go;
  owners_.put(storage.address, {open_run_, storage.tensor});
  return {storage.address, storage.address, let_go, c10::Device(host_.device)};
}

bool Pager::let_go(const void* address) noexcept {
  const StorageOwner owner = owners_.take(address);
  if (owner.run == 0) return false;
  release(owner);
  return true;
}

void Pager::release(StorageOwner owner) noexcept {
  ++letting_go_;
  if (owner.run == open_run_) live()->release(live()->runtime, owner.tensor);
  --letting_go_;
}

// ---- Where tensors move ---------------------------------------------------------------------------------------------

void Pager::let_go_of_moved(void* context) {
  const std::unique_ptr<const StorageRecord> record(static_cast<const StorageRecord*>(context));
  owners_.take(record->address, record->owner);
  get().release(record->owner);
}

void Pager::keep_in_place(const tencache_live& live, const OpTouch& touch) {
  std::vector<std::uint32_t> tensors;
  {
    const std::lock_guard lock(addresses_);
    for (const OpTouch::Argument& argument : touch.arguments) {
      if (argument.tensor == tencache_no_tensor) continue;
      const c10::DeleterFnPtr deleter = std::as_const(*argument.storage).data_ptr().get_deleter();
      if (deleter != deleter_ && deleter != &let_go_of_moved) tensors.push_back(argument.tensor);
    }
  }
  for (const std::uint32_t tensor : tensors) check(live, live.expose(live.runtime, tensor));
}

void Pager::follow(const OpTouch& touch) {
  const std::lock_guard lock(addresses_);
  for (const OpTouch::Argument& argument : touch.arguments) {
    const auto use = std::ranges::find(touch.uses, argument.tensor, &tencache_use::tensor);
    if (use != touch.uses.end()) point(*argument.storage, use->address);
  }
}

void Pager::point(c10::StorageImpl& storage, void* address) {
  c10::DataPtr& data = torch_cpu::data_of(storage);
  auto* record = data.cast_context<StorageRecord>(&let_go_of_moved);
  if (record == nullptr && data.get_deleter() != deleter_) return;  // kept in place
  if (record != nullptr && record->address == address) return;
  if (record == nullptr) record = new StorageRecord{owners_.find(data.get()), data.get()};
  owners_.take(record->address, record->owner);
  owners_.put(address, record->owner);
  record->address = address;
  const c10::Device device = data.device();
  static_cast<void>(data.release_context());
  data = c10::DataPtr(address, record, &let_go_of_moved, device);
}

}  // namespace tencache::paging
