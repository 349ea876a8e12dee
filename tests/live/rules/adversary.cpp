#include "tests/live/rules/adversary.h"

namespace tencache::rules {

std::optional<std::size_t> Adversary::choose(std::span<const Enabled> enabled) {
  if (enabled.empty()) return std::nullopt;
  const auto first = [&](auto wanted) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < enabled.size(); ++i) {
      if (wanted(enabled[i])) return i;
    }
    return std::nullopt;
  };
  switch (strategy_) {
    case Strategy::eager:
      return 0;
    case Strategy::forced:
      return std::nullopt;
    case Strategy::copies_first:
      return first([](const Enabled& job) { return job.kind != JobKind::kernel; });
    case Strategy::kernels_first:
      return first([](const Enabled& job) { return job.kind == JobKind::kernel; });
    case Strategy::starved:
      if (starved_ == 0 || random_.one_in(16)) starved_ = enabled[random_.below(enabled.size())].stream;
      return first([&](const Enabled& job) { return job.stream != starved_; });
    case Strategy::random: {
      const std::size_t choice = random_.below(2 * enabled.size());
      return choice < enabled.size() ? std::optional(choice) : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace tencache::rules
