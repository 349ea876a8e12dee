#include "executor/torch/pager.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
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
  records_.clear();
  has_records_ = live.moves != 0 || live.on_accelerator != 0;
  guard_ = live.guard(live.runtime);
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
  let_all_go();
  open_run_ = 0;
  while (letting_go_ != 0) std::this_thread::yield();
  live_ = nullptr;
  forget_loans(live);
}

void Pager::leave_children_alone() {
  static const int registered = pthread_atfork([] { get().addresses_.lock(); }, [] { get().addresses_.unlock(); },
                                               [] {
                                                 Pager& pager = get();
                                                 pager.addresses_.unlock();
                                                 pager.letting_go_ = 0;
                                                 pager.open_run_ = 0;
                                                 if (pager.live_.exchange(nullptr) != nullptr) pager.forked_ = true;
                                               });
  static_cast<void>(registered);
}

c10::DataPtr Pager::take_over(const tencache_storage& storage, bool inside_op, c10::DeleterFnPtr let_go) {
  if (deleter_.load(std::memory_order_relaxed) != let_go) deleter_ = let_go;
  const tencache_live& live = *live_;
  const StorageOwner owner{open_run_, storage.tensor};
  const c10::Device device(host_.device);
  if (!has_records_) {
    owners_.put(storage.address, owner);
    return {storage.address, storage.address, let_go, device};
  }
  auto made = std::make_unique<StorageRecord>();
  made->owner = owner;
  made->address = storage.address;
  made->kept = !inside_op && live.moves != 0 && live.on_accelerator != 0;
  made->in_storage = !on_cpu() || storage.address == guard_;
  const std::lock_guard lock(addresses_);
  if (storage.tensor >= records_.size()) records_.resize(storage.tensor + std::size_t{1});
  if (storage.address != guard_) owners_.put(storage.address, owner);
  StorageRecord* const record = records_[storage.tensor] = made.release();
  if (record->in_storage) return {record->address, record, &let_go_of_recorded, device};
  return {record->address, record->address, let_go, device};  // oneDNN insists
}

bool Pager::let_go(const void* address) noexcept {
  const StorageOwner owner = owners_.take(address);
  if (owner.run == 0) return false;
  std::unique_ptr<const StorageRecord> record;
  if (has_records_) {
    const std::lock_guard lock(addresses_);
    if (owner.run == open_run_) record.reset(record_at(owner.tensor));
    if (record != nullptr) forget(*record);
  }
  release(owner);
  return true;
}

void Pager::release(StorageOwner owner) noexcept {
  ++letting_go_;
  if (owner.run == open_run_) live()->release(live()->runtime, owner.tensor);
  --letting_go_;
}

// ---- Where tensors move ---------------------------------------------------------------------------------------------

void Pager::let_go_of_recorded(void* context) {
  const std::unique_ptr<const StorageRecord> record(static_cast<const StorageRecord*>(context));
  Pager& pager = get();
  {
    const std::lock_guard lock(pager.addresses_);
    pager.forget(*record);
  }
  if (pager.host_.before_release != nullptr) pager.host_.before_release(record.get());
  pager.release(record->owner);
}

// Its address may be another tensor's by now, and its number as well, of a later run.
void Pager::forget(const StorageRecord& record) {
  owners_.take(record.address, record.owner);
  if (record_at(record.owner.tensor) == &record) records_[record.owner.tensor] = nullptr;
}

// Null: it is not the runtime's, or does not follow.
StorageRecord* Pager::record_of(c10::StorageImpl& storage) {
  const c10::DataPtr& data = std::as_const(storage).data_ptr();
  if (auto* const record = data.cast_context<StorageRecord>(&let_go_of_recorded)) {
    return record->owner.run == open_run_ ? record : nullptr;
  }
  if (data.get_deleter() != deleter_) return nullptr;
  const StorageOwner owner = owners_.find(data.get());
  return owner.run == open_run_ ? record_at(owner.tensor) : nullptr;
}

bool Pager::uses(const OpTouch& touch, std::uint32_t tensor) {
  return std::ranges::any_of(touch.uses, [tensor](const tencache_use& use) { return use.tensor == tensor; });
}

void Pager::keep_in_place(const tencache_live& live, const OpTouch& touch) {
  std::vector<std::uint32_t> exposed, kept;
  {
    const std::lock_guard lock(addresses_);
    for (const OpTouch::Argument& argument : touch.arguments) {
      if (argument.tensor == tencache_no_tensor) continue;
      StorageRecord* const record = record_of(*argument.storage);
      if (record == nullptr) {
        exposed.push_back(argument.tensor);
      } else if (record->kept && uses(touch, argument.tensor)) {
        record->kept = false;
        point(*argument.storage, record->address);  // where it lies as yet
        kept.push_back(argument.tensor);
      }
    }
  }
  for (const std::uint32_t tensor : exposed) check(live, live.expose(live.runtime, tensor));
  if (!kept.empty()) check(live, live.unkeep(live.runtime, kept.data(), kept.size()));
}

void Pager::follow(const OpTouch& touch) {
  const std::lock_guard lock(addresses_);
  for (const OpTouch::Argument& argument : touch.arguments) {
    const auto use = std::ranges::find(touch.uses, argument.tensor, &tencache_use::tensor);
    if (use != touch.uses.end() && use->address != nullptr) point(*argument.storage, use->address);
  }
}

void Pager::leave(const tencache_live& live) {
  std::array<tencache_storage, 64> left;
  for (std::size_t count = left.size(); count == left.size();) {
    count = live.take_left(live.runtime, left.data(), left.size());
    if (count > 0) point_those(std::span(left).first(count));
  }
}

void Pager::find_all_at_their_places(const tencache_live& live) {
  std::vector<tencache_storage> all;
  {
    const std::lock_guard lock(addresses_);
    for (const StorageRecord* const record : records_) {
      if (record != nullptr) all.push_back({record->owner.tensor, live.address(live.runtime, record->owner.tensor)});
    }
  }
  point_those(all);
}

// A storage that is held may be the last to be held so, and Python may have a part in that: nobody waits for the mutex
// where storages are held or let go of.
void Pager::point_those(std::span<const tencache_storage> tensors) {
  struct Moving {
    tencache_storage to;
    c10::weak_intrusive_ptr<c10::StorageImpl> known;
    c10::intrusive_ptr<c10::StorageImpl> storage;
  };
  std::vector<Moving> moving;
  {
    const std::lock_guard lock(addresses_);
    for (const tencache_storage& one : tensors) {
      const StorageRecord* const record = record_at(one.tensor);
      if (record != nullptr && record->seen() && record->address != one.address) {
        moving.push_back({one, record->storage, {}});
      }
    }
  }
  for (Moving& one : moving) one.storage = one.known.lock();
  const std::lock_guard lock(addresses_);
  for (const Moving& one : moving) {
    const StorageRecord* const record = record_at(one.to.tensor);
    if (one.storage && record != nullptr && record_of(*one.storage) == record) point(*one.storage, one.to.address);
  }
}

void Pager::see(c10::StorageImpl& storage) {
  const std::lock_guard lock(addresses_);
  if (const StorageRecord* const record = record_of(storage)) point(storage, record->address);
}

std::vector<std::uint32_t> Pager::unseen(const std::vector<std::uint32_t>& tensors) {
  const std::lock_guard lock(addresses_);
  std::vector<std::uint32_t> found;
  for (const std::uint32_t tensor : tensors) {
    const StorageRecord* const record = record_at(tensor);
    if (record != nullptr && !record->seen()) found.push_back(tensor);
  }
  return found;
}

void Pager::find_at_its_place(const tencache_live& live, c10::StorageImpl& storage) {
  const std::lock_guard lock(addresses_);
  if (const StorageRecord* const record = record_of(storage)) {
    point(storage, live.address(live.runtime, record->owner.tensor));
  }
}

void Pager::point(c10::StorageImpl& storage, void* address) {
  StorageRecord* const record = record_of(storage);
  if (record == nullptr) return;  // kept in place
  if (record->storage._unsafe_get_target() != &storage) {
    record->storage = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(&storage));
  }
  if (record->address == address && (record->in_storage || live()->moves == 0)) return;
  c10::DataPtr& data = torch_cpu::data_of(storage);
  owners_.take(record->address, record->owner);
  if (address != guard_) owners_.put(address, record->owner);
  record->address = address;
  record->in_storage = true;
  const c10::Device device = data.device();
  static_cast<void>(data.release_context());
  data = c10::DataPtr(address, record, &let_go_of_recorded, device);
}

// The run ends. Nobody gets at what outlives it.
void Pager::let_all_go() {
  if (!has_records_) return;
  if (guard_ != nullptr) {
    std::vector<tencache_storage> all;
    for (std::uint32_t tensor = 0; tensor < records_.size(); ++tensor) all.push_back({tensor, guard_});
    point_those(all);
  }
  const std::lock_guard lock(addresses_);
  for (StorageRecord* const record : records_) {
    if (record != nullptr && !record->in_storage) delete record;
  }
  records_.clear();
}

}  // namespace tencache::paging
