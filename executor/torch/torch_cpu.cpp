#include "executor/torch/torch_cpu.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <utility>

#include "executor/torch/paged_storage.h"

namespace tencache::torch_cpu {
namespace {

c10::Allocator* plain_allocator = nullptr;

c10::DataPtr hand_out(std::size_t bytes) {
  c10::DataPtr paged = allocate_paged(bytes, c10::Device(c10::DeviceType::CPU), &let_go);
  return paged ? std::move(paged) : allocate_plain(bytes);
}

// c10::Allocator::allocate is const in some versions of PyTorch and not in others; copy_data came later. Of each pair
// the one that the base class knows overrides it.
class PagedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const { return hand_out(bytes); }
  c10::DataPtr allocate(std::size_t bytes) { return hand_out(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};

template <typename Storage>
c10::DataPtr& mutable_data_of(Storage& storage) {
  if constexpr (requires { storage.mutable_data_ptr(); }) {
    return storage.mutable_data_ptr();
  } else {
    return storage.data_ptr();
  }
}

}  // namespace

void install_allocator() {
  static const bool installed = [] {
    static PagedAllocator allocator;
    plain_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator, 100);
    return true;
  }();
  static_cast<void>(installed);
}

c10::DataPtr allocate_plain(std::size_t bytes) { return plain_allocator->allocate(bytes); }

c10::DataPtr& data_of(c10::StorageImpl& storage) { return mutable_data_of(storage); }

void let_go(void* address) {
  if (!release_paged(address)) plain_allocator->raw_deleter()(address);
}

bool is_plain(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_deleter() == plain_allocator->raw_deleter();
}

// That it is freed by `let_go` tells it from other memory of the allocator, and is forgotten with it.
bool keep_in_place(c10::StorageImpl& storage) {
  if (plain_allocator == nullptr) return false;
  if (std::as_const(storage).data_ptr().get_deleter() == &let_go) return true;
  return is_plain(storage) && data_of(storage).compare_exchange_deleter(plain_allocator->raw_deleter(), &let_go);
}

}  // namespace tencache::torch_cpu
