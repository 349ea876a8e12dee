// The copies of all chunks (core/residency.h), kept in step with the machine, which maps their memory, and with the
// timeline, which records how full each tier is.
#pragma once

#include "core/engine/moment.h"
#include "core/engine/program_source.h"
#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/residency.h"
#include "core/timeline.h"

namespace tencache {

inline constexpr int failures_tolerated = 3;  // of one chunk in a row, then the machine's error ends the run

class MappedCopies {
 public:
  // All must outlive this object; `timeline` may be null.
  MappedCopies(const MachineSpec& spec, Machine& machine, Residency& memory, const ProgramSource& program,
               const Moment& moment, Timeline* timeline)
      : spec_(spec),
        machine_(machine),
        memory_(memory),
        program_(program),
        moment_(moment),
        timeline_(timeline),
        maps_(machine.maps()) {}

  // Absent -> reserved, and mapped. False if the tier has no place. Throws Error if the machine refuses the memory that
  // the tier is said to have, several times in a row; nothing has changed then.
  bool take(ChunkId chunk, TierId tier, MappedFor what = MappedFor::op);
  // To another place of its tier, for what comes over the link (no_link: for the op that waits). Returns how long that
  // takes by itself.
  Nanoseconds move(const Relocation& move, TierId tier, LinkId link);
  // Any -> absent. Nobody may read it.
  void free(ChunkId chunk, TierId tier);
  // The same, or, while a transfer reads it, condemned.
  void drop(ChunkId chunk, TierId tier);

 private:
  // The same as `take` and `free`; the machine or the timeline wants to know.
  bool take_and_tell(ChunkId chunk, TierId tier, MappedFor what);
  void free_and_tell(ChunkId chunk, TierId tier);
  void map(ChunkId chunk, TierId tier, MappedFor what);
  void sample(ChunkId chunk, TierId tier, Bytes used_before);

  const MachineSpec& spec_;
  Machine& machine_;
  Residency& memory_;
  const ProgramSource& program_;
  const Moment& moment_;
  Timeline* timeline_;
  bool maps_;  // the machine does
};

}  // namespace tencache
