// A trace's durations carried over to the GPU that a machine's file names (traces/transform/rescale.h,
// configs/gpus.yaml).
#pragma once

#include <optional>
#include <string>

#include "core/machine_spec.h"
#include "core/trace.h"
#include "traces/generate/gpu_time.h"
#include "traces/transform/rescale.h"

namespace tencache {

struct RescaleOptions {
  std::string assume_gpu;    // what the durations are of, where the trace does not say or is wrong; empty: as it says
  bool no_rescale = false;   // durations as they are
  bool where_known = false;  // for set_trace() (studies/workload.h): as they are, too, where rescaling is an Error
};

// Nothing is changed, and nullopt returned, where the machine names no GPU (one of the user's own, as `calibrate`
// writes it, or a stand-in), where its GPU is the trace's, and with no_rescale. Throws Error where it is not known
// which GPU the durations are of, for an unknown assumed GPU, and for a machine whose GPU is not known.
std::optional<Rescaling> rescale_to_machine(Trace& trace, const MachineSpec& machine,
                                            const RescaleOptions& options = {});

// With no_rescale, the GPU that the durations are of, where it is not the machine's: "a100-40g", "an unknown GPU"; else
// empty.
std::string taken_as_they_are(const Trace& trace, const MachineSpec& machine, const RescaleOptions& options);

// How far off the durations that are modelled may be: of the GPU that they were rescaled to or, where they were not,
// that the trace's header names. nullopt: none is modelled, or the GPU is in no list, so that nothing is known.
std::optional<GpuTime> modelled_gpu_time(const Trace& trace, const std::optional<Rescaling>& rescaling);

}  // namespace tencache
