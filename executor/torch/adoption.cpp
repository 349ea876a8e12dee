#include "executor/torch/adoption.h"

#include <ATen/MapAllocator.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>

#include "executor/mapped_file.h"
#include "executor/torch/lent_tensors.h"
#include "executor/torch/pager.h"
#include "executor/torch/recorder/op_schema.h"
#include "executor/torch/torch_cpu.h"

namespace tencache::paging {
namespace {

// What it is a part of (storage[2:8] in Python, which is how files that are mapped are read); nullptr: it is none.
const c10::StorageImpl* whole_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  const c10::DeleterFnPtr of_parts = Pager::get().deleter_of_parts;
  if (of_parts == nullptr || data.get_deleter() != of_parts) return nullptr;
  return static_cast<const c10::StorageImpl*>(data.get_context());
}

// Left in its file, a smaller one would be dropped and read again for the few bytes of room that it makes; a read takes
// as long as one of ten times these bytes.
constexpr std::size_t worth_reading_bytes = 16 * 1024;

// Addresses of memory that is neither the runtime's nor PyTorch's allocator's, which somebody has: it must not move.
// For good: that it was freed since is not known. Any thread may call.
class KnownOutside {
 public:
  static KnownOutside& get() {
    static auto* const instance = new KnownOutside;  // PyTorch runs beyond the end of main
    return *instance;
  }
  void add(const void* address) {
    const std::lock_guard lock(mutex_);
    addresses_.insert(address);
  }
  bool contains(const void* address) const {
    const std::lock_guard lock(mutex_);
    return addresses_.contains(address);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<const void*> addresses_;
};

// Leaves the content where it is, in the file. Empty where that cannot be.
c10::DataPtr store_in_file(const tencache_live& live, const MappedFile& file, const void* from, std::size_t bytes) {
  FileDescriptor opened = open_unwritten(file, from, bytes);
  if (!opened.open()) return {};
  Pager& pager = Pager::get();
  tencache_storage made = {tencache_no_tensor, nullptr};
  pager.check(live, live.store_in_file(live.runtime, bytes, opened.release(), file.path.c_str(), file.offset, &made));
  if (made.tensor == tencache_no_tensor) return {};
  return pager.take_over(made, true, &torch_cpu::let_go);
}

void move_to_runtime(c10::StorageImpl& storage, const tencache_live& live) {
  OpTouch nothing;
  as_op(PagedThread::get(), live, name_of(live, "adopt"), nothing, false, 0, [&] {
    Pager& pager = Pager::get();
    tencache_storage made = {tencache_no_tensor, nullptr};
    pager.check(live, live.allocate(live.runtime, storage.nbytes(), 1, &made));
    c10::DataPtr moved = pager.take_over(made, true, &torch_cpu::let_go);
    std::memcpy(made.address, std::as_const(storage).data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(moved));
    if (live.on_accelerator != 0) pager.see(storage);
  });
}

Adoption adopt_part(c10::StorageImpl& storage, const tencache_live& live) {
  const void* const from = std::as_const(storage).data();
  const std::size_t bytes = storage.nbytes();
  const std::optional<MappedFile> file = private_mapping_at(from, bytes);
  if (!file) return Adoption::foreign;
  c10::DataPtr stored = bytes < worth_reading_bytes ? c10::DataPtr() : store_in_file(live, *file, from, bytes);
  if (stored) {
    storage.set_data_ptr_noswap(std::move(stored));
    return Adoption::left_in_file;
  }
  move_to_runtime(storage, live);
  return Adoption::adopted;
}

}  // namespace

void know_parts(const at::Tensor& part, const c10::StorageImpl* whole) {
  const c10::DataPtr& data = std::as_const(*part.storage().unsafeGetStorageImpl()).data_ptr();
  Pager::get().deleter_of_parts = data.get_context() == whole ? data.get_deleter() : nullptr;
}

bool is_mapped(const c10::StorageImpl& storage) {
  const c10::StorageImpl* const whole = whole_of(storage);
  return at::MapAllocator::fromDataPtr((whole != nullptr ? *whole : storage).data_ptr()) != nullptr;
}

MappedParts::MappedParts(const std::vector<at::Tensor>& all) {
  for (const at::Tensor& tensor : all) {
    visit_storages(tensor, [this](const c10::Storage& storage, bool) {
      const c10::StorageImpl* const part = storage.unsafeGetStorageImpl();
      if (const c10::StorageImpl* const whole = whole_of(*part)) parts_[whole].insert(part);
    });
  }
  for (const auto& [whole, parts] : parts_) {
    if (c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(whole)) != parts.size() || overlap(parts)) {
      shared_.insert(whole);
    }
  }
}

bool MappedParts::is_shared(const c10::StorageImpl& storage) const {
  const c10::StorageImpl* const whole = whole_of(storage);
  return parts_.contains(&storage) || (whole != nullptr && (!parts_.contains(whole) || shared_.contains(whole)));
}

bool MappedParts::overlap(const Parts& parts) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  for (const c10::StorageImpl* const part : parts) {
    const auto begin = reinterpret_cast<std::uintptr_t>(part->data_ptr().get());
    ranges.emplace_back(begin, begin + part->nbytes());
  }
  std::ranges::sort(ranges);
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) return true;
  }
  return false;
}

Adoption adopt(c10::StorageImpl& storage) {
  Pager& pager = Pager::get();
  const tencache_live* const live = pager.live();
  const void* const from = std::as_const(storage).data();
  if (live == nullptr || storage.device_type() != pager.host().device || storage.nbytes() == 0 || from == nullptr) {
    return Adoption::empty;
  }
  if (pager.tensor_of_shared(storage) != tencache_no_tensor) return Adoption::paged_before;
  if (is_lent(from) || !pager.on_cpu()) return Adoption::foreign;
  if (KnownOutside::get().contains(from)) return Adoption::foreign;
  if (is_mapped(storage)) return Adoption::mapped;
  if (!torch_cpu::is_plain(storage)) return Adoption::foreign;
  move_to_runtime(storage, *live);
  return Adoption::adopted;
}

std::vector<Adopted> adopt_mapped(const std::vector<at::Tensor>& wanted, const std::vector<at::Tensor>& all) {
  const MappedParts parts(all);
  std::vector<Adopted> adopted;
  for (const at::Tensor& tensor : wanted) {
    visit_storages(tensor, [&](const c10::Storage& storage, bool) {
      c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
      Adoption how = adopt(impl);
      if (how == Adoption::mapped) {
        how = parts.is_shared(impl) ? Adoption::foreign : adopt_part(impl, *Pager::get().live());
      }
      adopted.push_back({how, impl.nbytes()});
    });
  }
  return adopted;
}

bool expose(c10::StorageImpl& storage) {
  const void* const address = std::as_const(storage).data();
  Pager& pager = Pager::get();
  if (const std::uint32_t tensor = pager.tensor_of_shared(storage); tensor != tencache_no_tensor) {
    const tencache_live& live = *pager.live();
    pager.check(live, live.expose(live.runtime, tensor));
    if (live.moves != 0) pager.find_at_its_place(live, storage);
    return true;
  }
  if (pager.forked() || address == nullptr) return false;  // there it is adopted no more
  if (!torch_cpu::keep_in_place(storage)) KnownOutside::get().add(address);
  return false;
}

std::uint64_t identity_of(const c10::StorageImpl& storage) {
  const std::uint32_t tensor = Pager::get().tensor_of_shared(storage);
  if (tensor == tencache_no_tensor) return 0;
  constexpr std::uint64_t nobodys = std::uint64_t{1} << 62;  // no address is so high
  constexpr unsigned storage_bits = 38;
  return nobodys + (std::uint64_t{tensor} << storage_bits);  // below 2^63 for 16 million tensors at a time
}

void expose_all() {
  Pager& pager = Pager::get();
  const tencache_live* const live = pager.live();
  if (live == nullptr) return;
  pager.check(*live, live->expose_all(live->runtime));
  if (live->moves != 0) pager.find_all_at_their_places(*live);
}

void give_back(c10::StorageImpl& storage) {
  Pager& pager = Pager::get();
  const tencache_live* const live = pager.live();
  const std::uint32_t tensor = pager.tensor_of_shared(storage);
  if (tensor == tencache_no_tensor || is_lent(std::as_const(storage).data()) || !pager.on_cpu()) return;
  OpTouch touch;
  touch.arguments = {{.storage = &storage, .tensor = tensor}};
  touch.uses = {{tensor, 1, 0, nullptr}};
  c10::DataPtr plain;
  as_op(PagedThread::get(), *live, name_of(*live, "give back"), touch, false, 0, [&] {
    plain = torch_cpu::allocate_plain(storage.nbytes());
    std::memcpy(plain.get(), std::as_const(storage).data(), storage.nbytes());
  });
  storage.set_data_ptr_noswap(std::move(plain));
}

}  // namespace tencache::paging
