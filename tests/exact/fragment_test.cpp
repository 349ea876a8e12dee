// What allocators make of allocations, and what is advised.
#include "studies/fragment.h"

#include <filesystem>
#include <map>
#include <random>

#include "configs/caching_settings.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "studies/placement.h"
#include "traces/file/trace_file.h"
#include "traces/import/pytorch/kineto_allocations.h"
#include "traces/transform/allocations_of.h"

namespace tencache {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// Positive: an allocation of so many MiB (0.5 is 512 KiB); negative: frees the block of that number, from 1; 0: an
// iteration.
Allocations program(const std::vector<double>& steps) {
  Allocations made;
  for (const double step : steps) {
    if (step > 0) {
      made.events.push_back(
          {AllocationEvent::Kind::allocate, made.blocks++, 0, static_cast<Bytes>(step * static_cast<double>(MiB))});
    } else if (step < 0) {
      made.events.push_back({AllocationEvent::Kind::release, static_cast<std::uint32_t>(-step) - 1});
    } else {
      made.events.push_back({AllocationEvent::Kind::iteration});
    }
  }
  return made;
}

Allocations random_program(std::uint64_t seed, std::size_t events) {
  std::mt19937_64 random(seed);
  Allocations made;
  std::vector<std::uint32_t> alive;
  for (std::size_t i = 0; i < events; ++i) {
    if (i % 100 == 99) {
      made.events.push_back({AllocationEvent::Kind::iteration});
    } else if (alive.empty() || random() % 100 < 51) {
      const Bytes bytes = 1 + random() % (random() % 2 != 0 ? 2000 : 5 * MiB);
      made.events.push_back({AllocationEvent::Kind::allocate, made.blocks, 0, bytes});
      alive.push_back(made.blocks++);
    } else {
      const std::size_t which = random() % alive.size();
      made.events.push_back({AllocationEvent::Kind::release, alive[which]});
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  return made;
}

TEST(Placement, NoTwoBlocksOverlapInTimeAndSpace) {
  for (const PlacementRule rule : {PlacementRule::largest_first, PlacementRule::split_and_fuse}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const Allocations allocations = random_program(seed, 1500);
      const Placement placement = place(allocations, rule);
      std::map<std::uint64_t, std::uint64_t> alive;  // end by begin
      std::vector<Bytes> bytes(allocations.blocks);
      Bytes peak = 0, now = 0;
      for (const AllocationEvent& event : allocations.events) {
        if (event.kind == AllocationEvent::Kind::iteration) continue;
        const std::uint64_t begin = placement.offset[event.block];
        if (event.kind == AllocationEvent::Kind::release) {
          alive.erase(begin);
          now -= bytes[event.block];
          continue;
        }
        bytes[event.block] = round_up(event.bytes, Bytes{512});
        const std::uint64_t end = begin + bytes[event.block];
        ASSERT_LE(end, placement.height);
        const auto after = alive.lower_bound(begin);
        ASSERT_TRUE(after == alive.end() || after->first >= end) << "seed " << seed;
        ASSERT_TRUE(after == alive.begin() || std::prev(after)->second <= begin) << "seed " << seed;
        alive.emplace(begin, end);
        peak = std::max(peak, now += bytes[event.block]);
      }
      EXPECT_GE(placement.height, peak);
    }
  }
}

// Three blocks of 4, 2 and 2 MiB, of which the small ones follow each other while the large one lives: 6 MiB. Then a
// block of 6, when all are gone: it lies where they lay.
TEST(Placement, TakesNoMoreThanIsAliveWhereThatIsPossible) {
  const Allocations allocations = program({4, 2, -2, 2, -1, -3, 6, -4});
  EXPECT_EQ(place(allocations, PlacementRule::largest_first).height, 6 * MiB);
  EXPECT_EQ(place(allocations, PlacementRule::split_and_fuse).height, 6 * MiB) << "both sizes go into the band of 6";
}

TEST(Placement, EqualIterationsGetEqualPlans) {
  const Allocations allocations = program({8, 0, 4, 2, -2, -3, 0, 4, 2, -4, -5});
  const Placement placement = place(allocations, PlacementRule::largest_first);
  EXPECT_THAT(placement.offset, ElementsAre(0, 8 * MiB, 12 * MiB, 8 * MiB, 12 * MiB));
  EXPECT_EQ(placement.height, 14 * MiB);
}

// 300 and 300 of 600 are free, but not side by side: 600 are stitched of both.
TEST(Stitching, FreeBlocksServeALargeRequestTogether) {
  StitchingAllocator allocator({512 * MiB, true}, 2 * GiB);
  const auto first = allocator.allocate(300 * MiB);
  allocator.allocate(2 * MiB);
  const auto second = allocator.allocate(300 * MiB);
  allocator.release(*first);
  allocator.release(*second);
  EXPECT_EQ(allocator.reserved(), 602 * MiB);
  const auto large = allocator.allocate(599 * MiB);
  ASSERT_TRUE(large);
  EXPECT_EQ(allocator.reserved(), 602 * MiB);
  EXPECT_EQ(allocator.figures().rounding, MiB) << "chunks are of 2 MiB";
  allocator.release(*large);
  EXPECT_TRUE(allocator.allocate(300 * MiB)) << "the parts are free again, each where it was";
  EXPECT_EQ(allocator.reserved(), 602 * MiB);
  EXPECT_TRUE(allocator.allocate(400 * MiB));
  EXPECT_EQ(allocator.reserved(), 1002 * MiB) << "below the least that is stitched";
}

TEST(Stitching, OnlyWhereTheDeviceHasRefused) {
  StitchingAllocator late({512 * MiB, false}, 1400 * MiB);
  const auto first = late.allocate(300 * MiB);
  late.allocate(2 * MiB);
  const auto second = late.allocate(300 * MiB);
  late.release(*first);
  late.release(*second);
  EXPECT_TRUE(late.allocate(600 * MiB));
  EXPECT_EQ(late.reserved(), 1202 * MiB);
  EXPECT_TRUE(late.allocate(600 * MiB));
  EXPECT_EQ(late.reserved(), 1202 * MiB);
  EXPECT_FALSE(late.allocate(200 * MiB));
  EXPECT_EQ(late.figures().retries, 1u);
}

TEST(Fragment, SettingsAreReadAsPyTorchHasThem) {
  const CachingSettings settings = parse_caching_settings(
      "expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.6,"
      "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],memory_fraction:0.5,pinned_num_register_threads:4");
  EXPECT_TRUE(settings.expandable_segments);
  EXPECT_EQ(settings.max_split_size, 128 * MiB);
  EXPECT_DOUBLE_EQ(settings.garbage_collection_threshold, 0.6);
  EXPECT_EQ(settings.memory_fraction, 0.5);
  EXPECT_THAT(settings.power2_divisions, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8));
  EXPECT_THAT(parse_caching_settings("roundup_power2_divisions:4").power2_divisions, testing::Each(4u));
  const auto refused = [](const char* text, const char* message) {
    try {
      parse_caching_settings(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  refused("max_split_size_mb:10", "20 or more");
  refused("max_split_size:10", "unknown key 'max_split_size'; known are expandable_segments");
  refused("expandable_segments:yes", "True or False");
  refused("backend:cudaMallocAsync", "not modelled");
  refused("garbage_collection_threshold:60", "above 0 and at most 1");
  refused("roundup_power2_divisions:[256:3]", "powers of two");
  refused("max_split_size_mb", "has no value");
}

// vLLM's case: 530 MiB are free again, 270 are put into them, and the 260 beside them serve no second 270.
TEST(Fragment, AHoleIsCountedAsOne) {
  const Allocations allocations = program({0, 530, -1, 270, 0, 270});
  const FragmentRun run = run_fragment(allocations, fragment_allocator("default"), 4 * GiB);
  EXPECT_EQ(run.requested_peak, 540 * MiB);
  EXPECT_EQ(run.reserved_peak, 800 * MiB);
  EXPECT_EQ(run.at_peak.in_holes, 260 * MiB);
  EXPECT_DOUBLE_EQ(run.utilisation(), 540.0 / 800);
  ASSERT_EQ(run.iterations.size(), 3u);
  EXPECT_EQ(run.iterations[1].reserved_bytes, 530 * MiB);
  EXPECT_EQ(run.iterations[1].device_calls, 1u);
  EXPECT_EQ(run.iterations[2].reserved_bytes, 800 * MiB);
  const FragmentRun grows = run_fragment(allocations, fragment_allocator("expandable"), 4 * GiB);
  EXPECT_EQ(grows.reserved_peak, 540 * MiB);
  EXPECT_EQ(run_fragment(allocations, fragment_allocator("exact"), 4 * GiB).reserved_peak, 540 * MiB);
  EXPECT_EQ(run_fragment(allocations, fragment_allocator("planned"), 4 * GiB).reserved_peak, 540 * MiB);
}

// GPT-2 XL, batch 8 of 1024 tokens, bf16, AdamW, as version 0.1 generated it; GiB that another implementation of the
// same rules found for it, which orders a few births otherwise.
TEST(Fragment, OfGpt2XlAsVersion01GeneratedIt) {
  struct Golden {
    const char* allocator;
    Bytes requested, reserved;
    double elsewhere;
  };
  const Trace trace = read_trace(TENCACHE_SOURCE_DIR "/tests/goldens/gpt2-xl-of-0.1.trace.jsonl.zst");
  const Allocations allocations = allocations_of({&trace}, {3, false});
  for (const Golden& golden :
       {Golden{"default", 45772727940, 48704258048, 45.340}, Golden{"expandable", 45772727940, 45963280384, 42.790},
        Golden{"max_split_size_mb:512", 45772727940, 49014636544, 45.680},
        Golden{"gmlake", 45772727940, 47955574784, 44.770}, Golden{"planned", 45772727940, 45773106688, 42.630},
        Golden{"exact", 45772727940, 45772727940, 42.630}}) {
    const FragmentRun run = run_fragment(allocations, fragment_allocator(golden.allocator), no_fragment_limit);
    EXPECT_EQ(run.requested_peak, golden.requested) << golden.allocator;
    EXPECT_EQ(run.reserved_peak, golden.reserved) << golden.allocator;
    const double gib = static_cast<double>(run.reserved_peak) / static_cast<double>(GiB);
    EXPECT_NEAR(gib / golden.elsewhere, 1, 0.003) << golden.allocator;
  }
}

// HTA's recording of a V100: five steps of SGD, 3.8 GiB of weights that were there before. Its own allocator had 11.9
// GiB.
TEST(Fragment, OfARecordingFromAnEmptyCache) {
  const std::string file = TENCACHE_SOURCE_DIR "/../shared/traces/pytorch/hta_v100_profile_memory.json.gz";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "no recording " << file;
  const Allocations allocations = read_kineto_allocations(file);
  EXPECT_NEAR(static_cast<double>(*allocations.recorded_reserved) / static_cast<double>(GiB), 11.90, 0.01);
  const auto reserved = [&](const char* name) {
    const Bytes bytes = run_fragment(allocations, fragment_allocator(name), no_fragment_limit).reserved_peak;
    return static_cast<double>(bytes) / static_cast<double>(GiB);
  };
  EXPECT_NEAR(reserved("default"), 6.40, 0.01);
  EXPECT_NEAR(reserved("expandable"), 6.27, 0.01);
  EXPECT_NEAR(reserved("planned"), 6.19, 0.01);
}

TEST(Fragment, OutOfMemoryIsSaidWithWhatTheDeviceWasAskedFor) {
  const FragmentRun run = run_fragment(program({0, 30, 5, 5, 5, 5, 5}), fragment_allocator("default"), 60 * MiB);
  ASSERT_TRUE(run.out_of_memory);
  EXPECT_EQ(run.out_of_memory->iteration, 1u);
  EXPECT_EQ(run.out_of_memory->wanted, 5 * MiB);
  EXPECT_EQ(run.out_of_memory->asked_for, 20 * MiB) << "as the message says of any request of 1 to 10 MiB";
  EXPECT_EQ(run.out_of_memory->then.allocated, 50 * MiB);
  EXPECT_EQ(run.at_end.retries, 1u);
}

TEST(Fragment, AdviceTellsFragmentationFromNeed) {
  const Allocations holes = program({0, 530, -1, 270, 270});
  const FragmentAdvice cured = advise_on_fragments(holes, 700 * MiB);
  EXPECT_EQ(cured.verdict, FragmentVerdict::cured);
  EXPECT_EQ(cured.best->allocator.setting(), "expandable_segments:True");
  EXPECT_EQ(advise_on_fragments(holes, 500 * MiB).verdict, FragmentVerdict::needs_memory);
  const FragmentAdvice gains = advise_on_fragments(holes, 4 * GiB);
  EXPECT_EQ(gains.verdict, FragmentVerdict::fits_gains);
  EXPECT_EQ(gains.best->reserved_peak, 540 * MiB);
  EXPECT_EQ(advise_on_fragments(program({0, 100, 100}), 4 * GiB).verdict, FragmentVerdict::fits_no_gain);
  // In every 20 MiB of PyTorch's, segment or page, a block of 2 stays: nothing can be given back.
  std::vector<double> steps{0};
  for (int i = 0; i < 60; ++i) steps.insert(steps.end(), {2, 18});
  for (int i = 0; i < 60; ++i) steps.push_back(-2 * (i + 1));
  steps.push_back(600);
  const FragmentAdvice another = advise_on_fragments(program(steps), 1290 * MiB);
  EXPECT_EQ(another.verdict, FragmentVerdict::needs_another);
  EXPECT_EQ(another.best->allocator.name, "gmlake");
}

TEST(Fragment, TheMapShowsWhatIsInUse) {
  AddressMap map;
  map.columns = 4;
  map.rows = 4;
  run_fragment(program({40, 40, -1, 40}), fragment_allocator("default"), GiB, &map);
  using enum AddressMap::Cell;
  // 80 MiB in four rows of 20, after each of the events.
  EXPECT_EQ(map.bytes_per_row, 20 * MiB);
  EXPECT_THAT(map.cells, ElementsAre(in_use, in_use, not_reserved, not_reserved,  //
                                     in_use, in_use, in_use, in_use,              //
                                     free, free, in_use, in_use,                  //
                                     in_use, in_use, in_use, in_use));
}

}  // namespace
}  // namespace tencache
