#include "traces/file/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::size_t input_bytes = std::size_t{1} << 18;

// Gives back what was read ahead to recognise the format.
class Peeked : public ByteSource {
 public:
  Peeked(std::unique_ptr<ByteSource> below, std::string bytes) : below_(std::move(below)), bytes_(std::move(bytes)) {}
  std::size_t read(char* buffer, std::size_t size) override {
    const std::size_t from_memory = std::min(size, bytes_.size() - position_);
    std::memcpy(buffer, bytes_.data() + position_, from_memory);
    position_ += from_memory;
    return from_memory == size ? size : from_memory + below_->read(buffer + from_memory, size - from_memory);
  }

 private:
  std::unique_ptr<ByteSource> below_;
  std::string bytes_;
  std::size_t position_ = 0;
};

class Gunzip : public ByteSource {
 public:
  Gunzip(std::unique_ptr<ByteSource> below, std::string name) : below_(std::move(below)), name_(std::move(name)) {
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK)
      throw Error(name_, 0, "does not fit into this computer's memory");
  }
  ~Gunzip() override { inflateEnd(&stream_); }

  std::size_t read(char* buffer, std::size_t size) override {
    std::size_t done = 0;
    while (done < size && !ended_) {
      if (stream_.avail_in == 0 && !refill()) {
        throw Error(name_, 0, "the gzip data end too early; the file was cut short: copy or download it again");
      }
      const std::size_t room = std::min(size - done, input_bytes);
      stream_.next_out = reinterpret_cast<Bytef*>(buffer + done);
      stream_.avail_out = static_cast<uInt>(room);
      const int result = inflate(&stream_, Z_NO_FLUSH);
      done += room - stream_.avail_out;
      if (result == Z_STREAM_END) {
        next_member();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw Error(name_, 0,
                    "the gzip data are corrupt" +
                        (stream_.msg ? " (" + std::string(stream_.msg) + ")" : std::string()) +
                        "; copy or download the file again");
      }
    }
    return done;
  }

 private:
  bool refill() {
    const std::size_t count = below_->read(input_.data(), input_.size());
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
    return count != 0;
  }

  // gzip files may be concatenated; zeros to fill up a tape block may follow.
  void next_member() {
    bool zeros = false;
    while (stream_.avail_in != 0 || refill()) {
      if (*stream_.next_in == 0) {
        zeros = true;
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      if (zeros || *stream_.next_in != 0x1f) {
        throw Error(name_, 0, "something else follows the gzip data; the file is damaged: copy or download it again");
      }
      inflateReset(&stream_);
      return;
    }
    ended_ = true;
  }

  std::unique_ptr<ByteSource> below_;
  std::string name_;
  z_stream stream_{};
  std::vector<char> input_ = std::vector<char>(input_bytes);
  bool ended_ = false;
};

class Unzstd : public ByteSource {
 public:
  Unzstd(std::unique_ptr<ByteSource> below, std::string name)
      : below_(std::move(below)), name_(std::move(name)), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!stream_) throw Error(name_, 0, "does not fit into this computer's memory");
  }

  std::size_t read(char* buffer, std::size_t size) override {
    ZSTD_outBuffer out{buffer, size, 0};
    while (out.pos < out.size) {
      if (input_.pos == input_.size) {
        input_ = {bytes_.data(), below_->read(bytes_.data(), bytes_.size()), 0};
        if (input_.size == 0) {
          if (inside_frame_) {
            throw Error(name_, 0, "the zstd data end too early; the file was cut short: copy or download it again");
          }
          break;
        }
      }
      const std::size_t result = ZSTD_decompressStream(stream_.get(), &out, &input_);
      if (ZSTD_isError(result)) {
        throw Error(name_, 0, "the zstd data are corrupt (" + std::string(ZSTD_getErrorName(result)) + ")");
      }
      inside_frame_ = result != 0;
    }
    return out.pos;
  }

 private:
  std::unique_ptr<ByteSource> below_;
  std::string name_;
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> bytes_ = std::vector<char>(input_bytes);
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool inside_frame_ = false;
};

}  // namespace

FileSource::FileSource(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
    const int error_number = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(path_, 0, "cannot be read: " + std::string(std::strerror(error_number)));
  }
  if (S_ISDIR(status.st_mode)) {
    ::close(descriptor_);
    throw Error(path_, 0, "is a directory; name a file");
  }
  if (S_ISREG(status.st_mode)) size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() { ::close(descriptor_); }

std::size_t FileSource::read(char* buffer, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = ::read(descriptor_, buffer + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(path_, 0, "cannot be read: " + std::string(std::strerror(errno)));
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  consumed_ += done;
  return done;
}

std::string peek(std::unique_ptr<ByteSource>& source, std::size_t count) {
  std::string bytes(count, '\0');
  bytes.resize(source->read(bytes.data(), count));
  source = std::make_unique<Peeked>(std::move(source), bytes);
  return bytes;
}

bool decompress(std::unique_ptr<ByteSource>& source, const std::string& name) {
  const std::string magic = peek(source, 4);
  if (magic.starts_with("\x1f\x8b")) {
    source = std::make_unique<Gunzip>(std::move(source), name);
  } else if (magic == "\x28\xb5\x2f\xfd") {
    source = std::make_unique<Unzstd>(std::move(source), name);
  } else {
    return false;
  }
  return true;
}

}  // namespace tencache
