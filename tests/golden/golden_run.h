// Golden tests of policies: a run's whole timeline as text, with simulated times, beside tests/goldens/<name>.txt.
//
// After a wanted change: TENCACHE_UPDATE_GOLDENS=1 rewrites the files, and the tests fail so that the diff gets looked
// at.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "tests/small_cases.h"

namespace tencache {

using Settings = std::map<std::string, std::string>;

struct GoldenRun {
  RunResult result;
  Timeline timeline;
  std::string text;

  Nanoseconds stall(StallCause cause) const { return result.window.stall_ns[cause]; }
  Nanoseconds begin_of(std::size_t iteration) const {
    Nanoseconds begin_ns = 0;
    for (std::size_t i = 0; i < iteration; ++i) begin_ns += result.iteration_ns.at(i);
    return begin_ns;
  }
  // How long the GPU stood still before each of its ops of the iteration (counted from 0).
  std::vector<Nanoseconds> waits(std::uint64_t iteration) const {
    std::vector<Nanoseconds> list;
    Nanoseconds end_ns = 0;
    for (const Span& span : timeline.spans) {
      if (span.kind != SpanKind::op || span.lane != 0) continue;
      if (span.iteration == iteration) list.push_back(span.start_ns - end_ns);
      end_ns = span.end_ns;
    }
    return list;
  }
  // Transfers that began in the iteration.
  std::size_t transfers(std::size_t iteration, LinkId link) const {
    const Nanoseconds begin_ns = begin_of(iteration), end_ns = begin_of(iteration + 1);
    return static_cast<std::size_t>(std::count_if(timeline.spans.begin(), timeline.spans.end(), [=](const Span& span) {
      return span.kind == SpanKind::transfer && span.lane == first_link_lane + link && span.start_ns >= begin_ns &&
             span.start_ns < end_ns;
    }));
  }
};
inline constexpr LinkId h2d = 0, d2h = 1;  // of small_machine

// Lowers the trace for the policy and runs it until an iteration ends in the state in which one before ended.
GoldenRun run_golden(const std::string& policy, const Settings& settings, const Trace& trace,
                     const MachineSpec& machine);
// What a policy that plans asks for when each op is issued, in the first iteration: "3: evict a to nvme". Nothing is
// where it could leave or be fetched from, so only the plan shows.
std::vector<std::string> plan_of(const std::string& policy, const Settings& settings, const Trace& trace,
                                 const MachineSpec& machine);
// The timeline of a run as text, with times from the first iteration that is shown, counted from 0.
std::string render(const GoldenRun& run, const Program& program, const MachineSpec& machine, const std::string& title,
                   std::size_t first_iteration = 0);
void expect_golden(const std::string& name, const std::string& text);

}  // namespace tencache
