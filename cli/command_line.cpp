#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>
#include <sstream>

#include "answers/embedding.h"
#include "cli/console.h"
#include "core/names.h"
#include "core/text.h"

namespace tencache {
namespace {

constexpr const char* examples =
    "Examples:\n"
    "  tencache import csv recording/ -o step.trace.jsonl.zst --hardware a100-40g\n"
    "  tencache info step.trace.jsonl.zst\n"
    "  tencache compare step.trace.jsonl.zst --machine g10-a100\n"
    "  tencache COMMAND --help\n\n"
    "Exit codes: 0 done, 1 the answer is no (does not fit, does not match), 2 bad usage or bad input.\n"
    "Sizes read 24GiB, 512MB, 1.5e9; times 10us; bandwidths 12GB/s.";

void add_commands(CLI::App& app, Command& chosen) {
  app.require_subcommand(1);
  add_generate_command(app, chosen);
  add_import_command(app, chosen);
  add_question_commands(app, chosen);
  add_diff_command(app, chosen);
  add_reproduce_command(app, chosen);
  add_validate_command(app, chosen);
  CLI::App* run = app.add_subcommand("run", "Execute on this computer: replay a trace, or run a PyTorch script");
  run->require_subcommand(1);
  run->footer("Examples:\n  tencache run replay --help\n  tencache run python -- train.py");
  add_run_replay_command(*run, chosen);
  add_run_python_command(*run, chosen);
  add_calibrate_command(app, chosen);
  add_gui_command(app, chosen);
  add_listing_commands(app, chosen);
  add_prices_command(app, chosen);
  add_completion_command(app, chosen);
}

// The innermost subcommand that the arguments reached.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty() && !option->get_group().empty())
      names.push_back("--" + option->get_lnames().front());
  }
  return names;
}

// One line that says what is valid instead.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<std::string> commands = subcommand_names(command);
  const std::vector<std::string> rest = command.remaining();
  const bool unexpected = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (unexpected && !rest.empty()) {
    const std::string& word = rest.front();
    if (word.starts_with("-")) {
      return "unknown option '" + word + "' of " + full_name(command) + "; " +
             valid_names(word, option_names(command), full_name(command) + " --help");
    }
    if (!commands.empty()) {
      return "unknown command '" + word + "' after '" + full_name(command) + "'; " +
             valid_names(word, commands, full_name(command) + " --help");
    }
    return "unexpected argument '" + word + "'; see " + full_name(command) + " --help";
  }
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!commands.empty() && missing)
    return "a command is missing after '" + full_name(command) + "'; valid are " + join(commands);
  std::string message = error.what();
  // CLI11's words for an option that comes more often than it may.
  const std::size_t too_often = message.find(": At Most 1 required but received ");
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && too_often != message.npos) {
    const std::string times = message.substr(message.rfind(' ') + 1);
    message = message.substr(0, too_often) + " is given " + (times == "2" ? "twice" : times + " times") +
              "; it takes one value";
  }
  std::ranges::replace(message, '\n', ' ');
  return message + "; see " + full_name(command) + " --help";
}

int report(const std::string& message, ExitCode code) {
  std::string line = "tencache: " + message;
  std::ranges::replace(line, '\n', ' ');
  remark(line);
  return static_cast<int>(code);
}

std::vector<void (*)(CLI::App& app, Command& chosen)>& offered() {
  static std::vector<void (*)(CLI::App & app, Command & chosen)> commands;
  return commands;
}

ExitCode run(int argc, const char* const* argv) {
  CLI::App app(
      "TenCache: does a training step fit, how fast will it be, and what holds it back. Replays recorded tensor "
      "traces\n"
      "through caching and prefetch policies, simulated and on real memory.",
      "tencache");
  Command chosen;
  app.set_version_flag("--version", "tencache " TENCACHE_VERSION, "Print the version and exit");
  app.footer(examples);
  add_commands(app, chosen);
  for (const auto add : offered()) add(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw Error(explain(app, error));
    std::ostringstream text;  // --help, --version
    app.exit(error, text, text);
    print(text.str());
    return ExitCode::done;
  }
  const CLI::Option* const json = innermost(app).get_option_no_throw("--json");
  hide_progress(json != nullptr && json->count() != 0);
  return chosen();
}

const bool embedded = (set_embedded_command_line(run), true);

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  try {
    return static_cast<int>(run(argc, argv));
  } catch (const Error& error) {
    return report(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return report("this computer has not enough memory for that", ExitCode::bad_usage);
  } catch (const std::exception& error) {
    return report(error.what(), ExitCode::bad_usage);
  } catch (...) {  // by code that is not ours
    return report("a policy of --policy-library threw what is no std::exception", ExitCode::bad_usage);
  }
}

CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check([](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); });
}

void offer_command(void (*add)(CLI::App& app, Command& chosen)) { offered().push_back(add); }
}  // namespace tencache
