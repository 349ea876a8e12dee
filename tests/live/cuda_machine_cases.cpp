// The real machine on an accelerator: content on all ways, order, cancellation, caps, and replay's kernels against the
// host's version of the patterns.
#include "tests/live/cuda_machine_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <thread>

#include "core/error.h"
#include "executor/clock.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr LinkId h2d = 0, d2h = 1, nvme_read = 2, nvme_write = 3, direct_read = 4, direct_write = 5;
constexpr TierId gpu = 0, cpu = 1, nvme = 2;
constexpr Bytes unit = movable_unit;

class NoBodies final : public OpBodies {
 public:
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
  void initialise(TensorId tensor, Bytes begin, std::span<std::byte> content) override {
    write_pattern(tensor, 0, begin, content, true);
  }
};

class CudaMachineTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    options_.accelerator = test_accelerator(why_not);
    if (options_.accelerator == nullptr) GTEST_SKIP() << why_not;
    options_.pace = false;
    std::string name = (fs::temp_directory_path() / "tencache-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    page_ = options_.accelerator->granularity();
    spec_.name = "test";
    spec_.file = "test.yaml";
    spec_.tiers = {{"gpu", TierKind::gpu, 64 * MiB, page_, {}},
                   {"cpu", TierKind::cpu, 128 * MiB, 4096, {}},
                   {"nvme", TierKind::nvme, 128 * MiB, 4096, {name}}};
    spec_.links = {{"h2d", cpu, gpu, unlimited, 0, {}},          {"d2h", gpu, cpu, unlimited, 0, {}},
                   {"nvme_read", nvme, cpu, unlimited, 0, {}},   {"nvme_write", cpu, nvme, unlimited, 0, {}},
                   {"direct_read", nvme, gpu, unlimited, 0, {}}, {"direct_write", gpu, nvme, unlimited, 0, {}}};
    spec_.staging = {cpu, 4, 1 * MiB};
  }
  void TearDown() override {
    if (folder_.empty()) return;
    options_.accelerator.reset();
    EXPECT_EQ(test_accelerator_leftovers(), "");
    EXPECT_TRUE(fs::is_empty(folder_)) << "a file was left behind";
    fs::remove_all(folder_);
  }

  void use_arena() {
    spec_.tiers[gpu].allocator = AllocatorKind::movable;
    spec_.tiers[gpu].granularity = unit;
    options_.addressed = {true, false, false};
  }
  static CopyCommand copy(LinkId link, TensorId tensor, Bytes begin, Bytes bytes, TierId from, TierId to) {
    CopyCommand command;
    command.link = link;
    command.tensor = tensor;
    command.chunk = tensor;
    command.begin = begin;
    command.bytes = bytes;
    command.from = {from, 0};
    command.to = {to, 0};
    return command;
  }
  static Completion next(HostMachine& machine) {
    Completion completion;
    EXPECT_TRUE(machine.wait(completion));
    return completion;
  }
  // Does it, and waits.
  static void move(HostMachine& machine, const CopyCommand& command) {
    machine.submit(command, 0);
    EXPECT_EQ(next(machine).status, CompletionStatus::done) << machine.last_error();
  }
  static bool has_pattern(HostMachine& machine, TensorId tensor, std::uint64_t version, Bytes begin, Bytes bytes,
                          TierId tier) {
    const std::vector<std::byte> content = machine.content(tensor, begin, bytes, tier);
    return find_difference(tensor, version, begin, content, true) == unlimited;
  }

  fs::path folder_;
  Bytes page_ = 0;
  MachineSpec spec_;
  HostMachineOptions options_;
  NoBodies bodies_;
};

// Memory that is mapped chunk by chunk, and memory that is mapped once, in which tensors lie where they are put.
class CudaEitherMemoryTest : public CudaMachineTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    CudaMachineTest::SetUp();
    if (!IsSkipped() && GetParam()) use_arena();
  }
};

INSTANTIATE_TEST_SUITE_P(Memories, CudaEitherMemoryTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "movable" : "exact"; });

TEST_P(CudaEitherMemoryTest, ContentSurvivesEveryWay) {
  HostMachine machine(spec_, bodies_, options_);
  constexpr Bytes bytes = 41 * MiB + 12'345;  // several parts, and a cut-off end
  machine.tensor_created(0, bytes);
  for (TierId tier = 0; tier < 3; tier++) machine.map(0, 0, 0, bytes, {tier, 0}, MappedFor::op);
  machine.initialise(0, 0, 0, bytes, {gpu, 0});
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, bytes, gpu));
  move(machine, copy(d2h, 0, 0, bytes, gpu, cpu));
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, bytes, cpu));
  EXPECT_EQ(find_difference(0, 0, 0, {machine.address(0, cpu), bytes}, true), unlimited) << "as the CPU sees it";
  move(machine, copy(nvme_write, 0, 0, bytes, cpu, nvme));
  machine.unmap(0, 0, 0, bytes, {gpu, 0});
  machine.map(0, 0, 0, bytes, {gpu, 0}, MappedFor::op);
  std::memset(machine.address(0, cpu), 0, bytes);
  move(machine, copy(h2d, 0, 0, bytes, cpu, gpu));
  EXPECT_FALSE(has_pattern(machine, 0, 0, 0, bytes, gpu));
  move(machine, copy(nvme_read, 0, 0, bytes, nvme, cpu));
  move(machine, copy(h2d, 0, 0, bytes, cpu, gpu));
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, bytes, gpu));
  EXPECT_NE(machine.describe().find("page-locked"), std::string::npos) << machine.describe();
  EXPECT_NE(machine.describe().find("h2d: copy engine"), std::string::npos) << machine.describe();
}

TEST_P(CudaEitherMemoryTest, FilesReachTheGpuDirectlyAndThroughStaging) {
  HostMachine machine(spec_, bodies_, options_);
  for (const Bytes bytes : {Bytes{5}, 1 * MiB, 3 * MiB + 100, 17 * MiB + 4095}) {
    machine.tensor_created(7, bytes);
    machine.map(7, 7, 0, bytes, {gpu, 0}, MappedFor::op);
    machine.map(7, 7, 0, bytes, {nvme, 0}, MappedFor::op);
    machine.initialise(7, 7, 0, bytes, {gpu, 0});
    move(machine, copy(direct_write, 7, 0, bytes, gpu, nvme));
    EXPECT_TRUE(has_pattern(machine, 7, 0, 0, bytes, nvme)) << bytes;
    machine.unmap(7, 7, 0, bytes, {gpu, 0});
    machine.map(7, 7, 0, bytes, {gpu, 0}, MappedFor::op);
    move(machine, copy(direct_read, 7, 0, bytes, nvme, gpu));
    EXPECT_TRUE(has_pattern(machine, 7, 0, 0, bytes, gpu)) << bytes;
    if (bytes <= 4 * MiB) {
      CopyCommand down = copy(d2h, 7, 0, bytes, gpu, cpu);
      down.to_staging = true;
      CopyCommand store = copy(nvme_write, 7, 0, bytes, cpu, nvme);
      store.from_staging = true;
      machine.submit(down, 1);
      EXPECT_EQ(next(machine).tag, 1u);
      machine.submit(store, 2);
      EXPECT_EQ(next(machine).tag, 2u);
      EXPECT_TRUE(has_pattern(machine, 7, 0, 0, bytes, nvme)) << bytes;
    }
    machine.tensor_destroyed(7);
  }
}

// Chunks of one tensor come and go alone; its address stays.
TEST_F(CudaMachineTest, ResidencyIsPartial) {
  HostMachine machine(spec_, bodies_, options_);
  const Bytes chunk = 2 * std::max(page_, 2 * MiB), bytes = 2 * chunk + 77;
  machine.tensor_created(3, bytes);
  std::byte* const address = machine.address(3);
  const auto size = [&](int index) { return index < 2 ? chunk : Bytes{77}; };
  for (int i = 0; i < 3; i++) {
    const Bytes begin = static_cast<Bytes>(i) * chunk;
    machine.map(3, 0, begin, size(i), {cpu, 0}, MappedFor::op);
    machine.initialise(3, 0, begin, size(i), {cpu, 0});
  }
  for (const int i : {2, 0, 1, 2, 0}) {
    const Bytes begin = static_cast<Bytes>(i) * chunk;
    machine.map(3, 0, begin, size(i), {gpu, 0}, MappedFor::op);
    move(machine, copy(h2d, 3, begin, size(i), cpu, gpu));
    EXPECT_TRUE(has_pattern(machine, 3, 0, begin, size(i), gpu)) << i;
    EXPECT_EQ(machine.memory_statistics(gpu).used_bytes, (size(i) + page_ - 1) / page_ * page_);
    machine.unmap(3, 0, begin, size(i), {gpu, 0});
  }
  EXPECT_EQ(machine.address(3), address);
  EXPECT_EQ(machine.memory_statistics(gpu).maps, 5u);
}

TEST_F(CudaMachineTest, TheCapHoldsAndMemoryChangesItsSizes) {
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 64 * MiB);
  machine.map(0, 0, 0, 64 * MiB, {gpu, 0}, MappedFor::op);
  machine.tensor_created(1, 1);
  EXPECT_THROW(machine.map(1, 1, 0, 1, {gpu, 0}, MappedFor::op), OutOfMemory);
  machine.unmap(0, 0, 0, 64 * MiB, {gpu, 0});
  // What was one piece is given out in others, up to the cap again, and back.
  for (int round = 0; round < 2; round++) {
    for (TensorId tensor = 2; tensor < 6; tensor++) {
      machine.tensor_created(tensor, 16 * MiB);
      machine.map(tensor, tensor, 0, 16 * MiB, {gpu, 0}, MappedFor::op);
      machine.initialise(tensor, tensor, 0, 16 * MiB, {gpu, 0});
    }
    EXPECT_THROW(machine.map(1, 1, 0, 1, {gpu, 0}, MappedFor::op), OutOfMemory);
    for (TensorId tensor = 2; tensor < 6; tensor++) {
      EXPECT_TRUE(has_pattern(machine, tensor, 0, 0, 16 * MiB, gpu));
      machine.tensor_destroyed(tensor);
    }
    machine.map(0, 0, 0, 64 * MiB, {gpu, 0}, MappedFor::op);
    machine.unmap(0, 0, 0, 64 * MiB, {gpu, 0});
  }
}

TEST_F(CudaMachineTest, WhatCannotBeIsAnError) {
  MachineSpec large = spec_;
  large.tiers[gpu].capacity = options_.accelerator->free_bytes() / page_ * page_ + page_;
  try {
    HostMachine machine(large, bodies_, options_);
    FAIL() << "the device has not so much";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--gpu-memory"), std::string::npos) << error.what();
  }
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 2 * page_);
  try {
    machine.map(0, 0, page_ / 2, page_, {gpu, 0}, MappedFor::op);
    FAIL() << "half a page cannot be mapped";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("chunk_bytes"), std::string::npos) << error.what();
  }
}

TEST_P(CudaEitherMemoryTest, LanesAndLinksWorkOnTheSameMemory) {
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 4 * MiB);
  for (TierId tier = 0; tier < 2; tier++) machine.map(0, 0, 0, 4 * MiB, {tier, 0}, MappedFor::op);
  machine.initialise(0, 0, 0, 4 * MiB, {cpu, 0});
  const OpCommand idle{.lane = 0, .op = none, .idle = true, .duration_ns = 10'000'000, .uses = {}};
  Nanoseconds last_ns = 0;
  const auto expect_next = [&](Tag tag) {
    const Completion completion = next(machine);
    EXPECT_EQ(completion.tag, tag);
    EXPECT_GE(completion.end_ns, last_ns);
    last_ns = completion.end_ns;
  };
  machine.execute(idle, 1);
  expect_next(1);
  machine.submit(copy(h2d, 0, 0, 4 * MiB, cpu, gpu), 2);
  expect_next(2);
  machine.submit(copy(d2h, 0, 0, 4 * MiB, gpu, cpu), 3);
  expect_next(3);
  machine.execute({.lane = 1, .op = 5, .idle = false, .duration_ns = 0, .uses = {}}, 4);
  expect_next(4);
  EXPECT_GE(last_ns, 10'000'000);
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, 4 * MiB, cpu));
}

// 32 MiB at 20 MB/s would take 1.7 s.
TEST_P(CudaEitherMemoryTest, CancelStopsACopyAndItsMemoryMayGo) {
  spec_.links[h2d].bandwidth = 20'000'000;
  options_.pace = true;
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 32 * MiB);
  for (TierId tier = 0; tier < 2; tier++) machine.map(0, 0, 0, 32 * MiB, {tier, 0}, MappedFor::op);
  const Nanoseconds begin_ns = machine.now();
  const Fence fence = machine.submit(copy(h2d, 0, 0, 32 * MiB, cpu, gpu), 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  machine.cancel(fence);
  EXPECT_EQ(next(machine).status, CompletionStatus::cancelled);
  EXPECT_LT(machine.now() - begin_ns, 1'500'000'000);
  machine.unmap(0, 0, 0, 32 * MiB, {gpu, 0});
}

TEST_P(CudaEitherMemoryTest, KernelsKnowTheHostsPatterns) {
  HostMachine machine(spec_, bodies_, options_);
  const std::unique_ptr<ReplayKernels> kernels = options_.accelerator->replay_kernels();
  TensorId tensor = 0;
  for (const Bytes bytes : std::vector<Bytes>{1, 7, 8, 9, 4095, 4096, 4097, 8200, 3 * MiB + 5}) {
    for (const bool everything : {true, false}) {
      tensor++;
      machine.tensor_created(tensor, bytes);
      machine.map(tensor, tensor, 0, bytes, {gpu, tensor * unit}, MappedFor::op);
      machine.map(tensor, tensor, 0, bytes, {cpu, 0}, MappedFor::op);
      std::memset(machine.address(tensor, cpu), 0x5a, bytes);
      move(machine, copy(h2d, tensor, 0, bytes, cpu, gpu));
      const ReplayOptions options{.check_everything = everything, .write_everything = everything};
      std::vector<ReplayAccess> accesses(1);
      accesses[0] = {tensor, 6, {machine.address(tensor), bytes}, false, true, unlimited};
      kernels->run(accesses, 0, options);
      std::vector<std::byte> expected(bytes, std::byte{0x5a});
      write_pattern(tensor, 7, 0, expected, everything);
      EXPECT_EQ(machine.content(tensor, 0, bytes, gpu), expected) << bytes;
      accesses[0] = {tensor, 7, {machine.address(tensor), bytes}, true, false, unlimited};
      kernels->run(accesses, 0, options);
      EXPECT_EQ(accesses[0].wrong_at, unlimited) << bytes;
      accesses[0].version = 8;
      kernels->run(accesses, 0, options);
      EXPECT_EQ(accesses[0].wrong_at, 0u) << bytes;
      machine.tensor_destroyed(tensor);
    }
  }
}

TEST_F(CudaMachineTest, AnOpTakesItsDuration) {
  const std::unique_ptr<ReplayKernels> kernels = options_.accelerator->replay_kernels();
  for (int i = 0; i < 3; i++) {
    const Nanoseconds before = clock_ns();
    EXPECT_LT(kernels->run({}, 20'000'000, {}), 20'000'000);
    EXPECT_GE(clock_ns() - before, 19'500'000);
  }
}

TEST_P(CudaEitherMemoryTest, ReplayNoticesABadByteAndOnlyThat) {
  constexpr Bytes bytes = 2 * MiB + 1001;
  Trace trace;
  const TensorId weight = trace.add_tensor("weight", bytes, Role::parameter, true);
  const TensorId out = trace.add_tensor("out", bytes, Role::activation, false);
  Op forward;
  forward.name = trace.names.intern("forward");
  forward.duration_ns = 1'000'000;
  trace.add_op(forward, std::vector<TensorId>{weight}, std::vector<TensorId>{out});
  const std::unique_ptr<ReplayKernels> kernels = options_.accelerator->replay_kernels();
  ReplayBodies bodies(trace, {.check_everything = true}, kernels.get());
  HostMachine machine(spec_, bodies, options_);
  for (const TensorId tensor : {weight, out}) {
    machine.tensor_created(tensor, bytes);
    machine.map(tensor, tensor, 0, bytes, {gpu, tensor * round_up(bytes, unit)}, MappedFor::op);
    machine.map(tensor, tensor, 0, bytes, {cpu, 0}, MappedFor::op);
  }
  machine.initialise(weight, weight, 0, bytes, {cpu, 0});
  move(machine, copy(h2d, weight, 0, bytes, cpu, gpu));
  const std::vector<Use> uses{{weight, true, false}, {out, false, true}};
  const OpCommand command{.lane = 0, .op = 0, .idle = false, .duration_ns = 1'000'000, .uses = uses};
  machine.execute(command, 0);
  EXPECT_EQ(next(machine).status, CompletionStatus::done) << machine.last_error();
  EXPECT_EQ(bodies.summary(), "1 tensors verified, 0 corrupted");
  EXPECT_TRUE(has_pattern(machine, out, 1, 0, bytes, gpu));
  machine.address(weight, cpu)[bytes - 1] ^= std::byte{1};
  move(machine, copy(h2d, weight, 0, bytes, cpu, gpu));
  machine.execute(command, 0);
  next(machine);
  EXPECT_EQ(bodies.counts().corrupted_tensors, 1u);
  EXPECT_NE(bodies.summary().find("wrong at byte 2097152, version 0"), std::string::npos) << bodies.summary();
}

// ---- Memory that is mapped once -------------------------------------------------------------------------------------

class CudaArenaTest : public CudaMachineTest {
 protected:
  void SetUp() override {
    CudaMachineTest::SetUp();
    if (!IsSkipped()) use_arena();
  }
  static void put(HostMachine& machine, TensorId tensor, Bytes bytes, Bytes offset) {
    machine.tensor_created(tensor, bytes);
    machine.map(tensor, tensor, 0, bytes, {gpu, offset}, MappedFor::op);
    machine.initialise(tensor, tensor, 0, bytes, {gpu, offset});
  }
  static void shift(HostMachine& machine, TensorId tensor, Bytes bytes, Bytes from, Bytes to) {
    MoveCommand command;
    command.tensor = command.chunk = tensor;
    command.bytes = bytes;
    command.from = {gpu, from};
    command.to = {gpu, to};
    machine.move(command);
  }
};

TEST_F(CudaArenaTest, MovesKeepContent) {
  HostMachine machine(spec_, bodies_, options_);
  EXPECT_TRUE(machine.moves());
  constexpr Bytes middle = 30 * MiB;
  TensorId tensor = 2;
  for (const Bytes bytes : {Bytes{1}, Bytes{511}, Bytes{4096}, 3 * MiB + 5, 17 * MiB}) {
    // Farther than it is large, and onto itself: in a few steps, and through a buffer.
    for (const Bytes far : {20 * MiB, 5 * MiB, 512 * KiB, unit}) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes, " + std::to_string(far) + " far");
      const Bytes room = round_up(bytes, unit);
      put(machine, tensor, bytes, middle);
      std::byte* const before = machine.address(tensor);
      // Neighbours on both sides, once it has moved.
      for (const Bytes to : {middle - round_up(far, unit), middle}) {
        const Bytes from = to == middle ? middle - far : middle;
        shift(machine, tensor, bytes, from, to);
        EXPECT_EQ(machine.address(tensor), before + to - middle);
        put(machine, 0, unit, to - unit);
        put(machine, 1, unit, to + room);
        EXPECT_TRUE(has_pattern(machine, tensor, 0, 0, bytes, gpu));
        for (const TensorId neighbour : {0, 1}) machine.tensor_destroyed(neighbour);
      }
      machine.tensor_destroyed(tensor++);
    }
  }
}

TEST_F(CudaArenaTest, CopiesFollowAMove) {
  HostMachine machine(spec_, bodies_, options_);
  constexpr Bytes bytes = 3 * MiB + 100;
  put(machine, 0, bytes, 0);
  machine.map(0, 0, 0, bytes, {cpu, 0}, MappedFor::op);
  shift(machine, 0, bytes, 0, 7 * unit);
  move(machine, copy(d2h, 0, 0, bytes, gpu, cpu));
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, bytes, cpu));
  shift(machine, 0, bytes, 7 * unit, 20 * MiB);
  move(machine, copy(h2d, 0, 0, bytes, cpu, gpu));
  EXPECT_TRUE(has_pattern(machine, 0, 0, 0, bytes, gpu));
}

// Only what is used has memory, in large pieces; it stays.
TEST_F(CudaArenaTest, MemoryGrowsByPieces) {
  const Bytes before = options_.accelerator->free_bytes();
  HostMachine machine(spec_, bodies_, options_);
  EXPECT_EQ(options_.accelerator->free_bytes(), before);
  const auto taken = [&] { return before - options_.accelerator->free_bytes(); };
  put(machine, 0, 1, 0);
  const Bytes piece = taken();
  EXPECT_GT(piece, 0u);
  EXPECT_LE(piece, 8 * MiB);
  put(machine, 1, unit, 64 * MiB - unit);
  EXPECT_EQ(taken(), 2 * piece);
  put(machine, 2, 2 * unit, piece - unit);
  EXPECT_EQ(taken(), 3 * piece) << "across two";
  machine.tensor_destroyed(2);
  put(machine, 2, piece, unit);
  EXPECT_EQ(taken(), 3 * piece);
  machine.tensor_destroyed(0);
  put(machine, 3, 48 * MiB, 2 * piece);
  EXPECT_LE(taken(), 64 * MiB);
  for (const TensorId tensor : {1, 2, 3}) {
    EXPECT_TRUE(has_pattern(machine, tensor, 0, 0, machine.bytes(tensor), gpu));
  }
}

// Whatever is not there has an address that nothing has.
TEST_F(CudaArenaTest, WhatIsAwayHasTheGuardsAddress) {
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 100);
  machine.tensor_created(1, 0);
  std::byte* const guard = machine.address(0);
  EXPECT_NE(guard, nullptr);
  EXPECT_EQ(machine.address(1), nullptr);
  machine.map(0, 0, 0, 100, {gpu, 3 * unit}, MappedFor::op);
  EXPECT_EQ(machine.address(0) + 64 * MiB - 3 * unit, guard) << "behind the range";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(machine.address(0) - 3 * unit) % (2 * MiB), 0u);
  machine.unmap(0, 0, 0, 100, {gpu, 3 * unit});
  EXPECT_EQ(machine.address(0), guard);
}

TEST_F(CudaArenaTest, TensorsAreWholeAndMemoryIsThere) {
  HostMachine machine(spec_, bodies_, options_);
  machine.tensor_created(0, 2 * page_);
  EXPECT_THROW(machine.map(0, 0, page_, page_, {gpu, 0}, MappedFor::op), Error);
  EXPECT_THROW(machine.map(0, 0, 0, page_, {gpu, 0}, MappedFor::op), Error);
  machine.map(0, 0, 0, 2 * page_, {gpu, 0}, MappedFor::op);
  EXPECT_EQ(machine.memory_statistics(gpu).used_bytes, 2 * page_);
  spec_.tiers[gpu].capacity = options_.accelerator->free_bytes() / page_ * page_ + page_;
  EXPECT_THROW(HostMachine(spec_, bodies_, options_), Error) << "the device has not so much";
}

}  // namespace
}  // namespace tencache
