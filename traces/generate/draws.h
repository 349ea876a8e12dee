// Inside the generator: pseudorandom numbers (core/splitmix.h).
#pragma once

#include <cstdint>

#include "core/splitmix.h"

namespace tencache::generator {

inline std::uint64_t next(std::uint64_t& state) { return splitmix(state); }

inline std::uint64_t seed_of(std::uint64_t seed, std::uint64_t layer, std::uint64_t stream) {
  std::uint64_t state = seed;
  state = next(state) ^ layer;
  state = next(state) ^ stream;
  return next(state);
}

inline std::uint64_t below(std::uint64_t& state, std::uint64_t bound) { return (next(state) >> 32) * bound >> 32; }

}  // namespace tencache::generator
