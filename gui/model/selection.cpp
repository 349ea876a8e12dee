#include "gui/model/selection.h"

#include <functional>
#include <string_view>

namespace tencache::gui {
namespace {

// The id in `to` of what `id` is in `from`: the same name, and as many of that name before it.
template <typename Items, typename NameOf>
std::uint32_t same_name(const Items& from, const Items& to, std::uint32_t id, NameOf from_name, NameOf to_name) {
  if (id >= from.size()) return none;
  const std::string_view name = from_name(id);
  if (id < to.size() && to_name(id) == name) return id;
  std::size_t before = 0;
  for (std::uint32_t i = 0; i < id; ++i) before += from_name(i) == name;
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    if (to_name(i) == name && before-- == 0) return i;
  }
  return none;
}

}  // namespace

std::uint32_t same_thing(const Run& from, const Run& to, const Selection& selection) {
  using NameOf = std::function<std::string_view(std::uint32_t)>;
  if (selection.kind == Selection::Kind::op) {
    return same_name(from.trace().ops, to.trace().ops, selection.id, NameOf([&](auto id) { return from.op_name(id); }),
                     NameOf([&](auto id) { return to.op_name(id); }));
  }
  return same_name(from.trace().tensors, to.trace().tensors, selection.id,
                   NameOf([&](auto id) { return from.tensor_name(id); }),
                   NameOf([&](auto id) { return to.tensor_name(id); }));
}

const std::vector<std::uint32_t>& SelectedInRuns::find(const Selection& selection, const std::vector<RunPointer>& runs,
                                                       std::uint64_t generation) {
  if (selection_ != selection || generation_ != generation || ids_.size() != runs.size()) {
    selection_ = selection;
    generation_ = generation;
    ids_.clear();
    for (const RunPointer& run : runs) ids_.push_back(same_thing(*runs[selection.run], *run, selection));
  }
  return ids_;
}

}  // namespace tencache::gui
