#include "executor/torch/paging.h"

#include <ATen/MapAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "executor/torch/lent_tensors.h"
#include "executor/torch/paged_storage.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache {
namespace paging {
namespace {

// Above autograd, so that views, in-place ops and saved tensors are all seen from outside.
constexpr c10::DispatchKey paging_key = c10::DispatchKey::TESTING_ONLY_GenericMode;

constexpr std::size_t scalar_bytes = 64;
// Left in its file, a smaller one would be dropped and read again for the few bytes of room that it makes; a read takes
// as long as one of ten times these bytes.
constexpr std::size_t worth_reading_bytes = 16 * 1024;

constexpr std::uint32_t no_tensor = tencache_no_tensor;

std::atomic<const tencache_live*> active{nullptr};
Host host;                        // of the active one
std::atomic<bool> forked{false};  // this is a child of the process with the runtime
std::atomic<Allocations> paged_allocations{Allocations::all};
thread_local int ops_open = 0;                           // on this thread: allocations belong to the op
thread_local bool op_is_paged = false;                   // it uses memory of the runtime
thread_local std::vector<tencache_storage> op_storages;  // that this thread's op has allocated
thread_local OpTaker* op_taker = nullptr;

// ---- Storages -------------------------------------------------------------------------------------------------------

// From a storage's address, which never changes, to the runtime's tensor.
class Registry {
 public:
  struct Owner {
    const tencache_live* live = nullptr;  // nullptr: its runtime has ended
    std::uint32_t tensor = no_tensor;
  };

  void add(const void* address, Owner owner) {
    const std::lock_guard lock(mutex_);
    owners_[address] = owner;
  }
  // False if the address is not ours.
  bool let_go(const void* address) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(address);
    if (found == owners_.end()) return false;
    if (const tencache_live* live = found->second.live) live->release(live->runtime, found->second.tensor);
    owners_.erase(found);
    return true;
  }
  std::uint32_t find(const void* address, const tencache_live* live) const {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(address);
    return found == owners_.end() || found->second.live != live ? no_tensor : found->second.tensor;
  }
  // Memory of neither the runtime nor PyTorch's allocator, whose address somebody has: it must not move.
  void known_outside(const void* address) {
    const std::lock_guard lock(mutex_);
    outside_.insert(address);
  }
  bool is_known_outside(const void* address) const {
    const std::lock_guard lock(mutex_);
    return outside_.contains(address);
  }
  std::vector<std::uint32_t> tensors_of(const tencache_live* live) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> tensors;
    for (const auto& [address, owner] : owners_) {
      if (owner.live == live) tensors.push_back(owner.tensor);
    }
    std::ranges::sort(tensors);
    return tensors;
  }
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void orphan(const tencache_live* live) {
    const std::lock_guard lock(mutex_);
    for (auto& [address, owner] : owners_) {
      if (owner.live == live) owner.live = nullptr;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Owner> owners_;
  std::unordered_set<const void*> outside_;  // for good: that it was freed since is not known
};

// LibTorch keeps storages beyond the end of main: never destroyed.
Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

std::atomic<bool> exposing_all = false;

// The storage is that runtime's from here on.
void take_over(const tencache_live& live, const tencache_storage& storage) {
  registry().add(storage.address, {&live, storage.tensor});
  if (exposing_all) check(live, live.expose(live.runtime, storage.tensor));
}

// Its tensors stay in the process that has the runtime.
void leave_children_alone() {
  static const int registered = pthread_atfork([] { registry().lock(); }, [] { registry().unlock(); },
                                               [] {
                                                 registry().unlock();
                                                 const tencache_live* const live = active.exchange(nullptr);
                                                 if (live == nullptr) return;
                                                 registry().orphan(live);
                                                 forked = true;
                                               });
  static_cast<void>(registered);
}

c10::Allocator* plain_allocator = nullptr;

void let_go(void* address) {
  if (!release_paged(address)) plain_allocator->raw_deleter()(address);
}

c10::DataPtr hand_out(std::size_t bytes) {
  c10::DataPtr paged = allocate_paged(bytes, c10::Device(c10::DeviceType::CPU), &let_go);
  return paged ? std::move(paged) : plain_allocator->allocate(bytes);
}

// c10::Allocator::allocate is const in some versions of LibTorch and not in others; copy_data came later. Of each pair
// the one that the base class knows overrides it.
class PagedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) const { return hand_out(bytes); }
  c10::DataPtr allocate(std::size_t bytes) { return hand_out(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &let_go; }
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
};

// LibTorch's own accessors, whose names differ between its versions.
template <typename Storage>
c10::DataPtr& data_of(Storage& storage) {
  if constexpr (requires { storage.mutable_data_ptr(); }) {
    return storage.mutable_data_ptr();
  } else {
    return storage.data_ptr();
  }
}

bool is_plain(const c10::StorageImpl& storage) {
  return storage.data_ptr().get_deleter() == plain_allocator->raw_deleter();
}

// Memory of PyTorch's allocator whose address somebody has stays where it is: that it is freed by `let_go` tells it
// from other memory of the allocator, and is forgotten with it. False: it is of another allocator.
bool keep_in_place(c10::StorageImpl& storage) {
  if (std::as_const(storage).data_ptr().get_deleter() == &let_go) return true;
  return is_plain(storage) && data_of(storage).compare_exchange_deleter(plain_allocator->raw_deleter(), &let_go);
}

void install_allocator() {
  static const bool installed = [] {
    static PagedAllocator allocator;
    plain_allocator = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator, 100);
    return true;
  }();
  static_cast<void>(installed);
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

void add_use(std::vector<tencache_use>& uses, const tencache_use& use) {
  for (tencache_use& known : uses) {
    if (known.tensor != use.tensor) continue;
    known.read |= use.read;
    known.written |= use.written;
    return;
  }
  uses.push_back(use);
}

void collect_uses(const OpSchema& info, const torch::jit::Stack& stack, const tencache_live& live,
                  std::vector<tencache_use>& uses) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const ArgumentInfo& argument : info.arguments) {
    if (!argument.content) continue;
    visit_storages(stack[first + argument.position], [&](const c10::Storage& storage, bool whole) {
      const std::uint32_t tensor = registry().find(base_address(storage), &live);
      if (tensor == no_tensor) return;
      add_use(uses, {tensor, !(argument.overwritten && whole), argument.written});
    });
  }
}

// ---- Audit ----------------------------------------------------------------------------------------------------------

std::atomic<bool> auditing{false};
std::mutex findings_mutex;
std::vector<Finding> findings;

std::uint64_t checksum(const void* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  const auto* at = static_cast<const std::byte*>(data);
  const auto mix = [&sum](std::uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
    sum ^= sum >> 32;
  };
  for (; bytes >= sizeof(std::uint64_t); bytes -= sizeof(std::uint64_t), at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    mix(word);
  }
  for (; bytes > 0; --bytes, ++at) mix(std::to_integer<std::uint64_t>(*at));
  return sum;
}

// Checksums what an op says it only reads, before and after.
class OpAudit {
 public:
  OpAudit(OpSchema& info, const torch::jit::Stack& stack, const tencache_live& live,
          const std::vector<tencache_use>& uses)
      : info_(info) {
    const std::size_t first = stack.size() - info.argument_count;
    for (ArgumentInfo& argument : info.arguments) {
      if (!argument.content) continue;
      const c10::IValue& value = stack[first + argument.position];
      visit_storages(value, [&](const c10::Storage& storage, bool) {
        const std::uint32_t tensor = registry().find(base_address(storage), &live);
        const bool read_only = std::any_of(uses.begin(), uses.end(), [tensor](const tencache_use& use) {
          return use.tensor == tensor && use.written == 0;
        });
        if (tensor == no_tensor || !read_only) return;
        watched_.push_back({&argument, tensor, storage, checksum(base_address(storage), storage.nbytes())});
      });
    }
  }

  // Those that changed. Call while they are still pinned.
  std::vector<std::uint32_t> changed() const {
    std::vector<std::uint32_t> tensors;
    for (const Watched& watched : watched_) {
      if (checksum(base_address(watched.storage), watched.storage.nbytes()) == watched.sum) continue;
      tensors.push_back(watched.tensor);
      watched.argument->written = true;
      const Finding finding{info_.name, watched.argument->name};
      const std::lock_guard lock(findings_mutex);
      if (std::find(findings.begin(), findings.end(), finding) == findings.end()) findings.push_back(finding);
    }
    return tensors;
  }

 private:
  struct Watched {
    ArgumentInfo* argument;
    std::uint32_t tensor;
    c10::Storage storage;  // held: the op may let go of its inputs
    std::uint64_t sum;
  };
  OpSchema& info_;
  std::vector<Watched> watched_;
};

// ---- The fallback ---------------------------------------------------------------------------------------------------

// What the op has allocated, has not let go of and is not among the `returns` values on top of the stack: a library's
// workspace that later ops use unsaid (cuBLAS).
std::vector<std::uint32_t> hidden_storages(const torch::jit::Stack& stack, std::size_t returns,
                                           const tencache_live& live) {
  std::vector<std::uint32_t> hidden;
  if (op_storages.empty()) return hidden;
  std::set<const void*> returned;
  for (std::size_t i = stack.size() - returns; i < stack.size(); ++i) {
    visit_storages(stack[i], [&](const c10::Storage& storage, bool) { returned.insert(base_address(storage)); });
  }
  for (const tencache_storage& storage : op_storages) {
    const bool alive = registry().find(storage.address, &live) == storage.tensor;
    if (alive && !returned.contains(storage.address)) hidden.push_back(storage.tensor);
  }
  std::sort(hidden.begin(), hidden.end());
  hidden.erase(std::unique(hidden.begin(), hidden.end()), hidden.end());
  return hidden;
}

void keep(const tencache_live& live, const std::vector<std::uint32_t>& hidden) {
  if (!hidden.empty()) check(live, live.keep(live.runtime, hidden.data(), hidden.size()));
}

// One op of ours or of PyTorch's: `call` runs with all that it uses there. `part_bytes`: it would run as well in parts, of
// which the largest uses so much; 0: it would not.
template <typename Call>
void as_op(const tencache_live& live, const std::string& name, const std::vector<tencache_use>& uses, bool linger,
           std::uint64_t part_bytes, const Call& call) {
  check(live, live.begin_op(live.runtime, name.data(), name.size(), uses.data(), uses.size(), part_bytes));
  const bool paged_before = std::exchange(op_is_paged, op_is_paged || !uses.empty());
  if (ops_open++ == 0) op_storages.clear();
  try {
    const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
    call();
  } catch (...) {
    --ops_open;
    op_is_paged = paged_before;
    live.end_op(live.runtime, 0);
    throw;
  }
  --ops_open;
  op_is_paged = paged_before;
  check(live, live.end_op(live.runtime, linger ? 1 : 0));
}

// What an op that goes on will still use.
Loan loan_of(const OpSchema& info, const torch::jit::Stack& stack, const tencache_live& live,
             const std::vector<tencache_use>& uses) {
  Loan loan{&live, uses, {}};
  const std::size_t first = stack.size() - info.argument_count;
  for (const ArgumentInfo& argument : info.arguments) {
    visit_storages(stack[first + argument.position],
                   [&loan](const c10::Storage& storage, bool) { loan.storages.push_back(storage); });
  }
  return loan;
}

void run_paged(OpSchema& info, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
               const tencache_live& live, std::uint64_t part_bytes = 0) {
  thread_local std::vector<tencache_use> uses;
  uses.clear();
  collect_uses(info, *stack, live, uses);
  Loan loan = info.goes_on ? loan_of(info, *stack, live, uses) : Loan();
  as_op(live, info.name, uses, info.uninitialised, part_bytes, [&] {
    try {
      if (auditing && host.device == c10::DeviceType::CPU) {
        const OpAudit audit(info, *stack, live, uses);
        op.redispatchBoxed(below, stack);
        const std::vector<std::uint32_t> changed = audit.changed();
        if (!changed.empty()) check(live, live.announce_write(live.runtime, changed.data(), changed.size()));
      } else {
        op.redispatchBoxed(below, stack);
      }
    } catch (...) {
      if (live.on_accelerator != 0) keep(live, hidden_storages(*stack, 0, live));
      throw;
    }
    const std::size_t returns = op.schema().returns().size();
    if (live.on_accelerator != 0) keep(live, hidden_storages(*stack, returns, live));
    if (info.goes_on) lend(std::move(loan), torch::jit::last(*stack, returns), check);
  });
}

// ---- Ops on lists ---------------------------------------------------------------------------------------------------

// How long its lists are; 0: no list, or lists of several lengths.
std::size_t list_length(const torch::jit::Stack& stack, std::size_t first) {
  std::size_t length = 0;
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isList() || stack[i].toListRef().empty()) continue;
    const std::size_t mine = stack[i].toListRef().size();
    if (length != 0 && mine != length) return 0;
    length = mine;
  }
  return length;
}

std::uint64_t in_pages(std::uint64_t bytes) {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

std::uint64_t element_bytes(const torch::jit::Stack& stack, std::size_t first, std::size_t element,
                            const tencache_live& live) {
  std::uint64_t bytes = 0;
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isList() || stack[i].toListRef().empty()) continue;
    visit_storages(stack[i].toListRef()[element], [&](const c10::Storage& storage, bool) {
      if (registry().find(base_address(storage), &live) != no_tensor) bytes += in_pages(storage.nbytes());
    });
  }
  return bytes;
}

// Of what the op makes of an element of its lists: as much as the first of its tensors.
std::uint64_t result_bytes(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t first,
                           std::size_t element) {
  if (op.schema().returns().empty()) return 0;
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (!stack[i].isList() || stack[i].toListRef().empty()) continue;
    const c10::IValue& value = stack[i].toListRef()[element];
    if (value.isTensor() && value.toTensor().defined()) return in_pages(value.toTensor().nbytes());
  }
  return 0;
}

c10::IValue part_of(const c10::IValue& value, std::size_t begin, std::size_t end) {
  if (!value.isList() || value.toListRef().empty()) return value;
  c10::impl::GenericList part(value.toList().elementType());
  for (std::size_t i = begin; i < end; ++i) part.push_back(value.toListRef()[i]);
  return part;
}

std::atomic<std::uint64_t> groups_split = 0;
std::atomic<bool> one_by_one = false;

struct Group {
  std::size_t end = 0;
  std::uint64_t part_bytes = 0;  // of its largest element, if it has several
};

std::vector<Group> groups_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t first,
                             const tencache_live& live) {
  const std::uint64_t most_bytes = one_by_one ? 0 : live.group_bytes;
  std::vector<Group> groups;
  std::size_t begin = 0;
  std::uint64_t bytes = 0, largest = 0;
  const std::size_t length = list_length(stack, first);
  for (std::size_t i = 0; i < length; ++i) {
    const std::uint64_t more = element_bytes(stack, first, i, live);
    if (i == 0 || (bytes != 0 && bytes + more > most_bytes)) {
      groups.emplace_back();
      begin = i;
      bytes = largest = 0;
    }
    bytes += more;
    largest = std::max(largest, more + result_bytes(op, stack, first, i));
    groups.back() = {i + 1, i > begin ? largest : 0};
  }
  return groups;
}

void run_in_groups(OpSchema& info, const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
                   const tencache_live& live) {
  const std::size_t first = stack->size() - info.argument_count;
  const std::vector<Group> groups = groups_of(op, *stack, first, live);
  if (groups.size() <= 1) {
    return run_paged(info, op, below, stack, live, groups.empty() ? 0 : groups.front().part_bytes);
  }
  ++groups_split;
  const std::size_t returns = op.schema().returns().size();
  std::vector<c10::IValue> results;
  std::size_t begin = 0;
  for (const auto& [end, part_bytes] : groups) {
    torch::jit::Stack part;
    for (std::size_t i = first; i < stack->size(); ++i) part.push_back(part_of((*stack)[i], begin, end));
    run_paged(info, op, below, &part, live, part_bytes);
    for (std::size_t i = 0; i < returns; ++i) {
      c10::IValue& value = part[part.size() - returns + i];
      if (begin == 0) {
        results.push_back(std::move(value));
      } else if (value.isList()) {
        c10::impl::GenericList all = results[i].toList();
        for (const c10::IValue& element : value.toListRef()) all.push_back(element);
      }
    }
    begin = end;
  }
  torch::jit::drop(*stack, info.argument_count);
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

// Wrappers (of vmap, of tensor subclasses) have no memory themselves: their own kernels call ops on what they wrap.
bool has_wrapper(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() && tensor.layout() == c10::kStrided && !tensor.has_storage();
  }
  return value.isTensorList() && std::ranges::any_of(value.toListRef(), has_wrapper);
}

bool has_wrapper(const OpSchema& info, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - info.argument_count;
  return std::ranges::any_of(
      info.arguments, [&](const ArgumentInfo& argument) { return has_wrapper(stack[first + argument.position]); });
}

// In a child of the process: memory of the runtime stayed behind.
void refuse_paged(const OpSchema& info, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - info.argument_count;
  for (const ArgumentInfo& argument : info.arguments) {
    visit_storages(stack[first + argument.position], [&](const c10::Storage& storage, bool) {
      if (registry().find(base_address(storage), nullptr) == no_tensor) return;
      TORCH_CHECK(false, info.name, ": its argument '", argument.name,
                  "' is paged by tencache in the process that this one was forked from, and is not here: hand workers "
                  "copies, or start them by spawn");
    });
  }
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, paging_key);
  const tencache_live* const live = active;
  OpSchema& info = op_schema(op);
  take_back_finished();
  if (op_taker != nullptr && info.touches_memory) {
    const c10::impl::ExcludeDispatchKeyGuard not_inside(paging_key);
    op_taker->take(op, below, *stack);
  } else if (live == nullptr || !info.touches_memory) {
    if (forked && info.touches_memory) refuse_paged(info, *stack);
    op.redispatchBoxed(below, stack);
  } else if (ops_open > 0 || has_wrapper(info, *stack)) {  // inside an op it is seen again where vmap is at work
    op.redispatchBoxed(below, stack);
  } else if (info.on_lists) {
    run_in_groups(info, op, below, stack, *live);
  } else {
    run_paged(info, op, below, stack, *live);
  }
}

// ---- Adoption -------------------------------------------------------------------------------------------------------

// Of storages that are a part of another one (storage[2:8] in Python, which is how files that are mapped are read).
c10::DeleterFnPtr part_deleter = nullptr;

// What it is a part of; nullptr: it is none.
const c10::StorageImpl* whole_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (part_deleter == nullptr || data.get_deleter() != part_deleter) return nullptr;
  return static_cast<const c10::StorageImpl*>(data.get_context());
}

// That PyTorch has mapped, whole or a part of what it has mapped.
bool is_mapped(const c10::StorageImpl& storage) {
  const c10::StorageImpl* const whole = whole_of(storage);
  return at::MapAllocator::fromDataPtr((whole != nullptr ? *whole : storage).data_ptr()) != nullptr;
}

// Storages of one mapping may have bytes in common, and whoever holds the mapping can make more of them at any time. So
// a part of it is memory of its own only where all parts are known, nothing else holds the mapping, and they do not
// overlap.
class MappedParts {
 public:
  explicit MappedParts(const std::vector<at::Tensor>& all) {
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
  bool is_shared(const c10::StorageImpl& storage) const {
    const c10::StorageImpl* const whole = whole_of(storage);
    return parts_.contains(&storage) || (whole != nullptr && (!parts_.contains(whole) || shared_.contains(whole)));
  }

 private:
  using Parts = std::set<const c10::StorageImpl*>;
  static bool overlap(const Parts& parts) {
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

  std::map<const c10::StorageImpl*, Parts> parts_;  // by what they are parts of
  std::set<const c10::StorageImpl*> shared_;
};

// A private mapping of a file: its pages are this process's once they are written, and the file's until then.
struct PrivateFile {
  std::string path;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // in the file, of the first byte that was asked for
};

// That the bytes lie in; none where they lie elsewhere.
std::optional<PrivateFile> private_file_at(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long first = 0, last = 0, offset = 0, inode = 0;
    char access[5] = {};
    int path_at = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %llx %*s %llu %n", &first, &last, access, &offset, &inode, &path_at) !=
        5) {
      continue;
    }
    if (begin < first || begin >= last) continue;
    if (inode == 0 || access[3] != 'p' || begin + bytes > last) return std::nullopt;
    return PrivateFile{line.substr(static_cast<std::size_t>(path_at)), inode, offset + (begin - first)};
  }
  return std::nullopt;
}

// A file that is read.
class Opened {
 public:
  explicit Opened(const char* path) : descriptor_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Opened() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  bool read(void* to, std::size_t bytes, std::uint64_t offset) const {
    return ::pread(descriptor_, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }
  std::uint64_t inode() const {
    struct stat status {};
    return ::fstat(descriptor_, &status) == 0 ? status.st_ino : 0;
  }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// Has the process written a page of the mapping, so that the file no longer has its content?
bool written_since(const void* address, std::size_t bytes) {
  constexpr std::uint64_t swapped = 1ull << 62, present = 1ull << 63, of_the_file = 1ull << 61;
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t first = begin / page_bytes, end = (begin + bytes + page_bytes - 1) / page_bytes;
  const Opened pages("/proc/self/pagemap");  // which is read in whole entries only
  std::vector<std::uint64_t> entries(1024);
  for (std::uintptr_t page = first; page < end;) {
    const std::size_t count = std::min<std::uintptr_t>(entries.size(), end - page);
    const std::size_t wanted = count * sizeof(std::uint64_t);
    if (!pages.read(entries.data(), wanted, page * sizeof(std::uint64_t))) return true;  // not known
    for (std::size_t i = 0; i < count; ++i) {
      if ((entries[i] & swapped) != 0) return true;
      if ((entries[i] & present) != 0 && (entries[i] & of_the_file) == 0) return true;
    }
    page += count;
  }
  return false;
}

// The file, open for reading, if it still is the one that is mapped; -1 otherwise.
int open_mapped(const PrivateFile& file, const void* address, std::size_t bytes) {
  Opened opened(file.path.c_str());
  if (opened.inode() != file.inode) return -1;
  std::vector<std::byte> sample(std::min<std::size_t>(bytes, 4096));
  const auto same = [&](std::size_t at) {
    return opened.read(sample.data(), sample.size(), file.offset + at) &&
           std::memcmp(sample.data(), static_cast<const std::byte*>(address) + at, sample.size()) == 0;
  };
  return same(0) && same(bytes - sample.size()) ? opened.release() : -1;
}

// Leaves the content where it is, in the file. False where that cannot be.
bool store_in_file(const tencache_live& live, const PrivateFile& file, const void* from, std::size_t bytes,
                   c10::DataPtr& stored) {
  if (written_since(from, bytes)) return false;
  const int descriptor = open_mapped(file, from, bytes);
  if (descriptor < 0) return false;
  tencache_storage made = {no_tensor, nullptr};
  check(live, live.store_in_file(live.runtime, bytes, descriptor, file.path.c_str(), file.offset, &made));
  if (made.tensor == no_tensor) return false;
  take_over(live, made);
  stored = {made.address, made.address, &let_go, c10::Device(host.device)};
  return true;
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

// ---- What paging.h promises -----------------------------------------------------------------------------------------

void attach(const tencache_live& live, const Host& to) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const tencache_live* const present = active;
  if (present == &live && to.device == host.device) return;
  if (present == &live) throw Error("a live runtime pages the tensors of one device only");
  if (present != nullptr) {
    throw Error("a thread is guarded by a second live runtime while the first one still exists");
  }
  groups_split = 0;
  exposing_all = false;
  if (to.device == c10::DeviceType::CPU) {
    install_allocator();
  } else {
    if (live.on_accelerator == 0) throw Error("the runtime has no GPU for PyTorch's CUDA tensors");
    to.install_allocator();
  }
  leave_children_alone();
  host = to;
  active = &live;
  live.set_close_listener(
      live.runtime,
      [](void* closing) {
        if (host.let_go_of_workspaces != nullptr) host.let_go_of_workspaces();
        active = nullptr;
        registry().orphan(static_cast<const tencache_live*>(closing));
        forget_loans(*static_cast<const tencache_live*>(closing));
      },
      const_cast<tencache_live*>(&live));
}

const tencache_live* attached() { return active; }

void check(const tencache_live& live, int status) {
  if (status != tencache_ok) host.raise(live, status);
}

void set_allocations(Allocations which) { paged_allocations = which; }

Guard::Guard() : include_(paging_key) {}

void set_op_taker(OpTaker* taker) { op_taker = taker; }
bool between_ops() { return guarded() && ops_open == 0 && op_taker == nullptr; }

void set_guarded(bool on) { c10::impl::tls_set_dispatch_key_included(paging_key, on); }
// Threads that inherit the state of a thread inside an op (gloo's) are not.
bool guarded() {
  return c10::impl::tls_is_dispatch_key_included(paging_key) &&
         (ops_open > 0 || !c10::impl::tls_is_dispatch_key_excluded(paging_key));
}

std::uint32_t tensor_of(const c10::Storage& storage) {
  return storage ? registry().find(base_address(storage), active) : no_tensor;
}

std::vector<std::uint32_t> tensors_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::uint32_t> ids;
  for (const at::Tensor& tensor : tensors) {
    visit_storages(tensor, [&ids](const c10::Storage& storage, bool) {
      if (const std::uint32_t id = tensor_of(storage); id != no_tensor) ids.push_back(id);
    });
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void know_parts(const at::Tensor& part, const c10::StorageImpl* whole) {
  const c10::DataPtr& data = part.storage().unsafeGetStorageImpl()->data_ptr();
  part_deleter = data.get_context() == whole ? data.get_deleter() : nullptr;
}

namespace {

void move_to_runtime(c10::StorageImpl& storage, const tencache_live& live) {
  const void* const from = std::as_const(storage).data();
  c10::DataPtr moved;
  as_op(live, "adopt", {}, false, 0, [&] {
    tencache_storage made = {no_tensor, nullptr};
    check(live, live.allocate(live.runtime, storage.nbytes(), 1, &made));
    take_over(live, made);
    moved = {made.address, made.address, &let_go, c10::Device(host.device)};
    std::memcpy(made.address, from, storage.nbytes());
  });
  storage.set_data_ptr_noswap(std::move(moved));
}

Adoption adopt_mapped_storage(c10::StorageImpl& storage, const tencache_live& live) {
  const void* const from = std::as_const(storage).data();
  const std::size_t bytes = storage.nbytes();
  const std::optional<PrivateFile> file = private_file_at(from, bytes);
  if (!file) return Adoption::foreign;
  c10::DataPtr stored;
  if (bytes >= worth_reading_bytes && store_in_file(live, *file, from, bytes, stored)) {
    storage.set_data_ptr_noswap(std::move(stored));
    return Adoption::left_in_file;
  }
  move_to_runtime(storage, live);
  return Adoption::adopted;
}

}  // namespace

Adoption adopt(c10::StorageImpl& storage) {
  const tencache_live* const live = active;
  const void* const from = std::as_const(storage).data();
  if (live == nullptr || storage.device_type() != host.device || storage.nbytes() == 0 || from == nullptr) {
    return Adoption::empty;
  }
  if (registry().find(from, live) != no_tensor) return Adoption::paged_before;
  if (is_lent(from) || host.device != c10::DeviceType::CPU) return Adoption::foreign;
  if (registry().is_known_outside(from)) return Adoption::foreign;
  if (is_mapped(storage)) return Adoption::mapped;
  if (!is_plain(storage)) return Adoption::foreign;
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
      if (how == Adoption::mapped) how = parts.is_shared(impl) ? Adoption::foreign : adopt_mapped_storage(impl, *active);
      adopted.push_back({how, impl.nbytes()});
    });
  }
  return adopted;
}

std::uint64_t split_ops() { return groups_split; }
void split_all_lists(bool on) { one_by_one = on; }

bool expose(c10::StorageImpl& storage) {
  const void* const address = std::as_const(storage).data();
  const tencache_live* const live = active;
  const std::uint32_t tensor = live == nullptr ? no_tensor : registry().find(address, live);
  if (tensor != no_tensor) {
    check(*live, live->expose(live->runtime, tensor));
    return true;
  }
  if (address != nullptr && (plain_allocator == nullptr || !keep_in_place(storage))) registry().known_outside(address);
  return false;
}

void expose_all() {
  const tencache_live* const live = active;
  if (live == nullptr || exposing_all.exchange(true)) return;
  for (const std::uint32_t tensor : registry().tensors_of(live)) check(*live, live->expose(live->runtime, tensor));
}

void give_back(c10::StorageImpl& storage) {
  const tencache_live* const live = active;
  const void* const from = std::as_const(storage).data();
  const std::uint32_t tensor = live == nullptr ? no_tensor : registry().find(from, live);
  if (tensor == no_tensor || is_lent(from) || host.device != c10::DeviceType::CPU) return;
  c10::DataPtr plain;
  as_op(*live, "give back", {{tensor, 1, 0}}, false, 0, [&] {
    plain = plain_allocator->allocate(storage.nbytes());
    std::memcpy(plain.get(), from, storage.nbytes());
  });
  storage.set_data_ptr_noswap(std::move(plain));
}

void set_audit(bool on) {
  const std::lock_guard lock(findings_mutex);
  if (on) findings.clear();
  auditing = on;
}

std::vector<Finding> audit_findings() {
  const std::lock_guard lock(findings_mutex);
  return findings;
}

}  // namespace paging

// ---- What paged_storage.h promises ----------------------------------------------------------------------------------

c10::DataPtr allocate_paged(std::size_t bytes, c10::Device device, c10::DeleterFnPtr deleter) {
  using namespace paging;
  const tencache_live* const live = active;
  // Outside ops PyTorch allocates scalars that it wraps as tensors: paging them would cost more than they are.
  const bool scalar = ops_open == 0 && bytes <= scalar_bytes;
  if (bytes == 0 || scalar || live == nullptr || device.type() != host.device || !guarded()) return {};
  if (op_taker != nullptr) return {};
  if (paged_allocations == Allocations::beside_paged && !op_is_paged) return {};
  tencache_storage storage = {no_tensor, nullptr};
  check(*live, live->allocate(live->runtime, bytes, ops_open > 0 ? 1 : 0, &storage));
  take_over(*live, storage);
  if (ops_open > 0) op_storages.push_back(storage);
  return {storage.address, storage.address, deleter, device};
}

bool release_paged(void* address) noexcept { return paging::registry().let_go(address); }

}  // namespace tencache
