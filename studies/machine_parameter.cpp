#include "studies/machine_parameter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"
#include "core/error.h"
#include "core/parse_number.h"
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
  return std::ranges::find(list, resource) != list.end();
}

// Whether only this link, and links between the same two tiers, occupy it.
bool own_resource(const MachineSpec& machine, const Link& link, std::size_t resource) {
  if (!uses(link.uses, resource)) return false;
  for (const auto& lane : machine.lane_uses) {
    if (uses(lane, resource)) return false;
  }
  return std::ranges::all_of(machine.links, [&](const Link& other) {
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

bool reads_storage(const MachineSpec& machine, const Link& link) {
  return machine.tiers[link.from].kind == TierKind::nvme;
}

// Of the links that belong; 0 without one.
double fastest(const MachineSpec& machine, bool (*belongs)(const MachineSpec&, const Link&)) {
  BytesPerSecond fastest = 0;
  for (const Link& link : machine.links) fastest = std::max(fastest, belongs(machine, link) ? link.bandwidth : 0);
  return static_cast<double>(fastest);
}

void scale_links(MachineSpec& machine, bool (*belong)(const MachineSpec&, const Link&), double factor) {
  for (Link& link : machine.links) {
    if (belong(machine, link)) set_link(machine, link, static_cast<double>(link.bandwidth) * factor);
  }
}

// Whether only links of storage occupy it.
bool resource_of_storage(const MachineSpec& machine, std::size_t resource) {
  return std::ranges::none_of(machine.lane_uses, [&](const auto& lane) { return uses(lane, resource); }) &&
         std::ranges::all_of(machine.links,
                             [&](const Link& link) { return !uses(link.uses, resource) || of_storage(machine, link); });
}

// All links of storage, and what only they use, in proportion.
void scale_storage(MachineSpec& machine, double factor) {
  for (std::size_t i = 0; i < machine.resources.size(); ++i) {
    if (!resource_of_storage(machine, i)) continue;
    machine.resources[i].bandwidth = rounded(static_cast<double>(machine.resources[i].bandwidth) * factor);
    forget(machine, "resources." + machine.resources[i].name + ".bandwidth");
  }
  scale_links(machine, of_storage, factor);
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
      return scale_links(machine, between_gpu_and_cpu, value / fastest(machine, between_gpu_and_cpu));
    case Kind::links_of_storage:
      return scale_storage(machine, value / fastest(machine, reads_storage));
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
  return kind == Kind::tier        ? ParameterUnit::bytes
         : kind == Kind::cpu_adam  ? ParameterUnit::parameters_per_second
         : kind == Kind::gpu_speed ? ParameterUnit::factor
                                   : ParameterUnit::bytes_per_second;
}

std::vector<MachineParameter> parameters_of(const MachineSpec& machine) {
  std::vector<MachineParameter> parameters;
  for (std::size_t i = 0; i < machine.links.size(); ++i) parameters.push_back({machine.links[i].name, Kind::link, i});
  const auto has = [&](auto belongs) {
    return std::ranges::any_of(machine.links, [&](const Link& link) { return belongs(machine, link); });
  };
  // A link or resource of the same name comes first.
  const auto add = [&](const std::string& name, Kind kind, std::size_t index) {
    const bool taken = std::ranges::any_of(parameters, [&](const auto& p) { return p.name == name; });
    if (!taken) parameters.push_back({name, kind, index});
  };
  for (std::size_t i = 0; i < machine.resources.size(); ++i) add(machine.resources[i].name, Kind::resource, i);
  if (has(between_gpu_and_cpu)) add("pcie", Kind::links_between_gpu_and_cpu, 0);
  if (has(of_storage) && fastest(machine, reads_storage) > 0) add("nvme", Kind::links_of_storage, 0);
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
      return fastest(machine, between_gpu_and_cpu);
    case Kind::links_of_storage:
      return fastest(machine, reads_storage);
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
    return std::ranges::any_of(some, [&](const std::string& name) { return others.count(name) != 0; });
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
  const ParameterUnit unit = parameter.unit();
  if (unit == ParameterUnit::bytes) return static_cast<double>(unlimited);
  return unit == ParameterUnit::factor ? 1e6 : 1e15;  // a terabyte takes a millisecond
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
  if (unit == ParameterUnit::bytes_per_second) {
    return format_bandwidth(static_cast<BytesPerSecond>(std::llround(value)));
  }
  if (unit == ParameterUnit::bytes) {
    return value >= static_cast<double>(unlimited) ? "unlimited"
                                                   : format_bytes(static_cast<Bytes>(std::llround(value)));
  }
  return unit == ParameterUnit::factor ? fmt::format("× {:.3g}", value) : fmt::format("{:.3g} G/s", value * 1e-9);
}

double parse_parameter(const MachineParameter& parameter, const std::string& text) {
  double value = 0;
  if (parameter.unit() == ParameterUnit::bytes_per_second) {
    value = static_cast<double>(parse_bandwidth(text));
  } else if (parameter.unit() == ParameterUnit::bytes) {
    value = static_cast<double>(parse_capacity(text));
  } else {
    const auto number = parse_number(text);
    if (!number) throw Error("'" + text + "' is no number, such as 2e9 or 1.5");
    value = *number;
  }
  if (!(value > 0) || !std::isfinite(value)) throw Error("'" + text + "' must be above 0");
  return value;
}

}  // namespace tencache
