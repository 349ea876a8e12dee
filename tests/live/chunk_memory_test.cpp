// Chunks of tensors on real pages: content, the cap, faults on what is not mapped, reuse of addresses.
#include "executor/chunk_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "executor/file_descriptor.h"
#include "executor/hidden_pages.h"

namespace tencache {
namespace {

// Does the kernel have a page there that may be read? Writing from such an address into a pipe fails with EFAULT
// otherwise.
bool readable(const std::byte* address) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const bool result = ::write(ends[1], address, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return result;
}

// The same for writing.
bool writable(std::byte* address) {
  const FileDescriptor zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  return ::read(zeros.get(), address, 1) == 1;
}

TEST(ExtentAllocator, CoalescesAndPrefersOneExtent) {
  ExtentAllocator pages(10 * page_bytes, page_bytes);
  std::vector<Extent> a, b, c, d;
  ASSERT_TRUE(pages.take(3 * page_bytes, a));
  ASSERT_TRUE(pages.take(3 * page_bytes, b));
  ASSERT_TRUE(pages.take(3 * page_bytes, c));
  pages.give(a[0]);
  pages.give(c[0]);  // free: 0–3 and 6–10
  ASSERT_TRUE(pages.take(3 * page_bytes, d));
  EXPECT_EQ(d.size(), 1u);
  EXPECT_EQ(d[0].offset, 0u);  // the smallest that holds it
  pages.give(d[0]);
  std::vector<Extent> e;
  ASSERT_TRUE(pages.take(7 * page_bytes, e));  // everything that is free, in two pieces
  EXPECT_EQ(e.size(), 2u);
  EXPECT_FALSE(pages.take(page_bytes, e));
  for (const Extent& extent : e) pages.give(extent);
  pages.give(b[0]);
  std::vector<Extent> whole;
  ASSERT_TRUE(pages.take(10 * page_bytes, whole));
  EXPECT_EQ(whole.size(), 1u);
}

TEST(ExtentAllocator, TakesAtAnAddress) {
  ExtentAllocator pages(4 * page_bytes, page_bytes);
  EXPECT_TRUE(pages.take_at({page_bytes, 2 * page_bytes}));
  EXPECT_FALSE(pages.take_at({0, 2 * page_bytes}));
  EXPECT_FALSE(pages.take_at({2 * page_bytes, page_bytes}));
  EXPECT_TRUE(pages.take_at({3 * page_bytes, page_bytes}));
  EXPECT_FALSE(pages.take_at({3 * page_bytes, page_bytes}));
  EXPECT_EQ(pages.used(), 3 * page_bytes);
}

TEST(ChunkMemory, AddressIsConstantAndAccessBetweenMappingsFaults) {
  ChunkMemory memory("gpu", 1 * MiB, page_bytes);
  memory.create(7, 3 * page_bytes);
  std::byte* address = memory.address(7);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % page_bytes, 0u);
  EXPECT_FALSE(readable(address));
  memory.map(7, page_bytes, page_bytes, 0);
  EXPECT_EQ(memory.address(7), address);
  EXPECT_FALSE(readable(address));
  EXPECT_TRUE(readable(address + page_bytes));
  EXPECT_FALSE(readable(address + 2 * page_bytes));
  std::memset(address + page_bytes, 5, page_bytes);
  memory.unmap(7, page_bytes, page_bytes);
  EXPECT_FALSE(readable(address + page_bytes));
  EXPECT_EQ(memory.statistics().used_bytes, 0u);
}

// Its address may get known while it is copied in.
TEST(ChunkMemory, WhatIsExposedWhileItIsFilledIsShownReadOnly) {
  ChunkMemory memory("gpu", 1 * MiB, page_bytes, {.raw_access = true});
  memory.create(0, page_bytes);
  memory.map_hidden(0, 0, page_bytes, 0);
  memory.expose(0, false);
  show(*memory.hidden_at(0, 0));
  EXPECT_TRUE(readable(memory.address(0)));
  EXPECT_FALSE(writable(memory.address(0)));
  memory.open_for_writing(0);
  EXPECT_TRUE(writable(memory.address(0)));
}

// It read as zeros for as long as its pages had not arrived.
TEST(ChunkMemory, WhatIsExposedWhileItsPagesMoveHasItsContentOrFaults) {
  constexpr Bytes pages = 32;
  ChunkMemory memory("gpu", 2 * pages * page_bytes, page_bytes, {.raw_access = true});
  for (TensorId i = 0; i < 2 * pages; i++) {
    memory.create(i, page_bytes);
    memory.map(i, 0, page_bytes, 0);
  }
  for (TensorId i = 0; i < 2 * pages; i += 2) memory.destroy(i);  // so that each page moves alone
  const TensorId tensor = 2 * pages;
  for (int round = 0; round < 300; ++round) {
    memory.create(tensor, pages * page_bytes);
    memory.map_hidden(tensor, 0, pages * page_bytes, 0);
    std::memset(memory.copy_address(tensor, 0), 7, pages * page_bytes);
    std::atomic<bool> begun = false;
    std::thread copy([&, hidden = memory.hidden_at(tensor, 0)] {
      begun = true;
      show(*hidden);
    });
    while (!begun) std::this_thread::yield();
    memory.expose(tensor, false);
    const std::byte* last = memory.address(tensor) + pages * page_bytes - 1;
    if (readable(last)) {
      EXPECT_EQ(*last, std::byte{7}) << "round " << round;
    }
    copy.join();
    memory.destroy(tensor);
    if (HasFailure()) break;
  }
}

#if !defined(__SANITIZE_THREAD__)
// In one mapping and in pieces, hidden before and not; what was parked at either address is not seen.
TEST(ChunkMemory, ARelocatedTensorHasItsBytesAndTheOldAddressFaults) {
  for (const bool hidden : {false, true}) {
    ChunkMemory memory("gpu", 64 * page_bytes, page_bytes, {.parks = true, .raw_access = true});
    memory.create(0, 4 * page_bytes);
    memory.create(1, page_bytes);
    if (hidden) {
      memory.map_hidden(0, 0, 2 * page_bytes, 0);
      std::memset(memory.copy_address(0, 0), 7, 2 * page_bytes);
      show(*memory.hidden_at(0, 0));
    } else {
      memory.map(0, 0, 2 * page_bytes, 0);
      std::memset(memory.address(0), 7, 2 * page_bytes);
    }
    memory.map(0, 3 * page_bytes, page_bytes, 0);
    std::memset(memory.address(0) + 3 * page_bytes, 9, page_bytes);
    std::byte* const before = memory.address(0);
    memory.relocate(0);
    std::byte* const after = memory.address(0);
    ASSERT_NE(before, after);
    EXPECT_EQ(memory.tensor_at(after + page_bytes), 0u);
    EXPECT_EQ(memory.tensor_at(before), TensorId{none});
    EXPECT_TRUE(memory.owns(before));
    for (const Bytes page : {0, 1, 3}) {
      EXPECT_EQ(after[page * page_bytes + 5], std::byte(page == 3 ? 9 : 7)) << page;
      EXPECT_FALSE(readable(before + page * page_bytes)) << page;
    }
    EXPECT_FALSE(readable(after + 2 * page_bytes));
    EXPECT_EQ(memory.statistics().used_bytes, 3 * page_bytes);
    memory.unmap(0, 3 * page_bytes, page_bytes);  // parked: it comes back where the tensor is then
    memory.relocate(0);
    EXPECT_FALSE(readable(after));
    EXPECT_FALSE(readable(memory.address(0) + 3 * page_bytes));
    memory.map(0, 3 * page_bytes, page_bytes, 0);
    EXPECT_EQ(memory.address(0)[5], std::byte{7});
    memory.destroy(0);
    EXPECT_EQ(memory.statistics().used_bytes, 0u);
  }
}

// The addresses that a tensor has left are nobody's for a while, and are not lost.
TEST(ChunkMemory, AddressesThatWereLeftComeBackLate) {
  ChunkMemory memory("gpu", 64 * page_bytes, page_bytes);
  memory.create(0, page_bytes);
  memory.map(0, 0, page_bytes, 0);
  std::map<std::byte*, int> seen;
  for (int move = 0; move < 10'000; ++move) {
    const auto [at, is_new] = seen.try_emplace(memory.address(0), move);
    if (!is_new) {
      EXPECT_GT(move - at->second, 4000);
      at->second = move;
    }
    memory.relocate(0);
  }
  EXPECT_LT(seen.size(), 5000u);
}

TEST(ChunkMemoryDeathTest, EvictedMemoryFaults) {
  ChunkMemory memory("gpu", 1 * MiB, page_bytes);
  memory.create(0, page_bytes);
  memory.map(0, 0, page_bytes, 0);
  volatile std::byte* address = memory.address(0);
  address[0] = std::byte{1};
  memory.unmap(0, 0, page_bytes);
  EXPECT_DEATH(address[0] = std::byte{2}, "");
}
#endif

TEST(ChunkMemory, CapIsHardAndNamesTheTier) {
  ChunkMemory memory("gpu", 10 * page_bytes + 100, page_bytes);
  EXPECT_EQ(memory.capacity(), 10 * page_bytes);
  memory.create(0, 10 * page_bytes);
  memory.create(1, 100);
  memory.map(0, 0, 10 * page_bytes, 0);
  try {
    memory.map(1, 0, 100, 0);
    FAIL() << "mapped beyond the cap";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.bytes_missing(), page_bytes);
    EXPECT_NE(std::string(error.what()).find("'gpu'"), std::string::npos);
  }
  memory.destroy(0);
  memory.map(1, 0, 100, 0);  // 100 bytes occupy a page
  EXPECT_EQ(memory.statistics().used_bytes, page_bytes);
  EXPECT_EQ(memory.statistics().peak_used_bytes, 10 * page_bytes);
}

TEST(ChunkMemory, GranularityAboveAPageIsCharged) {
  ChunkMemory memory("gpu", 4 * 64 * KiB, 64 * KiB);
  memory.create(0, 5000);
  memory.map(0, 0, 5000, 0);
  EXPECT_EQ(memory.statistics().used_bytes, 64 * KiB);
  EXPECT_TRUE(readable(memory.address(0) + page_bytes));
  memory.destroy(0);
  EXPECT_EQ(memory.statistics().used_bytes, 0u);
}

TEST(ChunkMemory, AFragmentedArenaStillGivesEverything) {
  constexpr Bytes pages = 64;
  ChunkMemory memory("gpu", pages * page_bytes, page_bytes);
  for (TensorId i = 0; i < pages; i++) {
    memory.create(i, page_bytes);
    memory.map(i, 0, page_bytes, 0);
  }
  for (TensorId i = 0; i < pages; i += 2) memory.destroy(i);  // every second page is free
  memory.create(pages, pages / 2 * page_bytes);
  memory.map(pages, 0, pages / 2 * page_bytes, 0);
  EXPECT_EQ(memory.statistics().extents, pages + pages / 2);
  std::memset(memory.address(pages), 1, pages / 2 * page_bytes);
  memory.unmap(pages, 0, pages / 2 * page_bytes);
  EXPECT_FALSE(readable(memory.address(pages) + (pages / 2 - 1) * page_bytes));
}

TEST(ChunkMemory, AddressedPagesAreThoseAtTheOffset) {
  ChunkMemory memory("gpu", 16 * page_bytes, page_bytes, {.addressed = true});
  memory.create(0, page_bytes);
  memory.create(1, page_bytes);
  memory.map(0, 0, page_bytes, 8 * page_bytes);
  std::memset(memory.address(0), 42, page_bytes);
  memory.unmap(0, 0, page_bytes);
  memory.map(1, 0, page_bytes, 8 * page_bytes);  // the same page: its old bytes show
  EXPECT_EQ(memory.address(1)[17], std::byte{42});
}

#if !defined(__SANITIZE_THREAD__)
TEST(ChunkMemoryDeathTest, OverlappingPlacesAreABrokenInvariant) {
  ChunkMemory memory("gpu", 16 * page_bytes, page_bytes, {.addressed = true});
  memory.create(0, 2 * page_bytes);
  memory.create(1, page_bytes);
  memory.map(0, 0, 2 * page_bytes, 0);
  EXPECT_DEATH(memory.map(1, 0, page_bytes, page_bytes), "broken invariant");
  EXPECT_DEATH(memory.map(0, page_bytes, page_bytes, 8 * page_bytes), "broken invariant");
}
#endif

TEST(ChunkMemory, AddressesAreRecycledBySize) {
  ChunkMemory memory("gpu", 1 * MiB, page_bytes);
  memory.create(0, 100'000);
  const std::byte* first = memory.address(0);
  memory.destroy(0);
  memory.create(1, 99'000);
  EXPECT_EQ(memory.address(1), first);
  memory.create(2, 99'000);
  EXPECT_NE(memory.address(2), first);
  memory.create(3, 0);  // an empty tensor takes nothing
  memory.destroy(3);
}

// An unlimited arena is a sparse file: only what is mapped costs memory.
// A step's activations come again in the next step: their pages wait for them, and are there for others all the same.
TEST(ChunkMemory, PagesOfRetiredTensorsAreTakenOverOrGivenBack) {
  ChunkMemory memory("gpu", 10 * page_bytes, page_bytes);
  memory.create(0, 4 * page_bytes);
  std::byte* const address = memory.address(0);
  memory.map(0, 0, 4 * page_bytes, 0);
  memory.retire(0);
  memory.unmap(0, 0, 4 * page_bytes);
  memory.destroy(0);
  EXPECT_EQ(memory.statistics().used_bytes, 0u);

  memory.create(1, 4 * page_bytes);
  EXPECT_EQ(memory.address(1), address);
  EXPECT_FALSE(memory.mapped(1, 0));
  memory.map(1, 0, 4 * page_bytes, 0);
  EXPECT_TRUE(readable(address + 3 * page_bytes));
  EXPECT_EQ(memory.statistics().used_bytes, 4 * page_bytes);
  memory.unmap(1, 0, 4 * page_bytes);  // evicted, not retired
  EXPECT_FALSE(readable(address));
  memory.map(1, 0, 4 * page_bytes, 0);
  memory.retire(1);
  memory.destroy(1);

  memory.create(2, 4 * page_bytes);  // in other chunks: nothing of the old ones stays
  memory.map(2, page_bytes, page_bytes, 0);
  EXPECT_FALSE(readable(address));
  EXPECT_TRUE(readable(address + page_bytes));
  EXPECT_FALSE(readable(address + 2 * page_bytes));
  memory.map(2, 0, page_bytes, 0);
  memory.retire(2);
  memory.destroy(2);

  memory.create(3, 9 * page_bytes);  // more than is free without the parked pages
  memory.map(3, 0, 9 * page_bytes, 0);
  EXPECT_EQ(memory.statistics().used_bytes, 9 * page_bytes);
  EXPECT_FALSE(readable(address));
  memory.create(4, 2 * page_bytes);
  EXPECT_THROW(memory.map(4, 0, 2 * page_bytes, 0), OutOfMemory);
  EXPECT_EQ(memory.statistics().peak_used_bytes, 9 * page_bytes);
}

TEST(ChunkMemory, ChunksThatOnlyCopiesTouchFindTheirPagesAgain) {
  ChunkMemory memory("cpu", 4 * page_bytes, page_bytes, {.parks = true});
  memory.create(0, 2 * page_bytes);
  memory.map(0, 0, 2 * page_bytes, 0);
  std::memset(memory.address(0), 3, 2 * page_bytes);
  memory.unmap(0, 0, 2 * page_bytes);
  EXPECT_EQ(memory.statistics().used_bytes, 0u);
  EXPECT_FALSE(memory.mapped(0, 0));
  memory.map(0, 0, 2 * page_bytes, 0);
  EXPECT_EQ(memory.address(0)[0], std::byte{3}) << "other pages than before were mapped";
  memory.unmap(0, 0, 2 * page_bytes);

  memory.create(1, 4 * page_bytes);
  memory.map(1, 0, 4 * page_bytes, 0);  // all there are
  EXPECT_FALSE(readable(memory.address(0)));
  EXPECT_THROW(memory.map(0, 0, 2 * page_bytes, 0), OutOfMemory);
  memory.destroy(1);
  memory.map(0, 0, 2 * page_bytes, 0);
  EXPECT_TRUE(readable(memory.address(0)));
  EXPECT_EQ(memory.statistics().used_bytes, 2 * page_bytes);
}

// Of 8 pages: 3 in use at the beginning, 2 given up behind them.
TEST(ChunkMemory, WhatItGivesBackTheSystemHas) {
  const std::string name = "given back " + std::to_string(::getpid());
  const auto pages_of_the_system = [&name] {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error);
      struct stat status {};
      if (target.find("tencache " + name) == std::string::npos || ::stat(entry.path().c_str(), &status) != 0) continue;
      return static_cast<Bytes>(status.st_blocks) * 512 / page_bytes;
    }
    return unlimited;
  };
  ChunkMemory memory(name, 8 * page_bytes, page_bytes, {.parks = true, .most = 12 * page_bytes});
  for (const TensorId tensor : {0u, 1u}) {
    memory.create(tensor, (3 - tensor) * page_bytes);
    memory.map(tensor, 0, (3 - tensor) * page_bytes, 0);
    std::memset(memory.address(tensor), 7, (3 - tensor) * page_bytes);
  }
  memory.unmap(1, 0, 2 * page_bytes);
  EXPECT_EQ(pages_of_the_system(), 5u);
  EXPECT_EQ(memory.set_capacity(2 * page_bytes), 3 * page_bytes) << "what is in use stays";
  EXPECT_EQ(pages_of_the_system(), 3u);
  EXPECT_EQ(memory.address(0)[3 * page_bytes - 1], std::byte{7});
  EXPECT_THROW(memory.map(1, 0, 2 * page_bytes, 0), OutOfMemory);
  EXPECT_EQ(memory.set_capacity(12 * page_bytes), 12 * page_bytes);
  memory.map(1, 0, 2 * page_bytes, 0);
  EXPECT_EQ(memory.address(1)[0], std::byte{0}) << "pages that were given back come back empty";
  memory.create(2, 8 * page_bytes);
  EXPECT_THROW(memory.map(2, 0, 8 * page_bytes, 0), OutOfMemory) << "7 pages are left";
}

TEST(ChunkMemory, CapacityMayExceedTheComputer) {
  ChunkMemory memory("gpu", unlimited, page_bytes);
  memory.create(0, page_bytes);
  memory.map(0, 0, page_bytes, 0);
  memory.address(0)[0] = std::byte{1};
}

TEST(ChunkMemory, PrefaultBeyondTheComputerIsOneError) {
  EXPECT_THROW(ChunkMemory("gpu", unlimited, page_bytes, {.prefault = true}), Error);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // which need mappings themselves
// The kernel allows about 65,000 mappings: an arena of single pages, every second one mapped, runs into it.
TEST(ChunkMemory, TooManyMappingsIsAnErrorThatSaysSo) {
  const Bytes pages = 40'000;
  ChunkMemory memory("gpu", 2 * pages * page_bytes, page_bytes, {.populate = false});
  memory.create(0, 2 * pages * page_bytes);
  Bytes mapped = 0;
  try {
    for (; mapped < pages; mapped++) memory.map(0, 2 * mapped * page_bytes, page_bytes, 0);
    GTEST_SKIP() << "this kernel allows " << 2 * pages << " mappings";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("vm.max_map_count"), std::string::npos) << error.what();
  }
  EXPECT_EQ(memory.statistics().used_bytes, mapped * page_bytes);
}
#endif

// Pages that come back from a tensor are not filled in again: they are moved, and not more of them than asked for leave
// where they are parked.
TEST(ChunkMemory, ParkedPagesAreLetGoAsFarAsTheyAreNeeded) {
  ChunkMemory memory("gpu", 64 * page_bytes, page_bytes, {.raw_access = true});
  std::vector<std::byte*> parked;
  for (TensorId tensor = 0; tensor < 3; tensor++) {
    memory.create(tensor, 20 * page_bytes);
    memory.map(tensor, 0, 20 * page_bytes, 0);
    parked.push_back(memory.address(tensor));
  }
  for (TensorId tensor = 0; tensor < 3; tensor++) {
    memory.retire(tensor);
    memory.destroy(tensor);
  }
  const auto there = [&] { return std::ranges::count_if(parked, readable); };
  EXPECT_EQ(there(), 3);
  memory.create(3, 40 * page_bytes);
  memory.map(3, 0, 24 * page_bytes, 0);  // 4 pages are free
  EXPECT_EQ(there(), 2);
  memory.map(3, 24 * page_bytes, page_bytes, 0);
  EXPECT_EQ(there(), 1);
}

// Random maps and unmaps against a plain model of the content; another thread looks up addresses meanwhile. With raw
// access large chunks come from their home and go back to it, some hidden at first, some copies are given up, some
// tensors exposed.
TEST(ChunkMemory, RandomUseKeepsEveryByte) {
  for (const bool raw_access : {false, true}) {
    const Bytes chunk = (raw_access ? 20 : 4) * page_bytes;
    ChunkMemory memory("gpu", 32 * chunk, page_bytes, {.raw_access = raw_access});
    std::mt19937 random(1);
    for (TensorId tensor = 0; tensor < 8; tensor++) memory.create(tensor, 8 * chunk);
    std::atomic<bool> over = false;
    std::thread reader([&] {
      while (!over) EXPECT_NE(memory.address(3), nullptr);
    });
    std::map<std::pair<TensorId, Bytes>, std::byte> model;
    if (raw_access) memory.expose(5, true);
    for (int step = 0; step < 3000; step++) {
      const TensorId tensor = random() % 8;
      const Bytes begin = random() % 8 * chunk;
      const Bytes bytes = begin / chunk % 2 == 0 ? chunk : page_bytes + 1;
      std::byte* at = memory.address(tensor) + begin;
      const auto found = model.find({tensor, begin});
      if (found != model.end()) {
        EXPECT_EQ(at[0], found->second);
        EXPECT_EQ(at[bytes - 1], found->second);
        memory.unmap(tensor, begin, bytes);
        model.erase(found);
        EXPECT_FALSE(readable(at));
      } else if (model.size() < 30) {
        const auto value = static_cast<std::byte>(random());
        const bool hidden = raw_access && random() % 2 == 0;
        if (hidden) {
          memory.map_hidden(tensor, begin, bytes, 0);
          std::memset(memory.copy_address(tensor, begin), static_cast<int>(value), bytes);
          EXPECT_FALSE(readable(at));
          if (random() % 4 == 0) {  // given up
            memory.unmap(tensor, begin, bytes);
            EXPECT_FALSE(readable(at));
            continue;
          }
          if (tensor == 5) memory.close_for_writing(tensor);
          show(*memory.hidden_at(tensor, begin));
          EXPECT_EQ(writable(at + bytes / 2), tensor != 5);
        } else {
          memory.map(tensor, begin, bytes, 0);
          if (tensor == 5) memory.open_for_writing(tensor);
          std::memset(at, static_cast<int>(value), bytes);
        }
        model[{tensor, begin}] = value;
      }
      EXPECT_EQ(memory.mapped(tensor, begin), model.contains({tensor, begin}));
    }
    for (const auto& [place, value] : model) EXPECT_EQ(memory.address(place.first)[place.second], value);
    over = true;
    reader.join();
    for (TensorId tensor = 0; tensor < 8; tensor++) memory.destroy(tensor);
    EXPECT_EQ(memory.statistics().used_bytes, 0u);
  }
}

}  // namespace
}  // namespace tencache
