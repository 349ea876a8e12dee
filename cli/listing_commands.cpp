// `tencache policies`, `tencache machines` and `tencache models`.
#include "answers/questions.h"
#include "cli/command_line.h"
#include "cli/questions.h"

namespace tencache {

void add_policies_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, policies_question(), "List the policies with their options and sources", "The list as JSON",
      "Examples:\n  tencache policies\n  tencache policies --json\n  tencache policies --policy-library my_policy.so");
}

void add_machines_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, machines_question(), "List the machines that ship with TenCache",
      "The list as JSON, with the source of each figure",
      "Your own machine is a YAML file; `tencache calibrate` writes one. $TENCACHE_CONFIGS names another folder whose\n"
      "sub-folder `machines` is listed instead.\n\nExamples:\n  tencache machines\n  tencache machines --json");
}

void add_models_command(CLI::App& app, Command& chosen) {
  add_question(
      app, chosen, models_question(), "List the models that ship with TenCache, or show one",
      "The list, or the one model with its tensors, as JSON",
      "Your own model is a YAML file or the config.json of its Hugging Face page.\n\n"
      "Examples:\n  tencache models\n  tencache models --model opt-6.7b\n  tencache models --model ./config.json "
      "--json");
}

}  // namespace tencache
