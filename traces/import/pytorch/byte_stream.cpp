#include "traces/import/pytorch/byte_stream.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::size_t tar_block = 512;

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

ByteStream::ByteStream(const std::string& path, std::string_view member_ending) : name_(path) {
  auto file = std::make_unique<FileSource>(path);
  file_ = file.get();
  source_ = std::move(file);
  if (!decompress(source_, path) && peek(source_, 2) == "PK") {
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

}  // namespace tencache
