// Fuzzes the engine with every policy: the bytes are the choices that make a trace, a machine, a layout, a policy and
// its options (tests/property/random_case.h), so that small changes of the bytes are small changes of the case. The
// auditor watches the engine from the machine's side (tests/property/auditor_machine.h); the engine's own invariants
// stop the program.
//
// Input: 8 bytes of seed (for what the choices do not say), a byte of flags, the choices.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "core/error.h"
#include "policies/knobs.h"
#include "sim/sim_machine.h"
#include "tests/property/auditor_machine.h"
#include "tests/property/random_case.h"

namespace tencache {
namespace {

// A few of the policy's knobs at values worth trying.
Settings random_settings(Random& random, const std::string& policy) {
  Settings settings;
  for (const PolicyInfo& info : list_policies()) {
    if (info.name != policy) continue;
    for (const Knob& knob : knobs_of(info)) {
      if (random.one_in(3)) settings[knob.name] = knob.values[random.below(knob.values.size())];
    }
  }
  return settings;
}

void run(const RandomCase& made, bool trouble) {
  std::unique_ptr<Policy> policy;
  Layout layout;
  try {
    policy = made.make();
    layout = policy->layout(made.machine, &made.program);
  } catch (const Error&) {
    return;  // options that do not go together, or with this machine
  }
  SimMachine simulated(made.machine);
  TroubleMachine troubled(simulated, made.seed);
  AuditorMachine auditor(trouble ? static_cast<Machine&>(troubled) : simulated, made.machine, made.program.trace,
                         layout);
  std::string violation;
  try {
    Engine engine(made.machine, auditor, *policy, &made.program,
                  {.timeline = nullptr, .log = nullptr, .on_iteration = {}});
    engine.run(made.limits);
    violation = auditor.violation();
  } catch (const OutOfMemory& error) {
    violation = std::string("out of memory left the engine: ") + error.what();
  } catch (const Error& error) {
    violation = trouble ? auditor.violation() : error.what();
  } catch (const std::runtime_error& error) {
    violation = error.what();
  }
  if (violation.empty()) return;
  std::fprintf(stderr, "%s\n%s\n", violation.c_str(), made.describe().c_str());
  std::abort();
}

}  // namespace
}  // namespace tencache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tencache;
  std::uint64_t seed = 0;
  if (size <= sizeof seed) return 0;
  std::memcpy(&seed, data, sizeof seed);
  const std::uint8_t flags = data[sizeof seed];
  CaseOptions options;
  options.exact_allocators = (flags & 1) != 0;
  options.optimizer = (flags & 2) != 0;
  options.choices = {data + sizeof seed + 1, size - sizeof seed - 1};
  RandomCase made = random_case(seed, options);
  made.layout.overlap_faults = false;  // an op that runs before its data is there is what the auditor is to find
  Random random(seed ^ 0x6f7074696f6e73);
  if ((flags & 4) != 0 && made.policy != "random") made.settings = random_settings(random, made.policy);
  run(made, (flags & 8) != 0);
  return 0;
}
