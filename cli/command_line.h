// The `tencache` command: one file a subcommand, each of which adds itself here.
//
// The contract with scripts: results on stdout, everything else on stderr; with --json one JSON document on stdout and
// nothing else there. Exit codes are those of core/error.h. Errors are one line, "tencache: what, where, what to do".
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tencache {

// Parses, runs, reports errors. Returns the exit code.
int run_command_line(int argc, const char* const* argv);

// An empty value of this option is bad usage. Returns the option.
CLI::Option* refuse_empty(CLI::Option* option);

// What the chosen subcommand does; set while the arguments are parsed, called after.
using Command = std::function<ExitCode()>;

// Each adds its subcommand (or subcommands) to `app`.
void add_generate_command(CLI::App& app, Command& chosen);
void add_import_command(CLI::App& app, Command& chosen);
void add_gui_command(CLI::App& app, Command& chosen);
void add_question_commands(CLI::App& app, Command& chosen);
void add_diff_command(CLI::App& app, Command& chosen);
void add_reproduce_command(CLI::App& app, Command& chosen);
void add_run_replay_command(CLI::App& run, Command& chosen);
void add_run_python_command(CLI::App& run, Command& chosen);
void add_calibrate_command(CLI::App& app, Command& chosen);
void add_prices_command(CLI::App& app, Command& chosen);
void add_completion_command(CLI::App& app, Command& chosen);
void add_listing_commands(CLI::App& app, Command& chosen);
void add_validate_command(CLI::App& app, Command& chosen);

// One more command, of a library that this one does not know; before the first is run.
void offer_command(void (*add)(CLI::App& app, Command& chosen));

}  // namespace tencache
