// Small changes to a whole trace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace.h"

namespace tencache {

// A trace without the names of what was trained, to share it outside. Tensors are called after their role and number in
// it ("parameter.0"), modules "module.0", …, ops "op.0", … with one number a name, each in order of first appearance,
// and the model "model"; collectives' keys likewise. The header's recorded_by and made_with, which may quote commands
// and paths, become "names stripped" and empty. Sizes, times, order and roles stay, so every result stays the same, but
// for what a policy or the kernel model reads from names (fused attention is recognised by its op's name: such ops keep
// the name "scaled_dot_product.N"). What is not secret in itself stays: batch, sequence length, precision, hardware,
// made_by.
Trace strip_names(const Trace& trace);

// A trace whose durations vary as a rerun's would: each op's duration multiplied by 1 + spread·u or divided by it, u
// uniform from 0 to 1, up and down alike. The same seed gives the same trace on every computer (mt19937_64 and the four
// operations of IEEE arithmetic). Gaps, and what the machine says how long it takes (transfers, updates that a policy
// moves to the CPU), stay.
Trace jittered(Trace trace, double spread, std::uint64_t seed);

// A recording made smaller, so that it can be run on a computer that the original would not fit: multiplies the bytes
// of every tensor (none becomes less than 1) and every duration and gap, rounded down. The traffic that an op says it
// has (Op::bytes) scales with the bytes.
void scale_trace(Trace& trace, double bytes_factor, double time_factor);

// "1/1024", "0.25" or "0". Throws Error naming `option` for anything else, a factor below 0 or above 1.
double parse_scale(const std::string& option, const std::string& text);

// One trace of several recordings of the same step: the first trace with each op's duration replaced by the median over
// all, then all of them scaled so that their sum is that of the median step; gaps likewise. Delays hit some ops of
// every step and few ops in most: the sum of medians alone is of a step faster than any. Throws Error where their ops
// or tensors differ. `traces` is not empty.
Trace median_trace(const std::vector<Trace>& traces);

}  // namespace tencache
