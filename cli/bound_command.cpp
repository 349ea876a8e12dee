// `tencache bound`: the lower bound of the iteration time, its terms, and where they bind. studies/bound.h says why it
// holds.
#include <CLI/CLI.hpp>
#include <memory>

#include "answers/bound.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"
#include "studies/bound.h"

namespace tencache {

void add_bound_command(CLI::App& app, Command& chosen) {
  struct Arguments {
    Scenario scenario;
    bool json = false;
    Json command;  // for the manifest
  };
  CLI::App* command = app.add_subcommand("bound", "The lower bound of the iteration time, and what binds");
  auto arguments = std::make_shared<Arguments>();
  add_machine_options(*command, arguments->scenario);
  command->add_flag("--json", arguments->json, "The same as JSON");
  command->footer(
      "No policy is faster: the compute of the GPU and of the CPU, and what must cross the machine's links beyond "
      "what\n"
      "its memory holds, window by window. Exit code 1: the trace fits under no policy at all.\n\n"
      "Examples:\n"
      "  tencache bound step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache bound step.trace.jsonl.zst -m my-computer.yaml --gpu-memory 8GiB --json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] {
      const Workload workload = load_workload(arguments->scenario);
      const std::int64_t start = tool_clock_ns();
      const Bound bound = lower_bound_of(*workload.trace, workload.machine);
      const BoundAnswer answer = bound_answer(workload, bound, seconds_since(start));
      print_answer(answer, arguments->json, arguments->command);
      return bound.misfit.empty() ? ExitCode::done : ExitCode::answer_is_no;
    };
  });
}

}  // namespace tencache
