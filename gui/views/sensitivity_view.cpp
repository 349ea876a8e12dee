// Time against a figure of the machine, a line a policy; where more of it gains nothing is marked.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gui/model/describe.h"
#include "gui/views/canvas.h"
#include "gui/views/keys.h"
#include "gui/views/plot.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

// Times further apart than so many times flatten the lower lines: then the axis is logarithmic until told otherwise.
constexpr double most_times_on_a_linear_axis = 8;

class SensitivityView : public View {
 public:
  const char* name() const override { return "sensitivity"; }
  const char* title() const override { return "Sensitivity"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"L", "time linear or logarithmic"}, {"point at a line", "its figures; the others fade"}};
  }
  std::string csv(const Session& session) const override {
    return session.documents().plots().empty() ? std::string() : table_csv(points_table(*shown(session)));
  }

 private:
  SensitivityPointer shown(const Session& session) const {
    return session.documents().plots()[std::min(chosen_, session.documents().plots().size() - 1)];
  }
  void draw_bar(const Session& session, const Theme& theme);
  Plot make_plot(const Theme& theme, const SensitivityAnswer& data, ImVec2 corner, ImVec2 size) const;
  void draw_curves(const Theme& theme, ImDrawList& list, const SensitivityAnswer& data, const Plot& plot);
  void draw_labels(const Theme& theme, ImDrawList& list, const SensitivityAnswer& data, const Plot& plot);
  void draw_tooltip(const Theme& theme, const SensitivityAnswer& data, const Plot& plot);
  void draw_table(const Theme& theme, const SensitivityAnswer& data);
  ImU32 color_of(const Theme& theme, const SensitivityAnswer& data, std::size_t curve) const;

  std::size_t chosen_ = 0, known_ = 0;
  bool logarithmic_ = false;
  std::size_t pointed_at_ = none;  // a curve
};

void SensitivityView::draw_bar(const Session& session, const Theme& theme) {
  if (session.documents().plots().size() != known_) {  // the newest is what somebody waits for
    known_ = session.documents().plots().size();
    chosen_ = known_ - 1;
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const SensitivityLine& curve : shown(session)->lines) {
      for (const SensitivityPoint& point : curve.points) {
        if (!point.fits) continue;
        least = std::min(least, point.iteration_seconds);
        most = std::max(most, point.iteration_seconds);
      }
    }
    logarithmic_ = most > most_times_on_a_linear_axis * least;
  }
  ImGui::AlignTextToFramePadding();
  if (session.documents().plots().size() == 1) {
    ImGui::PushFont(theme.fonts.bold);
    ImGui::TextUnformatted(title_of(*shown(session)).c_str());
    ImGui::PopFont();
  } else {
    ImGui::SetNextItemWidth(theme.px(430));
    if (ImGui::BeginCombo("##plot", title_of(*shown(session)).c_str())) {
      for (std::size_t i = 0; i < session.documents().plots().size(); ++i) {
        ImGui::PushID(static_cast<int>(i));
        if (ImGui::Selectable(title_of(*session.documents().plots()[i]).c_str(), i == chosen_)) chosen_ = i;
        ImGui::PopID();
      }
      ImGui::EndCombo();
    }
  }
  ImGui::SameLine(0, theme.px(18));
  if (!ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed(key_of('L'), false)) logarithmic_ = !logarithmic_;
  ImGui::Checkbox("logarithmic time", &logarithmic_);
  ImGui::SameLine(0, theme.px(18));
  ImGui::TextDisabled("ring: %s", knee_meaning(*shown(session)).c_str());
}

// Lines of one policy share its colour.
ImU32 SensitivityView::color_of(const Theme& theme, const SensitivityAnswer& data, std::size_t curve) const {
  if (is_bound(data.lines[curve])) return theme.ghost;
  std::vector<std::string> policies;
  for (const SensitivityLine& other : data.lines) {
    if (!is_bound(other) && std::ranges::find(policies, other.policy) == policies.end())
      policies.push_back(other.policy);
  }
  const auto index = static_cast<std::size_t>(std::ranges::find(policies, data.lines[curve].policy) - policies.begin());
  const ImU32 color = theme.palette.line(index);
  return pointed_at_ == none || pointed_at_ == curve ? color : mixed(color, theme.lane, 0.65f);
}

Plot SensitivityView::make_plot(const Theme& theme, const SensitivityAnswer& data, ImVec2 corner, ImVec2 size) const {
  double x_least = std::numeric_limits<double>::infinity(), x_most = 0, y_least = x_least, y_most = 0;
  float labels = 0;
  for (const SensitivityLine& curve : data.lines) {
    labels = std::max(labels, ImGui::CalcTextSize(label_of(data, curve).c_str()).x);
    for (const SensitivityPoint& point : curve.points) {
      x_least = std::min(x_least, point.value);
      x_most = std::max(x_most, point.value);
      if (!point.fits) continue;
      y_least = std::min(y_least, point.iteration_seconds);
      y_most = std::max(y_most, point.iteration_seconds);
    }
  }
  if (y_most <= 0) y_least = y_most = 1;
  Plot plot;
  const float font = ImGui::GetFontSize();
  plot.min = {corner.x + plot_margin(theme).x, corner.y + font + theme.px(10)};
  plot.max = {corner.x + size.x - labels - theme.px(26), corner.y + size.y - plot_margin(theme).y};
  plot.x_axis = PlotAxis::around(x_least, x_most, true);
  plot.x_axis.binary = data.axis().unit == ParameterUnit::bytes;
  plot.x_axis.text = [&data](double value) { return data.axis().text(value); };
  plot.x_axis.label = data.axis().name;
  plot.y_axis = PlotAxis::around(y_least, y_most, logarithmic_);
  plot.y_axis.text = [](double value) { return seconds_text(value); };
  plot.y_axis.label = "time of an iteration";
  return plot;
}

void SensitivityView::draw_curves(const Theme& theme, ImDrawList& list, const SensitivityAnswer& data,
                                  const Plot& plot) {
  if (data.axis().machine_value >= plot.x_axis.from && data.axis().machine_value <= plot.x_axis.to) {
    const float x = plot.x(data.axis().machine_value);
    for (float y = plot.min.y; y < plot.max.y; y += theme.px(8)) {
      list.AddLine({x, y}, {x, std::min(plot.max.y, y + theme.px(4))}, theme.text);
    }
    const std::string text = "the machine's " + data.axis().text(data.axis().machine_value);
    const float width = ImGui::CalcTextSize(text.c_str()).x;
    const bool left = x + width + theme.px(8) > plot.max.x;
    list.AddText({left ? x - width - theme.px(6) : x + theme.px(6), plot.min.y - ImGui::GetFontSize() - theme.px(6)},
                 theme.text, text.c_str());
  }
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    const SensitivityLine& curve = data.lines[i];
    const ImU32 color = color_of(theme, data, i);
    const SensitivityPoint* before = nullptr;
    for (const SensitivityPoint& point : curve.points) {
      if (!point.fits) {  // a cross at the top
        const ImVec2 at{plot.x(point.value), plot.min.y + theme.px(8) + theme.px(5) * static_cast<float>(i)};
        const float r = theme.px(3);
        list.AddLine({at.x - r, at.y - r}, {at.x + r, at.y + r}, color, theme.px(1.5f));
        list.AddLine({at.x - r, at.y + r}, {at.x + r, at.y - r}, color, theme.px(1.5f));
        before = nullptr;
        continue;
      }
      const ImVec2 at = plot.at(point.value, point.iteration_seconds);
      if (before != nullptr) {
        list.AddLine(plot.at(before->value, before->iteration_seconds), at, color,
                     theme.px(i == pointed_at_ ? 3.0f : 2.0f));
      }
      if (!is_bound(curve)) draw_marker(list, i, at, theme.px(3.5f), color);
      before = &point;
    }
    if (curve.knee && !is_bound(curve)) {
      const ImVec2 at = plot.at(curve.knee->value, curve.knee->iteration_seconds);
      list.AddCircle(at, theme.px(8), theme.lane, 0, theme.px(5));
      list.AddCircle(at, theme.px(8), theme.text, 0, theme.px(1.5f));
    }
  }
}

// At the right ends of the lines, moved apart where they would overlap.
void SensitivityView::draw_labels(const Theme& theme, ImDrawList& list, const SensitivityAnswer& data,
                                  const Plot& plot) {
  struct Label {
    std::size_t curve;
    float end, y;
  };
  std::vector<Label> labels;
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    const auto& points = data.lines[i].points;
    const auto last = std::ranges::find_if(points.rbegin(), points.rend(), &SensitivityPoint::fits);
    const float y = last == points.rend() ? plot.min.y : plot.y(last->iteration_seconds);
    labels.push_back({i, y, y});
  }
  std::ranges::stable_sort(labels, {}, &Label::end);
  const float line = ImGui::GetFontSize() + theme.px(2), font = ImGui::GetFontSize();
  for (std::size_t i = 1; i < labels.size(); ++i) labels[i].y = std::max(labels[i].y, labels[i - 1].y + line);
  if (!labels.empty()) {  // and up again from the bottom
    float most = plot.max.y;
    for (auto label = labels.rbegin(); label != labels.rend(); ++label) {
      label->y = std::min(label->y, most);
      most = label->y - line;
    }
  }
  pointed_at_ = none;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  for (const Label& label : labels) {
    if (mouse.x > plot.max.x && std::abs(mouse.y - label.y) < line / 2 && ImGui::IsWindowHovered()) {
      pointed_at_ = label.curve;
    }
  }
  for (const Label& label : labels) {
    const float x = plot.max.x + theme.px(20);
    const ImU32 color = color_of(theme, data, label.curve);
    list.AddLine({plot.max.x + theme.px(2), label.end}, {x - theme.px(10), label.y}, color);
    if (is_bound(data.lines[label.curve])) {
      list.AddLine({x - theme.px(10), label.y}, {x - theme.px(2), label.y}, color, theme.px(2));
    } else {
      draw_marker(list, label.curve, {x - theme.px(6), label.y}, theme.px(3.5f), color);
    }
    list.AddText({x + theme.px(2), label.y - font / 2}, theme.text, label_of(data, data.lines[label.curve]).c_str());
  }
}

void SensitivityView::draw_tooltip(const Theme& theme, const SensitivityAnswer& data, const Plot& plot) {
  if (!ImGui::IsItemHovered()) return;
  const ImVec2 mouse = ImGui::GetIO().MousePos;
  const SensitivityPoint* nearest = nullptr;
  float least = theme.px(24);
  for (std::size_t i = 0; i < data.lines.size(); ++i) {
    const auto look_at = [&](const SensitivityPoint& point) {
      if (!point.fits) return;
      const ImVec2 at = plot.at(point.value, point.iteration_seconds);
      const float distance = std::hypot(at.x - mouse.x, at.y - mouse.y);
      if (distance >= least) return;
      least = distance;
      nearest = &point;
      pointed_at_ = i;
    };
    for (const SensitivityPoint& point : data.lines[i].points) look_at(point);
    if (data.lines[i].knee) look_at(*data.lines[i].knee);
  }
  if (nearest == nullptr) return;
  const SensitivityLine& curve = data.lines[pointed_at_];
  Facts facts{{"", label_of(data, curve)},
              {data.axis().name, data.axis().text(nearest->value)},
              {"iteration", seconds_text(nearest->iteration_seconds)}};
  if (curve.unlimited.fits) facts.emplace_back("unlimited", seconds_text(curve.unlimited.iteration_seconds));
  facts.emplace_back("knee", knee_text(data, curve));
  ImGui::BeginTooltip();
  draw_facts(theme, facts);
  ImGui::EndTooltip();
}

void SensitivityView::draw_table(const Theme& theme, const SensitivityAnswer& data) {
  ImGui::PushStyleVar(ImGuiStyleVar_CellPadding, ImVec2{theme.px(6), theme.px(2)});
  if (ImGui::BeginTable("knees", 5, ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg | ImGuiTableFlags_BordersInnerH)) {
    ImGui::TableSetupScrollFreeze(0, 1);
    for (const char* heading : {"policy", "knee", "time there", "without limit", "so"}) {
      ImGui::TableSetupColumn(heading,
                              *heading == 's' ? ImGuiTableColumnFlags_WidthStretch : ImGuiTableColumnFlags_WidthFixed);
    }
    ImGui::TableHeadersRow();
    for (const SensitivityLine& curve : data.lines) {
      ImGui::TableNextRow();
      const auto cell = [](const std::string& text) {
        ImGui::TableNextColumn();
        ImGui::TextUnformatted(text.c_str());
      };
      cell(label_of(data, curve));
      cell(curve.knee ? data.axis().text(curve.knee->value) : "–");
      cell(curve.knee ? seconds_text(curve.knee->iteration_seconds) : "–");
      cell(curve.unlimited.fits ? seconds_text(curve.unlimited.iteration_seconds) : "does not fit");
      ImGui::TableNextColumn();
      ImGui::TextDisabled("%s", knee_text(data, curve).c_str());
    }
    ImGui::EndTable();
  }
  ImGui::PopStyleVar();
}

void SensitivityView::draw(Session& session, const Theme& theme) {
  if (session.documents().plots().empty()) {
    ImGui::TextDisabled("%s", session.documents().plotting()
                                  ? "Simulating…"
                                  : "No sensitivity: open what `tencache sensitivity TRACE -m MACHINE "
                                    "--over pcie=4GB/s..64GB/s --json` printed, or choose \"vary\" "
                                    "beside a slider of \"What if\".");
    return;
  }
  draw_bar(session, theme);
  const SensitivityPointer data = shown(session);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float row = ImGui::GetFontSize() + theme.px(4);
  const float table = std::min(room.y * 0.35f, row * static_cast<float>(data->lines.size() + 1) + theme.px(12));
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const ImVec2 size{room.x, std::max(theme.px(120), room.y - table - ImGui::GetStyle().ItemSpacing.y)};
  const Plot plot = make_plot(theme, *data, corner, size);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  draw_axes(list, theme, plot);
  draw_curves(theme, list, *data, plot);
  draw_labels(theme, list, *data, plot);
  ImGui::InvisibleButton("plot", size);
  draw_tooltip(theme, *data, plot);
  draw_table(theme, *data);
}

}  // namespace

std::unique_ptr<View> make_sensitivity_view() { return std::make_unique<SensitivityView>(); }

}  // namespace tencache::gui
