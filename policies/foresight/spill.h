// Step 2 of foresight.cpp: of a known future, what a memory of a certain size cannot keep, and what that moves. All of
// it is pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/schedule.h"
#include "core/trace.h"
#include "policies/planning/kernels.h"

namespace tencache {

// A program as one memory sees it: the uses of some of its ops.
struct Seen {
  const Trace& trace;
  const Schedule& schedule;
  const std::vector<Device>& devices;
  const std::vector<Nanoseconds>& clock_ns;  // when each op begins; at last the iteration's end
  bool gpu_only;  // ops of the GPU, and what the CPU writes in between has to come in; else all ops
  bool forgets;   // as Layout::forgets_overwritten
};
// By tensor: whether an op writes it.
std::vector<bool> written_by(const Trace& trace);
// The ops that the memory sees, on its clock.
Kernels kernels_of(const Seen& seen);
// Which periods between two uses a memory of that many bytes cannot bridge: Belady's choice for a known future as
// OPTgen (Jain and Lin, ISCA'16) makes it, but by length: the shortest are kept, as long as what is kept fits at every
// op in between. Those at whose end the content is overwritten come last: they leave before all that has to come back
// (unless it `forgets`, content of a living tensor has to be copied down all the same). The answer is by
// use, as in Future::after: nonzero where the period after it is not kept. O(accesses × log ops).
std::vector<std::uint8_t> spilled(const Seen& seen, Bytes capacity);
// Whether what is copied down after a use is of use: the period after it is spilled, or one after that before the
// tensor is written again.
std::vector<std::uint8_t> worth_cleaning(const Seen& seen, const std::vector<std::uint8_t>& spilled);
// What spilling moves in an iteration, at best: each content once down, and up at each use after a spilled period.
struct Moved {
  Bytes all_up() const { return up[0] + up[1] + up[2] + up[3]; }
  Bytes all_down() const { return down[0] + down[1] + down[2] + down[3]; }

  std::array<Bytes, phase_count> up{}, down{};  // by phase: of the op that needs it, and of the op that wrote it
};
Moved moved_by(const Seen& seen, const std::vector<std::uint8_t>& spilled);

}  // namespace tencache
