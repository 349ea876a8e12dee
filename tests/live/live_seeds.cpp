// LibTorch programs on the CUDA backend and the driver of rules, with late kernels (rules/late_kernels.h): each seed
// draws a program, a policy, how much memory the GPU has between the largest op and all that lives at once, a device
// against the code, and failures. Every bit is compared with the same program without paging.
//
//   live_seeds --seeds A..B [--json] [--change N]   (seed_run.h)
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/torch/adoption.h"
#include "policies/registry.h"
#include "tests/live/live_chaos_programs.h"
#include "tests/live/live_example_support.h"
#include "tests/live/rules/late_kernels.h"
#include "tests/live/rules/turns.h"
#include "tests/live/seed_run.h"
#include "tests/property/random_case.h"

namespace tencache::rules {
namespace {

constexpr Bytes page = 4096;
constexpr Bytes device_bytes = 128 * MiB;
constexpr Bytes plenty = 96 * MiB;  // of the GPU's, for any of the programs

using Results = std::vector<std::string>;

// ---- Programs -------------------------------------------------------------------------------------------------------

struct SeedProgram {
  std::string name;
  std::function<Results(LiveRuntime* runtime)> run;  // nullptr: plainly
  bool starts_threads = false;                       // which cannot take turns: LibTorch keeps state in each of them
};

Results run_chaos(void (*program)(live_test::Session&), LiveRuntime* runtime) {
  std::optional<ThreadGuard> guard;
  if (runtime != nullptr) guard.emplace(*runtime);
  torch::manual_seed(1);
  live_test::Session session(runtime);
  program(session);
  return session.results;
}

Results train_gpt(LiveRuntime* runtime) {
  live_gpt::Options options = live_gpt::tiny(4);
  options.width = 32;
  const live_gpt::Result result = live_gpt::train(options, runtime);
  const auto bytes = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  return {bytes(result.losses), bytes(result.weights)};
}

// Kernels that no op announces, as an extension's: on a tensor that it has just made, or on one that is pinned for it.
LateKernels* the_kernels = nullptr;

void unannounced_kernels(live_test::Session& session) {
  const auto launch = [&](const at::Tensor& tensor, float factor, float summand) {
    auto* values = static_cast<float*>(tensor.data_ptr());
    const auto body = [=, count = tensor.numel()] {
      for (std::int64_t i = 0; i < count; ++i) values[i] = factor == 0 ? summand : factor * values[i] + summand;
    };
    if (session.runtime() == nullptr) return body();
    the_kernels->launch("an extension's kernel", reinterpret_cast<std::byte*>(values), tensor.nbytes(), body);
  };
  std::array<at::Tensor, 8> all;
  for (std::size_t round = 0; round < 24; ++round) {
    if (round % 8 == 0) session.step();
    at::Tensor& tensor = all[round * 5 % 8];
    if (!tensor.defined() || round % 3 == 0) {
      tensor = torch::empty({30 + static_cast<std::int64_t>(round % 8), 100});
      launch(tensor, 0, static_cast<float>(round));
    } else {
      std::optional<PinnedTensors> pinned;
      if (session.runtime() != nullptr) pinned.emplace(*session.runtime(), std::vector{tensor});
      launch(tensor, 2, 1);
    }
    const at::Tensor large = torch::full({80, 200}, 1.0f);  // the others may have to leave
    if (all[round * 3 % 8].defined()) all[round * 3 % 8].add_(1);
  }
  for (const at::Tensor& tensor : all) session.keep(tensor);
}

// The same at addresses that code outside has, at any time: those tensors stay where they are.
void exposed_tensors(live_test::Session& session) {
  struct Exposed {
    at::Tensor tensor;
    float* address = nullptr;
  };
  std::array<Exposed, 5> all;
  std::array<at::Tensor, 9> others;
  for (at::Tensor& other : others) other = torch::ones({30, 100});
  for (std::size_t round = 0; round < 40; ++round) {
    if (round % 10 == 0) session.step();
    Exposed& one = all[round * 3 % all.size()];
    if (!one.tensor.defined()) {
      one.tensor = torch::full({30 + static_cast<std::int64_t>(round % 8), 100}, static_cast<float>(round));
      const at::Tensor large = torch::full({80, 200}, 1.0f);  // it may have to leave before it is exposed
      if (session.runtime() != nullptr) paging::expose(*one.tensor.storage().unsafeGetStorageImpl());
      one.address = static_cast<float*>(one.tensor.data_ptr());
    }
    const auto body = [address = one.address, count = one.tensor.numel()] {
      for (std::int64_t i = 0; i < count; ++i) address[i] = 2 * address[i] + 1;
    };
    if (session.runtime() == nullptr) {
      body();
    } else {
      the_kernels->launch("a kernel of others", reinterpret_cast<std::byte*>(one.address), one.tensor.nbytes(), body);
    }
    if (round % 3 == 0) {  // while the kernel is under way; others come to lie there
      one.tensor.reset();
      for (at::Tensor& other : others) other.add_(1);
      continue;
    }
    const at::Tensor large = torch::full({80, 200}, 1.0f);
    if (all[round % all.size()].tensor.defined()) all[round % all.size()].tensor.mul_(0.25);
    TENCACHE_CHECK(one.tensor.data_ptr() == one.address);
  }
  for (const Exposed& one : all) {
    if (one.tensor.defined()) session.keep(one.tensor);
  }
  for (const at::Tensor& other : others) session.keep(other);
}

std::vector<SeedProgram> all_programs() {
  std::vector<SeedProgram> programs = {{"gpt", train_gpt}};
  std::vector<live_test::ChaosProgram> chaos = live_test::chaos_networks();
  for (const live_test::ChaosProgram& more : live_test::chaos_ops()) chaos.push_back(more);
  chaos.push_back({"exposed_tensors", exposed_tensors});
  chaos.push_back({"unannounced_kernels", unannounced_kernels});
  for (const live_test::ChaosProgram& one : chaos) {
    programs.push_back({one.name, [program = one.program](LiveRuntime* runtime) { return run_chaos(program, runtime); },
                        std::string(one.name) == "reentrant_backward"});
  }
  return programs;
}

// ---- A run ----------------------------------------------------------------------------------------------------------

struct Run {
  Results results;
  LiveFigures figures;
  std::string error;
  std::size_t left = 0;  // storages that the program has kept
};

// From opening the device to closing it.
Run run_on(const RulesDriver& driver, LateKernels& kernels, const SeedProgram& program, const MachineSpec& machine,
           Policy& policy, bool settle) {
  Run run;
  the_kernels = &kernels;
  try {
    const auto device = std::make_shared<CudaDevice>(driver.table(), 0);
    LiveOptions options;
    options.settle = settle;
    options.machine.pace = false;
    options.machine.files.direct = options.machine.files.io_uring = false;
    options.machine.accelerator = device;
    options.fence = [&device = *device] {
      device.bind();
      check_cuda(device.driver(), device.driver().cuStreamSynchronize(nullptr), "an op of the program");
    };
    options.stream = [] { return nullptr; };
    options.interpose = [&](const tencache_live& live) { return kernels.interpose(live); };
    LiveRuntime runtime(machine, policy, options);
    run.results = program.run(&runtime);
    run.figures = runtime.figures();
  } catch (const std::exception& error) {
    run.error = error.what();
  }
  run.left = kernels.storages();
  return run;
}

MachineSpec machine_of(Bytes gpu_bytes, const std::string& folder) {
  MachineSpec machine = live_test::machine_of(gpu_bytes, folder);
  if (folder.empty()) return machine;
  machine.tiers[1].capacity = 1 * MiB;
  const BytesPerSecond fast = 100'000'000'000;
  machine.links.push_back({.name = "stage", .from = 2, .to = 1, .bandwidth = fast, .latency_ns = 0, .uses = {}});
  machine.links.push_back({.name = "store", .from = 1, .to = 2, .bandwidth = fast, .latency_ns = 0, .uses = {}});
  return machine;
}

MadePolicy made_policy(const std::string& name) {
  Settings settings;
  for (const PolicyInfo& info : list_policies()) {
    if (info.name != name) continue;
    for (const Options::Info& option : info.options) {  // what gives up by default where it could evict
      if (std::ranges::count(option.choices, "evict") != 0) settings[option.name] = "evict";
    }
  }
  return make_policy(name, settings);
}

// What is known of a program before it is judged.
struct Known {
  Results plain;
  Bytes least_bytes = 0, peak_bytes = 0;  // of the GPU's memory
};

const Known& known_of(const SeedProgram& program) {
  static std::map<std::string, Known> all;
  const auto [at, is_new] = all.try_emplace(program.name);
  Known& known = at->second;
  if (!is_new) return known;
  known.plain = program.run(nullptr);
  LateKernels kernels;
  RulesDriver driver({.memory = device_bytes, .granularity = page, .strategy = Strategy::eager});
  const MadePolicy made = make_policy("on-demand");
  const Run run = run_on(driver, kernels, program, machine_of(plenty, ""), *made.policy, false);
  if (!run.error.empty()) throw Error(program.name + " with enough memory: " + run.error);
  known.least_bytes = run.figures.largest_op_bytes + kernels.most_kept_bytes();
  known.peak_bytes = run.figures.peak_live_bytes;
  return known;
}

// In an eighth of the seeds something does.
Trouble draw_trouble(Random& random) {
  if (!random.one_in(8)) return {};
  if (random.one_in(3)) return {"cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, random.below(2)};
  if (random.one_in(2)) return {"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, random.below(60)};
  constexpr std::array functions = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuMemUnmap"};
  return {functions[random.below(functions.size())], CUDA_ERROR_LAUNCH_FAILED, random.below(100)};
}

struct Totals : SeedTotals {
  std::uint64_t evictions = 0, on_arena = 0, holes = 0, ahead = 0;
  LateCounts kernels;
  std::map<std::string, std::uint64_t> programs;
};

Finding compare(const Results& plain, const Results& paged) {
  if (plain.size() != paged.size()) return {"values", "not as many results"};
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] != paged[i]) return {"values", "result " + std::to_string(i) + " has other bits"};
  }
  return {};
}

Finding judge(std::uint64_t seed, const std::vector<SeedProgram>& programs, const std::string& folder, Totals& totals) {
  const SeedOnAbort at_abort(seed);
  Random random(seed ^ 0x6c697665);
  const std::vector<std::string>& policies = registered_policies();
  const std::string& policy = policies[seed % policies.size()];
  const std::size_t which = random.one_in(8) ? programs.size() - 1 - random.below(2) : random.below(programs.size());
  const SeedProgram& program = programs[which];
  const Known& known = known_of(program);
  // "ideal" does not page: it takes what it is not given.
  const Bytes least = policy == "ideal" ? plenty : known.least_bytes;
  const Bytes most = random.one_in(3) ? least : std::max(least, known.peak_bytes);
  Random arena(seed ^ 0x6172656e61);
  const bool on_arena = arena.one_in(2);
  // There what an op has got stays where it is, and what it still needs has to lie in one piece.
  const Bytes budget =
      round_up(random.between(least, most), page) + (on_arena && policy != "ideal" ? least + 16 * page : 0);
  const auto strategy = static_cast<Strategy>(random.below(strategy_names.size()));
  const bool with_files = random.one_in(3) || needs_nvme(policy), settle = random.one_in(4);
  const Trouble trouble = draw_trouble(random);

  LateKernels kernels;
  std::optional<Turns> turns;
  if (!program.starts_threads) turns.emplace(seed);
  RulesDriver driver({.memory = device_bytes,
                      .granularity = page,
                      .strategy = strategy,
                      .seed = seed,
                      .host = turns ? &*turns : nullptr});
  driver.set_budget(budget);
  if (trouble.function != nullptr) driver.fail(trouble.function, trouble.result, trouble.calls);
  const MadePolicy made = made_policy(policy);
  MachineSpec machine = machine_of(budget, with_files ? folder : "");
  if (on_arena) machine.tiers[0].allocator = AllocatorKind::movable;
  if (on_arena && arena.one_in(2)) {
    machine.run_ahead.ops = static_cast<std::uint32_t>(arena.one_in(2) ? arena.between(1, 4) : 256);
    machine.run_ahead.copies = static_cast<std::uint32_t>(arena.between(1, 3));
    totals.ahead++;
  }
  const Run run = run_on(driver, kernels, program, machine, *made.policy, settle);

  totals.seeds++;
  totals.policies[policy]++;
  totals.strategies[strategy_names[static_cast<std::size_t>(strategy)]]++;
  totals.programs[program.name]++;
  totals.evictions += run.figures.counters.evictions;
  totals.on_arena += on_arena ? 1 : 0;
  totals.holes += run.figures.counters.tiers[0].holes;
  totals.kernels.late += kernels.counts().late;
  totals.kernels.waited += kernels.counts().waited;
  totals.kernels.ordered += kernels.counts().ordered;
  if (turns) totals.switches += turns->switches();
  if (run.left != 0) driver.keep_addresses();
  if (turns && run.left != 0) turns->leave_threads();
  totals.add(driver.counts());
  const auto found = [&](const Finding& finding) {
    const std::string where = program.name + " under " + policy + " in " + format_bytes(budget);
    return Finding{finding.judge, where + ": " + finding.what};
  };
  if (const Finding broken = finding_of(driver); !broken.judge.empty()) return found(broken);
  if (run.error.empty()) {
    if (const Finding other = compare(known.plain, run.results); !other.judge.empty()) return found(other);
  } else {
    totals.ended_by_failure++;
    if (!trouble.may_end_the_run()) return found({"errors", run.error});
  }
  // LibTorch keeps some of what a program has made when an op in it throws.
  if (run.left != 0 && run.error.empty()) return found({"leftovers", std::to_string(run.left) + " storages"});
  if (!trouble.loses_the_device() && run.left == 0 && !driver.leftovers().empty()) {
    return found({"leftovers", driver.leftovers()});
  }
  return {};
}

}  // namespace
}  // namespace tencache::rules

int main(int count, char** arguments) {
  using namespace tencache::rules;
  // Its own threads, which it starts when it is loaded, would wait for turns.
  if (std::getenv("OPENBLAS_NUM_THREADS") == nullptr) {
    ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
    ::execv("/proc/self/exe", arguments);
  }
  at::set_num_threads(1);
  const std::string folder = std::filesystem::temp_directory_path().string();
  const std::vector<SeedProgram> programs = all_programs();
  Totals totals;
  return run_seeds(count, arguments, totals,
                   {.seed = [&](std::uint64_t seed) { return judge(seed, programs, folder, totals); },
                    .more =
                        [&](nlohmann::ordered_json& figures) {
                          figures["evictions"] = totals.evictions;
                          figures["on_arena"] = totals.on_arena;
                          figures["holes"] = totals.holes;
                          figures["ahead"] = totals.ahead;
                          figures["late_kernels"] = totals.kernels.late;
                          figures["ops_waited_for"] = totals.kernels.waited;
                          figures["judged_by_order_alone"] = totals.kernels.ordered;
                          figures["programs"] = totals.programs;
                        }});
}
