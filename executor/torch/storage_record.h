// What says whose a storage is once it has moved: the context of its DataPtr. Until then its address does
// (StorageOwners), as the CPU's allocator hands it out.
//
// A storage's own address may be one that its tensor has left, and somebody else's by now. So who asks for the owner of
// a storage looks at the record first; addresses are for storages that others have made of the same memory.
#pragma once

#include "executor/torch/storage_owners.h"

namespace tencache::paging {

struct StorageRecord {
  StorageOwner owner;
  const void* address = nullptr;  // that the storage has
};

}  // namespace tencache::paging
