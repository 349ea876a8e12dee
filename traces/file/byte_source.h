// The bytes of a file as they are read: compressed ones are recognised by content and decompressed on the fly, so that
// memory does not grow with the file.
//
// Everything here throws Error with the file's name and what to do about it. A source belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tencache {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` bytes, fewer only at the end; 0: the end.
  virtual std::size_t read(char* buffer, std::size_t size) = 0;
};

// A file, pipe or device, from its beginning. A directory is an error.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  std::size_t read(char* buffer, std::size_t size) override;
  std::uint64_t consumed_bytes() const { return consumed_; }
  // 0 where it is not known (a pipe).
  std::uint64_t file_bytes() const { return size_; }

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t consumed_ = 0, size_ = 0;
};

// Reads `count` bytes ahead (fewer at the end) and leaves the source as it was.
std::string peek(std::unique_ptr<ByteSource>& source, std::size_t count);

// Puts a decompressor on top if the first bytes say gzip or zstd (whatever the name), and says whether they do. Data
// that are cut short, corrupt, or followed by something else are errors when they are read; `name` is for messages.
bool decompress(std::unique_ptr<ByteSource>& source, const std::string& name);

}  // namespace tencache
