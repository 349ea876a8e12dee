#include "gui/model/search.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
#include <utility>

#include "gui/model/describe.h"

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

constexpr std::size_t most_spans_marked_at_once = 20'000;

bool matches_of(const std::vector<std::uint8_t>& ops, const std::vector<std::uint8_t>& tensors, const Span& span) {
  const bool copy = span.kind == SpanKind::transfer;
  const std::vector<std::uint8_t>& list = copy ? tensors : ops;
  const std::uint32_t id = copy ? span.tensor : span.op;
  return id < list.size() && list[id] != 0;
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

void Search::look_for(const std::string& text) {
  if (text == text_) return;
  text_ = text;
  match_.reset();
  find();
}

void Search::set_runs(std::vector<RunPointer> runs) {
  runs_ = std::move(runs);
  find();
}

void Search::find() {
  ops_.clear();
  tensors_.clear();
  op_matches_.assign(runs_.size(), {});
  tensor_matches_.assign(runs_.size(), {});
  marks_.clear();
  mark_again_ = marking_.valid();
  if (text_.empty()) return;
  const std::string wanted = lower_case(text_);
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Trace& trace = runs_[r]->trace();
    std::vector<std::uint8_t> names(trace.names.size(), 0);
    for (NameId name = 0; name < names.size(); ++name) {
      names[name] = lower_case(trace.names[name]).find(wanted) != std::string::npos;
    }
    op_matches_[r].resize(trace.ops.size());
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      op_matches_[r][op] = names[trace.ops[op].name] != 0 || names[trace.ops[op].module] != 0;
      if (r == 0 && op_matches_[r][op] != 0) ops_.push_back(op);
    }
    tensor_matches_[r].resize(trace.tensors.size());
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      tensor_matches_[r][tensor] = names[trace.tensors[tensor].name];
      if (r == 0 && tensor_matches_[r][tensor] != 0) tensors_.push_back(tensor);
    }
  }
  if (!marking_.valid()) mark();
}

// Of runs that are long, off the frame path.
void Search::mark() {
  const auto marks_in = [](const std::vector<RunPointer>& runs, const auto& matches) {
    Marks marks(runs.size());
    for (std::size_t r = 0; r < runs.size(); ++r) {
      for (const Track& track : runs[r]->tracks()) {
        Track& marked = marks[r].emplace_back(track.name(), track.lane());
        for (const TrackItem& item : track.items()) {
          if (matches(r, runs[r]->spans()[item.span])) marked.add(item);
        }
        marked.finish();
      }
    }
    return marks;
  };
  std::size_t spans = 0;
  for (const RunPointer& run : runs_) spans += run->spans().size();
  if (spans <= most_spans_marked_at_once) {
    marks_ = marks_in(runs_, [this](std::size_t run, const Span& span) { return matches(run, span); });
    return;
  }
  marking_ = std::async(std::launch::async, [marks_in, runs = runs_, ops = op_matches_, tensors = tensor_matches_] {
    return marks_in(runs, [&](std::size_t run, const Span& span) { return matches_of(ops[run], tensors[run], span); });
  });
}

bool Search::update() {
  if (!marking_.valid() || marking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
  marks_ = marking_.get();
  if (!std::exchange(mark_again_, false)) return true;
  marks_.clear();
  if (!text_.empty()) mark();
  return true;
}

const Track* Search::marks(std::size_t run, std::size_t track) const {
  if (run >= marks_.size() || marks_[run][track].items().empty()) return nullptr;
  return &marks_[run][track];
}

bool Search::matches(std::size_t run, const Span& span) const {
  return matches_of(op_matches_[run], tensor_matches_[run], span);
}

std::optional<Selection> Search::next(int step, bool go_on) {
  const std::size_t count = ops_.size() + tensors_.size();
  if (count == 0) return std::nullopt;
  std::size_t match = match_.value_or(step < 0 ? count - 1 : 0) % count;
  if (match_ && go_on) match = (match + (step < 0 ? count - 1 : 1)) % count;
  match_ = match;
  if (match < ops_.size()) return Selection{Selection::Kind::op, ops_[match], 0, none};
  return Selection{Selection::Kind::tensor, tensors_[match - ops_.size()], 0, none};
}

}  // namespace tencache::gui
