#include "gui/shell/headless.h"

#include <EGL/egl.h>
#include <EGL/eglext.h>
#define GL_GLEXT_PROTOTYPES
#include <GL/gl.h>
#include <GL/glext.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include "core/error.h"

namespace tencache::gui {

struct Headless::Context {
  EGLDisplay display = EGL_NO_DISPLAY;
  EGLContext context = EGL_NO_CONTEXT;

  Context() {
    display = eglGetPlatformDisplay(EGL_PLATFORM_SURFACELESS_MESA, EGL_DEFAULT_DISPLAY, nullptr);
    if (display == EGL_NO_DISPLAY) display = eglGetDisplay(EGL_DEFAULT_DISPLAY);
    if (display == EGL_NO_DISPLAY || eglInitialize(display, nullptr, nullptr) == EGL_FALSE) fail("no EGL display");
    if (eglBindAPI(EGL_OPENGL_API) == EGL_FALSE) fail("EGL without OpenGL");
    const EGLint wanted[] = {EGL_RENDERABLE_TYPE, EGL_OPENGL_BIT, EGL_SURFACE_TYPE, EGL_DONT_CARE, EGL_NONE};
    EGLConfig config = nullptr;
    EGLint count = 0;
    if (eglChooseConfig(display, wanted, &config, 1, &count) == EGL_FALSE || count == 0) fail("no EGL configuration");
    const EGLint version[] = {
        EGL_CONTEXT_MAJOR_VERSION,           3,       EGL_CONTEXT_MINOR_VERSION, 3, EGL_CONTEXT_OPENGL_PROFILE_MASK,
        EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT, EGL_NONE};
    context = eglCreateContext(display, config, EGL_NO_CONTEXT, version);
    if (context == EGL_NO_CONTEXT) fail("no OpenGL 3.3");
    if (eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, context) == EGL_FALSE) fail("EGL needs a surface");
  }
  ~Context() { release(); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void release() {
    if (display == EGL_NO_DISPLAY) return;
    eglMakeCurrent(display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
    if (context != EGL_NO_CONTEXT) eglDestroyContext(display, context);
    eglTerminate(display);
    display = EGL_NO_DISPLAY;
  }
  [[noreturn]] void fail(const char* what) {
    release();
    throw Error(std::string("cannot draw without a display: ") + what +
                "; install Mesa's drivers (packages libegl1 libgl1-mesa-dri)");
  }
};

Headless::Headless(int width, int height) : context_(std::make_unique<Context>()), width_(width), height_(height) {
  glGenFramebuffers(1, &framebuffer_);
  glBindFramebuffer(GL_FRAMEBUFFER, framebuffer_);
  glGenRenderbuffers(1, &color_);
  glBindRenderbuffer(GL_RENDERBUFFER, color_);
  glRenderbufferStorage(GL_RENDERBUFFER, GL_RGBA8, width, height);
  glFramebufferRenderbuffer(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_RENDERBUFFER, color_);
  if (glCheckFramebufferStatus(GL_FRAMEBUFFER) != GL_FRAMEBUFFER_COMPLETE) {
    throw Error("OpenGL cannot draw pictures of " + std::to_string(width) + "x" + std::to_string(height));
  }
  imgui_ = ImGui::CreateContext();
  ImGuiIO& io = ImGui::GetIO();
  io.IniFilename = nullptr;
  io.DisplaySize = {static_cast<float>(width), static_cast<float>(height)};
  io.MousePos = {-1, -1};
#if IMGUI_VERSION_NUM < 18700
  // As a window's keyboard: letters by their capitals, the rest where no letter is.
  for (int key = 0; key < ImGuiKey_COUNT; ++key) io.KeyMap[key] = 256 + key;
  for (const auto& [key, letter] : {std::pair(ImGuiKey_A, 'A'),
                                    {ImGuiKey_C, 'C'},
                                    {ImGuiKey_V, 'V'},
                                    {ImGuiKey_X, 'X'},
                                    {ImGuiKey_Y, 'Y'},
                                    {ImGuiKey_Z, 'Z'},
                                    {ImGuiKey_Space, ' '}}) {
    io.KeyMap[key] = static_cast<unsigned char>(letter);
  }
#endif
  ImGui_ImplOpenGL3_Init("#version 330");
}

Headless::~Headless() {
  ImGui::SetCurrentContext(imgui_);
  ImGui_ImplOpenGL3_Shutdown();
  ImGui::DestroyContext(imgui_);
  glDeleteRenderbuffers(1, &color_);
  glDeleteFramebuffers(1, &framebuffer_);
}

void Headless::frame(const std::function<void()>& draw) {
  ImGui::SetCurrentContext(imgui_);
  ImGui::GetIO().DeltaTime = 1.0f / 60;
  ImGui_ImplOpenGL3_NewFrame();
  ImGui::NewFrame();
  draw();
  ImGui::Render();
  glBindFramebuffer(GL_FRAMEBUFFER, framebuffer_);
  glViewport(0, 0, width_, height_);
  clear_picture();
  ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
  glFinish();
}

Picture Headless::picture() const {
  glBindFramebuffer(GL_FRAMEBUFFER, framebuffer_);
  return read_framebuffer(width_, height_);
}

void Headless::fonts_changed() {
  ImGui_ImplOpenGL3_DestroyFontsTexture();
  ImGui_ImplOpenGL3_CreateFontsTexture();
}

}  // namespace tencache::gui
