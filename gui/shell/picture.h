// Pixels of a finished frame, and PNG files of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tencache::gui {

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint8_t> rgba;  // rows from the top
  const std::uint8_t* at(int x, int y) const {
    return &rgba[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) * 4];
  }
};

// The lower left part of the framebuffer that is bound for reading.
// With the colour that windows have; they draw none themselves, which saves a software renderer half of its work.
void clear_picture();

Picture read_framebuffer(int width, int height);

// Throws Error if the file cannot be written.
void write_png(const std::string& path, const Picture& picture);

}  // namespace tencache::gui
