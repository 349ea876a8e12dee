#include "tests/live/rules/model_gpu.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace tencache::rules {
namespace {

// An entry is {value, source}, so that no figure is without where it comes from.
double figure(const YAML::Node& entry, const std::string& file, const std::string& name) {
  const bool whole = entry.IsMap() && entry["value"] && entry["source"] && entry.size() == 2;
  if (!whole) throw Error(file + ": " + name + " is not {value: NUMBER, source: TEXT}");
  const auto value = entry["value"].as<double>();
  if (!(value >= 0)) throw Error(file + ": " + name + " is negative");
  return value;
}

}  // namespace

Nanoseconds ModelGpu::duration_ns(const DeviceJob& job) const {
  if (job.kind == JobKind::kernel) return job.duration_ns;
  const Bytes sum = job.bytes();  // of source and destination, but of a fill
  if (is_copy(job.kind)) return std::llround(static_cast<double>(sum) / 2 / copy_bytes_per_ns);
  return std::llround(static_cast<double>(sum) / hbm_bytes_per_ns);
}

double ModelGpu::demand(const DeviceJob& job) const {
  if (is_copy(job.kind)) return copy_bytes_per_ns;
  if (job.kind != JobKind::kernel) return hbm_bytes_per_ns;
  if (job.duration_ns == 0) return 0;
  return std::min(static_cast<double>(job.traffic) / static_cast<double>(job.duration_ns), hbm_bytes_per_ns);
}

ModelGpu load_model_gpu(const std::string& file) try {
  const YAML::Node root = YAML::LoadFile(file);
  const auto number = [&](const char* part, const char* name) {
    return figure(root[part][name], file, std::string(part) + "." + name);
  };
  const auto ns = [&](const char* part, const char* name) { return std::llround(1e3 * number(part, name)); };
  ModelGpu model;
  model.memory = static_cast<Bytes>(number("device", "memory_gb") * 1e9) / (2 * MiB) * (2 * MiB);
  model.copy_bytes_per_ns = number("device", "copy_gb_per_s");
  model.hbm_bytes_per_ns = number("device", "hbm_gb_per_s");
  model.copy_latency_ns = ns("device", "copy_latency_us");
  model.kernel_latency_ns = ns("device", "kernel_latency_us");
  model.page_lock_ns_per_byte = number("host", "page_lock_s_per_gb");
  model.memcpy_bytes_per_ns = number("host", "memcpy_gb_per_s");
  model.spin_ns = ns("host", "spin_us");
  model.wake_ns = ns("host", "wake_us");
  model.issue_ns = ns("host", "issue_us");
  model.op_ns = ns("host", "op_us");
  for (const auto& call : root["calls_us"]) {
    const auto name = call.first.as<std::string>();
    model.call_ns[name] = std::llround(1e3 * figure(call.second, file, "calls_us." + name));
  }
  return model;
} catch (const YAML::Exception& error) {
  throw Error(file + ": " + error.what());
}

}  // namespace tencache::rules
