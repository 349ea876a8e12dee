// Machine files: the graph of core/machine_spec.h as YAML. The format is described in docs/machine-format.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/machine_spec.h"

namespace tencache {

// Reads a shipped machine by its name, or a file by its path. What contains a slash or ends in ".yaml" or ".yml" is a
// path; a name is looked for in machine_folders(). Throws Error with file and line, and with the valid names where one
// was not known.
MachineSpec read_machine(const std::string& name_or_file);

// The same from text; `file` is for messages and for MachineSpec::file.
MachineSpec parse_machine(std::string_view text, const std::string& file);

// Reading it again gives the same spec (`reserved` is taken off already, `file` aside).
std::string write_machine_yaml(const MachineSpec& machine);

// The shipped machines, by name. Throws Error if one of the files is broken.
std::vector<MachineSpec> list_machines();

// Where shipped machines are looked for, existing or not: $TENCACHE_CONFIGS/machines if that is set, else beside the
// installed program, then in the source tree.
std::vector<std::string> machine_folders();

}  // namespace tencache
