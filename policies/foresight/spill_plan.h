// Step 2 of foresight.cpp as the run asks it: what becomes of a tensor's content after its last use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/policy.h"
#include "core/trace.h"
#include "core/units.h"
#include "policies/foresight/ways.h"

namespace tencache {

// Whether the two memories keep the same chunks. `gpu`: what only storage has besides leaves the GPU last. `both`: and
// what the GPU has leaves CPU memory first. Each chunk then lies in one of them, as far as there is a choice, and the
// two hold more together ("exclusive caching": Wong and Wilkes, "My cache or yours?", USENIX ATC'02).
enum class Exclusive : std::uint8_t { none, gpu, both };

// The decisions that planning may move.
struct ForesightKnobs {
  std::uint64_t in_flight = 3;  // chunks asked for on a link at once
  double gpu_share = 0.95;      // of GPU memory that step 2 counts on
  bool follow = false;          // what step 2 keeps leaves after what it spills
  Exclusive exclusive = Exclusive::none;
  bool operator==(const ForesightKnobs&) const = default;
};

class SpillPlan {
 public:
  SpillPlan() = default;
  SpillPlan(const View& view, const Ways& ways, bool forgets, const ForesightKnobs& knobs);

  // The tensor's last use is now this one; index as Future::use_index.
  void used(TensorId tensor, std::size_t use);
  bool leaves_gpu(TensorId tensor) const { return away_now_[tensor] != 0; }     // before what the plan keeps
  bool worth_cleaning(TensorId tensor) const { return due_now_[tensor] != 0; }  // a copy below is of use
  bool worth_storing(TensorId tensor) const { return sink_now_[tensor] != 0; }  // so is one in storage
  void clean_all_the_same(TensorId tensor) { due_now_[tensor] = 1; }  // against the plan: it is worth its copy

  // The two memories hold all there is: nothing has to be stored.
  bool keeps_all() const { return budget_ == 0; }
  // Bytes that the GPU may still clean to storage in this iteration.
  Bytes budget() const { return budget_left_; }
  void spend(Bytes bytes) { budget_left_ -= bytes < budget_left_ ? bytes : budget_left_; }
  void begin_iteration() { budget_left_ = budget_; }

 private:
  std::vector<std::uint8_t> away_, due_, sink_;              // by use
  std::vector<std::uint8_t> away_now_, due_now_, sink_now_;  // by tensor, what its last use says
  Bytes budget_ = 0, budget_left_ = 0;
};

}  // namespace tencache
