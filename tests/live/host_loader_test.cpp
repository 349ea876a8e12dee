// Loading from pageable memory: on streams of the driver of rules, and into a live program's GPU tier or CPU memory.
#include "executor/host_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/live/live_runtime.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache {
namespace {

using rules::RulesDriver;

std::vector<std::byte> content_of(TensorId tensor, Bytes bytes) {
  std::vector<std::byte> content(bytes);
  write_pattern(tensor, 0, 0, content, true);
  return content;
}
bool has_content(TensorId tensor, std::span<const std::byte> content) {
  return find_difference(tensor, 0, 0, content, true) == unlimited;
}

class HostLoaderTest : public testing::Test {
 protected:
  void open(Bytes memory = 64 * MiB) {
    driver_.emplace(rules::RulesOptions{.memory = memory});
    device_ = std::make_shared<CudaDevice>(driver_->table(), 0);
    range_ = device_->range("gpu", memory / 2);
    range_->cover(0, memory / 2);
    streams_ = device_->streams();
    stream_.emplace(streams_);
  }
  // Behind what the stream has.
  std::vector<std::byte> device_content(Bytes bytes) {
    std::vector<std::byte> content(bytes);
    const DeviceCopy copy{range_->begin(), content.data(), bytes};
    streams_->copies_on(stream_->get())->download({&copy, 1});
    streams_->await_stream(stream_->get());
    return content;
  }
  void TearDown() override {
    stream_.reset();
    streams_.reset();
    range_.reset();
    device_.reset();
    EXPECT_EQ(driver_->leftovers(), "");
  }

  std::optional<RulesDriver> driver_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<DeviceRange> range_;
  std::shared_ptr<DeviceStreams> streams_;
  std::optional<OwnStream> stream_;
};

TEST_F(HostLoaderTest, ContentOfAnySizeArrivesInItsStream) {
  open();
  HostLoader loader(*device_,
                    {.threads = 3, .ring_bytes = 256 * KiB, .part_bytes = 16 * KiB, .upload_bytes = 64 * KiB});
  TensorId tensor = 0;
  for (const Bytes bytes : {Bytes{1}, 16 * KiB, 16 * KiB + 1, 3 * MiB + 77, 20 * MiB}) {
    std::vector<std::byte> source = content_of(++tensor, bytes);
    loader.upload(stream_->get(), range_->begin(), source.data(), bytes);
    std::ranges::fill(source, std::byte{0});  // it is not needed any more
    EXPECT_TRUE(has_content(tensor, device_content(bytes))) << bytes;
  }
  EXPECT_EQ(driver_->counts().unpinned_copies, 5u) << "those of this test";
}

TEST_F(HostLoaderTest, MemoryOfTheHostIsCopiedByTheSameThreads) {
  open();
  HostLoader loader(*device_);
  const std::vector<std::byte> source = content_of(1, 30 * MiB + 5);
  std::vector<std::byte> copied(source.size());
  loader.copy(copied.data(), source.data(), source.size());
  EXPECT_TRUE(has_content(1, copied));
  EXPECT_EQ(driver_->counts().pinned, 0u) << "no ring is made for it";
}

TEST_F(HostLoaderTest, RefusedPageLockingAndFailedCopiesEndNothing) {
  open();
  driver_->fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY);
  HostLoader loader(*device_, {.threads = 2, .ring_bytes = 64 * KiB, .part_bytes = 16 * KiB});
  const std::vector<std::byte> source = content_of(1, MiB);
  loader.upload(stream_->get(), range_->begin(), source.data(), MiB);
  EXPECT_TRUE(has_content(1, device_content(MiB)));
  for (const char* function : {"cuMemcpyHtoDAsync", "cuEventRecord"}) {
    driver_->fail(function, CUDA_ERROR_INVALID_VALUE, 3);
    EXPECT_THROW(loader.upload(stream_->get(), range_->begin(), source.data(), MiB), Error) << function;
    loader.upload(stream_->get(), range_->begin(), source.data(), MiB);
    EXPECT_TRUE(has_content(1, device_content(MiB))) << function;
  }
}

// ---- Into a live program ------------------------------------------------------------------------------------------

class LiveLoadingTest : public testing::TestWithParam<AllocatorKind> {
 protected:
  static constexpr Bytes bytes = 4 * MiB;

  MachineSpec machine(Bytes cpu_bytes = 128 * MiB) const {
    MachineSpec spec;
    spec.name = "test";
    spec.tiers = {{"gpu", TierKind::gpu, 18 * MiB, 2 * MiB, {}}, {"cpu", TierKind::cpu, cpu_bytes, 4096, {}}};
    spec.tiers[0].allocator = GetParam();
    spec.links = {{"h2d", 1, 0, unlimited, 0, {}}, {"d2h", 0, 1, unlimited, 0, {}}};
    spec.initial_tier = 1;
    return spec;
  }
  LiveOptions options() {
    LiveOptions options;
    options.machine.pace = false;
    options.machine.accelerator = std::make_shared<CudaDevice>(driver_.table(), 0);
    options.fence = [this] { ASSERT_EQ(driver_.table().cuStreamSynchronize(nullptr), CUDA_SUCCESS); };
    return options;
  }
  // As PyTorch's side does it, by the functions of C.
  static tencache_storage load(const tencache_live& live, const std::vector<std::byte>& source) {
    tencache_storage storage = {tencache_no_tensor, nullptr};
    EXPECT_EQ(live.store(live.runtime, source.size(), source.data(), &storage), tencache_ok) << live.message();
    if (storage.tensor != tencache_no_tensor) return storage;
    const std::uint32_t name = live.name_id(live.runtime, "aten::_to_copy", 14);
    EXPECT_EQ(live.begin_op(live.runtime, name, nullptr, 0, 0), tencache_ok) << live.message();
    EXPECT_EQ(live.allocate(live.runtime, source.size(), 1, &storage), tencache_ok) << live.message();
    EXPECT_EQ(live.upload(live.runtime, storage.address, source.data(), source.size(), nullptr), tencache_ok);
    EXPECT_EQ(live.end_op(live.runtime, 0), tencache_ok) << live.message();
    return storage;
  }
  // An op reads it.
  bool arrives(LiveRuntime& runtime, TensorId tensor, TensorId content) {
    const Use use{tensor, true, false};
    runtime.begin_op("read", std::span(&use, 1));
    std::vector<std::byte> read(bytes);
    const auto at = reinterpret_cast<CUdeviceptr>(runtime.address(tensor));
    EXPECT_EQ(driver_.table().cuMemcpyDtoHAsync(read.data(), at, bytes, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(driver_.table().cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    runtime.end_op();
    return has_content(content, read);
  }

  RulesDriver driver_{rules::RulesOptions{.memory = 64 * MiB}};
};

INSTANTIATE_TEST_SUITE_P(Memories, LiveLoadingTest, testing::Values(AllocatorKind::exact, AllocatorKind::movable),
                         [](const auto& info) { return info.param == AllocatorKind::exact ? "exact" : "movable"; });

// Four fit into the GPU tier; the others go straight to CPU memory, and nothing leaves.
TEST_P(LiveLoadingTest, AModelLargerThanTheGpuEvictsNothing) {
  {
    const MadePolicy policy = make_policy("lru");
    LiveRuntime runtime(machine(), *policy.policy, options());
    std::vector<tencache_storage> model;
    for (TensorId i = 0; i < 10; i++) {
      std::vector<std::byte> source = content_of(i, bytes);
      model.push_back(load(runtime.abi(), source));
      std::ranges::fill(source, std::byte{0});
    }
    EXPECT_EQ(runtime.figures().counters.evictions, 0u);
    EXPECT_GE(driver_.counts().uploads, 4u);
    for (int round = 0; round < 2; round++) {
      for (TensorId i = 0; i < 10; i++) EXPECT_TRUE(arrives(runtime, model[i].tensor, i)) << i;
    }
    EXPECT_GT(runtime.figures().counters.evictions, 0u);
    for (const tencache_storage& storage : model) runtime.release(storage.tensor);
  }
  EXPECT_EQ(driver_.leftovers(), "");
}

// Without room in CPU memory others leave, and one that is not used at all goes as it came.
TEST_P(LiveLoadingTest, CpuMemoryIsNotFilledBeyondItsEnd) {
  {
    const MadePolicy policy = make_policy("lru");
    LiveRuntime runtime(machine(9 * MiB), *policy.policy, options());
    std::vector<tencache_storage> model;
    for (TensorId i = 0; i < 6; i++) model.push_back(load(runtime.abi(), content_of(i, bytes)));
    EXPECT_EQ(runtime.figures().counters.evictions, 0u);
    const std::vector<std::byte> source = content_of(6, bytes);
    EXPECT_EQ(runtime.store(bytes, source.data()).tensor, TensorId{none});
    runtime.release(model[5].tensor);
    tencache_storage again = load(runtime.abi(), source);
    EXPECT_TRUE(arrives(runtime, model[0].tensor, 0));
    runtime.release(model[4].tensor);
    EXPECT_TRUE(arrives(runtime, again.tensor, 6));
    for (TensorId i = 0; i < 4; i++) runtime.release(model[i].tensor);
    runtime.release(again.tensor);
  }
  EXPECT_EQ(driver_.leftovers(), "");
}

}  // namespace
}  // namespace tencache
