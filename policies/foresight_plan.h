// The static half of foresight: of a known future, what a memory of a certain size cannot keep; and, from what that
// would move, where the optimizer's updates run. All of it is pure.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/schedule.h"
#include "core/trace.h"

namespace tencache {

// A program as one memory sees it: the uses of some of its ops.
struct Seen {
  const Trace& trace;
  const Schedule& schedule;
  const std::vector<Device>& devices;
  const std::vector<Nanoseconds>& clock_ns;  // when each op begins; at last the iteration's end
  const std::vector<double>& weights;  // by op: a period before it counts as so many times shorter; empty: as it is
  bool gpu_only;  // ops of the GPU, and what the CPU writes in between has to come in; else all ops
};
// Which periods between two uses a memory of that many bytes cannot bridge: Belady's choice for a known future as
// OPTgen (Jain and Lin, ISCA'16) makes it, but by length: the shortest are kept, as long as what is kept fits at every
// op in between. Those at whose end the content is overwritten come last: they leave before all that has to come back
// (the engine throws no content of a living tensor away, so they have to be copied down all the same). The answer is by
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

// What the CPU updates starts in CPU memory, since it may have no way there from elsewhere; so does a role most of
// which no op writes (frozen weights), if it fits, since nothing would ever bring it there. Where all would start there
// and not fit, the rest starts on the GPU: else what need never lie in storage would take iterations to come up.
void choose_initial_tiers(const Trace& trace, const MachineSpec& machine, Layout& layout);

// Moves that share of the updates' bytes from the GPU to the CPU: the last ones, whose parameters the next forward pass
// needs last.
void place_share(const Trace& trace, double share, std::vector<Device>& devices);

// Sub-groups in the order in which the next iteration first reads what they write.
void order_by_next_use(const Trace& trace, std::vector<std::int32_t>& groups);

// Moves the share that an estimate takes to be fastest; none if the machine states no CPU rate, or if there is nothing
// but updates.
void place_updates(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices);

}  // namespace tencache
