// What a run on this computer may take of its memory and disks, said before it starts.
#pragma once

#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/metrics.h"

namespace tencache {

class Accelerator;

// Where the files of nvme tiers lie: what the user said, else the machine file, else the folder for large temporaries.
// Throws Error for what is no folder, or none that may be written.
void choose_directories(MachineSpec& machine, const std::vector<std::string>& directories);

// A tier's capacity is what it may use: where its disks have less free space, it is made smaller, and that is said on
// stderr. Each of `ranks`, whose machine this is one's part of, has its part of the free space. After
// choose_directories.
void fit_to_disks(MachineSpec& machine, std::uint64_t ranks = 1);

// Memory and disk that the run may take at most, against what is there. `demand`: bytes that a tier can come to hold;
// `unlimited`: unknown, then tiers count with their capacity. Says both on stderr; throws Error, ending in `advice`, if
// a known demand may not be met. With an accelerator the tiers of kind gpu take none of this computer's memory.
void state_room(const MachineSpec& machine, Bytes demand, const std::string& advice,
                const Accelerator* accelerator = nullptr);

// Says on stderr what a run of `iterations` is expected to write into files, going by a simulation of it.
void state_expected_writes(const MachineSpec& machine, const RunResult& expected, std::uint64_t iterations);

}  // namespace tencache
