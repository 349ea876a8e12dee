#include "answers/explain.h"

#include <fmt/format.h>

#include "answers/questions.h"
#include "configs/tool_clock.h"
#include "core/remark.h"
#include "studies/scenario_options.h"

namespace tencache {
namespace {

struct ExplainQuestion {
  Scenario scenario;
  std::string policy;
  std::string policies = "foresight,g10,10cache,zero-infinity,on-demand";
  std::map<std::string, std::string> settings;
  std::size_t top = 5;
};

Answered explain_time(const ExplainQuestion& asked, const Json& command) {
  ExplainRequest request;
  request.policy = policies_named(asked.policy).front();
  if (asked.policy.find(',') != std::string::npos || asked.policy == "all") {
    throw Error("--policy: name one; others to set beside it go to --policies");
  }
  if (asked.policies != "none") request.other_policies = policies_named(asked.policies);
  request.settings = asked.settings;
  const Workload workload = load_workload(asked.scenario);
  request.trace = workload.trace.get();
  request.machine = &workload.machine;
  request.limits = limits_of(workload.scenario.iterations);
  request.tensors_confirmed = asked.top;
  const std::int64_t start = tool_clock_ns();
  Explanation explanation;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t expected) {
      progress.show(fmt::format(
          "{} of about {} simulations, {} left", done, expected,
          format_seconds(seconds_since(start) / static_cast<double>(done) * static_cast<double>(expected - done))));
    };
    explanation = explain(request);
  }
  ExplainAnswer answer =
      explain_answer(workload, std::move(explanation), references_of(workload), asked.top, seconds_since(start));
  const bool fits = answer.fits;
  return answered(std::move(answer), fits, command);
}

}  // namespace

std::unique_ptr<Question> explain_question() {
  auto question = std::make_unique<Question>("explain");
  question->help = {
      .summary = "Where the time goes, confirmed by simulations without each cause",
      .json = "The same as JSON (schemas/explain.schema.json)",
      .footer =
          "Attributed: how long the GPU stood for a cause. Confirmed: how much shorter the iteration is in a "
          "simulation without it; the rest is\n"
          "still there, or has moved to what binds next. docs/explain.md. Exit code 1: it does not fit.\n"
          "Then the ops, layers and tensors that wait longest; and what would help: twice as much of each figure of "
          "the machine, one at a time,\n"
          "and the other policies of --policies. All of it is simulated: a few dozen runs.\n\n"
          "Examples:\n"
          "  tencache explain step.trace.jsonl.zst -m 10cache-l40s -p 10cache\n"
          "  tencache explain step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --policies all --top 20 --json"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<ExplainAnswer>(
        "explain", "Where an iteration's time goes",
        "What `tencache explain --json` prints. docs/explain.md explains it. Of a run: iteration = compute + "
        "gap + stalls. Causes are those with a stall, the longest first: attributed = confirmed + still + "
        "moved. Taken away one after the other: confirmed + remainder = attributed. Where the trace does not "
        "fit, `run.fits` is false and the lists are empty.")};
  };
  auto request = std::make_shared<ExplainQuestion>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  options.text("--policy,-p", request->policy, "A name of `tencache policies`").needed();
  add_settings_option(options, request->settings);
  options.text("--policies", request->policies, "Others to try instead: names separated by commas, all, or none");
  options.whole("--top", request->top, 0, 1'000'000, "So many ops, layers and tensors");
  question->ask = [request, question = question.get()] { return explain_time(*request, command_json(*question)); };
  return question;
}

}  // namespace tencache
