// The kernel model: closed forms of a GPU whose constants are all 1, and the measured GPUs of configs/kernels.
#include "traces/generate/kernel_model.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

// 128 multiprocessors of 1 TFLOP/s each, a memory that costs nothing, a start of 1 us; no tile is better than another,
// and splitting never pays.
GpuSpec plain_gpu() {
  GpuSpec gpu;
  gpu.name = "plain";
  gpu.memory_bandwidth = 1'000'000'000'000'000'000;
  gpu.cache = 1 * MiB;
  gpu.multiprocessors = 128;
  gpu.fp16_flops = gpu.bf16_flops = 128e12;
  gpu.fp32_flops = 32e12;
  gpu.interconnect = 100'000'000'000;
  gpu.collective_latency_ns = 15'000;
  gpu.kernels.measured = true;
  gpu.kernels.matmul.start_ns = 1000;
  gpu.kernels.matmul.split_start_ns = 1e9;
  gpu.kernels.start_ns.fill(3000);
  gpu.kernels.bandwidth_share.fill(1);
  return gpu;
}

Kernel matmul(std::uint64_t m, std::uint64_t n, std::uint64_t k, std::uint64_t batch = 1) {
  return {.kind = KernelKind::matmul, .shape = {batch, m, n, k}};
}

Nanoseconds time_of(const GpuSpec& gpu, const Kernel& kernel, Bytes bytes = 0, Precision precision = Precision::bf16) {
  return KernelModel(gpu, precision).duration_ns(kernel, 0, bytes);
}

// A GPU as its table was measured: in short loops.
GpuSpec in_short_loops(const std::string& name) {
  GpuSpec gpu = read_gpu(name);
  gpu.kernels.sustained = 1;
  return gpu;
}

TEST(KernelModel, OneTileTakesItsArithmeticOnOneMultiprocessor) {
  // 2 × 64 × 64 × 1000 ÷ 1e12 = 8.192 us.
  EXPECT_EQ(time_of(plain_gpu(), matmul(64, 64, 1000)), 9'192);
  EXPECT_EQ(time_of(plain_gpu(), matmul(2, 2, 1000)), 9'192);   // a part of a tile takes as long
  EXPECT_EQ(time_of(plain_gpu(), matmul(1, 64, 1000)), 1'001);  // but a product with a vector waits for memory alone
}

TEST(KernelModel, OneWaveTakesAsLongAsOneTile) {
  // 16 × 8 tiles of 256 × 128: one for each multiprocessor, 2 × 256 × 128 × 1000 ÷ 1e12 = 65.536 us.
  EXPECT_EQ(time_of(plain_gpu(), matmul(4096, 1024, 1000)), 66'536);
  EXPECT_EQ(time_of(plain_gpu(), matmul(256, 128, 1000, 128)), 66'536);
}

TEST(KernelModel, APartlyFilledWaveTakesAsLongAsAFullOneUnlessItsTailIsHidden) {
  GpuSpec gpu = plain_gpu();
  // 65 × 16 tiles of 64 × 64 are 8.125 waves: nine of 8.192 us.
  EXPECT_EQ(time_of(gpu, matmul(4160, 1024, 1000)), 74'728);
  gpu.kernels.matmul.tail = 0;
  EXPECT_EQ(time_of(gpu, matmul(4160, 1024, 1000)), 67'560);
  gpu.kernels.matmul.tail = 0.5;
  EXPECT_EQ(time_of(gpu, matmul(4160, 1024, 1000)), 1'000 + 70'144);
}

TEST(KernelModel, ConstantsScaleTheTime) {
  GpuSpec gpu = plain_gpu();
  gpu.kernels.matmul.depth = 500;  // 1500 steps instead of 1000
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000)), 1'000 + 12'288);
  gpu = plain_gpu();
  gpu.kernels.matmul.share = 0.5;
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000)), 1'000 + 16'384);
  gpu = plain_gpu();
  gpu.kernels.sustained = 0.5;
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000)), 2 * 9'192);
  // 1.678e11 flops are more than a millisecond's worth: 9 % slower. 20 000 × 65.536 ns × 1.09.
  EXPECT_EQ(time_of(plain_gpu(), matmul(4096, 1024, 20'000)), 1'000 + 1'428'685);
}

TEST(KernelModel, MemoryBindsWhereThereIsLittleArithmetic) {
  GpuSpec gpu = plain_gpu();
  gpu.memory_bandwidth = 1'000'000'000;
  gpu.kernels.matmul.memory_share = 0.5;
  // 2 × (4096 × 64 × 2 + 4096²) = 34 603 008 bytes, far more than the cache holds.
  EXPECT_EQ(time_of(gpu, matmul(4096, 4096, 64)), 1'000 + 2 * 34'603'008);
  gpu.cache = 1 * GiB;
  gpu.kernels.matmul.cache_share = 4;
  EXPECT_EQ(time_of(gpu, matmul(4096, 4096, 64)), 1'000 + 34'603'008 / 4);
}

TEST(KernelModel, Fp32HasItsOwnPeakAndShare) {
  GpuSpec gpu = plain_gpu();
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000), 0, Precision::fp32), 1'000 + 4 * 8'192);
  gpu.kernels.matmul.fp32_share = 0.5;
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000), 0, Precision::fp32), 1'000 + 8 * 8'192);
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000)), 9'192);
}

TEST(KernelModel, ProductsInFp8HaveTheirOwnPeakAndConstants) {
  GpuSpec gpu = plain_gpu();
  gpu.fp8_flops = 256e12;
  gpu.kernels.matmul_fp8 = gpu.kernels.matmul;
  gpu.kernels.matmul_fp8.start_ns = 2000;
  Kernel kernel = matmul(64, 64, 1000);
  kernel.fp8 = true;
  for (const Precision precision : {Precision::bf16, Precision::fp32, Precision::fp8}) {
    EXPECT_EQ(time_of(gpu, kernel, 0, precision), 2'000 + 4'096);
  }
  // Unmarked ones are as in bf16.
  EXPECT_EQ(time_of(gpu, matmul(64, 64, 1000), 0, Precision::fp8), 9'192);
  // Operands of a byte, a result of two: 4096 × 64 × 2 + 2 × 4096² = 34 078 720 bytes.
  gpu.memory_bandwidth = 1'000'000'000;
  gpu.kernels.matmul_fp8.memory_share = 0.5;
  kernel = matmul(4096, 4096, 64);
  kernel.fp8 = true;
  EXPECT_EQ(time_of(gpu, kernel, 0, Precision::fp8), 2'000 + 2 * 34'078'720);
  // Constants from before fp8: those of 16 bits.
  gpu = plain_gpu();
  gpu.fp8_flops = 256e12;
  kernel.shape = {1, 64, 64, 1000, 0, 0};
  EXPECT_EQ(time_of(gpu, kernel), 1'000 + 4'096);
}

TEST(KernelModel, AGpuWithoutFp8RefusesIt) {
  const auto error = [](auto call) -> std::string {
    try {
      call();
      return "no error";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(error([] { KernelModel(read_gpu("a100-80g"), Precision::fp8); }),
            "GPU 'a100-80g' does not compute in fp8; valid are fp16, bf16, fp32, tf32");
  Kernel kernel = matmul(64, 64, 1000);
  kernel.fp8 = true;
  EXPECT_THAT(error([&] { time_of(read_gpu("a100-80g"), kernel); }),
              ::testing::HasSubstr("GPU 'a100-80g' does not compute products in fp8"));
}

TEST(KernelModel, UnalignedProductsReachTheirOwnShareOfThePeak) {
  GpuSpec gpu = plain_gpu();
  gpu.kernels.matmul.unaligned_share = 0.1;
  Kernel kernel = matmul(4096, 1024, 1000);
  kernel.unaligned = true;
  // 2 × 4096 × 1024 × 1000 ÷ 12.8e12 = 655.36 us.
  EXPECT_EQ(time_of(gpu, kernel), 1'000 + 655'360);
  for (const GpuSpec& shipped : list_gpus()) {
    if (shipped.fp16_flops <= 0) continue;
    for (const std::uint64_t size : {1024, 4096, 16384}) {
      Kernel aligned = matmul(size, size, size), unaligned = aligned;
      unaligned.unaligned = true;
      EXPECT_GT(time_of(shipped, unaligned, 0, Precision::fp16), time_of(shipped, aligned, 0, Precision::fp16))
          << shipped.name << " " << size;
    }
  }
}

TEST(KernelModel, OtherKernelsMoveTheirBytesBesideTheirStart) {
  GpuSpec gpu = plain_gpu();
  gpu.memory_bandwidth = 1'000'000'000;
  gpu.kernels.bandwidth_share[static_cast<std::size_t>(KernelKind::norm)] = 0.5;
  gpu.kernels.bandwidth_share[static_cast<std::size_t>(KernelKind::copy)] = 0;
  Kernel kernel{.kind = KernelKind::elementwise};
  EXPECT_EQ(time_of(gpu, kernel, 4'000), 5'000);  // √(3² + 4²) us
  kernel.launches = 2;
  EXPECT_EQ(time_of(gpu, kernel, 8'000), 10'000);
  EXPECT_EQ(time_of(gpu, {.kind = KernelKind::norm}, 2'000), 5'000);
  EXPECT_EQ(time_of(gpu, {.kind = KernelKind::copy}, 4'000), 5'000);  // as elementwise
}

TEST(KernelModel, CollectivesTakeWhatWasMeasuredBetweenSoManyOrMore) {
  GpuSpec gpu = plain_gpu();
  gpu.kernels.collectives = {{2, 200'000'000'000, 5'000, 0}, {4, 250'000'000'000, 7'000, 2}};
  const KernelModel model(gpu, Precision::bf16);
  constexpr Bytes bytes = 100'000'000;
  EXPECT_EQ(model.collective_ns(2, bytes), 5'000 + 500'000);
  EXPECT_EQ(model.collective_ns(3, bytes), 7'000 + 20'000 + 400'000);  // 2 × √1e8 ns
  EXPECT_EQ(model.collective_ns(8, bytes), 7'000 + 20'000 + 400'000);
  // A link of the user's, and a GPU without measurements.
  EXPECT_EQ(model.collective_ns(4, bytes, 50'000'000'000), 15'000 + 2'000'000);
  EXPECT_EQ(KernelModel(plain_gpu(), Precision::bf16).collective_ns(4, bytes), 15'000 + 1'000'000);
}

// The values come from the program that fitted the constants.
TEST(KernelModel, AttentionIsAsItWasFitted) {
  struct Case {
    const char* gpu;
    AttentionKernel kernel;
    double ns;
  };
  const Kernel causal{.kind = KernelKind::attention, .causal = true, .shape = {1, 32, 8, 2048, 2048, 128}};
  constexpr Bytes traffic = Bytes{4} * 128 * 2048 * (32 + 8);  // queries and results, keys and values, 2 bytes each
  for (const auto& [name, kernel, ns] : {Case{"h100", AttentionKernel::flash3, 90'581},
                                         {"a100-80g", AttentionKernel::flash2, 243'477},
                                         {"l40s", AttentionKernel::flash2, 225'215}}) {
    Kernel attention = causal;
    attention.attention = kernel;
    EXPECT_NEAR(static_cast<double>(time_of(in_short_loops(name), attention, traffic)), ns, 2e-3 * ns) << name;
    Kernel full = attention, backward = attention;
    full.causal = false;
    backward.kind = KernelKind::attention_backward;
    EXPECT_GT(time_of(in_short_loops(name), full, traffic), time_of(in_short_loops(name), attention, traffic));
    EXPECT_GT(time_of(in_short_loops(name), backward, traffic), time_of(in_short_loops(name), attention, traffic));
  }
}

TEST(KernelModel, ATimeNearAMeasuredShapeIsTheMeasuredOne) {
  for (const char* name : {"a100-80g", "h100", "h200", "b200", "l40s"}) {
    const KernelModel model(in_short_loops(name), Precision::bf16);
    std::size_t near = 0;
    const std::vector<MeasuredMatmul>& measured = model.gpu().kernels.measured_matmuls;
    for (const MeasuredMatmul& one : measured) {
      const Kernel kernel = matmul(one.m, one.n, one.k);
      EXPECT_FALSE(model.extrapolates(kernel));
      const double ratio = static_cast<double>(model.duration_ns(kernel, 0, 0)) / static_cast<double>(one.time_ns);
      near += std::fabs(ratio - 1) < 0.1 ? 1 : 0;
    }
    EXPECT_GT(near, measured.size() * 9 / 10) << name;
  }
}

TEST(KernelModel, ATimeInFp8NearAMeasuredShapeIsTheMeasuredOne) {
  for (const char* name : {"h100", "h200", "b200", "l40s"}) {
    const KernelModel model(in_short_loops(name), Precision::fp8);
    std::size_t near = 0;
    const std::vector<MeasuredMatmul>& measured = model.gpu().kernels.measured_matmuls_fp8;
    ASSERT_EQ(measured.size(), 500u);
    for (const MeasuredMatmul& one : measured) {
      Kernel kernel = matmul(one.m, one.n, one.k);
      kernel.fp8 = true;
      EXPECT_FALSE(model.extrapolates(kernel));
      const double ratio = static_cast<double>(model.duration_ns(kernel, 0, 0)) / static_cast<double>(one.time_ns);
      near += std::fabs(ratio - 1) < 0.1 ? 1 : 0;
    }
    EXPECT_GT(near, measured.size() * 9 / 10) << name;
  }
  // Ada, whose products nobody measured here but the L40S'.
  Kernel kernel = matmul(8192, 4096, 4096);
  kernel.fp8 = true;
  EXPECT_TRUE(KernelModel(read_gpu("l4"), Precision::fp8).extrapolates(kernel));
}

TEST(KernelModel, MoreWorkTakesLonger) {
  constexpr double tolerance = 0.85;  // a better tile, and corrections that end
  for (const char* name : {"a100-80g", "h100", "l40s", "v100-16g"}) {
    const GpuSpec gpu = read_gpu(name);
    const KernelModel model(gpu, Precision::fp16);
    const auto seconds = [&](std::uint64_t m, std::uint64_t n, std::uint64_t k) {
      return static_cast<double>(model.duration_ns(matmul(m, n, k), 0, 0));
    };
    for (std::uint64_t m = 64; m <= 32768; m *= 4) {
      for (std::uint64_t n = 64; n <= 32768; n *= 4) {
        for (std::uint64_t k = 64; k <= 16384; k *= 4) {
          const double least = tolerance * seconds(m, n, k);
          EXPECT_GE(seconds(2 * m, n, k), least) << name << " " << m << " " << n << " " << k;
          EXPECT_GE(seconds(m, 2 * n, k), least) << name << " " << m << " " << n << " " << k;
          EXPECT_GE(seconds(m, n, 2 * k), least) << name << " " << m << " " << n << " " << k;
        }
      }
    }
  }
}

TEST(KernelModel, ExtrapolatesFarFromMeasuredShapes) {
  const KernelModel model(read_gpu("h100"), Precision::bf16);
  EXPECT_FALSE(model.extrapolates(matmul(8192, 4096, 4096)));
  EXPECT_TRUE(model.extrapolates(matmul(1u << 22, 4096, 1u << 20)));
  EXPECT_TRUE(model.extrapolates({.kind = KernelKind::matmul}));  // of unknown shape
  EXPECT_FALSE(model.extrapolates({.kind = KernelKind::norm}));
  EXPECT_TRUE(KernelModel(read_gpu("v100-16g"), Precision::fp16).extrapolates(matmul(8192, 4096, 4096)));
}

}  // namespace
}  // namespace tencache
