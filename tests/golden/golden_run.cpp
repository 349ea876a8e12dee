#include "tests/golden/golden_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <tuple>

#include "policies/registry.h"
#include "sim/simulate.h"
#include "tests/profiled_program.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string blanks(width > text.size() ? width - text.size() : 0, ' ');
  return left ? blanks + text : text + blanks;
}

std::string line_of(const Span& span, const Trace& trace, const MachineSpec& machine, Nanoseconds from_ns) {
  const std::string op(span.op == none ? "-" : trace.name(trace.ops[span.op]));
  std::string lane = span.lane == gpu_lane ? "gpu" : span.lane == cpu_lane ? "cpu" : "comm", what;
  switch (span.kind) {
    case SpanKind::op:
      what = "run " + op;
      break;
    case SpanKind::gap:
      what = "gap";
      break;
    case SpanKind::stall:
      what = "stall before " + op + ": " + std::string(to_string(span.cause));
      break;
    case SpanKind::transfer:
      lane = machine.links[span.lane - first_link_lane].name;
      what = "copy " + trace.name(trace.tensors[span.tensor]) + " (" + std::to_string(span.bytes) + " bytes)" +
             (span.urgent ? ", urgent" : "") + ", asked for at " + op;
      break;
    case SpanKind::move:
      what = "move " + trace.name(trace.tensors[span.tensor]) + " (" + std::to_string(span.bytes) + " bytes)";
      break;
  }
  return padded(std::to_string(span.start_ns - from_ns), 6, true) +
         padded(std::to_string(span.end_ns - from_ns), 7, true) + "  " + padded(lane, 5, false) + what + "\n";
}

}  // namespace

std::vector<std::string> plan_of(const std::string& policy, const Settings& settings, const Trace& trace,
                                 const MachineSpec& machine) {
  const MadePolicy made = make_policy(policy, settings);
  const ProfiledProgram profiled(trace, machine);
  std::vector<std::string> plan;
  Actions actions;
  made.policy->on({.kind = EventKind::profile_ready}, profiled.view, actions);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    actions.list().clear();
    made.policy->on({.kind = EventKind::op_issued, .op = op}, profiled.view, actions);
    for (const Action& action : actions.list()) {
      plan.push_back(std::to_string(op) + ": " + std::string(to_string(action.verb)) + " " +
                     trace.name(trace.tensors[action.tensor]) +
                     (action.verb == Verb::evict ? " to " + machine.tiers[action.destination].name : ""));
    }
  }
  return plan;
}

std::string render(const GoldenRun& run, const Program& program, const MachineSpec& machine, const std::string& title,
                   std::size_t first_iteration) {
  std::vector<Span> spans = run.timeline.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const Span& x, const Span& y) {
    return std::tie(x.start_ns, x.end_ns, x.lane) < std::tie(y.start_ns, y.end_ns, y.lane);
  });
  std::ostringstream text;
  text << "# " << title << ", GPU of " << machine.tiers[0].capacity << " bytes. Times in simulated ns.\n";
  for (const std::string& change : program.changes) text << "# " << change << "\n";
  std::size_t iteration = first_iteration;
  const Nanoseconds from_ns = run.begin_of(first_iteration);
  for (const Span& span : spans) {
    if (span.start_ns < from_ns) continue;
    while (iteration <= run.result.iterations && span.start_ns >= run.begin_of(iteration)) {
      text << "iteration " << ++iteration << "\n";
    }
    text << line_of(span, program.trace, machine, from_ns);
  }
  for (std::size_t i = 0; i < run.result.iteration_ns.size(); ++i) {
    text << "iteration " << i + 1 << " took " << run.result.iteration_ns[i] << "\n";
  }
  if (run.result.iterations > 0) {
    text << "last iteration: compute " << run.result.window.compute_ns << ", gap " << run.result.window.gap_ns;
    for (const StallCause cause : all_causes) {
      if (run.result.window.stall_ns[cause] == 0) continue;
      text << ", stall " << to_string(cause) << " " << run.result.window.stall_ns[cause];
    }
    text << "\n";
  }
  if (!run.result.fits) text << run.result.misfit << "\n";
  return text.str();
}

GoldenRun run_golden(const std::string& name, const Settings& settings, const Trace& trace,
                     const MachineSpec& machine) {
  const MadePolicy made = make_policy(name, settings);
  const Program program = lower(trace, *made.policy, machine);
  program.trace.validate();
  GoldenRun run;
  run.result = simulate(program, machine, *made.policy, {.max_iterations = 8, .until_steady = true},
                        {.timeline = &run.timeline, .log = nullptr, .on_iteration = {}});
  std::string title = name;  // NOLINT(performance-unnecessary-copy-initialization): changed below
  for (const auto& [option, value] : settings) title += " " + option + "=" + value;
  run.text = render(run, program, machine, title);
  return run;
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(TENCACHE_SOURCE_DIR) / "tests" / "goldens" / (name + ".txt");
  if (const char* update = std::getenv("TENCACHE_UPDATE_GOLDENS"); update != nullptr && std::string(update) == "1") {
    std::ofstream(file, std::ios::binary) << text;
    ADD_FAILURE() << "TENCACHE_UPDATE_GOLDENS=1: " << file.string()
                  << " was rewritten, not compared. Look at the diff, then run again without it.";
    return;
  }
  std::ifstream stream(file, std::ios::binary);
  ASSERT_TRUE(stream) << file.string() << " is missing; TENCACHE_UPDATE_GOLDENS=1 writes it";
  const std::string golden{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  EXPECT_EQ(golden, text) << "the timeline is not that of " << file.string()
                          << "; if the change is wanted, run with TENCACHE_UPDATE_GOLDENS=1 and look at the diff";
}

}  // namespace tencache
