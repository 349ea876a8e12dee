// Random replays of the engine on the CUDA backend and the driver of rules: machines, traces and policies of
// random_case.h, threads that take turns, a device against the code, and failures. All of it follows from the seed.
//
//   driver_seeds --seeds A..B [--json] [--change N]   judges each seed; exits with 1 at the first that fails
//
// --change takes the N-th place away where order is made, or turns it round (executor/order_site.h; --json lists them).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/engine/engine.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/host_machine.h"
#include "executor/order_site.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "tests/live/accelerator_case.h"
#include "tests/live/lane_case.h"
#include "tests/live/machine_case.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/live/rules/turns.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"

namespace tencache::rules {
namespace {

constexpr Bytes device_bytes = 8 * MiB;
constexpr std::uint64_t most_implied = 10;  // a tenth of the waits may tell the waiter nothing new

// What goes wrong by plan: in a quarter of the seeds something does.
struct Trouble {
  const char* function = nullptr;
  CUresult result = CUDA_SUCCESS;
  std::uint64_t calls = 0;

  bool may_end_the_run() const { return function != nullptr && std::string(function) != "cuMemHostRegister"; }
  bool loses_the_device() const { return result == CUDA_ERROR_LAUNCH_FAILED; }
};

Trouble draw_trouble(Random& random) {
  if (!random.one_in(4)) return {};
  switch (random.below(4)) {
    case 0:
      return {"cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, random.below(2)};
    case 1:
      return {"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, random.below(12)};
    case 2: {  // a call alone, of a device that goes on
      constexpr std::array functions = {"cuEventRecord",       "cuEventCreate",  "cuLaunchKernel",
                                        "cuStreamCreate",      "cuMemAlloc",     "cuMemSetAccess",
                                        "cuMemAddressReserve", "cuMemMap",       "cuMemcpyDtoHAsync",
                                        "cuMemcpyHtoDAsync",   "cuMemsetD8Async"};
      return {functions[random.below(functions.size())], CUDA_ERROR_OUT_OF_MEMORY, random.below(40)};
    }
    default: {
      constexpr std::array functions = {"cuMemcpyHtoDAsync",  "cuMemcpyDtoHAsync", "cuLaunchKernel",
                                        "cuMemUnmap",         "cuEventRecord",     "cuMemMap",
                                        "cuEventSynchronize", "cuMemSetAccess"};
      return {functions[random.below(functions.size())], CUDA_ERROR_LAUNCH_FAILED, random.below(30)};
    }
  }
}

struct Totals {
  std::uint64_t seeds = 0, fit = 0, ended_by_failure = 0, checks = 0, switches = 0;
  RulesCounts counts;
  std::map<std::string, std::uint64_t> policies, strategies;

  void add(const RulesCounts& more) {
    counts.calls += more.calls;
    counts.uploads += more.uploads;
    counts.downloads += more.downloads;
    counts.kernels += more.kernels;
    counts.unpinned_copies += more.unpinned_copies;
    counts.creations += more.creations;
    counts.waits += more.waits;
    counts.implied_waits += more.implied_waits;
  }
};

struct Finding {
  std::string judge, what;  // empty: nothing was found
};

// A run of the engine, from opening the device to closing it.
void run(RandomCase& made, const RulesDriver& driver, Totals& totals, Finding& finding) {
  HostMachineOptions options;
  options.pace = false;
  options.files.direct = options.files.io_uring = false;
  options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  const std::unique_ptr<ReplayKernels> kernels = options.accelerator->replay_kernels();
  ReplayBodies bodies(made.program.trace, {.check_everything = true, .write_everything = true, .duration_scale = 0},
                      kernels.get());
  HostMachine machine(made.machine, bodies, options);
  const std::unique_ptr<Policy> policy = made.make();
  const Layout layout = policy->layout(made.machine, &made.program);
  AuditorMachine auditor(machine, made.machine, made.program.trace, layout);
  Engine engine(made.machine, auditor, *policy, &made.program, {});
  try {
    totals.fit += engine.run(made.limits).fits ? 1 : 0;
  } catch (...) {
    if (!auditor.violation().empty()) finding = {"auditor", auditor.violation()};
    throw;
  }
  totals.checks += bodies.counts().tensor_checks;
  if (!auditor.violation().empty()) finding = {"auditor", auditor.violation()};
  if (!bodies.counts().first_corruption.empty()) finding = {"values", bodies.counts().first_corruption};
}

Finding judge(std::uint64_t seed, const std::string& folder, Totals& totals) {
  const SeedOnAbort at_abort(seed);
  Random random(seed ^ 0x64726976657273);
  const bool replays = !random.one_in(8);
  CaseOptions case_options;
  case_options.real_pages = true;
  const std::vector<std::string>& policies = registered_policies();
  const std::size_t which = seed % (policies.size() + 1);
  case_options.policy = which < policies.size() ? policies[which] : "random";
  RandomCase made = random_case(seed, case_options);
  for (Tier& tier : made.machine.tiers) {
    if (tier.kind == TierKind::nvme) tier.directories = {folder};
  }
  const auto strategy = static_cast<Strategy>(random.below(strategy_names.size()));
  const Trouble trouble = draw_trouble(random);
  Finding finding;
  std::string error;
  Turns turns(seed);
  RulesDriver driver({.memory = device_bytes, .granularity = 4096, .strategy = strategy, .seed = seed, .host = &turns});
  const Bytes budget = replays ? made.machine.tiers[0].capacity : 4096 * random.between(16, 24);
  driver.set_budget(budget);
  if (trouble.function != nullptr) driver.fail(trouble.function, trouble.result, trouble.calls);
  try {
    if (replays) {
      run(made, driver, totals, finding);
    } else {
      const auto device = std::make_shared<CudaDevice>(driver.table(), 0);
      const auto interfere = [&] { driver.table().cuCtxSetCurrent(nullptr); };
      const std::uint64_t user = random.below(3);
      const std::string wrong = user == 0   ? use_lanes(*device, random, folder)
                                : user == 1 ? use_machine(device, random, [&] { turns.pass_turn(); })
                                            : use_accelerator(*device, random, budget, interfere);
      if (!wrong.empty()) finding = {"values", wrong};
    }
  } catch (const Error& failed) {
    error = failed.what();
  }
  totals.seeds++;
  totals.policies[replays ? case_options.policy : "none: the accelerator alone"]++;
  totals.strategies[strategy_names[static_cast<std::size_t>(strategy)]]++;
  totals.switches += turns.switches();
  totals.add(driver.counts());
  if (!driver.violation().empty())
    return {driver.violation().starts_with("a ") ? "happens-before" : "rules", driver.violation()};
  if (!finding.judge.empty()) return finding;
  if (!error.empty()) {
    totals.ended_by_failure++;
    const bool said = !trouble.loses_the_device() || error.find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos;
    if (!trouble.may_end_the_run() || !said) return {"errors", error};
  }
  if (!trouble.loses_the_device() && !driver.leftovers().empty()) return {"leftovers", driver.leftovers()};
  return {};
}

struct Options {
  std::uint64_t first = 0, end = 1000;
  bool json = false;
};

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: driver_seeds --seeds A..B [--json] [--change N]\n");
  std::exit(2);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--change" && i + 1 < count) {
      const std::size_t number = std::strtoull(arguments[++i], nullptr, 10);
      if (number >= order_sites().size()) usage();
      changed_order_site = &order_sites()[number];
    } else if (argument == "--seeds" && i + 1 < count) {
      const std::string range = arguments[++i];
      const std::size_t dots = range.find("..");
      if (dots == std::string::npos) usage();
      options.first = std::strtoull(range.c_str(), nullptr, 10);
      options.end = std::strtoull(range.c_str() + dots + 2, nullptr, 10) + 1;
    } else {
      usage();
    }
  }
  return options;
}

std::string place_of(const OrderSite& site) {
  return std::filesystem::path(site.file).filename().string() + ":" + std::to_string(site.line);
}

// How often each place was reached.
nlohmann::ordered_json visits() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OrderSite& site : order_sites()) {
    list.push_back({{"site", place_of(site)}, {"kind", site.kind}, {"pair", site.pair}, {"visits", *site.visits}});
  }
  return list;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int judge_all(const Options& options) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  Totals totals;
  Finding finding;
  std::uint64_t seed = options.first;
  for (; seed < options.end; ++seed) {
    finding = judge(seed, folder, totals);
    if (!finding.judge.empty()) break;
  }
  if (finding.judge.empty() && totals.seeds >= 1000 &&
      totals.counts.implied_waits * most_implied > totals.counts.waits) {
    finding = {"bounds", std::to_string(totals.counts.implied_waits) + " of " + std::to_string(totals.counts.waits) +
                             " waits told the waiter nothing new"};
  }
  if (options.json) {
    nlohmann::ordered_json result = {
        {"seeds", totals.seeds},
        {"fit", totals.fit},
        {"ended_by_failure", totals.ended_by_failure},
        {"tensors_checked", totals.checks},
        {"calls", totals.counts.calls},
        {"copies", totals.counts.uploads + totals.counts.downloads},
        {"copies_not_page_locked", totals.counts.unpinned_copies},
        {"kernels", totals.counts.kernels},
        {"waits", totals.counts.waits},
        {"implied_waits", totals.counts.implied_waits},
        {"turns", totals.switches},
        {"policies", totals.policies},
        {"strategies", totals.strategies},
        {"cpu_ms_per_seed", cpu_seconds() * 1e3 / static_cast<double>(std::max<std::uint64_t>(totals.seeds, 1))},
        {"sites", visits()},
        {"failure", nullptr}};
    if (!finding.judge.empty()) {
      result["failure"] = {{"seed", seed}, {"judge", finding.judge}, {"what", finding.what}};
    }
    std::printf("%s\n", result.dump(2).c_str());
  } else if (finding.judge.empty()) {
    std::printf("%llu seeds: nothing found\n", static_cast<unsigned long long>(totals.seeds));
  } else {
    std::printf("seed %llu, %s: %s\n", static_cast<unsigned long long>(seed), finding.judge.c_str(),
                finding.what.c_str());
  }
  return finding.judge.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tencache::rules

int main(int count, char** arguments) {
  std::signal(SIGSEGV, [](int) { std::abort(); });  // which says the seed
  return tencache::rules::judge_all(tencache::rules::parse(count, arguments));
}
