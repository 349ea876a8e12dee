// What users of a model ask of a text generation: how long until the first token, how long for each one after it.
//
// A trace with ops of phase `prefill` or `decode` is one. A *pass* is what runs from one prefill to the next: the whole
// block if its micro-batches take turns (zigzag order), one micro-batch if they follow each other (row order). Time is
// that of Counters::phase_ns, so prefill and decode of an iteration add up to it, waiting included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/metrics.h"
#include "core/trace.h"

namespace tencache {

// Of one rank.
struct Generation {
  std::uint64_t requests = 0;      // of the block; 0: the trace does not say
  std::uint64_t new_tokens = 0;    // of a request: its steps, the prompt's included
  std::uint64_t passes = 0;        // each with a prefill
  std::uint64_t decode_steps = 0;  // of all passes together
  std::uint64_t tokens = 0;        // generated in an iteration; 0: the trace does not say
};
// None: it is no text generation.
std::optional<Generation> generation_of(const Trace& trace, std::size_t rank = 0);

// From the start of a pass to the end of its prefill, mean over passes. None: there is no prefill.
std::optional<double> time_to_first_token_seconds(const Generation& generation, const RunResult& result);
// Of a step of a pass after that, mean over steps and passes. None: there is no decode step.
std::optional<double> time_per_output_token_seconds(const Generation& generation, const RunResult& result);
// All tokens but the first of each request, over the time of decode steps. None: unknown, or there is no such token.
std::optional<double> decode_tokens_per_second(const Generation& generation, const RunResult& result);

}  // namespace tencache
