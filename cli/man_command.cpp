// `tencache man`: manual pages, made from the definitions that the command line is parsed with.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

// Text as troff takes it for itself: no requests, no escapes, nothing but ASCII. Throws nothing: what is not UTF-8
// does not occur in the program's own texts.
std::string in_roff(std::string_view text) {
  std::string result;
  bool line_begins = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (line_begins && (byte == '.' || byte == '\'')) result += "\\&";
    line_begins = byte == '\n';
    switch (byte) {
      case '\\':
        result += "\\e";
        continue;
      case '-':
        result += "\\-";
        continue;
      case '\'':
        result += "\\(aq";
        continue;
      case '`':
        result += "\\(ga";
        continue;
      case '^':
        result += "\\(ha";
        continue;
      case '~':
        result += "\\(ti";
        continue;
      default:
        break;
    }
    if (byte < 0x80) {
      result += text[i];
      continue;
    }
    const int more = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;  // bytes of this character that follow
    unsigned code = byte & (0x3fu >> more);
    for (int k = 0; k < more && i + 1 < text.size(); ++k) code = code << 6 | (static_cast<unsigned>(text[++i]) & 0x3fu);
    result += fmt::format("\\[u{:04X}]", code);
  }
  return result;
}

// "tencache-run-train"
std::string page_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : page_name(*app.get_parent()) + "-" + app.get_name();
}

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* child) { return !child->get_group().empty(); });
}

std::vector<const CLI::Option*> options_of_group(const CLI::App& app, const std::string& group) {
  return app.get_options(
      [&group](const CLI::Option* option) { return option->nonpositional() && option->get_group() == group; });
}

std::vector<const CLI::Option*> positionals(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return option->get_positional() && !option->get_group().empty(); });
}

std::string value_of(const CLI::Option& option) {
  std::string text;
  if (option.get_items_expected_max() > 0) text = " \\fI" + in_roff(option.get_type_name()) + "\\fR";
  if (option.get_items_expected_max() > 1) text += " ...";
  return text;
}

std::string entry(const std::string& head, const CLI::Option& option) {
  std::string text = ".TP\n" + head + "\n" + in_roff(option.get_description());
  if (option.get_required()) text += " (required)";
  if (!option.get_default_str().empty()) text += " (default: " + in_roff(option.get_default_str()) + ")";
  return text + "\n";
}

std::string option_entry(const CLI::Option& option) {
  std::string head;
  for (const std::string& name : option.get_snames())
    head += (head.empty() ? "\\fB" : ", \\fB") + in_roff("-" + name) + "\\fR";
  for (const std::string& name : option.get_lnames())
    head += (head.empty() ? "\\fB" : ", \\fB") + in_roff("--" + name) + "\\fR";
  return entry(head + value_of(option), option);
}

std::string synopsis(const CLI::App& app) {
  std::string command = page_name(app);
  std::replace(command.begin(), command.end(), '-', ' ');
  std::string text = "\\fB" + in_roff(command) + "\\fR [\\fIOPTIONS\\fR]";
  for (const CLI::Option* option : positionals(app)) {
    const std::string name =
        "\\fI" + in_roff(option->get_single_name()) + "\\fR" + (option->get_items_expected_max() > 1 ? " ..." : "");
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  if (!subcommands(app).empty())
    text += app.get_require_subcommand_min() > 0 ? " \\fICOMMAND\\fR" : " [\\fICOMMAND\\fR]";
  return text + "\n";
}

// Paragraphs of the text after the options: examples as they are, the others as notes.
std::string notes_and_examples(const std::string& footer) {
  std::string notes, examples;
  for (std::size_t begin = 0; begin < footer.size();) {
    const std::size_t end = std::min(footer.find("\n\n", begin), footer.size());
    const std::string paragraph = footer.substr(begin, end - begin);
    constexpr std::string_view mark = "Examples:\n";
    if (paragraph.starts_with(mark)) {
      examples += in_roff(paragraph.substr(mark.size())) + "\n";
    } else {
      notes += (notes.empty() ? "" : ".PP\n") + in_roff(paragraph) + "\n";
    }
    begin = end + 2;
  }
  return (notes.empty() ? "" : ".SH NOTES\n" + notes) +
         (examples.empty() ? "" : ".SH EXAMPLES\n.nf\n" + examples + ".fi\n");
}

std::string page(const CLI::App& app) {
  const std::string name = page_name(app);
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  std::string description = app.get_description();
  const std::string first_line = description.substr(0, description.find('\n'));
  std::string text =
      fmt::format(".TH {} 1 \"\" \"TenCache " TENCACHE_VERSION "\" \"TenCache Manual\"\n", in_roff(title));
  text += ".SH NAME\n" + in_roff(name) + " \\- ";
  text += in_roff(app.get_parent() == nullptr ? "tensor caching and offloading, simulated and on real memory"
                                              : first_line) +
          "\n";
  text += ".SH SYNOPSIS\n" + synopsis(app);
  if (app.get_parent() == nullptr) text += ".SH DESCRIPTION\n" + in_roff(description) + "\n";
  const auto children = subcommands(app);
  if (!children.empty()) text += ".SH COMMANDS\n";
  for (const CLI::App* child : children) {
    text += ".TP\n\\fB" + in_roff(page_name(*child)) + "\\fR(1)\n" + in_roff(child->get_description()) + "\n";
  }
  if (!positionals(app).empty()) text += ".SH ARGUMENTS\n";
  for (const CLI::Option* option : positionals(app)) {
    text += entry("\\fI" + in_roff(option->get_single_name()) + "\\fR", *option);
  }
  for (const std::string& group : app.get_groups()) {
    const auto options = options_of_group(app, group);
    if (group.empty() || options.empty()) continue;
    text += group == "Options" ? ".SH OPTIONS\n" : ".SS " + in_roff(group) + "\n";
    for (const CLI::Option* option : options) text += option_entry(*option);
  }
  text += notes_and_examples(app.get_footer());
  if (app.get_parent() != nullptr) text += ".SH SEE ALSO\n\\fB" + in_roff(page_name(*app.get_parent())) + "\\fR(1)\n";
  return text;
}

// Pages of the command and of all below it.
void write_pages(const CLI::App& app, const std::filesystem::path& folder) {
  write_file((folder / (page_name(app) + ".1")).string(), page(app));
  for (const CLI::App* child : subcommands(app)) write_pages(*child, folder);
}

const CLI::App& command_named(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    std::vector<std::string> valid;
    const CLI::App* next = nullptr;
    for (const CLI::App* child : subcommands(*command)) {
      valid.push_back(child->get_name());
      if (child->get_name() == word) next = child;
    }
    if (next == nullptr) {
      throw Error("man: no command '" + word + "'; " + (valid.empty() ? "none follows" : "valid are " + join(valid)));
    }
    command = next;
  }
  return *command;
}

}  // namespace

void add_man_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("man", "The manual page of a command, for man(1)");
  struct Arguments {
    std::vector<std::string> words;
    std::string directory;
  };
  auto arguments = std::make_shared<Arguments>();
  command->add_option("COMMAND", arguments->words, "Of which command, such as run train (default: tencache itself)");
  command->add_option("--directory", arguments->directory, "Write the pages of all commands into this folder instead")
      ->check(CLI::ExistingDirectory);
  command->footer("Examples:\n  tencache man compare | man -l -\n  tencache man --directory ~/.local/share/man/man1");
  command->callback([&app, arguments, &chosen] {
    chosen = [&app, arguments] {
      const CLI::App& named = command_named(app, arguments->words);
      arguments->directory.empty() ? print(page(named)) : write_pages(named, arguments->directory);
      return ExitCode::done;
    };
  });
}

}  // namespace tencache
