// Storages in files that PyTorch has mapped: torch.load(mmap=True), safetensors. A whole mapping is a storage, and
// tensors have storages that are parts of it. Any thread may call.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <map>
#include <set>
#include <vector>

namespace tencache::paging {

// How storages that are parts of others are told from the rest: by one of them, a part of `whole`. Call it first.
void know_parts(const at::Tensor& part, const c10::StorageImpl* whole);
// PyTorch has mapped it, or what it is a part of.
bool is_mapped(const c10::StorageImpl& storage);

// Storages of one mapping may have bytes in common, and whoever holds the mapping can make more of them at any time. So
// a part of it is memory of its own only where all parts are known, nothing else holds the mapping, and they do not
// overlap.
class MappedParts {
 public:
  // `all`: all tensors of the program.
  explicit MappedParts(const std::vector<at::Tensor>& all);
  bool is_shared(const c10::StorageImpl& storage) const;

 private:
  using Parts = std::set<const c10::StorageImpl*>;
  static bool overlap(const Parts& parts);

  std::map<const c10::StorageImpl*, Parts> parts_;  // by what they are parts of
  std::set<const c10::StorageImpl*> shared_;
};

}  // namespace tencache::paging
