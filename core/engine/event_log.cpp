#include "core/engine/event_log.h"

#include <string_view>

namespace tencache {

std::string describe(const Decision& decision) {
  const auto id = [](std::uint32_t value) { return value == none ? std::string("-") : std::to_string(value); };
  const auto tier = [](TierId value) { return value == no_tier ? std::string("-") : std::to_string(value); };
  return std::to_string(decision.now) + " ns op " + id(decision.op) + " " + std::string(to_string(decision.kind)) +
         " chunk " + id(decision.chunk) + " " + tier(decision.from) + " -> " + tier(decision.to) + ", " +
         std::string(to_string(decision.why.reason));
}

bool LogMachine::wait(Completion& completion) {
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

}  // namespace tencache
