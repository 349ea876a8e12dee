#include "configs/machine_overrides.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

Bytes parse_size(const std::string& option, const std::string& text) {
  try {
    const Bytes bytes = parse_capacity(text);
    if (bytes == 0) throw Error("must be above 0");
    return bytes;
  } catch (const Error& error) {
    throw Error(option + ": " + error.what());
  }
}

void set_capacity(MachineSpec& machine, Device device, const std::string& option, Bytes bytes) {
  const TierId tier = machine.tier_of(device);
  if (tier == no_tier) throw Error(option + ": machine " + machine.name + " has no such tier");
  machine.tiers[tier].capacity = bytes;
  // What the user says is exact.
  const std::string path = "tiers." + machine.tiers[tier].name + ".capacity";
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == path; });
}

// "h2d=12GB/s": the link is no faster than that.
void set_limit(MachineSpec& machine, const std::string& option, const std::string& limit) {
  const std::size_t equals = limit.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(option + ": write it as LINK=BANDWIDTH, such as h2d=12GB/s");
  }
  const std::string name = limit.substr(0, equals);
  const auto link = std::ranges::find(machine.links, name, &Link::name);
  if (link == machine.links.end()) {
    std::vector<std::string> valid;
    for (const Link& candidate : machine.links) valid.push_back(candidate.name);
    throw Error(option + ": machine " + machine.name + " has no link '" + name + "'; valid names are " +
                join_names(valid));
  }
  BytesPerSecond bandwidth = 0;
  try {
    bandwidth = parse_bandwidth(limit.substr(equals + 1));
    if (bandwidth == 0) throw Error("must be above 0");
  } catch (const Error& error) {
    throw Error(option + ": " + error.what());
  }
  if (bandwidth >= link->bandwidth) return;
  link->bandwidth = bandwidth;
  link->sustained_bandwidth = std::min(link->sustained_bandwidth, bandwidth);
  // What the user says is exact.
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == "links." + name + ".bandwidth"; });
}

}  // namespace

void override_capacity(MachineSpec& machine, Device device, const std::string& option, const std::string& size) {
  if (size.empty()) return;
  const Bytes bytes = parse_size(option, size);
  set_capacity(machine, device, option, bytes);
  for (MachineSpec& rank : machine.other_ranks) set_capacity(rank, device, option, bytes);
}

std::vector<std::string> names_of(const decltype(gpu_allocators)& kinds) {
  std::vector<std::string> names;
  for (const AllocatorKind kind : kinds) names.emplace_back(to_string(kind));
  return names;
}

void override_allocator(MachineSpec& machine, const std::string& option, const std::string& name) {
  if (name.empty()) return;
  const auto kind = std::ranges::find(gpu_allocators, name, [](AllocatorKind known) { return to_string(known); });
  if (kind == gpu_allocators.end()) {
    throw Error(option + ": unknown allocator '" + name + "'; valid names are " + join_names(names_of(gpu_allocators)));
  }
  const auto set = [&](Tier& tier) {
    tier.allocator = *kind;
    if (*kind == AllocatorKind::movable)
      tier.granularity = movable_unit;  // pages are for what is mapped chunk by chunk
  };
  set(machine.tiers.front());
  for (MachineSpec& rank : machine.other_ranks) set(rank.tiers.front());
}

void find_memory_bandwidth(MachineSpec& machine) {
  // 4.3 of an H200's 4.8 TB/s and 3.0 of an H100's 3.35 were measured for copies inside the memory.
  constexpr double reached = 0.9;
  Tier& tier = machine.tiers.front();
  if (tier.allocator == AllocatorKind::movable && tier.bandwidth == 0) {
    for (const GpuSpec& gpu : list_gpus()) {
      if (gpu.name != machine.gpu) continue;
      tier.bandwidth = static_cast<BytesPerSecond>(reached * static_cast<double>(gpu.memory_bandwidth));
    }
  }
  for (MachineSpec& rank : machine.other_ranks) find_memory_bandwidth(rank);
}

void limit_link(MachineSpec& machine, const std::string& option, const std::string& limit) {
  set_limit(machine, option, limit);
  for (MachineSpec& rank : machine.other_ranks) set_limit(rank, option, limit);
}

void override_run_ahead(MachineSpec& machine, const std::string& option, const std::string& ops) {
  if (ops.empty()) return;
  const std::optional<std::uint32_t> count = parse_number<std::uint32_t>(ops);
  if (!count || *count > most_run_ahead) {
    throw Error(option + " " + ops + ": write a count of ops from 0 to " + std::to_string(most_run_ahead) +
                ", such as 256; 0 waits for each op");
  }
  const auto set = [&](MachineSpec& rank) {
    rank.run_ahead.ops = *count;
    std::erase_if(rank.facts, [](const Fact& fact) { return fact.path == "run_ahead.ops"; });
  };
  set(machine);
  for (MachineSpec& rank : machine.other_ranks) set(rank);
}

std::string sha256_of_machine(const MachineSpec& machine) {
  std::string hash = sha256_of_file(machine.file);
  if (machine.base_files.empty()) return hash;
  for (const std::string& base : machine.base_files) hash += sha256_of_file(base);
  return sha256_hex(hash);
}

}  // namespace tencache
