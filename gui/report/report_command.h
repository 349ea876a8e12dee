// `tencache report`: for who runs the command line with what the dashboard knows.
#pragma once

#include "cli/command_line.h"

namespace tencache {

void add_report_command(CLI::App& app, Command& chosen);

}  // namespace tencache
