// All that planning decides.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "policies/foresight/spill_plan.h"

namespace tencache {

struct ForesightPlan {
  std::optional<double> cpu_share;  // of the bytes that updates touch; none: where they run is not for it to say
  bool relieves_gpu = false;        // norms and small updates run on the CPU, too (place_norms, place_launches)
  bool latest_first = false;        // sub-groups in the order opposite to that of their next use
  ForesightKnobs knobs;
  std::vector<std::uint8_t> start = {};  // as Layout::start; empty: nothing is said
};

// It takes so little longer than the GPU computes that nothing is left to improve.
inline bool hardly_waits(Nanoseconds iteration_ns, Nanoseconds compute_ns) {
  return iteration_ns <= compute_ns + compute_ns / 400;
}

// All but where it starts.
bool decides_the_same(const ForesightPlan& a, const ForesightPlan& b);

// A plan as read by people: "cpu_share=0.44 gpu_share=0.95 follow=false".
std::string to_string(const ForesightPlan& plan);
std::string short_number(double value);  // "0.44", of a share

}  // namespace tencache
