// Options of the command line that several commands share: trace, machine, prices, policy settings, faults, samples.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "studies/scenario_options.h"

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace tencache {

// As those of studies/scenario_options.h, for commands with options of their own between them.
void add_workload_options(CLI::App& command, Scenario& scenario);
void add_memory_options(CLI::App& command, MachineChoice& machine);
void add_limit_option(CLI::App& command, MachineChoice& machine);
void add_price_options(CLI::App& command, PriceChoice& prices);
void add_policy_options(CLI::App& command, PolicyChoice& policy);
void add_settings_option(CLI::App& command, std::map<std::string, std::string>& settings);
CLI::Option* add_faults_option(CLI::App& command, std::string& plan);
void add_policy_library_option(CLI::App& command);
// --device auto|cuda|host
void add_device_option(CLI::App& command, std::string& device);

// Of a floating-point option: a number from `least` to `most`, and no NaN, which CLI::Range lets pass.
CLI::Validator finite_range(double least, double most);
// Of a seed: a whole number from 0, which -1 is not.
CLI::Option* whole_number(CLI::Option* option);
// An empty value of this option is bad usage. Returns the option.
CLI::Option* refuse_empty(CLI::Option* option);

}  // namespace tencache
