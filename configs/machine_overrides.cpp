#include "configs/machine_overrides.h"

#include <algorithm>
#include <optional>
#include <type_traits>
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

void override_capacity(MachineSpec& machine, Device device, const std::string& option, const std::string& size,
                       std::size_t sharers) {
  if (size.empty()) return;
  const Bytes bytes = std::max<Bytes>(parse_size(option, size) / sharers, 1);
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

namespace {

BytesPerSecond parse_rate(const std::string& option, const std::string& text) {
  try {
    const BytesPerSecond rate = parse_bandwidth(text);
    if (rate == 0) throw Error("must be above 0");
    return rate;
  } catch (const Error& error) {
    throw Error(option + ": " + error.what());
  }
}

// `source` empty: what the user says is exact.
void set_fact(MachineSpec& machine, const std::string& path, const std::string& source) {
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == path; });
  if (source.empty()) return;
  machine.facts.push_back({.path = path, .source = source, .confidence = "estimated", .retrieved = {}, .spread = 0});
  std::ranges::sort(machine.facts, {}, &Fact::path);
}

template <typename Change>
void change_ranks(MachineSpec& machine, const Change& change) {
  change(machine);
  for (MachineSpec& rank : machine.other_ranks) change(rank);
}

bool touches(const MachineSpec& machine, const Link& link, TierKind kind) {
  return machine.tiers[link.from].kind == kind || machine.tiers[link.to].kind == kind;
}

// A rate that all links of this direction from or to SSDs have together.
void set_nvme(MachineSpec& machine, bool reads, BytesPerSecond rate) {
  for (Link& link : machine.links) {
    const TierKind from = machine.tiers[link.from].kind, to = machine.tiers[link.to].kind;
    if ((reads ? from : to) != TierKind::nvme) continue;
    link.bandwidth = rate;
    link.sustained_bandwidth = std::min(link.sustained_bandwidth, rate);
    set_fact(machine, "links." + link.name + ".bandwidth", "");
    // A resource of SSDs alone is theirs; DRAM and PCIe stay as they are.
    for (const std::uint8_t used : link.uses) {
      const bool only_nvme = std::ranges::all_of(machine.links, [&](const Link& other) {
        return std::ranges::find(other.uses, used) == other.uses.end() || touches(machine, other, TierKind::nvme);
      });
      if (!only_nvme) continue;
      const bool of_reads_too = !reads && std::ranges::any_of(machine.links, [&](const Link& other) {
        return std::ranges::find(other.uses, used) != other.uses.end() &&
               machine.tiers[other.from].kind == TierKind::nvme;
      });
      BytesPerSecond& bandwidth = machine.resources[used].bandwidth;
      bandwidth = of_reads_too ? std::max(bandwidth, rate) : rate;
      set_fact(machine, "resources." + machine.resources[used].name + ".bandwidth", "");
    }
  }
}

}  // namespace

void override_link(MachineSpec& machine, const std::string& option, const std::string& text) {
  if (text.empty()) return;
  const std::optional<BytesPerSecond> pcie = pcie_bandwidth(text);
  if (!pcie && text.starts_with("pcie")) {
    throw Error(option + " " + text +
                ": write it as pcie4x8 (generation 1 to 6, 1 to 16 lanes), or as a bandwidth such as 12GB/s");
  }
  const BytesPerSecond rate = pcie ? *pcie : parse_rate(option, text);
  bool found = false;
  change_ranks(machine, [&](MachineSpec& rank) {
    for (Link& link : rank.links) {
      if (!touches(rank, link, TierKind::gpu) || !touches(rank, link, TierKind::cpu)) continue;
      found = true;
      link.bandwidth = rate;
      set_fact(rank, "links." + link.name + ".bandwidth",
               pcie ? option + " " + text + ", of which pinned copies reach 78 %" : "");
      if (link.pageable_bandwidth == 0) continue;
      link.pageable_bandwidth = rate / 2;
      set_fact(rank, "links." + link.name + ".pageable", option + ": half of that");
    }
  });
  if (!found) throw Error(option + ": machine " + machine.name + " has no link between GPU and CPU memory");
}

void override_nvme(MachineSpec& machine, const std::string& option, const std::string& text) {
  if (text.empty()) return;
  const std::size_t comma = text.find(',');
  const BytesPerSecond reads = parse_rate(option, text.substr(0, comma));
  const BytesPerSecond writes = comma == text.npos ? reads : parse_rate(option, text.substr(comma + 1));
  const bool has = std::ranges::any_of(machine.tiers, [](const Tier& tier) { return tier.kind == TierKind::nvme; });
  if (!has) {
    throw Error(option + ": machine " + machine.name +
                " has no SSD; write a machine file that adds one (docs/machine-format.md)");
  }
  change_ranks(machine, [&](MachineSpec& rank) {
    set_nvme(rank, true, reads);
    set_nvme(rank, false, writes);
  });
}

void override_gpus(MachineSpec& machine, const std::string& option, const std::string& text) {
  if (text.empty()) return;
  constexpr std::uint32_t most = 64;
  const std::optional<std::uint32_t> count = parse_number<std::uint32_t>(text);
  if (!count || *count == 0 || *count > most) {
    throw Error(option + " " + text + ": write a count of GPUs from 1 to " + std::to_string(most));
  }
  const std::size_t before = machine.rank_count();
  // What the computer has in all is divided anew. An SSD's links share its rate.
  const auto divided = [&](auto whole_of, auto& of_one) {
    double whole = 0;
    for (std::size_t rank = 0; rank < before; ++rank) whole += static_cast<double>(whole_of(machine.of_rank(rank)));
    of_one = static_cast<std::remove_reference_t<decltype(of_one)>>(whole / *count);
  };
  MachineSpec one = machine;
  one.other_ranks.clear();
  for (std::size_t tier = 0; tier < one.tiers.size(); ++tier) {
    if (one.tiers[tier].kind == TierKind::gpu || one.tiers[tier].capacity == unlimited) continue;
    divided([&](const MachineSpec& rank) { return rank.tiers[tier].capacity; }, one.tiers[tier].capacity);
  }
  divided([](const MachineSpec& rank) { return rank.cpu.adam_parameters_per_second; },
          one.cpu.adam_parameters_per_second);
  divided([](const MachineSpec& rank) { return rank.cpu.flops_per_second; }, one.cpu.flops_per_second);
  divided([](const MachineSpec& rank) { return rank.cpu.bandwidth; }, one.cpu.bandwidth);
  for (Link& link : one.links) {
    if (!touches(one, link, TierKind::nvme)) continue;
    const bool shared = std::ranges::any_of(
        link.uses, [&](std::uint8_t used) { return one.resources[used].bandwidth <= link.bandwidth; });
    if (shared) continue;
    link.uses.push_back(static_cast<std::uint8_t>(one.resources.size()));
    one.resources.push_back({.name = link.name + "s", .bandwidth = link.bandwidth});
  }
  for (std::size_t i = 0; i < one.resources.size(); ++i) {
    const auto uses = [i](const Link& link) { return std::ranges::find(link.uses, i) != link.uses.end(); };
    const bool of_the_host = std::ranges::any_of(
        one.links, [&](const Link& link) { return uses(link) && !touches(one, link, TierKind::gpu); });
    const bool of_ssds = std::ranges::any_of(one.links, uses) && std::ranges::all_of(one.links, [&](const Link& link) {
                           return !uses(link) || touches(one, link, TierKind::nvme);
                         });
    if (of_the_host || of_ssds) one.resources[i].shared = static_cast<std::uint32_t>(i) * most;
  }
  const std::vector<MachineSpec> others(*count - 1, one);
  machine = std::move(one);
  machine.other_ranks = others;
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
