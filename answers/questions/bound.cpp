#include "answers/bound.h"

#include "answers/questions.h"
#include "configs/tool_clock.h"
#include "studies/bound.h"
#include "studies/scenario_options.h"

namespace tencache {

std::unique_ptr<Question> bound_question() {
  auto question = std::make_unique<Question>("bound");
  auto scenario = std::make_shared<Scenario>();
  add_machine_options(question->options, *scenario);
  question->ask = [scenario, question = question.get()] {
    const Workload workload = load_workload(*scenario);
    const std::int64_t start = tool_clock_ns();
    const Bound bound = lower_bound_of(*workload.trace, workload.machine);
    return answered(bound_answer(workload, bound, seconds_since(start)), bound.misfit.empty(), command_json(*question));
  };
  return question;
}

}  // namespace tencache
