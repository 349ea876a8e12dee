// Replays the event log of a live run: the same inputs through a fresh engine and a fresh policy object. If nothing but
// the inputs decides, the decisions are the same, bit for bit.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/engine/engine.h"
#include "core/error.h"

namespace tencache {

// A machine that only repeats the completions of a log, in their order and at their times. That the engine submits what
// it submitted then shows in its decisions; `diverged` tells only of a completion of something never submitted.
class LogMachine final : public Machine {
 public:
  explicit LogMachine(const EventLog& log) : log_(log), now_(log.start_ns) {}

  Fence submit(const CopyCommand&, Tag) override { return ++last_fence_; }
  Fence execute(const OpCommand&, Tag) override { return ++last_fence_; }
  void cancel(Fence) override {}
  bool wait(Completion& completion) override;
  Nanoseconds now() const override { return now_; }
  bool pretends() const override { return log_.pretended; }
  Nanoseconds move(const MoveCommand&) override { return 0; }
  bool moves() const override { return true; }
  const std::string& diverged() const { return diverged_; }

 private:
  const EventLog& log_;
  std::size_t next_ = 0;
  Fence last_fence_ = 0;
  Nanoseconds now_;
  std::string diverged_;
};

inline bool LogMachine::wait(Completion& completion) {
  for (;; ++next_) {
    if (next_ == log_.inputs.size()) return false;
    const Input::What& what = log_.inputs[next_].what;
    const Completion* logged = std::get_if<Completion>(&what);
    if (logged == nullptr && !std::holds_alternative<input::Standstill>(what)) continue;
    ++next_;
    if (logged == nullptr) return false;
    completion = *logged;
    break;
  }
  now_ = completion.end_ns;
  if (completion.fence > last_fence_ && diverged_.empty()) {
    diverged_ = "the log completes fence " + std::to_string(completion.fence) + ", which was not submitted again";
    return false;
  }
  return true;
}

struct ReplayedLog {
  std::vector<Decision> decisions;
  std::string diverged;  // where the replay could not follow the log; empty: it did to the end
};

// Why this engine cannot take the logged input; empty if it can.
inline std::string obstacle(const Input& input, const Engine& engine, LogMachine& machine) {
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

// `log` is of an intercepted program (Engine without a program); `spec` the machine that its engine had, `policy` a new
// object of the same kind and options.
inline ReplayedLog replay_log(const EventLog& log, const MachineSpec& spec, Policy& policy) {
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

// One line a decision.
inline std::string describe(const Decision& decision) {
  const auto id = [](std::uint32_t value) { return value == none ? std::string("-") : std::to_string(value); };
  const auto tier = [](TierId value) { return value == no_tier ? std::string("-") : std::to_string(value); };
  return std::to_string(decision.now) + " ns op " + id(decision.op) + " " + std::string(to_string(decision.kind)) +
         " chunk " + id(decision.chunk) + " " + tier(decision.from) + " -> " + tier(decision.to) + ", " +
         std::string(to_string(decision.why.reason));
}

// The first difference in words; empty if there is none.
inline std::string first_difference(const std::vector<Decision>& logged, const std::vector<Decision>& replayed) {
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
