// What is asked for: a trace on a machine under a policy. Command lines, files of sweeps and published experiments,
// manifests of results, the dashboard and Python each fill one; load_workload() (studies/workload.h) makes it ready to
// run, answers/manifest.h writes it and reads it again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "configs/generate_settings.h"
#include "configs/price_table.h"
#include "configs/rescale_to_machine.h"
#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// A file, or a trace that is loaded already, or how one is generated.
struct TraceChoice {
  std::string file = {};                     // of a loaded trace its name
  std::string found_at = {};                 // where the file is, if not where its name says
  std::shared_ptr<const Trace> loaded = {};  // as read_trace_to_simulate() gives it
  std::string loaded_sha256 = {};            // of its file; empty: unknown
  GenerateSettings generate = {};
  RescaleOptions rescale = {};                    // of the durations to the machine's GPU
  std::string scale_bytes = {}, scale_time = {};  // factors (traces/transform/edits.h); empty: 1
  double gpu_speed = 1;                           // times as fast as the durations say
  std::uint64_t batch = 0;                        // of a generated trace, made anew with it; 0: its own
};

// A machine's file, or one that is loaded already, and what is changed of it.
struct MachineChoice {
  std::string name = {};                           // shipped, or a path
  std::string found_at = {};                       // where it is, if not where the name says
  std::shared_ptr<const MachineSpec> loaded = {};  // with its prices; nothing else here but the name counts then
  std::string gpu_memory = {}, cpu_memory = {};    // sizes; empty: the machine's
  std::string gpu_allocator = {};                  // configs/machine_overrides.h; empty: the machine's
  std::vector<std::string> limits = {};            // LINK=BANDWIDTH each
  std::string run_ahead = {};                      // a count of ops; empty: the machine's
  std::string gpus = {}, link = {}, nvme = {};     // configs/machine_overrides.h; empty: the machine's

  bool changed() const {
    return !gpu_memory.empty() || !cpu_memory.empty() || !gpu_allocator.empty() || !limits.empty() ||
           !run_ahead.empty() || !gpus.empty() || !link.empty() || !nvme.empty();
  }
};

struct PolicyChoice {
  std::string name = {};
  std::map<std::string, std::string> settings = {};  // as given: all others are the policy's defaults

  bool operator==(const PolicyChoice&) const = default;
};

constexpr std::uint64_t fewest_samples = 2, most_samples = 100'000;

struct SampleOptions {
  std::uint64_t samples = 0;  // 0: no intervals
  std::uint64_t seed = 1;
};

// Where a run on hardware takes place, and what it checks; all empty: it is a simulation.
struct HardwareChoice {
  std::string device = {};     // auto, cuda, host
  std::string directory = {};  // folders of NVMe tiers, colons between them
  std::string verify = {};     // stamps, pages, words
};

struct Scenario {
  TraceChoice trace = {};
  MachineChoice machine = {};
  PolicyChoice policy = {};      // where one is asked for
  std::uint64_t iterations = 0;  // 0: until the steady state recurs
  PriceChoice prices = {};
  std::string faults = {};  // a plan (core/fault_plan.h); empty: nothing goes wrong on purpose
  SampleOptions sampling = {};
  HardwareChoice hardware = {};
};

}  // namespace tencache
