// Another machine, another policy: a workload and the knobs that change it.
#pragma once

#include <string>
#include <vector>

#include "gui/model/simulator.h"

namespace tencache::gui {

struct Knob {
  enum class Kind : std::uint8_t { gpu_memory, cpu_memory, pcie, nvme, dram, gpu_speed, batch };
  Kind kind = Kind::gpu_memory;
  const char* name = "";  // of --change
  const char* label = "";
  double original = 1;  // bytes, bytes a second, or times as fast
  double value = 1;
  double least = 0, most = 1;
  double step = 0;  // the value is a multiple of it; 0: any
  double stepped() const;
  bool moved() const { return stepped() != original; }
  double original_share() const;  // where the original stands between least and most, 0 to 1, by the logarithm
  // "24.0 GiB", "12.0 GB/s", "× 1.50", "16".
  std::string text() const;
  // Sets the value from what a person typed, in the units of core/units.h ("24GiB", "12GB/s", "1.5"); the range grows
  // to hold it. Throws Error where it is no such thing, or not above 0.
  void parse(const std::string& typed);
};

class WhatIf {
 public:
  explicit WhatIf(Workload base);

  // Of what the machine has: no storage, no knob for it; of generated traces the batch.
  std::vector<Knob>& knobs() { return knobs_; }
  const std::vector<Knob>& knobs() const { return knobs_; }
  const Workload& base() const { return base_; }
  PolicyChoice policy;  // as the user set it
  // The base as the knobs, the policy and the options change it.
  Workload workload() const;
  bool changed() const;
  bool machine_changed() const;  // or the trace, by a knob
  void reset();
  // "gpu-memory=8GiB", "policy=lru". Throws Error that lists the valid names.
  void change(const std::string& assignment);

 private:
  Workload base_;
  std::vector<Knob> knobs_;
};

}  // namespace tencache::gui
