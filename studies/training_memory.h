// What a generated training step keeps for its parameters, by kind of parameter, and the formula of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/generate/generate.h"

namespace tencache {

struct KindMemory {
  std::string kind;              // ParameterKind in words
  std::uint64_t parameters = 0;  // tensors
  std::uint64_t frozen = 0;      // of them
  Bytes parameter_bytes = 0, gradient_bytes = 0, master_bytes = 0, state_bytes = 0;
  std::string states;  // the formula, of a matrix m × n with m ≤ n and rank r
};

// Of the first rank. `trace` is generated with these options. Gradients are of all parameters together, though not all
// of them need be alive at once.
std::vector<KindMemory> memory_by_kind(const Trace& trace, const GenerateOptions& options);

}  // namespace tencache
