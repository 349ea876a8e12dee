// What single calls of this computer's CUDA driver take: gpu_probe [--json] [--quick] (driver_calls.h says which).
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "bench/driver_calls.h"
#include "core/error.h"
#include "executor/cuda/cuda_driver.h"

namespace tencache {
namespace {

constexpr int usual_repetitions = 101, quick_repetitions = 11;

nlohmann::ordered_json json_of(const MeasuredMedian& seconds) {
  return {{"median_us", seconds.value * 1e6}, {"spread", seconds.spread}};
}

void print(const std::string& device, const DriverCalls& measured) {
  std::printf("%s\n%-40s %12s %12s %8s\n", device.c_str(), "call", "bytes", "median µs", "spread");
  for (const CallTime& time : measured.calls) {
    std::printf("%-40s %12llu %12.2f %7.0f%%%s\n", time.call.c_str(), static_cast<unsigned long long>(time.bytes),
                time.seconds.value * 1e6, time.seconds.spread * 100, time.beside_kernel ? "  while a kernel runs" : "");
  }
  std::printf("a kernel of 2 ms takes %.3f ms, beside a thread that maps %.3f ms\n", measured.kernel_alone.value * 1e3,
              measured.kernel_beside_mapping.value * 1e3);
}

void print_json(const std::string& device, const DriverCalls& measured, int repetitions) {
  nlohmann::ordered_json answer = {{"device", device}, {"repetitions", repetitions}};
  for (const CallTime& time : measured.calls) {
    nlohmann::ordered_json row = {{"call", time.call}, {"bytes", time.bytes}, {"beside_kernel", time.beside_kernel}};
    row.update(json_of(time.seconds));
    answer["calls"].push_back(row);
  }
  answer["kernel_alone"] = json_of(measured.kernel_alone);
  answer["kernel_beside_mapping"] = json_of(measured.kernel_beside_mapping);
  std::printf("%s\n", answer.dump(2).c_str());
}

}  // namespace
}  // namespace tencache

int main(int count, char** arguments) {
  bool json = false;
  int repetitions = tencache::usual_repetitions;
  for (const char* argument : std::span(arguments, static_cast<std::size_t>(count)).subspan(1)) {
    if (std::strcmp(argument, "--json") == 0) {
      json = true;
    } else if (std::strcmp(argument, "--quick") == 0) {
      repetitions = tencache::quick_repetitions;
    } else {
      std::fprintf(stderr, "usage: gpu_probe [--json] [--quick]\n");
      return 2;
    }
  }
  try {
    tencache::CudaDevice device(tencache::cuda_driver(), 0);
    const tencache::DriverCalls measured = tencache::time_driver_calls(device, repetitions);
    if (json) {
      tencache::print_json(device.describe(), measured, repetitions);
    } else {
      tencache::print(device.describe(), measured);
    }
  } catch (const tencache::Error& error) {
    std::fprintf(stderr, "gpu_probe: %s\n", error.what());
    return 1;
  }
}
