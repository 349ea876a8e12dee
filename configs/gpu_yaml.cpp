#include "configs/gpu_yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "configs/kernel_yaml.h"
#include "configs/shipped_files.h"
#include "configs/yaml_layers.h"
#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/thread_annotations.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;

constexpr Bytes maximum_gpu_file_bytes = 4 * MiB;

double positive(const std::string& text) {
  const std::optional<double> value = parse_number(text);
  if (!value || *value <= 0) throw Error("'" + text + "' is no number above 0");
  return *value;
}

template <Bytes GpuSpec::*member>
void set_bytes(GpuSpec& gpu, const std::string& text) {
  gpu.*member = parse_bytes(text);
}
template <double GpuSpec::*member>
void set_tflops(GpuSpec& gpu, const std::string& text) {
  gpu.*member = positive(text) * 1e12;
}
template <BytesPerSecond GpuSpec::*member>
void set_bandwidth(GpuSpec& gpu, const std::string& text) {
  gpu.*member = parse_bandwidth(text);
  if (gpu.*member == 0) throw Error("must be above 0");
}
template <auto member>
void set_attention(GpuSpec& gpu, const std::string& text) {
  const auto kernel = parse_enum<AttentionKernel>(text);
  if (!kernel) throw Error("unknown kernel '" + text + "'; valid are " + enum_names<AttentionKernel>());
  gpu.*member = *kernel;
}
void set_sustained(GpuSpec& gpu, const std::string& text) {
  gpu.sustained = positive(text);
  if (gpu.sustained > 1.2) throw Error("'" + text + "' is no share of a clock; it must be at most 1.2");
}

// Its keys that are figures, {value, source, confidence}.
const std::map<std::string, void (*)(GpuSpec& gpu, const std::string& text)> figures{
    {"memory", set_bytes<&GpuSpec::memory>},
    {"memory_bandwidth", set_bandwidth<&GpuSpec::memory_bandwidth>},
    {"fp16_tflops", set_tflops<&GpuSpec::fp16_flops>},
    {"bf16_tflops", set_tflops<&GpuSpec::bf16_flops>},
    {"fp32_tflops", set_tflops<&GpuSpec::fp32_flops>},
    {"sustained", set_sustained},
    {"tf32_tflops", set_tflops<&GpuSpec::tf32_flops>},
    {"fp8_tflops", set_tflops<&GpuSpec::fp8_flops>},
    {"cache", set_bytes<&GpuSpec::cache>},
    {"multiprocessors",
     [](GpuSpec& gpu, const std::string& text) { gpu.multiprocessors = static_cast<std::uint32_t>(positive(text)); }},
    {"attention", set_attention<&GpuSpec::attention>},
    {"fused_attention", set_attention<&GpuSpec::fused_attention>},
    {"interconnect", set_bandwidth<&GpuSpec::interconnect>},
    {"collective_latency",
     [](GpuSpec& gpu, const std::string& text) { gpu.collective_latency_ns = parse_duration(text); }}};

class GpuReader {
 public:
  // `folder` of the kernels' constants; empty: they are left out.
  GpuReader(const std::string& file, const std::string& folder) : file_(file), folder_(folder) {}

  std::vector<GpuSpec> read(const YAML::Node& root) {
    const YamlMap keys({{root, &file_}}, "the file", {"defaults", "gpus"});
    GpuSpec defaults;
    if (const auto value = keys.get("defaults")) read_keys(*value, "defaults", defaults);
    std::vector<GpuSpec> gpus;
    each_item(keys.require("gpus"), "gpus", [&](const YamlValue& item) {
      GpuSpec gpu = defaults;
      read_keys(item, "a GPU", gpu);
      check_complete(item, gpu);
      read_kernels_of(item, gpu);
      const bool known = std::ranges::find(gpus, gpu.name, &GpuSpec::name) != gpus.end();
      if (known) fail_at(item, "GPU '" + gpu.name + "' stands twice");
      gpus.push_back(std::move(gpu));
    });
    return gpus;
  }

 private:
  void add_fact(const YamlMap& of, const std::string& key, GpuSpec& gpu) const {
    const YamlValue confidence = of.require("confidence");
    reader_.choice(confidence, "confidence", {"published", "measured", "estimated"});
    std::erase_if(gpu.facts, [&](const Fact& other) { return other.path == key; });
    gpu.facts.push_back({key, reader_.text(of.require("source"), "source"), confidence.node.Scalar(), "", 0});
  }

  // Where the figure comes from is kept in `gpu.facts`, in place of what a default said. A plain figure has the
  // `source` and `confidence` of its GPU; the rates of tensor cores those of `tensor`, where that is there.
  std::string figure(const YamlMap& of, const YamlValue& value, const std::string& key, GpuSpec& gpu) const {
    if (value.node.IsScalar() && of.get("source")) {
      const auto tensor = of.get("tensor");
      if (tensor && key.ends_with("_tflops") && key != "fp32_tflops") {
        add_fact(YamlMap({*tensor}, "tensor", {"source", "confidence"}), key, gpu);
      } else {
        add_fact(of, key, gpu);
      }
      return value.node.Scalar();
    }
    const YamlMap keys({value}, key, {"value", "source", "confidence", "retrieved"});
    const auto text = [&](const char* name) { return reader_.text(keys.require(name), key + "." + name); };
    reader_.choice(keys.require("confidence"), key + ".confidence", {"published", "measured", "estimated"});
    std::erase_if(gpu.facts, [&](const Fact& other) { return other.path == key; });
    gpu.facts.push_back({key, text("source"), text("confidence"), keys.get("retrieved") ? text("retrieved") : ""});
    return text("value");
  }

  void read_keys(const YamlValue& value, const std::string& what, GpuSpec& gpu) const {
    std::vector<std::string> valid{"name", "kernels", "host", "source", "confidence", "tensor"};
    for (const auto& [key, set] : figures) valid.push_back(key);
    const YamlMap keys({value}, what, valid);
    if (const auto name = keys.get("name")) gpu.name = reader_.text(*name, "name");
    if (const auto kernels = keys.get("kernels")) gpu.kernels.name = reader_.text(*kernels, "kernels");
    if (const auto host = keys.get("host")) read_host(*host, gpu);
    for (const auto& entry : value.node) {
      const std::string& key = entry.first.Scalar();
      const auto found = figures.find(key);
      if (found == figures.end()) continue;
      const YamlValue given{entry.second, &file_};
      const std::string text = figure(keys, given, key, gpu);
      try {
        found->second(gpu, text);
      } catch (const Error& error) {
        fail_at(given, key + ": " + error.what());
      }
    }
  }

  // Cards without a link of their own reach each other by way of the host.
  void read_host(const YamlValue& value, GpuSpec& gpu) const {
    const std::string host = reader_.text(value, "host");
    const std::optional<BytesPerSecond> bandwidth = pcie_bandwidth(host);
    if (!bandwidth && host != "apple" && host != "unified") {
      fail_at(value, "host: '" + host + "' is neither a link such as pcie4x16 nor apple or unified");
    }
    if (gpu.interconnect == 0) {
      gpu.interconnect = bandwidth.value_or(*pcie_bandwidth("pcie4x4"));
      gpu.facts.push_back({"interconnect", host + ", of which copies reach 78 %", "estimated", "", 0});
    }
  }

  static void check_complete(const YamlValue& where, const GpuSpec& gpu) {
    if (gpu.name.empty()) fail_at(where, "a GPU has no 'name'");
    for (const auto& [present, key] : {std::pair(gpu.memory > 0, "memory"),
                                       {gpu.memory_bandwidth > 0, "memory_bandwidth"},
                                       {gpu.fp32_flops > 0, "fp32_tflops"},
                                       {gpu.cache > 0, "cache"},
                                       {gpu.multiprocessors > 0, "multiprocessors"},
                                       {!gpu.kernels.name.empty(), "kernels"},
                                       {gpu.interconnect > 0, "interconnect"}}) {
      if (!present) fail_at(where, "GPU '" + gpu.name + "': '" + key + "' is missing");
    }
  }

  // GPUs of one chip share them.
  void read_kernels_of(const YamlValue& where, GpuSpec& gpu) {
    if (folder_.empty()) return;
    const auto [found, added] = kernels_.try_emplace(gpu.kernels.name);
    if (added) {
      std::error_code ignored;
      if (!fs::exists(fs::path(folder_) / (gpu.kernels.name + ".yaml"), ignored)) {
        fail_at(where, "GPU '" + gpu.name + "': kernels '" + gpu.kernels.name + "' is no file of " + folder_);
      }
      found->second = read_kernels(folder_, gpu.kernels.name);
    }
    gpu.kernels = found->second;
    if (gpu.sustained != 0) gpu.kernels.sustained = gpu.sustained;
  }

  const std::string& file_;
  const std::string folder_;
  const FigureReader reader_;
  std::map<std::string, KernelConstants> kernels_;
};

}  // namespace

std::vector<GpuSpec> parse_gpus(std::string_view text, const std::string& file, const std::string& kernels) {
  return GpuReader(file, kernels).read(load_yaml(text, file));
}

std::optional<BytesPerSecond> pcie_bandwidth(std::string_view link) {
  constexpr double reached = 24.7 / 31.5;
  // GB/s a lane, after the encoding.
  constexpr double lane[] = {0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
  if (!link.starts_with("pcie") || link.size() < 7 || link[5] != 'x') return std::nullopt;
  const std::optional<std::uint32_t> lanes = parse_number<std::uint32_t>(link.substr(6));
  if (link[4] < '1' || link[4] > '6' || !lanes || *lanes == 0 || *lanes > 16) return std::nullopt;
  return static_cast<BytesPerSecond>(std::llround(lane[link[4] - '1'] * *lanes * reached * 1e9));
}

namespace {

// What was read last: a command asks for the list many times, and the file is long. Any thread may ask.
template <typename Entry>
class LastRead {
 public:
  struct Source {
    std::string path, text, kernels;
    bool operator==(const Source&) const = default;
  };
  template <typename Parse>
  std::vector<Entry> of(Source source, const Parse& parse) {
    const MutexLock lock(mutex_);
    if (!(source == source_)) {
      entries_ = parse(source.text);
      source_ = std::move(source);
    }
    return entries_;
  }

 private:
  Mutex mutex_;
  Source source_ TENCACHE_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ TENCACHE_GUARDED_BY(mutex_);
};

LastRead<GpuSpec> gpus_read;
LastRead<HostedGpu> hosted_gpus_read;

}  // namespace

std::vector<HostedGpu> list_hosted_gpus() {
  std::string path;
  try {
    path = gpu_file();
  } catch (const Error&) {  // a folder of configs with machines alone
    return {};
  }
  return hosted_gpus_read.of({path, read_file(path, maximum_gpu_file_bytes), ""}, [&](const std::string& text) {
    const YAML::Node root = load_yaml(text, path);
    std::vector<HostedGpu> hosted;
    for (GpuSpec& gpu : GpuReader(path, "").read(root)) hosted.push_back({std::move(gpu), ""});
    std::size_t index = 0;
    for (const YAML::Node& gpu : root["gpus"]) {
      if (const YAML::Node host = gpu["host"]) hosted[index].host = host.Scalar();
      ++index;
    }
    return hosted;
  });
}

std::string gpu_file() { return config_file("gpus.yaml"); }

std::vector<GpuSpec> list_gpus() {
  const std::string path = gpu_file(), kernels = kernel_folder();
  return gpus_read.of({path, read_file(path, maximum_gpu_file_bytes), kernels},
                      [&](const std::string& text) { return parse_gpus(text, path, kernels); });
}

GpuSpec read_gpu(const std::string& name) {
  std::vector<GpuSpec> gpus = list_gpus();
  std::vector<std::string> names;
  for (const GpuSpec& gpu : gpus) names.push_back(gpu.name);
  const std::optional<std::string> found = match_name(name, names);
  if (!found) throw Error("unknown GPU '" + name + "'; " + valid_names(name, names, "`tencache gpus`"));
  return std::move(*std::ranges::find(gpus, *found, &GpuSpec::name));
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
