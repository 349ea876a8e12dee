// What a run writes to each SSD, and how long the SSD is rated to take that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "studies/policy_run.h"

namespace tencache {

struct WearOptions {
  double duty = 1;                 // share of the day that is trained
  double write_amplification = 1;  // bytes written to flash ÷ bytes written by the host
  // What one SSD is rated to have written: so many bytes, or else so many of its capacities a day over the warranty.
  // With neither it is what the machine says (Tier::rated_written_bytes), or else one capacity a day.
  std::optional<Bytes> rated = {};
  std::optional<double> drive_writes_per_day = {};
  double warranty_years = 5;
};

// One tier of storage; the SSDs of a tier share its writes evenly. Ranks that share a tier's links write to the same
// SSDs (their capacities add up to the tier's), others to SSDs of their own.
struct TierWear {
  std::string tier;
  std::uint32_t ssds = 1;                      // of all ranks
  std::optional<Bytes> ssd_capacity_bytes;     // of one SSD: what tensors may use of it; none: not known
  double ssd_written_bytes_per_iteration = 0;  // of one SSD, as are those below; the host's
  double ssd_written_bytes_per_day = 0;        // of its flash
  std::optional<double> drive_writes_per_day;  // ÷ capacity
  std::optional<double> ssd_rated_bytes;       // none: not known, as a default takes a known capacity
  std::optional<std::string> rated_by;         // "options", "machine", "assumed"; none: not rated
  std::optional<double> years;                 // none: nothing is written, or not known
};

// Whether the tier is a parallel file system, which is no SSD of the machine: one named pfs.
bool is_parallel_file_system(const Tier& tier);

// Every tier of storage of the machine but parallel file systems, in a run that fits, at its steady rate. Of the links
// that lead to a tier the largest number of devices counts (MachineSpec: `devices`), or its number of directories.
std::vector<TierWear> wear_of(const Outcome& outcome, const MachineSpec& machine, const WearOptions& options);

}  // namespace tencache
