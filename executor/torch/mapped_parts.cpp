#include "executor/torch/mapped_parts.h"

#include <ATen/MapAllocator.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "executor/torch/pager.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache::paging {
namespace {

// What it is a part of (storage[2:8] in Python, which is how files that are mapped are read); nullptr: it is none.
const c10::StorageImpl* whole_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  const c10::DeleterFnPtr of_parts = Pager::get().deleter_of_parts;
  if (of_parts == nullptr || data.get_deleter() != of_parts) return nullptr;
  return static_cast<const c10::StorageImpl*>(data.get_context());
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

}  // namespace tencache::paging
