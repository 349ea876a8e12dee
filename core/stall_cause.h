// Why an op waits: the one list of causes. Figures by cause are EnumMap<StallCause, T>; whatever shows them iterates.
// A new cause is a value and a row here, and a colour (gui/model/palette.h); then the rule of the engine that names it
// and, in studies/explain.cpp, what a machine is without it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "core/enum_map.h"

namespace tencache {

// The resource that a waiting op's last missing byte waited for.
enum class StallCause : std::uint8_t {
  h2d,
  d2h,
  nvme_read,
  nvme_write,
  cpu_optimizer,
  memory,
  collective,
  cpu_compute
};

struct StallCauseTexts {
  StallCause cause;
  std::string_view name;  // in files and on terminals
  const char* label;      // on pages and in the dashboard, after "waits for"
  const char* without;    // what `explain` says of a run in which it is taken away
};
inline constexpr auto stall_causes = std::to_array<StallCauseTexts>({
    // Links, by the kinds of tier that they join.
    {StallCause::h2d, "h2d", "copies to GPU", "h2d takes no time"},
    {StallCause::d2h, "d2h", "copies from GPU", "d2h takes no time"},
    {StallCause::nvme_read, "nvme_read", "storage reads", "nvme_read takes no time"},
    {StallCause::nvme_write, "nvme_write", "storage writes", "nvme_write takes no time"},
    // An op of the optimizer on the CPU.
    {StallCause::cpu_optimizer, "cpu_optimizer", "CPU optimizer", "the CPU's updates take no time"},
    {StallCause::memory, "memory", "room in memory", "GPU memory for everything"},
    // To start an op together with other ranks.
    {StallCause::collective, "collective", "other ranks", "ranks do not wait for each other"},
    // Another op on the CPU.
    {StallCause::cpu_compute, "cpu_compute", "CPU compute", "the CPU computes in no time"},
});

template <>
inline constexpr auto enum_texts<StallCause> = [] {
  std::array<std::string_view, stall_causes.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    TENCACHE_CHECK(stall_causes[i].cause == static_cast<StallCause>(i));
    names[i] = stall_causes[i].name;
  }
  return names;
}();

inline constexpr auto all_causes = enum_values<StallCause>;

constexpr const StallCauseTexts& texts_of(StallCause cause) { return stall_causes[static_cast<std::size_t>(cause)]; }
constexpr const char* label_of(StallCause cause) { return texts_of(cause).label; }

}  // namespace tencache
