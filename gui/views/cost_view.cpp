// Cost against time of a sweep's combinations: the front of those that nothing beats in both, and what they are.
#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>

#include "answers/cost.h"
#include "gui/views/canvas.h"
#include "gui/views/chart.h"
#include "gui/views/document_table.h"
#include "gui/views/plot.h"
#include "gui/views/view.h"
#include "studies/sweep/sweep_results.h"

namespace tencache::gui {
namespace {

class CostView : public View {
 public:
  const char* name() const override { return "cost"; }
  const char* title() const override { return "Cost"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"point at a dot", "what it is and where its time and money go"},
            {"click a dot or row", "mark it in both"},
            {"boxes on the left", "leave machines and policies out; the front is that of the rest"}};
  }
  std::string csv(const Session& session) const override;

 private:
  void prepare(const Session& session);
  void draw_filters(const Theme& theme);
  void draw_boxes(const char* title, const std::vector<std::string>& names, std::set<std::string>& hidden,
                  const Theme& theme, bool colors);
  ImU32 color_of(const Theme& theme, const std::string& machine) const;

  std::size_t known_ = 0;
  std::vector<SweepRow> rows_;
  std::vector<std::string> workloads_, machines_, policies_;
  CostFilter filter_;
  bool filter_changed_ = true, has_spot_ = false;
  CostChart chart_;
  ScatterChart scatter_;
  DocumentTableView front_;
  std::string marked_, shown_;  // the key of a row, and that which is in the table
};

std::string CostView::csv(const Session& session) const {
  std::vector<SweepRow> shown;
  for (const SweepRow& row : session.documents().sweep_rows()) {
    if (filter_.shows(row)) shown.push_back(row);
  }
  return shown.empty() ? std::string() : sweep_csv(shown);
}

void CostView::prepare(const Session& session) {
  if (known_ != session.documents().sweep_rows().size()) {
    known_ = session.documents().sweep_rows().size();
    rows_ = session.documents().sweep_rows();
    workloads_ = workloads_of(rows_);
    if (std::ranges::find(workloads_, filter_.workload) == workloads_.end()) filter_.workload = workloads_.front();
    has_spot_ = std::ranges::any_of(rows_, [](const SweepRow& row) { return row.spot_usd_per_hour.has_value(); });
    filter_changed_ = true;
  }
  if (!filter_changed_ && shown_ == marked_) return;
  filter_changed_ = false;
  shown_ = marked_;
  machines_ = machines_of(rows_, filter_.workload);
  policies_ = policies_of(rows_, filter_.workload);
  chart_ = cost_chart(rows_, filter_);
  const tencache::Document document = document_of(chart_, marked_);
  const auto* const scatter = document.first<ScatterChart>();
  const auto* const front = document.first<DocumentTable>();
  scatter_ = scatter == nullptr ? ScatterChart() : *scatter;
  front_.show(front == nullptr ? DocumentTable() : *front);
}

ImU32 CostView::color_of(const Theme& theme, const std::string& machine) const {
  const auto index = static_cast<std::size_t>(std::ranges::find(machines_, machine) - machines_.begin());
  return theme.palette.line(index);
}

void CostView::draw_boxes(const char* title, const std::vector<std::string>& names, std::set<std::string>& hidden,
                          const Theme& theme, bool colors) {
  draw_bold(theme, title);
  ImGui::SameLine();
  ImGui::PushID(title);
  if (ImGui::SmallButton("all")) hidden.clear(), filter_changed_ = true;
  ImGui::SameLine();
  if (ImGui::SmallButton("none")) hidden = {names.begin(), names.end()}, filter_changed_ = true;
  for (std::size_t i = 0; i < names.size(); ++i) {
    bool shown = !hidden.contains(names[i]);
    if (ImGui::Checkbox(names[i].c_str(), &shown)) {
      shown ? static_cast<void>(hidden.erase(names[i])) : static_cast<void>(hidden.insert(names[i]));
      filter_changed_ = true;
    }
    if (!colors) continue;
    ImGui::SameLine();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    draw_marker(*ImGui::GetWindowDrawList(), i, {at.x + theme.px(6), at.y + ImGui::GetFrameHeight() / 2}, theme.px(4),
                color_of(theme, names[i]));
    ImGui::Dummy({theme.px(12), ImGui::GetFrameHeight()});
  }
  ImGui::PopID();
  ImGui::Spacing();
}

void CostView::draw_filters(const Theme& theme) {
  ImGui::SetNextItemWidth(-1);
  if (ImGui::BeginCombo("##workload", filter_.workload.c_str(), ImGuiComboFlags_HeightLargest)) {
    for (const std::string& workload : workloads_) {
      if (ImGui::Selectable(workload.c_str(), workload == filter_.workload)) {
        filter_.workload = workload;
        filter_changed_ = true;
      }
    }
    ImGui::EndCombo();
  }
  if (has_spot_ && ImGui::Checkbox("spot prices", &filter_.spot)) filter_changed_ = true;
  ImGui::Spacing();
  draw_boxes("Machines", machines_, filter_.hidden_machines, theme, true);
  draw_boxes("Policies", policies_, filter_.hidden_policies, theme, false);
  ImGui::PushTextWrapPos();
  ImGui::TextDisabled("%s", chart_.rest().c_str());
  ImGui::PopTextWrapPos();
}

void CostView::draw(Session& session, const Theme& theme) {
  if (session.documents().sweep_rows().empty()) {
    ImGui::TextDisabled("%s",
                        "No sweep: open what `tencache sweep SWEEP -o results.sqlite` wrote, or `--json` printed.");
    return;
  }
  prepare(session);
  ImGui::BeginChild("filters", {theme.px(230), 0}, false);
  draw_filters(theme);
  ImGui::EndChild();
  ImGui::SameLine(0, theme.px(10));
  ImGui::BeginChild("chart", {0, 0}, false);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  if (chart_.points.empty()) {
    ImGui::TextDisabled("Nothing to show: no combination of these machines and policies fits and has a price.");
  } else {
    const auto rows = static_cast<float>(front_.table().rows.size() + 1);
    const float table = std::min(room.y * 0.35f, rows * (ImGui::GetFontSize() + theme.px(8)) + theme.px(10));
    draw_chart(theme, scatter_, {room.x, room.y - table - ImGui::GetStyle().ItemSpacing.y}, marked_);
    if (const std::optional<std::string> clicked = front_.draw(theme, marked_)) marked_ = *clicked;
  }
  ImGui::EndChild();
}

}  // namespace

std::unique_ptr<View> make_cost_view() { return std::make_unique<CostView>(); }

}  // namespace tencache::gui
