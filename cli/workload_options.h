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

// --machine [--gpu-memory] [--cpu-memory] [--limit] [--assume-gpu] [--no-rescale]
void add_machine_choice_options(CLI::App& command, Scenario& scenario);
// [--gpu-memory] [--cpu-memory]
void add_memory_options(CLI::App& command, MachineChoice& machine);
// [--iterations]
void add_iterations_option(CLI::App& command, Scenario& scenario);
// TRACE --machine [--gpu-memory] [--cpu-memory] [--limit] [--assume-gpu] [--no-rescale]: what is asked of, without a
// run.
void add_machine_options(CLI::App& command, Scenario& scenario);
// --limit LINK=BANDWIDTH, any number.
void add_limit_option(CLI::App& command, MachineChoice& machine);
// --prices FILE, --price TYPE=USD any number of times
void add_price_options(CLI::App& command, PriceChoice& prices);
// The same as add_machine_options and [--iterations] [--policy-library]
void add_workload_options(CLI::App& command, Scenario& scenario);
// Of a floating-point option: a number from `least` to `most`, and no NaN, which CLI::Range lets pass.
CLI::Validator finite_range(double least, double most);
// Of a seed: a whole number from 0, which -1 is not.
CLI::Option* whole_number(CLI::Option* option);
// An empty value of this option is bad usage. Returns the option.
CLI::Option* refuse_empty(CLI::Option* option);
// --policy --set key=value, any number
void add_policy_options(CLI::App& command, PolicyChoice& policy);
// --set alone
void add_settings_option(CLI::App& command, std::map<std::string, std::string>& settings);
// The same options as `tencache generate` (but for --seed, which is that of samples elsewhere) for a command that takes
// a trace or else a model: what is given is added to `settings`.
void add_model_options(CLI::App& command, GenerateSettings& settings);
// --faults PLAN
CLI::Option* add_faults_option(CLI::App& command, std::string& plan);
// --policy-library, any number of times; each library is loaded as the command line is read.
void add_policy_library_option(CLI::App& command);
// --device auto|cuda|host
void add_device_option(CLI::App& command, std::string& device);

}  // namespace tencache
