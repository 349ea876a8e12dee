// Results beside each other: the time of each split into compute and stalls by cause, with what may be believed of it.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/model/comparison.h"
#include "gui/model/describe.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

// Rows that take longer than so many times the best would flatten all others: their bars end in an arrow.
constexpr double most_times_the_best = 4;
constexpr std::size_t most_resources = 16;

class ComparisonView : public View {
 public:
  const char* name() const override { return "comparison"; }
  const char* title() const override { return "Comparison"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"U", "time, or use of memory and links"},
            {"click a heading", "sort by it"},
            {"click a row", "show its timeline, simulated again"}};
  }
  std::string csv(const Session& session) const override {
    const std::vector<ComparisonRow> rows = comparison_rows(session);
    return rows.empty() ? std::string() : comparison_csv(rows);
  }

 private:
  void draw_bar(const Theme& theme, const ComparisonRow& row, double longest) const;
  void draw_name(Session& session, const Theme& theme, const ComparisonRow& row);
  void draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest);
  void draw_use(Session& session, const Theme& theme, const ComparisonRow& row);
  void draw_times(Session& session, const Theme& theme);
  void draw_uses(Session& session, const Theme& theme);
  void begin_columns();
  static void add_column(const char* label, ComparisonColumn id, ImGuiTableColumnFlags flags);
  void end_columns();

  std::vector<ComparisonRow> rows_;
  std::vector<std::string> resources_;  // of the rows: columns of their use
  bool uses_shown_ = false;
  std::size_t documents_ = ~std::size_t{0};
  ComparisonColumn column_ = ComparisonColumn::seconds;
  bool ascending_ = true;
};

// Neither of them a colour of the bars of time.
ImU32 memory_use(const Theme& theme) { return theme.series[2]; }
ImU32 link_use(const Theme& theme) { return theme.series[1]; }

std::string seconds_text(double seconds) {
  return duration_text(static_cast<Nanoseconds>(std::llround(seconds * 1e9)));
}

void ComparisonView::draw_bar(const Theme& theme, const ComparisonRow& row, double longest) const {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = ImGui::GetContentRegionAvail().x - theme.px(8), height = ImGui::GetFontSize();
  const BarScale scale{at.x, width, longest};
  list.PushClipRect(at, {at.x + width + theme.px(8), at.y + height + theme.px(4)}, true);
  if (row.parts.compute_seconds <= 0) {
    draw_plain_bar(list, scale, at.y, height, row.seconds, theme.ghost);
  } else {
    draw_time_bar(list, theme, scale, at.y, height, row.parts);
  }
  if (row.interval && std::isfinite(row.interval->second)) {
    draw_whisker(list, theme, scale, at.y + height / 2, row.interval->first, row.interval->second);
  }
  list.PopClipRect();
  ImGui::Dummy({width, height});
}

// Everything that is known of a row.
Facts facts_of(const ComparisonRow& row) {
  Facts facts{{"", row.policy + (row.bound      ? ""
                                 : row.measured ? ", measured"
                                                : ", simulated")},
              {"machine", row.machine},
              {"trace", row.trace}};
  if (!row.fits) {
    facts.emplace_back("does not fit", row.reason);
    return facts;
  }
  facts.emplace_back("iteration", seconds_text(row.seconds));
  const auto add = [&](const std::string& label, double seconds) {
    if (seconds > 0) facts.emplace_back(label, seconds_text(seconds) + ", " + percent(seconds / row.seconds));
  };
  add("compute", row.parts.compute_seconds);
  add("host time", row.parts.gap_seconds);
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) {
    add(std::string("waits for ") + label_of(static_cast<StallCause>(cause)), row.parts.stall_seconds[cause]);
  }
  facts.emplace_back("believe", row.belief());
  if (!row.bound && !row.measured) facts.emplace_back("such simulations", row.validity);
  if (row.hit_share && row.access_hit_share && row.tensor_hit_share) {
    facts.emplace_back("hits", fmt::format("{} of bytes, {} of accesses, {} of tensors", percent(*row.hit_share),
                                           percent(*row.access_hit_share), percent(*row.tensor_hit_share)));
  }
  for (const auto& [name, used] : row.utilization) {
    std::string text = percent(used) + (figure(row.moved, name) ? " of the time" : " held in the mean");
    if (const auto bytes = figure(row.moved, name)) text += ", moves " + format_bytes(static_cast<Bytes>(*bytes));
    if (const auto peak = figure(row.peaks, name)) text += ", peak " + format_bytes(static_cast<Bytes>(*peak));
    facts.emplace_back(name, text);
  }
  if (row.tokens_per_second) facts.emplace_back("tokens a second", fmt::format("{:.1f}", *row.tokens_per_second));
  return facts;
}

void ComparisonView::draw_name(Session& session, const Theme& theme, const ComparisonRow& row) {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const bool simulable = row.fits && !row.bound;
  if (ImGui::Selectable(row.policy.c_str(), false, ImGuiSelectableFlags_SpanAllColumns) && simulable) {
    session.show_result(*row.result, row.file);
  }
  if (ImGui::IsItemHovered()) {
    ImGui::BeginTooltip();
    draw_facts(theme, facts_of(row));
    ImGui::EndTooltip();
  }
  ImGui::TableNextColumn();
  ImGui::TextUnformatted(row.machine.c_str());
  ImGui::TableNextColumn();
  if (row.fits) return ImGui::TextUnformatted(seconds_text(row.seconds).c_str());
  ImGui::PushStyleColor(ImGuiCol_Text, theme.error);
  ImGui::TextUnformatted("does not fit");
  ImGui::PopStyleColor();
}

void ComparisonView::draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest) {
  draw_name(session, theme, row);
  ImGui::TableNextColumn();
  if (!row.fits) {
    ImGui::TableNextColumn();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    draw_clipped_text(*ImGui::GetWindowDrawList(), at, ImGui::GetContentRegionAvail().x, theme.faint_text,
                      row.reason.data(), row.reason.data() + row.reason.size());
    ImGui::Dummy({1, ImGui::GetFontSize()});
    return;
  }
  ImGui::TextUnformatted(row.ideal_seconds > 0 ? fmt::format("{:.3f}", row.slowdown()).c_str() : "");
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

// How much of each tier is held and how long each link is busy, in the mean.
void ComparisonView::draw_use(Session& session, const Theme& theme, const ComparisonRow& row) {
  draw_name(session, theme, row);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  for (const std::string& resource : resources_) {
    ImGui::TableNextColumn();
    const std::optional<double> used = row.fits ? figure(row.utilization, resource) : std::nullopt;
    if (!used) continue;
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, height = ImGui::GetFontSize();
    const float full = std::max(1.0f, width - theme.px(56));
    const bool link = figure(row.moved, resource).has_value();
    list.AddRectFilled(at, {at.x + full, at.y + height}, theme.lane);
    list.AddRectFilled(at, {at.x + full * static_cast<float>(std::min(1.0, *used)), at.y + height},
                       link ? link_use(theme) : memory_use(theme));
    list.AddText({at.x + full + theme.px(4), at.y}, theme.text, percent(*used).c_str());
    ImGui::Dummy({width, height});
  }
}

ImGuiTableFlags table_flags() {
  return ImGuiTableFlags_Sortable | ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable |
         ImGuiTableFlags_BordersInnerH;
}

void ComparisonView::begin_columns() {
  ImGui::TableSetupScrollFreeze(0, 1);
  add_column("policy", ComparisonColumn::policy, ImGuiTableColumnFlags_WidthFixed);
  add_column("machine", ComparisonColumn::machine, ImGuiTableColumnFlags_WidthFixed);
  add_column("iteration", ComparisonColumn::seconds,
             ImGuiTableColumnFlags_WidthFixed | ImGuiTableColumnFlags_DefaultSort);
}

void ComparisonView::add_column(const char* label, ComparisonColumn id, ImGuiTableColumnFlags flags) {
  ImGui::TableSetupColumn(label, flags, 0, static_cast<ImGuiID>(id));
}

void ComparisonView::end_columns() {
  ImGui::TableHeadersRow();
  ImGuiTableSortSpecs* sorting = ImGui::TableGetSortSpecs();
  if (sorting == nullptr || !sorting->SpecsDirty) return;
  if (sorting->SpecsCount > 0) {
    column_ = static_cast<ComparisonColumn>(sorting->Specs[0].ColumnUserID);
    ascending_ = sorting->Specs[0].SortDirection != ImGuiSortDirection_Descending;
  }
  sort_rows(rows_, column_, ascending_);
  sorting->SpecsDirty = false;
}

void ComparisonView::draw_times(Session& session, const Theme& theme) {
  double best = 0, longest = 0;
  for (const ComparisonRow& row : rows_) {
    const bool reachable = row.fits && !row.bound && row.policy != "ideal";
    if (reachable && row.seconds > 0 && (best == 0 || row.seconds < best)) best = row.seconds;
  }
  if (best == 0) best = std::numeric_limits<double>::infinity();
  for (const ComparisonRow& row : rows_) {
    if (!row.fits || row.seconds > most_times_the_best * best) continue;
    longest = std::max(longest, row.seconds);
    if (row.interval) longest = std::max(longest, std::min(row.interval->second, most_times_the_best * best));
  }
  longest = std::max(longest, 1e-12) * 1.02;
  if (!ImGui::BeginTable("results", 9, table_flags())) return;
  begin_columns();
  constexpr ImGuiTableColumnFlags fixed = ImGuiTableColumnFlags_WidthFixed;
  add_column("× ideal", ComparisonColumn::slowdown, fixed);
  add_column("where the time goes", ComparisonColumn::stalls, ImGuiTableColumnFlags_WidthStretch);
  add_column("hits (bytes)", ComparisonColumn::hits, fixed);
  add_column("moved", ComparisonColumn::moved, fixed);
  add_column("$/M tokens", ComparisonColumn::price, fixed);
  add_column("may be believed", ComparisonColumn::seconds, fixed | ImGuiTableColumnFlags_NoSort);
  end_columns();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    ImGui::PushID(static_cast<int>(i));
    draw_row(session, theme, rows_[i], longest);
    ImGui::PopID();
  }
  ImGui::EndTable();
}

void ComparisonView::draw_uses(Session& session, const Theme& theme) {
  if (!ImGui::BeginTable("uses", 3 + static_cast<int>(resources_.size()), table_flags())) return;
  begin_columns();
  for (const std::string& resource : resources_) {
    add_column(resource.c_str(), ComparisonColumn::seconds,
               ImGuiTableColumnFlags_WidthStretch | ImGuiTableColumnFlags_NoSort);
  }
  end_columns();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].bound) continue;
    ImGui::PushID(static_cast<int>(i));
    draw_use(session, theme, rows_[i]);
    ImGui::PopID();
  }
  ImGui::EndTable();
}

void ComparisonView::draw(Session& session, const Theme& theme) {
  if (documents_ != session.documents().size()) {
    documents_ = session.documents().size();
    rows_ = comparison_rows(session);
    resources_ = resources_of(rows_);
    if (resources_.size() > most_resources) resources_.resize(most_resources);
    sort_rows(rows_, column_, ascending_);
  }
  if (rows_.empty()) {
    ImGui::TextDisabled(
        "%s",
        "No results: open what `tencache compare TRACE -m MACHINE --json` printed; --samples 100 adds intervals.");
    return;
  }
  if (!ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed('U', false)) uses_shown_ = !uses_shown_;
  if (ImGui::RadioButton("time", !uses_shown_)) uses_shown_ = false;
  ImGui::SameLine();
  if (ImGui::RadioButton("use of memory and links", uses_shown_)) uses_shown_ = true;
  ImGui::SameLine(0, theme.px(18));
  if (uses_shown_) {
    draw_legend(theme,
                {{memory_use(theme), "mean share of the memory held"}, {link_use(theme), "share of the time busy"}});
  } else {
    std::vector<TimeParts> bars;
    for (const ComparisonRow& row : rows_) bars.push_back(row.parts);
    draw_legend(theme, legend_of(theme, bars));
  }
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, ImVec2{theme.px(6), theme.px(4)});
  uses_shown_ ? draw_uses(session, theme) : draw_times(session, theme);
  ImGui::PopStyleVar();
}

}  // namespace

std::unique_ptr<View> make_comparison_view() { return std::make_unique<ComparisonView>(); }

}  // namespace tencache::gui
