// Which file a program's memory is a mapping of, and whether the file still has its content.
#include "executor/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace tencache {
namespace {

constexpr std::size_t page = 4096, pages = 4;

void write_file(const std::string& path, char fill) { std::ofstream(path) << std::string(pages * page, fill); }

// A file of four pages, and the last three of them mapped.
class Mapped {
 public:
  explicit Mapped(int flags = MAP_PRIVATE)
      : path_(testing::TempDir() + "mapped_file_test_" + std::to_string(::getpid())) {
    write_file(path_, 'a');
    const FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    at_ = static_cast<char*>(::mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, flags, file.get(), page));
  }
  ~Mapped() {
    ::munmap(at_, bytes());
    std::filesystem::remove(path_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  static std::size_t bytes() { return (pages - 1) * page; }
  char* at() const { return at_; }
  const std::string& path() const { return path_; }
  bool unwritten(std::size_t begin, std::size_t count) const {
    const std::optional<MappedFile> file = private_mapping_at(at_ + begin, count);
    return file && open_unwritten(*file, at_ + begin, count).open();
  }

 private:
  std::string path_;
  char* at_ = nullptr;
};

TEST(MappedFileTest, WhereTheBytesLie) {
  const Mapped mapped;
  const std::optional<MappedFile> file = private_mapping_at(mapped.at() + 100, 2 * page);
  ASSERT_TRUE(file);
  EXPECT_TRUE(std::filesystem::equivalent(file->path, mapped.path()));
  struct stat status {};
  ASSERT_EQ(::stat(mapped.path().c_str(), &status), 0);
  EXPECT_EQ(file->inode, status.st_ino);
  EXPECT_EQ(file->offset, page + 100);
}

TEST(MappedFileTest, MemoryThatIsNoPrivateMapping) {
  const Mapped mapped, shared(MAP_SHARED);
  EXPECT_FALSE(private_mapping_at(shared.at(), page));
  EXPECT_FALSE(private_mapping_at(mapped.at() + page, Mapped::bytes())) << "beyond its end";
  EXPECT_FALSE(private_mapping_at(mapped.at(), ~std::size_t{0})) << "around the address space";
  EXPECT_FALSE(private_mapping_at(nullptr, page));
  void* const anonymous = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_FALSE(private_mapping_at(anonymous, page));
  ::munmap(anonymous, page);
}

TEST(MappedFileTest, AWriteMakesItsPageThePrograms) {
  const Mapped mapped;
  EXPECT_TRUE(mapped.unwritten(0, Mapped::bytes()));
  EXPECT_EQ(mapped.at()[page], 'a');  // it is in memory
  EXPECT_TRUE(mapped.unwritten(0, Mapped::bytes()));
  mapped.at()[page + 5] = 'a';  // the same value
  EXPECT_FALSE(mapped.unwritten(0, Mapped::bytes()));
  EXPECT_FALSE(mapped.unwritten(page + 100, 10)) << "the same page";
  EXPECT_TRUE(mapped.unwritten(0, page));
  EXPECT_TRUE(mapped.unwritten(2 * page, page));
}

TEST(MappedFileTest, ThePathMustLeadToTheFile) {
  const Mapped mapped;
  const std::string other = mapped.path() + ".other";
  write_file(other, 'a');
  std::filesystem::rename(other, mapped.path());
  EXPECT_FALSE(mapped.unwritten(0, page)) << "replaced";
  std::filesystem::remove(mapped.path());
  EXPECT_FALSE(mapped.unwritten(0, page)) << "gone";
}

// Of another file with the same inode, on another file system.
TEST(MappedFileTest, TheContentMustBeTheMappings) {
  const Mapped mapped;
  const std::optional<MappedFile> file = private_mapping_at(mapped.at(), 2 * page);
  ASSERT_TRUE(file);
  const std::string other = mapped.path() + ".other";
  std::ofstream(other) << std::string(3 * page - 1, 'a') << 'b';
  struct stat status {};
  ASSERT_EQ(::stat(other.c_str(), &status), 0);
  EXPECT_TRUE(open_unwritten({other, status.st_ino, 0}, mapped.at(), 2 * page).open());
  EXPECT_FALSE(open_unwritten({other, status.st_ino, page}, mapped.at(), 2 * page).open()) << "its last byte";
  EXPECT_FALSE(open_unwritten({other, status.st_ino, 2 * page}, mapped.at(), 2 * page).open()) << "beyond its end";
  std::filesystem::remove(other);
}

}  // namespace
}  // namespace tencache
