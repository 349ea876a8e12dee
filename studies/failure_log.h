// What programs print when memory runs out, found in a message or in a whole log: PyTorch's allocators on every device
// (c10/cuda/CUDACachingAllocator.cpp and its like, the wordings since 1.0), PyTorch's and the kernel's words for CPU
// memory, llama.cpp, vLLM, SGLang, Ollama, bitsandbytes. Each rank's lines are read by themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/units.h"

namespace tencache {

enum class FailurePlatform : std::uint8_t { cuda, rocm, xpu, mps, npu, vulkan, cpu, other };
template <>
inline constexpr auto enum_texts<FailurePlatform> = std::to_array<std::string_view>({"cuda", "rocm", "xpu", "mps",
                                                                                     "npu", "vulkan", "cpu", "other"});

// Whose words and settings apply.
enum class FailureSoftware : std::uint8_t {
  pytorch,
  deepspeed,
  bitsandbytes,
  transformers,
  vllm,
  sglang,
  llama_cpp,
  ollama,
  numpy,
  system
};
template <>
inline constexpr auto enum_texts<FailureSoftware> = std::to_array<std::string_view>({"pytorch", "deepspeed",
                                                                                     "bitsandbytes", "transformers",
                                                                                     "vllm", "sglang", "llama.cpp",
                                                                                     "ollama", "numpy", "system"});

enum class FailureForm : std::uint8_t {
  allocator,      // of a GPU's memory, with figures
  bare,           // the GPU's memory ran out; no more is said
  one_buffer,     // a single buffer is larger than the device or its driver allows
  share,          // the share of the GPU that the program allows itself leaves nothing
  cache,          // a KV cache that one request needs is larger than what is left
  start,          // less is free at the start than the program wants
  too_large,      // said in words
  host,           // CPU memory
  killed,         // by the system; nearly always for CPU memory
  shared_memory,  // /dev/shm
};

// As printed: half of the last digit may be rounded off, either way.
struct PrintedBytes {
  Bytes bytes = 0, rounding = 0;
};

struct OtherProcess {
  std::uint64_t id = 0;
  Bytes bytes = 0;
};

// Of llama.cpp: of the model, and those that were to be on the GPU.
struct ModelLayers {
  std::optional<std::uint64_t> all, wanted;
};

struct FailurePlace {
  std::uint64_t line = 0;   // where it first stands, from 1
  std::uint64_t times = 1;  // with the same figures, by the same rank
  std::uint64_t job = 0;  // from 0: how many jobs the launcher had ended before, if a log has several after each other
};

struct Failure {
  FailureForm form = FailureForm::allocator;
  FailurePlatform platform = FailurePlatform::cuda;
  FailureSoftware software = FailureSoftware::pytorch;
  std::string rank;                  // "rank 3", as the log calls it; empty: not said
  std::optional<std::uint64_t> gpu;  // its number
  FailurePlace place;
  std::string words;                  // the program's, cut
  std::optional<PrintedBytes> tried;  // what was asked for
  std::optional<PrintedBytes> total, free;
  std::optional<PrintedBytes> allowed;        // by a limit that the program or PyTorch sets
  std::optional<PrintedBytes> process;        // all that this process has, PyTorch's memory included
  std::optional<PrintedBytes> allocated;      // by PyTorch; of llama.cpp, buffers before this one
  std::optional<PrintedBytes> private_pools;  // of graphs: a part of `allocated`
  std::optional<PrintedBytes> unallocated;    // reserved by PyTorch, and not allocated
  std::optional<PrintedBytes> other;          // what MPS counts beside PyTorch's own
  std::vector<OtherProcess> processes;        // as the message or nvidia-smi lists them
  ModelLayers layers;
  std::optional<std::uint64_t> longest;  // tokens that would do, as vLLM estimates
  std::string variable;                  // of the allocator's settings, as the message names it
};

struct FailureLog {
  std::vector<Failure> failures;  // by line
  bool on_windows = false;        // paths and words say so
};

inline constexpr Bytes longest_failure_log = 64 * MiB;

// `name`: of the file, for messages. Throws Error where nothing in it is known; where it is of a program that is not
// read here, by that program's name.
FailureLog read_failure_log(std::string_view text, const std::string& name);

}  // namespace tencache
