// Options that several policies have, in the same words.
#pragma once

#include <string>

#include "policies/options.h"

namespace tencache {

// "overflow": what becomes of a program whose tensors do not fit, "oom" or "evict".
void add_overflow_option(Options& options, std::string& overflow);

// "chunk": the unit that moves; `or_staging`: whole tensors move in parts where staging buffers are between.
void add_chunk_option(Options& options, Bytes& chunk_bytes, bool or_staging = false);

// "limit": how much of the GPU's memory a plan fills.
void add_limit_option(Options& options, double& limit);

// "oracle": whether it is told what gates will decide (Policy::oracle).
void add_oracle_option(Options& options, bool& oracle);

// "promote" and "overlap_faults", as Layout has them: rules in which simulators differ.
void add_promote_option(Options& options, bool& promote);
void add_overlap_faults_option(Options& options, bool& overlap_faults);

}  // namespace tencache
