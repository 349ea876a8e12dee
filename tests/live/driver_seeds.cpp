// Random replays of the engine on the CUDA backend and the driver of rules: machines, traces and policies of
// random_case.h, threads that take turns, a device against the code, and failures; in a third of them the GPU's memory
// is an arena in which tensors move. All of it follows from the seed.
//
//   driver_seeds --seeds A..B [--json] [--change N]   (seed_run.h)
#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "core/engine/engine.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"
#include "tests/live/accelerator_case.h"
#include "tests/live/arena_case.h"
#include "tests/live/lane_case.h"
#include "tests/live/machine_case.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/live/rules/turns.h"
#include "tests/live/seed_run.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"

namespace tencache::rules {
namespace {

constexpr Bytes device_bytes = 8 * MiB, device_page = 4096;

// In a quarter of the seeds something does.
Trouble draw_trouble(Random& random) {
  if (!random.one_in(4)) return {};
  switch (random.below(4)) {
    case 0:
      return {"cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, random.below(2)};
    case 1:
      return {"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, random.below(12)};
    case 2: {  // a call alone, of a device that goes on
      constexpr std::array functions = {"cuEventRecord",       "cuEventCreate",   "cuLaunchKernel",
                                        "cuStreamCreate",      "cuMemAlloc",      "cuMemSetAccess",
                                        "cuMemAddressReserve", "cuMemMap",        "cuMemcpyDtoHAsync",
                                        "cuMemcpyHtoDAsync",   "cuMemsetD8Async", "cuMemcpyBatchAsync"};
      return {functions[random.below(functions.size())], CUDA_ERROR_OUT_OF_MEMORY, random.below(40)};
    }
    default: {
      constexpr std::array functions = {"cuMemcpyHtoDAsync",  "cuMemcpyDtoHAsync", "cuLaunchKernel",
                                        "cuMemUnmap",         "cuEventRecord",     "cuMemMap",
                                        "cuEventSynchronize", "cuMemSetAccess",    "cuMemcpyBatchAsync"};
      return {functions[random.below(functions.size())], CUDA_ERROR_LAUNCH_FAILED, random.below(30)};
    }
  }
}

struct Totals : SeedTotals {
  std::uint64_t fit = 0, checks = 0, movable = 0;
};

bool is_movable(const MachineSpec& machine) { return machine.tiers[0].allocator == AllocatorKind::movable; }

// A run of the engine, from opening the device to closing it.
void run(RandomCase& made, const RulesDriver& driver, Totals& totals, Finding& finding) {
  HostMachineOptions options;
  options.pace = false;
  options.files.direct = options.files.io_uring = false;
  options.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
  const std::unique_ptr<ReplayKernels> kernels = options.accelerator->replay_kernels();
  ReplayBodies bodies(made.program.trace, {.check_everything = true, .write_everything = true, .duration_scale = 0},
                      kernels.get());
  const std::unique_ptr<Policy> policy = made.make();
  const Layout layout = policy->layout(made.machine, &made.program);
  if (is_movable(made.machine)) options.addressed = addressed_tiers(made.machine, layout);
  HostMachine machine(made.machine, bodies, options);
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
  Random arena(seed ^ 0x6172656e61);
  case_options.movable = replays && arena.one_in(3);
  RandomCase made = random_case(seed, case_options);
  if (case_options.movable) make_arena(made, device_page);
  for (Tier& tier : made.machine.tiers) {
    if (tier.kind == TierKind::nvme) tier.directories = {folder};
  }
  const auto strategy = static_cast<Strategy>(random.below(strategy_names.size()));
  const Trouble trouble = draw_trouble(random);
  Finding finding;
  std::string error;
  Turns turns(seed);
  RulesDriver driver(
      {.memory = device_bytes, .granularity = device_page, .strategy = strategy, .seed = seed, .host = &turns});
  const Bytes budget = replays ? made.machine.tiers[0].capacity : 4096 * random.between(16, 24);
  driver.set_budget(budget);
  if (trouble.function != nullptr) driver.fail(trouble.function, trouble.result, trouble.calls);
  try {
    if (replays) {
      run(made, driver, totals, finding);
    } else {
      const auto device = std::make_shared<CudaDevice>(driver.table(), 0);
      const auto interfere = [&] { driver.table().cuCtxSetCurrent(nullptr); };
      const std::uint64_t user = arena.one_in(4) ? 3 : random.below(3);
      const std::string wrong = user == 0   ? use_lanes(*device, random, folder)
                                : user == 1 ? use_machine(device, random, [&] { turns.pass_turn(); })
                                : user == 3 ? use_arena(*device, random, budget, interfere)
                                            : use_accelerator(*device, random, budget, interfere);
      if (!wrong.empty()) finding = {"values", wrong};
    }
  } catch (const Error& failed) {
    error = failed.what();
  }
  totals.seeds++;
  totals.policies[replays ? case_options.policy : "none: the accelerator alone"]++;
  totals.strategies[strategy_names[static_cast<std::size_t>(strategy)]]++;
  totals.movable += case_options.movable ? 1 : 0;
  totals.switches += turns.switches();
  totals.add(driver.counts());
  if (Finding broken = finding_of(driver); !broken.judge.empty()) return broken;
  if (!finding.judge.empty()) return finding;
  if (!error.empty()) {
    totals.ended_by_failure++;
    const bool said = !trouble.loses_the_device() || error.find("CUDA_ERROR_LAUNCH_FAILED") != std::string::npos;
    if (!trouble.may_end_the_run() || !said) return {"errors", error};
  }
  if (!trouble.loses_the_device() && !driver.leftovers().empty()) return {"leftovers", driver.leftovers()};
  return {};
}

}  // namespace
}  // namespace tencache::rules

int main(int count, char** arguments) {
  using namespace tencache::rules;
  const std::string folder = std::filesystem::temp_directory_path().string();
  Totals totals;
  return run_seeds(count, arguments, totals,
                   {.seed = [&](std::uint64_t seed) { return judge(seed, folder, totals); },
                    .more =
                        [&](nlohmann::ordered_json& figures) {
                          figures["fit"] = totals.fit;
                          figures["tensors_checked"] = totals.checks;
                          figures["movable"] = totals.movable;
                        }});
}
