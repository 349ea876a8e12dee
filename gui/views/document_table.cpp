#include "gui/views/document_table.h"

#include <imgui.h>

#include <algorithm>
#include <numeric>

#include "gui/views/bars.h"
#include "gui/views/canvas.h"

namespace tencache::gui {
namespace {

// Narrower, bars would say nothing: the table scrolls instead.
constexpr float least_bar_width = 240, least_share_width = 120, share_text_width = 56;

// Bars without an axis are shares of a whole, each with its figure.
bool is_share(const Column& column) { return column.bars && column.bars->unit == FigureUnit::none; }

void draw_parts(ImDrawList& list, const Theme& theme, const BarScale& scale, float top, float height,
                const CellBar& bar) {
  std::vector<double> values;
  for (const ChartPart& part : bar.parts) values.push_back(part.value);
  draw_bar_parts(theme, scale, top, height, values, [&](std::size_t part, ImVec2 min, ImVec2 max) {
    draw_ink(list, theme, min, max, bar.parts[part].ink);
  });
}

void draw_share(const Theme& theme, const Cell& cell, const BarAxis& axis) {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float width = ImGui::GetContentRegionAvail().x, height = ImGui::GetFontSize();
  const BarScale scale{at.x, std::max(1.0f, width - theme.px(share_text_width)), axis.most};
  list.AddRectFilled(at, {at.x + scale.width, at.y + height}, theme.lane);
  draw_parts(list, theme, scale, at.y, height, *cell.bar);
  list.AddText({at.x + scale.width + theme.px(4), at.y}, theme.text, cell.text.c_str());
  ImGui::Dummy({width, height});
}

void draw_bar(const Theme& theme, const CellBar& bar, const BarAxis& axis) {
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float height = ImGui::GetFontSize();
  const float width = std::max(1.0f, ImGui::GetContentRegionAvail().x - arrow_width(theme) - theme.px(2));
  const BarScale scale{at.x, width, 1.01 * axis.most};
  list.PushClipRect(at, {at.x + width + arrow_width(theme), at.y + height + theme.px(4)}, true);
  draw_parts(list, theme, scale, at.y, height, bar);
  if (scale.cuts(bar.total())) draw_arrow(list, theme, scale, at.y, height);
  if (bar.interval && bar.interval->first < scale.longest_seconds) {
    draw_whisker(list, theme, scale, at.y + height / 2, bar.interval->first, bar.interval->second);
  }
  if (axis.limit && !scale.cuts(axis.limit->first)) {
    const float x = scale.x(axis.limit->first);
    list.AddLine({x, at.y}, {x, at.y + height}, theme.faint_text);
  }
  list.PopClipRect();
  ImGui::Dummy({width, height});
}

}  // namespace

const Cell* DocumentTableView::cell(const DocumentTable::Row& row, const Shown& shown) const {
  return shown.column < row.cells.size() ? &row.cells[shown.column] : nullptr;
}

void DocumentTableView::show(DocumentTable table) {
  table_ = std::move(table);
  order_.resize(table_.rows.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  shown_.clear();
  font_ = 0;
  for (std::size_t i = 0; i < table_.columns.size(); ++i) {
    const auto where = table_.columns[i].shown;
    if (where == tencache::Shown::on_terminal || where == tencache::Shown::in_files) continue;
    const bool any = std::ranges::any_of(table_.rows, [&](const DocumentTable::Row& row) {
      return i < row.cells.size() && (row.cells[i].bar || !row.cells[i].on_page().empty());
    });
    if (any) shown_.push_back({i});
  }
}

void DocumentTableView::draw_legend(const Theme& theme) const {
  std::vector<LegendItem> entries;
  std::vector<Ink> known;
  for (const DocumentTable::Row& row : table_.rows) {
    for (const Cell& cell : row.cells) {
      for (const ChartPart& part : cell.bar ? cell.bar->parts : std::vector<ChartPart>()) {
        if (part.label.empty() || part.value <= 0 || std::ranges::find(known, part.ink) != known.end()) continue;
        known.push_back(part.ink);
        entries.push_back(legend_item(theme, part));
      }
    }
  }
  gui::draw_legend(theme, entries);
}

void DocumentTableView::measure(const Theme& theme) {
  if (font_ == ImGui::GetFontSize()) return;
  font_ = ImGui::GetFontSize();
  for (Shown& shown : shown_) {
    const Column& of = column(shown);
    shown.width = ImGui::CalcTextSize(of.on_page().c_str()).x + font_;  // with the arrow of sorting
    if (of.bars) shown.width = theme.px(is_share(of) ? least_share_width : least_bar_width);
    for (const DocumentTable::Row& row : table_.rows) {
      const Cell* const one = of.bars ? nullptr : cell(row, shown);
      if (one != nullptr) shown.width = std::max(shown.width, ImGui::CalcTextSize(one->on_page().c_str()).x);
    }
  }
}

// What is not there comes last, whatever the order.
void DocumentTableView::sort(std::size_t by, bool ascending) {
  const auto key = [&](std::size_t row) -> const Cell* { return cell(table_.rows[row], shown_[by]); };
  std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
    const bool a_whole = table_.rows[a].instead.empty(), b_whole = table_.rows[b].instead.empty();
    if (a_whole != b_whole) return a_whole;
    const Cell *first = key(ascending ? a : b), *second = key(ascending ? b : a);
    if (first == nullptr || second == nullptr) return false;
    if (first->is_number() && second->is_number()) return first->number < second->number;
    if (first->is_number() != second->is_number()) return first->is_number();
    return first->on_page() < second->on_page();
  });
}

void DocumentTableView::draw_cell(const Theme& theme, const DocumentTable::Row& row, const Shown& shown) const {
  const Cell* const one = cell(row, shown);
  if (one == nullptr) return;
  const Column& of = column(shown);
  if (of.bars && one->bar) {
    is_share(of) ? draw_share(theme, *one, *of.bars) : draw_bar(theme, *one->bar, *of.bars);
  } else {
    ImGui::TextUnformatted(one->on_page().c_str());
  }
}

// True if it is clicked.
bool DocumentTableView::draw_row(const Theme& theme, const DocumentTable::Row& row, const std::string& marked) const {
  ImGui::TableNextRow();
  ImGui::TableNextColumn();
  const bool is_marked = !marked.empty() && row.key == marked;
  const bool clicked =
      ImGui::Selectable(row.cells.front().on_page().c_str(), is_marked, ImGuiSelectableFlags_SpanAllColumns);
  if (ImGui::IsItemHovered() && !row.facts.empty()) {
    draw_facts_tooltip(theme, row.facts);
  }
  const bool whole = row.instead.empty() || row.cells.size() > 1;
  for (std::size_t i = 1; i < shown_.size(); ++i) {
    ImGui::TableNextColumn();
    if (whole) draw_cell(theme, row, shown_[i]);
  }
  if (whole || shown_.size() < 2) return clicked;
  // Behind the first cell, over the others.
  ImGui::TableSetColumnIndex(1);
  const ImVec2 at = ImGui::GetCursorScreenPos();
  const float right = ImGui::GetWindowPos().x + ImGui::GetWindowWidth() - ImGui::GetStyle().ScrollbarSize;
  ImDrawList& list = *ImGui::GetWindowDrawList();
  list.PushClipRect(at, {right, at.y + ImGui::GetTextLineHeightWithSpacing()}, false);
  draw_clipped_text(list, at, right - at.x, theme.faint_text, row.instead.data(),
                    row.instead.data() + row.instead.size());
  list.PopClipRect();
  return clicked;
}

std::optional<std::string> DocumentTableView::draw(const Theme& theme, const std::string& marked) {
  std::optional<std::string> clicked;
  if (shown_.empty()) return clicked;
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, ImVec2{theme.px(6), theme.px(4)});
  measure(theme);
  ImGuiTableFlags flags = ImGuiTableFlags_Sortable | ImGuiTableFlags_SortTristate | ImGuiTableFlags_ScrollY |
                          ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable | ImGuiTableFlags_BordersInnerH;
  const float margins = 2 * ImGui::GetStyle().CellPadding.x + theme.px(1);
  float needed = ImGui::GetStyle().ScrollbarSize;
  for (const Shown& shown : shown_) needed += shown.width + margins;
  const bool scrolls = needed > ImGui::GetContentRegionAvail().x;
  if (scrolls) flags |= ImGuiTableFlags_ScrollX;
  const bool any_bars = std::ranges::any_of(shown_, [&](const Shown& shown) { return column(shown).bars.has_value(); });
  if (ImGui::BeginTable(table_.name.c_str(), static_cast<int>(shown_.size()), flags, {0, 0}, scrolls ? needed : 0)) {
    ImGui::TableSetupScrollFreeze(scrolls ? 1 : 0, 1);
    for (std::size_t i = 0; i < shown_.size(); ++i) {
      const bool stretches = any_bars ? column(shown_[i]).bars.has_value() : i + 1 == shown_.size();
      ImGui::TableSetupColumn(column(shown_[i]).on_page().c_str(),
                              stretches ? ImGuiTableColumnFlags_WidthStretch : ImGuiTableColumnFlags_WidthFixed);
    }
    ImGui::TableHeadersRow();
    if (ImGuiTableSortSpecs* sorting = ImGui::TableGetSortSpecs(); sorting != nullptr && sorting->SpecsDirty) {
      sorting->SpecsDirty = false;
      std::ranges::sort(order_);
      if (sorting->SpecsCount > 0) {
        sort(static_cast<std::size_t>(sorting->Specs[0].ColumnIndex),
             sorting->Specs[0].SortDirection != ImGuiSortDirection_Descending);
      }
    }
    for (const std::size_t row : order_) {
      ImGui::PushID(static_cast<int>(row));
      if (draw_row(theme, table_.rows[row], marked)) clicked = table_.rows[row].key;
      ImGui::PopID();
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
  return clicked;
}

}  // namespace tencache::gui
