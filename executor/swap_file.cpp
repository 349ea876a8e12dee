#include "executor/swap_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/random_access_file.hpp>
#include <boost/asio/read_at.hpp>
#include <boost/asio/write_at.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/error.h"
#include "executor/chunk_memory.h"

namespace tencache {
namespace {

constexpr Bytes sector_bytes = 4096;           // what O_DIRECT asks of offsets, lengths and addresses
constexpr Bytes reservation_step = 256 * MiB;  // the file grows on the disk in these steps

// A file with a name that there was not, which goes at once. O_EXCL: a link of that name is not followed.
FileDescriptor open_and_unlink(int folder, int flags) {
  for (int attempt = 0; attempt < 1000; attempt++) {
    const std::string name = "tencache-swap-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    FileDescriptor file(::openat(folder, name.c_str(), O_CREAT | O_EXCL | O_RDWR | flags, 0600));
    if (file.open()) ::unlinkat(folder, name.c_str(), 0);
    if (file.open() || errno != EEXIST) return file;
  }
  return {};
}

// A file without a name. `direct` is cleared when the file system refuses O_DIRECT.
FileDescriptor open_nameless(const std::string& directory, bool& direct, bool nameless) {
  const int flags = O_CLOEXEC | O_NOFOLLOW;
  FileDescriptor result;
  if (nameless) result = FileDescriptor(::open(directory.c_str(), O_TMPFILE | O_RDWR | flags, 0600));
  if (!result.open() && (!nameless || errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    const FileDescriptor folder(::open(directory.c_str(), O_PATH | O_DIRECTORY | flags));
    if (folder.open()) result = open_and_unlink(folder.get(), flags);
  }
  if (!result.open()) {
    throw Error("directory '" + directory + "': cannot make a swap file: " + std::strerror(errno) +
                "; name another directory in the machine's tier");
  }
  if (direct) direct = ::fcntl(result.get(), F_SETFL, ::fcntl(result.get(), F_GETFL) | O_DIRECT) == 0;
  return result;
}

Bytes room_on_disk(int descriptor) {
  struct statvfs disk {};
  if (::fstatvfs(descriptor, &disk) != 0) return unlimited;
  return static_cast<Bytes>(disk.f_bavail) * disk.f_frsize;
}

// ---- Blocks: faults made on purpose, and checksums

Bytes half_of(const FileBlock& block) { return block.bytes / 2 / sector_bytes * sector_bytes; }

// What of the block moves at all.
Bytes moved_bytes(const FileBlock& block) {
  const bool half = block.fault == FaultKind::io_error || block.fault == FaultKind::torn_write;
  return half ? half_of(block) : block.bytes;
}

// What is asked for first of that.
Bytes first_part(const FileBlock& block, Bytes whole) {
  return block.fault == FaultKind::short_read && half_of(block) > 0 ? half_of(block) : whole;
}

std::uint64_t checksum_of(const FileBlock& block, const std::byte* memory) {
  return XXH64(memory + block.begin, block.bytes, 0);
}

// Before it is written.
void remember(const FileBlock& block, const std::byte* memory) {
  if (block.checksum != nullptr) *block.checksum = checksum_of(block, memory);
}

// Of a block that has moved; empty: nothing.
std::string wrong_with(const FileBlock& block, const std::byte* memory, bool write) {
  if (block.fault == FaultKind::io_error) return std::strerror(EIO);
  if (write || block.checksum == nullptr || *block.checksum == checksum_of(block, memory)) return "";
  return "its checksum is wrong: the disk has lost or changed what was written there";
}

// ---- Blocks of a file of somebody else

// The whole sectors that a block lies in; the file may end in the last one.
struct Sectors {
  Bytes offset = 0;  // in the file
  Bytes bytes = 0;
  Bytes before = 0;  // of the block
  Bytes needed = 0;  // with those before it
};

Sectors sectors_of(const FileBlock& block) {
  const Bytes offset = block.offset / sector_bytes * sector_bytes, before = block.offset - offset;
  const Bytes needed = before + moved_bytes(block);
  return {offset, round_up(needed, sector_bytes), before, needed};
}

// Moves at least `bytes`, asking for `first` at first and then for whole sectors. Why it failed; empty: it did not.
std::string move(int descriptor, std::byte* memory, Bytes bytes, Bytes first, Bytes offset, bool write) {
  for (Bytes done = 0; done < bytes;) {
    const auto at = static_cast<off_t>(offset + done);
    const Bytes rest = done == 0 ? first : round_up(bytes, sector_bytes) - done;
    const ssize_t part =
        write ? ::pwrite(descriptor, memory + done, rest, at) : ::pread(descriptor, memory + done, rest, at);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return std::strerror(errno);
    if (part == 0) return "the file ends there";
    done += static_cast<Bytes>(part);
  }
  return "";
}

// Of a block that was read; empty: nothing.
std::string wrong_with_source(const FileBlock& block, const std::byte* memory) {
  const std::string wrong = block.source->wrong();
  return wrong.empty() ? wrong_with(block, memory, false) : wrong;
}

}  // namespace

SourceFile::SourceFile(std::string path, FileDescriptor descriptor, Bytes offset)
    : path_(std::move(path)), descriptor_(std::move(descriptor)), offset_(offset) {
  TENCACHE_CHECK(descriptor_.open());
  if (::fstat(descriptor_.get(), &status_) != 0) throw Error("'" + path_ + "': " + std::strerror(errno));
}

void SourceFile::bypass_page_cache() {
  direct_ = ::fcntl(descriptor_.get(), F_SETFL, ::fcntl(descriptor_.get(), F_GETFL) | O_DIRECT) == 0;
}

std::string SourceFile::wrong() const {
  struct stat now {};
  if (::fstat(descriptor_.get(), &now) != 0) return std::strerror(errno);
  const bool same = now.st_size == status_.st_size && now.st_mtim.tv_sec == status_.st_mtim.tv_sec &&
                    now.st_mtim.tv_nsec == status_.st_mtim.tv_nsec;
  return same ? "" : "the file has changed since tensors were loaded from it, and they had no other copy";
}

SwapFiles::SwapFiles(const Tier& tier, SwapFileOptions options)
    : name_(tier.name),
      checksums_(tier.checksums),
      options_(std::move(options)),
      granularity_(std::max(tier.granularity, sector_bytes)) {
  if (tier.io_block_bytes != 0) options_.block_bytes = tier.io_block_bytes;
  if (tier.io_depth != 0) options_.queue_depth = tier.io_depth;
  TENCACHE_CHECK(options_.block_bytes % sector_bytes == 0 && options_.block_bytes != 0 && options_.queue_depth != 0);
  if (tier.directories.empty()) {
    throw Error("tier '" + tier.name + "': no directories for its files; add 'directories' to the machine's tier");
  }
  // Pages, dealt out: the shares add up to the capacity, which the engine counts on.
  const Bytes pages = tier.capacity / granularity_, files = tier.directories.size();
  for (Bytes i = 0; i < files; ++i) {
    open(tier, tier.directories[i], (pages / files + (i < pages % files ? 1 : 0)) * granularity_);
  }
}

void SwapFiles::open(const Tier& tier, const std::string& directory, Bytes share) {
  bool direct = options_.direct;
  FileDescriptor descriptor = open_nameless(directory, direct, options_.nameless);
  const Bytes free_bytes = room_on_disk(descriptor.get());
  if (tier.capacity >= unlimited) share = free_bytes;
  if (share < sector_bytes || share > free_bytes) {
    throw Error("directory '" + directory + "': " + format_bytes(free_bytes) + " free, and tier '" + tier.name +
                "' wants " + format_bytes(std::max(share, sector_bytes)) +
                " there; make room or lower the tier's capacity");
  }
  files_.push_back({directory, std::move(descriptor), direct, ExtentAllocator(share, granularity_),
                    options_.faults.disk_room(share), 0, true});
}

// Room on the disk for the file's bytes up to `end`. Returns an errno, 0 when it is there.
int SwapFiles::reserve(File& file, Bytes end) {
  if (end > file.disk_room) return ENOSPC;
  if (end <= file.reserved || !file.can_reserve) return 0;
  const Bytes ahead = std::min(round_up(end, reservation_step), file.room.capacity());
  for (const Bytes size : {ahead, end}) {  // where the disk is nearly full, just what is needed
    // Not posix_fallocate: where the file system cannot do it, that writes zeros over everything.
    int result = 0;
    do {
      result = ::fallocate(file.descriptor.get(), 0, static_cast<off_t>(file.reserved),
                           static_cast<off_t>(size - file.reserved));
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
      file.reserved = size;
      return 0;
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
      file.can_reserve = false;  // the room was there when the run began
      return 0;
    }
  }
  return errno;
}

// Appends the part of a chunk, in this file; false, and nothing taken, when the file or its disk is full.
bool SwapFiles::take_piece(std::uint32_t index, Bytes bytes, Slot& slot) {
  File& file = files_[index];
  std::vector<Extent> extents;
  if (!file.room.take(bytes, extents)) return false;
  Bytes end = 0;  // of these only: what found no room before must not keep the file's other bytes from being used again
  for (const Extent& extent : extents) end = std::max(end, extent.offset + extent.bytes);
  if (const int error = reserve(file, end); error != 0) {
    for (const Extent& extent : extents) file.room.give(extent);
    full_disk_ = "directory '" + file.directory + "': cannot reserve " + format_bytes(bytes) +
                 " more for its swap file: " + std::strerror(error) + "; make room or name another directory";
    return false;
  }
  for (const Extent& extent : extents) slot.pieces.push_back({index, extent});
  return true;
}

// No file has room for all of a stripe: what is left in one. Returns the bytes, 0 when all are full.
Bytes SwapFiles::take_rest(Bytes bytes, Slot& slot) {
  for (std::uint32_t index = 0; index < files_.size(); ++index) {
    const ExtentAllocator& room = files_[index].room;
    const Bytes rest = std::min(bytes, room.capacity() - room.used());
    if (rest != 0 && take_piece(index, rest, slot)) return rest;
  }
  return 0;
}

void SwapFiles::take(TensorId tensor, Bytes begin, Bytes bytes) {
  TENCACHE_CHECK(bytes != 0);
  Slot slot;
  const Bytes room = round_up(bytes, granularity_);
  const Bytes stripe = files_.size() == 1 ? room : round_up(options_.block_bytes, granularity_);
  full_disk_.clear();
  for (Bytes taken = 0; taken < room;) {
    const Bytes part = std::min(stripe, room - taken);
    std::size_t tries = 0;
    while (tries < files_.size() &&
           !take_piece(static_cast<std::uint32_t>((next_file_ + tries) % files_.size()), part, slot)) {
      tries++;
    }
    if (tries < files_.size()) {
      next_file_ = (next_file_ + tries + 1) % files_.size();
      taken += part;
    } else if (const Bytes rest = take_rest(part, slot); rest != 0) {
      taken += rest;
    } else {
      free_slot(slot);
      if (!full_disk_.empty()) throw Error(full_disk_);
      throw OutOfMemory("tier '" + name_ + "': no room in its files for " + format_bytes(bytes), "", bytes);
    }
  }
  if (checksums_) {
    // Blocks end with their extents: each has at most one that is shorter.
    slot.checksums = std::make_unique<std::uint64_t[]>(room / options_.block_bytes + slot.pieces.size());
  }
  const bool is_new = slots_[tensor].emplace(begin, std::move(slot)).second;
  TENCACHE_CHECK(is_new);
}

void SwapFiles::store_in_file(TensorId tensor, Bytes begin, Bytes bytes, std::shared_ptr<const SourceFile> file) {
  TENCACHE_CHECK(bytes != 0 && file != nullptr);
  Slot slot;
  slot.source = std::move(file);
  const bool is_new = slots_[tensor].emplace(begin, std::move(slot)).second;
  TENCACHE_CHECK(is_new);
}

void SwapFiles::free_slot(const Slot& slot) {
  for (const Piece& piece : slot.pieces) files_[piece.file].room.give(piece.extent);
}

void SwapFiles::give(TensorId tensor, Bytes begin) {
  const auto of_tensor = slots_.find(tensor);
  if (of_tensor == slots_.end()) return;
  const auto slot = of_tensor->second.find(begin);
  if (slot == of_tensor->second.end()) return;
  free_slot(slot->second);
  of_tensor->second.erase(slot);
  if (of_tensor->second.empty()) slots_.erase(of_tensor);
}

void SwapFiles::give_all(TensorId tensor) {
  const auto of_tensor = slots_.find(tensor);
  if (of_tensor == slots_.end()) return;
  for (const auto& [begin, slot] : of_tensor->second) free_slot(slot);
  slots_.erase(of_tensor);
}

bool SwapFiles::has(TensorId tensor, Bytes begin) const {
  const auto of_tensor = slots_.find(tensor);
  return of_tensor != slots_.end() && of_tensor->second.contains(begin);
}

std::vector<FileBlock> SwapFiles::blocks(TensorId tensor, Bytes begin, Bytes bytes) const {
  TENCACHE_CHECK(has(tensor, begin));
  const Slot& slot = slots_.at(tensor).at(begin);
  std::vector<FileBlock> result;
  Bytes done = 0;
  for (; slot.source != nullptr && done < bytes; done += result.back().bytes) {
    FileBlock& block = result.emplace_back();
    block.offset = slot.source->offset() + begin + done;
    block.begin = done;
    block.bytes = std::min(options_.block_bytes - block.offset % sector_bytes, bytes - done);  // no sector twice
    block.source = slot.source.get();
  }
  if (slot.source != nullptr) return result;
  const Bytes total = round_up(bytes, sector_bytes);
  for (const auto& [file, extent] : slot.pieces) {
    for (Bytes in_extent = 0; in_extent < extent.bytes && done < total;) {
      const Bytes part = std::min({extent.bytes - in_extent, options_.block_bytes, total - done});
      std::uint64_t* const checksum = slot.checksums ? slot.checksums.get() + result.size() : nullptr;
      result.push_back({file, extent.offset + in_extent, done, part, checksum});
      in_extent += part;
      done += part;
    }
  }
  TENCACHE_CHECK(done == total);
  return result;
}

Bytes SwapFiles::used_bytes() const {
  Bytes sum = 0;
  for (const File& file : files_) sum += file.room.used();
  return sum;
}

// The lane's io_uring. Asio sends the next read of a file object when the one before is done, so that every file has as
// many objects as blocks may be in flight there.
class FileLane::Ring {
 public:
  Ring(const SwapFiles& files, std::uint32_t queue_depth)
      : context_(1), in_flight_(queue_depth * files.file_count()), buffer_bytes_(files.options().block_bytes) {
    for (std::size_t i = 0; i < files.file_count(); i++) {
      auto& objects = files_.emplace_back().objects;
      for (std::uint32_t k = 0; k < queue_depth; k++) {
        objects.emplace_back(context_);  // throws where io_uring is denied
        FileDescriptor copy(::fcntl(files.descriptor(i), F_DUPFD_CLOEXEC, 0));
        if (!copy.open() && k > 0 && (errno == EMFILE || errno == ENFILE)) {
          objects.pop_back();  // fewer in flight, where descriptors are scarce
          break;
        }
        if (!copy.open()) throw Error(std::string("cannot duplicate a descriptor: ") + std::strerror(errno));
        objects.back().assign(copy.get());
        copy.release();
      }
    }
  }

  // False when `progress` stopped it. `failed_block` and `error` say what went wrong, if anything did.
  bool transfer(const std::vector<FileBlock>& blocks, std::byte* memory, bool write, const Progress& progress) {
    blocks_ = &blocks;
    memory_ = memory;
    write_ = write;
    progress_ = &progress;
    next_ = 0;
    done_ = 0;
    stopped_ = false;
    error_.clear();
    context_.restart();
    const SourceFile* const source = blocks.empty() ? nullptr : blocks.front().source;
    const std::size_t in_flight = source != nullptr ? open(*source) : in_flight_;
    for (std::size_t slot = 0; slot < in_flight; ++slot) start_next(slot);
    context_.run();  // until no block is in flight
    source_.clear();
    return !stopped_;
  }
  const std::string& error() const { return error_; }
  const FileBlock& failed_block() const { return failed_; }

 private:
  // Descriptors and buffers for blocks of the file: how many may be in flight.
  std::size_t open(const SourceFile& source) {
    while (source_.size() < in_flight_) {
      FileDescriptor copy(::fcntl(source.descriptor(), F_DUPFD_CLOEXEC, 0));
      if (!copy.open() && !source_.empty() && (errno == EMFILE || errno == ENFILE)) break;
      if (!copy.open())
        throw Error("'" + source.path() + "': cannot duplicate its descriptor: " + std::strerror(errno));
      source_.emplace_back(context_).assign(copy.get());
      copy.release();
      if (buffers_.size() < source_.size()) buffers_.push_back(aligned_buffer(buffer_bytes_, std::byte{0}));
    }
    return source_.size();
  }

  // `slot`: of those in flight, the one that is free.
  void start_next(std::size_t slot) {
    if (next_ == blocks_->size() || stopped_ || !error_.empty()) return;
    const FileBlock& block = (*blocks_)[next_++];
    if (block.source != nullptr) return start_source(block, slot);
    if (write_) remember(block, memory_);
    const Bytes whole = moved_bytes(block);
    // The composed operations go on after a short transfer until all of the block is done or the file ends.
    const auto finish = [this, slot, &block, whole](const boost::system::error_code& error, std::size_t bytes) {
      if (error || bytes != whole) {
        return failed(block, error == boost::asio::error::eof || !error ? "the file ends there" : error.message());
      }
      if (const std::string wrong = wrong_with(block, memory_, write_); !wrong.empty()) return failed(block, wrong);
      over(block, slot);
    };
    // Without a condition of its own, Asio asks for no more than 64 KiB at a time.
    const auto rest = [whole, first = first_part(block, whole)](const boost::system::error_code& error,
                                                                std::size_t done) -> std::size_t {
      return error ? 0 : done == 0 ? first : whole - done;
    };
    auto& [objects, turn] = files_[block.file];
    auto& file = objects[turn++ % objects.size()];
    const auto part = boost::asio::buffer(memory_ + block.begin, whole);
    if (write_) {
      boost::asio::async_write_at(file, block.offset, part, rest, finish);
    } else {
      boost::asio::async_read_at(file, block.offset, part, rest, finish);
    }
  }

  void start_source(const FileBlock& block, std::size_t slot) {
    const Sectors sectors = sectors_of(block);
    const auto finish = [this, slot, &block, sectors](const boost::system::error_code& error, std::size_t bytes) {
      if (bytes < sectors.needed) {
        return failed(block, error && error != boost::asio::error::eof ? error.message() : "the file ends there");
      }
      std::memcpy(memory_ + block.begin, buffers_[slot].get() + sectors.before, sectors.needed - sectors.before);
      if (const std::string wrong = wrong_with_source(block, memory_); !wrong.empty()) return failed(block, wrong);
      over(block, slot);
    };
    const auto rest = [sectors, first = first_part(block, sectors.bytes)](const boost::system::error_code& error,
                                                                          std::size_t done) -> std::size_t {
      return error || done >= sectors.needed ? 0 : done == 0 ? first : sectors.bytes - done;
    };
    boost::asio::async_read_at(source_[slot], sectors.offset, boost::asio::buffer(buffers_[slot].get(), sectors.bytes),
                               rest, finish);
  }

  void over(const FileBlock& block, std::size_t slot) {
    done_ += block.bytes;
    if (!stopped_ && !(*progress_)(done_)) stopped_ = true;
    start_next(slot);
  }

  // Of several the first in the chunk is told.
  void failed(const FileBlock& block, const std::string& reason) {
    if (!error_.empty() && failed_.begin < block.begin) return;
    error_ = reason;
    failed_ = block;
  }

  boost::asio::io_context context_;
  struct File {
    std::vector<boost::asio::random_access_file> objects;  // that blocks take in turn
    std::size_t turn = 0;
  };
  std::vector<File> files_;
  std::size_t in_flight_;
  Bytes buffer_bytes_;
  std::vector<AlignedBuffer> buffers_;                   // for sectors of a source file, by slot
  std::vector<boost::asio::random_access_file> source_;  // the file that is read, by slot
  // Of the transfer under way.
  const std::vector<FileBlock>* blocks_ = nullptr;
  std::byte* memory_ = nullptr;
  bool write_ = false;
  const Progress* progress_ = nullptr;
  std::size_t next_ = 0;
  Bytes done_ = 0;
  bool stopped_ = false;
  std::string error_;
  FileBlock failed_;
};

FileLane::FileLane(const SwapFiles& files, std::uint32_t queue_depth) : files_(files) {
  for (std::size_t i = 0; i < files.file_count(); i++) {
    if (!files.direct(i)) {
      fallback_reason_ = files.options().direct ? "the file system refuses O_DIRECT" : "O_DIRECT is switched off";
      return;
    }
  }
  if (!files.options().io_uring) {
    fallback_reason_ = "io_uring is switched off";
    return;
  }
  try {
    ring_ = std::make_unique<Ring>(files, queue_depth != 0 ? queue_depth : files.options().queue_depth);
  } catch (const std::exception& error) {
    fallback_reason_ = std::string("io_uring is refused (") + error.what() + ")";
  }
}

FileLane::~FileLane() = default;

bool FileLane::read(const std::vector<FileBlock>& blocks, std::byte* memory, const Progress& progress) {
  return transfer(blocks, memory, false, progress);
}

bool FileLane::write(const std::vector<FileBlock>& blocks, const std::byte* memory, const Progress& progress) {
  return transfer(blocks, const_cast<std::byte*>(memory), true, progress);
}

bool FileLane::transfer(const std::vector<FileBlock>& blocks, std::byte* memory, bool write, const Progress& progress) {
  TENCACHE_CHECK(reinterpret_cast<std::uintptr_t>(memory) % sector_bytes == 0);
  const SourceFile* const source = blocks.empty() ? nullptr : blocks.front().source;
  TENCACHE_CHECK(source == nullptr || !write);
  if (ring_ != nullptr && (source == nullptr || source->direct())) {
    const bool whole = ring_->transfer(blocks, memory, write, progress);
    if (!ring_->error().empty()) fail(ring_->failed_block(), write, ring_->error());
    return whole;
  }
  if (source != nullptr && !source->direct()) {  // all of it is on its way before the first block is waited for
    const FileBlock &first = blocks.front(), &last = blocks.back();
    ::posix_fadvise(source->descriptor(), static_cast<off_t>(first.offset),
                    static_cast<off_t>(last.offset + last.bytes - first.offset), POSIX_FADV_WILLNEED);
  }
  Bytes done = 0;
  for (const FileBlock& block : blocks) {
    plain(block, memory, write);
    done += block.bytes;
    if (!progress(done)) return false;
  }
  return true;
}

void FileLane::fail(const FileBlock& block, bool write, const std::string& reason) const {
  throw Error(
      std::string(write ? "writing " : "reading ") + format_bytes(block.bytes) + " at byte " +
      std::to_string(block.offset) + " of " +
      (block.source != nullptr ? "'" + block.source->path() : "the swap file in '" + files_.directory(block.file)) +
      "': " + reason);
}

// The block's bytes, by pread and pwrite.
void FileLane::plain(const FileBlock& block, std::byte* memory, bool write) const {
  if (block.source != nullptr) return plain_from_source(block, memory);
  const Bytes whole = moved_bytes(block);
  if (write) remember(block, memory);
  const std::string failure =
      move(files_.descriptor(block.file), memory + block.begin, whole, first_part(block, whole), block.offset, write);
  if (!failure.empty()) fail(block, write, failure);
  if (const std::string wrong = wrong_with(block, memory, write); !wrong.empty()) fail(block, write, wrong);
}

void FileLane::plain_from_source(const FileBlock& block, std::byte* memory) const {
  const Sectors sectors = sectors_of(block);
  const AlignedBuffer buffer = aligned_buffer(sectors.bytes, std::byte{0});
  const int descriptor = block.source->descriptor();
  const std::string failure =
      move(descriptor, buffer.get(), sectors.needed, first_part(block, sectors.bytes), sectors.offset, false);
  if (!failure.empty()) fail(block, false, failure);
  std::memcpy(memory + block.begin, buffer.get() + sectors.before, sectors.needed - sectors.before);
  // It is in the tier above now: its pages in the cache would count as memory of this process.
  if (!block.source->direct()) {
    ::posix_fadvise(descriptor, static_cast<off_t>(sectors.offset), static_cast<off_t>(sectors.bytes),
                    POSIX_FADV_DONTNEED);
  }
  if (const std::string wrong = wrong_with_source(block, memory); !wrong.empty()) fail(block, false, wrong);
}

}  // namespace tencache
