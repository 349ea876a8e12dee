// Completions that promise order, on the driver of rules: what is handed over, cancelled and fails, and what it costs.
// Order itself is judged by seeds (driver_seeds.cpp).
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/host_machine.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache {
namespace {

using rules::RulesDriver;
using rules::Strategy;

constexpr LinkId h2d = 0, d2h = 1;
constexpr TierId gpu = 0, cpu = 1;
constexpr Bytes page = 4096;

class NoBodies final : public OpBodies {
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
};

// Ops that write their tensors, on the stream that the machine is told.
class Kernels final : public OpBodies {
 public:
  explicit Kernels(RulesDriver& driver) : driver_(driver) {}
  void run(std::uint8_t, OpIndex, std::span<const Use>, HostMachine&) override {}
  std::optional<DeviceStream> stream() override { return DeviceStream{}; }
  void launch(OpIndex, std::span<const Use> uses, HostMachine& machine) override {
    CUcontext context = nullptr;  // the machine's device has it, too
    driver_.table().cuDevicePrimaryCtxRetain(&context, 0);
    driver_.table().cuCtxSetCurrent(context);
    driver_.table().cuDevicePrimaryCtxRelease(0);
    rules::DeviceJob job;
    job.run = body;
    const RulesDriver::ProgramAccess access{reinterpret_cast<CUdeviceptr>(machine.address(uses[0].tensor)),
                                            machine.bytes(uses[0].tensor), true};
    EXPECT_EQ(driver_.launch(nullptr, std::move(job), {&access, 1}), CUDA_SUCCESS);
  }

  std::function<void()> body = [] {};

 private:
  RulesDriver& driver_;
};

class DeviceLanesTest : public testing::Test {
 protected:
  void open(const CudaDriver& table, std::uint32_t copies = 2) { open(table, bodies_, copies); }
  void open(const CudaDriver& table, OpBodies& bodies, std::uint32_t copies = 2) {
    MachineSpec spec;
    spec.name = "test";
    spec.tiers = {{"gpu", TierKind::gpu, 16 * page, movable_unit, {}}, {"cpu", TierKind::cpu, 4 * page, page, {}}};
    spec.tiers[0].allocator = AllocatorKind::movable;
    spec.links = {{"h2d", cpu, gpu, 1, 0, {}}, {"d2h", gpu, cpu, 1, 0, {}}};  // so that bytes hand nothing over
    spec.run_ahead = {.ops = 8, .copies = copies};
    HostMachineOptions options;
    options.accelerator = std::make_shared<CudaDevice>(table, 0);
    options.addressed = {true, false};
    machine_ = std::make_unique<HostMachine>(spec, bodies, options);
    EXPECT_EQ(machine_->completes(), Completes::ordered);
  }
  // In both tiers, at that page of the GPU's.
  void create(TensorId tensor, Bytes bytes, std::uint64_t at) {
    machine_->tensor_created(tensor, bytes);
    machine_->map(tensor, tensor, 0, bytes, {gpu, at * page}, MappedFor::op);
    machine_->map(tensor, tensor, 0, bytes, {cpu, 0}, MappedFor::op);
  }
  Fence submit(LinkId link, TensorId tensor, Bytes bytes, Tag tag = 0) {
    CopyCommand command;
    command.link = link;
    command.tensor = command.chunk = tensor;
    command.bytes = bytes;
    command.from = {link == h2d ? cpu : gpu, 0};
    command.to = {link == h2d ? gpu : cpu, 0};
    return machine_->submit(command, tag);
  }
  // A kernel of the program that writes the tensor.
  void write(
      TensorId tensor, CUstream stream = nullptr, const std::function<void()>& body = [] {}) {
    const Use use{tensor, false, true};
    machine_->use_stream(stream);
    machine_->before_op(stream, {&use, 1});
    rules::DeviceJob job;
    job.run = body;
    const rules::RulesDriver::ProgramAccess access{reinterpret_cast<CUdeviceptr>(machine_->address(tensor)),
                                                   machine_->bytes(tensor), true};
    EXPECT_EQ(driver_.launch(stream, std::move(job), {&access, 1}), CUDA_SUCCESS);
    machine_->after_op(stream, {&use, 1}, 0);
  }
  std::string next() {
    Completion completion;
    if (!machine_->take(completion)) return "nothing";
    const char* status[] = {"done", "cancelled", "failed", "observed"};
    return status[static_cast<std::size_t>(completion.status)] + (" " + std::to_string(completion.tag));
  }
  void end() {
    driver_.table().cuStreamSynchronize(nullptr);
    machine_.reset();
    EXPECT_EQ(driver_.leftovers(), "");
  }

  RulesDriver driver_{{.granularity = page, .strategy = Strategy::forced}};
  NoBodies bodies_;
  std::unique_ptr<HostMachine> machine_;
};

TEST_F(DeviceLanesTest, WhatIsOfferedCanBeCancelledAndWhatIsHandedOverCannot) {
  open(driver_.table());
  for (TensorId tensor = 0; tensor < 4; ++tensor) create(tensor, page, tensor);
  Fence fences[4];
  for (TensorId tensor = 0; tensor < 4; ++tensor) fences[tensor] = submit(d2h, tensor, page, tensor);
  EXPECT_EQ(next(), "done 0");
  EXPECT_EQ(next(), "done 1");
  EXPECT_EQ(next(), "nothing") << "two are under way";
  machine_->cancel(fences[0]);
  machine_->cancel(fences[2]);
  EXPECT_EQ(next(), "cancelled 2");
  Completion completion;
  std::string rest;
  while (machine_->wait(completion)) {
    rest +=
        (completion.status == CompletionStatus::observed ? " observed " : " done ") + std::to_string(completion.tag);
  }
  EXPECT_EQ(rest, " observed 0 done 3 observed 1 observed 3");
  end();
}

TEST_F(DeviceLanesTest, AnOpThatOverwritesWhatAnEvictionReadsWaitsOnTheDevice) {
  open(driver_.table());
  create(0, page, 0);
  submit(d2h, 0, page);
  EXPECT_EQ(next(), "done 0");
  write(0);  // nobody has waited: the device has done nothing yet
  EXPECT_EQ(driver_.counts().waits, 1u);
  EXPECT_EQ(machine_->stream_waits(), 1u);
  EXPECT_EQ(driver_.violation(), "");
  end();
}

// Its own works are the program's to order between its streams; a move between them is not.
TEST_F(DeviceLanesTest, ASecondStreamComesAfterMovesOnTheFirst) {
  open(driver_.table());
  create(0, page, 0);
  write(0);
  CUstream second = nullptr;
  CUevent written = nullptr;
  driver_.table().cuStreamCreate(&second, CU_STREAM_NON_BLOCKING);
  driver_.table().cuEventCreate(&written, CU_EVENT_DISABLE_TIMING);
  driver_.table().cuEventRecord(written, nullptr);
  driver_.table().cuStreamWaitEvent(second, written, 0);
  machine_->move({.tensor = 0, .chunk = 0, .begin = 0, .bytes = page, .from = {gpu, 0}, .to = {gpu, 8 * page}});
  write(0, second);
  EXPECT_EQ(driver_.violation(), "");
  driver_.table().cuStreamSynchronize(second);
  driver_.table().cuStreamDestroy(second);
  driver_.table().cuEventDestroy(written);
  end();
}

TEST_F(DeviceLanesTest, AnEvictionOfWhatMovedDoesNotWaitForLaterOps) {
  open(driver_.table());
  for (TensorId tensor = 0; tensor < 2; ++tensor) create(tensor, page, tensor);
  write(0);
  machine_->move({.tensor = 0, .chunk = 0, .begin = 0, .bytes = page, .from = {gpu, 0}, .to = {gpu, 8 * page}});
  bool later = false;
  write(1, nullptr, [&later] { later = true; });
  submit(d2h, 0, page);
  EXPECT_EQ(next(), "done 0");
  Completion completion;
  while (completion.status != CompletionStatus::observed && machine_->wait(completion)) {
  }
  EXPECT_EQ(completion.status, CompletionStatus::observed);
  EXPECT_FALSE(later);
  end();
  EXPECT_TRUE(later);
}

TEST_F(DeviceLanesTest, AnOpWhoseTensorsAreThereCostsNoCall) {
  open(driver_.table());
  create(0, page, 0);
  machine_->use_stream(nullptr);
  const Use use{0, true, true};
  const std::uint64_t calls = driver_.counts().calls;
  for (int op = 0; op < 6; ++op) {
    machine_->await_window();
    machine_->before_op(nullptr, {&use, 1});
    machine_->after_op(nullptr, {&use, 1}, 0);
  }
  EXPECT_EQ(driver_.counts().calls, calls);
  end();
}

// The engine calls that memory.
TEST_F(DeviceLanesTest, AnOpBehindAMoveIsSeenToWaitForItsOwnLane) {
  Kernels kernels(driver_);
  open(driver_.table(), kernels);
  create(0, page, 0);
  const Use use{0, false, true};
  const auto run = [&] {
    machine_->execute({.lane = gpu_lane, .op = 0, .idle = false, .duration_ns = 0, .uses = {&use, 1}}, 0);
    Completion completion;
    while (machine_->wait(completion) && completion.status != CompletionStatus::observed) {
    }
    return completion;
  };
  EXPECT_EQ(run().waited_until_ns, 0);
  machine_->move({.tensor = 0, .chunk = 0, .bytes = page, .from = {gpu, 0}, .to = {gpu, 8 * page}});
  const Completion behind = run();
  EXPECT_EQ(behind.waited_for, gpu_lane);
  EXPECT_GT(behind.waited_until_ns, 0);
  EXPECT_EQ(run().waited_until_ns, 0);
  EXPECT_EQ(driver_.violation(), "");
  end();
}

TEST_F(DeviceLanesTest, AWaitThatIsSeenTogetherWithTheOpsEndWasOverBeforeTheOpRan) {
  const Nanoseconds took_ns = 5'000'000;
  Kernels kernels(driver_);
  kernels.body = [took_ns] { std::this_thread::sleep_for(std::chrono::nanoseconds(took_ns)); };
  open(driver_.table(), kernels);
  create(0, page, 0);
  submit(h2d, 0, page, 1);
  const Use use{0, false, true};
  machine_->execute({.lane = gpu_lane, .op = 0, .idle = false, .duration_ns = took_ns, .uses = {&use, 1}}, 2);
  while (next() != "done 2") {
  }
  EXPECT_EQ(driver_.table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);  // both are over before anybody looks again
  Completion over;
  while (machine_->wait(over) && (over.status != CompletionStatus::observed || over.tag != 2)) {
  }
  EXPECT_EQ(over.waited_for, first_link_lane + h2d);
  EXPECT_GT(over.waited_until_ns, 0);
  EXPECT_GE(over.end_ns - over.start_ns, took_ns);
  end();
}

TEST_F(DeviceLanesTest, OneErrorEndsTheRunWhenWhatWasHandedOverFails) {
  open(driver_.table());
  create(0, page, 0);
  submit(d2h, 0, page);
  EXPECT_EQ(next(), "done 0");
  driver_.fail("cuEventQuery", CUDA_ERROR_LAUNCH_FAILED);
  Completion completion;
  try {
    machine_->wait(completion);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("given before"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(machine_->wait(completion)) << "nothing is under way any more";
  machine_.reset();
}

// Of two pieces the second is refused: the copy fails, and whoever comes next comes after the first.
TEST_F(DeviceLanesTest, WhatWasStartedOfACopyThatFailsIsInOrder) {
  CudaDriver table = driver_.table();
#if CUDA_VERSION >= 12080
  table.cuMemcpyBatchAsync = nullptr;
#endif
  open(table);
  for (TensorId tensor = 0; tensor < 4; ++tensor) create(tensor, page, tensor);
  for (const TensorId tensor : {0, 2}) machine_->unmap(tensor, tensor, 0, page, {cpu, 0});
  create(4, 2 * page, 4);  // in two pieces of CPU memory
  driver_.fail("cuMemcpyHtoDAsync", CUDA_ERROR_OUT_OF_MEMORY, 1);
  submit(h2d, 4, 2 * page, 7);
  EXPECT_EQ(next(), "failed 7");
  EXPECT_NE(machine_->last_error().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << machine_->last_error();
  write(4);
  EXPECT_EQ(driver_.violation(), "");
  end();
}

}  // namespace
}  // namespace tencache
