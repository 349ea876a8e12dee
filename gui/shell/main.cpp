// `tencache-gui`: what `tencache gui` starts.
#define GLFW_INCLUDE_NONE
#include <GL/gl.h>
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/console.h"
#include "cli/gui_command.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "core/remark.h"
#include "gui/shell/app.h"
#include "gui/shell/headless.h"
#include "gui/shell/picture.h"
#include "traces/file/output_files.h"

namespace tencache::gui {
namespace {

constexpr double idle_seconds = 0.25;  // between two frames when nothing moves

struct Window {
  GLFWwindow* handle = nullptr;

  Window(int width, int height) {
    glfwSetErrorCallback([](int, const char*) {});
    if (glfwInit() == GLFW_FALSE) throw Error(reason());
    glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
    glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
    glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
    handle = glfwCreateWindow(width, height, "TenCache", nullptr, nullptr);
    if (handle == nullptr) {
      const std::string why = reason();
      glfwTerminate();
      throw Error(why);
    }
    glfwMakeContextCurrent(handle);
    glfwSwapInterval(1);
    ImGui::CreateContext();
    ImGui::GetIO().IniFilename = nullptr;
    ImGui_ImplGlfw_InitForOpenGL(handle, true);
    ImGui_ImplOpenGL3_Init("#version 330");
  }
  ~Window() {
    ImGui_ImplOpenGL3_Shutdown();
    ImGui_ImplGlfw_Shutdown();
    ImGui::DestroyContext();
    glfwDestroyWindow(handle);
    glfwTerminate();
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  static std::string reason() {
    const char* description = nullptr;
    glfwGetError(&description);
    return std::string("cannot open a window (") + (description != nullptr ? description : "no reason given") +
           "); without a display use --screenshot FILE";
  }
};

void drop(GLFWwindow* window, int count, const char** paths) {
  App& app = *static_cast<App*>(glfwGetWindowUserPointer(window));
  for (int i = 0; i < count; ++i) app.open(paths[i]);
}

void draw_frame(Window& window, App& app) {
  if (app.fonts_changed()) {
    ImGui_ImplOpenGL3_DestroyFontsTexture();
    ImGui_ImplOpenGL3_CreateFontsTexture();
  }
  ImGui_ImplOpenGL3_NewFrame();
  ImGui_ImplGlfw_NewFrame();
  ImGui::NewFrame();
  app.frame();
  ImGui::Render();
  int width = 0, height = 0;
  glfwGetFramebufferSize(window.handle, &width, &height);
  glViewport(0, 0, width, height);
  clear_picture();
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
  if (const std::string file = app.take_picture_request(); !file.empty()) {
    try {
      write_png(file, read_framebuffer(width, height));
    } catch (const Error& error) {
      app.session().say(error.what(), true);
    }
  }
  glfwSwapBuffers(window.handle);
}

// What the options say, of a picture or a window: files (or the sample), machine, policy.
void open_files(App& app, const GuiOptions& options) {
  Session& session = app.session();
  session.wanted = options.scenario;
  session.changes = options.changes;
  for (const std::string& file : options.files) session.open(file);
  if (options.files.empty()) session.open_sample();
  if (!options.view.empty()) app.choose_view(options.view);
}

// A window on the desktop (GLFW), until it is closed. `frames` above 0: closes itself after so many, for tests. Throws
// Error where there is no display.
void run_window(const GuiOptions& options, int frames) {
  const auto [width, height] = parse_picture_size(options.size);
  Window window(width, height);
  float scale = static_cast<float>(options.scale), unused = 0;
  if (scale == 0) glfwGetWindowContentScale(window.handle, &scale, &unused);
  App app(options.theme == "light", std::clamp(scale, 0.5f, 4.0f));
  glfwSetWindowUserPointer(window.handle, &app);
  glfwSetDropCallback(window.handle, drop);
  open_files(app, options);
  for (const std::string& file : options.files) add_recent_file(file);
  // ImGui settles within a few frames after input; then it rests.
  int to_settle = 3;
  for (int frame = 0; glfwWindowShouldClose(window.handle) == GLFW_FALSE && !app.closed(); ++frame) {
    if (app.animated() || to_settle > 0) {
      glfwPollEvents();
      --to_settle;
    } else {
      const double before = glfwGetTime();
      glfwWaitEventsTimeout(idle_seconds);
      if (glfwGetTime() - before < 0.9 * idle_seconds) to_settle = 3;
    }
    draw_frame(window, app);
    if (frames > 0 && frame + 1 >= frames) break;
  }
}

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
