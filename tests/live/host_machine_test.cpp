// The real machine against closed forms. Bounds on time are lower bounds wherever possible: a busy computer makes
// everything later, nothing earlier.
#include "executor/host_machine.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "core/error.h"
#include "executor/calibrate.h"
#include "executor/clock.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr LinkId h2d = 0, d2h = 1, nvme_read = 2, nvme_write = 3;
constexpr TierId gpu = 0, cpu = 1, nvme = 2;

// Notes which ops ran, and in which order.
class NotingBodies : public OpBodies {
 public:
  void run(std::uint8_t lane, OpIndex op, std::span<const Use> uses, HostMachine&) override {
    const std::lock_guard lock(mutex);
    ran.push_back({lane, op});
    use_count += uses.size();
    if (op == 99) throw Error("op 99 fails");
  }
  std::mutex mutex;
  std::vector<std::pair<int, OpIndex>> ran;
  std::size_t use_count = 0;
};

class HostMachineTest : public testing::Test {
 protected:
  HostMachineTest() {
    std::string name = (fs::temp_directory_path() / "tencache-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    spec_.name = "test";
    spec_.file = "test.yaml";
    spec_.tiers = {{"gpu", TierKind::gpu, 128 * MiB, 4096, {}},
                   {"cpu", TierKind::cpu, 256 * MiB, 4096, {}},
                   {"nvme", TierKind::nvme, 512 * MiB, 4096, {name}}};
    spec_.links = {{"h2d", cpu, gpu, unlimited, 0, {}},
                   {"d2h", gpu, cpu, unlimited, 0, {}},
                   {"nvme_read", nvme, cpu, unlimited, 0, {}},
                   {"nvme_write", cpu, nvme, unlimited, 0, {}}};
    spec_.staging = {cpu, 4, 1 * MiB};
  }
  ~HostMachineTest() override {
    EXPECT_TRUE(fs::is_empty(folder_)) << "a file was left behind";
    fs::remove_all(folder_);
  }

  static CopyCommand copy(LinkId link, TensorId tensor, Bytes bytes, TierId from, TierId to) {
    CopyCommand command;
    command.link = link;
    command.tensor = tensor;
    command.chunk = tensor;
    command.bytes = bytes;
    command.from = {from, 0};
    command.to = {to, 0};
    return command;
  }
  static OpCommand op(std::uint8_t lane, OpIndex index) {
    return {.lane = lane, .op = index, .idle = false, .duration_ns = 0, .uses = {}};
  }
  static OpCommand idle(std::uint8_t lane, Nanoseconds duration_ns) {
    return {.lane = lane, .op = none, .idle = true, .duration_ns = duration_ns, .uses = {}};
  }
  static Completion next(HostMachine& machine) {
    Completion completion;
    EXPECT_TRUE(machine.wait(completion));
    return completion;
  }
  // A tensor of one chunk with room in all tiers.
  static void create(HostMachine& machine, TensorId tensor, Bytes bytes) {
    machine.tensor_created(tensor, bytes);
    for (TierId tier = 0; tier < machine.spec().tiers.size(); tier++) {
      machine.map(tensor, tensor, 0, bytes, {tier, 0}, MappedFor::op);
    }
  }

  fs::path folder_;
  MachineSpec spec_;
  NotingBodies bodies_;
};

// 64 MiB at 1 GB/s with a latency of 1 ms: 1 ms + 67,108,864 ns.
TEST_F(HostMachineTest, ATransferTakesLatencyAndBytesOverBandwidth) {
  spec_.links[h2d].bandwidth = 1'000'000'000;
  spec_.links[h2d].latency_ns = 1'000'000;
  HostMachine machine(spec_, bodies_);
  create(machine, 0, 64 * MiB);
  std::vector<Nanoseconds> times;
  for (int i = 0; i < 5; i++) {
    const Nanoseconds before = machine.now();
    machine.submit(copy(h2d, 0, 64 * MiB, cpu, gpu), 1);
    const Completion completion = next(machine);
    EXPECT_GE(completion.start_ns, before);
    EXPECT_GE(completion.end_ns - completion.start_ns, 68'108'864);
    EXPECT_GE(machine.now(), completion.end_ns);
    times.push_back(completion.end_ns - completion.start_ns);
  }
  std::sort(times.begin(), times.end());
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LE(times[2], 68'108'864 * std::int64_t{115} / 100);
#endif
}

// Eight transfers of 1 MiB at 1 GB/s in a row: 8 × (10 us + 1,048,576 ns), not less for all, and in order.
TEST_F(HostMachineTest, QueuedTransfersRunInOrderAtTheLinksRate) {
  spec_.links[h2d].bandwidth = 1'000'000'000;
  spec_.links[h2d].latency_ns = 10'000;
  HostMachine machine(spec_, bodies_);
  create(machine, 0, 1 * MiB);
  const Nanoseconds begin = machine.now();
  std::vector<Fence> fences;
  for (Tag tag = 0; tag < 8; tag++) fences.push_back(machine.submit(copy(h2d, 0, 1 * MiB, cpu, gpu), tag));
  Nanoseconds last_end = 0;
  for (Tag tag = 0; tag < 8; tag++) {
    const Completion completion = next(machine);
    EXPECT_EQ(completion.tag, tag);
    EXPECT_EQ(completion.fence, fences[tag]);
    EXPECT_EQ(completion.fence, tag + 1);
    EXPECT_GE(completion.start_ns, last_end);
    EXPECT_GE(completion.end_ns, completion.start_ns);
    last_end = completion.end_ns;
  }
  EXPECT_GE(last_end - begin, 8 * (10'000 + 1'048'576));
  Completion none_left;
  EXPECT_FALSE(machine.wait(none_left));
}

// Links work at the same time: the short transfer, submitted last, overtakes the long one of the other link.
TEST_F(HostMachineTest, LinksOverlap) {
  spec_.links[h2d].bandwidth = 100'000'000;  // 16 MiB: 168 ms
  HostMachine machine(spec_, bodies_);
  create(machine, 0, 16 * MiB);
  create(machine, 1, 4096);
  machine.submit(copy(h2d, 0, 16 * MiB, cpu, gpu), 1);
  machine.submit(copy(d2h, 1, 4096, gpu, cpu), 2);
  EXPECT_EQ(next(machine).tag, 2u);
  EXPECT_EQ(next(machine).tag, 1u);
}

TEST_F(HostMachineTest, WithoutPacingTheLinkRunsFree) {
  spec_.links[h2d].bandwidth = 1'000'000;  // 1 MiB would take a second
  HostMachineOptions options;
  options.pace = false;
  HostMachine machine(spec_, bodies_, options);
  create(machine, 0, 1 * MiB);
  machine.submit(copy(h2d, 0, 1 * MiB, cpu, gpu), 1);
  const Completion completion = next(machine);
  EXPECT_LT(completion.end_ns - completion.start_ns, 1'000'000'000);
}

void round_trip(const MachineSpec& spec, HostMachineOptions options) {
  NotingBodies bodies;
  HostMachine machine(spec, bodies, std::move(options));
  constexpr Bytes bytes = 3 * MiB + 12'345;
  machine.tensor_created(0, bytes);
  for (TierId tier = 0; tier < 3; tier++) machine.map(0, 0, 0, bytes, {tier, 0}, MappedFor::op);
  std::byte* on_gpu = machine.address(0);
  write_pattern(0, 1, 0, {on_gpu, bytes}, true);
  const auto command = [](LinkId link, TierId from, TierId to) {
    CopyCommand copy;
    copy.link = link;
    copy.tensor = 0;
    copy.chunk = 0;
    copy.bytes = bytes;
    copy.from = {from, 0};
    copy.to = {to, 0};
    return copy;
  };
  // Down to the files and up again, each step after the one before; the memory above is cleared on the way.
  Completion completion;
  machine.submit(command(d2h, gpu, cpu), 0);
  while (machine.wait(completion)) EXPECT_EQ(completion.status, CompletionStatus::done) << machine.last_error();
  const Fence to_file = machine.submit(command(nvme_write, cpu, nvme), 0);
  while (machine.wait(completion)) EXPECT_EQ(completion.status, CompletionStatus::done) << machine.last_error();
  EXPECT_EQ(completion.fence, to_file);
  std::memset(on_gpu, 0, bytes);
  std::memset(machine.address(0, cpu), 0, bytes);
  machine.submit(command(nvme_read, nvme, cpu), 0);
  while (machine.wait(completion)) EXPECT_EQ(completion.status, CompletionStatus::done) << machine.last_error();
  machine.submit(command(h2d, cpu, gpu), 0);
  while (machine.wait(completion)) EXPECT_EQ(completion.status, CompletionStatus::done) << machine.last_error();
  EXPECT_EQ(find_difference(0, 1, 0, {on_gpu, bytes}, true), unlimited);
  const std::vector<std::byte> stored = machine.content(0, 0, bytes, nvme);
  EXPECT_EQ(find_difference(0, 1, 0, stored, true), unlimited);
}

TEST_F(HostMachineTest, BytesSurviveTheWayToTheFilesAndBack) {
  round_trip(spec_, {});
  HostMachineOptions plain;
  plain.files.io_uring = false;
  round_trip(spec_, plain);
  HostMachineOptions buffered;
  buffered.files.direct = false;
  round_trip(spec_, buffered);
}

// Locking memory takes a limit or a right; both are taken away for a moment.
TEST_F(HostMachineTest, MemoryThatCannotBeLockedIsReported) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers' mlock does nothing and always succeeds";
#endif
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const struct rlimit little { 64 * KiB, before.rlim_max };
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> rights{}, fewer{};
  ASSERT_EQ(::syscall(SYS_capget, &header, rights.data()), 0);
  fewer = rights;
  fewer[0].effective &= ~(1U << CAP_IPC_LOCK);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &little), 0);
  ASSERT_EQ(::syscall(SYS_capset, &header, fewer.data()), 0);
  testing::internal::CaptureStderr();
  {
    HostMachine machine(spec_, bodies_);
    EXPECT_NE(machine.describe().find("not locked (RLIMIT_MEMLOCK)"), std::string::npos) << machine.describe();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_EQ(::syscall(SYS_capset, &header, rights.data()), 0);
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_NE(said.find("the staging buffers, 4.00 MiB, are ordinary memory"), std::string::npos) << said;
  EXPECT_NE(said.find("the limit is 64.00 KiB (ulimit -l)"), std::string::npos) << said;
}

// read_bytes and write_bytes of this process; empty where the kernel does not tell.
std::map<std::string, Bytes> disk_bytes() {
  std::ifstream file("/proc/self/io");
  std::map<std::string, Bytes> result;
  std::string key;
  for (Bytes bytes = 0; file >> key >> bytes;) result[key] = bytes;
  return result;
}

TEST_F(HostMachineTest, BytesOfFilesAreBytesOfTheDisk) {
  HostMachine machine(spec_, bodies_);
  struct statfs system {};
  ASSERT_EQ(::statfs(folder_.c_str(), &system), 0);
  if (!machine.files(nvme).direct(0) || system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "files are in memory here";
  create(machine, 0, 32 * MiB);
  auto before = disk_bytes();
  if (!before.contains("write_bytes:")) GTEST_SKIP() << "this kernel does not count the bytes of a process";
  for (int i = 0; i < 2; i++) machine.submit(copy(nvme_write, 0, 32 * MiB, cpu, nvme), 0);
  for (int i = 0; i < 2; i++) EXPECT_EQ(next(machine).status, CompletionStatus::done);
  auto after = disk_bytes();
  EXPECT_NEAR(static_cast<double>(after["write_bytes:"] - before["write_bytes:"]), 64.0 * MiB, 0.01 * 64 * MiB);
  before = after;
  machine.submit(copy(nvme_read, 0, 32 * MiB, nvme, cpu), 0);
  EXPECT_EQ(next(machine).status, CompletionStatus::done);
  after = disk_bytes();
  EXPECT_NEAR(static_cast<double>(after["read_bytes:"] - before["read_bytes:"]), 32.0 * MiB, 0.01 * 32 * MiB);
}

TEST_F(HostMachineTest, FallbackIsDescribed) {
  HostMachineOptions options;
  options.files.io_uring = false;
  testing::internal::CaptureStderr();
  HostMachine machine(spec_, bodies_, options);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "tencache: files are read and written with pread and pwrite: io_uring is switched off\n");
  EXPECT_NE(machine.describe().find("nvme_read: pread and pwrite, io_uring is switched off"), std::string::npos)
      << machine.describe();
}

// gpu → staging → file → staging → gpu, over several buffers; the GPU's link to the buffers is d2h and h2d.
TEST_F(HostMachineTest, StagedCopiesKeepTheirBytes) {
  HostMachine machine(spec_, bodies_);
  constexpr Bytes bytes = 2 * MiB + 100;  // three buffers
  machine.tensor_created(5, bytes);
  machine.map(5, 0, 0, bytes, {gpu, 0}, MappedFor::op);
  machine.map(5, 0, 0, bytes, {nvme, 0}, MappedFor::op);
  write_pattern(5, 3, 0, {machine.address(5), bytes}, true);
  CopyCommand down = copy(d2h, 5, bytes, gpu, cpu);
  down.to_staging = true;
  down.to.offset = 1;
  CopyCommand store = copy(nvme_write, 5, bytes, cpu, nvme);
  store.from_staging = true;
  store.from.offset = 1;
  machine.submit(down, 1);
  EXPECT_EQ(next(machine).tag, 1u);
  machine.submit(store, 2);
  EXPECT_EQ(next(machine).tag, 2u);
  std::memset(machine.address(5), 0, bytes);
  CopyCommand load = copy(nvme_read, 5, bytes, nvme, cpu);
  load.to_staging = true;
  CopyCommand up = copy(h2d, 5, bytes, cpu, gpu);
  up.from_staging = true;
  machine.submit(load, 3);
  EXPECT_EQ(next(machine).tag, 3u);
  machine.submit(up, 4);
  EXPECT_EQ(next(machine).tag, 4u);
  EXPECT_EQ(find_difference(5, 3, 0, {machine.address(5), bytes}, true), unlimited);
}

TEST_F(HostMachineTest, LanesRunAtTheSameTimeAndEachInOrder) {
  HostMachine machine(spec_, bodies_);
  machine.execute(idle(0, 100'000'000), 1);
  machine.execute(op(0, 1), 2);
  machine.execute(op(1, 2), 3);
  EXPECT_EQ(next(machine).tag, 3u);
  EXPECT_EQ(next(machine).tag, 1u);
  EXPECT_EQ(next(machine).tag, 2u);
  EXPECT_EQ(bodies_.ran, (std::vector<std::pair<int, OpIndex>>{{1, 2}, {0, 1}}));
}

TEST_F(HostMachineTest, UsesAreCopiedAtSubmission) {
  HostMachine machine(spec_, bodies_);
  {
    std::vector<Use> uses{{1, true, false}, {2, false, true}};
    OpCommand command = op(0, 1);
    command.uses = uses;
    machine.execute(idle(0, 5'000'000), 0);
    machine.execute(command, 1);
    uses.clear();
  }
  next(machine);
  next(machine);
  EXPECT_EQ(bodies_.use_count, 2u);
}

// 64 MiB at 10 MB/s would take 6.7 s.
TEST_F(HostMachineTest, CancelStopsARunningCopyAndOneThatWaits) {
  spec_.links[h2d].bandwidth = 10'000'000;
  HostMachine machine(spec_, bodies_);
  create(machine, 0, 64 * MiB);
  const Nanoseconds begin = machine.now();
  const Fence running = machine.submit(copy(h2d, 0, 64 * MiB, cpu, gpu), 1);
  const Fence queued = machine.submit(copy(h2d, 0, 64 * MiB, cpu, gpu), 2);
  machine.execute(idle(0, 300'000'000), 3);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  machine.cancel(queued);
  machine.cancel(running);
  // An op that may write what the cancelled copy reads comes after it.
  machine.execute(op(1, 1), 5);
  std::vector<Tag> order;
  for (int i = 0; i < 4; i++) {
    const Completion completion = next(machine);
    order.push_back(completion.tag);
    const bool is_copy = completion.tag != 3 && completion.tag != 5;
    EXPECT_EQ(completion.status, is_copy ? CompletionStatus::cancelled : CompletionStatus::done);
  }
  const auto place = [&](Tag tag) { return std::find(order.begin(), order.end(), tag); };
  EXPECT_LT(place(1), place(2));
  EXPECT_LT(place(1), place(5));
  EXPECT_LT(place(2), place(3));
  EXPECT_LT(machine.now() - begin, 6'000'000'000);
  machine.cancel(running);  // too late: nothing happens
  Completion none_left;
  EXPECT_FALSE(machine.wait(none_left));
}

TEST_F(HostMachineTest, CompletionTimesNeverDecrease) {
  HostMachine machine(spec_, bodies_);
  create(machine, 0, 64 * KiB);
  create(machine, 1, 64 * KiB);
  Nanoseconds last = 0;
  std::uint64_t delivered = 0;
  for (OpIndex i = 0; i < 300; i++) {
    machine.submit(copy(h2d, 0, 64 * KiB, cpu, gpu), 0);
    machine.submit(copy(d2h, 1, 64 * KiB, gpu, cpu), 0);
    machine.execute(op(0, i % 90), 0);
    machine.execute(op(1, i % 90), 0);
    for (int k = 0; k < 3; k++, delivered++) {
      const Completion completion = next(machine);
      EXPECT_GE(completion.end_ns, last);
      EXPECT_LE(completion.start_ns, completion.end_ns);
      last = completion.end_ns;
    }
  }
  Completion completion;
  while (machine.wait(completion)) {
    EXPECT_GE(completion.end_ns, last);
    last = completion.end_ns;
    delivered++;
  }
  EXPECT_EQ(delivered, 1200u);
}

TEST_F(HostMachineTest, InjectedFailureIsReportedAndNothingIsWritten) {
  HostMachineOptions options;
  options.faults = parse_fault_plan("copy_error=@1");
  HostMachine machine(spec_, bodies_, options);
  create(machine, 0, 4096);
  std::memset(machine.address(0, cpu), 1, 4096);
  std::memset(machine.address(0, gpu), 2, 4096);
  machine.submit(copy(d2h, 0, 4096, gpu, cpu), 0);
  EXPECT_EQ(next(machine).status, CompletionStatus::done);
  std::memset(machine.address(0, cpu), 1, 4096);
  machine.submit(copy(h2d, 0, 4096, cpu, gpu), 0);
  EXPECT_EQ(next(machine).status, CompletionStatus::failed);
  EXPECT_EQ(machine.last_error(), "link 'h2d': copy_error (injected)");
  EXPECT_EQ(to_string(machine.fault_counts()), "1 copy_error");
  EXPECT_EQ(machine.address(0, gpu)[0], std::byte{2});
  machine.submit(copy(h2d, 0, 4096, cpu, gpu), 0);
  EXPECT_EQ(next(machine).status, CompletionStatus::done);
  EXPECT_EQ(machine.address(0, gpu)[0], std::byte{1});
}

TEST_F(HostMachineTest, AnOpThatThrowsFailsAlone) {
  HostMachine machine(spec_, bodies_);
  machine.execute(op(0, 99), 1);
  machine.execute(op(0, 1), 2);
  EXPECT_EQ(next(machine).status, CompletionStatus::failed);
  EXPECT_EQ(machine.last_error(), "op 99 fails");
  EXPECT_EQ(next(machine).status, CompletionStatus::done);
}

TEST_F(HostMachineTest, CapIsEnforcedPerTier) {
  spec_.tiers[gpu].capacity = 1 * MiB;
  HostMachine machine(spec_, bodies_);
  machine.tensor_created(0, 2 * MiB);
  machine.map(0, 0, 0, 1 * MiB, {gpu, 0}, MappedFor::op);
  EXPECT_THROW(machine.map(0, 1, 1 * MiB, 1 * MiB, {gpu, 0}, MappedFor::op), OutOfMemory);
  machine.map(0, 1, 1 * MiB, 1 * MiB, {cpu, 0}, MappedFor::op);
  EXPECT_EQ(machine.memory_statistics(gpu).used_bytes, 1 * MiB);
  HostMachineOptions options;
  options.unlimited_gpu = true;
  HostMachine wide(spec_, bodies_, options);
  wide.tensor_created(0, 2 * MiB);
  wide.map(0, 0, 0, 2 * MiB, {gpu, 0}, MappedFor::op);
}

TEST_F(HostMachineTest, WhatARealMachineCannotDoIsAnError) {
  const auto message = [&](const MachineSpec& spec) -> std::string {
    try {
      HostMachine machine(spec, bodies_);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  MachineSpec fine = spec_;
  fine.tiers[gpu].granularity = 1;
  EXPECT_NE(message(fine).find("test.yaml: tier 'gpu': granularity"), std::string::npos) << message(fine);
  EXPECT_EQ(message(with_real_pages(fine)), "no error");
  MachineSpec tiny = fine;
  tiny.tiers[gpu].capacity = 1000;
  EXPECT_THROW(with_real_pages(tiny), Error);
  fine.tiers[gpu].capacity = MiB + 1;
  EXPECT_EQ(with_real_pages(fine).tiers[gpu].capacity, MiB) << "the high end of contiguous memory would be no page's";
  MachineSpec between_files = spec_;
  between_files.tiers.push_back(between_files.tiers[nvme]);
  between_files.links.push_back({"ssd_to_ssd", nvme, 3, unlimited, 0, {}});
  EXPECT_NE(message(between_files).find("ssd_to_ssd"), std::string::npos);
  MachineSpec no_folder = spec_;
  no_folder.tiers[nvme].directories = {(folder_ / "missing").string()};
  EXPECT_NE(message(no_folder).find("missing"), std::string::npos);
}

TEST_F(HostMachineTest, WaitForEndsAtItsLimitAndAtStop) {
  HostMachine machine(spec_, bodies_);
  Completion completion;
  EXPECT_FALSE(machine.wait_for(completion, std::chrono::milliseconds(1)));
  std::thread pump([&] {
    EXPECT_TRUE(machine.wait_for(completion, std::chrono::seconds(60)));  // woken by what comes later
    EXPECT_EQ(completion.tag, 5u);
    EXPECT_FALSE(machine.wait_for(completion, std::chrono::seconds(60)));
  });
  machine.execute(op(0, 1), 5);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  machine.stop();
  pump.join();
  EXPECT_FALSE(machine.wait(completion));
}

TEST_F(HostMachineTest, SmallCopiesAreLeftToWhoWaitsForThem) {
  HostMachineOptions options;
  options.pace = false;
  HostMachine machine(spec_, bodies_, options);
  create(machine, 0, 4096);
  create(machine, 1, MiB);
  Completion completion;
  const auto nothing_comes = [&] { return !machine.wait_for(completion, std::chrono::milliseconds(20)); };

  machine.hold();
  std::memset(machine.address(0, gpu), 2, 4096);
  const Fence down = machine.submit(copy(d2h, 0, 4096, gpu, cpu), 0);
  EXPECT_TRUE(nothing_comes());
  EXPECT_TRUE(machine.run_one());
  EXPECT_FALSE(machine.run_one());
  ASSERT_TRUE(machine.take(completion));
  EXPECT_EQ(completion.fence, down);
  EXPECT_EQ(machine.address(0, cpu)[4095], std::byte{2});
  const Fence large = machine.submit(copy(d2h, 1, MiB, gpu, cpu), 0);
  EXPECT_FALSE(machine.run_one());
  EXPECT_EQ(next(machine).fence, large);

  const Fence left = machine.submit(copy(h2d, 0, 4096, cpu, gpu), 0);
  const Fence behind = machine.submit(copy(h2d, 1, MiB, cpu, gpu), 0);
  EXPECT_TRUE(nothing_comes());
  machine.start();
  EXPECT_FALSE(machine.run_one());
  EXPECT_EQ(next(machine).fence, left);
  EXPECT_EQ(next(machine).fence, behind);

  machine.hold();
  machine.submit(copy(h2d, 0, 4096, cpu, gpu), 0);
  const Fence after = machine.submit(copy(h2d, 1, MiB, cpu, gpu), 0);
  EXPECT_TRUE(machine.run_one());
  EXPECT_TRUE(machine.take(completion));
  EXPECT_EQ(next(machine).fence, after) << "the link's thread goes on";
  machine.submit(copy(d2h, 0, 4096, gpu, cpu), 0);  // and is there, unmade, when the machine goes
}

TEST_F(HostMachineTest, DestructionCancelsWhatIsUnderWay) {
  spec_.links[h2d].bandwidth = 1'000'000;
  const Nanoseconds begin = clock_ns();
  {
    HostMachine machine(spec_, bodies_);
    create(machine, 0, 64 * MiB);  // 67 s
    for (int i = 0; i < 2; i++) machine.submit(copy(h2d, 0, 64 * MiB, cpu, gpu), 0);
    machine.execute(idle(0, 60 * second_ns), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_LT(clock_ns() - begin, 30 * second_ns);
}

TEST_F(HostMachineTest, NothingIsLeftOpen) {
  const auto open_descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = open_descriptors();
  for (int i = 0; i < 3; i++) HostMachine machine(spec_, bodies_);
  EXPECT_EQ(open_descriptors(), before);
}

// --- Replay bodies --------------------------------------------------------------------------------------------------

// Two tensors, one op that reads the first and writes the second, one on the CPU lane that updates the first in place.
Trace small_trace(Bytes bytes) {
  Trace trace;
  const TensorId weight = trace.add_tensor("weight", bytes, Role::parameter, true);
  const TensorId out = trace.add_tensor("out", bytes, Role::activation, false);
  Op forward;
  forward.name = trace.names.intern("forward");
  forward.duration_ns = 3'000'000;
  trace.add_op(forward, std::vector<TensorId>{weight}, std::vector<TensorId>{out});
  Op update;
  update.name = trace.names.intern("update");
  update.device = Device::cpu;
  trace.add_op(update, std::vector<TensorId>{weight}, std::vector<TensorId>{weight});
  return trace;
}

TEST_F(HostMachineTest, ReplayNoticesABadByteAndOnlyThat) {
  constexpr Bytes bytes = 3 * 4096 + 1001;
  const Trace trace = small_trace(bytes);
  ReplayBodies bodies(trace, {.check_everything = true});
  HostMachine machine(spec_, bodies);
  for (TensorId tensor = 0; tensor < 2; tensor++) create(machine, tensor, bytes);
  for (TierId tier = 0; tier < 3; tier++) machine.initialise(0, 0, 0, bytes, {tier, 0});
  EXPECT_EQ(find_difference(0, 0, 0, machine.content(0, 0, bytes, nvme), true), unlimited);
  const std::vector<Use> forward{{0, true, false}, {1, false, true}}, update{{0, true, true}};
  OpCommand command = op(0, 0);
  command.uses = forward;
  machine.execute(command, 0);
  const Completion first = next(machine);
  EXPECT_GE(first.end_ns - first.start_ns, 3'000'000);
  EXPECT_EQ(bodies.summary(), "1 tensors verified, 0 corrupted");
  EXPECT_EQ(find_difference(1, 1, 0, {machine.address(1), bytes}, true), unlimited);
  // The update on the CPU makes version 1 there; the GPU's copy is stale and is noticed if it is not refreshed.
  command = op(1, 1);
  command.uses = update;
  machine.execute(command, 0);
  next(machine);
  EXPECT_EQ(bodies.counts().corrupted_checks, 0u);
  command = op(0, 0);
  command.uses = forward;
  machine.submit(copy(h2d, 0, bytes, cpu, gpu), 0);
  next(machine);
  machine.execute(command, 0);
  next(machine);
  EXPECT_EQ(bodies.summary(), "1 tensors verified, 0 corrupted");
  machine.address(0)[bytes - 1] ^= std::byte{1};
  machine.execute(command, 0);
  next(machine);
  EXPECT_EQ(bodies.counts().corrupted_tensors, 1u);
  EXPECT_NE(bodies.summary().find("op 0 (forward) read tensor 0 (weight) wrong at byte 12288, version 1"),
            std::string::npos)
      << bodies.summary();
  EXPECT_EQ(bodies.counts().ops, 4u);
}

TEST(ReplayPattern, DistinguishesTensorsVersionsAndPages) {
  std::vector<std::byte> content(3 * 4096);
  write_pattern(1, 1, 0, content, false);
  EXPECT_EQ(find_difference(1, 1, 0, content, false), unlimited);
  EXPECT_EQ(find_difference(2, 1, 0, content, false), 0u);
  EXPECT_EQ(find_difference(1, 2, 0, content, false), 0u);
  EXPECT_EQ(find_difference(1, 1, 4096, content, false), 4096u);
  std::swap_ranges(content.begin() + 4096, content.begin() + 8192, content.begin() + 8192);
  EXPECT_EQ(find_difference(1, 1, 0, content, false), 4096u);
  std::vector<std::byte> tiny(3);
  write_pattern(1, 1, 0, tiny, false);
  EXPECT_EQ(find_difference(1, 1, 0, tiny, true), unlimited);
  tiny[2] ^= std::byte{1};
  EXPECT_EQ(find_difference(1, 1, 0, tiny, false), 0u);
}

// --- Calibration ----------------------------------------------------------------------------------------------------

// t = 20 us + bytes / (2 GB/s), exactly; and a cloud of times that a line through the origin fits best.
TEST(Calibrate, FitsALineThroughTheTimes) {
  const LinkFigures exact = fit_link({{64'000, 52'000}, {1'000'000, 520'000}, {16'000'000, 8'020'000}});
  EXPECT_NEAR(static_cast<double>(exact.bandwidth), 2e9, 2e6);
  EXPECT_NEAR(static_cast<double>(exact.latency_ns), 20'000, 20);
  const LinkFigures origin = fit_link({{1'000, 900}, {10'000, 10'000}, {100'000, 105'000}});
  EXPECT_EQ(origin.latency_ns, 0);
  EXPECT_NEAR(static_cast<double>(origin.bandwidth), 1e9, 1e8);
}

TEST(Calibrate, TheSpreadIsTheInterquartileRangeOverTheMedian) {
  const MeasuredMedian measured = measured_median({10, 1000, 8, 12, 9});
  EXPECT_EQ(measured.value, 10);
  EXPECT_DOUBLE_EQ(measured.spread, (12.0 - 9.0) / 10.0);
}

TEST_F(HostMachineTest, CalibrationMeasuresEveryFigure) {
  CalibrateOptions options;
  options.gpu_bytes = 64 * MiB;
  options.directories = {folder_.string()};
  options.quick = true;
  options.file_bytes = 64 * MiB;
  options.date = "2026-01-01";
  std::uint64_t stepped = 0;
  options.adam_step = [&](std::uint64_t parameters) { stepped += parameters; };
  std::size_t said = 0;
  options.progress = [&said](const std::string&) { ++said; };
  const Calibration calibration = calibrate(options);
  const MachineSpec& machine = calibration.machine;
  machine.validate();
  ASSERT_EQ(machine.links.size(), 4u);
  for (const Link& link : machine.links) {
    EXPECT_GT(link.bandwidth, 1'000'000u) << link.name;
    EXPECT_LT(link.bandwidth, unlimited) << link.name;
  }
  EXPECT_EQ(machine.tiers[gpu].capacity, 64 * MiB);
  EXPECT_GT(machine.tiers[cpu].capacity, 0u);
  EXPECT_GT(machine.tiers[nvme].capacity, 0u);
  EXPECT_GT(machine.cpu.adam_parameters_per_second, 0);
  EXPECT_GT(stepped, 0u);
  EXPECT_GT(said, 5u);
  EXPECT_EQ(machine.facts.size(), 4 * 2 + 3 + 1 + machine.resources.size());
  for (const Fact& fact : machine.facts) {
    EXPECT_EQ(fact.confidence, "measured");
    EXPECT_EQ(fact.retrieved, "2026-01-01");
    EXPECT_GE(fact.spread, 0);
  }
  for (const MeasuredMedian& figure :
       {calibration.op_round_trip, calibration.matmul_flops, calibration.triad_bytes, calibration.contention.both,
        calibration.contention.h2d, calibration.contention.d2h}) {
    EXPECT_GT(figure.value, 0);
  }
  ASSERT_FALSE(calibration.files.empty());
  for (const FileRate& rate : calibration.files) {
    for (const MeasuredMedian& figure : {rate.read, rate.write, rate.mixed}) EXPECT_GT(figure.value, 1e5);
  }
  ASSERT_FALSE(calibration.memory.empty());
  for (const MemoryCost& cost : calibration.memory) {
    for (const MeasuredMedian& figure : {cost.pageable_copy, cost.allocate, cost.map, cost.unmap}) {
      EXPECT_GT(figure.value, 0) << cost.bytes;
    }
    // Where memory cannot be locked, that is said.
    EXPECT_EQ(cost.pinned_copy.value > 0, calibration.not_measured.empty());
  }
  options.file_bytes = Bytes{1} << 50;
  EXPECT_THROW(calibrate(options), Error);
}

// As on a disk that is nearly full: no file may be larger.
TEST_F(HostMachineTest, FilesAreMeasuredWithinTheBytesThatAreGiven) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto too_large = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{16 * MiB, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Tier tier{"nvme", TierKind::nvme, 16 * MiB, 4096, {folder_.string()}};
  EXPECT_EQ(time_files(tier, 8 * MiB, true).size(), 1u);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, too_large);
}

}  // namespace
}  // namespace tencache
