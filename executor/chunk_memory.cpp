#include "executor/chunk_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>

#include "core/check.h"
#include "core/error.h"
#include "executor/clock.h"

namespace tencache {
namespace {

constexpr Bytes smallest_region = 64 * GiB;  // of addresses; costs nothing
constexpr Bytes memory_step = 256 * MiB;     // how often the computer's free memory is looked at while usage grows
constexpr Bytes segment_bytes = 256 * MiB;   // locked at once for an accelerator

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

// The first mapping at or behind `begin`.
auto find(auto& mappings, Bytes begin) {
  return std::lower_bound(mappings.begin(), mappings.end(), begin,
                          [](const auto& mapping, Bytes value) { return mapping.begin < value; });
}

}  // namespace

AlignedBuffer aligned_buffer(Bytes bytes, std::byte content) {
  const Bytes rounded = round_up(bytes, page_bytes);
  AlignedBuffer buffer(static_cast<std::byte*>(::operator new[](rounded, std::align_val_t{page_bytes})));
  std::fill_n(buffer.get(), rounded, content);
  return buffer;
}

Bytes available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  Bytes kilobytes = 0;
  std::string rest;
  while (file >> key >> kilobytes && std::getline(file, rest)) {
    if (key == "MemAvailable:") return kilobytes * KiB;
  }
  return unlimited;
}

ChunkMemory::ChunkMemory(std::string name, Bytes capacity, Bytes granularity, Options options)
    : name_(std::move(name)),
      granularity_(granularity),
      options_(std::move(options)),
      pages_(capacity, granularity),
      memory_(::memfd_create(("tencache " + name_).c_str(), MFD_CLOEXEC)) {
  TENCACHE_CHECK(granularity % page_bytes == 0);
  if (!memory_.open()) throw Error("tier '" + name_ + "': no memory file: " + std::strerror(errno));
  if (::ftruncate(memory_.get(), static_cast<off_t>(pages_.capacity())) != 0) {
    throw Error("tier '" + name_ + "': a memory file of " + format_bytes(capacity) + ": " + std::strerror(errno) +
                "; lower the tier's capacity");
  }
  if (!options_.prefault) return;
  if (pages_.capacity() > available_memory()) {
    throw Error("tier '" + name_ + "': " + format_bytes(capacity) + " are asked for and this computer has " +
                format_bytes(available_memory()) + " left; lower the tier's capacity");
  }
  if (::fallocate(memory_.get(), 0, 0, static_cast<off_t>(pages_.capacity())) != 0) {
    throw Error("tier '" + name_ + "': " + format_bytes(capacity) + " of memory: " + std::strerror(errno) +
                "; lower the tier's capacity");
  }
  checked_high_water_ = pages_.capacity();
}

ChunkMemory::~ChunkMemory() {
  for (std::size_t i = 0; i < segments_.size(); i++) {
    if (segment_pinned_[i]) options_.accelerator->unpin(segments_[i]);
    ::munmap(segments_[i], std::min(segment_bytes, pages_.capacity() - i * segment_bytes));
  }
  for (const Extent& region : regions_) ::munmap(reinterpret_cast<void*>(region.offset), region.bytes);
}

ChunkMemory::Record& ChunkMemory::record(TensorId tensor) {
  TENCACHE_CHECK(tensor < records_.size() && records_[tensor].exists);
  return records_[tensor];
}

const ChunkMemory::Record& ChunkMemory::record(TensorId tensor) const {
  TENCACHE_CHECK(tensor < records_.size() && records_[tensor].exists);
  return records_[tensor];
}

ChunkMemory::SizeClass& ChunkMemory::size_class(Bytes bytes) {
  const Bytes rounded = class_bytes(bytes);
  const std::size_t index = class_index(rounded);
  if (index >= classes_.size()) classes_.resize(index + 1);
  SizeClass& result = classes_[index];
  TENCACHE_CHECK(result.bytes == 0 || result.bytes == rounded);
  result.bytes = rounded;
  return result;
}

std::byte* ChunkMemory::reserve(Bytes bytes) {
  if (static_cast<Bytes>(region_end_ - region_next_) < bytes) {
    const Bytes size = std::max(smallest_region, bytes);
    void* region = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) {
      throw Error("tier '" + name_ + "': cannot reserve " + format_bytes(size) +
                  " of addresses: " + std::strerror(errno) + "; is there a limit on virtual memory (ulimit -v)?");
    }
    regions_.push_back({reinterpret_cast<Bytes>(region), size});
    region_next_ = static_cast<std::byte*>(region);
    region_end_ = region_next_ + size;
  }
  std::byte* result = region_next_;
  region_next_ += bytes;
  return result;
}

void ChunkMemory::create(TensorId tensor, Bytes bytes) {
  std::byte* address = nullptr;
  if (bytes != 0) {
    SizeClass& size = size_class(bytes);
    if (size.free.empty()) {
      address = reserve(size.bytes);
    } else {
      address = size.free.back();
      size.free.pop_back();
    }
  }
  const std::lock_guard lock(records_mutex_);
  if (tensor >= records_.size()) records_.resize(static_cast<std::size_t>(tensor) + 1);
  Record& record = records_[tensor];
  TENCACHE_CHECK(!record.exists);
  record.address = address;
  record.bytes = bytes;
  record.exists = true;
}

void ChunkMemory::retire(TensorId tensor) { record(tensor).retired = !options_.addressed; }

void ChunkMemory::destroy(TensorId tensor) {
  Record& gone = record(tensor);
  while (!gone.mappings.empty()) unmap(tensor, gone.mappings.back().begin, gone.mappings.back().bytes);
  if (gone.bytes != 0) size_class(gone.bytes).free.push_back(gone.address);
  const std::lock_guard lock(records_mutex_);
  gone.address = nullptr;
  gone.exists = false;
  gone.retired = false;
}

void ChunkMemory::check_memory_left() {
  if (pages_.high_water() <= checked_high_water_) return;
  const Bytes left = available_memory();
  const Bytes growth = pages_.high_water() - checked_high_water_;
  if (growth + memory_step / 2 > left) {
    throw Error("tier '" + name_ + "': this computer's memory is used up (" + format_bytes(left) +
                " left); lower the tier's capacity of " + format_bytes(pages_.capacity()));
  }
  checked_high_water_ = pages_.high_water() + memory_step;
}

void ChunkMemory::add_segments() {
  if (options_.accelerator == nullptr) return;
  while (segments_.size() * segment_bytes < pages_.high_water()) {
    const Bytes offset = segments_.size() * segment_bytes;
    const Bytes bytes = std::min(segment_bytes, pages_.capacity() - offset);
    void* segment =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), static_cast<off_t>(offset));
    if (segment == MAP_FAILED) {
      throw Error("tier '" + name_ + "': cannot map " + format_bytes(bytes) + " for copies: " + std::strerror(errno));
    }
    segments_.push_back(static_cast<std::byte*>(segment));
    segment_pinned_.push_back(false);
    // What was refused once is refused again.
    segment_pinned_.back() = pin_refusal_.empty() && options_.accelerator->pin(segments_.back(), bytes, pin_refusal_);
  }
}

std::vector<HostPiece> ChunkMemory::pieces(TensorId tensor, Bytes begin, Bytes bytes) const {
  const Record& of = record(tensor);
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(mapping != of.mappings.end() && mapping->begin == begin);
  TENCACHE_CHECK(options_.accelerator != nullptr && bytes <= mapping->bytes);
  std::vector<HostPiece> result;
  const auto add = [&](const Extent& extent) {
    for (Bytes done = 0; done < extent.bytes && bytes != 0;) {
      const Bytes offset = extent.offset + done;
      const Bytes part = std::min({extent.bytes - done, bytes, segment_bytes - offset % segment_bytes});
      result.push_back({segments_[offset / segment_bytes] + offset % segment_bytes, part});
      done += part;
      bytes -= part;
    }
  };
  add(mapping->first);
  if (mapping->more != nullptr) {
    for (const Extent& extent : *mapping->more) add(extent);
  }
  return result;
}

void ChunkMemory::protect(std::byte* at, Bytes bytes) {
  if (::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw Error("tier '" + name_ + "': cannot unmap " + format_bytes(bytes) + ": " + std::strerror(errno) +
                (errno == ENOMEM ? "; too many mappings: raise vm.max_map_count or take larger chunks" : ""));
  }
}

void ChunkMemory::map_extents(std::byte* at, const std::vector<Extent>& extents, Bytes bytes) {
  const int flags = MAP_SHARED | MAP_FIXED | (options_.populate ? MAP_POPULATE : 0);
  Bytes done = 0;
  for (const Extent& extent : extents) {
    // The granularity may exceed a page: room behind the chunk's last page is taken but never mapped.
    const Bytes part = std::min(extent.bytes, bytes - done);
    if (part == 0) break;
    if (::mmap(at + done, part, PROT_READ | PROT_WRITE, flags, memory_.get(), static_cast<off_t>(extent.offset)) ==
        MAP_FAILED) {
      const int error = errno;
      if (done != 0) protect(at, done);
      throw Error(
          "tier '" + name_ + "': cannot map " + format_bytes(part) + ": " + std::strerror(error) +
          (error == ENOMEM ? "; too many mappings: raise vm.max_map_count (sysctl) or take larger chunks" : ""));
    }
    done += part;
  }
}

void ChunkMemory::map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  const Nanoseconds start = clock_ns();
  Record& of = record(tensor);
  TENCACHE_CHECK(bytes != 0 && begin % page_bytes == 0 && begin + bytes <= round_up(of.bytes, page_bytes));
  Mapping mapping;
  mapping.begin = begin;
  mapping.bytes = round_up(bytes, page_bytes);
  const auto next = find(of.mappings, begin);
  TENCACHE_CHECK(next == of.mappings.end() || begin + mapping.bytes <= next->begin);
  TENCACHE_CHECK(next == of.mappings.begin() || std::prev(next)->begin + std::prev(next)->bytes <= begin);
  const Bytes room = round_up(bytes, granularity_);
  scratch_.clear();
  if (options_.addressed) {
    TENCACHE_CHECK(offset + room <= pages_.capacity() && pages_.take_at({offset, room}));
    scratch_.push_back({offset, room});
  } else if (adopt(of.address, mapping)) {
    of.mappings.insert(next, std::move(mapping));
    note_map(bytes, start);
    return;
  } else if (!take_pages(room)) {
    const Bytes left = pages_.capacity() - pages_.used();
    throw OutOfMemory("tier '" + name_ + "': " + format_bytes(room) + " are asked for and " + format_bytes(left) +
                          " of " + format_bytes(pages_.capacity()) + " are free",
                      "", room - left);
  }
  try {
    check_memory_left();
    add_segments();
    map_extents(of.address + begin, scratch_, mapping.bytes);
  } catch (...) {
    for (const Extent& extent : scratch_) pages_.give(extent);
    throw;
  }
  mapping.first = scratch_.front();
  if (scratch_.size() > 1) {
    mapping.more = std::make_unique<std::vector<Extent>>(scratch_.begin() + 1, scratch_.end());
  }
  of.mappings.insert(next, std::move(mapping));
  statistics_.extents += scratch_.size();
  note_map(bytes, start);
}

void ChunkMemory::note_map(Bytes bytes, Nanoseconds start) {
  statistics_.maps++;
  statistics_.mapped_bytes += bytes;
  statistics_.peak_used_bytes = std::max(statistics_.peak_used_bytes, used());
  statistics_.map_ns += clock_ns() - start;
}

// ---- Parked pages ---------------------------------------------------------------------------------------------------

bool ChunkMemory::take_pages(Bytes room) {
  if (pages_.take(room, scratch_)) return true;
  if (parked_count_ == 0) return false;
  let_go_of_parked();
  return pages_.take(room, scratch_);
}

void ChunkMemory::park(std::byte* address, Mapping mapping) {
  parked_bytes_ += pages_of(mapping);
  ++parked_count_;
  parked_[address].push_back(std::move(mapping));
  // Neither many mappings nor much more memory than is in use at the worst time.
  constexpr std::size_t most = 4096;
  const Bytes peak = statistics_.peak_used_bytes;
  if (parked_count_ >= most || pages_.used() > peak + peak / 4 + 64 * MiB) let_go_of_parked();
}

bool ChunkMemory::adopt(std::byte* address, Mapping& mapping) {
  const auto entry = parked_.find(address);
  if (entry == parked_.end()) return false;
  std::vector<Mapping>& parked = entry->second;
  const auto found = std::find_if(parked.begin(), parked.end(), [&mapping](const Mapping& candidate) {
    return candidate.begin == mapping.begin && candidate.bytes == mapping.bytes;
  });
  const bool fits = found != parked.end();
  if (fits) {
    mapping = std::move(*found);
    parked.erase(found);
    parked_bytes_ -= pages_of(mapping);
    --parked_count_;
    statistics_.extents += 1 + (mapping.more == nullptr ? 0 : mapping.more->size());
  } else {
    let_go(address, parked);  // chunks of other sizes would overlap
  }
  if (parked.empty()) parked_.erase(entry);
  return fits;
}

// The system may refuse (`protect` throws): what was let go by then is parked no more.
void ChunkMemory::let_go(std::byte* address, std::vector<Mapping>& parked) {
  for (; !parked.empty(); parked.pop_back()) {
    const Mapping& mapping = parked.back();
    protect(address + mapping.begin, mapping.bytes);
    parked_bytes_ -= pages_of(mapping);
    --parked_count_;
    give_pages(mapping);
  }
}

void ChunkMemory::let_go_of_parked() {
  for (auto& [address, parked] : parked_) let_go(address, parked);
  parked_.clear();
}

Bytes ChunkMemory::pages_of(const Mapping& mapping) {
  Bytes bytes = mapping.first.bytes;
  if (mapping.more == nullptr) return bytes;
  for (const Extent& extent : *mapping.more) bytes += extent.bytes;
  return bytes;
}

void ChunkMemory::give_pages(const Mapping& mapping) {
  pages_.give(mapping.first);
  if (mapping.more == nullptr) return;
  for (const Extent& extent : *mapping.more) pages_.give(extent);
}

void ChunkMemory::unmap(TensorId tensor, Bytes begin, Bytes bytes) {
  const Nanoseconds start = clock_ns();
  Record& of = record(tensor);
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(mapping != of.mappings.end() && mapping->begin == begin);
  TENCACHE_CHECK(mapping->bytes == round_up(bytes, page_bytes));
  if (of.retired) {
    park(of.address, std::move(*mapping));
  } else {
    protect(of.address + begin, mapping->bytes);
    give_pages(*mapping);
  }
  of.mappings.erase(mapping);
  statistics_.unmaps++;
  statistics_.unmap_ns += clock_ns() - start;
}

std::byte* ChunkMemory::address(TensorId tensor) const {
  const std::lock_guard lock(records_mutex_);
  return record(tensor).address;
}

Bytes ChunkMemory::bytes(TensorId tensor) const {
  const std::lock_guard lock(records_mutex_);
  return record(tensor).bytes;
}

bool ChunkMemory::mapped(TensorId tensor, Bytes begin) const {
  const Record& of = record(tensor);
  const auto mapping = find(of.mappings, begin);
  return mapping != of.mappings.end() && mapping->begin == begin;
}

ChunkMemoryStatistics ChunkMemory::statistics() const {
  ChunkMemoryStatistics result = statistics_;
  result.used_bytes = used();
  return result;
}

}  // namespace tencache
