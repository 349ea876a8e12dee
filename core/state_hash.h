// A hash of a state that recurs: what a simulated machine and an engine compare to find a steady state. It tells the
// order in which values were mixed. The function is FNV-1a (Fowler, Noll, Vo) over words of 64 bits, with a shift that
// brings high bits down.
#pragma once

#include <cstdint>

namespace tencache {

class StateHash {
 public:
  void mix(std::uint64_t value) {
    value_ ^= value;
    value_ *= 1099511628211ull;
    value_ ^= value_ >> 29;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 1469598103934665603ull;
};

}  // namespace tencache
