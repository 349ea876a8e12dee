#include "answers/compare.h"

#include <fmt/format.h>

#include "answers/questions.h"
#include "core/remark.h"
#include "studies/scenario_options.h"

namespace tencache {

std::unique_ptr<Question> compare_question() {
  auto question = std::make_unique<Question>("compare");
  question->help = {
      .summary = "Simulate a trace under several policies: a table, best first",
      .json = "A list of results as JSON, the rows of the table",
      .footer =
          "The lower bound and `ideal` are always rows; the bound is no policy and cannot be named in --policies. Exit "
          "code 1: the trace fits under none of the policies asked for. Rows that do not fit come last, with the "
          "reason.\n"
          "`runs with` is the system that runs such a step under the policy today; the fastest is named of those that "
          "can "
          "be run.\n\n"
          "Examples:\n"
          "  tencache compare step.trace.jsonl.zst --machine g10-a100\n"
          "  tencache compare step.trace.jsonl.zst --machine g5.xlarge --samples 100\n"
          "  tencache compare step.trace.jsonl.zst -m my-computer.yaml --policies on-demand,layer-streaming --json"};
  question->repeatable = true;
  auto request = std::make_shared<CompareRequest>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  add_price_options(options, request->scenario.prices);
  options.text("--policies,-p,--policy", request->policies, "Names separated by commas, or all");
  options.flag("--any-policy", request->any_policy, "The fastest may be a policy that no system runs on such a step");
  add_sample_options(options, request->scenario.sampling);
  question->ask = [request, question = question.get()] {
    ProgressLine progress;
    const Comparison comparison =
        compare_policies(*request, [&](std::size_t done, std::size_t all, const std::string& policy) {
          progress.show(fmt::format("{} of {}: {}", done + 1, all, policy));
        });
    return answered(compare_answer(comparison, request->any_policy), comparison.any_fits, command_json(*question));
  };
  return question;
}

}  // namespace tencache
