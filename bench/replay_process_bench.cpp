// `tencache replay` as a whole process, as a user waits for it: wall time and peak memory, start-up and reading
// included.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/synthetic_trace.h"
#include "configs/machine_yaml.h"
#include "traces/file/trace_file.h"
#include "traces/import/csv.h"

namespace tencache {
namespace {

// Peak resident bytes of the process, or a negative number if it did not end with exit code 0.
double run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = 0;
  const int failed = posix_spawn(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return -1;
  int status = 0;
  rusage usage{};
  if (wait4(process, &status, 0, &usage) != process || status != 0) return -1;
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

// `machine`: a file, in configs/machines unless the path is absolute.
void replay(benchmark::State& state, const std::string& trace, const std::string& machine, const std::string& policy) {
  const std::string program = TENCACHE_BINARY_DIR "/cli/tencache";
  const std::filesystem::path machine_folder = TENCACHE_SOURCE_DIR "/configs/machines";
  double peak_bytes = 0;
  for (auto _ : state) {
    const double bytes = run({program, "replay", trace, "--machine", machine_folder / machine, "--policy", policy});
    if (bytes < 0) state.SkipWithError("tencache replay failed");
    peak_bytes = std::max(peak_bytes, bytes);
  }
  state.counters["peak_MB"] = peak_bytes * 1e-6;
}

void replay_sample(benchmark::State& state) {
  replay(state, TENCACHE_SOURCE_DIR "/traces/samples/gpt-small.trace.jsonl.zst", "demo-small-gpu.yaml", "on-demand");
}
BENCHMARK(replay_sample)->Unit(benchmark::kMillisecond)->UseRealTime();

// G10's simulator takes 46 s and 3.7 GB for its policy on BERT, 150 s and 4.4 GB on ViT, more than 600 s on ResNet152.
void replay_recording(benchmark::State& state, const std::string& name, const std::string& policy) {
  const auto folder = std::filesystem::path(TENCACHE_SOURCE_DIR) / "../shared/traces/g10" / name;
  if (!std::filesystem::exists(folder)) {
    state.SkipWithError("the recording is not there");
    return;
  }
  CsvImportOptions options;
  options.ops_file = folder.string();
  options.hardware = "a100-40g";
  const auto file = std::filesystem::temp_directory_path() / ("bench-" + std::to_string(getpid()) + ".trace.jsonl.zst");
  write_trace(import_csv(options), file.string());
  replay(state, file.string(), "g10-a100.yaml", policy);
  std::filesystem::remove(file);
}
BENCHMARK_CAPTURE(replay_recording, bert_on_demand, "BERT_Base-256", "on-demand")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(replay_recording, bert_g10, "BERT_Base-256", "g10")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(replay_recording, vit_g10, "VIT-1280", "g10")->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(replay_recording, resnet_g10, "ResNet152-1280", "g10")->Unit(benchmark::kMillisecond)->UseRealTime();

// A million ops, each with a name of its own, on a GPU with half the memory they need.
void replay_synthetic(benchmark::State& state) {
  const auto folder = std::filesystem::temp_directory_path() / ("bench-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string trace = folder / "synthetic.trace.jsonl", machine = folder / "machine.yaml";
  {
    const SyntheticTrace made = synthetic_trace(static_cast<std::uint32_t>(state.range(0)));
    write_trace(made.trace, trace);
    std::ofstream(machine) << write_machine_yaml(synthetic_machine(made));
  }
  state.counters["trace_MB"] = static_cast<double>(std::filesystem::file_size(trace)) * 1e-6;
  replay(state, trace, machine, "lru");
  std::filesystem::remove_all(folder);
}
BENCHMARK(replay_synthetic)->Arg(1'000'000)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace tencache

BENCHMARK_MAIN();
