// The live runtime without LibTorch: a program that announces its own ops, whose updates run on the CPU's lane beside
// it.
#include "executor/live/live_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/replay_log.h"
#include "policies/registry.h"

namespace tencache {
namespace {

constexpr std::size_t values = 16 * 1024;  // of a tensor
constexpr Bytes tensor_bytes = values * sizeof(float);

MachineSpec machine_of(std::uint64_t tensors_on_gpu) {
  MachineSpec machine;
  machine.name = "test";
  const auto tier = [](const char* name, TierKind kind, Bytes capacity) {
    Tier made;
    made.name = name;
    made.kind = kind;
    made.capacity = capacity;
    made.granularity = 4096;
    return made;
  };
  machine.tiers = {tier("gpu", TierKind::gpu, tensors_on_gpu * tensor_bytes), tier("cpu", TierKind::cpu, 64 * MiB)};
  const auto link = [&machine](const char* name, TierId from, TierId to) {
    Link made;
    made.name = name;
    made.from = from;
    made.to = to;
    made.bandwidth = 100'000'000'000;
    machine.links.push_back(made);
  };
  link("h2d", 1, 0);
  link("d2h", 0, 1);
  machine.initial_tier = 1;
  machine.cpu_adam_parameters_per_second = 1e9;
  return machine;
}

float* floats(std::byte* address) { return reinterpret_cast<float*>(address); }

// Each step reads every weight, makes a gradient of it, and adds that to the weight and to its momentum, as one task a
// weight; what frees the gradients does not wait for the tasks. Returns the first wrong value, or -1. One task of step
// `failing_step` throws.
float first_wrong_value(LiveRuntime& runtime, int weights, int steps, int failing_step = -1) {
  std::vector<LiveRuntime::Storage> weight;
  std::vector<TensorId> momentum;
  for (int i = 0; i < weights; ++i) {
    weight.push_back(runtime.allocate(tensor_bytes, false));
    std::fill_n(floats(weight.back().address), values, 0.0f);
    runtime.mark(weight.back().tensor, Role::parameter, "weight." + std::to_string(i));
    momentum.push_back(runtime.create_owned(tensor_bytes, Role::optimizer_state, "momentum." + std::to_string(i)));
  }
  float wrong = -1;
  for (int step = 0; step < steps; ++step) {
    runtime.iteration_boundary();
    const float expected = 2.0f * static_cast<float>(step);
    std::vector<LiveRuntime::Storage> gradient;
    runtime.set_phase(Phase::backward);
    for (int i = 0; i < weights; ++i) {
      const LiveRuntime::Storage w = weight[static_cast<std::size_t>(i)];
      runtime.begin_op("gradient", std::vector<Use>{{w.tensor, true, false}});
      gradient.push_back(runtime.allocate(tensor_bytes, true));
      for (std::size_t at = 0; at < values; ++at) {
        const float value = floats(w.address)[at];
        if (value != expected && wrong < 0) wrong = value;
        floats(gradient.back().address)[at] = 2;
      }
      runtime.end_op();
    }
    runtime.set_phase(Phase::optimizer);
    std::vector<LiveTask> tasks;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      LiveTask& task = tasks.emplace_back();
      task.name = "update." + std::to_string(i);
      task.group = static_cast<std::int32_t>(i);
      task.reorderable = true;
      task.uses = {{weight[i].tensor, true, true}, {gradient[i].tensor, true, false}, {momentum[i], step > 0, true}};
      task.body = [first = step == 0, fails = step == failing_step && i == 3](std::span<std::byte* const> addresses) {
        if (fails) throw std::domain_error("update.3");
        float* const w = floats(addresses[0]);
        const float* const g = floats(addresses[1]);
        float* const m = floats(addresses[2]);
        for (std::size_t at = 0; at < values; ++at) {
          m[at] = (first ? 0 : m[at]) + g[at];
          w[at] = m[at];
        }
      };
    }
    runtime.run_tasks(std::move(tasks));
    for (const LiveRuntime::Storage& g : gradient) runtime.release(g.tensor);
  }
  runtime.finish_tasks();
  for (const LiveRuntime::Storage& w : weight) runtime.release(w.tensor);
  return wrong;
}

TEST(LiveRuntimeTest, UpdatesBesideTheProgramComputeTheSameValues) {
  for (const char* name : {"on-demand", "lru", "foresight", "zero-offload", "deep-optimizer-states", "mlp-offload"}) {
    for (const std::uint64_t room : {4, 6, 40}) {
      SCOPED_TRACE(std::string(name) + " with room for " + std::to_string(room));
      const auto make = [name] {
        const bool gives_up = std::string(name).ends_with("offload") || std::string(name) == "deep-optimizer-states";
        if (gives_up) return make_policy(name, {{"overflow", "evict"}});
        if (std::string(name) == "foresight") return make_policy(name, {{"updates", "cpu"}});
        return make_policy(name);
      };
      const MadePolicy made = make();
      EventLog log;
      {
        LiveOptions options;
        options.machine.pace = false;
        options.engine.log = &log;
        LiveRuntime runtime(machine_of(room), *made.policy, options);
        EXPECT_EQ(first_wrong_value(runtime, 8, 7), -1);
        EXPECT_EQ(runtime.deviations(), 0u) << runtime.first_deviation();
      }
      const MadePolicy again = make();
      const ReplayedLog replayed = replay_log(log, with_real_pages(machine_of(room)), *again.policy);
      EXPECT_EQ(replayed.diverged, "");
      EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "");
    }
  }
}

// On the CPU's lane it fails when run_tasks has long returned; in the last step nobody uses its tensors any more.
TEST(LiveRuntimeTest, AFailedUpdateIsReported) {
  for (const char* name : {"on-demand", "zero-offload"}) {
    for (const int step : {1, 4, 6}) {
      SCOPED_TRACE(std::string(name) + ", step " + std::to_string(step));
      const bool on_cpu = std::string(name) == "zero-offload";
      const MadePolicy made = on_cpu ? make_policy(name, {{"overflow", "evict"}}) : make_policy(name);
      LiveOptions options;
      options.machine.pace = false;
      testing::internal::CaptureStderr();  // that tensors outlive the runtime
      {
        LiveRuntime runtime(machine_of(40), *made.policy, options);
        EXPECT_THROW(first_wrong_value(runtime, 8, 7, step), std::domain_error);
      }
      testing::internal::GetCapturedStderr();
    }
  }
}

}  // namespace
}  // namespace tencache
