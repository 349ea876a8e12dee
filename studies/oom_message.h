// What PyTorch says when a GPU's memory runs out, read and explained (c10/cuda/CUDACachingAllocator.cpp; its wording
// since 1.11, and since 2.1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace tencache {

struct OomMessage {
  Bytes tried = 0;                     // what the device was asked for
  std::optional<Bytes> total, free;    // of the device
  std::optional<Bytes> allowed;        // by a memory fraction
  std::optional<Bytes> process;        // all that this process has, PyTorch's memory included
  std::optional<Bytes> allocated;      // by PyTorch
  std::optional<Bytes> private_pools;  // of graphs: reserved, and no other's
  std::optional<Bytes> unallocated;    // reserved by PyTorch, and not allocated
};

// Throws Error where the text is no such message; what it does not say is absent.
OomMessage parse_oom_message(std::string_view text);

enum class OomCause : std::uint8_t {
  fragmentation,  // what is reserved but unallocated would have been enough
  both,           // it would be, with what the device has free
  need,           // there is not enough in all
  others,         // other processes have what is missing
  not_said,       // the message has no figures
};

struct OomExplanation {
  OomMessage message;
  OomCause cause = OomCause::not_said;
  Bytes missing = 0;                    // at least; of a need
  std::optional<Bytes> beside_pytorch;  // of this process: CUDA's context, libraries
  std::optional<Bytes> of_others;       // processes
  std::vector<std::string> sentences;
  std::vector<std::string> next;  // what to try, best first
};

// `settings`: PYTORCH_CUDA_ALLOC_CONF as it was, so that nothing is advised that is there already. Throws Error where
// they are none.
OomExplanation explain_oom(const OomMessage& message, std::string_view settings);

}  // namespace tencache
