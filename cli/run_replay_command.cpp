#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_run_replay_command(CLI::App& run, Command& chosen) { add_question(run, chosen, run_replay_question()); }

}  // namespace tencache
