// Live training on a GPU's memory, without a GPU: LibTorch computes on the CPU, the GPU tier is the memory of a driver of
// rules (which the CPU can touch), copies are its streams'. What LibTorch itself does on a GPU is not shown here.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "executor/cuda/cuda_device.h"
#include "executor/torch/adoption.h"
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

// The GPU's memory is mapped once. What an op has got stays where it is, and what it still needs has to lie in one
// piece: `more` for that.
MachineSpec arena_of(MachineSpec machine, Bytes more) {
  machine.tiers[0].allocator = AllocatorKind::movable;
  machine.tiers[0].capacity += round_up(more, 4096);
  return machine;
}

class LiveCuda : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

void expect_the_same_bits(bool arena) {
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
    if (arena) machine = arena_of(machine, demand.largest_op_bytes);
    // What gives up by default where it could evict is told to evict.
    const bool gives_up = std::string(policy) == "zero-infinity";
    const MadePolicy made = make_policy(policy, gives_up ? std::map<std::string, std::string>{{"overflow", "evict"}}
                                                         : std::map<std::string, std::string>{});
    const Paged paged = train_paged(tiny(steps), machine, *made.policy, {}, on_rules(driver, &fences));
    EXPECT_EQ(paged.result.losses, plain.losses);
    EXPECT_TRUE(same_bits(paged.result.weights, plain.weights));
    EXPECT_EQ(paged.deviations, 0u) << paged.first_deviation;
    EXPECT_LE(paged.run.peak_bytes[0], machine.tiers[0].capacity);
    EXPECT_GT(driver.counts().uploads, uploads);
    expect_nothing_left(driver);
  }
}

TEST_F(LiveCuda, TrainsToTheSameBitsUnderSeveralPolicies) { expect_the_same_bits(false); }
TEST_F(LiveCuda, TrainsToTheSameBitsWhereTensorsMove) { expect_the_same_bits(true); }

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

// On a GPU (where Host says the stream) the runtime brings what comes from ordinary memory.
TEST_F(LiveCuda, LargeContentComesThroughTheRuntime) {
  RulesDriver driver({.memory = 64 * MiB, .granularity = 4096});
  const MadePolicy made = make_policy("on-demand");
  LiveOptions live;
  live.machine.pace = false;
  live.machine.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  live.fence = [&driver] { driver.table().cuStreamSynchronize(nullptr); };
  const Tensor source = at::rand({1 << 19}), small = at::rand({1 << 10});
  const Tensor strided = at::rand({1 << 10, 1 << 10}).t(), other_type = at::rand({1 << 19}).to(at::kDouble);
  {
    LiveRuntime runtime(live_test::machine_of(48 * MiB), *made.policy, live);
    paging::Host host;
    host.raise = [](const tencache_live&, int) { rethrow_live_failure(); };
    host.stream = [] { return static_cast<void*>(nullptr); };
    paging::attach(runtime.abi(), host);
    const paging::Guard guard;
    const auto uploads_of = [&driver](const std::function<void()>& copy) {
      const std::uint64_t before = driver.counts().uploads;
      copy();
      return driver.counts().uploads - before;
    };
    Tensor paged = at::zeros({1 << 19});
    const auto version = paged._version();
    EXPECT_GT(uploads_of([&] { paged.copy_(source); }), 0u);
    EXPECT_EQ(paged._version(), version + 1);
    EXPECT_TRUE(at::equal(paged, source));
    Tensor moved;
    EXPECT_GT(uploads_of([&] { moved = source.to(at::kCPU, at::kFloat, false, true); }), 0u);
    EXPECT_TRUE(at::equal(moved, source));
    EXPECT_NE(paging::tensor_of(moved.storage()), tencache_no_tensor);
    // PyTorch's own copies.
    Tensor weight = at::zeros({1 << 19}).requires_grad_();
    EXPECT_EQ(uploads_of([&] { weight.mul(2).copy_(source); }), 0u) << "it is recorded";
    EXPECT_EQ(uploads_of([&] { paged.slice(0, 0, 1 << 10).copy_(small); }), 0u);
    EXPECT_EQ(uploads_of([&] { at::zeros({1 << 10, 1 << 10}).copy_(strided); }), 0u);
    EXPECT_EQ(uploads_of([&] { at::zeros({1 << 19}).copy_(other_type); }), 0u);
  }
  live.machine.accelerator.reset();
  expect_nothing_left(driver);
}

// Three tensors of 2 MiB have room on the GPU, the others go straight to CPU memory; from the first step on they are
// made by ops, and what is in their way leaves.
TEST_F(LiveCuda, AModelThatIsLargerThanTheGpuEvictsNothingWhileItIsLoaded) {
  std::vector<Tensor> sources;
  for (int i = 0; i < 10; ++i) sources.push_back(at::full({1 << 18, 2}, static_cast<float>(i)));
  for (const bool moves : {false, true}) {
    RulesDriver driver({.memory = 64 * MiB, .granularity = 4096});
    const MadePolicy made = make_policy("on-demand");
    LiveOptions live;
    live.settle = true;
    live.machine.pace = false;
    live.machine.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
    live.fence = [&driver] { driver.table().cuStreamSynchronize(nullptr); };
    {
      MachineSpec machine = live_test::machine_of(7 * MiB);
      if (moves) machine = arena_of(machine, 0);
      LiveRuntime runtime(machine, *made.policy, live);
      paging::Host host;
      host.raise = [](const tencache_live&, int) { rethrow_live_failure(); };
      host.stream = [] { return static_cast<void*>(nullptr); };
      paging::attach(runtime.abi(), host);
      const paging::Guard guard;
      std::vector<Tensor> model;
      const auto load = [&] { model.push_back(sources[model.size()].to(at::kCPU, at::kFloat, false, true)); };
      for (int i = 0; i < 8; ++i) load();
      EXPECT_EQ(runtime.figures().counters.evictions, 0u);
      for (std::size_t i = 0; i < model.size(); ++i) {
        EXPECT_EQ(model[i].sizes(), (std::vector<std::int64_t>{1 << 18, 2}));
        EXPECT_NE(paging::tensor_of(model[i].storage()), tencache_no_tensor);
        const Tensor doubled = model[i] + model[i];
        EXPECT_EQ(doubled.min().item<float>(), 2.0f * static_cast<float>(i)) << "moves: " << moves;
        EXPECT_EQ(doubled.max().item<float>(), 2.0f * static_cast<float>(i));
      }
      runtime.iteration_boundary();
      const std::uint64_t before = runtime.figures().counters.evictions;
      load();
      load();
      EXPECT_GT(runtime.figures().counters.evictions, before);
      EXPECT_EQ((model[8] * 3).max().item<float>(), 24.0f);
      EXPECT_EQ((model[9] * 3).max().item<float>(), 27.0f);
    }
    live.machine.accelerator.reset();
    expect_nothing_left(driver);
  }
}

// ---- Where tensors move ---------------------------------------------------------------------------------------------

// A run on an arena of `blocks` tensors of 16 KiB.
class Arena {
 public:
  explicit Arena(Bytes blocks) : made_(make_policy("on-demand")) {
    LiveOptions live;
    live.settle = true;
    live.machine.pace = false;
    live.machine.accelerator = std::make_shared<CudaDevice>(driver_.table(), 0);
    live.fence = [] {};
    runtime_.emplace(arena_of(live_test::machine_of(blocks * 16 * KiB + 4096), 0), *made_.policy, live);
    guard_.emplace(*runtime_);
  }
  ~Arena() {
    const bool leaks = !runtime_;
    end();
    leaks ? driver_.keep_addresses() : expect_nothing_left(driver_);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The rest is what tensors that outlive the run leave.
  void end() {
    others_ = {};
    guard_.reset();
    runtime_.reset();
  }
  LiveRuntime& runtime() { return *runtime_; }
  std::byte* guard() { return runtime_->guard(); }
  // Everything that is not in use leaves, and others come to lie there.
  void clear() {
    for (int round = 0; round < 2; ++round) {
      for (Tensor& other : others_) other.defined() ? other.add_(1) : other = at::full({64, 64}, 1.0f);
    }
  }

 private:
  RulesDriver driver_{{.memory = 64 * MiB, .granularity = 4096}};
  MadePolicy made_;
  std::optional<LiveRuntime> runtime_;
  std::optional<ThreadGuard> guard_;
  std::array<Tensor, 8> others_;
};

// Whether it may be read.
bool accessible(const void* address) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const bool read = ::write(ends[1], address, 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return read;
}

c10::StorageImpl& storage_of(const Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

// In the body of an op on the tensor.
std::function<void()>& look() {
  static auto* const instance = new std::function<void()>;
  return *instance;
}
Tensor look_around(const Tensor& tensor) {
  look()();
  return at::empty_like(tensor).copy_(tensor);
}

TEST_F(LiveCuda, WhatLeftIsWhereNobodyMayAccess) {
  Arena arena(6);
  std::vector<Tensor> all;
  for (int i = 0; i < 12; ++i) all.push_back(at::full({64, 64}, static_cast<float>(i)));
  const Tensor view = all[0].slice(0, 32);
  EXPECT_FALSE(accessible(arena.guard()));
  std::size_t left = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    look() = [&] {
      std::set<void*> places;
      for (const Tensor& tensor : all) {
        void* const address = tensor.data_ptr();
        if (address == arena.guard()) {
          ++left;
          continue;
        }
        EXPECT_EQ(address, arena.runtime().address(live_id(tensor)));
        EXPECT_TRUE(places.insert(address).second) << "somebody else is there";
      }
      EXPECT_EQ(view.data_ptr<float>(), all[0].data_ptr<float>() + 32 * 64);
    };
    call("tencache_test::look_around", {all[i * 5 % 12]});
  }
  EXPECT_GT(left, 200u);
  EXPECT_EQ(live_id(view), live_id(all[0]));
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(all[i].min().item<float>(), static_cast<float>(i));
  EXPECT_EQ(view.max().item<float>(), 0);
}

TEST_F(LiveCuda, WhatIsExposedComesInAndStays) {
  Arena arena(6);
  const Tensor tensor = at::full({64, 64}, 7.0f);
  arena.clear();
  EXPECT_EQ(tensor.data_ptr(), arena.guard());
  EXPECT_TRUE(paging::expose(storage_of(tensor)));
  auto* const address = tensor.data_ptr<float>();
  EXPECT_EQ(address[9], 7);
  for (int i = 0; i < 3; ++i) {
    address[9] += 1;  // of which nobody hears
    arena.clear();
    tensor.add_(1);
    EXPECT_EQ(tensor.data_ptr(), address);
    EXPECT_EQ(address[9], 9 + 2 * i);
  }
  // Tensors that others have made of the same memory.
  const Tensor other = at::from_blob(address, {64, 64});
  EXPECT_EQ(live_id(other), live_id(tensor));
  other.mul_(2);
  arena.clear();
  EXPECT_EQ(tensor.max().item<float>(), 2 * 13.0f);
  EXPECT_EQ(arena.runtime().figures().exposed, 1u);
  // What an op was not given, and is not there.
  const Tensor gone = at::ones({64, 64});
  arena.clear();
  std::string refusal;
  look() = [&] {
    try {
      paging::expose(storage_of(gone));
    } catch (const Error& error) {
      refusal = error.what();
    }
    EXPECT_TRUE(paging::expose(storage_of(tensor)));
  };
  call("tencache_test::look_around", {tensor});
  EXPECT_EQ(refusal, "op 'tencache_test::look_around' asks for the address of a tensor that it was not given");
  // More than there is room for.
  std::vector<Tensor> all;
  for (int i = 0; i < 6; ++i) all.push_back(at::ones({64, 64}));
  EXPECT_THROW(
      {
        for (const Tensor& one : all) paging::expose(storage_of(one));
      },
      OutOfMemory);
  all.clear();
  EXPECT_EQ(gone.sum().item<float>(), 4096);
}

TEST_F(LiveCuda, InsideAnOpWhatItWasGivenIsExposed) {
  Arena arena(6);
  const Tensor tensor = at::full({64, 64}, 7.0f);
  arena.clear();
  void* address = nullptr;
  look() = [&] {
    EXPECT_TRUE(paging::expose(storage_of(tensor)));
    address = tensor.data_ptr();
  };
  call("tencache_test::look_around", {tensor});
  arena.clear();
  EXPECT_EQ(tensor.data_ptr(), address);
  EXPECT_EQ(tensor.max().item<float>(), 7);
  EXPECT_EQ(tensor.data_ptr(), address);
}

TEST_F(LiveCuda, AllMayBeExposed) {
  Arena arena(8);
  const Tensor before = at::ones({64, 64});
  for (int i = 0; i < 9; ++i) at::full({64, 64}, 1.0f) + at::full({64, 64}, 1.0f);
  paging::expose_all();
  const Tensor after = at::full({64, 64}, 2.0f);
  float* const places[] = {before.data_ptr<float>(), after.data_ptr<float>()};
  for (int i = 0; i < 9; ++i) at::full({64, 64}, 1.0f) + at::full({64, 64}, 1.0f);
  EXPECT_EQ(before.data_ptr<float>(), places[0]);
  EXPECT_EQ(after.data_ptr<float>(), places[1]);
  EXPECT_EQ(places[0][1], 1);
  EXPECT_EQ(places[1][1], 2);
}

TEST_F(LiveCuda, PinnedTensorsAreWhereTheirStoragesSay) {
  Arena arena(6);
  const Tensor tensor = at::full({64, 64}, 3.0f);
  arena.clear();
  {
    const PinnedTensors pinned(arena.runtime(), {tensor});
    auto* const address = tensor.data_ptr<float>();
    address[5] += 1;
    arena.clear();
    EXPECT_EQ(tensor.data_ptr<float>(), address);
    EXPECT_EQ(address[5], 4);
  }
  arena.clear();
  EXPECT_EQ(tensor.data_ptr(), arena.guard());
  EXPECT_EQ(tensor.max().item<float>(), 4);
}

// Code that is no op has memory of the allocator: it stays, until an op has it as a tensor.
TEST_F(LiveCuda, MemoryWithoutATensorStays) {
  Arena arena(6);
  c10::DataPtr memory = c10::GetCPUAllocator()->allocate(64 * 64 * sizeof(float));
  auto* const values = static_cast<float*>(memory.get());
  EXPECT_EQ(memory.get_context(), memory.get()) << "as oneDNN insists";
  std::fill_n(values, 64 * 64, 5.0f);
  arena.clear();
  EXPECT_EQ(values[77], 5);
  const Tensor tensor = at::empty({0}).set_(
      c10::Storage(c10::Storage::use_byte_size_t(), 64 * 64 * sizeof(float), std::move(memory)), 0, {64, 64}, {64, 1});
  arena.clear();
  EXPECT_EQ(tensor.data_ptr<float>(), values);
  EXPECT_EQ(values[77], 5);
  tensor.add_(1);
  arena.clear();
  EXPECT_EQ(tensor.data_ptr(), arena.guard()) << "as any other tensor from here on";
  EXPECT_EQ(tensor.min().item<float>(), 6);
}

// What oneDNN keeps: taken in an op, by an address alone.
TEST_F(LiveCuda, MemoryThatAnOpKeepsStays) {
  Arena arena(6);
  const Tensor tensor = at::ones({64, 64});
  float* kept = nullptr;
  look() = [&] {
    kept = static_cast<float*>(c10::GetCPUAllocator()->raw_allocate(16 * KiB));
    std::fill_n(kept, 4096, 8.0f);
  };
  call("tencache_test::look_around", {tensor});
  arena.clear();
  EXPECT_EQ(kept[4095], 8);
  c10::GetCPUAllocator()->raw_deallocate(kept);
  arena.clear();
}

TEST_F(LiveCuda, StoragesMayGetOtherMemoryMeanwhile) {
  Arena arena(6);
  const Tensor tensor = at::full({64, 64}, 3.0f), other = at::full({64, 64}, 4.0f);
  arena.clear();
  // Its memory goes to another storage, and it gets some that is not the runtime's.
  std::vector<float> plain(4096, 1);
  c10::DataPtr moved = storage_of(tensor).set_data_ptr(c10::DataPtr(plain.data(), c10::Device(c10::kCPU)));
  storage_of(other).set_data_ptr_noswap(std::move(moved));
  EXPECT_EQ(live_id(tensor), none);
  arena.clear();
  EXPECT_EQ(tensor.data_ptr(), plain.data());
  EXPECT_EQ(other.max().item<float>(), 3);
  EXPECT_EQ(tensor.max().item<float>(), 1);
  arena.clear();
  EXPECT_EQ(other.data_ptr(), arena.guard());
  EXPECT_EQ(other.max().item<float>(), 3);
}

TEST_F(LiveCuda, WhatOutlivesTheRunIsWhereNobodyMayAccess) {
  Arena arena(6);
  Tensor survivor = at::full({64, 64}, 3.0f);
  const void* const guard = arena.guard();
  testing::internal::CaptureStderr();
  arena.end();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("outlive their runtime"));
  EXPECT_EQ(survivor.data_ptr(), guard);
  EXPECT_FALSE(accessible(survivor.data_ptr()));
  survivor = Tensor();  // does not crash
}

TEST_F(LiveCuda, TwoThreadsOnAnArena) {
  Arena arena(24);
  std::array<float, 4> sums{};
  const auto work = [&sums](std::size_t index) {
    const Tensor w = at::full({64, 64}, 0.01f + static_cast<float>(index % 2));
    Tensor x = at::ones({64, 64});
    std::vector<Tensor> all;
    for (int i = 0; i < 20; ++i) {
      x = at::tanh(x.matmul(w));
      all.push_back(x);
    }
    for (const Tensor& each : all) sums[index] += each.sum().item<float>();
  };
  const auto guarded = [&](std::size_t index) {
    const ThreadGuard guard(arena.runtime());
    work(index);
  };
  std::thread first(guarded, 0), second(guarded, 1);
  first.join();
  second.join();
  work(2);
  work(3);
  EXPECT_EQ(sums[0], sums[2]);
  EXPECT_EQ(sums[1], sums[3]);
}

}  // namespace
}  // namespace tencache::live_gpt

TORCH_LIBRARY(tencache_test, library) {
  library.def("late_mix(Tensor a, Tensor b) -> Tensor");
  library.def("count_calls(Tensor like) -> Tensor");
  library.def("look_around(Tensor tensor) -> Tensor");
}
TORCH_LIBRARY_IMPL(tencache_test, CPU, library) {
  library.impl("late_mix", &tencache::live_gpt::late_mix);
  library.impl("count_calls", &tencache::live_gpt::count_calls);
  library.impl("look_around", &tencache::live_gpt::look_around);
}
