#include "executor/torch/pager.h"

#include <pthread.h>

#include <mutex>

#include "core/error.h"
#include "executor/torch/lent_tensors.h"
#include "executor/torch/op_audit.h"
#include "executor/torch/torch_cpu.h"

namespace tencache::paging {

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
  exposing_all_ = false;
  if (host.device == c10::DeviceType::CPU) {
    torch_cpu::install_allocator();
  } else {
    if (live.on_accelerator == 0) throw Error("the runtime has no GPU for PyTorch's CUDA tensors");
    host.install_allocator();
  }
  leave_children_alone();
  host_ = host;
  live_ = &live;
  live.set_close_listener(
      live.runtime, [](void* closing) { get().close(*static_cast<const tencache_live*>(closing)); },
      const_cast<tencache_live*>(&live));
  if (auditing()) return;  // it has to see the ops
  live.set_sleep_listener(
      live.runtime, [](void*, int asleep) { set_intercepting(asleep == 0); }, nullptr);
}

void Pager::close(const tencache_live& live) {
  if (host_.let_go_of_workspaces != nullptr) host_.let_go_of_workspaces();
  live_ = nullptr;
  storages_.orphan(live);
  forget_loans(live);
}

void Pager::leave_children_alone() {
  static const int registered = pthread_atfork([] { get().storages_.lock(); }, [] { get().storages_.unlock(); },
                                               [] {
                                                 Pager& pager = get();
                                                 pager.storages_.unlock();
                                                 const tencache_live* const live = pager.live_.exchange(nullptr);
                                                 if (live == nullptr) return;
                                                 pager.storages_.orphan(*live);
                                                 pager.forked_ = true;
                                               });
  static_cast<void>(registered);
}

c10::DataPtr Pager::take_over(const tencache_live& live, const tencache_storage& storage, c10::DeleterFnPtr let_go) {
  storages_.add(storage.address, live, storage.tensor);
  if (exposing_all_) check(live, live.expose(live.runtime, storage.tensor));
  return {storage.address, storage.address, let_go, c10::Device(host_.device)};
}

void Pager::expose_all(const tencache_live& live) {
  if (exposing_all_.exchange(true)) return;
  for (const std::uint32_t tensor : storages_.tensors_of(live)) check(live, live.expose(live.runtime, tensor));
}

}  // namespace tencache::paging
