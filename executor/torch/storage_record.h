// What says whose a storage is, where tensors move: the context of its DataPtr.
//
// A storage's own address may be one that its tensor has left, and somebody else's by now. So who asks for the owner of
// a storage looks at the record first. Addresses (StorageOwners) are for storages that have no record in them: those
// that others have made of the same memory, and on the CPU those that no op has had as a result or an argument yet, as
// oneDNN insists that the context is the address then.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>

#include "executor/torch/storage_owners.h"

namespace tencache::paging {

struct StorageRecord {
  StorageOwner owner;
  void* address = nullptr;  // that the DataPtr has
  // Whose DataPtr has it for its context, as far as is known: an op has had it as a result or an argument. Nobody's
  // before, and again once it is destroyed; or that DataPtr is another one by now.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  bool in_storage = false;  // a DataPtr has it for its context
  bool kept = false;        // tencache_live::allocate has kept it

  bool seen() const { return storage._unsafe_get_target() != nullptr; }
};

}  // namespace tencache::paging
