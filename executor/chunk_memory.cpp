#include "executor/chunk_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/remark.h"
#include "executor/clock.h"

namespace tencache {
namespace {

// Locking takes 0.1 s a GB on a good day: while a program runs, little at a time; before, in pieces that no system
// refuses (of 512 GiB some do).
constexpr Bytes small_segment = 256 * MiB, large_segment = 1 * GiB;
constexpr unsigned most_touching = 8;  // threads
constexpr Bytes few_bytes = 64 * KiB;  // so much is filled where it stays mapped, which counts twice as resident

constexpr Bytes memory_step = 256 * MiB;  // how often the computer's free memory is looked at while usage grows

// The first mapping at or behind `begin`.
auto find(auto& mappings, Bytes begin) {
  return std::lower_bound(mappings.begin(), mappings.end(), begin,
                          [](const auto& mapping, Bytes value) { return mapping.begin < value; });
}

}  // namespace

void make_pages(std::byte* memory, Bytes bytes, unsigned threads) {
  if (threads == 0) threads = std::clamp(std::thread::hardware_concurrency(), 1u, most_touching);
  const Bytes share = round_up((bytes + threads - 1) / threads, page_bytes);
  std::vector<std::thread> touching;
  for (Bytes begin = 0; begin < bytes; begin += share) {
    touching.emplace_back([at = memory + begin, part = std::min(share, bytes - begin)] {
      static_cast<void>(::madvise(at, part, MADV_POPULATE_WRITE));
    });
  }
  for (std::thread& thread : touching) thread.join();
}

PinnedSegments::PinnedSegments(std::shared_ptr<Accelerator> accelerator, bool hidden, std::string tier, int file,
                               Bytes file_bytes, Bytes segment_bytes)
    : accelerator_(std::move(accelerator)),
      hidden_(hidden),
      tier_(std::move(tier)),
      file_(file),
      file_bytes_(file_bytes),
      segment_bytes_(segment_bytes) {}

PinnedSegments::~PinnedSegments() {
  for (std::size_t i = 0; i < segments_.size(); i++) {
    if (pinned_[i]) accelerator_->unpin(segments_[i]);
    ::munmap(segments_[i], bytes_of(i));
  }
}

Bytes PinnedSegments::bytes_of(std::size_t segment) const {
  return std::min(segment_bytes_, file_bytes_ - segment * segment_bytes_);
}

void PinnedSegments::cover(Bytes used_bytes, bool touch) {
  if (accelerator_ == nullptr && !hidden_) return;
  while (segments_.size() * segment_bytes_ < used_bytes) {
    const Bytes bytes = bytes_of(segments_.size());
    const auto offset = static_cast<off_t>(segments_.size() * segment_bytes_);
    void* segment = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
    if (segment == MAP_FAILED) {
      throw Error("tier '" + tier_ + "': cannot map " + format_bytes(bytes) + " for copies: " + std::strerror(errno));
    }
    segments_.push_back(static_cast<std::byte*>(segment));
    pinned_.push_back(false);
    if (hidden_ && ::madvise(segment, bytes, MADV_DONTFORK) != 0) {
      throw Error("tier '" + tier_ + "': cannot keep memory from child processes: " + std::strerror(errno));
    }
    if (accelerator_ == nullptr) continue;
    if (touch) {
      doing("page-locking CPU memory, " + format_bytes(static_cast<Bytes>(offset)) + " of " + format_bytes(used_bytes));
      make_pages(segments_.back(), bytes);
    }
    // What was refused once is refused again.
    pinned_.back() = refusal_.empty() && accelerator_->pin(segments_.back(), bytes, refusal_);
  }
}

void PinnedSegments::locate(const Extent& extent, Bytes bytes, std::vector<HostPiece>& pieces) const {
  bytes = std::min(bytes, extent.bytes);
  for (Bytes done = 0; done < bytes;) {
    const Bytes offset = extent.offset + done;
    const Bytes part = std::min(bytes - done, segment_bytes_ - offset % segment_bytes_);
    pieces.push_back({segments_[offset / segment_bytes_] + offset % segment_bytes_, part});
    done += part;
  }
}

std::byte* PinnedSegments::address(const Extent& extent) const {
  const Bytes segment = extent.offset / segment_bytes_;
  if ((extent.offset + extent.bytes - 1) / segment_bytes_ != segment) return nullptr;
  return segments_[segment] + extent.offset % segment_bytes_;
}

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
      memory_(::memfd_create(("tencache " + name_).c_str(), MFD_CLOEXEC)),
      addresses_(name_),
      hidden_(name_),
      segments_(options_.accelerator, options_.raw_access, name_, memory_.get(), most_bytes(),
                options_.locked >= large_segment ? large_segment : small_segment) {
  TENCACHE_CHECK(granularity % page_bytes == 0);
  if (!memory_.open()) throw Error("tier '" + name_ + "': no memory file: " + std::strerror(errno));
  if (::ftruncate(memory_.get(), static_cast<off_t>(most_bytes())) != 0) {
    throw Error("tier '" + name_ + "': a memory file of " + format_bytes(capacity) + ": " + std::strerror(errno) +
                "; lower the tier's capacity");
  }
  if (options_.locked != 0) lock_at_once();
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

Bytes ChunkMemory::set_capacity(Bytes capacity) {
  TENCACHE_CHECK(!options_.addressed && capacity <= options_.most);
  const Bytes before = pages_.capacity();
  if (capacity < before) {
    if (options_.accelerator != nullptr) return before;
    let_go_of_parked();
  }
  const Bytes now = pages_.set_capacity(capacity);
  if (now >= before) return now;
  const auto from = static_cast<off_t>(now), bytes = static_cast<off_t>(before - now);
  if (::fallocate(memory_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, bytes) != 0) {
    throw Error("tier '" + name_ + "': giving back " + format_bytes(before - now) + ": " + std::strerror(errno));
  }
  checked_high_water_ = std::min(checked_high_water_, now);
  return now;
}

void ChunkMemory::lock_at_once() {
  const Bytes left = available_memory();
  const Bytes room = left > memory_step ? left - memory_step : 0;  // more is refused when it is asked for
  const Bytes bytes = std::min({options_.locked, pages_.capacity(), room});
  segments_.cover(bytes, options_.populate);
  checked_high_water_ = std::max(checked_high_water_, bytes);
}

void ChunkMemory::create(TensorId tensor, Bytes bytes) { ranges_.create(tensor, addresses_.take(bytes), bytes); }

void ChunkMemory::retire(TensorId tensor) { ranges_[tensor].retired = !options_.addressed; }

void ChunkMemory::destroy(TensorId tensor) {
  Range& gone = ranges_[tensor];
  while (!gone.mappings.empty()) unmap(tensor, gone.mappings.back().begin, gone.mappings.back().bytes);
  addresses_.give(gone.address, gone.bytes);
  ranges_.destroy(tensor);
}

void ChunkMemory::relocate(TensorId tensor) {
  Range& of = ranges_[tensor];
  TENCACHE_CHECK(!of.exposed && !of.retired);
  if (of.bytes == 0) return;
  std::byte* const from = of.address;
  std::byte* const to = addresses_.take(of.bytes);
  let_go_of(from);
  let_go_of(to);
  for (Mapping& mapping : of.mappings) {
    if (const std::shared_ptr<HiddenPages> hidden = std::exchange(mapping.hidden, nullptr)) {
      TENCACHE_CHECK(hidden->shown);
      unhide(*hidden, mapping);
    }
    unmap_at(from + mapping.begin, mapping, false);
    scratch_.clear();
    mapping.each([this](const Extent& extent) { scratch_.push_back(extent); });
    mapping.moved = fetch(to + mapping.begin, mapping.bytes);
    if (!mapping.moved) map_extents(to + mapping.begin, scratch_, mapping.bytes);
  }
  ranges_.move(tensor, to);
  left_.push_back({reinterpret_cast<Bytes>(from), of.bytes});
  constexpr std::size_t most_left = 4096;
  if (left_.size() <= most_left) return;
  addresses_.give(reinterpret_cast<std::byte*>(left_.front().offset), left_.front().bytes);
  left_.pop_front();
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

std::vector<HostPiece> ChunkMemory::pieces(TensorId tensor, Bytes begin, Bytes bytes) const {
  const Range& of = ranges_[tensor];
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(mapping != of.mappings.end() && mapping->begin == begin);
  TENCACHE_CHECK(options_.accelerator != nullptr && bytes <= mapping->bytes);
  std::vector<HostPiece> result;
  mapping->each([&](const Extent& extent) {
    segments_.locate(extent, bytes, result);
    bytes -= std::min(bytes, extent.bytes);
  });
  return result;
}

void ChunkMemory::protect(std::byte* at, Bytes bytes) {
  if (::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw Error("tier '" + name_ + "': cannot unmap " + format_bytes(bytes) + ": " + std::strerror(errno) +
                (errno == ENOMEM ? "; too many mappings: raise vm.max_map_count or take larger chunks" : ""));
  }
}

void ChunkMemory::expose(TensorId tensor, bool writable) {
  ranges_[tensor].exposed = true;
  set_access(tensor, writable);
}

void ChunkMemory::conceal(TensorId tensor) {
  set_access(tensor, true);
  ranges_[tensor].exposed = false;
}

// Of what is at the tensor's addresses: pages of its own, and reservations, which stay without any.
void ChunkMemory::set_access(TensorId tensor, bool writable) {
  const Range& of = ranges_[tensor];
  if (!of.exposed) return;
  for (const Mapping& mapping : of.mappings) {
    if (mapping.hidden != nullptr && !shown_or_later(*mapping.hidden, !writable)) continue;
    if (::mprotect(of.address + mapping.begin, mapping.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
      throw Error("tier '" + name_ + "': cannot protect " + format_bytes(mapping.bytes) + ": " + std::strerror(errno) +
                  (errno == ENOMEM ? "; too many mappings: raise vm.max_map_count (sysctl)" : ""));
    }
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
    // Pages are shared with children, who would see other tensors in them later.
    if (options_.raw_access && ::madvise(at + done, part, MADV_DONTFORK) != 0) {
      throw Error("tier '" + name_ + "': cannot keep memory from child processes: " + std::strerror(errno));
    }
    done += part;
  }
}

void ChunkMemory::map(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  map_at(tensor, begin, bytes, offset, false);
}

void ChunkMemory::map_hidden(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  map_at(tensor, begin, bytes, offset, true);
}

const ChunkMemory::Mapping& ChunkMemory::mapping_at(TensorId tensor, Bytes begin) const {
  const Range& of = ranges_[tensor];
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(mapping != of.mappings.end() && mapping->begin == begin);
  return *mapping;
}

std::byte* ChunkMemory::copy_address(TensorId tensor, Bytes begin) const {
  const Mapping& mapping = mapping_at(tensor, begin);
  return mapping.hidden != nullptr ? mapping.hidden->parts.front().from : ranges_[tensor].address + begin;
}

std::shared_ptr<HiddenPages> ChunkMemory::hidden_at(TensorId tensor, Bytes begin) const {
  return mapping_at(tensor, begin).hidden;
}

// Where the pages of scratch_ are to be filled first: maps them there, or says where they are.
std::shared_ptr<HiddenPages> ChunkMemory::hide(std::byte* address, Mapping& mapping, bool read_only) {
  const Bytes bytes = mapping.bytes;
  auto hidden = std::make_shared<HiddenPages>();
  hidden->read_only = read_only;
  std::byte* const home = scratch_.size() == 1 ? segments_.address(scratch_.front()) : nullptr;
  if (home != nullptr && (bytes <= few_bytes || from_home(bytes))) {
    hidden->at_home = mapping.moved = bytes > few_bytes;
    if (!hidden->at_home) {
      hidden->file = memory_.get();
      hidden->offset = scratch_.front().offset;
    }
    hidden->parts = {{home, address, bytes}};
    return hidden;
  }
  std::byte* const from = hidden_.take(bytes);
  try {
    mapping.moved = fetch(from, bytes);
    if (!mapping.moved) map_extents(from, scratch_, bytes);
  } catch (...) {
    hidden_.give(from, bytes);
    throw;
  }
  Bytes done = 0;
  const auto add_part = [&](Bytes most) {
    const Bytes part = std::min(most, bytes - done);
    if (part != 0) hidden->parts.push_back({from + done, address + done, part});
    done += part;
  };
  if (mapping.moved) {
    for (const HostPiece& piece : homes_) add_part(piece.bytes);
  } else {
    for (const Extent& extent : scratch_) add_part(extent.bytes);
  }
  return hidden;
}

// They are to be unmapped; not shown: a copy was given up.
void ChunkMemory::unhide(const HiddenPages& hidden, Mapping& mapping) {
  if (hidden.file >= 0) return;
  if (hidden.at_home) {
    mapping.moved = hidden.shown;
    return;
  }
  std::byte* const from = hidden.parts.front().from;
  if (!hidden.shown) unmap_at(from, mapping, hidden.read_only);
  hidden_.give(from, mapping.bytes);
}

// ---- Pages at home --------------------------------------------------------------------------------------------------

bool ChunkMemory::from_home(Bytes bytes) const {
  return options_.raw_access && !options_.addressed && options_.populate && options_.accelerator == nullptr &&
         bytes > few_bytes;
}

// Pages are taken from the front of what was never used: those up to there are in use for the first time now.
void ChunkMemory::populate_homes() {
  if (!from_home(unlimited) || pages_.high_water() <= populated_) return;
  homes_.clear();
  segments_.locate({populated_, pages_.high_water() - populated_}, unlimited, homes_);
  // A kernel that cannot do it has them faulted in.
  for (const HostPiece& piece : homes_) static_cast<void>(::madvise(piece.address, piece.bytes, MADV_POPULATE_WRITE));
  populated_ = pages_.high_water();
}

bool ChunkMemory::fetch(std::byte* to, Bytes bytes) {
  if (!from_home(bytes)) return false;
  homes_.clear();
  Bytes left = bytes;
  for (const Extent& extent : scratch_) {
    segments_.locate(extent, left, homes_);
    left -= std::min(left, extent.bytes);
  }
  std::byte* at = to;
  std::size_t moved = 0;
  try {
    for (; moved < homes_.size(); at += homes_[moved++].bytes)
      move_pages(homes_[moved].address, at, homes_[moved].bytes);
  } catch (const Error&) {
    while (moved-- != 0) move_pages(at -= homes_[moved].bytes, homes_[moved].address, homes_[moved].bytes);
    protect(to, bytes);
    return false;
  }
  return true;
}

void ChunkMemory::send_home(std::byte* at, const Mapping& mapping, bool read_only) {
  homes_.clear();
  Bytes left = mapping.bytes;
  mapping.each([&](const Extent& extent) {
    segments_.locate(extent, left, homes_);
    left -= std::min(left, extent.bytes);
  });
  for (const HostPiece& piece : homes_) {
    move_pages(at, piece.address, piece.bytes);
    if (read_only) set_writable(piece.address, piece.bytes, true);  // never before: a write there would be lost
    at += piece.bytes;
  }
}

void ChunkMemory::unmap_at(std::byte* at, Mapping& mapping, bool read_only) {
  if (mapping.moved) send_home(at, mapping, read_only);
  mapping.moved = false;
  protect(at, mapping.bytes);
}

void ChunkMemory::map_at(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset, bool hidden) {
  Range& of = ranges_[tensor];
  TENCACHE_CHECK(bytes != 0 && begin % page_bytes == 0 && begin + bytes <= round_up(of.bytes, page_bytes));
  Mapping mapping;
  mapping.begin = begin;
  mapping.bytes = round_up(bytes, page_bytes);
  const auto next = find(of.mappings, begin);
  TENCACHE_CHECK(next == of.mappings.end() || begin + mapping.bytes <= next->begin);
  TENCACHE_CHECK(next == of.mappings.begin() || std::prev(next)->begin + std::prev(next)->bytes <= begin);
  if (!options_.addressed && !hidden && adopt(of.address, mapping)) {
    of.mappings.insert(next, std::move(mapping));
    note_map(bytes);
    return;
  }
  const Bytes room = round_up(bytes, granularity_);
  scratch_.clear();
  if (options_.addressed) {
    TENCACHE_CHECK(offset + room <= pages_.capacity() && pages_.take_at({offset, room}));
    scratch_.push_back({offset, room});
  } else if (!take_pages(room)) {
    const Bytes left = pages_.capacity() - pages_.used();
    throw OutOfMemory("tier '" + name_ + "': " + format_bytes(room) + " are asked for and " + format_bytes(left) +
                          " of " + format_bytes(pages_.capacity()) + " are free",
                      "", room - left);
  }
  const Nanoseconds start = clock_ns();
  try {
    check_memory_left();
    segments_.cover(pages_.high_water());
    populate_homes();
    if (hidden) {
      let_go_of(of.address);  // parked pages would be seen
      mapping.hidden = hide(of.address + begin, mapping, of.exposed);
    } else if (!(mapping.moved = fetch(of.address + begin, mapping.bytes))) {
      map_extents(of.address + begin, scratch_, mapping.bytes);
    }
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
  statistics_.map_ns += clock_ns() - start;
  note_map(bytes);
}

void ChunkMemory::note_map(Bytes bytes) {
  statistics_.maps++;
  statistics_.mapped_bytes += bytes;
  statistics_.peak_used_bytes = std::max(statistics_.peak_used_bytes, used());
}

// ---- Parked pages ---------------------------------------------------------------------------------------------------

bool ChunkMemory::take_pages(Bytes room) {
  if (pages_.take(room, scratch_)) return true;
  if (parked_count_ == 0) return false;
  let_go_of_parked(room);
  return pages_.take(room, scratch_);
}

void ChunkMemory::park(std::byte* address, Mapping mapping) {
  parked_bytes_ += mapping.pages();
  ++parked_count_;
  if (parked_at(address) == nullptr) last_parked_ = &*parked_.try_emplace(address).first;
  last_parked_->second.push_back(std::move(mapping));
  // Neither many mappings nor much more memory than is in use at the worst time.
  constexpr std::size_t most = 4096;
  const Bytes peak = statistics_.peak_used_bytes;
  if (parked_count_ >= most || pages_.used() > peak + peak / 4 + 64 * MiB) let_go_of_parked();
}

ChunkMemory::Parked::value_type* ChunkMemory::parked_at(std::byte* address) {
  if (last_parked_ != nullptr && last_parked_->first == address) return last_parked_;
  const auto entry = parked_.find(address);
  if (entry == parked_.end()) return nullptr;
  return last_parked_ = &*entry;
}

bool ChunkMemory::adopt(std::byte* address, Mapping& mapping) {
  Parked::value_type* const entry = parked_at(address);
  if (entry == nullptr || entry->second.empty()) return false;
  std::vector<Mapping>& parked = entry->second;
  const auto found = std::find_if(parked.begin(), parked.end(), [&mapping](const Mapping& candidate) {
    return candidate.begin == mapping.begin && candidate.bytes == mapping.bytes;
  });
  const bool fits = found != parked.end();
  if (fits) {
    mapping = std::move(*found);
    parked.erase(found);
    parked_bytes_ -= mapping.pages();
    --parked_count_;
    statistics_.extents += 1 + (mapping.more == nullptr ? 0 : mapping.more->size());
  } else {
    let_go(address, parked);  // chunks of other sizes would overlap
  }
  return fits;
}

// The system may refuse (`protect` throws): what was let go by then is parked no more.
void ChunkMemory::let_go(std::byte* address, std::vector<Mapping>& parked) {
  for (; !parked.empty(); parked.pop_back()) {
    Mapping& mapping = parked.back();
    unmap_at(address + mapping.begin, mapping, false);
    parked_bytes_ -= mapping.pages();
    --parked_count_;
    mapping.each([this](const Extent& extent) { pages_.give(extent); });
  }
}

void ChunkMemory::let_go_of(std::byte* address) {
  const auto entry = parked_.find(address);
  if (entry == parked_.end()) return;
  let_go(address, entry->second);
  last_parked_ = nullptr;
  parked_.erase(entry);
}

void ChunkMemory::let_go_of_parked(Bytes room) {
  last_parked_ = nullptr;
  while (!parked_.empty() && (room == unlimited || pages_.capacity() - pages_.used() < room)) {
    const auto entry = parked_.begin();
    let_go(entry->first, entry->second);
    parked_.erase(entry);
  }
}

void ChunkMemory::unmap(TensorId tensor, Bytes begin, Bytes bytes) {
  Range& of = ranges_[tensor];
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(mapping != of.mappings.end() && mapping->begin == begin);
  TENCACHE_CHECK(mapping->bytes == round_up(bytes, page_bytes));
  const std::shared_ptr<HiddenPages> hidden = std::exchange(mapping->hidden, nullptr);
  if (hidden != nullptr) unhide(*hidden, *mapping);
  const bool parks = options_.parks && !options_.addressed;
  if (parks || (of.retired && !of.exposed && (hidden == nullptr || hidden->shown))) {
    park(of.address, std::move(*mapping));
  } else {
    const Nanoseconds start = clock_ns();
    unmap_at(of.address + begin, *mapping, of.exposed);
    mapping->each([this](const Extent& extent) { pages_.give(extent); });
    statistics_.unmap_ns += clock_ns() - start;
  }
  of.mappings.erase(mapping);
  statistics_.unmaps++;
}

void ChunkMemory::move(TensorId tensor, Bytes begin, Bytes bytes, Bytes offset) {
  Range& of = ranges_[tensor];
  const auto mapping = find(of.mappings, begin);
  TENCACHE_CHECK(options_.addressed && !options_.raw_access && mapping != of.mappings.end() && mapping->begin == begin);
  TENCACHE_CHECK(mapping->more == nullptr && mapping->bytes == round_up(bytes, page_bytes));
  const Extent old = mapping->first;
  pages_.give(old);
  TENCACHE_CHECK(offset + old.bytes <= pages_.capacity() && pages_.take_at({offset, old.bytes}));
  check_memory_left();
  // One view of both, so that they may overlap.
  const Bytes low = std::min(old.offset, offset), length = std::max(old.offset, offset) + mapping->bytes - low;
  void* const view =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), static_cast<off_t>(low));
  if (view == MAP_FAILED) {
    throw Error("tier '" + name_ + "': cannot map " + format_bytes(length) +
                " to move a chunk: " + std::strerror(errno));
  }
  auto* const bytes_of_view = static_cast<std::byte*>(view);
  std::memmove(bytes_of_view + (offset - low), bytes_of_view + (old.offset - low), bytes);
  ::munmap(view, length);
  mapping->first.offset = offset;
  scratch_.assign({mapping->first});
  map_extents(of.address + begin, scratch_, mapping->bytes);
}

bool ChunkMemory::mapped(TensorId tensor, Bytes begin) const {
  const Range& of = ranges_[tensor];
  const auto mapping = find(of.mappings, begin);
  return mapping != of.mappings.end() && mapping->begin == begin;
}

ChunkMemoryStatistics ChunkMemory::statistics() const {
  ChunkMemoryStatistics result = statistics_;
  result.used_bytes = used();
  return result;
}

}  // namespace tencache
