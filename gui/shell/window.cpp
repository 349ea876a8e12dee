#include "gui/shell/window.h"

#define GLFW_INCLUDE_NONE
#include <GL/gl.h>
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <algorithm>

#include "core/error.h"
#include "gui/shell/app.h"
#include "gui/shell/picture.h"
#include "gui/shell/recent_files.h"

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

}  // namespace

void open_files(App& app, const GuiOptions& options) {
  Session& session = app.session();
  session.wanted = options.scenario;
  session.changes = options.changes;
  for (const std::string& file : options.files) session.open(file);
  if (options.files.empty()) session.open_sample();
  if (!options.view.empty()) app.choose_view(options.view);
}

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

}  // namespace tencache::gui
