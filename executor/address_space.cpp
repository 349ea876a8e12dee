#include "executor/address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/tier_memory.h"

namespace tencache {
namespace {

constexpr Bytes smallest_region = 64 * GiB;

// Classes in steps of a quarter of a power of two: at most a quarter of the addresses is unused.
Bytes class_bytes(Bytes bytes) {
  if (bytes <= 4 * page_bytes) return round_up(bytes, page_bytes);
  return round_up(bytes, std::bit_floor(bytes - 1) / 4);
}

std::size_t class_index(Bytes rounded) {
  const Bytes pages = rounded / page_bytes;
  if (pages <= 4) return static_cast<std::size_t>(pages);
  const auto width = static_cast<std::size_t>(std::bit_width(pages - 1));  // at least 3
  const Bytes floor = Bytes{1} << (width - 1);
  return 4 * (width - 2) + static_cast<std::size_t>((pages - floor) >> (width - 3));
}

}  // namespace

AddressSpace::~AddressSpace() {
  for (const Extent& region : regions_) ::munmap(reinterpret_cast<void*>(region.offset), region.bytes);
}

AddressSpace::SizeClass& AddressSpace::size_class(Bytes bytes) {
  const Bytes rounded = class_bytes(bytes);
  const std::size_t index = class_index(rounded);
  if (index >= classes_.size()) classes_.resize(index + 1);
  SizeClass& result = classes_[index];
  TENCACHE_CHECK(result.bytes == 0 || result.bytes == rounded);
  result.bytes = rounded;
  return result;
}

std::byte* AddressSpace::take(Bytes bytes) {
  if (bytes == 0) return nullptr;
  SizeClass& size = size_class(bytes);
  if (!size.free.empty()) {
    std::byte* address = size.free.back();
    size.free.pop_back();
    return address;
  }
  if (static_cast<Bytes>(end_ - next_) < size.bytes) {
    const Bytes region_bytes = std::max(smallest_region, size.bytes);
    void* region = ::mmap(nullptr, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) {
      throw Error("tier '" + tier_ + "': cannot reserve " + format_bytes(region_bytes) +
                  " of addresses: " + std::strerror(errno) + "; is there a limit on virtual memory (ulimit -v)?");
    }
    regions_.push_back({reinterpret_cast<Bytes>(region), region_bytes});
    next_ = static_cast<std::byte*>(region);
    end_ = next_ + region_bytes;
  }
  return std::exchange(next_, next_ + size.bytes);
}

bool AddressSpace::owns(const void* address) const {
  const auto at = reinterpret_cast<Bytes>(address);
  return std::ranges::any_of(regions_, [at](const Extent& region) { return at - region.offset < region.bytes; });
}

void AddressSpace::give(std::byte* address, Bytes bytes) {
  if (bytes != 0) size_class(bytes).free.push_back(address);
}

}  // namespace tencache
