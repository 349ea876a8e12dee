// An op or a tensor that is selected in one of several runs, and where it is in the others.
#pragma once

#include <cstdint>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

// `span` is the one that was chosen.
struct Selection {
  enum class Kind : std::uint8_t { nothing, op, tensor };
  Kind kind = Kind::nothing;
  std::uint32_t id = none;
  std::size_t run = 0;
  std::uint32_t span = none;
  bool operator==(const Selection&) const = default;
};

// The id in `to` of what is selected in `from`: of the same name, in the same order of those that have it; or `none`.
std::uint32_t same_thing(const Run& from, const Run& to, const Selection& selection);

// Remembers the answers to the last question, which views ask in every frame.
class SelectedInRuns {
 public:
  // Ids by run. `generation` differs where the runs do.
  const std::vector<std::uint32_t>& find(const Selection& selection, const std::vector<RunPointer>& runs,
                                         std::uint64_t generation);

 private:
  Selection selection_;
  std::uint64_t generation_ = 0;
  std::vector<std::uint32_t> ids_;
};

}  // namespace tencache::gui
