// Trains a small GPT with LibTorch under a policy:
//
//   live_gpt MACHINE POLICY GPU_MEMORY [STEPS [CHECKPOINT]]     live_gpt small-host foresight 64MiB 20 gpt.checkpoint
//   live_gpt --plain [STEPS [CHECKPOINT]]                       LibTorch alone: the same losses
//
// MACHINE is a YAML file or a name of `tencache machines`; with TENCACHE_DEVICE=cuda in the environment LibTorch
// computes on a GPU. A checkpoint that is there is resumed.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "docs/examples/live_gpt/live_gpt.h"
#include "executor/room.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "studies/workload.h"

namespace tencache {
namespace {

int run(const std::vector<std::string>& words) {
  const bool plain = !words.empty() && words[0] == "--plain";
  const std::size_t fixed = plain ? 1 : 3;
  if (words.size() < fixed || words.size() > fixed + 2) {
    throw Error("usage: live_gpt MACHINE POLICY GPU_MEMORY [STEPS [CHECKPOINT]], or live_gpt --plain [STEPS …]");
  }
  live_gpt::Options options;
  if (words.size() > fixed) options.steps = std::strtoull(words[fixed].c_str(), nullptr, 10);
  if (words.size() > fixed + 1) options.checkpoint = words[fixed + 1];
  if (std::filesystem::exists(options.checkpoint)) options.resume = options.checkpoint;
  options.on_step = [](std::uint64_t step, float loss, Nanoseconds duration_ns) {
    std::printf("step %3llu  loss %.6f  %.1f ms\n", static_cast<unsigned long long>(step), static_cast<double>(loss),
                static_cast<double>(duration_ns) / 1e6);
  };
  at::set_num_threads(1);  // one core computes, the others copy
  const char* const device = std::getenv("TENCACHE_DEVICE");
  const live_gpt::Compute compute =
      device != nullptr && std::string(device) == "cuda" ? live_gpt::on_cuda() : live_gpt::Compute();
  if (plain) {
    live_gpt::train(options, nullptr, compute);
    return 0;
  }

  MachineChoice choice;
  choice.name = words[0];
  choice.gpu_memory = words[2];
  MachineSpec machine = load_machine(choice);
  choose_directories(machine, {});
  const MadePolicy made = make_policy(words[1]);
  LiveOptions live;
  live.engine.rehearse = rehearse;
  LiveRuntime runtime(machine, *made.policy, live_gpt::on(compute, live));
  live_gpt::train(options, &runtime, compute);
  const LiveFigures figures = runtime.figures();
  std::printf("%llu MiB alive at once in %llu MiB; the largest op, %s, needs %llu MiB\n",
              static_cast<unsigned long long>(figures.peak_live_bytes / MiB),
              static_cast<unsigned long long>(machine.tiers[0].capacity / MiB), figures.largest_op.c_str(),
              static_cast<unsigned long long>(figures.largest_op_bytes / MiB));
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    std::printf("  %s: %llu MiB\n", machine.links[i].name.c_str(),
                static_cast<unsigned long long>(figures.counters.links[i].bytes / MiB));
  }
  return 0;
}

}  // namespace
}  // namespace tencache

int main(int count, char** words) {
  try {
    return tencache::run({words + 1, words + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "live_gpt: %s\n", error.what());
    return 2;
  }
}
