// Live training on a GPU's memory, without a GPU: LibTorch computes on the CPU, the GPU tier is the memory of a driver of
// rules (which the CPU can touch), copies are its streams'. What LibTorch itself does on a GPU is not shown here.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "executor/cuda/cuda_device.h"
#include "executor/torch/interception.h"
#include "gmock/gmock.h"
#include "policies/registry.h"
#include "tests/live/live_example_support.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache::live_gpt {
namespace {

using at::Tensor;
using rules::RulesDriver;
using testing::HasSubstr;

constexpr std::uint64_t steps = 5;

Compute on_rules(const RulesDriver& driver, std::uint64_t* fences = nullptr) {
  Compute compute;
  compute.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  if (fences != nullptr) compute.fence = [fences] { ++*fences; };
  return compute;
}

void expect_nothing_left(const RulesDriver& driver) {
  EXPECT_EQ(driver.violation(), "");
  const rules::RulesCounts left = driver.counts();
  EXPECT_EQ(left.mappings + left.handles + left.reservations + left.pinned + left.streams + left.contexts, 0u);
}

class LiveCuda : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_F(LiveCuda, TrainsToTheSameBitsUnderSeveralPolicies) {
  const Result plain = train(tiny(steps), nullptr);
  RulesDriver driver({.memory = 1 * GiB, .granularity = 4096});
  std::uint64_t fences = 0;
  const Demand demand = measure_demand(tiny(2), on_rules(driver, &fences));
  EXPECT_GT(fences, 100u) << "each op is waited for";
  const Bytes gpu = std::max(demand.peak_bytes / 2, demand.largest_op_bytes * 5 / 4) / 4096 * 4096;
  const Folder folder;
  for (const char* policy : {"on-demand", "zero-infinity", "10cache", "teraio", "foresight"}) {
    SCOPED_TRACE(policy);
    MachineSpec machine = live_test::machine_of(gpu);
    if (std::string(policy) == "teraio") {  // files that the device reads by itself
      machine = live_test::machine_of(gpu, folder.path());
      machine.tiers[1].capacity = 2 * MiB;
      machine.links.push_back({.name = "nvme_read", .from = 2, .to = 1, .bandwidth = 10'000'000'000, .uses = {}});
      machine.links.push_back({.name = "nvme_write", .from = 1, .to = 2, .bandwidth = 10'000'000'000, .uses = {}});
    }
    const std::uint64_t uploads = driver.counts().uploads;
    // What gives up by default where it could evict is told to evict.
    const bool gives_up = std::string(policy) == "zero-infinity";
    const MadePolicy made = make_policy(policy, gives_up ? std::map<std::string, std::string>{{"overflow", "evict"}}
                                                         : std::map<std::string, std::string>{});
    const Paged paged = train_paged(tiny(steps), machine, *made.policy, {}, on_rules(driver, &fences));
    EXPECT_EQ(paged.result.losses, plain.losses);
    EXPECT_TRUE(same_bits(paged.result.weights, plain.weights));
    EXPECT_EQ(paged.deviations, 0u) << paged.first_deviation;
    EXPECT_LE(paged.run.peak_bytes[0], gpu);
    EXPECT_GT(driver.counts().uploads, uploads);
    expect_nothing_left(driver);
  }
}

// With a GPU's pages every small tensor takes one.
TEST_F(LiveCuda, PagesOfTwoMebibytesDoNotChangeABit) {
  const Result plain = train(tiny(3), nullptr);
  RulesDriver driver({.memory = 4 * GiB});
  const Demand demand = measure_demand(tiny(2), on_rules(driver));
  EXPECT_EQ(demand.peak_bytes % (2 * MiB), 0u);
  const MadePolicy made = make_policy("foresight");
  const Paged paged =
      train_paged(tiny(3), live_test::machine_of(demand.peak_bytes / 2), *made.policy, {}, on_rules(driver));
  EXPECT_EQ(paged.result.losses, plain.losses);
  EXPECT_TRUE(same_bits(paged.result.weights, plain.weights));
  EXPECT_GT(paged.evictions, 0u);
  expect_nothing_left(driver);
}

TEST_F(LiveCuda, RecordsTheSameOps) {
  RulesDriver driver({.memory = 1 * GiB, .granularity = 4096});
  const MachineSpec machine = live_test::machine_of(256 * MiB);
  const MadePolicy one = make_policy("on-demand"), other = make_policy("on-demand");
  const Paged host = train_paged(tiny(3), machine, *one.policy, {});
  const Paged device = train_paged(tiny(3), machine, *other.policy, {}, on_rules(driver));
  ASSERT_GT(host.program.trace.ops.size(), 50u);
  EXPECT_EQ(device.program.trace.ops.size(), host.program.trace.ops.size());
  EXPECT_EQ(device.program.trace.tensors.size(), host.program.trace.tensors.size());
  EXPECT_EQ(device.peak_live_bytes, host.peak_live_bytes);
  expect_nothing_left(driver);
}

// After a fault of the GPU nothing works any more: one clear error, and the last checkpoint resumes elsewhere.
TEST_F(LiveCuda, AFaultLeavesACheckpointToGoOnFrom) {
  const Folder folder;
  const Result plain = train(tiny(steps), nullptr);
  for (const char* function : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemUnmap"}) {
    SCOPED_TRACE(function);
    RulesDriver driver({.memory = 1 * GiB, .granularity = 4096});
    const Bytes gpu = measure_demand(tiny(2), on_rules(driver)).peak_bytes / 2 / 4096 * 4096;
    const MadePolicy made = make_policy("on-demand");
    Options options = tiny(steps);
    options.checkpoint = folder.path() + "/checkpoint";
    options.checkpoint_every = 1;
    options.on_checkpoint = [&](std::uint64_t done) {
      if (done == 2) driver.fail(function, CUDA_ERROR_LAUNCH_FAILED, 3);
    };
    try {
      train_paged(options, live_test::machine_of(gpu), *made.policy, {}, on_rules(driver));
      ADD_FAILURE() << "nothing failed";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
    }
    EXPECT_EQ(driver.violation(), "");
    Options rest = tiny(steps);
    rest.resume = options.checkpoint;
    const Result resumed = train(rest, nullptr);
    EXPECT_EQ(resumed.resumed_steps, 2u);
    EXPECT_TRUE(same_bits(resumed.weights, plain.weights));
  }
}

// ---- Ops that go on after they have returned, as a GPU's do ---------------------------------------------------------

class LateStream {
 public:
  LateStream() : thread_([this] { serve(); }) {}
  ~LateStream() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void push(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  void finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty(); });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
      jobs_.front()();  // stays where it is
      lock.lock();
      jobs_.pop_front();
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool closing_ = false;
  std::thread thread_;
};

LateStream* late_stream = nullptr;

// 2 a + b, through a workspace that is let go of while it is still written.
Tensor late_mix(const Tensor& a, const Tensor& b) {
  const auto* from = a.data_ptr<float>();
  const auto* other = b.data_ptr<float>();
  const auto elements = static_cast<std::size_t>(a.numel());
  Tensor result;
  {
    const Tensor workspace = at::empty_like(a);
    auto* between = workspace.data_ptr<float>();
    late_stream->push([=] {
      for (std::size_t i = 0; i < elements; ++i) between[i] = 2 * from[i];
    });
    result = at::empty_like(a);
    auto* to = result.data_ptr<float>();
    late_stream->push([=] {
      for (std::size_t i = 0; i < elements; ++i) to[i] = between[i] + other[i];
    });
  }
  const Tensor after = at::empty_like(a);  // hears of the workspace's end
  auto* noise = after.data_ptr<float>();
  late_stream->push([=] {
    for (std::size_t i = 0; i < elements; ++i) noise[i] = -1;
  });
  return result;
}

// Counts its calls in memory that it keeps, as cuBLAS keeps its workspace.
Tensor& kept_memory() {
  static auto* const memory = new Tensor;
  return *memory;
}
Tensor count_calls(const Tensor& like) {
  if (!kept_memory().defined()) kept_memory() = at::empty({2000}, like.options()).fill_(0);
  kept_memory().add_(1);
  return at::empty_like(like).copy_(kept_memory().slice(0, 0, like.numel()).view(like.sizes()));
}

Tensor call(const char* name, const std::vector<Tensor>& arguments) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  if (arguments.size() == 1) return op.typed<Tensor(const Tensor&)>().call(arguments[0]);
  return op.typed<Tensor(const Tensor&, const Tensor&)>().call(arguments[0], arguments[1]);
}

// Chunks that leave lose their pages: a touch too late is a crash.
TEST_F(LiveCuda, MemoryIsLeftAloneUntilTheDeviceIsDone) {
  RulesDriver driver({.memory = 64 * MiB, .granularity = 4096});
  LateStream stream;
  late_stream = &stream;
  const MadePolicy made = make_policy("on-demand");
  LiveOptions live;
  live.machine.pace = false;
  live.machine.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  live.fence = [&stream] { stream.finish(); };
  {
    LiveRuntime runtime(live_test::machine_of(6 * 16 * KiB), *made.policy, live);
    const ThreadGuard guard(runtime);
    std::vector<Tensor> all;
    for (int i = 0; i < 12; ++i) all.push_back(at::full({64, 64}, static_cast<float>(i)));
    std::vector<float> expected;
    for (int i = 0; i < 12; ++i) expected.push_back(static_cast<float>(i));
    for (std::size_t round = 0; round < 60; ++round) {
      if (round % 12 == 0) runtime.iteration_boundary();
      const std::size_t a = round % 12, b = (round + 5) % 12;
      all[a] = call("tencache_test::late_mix", {all[a], all[b]});
      expected[a] = 2 * expected[a] + expected[b];
      if (expected[a] > 1e6f) {
        all[a] = at::full({64, 64}, 1.0f);
        expected[a] = 1;
      }
    }
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(all[i].min().item<float>(), expected[i]) << i;
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(all[i].max().item<float>(), expected[i]) << i;
    EXPECT_GT(runtime.figures().counters.evictions, 30u);
  }
  live.machine.accelerator.reset();
  expect_nothing_left(driver);
}

TEST_F(LiveCuda, WorkspacesThatLibrariesKeepStay) {
  RulesDriver driver({.memory = 64 * MiB, .granularity = 4096});
  const MadePolicy made = make_policy("on-demand");
  LiveOptions live;
  live.machine.pace = false;
  live.machine.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  {
    LiveRuntime runtime(live_test::machine_of(6 * 8 * KiB), *made.policy, live);
    const ThreadGuard guard(runtime);
    const Tensor like = at::zeros({40, 50});
    std::vector<Tensor> others;
    for (int i = 1; i <= 20; ++i) {
      const Tensor counted = call("tencache_test::count_calls", {like});
      EXPECT_EQ(counted.min().item<float>(), static_cast<float>(i));
      others.push_back(at::full({40, 50}, static_cast<float>(i)));
      EXPECT_EQ(others[others.size() / 2].max().item<float>(), static_cast<float>(others.size() / 2 + 1));
    }
    EXPECT_GT(runtime.figures().counters.evictions, 10u);
    kept_memory().reset();
  }
  live.machine.accelerator.reset();
  expect_nothing_left(driver);
}

}  // namespace
}  // namespace tencache::live_gpt

TORCH_LIBRARY(tencache_test, library) {
  library.def("late_mix(Tensor a, Tensor b) -> Tensor");
  library.def("count_calls(Tensor like) -> Tensor");
}
TORCH_LIBRARY_IMPL(tencache_test, CPU, library) {
  library.impl("late_mix", &tencache::live_gpt::late_mix);
  library.impl("count_calls", &tencache::live_gpt::count_calls);
}
