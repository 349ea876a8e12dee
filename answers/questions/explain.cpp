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
