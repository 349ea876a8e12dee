#include "gui/shell/picture.h"

#include <GL/gl.h>
#include <imgui.h>
#include <stb_image_write.h>

#include <algorithm>

#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache::gui {

void clear_picture() {
  const ImVec4& color = ImGui::GetStyle().Colors[ImGuiCol_WindowBg];
  glClearColor(color.x, color.y, color.z, 1);
  glClear(GL_COLOR_BUFFER_BIT);
}

Picture read_framebuffer(int width, int height) {
  Picture picture;
  picture.width = width;
  picture.height = height;
  const std::size_t row = static_cast<std::size_t>(width) * 4;
  picture.rgba.resize(row * static_cast<std::size_t>(height));
  glPixelStorei(GL_PACK_ALIGNMENT, 1);
  glReadPixels(0, 0, width, height, GL_RGBA, GL_UNSIGNED_BYTE, picture.rgba.data());
  for (int y = 0; y < height / 2; ++y) {
    const auto a = picture.rgba.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(y));
    const auto b = picture.rgba.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(height - 1 - y));
    std::swap_ranges(a, a + static_cast<std::ptrdiff_t>(row), b);
  }
  for (std::size_t i = 3; i < picture.rgba.size(); i += 4) picture.rgba[i] = 255;  // blending leaves its traces there
  return picture;
}

void write_png(const std::string& path, const Picture& picture) {
  std::string bytes;
  const auto append = [](void* context, void* data, int size) {
    static_cast<std::string*>(context)->append(static_cast<const char*>(data), static_cast<std::size_t>(size));
  };
  if (stbi_write_png_to_func(append, &bytes, picture.width, picture.height, 4, picture.rgba.data(),
                             picture.width * 4) == 0) {
    throw Error(path, 0, "the picture cannot be made a PNG");
  }
  write_file(path, bytes);
}

}  // namespace tencache::gui
