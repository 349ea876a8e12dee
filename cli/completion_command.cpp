// `tencache completion bash`: a script that completes command lines.
//
// It is a few lines and knows no command. It hands the words before the cursor to the hidden command `tencache
// __complete`, which answers from the very definitions that the command line is parsed with: a line per candidate, and
// last ":files" where names of files fit too.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "configs/gpu_yaml.h"
#include "configs/shipped_files.h"
#include "core/split.h"
#include "policies/registry.h"

namespace tencache {
namespace {

constexpr const char* bash_script = R"(# bash completion for tencache
_tencache() {
  # By blanks alone: bash itself would also part words at = and :.
  local -a words
  read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
  [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=('')
  local current=${words[-1]} candidate files=
  local before=${current%"${current##*[=:]}"}
  COMPREPLY=()
  while IFS= read -r candidate; do
    if [[ $candidate == :files ]]; then files=1; continue; fi
    COMPREPLY+=("${candidate#"$before"}")
  done < <("$1" __complete "${words[@]}" 2>/dev/null)
  if [[ $files ]]; then
    compopt -o filenames
    while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -f -- "${current##*[=:]}")
  elif [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
    compopt -o nospace
  fi
}
complete -F _tencache tencache
)";

struct Candidates {
  std::string current;  // what stands there already; only what begins with it is kept
  std::vector<std::string> words;
  bool files = false;

  void add(const std::string& word) {
    if (word.starts_with(current)) words.push_back(word);
  }
};

bool shown(const std::string& group) { return !group.empty(); }

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// CLI::IsMember lists what it takes in the name of the type: "TEXT:{light,dark}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == type.npos || end == type.npos) return {};
  return split(std::string_view(type).substr(begin + 1, end - begin - 1));
}

// The value that the option has among the words: as `--policy lru`, `-p lru` or `--policy=lru`.
std::string value_among(const std::vector<std::string>& words, const CLI::Option& option) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (words[i].starts_with("-") && option.check_name(words[i].substr(0, equals))) {
      if (equals != std::string::npos) return words[i].substr(equals + 1);
      if (i + 1 < words.size()) return words[i + 1];
    }
  }
  return "";
}

void add_policy_settings(const CLI::App& command, const std::vector<std::string>& words, const std::string& before,
                         Candidates& found) {
  const CLI::Option* option = command.get_option_no_throw("--policy");
  const std::string chosen = option == nullptr ? "" : value_among(words, *option);
  for (const PolicyInfo& policy : list_policies()) {
    if (policy.name != chosen) continue;
    for (const Options::Info& setting : policy.options) {
      const std::string key = before + setting.name + "=";
      if (found.current.starts_with(key)) {
        for (const std::string& choice : setting.choices) found.add(key + choice);
      } else {
        found.add(key);
      }
    }
  }
}

// What may follow an option, or stand for a positional. `before` is what of the word comes before the value ("-m=").
void add_values(const CLI::App& command, const CLI::Option& option, const std::vector<std::string>& words,
                const std::string& before, Candidates& found) {
  const auto is = [&option](const char* name) { return option.check_name(name); };
  const std::vector<std::string> choices = choices_of(option);
  for (const std::string& choice : choices) found.add(before + choice);
  if (!choices.empty()) return;
  if (is("--machine") || is("--model")) {
    for (const auto& [name, file] : shipped_files(is("--machine") ? "machines" : "models")) found.add(before + name);
    found.files = true;
  } else if (is("--policies") || is("--policy")) {
    // A list goes on after its last comma.
    const std::size_t comma = is("--policies") ? found.current.rfind(',') : std::string::npos;
    const std::string list = comma == std::string::npos ? before : found.current.substr(0, comma + 1);
    for (const PolicyInfo& policy : list_policies()) found.add(list + policy.name);
    if (is("--policies") && comma == std::string::npos) found.add(before + "all");
  } else if (is("--gpu") || is("--assume-gpu")) {
    for (const GpuSpec& gpu : list_gpus()) found.add(before + gpu.name);
  } else if (is("--set")) {
    add_policy_settings(command, words, before, found);
  } else {
    found.files = true;
  }
}

void add_options(const CLI::App& command, Candidates& found) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || !shown(option->get_group())) continue;
    found.add("--" + option->get_lnames().front());
  }
}

void add_subcommands(const CLI::App& command, Candidates& found) {
  for (const CLI::App* child : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (shown(child->get_group())) found.add(child->get_name());
  }
}

// The words of the command line from the first after the program's name; the last is the one to complete.
Candidates complete(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  const CLI::Option* open = nullptr;  // has yet to get its value
  bool positionals_only = false;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (open != nullptr) {
      open = nullptr;
    } else if (word == "--") {
      positionals_only = true;
    } else if (word.starts_with("-") && !positionals_only) {
      const CLI::Option* option = command->get_option_no_throw(word);
      if (option != nullptr && takes_value(*option)) open = option;
    } else if (const auto children =
                   command->get_subcommands([&word](const CLI::App* child) { return child->get_name() == word; });
               !children.empty()) {
      command = children.front();
    }
  }
  Candidates found;
  if (!words.empty()) found.current = words.back();
  const std::size_t equals = found.current.find('=');
  if (open != nullptr) {
    add_values(*command, *open, words, "", found);
  } else if (found.current.starts_with("-") && !positionals_only) {
    const CLI::Option* option =
        equals == std::string::npos ? nullptr : command->get_option_no_throw(found.current.substr(0, equals));
    if (option != nullptr && takes_value(*option)) {
      add_values(*command, *option, words, found.current.substr(0, equals + 1), found);
    } else {
      add_options(*command, found);
    }
  } else {
    add_subcommands(*command, found);
    const std::vector<const CLI::Option*> options = command->get_options();
    const auto positional =
        std::ranges::find_if(options, [](const CLI::Option* option) { return option->get_positional(); });
    if (positional != options.end()) add_values(*command, **positional, words, "", found);
    if (found.words.empty() && !found.files) add_options(*command, found);
  }
  return found;
}

// A command has its options once the parser has reached it. What is wrong with the words behind it does not matter here.
void add_options_of_reached(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // as the parser takes them
  try {
    app.parse(words);
  } catch (const std::exception&) {
  }
}

ExitCode print_candidates(const CLI::App& app, const std::vector<std::string>& words) {
  const Candidates found = complete(app, words);
  std::string text;
  for (const std::string& word : found.words) text += word + "\n";
  print(text + (found.files ? ":files\n" : ""));
  return ExitCode::done;
}

}  // namespace

void add_completion_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("completion", "A script that completes command lines in bash");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "The shell")->required()->check(CLI::IsMember({"bash"}));
  command->footer(
      "It completes commands and options, and names of machines, models, GPUs, policies and their options. A package\n"
      "brings the script; otherwise put it where bash looks:\n\n"
      "Examples:\n"
      "  tencache completion bash > ~/.local/share/bash-completion/completions/tencache\n"
      "  source <(tencache completion bash)");
  command->callback([shell, &chosen] {
    chosen = [] {
      print(bash_script);
      return ExitCode::done;
    };
  });

  // Takes the words as they are, the program's own name first: none of them is an option here.
  CLI::App* words = app.add_subcommand("__complete", "For the scripts of `tencache completion`");
  words->group("");
  words->set_help_flag();
  words->prefix_command();
  words->callback([&app, words, &chosen] {
    chosen = [&app, words] {
      std::vector<std::string> rest = words->remaining();
      if (!rest.empty()) rest.erase(rest.begin());
      add_options_of_reached(app, rest);
      return print_candidates(app, rest);
    };
  });
}

}  // namespace tencache
