// What a result says of its making, so that it can be made again: version, inputs by their hashes, options and prices.
// Written and read here and nowhere else.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "studies/workload.h"

namespace tencache {

// What was asked for, as text: the trace, the machine and the run. Absent members are not in the JSON unless given.
struct ManifestQuestion {
  std::string trace;
  Absent<MadeBy> made_by;  // the trace's provenance
  Absent<Named<std::string>> made_with;
  std::string recorded_by;
  std::optional<std::string> policy;  // none: several
  std::string machine;
  std::optional<std::string> gpu_memory, cpu_memory;
  std::optional<std::uint64_t> iterations;
  Absent<Named<std::string>> generate;
  Absent<std::string> gpu_allocator;
  Absent<std::vector<std::string>> limits;
  Absent<std::string> gpus, link, nvme;
  Absent<std::string> assume_gpu;
  Absent<bool> no_rescale;
  Absent<std::string> faults;
};
TENCACHE_ANSWER(ManifestQuestion, trace, made_by, made_with, recorded_by, policy, machine, gpu_memory, cpu_memory,
                iterations, generate, gpu_allocator, limits, gpus, link, nvme, assume_gpu, no_rescale, faults)

// The same, with what runs on hardware and samples add, prices, and where the policy's code is.
struct ManifestRun : ManifestQuestion {
  Absent<std::string> device, directory, run_ahead, sample_seed, samples, scale_bytes, scale_time, verify;
  Absent<std::string> prices;
  Absent<std::vector<std::string>> price;
  Absent<std::string> policy_library;
};
BOOST_DESCRIBE_STRUCT(ManifestRun, (ManifestQuestion),
                      (device, directory, run_ahead, sample_seed, samples, scale_bytes, scale_time, verify, prices,
                       price, policy_library))

// SHA-256 of what was read.
struct ManifestHashes {
  std::optional<std::string> trace;
  std::string machine;
  std::optional<std::string> prices;
  Absent<std::string> gpus, policy_library;
};
TENCACHE_ANSWER(ManifestHashes, trace, machine, prices, gpus, policy_library)

// An hour of the machine, and as of when.
struct ManifestPrice {
  double per_hour = 0;
  std::string currency, source, retrieved, confidence;
};
TENCACHE_ANSWER(ManifestPrice, per_hour, currency, source, retrieved, confidence)

struct Manifest {
  std::string version;
  ManifestHashes hashes;
  std::optional<ManifestPrice> price;
  Named<std::string> options;  // of the policy, resolved
  ManifestRun run;
  std::uint64_t seed = 0;
  Absent<Json> command;  // the question that asks for it again (command_json)
};
TENCACHE_ANSWER(Manifest, version, hashes, price, options, run, seed, command)

// An empty policy: of several at once. `resolved`: its options.
Manifest manifest_of(const Workload& workload, const std::string& policy,
                     const std::map<std::string, std::string>& resolved);
Json manifest_json(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& resolved);

// What was simulated, with the policy that the result names; of a measured run what was run. Throws Error, placed at
// `file`, where a part of the manifest is missing or of another type.
Scenario read_manifest(const Json& result, const std::string& file);

}  // namespace tencache
