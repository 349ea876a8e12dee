// Random machines, traces, layouts and policies for the differential and the property tests. Everything follows from
// one seed, which every failure prints: the same seed makes the same case on every computer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/trace.h"

namespace tencache {

// std::mt19937_64 is the same everywhere, the standard's distributions are not.
class Random {
 public:
  // Draws from `choices` while there are any, a byte or two each: what a fuzzer changes a little changes a case a
  // little.
  explicit Random(std::uint64_t seed, std::span<const std::uint8_t> choices = {})
      : generator_(seed), choices_(choices) {}
  std::uint64_t below(std::uint64_t end) {
    const std::size_t wanted = end <= 256 ? 1 : 2;
    if (choices_.size() < wanted) return generator_() % end;
    const std::uint64_t drawn = wanted == 1 ? choices_[0] : choices_[0] * std::uint64_t{256} + choices_[1];
    choices_ = choices_.subspan(wanted);
    return drawn % end;
  }
  std::uint64_t between(std::uint64_t first, std::uint64_t last) { return first + below(last - first + 1); }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  std::mt19937_64 generator_;
  std::span<const std::uint8_t> choices_;
};

struct CaseOptions {
  bool exact_allocators = true;                      // false: all kinds of allocator
  bool movable = false;                              // tier 0; sizes are 512 times as large
  bool real_pages = false;                           // sizes and granularities that HostMachine takes
  bool deep_issue = true;                            // issue_ahead of 2 occurs
  bool run_ahead = false;                            // the program's thread goes on ahead of the GPU
  bool pieces = false;                               // staging buffers are too small for the largest chunk
  bool changing = false;                             // a second tier of kind gpu whose capacity changes
  std::string policy = {};                           // empty: any of the registry, or "random"
  std::map<std::string, std::string> settings = {};  // of the policy
  bool optimizer = false;                            // updates that policies move and reorder, and a second SSD
  std::span<const std::uint8_t> choices = {};        // Random
};

struct RandomCase {
  std::uint64_t seed = 0;
  MachineSpec machine;
  Program program;
  Layout layout;  // but for what the policy's own layout insists on
  RunLimits limits;
  std::string policy;
  std::map<std::string, std::string> settings;

  // A new policy object: it decides the same every time. `make_policy` of the registry, or the random one.
  std::unique_ptr<Policy> make() const;
  std::string describe() const;
};

// Asks for anything at any time, also for what does not exist; of ops up to `op_count`.
std::unique_ptr<Policy> random_policy(std::uint64_t seed, std::uint64_t op_count);

// All names of the registry: a policy is in these tests by being registered.
const std::vector<std::string>& registered_policies();
// It refuses a machine without a tier of that kind.
bool needs_nvme(const std::string& policy);
// It refuses a machine without a second tier of kind gpu.
bool needs_peer(const std::string& policy);

RandomCase random_case(std::uint64_t seed, const CaseOptions& options = {});

// How many cases a test runs that asks for `count`: $TENCACHE_CASES times as many where that is set; a quarter under
// sanitizers, under which each takes ten times as long.
std::uint64_t case_count(std::uint64_t count);

// Prints the seed of the case under way when a broken invariant stops the program.
class SeedOnAbort {
 public:
  explicit SeedOnAbort(std::uint64_t seed);
  ~SeedOnAbort();
};

}  // namespace tencache
