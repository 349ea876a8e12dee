#include "traces/file/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "traces/file/byte_source.h"

namespace tencache {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;
constexpr std::size_t head_bytes = std::size_t{64} << 10;
constexpr int zstd_level = 3;

std::string reason(int error_number) { return std::strerror(error_number); }

[[noreturn]] void refuse_size(const std::string& name, Bytes maximum_bytes) {
  throw Error(name, 0,
              "holds more than " + format_bytes(maximum_bytes) +
                  ", the most that is read; split it, or check that it is the right file");
}

[[noreturn]] void refuse_memory(const std::string& name) {
  throw Error(name, 0, "does not fit into this computer's memory");
}

// A string that grows while it is filled, up to a maximum.
class Output {
 public:
  Output(const std::string& name, Bytes maximum_bytes, std::size_t first_guess) : name_(name), maximum_(maximum_bytes) {
    resize(std::max<std::size_t>(first_guess, 4096));
  }
  char* data() { return bytes_.data() + used_; }
  std::size_t room() const { return bytes_.size() - used_; }
  void advance(std::size_t count) {
    used_ += count;
    if (used_ > maximum_) refuse_size(name_, maximum_);
    if (room() == 0) resize(bytes_.size() * 2);
  }
  // Leaves the padding behind the content as zeros.
  std::string finish() {
    resize(used_ + read_padding_bytes);
    std::fill(bytes_.begin() + static_cast<std::ptrdiff_t>(used_), bytes_.end(), '\0');
    bytes_.resize(used_);
    return std::move(bytes_);
  }

 private:
  void resize(std::size_t size) {
    try {
      bytes_.resize(size);
    } catch (const std::bad_alloc&) {
      refuse_memory(name_);
    } catch (const std::length_error&) {
      refuse_memory(name_);
    }
  }

  const std::string& name_;
  Bytes maximum_;
  std::string bytes_;
  std::size_t used_ = 0;
};

constexpr const char* own_descriptors = "/proc/self/fd/";

std::string parent_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// As the kernel's fs.protected_symlinks and protected_fifos, which do not know that we are about to write there. An
// ordinary file of another's is no danger: it is replaced, never written, and only where the folder allows that.
void refuse_what_others_laid(const std::string& path) {
  struct stat found {};
  struct stat folder {};
  if (::lstat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)) return;
  if (::stat(parent_of(path).c_str(), &folder) != 0 || (folder.st_mode & S_IWOTH) == 0) return;
  if (found.st_uid == ::geteuid() || found.st_uid == folder.st_uid) return;
  throw Error(path, 0,
              "cannot be written: what is there was laid by another user, in a folder that everyone may write to; "
              "choose another name");
}

}  // namespace

std::string read_file(const std::string& path, Bytes maximum_bytes, const HeadCheck& check) {
  auto file = std::make_unique<FileSource>(path);
  const std::uint64_t file_bytes = file->file_bytes();
  if (file_bytes > maximum_bytes) refuse_size(path, maximum_bytes);
  std::unique_ptr<ByteSource> source = std::move(file);
  const bool compressed = decompress(source, path);
  if (check) check(peek(source, head_bytes));
  // What compressed files usually need, so that a false promise of theirs cannot exhaust the memory.
  const Bytes expected = compressed ? std::min<Bytes>(file_bytes * 8, maximum_bytes) : file_bytes;
  Output output(path, maximum_bytes, expected + read_padding_bytes);
  while (const std::size_t count = source->read(output.data(), output.room())) output.advance(count);
  return output.finish();
}

void AtomicFile::FreeCompressor::operator()(ZSTD_CCtx_s* compressor) const { ZSTD_freeCCtx(compressor); }

std::string file_to_write(const std::string& path) {
  std::filesystem::path file = path;
  for (int links = 0; links < 40; ++links) {
    refuse_what_others_laid(file.string());
    std::error_code no_link;
    const std::filesystem::path link = std::filesystem::read_symlink(file, no_link);
    if (no_link) return file.string();
    const std::filesystem::path next = file.parent_path() / link;  // `link` alone where it begins at the root
    // /dev/stdout leads to a link of /proc whose text is no path where it is a pipe.
    if (std::filesystem::exists(file, no_link) && !std::filesystem::exists(next, no_link)) return file.string();
    file = next;
  }
  throw Error(path, 0, "cannot be written: " + reason(ELOOP));
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(file_to_write(path_)) {
  if (path_.ends_with(".zst")) {
    compressor_.reset(ZSTD_createCCtx());
    if (!compressor_) throw Error(path_, 0, "cannot be written: out of memory");
    ZSTD_CCtx_setParameter(compressor_.get(), ZSTD_c_compressionLevel, zstd_level);
    ZSTD_CCtx_setParameter(compressor_.get(), ZSTD_c_checksumFlag, 1);
  }
  buffer_.reserve(block_bytes);
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    if (S_ISDIR(status.st_mode)) throw Error(path_, 0, "cannot be written: it is a directory; name a file");
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("cannot be written", errno);
    direct_ = true;
    return;
  }
  // Without a name until `commit`, where the file system can do that: who is killed leaves nothing behind.
  if (::access(own_descriptors, X_OK) == 0)
    descriptor_ = ::open(parent_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return;
  take_name([this](const char* name) {
    descriptor_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return descriptor_ >= 0;
  });
}

void AtomicFile::take_name(const std::function<bool(const char* name)>& take) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::string name = target_ + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    if (take(name.c_str())) {
      temporary_ = name;
      return;
    }
    if (errno != EEXIST) fail("cannot be written", errno);
  }
  fail("cannot be written", EEXIST);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what, int error_number) const {
  std::string advice;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG)
    advice = "; make room or write elsewhere";
  if (error_number == EACCES || error_number == EPERM || error_number == EROFS)
    advice = "; choose a place where you may write";
  if (error_number == ENOENT || error_number == ENOTDIR)
    advice = "; create the directory '" + parent_of(target_) + "' first";
  throw Error(path_, 0, std::string(what) + ": " + reason(error_number) + advice);
}

void AtomicFile::write(std::string_view bytes) {
  TENCACHE_CHECK(descriptor_ >= 0);
  if (compressor_) {
    compress(bytes, false);
    return;
  }
  if (buffer_.size() + bytes.size() > block_bytes) flush();
  if (bytes.size() >= block_bytes) {
    write_raw(bytes.data(), bytes.size());
  } else {
    buffer_ += bytes;
  }
}

void AtomicFile::compress(std::string_view bytes, bool last) {
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  std::size_t remaining = 1;
  while (input.pos < input.size || (last && remaining != 0)) {
    buffer_.resize(block_bytes);
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    remaining = ZSTD_compressStream2(compressor_.get(), &out, &input, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(remaining)) {
      throw Error(path_, 0, "cannot be compressed: " + std::string(ZSTD_getErrorName(remaining)));
    }
    write_raw(buffer_.data(), out.pos);
  }
  buffer_.clear();
}

void AtomicFile::write_raw(const char* data, std::size_t size) {
  while (size != 0) {
    const ssize_t count = ::write(descriptor_, data, size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot be written", errno);
    data += count;
    size -= static_cast<std::size_t>(count);
  }
}

void AtomicFile::flush() {
  write_raw(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::put_in_place() {
  if (temporary_.empty()) {
    // Only one file system call where nothing lies there yet, two in a row where something does: between them a killed
    // program leaves the whole content under a second name.
    const std::string content = own_descriptors + std::to_string(descriptor_);
    const auto link = [&content](const char* name) {
      return ::linkat(AT_FDCWD, content.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
    };
    if (!link(target_.c_str())) take_name(link);
  }
  if (!temporary_.empty() && ::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be put in place", errno);
  temporary_.clear();
  // The content is safe already; a directory that cannot be synced (some network file systems) is no failure.
  const int parent = ::open(parent_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return;
  ::fsync(parent);
  ::close(parent);
}

void AtomicFile::show() {
  TENCACHE_CHECK(descriptor_ >= 0);
  if (compressor_) return;
  flush();
  if (direct_ || std::exchange(shown_, true)) return;
  ::flock(descriptor_, LOCK_EX | LOCK_NB);  // goes with this process, however it ends
  put_in_place();
}

void AtomicFile::commit() {
  TENCACHE_CHECK(descriptor_ >= 0);
  if (compressor_) compress({}, true);
  flush();
  if (!direct_ && ::fsync(descriptor_) != 0) fail("cannot be written", errno);
  const bool nameless = !direct_ && !shown_ && temporary_.empty();
  if (nameless) put_in_place();  // needs the descriptor
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail("cannot be written", errno);
  if (!temporary_.empty()) put_in_place();
}

bool is_being_written(int descriptor) {
  if (::flock(descriptor, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  ::flock(descriptor, LOCK_UN);
  return false;
}

void write_file(const std::string& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void Sha256::block(const unsigned char* data) {
  static constexpr std::array<std::uint32_t, 64> constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<std::uint32_t, 64> words;
  for (std::size_t i = 0; i < 16; ++i) {
    words[i] = std::uint32_t{data[4 * i]} << 24 | std::uint32_t{data[4 * i + 1]} << 16 |
               std::uint32_t{data[4 * i + 2]} << 8 | std::uint32_t{data[4 * i + 3]};
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + words[i];
    const std::uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
  }
  const std::array<std::uint32_t, 8> result{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += result[i];
}

void Sha256::update(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t filled = size_ % 64;
    if (filled == 0 && bytes.size() >= 64) {
      block(reinterpret_cast<const unsigned char*>(bytes.data()));
      bytes.remove_prefix(64);
      size_ += 64;
      continue;
    }
    const std::size_t count = std::min(bytes.size(), 64 - filled);
    std::memcpy(pending_.data() + filled, bytes.data(), count);
    bytes.remove_prefix(count);
    size_ += count;
    if (filled + count == 64) block(pending_.data());
  }
}

std::string Sha256::hex_digest() {
  const std::uint64_t bits = size_ * 8;
  update(std::string_view("\x80", 1));
  const std::size_t filled = size_ % 64;
  update(std::string(filled <= 56 ? 56 - filled : 120 - filled, '\0'));
  std::string length;
  for (int shift = 56; shift >= 0; shift -= 8) length += static_cast<char>(bits >> shift & 0xff);
  update(length);
  std::string hex;
  for (std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 0xf];
  }
  return hex;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex_digest();
}

std::string sha256_of_file(const std::string& path) {
  FileSource file(path);
  std::string block(block_bytes, '\0');
  Sha256 hash;
  while (const std::size_t count = file.read(block.data(), block.size())) {
    hash.update({block.data(), count});
    if (file.consumed_bytes() > default_maximum_file_bytes) refuse_size(path, default_maximum_file_bytes);
  }
  return hash.hex_digest();
}

}  // namespace tencache
