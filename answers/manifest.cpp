#include "answers/manifest.h"

#include <type_traits>

#include "answers/result_file.h"
#include "configs/gpu_yaml.h"
#include "configs/load_policy_library.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

template <typename T>
T if_given(const std::string& text) {
  return text.empty() ? T() : T(text);
}

// Which member of the manifest says what of a scenario.
template <typename Run, typename Asked, typename Move>
void match(Run& run, Asked& asked, const Move& move) {
  move(run.gpu_memory, asked.machine.gpu_memory);
  move(run.cpu_memory, asked.machine.cpu_memory);
  move(run.gpu_allocator, asked.machine.gpu_allocator);
  move(run.limits, asked.machine.limits);
  move(run.gpus, asked.machine.gpus);
  move(run.link, asked.machine.link);
  move(run.nvme, asked.machine.nvme);
  move(run.run_ahead, asked.machine.run_ahead);
  move(run.iterations, asked.iterations);
  move(run.generate, asked.trace.generate);
  move(run.assume_gpu, asked.trace.rescale.assume_gpu);
  move(run.no_rescale, asked.trace.rescale.no_rescale);
  move(run.scale_bytes, asked.trace.scale_bytes);
  move(run.scale_time, asked.trace.scale_time);
  move(run.faults, asked.faults);
  move(run.prices, asked.prices.file);
  move(run.price, asked.prices.prices);
  move(run.device, asked.hardware.device);
  move(run.directory, asked.hardware.directory);
  move(run.verify, asked.hardware.verify);
}

ManifestRun run_of(const Workload& workload, const std::string& policy) {
  const Scenario& scenario = workload.scenario;
  ManifestRun run;
  run.trace = scenario.trace.file;
  const Provenance& provenance = workload.trace->header.provenance;
  if (provenance.made_by != MadeBy::unknown) run.made_by = provenance.made_by;
  if (!provenance.made_with.empty()) run.made_with = provenance.made_with;
  run.recorded_by = workload.trace->header.recorded_by;
  run.policy = if_given<std::optional<std::string>>(policy);
  run.machine = scenario.machine.name;
  match(run, scenario, [](auto& member, const auto& value) {
    if (value != std::remove_cvref_t<decltype(value)>()) member = value;
  });
  if (scenario.sampling.samples != 0) {
    run.sample_seed = std::to_string(scenario.sampling.seed);
    run.samples = std::to_string(scenario.sampling.samples);
  }
  return run;
}

}  // namespace

Manifest manifest_of(const Workload& workload, const std::string& policy,
                     const std::map<std::string, std::string>& resolved) {
  Manifest manifest;
  manifest.version = TENCACHE_VERSION;
  manifest.run = run_of(workload, policy);
  manifest.hashes.trace = if_given<std::optional<std::string>>(workload.trace_sha256);
  manifest.hashes.machine = workload.machine_sha256;
  manifest.hashes.prices = if_given<std::optional<std::string>>(workload.price.sha256);
  if (workload.rescaling) manifest.hashes.gpus = sha256_of_file(gpu_file());
  if (const PolicyOrigin origin = origin_of_policy(policy); !origin.file.empty()) {
    manifest.run.policy_library = origin.file;
    manifest.hashes.policy_library = origin.sha256;
  }
  if (const PriceFigure& price = workload.price.on_demand; price.value > 0) {
    manifest.price = {price.value, workload.machine.price.currency, price.source, price.retrieved, price.confidence};
  }
  manifest.options.assign(resolved.begin(), resolved.end());
  manifest.seed = workload.seed;
  return manifest;
}

Json manifest_json(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& resolved) {
  return to_json_of(manifest_of(workload, policy, resolved));
}

Scenario read_manifest(const Json& result, const std::string& file) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, title_of(result) + " " + message); };
  const Json& manifest = member(result, "manifest");
  if (!member(manifest, "run").is_object()) fail("lacks manifest.run");
  ManifestRun run;
  Named<std::string> settings;
  try {
    read_answer(manifest["run"], run, "manifest.run");
    if (manifest.contains("options")) read_answer(manifest["options"], settings, "manifest.options");
  } catch (const Error& error) {
    fail(std::string("is damaged: ") + error.what());
  }
  const Json& policy = member(result, "policy");
  Scenario scenario;
  scenario.trace.file = run.trace;
  scenario.machine.name = run.machine;
  scenario.policy.name = run.policy.value_or(policy.is_string() ? policy.get<std::string>() : "");
  scenario.policy.settings = {settings.begin(), settings.end()};
  scenario.sampling = {.samples = parse_number<std::uint64_t>(run.samples.value_or("")).value_or(0),
                       .seed = parse_number<std::uint64_t>(run.sample_seed.value_or("")).value_or(0)};
  match(run, scenario,
        [](const auto& member, auto& value) { value = member.value_or(std::remove_cvref_t<decltype(value)>()); });
  return scenario;
}

}  // namespace tencache
