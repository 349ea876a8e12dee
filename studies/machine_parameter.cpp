#include "studies/machine_parameter.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>

#include "core/check.h"
#include "core/error.h"
#include "core/units.h"

namespace tencache {
namespace {

using Kind = MachineParameter::Kind;

bool between_gpu_and_cpu(const MachineSpec& machine, const Link& link) {
  const TierKind from = machine.tiers[link.from].kind, to = machine.tiers[link.to].kind;
  return (from == TierKind::gpu && to == TierKind::cpu) || (from == TierKind::cpu && to == TierKind::gpu);
}

bool of_storage(const MachineSpec& machine, const Link& link) {
  return machine.tiers[link.from].kind == TierKind::nvme || machine.tiers[link.to].kind == TierKind::nvme;
}

bool uses(const std::vector<std::uint8_t>& list, std::size_t resource) {
  return std::find(list.begin(), list.end(), resource) != list.end();
}

// Whether only this link, and links between the same two tiers, occupy it.
bool own_resource(const MachineSpec& machine, const Link& link, std::size_t resource) {
  if (!uses(link.uses, resource)) return false;
  for (const auto& lane : machine.lane_uses) {
    if (uses(lane, resource)) return false;
  }
  return std::all_of(machine.links.begin(), machine.links.end(), [&](const Link& other) {
    const bool same =
        (other.from == link.from && other.to == link.to) || (other.from == link.to && other.to == link.from);
    return same || !uses(other.uses, resource);
  });
}

BytesPerSecond rounded(double value) {
  return static_cast<BytesPerSecond>(std::clamp(std::round(value), 1.0, static_cast<double>(unlimited)));
}

void forget(MachineSpec& machine, const std::string& path) {
  std::erase_if(machine.facts, [&](const Fact& fact) { return fact.path == path; });
}

// `own`: resources of its own are made at least as fast.
void set_link(MachineSpec& machine, Link& link, double bandwidth) {
  const double factor = bandwidth / static_cast<double>(link.bandwidth);
  if (link.sustained_bandwidth != 0)
    link.sustained_bandwidth = rounded(static_cast<double>(link.sustained_bandwidth) * factor);
  link.bandwidth = rounded(bandwidth);
  forget(machine, "links." + link.name + ".bandwidth");
  for (std::size_t i = 0; i < machine.resources.size(); ++i) {
    if (!own_resource(machine, link, i) || machine.resources[i].bandwidth >= link.bandwidth) continue;
    machine.resources[i].bandwidth = link.bandwidth;
    forget(machine, "resources." + machine.resources[i].name + ".bandwidth");
  }
}

double fastest_read(const MachineSpec& machine) {
  double fastest = 0;
  for (const Link& link : machine.links) {
    if (machine.tiers[link.from].kind == TierKind::nvme)
      fastest = std::max(fastest, static_cast<double>(link.bandwidth));
  }
  return fastest;
}

double fastest_between_gpu_and_cpu(const MachineSpec& machine) {
  double fastest = 0;
  for (const Link& link : machine.links) {
    if (between_gpu_and_cpu(machine, link)) fastest = std::max(fastest, static_cast<double>(link.bandwidth));
  }
  return fastest;
}

void scale_links_of_gpu(MachineSpec& machine, double factor) {
  for (Link& link : machine.links) {
    if (between_gpu_and_cpu(machine, link)) set_link(machine, link, static_cast<double>(link.bandwidth) * factor);
  }
}

// Whether only links of storage occupy it.
bool resource_of_storage(const MachineSpec& machine, std::size_t resource) {
  return std::none_of(machine.lane_uses.begin(), machine.lane_uses.end(),
                      [&](const auto& lane) { return uses(lane, resource); }) &&
         std::all_of(machine.links.begin(), machine.links.end(),
                     [&](const Link& link) { return !uses(link.uses, resource) || of_storage(machine, link); });
}

// All links of storage, and what only they use, in proportion.
void scale_storage(MachineSpec& machine, double factor) {
  for (std::size_t i = 0; i < machine.resources.size(); ++i) {
    if (!resource_of_storage(machine, i)) continue;
    machine.resources[i].bandwidth = rounded(static_cast<double>(machine.resources[i].bandwidth) * factor);
    forget(machine, "resources." + machine.resources[i].name + ".bandwidth");
  }
  for (Link& link : machine.links) {
    if (of_storage(machine, link)) set_link(machine, link, static_cast<double>(link.bandwidth) * factor);
  }
}

// What a figure sets, and which resources its links take along (raised to their bandwidth, never lowered).
struct Touched {
  std::set<std::string> set, raised;
};

Touched touched_by(const MachineParameter& parameter, const MachineSpec& machine) {
  Touched touched;
  const auto resource = [&](std::size_t i) { return "resource " + machine.resources[i].name; };
  const auto add_link = [&](const Link& link) {
    touched.set.insert("link " + link.name);
    for (std::size_t i = 0; i < machine.resources.size(); ++i) {
      if (own_resource(machine, link, i)) touched.raised.insert(resource(i));
    }
  };
  switch (parameter.kind) {
    case Kind::link:
      add_link(machine.links[parameter.index]);
      break;
    case Kind::links_between_gpu_and_cpu:
    case Kind::links_of_storage: {
      const bool storage = parameter.kind == Kind::links_of_storage;
      for (const Link& link : machine.links) {
        if (storage ? of_storage(machine, link) : between_gpu_and_cpu(machine, link)) add_link(link);
      }
      for (std::size_t i = 0; storage && i < machine.resources.size(); ++i) {
        if (resource_of_storage(machine, i)) touched.set.insert(resource(i));
      }
      break;
    }
    case Kind::resource:
      touched.set.insert(resource(parameter.index));
      break;
    default:
      touched.set.insert(parameter.name);
  }
  return touched;
}

void set_rank(const MachineParameter& parameter, MachineSpec& machine, double value) {
  switch (parameter.kind) {
    case Kind::link:
      return set_link(machine, machine.links[parameter.index], value);
    case Kind::links_between_gpu_and_cpu:
      return scale_links_of_gpu(machine, value / fastest_between_gpu_and_cpu(machine));
    case Kind::links_of_storage:
      return scale_storage(machine, value / fastest_read(machine));
    case Kind::resource:
      machine.resources[parameter.index].bandwidth = rounded(value);
      return forget(machine, "resources." + machine.resources[parameter.index].name + ".bandwidth");
    case Kind::tier: {
      Tier& tier = machine.tiers[parameter.index];
      const Bytes units = static_cast<Bytes>(value) / tier.granularity;
      tier.capacity =
          value >= static_cast<double>(unlimited) ? unlimited : std::max<Bytes>(units, 1) * tier.granularity;
      return forget(machine, "tiers." + tier.name + ".capacity");
    }
    case Kind::cpu_adam:
      machine.cpu.adam_parameters_per_second = value;
      return forget(machine, "cpu.adam_parameters_per_second");
    case Kind::cpu_bandwidth:
      machine.cpu.bandwidth = rounded(value);
      return forget(machine, "cpu.bandwidth");
    case Kind::gpu_speed:
      return;
  }
}

}  // namespace

ParameterUnit MachineParameter::unit() const {
  switch (kind) {
    case Kind::tier:
      return ParameterUnit::bytes;
    case Kind::cpu_adam:
      return ParameterUnit::parameters_per_second;
    case Kind::gpu_speed:
      return ParameterUnit::factor;
    default:
      return ParameterUnit::bytes_per_second;
  }
}

std::vector<MachineParameter> parameters_of(const MachineSpec& machine) {
  std::vector<MachineParameter> parameters;
  for (std::size_t i = 0; i < machine.links.size(); ++i) parameters.push_back({machine.links[i].name, Kind::link, i});
  const auto has = [&](auto belongs) {
    return std::any_of(machine.links.begin(), machine.links.end(),
                       [&](const Link& link) { return belongs(machine, link); });
  };
  // A link or resource of the same name comes first.
  const auto add = [&](const std::string& name, Kind kind, std::size_t index) {
    const bool taken = std::any_of(parameters.begin(), parameters.end(), [&](const auto& p) { return p.name == name; });
    if (!taken) parameters.push_back({name, kind, index});
  };
  for (std::size_t i = 0; i < machine.resources.size(); ++i) add(machine.resources[i].name, Kind::resource, i);
  if (has(between_gpu_and_cpu)) add("pcie", Kind::links_between_gpu_and_cpu, 0);
  if (has(of_storage) && fastest_read(machine) > 0) add("nvme", Kind::links_of_storage, 0);
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) add(machine.tiers[i].name + "_memory", Kind::tier, i);
  if (machine.cpu.adam_parameters_per_second > 0) add("cpu_adam", Kind::cpu_adam, 0);
  if (machine.cpu.can_compute()) add("cpu_bandwidth", Kind::cpu_bandwidth, 0);
  add("gpu_speed", Kind::gpu_speed, 0);
  return parameters;
}

MachineParameter parameter_named(const MachineSpec& machine, const std::string& name) {
  std::string names;
  for (const MachineParameter& parameter : parameters_of(machine)) {
    if (parameter.name == name) return parameter;
    names += (names.empty() ? "" : ", ") + parameter.name;
  }
  throw Error("machine '" + machine.name + "' has no parameter '" + name + "'; valid names are " + names);
}

double value_of(const MachineParameter& parameter, const MachineSpec& machine) {
  switch (parameter.kind) {
    case Kind::link:
      return static_cast<double>(machine.links[parameter.index].bandwidth);
    case Kind::links_between_gpu_and_cpu:
      return fastest_between_gpu_and_cpu(machine);
    case Kind::links_of_storage:
      return fastest_read(machine);
    case Kind::resource:
      return static_cast<double>(machine.resources[parameter.index].bandwidth);
    case Kind::tier:
      return static_cast<double>(machine.tiers[parameter.index].capacity);
    case Kind::cpu_adam:
      return machine.cpu.adam_parameters_per_second;
    case Kind::cpu_bandwidth:
      return static_cast<double>(machine.cpu.bandwidth);
    case Kind::gpu_speed:
      break;
  }
  return 1;
}

bool overlap(const MachineParameter& a, const MachineParameter& b, const MachineSpec& machine) {
  const Touched first = touched_by(a, machine), second = touched_by(b, machine);
  const auto meet = [](const std::set<std::string>& some, const std::set<std::string>& others) {
    return std::any_of(some.begin(), some.end(), [&](const std::string& name) { return others.count(name) != 0; });
  };
  return meet(first.set, second.set) || meet(first.set, second.raised) || meet(first.raised, second.set);
}

MachineSpec with_parameter(const MachineParameter& parameter, const MachineSpec& machine, double value) {
  TENCACHE_CHECK(value > 0);
  MachineSpec changed = machine;
  set_rank(parameter, changed, value);
  for (MachineSpec& rank : changed.other_ranks) set_rank(parameter, rank, value);
  return changed;
}

double unlimited_value(const MachineParameter& parameter) {
  switch (parameter.unit()) {
    case ParameterUnit::bytes_per_second:
      return 1e15;  // a terabyte takes a millisecond
    case ParameterUnit::bytes:
      return static_cast<double>(unlimited);
    case ParameterUnit::parameters_per_second:
      return 1e15;
    case ParameterUnit::factor:
      break;
  }
  return 1e6;
}

Trace with_gpu_speed(const Trace& trace, double factor) {
  Trace faster = trace;
  double total_ns = 0;
  for (const Op& op : trace.ops) total_ns += op.device == Device::gpu ? static_cast<double>(op.duration_ns) : 0;
  if (total_ns / factor > static_cast<double>(longest_clock_ns)) {
    throw TooSlow("with so small a gpu_speed the trace's ops take more than a hundred years");
  }
  for (Op& op : faster.ops) {
    if (op.device != Device::gpu) continue;
    op.duration_ns = static_cast<Nanoseconds>(std::llround(static_cast<double>(op.duration_ns) / factor));
  }
  return faster;
}

std::string format_in(ParameterUnit unit, double value) {
  switch (unit) {
    case ParameterUnit::bytes_per_second:
      return format_bandwidth(static_cast<BytesPerSecond>(std::llround(value)));
    case ParameterUnit::bytes:
      return value >= static_cast<double>(unlimited) ? "unlimited"
                                                     : format_bytes(static_cast<Bytes>(std::llround(value)));
    case ParameterUnit::parameters_per_second: {
      std::array<char, 32> text{};
      std::snprintf(text.data(), text.size(), "%.3g G/s", value * 1e-9);
      return text.data();
    }
    case ParameterUnit::factor:
      break;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "× %.3g", value);
  return text.data();
}

double parse_parameter(const MachineParameter& parameter, const std::string& text) {
  double value = 0;
  switch (parameter.unit()) {
    case ParameterUnit::bytes_per_second:
      value = static_cast<double>(parse_bandwidth(text));
      break;
    case ParameterUnit::bytes:
      value = static_cast<double>(parse_capacity(text));
      break;
    default: {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) {
        throw Error("'" + text + "' is no number, such as 2e9 or 1.5");
      }
    }
  }
  if (!(value > 0) || !std::isfinite(value)) throw Error("'" + text + "' must be above 0");
  return value;
}

}  // namespace tencache
