#include "gui/model/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "answers/json.h"
#include "configs/generate_settings.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"
#include "policies/registry.h"

namespace tencache::gui {
namespace {

using KnobKind = Knob::Kind;

bool is_bandwidth(KnobKind kind) { return kind == KnobKind::pcie || kind == KnobKind::nvme || kind == KnobKind::dram; }

// Which of the three kinds of bandwidth a link is of.
KnobKind kind_of(const MachineSpec& machine, const Link& link) {
  const bool nvme = machine.tiers[link.from].kind == TierKind::nvme || machine.tiers[link.to].kind == TierKind::nvme;
  return nvme ? KnobKind::nvme : KnobKind::pcie;
}

// Of a shared resource, that of the links that use it; the host's memory goes by its name, since all of them use it.
KnobKind kind_of_resource(const MachineSpec& machine, std::uint8_t resource) {
  if (machine.resources[resource].name.find("dram") != std::string::npos) return KnobKind::dram;
  bool pcie = false;
  for (const Link& link : machine.links) {
    if (std::ranges::find(link.uses, resource) == link.uses.end()) continue;
    pcie = pcie || kind_of(machine, link) == KnobKind::pcie;
  }
  return pcie ? KnobKind::pcie : KnobKind::nvme;
}

void add(std::vector<Knob>& knobs, KnobKind kind, const char* name, const char* label, double original, double range) {
  if (original <= 0) return;
  knobs.push_back({kind, name, label, original, original, original / range, original * range});
}

// Batches are shared out evenly to micro-batches and ranks.
void add_batch(std::vector<Knob>& knobs, const TraceHeader& header) {
  const GenerateSettings* const settings = generate_settings_of(header);
  if (settings == nullptr || header.batch == 0) return;
  double step = 1;
  for (const auto& [name, value] : *settings) {
    if (name == "micro-batches" || name == "data-parallel") step *= parse_number(value).value_or(1);
    if (name == "block" && value.find('x') != value.npos) {
      step *= parse_number(value.substr(value.find('x') + 1)).value_or(1);
    }
  }
  const auto batch = static_cast<double>(header.batch);
  add(knobs, KnobKind::batch, "batch", "Batch", batch, 8);
  knobs.back().step = std::clamp(step, 1.0, batch);
  knobs.back().least = std::max(knobs.back().least, knobs.back().step);
}

BytesPerSecond scaled(BytesPerSecond bandwidth, double factor) {
  if (bandwidth == 0) return 0;
  return std::max<BytesPerSecond>(1,
                                  static_cast<BytesPerSecond>(std::llround(static_cast<double>(bandwidth) * factor)));
}

void scale_machine(MachineSpec& machine, KnobKind kind, double factor) {
  for (MachineSpec& rank : machine.other_ranks) scale_machine(rank, kind, factor);
  for (Link& link : machine.links) {
    if (kind_of(machine, link) != kind) continue;
    link.bandwidth = scaled(link.bandwidth, factor);
    link.sustained_bandwidth = scaled(link.sustained_bandwidth, factor);
  }
  for (std::uint8_t resource = 0; resource < machine.resources.size(); ++resource) {
    if (kind_of_resource(machine, resource) != kind) continue;
    machine.resources[resource].bandwidth = scaled(machine.resources[resource].bandwidth, factor);
  }
}

void set_memory(MachineSpec& machine, Device device, double bytes) {
  for (MachineSpec& rank : machine.other_ranks) set_memory(rank, device, bytes);
  const TierId tier = machine.tier_of(device);
  if (tier == no_tier) return;
  const Bytes granularity = machine.tiers[tier].granularity;
  const auto wanted = static_cast<Bytes>(bytes);
  machine.tiers[tier].capacity = std::max(granularity, wanted / granularity * granularity);
}

}  // namespace

double Knob::stepped() const { return step > 0 ? std::max(step, std::round(value / step) * step) : value; }

double Knob::original_share() const { return std::log(original / least) / std::log(most / least); }

std::string Knob::text() const {
  if (kind == KnobKind::batch) return fmt::format("{:.0f}", stepped());
  if (kind == KnobKind::gpu_speed) return fmt::format("× {:.2f}", value);
  return is_bandwidth(kind) ? format_bandwidth(static_cast<BytesPerSecond>(value))
                            : format_bytes(static_cast<Bytes>(value));
}

void Knob::parse(const std::string& typed) {
  double wanted = 0;
  if (kind == KnobKind::gpu_speed || kind == KnobKind::batch) {
    const std::optional<double> number = parse_number(typed);
    if (!number) throw Error("'" + typed + "' is no number, such as 1.5");
    wanted = *number;
  } else {
    wanted =
        is_bandwidth(kind) ? static_cast<double>(parse_bandwidth(typed)) : static_cast<double>(parse_capacity(typed));
  }
  if (wanted <= 0) throw Error("'" + typed + "' is not above 0");
  value = wanted;
  least = std::min(least, std::max(wanted, step));
  most = std::max(most, wanted);
}

WhatIf::WhatIf(Workload base) : policy(base.scenario.policy), base_(std::move(base)) {
  const MachineSpec& machine = base_.machine;
  const TierId gpu = machine.tier_of(Device::gpu), cpu = machine.tier_of(Device::cpu);
  if (gpu != no_tier) {
    add(knobs_, KnobKind::gpu_memory, "gpu-memory", "GPU memory", static_cast<double>(machine.tiers[gpu].capacity), 8);
  }
  if (cpu != no_tier && machine.tiers[cpu].capacity < unlimited) {
    add(knobs_, KnobKind::cpu_memory, "cpu-memory", "CPU memory", static_cast<double>(machine.tiers[cpu].capacity), 8);
  }
  double pcie = 0, nvme = 0, dram = 0;
  for (const Link& link : machine.links) {
    double& of_kind = kind_of(machine, link) == KnobKind::pcie ? pcie : nvme;
    of_kind = std::max(of_kind, static_cast<double>(link.bandwidth));
  }
  for (const Resource& resource : machine.resources) {
    if (resource.name.find("dram") != std::string::npos) dram = static_cast<double>(resource.bandwidth);
  }
  add(knobs_, KnobKind::pcie, "pcie", "PCIe", pcie, 8);
  add(knobs_, KnobKind::nvme, "nvme", "NVMe", nvme, 8);
  add(knobs_, KnobKind::dram, "dram", "DRAM", dram, 8);
  add(knobs_, KnobKind::gpu_speed, "gpu-speed", "GPU speed", 1, 4);
  add_batch(knobs_, base_.trace->header);
}

Workload WhatIf::workload() const {
  Workload workload = base_;
  workload.scenario.policy = policy;
  for (const Knob& knob : knobs_) {
    if (!knob.moved()) continue;
    const double factor = knob.value / knob.original;
    switch (knob.kind) {
      case KnobKind::gpu_memory:
        set_memory(workload.machine, Device::gpu, knob.value);
        break;
      case KnobKind::cpu_memory:
        set_memory(workload.machine, Device::cpu, knob.value);
        break;
      case KnobKind::pcie:
      case KnobKind::nvme:
      case KnobKind::dram:
        scale_machine(workload.machine, knob.kind, factor);
        break;
      case KnobKind::gpu_speed:
        workload.scenario.trace.gpu_speed = factor;
        break;
      case KnobKind::batch:
        workload.scenario.trace.batch = static_cast<std::uint64_t>(knob.stepped());
        break;
    }
  }
  return workload;
}

bool WhatIf::changed() const { return policy != base_.scenario.policy || machine_changed(); }

bool WhatIf::machine_changed() const {
  return std::ranges::any_of(knobs_, [](const Knob& knob) { return knob.moved(); });
}

void WhatIf::change(const std::string& assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) throw Error("--change " + assignment + ": write it as NAME=VALUE");
  const std::string name = assignment.substr(0, equals), value = assignment.substr(equals + 1);
  const auto knob = std::ranges::find(knobs_, std::string_view(name), &Knob::name);
  if (knob != knobs_.end()) {
    try {
      return knob->parse(value);
    } catch (const Error& error) {
      throw Error("--change " + assignment + ": " + error.what());
    }
  }
  if (name != "policy") {
    std::vector<std::string> names{"policy"};
    for (const Knob& known : knobs_) names.emplace_back(known.name);
    throw Error("--change " + assignment + ": unknown; valid here are " + join(names));
  }
  static_cast<void>(make_policy(value));  // complains about the name
  policy = {value, {}};
}

void WhatIf::reset() {
  policy = base_.scenario.policy;
  for (Knob& knob : knobs_) knob.value = knob.original;
}

}  // namespace tencache::gui
