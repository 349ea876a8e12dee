// A machine that stands inside another YAML file, in the format of a machine file (docs/machine-format.md).
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "core/machine_spec.h"

namespace tencache {

// `file` is for messages, and where a relative `base` is looked for. Throws Error as parse_machine does.
MachineSpec machine_of_node(const YAML::Node& root, const std::string& file);

}  // namespace tencache
