#include "studies/generation.h"

#include <algorithm>

namespace tencache {
namespace {

double seconds_of_phase(const RunResult& result, Phase phase) {
  return per_iteration_seconds(result, result.window.phase_ns[static_cast<std::size_t>(phase)]);
}

}  // namespace

std::optional<Generation> generation_of(const Trace& trace, std::size_t rank) {
  Generation generation;
  bool prefills = false;        // the last op of the two phases was of a prefill
  std::uint32_t last_step = 0;  // of the pass; 0: it has none of decode yet
  std::uint32_t highest_step = 0;
  for (const Op& op : trace.ops) {
    if (op.rank != rank) continue;
    if (op.phase == Phase::prefill) {
      if (!prefills) ++generation.passes;
      prefills = true;
      last_step = 0;
    } else if (op.phase == Phase::decode) {
      prefills = false;
      const std::uint32_t step = std::max(trace.detail(op).step, 1u);
      if (step != last_step) ++generation.decode_steps;
      last_step = step;
      highest_step = std::max(highest_step, step);
    }
  }
  if (generation.passes + generation.decode_steps == 0) return std::nullopt;
  generation.requests = trace.header.batch;
  generation.new_tokens = highest_step + (generation.passes > 0 ? 1 : 0);
  generation.tokens = trace.header.tokens_per_iteration();
  return generation;
}

std::optional<double> time_to_first_token_seconds(const Generation& generation, const RunResult& result) {
  if (generation.passes == 0) return std::nullopt;
  return seconds_of_phase(result, Phase::prefill) / static_cast<double>(generation.passes);
}

std::optional<double> time_per_output_token_seconds(const Generation& generation, const RunResult& result) {
  if (generation.decode_steps == 0) return std::nullopt;
  return seconds_of_phase(result, Phase::decode) / static_cast<double>(generation.decode_steps);
}

std::optional<double> decode_tokens_per_second(const Generation& generation, const RunResult& result) {
  const double seconds = seconds_of_phase(result, Phase::decode);
  const std::uint64_t firsts = generation.passes > 0 ? generation.requests : 0;
  if (generation.tokens <= firsts || seconds <= 0) return std::nullopt;
  return static_cast<double>(generation.tokens - firsts) / seconds;
}

}  // namespace tencache
