#include "studies/measured.h"

#include "configs/machine_overrides.h"
#include "core/error.h"
#include "core/remark.h"
#include "executor/choose_device.h"
#include "executor/host_machine.h"
#include "executor/host_share.h"
#include "executor/room.h"
#include "sim/rehearse.h"
#include "studies/faults.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"
#include "traces/transform/lower.h"

namespace tencache {
namespace {

// Why the policy's layout of the GPU's memory is not the machine's; empty: it is.
std::string own_layout(const PolicyChoice& policy, const MachineSpec& machine, const Trace* trace) {
  const MadePolicy made = make_policy(policy.name, policy.settings);
  Layout layout = made.policy->layout(machine, nullptr);
  if (layout.unlimited_gpu) return "the policy " + policy.name + " has no limit of GPU memory";
  if (layout.allocators.empty()) return "";
  if (trace != nullptr) {  // may depend on it
    prepare(*trace, *made.policy, machine, rehearse);
    const Program program = lower(*trace, *made.policy, machine);
    layout = made.policy->layout(machine, &program);
  }
  return layout.allocators.front().kind == AllocatorKind::exact
             ? ""
             : "the policy " + policy.name + " lays out the GPU's memory itself";
}

// What a run on a GPU does, and what predicts it is to do as well. Returns why chunks are not moved, and so each op is
// waited for; empty: they are.
std::string choose_layout(Scenario& scenario, MachineSpec& machine, const Trace* trace) {
  MachineChoice& asked = scenario.machine;
  Tier& gpu = machine.tiers.front();
  std::string why = own_layout(scenario.policy, machine, trace);
  if (why.empty() && asked.gpu_allocator.empty() && gpu.allocator == AllocatorKind::exact) {
    override_allocator(machine, "--gpu-allocator", "movable");
    find_memory_bandwidth(machine);
    if (gpu.bandwidth != 0) {
      asked.gpu_allocator = "movable";
    } else {
      why = "machine " + machine.name + " lacks the bandwidth of the GPU's memory; `tencache calibrate` measures it";
    }
  }
  if (!why.empty()) {
    if (asked.run_ahead.empty()) remark("GPU memory is mapped chunk by chunk and each op waited for: " + why);
    gpu.allocator = AllocatorKind::exact;
  }
  if (why.empty() && gpu.allocator != AllocatorKind::movable) {
    why = "the GPU's memory is mapped chunk by chunk (--gpu-allocator " + std::string(to_string(gpu.allocator)) + ")";
  }
  return why;
}

void choose_run_ahead(Scenario& scenario, MachineSpec& machine, const std::string& why_none) {
  MachineChoice& asked = scenario.machine;
  if (!why_none.empty()) {
    if (!asked.run_ahead.empty() && machine.run_ahead.ops != 0) {
      throw Error("--run-ahead " + asked.run_ahead + ": " + why_none + ", so each op is waited for; leave it out");
    }
    machine.run_ahead.ops = 0;
    return;
  }
  if (!asked.run_ahead.empty()) return;
  const bool waits = !asked.limits.empty() || !scenario.faults.empty();
  if (!waits && machine.run_ahead.ops != 0) return;
  asked.run_ahead = waits ? "0" : std::to_string(gpu_run_ahead);
  override_run_ahead(machine, "--run-ahead", asked.run_ahead);
}

// A machine file of one rank has the computer's memory and disks for one. Its CPU's rates are those of a core or two.
MachineSpec host_of(const MachineSpec& loaded, bool cpu_memory_given, std::uint64_t ranks) {
  MachineSpec host = loaded;
  if (ranks == 1) return host;
  if (host.rank_count() == 1) {
    override_gpus(host, "LOCAL_WORLD_SIZE", std::to_string(ranks));
    const auto restore = [&](MachineSpec& rank) {
      rank.cpu = loaded.cpu;
      for (std::size_t tier = 0; tier < rank.tiers.size() && cpu_memory_given; ++tier) {
        if (rank.tiers[tier].kind == TierKind::cpu) rank.tiers[tier].capacity = loaded.tiers[tier].capacity;
      }
    };
    restore(host);
    for (MachineSpec& rank : host.other_ranks) restore(rank);
  }
  if (host.rank_count() < ranks) {
    throw Error(host.file, 0,
                "the machine has " + std::to_string(host.rank_count()) + " ranks, and " + std::to_string(ranks) +
                    " run on this computer (LOCAL_WORLD_SIZE); take a machine of one rank, or with `ranks: " +
                    std::to_string(ranks) + "`");
  }
  host.other_ranks.resize(ranks - 1);
  return host;
}

}  // namespace

std::shared_ptr<Accelerator> place_on_this_computer(Scenario& scenario, MachineSpec& machine,
                                                    const std::vector<std::string>& directories, const Trace* trace,
                                                    std::uint64_t ranks) {
  const auto [device, accelerator] = choose_device(scenario.hardware.device, machine);
  scenario.hardware.device = device;
  choose_run_ahead(scenario, machine,
                   accelerator != nullptr ? choose_layout(scenario, machine, trace)
                                          : "ordinary memory stands in for a GPU (without --device cuda)");
  machine = with_real_pages(machine, accelerator.get());
  choose_directories(machine, directories);
  fit_to_disks(machine, ranks);
  std::string& folders = scenario.hardware.directory = "";
  for (const Tier& tier : machine.tiers) {
    for (const std::string& directory : tier.directories) folders += (folders.empty() ? "" : ":") + directory;
  }
  return accelerator;
}

LiveSetting::LiveSetting(Scenario asked, const std::vector<std::string>& directories, LiveRanks of)
    : scenario(std::move(asked)), ranks(std::move(of)) {
  if (ranks.rank_here >= ranks.count_here) {
    throw Error("LOCAL_RANK " + std::to_string(ranks.rank_here) + ": of " + std::to_string(ranks.count_here) +
                " ranks on this computer (LOCAL_WORLD_SIZE) the last one is " + std::to_string(ranks.count_here - 1));
  }
  const MachineSpec loaded = load_machine(scenario.machine, &machine_sha256);
  host = host_of(loaded, !scenario.machine.cpu_memory.empty(), ranks.count_here);
  machine = ranks.count_here == 1 ? host : part_of_host(host, ranks.rank_here);
  accelerator = place_on_this_computer(scenario, machine, directories, nullptr, ranks.count_here);
  // A GPU's machine file, such as `calibrate` writes, serves here as well: a program's tensors stay where they are.
  AllocatorKind& allocator = machine.tiers.front().allocator;
  if (accelerator == nullptr && scenario.machine.gpu_allocator.empty() && allocator == AllocatorKind::movable) {
    allocator = AllocatorKind::exact;
  }
  faults = announce_faults(scenario, machine);
  scenario.trace.rescale.no_rescale = true;  // recorded where it runs
}

Workload LiveSetting::workload(const Trace& recorded) const {
  Workload workload;
  workload.scenario = scenario;
  workload.machine = machine;
  workload.machine_sha256 = machine_sha256;
  workload.trace = std::make_shared<const Trace>(recorded);
  workload.trace_sha256 = sha256_hex(format_trace(recorded));
  return workload;
}

Bytes locked_bytes(const MachineSpec& machine, const Outcome* predicted) {
  const TierId cpu = machine.tier_of(Device::cpu);
  return predicted == nullptr || cpu == no_tier ? 0 : predicted->result.peak_bytes[cpu];
}

ReplayPlan plan_replay(const Workload& workload, const Outcome* predicted) {
  ReplayPlan plan{make_policy(workload.scenario.policy.name, workload.scenario.policy.settings),
                  {},
                  locked_bytes(workload.machine, predicted)};
  prepare(*workload.trace, *plan.made.policy, workload.machine, rehearse);
  plan.program =
      predicted != nullptr ? predicted->program : lower(*workload.trace, *plan.made.policy, workload.machine);
  return plan;
}

MeasuredReplay measure_replay(const Workload& workload, ReplayPlan& plan,
                              const std::shared_ptr<Accelerator>& accelerator, const std::optional<FaultPlan>& faults,
                              Timeline* timeline, const std::function<void(std::uint64_t iteration)>& on_iteration) {
  MeasuredReplay measured;
  Outcome& outcome = measured.outcome;
  outcome.policy = workload.scenario.policy.name;
  outcome.options = plan.made.options;
  outcome.program.changes = plan.program.changes;
  Policy& policy = *plan.made.policy;
  HostMachineOptions on_host;
  const Layout layout = policy.layout(workload.machine, &plan.program);
  on_host.unlimited_gpu = layout.unlimited_gpu;
  on_host.addressed = addressed_tiers(workload.machine, layout);
  on_host.accelerator = accelerator;
  on_host.locked = plan.locked;
  on_host.faults = faults;
  const std::string& verify = workload.scenario.hardware.verify;
  const ReplayOptions checks{.check_everything = verify == "words", .write_everything = verify != "stamps"};
  const std::unique_ptr<ReplayKernels> kernels = accelerator != nullptr ? accelerator->replay_kernels() : nullptr;
  ReplayBodies bodies(plan.program.trace, checks, kernels.get());
  HostMachine machine(workload.machine, bodies, on_host);
  EngineOptions options;
  options.rehearse = rehearse;
  options.timeline = timeline;
  options.on_iteration = on_iteration;
  Engine engine(workload.machine, machine, policy, &plan.program, std::move(options));
  naming_policy(outcome.policy, [&] { outcome.result = engine.run(limits_of(workload.scenario.iterations)); });
  outcome.faults = machine.fault_counts();
  measured.counts = bodies.counts();
  measured.host = machine.describe();
  for (TierId tier = 0; tier < workload.machine.tiers.size(); ++tier) {
    if (workload.machine.tiers[tier].kind == TierKind::nvme) continue;
    measured.mapping.emplace_back(workload.machine.tiers[tier].name, machine.memory_statistics(tier));
  }
  return measured;
}

}  // namespace tencache
