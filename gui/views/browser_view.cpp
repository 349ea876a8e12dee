// Ops and tensors as sortable tables; of the chosen tensor its life: where it was when, its uses, its moves.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>

#include "gui/model/browse.h"
#include "gui/model/describe.h"
#include "gui/views/canvas.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

constexpr ImGuiTableFlags browser_table_flags = ImGuiTableFlags_Sortable | ImGuiTableFlags_ScrollY |
                                                ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable |
                                                ImGuiTableFlags_BordersInnerV;

class BrowserView : public View {
 public:
  const char* name() const override { return "browser"; }
  const char* title() const override { return "Ops and tensors"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"[ ]", "the iteration before, after, whose figures these are"},
            {"click a heading", "sort by it"},
            {"click a row", "select it, in all views"}};
  }

 private:
  void draw_header(Session& session, const Theme& theme);
  void prepare(const Session& session);
  void draw_ops(Session& session, const Theme& theme);
  void draw_tensors(Session& session, const Theme& theme);
  TensorId choose_life(const Session& session);
  void draw_life(Session& session, const Theme& theme);
  void draw_stays(Session& session, const Theme& theme, const Tensor& of);
  void draw_moves(Session& session, TensorId tensor, const std::vector<std::uint32_t>& copies);

  // Runs of fewer iterations stand still at their last.
  std::size_t iteration(const Session& session) const {
    return std::min(session.shown().aligned(), session.runs()[run_]->iteration_count() - 1);
  }

  std::size_t run_ = 0;  // of the session's, whose figures are shown
  std::uint64_t prepared_ = ~std::uint64_t{0};
  std::size_t prepared_run_ = none;
  std::vector<OpRow> ops_;
  std::vector<TensorRow> tensors_;
  OpColumn op_column_ = OpColumn::order;
  TensorColumn tensor_column_ = TensorColumn::bytes;
  bool ops_ascending_ = true, tensors_ascending_ = false;
  TensorId lived_ = none;
  TensorId most_moved_ = none;  // whose life is shown while none is chosen
  std::vector<Stay> stays_;
  std::vector<OpIndex> uses_;
};

// True if the rows are to be sorted anew.
template <typename Column>
bool take_sorting(Column& column, bool& ascending) {
  ImGuiTableSortSpecs* sorting = ImGui::TableGetSortSpecs();
  if (sorting == nullptr || !sorting->SpecsDirty) return false;
  sorting->SpecsDirty = false;
  if (sorting->SpecsCount == 0) return false;
  column = static_cast<Column>(sorting->Specs[0].ColumnUserID);
  ascending = sorting->Specs[0].SortDirection != ImGuiSortDirection_Descending;
  return true;
}

template <typename Column>
void set_up(const char* label, Column id, ImGuiTableColumnFlags flags = ImGuiTableColumnFlags_WidthFixed) {
  ImGui::TableSetupColumn(label, flags, 0, static_cast<ImGuiID>(id));
}

void cell(const std::string& text) {
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(text.c_str());
}

// The name, then the module in what room is left; both in full when pointed at, where they are too long.
void draw_op_name(const Theme& theme, const std::string& name, const std::string& module, bool hovered) {
  const float gap = theme.px(8), room = ImGui::GetContentRegionAvail().x;
  const std::string shown = shortened(name, room);
  const std::string rest = shortened(module, room - ImGui::CalcTextSize(shown.c_str()).x - gap);
  ImGui::TextUnformatted(shown.c_str());
  if (!rest.empty()) {
    ImGui::SameLine(0, gap);
    ImGui::TextDisabled("%s", rest.c_str());
  }
  if (hovered && (shown != name || rest != module)) ImGui::SetTooltip("%s  %s", name.c_str(), module.c_str());
}

void BrowserView::draw_ops(Session& session, const Theme& theme) {
  const Run& run = *session.runs()[run_];
  if (!ImGui::BeginTable("ops", 7, browser_table_flags)) return;
  ImGui::TableSetupScrollFreeze(0, 1);
  set_up("op", OpColumn::order, ImGuiTableColumnFlags_WidthFixed | ImGuiTableColumnFlags_DefaultSort);
  set_up("name", OpColumn::name, ImGuiTableColumnFlags_WidthStretch);
  set_up("phase", OpColumn::phase);
  set_up("takes", OpColumn::takes);
  set_up("waits", OpColumn::waits);
  set_up("touches", OpColumn::touches);
  set_up("brought", OpColumn::brought);
  ImGui::TableHeadersRow();
  if (take_sorting(op_column_, ops_ascending_)) sort_rows(ops_, run, op_column_, ops_ascending_);
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(ops_.size()));
  while (clipper.Step()) {
    for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
      const OpRow& row = ops_[static_cast<std::size_t>(i)];
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const bool selected = session.selection.kind == Selection::Kind::op && session.selected_in(run_) == row.op;
      if (ImGui::Selectable(std::to_string(row.op).c_str(), selected, ImGuiSelectableFlags_SpanAllColumns)) {
        session.selection = {Selection::Kind::op, row.op, run_, none};
        session.show_selection();
      }
      const bool hovered = ImGui::IsItemHovered();
      ImGui::TableNextColumn();
      draw_op_name(theme, std::string(run.op_name(row.op)), std::string(run.module_name(row.op)), hovered);
      cell(label_of(run.trace().ops[row.op].phase));
      cell(duration_text(row.takes_ns));
      cell(row.waits_ns == 0 ? "" : duration_text(row.waits_ns));
      cell(format_bytes(row.touches));
      cell(row.brought == 0 ? "" : format_bytes(row.brought));
    }
  }
  ImGui::EndTable();
}

void BrowserView::draw_tensors(Session& session, const Theme& theme) {
  const Run& run = *session.runs()[run_];
  if (!ImGui::BeginTable("tensors", 6, browser_table_flags)) return;
  ImGui::TableSetupScrollFreeze(0, 1);
  set_up("tensor", TensorColumn::name, ImGuiTableColumnFlags_WidthStretch);
  set_up("role", TensorColumn::role);
  set_up("bytes", TensorColumn::bytes,
         ImGuiTableColumnFlags_WidthFixed | ImGuiTableColumnFlags_DefaultSort |
             ImGuiTableColumnFlags_PreferSortDescending);
  set_up("uses", TensorColumn::uses);
  set_up("copies", TensorColumn::copies);
  set_up("moved", TensorColumn::moved);
  ImGui::TableHeadersRow();
  if (take_sorting(tensor_column_, tensors_ascending_)) sort_rows(tensors_, run, tensor_column_, tensors_ascending_);
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(tensors_.size()));
  while (clipper.Step()) {
    for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
      const TensorRow& row = tensors_[static_cast<std::size_t>(i)];
      ImGui::PushID(i);
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      const bool selected =
          session.selection.kind == Selection::Kind::tensor && session.selected_in(run_) == row.tensor;
      const std::string name(run.tensor_name(row.tensor));
      const std::string shown = shortened(name, ImGui::GetContentRegionAvail().x);
      if (ImGui::Selectable(shown.c_str(), selected, ImGuiSelectableFlags_SpanAllColumns)) {
        session.selection = {Selection::Kind::tensor, row.tensor, run_, none};
        session.show_selection();
      }
      if (shown != name && ImGui::IsItemHovered()) ImGui::SetTooltip("%s", name.c_str());
      ImGui::TableNextColumn();
      const Role role = run.trace().tensors[row.tensor].role;
      const ImVec2 at = ImGui::GetCursorScreenPos();
      const float box = ImGui::GetFontSize();
      ImGui::GetWindowDrawList()->AddRectFilled({at.x, at.y + 1}, {at.x + box - 2, at.y + box - 1},
                                                theme.palette.of(role));
      ImGui::Dummy({box, box});
      ImGui::SameLine(0, theme.px(4));
      ImGui::TextUnformatted(label_of(role));
      cell(format_bytes(row.bytes));
      cell(std::to_string(row.uses));
      cell(row.copies == 0 ? "" : std::to_string(row.copies));
      cell(row.moved == 0 ? "" : format_bytes(row.moved));
      ImGui::PopID();
    }
  }
  ImGui::EndTable();
}

TensorId BrowserView::choose_life(const Session& session) {
  const Run& run = *session.runs()[run_];
  const bool chosen =
      session.selection.kind == Selection::Kind::tensor && session.selected_in(run_) < run.trace().tensors.size();
  const TensorId tensor = chosen ? session.selected_in(run_) : most_moved_;
  if (tensor != none && lived_ != tensor) {
    stays_ = stays_of(run, tensor);
    uses_ = uses_of(run, tensor);
  }
  lived_ = tensor;
  return tensor;
}

void BrowserView::draw_life(Session& session, const Theme& theme) {
  const Run& run = *session.runs()[run_];
  const TensorId tensor = choose_life(session);
  if (tensor == none) return;
  const Tensor& of = run.trace().tensors[tensor];
  draw_bold(theme, run.tensor_name(tensor));
  ImGui::SameLine();
  const std::vector<std::uint32_t> copies = copies_of(run, tensor, iteration(session));
  ImGui::TextDisabled("%s, %s, used by %zu ops, moved %zu times in iteration %llu, %zu times in all",
                      format_bytes(of.bytes).c_str(), label_of(of.role), uses_.size(), copies.size(),
                      static_cast<unsigned long long>(run.first_iteration() + iteration(session) + 1),
                      run.transfers_of(tensor).size());
  draw_stays(session, theme, of);
  ImGui::BeginChild("moves", {0, 0}, false);
  draw_moves(session, tensor, copies);
  ImGui::EndChild();
}

// A bar for each tier, as high as the part of the tensor that is there; ticks where it is used, below.
void BrowserView::draw_stays(Session& session, const Theme& theme, const Tensor& of) {
  const Run& run = *session.runs()[run_];
  const ImVec2 corner = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  const float labels = theme.px(70), ruler = ruler_height(theme), lane = theme.px(26), gap = theme.px(3);
  const std::size_t tiers = run.machine().tiers.size();
  const float bottom = corner.y + ruler + static_cast<float>(tiers + 1) * (lane + gap);
  ImGui::InvisibleButton("life", {room.x, bottom - corner.y});
  const TimeAxis axis = axis_of(session, corner.x + labels, room.x - labels - theme.px(6));
  handle_time_input(session, axis, ImGui::IsItemHovered() && ImGui::GetIO().MousePos.x >= axis.left);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  draw_ruler(list, theme, axis, corner.y, bottom);
  const auto origin = static_cast<double>(session.shown().origin_ns(run_));
  const auto top_of = [&](std::size_t row) { return corner.y + ruler + static_cast<float>(row) * (lane + gap); };
  const auto x = [&](Nanoseconds time) { return axis.clamped_x(static_cast<double>(time) - origin); };
  const float font = ImGui::GetFontSize();
  for (TierId tier = 0; tier < tiers; ++tier) {
    list.AddText({corner.x, top_of(tier) + (lane - font) / 2}, theme.text, run.machine().tiers[tier].name.c_str());
    list.AddRectFilled({axis.left, top_of(tier)}, {axis.left + axis.width, top_of(tier) + lane}, theme.lane);
  }
  list.AddText({corner.x, top_of(tiers) + (lane - font) / 2}, theme.text, "used by");
  list.PushClipRect({axis.left, corner.y}, {axis.left + axis.width, bottom}, true);
  for (const Stay& stay : stays_) {
    const float share =
        std::min(1.0f, static_cast<float>(stay.bytes) / static_cast<float>(std::max<Bytes>(1, of.bytes)));
    const float floor = top_of(stay.tier) + lane;
    list.AddRectFilled({x(stay.begin_ns), floor - lane * share}, {x(stay.end_ns), floor}, theme.palette.of(of.role));
  }
  for (const OpIndex op : uses_) {
    for (const std::uint32_t span : run.spans_of_op(op)) {
      const float begin = x(run.spans()[span].start_ns), end = x(run.spans()[span].end_ns);
      list.AddRectFilled({begin, top_of(tiers)}, {std::max(end, begin + theme.px(2)), top_of(tiers) + lane},
                         theme.ghost);
    }
  }
  draw_cursor_and_range(list, theme, session, axis, corner.y, bottom);
  list.PopClipRect();
}

void BrowserView::draw_moves(Session& session, TensorId tensor, const std::vector<std::uint32_t>& copies) {
  const Run& run = *session.runs()[run_];
  const auto origin = static_cast<double>(session.shown().origin_ns(run_));
  for (const std::uint32_t transfer : copies) {
    const Span& span = run.spans()[transfer];
    const std::uint32_t user = run.used_by(transfer);
    const Link& link = run.machine().links[span.lane - first_link_lane];  // one of the copy's hops
    const std::string text =
        fmt::format("{}: {} to {}{}, {} in {}, {}{}", time_text(static_cast<double>(span.start_ns) - origin, 1e4),
                    run.tier_name(link.from), run.tier_name(link.to),
                    link.to == span.to ? std::string() : " (on to " + std::string(run.tier_name(span.to)) + ")",
                    format_bytes(span.bytes), duration_text(span.end_ns - span.start_ns),
                    span.urgent ? "an op waited for it" : "asked for ahead",
                    user == none ? std::string() : ", used by " + std::string(run.op_name(run.spans()[user].op)));
    ImGui::PushID(static_cast<int>(transfer));
    if (ImGui::Selectable(text.c_str(), session.selection.span == transfer)) {
      session.selection = {Selection::Kind::tensor, tensor, run_, transfer};
      session.window.pan(static_cast<double>(span.start_ns) - origin -
                         (session.window.begin_ns + session.window.end_ns) / 2);
    }
    ImGui::PopID();
  }
}

// Of which run and iteration all figures below are.
void BrowserView::draw_header(Session& session, const Theme& theme) {
  ImGui::AlignTextToFramePadding();
  if (session.runs().size() == 1) {
    draw_bold(theme, session.runs()[run_]->title());
  } else {
    ImGui::SetNextItemWidth(theme.px(300));
    if (ImGui::BeginCombo("##run", session.runs()[run_]->title().c_str())) {
      for (std::size_t i = 0; i < session.runs().size(); ++i) {
        ImGui::PushID(static_cast<int>(i));
        if (ImGui::Selectable(session.runs()[i]->title().c_str(), i == run_)) run_ = i;
        ImGui::PopID();
      }
      ImGui::EndCombo();
    }
  }
  ImGui::SameLine(0, theme.px(18));
  draw_iteration_choice(session, theme);
  ImGui::SameLine(0, theme.px(18));
  const Run& run = *session.runs()[run_];
  const std::size_t shown = iteration(session);
  const char* which = shown == session.shown().aligned() ? "" : "the last of this run: ";
  ImGui::TextDisabled("%stimes, waits and copies of iteration %llu, %s", which,
                      static_cast<unsigned long long>(run.first_iteration() + shown + 1),
                      duration_text(run.iteration_ns(shown)).c_str());
}

void BrowserView::prepare(const Session& session) {
  if (prepared_ == session.shown().generation() && prepared_run_ == run_) return;
  const Run& run = *session.runs()[run_];
  prepared_ = session.shown().generation();
  prepared_run_ = run_;
  ops_ = op_rows(run, iteration(session));
  tensors_ = tensor_rows(run, iteration(session));
  sort_rows(ops_, run, op_column_, ops_ascending_);
  sort_rows(tensors_, run, tensor_column_, tensors_ascending_);
  lived_ = most_moved_ = none;
  const auto most = std::ranges::max_element(tensors_, {}, &TensorRow::moved);
  if (most != tensors_.end()) most_moved_ = most->tensor;
}

void BrowserView::draw(Session& session, const Theme& theme) {
  if (session.runs().empty()) {
    return draw_no_run(session, "Nothing is open: a trace, a result or a timeline has ops and tensors.");
  }
  run_ = std::min(run_, session.runs().size() - 1);
  draw_header(session, theme);  // first: it may change what is shown
  prepare(session);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float half = std::floor(room.x / 2) - theme.px(5), upper = std::floor(room.y * 0.56f);
  ImGui::BeginChild("ops", {half, upper}, false);
  draw_ops(session, theme);
  ImGui::EndChild();
  ImGui::SameLine(0, theme.px(10));
  ImGui::BeginChild("tensors", {0, upper}, false);
  draw_tensors(session, theme);
  ImGui::EndChild();
  ImGui::BeginChild("life", {0, 0}, false);
  draw_life(session, theme);
  ImGui::EndChild();
}

}  // namespace

std::unique_ptr<View> make_browser_view() { return std::make_unique<BrowserView>(); }

}  // namespace tencache::gui
