// What a user changes of a machine without writing a file: memory sizes, slower links.
#pragma once

#include <string>

#include "core/machine_spec.h"

namespace tencache {

// Both for every rank, and exact: the figure's fact is dropped. `option` stands in messages: "--gpu-memory". Throw
// Error where the text is no size or bandwidth above 0, or the machine has no such tier or link.

// An empty text leaves the capacity as it is.
void override_capacity(MachineSpec& machine, Device device, const std::string& option, const std::string& size);
// "h2d=12GB/s": the link is no faster than that.
void limit_link(MachineSpec& machine, const std::string& option, const std::string& limit);

// Of the machine's file; where that builds on others, of the SHA-256 of all of them.
std::string sha256_of_machine(const MachineSpec& machine);

}  // namespace tencache
