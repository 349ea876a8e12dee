// The bytes of a recording as they are read, decompressed (traces/file/byte_source.h); of a tar archive the one member
// is read that holds a recording.
//
// Throws Error with the file's name and what to do about it. Not shared between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "traces/file/byte_source.h"

namespace tencache {

class ByteStream {
 public:
  // `member_ending` (".json", ".et"): of a tar archive's members the first whose name ends so. An archive without one
  // is an error that lists what it has.
  ByteStream(const std::string& path, std::string_view member_ending);

  std::size_t read(char* buffer, std::size_t size) { return source_->read(buffer, size); }
  // For messages: the path, and of an archive its member, "a.tar.gz(a.json)".
  const std::string& name() const { return name_; }
  // Of the file as it lies on disk, for a display of progress. The size is 0 where it is not known (a pipe).
  std::uint64_t consumed_bytes() const { return file_->consumed_bytes(); }
  std::uint64_t file_bytes() const { return file_->file_bytes(); }

 private:
  std::string name_;
  std::unique_ptr<ByteSource> source_;
  FileSource* file_ = nullptr;  // at the bottom of source_
};

// Called from time to time while a recording is read: bytes consumed of bytes in all (0: unknown).
using ImportProgress = std::function<void(std::uint64_t consumed, std::uint64_t total)>;

}  // namespace tencache
