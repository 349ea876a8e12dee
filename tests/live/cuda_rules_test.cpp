// The CUDA backend on the driver of rules: the list that a GPU runs too, what only such a driver can bring about
// (failures, memory that others take, a device that stands still), and whole runs of the engine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <thread>

#include "bench/driver_calls.h"
#include "core/engine/engine.h"
#include "core/error.h"
#include "core/remark.h"
#include "executor/arena_memory.h"
#include "executor/calibrate.h"
#include "executor/choose_device.h"
#include "executor/chunk_memory.h"
#include "executor/cuda/cuda_device.h"
#include "executor/cuda/cuda_memory.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "tests/live/arena_case.h"
#include "tests/live/cuda_machine_cases.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"
#include "tests/replay_log.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

using rules::RulesDriver;
using rules::RulesOptions;

std::unique_ptr<RulesDriver> list_driver;

constexpr LinkId h2d = 0, d2h = 1;
constexpr TierId gpu = 0, cpu = 1;

class NoBodies final : public OpBodies {
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
};

MachineSpec two_tiers(Bytes granularity, Bytes capacity = 64 * MiB) {
  MachineSpec spec;
  spec.name = "test";
  spec.tiers = {{"gpu", TierKind::gpu, capacity, granularity, {}}, {"cpu", TierKind::cpu, capacity, 4096, {}}};
  spec.links = {{"h2d", cpu, gpu, unlimited, 0, {}}, {"d2h", gpu, cpu, unlimited, 0, {}}};
  return spec;
}

CopyCommand copy(LinkId link, TensorId tensor, Bytes bytes) {
  CopyCommand command;
  command.link = link;
  command.tensor = tensor;
  command.chunk = tensor;
  command.bytes = bytes;
  command.from = {link == h2d ? cpu : gpu, 0};
  command.to = {link == h2d ? gpu : cpu, 0};
  return command;
}

class CudaRulesTest : public testing::Test {
 protected:
  std::unique_ptr<HostMachine> make(std::shared_ptr<CudaDevice> device, Bytes capacity = 64 * MiB) {
    HostMachineOptions options;
    options.pace = false;
    options.accelerator = std::move(device);
    return std::make_unique<HostMachine>(two_tiers(2 * MiB, capacity), bodies_, options);
  }
  static void create(HostMachine& machine, TensorId tensor, Bytes bytes) {
    machine.tensor_created(tensor, bytes);
    for (const TierId tier : {gpu, cpu}) machine.map(tensor, tensor, 0, bytes, {tier, 0}, MappedFor::op);
  }
  NoBodies bodies_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(CudaRulesTest, SaysWhatIsMissing) {
  const auto open = [](const RulesOptions& options, const std::string& fails = "", int ordinal = 0) {
    RulesDriver driver(options);
    if (!fails.empty()) driver.fail(fails, CUDA_ERROR_UNKNOWN);
    std::string message = message_of([&] { CudaDevice device(driver.table(), ordinal); });
    EXPECT_EQ(driver.leftovers(), "") << message;
    return message;
  };
  EXPECT_EQ(open({}), "");
  EXPECT_NE(open({.devices = 0}).find("finds no GPU"), std::string::npos);
  EXPECT_NE(open({.can_map = false}).find("virtual memory management"), std::string::npos);
  EXPECT_NE(open({}, "", 3).find("GPU 3 is asked for and there are 1"), std::string::npos);
  for (const char* function : {"cuInit", "cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity"}) {
    const std::string message = open({}, function);
    EXPECT_NE(message.find("CUDA_ERROR_UNKNOWN"), std::string::npos) << message;
    EXPECT_NE(message.find("--device host"), std::string::npos) << message;
  }
}

TEST_F(CudaRulesTest, EveryCopyIsOfLockedPagesAndAllIsGivenBack) {
  RulesDriver driver;
  {
    const auto machine = make(std::make_shared<CudaDevice>(driver.table(), 0));
    for (TensorId tensor = 0; tensor < 5; tensor++) create(*machine, tensor, 5 * MiB + tensor);
    Completion completion;
    for (const auto link : {h2d, d2h}) {
      for (TensorId tensor = 0; tensor < 5; tensor++) machine->submit(copy(link, tensor, 5 * MiB), 0);
      while (machine->wait(completion)) EXPECT_EQ(completion.status, CompletionStatus::done) << machine->last_error();
    }
    EXPECT_EQ(driver.counts().unpinned_copies, 0u);
    EXPECT_EQ(driver.counts().uploads, 5u);  // each as a whole
    EXPECT_EQ(driver.counts().downloads, 5u);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST_F(CudaRulesTest, PredictedUseOfCpuMemoryIsLockedBeforeAnythingRuns) {
  RulesDriver driver;
  HostMachineOptions options;
  options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  for (const Bytes locked : {Bytes{0}, 40 * MiB}) {
    options.locked = locked;
    doing("");
    const HostMachine machine(two_tiers(2 * MiB), bodies_, options);
    EXPECT_EQ(what_is_done(), locked == 0 ? "" : "page-locking CPU memory, 0 B of 40.00 MiB");
    EXPECT_EQ(driver.counts().pinned, locked == 0 ? 0u : 1u);
  }
  EXPECT_EQ(driver.counts().pinned, 0u);
}

#if CUDA_VERSION >= 12080
TEST_F(CudaRulesTest, SmallCopiesAreOneCallWhereTheDriverHasIt) {
  constexpr std::size_t count = 3;
  RulesDriver driver;
  CudaDriver without = driver.table();
  without.cuMemcpyBatchAsync = nullptr;
  for (const CudaDriver* table : {&driver.table(), static_cast<const CudaDriver*>(&without)}) {
    const bool batches = table == &driver.table();
    CudaDevice device(*table, 0);
    const std::unique_ptr<TierMemory> memory = device.memory("gpu", 2 * MiB, 2 * MiB, false);
    memory->create(0, 2 * MiB);
    memory->map(0, 0, 2 * MiB, 0);
    const AlignedBuffer host = aligned_buffer(MiB, std::byte{7});
    std::string reason;
    ASSERT_TRUE(device.pin(host.get(), MiB, reason));
    std::vector<DeviceCopy> copies;
    for (Bytes i = 0; i < count; ++i) copies.push_back({memory->address(0) + i * page_bytes, host.get(), page_bytes});
    {
      const std::unique_ptr<CopyEngine> engine = device.copy_engine();
      const std::uint64_t before = driver.counts().uploads;
      engine->upload(copies);
      engine->wait(0);
      EXPECT_EQ(driver.counts().uploads - before, count);
      EXPECT_EQ(memory->address(0)[count * page_bytes - 1], std::byte{7});
      for (DeviceCopy& copy : copies) copy.host += (&copy - copies.data()) * page_bytes;
      driver.fail("cuMemcpyBatchAsync", CUDA_ERROR_OUT_OF_MEMORY);
      const std::string message = message_of([&] { engine->download(copies); });
      EXPECT_EQ(message.find("a copy from the GPU") != std::string::npos, batches) << message;
      driver.fail("cuMemcpyDtoHAsync", CUDA_ERROR_OUT_OF_MEMORY, 1);  // the second
      copies[0].bytes = 512 * KiB;
      copies[1] = {memory->address(0) + MiB, host.get() + 512 * KiB, 512 * KiB};
      copies.resize(2);
      EXPECT_NE(message_of([&] { engine->download(copies); }), "");
      engine->wait(0);
    }
    device.unpin(host.get());
    memory->destroy(0);
    EXPECT_EQ(driver.violation(), "");
  }
  EXPECT_EQ(driver.leftovers(), "");
}
#endif

TEST_F(CudaRulesTest, RefusedPinningIsSaidAndCopiesGoOn) {
  RulesDriver driver;
  driver.fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  {
    const auto machine = make(std::make_shared<CudaDevice>(driver.table(), 0));
    create(*machine, 0, 3 * MiB);
    std::memset(machine->address(0, cpu), 0x11, 3 * MiB);
    machine->submit(copy(h2d, 0, 3 * MiB), 0);
    Completion completion;
    EXPECT_TRUE(machine->wait(completion));
    EXPECT_EQ(completion.status, CompletionStatus::done);
    EXPECT_EQ(machine->content(0, 0, 3 * MiB, gpu), std::vector<std::byte>(3 * MiB, std::byte{0x11}));
    EXPECT_GT(driver.counts().unpinned_copies, 0u);
    const std::string text = machine->describe();
    EXPECT_NE(text.find("not page-locked, so that copies are slower: page-locking 64.00 MiB: CUDA_ERROR_OUT_OF_MEMORY"),
              std::string::npos)
        << text;
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST_F(CudaRulesTest, AFailedCopyFailsAloneAndIsNamed) {
  RulesDriver driver;
  {
    const auto machine = make(std::make_shared<CudaDevice>(driver.table(), 0));
    create(*machine, 0, 48 * MiB);
    driver.fail("cuMemcpyHtoDAsync", CUDA_ERROR_INVALID_VALUE, 1);  // the second part
    machine->submit(copy(h2d, 0, 48 * MiB), 1);
    machine->submit(copy(h2d, 0, 48 * MiB), 2);
    Completion completion;
    EXPECT_TRUE(machine->wait(completion));
    EXPECT_EQ(completion.status, CompletionStatus::failed);
    EXPECT_EQ(machine->last_error(),
              "CUDA: a copy to the GPU: CUDA_ERROR_INVALID_VALUE (words of the driver of rules)");
    EXPECT_TRUE(machine->wait(completion));
    EXPECT_EQ(completion.status, CompletionStatus::done);
    machine->unmap(0, 0, 0, 48 * MiB, {gpu, 0});  // nothing of the failed one is under way
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// Whatever fails, nothing of an op is under way when `run` has thrown: its memory is unmapped next.
TEST_F(CudaRulesTest, AnOpThatFailsLeavesNothingUnderWay) {
  for (const char* function : {"cuLaunchKernel", "cuMemcpyDtoHAsync"}) {
    for (std::uint64_t calls = 0; calls < 4; ++calls) {
      RulesDriver driver({.strategy = rules::Strategy::forced});
      {
        CudaDevice device(driver.table(), 0);
        CudaMemory memory(device, "gpu", 64 * MiB, 2 * MiB, false);
        const std::unique_ptr<ReplayKernels> kernels = device.replay_kernels();
        memory.create(0, 2 * MiB);
        memory.map(0, 0, 2 * MiB, 0);
        std::vector<ReplayAccess> accesses(1);
        accesses[0] = {0, 0, {memory.address(0), 2 * MiB}, true, true, unlimited};
        driver.fail(function, CUDA_ERROR_OUT_OF_MEMORY, function[2] == 'L' ? calls : 0);
        EXPECT_THROW(kernels->run(accesses, 0, {}), Error);
        memory.unmap(0, 0, 2 * MiB);
      }
      EXPECT_EQ(driver.leftovers(), "") << function << " " << calls;
    }
  }
}

// A copy that is cancelled while the device stands still: its completion comes when the device has let go of it.
TEST_F(CudaRulesTest, ACancelledCopyEndsWhenTheDeviceHasLetGo) {
  RulesDriver driver;
  {
    constexpr Bytes bytes = 224 * MiB;
    const auto machine = make(std::make_shared<CudaDevice>(driver.table(), 0), bytes);
    create(*machine, 0, bytes);
    driver.hold();
    const Fence fence = machine->submit(copy(h2d, 0, bytes), 1);
    driver.wait_for_jobs(3);
    machine->cancel(fence);
    Completion completion;
    EXPECT_FALSE(machine->wait_for(completion, std::chrono::milliseconds(50)));
    driver.go_on();
    EXPECT_TRUE(machine->wait(completion));
    EXPECT_EQ(completion.status, CompletionStatus::cancelled);
    EXPECT_LT(driver.counts().uploads, 5u);  // of 7 parts
    machine->unmap(0, 0, 0, bytes, {gpu, 0});
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// Other programs take memory of the device, too: what waits for reuse is given back first, then it is an error.
TEST_F(CudaRulesTest, MemoryThatOthersTookIsAnErrorNotACrash) {
  RulesDriver driver({.memory = 64 * MiB});
  {
    CudaDevice device(driver.table(), 0);
    CudaMemory memory(device, "gpu", 64 * MiB, 2 * MiB, false);
    memory.create(0, 32 * MiB);
    memory.create(1, 20 * MiB);
    memory.map(0, 0, 32 * MiB, 0);
    memory.unmap(0, 0, 32 * MiB);
    EXPECT_EQ(memory.created_bytes(), 32 * MiB);
    CUdeviceptr other = 0;
    ASSERT_EQ(driver.table().cuMemAlloc(&other, 30 * MiB), CUDA_SUCCESS);
    memory.map(1, 0, 20 * MiB, 0);  // in place of what waited
    EXPECT_EQ(memory.created_bytes(), 20 * MiB);
    const std::string message = message_of([&] { memory.map(0, 0, 32 * MiB, 0); });
    EXPECT_NE(message.find("used up (14.00 MiB free"), std::string::npos) << message;
    EXPECT_EQ(memory.statistics().used_bytes, 20 * MiB);
    driver.table().cuMemFree(other);
    memory.map(0, 0, 32 * MiB, 0);
    driver.fail("cuMemSetAccess", CUDA_ERROR_INVALID_VALUE);
    memory.create(2, 2 * MiB);
    EXPECT_THROW(memory.map(2, 0, 2 * MiB, 0), Error);
    memory.map(2, 0, 2 * MiB, 0);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST_F(CudaRulesTest, AnArenaGrowsWhereThereIsMemory) {
  RulesDriver driver({.memory = 64 * MiB});
  {
    CudaDevice device(driver.table(), 0);
    ArenaMemory memory(device, "gpu", 64 * MiB, movable_unit);
    memory.create(0, 4 * MiB);
    memory.create(1, 32 * MiB);
    memory.map(0, 0, 4 * MiB, 0);
    CUdeviceptr other = 0;
    ASSERT_EQ(driver.table().cuMemAlloc(&other, 34 * MiB), CUDA_SUCCESS);
    const std::string message = message_of([&] { memory.map(1, 0, 32 * MiB, 4 * MiB); });
    EXPECT_NE(message.find("used up ("), std::string::npos) << message;
    EXPECT_NE(message.find("--gpu-memory"), std::string::npos) << message;
    EXPECT_EQ(memory.statistics().used_bytes, 4 * MiB);
    EXPECT_EQ(memory.address(1), memory.guard());
    driver.table().cuMemFree(other);
    for (const char* function : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
      driver.fail(function, CUDA_ERROR_INVALID_VALUE);
      EXPECT_THROW(memory.map(1, 0, 32 * MiB, 32 * MiB), Error) << function;
    }
    memory.map(1, 0, 32 * MiB, 32 * MiB);
    const std::uint64_t calls = driver.counts().calls;
    for (int i = 0; i < 10; i++) {
      memory.unmap(1, 0, 32 * MiB);
      memory.map(1, 0, 32 * MiB, 32 * MiB);
    }
    EXPECT_EQ(driver.counts().calls, calls) << "mapping is books only";
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// Who goes on using a tensor that has left is told so.
TEST_F(CudaRulesTest, NobodyCanUseTheGuard) {
  RulesDriver driver({.memory = 64 * MiB});
  {
    CudaDevice device(driver.table(), 0);
    ArenaMemory memory(device, "gpu", 16 * MiB, movable_unit);
    memory.create(0, 16 * MiB);
    memory.map(0, 0, 16 * MiB, 0);
    memory.unmap(0, 0, 16 * MiB);
    const std::unique_ptr<ReplayKernels> kernels = device.replay_kernels();
    std::vector<ReplayAccess> accesses(1);
    accesses[0] = {0, 0, {memory.address(0) + 16 * MiB - 8, 8}, false, true, unlimited};
    EXPECT_THROW(kernels->run(accesses, 0, {}), Error);
  }
  EXPECT_NE(driver.violation().find("all that the kernel touches is mapped and accessible"), std::string::npos);
}

// A move onto itself asks for a buffer; without memory for one it goes in small steps.
TEST_F(CudaRulesTest, AMoveOntoItselfNeedsNoMemory) {
  RulesDriver driver({.memory = 64 * MiB});
  {
    CudaDevice device(driver.table(), 0);
    const std::unique_ptr<DeviceRange> range = device.range("gpu", 16 * MiB);
    range->cover(0, 16 * MiB);
    const std::unique_ptr<CopyEngine> engine = device.copy_engine();
    const AlignedBuffer host = aligned_buffer(64 * KiB, std::byte{0}), back = aligned_buffer(64 * KiB, std::byte{0});
    write_pattern(0, 0, 0, {host.get(), 64 * KiB}, true);
    const DeviceCopy up{range->begin(), host.get(), 64 * KiB};
    engine->upload({&up, 1});
    driver.fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
    engine->move(range->begin(), range->begin() + 512, 64 * KiB);
    EXPECT_EQ(driver.counts().moves, 128u);
    engine->move(range->begin() + 512, range->begin(), 64 * KiB);
    EXPECT_EQ(driver.counts().moves, 130u);
    EXPECT_EQ(driver.counts().allocations, 1u);
    const DeviceCopy down{range->begin(), back.get(), 64 * KiB};
    engine->download({&down, 1});
    engine->wait(0);
    EXPECT_EQ(find_difference(0, 0, 0, {back.get(), 64 * KiB}, true), unlimited);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// Whole tensors are large; nothing waits behind one for longer than a part takes.
TEST_F(CudaRulesTest, LargeTensorsAreCopiedInParts) {
  RulesDriver driver({.memory = 1 * GiB, .content = false});
  {
    MachineSpec spec = two_tiers(movable_unit, 1 * GiB);
    spec.tiers[gpu].allocator = AllocatorKind::movable;
    HostMachineOptions options;
    options.pace = options.populate = false;
    options.addressed = {true, false};
    options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
    HostMachine machine(spec, bodies_, options);
    create(machine, 0, 700 * MiB + 10);
    machine.submit(copy(h2d, 0, 700 * MiB + 10), 1);
    Completion completion;
    ASSERT_TRUE(machine.wait(completion));
    EXPECT_EQ(completion.status, CompletionStatus::done);
    EXPECT_GE(driver.counts().uploads, 22u);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// After a fault nothing works any more on a real driver: the run ends, with an error that says so.
TEST_F(CudaRulesTest, AFaultEndsTheRunWithOneClearError) {
  Trace trace;
  for (int i = 0; i < 4; i++) {
    const TensorId weight = trace.add_tensor("weight" + std::to_string(i), 16 * MiB, Role::parameter, true);
    Op forward;
    forward.name = trace.names.intern("forward");
    trace.add_op(forward, std::vector<TensorId>{weight}, std::vector<TensorId>{weight});
  }
  MachineSpec machine_spec = two_tiers(2 * MiB);
  machine_spec.tiers[gpu].capacity = 36 * MiB;
  machine_spec.tiers[cpu].capacity = 128 * MiB;
  machine_spec.initial_tier = cpu;
  const auto run = [&](const char* function, std::uint64_t calls) {
    RulesDriver driver;
    HostMachineOptions options;
    options.pace = false;
    options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
    const std::unique_ptr<ReplayKernels> kernels = options.accelerator->replay_kernels();
    const MadePolicy policy = make_policy("on-demand");
    const Program program = lower(trace, *policy.policy, machine_spec);
    ReplayBodies bodies(program.trace, {.duration_scale = 0}, kernels.get());
    HostMachine machine(machine_spec, bodies, options);
    Engine engine(machine_spec, machine, *policy.policy, &program, {});
    driver.fail(function, CUDA_ERROR_LAUNCH_FAILED, calls);
    std::string message = message_of([&] { engine.run({.max_iterations = 3, .until_steady = false}); });
    EXPECT_EQ(driver.violation(), "") << function;
    return message;
  };
  for (const auto& [function, calls] : std::vector<std::pair<const char*, std::uint64_t>>{
           {"cuMemcpyHtoDAsync", 9}, {"cuMemcpyDtoHAsync", 2}, {"cuLaunchKernel", 7}, {"cuMemUnmap", 3}}) {
    const std::string message = run(function, calls);
    EXPECT_NE(message.find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << function << ": " << message;
  }
}

// A step repeats its sizes: from the second on nothing is asked of the driver.
TEST_F(CudaRulesTest, PhysicalMemoryIsReusedBySize) {
  RulesDriver driver;
  {
    CudaDevice device(driver.table(), 0);
    CudaMemory memory(device, "gpu", 40 * MiB, 2 * MiB, false);
    for (int step = 0; step < 3; step++) {
      for (TensorId tensor = 0; tensor < 8; tensor++) {
        memory.create(tensor, (1 + tensor % 4) * 4 * MiB);
        memory.map(tensor, 0, (1 + tensor % 4) * 4 * MiB, 0);
        if (tensor % 4 != 3) continue;
        for (TensorId gone = tensor - 3; gone <= tensor; gone++) memory.destroy(gone);
      }
      EXPECT_EQ(driver.counts().creations, 4u);
    }
    EXPECT_LE(driver.counts().memory, 40 * MiB);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// What a step frees it allocates again in the next: nothing is asked of the driver then. Where memory is short, or a
// tensor's chunks are others, it is given out anew.
TEST_F(CudaRulesTest, ChunksOfRetiredTensorsStayMappedForTheNext) {
  RulesDriver driver;
  {
    CudaDevice device(driver.table(), 0);
    CudaMemory memory(device, "gpu", 40 * MiB, 2 * MiB, false);
    CUdeviceptr first = 0;
    for (int step = 0; step < 3; step++) {
      memory.create(0, 12 * MiB);
      memory.map(0, 0, 8 * MiB, 0);
      memory.map(0, 8 * MiB, 4 * MiB, 0);
      const auto at = reinterpret_cast<CUdeviceptr>(memory.address(0));
      EXPECT_EQ(step == 0 ? at : first, at);
      first = at;
      EXPECT_EQ(memory.statistics().used_bytes, 12 * MiB);
      memory.retire(0);
      memory.destroy(0);
      EXPECT_EQ(memory.statistics().used_bytes, 0u);
      EXPECT_EQ(driver.counts().mappings, 2u) << "parked";
      EXPECT_EQ(driver.counts().creations, 2u);
    }
    memory.create(0, 12 * MiB);
    memory.map(0, 4 * MiB, 6 * MiB, 0);  // across both that are parked there
    EXPECT_EQ(driver.counts().mappings, 1u);
    memory.retire(0);
    memory.destroy(0);
    memory.create(1, 40 * MiB);
    memory.map(1, 0, 40 * MiB, 0);  // takes all of it
    EXPECT_EQ(driver.counts().mappings, 1u);
    memory.create(2, 2 * MiB);
    EXPECT_THROW(memory.map(2, 0, 2 * MiB, 0), OutOfMemory);
    memory.unmap(1, 0, 40 * MiB);
    EXPECT_EQ(driver.counts().mappings, 0u) << "of a tensor that lives on";
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST_F(CudaRulesTest, TheProbeTimesCallsAndGivesEverythingBack) {
  RulesDriver driver({.granularity = 4096});
  {
    CudaDevice device(driver.table(), 0);
    const DriverCalls measured = time_driver_calls(device, 3);
    std::map<std::string, int> rows;
    for (const CallTime& time : measured.calls) {
      ++rows[time.call];
      EXPECT_GT(time.seconds.value, 0) << time.call;
    }
    EXPECT_EQ(rows["cuMemSetAccess"], 6) << "three sizes, alone and beside a kernel";
    EXPECT_EQ(rows["cuMemHostRegister"], 1);
    EXPECT_EQ(rows["cuMemcpyHtoDAsync"], 2);
    EXPECT_GE(measured.kernel_alone.value, 2e-3);
    EXPECT_GE(measured.kernel_beside_mapping.value, 2e-3);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST_F(CudaRulesTest, CalibrationMeasuresTheDevice) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what it measures takes minutes under ThreadSanitizer";
#endif
  RulesDriver driver;
  {
    CalibrateOptions options;
    options.quick = true;
    options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
    const Calibration calibration = calibrate(options);
    const MachineSpec& machine = calibration.machine;
    EXPECT_EQ(machine.tiers[gpu].allocator, AllocatorKind::movable);
    EXPECT_EQ(machine.tiers[gpu].granularity, movable_unit);
    EXPECT_EQ(machine.run_ahead.ops, gpu_run_ahead);
    EXPECT_EQ(machine.tiers[gpu].capacity, 240 * MiB);  // of 256
    EXPECT_GT(machine.tiers[cpu].capacity, 0u);
    EXPECT_NE(machine.description.find("RulesDriver"), std::string::npos);
    for (const Link& link : machine.links) EXPECT_GT(link.bandwidth, 1'000'000u) << link.name;
    ASSERT_EQ(calibration.accelerator.size(), 1u);
    EXPECT_GT(calibration.accelerator[0].pageable_h2d.value, 0);
    EXPECT_GT(calibration.accelerator[0].map.value, 0);
    EXPECT_GT(calibration.device_copy.value, 0);
    EXPECT_EQ(machine.tiers[gpu].bandwidth, std::llround(calibration.device_copy.value));
    ASSERT_EQ(calibration.page_locking.size(), 2u);
    EXPECT_EQ(calibration.page_locking[1].threads, 8u);
    EXPECT_GT(calibration.page_locking[1].touch.value, 0);
    EXPECT_GT(calibration.page_locking[1].lock.value, 0);
    options.gpu_bytes = 1 * GiB;
    EXPECT_THROW(calibrate(options), Error);
  }
  EXPECT_EQ(driver.leftovers(), "");
}

// A libcufile of ours: files and "device memory" are what the driver of rules makes of them. Short pieces, as the real
// one may give.
struct FakeCuFile {
  static inline std::uint64_t reads = 0, writes = 0, handles = 0;
  static inline ssize_t failure = 0;  // of the next calls
  static inline bool astray = false;  // called on a thread without the GPU's context
  static inline const RulesDriver* driver = nullptr;
  static void check_context() { astray = astray || !driver->context_is_current(); }
  static CuFileError add(void** handle, CuFileDescription* file) {
    check_context();
    handles++;
    *handle = new int(file->descriptor);
    return {};
  }
  static void remove(void* handle) {
    check_context();
    handles--;
    delete static_cast<int*>(handle);
  }
  static ssize_t read(void* handle, void* device, std::size_t bytes, off_t offset, off_t device_offset) {
    check_context();
    reads++;
    if (failure != 0) return failure;
    return ::pread(*static_cast<int*>(handle), static_cast<std::byte*>(device) + device_offset,
                   std::min<std::size_t>(bytes, 3 * MiB), offset);
  }
  static ssize_t write(void* handle, const void* device, std::size_t bytes, off_t offset, off_t device_offset) {
    check_context();
    writes++;
    if (failure != 0) return failure;
    return ::pwrite(*static_cast<int*>(handle), static_cast<const std::byte*>(device) + device_offset,
                    std::min<std::size_t>(bytes, 3 * MiB), offset);
  }
  static CuFile table() {
    CuFile table;
    table.cuFileHandleRegister = add;
    table.cuFileHandleDeregister = remove;
    table.cuFileRead = read;
    table.cuFileWrite = write;
    return table;
  }
};

TEST_F(CudaRulesTest, FilesReachTheGpuDirectlyUntilThatFails) {
  RulesDriver driver({.direct_memory = true});
  const CuFile files = FakeCuFile::table();
  FakeCuFile::driver = &driver;
  MachineSpec spec = two_tiers(2 * MiB);
  spec.tiers.push_back({"nvme", TierKind::nvme, 64 * MiB, 4096, {std::filesystem::temp_directory_path().string()}});
  spec.links.push_back({"direct_read", 2, gpu, unlimited, 0, {}});
  spec.links.push_back({"direct_write", gpu, 2, unlimited, 0, {}});
  {
    HostMachineOptions options;
    options.pace = false;
    options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0, &files);
    HostMachine machine(spec, bodies_, options);
    constexpr Bytes bytes = 9 * MiB + 1001;
    create(machine, 0, bytes);
    machine.map(0, 0, 0, bytes, {2, 0}, MappedFor::op);
    const auto move = [&](LinkId link, TierId from, TierId to) {
      CopyCommand command = copy(link, 0, bytes);
      command.from = {from, 0};
      command.to = {to, 0};
      machine.submit(command, 0);
      Completion completion;
      EXPECT_TRUE(machine.wait(completion));
      EXPECT_EQ(completion.status, CompletionStatus::done) << machine.last_error();
    };
    const auto there_and_back = [&](int value) {
      const std::vector<std::byte> content(bytes, static_cast<std::byte>(value));
      std::memcpy(machine.address(0, cpu), content.data(), bytes);
      move(h2d, cpu, gpu);
      move(3, gpu, 2);
      EXPECT_EQ(machine.content(0, 0, bytes, 2), content);
      std::memset(machine.address(0, cpu), 0, bytes);
      move(h2d, cpu, gpu);
      move(2, 2, gpu);
      EXPECT_EQ(machine.content(0, 0, bytes, gpu), content);
    };
    if (!machine.files(2).direct(0)) GTEST_SKIP() << "the folder for temporary files refuses O_DIRECT";
    there_and_back(0x11);
    EXPECT_EQ(FakeCuFile::reads, 4u);
    EXPECT_EQ(FakeCuFile::writes, 4u);
    EXPECT_NE(machine.describe().find("direct_read: GPUDirect Storage"), std::string::npos) << machine.describe();
    FakeCuFile::failure = -5011;
    there_and_back(0x22);
    FakeCuFile::failure = 0;
    const std::uint64_t reads = FakeCuFile::reads;
    there_and_back(0x33);
    EXPECT_EQ(FakeCuFile::reads, reads) << "it is not tried again";
    EXPECT_NE(machine.describe().find("through page-locked buffers ("), std::string::npos) << machine.describe();
  }
  EXPECT_EQ(FakeCuFile::handles, 0u);
  EXPECT_FALSE(FakeCuFile::astray);
  EXPECT_EQ(driver.leftovers(), "");
}

// Random machines, traces and policies with pages of 4 KiB, which are small enough for them: the engine's rules, every
// tensor's content, and no misuse of the driver.
TEST(CudaRulesRunTest, EnginesRunKeepsTheRules) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  RulesDriver driver({.memory = 1 * GiB, .granularity = 4096});
  std::uint64_t verified = 0, fit = 0;
  std::uint64_t seed = 31'000'000;
  for (const std::string& policy : registered_policies()) {
    for (const std::uint64_t end = seed + 6; seed < end; ++seed) {
      const SeedOnAbort at_abort(seed);
      CaseOptions case_options;
      case_options.real_pages = true;
      case_options.policy = policy;
      case_options.movable = seed % 3 == 0;
      RandomCase made = random_case(seed, case_options);
      if (case_options.movable) make_arena(made, 4096);
      for (Tier& tier : made.machine.tiers) {
        if (tier.kind == TierKind::nvme) tier.directories = {folder};
      }
      HostMachineOptions options;
      options.pace = false;
      options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
      const std::unique_ptr<ReplayKernels> kernels = options.accelerator->replay_kernels();
      ReplayBodies bodies(made.program.trace, {.check_everything = true, .write_everything = true, .duration_scale = 0},
                          kernels.get());
      const std::unique_ptr<Policy> object = made.make();
      const Layout layout = object->layout(made.machine, &made.program);
      if (case_options.movable) options.addressed = addressed_tiers(made.machine, layout);
      HostMachine machine(made.machine, bodies, options);
      AuditorMachine auditor(machine, made.machine, made.program.trace, layout);
      Engine engine(made.machine, auditor, *object, &made.program, {});
      const RunResult result = engine.run(made.limits);
      ASSERT_EQ(auditor.violation(), "") << made.describe();
      ASSERT_EQ(bodies.counts().first_corruption, "") << made.describe();
      ASSERT_EQ(driver.violation(), "") << made.describe();
      verified += bodies.counts().tensor_checks;
      fit += result.fits ? 1 : 0;
    }
  }
  EXPECT_GT(fit, 50u);
  EXPECT_GT(verified, 300u);
  EXPECT_GT(driver.counts().moves, 10u);
  EXPECT_EQ(driver.leftovers(), "");
}

}  // namespace

std::shared_ptr<Accelerator> test_accelerator(std::string&) {
  list_driver = std::make_unique<RulesDriver>(RulesOptions{.memory = 256 * MiB});
  return std::make_shared<CudaDevice>(list_driver->table(), 0);
}

std::string test_accelerator_leftovers() {
  std::string left = list_driver->leftovers();
  list_driver.reset();
  return left;
}

}  // namespace tencache
