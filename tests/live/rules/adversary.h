// Decides what the device does next, against the code under test: a device may run what it was given at any moment that
// the rules allow, and each strategy is one extreme of that.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tests/live/rules/device_job.h"
#include "tests/property/random_case.h"

namespace tencache::rules {

enum class Strategy : std::uint8_t {
  eager,          // everything at once
  forced,         // nothing before somebody waits for it
  copies_first,   // copies at once, kernels when somebody waits for them
  kernels_first,  // the other way round
  starved,        // one stream only when somebody waits for it, the others at once
  random,
};
inline constexpr std::array strategy_names = {"eager", "forced", "copies first", "kernels first", "starved", "random"};

// The first job of a stream that may run.
struct Enabled {
  Line stream = 0;
  JobKind kind = JobKind::kernel;
};

class Adversary {
 public:
  Adversary(Strategy strategy, std::uint64_t seed) : strategy_(strategy), random_(seed ^ 0x616476657273) {}

  // Which of them runs now, asked at each call of the driver until it is none.
  std::optional<std::size_t> choose(std::span<const Enabled> enabled);
  // Somebody waits: how often others may go on before the device does what is waited for.
  std::uint64_t patience() { return strategy_ == Strategy::eager ? 0 : random_.below(4); }
  // What the driver is free to do either way.
  bool coin() { return random_.one_in(2); }
  Strategy strategy() const { return strategy_; }

 private:
  Strategy strategy_;
  Random random_;
  Line starved_ = 0;
};

}  // namespace tencache::rules
