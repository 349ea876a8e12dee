// Durations of a trace carried over from the GPU that they were recorded on (or modelled for) to another one, by the
// kernel model (traces/generate/kernel_model.h): each op takes its duration times the ratio of its modelled time on
// the one GPU to that on the other. What the recording knows beyond the model stays in it.
//
// The rules, op by op:
//
// 1. Only ops of the GPU; an op of the CPU, and every gap (the host's time), stays as it is.
// 2. An op with a rendezvous moves its bytes between GPUs: the ratio of their interconnects, latency included.
// 3. The rates are those of the trace's precision (fp32 where it does not say). A GPU that does not compute in bf16 or
//    fp16 is taken with the other of the two, or else with fp32; one that does not compute in fp8 is an error.
// 4. The memory traffic is Op::bytes or, where that is not known, the bytes of all tensors that the op reads and
// writes.
// 5. Flops are Op::flops; of fused attention (a name with "flash" or "scaled_dot_product") at the GPU's rate for that.
// 6. A modelled op without flops is elementwise. A measured one may just not have been counted: where it took more than
//    twice the time that its memory traffic explains, it is taken for arithmetic at the first GPU's reachable rate, so
//    that it scales by the ratio of arithmetic, else by that of memory bandwidth.
//
// docs/rescaling.md has the error of that, measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"
#include "traces/generate/kernel_model.h"

namespace tencache {

struct Rescaling {
  std::string from, to;       // GPUs
  std::string precision;      // whose rates: "bf16", or "bf16 (fp16 on t4)" by rule 3
  std::uint64_t ops = 0;      // of the GPU
  std::uint64_t guessed = 0;  // of them, those that rule 6 took for arithmetic
  double factor = 1;          // the GPU's time after ÷ before
};

// Rule 3. Throws Error for fp8 on a GPU without.
Precision precision_on(const GpuSpec& gpu, Precision wanted);

// Every rescaled op's source becomes `modelled`. Throws Error for a precision that the library does not know.
Rescaling rescale(Trace& trace, const GpuSpec& from, const GpuSpec& to);

// Durations of a trace that has none, such as of a model recorded without its memory: each GPU op takes its time by the
// GPU's kernel model (rules 2 to 5, an op without flops is elementwise) with the GPU's launch gap before it. All become
// `modelled`, and the header's hardware "modelled: GPU". Throws Error as rescale does.
void model_durations(Trace& trace, const GpuSpec& gpu, Nanoseconds launch_ns);

// The GPU of the list that the header's hardware names: "l40s", "modelled: l40s", or as its driver calls it ("NVIDIA
// H200", "Tesla V100-SXM2-16GB"): the one all of whose parts are there. nullptr: none, or several equally well.
const GpuSpec* find_gpu(const std::vector<GpuSpec>& gpus, const std::string& hardware);

}  // namespace tencache
