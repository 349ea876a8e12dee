#include "core/replay_log.h"

#include <algorithm>

#include "core/engine.h"
#include "core/error.h"

namespace tencache {
namespace {

// False when the replay leaves the log.
bool apply(const Input& input, Engine& engine, LogMachine& machine, std::string& diverged) {
  switch (input.kind) {
    case Input::Kind::completion: {
      Completion completion;
      if (!machine.wait(completion)) {
        diverged = machine.diverged();
        return false;
      }
      engine.handle(completion);
      break;
    }
    case Input::Kind::create: {
      const TensorId tensor = engine.create(input.bytes, input.role, input.persistent, input.now);
      if (tensor != input.tensor) {
        diverged = "tensor " + std::to_string(input.tensor) + " was created as " + std::to_string(tensor);
        return false;
      }
      break;
    }
    case Input::Kind::destroy:
      engine.destroy(input.tensor, input.now);
      break;
    case Input::Kind::begin:
      engine.begin(input.op, input.uses, input.now);
      break;
    case Input::Kind::allocate:
      engine.allocate(input.tensor, input.now);
      break;
    case Input::Kind::end:
      if (!engine.ready()) {
        diverged = "an op ended that has not started";
        return false;
      }
      engine.end(input.now);
      break;
    case Input::Kind::task:
      engine.task(input.lane, input.op, 0, input.uses, input.duration_ns, input.now);
      break;
    case Input::Kind::module_begin:
      engine.module_begin(input.module, input.now);
      break;
    case Input::Kind::module_end:
      engine.module_end(input.module, input.now);
      break;
    case Input::Kind::boundary:
      engine.iteration_boundary(input.now);
      break;
    case Input::Kind::profile:
      engine.set_profile(input.profile->program, input.profile->to_memory, input.profile->to_program, input.now);
      break;
    case Input::Kind::program_tensor:
      engine.set_program_tensor(input.tensor, input.program_tensor);
      break;
    case Input::Kind::role:
      engine.set_role(input.tensor, input.role);
      break;
    case Input::Kind::deviated:
      engine.schedule_deviated(input.now);
      break;
    case Input::Kind::check:
      try {
        engine.check_progress();
      } catch (const OutOfMemory&) {  // the program saw it too; what it did then is in the log
      }
      break;
    case Input::Kind::abandon:
      engine.abandon(input.now);
      break;
    case Input::Kind::late_write:
      engine.late_write(input.tensor);
      break;
    case Input::Kind::pin:
      engine.pin(input.tensor);
      break;
    case Input::Kind::unpin:
      engine.unpin(input.tensor);
      break;
    case Input::Kind::waited:
      engine.waited_for_tasks(input.now - input.duration_ns, input.now);
      break;
    case Input::Kind::standstill:  // of owned programs only
      break;
  }
  return true;
}

}  // namespace

ReplayedLog replay_log(const EventLog& log, const MachineSpec& spec, Policy& policy) {
  LogMachine machine(log);
  EventLog replayed;
  ReplayedLog result;
  Engine engine(spec, machine, policy, nullptr, {.timeline = nullptr, .log = &replayed, .on_iteration = {}});
  for (std::size_t i = 0; i < log.inputs.size(); ++i) {
    if (!apply(log.inputs[i], engine, machine, result.diverged)) {
      result.diverged = "input " + std::to_string(i) + ": " + result.diverged;
      break;
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
