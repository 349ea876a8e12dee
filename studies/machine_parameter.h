// Figures of a machine by name, to be asked "what if": read, set, made
// unlimited, on every rank.
//
//   nvme_read, h2d, …  a link's bandwidth (every name of MachineSpec::links)
//   pcie               both directions between GPU and CPU memory in proportion; its value is the faster one
//   nvme               all links of storage in proportion; its value is the fastest read
//   dram, nvme_total, … a shared resource's bandwidth (every name of MachineSpec::resources)
//   gpu_memory, cpu_memory, nvme_memory  the capacity of a tier (every name of MachineSpec::tiers with "_memory")
//   cpu_adam           parameters a second that the CPU updates
//   cpu_bandwidth      bytes a second that the CPU's kernels read and write
//   gpu_speed          factor on the GPU's arithmetic: durations of its ops are divided by it, gaps stay
//
// A link that is made faster takes along what would hold it back and is its
// own: resources that no other lane and no link between other tiers uses (an
// SSD's total, a PCIe direction) become at least as fast. DRAM, which all
// share, does not.
#pragma once

#include <boost/describe/enum.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

enum class ParameterUnit : std::uint8_t { bytes_per_second, bytes, parameters_per_second, factor };
BOOST_DESCRIBE_ENUM(ParameterUnit, bytes_per_second, bytes, parameters_per_second, factor)
// "3.5 GB/s", "24 GiB", "× 1.5".
std::string format_in(ParameterUnit unit, double value);

struct MachineParameter {
  enum class Kind : std::uint8_t {
    link,
    links_between_gpu_and_cpu,
    links_of_storage,
    resource,
    tier,
    cpu_adam,
    cpu_bandwidth,
    gpu_speed
  };
  std::string name;
  Kind kind = Kind::link;
  std::size_t index = 0;  // of link, resource or tier

  ParameterUnit unit() const;
};

// Those that this machine has (a rate that its file does not know is none).
std::vector<MachineParameter> parameters_of(const MachineSpec& machine);
// Throws Error that lists the valid names.
MachineParameter parameter_named(const MachineSpec& machine, const std::string& name);

// Whether setting both on one machine depends on the order: one sets a link, resource or capacity that the other sets,
// too, or a resource that a link of the other takes along.
bool overlap(const MachineParameter& a, const MachineParameter& b, const MachineSpec& machine);

// Of the first rank; 1 for gpu_speed.
double value_of(const MachineParameter& parameter, const MachineSpec& machine);
// The machine with it; `value` above 0, capacities rounded down to the tier's
// granularity (at least one unit). The facts of what changed are dropped.
// gpu_speed changes nothing here.
MachineSpec with_parameter(const MachineParameter& parameter, const MachineSpec& machine, double value);
// A value so large that more changes nothing.
double unlimited_value(const MachineParameter& parameter);
// The trace on a GPU so many times as fast.
Trace with_gpu_speed(const Trace& trace, double factor);

// Of text such as "3.5GB/s", "24GiB", "2e9" or "1.5". Throws Error for what is no value above 0.
double parse_parameter(const MachineParameter& parameter, const std::string& text);

}  // namespace tencache
