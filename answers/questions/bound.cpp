#include "answers/bound.h"

#include "answers/questions.h"
#include "configs/tool_clock.h"
#include "studies/bound.h"
#include "studies/scenario_options.h"

namespace tencache {

std::unique_ptr<Question> bound_question() {
  auto question = std::make_unique<Question>("bound");
  question->help = {
      .summary = "The lower bound of the iteration time, and what binds",
      .json = "The same as JSON",
      .footer =
          "No policy is faster: the compute of the GPU and of the CPU, and what must cross the machine's links beyond "
          "what\n"
          "its memory holds, window by window. Exit code 1: the trace fits under no policy at all.\n\n"
          "Examples:\n"
          "  tencache bound step.trace.jsonl.zst --machine g10-a100\n"
          "  tencache bound step.trace.jsonl.zst -m my-computer.yaml --gpu-memory 8GiB --json"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<BoundAnswer>(
        "bound", "A TenCache lower bound",
        "What `tencache bound --json` prints. Seconds per iteration. A window runs from its first op to its "
        "last, and around the end of the iteration if the last op comes before the first.")};
  };
  auto scenario = std::make_shared<Scenario>();
  add_machine_options(question->options, *scenario);
  question->ask = [scenario, question = question.get()] {
    const Workload workload = load_workload(*scenario);
    const std::int64_t start = tool_clock_ns();
    const Bound bound = lower_bound_of(*workload.trace, workload.machine);
    const std::optional<double> recorded = recorded_bound_seconds(*workload.trace, workload.machine);
    return answered(bound_answer(workload, bound, recorded, seconds_since(start)), bound.misfit.empty(),
                    command_json(*question));
  };
  return question;
}

}  // namespace tencache
