// Files behind a tier: bytes, both ways of reading and writing, no names left behind, clear errors.
#include "executor/swap_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <utility>

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
  explicit Buffer(Bytes size)
      : bytes(size), data(static_cast<std::byte*>(std::aligned_alloc(4096, round_up(size, 4096)))) {
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
  SwapFiles files(tier, std::move(options));
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

// At an odd offset, as safetensors has them, up to the file's end.
TEST_F(SwapFileTest, ChunksLieInSourceFiles) {
  constexpr Bytes offset = 1234, chunk = 4096 * 40, last = 300'000 - offset - chunk;  // a tensor of two chunks
  Buffer content(300'000), in(300'000);
  content.fill(7);
  const std::string path = (folder_ / "checkpoint").string();
  for (const SwapFileOptions& options : std::vector<SwapFileOptions>{
           {.block_bytes = 64 * KiB}, {.io_uring = false, .block_bytes = 64 * KiB}, {.direct = false}}) {
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(content.data), 300'000);
    SwapFiles files(tier_, options);
    FileLane lane(files);
    SourceFile opened(path, FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), offset);
    if (options.direct) opened.bypass_page_cache();
    EXPECT_EQ(opened.direct(), files.direct(0)) << "the same file system";
    const auto source = std::make_shared<const SourceFile>(std::move(opened));
    files.store_in_file(0, 0, chunk, source);
    files.store_in_file(0, chunk, last, source);
    EXPECT_TRUE(files.has(0, chunk));
    EXPECT_EQ(files.used_bytes(), 0u);
    for (const auto& [begin, bytes] : {std::pair{Bytes{0}, chunk}, {chunk, last}}) {
      std::memset(in.data, 0, in.bytes);
      Bytes told = 0;
      EXPECT_TRUE(lane.read(files.blocks(0, begin, bytes), in.data, [&](Bytes done) {
        EXPECT_GT(done, told);
        told = done;
        return true;
      }));
      EXPECT_EQ(told, bytes);
      EXPECT_EQ(std::memcmp(in.data, content.data + offset + begin, bytes), 0);
      EXPECT_EQ(in.data[bytes], std::byte{0}) << "more was written than the chunk";
    }

    std::ofstream(path, std::ios::binary | std::ios::app) << "more";
    try {
      lane.read(files.blocks(0, 0, chunk), in.data, go_on);
      FAIL() << "a file that changed was read";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("has changed"), std::string::npos) << error.what();
    }
    std::filesystem::resize_file(path, 4096);
    EXPECT_THROW(lane.read(files.blocks(0, 0, chunk), in.data, go_on), Error);

    files.give(0, 0);  // what is written from now on goes to the tier's own files
    files.take(0, 0, chunk);
    EXPECT_TRUE(lane.write(files.blocks(0, 0, chunk), content.data, go_on));
    EXPECT_GT(files.used_bytes(), 0u);
  }
}

// Blocks of a source file end where a sector does: none is read twice.
TEST_F(SwapFileTest, BlocksOfASourceFileEndWithASector) {
  const std::string path = (folder_ / "checkpoint").string();
  std::ofstream(path) << "content";
  SwapFiles files(tier_, {.block_bytes = 64 * KiB});
  const auto source =
      std::make_shared<const SourceFile>(path, FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), 5000);
  files.store_in_file(0, 0, 200'000, source);
  const std::vector<FileBlock> blocks = files.blocks(0, 0, 200'000);
  ASSERT_EQ(blocks.size(), 4u);
  Bytes begin = 0;
  for (const FileBlock& block : blocks) {
    EXPECT_EQ(block.begin, begin);
    EXPECT_EQ(block.offset, 5000 + begin);
    begin += block.bytes;
    EXPECT_EQ((block.offset + block.bytes) % 4096, &block == &blocks.back() ? (5000u + 200'000u) % 4096u : 0u);
  }
  EXPECT_EQ(begin, 200'000u);
}

// Chunks of three blocks: a b a, b a b, …
TEST_F(SwapFileTest, BlocksGoToTheDirectoriesInTurn) {
  SwapFiles files(tier_, {.block_bytes = 64 * KiB});
  std::uint32_t next = 0;
  for (TensorId tensor = 0; tensor < 22; tensor++) {
    files.take(tensor, 0, 192 * KiB - 100);
    for (const FileBlock& block : files.blocks(tensor, 0, 192 * KiB - 100)) EXPECT_EQ(block.file, next++ % 2);
  }
  EXPECT_EQ(files.used_bytes(), 22 * 192 * KiB);
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

TEST_F(SwapFileTest, TheTierSaysHowItsFilesAreUsed) {
  tier_.io_block_bytes = 128 * KiB;
  tier_.io_depth = 7;
  SwapFiles files(tier_, {.block_bytes = 64 * KiB});
  EXPECT_EQ(files.options().queue_depth, 7U);
  files.take(0, 0, MiB);
  EXPECT_EQ(files.blocks(0, 0, MiB).size(), 8U);
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

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The third block of 64 KiB fails, with a disk's error: it says what, where and why; the lane works on.
TEST_F(SwapFileTest, AFailureSaysWhatWhereAndWhy) {
  for (const bool io_uring : {true, false}) {
    for (const bool write : {true, false}) {
      SwapFiles files(tier_, {.io_uring = io_uring, .block_bytes = 64 * KiB});
      FileLane lane(files);
      Buffer buffer(MiB);
      files.take(0, 0, buffer.bytes);
      const std::vector<FileBlock> blocks = files.blocks(0, 0, buffer.bytes);
      EXPECT_TRUE(lane.write(blocks, buffer.data, go_on));
      std::vector<FileBlock> broken = blocks;
      broken[2].fault = FaultKind::io_error;
      EXPECT_EQ(
          message_of([&] { write ? lane.write(broken, buffer.data, go_on) : lane.read(broken, buffer.data, go_on); }),
          std::string(write ? "writing" : "reading") + " 64.00 KiB at byte " + std::to_string(blocks[2].offset) +
              " of the swap file in '" + tier_.directories[0] + "': Input/output error");
      EXPECT_TRUE(lane.read(blocks, buffer.data, go_on));
    }
  }
}

// A block that comes in two parts is put together; one that was torn is found out by its checksum, and says where.
TEST_F(SwapFileTest, AShortReadIsCompletedAndATornWriteIsFoundOut) {
  for (const bool io_uring : {true, false}) {
    for (const bool checksums : {true, false}) {
      tier_.checksums = checksums;
      SwapFiles files(tier_, {.io_uring = io_uring, .block_bytes = 64 * KiB});
      FileLane lane(files);
      Buffer buffer(MiB), again(MiB);
      buffer.fill(1);
      files.take(0, 0, buffer.bytes);
      std::vector<FileBlock> blocks = files.blocks(0, 0, buffer.bytes);
      EXPECT_TRUE(lane.write(blocks, buffer.data, go_on));
      for (FileBlock& block : blocks) block.fault = FaultKind::short_read;
      EXPECT_TRUE(lane.read(blocks, again.data, go_on));
      EXPECT_EQ(std::memcmp(buffer.data, again.data, MiB), 0);

      buffer.fill(2);
      blocks = files.blocks(0, 0, buffer.bytes);
      blocks[5].fault = FaultKind::torn_write;
      EXPECT_TRUE(lane.write(blocks, buffer.data, go_on));
      blocks = files.blocks(0, 0, buffer.bytes);
      if (checksums) {
        EXPECT_EQ(message_of([&] { lane.read(blocks, again.data, go_on); }),
                  "reading 64.00 KiB at byte " + std::to_string(blocks[5].offset) + " of the swap file in '" +
                      tier_.directories[1] +
                      "': its checksum is wrong: the disk has lost or changed what was written there");
      } else {
        EXPECT_TRUE(lane.read(blocks, again.data, go_on));
        EXPECT_EQ(std::memcmp(buffer.data, again.data, 5 * 64 * KiB + 32 * KiB), 0);
        EXPECT_NE(std::memcmp(buffer.data + 5 * 64 * KiB + 32 * KiB, again.data + 5 * 64 * KiB + 32 * KiB, 32 * KiB),
                  0);
      }
    }
  }
}

// Bits that change in the file after it was written, whatever the chunk's size.
TEST_F(SwapFileTest, AChecksumNoticesEveryChangedByte) {
  tier_.checksums = true;
  SwapFiles files(tier_, {.direct = false, .block_bytes = 64 * KiB});
  FileLane lane(files);
  for (const Bytes bytes : {Bytes{1}, Bytes{4096}, 200 * KiB + 17}) {
    Buffer buffer(256 * KiB);
    buffer.fill(static_cast<unsigned>(bytes));
    files.take(1, 0, bytes);
    const std::vector<FileBlock> blocks = files.blocks(1, 0, bytes);
    EXPECT_TRUE(lane.write(blocks, buffer.data, go_on));
    EXPECT_TRUE(lane.read(blocks, buffer.data, go_on));
    const FileBlock& last = blocks.back();
    const auto at = static_cast<off_t>(last.offset + last.bytes / 2);
    const std::byte changed = buffer.data[last.begin + last.bytes / 2] ^ std::byte{1};
    ASSERT_EQ(::pwrite(files.descriptor(last.file), &changed, 1, at), 1);
    EXPECT_NE(message_of([&] { lane.read(blocks, buffer.data, go_on); }).find("its checksum is wrong"),
              std::string::npos);
    files.give(1, 0);
  }
}

// The disk is said to hold half of the tier: what does not fit there goes to the other directory, then it is full.
TEST_F(SwapFileTest, APlanFillsTheDisks) {
  SwapFiles files(tier_, {.faults = parse_fault_plan("disk_full=50%")});
  TensorId tensor = 0;
  const std::string message = message_of([&] {
    for (; tensor < 100; ++tensor) files.take(tensor, 0, MiB);
  });
  EXPECT_EQ(tensor, 32U);
  EXPECT_NE(message.find("cannot reserve 1.00 MiB more for its swap file: No space left on device"), std::string::npos)
      << message;
}

// A read that comes back shorter than asked for is no read: the file was cut in the middle of a block.
TEST_F(SwapFileTest, AFileCutUnderneathIsAnError) {
  tier_.directories = {tier_.directories[0]};
  for (const bool io_uring : {true, false}) {
    SwapFiles files(tier_, {.io_uring = io_uring});
    FileLane lane(files);
    Buffer buffer(4 * MiB);
    files.take(0, 0, buffer.bytes);
    EXPECT_TRUE(lane.write(files.blocks(0, 0, buffer.bytes), buffer.data, go_on));
    ASSERT_EQ(::ftruncate(files.descriptor(0), static_cast<off_t>(2 * MiB + 512 * KiB)), 0);
    const std::string message = message_of([&] { lane.read(files.blocks(0, 0, buffer.bytes), buffer.data, go_on); });
    EXPECT_NE(message.find("at byte 2097152 of the swap file"), std::string::npos) << message;
    EXPECT_NE(message.find("the file ends there"), std::string::npos) << message;
  }
}

TEST_F(SwapFileTest, ADirectoryRemovedUnderneathDoesNotMatter) {
  SwapFiles files(tier_);
  FileLane lane(files);
  Buffer out(2 * MiB), in(2 * MiB);
  out.fill(1);
  files.take(0, 0, out.bytes);
  fs::remove(folder_ / "a");
  EXPECT_TRUE(lane.write(files.blocks(0, 0, out.bytes), out.data, go_on));
  EXPECT_TRUE(lane.read(files.blocks(0, 0, in.bytes), in.data, go_on));
  EXPECT_EQ(std::memcmp(in.data, out.data, in.bytes), 0);
  fs::create_directory(folder_ / "a");
}

TEST_F(SwapFileTest, FilesOfAKilledProcessVanish) {
  for (const bool nameless : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      SwapFiles files(tier_, {.nameless = nameless});
      files.take(0, 0, 2 * MiB);
      Buffer buffer(2 * MiB);
      FileLane(files).write(files.blocks(0, 0, buffer.bytes), buffer.data, go_on);
      ::raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_TRUE(fs::is_empty(folder_ / "a") && fs::is_empty(folder_ / "b"));
  }
  SwapFiles files(tier_, {.nameless = false});
  EXPECT_TRUE(fs::is_empty(folder_ / "a")) << "the name goes at once";
}

// A limit on the size of files stands in for a disk that fills up.
TEST_F(SwapFileTest, NoRoomToReserveIsAnErrorAndTakesNothing) {
  SwapFiles files(tier_);
  files.take(0, 0, 2 * MiB);
  files.give_all(0);
  SwapFiles later(tier_);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit { 2 * MiB, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  later.take(0, 0, 3 * MiB);  // two blocks in one, one in the other
  const std::string message = message_of([&] { later.take(1, 0, 4 * MiB); });
  const std::string again = message_of([&] {  // the disk is as full as before, and these bytes are the file's
    later.give(0, 0);
    later.take(0, 0, 3 * MiB);
  });
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("cannot reserve"), std::string::npos) << message;
  EXPECT_NE(message.find("make room or name another directory"), std::string::npos) << message;
  EXPECT_EQ(again.find("cannot reserve"), std::string::npos) << again;
  EXPECT_EQ(later.used_bytes(), 3 * MiB);
  later.take(1, 0, 4 * MiB);
}

// What the engine counts on is there to the last page, however it falls into the files.
TEST_F(SwapFileTest, AllOfTheCapacityCanBeTaken) {
  tier_.capacity = 5 * MiB + 4096;
  SwapFiles files(tier_);
  for (TensorId tensor = 0; tensor < 5; ++tensor) files.take(tensor, 0, MiB);
  files.take(5, 0, 4096);
  EXPECT_EQ(files.used_bytes(), tier_.capacity);
  Bytes in_blocks = 0;
  for (const FileBlock& block : files.blocks(4, 0, MiB)) in_blocks += block.bytes;
  EXPECT_EQ(in_blocks, MiB);
  EXPECT_THROW(files.take(6, 0, 4096), OutOfMemory);
}

TEST_F(SwapFileTest, AFullDiskLeavesItsBlocksToTheOthers) {
  const std::string small = tier_.directories[0];
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=8m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here: " << std::strerror(errno);
  }
  tier_.capacity = 12 * MiB;
  {
    SwapFiles files(tier_);
    const std::string hog = small + "/hog";
    const FileDescriptor other(::open(hog.c_str(), O_CREAT | O_RDWR, 0600));
    ASSERT_EQ(::fallocate(other.get(), 0, 0, static_cast<off_t>(6 * MiB)), 0);
    FileLane lane(files);
    Buffer out(6 * MiB), in(6 * MiB);
    out.fill(3);
    files.take(0, 0, out.bytes);
    std::uint64_t in_first = 0;
    for (const FileBlock& block : files.blocks(0, 0, out.bytes)) in_first += block.file == 0 ? 1 : 0;
    EXPECT_EQ(in_first, 2U) << "2 MiB are left there";
    EXPECT_TRUE(lane.write(files.blocks(0, 0, out.bytes), out.data, go_on));
    EXPECT_TRUE(lane.read(files.blocks(0, 0, in.bytes), in.data, go_on));
    EXPECT_EQ(std::memcmp(in.data, out.data, in.bytes), 0);
    const std::string message = message_of([&] { files.take(1, 0, 6 * MiB); });
    EXPECT_NE(message.find("No space left on device"), std::string::npos) << message;
    EXPECT_EQ(files.used_bytes(), 6 * MiB);
    fs::remove(hog);
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
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
