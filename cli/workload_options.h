// What several commands share that are no questions (cli/questions.h).
#pragma once

#include <string>

#include "studies/scenario_options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tencache {

// --faults PLAN, for an option that excludes others.
CLI::Option* add_faults_option(CLI::App& command, std::string& plan);
// --device, one of `names`
void add_device_option(CLI::App& command, std::string& device, std::vector<std::string> names);
// An empty value of this option is bad usage. Returns the option.
CLI::Option* refuse_empty(CLI::Option* option);

}  // namespace tencache
