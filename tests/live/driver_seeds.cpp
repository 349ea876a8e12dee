// Random replays of the engine on the CUDA backend and the driver of rules: machines, traces and policies of
// random_case.h, threads that take turns, a device against the code, and failures; in half of them the GPU's memory is
// an arena in which tensors move, and of those in two thirds the host runs ahead. All of it follows from the seed.
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
#include "tests/live/loader_case.h"
#include "tests/live/machine_case.h"
#include "tests/live/program_case.h"
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
      constexpr std::array functions = {
          "cuEventRecord",   "cuEventCreate",       "cuLaunchKernel",    "cuStreamCreate",    "cuMemAlloc",
          "cuMemSetAccess",  "cuMemAddressReserve", "cuMemMap",          "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
          "cuMemsetD8Async", "cuMemcpyBatchAsync",  "cuMemcpyDtoDAsync", "cuStreamWaitEvent"};
      return {functions[random.below(functions.size())], CUDA_ERROR_OUT_OF_MEMORY, random.below(40)};
    }
    default: {
      constexpr std::array functions = {"cuMemcpyHtoDAsync",  "cuMemcpyDtoHAsync", "cuLaunchKernel",
                                        "cuMemUnmap",         "cuEventRecord",     "cuMemMap",
                                        "cuEventSynchronize", "cuMemSetAccess",    "cuMemcpyBatchAsync",
                                        "cuEventQuery",       "cuStreamWaitEvent", "cuStreamSynchronize"};
      return {functions[random.below(functions.size())], CUDA_ERROR_LAUNCH_FAILED, random.below(30)};
    }
  }
}

struct Totals : SeedTotals {
  std::uint64_t fit = 0, checks = 0, movable = 0, ahead = 0;
  std::uint64_t programs = 0, programs_fit = 0, program_evictions = 0;
};

bool is_movable(const MachineSpec& machine) { return machine.tiers[0].allocator == AllocatorKind::movable; }

void run_ahead(MachineSpec& machine, Random& random) {
  machine.run_ahead.ops = static_cast<std::uint32_t>(random.one_in(2) ? random.between(1, 4) : 256);
  machine.run_ahead.copies = static_cast<std::uint32_t>(random.between(1, 4));
  machine.run_ahead.copies_ns = random.one_in(2) ? 0 : 400'000;
  if (random.one_in(2)) machine.run_ahead.time_ns = static_cast<Nanoseconds>(random.between(1, 1000));
}

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
  if (made.machine.run_ahead.ops > 0 && bodies.counts().most_ahead > made.machine.run_ahead.ops) {
    finding = {"bounds", "the host is " + std::to_string(bodies.counts().most_ahead) + " ops ahead"};
  }
  if (!bodies.counts().first_corruption.empty()) finding = {"values", bodies.counts().first_corruption};
}

Finding judge(std::uint64_t seed, const std::string& folder, Totals& totals) {
  const SeedOnAbort at_abort(seed);
  Random random(seed ^ 0x64726976657273);
  const bool replays = !random.one_in(5);
  CaseOptions case_options;
  case_options.real_pages = true;
  const std::vector<std::string>& policies = registered_policies();
  const std::size_t which = seed % (policies.size() + 1);
  case_options.policy = which < policies.size() ? policies[which] : "random";
  Random arena(seed ^ 0x6172656e61);
  case_options.movable = replays && arena.one_in(2);
  const bool live =
      arena.one_in(4) && which < policies.size() && case_options.policy != "ideal" && !needs_nvme(case_options.policy);
  RandomCase made = random_case(seed, case_options);
  if (case_options.movable) make_arena(made, device_page);
  if (case_options.movable && !arena.one_in(3)) run_ahead(made.machine, arena);
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
  const Bytes budget = live ? device_bytes : replays ? made.machine.tiers[0].capacity : 4096 * random.between(16, 24);
  driver.set_budget(budget);
  if (trouble.function != nullptr) driver.fail(trouble.function, trouble.result, trouble.calls);
  try {
    if (live) {
      const ProgramRun played = play_random_program(driver, std::make_shared<CudaDevice>(driver.table(), 0), arena,
                                                    case_options.policy, !arena.one_in(4), folder);
      if (!played.wrong.empty()) finding = {"values", played.wrong};
      totals.programs++;
      totals.programs_fit += played.fits ? 1 : 0;
      totals.program_evictions += played.evictions;
      totals.checks += played.checks;
    } else if (replays) {
      run(made, driver, totals, finding);
    } else {
      const auto device = std::make_shared<CudaDevice>(driver.table(), 0);
      UserTrouble user_trouble{[&] { driver.table().cuCtxSetCurrent(nullptr); }};
      if (trouble.function == nullptr) {
        user_trouble.fail = [&](const char* function) { driver.fail(function, CUDA_ERROR_INVALID_VALUE); };
      }
      const std::uint64_t user = arena.one_in(2) ? 3 + arena.below(2) : random.below(3);
      const std::string wrong = user == 0   ? use_lanes(*device, random, folder)
                                : user == 1 ? use_machine(device, random, [&] { turns.pass_turn(); })
                                : user == 3 ? use_arena(*device, random, budget, user_trouble)
                                : user == 4 ? use_loader(*device, random, budget, user_trouble)
                                            : use_accelerator(*device, random, budget, user_trouble.interfere);
      if (!wrong.empty()) finding = {"values", wrong};
    }
  } catch (const Error& failed) {
    error = failed.what();
  }
  totals.seeds++;
  totals.policies[replays ? case_options.policy : "none: the accelerator alone"]++;
  totals.strategies[strategy_names[static_cast<std::size_t>(strategy)]]++;
  totals.movable += case_options.movable ? 1 : 0;
  totals.ahead += made.machine.run_ahead.ops > 0 ? 1 : 0;
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
                          figures["ahead"] = totals.ahead;
                          figures["programs"] = totals.programs;
                          figures["programs_fit"] = totals.programs_fit;
                          figures["program_evictions"] = totals.program_evictions;
                        }});
}
