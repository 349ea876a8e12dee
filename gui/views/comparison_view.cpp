// Results beside each other: the time of each split into compute and stalls by cause, with what may be believed of it.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "gui/model/comparison.h"
#include "gui/model/describe.h"
#include "gui/views/canvas.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

// Rows that take longer than so many times the best would flatten all others: their bars end in an arrow.
constexpr double most_times_the_best = 4;

class ComparisonView : public View {
 public:
  const char* name() const override { return "comparison"; }
  const char* title() const override { return "Comparison"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"click a heading", "sort by it"}, {"click a row", "show its timeline, simulated again"}};
  }
  std::string csv(const Session& session) const override {
    const std::vector<ComparisonRow> rows = comparison_rows(session);
    return rows.empty() ? std::string() : comparison_csv(rows);
  }

 private:
  void draw_bar(const Theme& theme, const ComparisonRow& row, double longest) const;
  void draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest);
  void draw_legend(const Theme& theme) const;

  std::vector<ComparisonRow> rows_;
  std::size_t documents_ = ~std::size_t{0};
  ComparisonColumn column_ = ComparisonColumn::seconds;
  bool ascending_ = true;
};

std::string seconds_text(double seconds) {
  return duration_text(static_cast<Nanoseconds>(std::llround(seconds * 1e9)));
}

void ComparisonView::draw_bar(const Theme& theme, const ComparisonRow& row, double longest) const {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = ImGui::GetContentRegionAvail().x - theme.px(8), height = ImGui::GetFontSize();
  const auto place = [&](double seconds) { return at.x + static_cast<float>(seconds / longest) * width; };
  list.PushClipRect(at, {at.x + width + theme.px(8), at.y + height + theme.px(4)}, true);
  double from = 0;
  const auto part = [&](double seconds, ImU32 color, bool stall) {
    if (seconds <= 0) return;
    const ImVec2 min{place(from), at.y}, max{std::min(place(from + seconds), at.x + width), at.y + height};
    from += seconds;
    if (max.x <= min.x) return;
    list.AddRectFilled(min, max, color);
    if (stall && max.x - min.x > 5) draw_hatching(list, min, max, with_alpha(readable_on(color), 0.35f), theme.px(7));
  };
  if (row.compute_seconds <= 0) {
    part(row.seconds, theme.ghost, false);
  } else {
    part(row.compute_seconds, theme.phases[2], false);
    part(row.gap_seconds, theme.gap, false);
    for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
      part(row.stall_seconds[cause], theme.causes[cause], true);
    }
  }
  if (row.seconds > longest) {
    const float x = at.x + width, middle = at.y + height / 2;
    list.AddTriangleFilled({x, at.y}, {x + theme.px(7), middle}, {x, at.y + height}, theme.text);
  }
  if (row.interval && std::isfinite(row.interval->second)) {
    const float low = place(row.interval->first), high = place(row.interval->second), y = at.y + height / 2;
    const float end = theme.px(4), line = theme.px(1.5f);
    list.AddLine({low, y}, {high, y}, theme.selection, line);
    list.AddLine({low, y - end}, {low, y + end}, theme.selection, line);
    list.AddLine({high, y - end}, {high, y + end}, theme.selection, line);
  }
  list.PopClipRect();
  ImGui::Dummy({width, height});
}

void ComparisonView::draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const bool simulable = row.fits && !row.bound;
  if (ImGui::Selectable(row.policy.c_str(), false, ImGuiSelectableFlags_SpanAllColumns) && simulable) {
    session.show_result(*row.result, row.file);
  }
  if (ImGui::IsItemHovered()) {
    ImGui::BeginTooltip();
    Facts facts{{"", row.policy + (row.bound      ? ""
                                   : row.measured ? ", measured"
                                                  : ", simulated")},
                {"machine", row.machine},
                {"trace", row.trace}};
    if (row.fits) {
      facts.emplace_back("iteration", seconds_text(row.seconds));
      const auto add = [&](const std::string& label, double seconds) {
        if (seconds > 0) facts.emplace_back(label, seconds_text(seconds) + ", " + percent(seconds / row.seconds));
      };
      add("compute", row.compute_seconds);
      add("host time", row.gap_seconds);
      for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
        add(std::string("waits for ") + label_of(static_cast<StallCause>(cause)), row.stall_seconds[cause]);
      }
      facts.emplace_back("believe", row.belief());
      if (row.tokens_per_second) facts.emplace_back("tokens a second", fmt::format("{:.1f}", *row.tokens_per_second));
    } else {
      facts.emplace_back("does not fit", row.reason);
    }
    draw_facts(theme, facts);
    ImGui::EndTooltip();
  }
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(row.machine.c_str());
  ImGui::TableNextColumn();
  if (!row.fits) {
    ImGui::PushStyleColor(ImGuiCol_Text, theme.error);
    ImGui::TextUnformatted("does not fit");
    ImGui::PopStyleColor();
    ImGui::TableNextColumn();
    ImGui::TableNextColumn();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    draw_clipped_text(*ImGui::GetWindowDrawList(), at, ImGui::GetContentRegionAvail().x, theme.faint_text,
                      row.reason.data(), row.reason.data() + row.reason.size());
    ImGui::Dummy({1, ImGui::GetFontSize()});
    return;
  }
  ImGui::TextUnformatted(seconds_text(row.seconds).c_str());
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(fmt::format("{:.3f}", row.slowdown()).c_str());
  ImGui::TableNextColumn();
  draw_bar(theme, row, longest);
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(row.hit_share ? percent(*row.hit_share).c_str() : "");
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(row.bound ? "" : format_bytes(static_cast<Bytes>(row.moved_bytes)).c_str());
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(row.usd_per_million_tokens ? fmt::format("{:.2f}", *row.usd_per_million_tokens).c_str() : "–");
  ImGui::TableNextColumn();
  ImGui::TextDisabled("%s", row.belief().c_str());
}

void ComparisonView::draw_legend(const Theme& theme) const {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const float font = ImGui::GetFontSize();
  const auto entry = [&](ImU32 color, const std::string& label, bool stall) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    list.AddRectFilled(at, {at.x + font, at.y + font}, color);
    if (stall) draw_hatching(list, at, {at.x + font, at.y + font}, with_alpha(readable_on(color), 0.35f), theme.px(7));
    list.AddText({at.x + font + theme.px(5), at.y}, theme.text, label.c_str());
    ImGui::Dummy({font + theme.px(5) + ImGui::CalcTextSize(label.c_str()).x, font});
    ImGui::SameLine(0, theme.px(14));
  };
  entry(theme.phases[2], "compute", false);
  entry(theme.gap, "host time", false);
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
    const bool occurs =
        std::ranges::any_of(rows_, [&](const ComparisonRow& row) { return row.stall_seconds[cause] > 0; });
    if (occurs) entry(theme.causes[cause], std::string("waits for ") + label_of(static_cast<StallCause>(cause)), true);
  }
  ImGui::NewLine();
}

void ComparisonView::draw(Session& session, const Theme& theme) {
  if (documents_ != session.documents().size()) {
    documents_ = session.documents().size();
    rows_ = comparison_rows(session);
    sort_rows(rows_, column_, ascending_);
  }
  if (rows_.empty()) {
    ImGui::TextDisabled(
        "%s",
        "No results: open what `tencache compare TRACE -m MACHINE --json` printed; --samples 100 adds intervals.");
    return;
  }
  double best = 0, longest = 0;
  for (const ComparisonRow& row : rows_) {
    if (row.fits && row.seconds > 0 && (best == 0 || row.seconds < best)) best = row.seconds;
  }
  for (const ComparisonRow& row : rows_) {
    if (!row.fits || row.seconds > most_times_the_best * best) continue;
    longest = std::max(longest, row.seconds);
    if (row.interval) longest = std::max(longest, std::min(row.interval->second, most_times_the_best * best));
  }
  longest = std::max(longest, 1e-12) * 1.02;
  draw_legend(theme);
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, ImVec2{theme.px(6), theme.px(4)});
  const ImGuiTableFlags flags = ImGuiTableFlags_Sortable | ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg |
                                ImGuiTableFlags_Resizable | ImGuiTableFlags_BordersInnerH;
  if (ImGui::BeginTable("results", 9, flags)) {
    ImGui::TableSetupScrollFreeze(0, 1);
    const auto column = [](const char* label, ComparisonColumn id, ImGuiTableColumnFlags column_flags,
                           float weight = 0) {
      ImGui::TableSetupColumn(label, column_flags, weight, static_cast<ImGuiID>(id));
    };
    constexpr ImGuiTableColumnFlags fixed = ImGuiTableColumnFlags_WidthFixed;
    column("policy", ComparisonColumn::policy, fixed);
    column("machine", ComparisonColumn::machine, fixed);
    column("iteration", ComparisonColumn::seconds, fixed | ImGuiTableColumnFlags_DefaultSort);
    column("× ideal", ComparisonColumn::slowdown, fixed);
    column("where the time goes", ComparisonColumn::stalls, ImGuiTableColumnFlags_WidthStretch, 1);
    column("hits", ComparisonColumn::hits, fixed);
    column("moved", ComparisonColumn::moved, fixed);
    column("$/M tokens", ComparisonColumn::price, fixed);
    column("may be believed", ComparisonColumn::seconds, fixed | ImGuiTableColumnFlags_NoSort);
    ImGui::TableHeadersRow();
    if (ImGuiTableSortSpecs* sorting = ImGui::TableGetSortSpecs(); sorting != nullptr && sorting->SpecsDirty) {
      if (sorting->SpecsCount > 0) {
        column_ = static_cast<ComparisonColumn>(sorting->Specs[0].ColumnUserID);
        ascending_ = sorting->Specs[0].SortDirection != ImGuiSortDirection_Descending;
      }
      sort_rows(rows_, column_, ascending_);
      sorting->SpecsDirty = false;
    }
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      ImGui::PushID(static_cast<int>(i));
      draw_row(session, theme, rows_[i], longest);
      ImGui::PopID();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
}

}  // namespace

std::unique_ptr<View> make_comparison_view() { return std::make_unique<ComparisonView>(); }

}  // namespace tencache::gui
