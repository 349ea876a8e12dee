#include "configs/gpu_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include "configs/kernel_yaml.h"
#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr Bytes maximum_gpu_file_bytes = 4 * MiB;

class GpuReader {
 public:
  // `folder` of the kernels' constants; empty: they are left out.
  GpuReader(const std::string& file, const std::string& folder) : file_(file), folder_(folder) {}

  std::vector<GpuSpec> read(const YAML::Node& root) {
    check_map(root, "the file", {"defaults", "gpus"});
    GpuSpec defaults;
    if (root["defaults"]) read_keys(root["defaults"], "defaults", defaults);
    if (!root["gpus"] || !root["gpus"].IsSequence()) fail(root, "expected a list of GPUs under 'gpus'");
    std::vector<GpuSpec> gpus;
    for (const YAML::Node& node : root["gpus"]) {
      GpuSpec gpu = defaults;
      read_keys(node, "a GPU", gpu);
      check_complete(node, gpu);
      read_kernels_of(node, gpu);
      const bool known = std::any_of(gpus.begin(), gpus.end(), [&](const GpuSpec& g) { return g.name == gpu.name; });
      if (known) fail(node, "GPU '" + gpu.name + "' stands twice");
      gpus.push_back(std::move(gpu));
    }
    return gpus;
  }

 private:
  [[noreturn]] void fail(const YAML::Node& node, const std::string& message) const {
    throw Error(file_, line_of(node), message);
  }

  void check_map(const YAML::Node& node, const std::string& what, const std::vector<std::string>& valid) const {
    if (!node.IsMap()) fail(node, what + ": expected a map");
    std::vector<std::string> seen;
    for (const auto& entry : node) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      if (std::find(valid.begin(), valid.end(), key) == valid.end()) {
        fail(entry.first, "unknown key '" + key + "' in " + what + "; valid keys are " + join_names(valid));
      }
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) fail(entry.first, "key '" + key + "' stands twice");
      seen.push_back(key);
    }
  }

  // The value of a figure, {value, source, confidence}; where it comes from is kept in `gpu.facts`.
  std::string figure(const YAML::Node& node, const std::string& key, GpuSpec& gpu) const {
    check_map(node, key, {"value", "source", "confidence", "retrieved"});
    const auto text = [&](const char* name, bool required) {
      const YAML::Node value = node[name];
      if (!value) {
        if (required) fail(node, key + ": '" + name + "' is missing");
        return std::string();
      }
      if (!value.IsScalar()) fail(value, key + "." + name + ": expected a value");
      return value.Scalar();
    };
    Fact fact{key, text("source", true), text("confidence", true), text("retrieved", false)};
    if (fact.confidence != "published" && fact.confidence != "measured" && fact.confidence != "estimated") {
      fail(node["confidence"],
           key + ".confidence: '" + fact.confidence + "'; valid are published, measured, estimated");
    }
    std::erase_if(gpu.facts, [&](const Fact& other) { return other.path == key; });  // a default's
    gpu.facts.push_back(std::move(fact));
    return text("value", true);
  }

  void read_keys(const YAML::Node& node, const std::string& what, GpuSpec& gpu) const {
    using Set = std::function<void(GpuSpec&, const std::string&)>;
    const auto tflops = [](double GpuSpec::*member) {
      return [member](GpuSpec& g, const std::string& text) { g.*member = positive(text) * 1e12; };
    };
    const auto time = [](Nanoseconds GpuSpec::*member) {
      return [member](GpuSpec& g, const std::string& text) { g.*member = parse_duration(text); };
    };
    const auto bandwidth = [](BytesPerSecond GpuSpec::*member) {
      return [member](GpuSpec& g, const std::string& text) {
        g.*member = parse_bandwidth(text);
        if (g.*member == 0) throw Error("must be above 0");
      };
    };
    const std::map<std::string, Set> setters{
        {"memory", [](GpuSpec& g, const std::string& text) { g.memory = parse_bytes(text); }},
        {"memory_bandwidth", bandwidth(&GpuSpec::memory_bandwidth)},
        {"fp16_tflops", tflops(&GpuSpec::fp16_flops)},
        {"bf16_tflops", tflops(&GpuSpec::bf16_flops)},
        {"fp32_tflops", tflops(&GpuSpec::fp32_flops)},
        {"sustained",
         [](GpuSpec& g, const std::string& text) {
           g.sustained = positive(text);
           if (g.sustained > 1.2) throw Error("'" + text + "' is no share of a clock; it must be at most 1.2");
         }},
        {"tf32_tflops", tflops(&GpuSpec::tf32_flops)},
        {"fp8_tflops", tflops(&GpuSpec::fp8_flops)},
        {"cache", [](GpuSpec& g, const std::string& text) { g.cache = parse_bytes(text); }},
        {"multiprocessors",
         [](GpuSpec& g, const std::string& text) { g.multiprocessors = static_cast<std::uint32_t>(positive(text)); }},
        {"attention", [](GpuSpec& g, const std::string& text) { g.attention = attention_kernel(text); }},
        {"fused_attention", [](GpuSpec& g, const std::string& text) { g.fused_attention = attention_kernel(text); }},
        {"interconnect", bandwidth(&GpuSpec::interconnect)},
        {"collective_latency", time(&GpuSpec::collective_latency_ns)}};
    std::vector<std::string> keys{"name", "kernels"};
    for (const auto& [key, set] : setters) keys.push_back(key);
    check_map(node, what, keys);
    for (const auto& entry : node) {
      const std::string key = entry.first.Scalar();
      if (key == "name") {
        if (!entry.second.IsScalar()) fail(entry.second, "name: expected text");
        gpu.name = entry.second.Scalar();
        continue;
      }
      if (key == "kernels") {
        if (!entry.second.IsScalar()) fail(entry.second, "kernels: expected the name of a file of configs/kernels");
        gpu.kernels.name = entry.second.Scalar();
        continue;
      }
      const std::string value = figure(entry.second, key, gpu);
      try {
        setters.at(key)(gpu, value);
      } catch (const Error& error) {
        fail(entry.second, key + ": " + error.what());
      }
    }
  }

  void check_complete(const YAML::Node& node, const GpuSpec& gpu) const {
    if (gpu.name.empty()) fail(node, "a GPU has no 'name'");
    const auto require = [&](bool present, const char* key) {
      if (!present) fail(node, "GPU '" + gpu.name + "': '" + key + "' is missing");
    };
    require(gpu.memory > 0, "memory");
    require(gpu.memory_bandwidth > 0, "memory_bandwidth");
    require(gpu.fp32_flops > 0, "fp32_tflops");
    require(gpu.cache > 0, "cache");
    require(gpu.multiprocessors > 0, "multiprocessors");
    require(!gpu.kernels.name.empty(), "kernels");
    require(gpu.interconnect > 0, "interconnect");
  }

  // GPUs of one chip share them.
  void read_kernels_of(const YAML::Node& node, GpuSpec& gpu) {
    if (folder_.empty()) return;
    const auto [found, added] = kernels_.try_emplace(gpu.kernels.name);
    if (added) {
      std::error_code ignored;
      if (!fs::exists(fs::path(folder_) / (gpu.kernels.name + ".yaml"), ignored)) {
        fail(node, "GPU '" + gpu.name + "': kernels '" + gpu.kernels.name + "' is no file of " + folder_);
      }
      found->second = read_kernels(folder_, gpu.kernels.name);
    }
    gpu.kernels = found->second;
    if (gpu.sustained != 0) gpu.kernels.sustained = gpu.sustained;
  }

  static AttentionKernel attention_kernel(const std::string& text) {
    if (const auto kernel = parse_enum<AttentionKernel>(text)) return *kernel;
    throw Error("unknown kernel '" + text + "'; valid are " + enum_names<AttentionKernel>());
  }

  static double positive(const std::string& text) {
    const std::optional<double> value = parse_number(text);
    if (!value || *value <= 0) throw Error("'" + text + "' is no number above 0");
    return *value;
  }

  const std::string& file_;
  const std::string folder_;
  std::map<std::string, KernelConstants> kernels_;
};

}  // namespace

std::vector<GpuSpec> parse_gpus(std::string_view text, const std::string& file, const std::string& kernels) {
  try {
    return GpuReader(file, kernels).read(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& error) {
    const int line = error.mark.line;
    throw Error(file, line < 0 ? 0 : static_cast<std::uint64_t>(line) + 1, "not valid YAML: " + error.msg);
  }
}

std::string gpu_file() {
  std::string looked;
  for (const std::string& folder : config_folders("machines")) {
    const fs::path path = fs::path(folder).parent_path() / "gpus.yaml";
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path.string();
    looked += (looked.empty() ? "" : ", ") + path.string();
  }
  throw Error("the file of GPUs is not to be found; looked for " + looked);
}

std::vector<GpuSpec> list_gpus() {
  const std::string path = gpu_file();
  return parse_gpus(read_file(path, maximum_gpu_file_bytes), path, kernel_folder());
}

GpuSpec read_gpu(const std::string& name) {
  std::string names;
  for (GpuSpec& gpu : list_gpus()) {
    if (gpu.name == name) return std::move(gpu);
    names += (names.empty() ? "" : ", ") + gpu.name;
  }
  throw Error("unknown GPU '" + name + "'; valid names are " + names);
}

GpuSpec read_gpu(const std::string& name, const std::string& kernel_file) {
  GpuSpec gpu = read_gpu(name);
  if (kernel_file.empty()) return gpu;
  KernelConstants kernels = read_kernel_file(kernel_file);
  const std::string& of = kernels.calibrated_for;
  if (kernels.name != gpu.kernels.name || (!of.empty() && of != gpu.name)) {
    throw Error(kernel_file, 1,
                "is of the kernels of " + (of.empty() ? "'" + kernels.name + "'" : "the GPU '" + of + "'") +
                    ", not of the GPU '" + gpu.name + "'; name that GPU, or calibrate with a recording of this one");
  }
  gpu.kernels = std::move(kernels);
  return gpu;
}

}  // namespace tencache
