// Files behind a tier: bytes, both ways of reading and writing, no names left behind, clear errors.
#include "executor/swap_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

#include "core/error.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

class SwapFileTest : public testing::Test {
 protected:
  SwapFileTest() {
    std::string name = (fs::temp_directory_path() / "tencache-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const char* part : {"a", "b"}) fs::create_directory(folder_ / part);
    tier_.name = "nvme";
    tier_.kind = TierKind::nvme;
    tier_.capacity = 64 * MiB;
    tier_.granularity = 4096;
    tier_.directories = {(folder_ / "a").string(), (folder_ / "b").string()};
  }
  ~SwapFileTest() override {
    EXPECT_TRUE(fs::is_empty(folder_ / "a")) << "a file was left behind";
    EXPECT_TRUE(fs::is_empty(folder_ / "b")) << "a file was left behind";
    fs::remove_all(folder_);
  }

  fs::path folder_;
  Tier tier_;
};

struct Buffer {
  explicit Buffer(Bytes size) : bytes(size), data(static_cast<std::byte*>(std::aligned_alloc(4096, size))) {
    std::memset(data, 0, size);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void fill(unsigned seed) {
    for (Bytes i = 0; i < bytes; i++) data[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 7);
  }
  Bytes bytes;
  std::byte* data;
};

const Progress go_on = [](Bytes) { return true; };

void round_trip(const Tier& tier, SwapFileOptions options) {
  SwapFiles files(tier, options);
  FileLane writer(files), reader(files);
  Buffer out(5 * MiB), in(5 * MiB);
  for (TensorId tensor = 0; tensor < 4; tensor++) {
    out.fill(tensor);
    files.take(tensor, 0, out.bytes);
    EXPECT_TRUE(writer.write(files.blocks(tensor, 0, out.bytes), out.data, go_on));
  }
  for (TensorId tensor = 0; tensor < 4; tensor++) {
    out.fill(tensor);
    EXPECT_TRUE(reader.read(files.blocks(tensor, 0, in.bytes), in.data, go_on));
    EXPECT_EQ(std::memcmp(in.data, out.data, in.bytes), 0);
  }
}

TEST_F(SwapFileTest, BytesComeBackThroughTheRing) { round_trip(tier_, {}); }
TEST_F(SwapFileTest, BytesComeBackThroughPreadAndPwrite) { round_trip(tier_, {.io_uring = false}); }
TEST_F(SwapFileTest, BytesComeBackThroughThePageCache) { round_trip(tier_, {.direct = false}); }

TEST_F(SwapFileTest, FallbacksSayWhy) {
  SwapFiles no_ring(tier_, {.io_uring = false});
  EXPECT_EQ(FileLane(no_ring).fallback_reason(), "io_uring is switched off");
  SwapFiles buffered(tier_, {.direct = false});
  EXPECT_EQ(FileLane(buffered).fallback_reason(), "O_DIRECT is switched off");
}

TEST_F(SwapFileTest, OpensWithoutANameForTheOwnerOnlyAndDirect) {
  SwapFiles files(tier_);
  EXPECT_TRUE(fs::is_empty(folder_ / "a"));
  for (std::size_t i = 0; i < files.file_count(); i++) {
    struct stat status {};
    ASSERT_EQ(::fstat(files.descriptor(i), &status), 0);
    EXPECT_EQ(status.st_nlink, 0u);
    EXPECT_EQ(status.st_mode & 0777u, 0600u);
    const int flags = ::fcntl(files.descriptor(i), F_GETFL);
    EXPECT_EQ((flags & O_DIRECT) != 0, files.direct(i));
    EXPECT_NE(::fcntl(files.descriptor(i), F_GETFD) & FD_CLOEXEC, 0);
  }
  if (!files.direct(0)) GTEST_SKIP() << "this file system refuses O_DIRECT";
  SwapFiles buffered(tier_, {.direct = false});
  EXPECT_EQ(::fcntl(buffered.descriptor(0), F_GETFL) & O_DIRECT, 0);
}

TEST_F(SwapFileTest, ChunksGoToTheDirectoriesInTurn) {
  SwapFiles files(tier_);
  for (TensorId tensor = 0; tensor < 4; tensor++) {
    files.take(tensor, 0, MiB);
    EXPECT_EQ(files.blocks(tensor, 0, MiB).front().file, tensor % 2);
  }
  EXPECT_EQ(files.used_bytes(), 4 * MiB);
  struct stat status {};
  ASSERT_EQ(::fstat(files.descriptor(0), &status), 0);
  EXPECT_GE(static_cast<Bytes>(status.st_blocks) * 512, 2 * MiB) << "room is not reserved on the disk";
}

TEST_F(SwapFileTest, BlocksCoverTheChunkInWholeSectors) {
  SwapFiles files(tier_, {.block_bytes = 64 * KiB});
  files.take(0, 4096, 200'000);
  Bytes next = 0;
  for (const FileBlock& block : files.blocks(0, 4096, 200'000)) {
    EXPECT_EQ(block.begin, next);
    EXPECT_EQ(block.offset % 4096, 0u);
    EXPECT_EQ(block.bytes % 4096, 0u);
    EXPECT_LE(block.bytes, 64 * KiB);
    next += block.bytes;
  }
  EXPECT_EQ(next, 200'704u);  // 49 sectors
}

TEST_F(SwapFileTest, SlotsAreGivenBackAndTheCapacityIsHard) {
  tier_.capacity = 4 * MiB;
  SwapFiles files(tier_);
  files.take(0, 0, 2 * MiB);
  files.take(0, 2 * MiB, 2 * MiB);
  EXPECT_THROW(files.take(1, 0, 4096), OutOfMemory);
  files.give(0, 2 * MiB);
  EXPECT_FALSE(files.has(0, 2 * MiB));
  files.take(1, 0, MiB);
  files.give_all(0);
  files.give_all(0);
  EXPECT_EQ(files.used_bytes(), MiB);
}

TEST_F(SwapFileTest, StopsBetweenBlocks) {
  for (const bool io_uring : {true, false}) {
    SwapFiles files(tier_, {.io_uring = io_uring, .queue_depth = 2});
    FileLane lane(files);
    Buffer out(16 * MiB);
    files.take(0, 0, out.bytes);
    Bytes seen = 0;
    const auto stop_at_4 = [&](Bytes done) {
      seen = done;
      return done < 4 * MiB;
    };
    EXPECT_FALSE(lane.write(files.blocks(0, 0, out.bytes), out.data, stop_at_4));
    EXPECT_EQ(seen, 4 * MiB);
    EXPECT_TRUE(lane.write(files.blocks(0, 0, out.bytes), out.data, go_on)) << "the lane works on after a stop";
  }
}

TEST_F(SwapFileTest, ReadingWhatIsNotThereFails) {
  SwapFiles files(tier_);
  Buffer in(MiB);
  const std::vector<FileBlock> beyond{{0, 1024 * MiB, 0, 4096}};
  for (const bool io_uring : {true, false}) {
    SwapFiles other(tier_, {.io_uring = io_uring});
    FileLane lane(other);
    EXPECT_THROW(lane.read(beyond, in.data, go_on), Error);
  }
}

TEST_F(SwapFileTest, BadDirectoriesAreOneClearError) {
  const auto message = [](const Tier& tier) -> std::string {
    try {
      SwapFiles files(tier);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  Tier missing = tier_;
  missing.directories = {(folder_ / "missing").string()};
  EXPECT_NE(message(missing).find("No such file or directory"), std::string::npos) << message(missing);
  EXPECT_NE(message(missing).find("missing'"), std::string::npos);
  Tier huge = tier_;
  huge.capacity = 1024 * 1024 * 1024 * GiB / 1024;
  EXPECT_NE(message(huge).find("lower the tier's capacity"), std::string::npos) << message(huge);
  Tier none_given = tier_;
  none_given.directories.clear();
  EXPECT_NE(message(none_given).find("no directories"), std::string::npos);
}

TEST_F(SwapFileTest, ADirectoryWithoutRightsIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  Tier forbidden = tier_;
  forbidden.directories = {"/"};
  EXPECT_THROW(SwapFiles files(forbidden), Error);
}

TEST_F(SwapFileTest, NoDescriptorsAreLeft) {
  const auto open_descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_descriptors();
  for (int i = 0; i < 3; i++) {
    SwapFiles files(tier_);
    FileLane lane(files), another(files);
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace tencache
