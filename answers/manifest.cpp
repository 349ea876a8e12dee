// What a result's manifest says, so that it can be reproduced: version, inputs by their hashes, options and prices.
#include "answers/result.h"
#include "configs/gpu_yaml.h"
#include "configs/load_policy_library.h"
#include "traces/file_io.h"

namespace tencache {
namespace {

// What an hour of the machine costs, and as of when; null: not known.
Json price_json(const Workload& workload) {
  const PriceFigure& price = workload.price.on_demand;
  if (price.value <= 0) return nullptr;
  return {{"per_hour", price.value},
          {"currency", workload.machine.price.currency},
          {"source", price.source},
          {"retrieved", price.retrieved},
          {"confidence", price.confidence}};
}

}  // namespace

Json manifest_json(const Workload& workload, const std::string& policy,
                   const std::map<std::string, std::string>& resolved) {
  Json options = Json::object();
  for (const auto& [key, value] : resolved) options[key] = value;
  Json run = {{"trace", workload.options.trace},
              {"recorded_by", workload.trace.header.recorded_by},
              {"policy", policy.empty() ? Json(nullptr) : Json(policy)},
              {"machine", workload.options.machine},
              {"gpu_memory", nullptr},
              {"cpu_memory", nullptr},
              {"iterations", nullptr}};
  if (!workload.options.gpu_memory.empty()) run["gpu_memory"] = workload.options.gpu_memory;
  if (!workload.options.cpu_memory.empty()) run["cpu_memory"] = workload.options.cpu_memory;
  for (const auto& [name, value] : workload.options.generate) run["generate"][name] = value;
  if (!workload.options.limits.empty()) run["limits"] = workload.options.limits;
  if (workload.options.iterations != 0) run["iterations"] = workload.options.iterations;
  if (!workload.options.rescale.assume_gpu.empty()) run["assume_gpu"] = workload.options.rescale.assume_gpu;
  if (workload.options.rescale.no_rescale) run["no_rescale"] = true;
  if (!workload.options.faults.empty()) run["faults"] = workload.options.faults;
  for (const auto& [key, value] : workload.run_options) run[key] = value;
  Json hashes = {{"trace", workload.trace_sha256.empty() ? Json(nullptr) : Json(workload.trace_sha256)},
                 {"machine", workload.machine_sha256},
                 {"prices", nullptr}};
  if (!workload.price.sha256.empty()) hashes["prices"] = workload.price.sha256;
  if (!workload.options.prices.file.empty()) run["prices"] = workload.options.prices.file;
  if (!workload.options.prices.prices.empty()) run["price"] = workload.options.prices.prices;
  if (workload.rescaling) hashes["gpus"] = sha256_of_file(gpu_file());
  if (const PolicyOrigin origin = origin_of_policy(policy); !origin.file.empty()) {
    run["policy_library"] = origin.file;
    hashes["policy_library"] = origin.sha256;
  }
  return {{"version", TENCACHE_VERSION},   {"hashes", std::move(hashes)}, {"price", price_json(workload)},
          {"options", std::move(options)}, {"run", std::move(run)},       {"seed", workload.seed}};
}

}  // namespace tencache
