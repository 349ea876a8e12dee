// Storages that were there before the runtime, and storages whose address code outside PyTorch gets: how they become
// the runtime's memory, and PyTorch's own again. Threads, errors: as paging.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace tencache::paging {

// Storages in files that PyTorch has mapped: torch.load(mmap=True), safetensors. A whole mapping is a storage, and
// tensors have storages that are parts of it. Any thread may call.

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

enum class Adoption { adopted, left_in_file, paged_before, empty, mapped, foreign };
// empty: no memory on the device whose tensors are paged. foreign: memory that is neither the CPU allocator's own nor
// mapped by PyTorch may be shared with somebody, and stays where it is; so does all that a GPU had before. mapped: it
// lies in a file that PyTorch has mapped, and is to be adopted with the others there: see `adopt_mapped`.
// Moves the content of a storage into the runtime's memory. Throws what `raise` throws.
Adoption adopt(c10::StorageImpl& storage);
// As `adopt`, and those in private mappings of files. `all`: all tensors of the program. Storages of one mapping may
// have bytes in common (a second read of the same weights); then, or if others may come because the file is still open,
// all of the mapping's are `foreign`. left_in_file: adopted, too, but nothing was copied: nobody has written to it, and
// the file is the storage's copy on disk from now on. Small ones are copied.
struct Adopted {
  Adoption how = Adoption::empty;
  std::uint64_t bytes = 0;
};
std::vector<Adopted> adopt_mapped(const std::vector<at::Tensor>& wanted, const std::vector<at::Tensor>& all);
// The storage's address gets known outside PyTorch (numpy's views): writes to it are noticed from now on; memory that
// is not the runtime's is never adopted, and the answer is false. On an accelerator it is brought in, and stays where
// it then is.
bool expose(c10::StorageImpl& storage);
// A number in place of its address, for who only compares addresses: the same as long as it lives, and with all of its
// bytes apart from those of others. 0: it is not the runtime's.
std::uint64_t identity_of(const c10::StorageImpl& storage);
// The same as `expose` for all storages of the runtime, those that are still to come as well, until it ends: code that
// is no op gets tensors of which nobody says so. Each op that writes, and each copy, then changes the protection of its
// pages.
void expose_all();
// The way back, for a storage of the runtime: memory of PyTorch's own. What is lent (lent_tensors.h) stays, and
// what is on a GPU.
void give_back(c10::StorageImpl& storage);

}  // namespace tencache::paging
