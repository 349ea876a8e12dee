// The CPU memory that DeepSpeed takes under its own policies. A simulated policy holds each tensor once, and what finds
// no room goes to storage; DeepSpeed allocates the following at the start, beside each other, or ends.
//
// A rank's, by DeepSpeed 0.19 (runtime/zero/stage3.py, stage_1_and_2.py, runtime/swap_tensor); e: bytes of an element
// of the model, p: page-locked with `pin_memory`, P: always. N parameters, T of them trained.
//
//   zero-infinity  parameters     in CPU memory e N in one piece (P); on NVMe the same of max_in_cpu, and the swap
//                                 buffers in one piece (P)
//                  gradients      e T in one piece (p)
//                  optimizer      in CPU memory 4 T of fp32 weights, 8 T of Adam's states, 4 T of fp32 gradients, of
//                                 these each sub-group for itself (p); on NVMe optimizer_buffer_count buffers of a
//                                 sub-group in fp32 (P)
//   zero-offload   optimizer      4 T of fp32 weights (p), 8 T of Adam's states, 4 T of fp32 gradients (p), e T of
//                                 updated weights on their way back (p)
//
// So 16 bytes a trained parameter and what is beside them. PyTorch's allocator rounds each page-locked piece up to a
// power of two.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/machine_spec.h"
#include "core/trace.h"
#include "policies/counterparts.h"
#include "policies/options.h"

namespace tencache {

// Ranks that each parameter is split over, as `generate` says it in the trace.
std::uint64_t shards_of(const Trace& trace);
// Ranks that share the batch, whatever of the model they split.
std::uint64_t data_parallel_ranks(const Trace& trace);
// A rank's part, where ranks differ in the mean.
ModelShape model_shape(const Trace& trace);

// A GPU's part of ZeRO++'s second copy of all parameters, which so many ranks hold together (zero_hpz_partition_size);
// 0 ranks: there is none.
Bytes second_copy_bytes(std::uint64_t ranks, const ModelShape& model);

// `resolved`: all options of the policy. None: it is no policy of DeepSpeed's, or the model has no optimizer states.
std::optional<DeepSpeedMemory> deepspeed_memory(const std::string& policy, const Settings& resolved,
                                                const ModelShape& model);

// A sentence where that is more than the machine's CPU memory, with or without `pin_memory`; else empty.
std::string deepspeed_memory_note(const DeepSpeedMemory& memory, const MachineSpec& machine);
// Why `pin_memory` must not be asked for: more than CPU memory, or than `pinned_limit` bytes; empty: nothing speaks
// against it.
std::string why_not_pinned(const DeepSpeedMemory& memory, const MachineSpec& machine,
                           std::optional<Bytes> pinned_limit);

}  // namespace tencache
