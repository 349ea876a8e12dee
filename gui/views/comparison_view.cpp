// Results beside each other: the time of each split into compute and stalls by cause, with what may be believed of it.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <numeric>

#include "gui/model/comparison.h"
#include "gui/model/describe.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"
#include "gui/views/keys.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_resources = 16;
// Narrower, columns would say nothing: the table scrolls instead.
constexpr float least_bar_width = 240, least_use_width = 120;

// What stands in the columns but that of the bars.
struct TextColumn {
  const char* heading;
  ComparisonColumn sorted_by;
  std::string (*text)(const ComparisonRow& row);
};
constexpr TextColumn columns_before[] = {
    {"policy", ComparisonColumn::policy, [](const ComparisonRow& row) { return row.policy; }},
    {"machine", ComparisonColumn::machine, [](const ComparisonRow& row) { return row.machine; }},
    {"iteration", ComparisonColumn::seconds,
     [](const ComparisonRow& row) { return row.fits ? seconds_text(row.seconds) : std::string("does not fit"); }},
    {"× ideal", ComparisonColumn::slowdown, [](const ComparisonRow& row) {
       return row.fits && row.ideal_seconds > 0 ? fmt::format("{:.3f}", row.slowdown()) : std::string();
     }}};
constexpr std::size_t columns_of_uses = 3;  // of those
constexpr TextColumn price_column = {
    "$/M tokens", ComparisonColumn::price, [](const ComparisonRow& row) {
      return row.usd_per_million_tokens ? fmt::format("{:.4g}", *row.usd_per_million_tokens) : std::string("–");
    }};
std::string seconds_or_dash(const std::optional<double>& seconds) { return seconds ? seconds_text(*seconds) : "–"; }
// Of text generations.
constexpr TextColumn generation_columns[] = {
    {"tokens/s", ComparisonColumn::tokens,
     [](const ComparisonRow& row) {
       return row.tokens_per_second ? fmt::format("{:.4g}", *row.tokens_per_second) : std::string("–");
     }},
    {"first token", ComparisonColumn::first_token,
     [](const ComparisonRow& row) {
       return seconds_or_dash(row.generation ? row.generation->time_to_first_token_seconds : std::nullopt);
     }},
    {"per token", ComparisonColumn::next_token, [](const ComparisonRow& row) {
       return seconds_or_dash(row.generation ? row.generation->time_per_output_token_seconds : std::nullopt);
     }}};
constexpr TextColumn columns_after[] = {
    {"hits (bytes)", ComparisonColumn::hits,
     [](const ComparisonRow& row) { return row.hits.bytes ? percent(*row.hits.bytes) : std::string(); }},
    {"moved", ComparisonColumn::moved,
     [](const ComparisonRow& row) { return row.bound ? std::string() : moved_text(row.moved_bytes()); }},
    {"may be believed", ComparisonColumn::seconds, [](const ComparisonRow& row) { return row.belief(); }}};

std::vector<TextColumn> text_columns(bool priced, bool generations) {
  std::vector<TextColumn> columns(std::begin(columns_before), std::end(columns_before));
  if (generations) columns.insert(columns.end(), std::begin(generation_columns), std::end(generation_columns));
  columns.insert(columns.end(), std::begin(columns_after), std::end(columns_after));
  if (priced) columns.insert(columns.end() - 1, price_column);
  return columns;
}

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
  void measure_columns();
  bool begin_table(const Theme& theme, const char* id, std::size_t columns, std::size_t texts, float stretching) const;
  void draw_name(Session& session, const Theme& theme, const ComparisonRow& row);
  void draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest);
  void draw_use(Session& session, const Theme& theme, const ComparisonRow& row);
  void draw_times(Session& session, const Theme& theme);
  void draw_uses(Session& session, const Theme& theme);
  static void add_column(const char* label, ComparisonColumn id, ImGuiTableColumnFlags flags);
  void end_columns();

  std::vector<ComparisonRow> rows_;
  std::vector<TextColumn> columns_;
  std::vector<float> widths_;  // of their texts, in a font of that size
  float widths_font_ = 0;
  std::vector<std::string> resources_;  // of the rows: columns of their use
  bool uses_shown_ = false;
  std::size_t documents_ = ~std::size_t{0};
  ComparisonColumn column_ = ComparisonColumn::seconds;
  bool ascending_ = true;
};

// Neither of them a colour of the bars of time.
ImU32 memory_use(const Theme& theme) { return theme.palette.series[2]; }
ImU32 link_use(const Theme& theme) { return theme.palette.series[1]; }

void ComparisonView::draw_bar(const Theme& theme, const ComparisonRow& row, double longest) const {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float height = ImGui::GetFontSize();
  const float width = std::max(1.0f, ImGui::GetContentRegionAvail().x - arrow_width(theme) - theme.px(2));
  const BarScale scale{at.x, width, longest};
  list.PushClipRect(at, {at.x + width + arrow_width(theme), at.y + height + theme.px(4)}, true);
  if (row.parts.compute_seconds <= 0) {
    draw_plain_bar(list, scale, at.y, height, row.seconds, theme.ghost);
  } else {
    draw_time_bar(list, theme, scale, at.y, height, row.parts);
  }
  if (row.interval && row.interval->first < longest) {
    draw_whisker(list, theme, scale, at.y + height / 2, row.interval->first, row.interval->second);
  }
  list.PopClipRect();
  ImGui::Dummy({width, height});
}

// Everything that is known of a row.
Facts facts_of(const ComparisonRow& row) {
  Facts facts{{"", row.policy + (row.bound           ? ""
                                 : row.is_measured() ? ", measured"
                                                     : ", simulated")},
              {"machine", row.machine},
              {"trace", row.trace}};
  if (!row.fits) {
    facts.emplace_back("does not fit", row.reason);
    return facts;
  }
  facts.emplace_back("iteration", seconds_text(row.seconds));
  for (const ChartPart& part : chart_parts(row.parts)) {
    facts.emplace_back(part.label, seconds_text(part.value) + ", " + percent(part.value / row.seconds));
  }
  facts.emplace_back("believe", row.belief());
  if (!row.bound && !row.is_measured()) facts.emplace_back("such simulations", row.validity);
  if (row.hits.bytes && row.hits.accesses && row.hits.tensors) {
    facts.emplace_back("hits", fmt::format("{} of bytes, {} of accesses, {} of tensors", percent(*row.hits.bytes),
                                           percent(*row.hits.accesses), percent(*row.hits.tensors)));
  }
  for (const auto& [name, used] : row.utilization) {
    std::string text = percent(used) + (figure(row.moved, name) ? " of the time" : " held in the mean");
    if (const auto bytes = figure(row.moved, name)) text += ", moves " + format_bytes(static_cast<Bytes>(*bytes));
    if (const auto peak = figure(row.peaks, name)) text += ", peak " + format_bytes(static_cast<Bytes>(*peak));
    facts.emplace_back(name, text);
  }
  if (row.tokens_per_second) facts.emplace_back("tokens a second", fmt::format("{:.1f}", *row.tokens_per_second));
  if (row.generation) {
    facts.emplace_back("first token", seconds_or_dash(row.generation->time_to_first_token_seconds));
    facts.emplace_back("per token after it", seconds_or_dash(row.generation->time_per_output_token_seconds));
    if (const auto& share = row.generation->kv_cache_hit_rate.bytes) {
      facts.emplace_back("KV cache", percent(*share) + " of bytes read are in GPU memory");
    }
  }
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
  for (std::size_t i = 1; i < columns_of_uses; ++i) {
    const bool misfit = !row.fits && columns_before[i].sorted_by == ComparisonColumn::seconds;
    ImGui::TableNextColumn();
    ImGui::PushStyleColor(ImGuiCol_Text, misfit ? theme.error : theme.text);
    ImGui::TextUnformatted(columns_before[i].text(row).c_str());
    ImGui::PopStyleColor();
  }
}

void ComparisonView::draw_row(Session& session, const Theme& theme, const ComparisonRow& row, double longest) {
  draw_name(session, theme, row);
  for (std::size_t i = columns_of_uses; i < columns_.size(); ++i) {
    ImGui::TableNextColumn();
    if (i == std::size(columns_before) && row.fits) {
      draw_bar(theme, row, longest);
      ImGui::TableNextColumn();
    } else if (i == std::size(columns_before)) {
      const ImVec2 at = ImGui::GetCursorScreenPos();
      draw_clipped_text(*ImGui::GetWindowDrawList(), at, ImGui::GetContentRegionAvail().x, theme.faint_text,
                        row.reason.data(), row.reason.data() + row.reason.size());
      ImGui::Dummy({1, ImGui::GetFontSize()});
      return;
    }
    const bool last = i + 1 == columns_.size();
    ImGui::PushStyleColor(ImGuiCol_Text, last ? theme.faint_text : theme.text);
    ImGui::TextUnformatted(columns_[i].text(row).c_str());
    ImGui::PopStyleColor();
  }
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

void ComparisonView::measure_columns() {
  if (widths_font_ == ImGui::GetFontSize()) return;
  widths_font_ = ImGui::GetFontSize();
  widths_.clear();
  for (const TextColumn& column : columns_) {
    widths_.push_back(ImGui::CalcTextSize(column.heading).x + widths_font_);  // with the arrow of sorting
    for (const ComparisonRow& row : rows_) {
      widths_.back() = std::max(widths_.back(), ImGui::CalcTextSize(column.text(row).c_str()).x);
    }
  }
}

// As wide as the window; where its text and `stretching` of other columns need more, it scrolls.
bool ComparisonView::begin_table(const Theme& theme, const char* id, std::size_t columns, std::size_t texts,
                                 float stretching) const {
  ImGuiTableFlags flags = ImGuiTableFlags_Sortable | ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg |
                          ImGuiTableFlags_Resizable | ImGuiTableFlags_BordersInnerH;
  const float margins = 2 * ImGui::GetStyle().CellPadding.x + theme.px(1);
  const float needed = std::accumulate(widths_.begin(), widths_.begin() + static_cast<std::ptrdiff_t>(texts),
                                       stretching + ImGui::GetStyle().ScrollbarSize) +
                       static_cast<float>(texts) * margins;
  const bool scrolls = needed > ImGui::GetContentRegionAvail().x;
  if (scrolls) flags |= ImGuiTableFlags_ScrollX;
  if (!ImGui::BeginTable(id, static_cast<int>(columns), flags, {0, 0}, scrolls ? needed : 0)) return false;
  ImGui::TableSetupScrollFreeze(scrolls ? 1 : 0, 1);
  for (std::size_t i = 0; i < columns_of_uses; ++i) {
    const bool by_time = columns_[i].sorted_by == ComparisonColumn::seconds;
    add_column(columns_[i].heading, columns_[i].sorted_by,
               ImGuiTableColumnFlags_WidthFixed | (by_time ? ImGuiTableColumnFlags_DefaultSort : 0));
  }
  return true;
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
  if (!begin_table(theme, "results", columns_.size() + 1, columns_.size(), theme.px(least_bar_width))) return;
  for (std::size_t i = columns_of_uses; i < columns_.size(); ++i) {
    if (i == std::size(columns_before)) {
      add_column("where the time goes", ComparisonColumn::stalls, ImGuiTableColumnFlags_WidthStretch);
    }
    add_column(columns_[i].heading, columns_[i].sorted_by,
               ImGuiTableColumnFlags_WidthFixed | (i + 1 == columns_.size() ? ImGuiTableColumnFlags_NoSort : 0));
  }
  end_columns();
  const double longest = 1.01 * std::max(longest_bar_seconds(rows_), 1e-12);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    ImGui::PushID(static_cast<int>(i));
    draw_row(session, theme, rows_[i], longest);
    ImGui::PopID();
  }
  ImGui::EndTable();
}

void ComparisonView::draw_uses(Session& session, const Theme& theme) {
  const auto uses = static_cast<float>(resources_.size());
  if (!begin_table(theme, "uses", columns_of_uses + resources_.size(), columns_of_uses,
                   uses * theme.px(least_use_width))) {
    return;
  }
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
  if (documents_ != session.documents().all().size()) {
    documents_ = session.documents().all().size();
    rows_ = comparison_rows(session);
    resources_ = resources_of(rows_);
    if (resources_.size() > most_resources) resources_.resize(most_resources);
    columns_ = text_columns(
        std::ranges::any_of(rows_, [](const ComparisonRow& row) { return row.usd_per_million_tokens.has_value(); }),
        std::ranges::any_of(rows_, [](const ComparisonRow& row) { return row.generation.has_value(); }));
    widths_font_ = 0;
    sort_rows(rows_, column_, ascending_);
  }
  if (rows_.empty()) {
    ImGui::TextDisabled(
        "%s",
        "No results: open what `tencache compare TRACE -m MACHINE --json` printed; --samples 100 adds intervals.");
    return;
  }
  if (!ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed(key_of('U'), false)) uses_shown_ = !uses_shown_;
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
  measure_columns();
  uses_shown_ ? draw_uses(session, theme) : draw_times(session, theme);
  ImGui::PopStyleVar();
}

}  // namespace

std::unique_ptr<View> make_comparison_view() { return std::make_unique<ComparisonView>(); }

}  // namespace tencache::gui
