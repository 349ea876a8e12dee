// LibTorch programs that sleep (live_sleep.h): when they do, what wakes them, and that their bits are those of the
// plain run, whatever the op in whose middle they wake needs.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/timeline.h"
#include "executor/live/fault_handler.h"
#include "tests/live/live_support.h"

namespace tencache::live_test {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

// Of the batch, by step.
using Rows = std::function<std::int64_t(int step)>;

// Convolutions, normalisation (whose running figures are written after its output was allocated), and states that the
// optimizer's first step makes.
LiveProgram training(int steps, Rows rows, std::function<void(Session&, int)> between = {}) {
  return [=](Session& session) {
    nn::Conv2d first(nn::Conv2dOptions(3, 8, 3).padding(1)), second(nn::Conv2dOptions(8, 8, 3).padding(1));
    nn::BatchNorm2d norm(8);
    nn::Linear head(8 * 8 * 8, 32);
    first->register_module("second", second.ptr());
    first->register_module("norm", norm.ptr());
    first->register_module("head", head.ptr());
    torch::optim::Adam optimizer(first->parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < steps; ++step) {
      session.step();
      const Tensor images = torch::randn({rows(step), 3, 8, 8});
      const Tensor hidden = torch::relu(second(norm(first(images)).relu_()));
      const Tensor loss = head(hidden.reshape({rows(step), -1})).square().mean();
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      session.keep(loss);
      if (between) between(session, step);
    }
    session.end_steps();
    for (const Tensor& parameter : first->parameters()) session.keep(parameter);
    for (const Tensor& buffer : first->buffers()) session.keep(buffer);
  };
}

Rows always(std::int64_t rows) {
  return [rows](int) { return rows; };
}

// Evicts all that may go, after everything that happens, in the steps that left the schedule: in those that woke.
class Wrecker final : public Policy {
 public:
  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::schedule_deviated) wrecks_ = true;
    if (event.kind == EventKind::iteration_begin) wrecks_ = false;
    if (!wrecks_) return;
    for (ChunkId chunk = view.memory.coldest(0); chunk != none; chunk = view.memory.warmer(chunk, 0)) {
      if (!view.memory.evictable(chunk, 0)) continue;
      const TensorId tensor = view.memory.tensor_of(chunk);
      actions.push({.verb = Verb::evict, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
    }
  }

 private:
  bool wrecks_ = false;
};

struct Slept {
  std::vector<std::string> results;
  LiveFigures figures;
  Bytes most_used = 0;
};

Slept run_on(const MachineSpec& machine, const LiveProgram& program, Policy& policy, bool sleep = true,
             bool pace = false) {
  LiveOptions options;
  options.machine.pace = pace;
  options.machine.raw_access = true;
  options.sleep = sleep;
  Slept slept;
  {
    LiveRuntime runtime(machine, policy, options);
    serve_faults(&runtime);
    const ThreadGuard guard(runtime);
    torch::manual_seed(1);
    Session session(&runtime);
    program(session);
    slept.results = session.results;
    slept.figures = runtime.figures();
    slept.most_used = runtime.machine().memory_statistics(0).peak_used_bytes;
    serve_faults(nullptr);
  }
  return slept;
}

Slept run(const LiveProgram& program, Bytes gpu_bytes, Policy& policy) {
  return run_on(machine_of(gpu_bytes), program, policy);
}

Slept run(const LiveProgram& program, Bytes gpu_bytes, const char* policy = "lru", bool sleep = true) {
  return run_on(machine_of(gpu_bytes), program, *make_policy(policy).policy, sleep);
}

Bytes peak_of(const LiveProgram& program) { return run(program, 64 * MiB, "lru", false).figures.peak_live_bytes; }

TEST(LiveSleepTest, ItBeginsOnceTheScheduleIsKnown) {
  const LiveProgram program = training(8, always(16));
  const std::vector<std::string> plain = run_plain(program);
  for (const char* policy : {"lru", "on-demand", "foresight"}) {
    const Slept slept = run(program, 64 * MiB, policy);
    EXPECT_EQ(slept.results, plain) << policy;
    EXPECT_EQ(slept.figures.steps_asleep, 6u) << policy;
    EXPECT_EQ(slept.figures.ops, 0u) << policy;
    EXPECT_EQ(slept.figures.deviations, 0u) << slept.figures.first_deviation;
  }
  const Slept awake = run(program, 64 * MiB, "lru", false);
  EXPECT_EQ(awake.figures.steps_asleep, 0u);
  EXPECT_GT(awake.figures.ops, 100u);
}

// One that frees by size has to hand on what it has of one size to the next.
TEST(LiveSleepTest, AtTheBudgetThatIsThePeakNothingWakesIt) {
  const LiveProgram program = training(8, always(16));
  const Bytes peak = peak_of(program);
  const std::vector<std::string> plain = run_plain(program);
  for (const Bytes bytes : {peak, peak + 4096, peak + 20 * 4096}) {
    const Slept slept = run(program, bytes);
    EXPECT_EQ(slept.results, plain);
    EXPECT_EQ(slept.figures.steps_asleep, 6u);
    EXPECT_EQ(slept.figures.counters.evictions, 0u);
    EXPECT_LE(slept.most_used, bytes);
    EXPECT_LE(slept.figures.peak_live_bytes, peak);
  }
  EXPECT_EQ(run(program, peak - 4096).figures.steps_asleep, 0u);
}

TEST(LiveSleepTest, ABudgetThatIsExceededWakesItAndIsKept) {
  const auto grows = [](int step) { return std::int64_t{8} + 2 * step; };
  const auto jumps = [](int step) { return std::int64_t{step == 7 ? 96 : 16}; };
  for (const Rows& rows : {Rows(grows), Rows(jumps)}) {
    const LiveProgram program = training(14, rows);
    const Bytes peak = peak_of(program);
    const std::vector<std::string> plain = run_plain(program);
    for (const double share : {0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0, 1.01}) {
      const Bytes bytes = static_cast<Bytes>(share * static_cast<double>(peak)) / 4096 * 4096;
      for (const char* policy : {"lru", "foresight"}) {
        SCOPED_TRACE(std::string(policy) + " at " + std::to_string(share));
        const Slept slept = run(program, bytes, policy);
        EXPECT_EQ(slept.results, plain);
        EXPECT_LE(slept.most_used, bytes);
        // Near the peak it may fit: asleep, scalars are PyTorch's own memory.
        EXPECT_TRUE(share >= 0.99 || slept.figures.counters.evictions > 0);
        EXPECT_TRUE(share < 1 || slept.figures.counters.evictions == 0);
        EXPECT_TRUE(share < 0.9 || slept.figures.steps_asleep > 4) << slept.figures.steps_asleep;
      }
    }
  }
}

// The op in whose middle it wakes loses everything that it uses, and so do those behind it.
TEST(LiveSleepTest, AnOpInItsMiddleFindsWhatItUses) {
  const LiveProgram program = training(12, [](int step) { return std::int64_t{step % 4 == 3 ? 64 : 16}; });
  const Bytes peak = peak_of(program);
  const std::vector<std::string> plain = run_plain(program);
  std::uint64_t touches = 0;
  // From where the largest op has room: a convolution takes 53 % of it where its kernels lay out their inputs anew.
  for (const double share : {0.6, 0.65, 0.8, 0.9, 0.97}) {
    Wrecker wrecker;
    const Slept slept = run(program, static_cast<Bytes>(share * static_cast<double>(peak)), wrecker);
    EXPECT_EQ(slept.results, plain) << share;
    EXPECT_GT(slept.figures.steps_asleep, 0u) << share;
    touches += slept.figures.touches;
  }
  EXPECT_GT(touches, 0u);  // of what was evicted under it
}

// Over a slow link: while what it writes is being copied.
TEST(LiveSleepTest, WhatAnOpInItsMiddleWritesIsNotLost) {
  const LiveProgram program = [](Session& session) {
    constexpr std::int64_t values = 16 * 1024;
    Tensor first = torch::ones({values}), written = torch::ones({values});
    for (int step = 0; step < 7; ++step) {
      session.step();
      float* const address = written.data_ptr<float>();
      const Tensor more = torch::empty({step == 5 ? values : 64});  // of the op that has the address
      for (std::int64_t i = 0; i < values; ++i) address[i] = static_cast<float>(step);
      if (step == 5) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the copy ends, and the pages go
      first.add_(written);
    }
    session.keep(first);
    session.keep(written);
  };
  MachineSpec machine = machine_of(160 * KiB);
  for (Link& link : machine.links) link.bandwidth = 10'000'000;  // 7 ms
  Wrecker wrecker;
  const Slept slept = run_on(machine, program, wrecker, true, true);
  EXPECT_EQ(slept.results, run_plain(program));
  EXPECT_GT(slept.figures.steps_asleep, 2u);
  EXPECT_GT(slept.figures.counters.evictions, 1u);
}

// What autograd takes down of a thread's state when a backward pass begins must not keep the ops behind the wake
// unseen.
TEST(LiveSleepTest, ABackwardPassInWhichItWakesIsSeenFromThereOn) {
  bool wakes = false;
  std::uint64_t seen = 0;
  const LiveProgram program = [&](Session& session) {
    Tensor weight = torch::ones({64, 64}).requires_grad_();
    for (int step = 0; step < 6; ++step) {
      session.step();
      Tensor hidden = torch::tanh(torch::mm(weight, weight));
      if (step == 5) {
        hidden.register_hook([&](const Tensor& gradient) {
          if (session.runtime() != nullptr) wakes = session.runtime()->asleep();
          Tensor large = torch::zeros({60 * 4096 / 4});
          if (session.runtime() != nullptr) {
            wakes = wakes && !session.runtime()->asleep();
            seen = session.runtime()->figures().ops;
          }
          return gradient + large[0];
        });
      }
      hidden.sum().backward();
      session.keep(weight.grad());
      if (session.runtime() != nullptr) seen = session.runtime()->figures().ops - seen;
      weight.mutable_grad().reset();
    }
  };
  const std::vector<std::string> plain = run_plain(program);
  EXPECT_EQ(run(program, 64 * 4096).results, plain);
  EXPECT_TRUE(wakes);
  EXPECT_GE(seen, 3u);  // those of tanh and of mm, behind the hook
}

TEST(LiveSleepTest, AfterALargeStepItSleepsAgainWhenAWholeOneFits) {
  std::vector<bool> asleep;
  const LiveProgram program = training(
      16, [](int step) { return std::int64_t{step == 5 || step == 6 ? 96 : 16}; },
      [&](Session& session, int) {
        if (session.runtime() != nullptr) asleep.push_back(session.runtime()->asleep());
      });
  const std::vector<std::string> plain = run_plain(program);
  EXPECT_EQ(run(program, peak_of(program) * 3 / 4).results, plain);
  asleep.erase(asleep.begin(), asleep.begin() + 16);  // of the run that measures the peak
  // Steps 2 to 4 sleep; 5 wakes. 6 is the first whole one and does not fit; 7 does.
  EXPECT_EQ(asleep, (std::vector<bool>{false, false, true, true, true, false, false, false,  //
                                       true, true, true, true, true, true, true, true}));
}

// A step in three does not fit: the longer it goes on, the fewer of the others are slept through.
TEST(LiveSleepTest, SleepThatIsShortBecomesRare) {
  const LiveProgram program = training(40, [](int step) { return std::int64_t{step % 3 == 2 ? 96 : 16}; });
  const Slept slept = run(program, peak_of(program) * 3 / 4);
  EXPECT_EQ(slept.results, run_plain(program));
  EXPECT_LE(slept.figures.steps_asleep, 4u);
}

void expect_to_wake(const std::string& what, const std::function<void(LiveRuntime&, TensorId)>& action, bool wakes,
                    bool for_good = false) {
  SCOPED_TRACE(what);
  std::vector<bool> asleep;
  const LiveProgram program = training(10, always(16), [&](Session& session, int step) {
    LiveRuntime* const runtime = session.runtime();
    if (runtime == nullptr) return;
    static Tensor tensor;
    if (step == 0) tensor = torch::ones({1024});
    if (step == 4) {
      EXPECT_TRUE(runtime->asleep());
      action(*runtime, live_id(tensor));
    }
    asleep.push_back(runtime->asleep());
    if (step == 9) tensor.reset();
  });
  EXPECT_EQ(run(program, 64 * MiB).results, run_plain(program));
  EXPECT_TRUE(asleep[3]);
  EXPECT_EQ(asleep[4], !wakes);
  EXPECT_EQ(asleep[9], !for_good);
}

TEST(LiveSleepTest, WhatNeedsTheEngineWakesIt) {
  expect_to_wake(
      "an op",
      [](LiveRuntime& runtime, TensorId tensor) {
        runtime.begin_op("op", std::vector<Use>{{tensor, true, true}});
        runtime.end_op();
      },
      true);
  expect_to_wake(
      "a pin",
      [](LiveRuntime& runtime, TensorId tensor) {
        runtime.pin({&tensor, 1}, true);
        runtime.unpin({&tensor, 1}, true);
      },
      true);
  expect_to_wake(
      "a step to be recorded",
      [](LiveRuntime& runtime, TensorId) {
        runtime.record_next();
        runtime.iteration_boundary();
      },
      true);
  expect_to_wake(
      "a task",
      [](LiveRuntime& runtime, TensorId tensor) {
        LiveTask task;
        task.name = "task";
        task.uses = {{tensor, true, true}};
        task.body = [](std::span<std::byte* const>) {};
        std::vector<LiveTask> tasks;
        tasks.push_back(std::move(task));
        runtime.run_tasks(std::move(tasks));
      },
      true, true);
  expect_to_wake(
      "a loan",
      [](LiveRuntime& runtime, TensorId tensor) {
        const std::vector<Use> uses = {{tensor, true, false}};
        runtime.begin_op("op", uses);
        runtime.lend(uses, true);
        runtime.end_op();
        runtime.take_back(uses, true);
      },
      true, true);
  expect_to_wake(
      "an audit",
      [](LiveRuntime&, TensorId) {
        set_audit(true);
        set_audit(false);
      },
      true, true);
  expect_to_wake(
      "stay_awake", [](LiveRuntime& runtime, TensorId) { runtime.stay_awake(); }, true, true);
}

TEST(LiveSleepTest, WhatDoesNotGoesOnAsleep) {
  expect_to_wake(
      "modules",
      [](LiveRuntime& runtime, TensorId) { const ModuleScope outer(runtime, "outer"), inner(runtime, "inner"); },
      false);
  expect_to_wake(
      "a phase", [](LiveRuntime& runtime, TensorId) { runtime.set_phase(Phase::forward); }, false);
  expect_to_wake(
      "what is no step", [](LiveRuntime& runtime, TensorId) { const AsideScope aside(runtime); }, false);
  expect_to_wake(
      "an address", [](LiveRuntime& runtime, TensorId tensor) { runtime.expose(tensor); }, false);
  expect_to_wake(
      "figures", [](LiveRuntime& runtime, TensorId) { EXPECT_GT(runtime.figures().live_bytes, 0u); }, false);
}

// An address that code outside has: writes while the program sleeps, in the step that woke, and later.
TEST(LiveSleepTest, WritesThatNobodyAnnouncesAreKept) {
  Wrecker wrecker;
  const LiveProgram program = [](Session& session) {
    Tensor sum = torch::zeros({4096}), known = torch::zeros({2048});
    float* address = nullptr;
    for (int step = 0; step < 9; ++step) {
      session.step();
      if (step == 1) {
        if (session.runtime() != nullptr) session.runtime()->expose(live_id(known));
        address = known.data_ptr<float>();
      }
      if (address != nullptr) address[step] = static_cast<float>(step);
      const Tensor more = torch::ones({step == 5 ? 12 * 1024 : 64});  // 48 KiB wake it
      if (address != nullptr) address[100 + step] = static_cast<float>(step);
      sum.slice(0, 0, 2048).add_(known);
      session.keep(more);
    }
    session.keep(sum);
    session.keep(known);
  };
  const Slept slept = run(program, 64 * 1024, wrecker);
  EXPECT_EQ(slept.results, run_plain(program));
  EXPECT_GT(slept.figures.steps_asleep, 3u);
  EXPECT_GT(slept.figures.counters.evictions, 0u);
}

// Whoever waits for another thread may have it use and allocate memory, and exceed the budget.
TEST(LiveSleepTest, AThreadThatIsWaitedForIsAsleepAsWell) {
  const LiveProgram program = [](Session& session) {
    Tensor sum = torch::zeros({1024}), other = torch::ones({1024});
    for (int step = 0; step < 8; ++step) {
      session.step();
      std::thread([&] {
        std::unique_ptr<ThreadGuard> guard;
        if (session.runtime() != nullptr) guard = std::make_unique<ThreadGuard>(*session.runtime());
        const c10::AutoGradMode no_grad(false);
        const Tensor more = torch::full({step == 6 ? 16 * 1024 : 1024}, 0.5);
        sum.add_(more.slice(0, 0, 1024));
      }).join();
      sum.mul_(1.25).add_(other);
    }
    session.keep(sum);
  };
  Wrecker wrecker;
  const Slept slept = run(program, 68 * 1024, wrecker);
  EXPECT_EQ(slept.results, run_plain(program));
  EXPECT_EQ(slept.figures.steps_asleep, 5u);
  EXPECT_GT(slept.figures.counters.evictions, 0u);
}

TEST(LiveSleepTest, TheNextRunSeesItsOpsAgain) {
  const LiveProgram program = training(6, always(16));
  const std::vector<std::string> plain = run_plain(program);
  const Bytes peak = peak_of(program);
  for (const Bytes bytes : {64 * MiB, peak / 2, 64 * MiB, peak / 2}) {
    const Slept slept = run(program, bytes);
    EXPECT_EQ(slept.results, plain);
    EXPECT_EQ(slept.figures.steps_asleep, bytes > peak ? 4u : 0u);
    EXPECT_EQ(slept.figures.counters.evictions > 0, bytes < peak);
  }
}

// Of those who have to see the ops.
TEST(LiveSleepTest, NobodySleepsUnderATimelineOrWithoutServedMemory) {
  for (const bool timeline : {true, false}) {
    const MadePolicy made = make_policy("lru");
    Timeline spans;
    LiveOptions options;
    options.sleep = true;
    options.machine.pace = false;
    options.machine.raw_access = timeline;
    if (timeline) options.engine.timeline = &spans;
    LiveRuntime runtime(machine_of(64 * MiB), *made.policy, options);
    const ThreadGuard guard(runtime);
    Session session(&runtime);
    training(6, always(4))(session);
    EXPECT_EQ(runtime.figures().steps_asleep, 0u);
  }
}

}  // namespace
}  // namespace tencache::live_test
