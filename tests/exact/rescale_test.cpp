// Durations carried over between GPUs: rules on hand-worked ops, and the error against traces that were generated for
// the other GPU (the figures of docs/rescaling.md).
#include "traces/transform/rescale.h"

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/model_yaml.h"
#include "configs/rescale_to_machine.h"
#include "configs/stack_yaml.h"
#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "traces/file/file_io.h"
#include "traces/generate/generate.h"
#include "traces/generate/kernel_factors.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// 100 TFLOP/s and 1 TB/s, no overheads: a GB takes 1 ms, 100 GFLOP take 1 ms.
GpuSpec simple_gpu(const std::string& name, double flops_factor, std::uint64_t bandwidth_factor) {
  GpuSpec gpu;
  gpu.name = name;
  gpu.memory_bandwidth = bandwidth_factor * 1'000'000'000'000;
  gpu.fp16_flops = gpu.bf16_flops = gpu.fp32_flops = flops_factor * 1e14;
  gpu.interconnect = bandwidth_factor * 10'000'000'000;
  return gpu;
}

class RescaleOps : public ::testing::Test {
 protected:
  RescaleOps() {
    small_ = trace_.add_tensor("small", 1'000'000, Role::parameter, true);
    large_ = trace_.add_tensor("large", 1'000'000'000, Role::activation, true);
  }
  Op& add(const char* name, Nanoseconds duration_ns, std::uint64_t flops, Bytes bytes, DurationSource source,
          std::vector<TensorId> reads) {
    Op op;
    op.name = trace_.names.intern(name);
    op.duration_ns = duration_ns;
    op.gap_before_ns = 777;
    op.flops = flops;
    op.bytes = bytes;
    op.duration_source = source;
    return trace_.ops[trace_.add_op(op, reads, {})];
  }
  Nanoseconds duration(std::size_t op) const { return trace_.ops[op].duration_ns; }

  Trace trace_;
  TensorId small_ = none, large_ = none;
  // Four times the arithmetic, twice the bandwidth.
  GpuSpec slow_ = simple_gpu("slow", 1, 1), fast_ = simple_gpu("fast", 4, 2);
};

TEST_F(RescaleOps, FollowsTheBindingSideOfTheRoofline) {
  // 1 ms of arithmetic against 0.1 of memory: on the fast one 0.25 against 0.05. Recorded at twice its roofline.
  add("matmul", 2'000'000, 100'000'000'000, 100'000'000, DurationSource::measured, {small_});
  // 1 ms of memory against 0.8 of arithmetic; on the fast one 0.5 against 0.2.
  add("thin matmul", 1'000'000, 80'000'000'000, 1'000'000'000, DurationSource::measured, {small_});
  // 1 ms of arithmetic against 0.8 of memory: on the fast one memory binds, 0.4 against 0.25.
  add("balanced", 1'000'000, 100'000'000'000, 800'000'000, DurationSource::measured, {small_});
  add("elementwise", 1'000'000, 0, 1'000'000'000, DurationSource::modelled, {small_});
  // An update on the CPU stays.
  add("adam", 5'000'000, 0, 1'000'000'000, DurationSource::measured, {small_}).device = Device::cpu;
  // 1 GB between GPUs.
  add("all_reduce", 100'000'000, 0, 1'000'000'000, DurationSource::modelled, {small_}).rendezvous =
      trace_.names.intern("all #0");
  const Rescaling done = rescale(trace_, slow_, fast_);
  EXPECT_EQ(duration(0), 500'000);
  EXPECT_EQ(duration(1), 500'000);
  EXPECT_EQ(duration(2), 400'000);
  EXPECT_EQ(duration(3), 500'000);
  EXPECT_EQ(duration(4), 5'000'000);
  EXPECT_EQ(duration(5), 50'000'000);
  EXPECT_EQ(trace_.ops[4].duration_source, DurationSource::measured);
  EXPECT_EQ(trace_.ops[0].duration_source, DurationSource::modelled);
  EXPECT_EQ(trace_.ops[0].gap_before_ns, 777);
  EXPECT_EQ(done.ops, 5u);
  EXPECT_EQ(done.guessed, 0u);
  EXPECT_DOUBLE_EQ(done.factor, 51.9 / 105);
}

// Rule 6: a GB explains 1 ms.
TEST_F(RescaleOps, GuessesFlopsByTimeOnlyWhereNoneAreGiven) {
  add("gelu", 1'900'000, 0, 0, DurationSource::measured, {large_});
  add("convolution", 2'100'000, 0, 0, DurationSource::measured, {large_});
  add("modelled", 2'100'000, 0, 0, DurationSource::modelled, {large_});
  add("nothing known", 1'000'000, 0, 0, DurationSource::measured, {});
  const Rescaling done = rescale(trace_, slow_, fast_);
  EXPECT_EQ(duration(0), 950'000);
  EXPECT_EQ(duration(1), 525'000);
  EXPECT_EQ(duration(2), 1'050'000);
  EXPECT_EQ(duration(3), 250'000);
  EXPECT_EQ(done.guessed, 2u);
}

// A kernel that is known is nothing to guess at, and its kind decides.
TEST_F(RescaleOps, TakesTheKernelsThatTheTraceHas) {
  add("slow gelu", 2'100'000, 0, 0, DurationSource::measured, {large_}).kernel =
      trace_.kernels.intern({.kind = KernelKind::elementwise});
  Op& product = add("product", 1'000'000, 0, 1, DurationSource::measured, {small_});
  product.kernel = trace_.kernels.intern({.kind = KernelKind::matmul, .shape = {1, 8192, 8192, 8192}});
  Op& odd = add("odd product", 1'000'000, 0, 1, DurationSource::measured, {small_});
  odd.kernel = trace_.kernels.intern({.kind = KernelKind::matmul, .unaligned = true, .shape = {1, 8192, 8191, 8192}});
  trace_.header.precision = "bf16";
  fast_.kernels.matmul.unaligned_share = 2 * slow_.kernels.matmul.unaligned_share;
  fast_.multiprocessors = slow_.multiprocessors = 128;
  const Rescaling done = rescale(trace_, slow_, fast_);
  EXPECT_EQ(done.guessed, 0u);
  EXPECT_EQ(duration(0), 1'050'000);
  EXPECT_NEAR(static_cast<double>(duration(1)), 250'000, 10'000);
  EXPECT_NEAR(static_cast<double>(duration(2)), 125'000, 1'000);
}

TEST_F(RescaleOps, TakesThePrecisionThatTheGpuHas) {
  fast_.bf16_flops = 0;
  trace_.header.precision = "bf16";
  add("matmul", 1'000'000, 100'000'000'000, 1, DurationSource::measured, {small_});
  EXPECT_EQ(rescale(trace_, slow_, fast_).precision, "bf16 (fp16 on fast)");
  EXPECT_EQ(duration(0), 250'000);
  trace_.header.precision = "int3";
  EXPECT_THROW(rescale(trace_, slow_, fast_), Error);
}

TEST(FindGpu, ByItsNameOrAsTheDriverCallsIt) {
  const std::vector<GpuSpec> gpus = list_gpus();
  const auto found = [&](const char* hardware) {
    const GpuSpec* gpu = find_gpu(gpus, hardware);
    return gpu == nullptr ? std::string("none") : gpu->name;
  };
  EXPECT_EQ(found("l40s"), "l40s");
  EXPECT_EQ(found("modelled: a100-40g"), "a100-40g");
  EXPECT_EQ(found("NVIDIA A100-SXM4-80GB"), "a100-80g");
  EXPECT_EQ(found("Tesla V100-SXM2-16GB"), "v100-16g");
  EXPECT_EQ(found("NVIDIA H100 NVL"), "h100-nvl");
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(found("NVIDIA L4"), "l4");
  EXPECT_EQ(found("NVIDIA A100"), "none");  // 40 or 80 GB
  EXPECT_EQ(found("Intel(R) Xeon(R) Processor"), "none");
  EXPECT_EQ(found(""), "none");
}

Trace generated(const std::string& gpu, const std::string& model, Precision precision) {
  GenerateOptions options;
  options.model = read_model(model);
  options.gpu = read_gpu(gpu);
  options.head = usual_head(options.model);
  options.precision = precision;
  options.batch = 8;
  options.sequence_lengths = {512};
  options.stack_figures = read_stack_figures();
  return generate(options);
}

TEST(ModelDurations, AreThoseOfTheGenerator) {
  const Trace wanted = generated("l40s", "gpt2", Precision::bf16);
  Trace trace = wanted;
  trace.header.hardware.clear();
  for (Op& op : trace.ops) {
    op.duration_ns = op.gap_before_ns = 0;
    op.duration_source = DurationSource::measured;
  }
  model_durations(trace, read_gpu("l40s"), read_stack_figures().launch_ns[static_cast<std::size_t>(Stack::eager)]);
  EXPECT_EQ(trace.header.hardware, "modelled: l40s");
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    EXPECT_EQ(trace.ops[op].duration_ns, wanted.ops[op].duration_ns) << wanted.name(wanted.ops[op]);
    EXPECT_EQ(trace.ops[op].gap_before_ns, wanted.ops[op].gap_before_ns);
    EXPECT_EQ(trace.ops[op].duration_source, DurationSource::modelled);
  }
}

// What a recording shows of its kernels comes back as factors, and through a file into the model.
TEST(KernelFactors, AreTheMediansOfARecordingAndComeBackThroughAFile) {
  const GpuSpec gpu = read_gpu("h100");
  Trace trace = generated("h100", "gpt2", Precision::bf16);
  for (Op& op : trace.ops) {
    op.duration_source = DurationSource::measured;
    const KernelKind kind = trace.kernel(op).kind;
    const double factor = kind == KernelKind::matmul ? 1.25 : kind == KernelKind::elementwise ? 0.8 : 1;
    op.duration_ns = std::llround(static_cast<double>(op.duration_ns) * factor);
  }
  const std::vector<KernelFactor> factors = kernel_factors(trace, KernelModel(gpu, Precision::bf16));
  ASSERT_GE(factors.size(), 4u);
  for (const KernelFactor& factor : factors) {
    EXPECT_GE(factor.ops, fewest_factor_ops);
    const double wanted = factor.kind == KernelKind::matmul ? 1.25 : factor.kind == KernelKind::elementwise ? 0.8 : 1;
    EXPECT_NEAR(factor.factor, wanted, 1e-3) << to_string(factor.kind);
    EXPECT_NE(factor.kind, KernelKind::unknown);
  }
  EXPECT_EQ(factors.front().kind, KernelKind::matmul);

  const std::string path = ::testing::TempDir() + "/calibrated.yaml";
  const auto write = [&](const std::string& text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
  };
  write(calibrated_kernels(gpu, factors, "a \"recording\".jsonl"));
  const GpuSpec calibrated = read_gpu("h100", path);
  const KernelModel plain(gpu, Precision::bf16), mine(calibrated, Precision::bf16);
  for (const Kernel& kernel : {Kernel{.kind = KernelKind::matmul, .shape = {1, 2048, 768, 768}},
                               Kernel{.kind = KernelKind::elementwise}, Kernel{.kind = KernelKind::optimizer}}) {
    const double factor = kernel.kind == KernelKind::matmul ? 1.25 : kernel.kind == KernelKind::elementwise ? 0.8 : 1;
    EXPECT_NEAR(static_cast<double>(mine.duration_ns(kernel, 0, 1 << 24)),
                factor * static_cast<double>(plain.duration_ns(kernel, 0, 1 << 24)), 20);
  }
  EXPECT_THAT(calibration_note(calibrated.kernels),
              AllOf(HasSubstr("calibrated from a \"recording\".jsonl ("), HasSubstr(" ops)")));
  EXPECT_EQ(calibration_note(gpu.kernels), "");

  const auto message = [&](const std::string& name) {
    try {
      read_gpu(name, path);
      return std::string("no error");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(message("a100-80g"), AllOf(HasSubstr(path + ":1: is of the kernels of the GPU 'h100'"),
                                         HasSubstr("not of the GPU 'a100-80g'")));
  std::string text = calibrated_kernels(gpu, factors, "t");
  text.replace(text.find("matmul: 1.25"), 8, "matmul: -");
  write(text);
  EXPECT_THAT(message("h100"), AllOf(HasSubstr("calibrated.yaml:"), HasSubstr("factor: matmul '-")));
}

double gpu_seconds(const Trace& trace) {
  double seconds = 0;
  for (const Op& op : trace.ops) seconds += op.device == Device::gpu ? to_seconds(op.duration_ns) : 0;
  return seconds;
}

// Share of the GPU's time that ops are off by, in sum over ops.
double error_by_op(const Trace& a, const Trace& b) {
  double off = 0;
  for (std::size_t i = 0; i < a.ops.size(); ++i)
    off += std::abs(to_seconds(a.ops[i].duration_ns - b.ops[i].duration_ns));
  return off / gpu_seconds(b);
}

struct Pair {
  const char *from, *to;
  double most_without_flops;  // error of the GPU's time where the recording has no flops; as measured, rounded up
};

TEST(RescaleError, AgainstTracesGeneratedForTheOtherGpu) {
  for (const char* model : {"gpt2", "opt-1.3b", "llama-2-7b"}) {
    for (const Pair& pair : {Pair{"a100-40g", "h100", 0.04},
                             {"h100", "a100-40g", 0.07},
                             {"a100-80g", "l40s", 0.04},
                             {"l40s", "a100-80g", 0.43},
                             {"a100-40g", "l4", 0.04},
                             {"h200", "a10g", 0.05}}) {
      const Trace wanted = generated(pair.to, model, Precision::bf16);
      Trace known = generated(pair.from, model, Precision::bf16), bare = known;
      ASSERT_EQ(known.ops.size(), wanted.ops.size());
      rescale(known, read_gpu(pair.from), read_gpu(pair.to));
      // As a recorder leaves it: neither flops nor bytes.
      for (Op& op : bare.ops) {
        op.flops = op.bytes = 0;
        op.duration_source = DurationSource::measured;
      }
      rescale(bare, read_gpu(pair.from), read_gpu(pair.to));
      const double error = gpu_seconds(bare) / gpu_seconds(wanted) - 1;
      if (std::getenv("TENCACHE_PRINT") != nullptr) {
        std::printf("| %s | %s | %s | %.2f %% | %.2f %% | %+.1f %% | %.1f %% |\n", model, pair.from, pair.to,
                    100 * (gpu_seconds(known) / gpu_seconds(wanted) - 1), 100 * error_by_op(known, wanted), 100 * error,
                    100 * error_by_op(bare, wanted));
      }
      EXPECT_LT(error_by_op(known, wanted), 1e-3) << model << " " << pair.from << " " << pair.to;
      EXPECT_LT(std::abs(error), pair.most_without_flops) << model << " " << pair.from << " " << pair.to;
    }
  }
}

TEST(RescaleFp8, KeepsProductsInFp8AndRefusesAGpuWithoutIt) {
  for (const char* to : {"l40s", "h200"}) {
    const Trace wanted = generated(to, "gpt2", Precision::fp8);
    Trace known = generated("h100", "gpt2", Precision::fp8);
    EXPECT_EQ(rescale(known, read_gpu("h100"), read_gpu(to)).precision, "fp8");
    EXPECT_LT(error_by_op(known, wanted), 1e-3) << to;
    model_durations(known, read_gpu(to), 0);
    EXPECT_LT(error_by_op(known, wanted), 1e-3) << to;
  }
  Trace trace = generated("h100", "gpt2", Precision::fp8);
  try {
    rescale(trace, read_gpu("h100"), read_gpu("a100-80g"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the trace's linear layers compute in fp8, which GPU 'a100-80g' does not; name a GPU that does, or "
                 "generate the trace with --precision bf16");
  }
}

TEST(RescaleToMachine, LeavesAloneWhatNeedsNothing) {
  MachineSpec machine;
  machine.name = "box";
  Trace trace = generated("a100-40g", "gpt2", Precision::bf16);
  const Nanoseconds before = trace.ops[5].duration_ns;
  EXPECT_FALSE(rescale_to_machine(trace, machine));  // names no GPU
  machine.gpu = "a100-40g";
  EXPECT_FALSE(rescale_to_machine(trace, machine));
  machine.gpu = "h100";
  EXPECT_FALSE(rescale_to_machine(trace, machine, {.assume_gpu = {}, .no_rescale = true}));
  EXPECT_FALSE(rescale_to_machine(trace, machine, {.assume_gpu = "h100"}));
  EXPECT_EQ(trace.ops[5].duration_ns, before);
  const auto done = rescale_to_machine(trace, machine);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->from, "a100-40g");
  EXPECT_EQ(done->to, "h100");
  EXPECT_LT(trace.ops[5].duration_ns, before);
}

TEST(RescaleToMachine, RefusesWhatItCannotKnow) {
  MachineSpec machine;
  machine.name = "box";
  machine.gpu = "h100";
  Trace trace = generated("a100-40g", "gpt2", Precision::bf16);
  const auto message = [&](const RescaleOptions& options = {}) {
    try {
      rescale_to_machine(trace, machine, options);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  trace.header.hardware.clear();
  EXPECT_THAT(message(), AllOf(HasSubstr("does not say which GPU"), HasSubstr("--assume-gpu"),
                               HasSubstr("`tencache gpus`"), HasSubstr("--no-rescale")));
  trace.header.hardware = "Intel(R) Xeon(R) Processor";
  EXPECT_THAT(message(), HasSubstr("Intel(R) Xeon(R) Processor"));
  EXPECT_THAT(message({.assume_gpu = "gtx"}), AllOf(HasSubstr("unknown GPU 'gtx'"), HasSubstr("`tencache gpus`")));
  EXPECT_THAT(message({.assume_gpu = "t4", .no_rescale = true}), HasSubstr("exclude each other"));
  machine.gpu = "my-gpu";
  EXPECT_THAT(message({.assume_gpu = "t4"}), AllOf(HasSubstr("my-gpu"), HasSubstr("--no-rescale")));
}

}  // namespace
}  // namespace tencache
