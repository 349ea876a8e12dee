#include "core/engine/replay_log.h"

#include <algorithm>

#include "core/engine/engine.h"
#include "core/error.h"

namespace tencache {
namespace {

// Why this engine cannot take the logged input; empty if it can.
std::string obstacle(const Input& input, const Engine& engine, LogMachine& machine) {
  if (const auto* create = std::get_if<input::Create>(&input.what)) {
    const TensorId tensor = engine.memory().next_tensor(create->bytes);
    if (tensor == create->tensor) return "";
    return "tensor " + std::to_string(create->tensor) + " was created as " + std::to_string(tensor);
  }
  if (std::holds_alternative<input::End>(input.what) && !engine.ready()) return "an op ended that has not started";
  Completion completion;
  if (std::holds_alternative<Completion>(input.what) && !machine.wait(completion)) return machine.diverged();
  return "";
}

}  // namespace

ReplayedLog replay_log(const EventLog& log, const MachineSpec& spec, Policy& policy) {
  LogMachine machine(log);
  EventLog replayed;
  ReplayedLog result;
  Engine engine(spec, machine, policy, nullptr, {.timeline = nullptr, .log = &replayed, .on_iteration = {}});
  for (std::size_t i = 0; i < log.inputs.size(); ++i) {
    if (const std::string reason = obstacle(log.inputs[i], engine, machine); !reason.empty()) {
      result.diverged = "input " + std::to_string(i) + ": " + reason;
      break;
    }
    try {
      engine.handle(log.inputs[i]);
    } catch (const OutOfMemory&) {  // the program saw it too; what it did then is in the log
      if (!std::holds_alternative<input::CheckProgress>(log.inputs[i].what)) throw;
    }
  }
  result.decisions = std::move(replayed.decisions);
  return result;
}

std::string first_difference(const std::vector<Decision>& logged, const std::vector<Decision>& replayed) {
  const std::size_t common = std::min(logged.size(), replayed.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (logged[i] == replayed[i]) continue;
    return "decision " + std::to_string(i) + ": logged '" + describe(logged[i]) + "', replayed '" +
           describe(replayed[i]) + "'";
  }
  if (logged.size() == replayed.size()) return "";
  return std::to_string(logged.size()) + " decisions logged, " + std::to_string(replayed.size()) + " replayed";
}

}  // namespace tencache
