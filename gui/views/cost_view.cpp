// Cost against time of a sweep's combinations: the front of those that nothing beats in both, and what they are.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/model/cost.h"
#include "gui/model/describe.h"
#include "gui/views/canvas.h"
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
  void draw_scatter(const Theme& theme, ImVec2 size);
  void draw_legend(ImDrawList& list, const Theme& theme, const Plot& plot) const;
  void draw_front(ImDrawList& list, const Theme& theme, const Plot& plot, LabelPlacer& labels) const;
  void draw_names(ImDrawList& list, const Theme& theme, const Plot& plot, LabelPlacer& labels) const;
  void draw_front_table(const Theme& theme);
  ImU32 color_of(const Theme& theme, const std::string& machine) const;

  std::size_t known_ = 0;
  std::vector<SweepRow> rows_;
  std::vector<std::string> workloads_, machines_, policies_;
  CostFilter filter_;
  bool filter_changed_ = true, has_spot_ = false;
  CostChart chart_;
  std::string marked_;  // the key of a row
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
  if (!filter_changed_) return;
  filter_changed_ = false;
  machines_ = machines_of(rows_, filter_.workload);
  policies_ = policies_of(rows_, filter_.workload);
  chart_ = cost_chart(rows_, filter_);
}

ImU32 CostView::color_of(const Theme& theme, const std::string& machine) const {
  const auto index = static_cast<std::size_t>(std::ranges::find(machines_, machine) - machines_.begin());
  return theme.palette.line(index);
}

void CostView::draw_boxes(const char* title, const std::vector<std::string>& names, std::set<std::string>& hidden,
                          const Theme& theme, bool colors) {
  ImGui::PushFont(theme.fonts.bold);
  ImGui::TextUnformatted(title);
  ImGui::PopFont();
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
  std::string rest;
  if (chart_.misfits > 0) rest += fmt::format("{} do not fit", chart_.misfits);
  if (chart_.without_price > 0)
    rest += fmt::format("{}{} have no price", rest.empty() ? "" : ", ", chart_.without_price);
  ImGui::PushTextWrapPos();
  ImGui::TextDisabled("%zu combinations%s%s", chart_.points.size(), rest.empty() ? "" : "; ", rest.c_str());
  ImGui::PopTextWrapPos();
}

// Above the plot, where no point is.
void CostView::draw_legend(ImDrawList& list, const Theme& theme, const Plot& plot) const {
  const float font = ImGui::GetFontSize(), y = plot.min.y - font - theme.px(6), gap = theme.px(6);
  float right = plot.max.x;
  const auto entry = [&](const char* label, float sign, const auto& draw) {
    const float left = right - sign - gap - ImGui::CalcTextSize(label).x;
    if (left < plot.min.x + ImGui::CalcTextSize(plot.y_axis.label.c_str()).x) return;  // no room
    draw(ImVec2(left, y + font / 2));
    list.AddText({left + sign + gap, y}, theme.text, label);
    right = left - theme.px(18);
  };
  entry("Pareto front: nothing is faster and cheaper", theme.px(24), [&](ImVec2 at) {
    const ImVec2 end{at.x + theme.px(24), at.y};
    list.AddLine(at, end, theme.text, theme.px(1.5f));
    list.AddCircle({at.x + theme.px(12), at.y}, theme.px(5), theme.text, 0, theme.px(1.5f));
  });
  if (std::ranges::any_of(chart_.points, &CostPoint::reference)) {
    entry("ideal: on no machine", theme.px(8), [&](ImVec2 at) {
      list.AddCircle({at.x + theme.px(4), at.y}, theme.px(4), theme.text, 0, theme.px(1));
    });
  }
}

// Steps: what lies beyond them is beaten by a point of the front.
void CostView::draw_front(ImDrawList& list, const Theme& theme, const Plot& plot, LabelPlacer& labels) const {
  const auto line = [&](ImVec2 from, ImVec2 to) {
    list.AddLine(from, to, theme.text, theme.px(1.5f));
    labels.keep_free({std::min(from.x, to.x), std::min(from.y, to.y)},
                     {std::max(from.x, to.x), std::max(from.y, to.y)});
  };
  const CostPoint* before = nullptr;
  for (const CostPoint& point : chart_.points) {
    if (!point.on_front) continue;
    const ImVec2 at = plot.at(point.seconds, point.usd);
    if (before == nullptr) {
      line({at.x, plot.min.y}, at);
    } else {
      const ImVec2 from = plot.at(before->seconds, before->usd);
      line(from, {at.x, from.y});
      line({at.x, from.y}, at);
    }
    before = &point;
  }
  if (before == nullptr) return;
  const ImVec2 at = plot.at(before->seconds, before->usd);
  line(at, {plot.max.x, at.y});
}

// What the points of the front are; of those at one place all policies. Where there is no room the table has it.
void CostView::draw_names(ImDrawList& list, const Theme& theme, const Plot& plot, LabelPlacer& labels) const {
  for (auto point = chart_.points.begin(); point != chart_.points.end();) {
    std::string text;
    const ImVec2 at = plot.at(point->seconds, point->usd);
    const bool front = point->on_front;
    if (front) text = point->row->machine + ", " + point->row->policy;
    for (++point; point != chart_.points.end(); ++point) {
      const ImVec2 next = plot.at(point->seconds, point->usd);
      if (std::abs(next.x - at.x) + std::abs(next.y - at.y) > 2) break;
      if (front) text += ", " + point->row->policy;
    }
    if (!front) continue;
    text = shortened(text, (plot.max.x - plot.min.x) / 3);
    const std::optional<ImVec2> corner = labels.place(at, theme.px(11), ImGui::CalcTextSize(text.c_str()));
    if (corner) list.AddText(*corner, theme.text, text.c_str());
  }
}

void CostView::draw_scatter(const Theme& theme, ImVec2 size) {
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  ImDrawList& list = *ImGui::GetWindowDrawList();
  ImGui::InvisibleButton("scatter", size);
  if (chart_.points.empty()) {
    list.AddText({corner.x + theme.px(8), corner.y + theme.px(8)}, theme.faint_text,
                 "Nothing to show: no combination of these machines and policies fits and has a price.");
    return;
  }
  double x_least = std::numeric_limits<double>::infinity(), x_most = 0, y_least = x_least, y_most = 0;
  for (const CostPoint& point : chart_.points) {
    x_least = std::min(x_least, point.seconds), x_most = std::max(x_most, point.seconds);
    y_least = std::min(y_least, point.usd), y_most = std::max(y_most, point.usd);
  }
  Plot plot;
  plot.min = {corner.x + plot_margin(theme).x, corner.y + ImGui::GetFontSize() + theme.px(10)};
  plot.max = {corner.x + size.x - theme.px(12), corner.y + size.y - plot_margin(theme).y};
  plot.x_axis = PlotAxis::around(x_least, x_most, true);
  plot.x_axis.text = seconds_text;
  plot.x_axis.label = filter_.spot ? "time of an iteration, with interruptions" : "time of an iteration";
  plot.y_axis = PlotAxis::around(y_least, y_most, true);
  plot.y_axis.text = usd_text;
  plot.y_axis.label = std::string(label_of(chart_.unit)) + (filter_.spot ? ", spot" : ", on demand");
  draw_axes(list, theme, plot);
  LabelPlacer labels(plot.min, plot.max);
  draw_legend(list, theme, plot);
  draw_front(list, theme, plot, labels);
  const CostPoint* nearest = nullptr;
  float least = theme.px(14);
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  for (const bool front : {false, true}) {
    for (const CostPoint& point : chart_.points) {
      if (point.on_front != front) continue;
      const ImVec2 at = plot.at(point.seconds, point.usd);
      labels.keep_point_free(at, theme.px(front ? 8.0f : 4.0f));
      const auto machine =
          static_cast<std::size_t>(std::ranges::find(machines_, point.row->machine) - machines_.begin());
      if (point.reference) {
        list.AddCircle(at, theme.px(4), color_of(theme, point.row->machine), 0, theme.px(1));
      } else {
        draw_marker(list, machine, at, theme.px(front ? 5.5f : 4.0f),
                    with_alpha(color_of(theme, point.row->machine), front ? 1.0f : 0.6f));
      }
      if (front) list.AddCircle(at, theme.px(8), theme.text, 0, theme.px(1.5f));
      if (point.row->key == marked_) list.AddCircle(at, theme.px(12), theme.match, 0, theme.px(2.5f));
      const float distance = std::hypot(at.x - mouse.x, at.y - mouse.y);
      if (distance < least) {
        least = distance;
        nearest = &point;
      }
    }
  }
  draw_names(list, theme, plot, labels);
  if (!ImGui::IsItemHovered()) return;
  if (ImGui::IsMouseClicked(ImGuiMouseButton_Left)) marked_ = nearest == nullptr ? "" : nearest->row->key;
  if (nearest == nullptr) return;
  ImGui::BeginTooltip();
  draw_facts(theme, describe_row(*nearest->row));
  ImGui::EndTooltip();
}

void CostView::draw_front_table(const Theme& theme) {
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, ImVec2{theme.px(6), theme.px(2)});
  const ImGuiTableFlags flags = ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg | ImGuiTableFlags_BordersInnerH;
  if (ImGui::BeginTable("front", 6, flags)) {
    ImGui::TableSetupScrollFreeze(0, 1);
    for (const char* heading : {"the front: machine", "policy", "iteration", label_of(chart_.unit), "an hour"}) {
      ImGui::TableSetupColumn(heading, ImGuiTableColumnFlags_WidthFixed);
    }
    ImGui::TableSetupColumn("waits most for", ImGuiTableColumnFlags_WidthStretch);
    ImGui::TableHeadersRow();
    for (const CostPoint& point : chart_.points) {
      const SweepRow& row = *point.row;
      if (!point.on_front && row.key != marked_) continue;
      ImGui::TableNextRow();
      ImGui::TableNextColumn();
      ImGui::PushID(row.key.c_str());
      if (ImGui::Selectable((point.on_front ? row.machine : "(" + row.machine + ")").c_str(), row.key == marked_,
                            ImGuiSelectableFlags_SpanAllColumns)) {
        marked_ = row.key;
      }
      ImGui::PopID();
      if (ImGui::IsItemHovered()) {
        ImGui::BeginTooltip();
        draw_facts(theme, describe_row(row));
        ImGui::EndTooltip();
      }
      const std::optional<double> hour = filter_.spot ? row.spot_usd_per_hour : row.usd_per_hour;
      for (const std::string& text : {row.policy, seconds_text(point.seconds), usd_text(point.usd),
                                      hour ? fmt::format("${:.3f}", *hour) : std::string("–"), row.waits_for}) {
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(text.c_str());
      }
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
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
  const auto rows = static_cast<float>(std::ranges::count_if(chart_.points, &CostPoint::on_front) + 2);
  const float table = std::min(room.y * 0.35f, rows * (ImGui::GetFontSize() + theme.px(4)) + theme.px(10));
  draw_scatter(theme, {room.x, room.y - table - ImGui::GetStyle().ItemSpacing.y});
  draw_front_table(theme);
  ImGui::EndChild();
}

}  // namespace

std::unique_ptr<View> make_cost_view() { return std::make_unique<CostView>(); }

}  // namespace tencache::gui
