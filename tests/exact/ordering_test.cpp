// The rules of core/ordering.h, one by one. Seeds against happens-before itself: tests/differential/ordering_seeds.cpp.
#include "core/ordering.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tencache {
namespace {

// Three lines: the program's stream, one that copies to the GPU, one that copies from it.
class OrderingTest : public testing::Test {
 protected:
  OrderingTest() {
    for (int line = 0; line < 3; ++line) clocks.open();
  }
  // What the work waits for: "1.2 2.1".
  std::string waits_of(Line line, ByteRange extent, bool write) {
    waits.clear();
    regions.before(extent, write, line, waits);
    clocks.reduce(line, waits);
    std::string text;
    for (const Ticket ticket : waits) {
      clocks.waited(line, ticket);
      if (!text.empty()) text += " ";
      text += std::to_string(ticket.line) + "." + std::to_string(ticket.number);
    }
    regions.after(extent, write, clocks.next(line));
    return text;
  }
  std::string read(Line line, ByteRange extent) { return waits_of(line, extent, false); }
  std::string write(Line line, ByteRange extent) { return waits_of(line, extent, true); }

  static constexpr Line program = 0, upload = 1, download = 2;
  LineClocks clocks;
  RegionTickets regions;
  Waits waits;
};

TEST_F(OrderingTest, ReadComesAfterTheLastWrite) {
  EXPECT_EQ(write(upload, {0, 100}), "");
  EXPECT_EQ(write(upload, {200, 100}), "");
  EXPECT_EQ(read(program, {0, 100}), "1.1");
}

TEST_F(OrderingTest, ReadsDoNotWaitForReads) {
  EXPECT_EQ(read(program, {0, 100}), "");
  EXPECT_EQ(read(download, {0, 100}), "");
}

TEST_F(OrderingTest, WriteComesAfterTheReadsOfAllLines) {
  EXPECT_EQ(read(program, {0, 100}), "");
  EXPECT_EQ(read(program, {0, 100}), "");
  EXPECT_EQ(read(download, {0, 100}), "");
  EXPECT_EQ(write(upload, {0, 100}), "0.2 2.1");
}

TEST_F(OrderingTest, WriteComesAfterTheLastWrite) {
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(write(upload, {0, 100}), "0.1");
}

TEST_F(OrderingTest, ALineNeedsNoWaitForItself) {
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(read(program, {0, 100}), "");
  EXPECT_EQ(write(program, {0, 100}), "");
}

// A tensor is evicted, its memory is free at once, and another tensor is fetched to a part of it.
TEST_F(OrderingTest, TheNextOwnerOfFreedBytesFindsTheTickets) {
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(read(download, {0, 100}), "0.1");
  EXPECT_EQ(write(upload, {40, 20}), "2.1");
}

TEST_F(OrderingTest, WhatIsBehindAWaitIsNotWaitedForAgain) {
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(read(download, {0, 100}), "0.1");
  EXPECT_EQ(write(upload, {0, 100}), "2.1");  // and with it behind the program's write
  EXPECT_EQ(write(upload, {0, 50}), "");
  EXPECT_EQ(read(program, {0, 100}), "1.2");
  EXPECT_EQ(write(program, {0, 100}), "");  // the reads, too
}

TEST_F(OrderingTest, OneOfTwoWaitsImpliesTheOther) {
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(read(download, {0, 50}), "0.1");
  EXPECT_EQ(write(upload, {0, 100}), "2.1");  // its bytes 50 to 100 the program wrote last
}

// The line waited after its work, so who waits for that work is not behind what was waited for.
TEST_F(OrderingTest, AWaitDoesNotReachBack) {
  EXPECT_EQ(write(upload, {200, 100}), "");
  EXPECT_EQ(write(program, {0, 100}), "");
  EXPECT_EQ(read(program, {200, 100}), "1.1");
  EXPECT_EQ(read(download, {0, 100}), "0.1");
  EXPECT_EQ(read(download, {200, 100}), "1.1");
}

TEST_F(OrderingTest, NobodyWaitsForWhatHasPassed) {
  EXPECT_EQ(write(upload, {0, 100}), "");
  EXPECT_EQ(read(program, {0, 100}), "1.1");
  clocks.passed(clocks.last(program));  // so the upload has passed too
  EXPECT_EQ(write(download, {0, 100}), "");
}

TEST_F(OrderingTest, PartsOfAnExtentKeepTheirOwnTickets) {
  EXPECT_EQ(write(upload, {0, 100}), "");
  EXPECT_EQ(write(program, {30, 10}), "1.1");
  EXPECT_EQ(regions.pieces(), 3u);
  EXPECT_EQ(read(download, {0, 30}), "1.1");
  EXPECT_EQ(read(download, {35, 1}), "0.1");
  EXPECT_EQ(write(program, {0, 100}), "2.2");
  EXPECT_EQ(regions.pieces(), 1u);
}

TEST_F(OrderingTest, LastStandsForKernelsThatNobodyAnnounced) {
  EXPECT_EQ(write(upload, {0, 100}), "");
  EXPECT_EQ(read(program, {0, 100}), "1.1");
  const Ticket unannounced = clocks.next(program);
  clocks.waited(download, clocks.last(program));
  EXPECT_TRUE(clocks.implied(download, unannounced));
  EXPECT_TRUE(clocks.implied(download, {upload, 1}));
}

TEST_F(OrderingTest, NoBytesNeedNoOrder) {
  EXPECT_EQ(write(upload, {50, 0}), "");
  EXPECT_EQ(regions.pieces(), 0u);
  EXPECT_EQ(write(upload, {0, 100}), "");
  EXPECT_EQ(write(program, {50, 0}), "");
}

TEST_F(OrderingTest, ForgetsWhatHasPassed) {
  std::size_t most = 0;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    write(static_cast<Line>(i % 3), {i * 64 % 1'000'000, 96});
    if (i % 10 == 0) clocks.passed(clocks.last(static_cast<Line>(i % 3)));
    regions.forget(clocks);
    most = std::max(most, regions.pieces());
  }
  EXPECT_LT(most, 100u);
}

TEST_F(OrderingTest, ForgettingJoinsWhatHasTheSameLeft) {
  for (std::uint64_t i = 0; i < 32; ++i) read(upload, {i, 1});
  clocks.passed(clocks.last(upload));
  read(program, {0, 32});
  EXPECT_EQ(regions.pieces(), 32u);
  regions.forget(clocks);
  EXPECT_EQ(regions.pieces(), 1u);
  EXPECT_EQ(write(download, {0, 32}), "0.1");
}

}  // namespace
}  // namespace tencache
