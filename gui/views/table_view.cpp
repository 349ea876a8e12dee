// Whatever the commands print, as tables that any column sorts and a filter thins out, below the picture that belongs
// to it where there is one.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "gui/views/canvas.h"
#include "gui/views/chart.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_columns = 60;  // ImGui's tables hold 64
constexpr float most_cell_width = 300, least_cell_width = 46;
constexpr std::size_t measured_rows = 200;  // for the width of columns

class TableView : public View {
 public:
  const char* name() const override { return "table"; }
  const char* title() const override { return "Tables"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"click a heading", "sort by it; right click: leave columns out"},
            {"/", "filter: words, column=text, column>number"},
            {"Copy", "the rows that are shown, as CSV"},
            {"point at a cell", "all of it, as the file has it"}};
  }
  std::string csv(const Session&) const override { return document_ == nullptr ? std::string() : table().csv(rows_); }

 private:
  const DataTable& table() const { return document_->tables[table_]; }
  void choose(const std::vector<DocumentPointer>& documents);
  void select_rows();
  void draw_toolbar(const std::vector<DocumentPointer>& documents, const Theme& theme);
  void draw_table(const Theme& theme);
  void draw_dots(const Theme& theme, const ScatterChart& chart);
  float width_of(const Theme& theme, std::size_t column) const;

  std::size_t known_documents_ = 0;
  DocumentPointer document_;
  std::size_t table_ = 0;
  std::string filter_, chosen_dot_;
  std::vector<std::uint32_t> rows_;
  std::size_t sorted_by_ = DataTable::unsorted;
  bool ascending_ = true, picture_shown_ = true;
  const DataTable* widths_of_ = nullptr;
  std::vector<float> widths_;
};

void TableView::select_rows() { rows_ = table().select(filter_, sorted_by_, ascending_); }

// What was opened last, unless nothing is new.
void TableView::choose(const std::vector<DocumentPointer>& documents) {
  if (known_documents_ == documents.size()) return;
  known_documents_ = documents.size();
  for (const DocumentPointer& document : documents) {
    if (!document->tables.empty()) document_ = document;
  }
  if (document_ == nullptr) return;
  table_ = most_telling(document_->tables);
  sorted_by_ = DataTable::unsorted;
  filter_.clear();
  select_rows();
}

void TableView::draw_toolbar(const std::vector<DocumentPointer>& documents, const Theme& theme) {
  const auto name_of = [](const DocumentPointer& document) {
    return std::filesystem::path(document->path).filename().string();
  };
  const auto change = [this](const DocumentPointer& document, std::size_t table) {
    document_ = document;
    table_ = table;
    sorted_by_ = DataTable::unsorted;
    select_rows();
  };
  ImGui::SetNextItemWidth(theme.px(200));
  if (ImGui::BeginCombo("##document", name_of(document_).c_str(), ImGuiComboFlags_HeightLarge)) {
    for (const DocumentPointer& document : documents) {
      if (document->tables.empty()) continue;
      ImGui::PushID(document.get());
      if (ImGui::Selectable(name_of(document).c_str(), document == document_))
        change(document, most_telling(document->tables));
      ImGui::PopID();
    }
    ImGui::EndCombo();
  }
  ImGui::SameLine();
  ImGui::SetNextItemWidth(theme.px(200));
  if (ImGui::BeginCombo("##table", table().name().c_str(), ImGuiComboFlags_HeightLarge)) {
    for (std::size_t i = 0; i < document_->tables.size(); ++i) {
      const DataTable& other = document_->tables[i];
      ImGui::PushID(static_cast<int>(i));
      if (ImGui::Selectable(fmt::format("{}  ({})", other.name(), other.row_count()).c_str(), i == table_)) {
        change(document_, i);
      }
      ImGui::PopID();
    }
    ImGui::EndCombo();
  }
  ImGui::SameLine();
  ImGui::SetNextItemWidth(theme.px(280));
  const bool wanted = typed('/');
  if (ImGui::InputTextWithHint("##filter", "filter: words, column=text, column>1  (/)", &filter_)) select_rows();
  if (wanted) ImGui::SetKeyboardFocusHere(-1);
  ImGui::SameLine();
  ImGui::TextDisabled("%zu of %zu rows", rows_.size(), table().row_count());
  ImGui::SameLine(0, theme.px(18));
  if (ImGui::Button("Copy")) ImGui::SetClipboardText(table().csv(rows_).c_str());
  if (document_->first<BarChart>() == nullptr && document_->first<ScatterChart>() == nullptr) return;
  ImGui::SameLine();
  ImGui::Checkbox("picture", &picture_shown_);
}

float TableView::width_of(const Theme& theme, std::size_t column) const {
  float width = ImGui::CalcTextSize(table().column_name(column).c_str()).x + theme.px(18);  // the arrow of sorting
  for (std::size_t row = 0; row < std::min(measured_rows, table().row_count()); ++row) {
    width = std::max(width, ImGui::CalcTextSize(table().shown(row, column).c_str()).x);
  }
  return std::clamp(width, theme.px(least_cell_width), theme.px(most_cell_width));
}

void TableView::draw_table(const Theme& theme) {
  const std::size_t columns = std::min(most_columns, table().column_count());
  constexpr ImGuiTableFlags flags = ImGuiTableFlags_Sortable | ImGuiTableFlags_SortTristate | ImGuiTableFlags_ScrollY |
                                    ImGuiTableFlags_ScrollX | ImGuiTableFlags_RowBg | ImGuiTableFlags_Resizable |
                                    ImGuiTableFlags_Hideable | ImGuiTableFlags_BordersInnerV;
  if (widths_of_ != &table()) {
    widths_of_ = &table();
    widths_.clear();
    for (std::size_t column = 0; column < columns; ++column) widths_.push_back(width_of(theme, column));
  }
  const float needed = std::accumulate(widths_.begin(), widths_.end(), theme.px(10) * static_cast<float>(columns));
  const bool fits = needed < ImGui::GetContentRegionAvail().x;
  const std::string id = document_->path + "/" + table().name();  // each keeps its widths
  if (!ImGui::BeginTable(id.c_str(), static_cast<int>(columns), fits ? flags & ~ImGuiTableFlags_ScrollX : flags))
    return;
  ImGui::TableSetupScrollFreeze(columns > 1 ? 1 : 0, 1);
  for (std::size_t column = 0; column < columns; ++column) {
    const bool rest = fits && column + 1 == columns;  // what is left of the window
    ImGui::TableSetupColumn(table().column_name(column).c_str(),
                            rest ? ImGuiTableColumnFlags_WidthStretch : ImGuiTableColumnFlags_WidthFixed,
                            rest ? 1.0f : widths_[column], static_cast<ImGuiID>(column));
  }
  ImGui::TableHeadersRow();
  if (ImGuiTableSortSpecs* sorting = ImGui::TableGetSortSpecs(); sorting != nullptr && sorting->SpecsDirty) {
    sorting->SpecsDirty = false;
    sorted_by_ = sorting->SpecsCount == 0 ? DataTable::unsorted : sorting->Specs[0].ColumnUserID;
    ascending_ = sorting->SpecsCount == 0 || sorting->Specs[0].SortDirection != ImGuiSortDirection_Descending;
    select_rows();
  }
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(rows_.size()));
  while (clipper.Step()) {
    for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
      const std::uint32_t row = rows_[static_cast<std::size_t>(i)];
      ImGui::TableNextRow();
      for (std::size_t column = 0; column < columns; ++column) {
        if (!ImGui::TableNextColumn()) continue;
        const std::string text = table().shown(row, column);
        const ImVec2 at = ImGui::GetCursorScreenPos();
        const float room = ImGui::GetContentRegionAvail().x, width = ImGui::CalcTextSize(text.c_str()).x;
        const bool right = table().is_numeric(column) && width < room && !(fits && column + 1 == columns);
        draw_clipped_text(*ImGui::GetWindowDrawList(), {right ? at.x + room - width : at.x, at.y}, room, theme.text,
                          text.data(), text.data() + text.size());
        ImGui::Dummy({std::max(1.0f, std::min(room, width)), ImGui::GetFontSize()});
        if (!ImGui::IsItemHovered()) continue;
        ImGui::BeginTooltip();
        ImGui::PushTextWrapPos(theme.px(700));
        ImGui::TextUnformatted(table().raw(row, column).c_str());
        ImGui::PopTextWrapPos();
        ImGui::EndTooltip();
      }
    }
  }
  ImGui::EndTable();
}

// Below a heading that says what has no place.
void TableView::draw_dots(const Theme& theme, const ScatterChart& chart) {
  const ImVec2 room = ImGui::GetContentRegionAvail();
  draw_bold(theme, chart.title);
  ImGui::SameLine(0, theme.px(14));
  ImGui::TextDisabled("%s", chart.note.c_str());
  const float height = std::min(room.y * 0.6f, 16 * ImGui::GetTextLineHeightWithSpacing());
  draw_chart(theme, chart, {room.x, height}, chosen_dot_);
}

void TableView::draw(Session& session, const Theme& theme) {
  choose(session.documents().all());
  if (document_ == nullptr) {
    ImGui::TextDisabled("%s", session.busy() ? "Working…"
                                             : "No table: open a CSV file, a decision log, or what any command printed "
                                               "with --json, such as `tencache explain`.");
    return;
  }
  draw_toolbar(session.documents().all(), theme);
  const auto* const map = document_->first<CellMap>();
  if (const auto* chart = document_->first<BarChart>(); chart != nullptr && picture_shown_) {
    const float room = ImGui::GetContentRegionAvail().y;
    draw_chart(theme, *chart, std::min(room * (map != nullptr ? 0.3f : 0.6f), chart_height(theme, *chart)));
    ImGui::Spacing();
  }
  if (const auto* chart = document_->first<ScatterChart>(); chart != nullptr && picture_shown_) {
    draw_dots(theme, *chart);
    ImGui::Spacing();
  }
  if (map != nullptr && picture_shown_) {
    draw_map(theme, *map, ImGui::GetContentRegionAvail().y * 0.6f);
    ImGui::Spacing();
  }
  draw_table(theme);
}

}  // namespace

std::unique_ptr<View> make_table_view() { return std::make_unique<TableView>(); }

}  // namespace tencache::gui
