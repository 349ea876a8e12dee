// Files behind a tier of kind nvme: one swap file per directory, without a name (a crash leaves nothing behind), opened
// with O_DIRECT where the file system allows it, cut into slots for chunks.
//
// SwapFiles keeps the slots; FileLane moves bytes. A lane owns an io_uring (Boost.Asio) over its own descriptors of the
// same files and keeps several blocks in flight. Where io_uring is denied or O_DIRECT is refused, pread and pwrite on
// the lane's thread do the same work; buffered writes never go through io_uring.
//
// Blocks of a chunk go to the directories in turn (as RAID-0 with stripes of a block), and the next chunk goes on where
// the last one ended: a lane moves one chunk at a time, so that whole chunks in turn would leave all devices but one
// idle. Where a disk is full, its blocks go to the others.
//
// A failure is one Error: what, in which directory, at which offset, why. A file that was made shorter under a run ends
// early, which is such an error too; that the directory is removed does not concern a file without a name.
//
// A chunk may also lie in a file of somebody else (`store_in_file`): a checkpoint that a program has mapped. It is never
// written. Its offset is seldom a multiple of 4 KiB, so the sectors around each block are read into a buffer of the lane
// and the block is copied from there: past the page cache, whose pages would count as memory of this process. Where the
// file system refuses O_DIRECT the page cache is used and emptied again.
//
// With checksums (Tier::checksums) the lane keeps the XXH64 of each block that it writes, in memory, and compares it
// when it reads the block: what a disk lost, tore or mixed up is an error and never data.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/fault_plan.h"
#include "core/machine_spec.h"
#include "executor/extent_allocator.h"
#include "executor/file_descriptor.h"

namespace tencache {

// Of somebody else, opened for reading, with a tensor's content from a byte on.
class SourceFile {
 public:
  SourceFile(std::string path, FileDescriptor descriptor, Bytes offset);
  // Reads from now on go past the page cache, if the file system allows it.
  void bypass_page_cache();
  bool direct() const { return direct_; }
  // Why its content is no longer what it was when it was opened; empty: it still is.
  std::string wrong() const;
  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  Bytes offset() const { return offset_; }

 private:
  std::string path_;
  FileDescriptor descriptor_;
  Bytes offset_;
  bool direct_ = false;
  struct stat status_ {};
};

// A piece of a chunk in a file.
struct FileBlock {
  std::uint32_t file = 0;  // index of the directory
  Bytes offset = 0;        // in the file
  Bytes begin = 0;         // in the chunk
  Bytes bytes = 0;         // a multiple of 4 KiB, but in a file of somebody else
  // Of its content, as long as the chunk has its slot; nullptr: none is kept.
  std::uint64_t* checksum = nullptr;
  // io_error, short_read or torn_write happens to it.
  std::optional<FaultKind> fault = {};
  const SourceFile* source = nullptr;  // in place of `file`; lives as long as the slot
};

struct SwapFileOptions {
  bool direct = true;    // O_DIRECT; false forces the page cache and pread/pwrite
  bool io_uring = true;  // false forces pread/pwrite
  bool nameless = true;  // O_TMPFILE; false forces a file whose name goes at once
  // Unless the tier says it (Tier::io_block_bytes, io_depth).
  Bytes block_bytes = 1024 * 1024;
  std::uint32_t queue_depth = 4;  // blocks in flight, of each directory
  FaultPlan faults = {};          // its disk_full; the other kinds are the blocks' own
};

// Threading: `take`, `give`, `blocks` from one thread at a time; lanes only use the files.
class SwapFiles {
 public:
  // Opens one file in each directory of the tier. Throws Error when a directory is missing, refuses a file, or has less
  // room than its share of the tier's capacity (an unlimited tier takes what is there).
  explicit SwapFiles(const Tier& tier, SwapFileOptions options = {});

  // A slot for a chunk; its room on the disks is reserved. OutOfMemory when the tier is full, Error when the disks are.
  void take(TensorId tensor, Bytes begin, Bytes bytes);
  // The chunk's slot is its part of that file. Reading it fails once the file has changed.
  void store_in_file(TensorId tensor, Bytes begin, Bytes bytes, std::shared_ptr<const SourceFile> file);
  // No effect without a slot.
  void give(TensorId tensor, Bytes begin);
  // Every slot of the tensor.
  void give_all(TensorId tensor);
  bool has(TensorId tensor, Bytes begin) const;
  // Where the chunk lies, in blocks of at most `block_bytes`, in order. The last one is rounded up to 4 KiB.
  std::vector<FileBlock> blocks(TensorId tensor, Bytes begin, Bytes bytes) const;

  std::size_t file_count() const { return files_.size(); }
  int descriptor(std::size_t file) const { return files_[file].descriptor.get(); }
  bool direct(std::size_t file) const { return files_[file].direct; }
  const std::string& directory(std::size_t file) const { return files_[file].directory; }
  const SwapFileOptions& options() const { return options_; }
  Bytes used_bytes() const;
  bool checksums() const { return checksums_; }

 private:
  struct File {
    std::string directory;
    FileDescriptor descriptor;
    bool direct = false;
    ExtentAllocator room;
    Bytes disk_room = 0;      // the file may be so long
    Bytes reserved = 0;       // of the file, on the disk
    bool can_reserve = true;  // the file system knows fallocate
  };
  struct Piece {
    std::uint32_t file = 0;
    Extent extent;
  };
  struct Slot {
    std::vector<Piece> pieces;                   // in the order of the chunk
    std::unique_ptr<std::uint64_t[]> checksums;  // of its blocks, in this order
    std::shared_ptr<const SourceFile> source;    // then there are no pieces
  };
  void open(const Tier& tier, const std::string& directory, Bytes share);
  int reserve(File& file, Bytes end);
  bool take_piece(std::uint32_t file, Bytes bytes, Slot& slot);
  Bytes take_rest(Bytes bytes, Slot& slot);
  void free_slot(const Slot& slot);

  std::string name_;
  bool checksums_;
  SwapFileOptions options_;
  Bytes granularity_;
  std::vector<File> files_;
  std::size_t next_file_ = 0;
  std::string full_disk_;                                      // the last one that had no room, and why
  std::unordered_map<TensorId, std::map<Bytes, Slot>> slots_;  // by the chunk's begin
};

// Called with the bytes of the transfer that are done; false stops it early.
using Progress = std::function<bool(Bytes done)>;

// One per copy lane. Used by one thread.
class FileLane {
 public:
  // Falls back as said above; `fallback_reason` is empty while io_uring with O_DIRECT works.
  // `queue_depth`: blocks in flight of each directory, 0 as the files' options say.
  explicit FileLane(const SwapFiles& files, std::uint32_t queue_depth = 0);
  ~FileLane();
  FileLane(const FileLane&) = delete;
  FileLane& operator=(const FileLane&) = delete;

  // Moves the blocks between the files and `memory` (the chunk's first byte, aligned to 4 KiB). False when `progress`
  // stopped it. Throws Error on a failure of the disk. `progress` is called in order of completion on this thread.
  bool read(const std::vector<FileBlock>& blocks, std::byte* memory, const Progress& progress);
  bool write(const std::vector<FileBlock>& blocks, const std::byte* memory, const Progress& progress);

  const std::string& fallback_reason() const { return fallback_reason_; }
  const SwapFiles& files() const { return files_; }

 private:
  class Ring;
  bool transfer(const std::vector<FileBlock>& blocks, std::byte* memory, bool write, const Progress& progress);
  [[noreturn]] void fail(const FileBlock& block, bool write, const std::string& reason) const;
  void plain(const FileBlock& block, std::byte* memory, bool write) const;
  void plain_from_source(const FileBlock& block, std::byte* memory) const;

  const SwapFiles& files_;
  std::unique_ptr<Ring> ring_;
  std::string fallback_reason_;
};

}  // namespace tencache
