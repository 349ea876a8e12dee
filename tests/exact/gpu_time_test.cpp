// How far off modelled times are said to be, and how they are drawn.
#include "traces/generate/gpu_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "configs/gpu_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

GpuSpec gpu_with_errors() {
  GpuSpec gpu = read_gpu("h100");
  gpu.kernels.error = {};
  gpu.kernels.error[static_cast<std::size_t>(KernelKind::matmul)] = 0.04;
  gpu.kernels.error[static_cast<std::size_t>(KernelKind::elementwise)] = 0.1;
  gpu.kernels.error[static_cast<std::size_t>(KernelKind::collective)] = 0.2;
  return gpu;
}

class GpuTimes : public ::testing::Test {
 protected:
  GpuTimes() {
    trace_.header.precision = "bf16";
    trace_.header.hardware = "modelled: h100";
    trace_.header.stack = "eager";
  }
  Op& add(const Kernel& kernel, Nanoseconds duration_ns, DurationSource source = DurationSource::modelled) {
    Op op;
    op.kernel = trace_.kernels.intern(kernel);
    op.duration_ns = duration_ns;
    op.duration_source = source;
    trace_.add_op(op, {}, {});
    return trace_.ops.back();
  }
  static Kernel product(std::uint64_t m) { return {.kind = KernelKind::matmul, .shape = {1, m, 4096, 4096}}; }

  Trace trace_;
};

TEST_F(GpuTimes, KindsErrorsAreIndependentAndOpsOfAKindShareTheirs) {
  add(product(4096), 20'000);
  add(product(4096), 10'000);
  add({.kind = KernelKind::elementwise}, 25'000);
  add({}, 15'000);                          // unknown: as elementwise
  add({.kind = KernelKind::norm}, 10'000);  // has no error of its own: as elementwise's, yet a kind of its own
  add({}, 10'000).rendezvous = 1;           // a collective, whatever its kernel says
  add(product(4096), 10'000, DurationSource::measured);  // exact
  Op& on_cpu = add({}, 90'000);
  on_cpu.device = Device::cpu;
  const auto time = gpu_time_of(trace_, gpu_with_errors());
  ASSERT_TRUE(time);
  EXPECT_EQ(time->gpu, "h100");
  EXPECT_EQ(time->stack, "eager");
  EXPECT_TRUE(time->measured);
  EXPECT_DOUBLE_EQ(time->seconds, 100e-6);
  // √((30 × 0.04)² + (40 × 0.1)² + (10 × 0.1)² + (10 × 0.2)²) ÷ 100
  EXPECT_DOUBLE_EQ(time->error, std::sqrt(1.44 + 16 + 1 + 4) / 100);
  EXPECT_DOUBLE_EQ(time->by_kernel[static_cast<std::size_t>(KernelKind::matmul)].seconds, 30e-6);
  EXPECT_EQ(time->extrapolated_share, 0);
}

TEST_F(GpuTimes, ProductsOfATraceInFp8HaveTheLargerError) {
  add(product(4096), 20'000);
  GpuSpec gpu = gpu_with_errors();
  gpu.kernels.error_fp8 = 0.07;
  EXPECT_DOUBLE_EQ(gpu_time_of(trace_, gpu)->error, 0.04);
  trace_.header.precision = "fp8";
  EXPECT_DOUBLE_EQ(gpu_time_of(trace_, gpu)->error, 0.07);
  gpu.kernels.error_fp8 = 0.01;
  EXPECT_DOUBLE_EQ(gpu_time_of(trace_, gpu)->error, 0.04);
}

TEST_F(GpuTimes, SecondsAreTheMeanOverRanks) {
  add(product(4096), 20'000);
  add(product(4096), 10'000).rank = 1;
  const auto time = gpu_time_of(trace_, gpu_with_errors());
  EXPECT_DOUBLE_EQ(time->seconds, 15e-6);
  EXPECT_DOUBLE_EQ(time->error, 0.04);
}

TEST_F(GpuTimes, ShapesBeyondTheMeasuredOnesAreCounted) {
  add(product(4096), 60'000);
  add(product(std::uint64_t{1} << 30), 20'000);
  add({}, 20'000).flops = 1'000'000;  // a product, by its flops, of unknown shape
  EXPECT_DOUBLE_EQ(gpu_time_of(trace_, gpu_with_errors())->extrapolated_share, 0.4);
  const auto unmeasured = gpu_time_of(trace_, read_gpu("v100-16g"));
  EXPECT_FALSE(unmeasured->measured);
  EXPECT_EQ(unmeasured->extrapolated_share, 1);
}

TEST_F(GpuTimes, NothingModelledHasNoError) {
  add(product(4096), 60'000, DurationSource::measured);
  EXPECT_FALSE(gpu_time_of(trace_, gpu_with_errors()));
}

TEST_F(GpuTimes, TheMedianOfTheDrawsIsTheError) {
  GpuTime time;
  time.gpu = "h100";
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind)
    time.by_kernel[kind].error = 0.02 * (1.0 + static_cast<double>(kind));
  constexpr std::size_t samples = 20'000;
  const std::vector<KernelFactors> draws = draw_kernel_factors(time, 1, samples);
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
    std::vector<double> sizes;
    double sum = 0, outside_two = 0;
    const double sigma = time.by_kernel[kind].error / 0.6745;
    for (const KernelFactors& factors : draws) {
      sizes.push_back(std::fabs(std::log(factors[kind])));
      sum += std::log(factors[kind]);
      outside_two += sizes.back() > 2 * sigma ? 1 : 0;
    }
    std::nth_element(sizes.begin(), sizes.begin() + samples / 2, sizes.end());
    EXPECT_NEAR(sizes[samples / 2] / time.by_kernel[kind].error, 1, 0.03);
    EXPECT_NEAR(sum / samples / sigma, 0, 0.03);
    EXPECT_NEAR(outside_two / samples, 0.0455, 0.006);
  }
}

TEST_F(GpuTimes, DrawsAreTheSameEverywhereAndOfASeedAndAGpu) {
  GpuTime time;
  time.gpu = "h100";
  time.by_kernel.fill({.seconds = 1, .error = 0.1});
  const std::vector<KernelFactors> draws = draw_kernel_factors(time, 7, 3);
  EXPECT_EQ(draw_kernel_factors(time, 7, 2)[1], draws[1]);  // however many there are
  EXPECT_NE(draws[0], draws[1]);
  EXPECT_NE(draws[0][1], draws[0][2]);
  EXPECT_NE(draw_kernel_factors(time, 8, 1)[0], draws[0]);
  time.gpu = "a100-40g";
  EXPECT_NE(draw_kernel_factors(time, 7, 1)[0], draws[0]);
  // What other kinds of kernels the trace has, and how far off they are, moves nothing.
  time.gpu = "h100";
  time.by_kernel[1].error = 0.3;
  EXPECT_EQ(draw_kernel_factors(time, 7, 1)[0][2], draws[0][2]);
}

TEST_F(GpuTimes, FactorsMoveModelledDurationsOfTheGpuOnly) {
  add(product(4096), 1000).gap_before_ns = 77;
  add({}, 1000);
  add(product(4096), 1000, DurationSource::measured);
  add(product(4096), 1000).device = Device::cpu;
  KernelFactors factors;
  factors.fill(3);
  factors[static_cast<std::size_t>(KernelKind::matmul)] = 0.5;
  const Trace drawn = with_kernel_factors(trace_, factors);
  EXPECT_EQ(drawn.ops[0].duration_ns, 500);
  EXPECT_EQ(drawn.ops[0].gap_before_ns, 77);
  EXPECT_EQ(drawn.ops[1].duration_ns, 3000);
  EXPECT_EQ(drawn.ops[2].duration_ns, 1000);
  EXPECT_EQ(drawn.ops[3].duration_ns, 1000);
}

}  // namespace
}  // namespace tencache
