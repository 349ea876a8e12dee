// LibTorch programs on the live runtime, at little memory: results are bit by bit those of the plain run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/live/live_support.h"
#include "tests/replay_log.h"

namespace tencache::live_test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int steps = 5;

template <typename Module, typename Loss>
void train_with_step_numbers(Session& session, Module& module, torch::optim::Optimizer& optimizer,
                             const Loss& loss_of) {
  for (int step = 0; step < steps; ++step) {
    session.step();
    optimizer.zero_grad();
    const Tensor loss = loss_of(step);
    loss.backward();
    optimizer.step();
    session.keep(loss);
  }
  session.end_steps();
  for (const Tensor& parameter : module->parameters()) session.keep(parameter);
  for (const Tensor& buffer : module->buffers()) session.keep(buffer);
}

// In-place activations, batch norm (whose running statistics are written without the schema saying so), views.
void convolutional_net(Session& session) {
  nn::Conv2d first(nn::Conv2dOptions(3, 16, 3).padding(1)), second(nn::Conv2dOptions(16, 16, 3).padding(1));
  nn::BatchNorm2d first_norm(16), second_norm(16);
  nn::Linear head(16 * 8 * 8, 10);
  first->register_module("second", second.ptr());
  first->register_module("first_norm", first_norm.ptr());
  first->register_module("second_norm", second_norm.ptr());
  first->register_module("head", head.ptr());
  torch::optim::SGD optimizer(first->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const Tensor images = torch::randn({8, 3, 16, 16}), labels = torch::randint(10, {8}, torch::kLong);
  train_with_step_numbers(session, first, optimizer, [&](int) {
    Tensor hidden = first_norm(first(images)).relu_();
    hidden = second_norm(second(hidden)).relu_();
    hidden = F::dropout(F::max_pool2d(hidden, F::MaxPool2dFuncOptions(2)), F::DropoutFuncOptions().p(0.2));
    hidden.slice(1, 0, 4).mul_(1.5);  // in place through a view
    return F::cross_entropy(head(hidden.transpose(2, 3).reshape({8, -1})), labels);
  });
}

void recurrent_net(Session& session) {
  nn::LSTM net(nn::LSTMOptions(32, 48).num_layers(2).dropout(0.1));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Tensor input = torch::randn({12, 4, 32});
  train_with_step_numbers(session, net, optimizer, [&](int) { return std::get<0>(net->forward(input)).pow(2).mean(); });
}

// Which ops run depends on data: in the fourth step another branch than in the recorded one.
void branching_net(Session& session) {
  nn::Linear a(64, 64), b(64, 64);
  a->register_module("b", b.ptr());
  torch::optim::SGD optimizer(a->parameters(), torch::optim::SGDOptions(0.01));
  const Tensor input = torch::randn({32, 64});
  train_with_step_numbers(session, a, optimizer, [&](int step) {
    const std::string name = "branch";
    if (session.runtime() != nullptr) session.runtime()->module_begin(name);
    Tensor hidden = a(input);
    if ((hidden.detach().mean() * 0 + step).item<double>() == 3) hidden = torch::tanh(b(hidden)).sin();
    if (session.runtime() != nullptr) {
      session.runtime()->module_end();
      session.runtime()->module_begin("head");
    }
    const Tensor loss = b(torch::relu(hidden)).square().mean();
    if (session.runtime() != nullptr) session.runtime()->module_end();
    return loss;
  });
}

// Folders of tests go when they end.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / "tencache-live-XXXXXX") {
    std::string name = path_.string();
    if (mkdtemp(name.data()) == nullptr) throw Error("no folder " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

Bytes pages(double bytes) { return (static_cast<Bytes>(bytes) + 4095) / 4096 * 4096; }

void expect_same(const std::vector<std::string>& plain, const LiveRun& live, const std::string& what) {
  ASSERT_EQ(plain.size(), live.results.size()) << what;
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_EQ(plain[i] == live.results[i], true) << what << ", result " << i;
}

class Live : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  LiveRun run(const LiveProgram& program, const MachineSpec& machine, LiveOptions options = {}) {
    const auto policy = make_policy("on-demand").policy;
    return run_live(program, machine, *policy, options);
  }

  // Plain against paged at full, half, a quarter of the peak, and the largest op; memory and files behind.
  void expect_paged_correctly(const LiveProgram& program) {
    const std::vector<std::string> plain = run_plain(program);
    const LiveRun ample = run(program, machine_of(64 * MiB));
    expect_same(plain, ample, "ample memory");
    const Folder folder;
    for (const double share : {1.0, 0.5, 0.25, 0.0}) {
      const Bytes gpu = std::max(pages(share * static_cast<double>(ample.peak_live_bytes)), ample.largest_op_bytes);
      const LiveRun live = run(program, machine_of(gpu));
      expect_same(plain, live, std::to_string(gpu) + " bytes, memory behind");
      if (share < 1) {
        EXPECT_GT(live.counters.links[0].bytes, 0u);
      }
      expect_same(plain, run(program, machine_of(gpu, folder.path())), std::to_string(gpu) + " bytes, a file behind");
    }
  }
};

TEST_F(Live, ConvolutionalNetWithInPlaceOpsAndViews) { expect_paged_correctly(convolutional_net); }
TEST_F(Live, RecurrentNet) { expect_paged_correctly(recurrent_net); }
TEST_F(Live, NetWithADataDependentBranch) { expect_paged_correctly(branching_net); }

TEST_F(Live, ADeviationIsNoticedAndTheScheduleFoundAgain) {
  const LiveRun live = run(branching_net, machine_of(64 * MiB));
  EXPECT_EQ(live.deviations, 2u) << "one in forward, one in backward: " << live.first_deviation;
  EXPECT_THAT(live.first_deviation, HasSubstr("step 4: op 'aten::"));
  EXPECT_EQ(run(recurrent_net, machine_of(64 * MiB)).deviations, 0u) << "the same step again and again";
}

// A policy of the registry, and how often it was told that the schedule is known.
class Counted final : public Policy {
 public:
  explicit Counted(const PolicyInfo& info) {
    std::map<std::string, std::string> settings;
    for (const Options::Info& option : info.options) {
      if (option.name == "overflow" && std::ranges::count(option.choices, "evict") == 1) settings["overflow"] = "evict";
    }
    inner_ = make_policy(info.name, settings).policy;
  }
  Requirements requirements() const override { return inner_->requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    return inner_->layout(machine, program);
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    profiles += event.kind == EventKind::profile_ready ? 1 : 0;
    inner_->on(event, view, actions);
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    inner_->make_room(request, view, victims);
  }
  std::uint64_t fingerprint() const override { return inner_->fingerprint(); }

  int profiles = 0;

 private:
  std::unique_ptr<Policy> inner_;
};

// The fourth step leaves the recorded order; from the fifth on every policy follows a plan again.
TEST_F(Live, EveryPolicyPlansAgainAfterADeviation) {
  const std::vector<std::string> plain = run_plain(branching_net);
  const LiveRun ample = run(branching_net, machine_of(64 * MiB));
  const Folder folder;
  const Bytes gpu = std::max(pages(0.6 * static_cast<double>(ample.peak_live_bytes)),
                             pages(1.2 * static_cast<double>(ample.largest_op_bytes)));
  for (const PolicyInfo& info : list_policies()) {
    SCOPED_TRACE(info.name);
    if (info.name == "ideal") continue;  // has no plan, and no limit
    Counted policy(info);
    const LiveRun live = run_live(branching_net, machine_of(gpu, folder.path()), policy, {});
    expect_same(plain, live, info.name);
    EXPECT_EQ(live.deviations, 2u) << live.first_deviation;
    EXPECT_EQ(policy.profiles, 2);
  }
}

// The least memory: exactly the largest op's working set. One page less, and the message names the op and the bytes.
TEST_F(Live, TheLargestOpIsTheLimit) {
  const LiveProgram program = [](Session& session) {
    const Tensor a = torch::ones({64, 64}), b = torch::ones({64, 64});  // 4 pages each
    session.step();
    session.keep(torch::mm(a, b));
  };
  const LiveRun ample = run(program, machine_of(1 * MiB));
  EXPECT_EQ(ample.largest_op, "aten::mm");
  EXPECT_EQ(ample.largest_op_bytes, 12 * 4096u);
  expect_same(run_plain(program), run(program, machine_of(12 * 4096)), "exactly");
  try {
    run(program, machine_of(11 * 4096));
    FAIL() << "ran below the limit";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.op(), "aten::mm");
    EXPECT_THAT(error.what(), HasSubstr("op 'aten::mm'"));
    EXPECT_THAT(error.what(), HasSubstr("needs 48.00 KiB in tier"));
    EXPECT_EQ(error.bytes_missing(), 4096u);
  }
}

TEST_F(Live, AfterOutOfMemoryTheProgramGoesOn) {
  const auto policy = make_policy("on-demand").policy;
  LiveRuntime runtime(machine_of(16 * 4096), *policy);
  const ThreadGuard guard(runtime);
  const Tensor a = torch::full({64, 64}, 2.0f);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(torch::zeros({1024, 1024}), OutOfMemory);  // an allocation
    EXPECT_THROW(a.repeat({2, 2}), OutOfMemory);            // one that fits only without the input
    const Tensor b = a + 1, c = a + 2, d = a + 3;
    EXPECT_THROW(torch::addmm(b, c, d).add_(torch::stack({a, b, c, d}).sum()),
                 OutOfMemory);  // inputs do not fit together
    EXPECT_EQ((a + b).sum().item<float>(), 5.0f * 4096);
  }
}

// The file breaks in the middle of a run: the program gets the disk's error as an exception, once the engine has tried
// in vain, and what it holds can be let go.
TEST_F(Live, AnIoErrorReachesTheProgram) {
  LiveOptions options;
  options.machine.faults = parse_fault_plan("io_error=@60+");
  ChaosPolicy chaos;
  const LiveProgram program = [](Session& session) {  // 256 KiB in turns
    std::vector<Tensor> all;
    for (int i = 0; i < 16; ++i) all.push_back(torch::randn({64, 64}));
    for (std::size_t i = 0; i < 200; ++i) {
      session.step();
      all[i % 16] = torch::mm(all[i % 16], all[(i + 5) % 16]).tanh() + 1;
    }
    session.keep(all[0]);
  };
  const std::string folder = std::filesystem::temp_directory_path().string();
  try {
    run_live(program, machine_of(128 * KiB, folder), chaos, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("failed 3 times in a row: "));
    EXPECT_THAT(std::string(error.what()), HasSubstr("of the swap file in '" + folder + "': Input/output error"));
  }
}

TEST_F(Live, ExceptionsOfOpsLeaveEverythingConsistent) {
  const LiveProgram program = [](Session& session) {
    const Tensor a = torch::randn({64, 64});
    for (int i = 0; i < 4; ++i) {
      session.step();
      EXPECT_THROW(torch::mm(a, torch::ones({3, 3})), c10::Error);
      EXPECT_THROW(a.index_select(0, torch::full({1}, 100, torch::kLong)), c10::Error);
      EXPECT_THROW(torch::linalg_cholesky(-torch::eye(8)), c10::Error);
      a.add_(1);
    }
    session.keep(a);
  };
  const std::vector<std::string> plain = run_plain(program);
  ChaosPolicy chaos;
  expect_same(plain, run_live(program, machine_of(1 * MiB), chaos), "chaos");
}

// An op whose schema says that it only reads.
Tensor lying_op(const Tensor& tensor) {
  tensor.data_ptr<float>()[7] += 1;
  return tensor.sum();
}
TORCH_LIBRARY(tencache_test, library) { library.def("lying(Tensor victim) -> Tensor", lying_op); }

Tensor call_lying(const Tensor& tensor) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("tencache_test::lying", "").typed<Tensor(const Tensor&)>();
  return op.call(tensor);
}

TEST_F(Live, TheAuditFindsAnUnannouncedWrite) {
  const LiveProgram program = [](Session& session) {
    const Tensor a = torch::zeros({64, 64});
    for (int i = 0; i < 4; ++i) {
      session.step();
      session.keep(call_lying(a));
    }
    session.keep(a);
  };
  const std::vector<std::string> plain = run_plain(program);
  set_audit(true);
  ChaosPolicy chaos;
  const LiveRun live = run_live(program, machine_of(1 * MiB), chaos);
  set_audit(false);
  EXPECT_EQ(live.findings, (std::vector<AuditFinding>{{"tencache_test::lying", "victim"}}));
  expect_same(plain, live, "what the audit finds is announced");
}

TEST_F(Live, PinnedTensorsMayBeTouchedRaw) {
  ChaosPolicy chaos;
  LiveRuntime runtime(machine_of(1 * MiB), chaos);
  const ThreadGuard guard(runtime);
  Tensor a = torch::zeros({100, 100});
  {
    const PinnedTensors pinned(runtime, {a});
    for (int i = 0; i < 100; ++i) {
      a.data_ptr<float>()[i] = static_cast<float>(i);
      torch::ones({100, 100}).add_(1);  // chaos goes on
    }
  }
  for (int i = 0; i < 5; ++i) torch::ones({100, 100}).add_(1);
  EXPECT_EQ(a.sum().item<float>(), 4950.0f);
  EXPECT_EQ(torch::tensor(std::vector<float>(5000, 1.0f)).sum().item<float>(), 5000.0f) << "filled outside ops";
  EXPECT_EQ(bring_back(runtime, a.slice(0, 0, 1)).data_ptr<float>()[7], 7.0f);
}

// Views follow. What is pinned stays, and so does what somebody else has made a tensor of.
TEST_F(Live, StoragesFollowTensorsThatMove) {
  const auto policy = make_policy("on-demand").policy;
  LiveOptions options;
  options.machine.pace = false;
  options.machine.raw_access = true;
  options.relocates = [](Bytes) { return true; };
  LiveRuntime runtime(machine_of(64 * MiB), *policy, options);
  const ThreadGuard guard(runtime);
  Tensor tensor = torch::arange(1000, torch::kFloat);
  const Tensor view = tensor.slice(0, 500);
  const TensorId id = live_id(tensor);
  const void* address = tensor.data_ptr();
  for (int i = 0; i < 3; ++i) {
    tensor.add_(1);
    EXPECT_NE(tensor.data_ptr(), address);
    address = tensor.data_ptr();
    EXPECT_EQ(view.data_ptr<float>(), tensor.data_ptr<float>() + 500);
    EXPECT_EQ(live_id(view), id);
  }
  EXPECT_EQ(view[0].item<float>(), 503);
  {
    const PinnedTensors pinned(runtime, {tensor});
    address = tensor.data_ptr();
    tensor.add_(1);
    EXPECT_EQ(tensor.data_ptr(), address);
  }
  Tensor other = at::from_blob(tensor.data_ptr(), {1000});
  address = tensor.data_ptr();
  other.add_(1);
  EXPECT_EQ(live_id(other), id);
  tensor.add_(1);
  EXPECT_EQ(tensor.data_ptr(), address);
  EXPECT_EQ(tensor[0].item<float>(), 6);
  other = Tensor();
  tensor = Tensor();
  EXPECT_EQ(view[0].item<float>(), 506);
}

TEST_F(Live, TwoThreads) {
  const LiveProgram program = [](Session& session) {
    std::vector<Tensor> sums(2);
    const auto work = [&](std::size_t index) {
      std::unique_ptr<ThreadGuard> guard;
      if (session.runtime() != nullptr) guard = std::make_unique<ThreadGuard>(*session.runtime());
      const Tensor w = torch::full({64, 64}, 0.01f + static_cast<float>(index)).requires_grad_();
      Tensor x = torch::ones({64, 64});
      for (int i = 0; i < 20; ++i) x = torch::tanh(x.matmul(w));
      x.sum().backward();
      sums[index] = w.grad();
    };
    std::thread first(work, 0), second(work, 1);
    first.join();
    second.join();
    for (const Tensor& sum : sums) session.keep(sum);
  };
  const std::vector<std::string> plain = run_plain(program);
  const auto policy = make_policy("on-demand").policy;
  expect_same(plain, run_live(program, machine_of(40 * 4096), *policy), "two threads");
  ChaosPolicy chaos;
  expect_same(plain, run_live(program, machine_of(4 * MiB), chaos), "two threads, chaos");
  LiveOptions options;
  options.relocates = [](Bytes) { return true; };
  expect_same(plain, run_live(program, machine_of(4 * MiB), chaos, options), "two threads, all moves");
}

TEST_F(Live, TensorsThatOutliveTheRuntimeAreReported) {
  Tensor survivor;
  ::testing::internal::CaptureStderr();
  {
    const auto policy = make_policy("on-demand").policy;
    LiveRuntime runtime(machine_of(1 * MiB), *policy);
    const ThreadGuard guard(runtime);
    survivor = torch::ones({100, 100});
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("1 tensors (39.06 KiB) outlive their runtime"));
  survivor = Tensor();  // does not crash
  expect_same(run_plain(recurrent_net), run(recurrent_net, machine_of(64 * MiB)), "the next runtime");
}

// Tasks of our own, on the lane that they ask for.
TEST_F(Live, TasksOfOurOwn) {
  const auto policy = make_policy("on-demand").policy;
  LiveRuntime runtime(machine_of(10 * 4096), *policy);
  const ThreadGuard guard(runtime);
  const Tensor parameter = torch::zeros({64, 64});
  const Tensor momentum = torch::empty({64, 64});
  const TensorId state = live_id(momentum);
  const auto fill = [](std::span<std::byte* const> addresses) {
    auto* const values = reinterpret_cast<float*>(addresses[0]);
    for (int i = 0; i < 4096; ++i) values[i] = 1;
  };
  runtime.run_tasks(
      {{.name = "fill", .uses = {{state, false, true}}, .device = Device::cpu, .placeable = false, .body = fill}});
  const auto add = [](std::span<std::byte* const> addresses) {
    auto* const values = reinterpret_cast<float*>(addresses[0]);
    const auto* const added = reinterpret_cast<const float*>(addresses[1]);
    for (int i = 0; i < 4096; ++i) values[i] += added[i];
  };
  for (int step = 0; step < 6; ++step) {
    runtime.iteration_boundary();
    std::vector<LiveTask> tasks;
    for (const Device device : {Device::cpu, Device::gpu, Device::cpu}) {  // in this order, since they touch the same
      tasks.push_back({.name = "add",
                       .uses = {{live_id(parameter), true, true}, {state, true, false}},
                       .device = device,
                       .placeable = false,
                       .body = add});
    }
    runtime.run_tasks(std::move(tasks));
    parameter.mul_(2);
  }
  // x -> (x + 3) * 2, six times from 0
  EXPECT_EQ(runtime.figures().deviations, 0u) << runtime.figures().first_deviation;
  EXPECT_EQ(parameter.sum().item<float>(), 378.0f * 4096);
  EXPECT_EQ(runtime.recorded().ops.size(), 4u);
  const auto fail = [](std::span<std::byte* const>) { throw Error("no luck"); };
  EXPECT_THROW(runtime.run_tasks({{.name = "fail", .uses = {{state, true, false}}, .body = fail}}), Error);
  const Tensor third = torch::empty({64, 64});  // three of four pages each do not fit into ten
  EXPECT_THROW(runtime.run_tasks(
                   {{.name = "three",
                     .uses = {{live_id(parameter), true, false}, {state, true, false}, {live_id(third), false, true}},
                     .placeable = false,
                     .body = fill}}),
               OutOfMemory);
  EXPECT_EQ(parameter.sum().item<float>(), 378.0f * 4096);
}

// A task on the CPU's lane that takes its time: the program goes on beside it until an op uses what the task writes,
// and what it frees meanwhile stays until the task has read it. Where the step blocks, it waits at once. Either way the
// wait counts as one for the CPU's optimizer.
TEST_F(Live, ProgramsGoOnBesideTasksOfTheCpu) {
  constexpr std::chrono::milliseconds task_takes{60};
  for (const bool blocks : {false, true}) {
    SCOPED_TRACE(blocks);
    class Places final : public Policy {
     public:
      explicit Places(bool blocks) : blocks_(blocks) {}
      Layout layout(const MachineSpec& machine, const Program* program) const override {
        Layout layout = Policy::layout(machine, program);
        layout.blocking_step = blocks_;
        return layout;
      }

     private:
      bool blocks_;
    } policy(blocks);
    EventLog log;
    LiveOptions options;
    options.engine.log = &log;
    options.machine.pace = false;
    LiveRuntime runtime(machine_of(1 * MiB), policy, options);
    const ThreadGuard guard(runtime);
    const Tensor parameter = torch::zeros({64, 64}), other = torch::ones({64, 64});
    std::atomic<bool> go = false, done = false;
    constexpr int last = 4;
    for (int step = 0; step <= last; ++step) {
      runtime.iteration_boundary();
      Tensor gradient = other * 2;
      const Counters before = runtime.figures().counters;
      const bool waits = blocks || step < 2;  // before the schedule is known it waits, too
      go = waits;
      done = false;
      runtime.run_tasks({{.name = "update",
                          .uses = {{live_id(parameter), true, true}, {live_id(gradient), true, false}},
                          .device = Device::cpu,
                          .placeable = false,
                          .body = [&go, &done, task_takes](std::span<std::byte* const> addresses) {
                            while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                            std::this_thread::sleep_for(task_takes);
                            auto* const values = reinterpret_cast<float*>(addresses[0]);
                            const auto* const gradients = reinterpret_cast<const float*>(addresses[1]);
                            for (int i = 0; i < 4096; ++i) values[i] += gradients[i];
                            done = true;
                          }}});
      gradient.reset();
      const Tensor unrelated = other + 1;
      EXPECT_EQ(done, waits);
      EXPECT_EQ(unrelated.sum().item<float>(), 2.0f * 4096);
      go = true;
      EXPECT_EQ(parameter.sum().item<float>(), 2.0f * static_cast<float>(step + 1) * 4096);
      EXPECT_TRUE(done);
      const Counters spent = runtime.figures().counters - before;
      EXPECT_GT(spent.stall_ns[StallCause::cpu_optimizer], 30'000'000);
      EXPECT_LT(spent.gap_ns, spent.stall_ns[StallCause::cpu_optimizer]);
    }
    EXPECT_EQ(runtime.figures().deviations, 0u) << runtime.figures().first_deviation;
    const auto fail = [](std::span<std::byte* const>) { throw Error("no luck"); };
    const auto run_failing = [&] {
      runtime.run_tasks({{.name = "fail",
                          .uses = {{live_id(parameter), true, false}},
                          .device = Device::cpu,
                          .placeable = false,
                          .body = fail}});
      parameter.mul_(1);  // waits for it, unless it is done already: then the step's end says it
      runtime.iteration_boundary();
    };
    EXPECT_THROW(run_failing(), Error);
    EXPECT_EQ(parameter.sum().item<float>(), 2.0f * (last + 1) * 4096);

    Places again(blocks);
    const ReplayedLog replayed = replay_log(log, runtime.spec(), again);
    EXPECT_EQ(replayed.diverged, "");
    EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "");
  }
}

TEST_F(Live, TheRecordingIsATraceThatCanBeReplayed) {
  const auto policy = make_policy("on-demand").policy;
  LiveRuntime runtime(machine_of(64 * MiB), *policy);
  const ThreadGuard guard(runtime);
  torch::manual_seed(1);
  Session session(&runtime);
  {
    nn::Linear net(64, 64);
    mark(runtime, net->weight, Role::parameter, "weight");
    mark(runtime, net->bias, Role::parameter, "bias");
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    const Tensor input = torch::randn({32, 64});
    mark(runtime, input, Role::input, "input");
    for (int step = 0; step < 3; ++step) {
      session.step();
      for (const Tensor& parameter : net->parameters()) parameter.mutable_grad() = Tensor();
      runtime.set_phase(Phase::forward);
      const Tensor loss = [&] {
        const ModuleScope scope(runtime, "linear");
        return net(input).square().mean();
      }();
      runtime.set_phase(Phase::backward);
      loss.backward();
      runtime.set_phase(Phase::optimizer);
      optimizer.step();
    }
    session.step();
  }
  ASSERT_TRUE(runtime.has_recorded());
  const Trace& trace = runtime.recorded();
  trace.validate();
  Bytes parameters = 0;
  for (const auto& tensor : trace.tensors) {
    if (tensor.role == Role::parameter) parameters += tensor.bytes;
  }
  EXPECT_EQ(parameters, (64 * 64 + 64) * sizeof(float));
  EXPECT_EQ(trace.name(trace.ops.front()), "aten::addmm");
  EXPECT_EQ(trace.module(trace.ops.front()), "linear");
  EXPECT_EQ(trace.ops.back().phase, Phase::optimizer);
  EXPECT_EQ(runtime.figures().deviations, 0u);
}

// The gate, live: the log's inputs through a fresh engine and policy give the same decisions.
TEST_F(Live, TheLogReplaysToTheSameDecisions) {
  for (const LiveProgram& program : {LiveProgram(convolutional_net), LiveProgram(branching_net)}) {
    const LiveRun ample = run(program, machine_of(64 * MiB));
    const MachineSpec machine =
        machine_of(std::max(pages(0.4 * static_cast<double>(ample.peak_live_bytes)), ample.largest_op_bytes));
    for (const char* name : {"on-demand", "layer-streaming", "zero-offload", "chaos"}) {
      const auto make = [name]() -> std::unique_ptr<Policy> {
        if (std::string(name) == "chaos") return std::make_unique<ChaosPolicy>();
        if (std::string(name) == "zero-offload") return make_policy(name, {{"overflow", "evict"}}).policy;
        return make_policy(name).policy;
      };
      EventLog log;
      LiveOptions options;
      options.engine.log = &log;
      const auto policy = make();
      run_live(program, machine, *policy, options);
      const auto again = make();
      const ReplayedLog replayed = replay_log(log, with_real_pages(machine), *again);
      EXPECT_EQ(replayed.diverged, "") << name;
      EXPECT_EQ(first_difference(log.decisions, replayed.decisions), "") << name;
      EXPECT_GT(log.decisions.size(), 100u) << name;
    }
  }
}

}  // namespace
}  // namespace tencache::live_test
