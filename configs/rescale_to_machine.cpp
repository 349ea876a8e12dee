#include "configs/rescale_to_machine.h"

#include <algorithm>

#include "configs/gpu_yaml.h"
#include "core/error.h"
#include "core/names.h"

namespace tencache {

std::optional<Rescaling> rescale_to_machine(Trace& trace, const MachineSpec& machine, const RescaleOptions& options) {
  if (!options.assume_gpu.empty() && options.no_rescale) {
    throw Error("--assume-gpu and --no-rescale exclude each other; give one");
  }
  if (options.no_rescale) return std::nullopt;
  const std::string& hardware = options.assume_gpu.empty() ? trace.header.hardware : options.assume_gpu;
  // Of a machine whose GPU is in no list, traces of the same name still do as they are.
  const bool same = hardware == machine.gpu || hardware == "modelled: " + machine.gpu;
  if (options.assume_gpu.empty() && (machine.gpu.empty() || same)) return std::nullopt;

  const std::vector<GpuSpec> gpus = list_gpus();
  std::vector<std::string> names;
  for (const GpuSpec& gpu : gpus) names.push_back(gpu.name);
  const GpuSpec* from = find_gpu(gpus, hardware);
  if (from == nullptr && !options.assume_gpu.empty()) {
    throw Error("--assume-gpu: unknown GPU '" + options.assume_gpu + "'; " +
                valid_names(options.assume_gpu, names, "`tencache gpus`"));
  }
  if (machine.gpu.empty() || same) return std::nullopt;
  if (from == nullptr) {
    throw Error((hardware.empty()
                     ? std::string("the trace does not say which GPU its durations are of")
                     : "the trace's durations are of '" + hardware + "', which is none of the known GPUs") +
                ", so that they cannot be rescaled to the " + machine.gpu + " of machine '" + machine.name +
                "'; say --assume-gpu NAME (`tencache gpus` lists them), or --no-rescale to take them as they are");
  }
  const GpuSpec* to = find_gpu(gpus, machine.gpu);
  if (to == nullptr) {
    throw Error("machine '" + machine.name + "' has the GPU '" + machine.gpu +
                "', whose figures are not known, so the trace's durations cannot be rescaled to it; name one of "
                "`tencache gpus` in its file, or say --no-rescale to take them as they are");
  }
  if (from == to) return std::nullopt;
  return rescale(trace, *from, *to);
}

std::string taken_as_they_are(const Trace& trace, const MachineSpec& machine, const RescaleOptions& options) {
  if (!options.no_rescale || machine.gpu.empty()) return "";
  const std::string& hardware = trace.header.hardware;
  const std::string of = hardware.starts_with("modelled: ") ? hardware.substr(hardware.find(": ") + 2) : hardware;
  if (of == machine.gpu) return "";
  const std::vector<GpuSpec> gpus = list_gpus();
  if (const GpuSpec* const named = find_gpu(gpus, of); named != nullptr && named->name == machine.gpu) return "";
  return of.empty() ? "an unknown GPU" : of;
}

std::optional<GpuTime> modelled_gpu_time(const Trace& trace, const std::optional<Rescaling>& rescaling) {
  const auto modelled = [](const Op& op) {
    return op.device == Device::gpu && op.duration_source == DurationSource::modelled;
  };
  if (std::ranges::none_of(trace.ops, modelled)) return std::nullopt;
  const std::vector<GpuSpec> gpus = list_gpus();
  const GpuSpec* const gpu = find_gpu(gpus, rescaling ? rescaling->to : trace.header.hardware);
  if (gpu == nullptr) return std::nullopt;
  return gpu_time_of(trace, *gpu);
}

}  // namespace tencache
