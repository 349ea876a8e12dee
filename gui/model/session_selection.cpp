// What of a session is selected and searched for.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <functional>
#include <utility>

#include "gui/model/describe.h"
#include "gui/model/session.h"

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

// ---- Selection and search -------------------------------------------------------------------------------------------

std::uint32_t Session::selected_in(std::size_t run) const {
  if (selection.kind == Selection::Kind::nothing || selection.run >= runs_.size()) return none;
  if (run == selection.run) return selection.id;
  if (!same_ || same_->selection != selection || same_->generation != generation_) {
    same_.emplace(SameThing{selection, generation_, {}});
    for (const RunPointer& other : runs_) same_->ids.push_back(same_thing(*runs_[selection.run], *other, selection));
  }
  return same_->ids[run];
}

void Session::select_span(std::size_t run, std::uint32_t span) {
  const Span& s = runs_[run]->spans()[span];
  if (s.kind == SpanKind::transfer) {
    selection = {Selection::Kind::tensor, s.tensor, run, span};
  } else {
    selection = {Selection::Kind::op, s.op, run, span};
  }
}

void Session::show_selection() {
  if (selection.kind == Selection::Kind::nothing || selection.run >= runs_.size()) return;
  const Run& run = *runs_[selection.run];
  const std::span<const std::uint32_t> spans =
      selection.kind == Selection::Kind::op ? run.spans_of_op(selection.id) : run.transfers_of(selection.id);
  const Nanoseconds origin = origin_ns(selection.run), end = origin + aligned_length_ns(selection.run);
  std::uint32_t chosen = none;
  for (const std::uint32_t span : spans) {
    const Nanoseconds start = run.spans()[span].start_ns;
    if (chosen == none || (start >= origin && start < end && run.spans()[chosen].start_ns < origin)) chosen = span;
  }
  if (chosen == none) return;
  selection.span = chosen;
  const Span& span = run.spans()[chosen];
  const auto length = static_cast<double>(std::max<Nanoseconds>(span.end_ns - span.start_ns, 1));
  const double middle = static_cast<double>(span.start_ns - origin) + length / 2;
  const double shown = std::clamp(window.length_ns(), 4 * length, 40 * length);
  window = {middle - shown / 2, middle + shown / 2};
}

void Session::search(const std::string& text) {
  if (text == search_text_) return;
  search_text_ = text;
  match_.reset();
  find_matches();
}

void Session::find_matches() {
  found_ops_.clear();
  found_tensors_.clear();
  op_matches_.assign(runs_.size(), {});
  tensor_matches_.assign(runs_.size(), {});
  marks_.clear();
  mark_again_ = marking_.valid();
  if (search_text_.empty()) return;
  const std::string wanted = lower_case(search_text_);
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const Trace& trace = runs_[r]->trace();
    std::vector<std::uint8_t> names(trace.names.size(), 0);
    for (NameId name = 0; name < names.size(); ++name) {
      names[name] = lower_case(trace.names[name]).find(wanted) != std::string::npos;
    }
    op_matches_[r].resize(trace.ops.size());
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      op_matches_[r][op] = names[trace.ops[op].name] != 0 || names[trace.ops[op].module] != 0;
      if (r == 0 && op_matches_[r][op] != 0) found_ops_.push_back(op);
    }
    tensor_matches_[r].resize(trace.tensors.size());
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      tensor_matches_[r][tensor] = names[trace.tensors[tensor].name];
      if (r == 0 && tensor_matches_[r][tensor] != 0) found_tensors_.push_back(tensor);
    }
  }
  if (!marking_.valid()) mark_matches();
}

// Of runs that are long, off the frame path.
void Session::mark_matches() {
  const auto mark = [](const std::vector<RunPointer>& runs, const auto& matches) {
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
    marks_ = mark(runs_, [this](std::size_t run, const Span& span) { return matches(run, span); });
    return;
  }
  marking_ = std::async(std::launch::async, [mark, runs = runs_, ops = op_matches_, tensors = tensor_matches_] {
    return mark(runs, [&](std::size_t run, const Span& span) { return matches_of(ops[run], tensors[run], span); });
  });
}

bool Session::take_marks() {
  if (!marking_.valid() || marking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
  marks_ = marking_.get();
  if (!std::exchange(mark_again_, false)) return true;
  marks_.clear();
  if (!search_text_.empty()) mark_matches();
  return true;
}

const Track* Session::marks(std::size_t run, std::size_t track) const {
  if (run >= marks_.size() || marks_[run][track].items().empty()) return nullptr;
  return &marks_[run][track];
}

bool Session::matches(std::size_t run, const Span& span) const {
  return matches_of(op_matches_[run], tensor_matches_[run], span);
}

void Session::select_next_match(int step) {
  const std::size_t count = found_ops_.size() + found_tensors_.size();
  if (count == 0 || runs_.empty()) return;
  std::size_t match = match_.value_or(step < 0 ? count - 1 : 0) % count;
  if (match_ && selection.kind != Selection::Kind::nothing) match = (match + (step < 0 ? count - 1 : 1)) % count;
  match_ = match;
  if (match < found_ops_.size()) {
    selection = {Selection::Kind::op, found_ops_[match], 0, none};
  } else {
    selection = {Selection::Kind::tensor, found_tensors_[match - found_ops_.size()], 0, none};
  }
  show_selection();
}

}  // namespace tencache::gui
