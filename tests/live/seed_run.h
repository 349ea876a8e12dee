// What programs that judge seeds have in common (driver_seeds.cpp, live_seeds.cpp):
//
//   PROGRAM --seeds A..B [--json] [--change N]   judges each seed; exits with 1 at the first that fails
//
// --change takes the N-th place away where order is made, or turns it round (executor/order_site.h; --json lists them).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/live/rules/rules_driver.h"

namespace tencache::rules {

struct Finding {
  std::string judge, what;  // empty: nothing was found
};

// What goes wrong by plan: RulesDriver::fail.
struct Trouble {
  const char* function = nullptr;  // null: nothing
  CUresult result = CUDA_SUCCESS;
  std::uint64_t calls = 0;

  bool may_end_the_run() const { return function != nullptr && std::string(function) != "cuMemHostRegister"; }
  bool loses_the_device() const { return result == CUDA_ERROR_LAUNCH_FAILED; }
};

// Of all seeds so far.
struct SeedTotals {
  std::uint64_t seeds = 0, ended_by_failure = 0, switches = 0;
  RulesCounts counts;
  std::map<std::string, std::uint64_t> policies, strategies;

  void add(const RulesCounts& more);
};

struct SeedJudges {
  std::function<Finding(std::uint64_t seed)> seed;
  std::function<void(nlohmann::ordered_json& figures)> more{};  // figures of the program's own
};

// Of a run that is over: a rule that it broke, accesses without order. Empty: none.
Finding finding_of(const RulesDriver& driver);
// Judges the waits of all seeds, too: hardly one is too many. Returns the exit status.
int run_seeds(int count, char** arguments, const SeedTotals& totals, const SeedJudges& judges);

}  // namespace tencache::rules
