// Whole files in, whole files out: decompression by content, compression by name, no half-written results.
//
// Everything here throws Error with the file's name and what to do about it. Nothing is shared between objects, so
// different threads may use different ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/units.h"

struct ZSTD_CCtx_s;

namespace tencache {

// Above this many bytes a file is refused, before or after decompression, rather than filling the memory.
inline constexpr Bytes default_maximum_file_bytes = 8 * GiB;
// Readable (zero) bytes that follow the content in the capacity of the string; simdjson reads that far ahead.
inline constexpr std::size_t read_padding_bytes = 64;

// Looks at the first kilobytes of a content, and throws where the rest is not worth reading.
using HeadCheck = std::function<void(std::string_view head)>;

// The content of a file, pipe or device, decompressed if its first bytes say gzip or zstd (whatever its name).
// The capacity of the result is at least its size plus read_padding_bytes. `check`, if there is one, sees the head of
// the content before there is memory for all of it. Data that are cut short, corrupt, or followed by something else are
// errors.
std::string read_file(const std::string& path, Bytes maximum_bytes = default_maximum_file_bytes,
                      const HeadCheck& check = {});

// A file that appears under its name complete, or not at all: written without a name (beside it under a temporary one
// where the file system needs names), then synced and put in place by commit(). Without commit() nothing stays. A name
// that ends in ".zst" is compressed with zstd; the same writes give the same bytes. Links are followed. A name of
// something that is no regular file (/dev/stdout, a pipe) is written directly. Neither is done with what another user
// laid in a folder that everyone may write to.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  // Puts the file in place with what was written so far. It then grows under its name, marked as being written until
  // commit() or the end of this process. A compressed file still waits for commit().
  void show();
  // Once, last. After an Error from write() or commit() nothing is left behind but the destructor's work.
  void commit();

 private:
  struct FreeCompressor {
    void operator()(ZSTD_CCtx_s* compressor) const;
  };
  void compress(std::string_view bytes, bool last);
  void write_raw(const char* data, std::size_t size);
  void flush();
  void put_in_place();
  void take_name(const std::function<bool(const char* name)>& take);
  [[noreturn]] void fail(const char* what, int error_number) const;

  std::string path_;       // as the user wrote it, for messages
  std::string target_;     // links resolved
  std::string temporary_;  // empty while the file has no name
  bool direct_ = false;    // what is no regular file is written as it is
  bool shown_ = false;
  int descriptor_ = -1;
  std::unique_ptr<ZSTD_CCtx_s, FreeCompressor> compressor_;  // null: not compressed
  std::string buffer_;
};

// Whether the writer of an open file has shown it (AtomicFile::show) and is still at work. A file system without locks
// cannot tell: false.
bool is_being_written(int descriptor);

// The file that is written by this name, which may be a link to it. In a folder that everyone may write to (/tmp),
// whoever is first has the name: Error if another user laid a link, a pipe or a socket there.
std::string file_to_write(const std::string& path);

// One AtomicFile with these bytes.
void write_file(const std::string& path, std::string_view bytes);

// SHA-256 (FIPS 180-4), as `sha256sum` prints it.
class Sha256 {
 public:
  void update(std::string_view bytes);
  // Ends the message; call once.
  std::string hex_digest();

 private:
  void block(const unsigned char* data);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  std::uint64_t size_ = 0;
};

std::string sha256_hex(std::string_view bytes);
// Of the bytes on disk, compressed or not: equals `sha256sum path`.
std::string sha256_of_file(const std::string& path);

}  // namespace tencache
