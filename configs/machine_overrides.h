// What a user changes of a machine without writing a file: memory sizes, how GPU memory is laid out, slower links, how far
// the host runs ahead.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/machine_spec.h"

namespace tencache {

// What a GPU's tier may name; their names, for messages.
inline constexpr std::array gpu_allocators = {AllocatorKind::exact, AllocatorKind::caching, AllocatorKind::movable};
std::vector<std::string> names_of(const decltype(gpu_allocators)& kinds);

// All for every rank, and exact: the figure's fact is dropped. `option` stands in messages: "--gpu-memory". Throw
// Error where the text is no size or bandwidth above 0, or the machine has no such tier or link.

// An empty text leaves the capacity as it is. `sharers`: the size is that of so many ranks together.
void override_capacity(MachineSpec& machine, Device device, const std::string& option, const std::string& size,
                       std::size_t sharers = 1);
// "movable"; an empty text leaves it as it is.
void override_allocator(MachineSpec& machine, const std::string& option, const std::string& name);
// Where chunks move and the memory's bandwidth is not known: what kernels reach of the bandwidth that configs/gpus.yaml
// has for the machine's GPU, if that is known.
void find_memory_bandwidth(MachineSpec& machine);
// "h2d=12GB/s": the link is no faster than that.
void limit_link(MachineSpec& machine, const std::string& option, const std::string& limit);
// So many GPUs like the machine's first one in the same computer: its CPU memory, SSDs and CPU are shared among them.
void override_gpus(MachineSpec& machine, const std::string& option, const std::string& count);
// "pcie4x8", of which pinned copies reach 78 %, or a bandwidth: of the links between GPU and CPU memory.
void override_link(MachineSpec& machine, const std::string& option, const std::string& link);
// "7GB/s", or "7GB/s,5GB/s" for reading and writing: of the SSDs together.
void override_nvme(MachineSpec& machine, const std::string& option, const std::string& rates);
// A count of ops (RunAhead::ops); an empty text leaves it as it is.
void override_run_ahead(MachineSpec& machine, const std::string& option, const std::string& ops);

// Of the machine's file; where that builds on others, of the SHA-256 of all of them.
std::string sha256_of_machine(const MachineSpec& machine);

}  // namespace tencache
