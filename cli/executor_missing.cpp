// Stands in for the commands of the executor in a build without it.
#include <CLI/CLI.hpp>

#include "cli/command_line.h"

namespace tencache {
namespace {

ExitCode missing() { throw Error("this command is not part of this build: configure it with -DTENCACHE_EXECUTOR=ON"); }

void add_missing(CLI::App& app, Command& chosen, const char* name, const char* description) {
  CLI::App* command = app.add_subcommand(name, description);
  command->allow_extras();
  command->footer("Not part of this build: configure it with -DTENCACHE_EXECUTOR=ON.");
  command->callback([&chosen] { chosen = missing; });
}

}  // namespace

void add_run_replay_command(CLI::App& run, Command& chosen) {
  add_missing(run, chosen, "replay", "Replay a trace on this computer's memory and files");
}

void add_calibrate_command(CLI::App& app, Command& chosen) {
  add_missing(app, chosen, "calibrate", "Measure this computer into a machine file");
}

}  // namespace tencache
