// What a run writes to each SSD, and how long the SSD is rated to take that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "sim/policy_run.h"

namespace tencache {

struct WearOptions {
  double duty = 1;                  // share of the day that is trained
  double write_amplification = 1;   // bytes written to flash ÷ bytes written by the host
  std::optional<Bytes> rated;       // terabytes written that one SSD is rated for
  double drive_writes_per_day = 1;  // of the rating where `rated` is not given: over `warranty_years`
  double warranty_years = 5;
};

// One tier of storage; the SSDs of a tier share its writes evenly. Ranks that share a tier's links write to the same
// SSDs (their capacities add up to the tier's), others to SSDs of their own.
struct TierWear {
  std::string tier;
  std::uint32_t devices = 1;        // SSDs, of all ranks
  Bytes capacity = 0;               // of one SSD: what tensors may use of it
  double bytes_per_iteration = 0;   // of one SSD, as are those below; the host's
  double bytes_per_day = 0;         // of its flash
  double drive_writes_per_day = 0;  // bytes_per_day ÷ capacity
  double rated_bytes = 0;
  std::optional<double> years;  // none: nothing is written
};

// Every tier of storage of the machine, in a run that fits, at its steady rate. Of the links that lead to a tier the
// largest number of devices counts (MachineSpec: `devices`), or its number of directories.
std::vector<TierWear> wear_of(const Outcome& outcome, const MachineSpec& machine, const WearOptions& options);

}  // namespace tencache
