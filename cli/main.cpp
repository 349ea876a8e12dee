#include "cli/embedding.h"
#include "gui/report/report_command.h"

int main(int argc, char** argv) {
  tencache::offer_command(tencache::add_report_command);
  return tencache::run_command_line(argc, argv);
}
