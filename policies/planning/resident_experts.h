// Experts that the GPU has for good, where others are copied there for their ops or computed by the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/reveal.h"
#include "core/trace.h"

namespace tencache {

// By layer and expert: whether the GPU has it.
using OnGpu = std::vector<std::vector<std::uint8_t>>;

Bytes bytes_of(const Trace& trace, std::span<const TensorId> weights);
Bytes largest_expert(const Trace& trace, const Experts& experts);

// How many, as large as the largest, the GPU has room for beside all else and `buffer`.
std::size_t experts_that_fit(const Trace& trace, const MachineSpec& machine, const Experts& experts, Bytes buffer);

// The first of each layer, one of every layer after the other, until there are `count`.
OnGpu placed_evenly(const Experts& experts, std::size_t count);

// The ops of one expert, which follow each other.
struct ExpertOps {
  std::size_t begin = 0, end = 0;  // of what was decided
  Experts::Place place;
};
std::vector<ExpertOps> experts_of(std::span<const DecidedOp> decided, const Trace& trace, const Experts& experts);

}  // namespace tencache
