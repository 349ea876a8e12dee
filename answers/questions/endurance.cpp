#include "answers/endurance.h"

#include <algorithm>

#include "answers/questions.h"
#include "policies/registry.h"
#include "studies/scenario_options.h"

namespace tencache {
namespace {

struct EnduranceQuestion {
  Scenario scenario;
  std::string rated;  // --tbw
  double duty_percent = 100;
  WearOptions wear;
};

Answered endurance(const EnduranceQuestion& asked, const Json& command) {
  WearOptions wear = asked.wear;
  if (!asked.rated.empty()) {
    try {
      wear.rated = parse_capacity(asked.rated, "TB");
      if (*wear.rated == 0) throw Error("must be above 0");
    } catch (const Error& error) {
      throw Error(std::string("--tbw: ") + error.what());
    }
  }
  wear.duty = asked.duty_percent / 100;
  const PolicyChoice& policy = asked.scenario.policy;
  const Workload workload = load_workload(asked.scenario);
  const auto& tiers = workload.machine.tiers;
  if (std::ranges::none_of(tiers, [](const Tier& tier) { return tier.kind == TierKind::nvme; })) {
    throw Error("machine '" + workload.machine.name + "' has no tier of kind nvme, so that nothing wears out");
  }
  make_policy(policy.name, policy.settings);  // a wrong name or option is bad usage
  const Outcome outcome = simulate_or_refuse(workload, policy.name, policy.settings);
  EnduranceAnswer answer = endurance_answer(workload, outcome, wear, asked.rated);
  const bool fits = answer.fits;
  return answered(std::move(answer), fits, command);
}

}  // namespace

std::unique_ptr<Question> endurance_question() {
  auto question = std::make_unique<Question>("endurance");
  question->help = {
      .summary = "What is written to each SSD, and how long it lasts",
      .json = "The same as JSON (schemas/endurance.schema.json)",
      .footer =
          "Exit code 1: the trace does not fit.\n\n"
          "Examples:\n"
          "  tencache endurance step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --tbw 600TB\n"
          "  tencache endurance --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p foresight --dwpd 1 --duty 50"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{
        schema_named<EnduranceAnswer>("endurance", "What is written to each SSD",
                                      "What `tencache endurance --json` prints. docs/explain.md explains it.")};
  };
  auto request = std::make_shared<EnduranceQuestion>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  add_policy_options(options, request->scenario.policy);
  WearOptions& wear = request->wear;
  options.word("--tbw", request->rated,
               "What each SSD is rated to have written, such as 600TB (default: the machine file's tbw)");
  options
      .real("--dwpd", wear.drive_writes_per_day, 1e-6, 1e6,
            "The same as whole drives a day, over --warranty-years (default: 1 where the machine file has no tbw)")
      .without("--tbw");
  options.real("--warranty-years", wear.warranty_years, 0.01, 100, "Of --dwpd").without("--tbw");
  options.real("--duty", request->duty_percent, 0.001, 100, "Percent of the day that is trained");
  options.real("--write-amplification", wear.write_amplification, 1, 100,
               "Bytes that reach flash for each that is written: 1 for large writes in order");
  question->ask = [request, question = question.get()] { return endurance(*request, command_json(*question)); };
  return question;
}

}  // namespace tencache
