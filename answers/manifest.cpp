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
  const WorkloadOptions& options = workload.options;
  ManifestRun run;
  run.trace = options.trace;
  run.recorded_by = workload.trace.header.recorded_by;
  run.policy = if_given<std::optional<std::string>>(policy);
  run.machine = options.machine;
  run.gpu_memory = if_given<std::optional<std::string>>(options.gpu_memory);
  run.cpu_memory = if_given<std::optional<std::string>>(options.cpu_memory);
  if (options.iterations != 0) run.iterations = options.iterations;
  if (!options.generate.empty()) run.generate = options.generate;
  if (!options.limits.empty()) run.limits = options.limits;
  run.assume_gpu = if_given<Absent<std::string>>(options.rescale.assume_gpu);
  if (options.rescale.no_rescale) run.no_rescale = true;
  run.faults = if_given<Absent<std::string>>(options.faults);
  const auto option = [&workload](const char* name) {
    const auto found = workload.run_options.find(name);
    return found == workload.run_options.end() ? Absent<std::string>() : Absent<std::string>(found->second);
  };
  run.device = option("device");
  run.directory = option("directory");
  run.sample_seed = option("sample_seed");
  run.samples = option("samples");
  run.scale_bytes = option("scale_bytes");
  run.scale_time = option("scale_time");
  run.verify = option("verify");
  run.prices = if_given<Absent<std::string>>(options.prices.file);
  if (!options.prices.prices.empty()) run.price = options.prices.prices;
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

RunAgain run_again(const Json& result, const std::string& file) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, title_of(result) + " " + message); };
  const Json& manifest = member(result, "manifest");
  if (!member(manifest, "run").is_object()) fail("lacks manifest.run");
  RunAgain again;
  ManifestRun& run = again.run;
  try {
    read_answer(manifest["run"], run, "manifest.run");
    Named<std::string> settings;
    if (manifest.contains("options")) read_answer(manifest["options"], settings, "manifest.options");
    again.settings = {settings.begin(), settings.end()};
  } catch (const Error& error) {
    fail(std::string("is damaged: ") + error.what());
  }
  const Json& policy = member(result, "policy");
  again.policy = run.policy.value_or(policy.is_string() ? policy.get<std::string>() : "");
  again.sampling = {.samples = number_of(run.samples), .seed = number_of(run.sample_seed)};
  WorkloadOptions& options = again.options;
  options.trace = run.trace;
  options.machine = run.machine;
  options.gpu_memory = run.gpu_memory.value_or("");
  options.cpu_memory = run.cpu_memory.value_or("");
  options.iterations = run.iterations.value_or(0);
  options.generate = run.generate.value_or(Named<std::string>());
  options.limits = run.limits.value_or(std::vector<std::string>());
  options.rescale = {.assume_gpu = run.assume_gpu.value_or(""), .no_rescale = run.no_rescale.value_or(false)};
  options.faults = run.faults.value_or("");
  options.prices = {.file = run.prices.value_or(""), .prices = run.price.value_or(std::vector<std::string>())};
  return again;
}

void check_repeatable(const Json& result, const std::string& file) {
  const auto fail = [&](const std::string& message) { throw Error(file, 0, title_of(result) + " " + message); };
  const Json& measured = member(result, "measured");
  if (!measured.is_null() && !measured.is_boolean()) fail("has a 'measured' that is neither true nor false");
  if (measured == true || result.contains("training")) {
    fail("was measured, which no run repeats to the byte; `run` it again and look at `diff`");
  }
  const RunAgain again = run_again(result, file);
  for (const auto& [key, value] : result["manifest"]["run"].items()) {
    if (!is_member_of_run(key) || again.run.device) {
      fail("manifest.run has '" + key + "', which this version cannot repeat");
    }
  }
  if (!result["manifest"].contains("options")) fail("lacks manifest.options");
  if (again.policy.empty() || again.options.machine.empty()) fail("lacks the policy or the machine of its run");
  if (again.options.iterations > 1'000'000) fail("manifest.run.iterations is no number of iterations");
  const std::uint64_t samples = again.sampling.samples;
  if (again.run.samples && (samples < fewest_samples || samples > most_samples)) {
    fail(fmt::format("has {} samples; it may have {} to {}", *again.run.samples, fewest_samples, most_samples));
  }
  // Code is run only where the user names it, never because a result does.
  if (again.run.policy_library && origin_of_policy(again.policy).file.empty()) {
    fail(library_is_missing(*again.run.policy_library));
  }
}

std::string library_is_missing(const std::string& library) {
  return "is of a policy in the library " + library + "; if you trust it, add --policy-library " + library;
}

}  // namespace tencache
