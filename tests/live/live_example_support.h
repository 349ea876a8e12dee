// What the tests on the C++ example share: a small model, what it needs, and training it on a runtime.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "docs/examples/live_gpt/live_gpt.h"
#include "policies/registry.h"
#include "tests/live/live_support.h"

namespace tencache::live_gpt {

// Short sequences: most of the memory is parameters, gradients and optimizer states, and a step takes milliseconds.
inline Options tiny(std::uint64_t steps) {
  Options options;
  options.layers = 2;
  options.width = 64;
  options.context = 16;
  options.batch = 4;
  options.learning_rate = 3e-3;
  options.seed = 11;
  options.steps = steps;
  return options;
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("tencache-example-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Paged {
  Result result;
  MachineSpec machine;  // that it ran on
  RunResult run;
  Program program;
  FaultCounts faults{};
  Bytes peak_live_bytes = 0, largest_op_bytes = 0;
  std::string largest_op, first_deviation;
  std::uint64_t deviations = 0, evictions = 0;
};

// Links as fast as they go.
inline Paged train_paged(const Options& options, const MachineSpec& machine, Policy& policy, LiveOptions live,
                         const Compute& compute = {}) {
  live.machine.pace = false;
  LiveRuntime runtime(machine, policy, on(compute, live));
  Paged paged;
  paged.result = train(options, &runtime, compute);
  paged.machine = runtime.spec();
  paged.run = runtime.result();
  if (runtime.has_recorded()) paged.program = runtime.program();
  const LiveFigures figures = runtime.figures();
  paged.faults = figures.faults;
  paged.peak_live_bytes = figures.peak_live_bytes;
  paged.largest_op_bytes = figures.largest_op_bytes;
  paged.largest_op = figures.largest_op;
  paged.first_deviation = figures.first_deviation;
  paged.deviations = figures.deviations;
  paged.evictions = figures.counters.evictions;
  return paged;
}

struct Demand {
  Bytes peak_bytes = 0, largest_op_bytes = 0;
  std::string largest_op;
};

inline Demand measure_demand(const Options& options, const Compute& compute = {}) {
  const MadePolicy made = make_policy("on-demand");
  const Paged paged = train_paged(options, live_test::machine_of(512 * MiB), *made.policy, {}, compute);
  return {paged.peak_live_bytes, paged.largest_op_bytes, paged.largest_op};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tencache::live_gpt
