#include "answers/manifest.h"

#include <fmt/format.h>

#include <charconv>

#include "answers/result_file.h"
#include "configs/gpu_yaml.h"
#include "configs/load_policy_library.h"
#include "core/error.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

template <typename T>
T if_given(const std::string& text) {
  return text.empty() ? T() : T(text);
}

bool is_member_of_run(const std::string& key) {
  bool found = false;
  boost::mp11::mp_for_each<described::Members<ManifestRun>>([&](auto member) { found = found || key == member.name; });
  return found;
}

std::uint64_t number_of(const Absent<std::string>& digits) {
  std::uint64_t value = 0;
  if (!digits) return value;
  const auto [rest, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  return error == std::errc() && rest == digits->data() + digits->size() ? value : 0;
}

ManifestRun run_of(const Workload& workload, const std::string& policy) {
  const auto& [trace, machine, of_several, iterations, prices, faults, sampling, hardware] = workload.scenario;
  using Text = Absent<std::string>;
  ManifestRun run;
  run.trace = trace.file;
  run.recorded_by = workload.trace->header.recorded_by;
  run.policy = if_given<std::optional<std::string>>(policy);
  run.machine = machine.name;
  run.gpu_memory = if_given<std::optional<std::string>>(machine.gpu_memory);
  run.cpu_memory = if_given<std::optional<std::string>>(machine.cpu_memory);
  if (iterations != 0) run.iterations = iterations;
  if (!trace.generate.empty()) run.generate = trace.generate;
  if (!machine.limits.empty()) run.limits = machine.limits;
  run.assume_gpu = if_given<Text>(trace.rescale.assume_gpu);
  if (trace.rescale.no_rescale) run.no_rescale = true;
  run.faults = if_given<Text>(faults);
  run.device = if_given<Text>(hardware.device);
  run.directory = if_given<Text>(hardware.directory);
  if (sampling.samples != 0) {
    run.sample_seed = std::to_string(sampling.seed);
    run.samples = std::to_string(sampling.samples);
  }
  run.scale_bytes = if_given<Text>(trace.scale_bytes);
  run.scale_time = if_given<Text>(trace.scale_time);
  run.verify = if_given<Text>(hardware.verify);
  run.prices = if_given<Text>(prices.file);
  if (!prices.prices.empty()) run.price = prices.prices;
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
  return {.trace = {.file = run.trace,
                    .generate = run.generate.value_or(Named<std::string>()),
                    .rescale = {run.assume_gpu.value_or(""), run.no_rescale.value_or(false)},
                    .scale_bytes = run.scale_bytes.value_or(""),
                    .scale_time = run.scale_time.value_or("")},
          .machine = {.name = run.machine,
                      .gpu_memory = run.gpu_memory.value_or(""),
                      .cpu_memory = run.cpu_memory.value_or(""),
                      .limits = run.limits.value_or(std::vector<std::string>())},
          .policy = {.name = run.policy.value_or(policy.is_string() ? policy.get<std::string>() : ""),
                     .settings = {settings.begin(), settings.end()}},
          .iterations = run.iterations.value_or(0),
          .prices = {run.prices.value_or(""), run.price.value_or(std::vector<std::string>())},
          .faults = run.faults.value_or(""),
          .sampling = {.samples = number_of(run.samples), .seed = number_of(run.sample_seed)},
          .hardware = {run.device.value_or(""), run.directory.value_or(""), run.verify.value_or("")}};
}

bool same_question(const Json& a, const Json& b) {
  const auto asked = [](Json run) {
    run.erase("policy");
    run.erase("policy_library");
    return run;
  };
  return asked(a["manifest"]["run"]) == asked(b["manifest"]["run"]);
}

void check_repeatable(const Json& result, const std::string& file) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, title_of(result) + " " + message); };
  const Json& measured = member(result, "measured");
  if (!measured.is_null() && !measured.is_boolean()) fail("has a 'measured' that is neither true nor false");
  if (measured == true || result.contains("training")) {
    fail("was measured, which no run repeats to the byte; `run` it again and look at `diff`");
  }
  const Scenario scenario = read_manifest(result, file);
  const Json& run = result["manifest"]["run"];
  for (const auto& [key, value] : run.items()) {
    if (!is_member_of_run(key) || !scenario.hardware.device.empty()) {
      fail("manifest.run has '" + key + "', which this version cannot repeat");
    }
  }
  if (!result["manifest"].contains("options")) fail("lacks manifest.options");
  if (scenario.policy.name.empty() || scenario.machine.name.empty()) fail("lacks the policy or the machine of its run");
  if (scenario.iterations > 1'000'000) fail("manifest.run.iterations is no number of iterations");
  const std::uint64_t samples = scenario.sampling.samples;
  if (run.contains("samples") && (samples < fewest_samples || samples > most_samples)) {
    const auto text = run["samples"].get<std::string>();
    fail(fmt::format("has {} samples; it may have {} to {}", text, fewest_samples, most_samples));
  }
  // Code is run only where the user names it, never because a result does.
  if (run.contains("policy_library") && origin_of_policy(scenario.policy.name).file.empty()) {
    fail(library_is_missing(run["policy_library"].get<std::string>()));
  }
}

std::string library_is_missing(const std::string& library) {
  return "is of a policy in the library " + library + "; if you trust it, add --policy-library " + library;
}

}  // namespace tencache
