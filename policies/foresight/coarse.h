// What planning simulates in place of a long trace: fewer ops, tensors and chunks, which a memory of the same size
// serves in about the same time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

// Ops that follow each other become one, as long as they run on one device, in one phase and group, take little of the
// iteration's time and touch little of the GPU's memory; what is born and dies within is a workspace of the most that
// is alive there at once. Tensors that the same ops use in the same way lie one after the other in one. Chunks, and the
// machine's staging buffers with them, are as large as keeps their number small. A short trace stays as it is.
class CoarseTrace {
 public:
  // `parts`: about how many ops and chunks there will be. `chunk_bytes`: of the run, unless it moves whole tensors on
  // this machine; 0: whole tensors. Linear but for sorting.
  CoarseTrace(const Trace& trace, const MachineSpec& machine, Bytes chunk_bytes, std::size_t parts);

  const Trace& trace() const { return trace_; }
  const MachineSpec& machine() const { return machine_; }
  Bytes chunk_bytes() const { return chunk_bytes_; }
  bool has_storage() const;
  // What is said of the chunks of this trace (Rehearsal::tiers), said of the given trace's, in the run's chunks.
  std::vector<std::uint8_t> refined(const std::vector<std::uint8_t>& tiers) const;
  // And the other way round: of the chunks of the given trace, about.
  std::vector<std::uint8_t> coarsened(const std::vector<std::uint8_t>& tiers) const;

 private:
  struct Part {  // of a tensor here
    TensorId tensor = none;
    Bytes begin = 0, bytes = 0;
  };
  std::vector<std::uint32_t> merge_ops(const Trace& trace) const;
  void merge_tensors(const Trace& trace, const std::vector<std::uint32_t>& merged);
  void choose_chunks();
  Bytes parts_of_gpu() const;
  template <typename Visit>
  void each_chunk(Visit visit) const;

  std::size_t wanted_parts_;
  Trace trace_;
  MachineSpec machine_;
  Bytes fine_chunk_bytes_, chunk_bytes_;
  std::vector<Part> parts_;  // by tensor of the given trace; `none`: it lives within an op here
};

}  // namespace tencache
