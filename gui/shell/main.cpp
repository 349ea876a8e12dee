// `tencache-gui`: what `tencache gui` starts.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/console.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "core/remark.h"
#include "gui/shell/app.h"
#include "gui/shell/headless.h"
#include "gui/shell/window.h"
#include "traces/file/output_files.h"

namespace tencache::gui {
namespace {

ExitCode take_screenshot(const GuiOptions& options) {
  std::vector<std::string> inputs = options.files;
  const std::string& machine = options.scenario.machine.name;
  if (!machine.empty()) inputs.push_back(read_machine(machine).file);
  check_output("--screenshot", options.screenshot, inputs);
  const auto [width, height] = parse_picture_size(options.size);
  Headless headless(width, height);
  // A display of 4K is looked at from as far as one of 1280×720, more or less.
  const double scale = options.scale != 0 ? options.scale : std::clamp(height / 1000.0, 1.0, 4.0);
  App app(options.theme == "light", static_cast<float>(scale));
  open_files(app, options);
  app.session().wait();
  for (int i = 0; i < 4; ++i) {  // sizes settle
    if (app.fonts_changed()) headless.fonts_changed();
    headless.frame([&app] { app.frame(); });
    app.session().wait();
  }
  write_png(options.screenshot, headless.picture());
  std::vector<std::string> errors = app.session().messages().errors();
  const SimulatedPointer simulated = app.session().simulated();
  if (simulated != nullptr && !simulated->fits) errors.push_back(app.session().messages().last());
  for (const std::string& error : errors) remark("tencache: " + error);
  return errors.empty() ? ExitCode::done : ExitCode::bad_usage;
}

ExitCode run(int argc, char** argv) {
  CLI::App command("The dashboard of tencache.", "tencache-gui");
  GuiOptions options;
  add_gui_options(command, options);
  int frames = 0;
  command.add_option("--frames", frames, "Close the window after so many frames")->group("");
  try {
    command.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return error.get_exit_code() == 0 ? static_cast<ExitCode>(command.exit(error)) : throw Error(error.what());
  }
  if (!options.screenshot.empty()) return take_screenshot(options);
  run_window(options, frames);
  return ExitCode::done;
}

}  // namespace
}  // namespace tencache::gui

int main(int argc, char** argv) {
  try {
    return static_cast<int>(tencache::gui::run(argc, argv));
  } catch (const tencache::Error& error) {
    tencache::remark(std::string("tencache: ") + error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    tencache::remark(std::string("tencache: ") + error.what());
    return static_cast<int>(tencache::ExitCode::bad_usage);
  }
}
