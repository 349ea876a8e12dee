// 10Cache's rule for dividing memory into buffers of one size each, apart from the policy so that it can be tested on
// numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/units.h"

namespace tencache {

// One bar of the size histogram: tensors of exactly so many bytes.
struct TensorClass {
  Bytes bytes = 0;
  std::uint64_t tensors = 0;
};

struct BufferRule {
  double memory_bytes = 0;         // to divide among the classes by their share of all bytes
  double buffer_scale = 1;         // bytes of a buffer for each byte of its tensor (4 for a parameter's fp32 states)
  std::uint64_t all_up_to = 2;     // classes of so few tensors get a buffer for each
  std::uint64_t at_least = 0;      // what the ratio correction lifts a class to, as far as it has tensors
  std::vector<std::uint64_t> cap;  // by class; empty: its tensors
};

// Buffers by class: share × memory / size, rounded, at most the cap. The ratio correction then lifts classes below
// `at_least` with buffers of the most numerous class, where one size divides the other: a larger buffer makes several
// smaller ones, several smaller ones make a larger one. The donor keeps `at_least` of its own.
std::vector<std::uint64_t> ten_cache_buffers(std::span<const TensorClass> classes, const BufferRule& rule);

}  // namespace tencache
