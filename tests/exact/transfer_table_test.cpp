// The table of transfers alone: lists, links and staging buffers.
#include "core/engine/transfer_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace tencache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// One link from tier 1 to tier 0, 1 byte in a nanosecond, and four staging buffers of 10 bytes.
MachineSpec one_link(Nanoseconds latency_ns = 0, std::uint32_t queue_depth = 1) {
  MachineSpec spec;
  spec.name = "box";
  spec.links = {{"h2d", 1, 0, 1'000'000'000, latency_ns, {}}};
  spec.links[0].queue_depth = queue_depth;
  spec.staging = {.tier = 1, .count = 4, .bytes = 10};
  return spec;
}

struct Table : TransferTable {
  explicit Table(const MachineSpec& spec) : TransferTable(spec) { follow(8); }
  TransferId fetch(ChunkId chunk, Priority priority = Priority::normal) {
    const TransferId id = add(chunk);
    Transfer& t = (*this)[id];
    t.from = 1;
    t.to = 0;
    t.priority = priority;
    t.route.links[0] = 0;
    t.route.hops = 1;
    return id;
  }
  std::vector<TransferId> queue(Priority priority) const {
    std::vector<TransferId> list;
    for (TransferId id = first_in_queue(0, priority); id != none; id = next_in_queue(id)) list.push_back(id);
    return list;
  }
};

TEST(TransferTableTest, AQueueIsFirstInFirstOutButForItsFront) {
  const MachineSpec spec = one_link();
  Table table(spec);
  const TransferId a = table.fetch(0), b = table.fetch(1), c = table.fetch(2), d = table.fetch(3, Priority::urgent);
  for (const TransferId id : {a, b, d}) table.enqueue(id, false);
  table.enqueue(c, true);
  EXPECT_THAT(table.queue(Priority::normal), ElementsAre(c, a, b));
  EXPECT_THAT(table.queue(Priority::urgent), ElementsAre(d));
  table.take_out(a);
  EXPECT_THAT(table.queue(Priority::normal), ElementsAre(c, b));
  EXPECT_EQ(table.link_load()[0], 3U);
  EXPECT_EQ(table.enqueued(), 4U);
  for (const TransferId id : {b, c, d}) table.take_out(id);
  EXPECT_TRUE(table.empty(0));
}

TEST(TransferTableTest, AChunksTransferIntoATierIsFoundUnlessItsContentIsUseless) {
  const MachineSpec spec = one_link();
  Table table(spec);
  const TransferId useless = table.fetch(5);
  table[useless].discard = true;
  EXPECT_EQ(table.find(5, 0), none);
  const TransferId fresh = table.fetch(5);
  EXPECT_EQ(table.find(5, 0), fresh);
  EXPECT_EQ(table.find(5, 1), none);
  EXPECT_EQ(table.find(4, 0), none);
  table.remove(useless);
  EXPECT_EQ(table.first_of(5), fresh);
  EXPECT_EQ(table.next_of_chunk(fresh), none);
  EXPECT_EQ(table.fetch(6), useless) << "ids are used again";
}

TEST(TransferTableTest, WhatIsDeferredComesInOrderOfRequest) {
  const MachineSpec spec = one_link();
  Table table(spec);
  const TransferId a = table.fetch(0), b = table.fetch(1), c = table.fetch(2), d = table.fetch(3);
  for (const TransferId id : {b, a, c}) table.defer(id, 7);
  table.defer(d, 8);
  table.take_out(a);
  EXPECT_THAT(table.release(7), ElementsAre(b, c));
  EXPECT_THAT(table.release(7), ElementsAre());
  EXPECT_THAT(table.release(8), ElementsAre(d));
}

// 100 bytes flow during one latency: with copies of 60 the second has 0 before it that count, the third 60, the fourth
// 120.
TEST(TransferTableTest, ALinkTakesWhatHidesItsLatency) {
  const MachineSpec shallow = one_link(100), deep = one_link(100, 8), two = one_link(100, 2);
  const auto taken = [](const MachineSpec& spec) {
    Table table(spec);
    std::uint32_t count = 0;
    for (; table.takes_another(0); ++count) {
      const TransferId id = table.fetch(count);
      table.enqueue(id, false);
      table.begin(id, 60, 0);
    }
    EXPECT_EQ(table.in_flight(), count);
    table.end(0);
    EXPECT_TRUE(table.takes_another(0));
    EXPECT_EQ(table.link_load()[0], count - 1);
    return count;
  };
  EXPECT_EQ(taken(shallow), 1U);
  EXPECT_EQ(taken(two), 2U);
  EXPECT_EQ(taken(deep), 3U);
}

TEST(TransferTableTest, StagingBuffersAreTheFirstRunThatIsLongEnough) {
  const MachineSpec spec = one_link();
  Table table(spec);
  const TransferId a = table.fetch(0), b = table.fetch(1), c = table.fetch(2);
  EXPECT_TRUE(table.take_staging(a, 10));
  EXPECT_TRUE(table.take_staging(b, 11));
  EXPECT_EQ(table[b].staging.first, 1U);
  EXPECT_EQ(table[b].staging.count, 2U);
  table.free_staging(a);
  EXPECT_FALSE(table.take_staging(c, 20)) << "two are free, but not side by side";
  EXPECT_TRUE(table.take_staging(c, 5));
  EXPECT_EQ(table[c].staging.first, 0U);
  try {
    table.take_staging(a, 41);
    FAIL() << "41 bytes do not fit into 40";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("41 B needs 5 staging buffers of 10 B, there are 4"));
  }
}

// The same transfers under other ids have the same hash; one that has come further has another.
TEST(TransferTableTest, TheHashIsOfTheTransfersNotOfTheirIds) {
  const MachineSpec spec = one_link();
  Table one(spec), other(spec);
  for (const ChunkId chunk : {1U, 2U}) one.enqueue(one.fetch(chunk), false);
  for (const ChunkId chunk : {2U, 1U}) other.enqueue(other.fetch(chunk), false);
  EXPECT_EQ(one.hash(50), other.hash(50));
  one.begin(0, 10, 50);
  other.begin(1, 10, 60);
  EXPECT_EQ(one.hash(70), other.hash(80));
  EXPECT_NE(one.hash(70), other.hash(70));
}

}  // namespace
}  // namespace tencache
