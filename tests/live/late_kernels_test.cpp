// Late kernels themselves: what they hide, and what they find. A few tensors stand for a program on a live runtime.
#include "tests/live/rules/late_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "gmock/gmock.h"

namespace tencache::rules {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::size_t count = 256;  // words of a tensor

class LateKernelsTest : public testing::Test {
 protected:
  LateKernelsTest() {
    CUcontext context = nullptr;
    EXPECT_EQ(cuda().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuCtxSetCurrent(context), CUDA_SUCCESS);
    tencache_live runtime{};
    runtime.runtime = this;
    runtime.name_id = [](void*, const char*, std::size_t) { return std::uint32_t{5}; };
    runtime.begin_op = [](void*, std::uint32_t, tencache_use*, std::size_t, std::uint64_t) { return 0; };
    runtime.end_op = [](void*, int) { return 0; };
    runtime.release = [](void*, std::uint32_t) {};
    runtime.allocate = [](void* self, std::uint64_t bytes, int, tencache_storage* storage) {
      CUdeviceptr address = 0;
      EXPECT_EQ(static_cast<LateKernelsTest*>(self)->cuda().cuMemAlloc(&address, bytes), CUDA_SUCCESS);
      *storage = {static_cast<LateKernelsTest*>(self)->next_++, reinterpret_cast<void*>(address)};
      return 0;
    };
    live_ = kernels_.interpose(runtime);
    live_.name_id(this, "twice", 5);
    x_ = tensor();
    y_ = tensor();
    for (std::uint32_t& word : words(x_)) word = 3;
    synchronize();
  }

  const CudaDriver& cuda() const { return driver_.table(); }
  tencache_storage tensor(bool inside_op = false) {
    tencache_storage made{};
    EXPECT_EQ(live_.allocate(live_.runtime, count * sizeof(std::uint32_t), inside_op ? 1 : 0, &made), 0);
    return made;
  }
  static std::span<std::uint32_t> words(const tencache_storage& tensor) {
    return {static_cast<std::uint32_t*>(tensor.address), count};
  }
  static CUdeviceptr device(const tencache_storage& tensor) { return reinterpret_cast<CUdeviceptr>(tensor.address); }
  void begin(std::vector<tencache_use> uses) {
    EXPECT_EQ(live_.begin_op(live_.runtime, 5, uses.data(), uses.size(), 0), 0);
  }
  void end() { EXPECT_EQ(live_.end_op(live_.runtime, 0), 0); }
  // to = 2 from
  void twice(const tencache_storage& from, const tencache_storage& to) {
    begin({{from.tensor, 1, 0, nullptr}, {to.tensor, 0, 1, nullptr}});
    std::ranges::transform(words(from), words(to).begin(), [](std::uint32_t word) { return 2 * word; });
    end();
  }
  void synchronize() { EXPECT_EQ(cuda().cuStreamSynchronize(nullptr), CUDA_SUCCESS); }
  CUstream other_stream() {
    CUstream made = nullptr;
    EXPECT_EQ(cuda().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return made;
  }

  LateKernels kernels_;
  RulesDriver driver_{{.memory = 16 * MiB, .granularity = 4096, .strategy = Strategy::forced}};
  tencache_live live_{};
  std::uint32_t next_ = 0;
  tencache_storage x_{}, y_{};
};

TEST_F(LateKernelsTest, NobodySeesAnOutputBeforeItIsOver) {
  twice(x_, y_);
  EXPECT_TRUE(is_poison(std::as_bytes(words(y_))));
  EXPECT_EQ(words(x_)[0], 3u);
  synchronize();
  EXPECT_THAT(words(y_), testing::Each(6u));
  EXPECT_EQ(driver_.violation(), "");
  EXPECT_EQ(kernels_.counts().late, 1u);
}

TEST_F(LateKernelsTest, TheNextKernelSeesItAndTheHostDoesNot) {
  const tencache_storage z = tensor();
  synchronize();
  twice(x_, y_);
  twice(y_, z);
  EXPECT_TRUE(is_poison(std::as_bytes(words(z))));
  std::array<std::uint32_t, count> host{};
  EXPECT_EQ(cuda().cuMemcpyDtoHAsync(host.data(), device(y_), sizeof host, other_stream()), CUDA_SUCCESS);
  EXPECT_THAT(driver_.violation(), StartsWith("a read is not ordered behind a write"));
  EXPECT_THAT(driver_.violation(), HasSubstr("twice"));
  synchronize();
  EXPECT_THAT(words(z), testing::Each(12u));
}

TEST_F(LateKernelsTest, ACopyThatComesTooEarlyTakesPoison) {
  std::array<std::uint32_t, count> host{};
  EXPECT_EQ(cuda().cuMemHostRegister(host.data(), sizeof host, 0), CUDA_SUCCESS);
  const CUstream copies = other_stream();
  twice(x_, y_);
  EXPECT_EQ(cuda().cuMemcpyDtoHAsync(host.data(), device(y_), sizeof host, copies), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuStreamSynchronize(copies), CUDA_SUCCESS);
  EXPECT_TRUE(is_poison(std::as_bytes(std::span(host))));
}

TEST_F(LateKernelsTest, AnInputThatChangesTooEarlyIsFound) {
  twice(x_, y_);
  words(x_)[7] = 4;
  synchronize();
  EXPECT_THAT(driver_.violation(), StartsWith("late kernel twice: an input has changed"));
}

TEST_F(LateKernelsTest, AnOutputThatIsWrittenTooEarlyIsFound) {
  twice(x_, y_);
  words(y_)[7] = 4;
  synchronize();
  EXPECT_THAT(driver_.violation(), StartsWith("late kernel twice: an output was written"));
}

TEST_F(LateKernelsTest, AnInputInPlaceIsHiddenToo) {
  begin({{x_.tensor, 1, 1, nullptr}});
  for (std::uint32_t& word : words(x_)) word += 1;
  end();
  EXPECT_TRUE(is_poison(std::as_bytes(words(x_))));
  synchronize();
  EXPECT_THAT(words(x_), testing::Each(4u));
  EXPECT_EQ(driver_.violation(), "");
}

TEST_F(LateKernelsTest, ResultsForTheHostAreWaitedFor) {
  twice(x_, y_);
  begin({{y_.tensor, 1, 0, nullptr}});
  EXPECT_EQ(words(y_)[0], 6u);
  end();
  EXPECT_EQ(kernels_.counts().waited, 1u);
  EXPECT_EQ(cuda().cuMemFree(device(y_)), CUDA_SUCCESS);  // and all before it is over
  EXPECT_EQ(driver_.violation(), "");
}

TEST_F(LateKernelsTest, MemoryThatAnOpLetsGoOfIsStillInUse) {
  begin({{x_.tensor, 1, 0, nullptr}, {y_.tensor, 0, 1, nullptr}});
  const tencache_storage workspace = tensor(true);
  live_.release(live_.runtime, workspace.tensor);
  EXPECT_EQ(cuda().cuMemFree(device(workspace)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(driver_.violation(), HasSubstr("is not ordered behind a write"));
  end();
}

TEST_F(LateKernelsTest, MemoryForCodeThatIsNoOpIsInUse) {
  const tencache_storage made = tensor();
  EXPECT_EQ(cuda().cuMemFree(device(made)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_THAT(driver_.violation(), HasSubstr("code that is no op"));
}

}  // namespace
}  // namespace tencache::rules
