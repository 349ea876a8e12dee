// How far a generation can grow before memory runs out: the largest block and the longest prompt that a policy runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "studies/workload.h"

namespace tencache {

// What grows, all else as asked: requests of a micro-batch, micro-batches, tokens of each prompt.
enum class GenerationAxis : std::uint8_t { requests, micro_batches, prompt };
template <>
inline constexpr auto enum_texts<GenerationAxis> = std::to_array<std::string_view>({"requests", "micro-batches",
                                                                                    "prompt"});

struct LargestGeneration {
  std::string policy, axis;
  std::uint64_t asked = 0;
  std::optional<std::uint64_t> largest;  // none: not even 1
  std::optional<std::string> overflow;   // of the next larger one: the tier, the op and its step; none: see `limit`
  std::optional<std::string> limit;      // why nothing larger was tried
};

// The axes of a workload's generation that can be searched. In row order the number of micro-batches takes no memory, and
// of several lengths of prompts none is searched. Empty: it is no generation, or `tencache generate` did not make it.
std::vector<GenerationAxis> axes_of(const Workload& workload);
// "requests,prompt", or all. Throws Error for what cannot be searched.
std::vector<GenerationAxis> parse_axes(const std::string& text, const Workload& workload);

// Of an axis of axes_of(). Takes for granted that less never takes more memory. Throws Error for an unknown policy or
// option.
LargestGeneration largest_generation(const Workload& workload, GenerationAxis axis, const std::string& policy,
                                     const std::map<std::string, std::string>& settings);

}  // namespace tencache
