// Another machine, another policy: a scenario and the knobs that change it.
#pragma once

#include <string>
#include <vector>

#include "gui/model/scenario.h"

namespace tencache::gui {

struct Knob {
  enum class Kind : std::uint8_t { gpu_memory, cpu_memory, pcie, nvme, dram, gpu_speed };
  Kind kind = Kind::gpu_memory;
  const char* label = "";
  double original = 1;  // bytes, bytes a second, or times as fast
  double value = 1;
  double least = 0, most = 1;
  // "24.0 GiB", "12.0 GB/s", "× 1.50".
  std::string text() const;
  // Sets the value from what a person typed, in the units of core/units.h ("24GiB", "12GB/s", "1.5"). Throws Error.
  void parse(const std::string& typed);
};

class WhatIf {
 public:
  explicit WhatIf(Scenario base);

  // Of what the machine has: no storage, no knob for it.
  std::vector<Knob>& knobs() { return knobs_; }
  const std::vector<Knob>& knobs() const { return knobs_; }
  const Scenario& base() const { return base_; }
  std::string policy;
  std::map<std::string, std::string> options;  // as the user set them; the rest are the policy's defaults
  // The base as the knobs, the policy and the options change it.
  Scenario scenario() const;
  bool changed() const;
  void reset();

 private:
  Scenario base_;
  std::vector<Knob> knobs_;
};

}  // namespace tencache::gui
