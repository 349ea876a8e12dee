// The live runtime without LibTorch: a program that announces its own ops, whose updates run on the CPU's lane beside
// it.
#include "executor/live/live_runtime.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "policies/registry.h"
#include "tests/replay_log.h"

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
  machine.cpu.adam_parameters_per_second = 1e9;
  return machine;
}

float* floats(std::byte* address) { return reinterpret_cast<float*>(address); }

// Each step reads every weight, makes a gradient of it, and adds that to the weight and to its momentum, as one task a
// weight; what frees the gradients does not wait for the tasks. Returns the first wrong value, or -1. One task of step
// `failing_step` throws.
float first_wrong_value(LiveRuntime& runtime, int weights, int steps, int failing_step = -1) {
  std::vector<LiveRuntime::Storage> weight;
  std::vector<TensorId> momentum;  // undefined until a task writes it
  for (int i = 0; i < weights; ++i) {
    weight.push_back(runtime.allocate(tensor_bytes, false));
    std::fill_n(floats(weight.back().address), values, 0.0f);
    runtime.mark(weight.back().tensor, Role::parameter, "weight." + std::to_string(i));
    momentum.push_back(runtime.allocate(tensor_bytes, false).tensor);
    runtime.mark(momentum.back(), Role::optimizer_state, "momentum." + std::to_string(i));
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
  for (const TensorId tensor : momentum) runtime.release(tensor);
  return wrong;
}

TEST(LiveRuntimeTest, UpdatesBesideTheProgramComputeTheSameValues) {
  for (const char* name : {"on-demand", "lru", "foresight", "zero-offload", "deep-optimizer-states", "mlp-offload"}) {
    for (const std::uint64_t room : {4U, 6U, 40U}) {
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
        EXPECT_EQ(runtime.figures().deviations, 0u) << runtime.figures().first_deviation;
      }
      const MadePolicy again = make();
      const ReplayedLog replayed = replay_log(log, with_real_pages(machine_of(room)), *again.policy);
      EXPECT_EQ(replayed.diverged, "");
      EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "");
    }
  }
}

// A tensor that a task adds one to in each step. Once the schedule is known the task begins some time after it was given.
class LateTask {
 public:
  explicit LateTask(Device device) : device_(device), runtime_(machine_of(40), *made_.policy, options()) {
    tensor_ = runtime_.allocate(tensor_bytes, false);
    std::fill_n(floats(tensor_.address), values, 0.0f);
    for (int i = 0; i < 3; ++i) step(std::chrono::milliseconds(0));
  }
  ~LateTask() {
    runtime_.finish_tasks();
    runtime_.release(tensor_.tensor);
  }
  void step(std::chrono::milliseconds late = std::chrono::milliseconds(30)) {
    runtime_.iteration_boundary();
    done_ = false;
    const auto body = [this, late](std::span<std::byte* const> addresses) {
      std::this_thread::sleep_for(late);
      for (std::size_t at = 0; at < values; ++at) floats(addresses[0])[at] += 1;
      done_ = true;
    };
    runtime_.run_tasks(
        {{.name = "add", .uses = {{tensor_.tensor, true, true}}, .device = device_, .placeable = false, .body = body}});
  }
  bool done() const { return done_; }
  float look() {
    EXPECT_TRUE(runtime_.touch(tensor_.address, false));
    EXPECT_TRUE(done());
    return floats(tensor_.address)[values - 1];
  }
  void expose() { runtime_.expose(tensor_.tensor); }

 private:
  static LiveOptions options() {
    LiveOptions options;
    options.machine.pace = false;
    options.machine.raw_access = true;
    return options;
  }

  const Device device_;
  const MadePolicy made_ = make_policy("on-demand");
  LiveRuntime runtime_;
  LiveRuntime::Storage tensor_;
  std::atomic<bool> done_ = false;
};

// A decoder's steps: each reads every weight, and makes its cache longer by a page (an op reads the old one and makes the
// new one, which the step leaves behind). What is computed from the cache is as long. Returns the first wrong value, or -1.
float first_wrong_cached_value(LiveRuntime& runtime, int layers, int steps) {
  constexpr std::size_t page = 1024;  // values
  std::vector<LiveRuntime::Storage> weight, cache;
  for (int i = 0; i < layers; ++i) {
    weight.push_back(runtime.allocate(tensor_bytes, false));
    std::fill_n(floats(weight.back().address), values, static_cast<float>(i));
    runtime.mark(weight.back().tensor, Role::parameter, "weight." + std::to_string(i));
    cache.push_back(runtime.allocate(page * sizeof(float), false));
    std::fill_n(floats(cache.back().address), page, 0.0f);
  }
  float wrong = -1;
  const auto expect = [&wrong](float value, float expected) {
    if (value != expected && wrong < 0) wrong = value;
  };
  for (int step = 1; step <= steps; ++step) {
    runtime.iteration_boundary();
    const std::size_t length = page * static_cast<std::size_t>(step);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      runtime.begin_op("extend", std::vector<Use>{{cache[i].tensor, true, false}});
      const LiveRuntime::Storage longer = runtime.allocate((length + page) * sizeof(float), true);
      std::copy_n(floats(cache[i].address), length, floats(longer.address));
      std::fill_n(floats(longer.address) + length, page, static_cast<float>(step));
      runtime.end_op();
      runtime.release(cache[i].tensor);
      cache[i] = longer;
      runtime.begin_op("attend", std::vector<Use>{{weight[i].tensor, true, false}, {cache[i].tensor, true, false}});
      const LiveRuntime::Storage scores = runtime.allocate((length + page) * sizeof(float), true);
      for (std::size_t at = 0; at < length + page; ++at) {
        expect(floats(cache[i].address)[at], static_cast<float>(at / page));
        floats(scores.address)[at] = floats(weight[i].address)[at % values];
      }
      runtime.end_op();
      runtime.begin_op("sum", std::vector<Use>{{scores.tensor, true, false}});
      expect(floats(scores.address)[length], static_cast<float>(i));
      runtime.end_op();
      runtime.release(scores.tensor);
    }
  }
  for (std::size_t i = 0; i < weight.size(); ++i) {
    runtime.release(weight[i].tensor);
    runtime.release(cache[i].tensor);
  }
  return wrong;
}

TEST(LiveRuntimeTest, AGrowingCacheStaysOnTheSchedule) {
  MachineSpec machine = machine_of(8);
  machine.tiers.push_back({"nvme", TierKind::nvme, 64 * MiB, 4096, {std::filesystem::temp_directory_path().string()}});
  machine.links.push_back({"nvme_read", 2, 1, 1'000'000'000, 0, {}});
  machine.links.push_back({"nvme_write", 1, 2, 1'000'000'000, 0, {}});
  machine.staging = {1, 4, 16 * MiB};
  for (const PolicyInfo& info : list_policies()) {
    if (info.name == "ideal") continue;  // has no limit
    SCOPED_TRACE(info.name);
    std::map<std::string, std::string> settings;
    for (const Options::Info& option : info.options) {
      if (option.name == "overflow" && std::ranges::count(option.choices, "evict") == 1) settings["overflow"] = "evict";
    }
    const MadePolicy made = make_policy(info.name, settings);
    LiveOptions options;
    options.machine.pace = false;
    LiveRuntime runtime(machine, *made.policy, options);
    EXPECT_EQ(first_wrong_cached_value(runtime, 12, 10), -1);
    EXPECT_EQ(runtime.figures().deviations, 0u) << runtime.figures().first_deviation;
    const Trace& step = runtime.recorded();
    EXPECT_EQ(to_string(step.header.provenance.made_by), "recorded");
    std::size_t lasting = 0;
    for (const Tensor& tensor : step.tensors) lasting += tensor.persistent ? 1 : 0;
    EXPECT_EQ(lasting, 24u) << "the old cache and the new one are one tensor";
  }
}

TEST(LiveRuntimeTest, CodeOutsideOfOpsSeesWhatTasksWrote) {
  LateTask touched(Device::cpu);
  touched.step();
  EXPECT_EQ(touched.look(), 4);
  LateTask exposed(Device::cpu);
  exposed.step();
  exposed.expose();
  EXPECT_TRUE(exposed.done());
  exposed.step();  // nobody would hear of an access to what its address still shows
  EXPECT_TRUE(exposed.done());
  EXPECT_EQ(exposed.look(), 5);
}

// Exposed ones are protected from writes.
TEST(LiveRuntimeTest, TasksOfTheGpuWriteExposedTensors) {
  LateTask task(Device::gpu);
  task.expose();
  task.step();
  EXPECT_EQ(task.look(), 4);
}

// What a timeline says of a tier adds up: by tensor and, where the tensor is not known, by role.
class Held {
 public:
  void add(const OccupancySample& sample) {
    const std::int64_t held =
        held_[{sample.tier, sample.tensor, sample.tensor == none ? sample.role : Role::activation}] += sample.change;
    EXPECT_GE(held, 0) << "tensor " << sample.tensor << " at " << sample.time_ns;
    EXPECT_GE(sample.time_ns, last_ns_);
    last_ns_ = sample.time_ns;
    EXPECT_EQ(static_cast<Bytes>(total_[sample.tier] += sample.change), sample.used);
  }
  std::int64_t of(TierId tier, TensorId tensor, Role role = Role::activation) { return held_[{tier, tensor, role}]; }
  std::int64_t unknown() const {
    std::int64_t sum = 0;
    for (const auto& [key, held] : held_) sum += std::get<1>(key) == none ? held : 0;
    return sum;
  }

 private:
  std::map<std::tuple<TierId, TensorId, Role>, std::int64_t> held_;
  std::map<TierId, std::int64_t> total_;
  Nanoseconds last_ns_ = 0;
};

TEST(OccupancyLabelsTest, RoomChangesHandsAsMoreBecomesKnown) {
  Timeline timeline;
  OccupancyLabels labels(&timeline);
  const auto write = [&](Nanoseconds time, TierId tier, Role role, TensorId tensor, Bytes used, std::int64_t change) {
    timeline.occupancy.push_back({time, tier, role, tensor, used, change});
  };
  labels.created(7);
  write(10, 0, Role::activation, 7, 100, 100);
  write(20, 1, Role::gradient, 7, 60, 60);  // it became one meanwhile
  labels.named(7, 3, 30);
  write(40, 0, Role::gradient, 7, 0, -100);
  write(50, 1, Role::gradient, 7, 0, -60);
  labels.label();
  labels.created(7);  // another one
  write(60, 0, Role::gradient, 7, 40, 40);
  labels.label();
  ASSERT_EQ(timeline.occupancy.size(), 11u);
  Held held;
  for (std::size_t i = 0; i < 4; ++i) held.add(timeline.occupancy[i]);
  EXPECT_EQ(held.of(0, none, Role::gradient), 100);  // the GPU's room is a gradient's, as the CPU's
  EXPECT_EQ(held.of(1, none, Role::gradient), 60);
  for (std::size_t i = 4; i < 8; ++i) held.add(timeline.occupancy[i]);
  EXPECT_EQ(held.unknown(), 0);
  EXPECT_EQ(held.of(0, 3), 100);
  EXPECT_EQ(held.of(1, 3), 60);
  for (std::size_t i = 8; i < 11; ++i) held.add(timeline.occupancy[i]);
  EXPECT_EQ(held.of(0, 3), 0);
  EXPECT_EQ(held.of(0, none, Role::gradient), 40);
  timeline.occupancy.clear();
  labels.was_read();
  write(70, 0, Role::gradient, 7, 0, -40);
  labels.label();
  EXPECT_EQ(timeline.occupancy.at(0).tensor, none);
}

// Ids of the memory are used again: its samples say the recording's tensors, in every step from the third on.
TEST(LiveRuntimeTest, OccupancyIsOfTheRecordingsTensors) {
  for (const char* name : {"on-demand", "lru", "zero-offload"}) {
    SCOPED_TRACE(name);
    const bool on_cpu = std::string(name) == "zero-offload";
    const MadePolicy made = on_cpu ? make_policy(name, {{"overflow", "evict"}}) : make_policy(name);
    Timeline timeline;
    Trace program;
    std::vector<std::size_t> first_of_step;  // samples until then; from the second step on
    {
      LiveOptions options;
      options.machine.pace = false;
      options.engine.timeline = &timeline;
      options.engine.on_iteration = [&](std::uint64_t) { first_of_step.push_back(timeline.occupancy.size()); };
      LiveRuntime runtime(machine_of(on_cpu ? 40 : 6), *made.policy, options);
      EXPECT_EQ(first_wrong_value(runtime, 8, 6), -1);
      EXPECT_EQ(runtime.figures().deviations, 0u) << runtime.figures().first_deviation;
      program = runtime.program().trace;
    }
    ASSERT_GE(first_of_step.size(), 5u);
    Held held;
    std::set<std::string> seen;
    for (std::size_t i = 0; i < timeline.occupancy.size(); ++i) {
      const OccupancySample& sample = timeline.occupancy[i];
      held.add(sample);
      if (i < first_of_step[1]) continue;
      ASSERT_LT(sample.tensor, program.tensors.size()) << "sample " << i << " of " << timeline.occupancy.size();
      const Tensor& tensor = program.tensors[sample.tensor];
      seen.emplace(program.name(tensor));
      EXPECT_LE(held.of(sample.tier, sample.tensor), static_cast<std::int64_t>(tensor.bytes));
      if (i == first_of_step[1]) {
        EXPECT_EQ(held.unknown(), 0);
      }
    }
    EXPECT_TRUE(seen.contains("weight.3") || on_cpu);
    EXPECT_TRUE(seen.contains("gradient.3:0"));
  }
}

// An optimizer's state may stay where it was made for good: no later sample would say what it is.
TEST(LiveRuntimeTest, RoomChangesHandsWhereARoleBecomesKnown) {
  const MadePolicy made = make_policy("on-demand");
  Timeline timeline;
  {
    LiveOptions options;
    options.machine.pace = false;
    options.engine.timeline = &timeline;
    LiveRuntime runtime(machine_of(6), *made.policy, options);
    runtime.iteration_boundary();
    const LiveRuntime::Storage state = runtime.allocate(page_bytes, false);
    runtime.mark(state.tensor, Role::optimizer_state, "state");
    runtime.release(state.tensor);
  }
  std::map<Role, std::vector<std::int64_t>> changes;
  for (const OccupancySample& sample : timeline.occupancy) changes[sample.role].push_back(sample.change);
  const auto page = static_cast<std::int64_t>(page_bytes);
  EXPECT_EQ(changes[Role::activation], (std::vector{page, -page}));
  EXPECT_EQ(changes[Role::optimizer_state], (std::vector{page, -page}));
}

// A program that trains for weeks has millions of steps. (Under a sanitizer mallinfo2 knows nothing.)
TEST(LiveRuntimeTest, AStepThatIsOverTakesHardlyAnyMemory) {
  const MadePolicy made = make_policy("lru");
  LiveOptions options;
  options.machine.pace = false;
  LiveRuntime runtime(machine_of(4), *made.policy, options);
  constexpr std::size_t steps = 4096;
  const auto go_on = [&] {
    for (std::size_t i = 0; i < steps; ++i) runtime.iteration_boundary();
  };
  const auto allocated = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  go_on();
  const std::size_t before = allocated();
  go_on();
  EXPECT_LT(allocated(), before + 32 * steps);
  EXPECT_EQ(runtime.result().iteration_ns.size(), 2 * steps - 1);
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
