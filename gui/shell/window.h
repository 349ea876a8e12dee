// A window on the desktop (GLFW).
#pragma once

#include "cli/gui_command.h"

namespace tencache::gui {

// Until it is closed. `frames` above 0: closes itself after so many, for tests. Throws Error where there is no display.
void run_window(const GuiOptions& options, int frames = 0);

// What the options say, of a picture or a window: files (or the sample), machine, policy.
class App;
void open_files(App& app, const GuiOptions& options);

}  // namespace tencache::gui
