// What of a session is selected and searched for.
#include <algorithm>
#include <cctype>
#include <functional>

#include "gui/model/session.h"

namespace tencache::gui {
namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

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

// ---- Selection and search -------------------------------------------------------------------------------------------

std::uint32_t Session::selected_in(std::size_t run) const {
  if (selection.kind == Selection::Kind::nothing || selection.run >= runs_.size()) return none;
  if (run == selection.run) return selection.id;
  return same_thing(*runs_[selection.run], *runs_[run], selection);
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
}

bool Session::matches(std::size_t run, const Span& span) const {
  if (span.kind == SpanKind::transfer)
    return span.tensor < tensor_matches_[run].size() && tensor_matches_[run][span.tensor];
  return span.op < op_matches_[run].size() && op_matches_[run][span.op] != 0;
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
