// What is read of messages and logs about memory that ran out, which cause is found, and what is advised.
#include "studies/why.h"

#include <fmt/format.h>

#include "core/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tencache {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = FailureKind;

WhyAnswered why(const std::string& text, const std::string& settings = "") {
  return explain_failures(read_failure_log(text, "log"), settings);
}
FailureCause cause_of(const std::string& text, const std::string& settings = "") {
  const WhyAnswered all = why(text, settings);
  return all.causes.at(all.verdict);
}
std::string refusal_of(const std::string& text) {
  try {
    read_failure_log(text, "log");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* old_message =
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.00 GiB already "
    "allocated; 12.94 MiB free; 22.50 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
    "setting max_split_size_mb to avoid fragmentation.";
constexpr const char* new_message =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB "
    "of which 1.00 GiB is free. Process 4711 has 3.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has "
    "19.69 GiB memory in use. Of the allocated memory 18.50 GiB is allocated by PyTorch, and 700.00 MiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.";

TEST(Why, WordingsOfPyTorch) {
  const WhyAnswered old = why(old_message);
  const Failure& failure = old.log.failures.at(0);
  EXPECT_EQ(failure.tried->bytes, 20 * MiB);
  EXPECT_EQ(failure.allocated->bytes, 21 * GiB);
  EXPECT_EQ(failure.unallocated->bytes, 1536 * MiB);
  EXPECT_EQ(old.causes[0].kind, Kind::fragmentation);
  EXPECT_THAT(old.causes[0].sentences.front(), HasSubstr("a request of 1 to 10 MiB"));
  EXPECT_THAT(old.causes[0].actions.front(), HasSubstr("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
  EXPECT_FALSE(old.causes[0].of_others) << "this wording does not tell them from CUDA's own memory";

  const WhyAnswered fresh = why(new_message);
  EXPECT_EQ(fresh.log.failures[0].processes.at(0).id, 4711u);
  EXPECT_EQ(fresh.causes[0].kind, Kind::others) << "324 MiB are missing, and another process has 3 GiB";
  EXPECT_EQ(fresh.causes[0].missing, 324 * MiB);
  EXPECT_EQ(fresh.causes[0].of_others, parse_bytes("23.69GiB") - GiB - parse_bytes("19.69GiB"));
  EXPECT_THAT(fresh.causes[0].actions.front(), HasSubstr("4711"));

  // Until 1.3, "cached" is what is held beyond what is allocated.
  const WhyAnswered oldest = why(
      "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 1; 7.79 GiB total capacity; 5.10 GiB already "
      "allocated; 30.12 MiB free; 812.50 MiB cached)");
  EXPECT_EQ(oldest.log.failures[0].unallocated->bytes, parse_bytes("812.5MiB"));
  EXPECT_EQ(oldest.log.failures[0].gpu, 1u);
  EXPECT_EQ(oldest.causes[0].kind, Kind::fragmentation);
}

TEST(Why, EnoughWasFree) {
  const FailureCause cause = cause_of(
      "CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 11.00 GiB total capacity; 2.00 GiB already allocated; "
      "6.00 GiB free; 2.80 GiB reserved in total by PyTorch)");
  EXPECT_EQ(cause.kind, Kind::limit) << "800 MiB are unallocated, but 6 GiB free alone are enough";
  EXPECT_EQ(cause.missing, 0u);
  EXPECT_THAT(cause.actions, Contains(HasSubstr("as a try, not as a cure")));
}

TEST(Why, RoundingMayDecide) {
  // 45 MiB free and 40.96 MiB (± 10) unallocated: surely enough together, and 1 MiB too little alone.
  const std::string close =
      "CUDA out of memory. Tried to allocate 84.00 MiB (GPU 0; 24.00 GiB total capacity; 22.04 GiB already allocated; "
      "45.00 MiB free; 22.08 GiB reserved in total by PyTorch)";
  EXPECT_EQ(cause_of(close).kind, Kind::fragmentation);
  EXPECT_TRUE(cause_of(close).uncertain);
  EXPECT_FALSE(cause_of(old_message).uncertain);
}

TEST(Why, MoreThanTheCardHas) {
  const FailureCause cause = cause_of(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 12.00 GiB "
      "of "
      "which 0 bytes is free. Of the allocated memory 17.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by "
      "PyTorch but unallocated.");
  EXPECT_EQ(cause.kind, Kind::too_large);
  EXPECT_EQ(cause.missing, 6 * GiB);
  EXPECT_THAT(cause.actions.front(), HasSubstr("Sysmem Fallback"));
}

TEST(Why, TheDriversOwnPool) {
  const FailureCause cause = cause_of(
      "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
      "Currently allocated     : 13.00 GiB\nRequested               : 3.00 GiB\nDevice limit            : 16.00 GiB\n"
      "Free (according to CUDA): 1.00 GiB\n");
  EXPECT_EQ(cause.kind, Kind::too_large);
  EXPECT_EQ(cause.missing, 2 * GiB);
}

TEST(Why, PrivatePoolsAreAPartOfWhatIsAllocated) {
  const FailureCause cause = cause_of(
      "CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 4.00 GiB is "
      "free. "
      "Including non-PyTorch memory, this process has 12.00 GiB memory in use. Of the allocated memory 10.00 GiB is "
      "allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and 1.00 GiB is reserved by "
      "PyTorch but unallocated.");
  EXPECT_EQ(cause.beside_pytorch, GiB) << "12 − (10 + 1)";
  EXPECT_EQ(cause.kind, Kind::too_large);
  EXPECT_EQ(cause.missing, 3 * GiB);
}

TEST(Why, AContainersOwnProcessIsNoOther) {
  // In a container the process does not know its own id, and lists itself.
  EXPECT_EQ(
      cause_of("CUDA out of memory. Tried to allocate 30.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which "
               "20.00 GiB is free. Process 99 has 60.00 GiB memory in use. Of the allocated memory 19.50 GiB is "
               "allocated by PyTorch, and 40.00 GiB is reserved by PyTorch but unallocated.")
          .kind,
      Kind::fragmentation);
}

TEST(Why, WhatTheProgramAllowsItself) {
  const FailureCause cause = cause_of(
      "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 14.00 GiB is "
      "free. "
      "9.60 GiB allowed; Of the allocated memory 8.50 GiB is allocated by PyTorch, and 256.00 MiB is reserved by "
      "PyTorch "
      "but unallocated.");
  EXPECT_EQ(cause.kind, Kind::limit);
  EXPECT_THAT(cause.actions.front(), HasSubstr("set_per_process_memory_fraction"));
}

TEST(Why, EachPlatformInItsOwnWords) {
  const auto nothing_of_cuda = [](const FailureCause& cause) {
    EXPECT_THAT(cause.actions, Each(Not(HasSubstr("PYTORCH_CUDA_ALLOC_CONF")))) << cause.headline;
    EXPECT_THAT(cause.actions, Each(Not(HasSubstr("nvidia-smi")))) << cause.headline;
    return cause;
  };
  // Intel's driver refuses single allocations of 4 GiB and more.
  const FailureCause intel =
      nothing_of_cuda(cause_of("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 6.00 GiB. GPU 0 has a "
                               "total capacity of 15.50 GiB. Of "
                               "the allocated memory 1.00 GiB is allocated by PyTorch, and 0 bytes is reserved by "
                               "PyTorch but unallocated. Please use "
                               "`empty_cache` to release all unoccupied cached memory."));
  EXPECT_EQ(intel.kind, Kind::limit);
  EXPECT_THAT(intel.headline, HasSubstr("4 GiB"));
  const FailureCause full =
      nothing_of_cuda(cause_of("XPU out of memory. Tried to allocate 3.00 GiB (GPU 0; 15.50 GiB total capacity; 13.00 "
                               "GiB already allocated; 13.50 "
                               "GiB reserved in total by PyTorch)"));
  EXPECT_EQ(full.kind, Kind::too_large);
  EXPECT_EQ(full.missing, 512 * MiB) << "3 − (15.5 − 13.5) − 0.5";

  const FailureCause npu = nothing_of_cuda(cause_of(
      "RuntimeError: NPU out of memory. Tried to allocate 4.00 GiB (NPU 5; 61.00 GiB total capacity; 44.00 GiB already "
      "allocated; 44.00 GiB current active; 1.00 GiB free; 58.00 GiB reserved in total by PyTorch)"));
  EXPECT_EQ(npu.kind, Kind::fragmentation);
  EXPECT_THAT(npu.actions.front(), HasSubstr("PYTORCH_NPU_ALLOC_CONF"));
  const FailureCause shared = nothing_of_cuda(
      cause_of("RuntimeError: NPU out of memory. Tried to allocate 30.00 MiB (NPU 0; 61.00 GiB total capacity; 12.00 "
               "GiB already "
               "allocated; 12.00 GiB current active; 10.00 MiB free; 12.50 GiB reserved in total by PyTorch)"));
  EXPECT_EQ(shared.kind, Kind::others) << "47 GiB are no memory of this process, whatever its own holes";
  EXPECT_THAT(shared.actions.front(), HasSubstr("npu-smi"));

  const FailureCause rocm = nothing_of_cuda(cause_of(
      "HIP out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 24.00 GiB of which 100.00 MiB is "
      "free. "
      "Of the allocated memory 20.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated. "
      "If "
      "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
  EXPECT_EQ(rocm.kind, Kind::fragmentation);
  EXPECT_THAT(rocm.actions.front(), HasSubstr("PYTORCH_HIP_ALLOC_CONF"));

  const FailureCause apple =
      nothing_of_cuda(cause_of("RuntimeError: MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: "
                               "512.00 MB, max allowed: 9.60 GB). "
                               "Tried to allocate 200.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 "
                               "to disable upper limit for "
                               "memory allocations (may cause system failure)."));
  EXPECT_EQ(apple.kind, Kind::too_large);
  EXPECT_THAT(apple.actions, Contains(HasSubstr("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0")));
  const WhyAnswered busy =
      why("MPS backend out of memory (MPS allocated: 3.00 GiB, other allocations: 14.90 GiB, max allowed: 18.00 GiB). "
          "Tried to "
          "allocate 256.00 KB on shared pool.");
  EXPECT_EQ(busy.log.failures[0].tried->bytes, 256 * KiB);
  EXPECT_EQ(busy.log.failures[0].platform, FailurePlatform::mps);
  EXPECT_EQ(nothing_of_cuda(busy.causes[0]).kind, Kind::limit) << "100 MiB of the allowed memory were left";
}

TEST(Why, WhatIsSetIsNotAdvised) {
  const FailureCause again = cause_of(old_message, "expandable_segments:True");
  EXPECT_EQ(again.kind, Kind::fragmentation);
  EXPECT_THAT(again.actions, Not(Contains(HasSubstr("expandable_segments:True, before"))));
  EXPECT_THAT(again.sentences, Contains(HasSubstr("is on already")));
}

TEST(Why, LinesOfATerminalAndMissingParts) {
  const WhyAnswered broken =
      why("│ CUDA out of memory. Tried to   │\n│   allocate 1.50 GiB. GPU 0 has a total │\n│ capacty of 8.00 GiB of "
          "which 512.00 MiB is "
          "free. │");
  EXPECT_EQ(broken.log.failures[0].tried->bytes, 1536 * MiB);
  EXPECT_EQ(broken.log.failures[0].total->bytes, 8 * GiB);
  EXPECT_FALSE(broken.causes[0].kind);
  EXPECT_THAT(refusal_of("CUDA error: device-side assert triggered"), HasSubstr("has no message that memory ran out"));
}

TEST(Why, RanksAreKeptApart) {
  const WhyAnswered ranks = why(
      "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of\n"
      "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of\n"
      "[rank1]: 24.00 GiB of which 512.00 MiB is free. Of the allocated memory 22.00 GiB is allocated by PyTorch, and\n"
      "[rank0]: 24.00 GiB of which 256.00 MiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and\n"
      "[rank1]: 128.00 MiB is reserved by PyTorch but unallocated.\n"
      "[rank0]: 3.00 GiB is reserved by PyTorch but unallocated.\n");
  ASSERT_EQ(ranks.log.failures.size(), 2u);
  EXPECT_EQ(ranks.log.failures[0].rank, "rank 1");
  EXPECT_EQ(ranks.log.failures[0].unallocated->bytes, 128 * MiB);
  EXPECT_EQ(ranks.causes[0].kind, Kind::too_large);
  EXPECT_EQ(ranks.log.failures[1].free->bytes, 256 * MiB);
  EXPECT_EQ(ranks.causes[1].kind, Kind::fragmentation);
  EXPECT_EQ(ranks.verdict, 0u) << "the one that failed first";

  const WhyAnswered pasted = why(std::string(old_message) + "\n" + new_message);
  ASSERT_EQ(pasted.log.failures.size(), 2u);
  EXPECT_EQ(pasted.log.failures[0].free->bytes, parse_bytes("12.94MiB"));
  EXPECT_EQ(pasted.log.failures[1].free->bytes, GiB);
  EXPECT_EQ(pasted.verdict, 1u) << "the last try";
  EXPECT_EQ(why(std::string(old_message) + "\n" + old_message).log.failures.at(0).place.times, 2u);
}

TEST(Why, TheLastJobOfALogCounts) {
  const auto refused = [](int rank, const char* tried, const char* free) {
    return fmt::format(
        "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {1}. GPU {0} has a total capacity of "
        "24.00 GiB of which {2} is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is "
        "reserved by PyTorch but unallocated.\n",
        rank, tried, free);
  };
  const std::string rule(60, '='), line(60, '-');
  const std::string end = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + rule +
                          "\ntrain.py FAILED\n" + line + "\nRoot Cause (first observed failure):\n  exitcode  : 1\n" +
                          rule + "\n";
  const std::string first_job = refused(1, "6.00 GiB", "2.00 GiB") + refused(0, "6.00 GiB", "2.50 GiB") + end;
  const WhyAnswered two = why(first_job + refused(0, "3.00 GiB", "1.50 GiB"));
  ASSERT_EQ(two.log.failures.size(), 3u);
  EXPECT_EQ(two.verdict, 2u);
  EXPECT_EQ(two.log.failures[2].place.job, 1u);
  EXPECT_EQ(two.log.failures[2].place.line, 10u) << "after two failures and seven lines of the launcher";
  EXPECT_EQ(why(first_job + first_job).log.failures.size(), 4u) << "the same figures, but of another job";
  EXPECT_EQ(why(first_job + first_job).verdict, 2u);

  const WhyAnswered slurm = why(first_job + "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n");
  EXPECT_EQ(slurm.log.failures.at(slurm.verdict).rank, "rank 1") << "what follows the launcher's words is of its job";
  const WhyAnswered again =
      why(refused(1, "6.00 GiB", "2.00 GiB") + "Worker group FAILED. 2/3 attempts left; will restart worker group\n" +
          refused(0, "5.00 GiB", "2.00 GiB"));
  EXPECT_EQ(again.verdict, 1u);
}

TEST(Why, NvidiaSmiListsProcesses) {
  const WhyAnswered listed =
      why("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 1.00 GiB already "
          "allocated; 1.00 GiB "
          "free; 1.50 GiB reserved in total by PyTorch)\n"
          "|    0   N/A  N/A      3001      C   python                          18000MiB |\n"
          "|    1   N/A  N/A      3002      C   python                            500MiB |\n");
  ASSERT_EQ(listed.log.failures[0].processes.size(), 1u);
  EXPECT_EQ(listed.log.failures[0].processes[0].bytes, 18000 * MiB);
  EXPECT_EQ(listed.causes[0].kind, Kind::others);
}

TEST(Why, OtherSoftwareInItsOwnSettings) {
  const FailureCause deepspeed = cause_of(
      "  File \"/usr/lib/python3/dist-packages/deepspeed/runtime/engine.py\", line 1, in step\n"
      "CUDA out of memory. Tried to allocate 8.00 GiB (GPU 0; 24.00 GiB total capacity; 20.00 GiB already allocated; "
      "1.00 GiB "
      "free; 22.00 GiB reserved in total by PyTorch)");
  EXPECT_EQ(deepspeed.kind, Kind::too_large);
  EXPECT_THAT(deepspeed.actions.front(), HasSubstr("offload_optimizer"));

  const FailureCause llama = cause_of(
      "llama_model_load_from_file_impl: using device CUDA0 (NVIDIA) - 7000 MiB free\n"
      "load_tensors: offloaded 41/41 layers to GPU\n"
      "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14000.00 MiB on device 0: cudaMalloc failed: out of "
      "memory\n"
      "alloc_tensor_range: failed to allocate CUDA0 buffer of size 14680064000\n"
      "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n");
  EXPECT_EQ(llama.kind, Kind::too_large);
  EXPECT_EQ(llama.missing, 7000 * MiB);
  EXPECT_THAT(llama.actions.front(), HasSubstr("-ngl 18 of 41")) << "41 · 0.9 · 7000 ÷ 14000";

  EXPECT_THAT(
      cause_of("CUDA error: out of memory\n  current device: 0, in function alloc at ggml/src/ggml-cuda/ggml-cuda.cu:1")
          .actions,
      Contains(HasSubstr("-ngl")));

  const FailureCause vllm = cause_of(
      "ValueError: To serve at least one request with the models's max seq len (65536), (8.00 GiB KV cache is needed, "
      "which is "
      "larger than the available KV cache memory (3.00 GiB). Based on the available memory, the estimated maximum "
      "model length "
      "is 24576. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.");
  EXPECT_EQ(vllm.kind, Kind::too_large);
  EXPECT_EQ(vllm.missing, 5 * GiB);
  EXPECT_THAT(vllm.actions.front(), HasSubstr("--max-model-len 24576"));
  EXPECT_EQ(
      cause_of("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`").kind,
      Kind::limit);
  EXPECT_EQ(cause_of("ValueError: Free memory on device (4.00/24.00 GiB) on startup is less than desired GPU memory "
                     "utilization (0.9, 21.60 GiB). Decrease GPU memory utilization")
                .kind,
            Kind::others);
}

TEST(Why, CpuMemory) {
  const WhyAnswered allocator =
      why("RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you "
          "tried to "
          "allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)");
  ASSERT_EQ(allocator.log.failures.size(), 1u);
  EXPECT_EQ(allocator.causes[0].kind, Kind::host);
  EXPECT_EQ(allocator.log.failures[0].tried->bytes, 64 * GiB);
  EXPECT_EQ(cause_of("Loading checkpoint shards\nKilled\n").kind, Kind::host);
  EXPECT_EQ(cause_of("Out of memory: Killed process 77 (python) total-vm:1kB").kind, Kind::host);
  EXPECT_EQ(cause_of("  exitcode  : -9 (pid: 5)\n  traceback : Signal 9 (SIGKILL) received by PID 5").kind, Kind::host);
  EXPECT_EQ(
      cause_of(
          "RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error. It is possible that dataloader's "
          "workers are out of shared memory: insufficient shared memory (shm)")
          .kind,
      Kind::host);
}

TEST(Why, StrangersAreRefusedByName) {
  EXPECT_THAT(refusal_of("ResourceExhaustedError: OOM when allocating tensor with shape[64,128] and type float"),
              AllOf(HasSubstr("log:1"), HasSubstr("TensorFlow")));
  EXPECT_THAT(
      refusal_of("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 "
                 "bytes."),
      HasSubstr("JAX"));
  EXPECT_THAT(refusal_of("OSError: [Errno 28] No space left on device"), HasSubstr("full disk"));
}

}  // namespace
}  // namespace tencache
