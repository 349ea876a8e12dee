#include "traces/pytorch/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::size_t member_block_bytes = std::size_t{1} << 18;
constexpr std::size_t tar_block = 512;

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

// Reads ahead `count` bytes (fewer at the end) and leaves the source as it was.
std::string peek(std::unique_ptr<ByteSource>& source, std::size_t count) {
  std::string bytes(count, '\0');
  bytes.resize(source->read(bytes.data(), count));
  source = std::make_unique<Peeked>(std::move(source), bytes);
  return bytes;
}

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
      const std::size_t room = std::min(size - done, member_block_bytes);
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
  std::vector<char> input_ = std::vector<char>(member_block_bytes);
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
  std::vector<char> bytes_ = std::vector<char>(member_block_bytes);
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool inside_frame_ = false;
};

bool is_tar(std::string_view head) { return head.size() >= tar_block && head.substr(257, 5) == "ustar"; }

// One member of a tar archive (POSIX.1-1988 ustar; names of other extensions do not matter here).
class TarMember : public ByteSource {
 public:
  TarMember(std::unique_ptr<ByteSource> below, std::string name, std::string_view ending)
      : below_(std::move(below)), name_(std::move(name)) {
    std::string found;
    std::size_t members = 0;
    while (read_header()) {
      const bool file = kind_ == '0' || kind_ == '\0';
      // Apple's tar adds "._name" members of its own.
      const std::string base = member_.substr(member_.rfind('/') + 1);
      if (file && member_.ends_with(ending) && !base.starts_with("._")) return;
      if (file && ++members <= 5) found += (found.empty() ? "" : ", ") + member_;
      skip(padded(left_));
    }
    throw Error(name_, 0,
                "the archive has no member that ends in " + std::string(ending) +
                    (found.empty() ? std::string("; it is empty") : "; it has " + found + (members > 5 ? ", …" : "")));
  }

  std::size_t read(char* buffer, std::size_t size) override {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(size, left_));
    const std::size_t count = wanted == 0 ? 0 : below_->read(buffer, wanted);
    if (count < wanted) cut_short();
    left_ -= count;
    return count;
  }
  const std::string& member() const { return member_; }

 private:
  static std::uint64_t padded(std::uint64_t bytes) { return (bytes + tar_block - 1) / tar_block * tar_block; }
  [[noreturn]] void cut_short() const {
    throw Error(name_, 0,
                "the archive ends within '" + member_ + "'; the file was cut short: copy or download it again");
  }

  bool read_header() {
    std::array<char, tar_block> block{};
    const std::size_t count = below_->read(block.data(), block.size());
    if (count == 0 || block[0] == '\0') return false;
    const std::string_view header(block.data(), block.size());
    if (count < tar_block) cut_short();
    if (!is_tar(header)) throw Error(name_, 0, "the archive is damaged: no header where a member should begin");
    const std::string_view name = header.substr(0, 100);
    member_ = std::string(name.substr(0, std::min(name.find('\0'), name.size())));
    std::replace_if(
        member_.begin(), member_.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
    kind_ = block[156];
    left_ = 0;
    for (const char digit : header.substr(124, 11)) {
      if (digit == ' ' || digit == '\0') continue;
      if (digit < '0' || digit > '7') {
        throw Error(name_, 0, "the archive gives '" + member_ + "' no size in octal digits, which is all that is read");
      }
      left_ = left_ * 8 + static_cast<std::uint64_t>(digit - '0');
    }
    return true;
  }

  void skip(std::uint64_t bytes) {
    std::array<char, 1 << 14> scrap;
    while (bytes > 0) {
      const std::size_t count =
          below_->read(scrap.data(), static_cast<std::size_t>(std::min<std::uint64_t>(bytes, scrap.size())));
      if (count == 0) cut_short();
      bytes -= count;
    }
  }

  std::unique_ptr<ByteSource> below_;
  std::string name_, member_;
  char kind_ = '0';
  std::uint64_t left_ = 0;
};

}  // namespace

class ByteStream::File : public ByteSource {
 public:
  explicit File(const std::string& path) : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
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
  ~File() override { ::close(descriptor_); }

  std::size_t read(char* buffer, std::size_t size) override {
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
  std::uint64_t consumed() const { return consumed_; }
  std::uint64_t size() const { return size_; }

 private:
  std::string path_;
  int descriptor_;
  std::uint64_t consumed_ = 0, size_ = 0;
};

ByteStream::ByteStream(const std::string& path, std::string_view member_ending) : name_(path) {
  auto file = std::make_unique<File>(path);
  file_ = file.get();
  file_bytes_ = file->size();
  source_ = std::move(file);
  const std::string magic = peek(source_, 4);
  if (magic.starts_with("\x1f\x8b")) {
    source_ = std::make_unique<Gunzip>(std::move(source_), path);
  } else if (magic == "\x28\xb5\x2f\xfd") {
    source_ = std::make_unique<Unzstd>(std::move(source_), path);
  } else if (magic.starts_with("PK")) {
    throw Error(path, 0, "is a zip archive; unpack it and name the recording in it");
  }
  const std::string head = peek(source_, tar_block);
  if (head.empty()) throw Error(path, 0, "is empty");
  if (head.starts_with("version https://git-lfs")) {
    throw Error(path, 0, "is a pointer of Git LFS, not the file itself; run 'git lfs pull' where it came from");
  }
  if (is_tar(head)) {
    auto member = std::make_unique<TarMember>(std::move(source_), path, member_ending);
    name_ = path + "(" + member->member() + ")";
    source_ = std::move(member);
  }
}

ByteStream::~ByteStream() = default;

std::size_t ByteStream::read(char* buffer, std::size_t size) { return source_->read(buffer, size); }

std::uint64_t ByteStream::consumed_bytes() const { return file_->consumed(); }

}  // namespace tencache
