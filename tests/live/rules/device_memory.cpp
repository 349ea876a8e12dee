#include "tests/live/rules/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace tencache::rules {
namespace {

constexpr std::uint64_t first_physical = std::uint64_t{1} << 60;  // no address of a process
// Physical memory does not fragment: the file that stands in for it has room enough for first fit (Robson's bound).
constexpr Bytes slack = 8;
constexpr std::uint32_t poison_word = 0x7fa5a5a5;  // not a number

void* unreachable(void* at, Bytes bytes) {
  void* region = ::mmap(at, bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  TENCACHE_CHECK(region != MAP_FAILED);
  return region;
}

}  // namespace

void poison(std::span<std::byte> memory) {
  const std::size_t words = memory.size() / sizeof poison_word;
  for (std::size_t i = 0; i < words; ++i)
    std::memcpy(memory.data() + i * sizeof poison_word, &poison_word, sizeof poison_word);
  std::memcpy(memory.data() + words * sizeof poison_word, &poison_word, memory.size() % sizeof poison_word);
}

bool is_poison(std::span<const std::byte> memory) {
  const std::byte* at = memory.data();
  std::size_t left = memory.size();
  for (; left >= sizeof poison_word; at += sizeof poison_word, left -= sizeof poison_word) {
    if (std::memcmp(at, &poison_word, sizeof poison_word) != 0) return false;
  }
  return std::memcmp(at, &poison_word, left) == 0;
}

DeviceMemory::DeviceMemory(Bytes capacity, bool content)
    : capacity_(capacity), has_content_(content), memory_(content ? ::memfd_create("device memory", MFD_CLOEXEC) : -1) {
  free_[0] = capacity * slack;
  addresses_ = next_ = reinterpret_cast<CUdeviceptr>(unreachable(nullptr, address_bytes()));
  if (!content) return;
  TENCACHE_CHECK(memory_.get() >= 0 && ::ftruncate(memory_.get(), static_cast<off_t>(capacity * slack)) == 0);
  void* mapped =
      ::mmap(nullptr, capacity * slack, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory_.get(), 0);
  TENCACHE_CHECK(mapped != MAP_FAILED);
  content_ = static_cast<std::byte*>(mapped);
}

DeviceMemory::~DeviceMemory() {
  if (has_content_) ::munmap(content_, capacity_ * slack);
  if (addresses_kept_) {
    unreachable(reinterpret_cast<void*>(addresses_), address_bytes());
  } else {
    ::munmap(reinterpret_cast<void*>(addresses_), address_bytes());
  }
}

// Sanitizers allow no more.
Bytes DeviceMemory::address_bytes() const { return has_content_ ? 128 * GiB : 4096 * GiB; }

void DeviceMemory::spoil(const Handle& handle) const {
  if (has_content_) poison({content_ + handle.offset, handle.bytes});
}

CUdeviceptr DeviceMemory::reserve(Bytes bytes, Bytes alignment) {
  const CUdeviceptr address = round_up(next_, std::max<Bytes>(alignment, 1));
  TENCACHE_CHECK(address + bytes <= addresses_ + address_bytes());
  next_ = address + bytes;
  reservations[address] = bytes;
  return address;
}

bool DeviceMemory::reserved(Range range) const {
  const auto after = reservations.upper_bound(range.begin);
  return after != reservations.begin() &&
         range.begin + range.bytes <= std::prev(after)->first + std::prev(after)->second;
}

CUmemGenericAllocationHandle DeviceMemory::create(Bytes bytes) {
  const auto fits = std::ranges::find_if(free_, [&](const auto& extent) { return extent.second >= bytes; });
  TENCACHE_CHECK(fits != free_.end());
  const Handle made{fits->first, bytes};
  if (fits->second > bytes) free_[fits->first + bytes] = fits->second - bytes;
  free_.erase(fits);
  handles[++last_] = made;
  used_ += bytes;
  created_ += bytes;
  spoil(made);
  return last_;
}

void DeviceMemory::free_if_unused(CUmemGenericAllocationHandle handle) {
  const auto found = handles.find(handle);
  const Handle gone = found->second;
  if (gone.mapped || !gone.released) return;
  handles.erase(found);
  used_ -= gone.bytes;
  created_ -= gone.bytes;
  auto at = free_.emplace(gone.offset, gone.bytes).first;
  if (const auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  if (const auto before = std::prev(at); before->first + before->second == at->first) {
    before->second += at->second;
    free_.erase(at);
  }
}

bool DeviceMemory::overlaps_mapping(Range range) const {
  const auto next = mappings.lower_bound(range.begin);
  return (next != mappings.end() && next->first < range.begin + range.bytes) ||
         (next != mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > range.begin);
}

void DeviceMemory::map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
  Handle& of = handles.at(handle);
  of.mapped = true;
  mappings[address] = {of.bytes, handle, false};
}

void DeviceMemory::open(CUdeviceptr address) {
  Mapping& mapping = mappings.at(address);
  mapping.accessible = true;
  if (!has_content_) return;
  void* at = ::mmap(reinterpret_cast<void*>(address), mapping.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                    memory_.get(), static_cast<off_t>(handles.at(mapping.handle).offset));
  TENCACHE_CHECK(at != MAP_FAILED);
}

void DeviceMemory::unmap(CUdeviceptr address) {
  const Mapping gone = mappings.at(address);
  if (gone.accessible && has_content_) unreachable(reinterpret_cast<void*>(address), gone.bytes);
  mappings.erase(address);
  Handle& handle = handles.at(gone.handle);
  handle.mapped = false;
  spoil(handle);  // stricter than the driver, which keeps it: nobody may count on what it unmapped
  free_if_unused(gone.handle);
}

CUdeviceptr DeviceMemory::allocate(Bytes bytes) {
  Allocation made{bytes, std::make_unique<std::uint64_t[]>((bytes + 7) / 8)};
  poison({reinterpret_cast<std::byte*>(made.memory.get()), bytes});
  const auto address = reinterpret_cast<CUdeviceptr>(made.memory.get());
  allocations[address] = std::move(made);
  used_ += bytes;
  return address;
}

void DeviceMemory::free(CUdeviceptr address) {
  const auto found = allocations.find(address);
  used_ -= found->second.bytes;
  poison({reinterpret_cast<std::byte*>(found->second.memory.get()), found->second.bytes});
  allocations.erase(found);
}

std::optional<std::vector<Range>> DeviceMemory::place(Range range) const {
  std::vector<Range> places;
  if (range.bytes == 0) return places;
  const auto allocated = allocations.upper_bound(range.begin);
  if (allocated != allocations.begin()) {
    const auto& [begin, allocation] = *std::prev(allocated);
    if (range.begin + range.bytes <= begin + allocation.bytes) return std::vector{range};
  }
  auto at = mappings.upper_bound(range.begin);
  if (at == mappings.begin()) return std::nullopt;
  --at;
  const std::uint64_t end = range.begin + range.bytes;
  for (std::uint64_t reached = range.begin; reached < end; ++at) {
    if (at == mappings.end() || at->first > reached || !at->second.accessible) return std::nullopt;
    const std::uint64_t until = std::min<std::uint64_t>(end, at->first + at->second.bytes);
    if (until <= reached) return std::nullopt;
    places.push_back({place(handles.at(at->second.handle)).begin + (reached - at->first), until - reached});
    reached = until;
  }
  return places;
}

Range DeviceMemory::place(const Handle& handle) const { return {first_physical + handle.offset, handle.bytes}; }

DeviceMemory::Locked DeviceMemory::page_locked(Range host) const {
  const auto after = locked.upper_bound(host.begin);
  if (after != locked.begin() && host.begin + host.bytes <= std::prev(after)->first + std::prev(after)->second) {
    return Locked::all;
  }
  const bool touches = (after != locked.end() && after->first < host.begin + host.bytes) ||
                       (after != locked.begin() && std::prev(after)->first + std::prev(after)->second > host.begin);
  return touches ? Locked::partly : Locked::none;
}

}  // namespace tencache::rules
