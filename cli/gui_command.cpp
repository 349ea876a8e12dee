#include "cli/gui_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/child_program.h"
#include "cli/command_line.h"
#include "cli/questions.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/split.h"
#include "studies/scenario_options.h"
#include "studies/workload.h"

namespace tencache {
namespace {

constexpr int least_side = 320, most_side = 8192;

// Beside this program, in ../libexec/tencache or in the build tree.
std::string find_gui_program() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place : {"tencache-gui", "../libexec/tencache/tencache-gui", "../gui/tencache-gui"}) {
    const fs::path candidate = folder / place;
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal().string();
  }
  throw Error(
      "the dashboard needs the program tencache-gui, which is not here: install TenCache's package tencache-gui; in a "
      "build from source install ImGui, GLFW and OpenGL (packages libimgui-dev libglfw3-dev libgl-dev libopengl-dev "
      "libegl-dev) and build again");
}

}  // namespace

std::pair<int, int> parse_picture_size(const std::string& text) {
  std::vector<int> sides;
  for (const std::string& side : split(text, "x")) sides.push_back(parse_number<int>(side).value_or(0));
  const auto is_side = [](int side) { return side >= least_side && side <= most_side; };
  if (sides.size() != 2 || !std::ranges::all_of(sides, is_side)) {
    throw Error(fmt::format("--size {}: write it as WIDTHxHEIGHT, each from {} to {}, such as 1280x720", text,
                            least_side, most_side));
  }
  return {sides[0], sides[1]};
}

void add_gui_options(CLI::App& command, GuiOptions& options) {
  command.add_option(
      "FILES", options.files,
      "Traces, results (--json), timelines (--timeline), sweeps and sensitivity analyses; none: a bundled "
      "sample");
  refuse_empty(command.add_option("--machine,-m", options.scenario.machine.name,
                                  "What traces are simulated on: a name of `tencache machines`, or a YAML file"));
  refuse_empty(command.add_option("--policy,-p", options.scenario.policy.name,
                                  "Under which policy: a name of `tencache policies`"));
  add_group(command, [&](QuestionOptions& added) {
    add_settings_option(added, options.scenario.policy.settings);
    add_memory_options(added, options.scenario.machine);
  });
  command
      .add_option("--change", options.changes,
                  "What if: pcie=16GB/s, batch=8, policy=g10, … once the first simulation is there to compare with")
      ->allow_extra_args(false)
      ->take_all();
  refuse_empty(command.add_option("--view", options.view, "The view to begin with, such as timeline"));
  command.add_option("--theme", options.theme, "light or dark")
      ->check(CLI::IsMember({"light", "dark"}))
      ->capture_default_str();
  add_group(command, [&](QuestionOptions& added) {
    added.real("--scale", options.scale, 0.5, 4, "Of letters and distances (default: as the display asks for)");
  });
  command.add_option("--screenshot", options.screenshot, "Draw into this PNG file and end; needs no display, only EGL")
      ->check([](const std::string& file) {
        return std::string(file.ends_with(".png") ? "" : "is a PNG file; let its name end in .png");
      });
  command.add_option("--size", options.size, "Of the picture or the window, WIDTHxHEIGHT")->capture_default_str();
}

std::vector<std::string> gui_words(const GuiOptions& options) {
  std::vector<std::string> words;
  const auto add = [&words](const char* option, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {option, value});
  };
  const auto& [policy, settings] = options.scenario.policy;
  add("--machine", options.scenario.machine.name);
  add("--policy", policy);
  for (const auto& [name, value] : settings) add("--set", name + "=" + value);
  add("--gpu-memory", options.scenario.machine.gpu_memory);
  add("--cpu-memory", options.scenario.machine.cpu_memory);
  for (const std::string& change : options.changes) add("--change", change);
  add("--view", options.view);
  add("--theme", options.theme);
  if (options.scale != 0) add("--scale", fmt::format("{}", options.scale));
  add("--screenshot", options.screenshot);
  add("--size", options.size);
  words.push_back("--");
  words.insert(words.end(), options.files.begin(), options.files.end());
  return words;
}

void add_gui_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("gui", "The dashboard: timelines, memory, what-if");
  auto options = std::make_shared<GuiOptions>();
  add_gui_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  tencache gui\n"
      "  tencache gui step.trace.jsonl.zst --machine g10-a100 --policy g10\n"
      "  tencache gui comparison.json timeline.json\n"
      "  tencache gui timeline.json --screenshot timeline.png --size 3840x2160");
  command->callback([options, &chosen] {
    chosen = [options] {
      parse_picture_size(options->size);
      return static_cast<ExitCode>(ChildProgram(find_gui_program(), gui_words(*options)).wait());
    };
  });
}

}  // namespace tencache
