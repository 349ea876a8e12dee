// What each tier holds over time, stacked by role, predicted above measured; at the cursor, what exactly.
#include <fmt/format.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

#include "gui/model/describe.h"
#include "gui/views/canvas.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

class OccupancyView : public View {
 public:
  const char* name() const override { return "memory"; }
  const char* title() const override { return "Memory"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"W S, wheel", "zoom at the cursor"},
            {"A D, drag", "move in time"},
            {"F, 0", "fit one iteration, the whole run"},
            {"click a plot", "list its tier"},
            {"click a tensor", "select it, in all views"}};
  }
  std::string csv(const Session& session) const override { return occupancy_csv(session); }

 private:
  struct Plot {
    std::size_t run = 0;
    TierId tier = 0;
    std::string tier_name;
    float top = 0, height = 0;
    std::int64_t scale = 1;  // bytes at the top
    Bytes capacity = 0;
  };
  void find_plots(const Session& session);
  void draw_plots(Session& session, const Theme& theme, float width, float height);
  void draw_plot(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, const Plot& plot);
  void draw_residents(Session& session, const Theme& theme);

  std::vector<Plot> plots_;
  std::size_t listed_ = 0;  // of plots_
  std::uint64_t prepared_ = ~std::uint64_t{0};
  std::vector<OccupancyColumn> columns_;
  std::vector<float> base_;
  std::vector<Resident> residents_;
  Nanoseconds residents_at_ = -1;
  std::size_t residents_of_ = ~std::size_t{0};
};

// Tiers of the same name stand together, predicted above measured, on one scale.
void OccupancyView::find_plots(const Session& session) {
  plots_.clear();
  std::vector<std::string> names;
  for (const RunPointer& run : session.runs()) {
    for (const Tier& tier : run->machine().tiers) {
      if (std::ranges::find(names, tier.name) == names.end()) names.push_back(tier.name);
    }
  }
  for (const std::string& name : names) {
    const std::size_t first = plots_.size();
    Bytes peak = 0, capacity = 0;
    for (std::size_t r = 0; r < session.runs().size(); ++r) {
      const Run& run = *session.runs()[r];
      for (TierId tier = 0; tier < run.machine().tiers.size(); ++tier) {
        if (run.machine().tiers[tier].name != name || run.occupancy().empty(tier)) continue;
        const Bytes of_tier = run.machine().tiers[tier].capacity;
        plots_.push_back({r, tier, name, 0, 0, 1, of_tier});
        peak = std::max(peak, run.occupancy().peak(tier));
        capacity = std::max(capacity, of_tier);
      }
    }
    // A capacity far above what is used would flatten the plot: then it is only said.
    const Bytes top = capacity <= 3 * peak ? std::max(capacity, peak) : peak;
    for (std::size_t i = first; i < plots_.size(); ++i) {
      plots_[i].scale = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(top) * 1.08));
    }
  }
  listed_ = std::min(listed_, plots_.empty() ? 0 : plots_.size() - 1);
  residents_of_ = ~std::size_t{0};
}

void OccupancyView::draw_plot(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis,
                              const Plot& plot) {
  const Run& run = *session.runs()[plot.run];
  const auto origin = static_cast<double>(session.shown().origin_ns(plot.run));
  const float bottom = plot.top + plot.height;
  list.AddRectFilled({axis.left, plot.top}, {axis.left + axis.width, bottom}, theme.lane);
  run.occupancy().collect(plot.tier, axis.begin_ns + origin, axis.end_ns + origin, axis.pixels(), columns_);
  base_.assign(axis.pixels(), 0.0f);
  const float pixels_per_byte = plot.height / static_cast<float>(plot.scale);
  for (std::size_t role = 0; role < static_cast<std::size_t>(role_count); ++role) {
    draw_parts(list, axis, bottom, theme.palette.roles[role], [&](std::size_t pixel) {
      const float from = std::round(base_[pixel]);
      base_[pixel] += std::max(0.0f, static_cast<float>(columns_[pixel].roles[role])) * pixels_per_byte;
      return std::pair(from, std::min(plot.height, std::round(base_[pixel])));
    });
  }
  if (static_cast<std::int64_t>(plot.capacity) <= plot.scale) {
    const float y = std::floor(bottom - static_cast<float>(plot.capacity) * pixels_per_byte);
    const float thickness = std::max(1.0f, std::round(theme.px(2)));
    list.AddRectFilled({axis.left, y}, {axis.left + axis.width, y + thickness}, theme.error);
  }
}

void OccupancyView::draw_plots(Session& session, const Theme& theme, float width, float height) {
  ImGui::BeginChild("plots", {width, height}, false, ImGuiWindowFlags_NoScrollWithMouse);
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const float ruler = ruler_height(theme), gap = theme.px(6), font = ImGui::GetFontSize();
  const float labels = theme.px(150);
  const auto count = static_cast<float>(plots_.size());
  const float plot_height = std::max(4.5f * font, std::floor((height - ruler) / count - gap));
  const float content = ruler + count * (plot_height + gap);
  ImGui::InvisibleButton("canvas", {ImGui::GetContentRegionAvail().x, std::max(height, content) - 1});
  const TimeAxis axis = axis_of(session, corner.x + labels, width - labels - theme.px(8));
  ImGuiIO& io = ImGui::GetIO();
  const bool over = ImGui::IsItemHovered() && io.MousePos.x >= axis.left;
  const bool clicked = handle_time_input(session, axis, over);
  ImDrawList& list = *ImGui::GetWindowDrawList();
  draw_ruler(list, theme, axis, corner.y, corner.y + content);
  for (std::size_t i = 0; i < plots_.size(); ++i) {
    Plot& plot = plots_[i];
    plot.top = corner.y + ruler + static_cast<float>(i) * (plot_height + gap);
    plot.height = plot_height;
    const Run& run = *session.runs()[plot.run];
    list.PushClipRect({axis.left, plot.top}, {axis.left + axis.width, plot.top + plot.height}, true);
    draw_plot(session, theme, list, axis, plot);
    draw_steps(list, theme, axis, run, session.shown().origin_ns(plot.run), plot.top, plot.top + plot.height);
    list.PopClipRect();
    if (i == listed_) {
      list.AddRectFilled({corner.x, plot.top}, {corner.x + theme.px(3), plot.top + plot.height}, theme.accent);
    }
    const float x = corner.x + theme.px(8), room = labels - theme.px(14);
    float y = plot.top + theme.px(2);
    const auto line = [&](const std::string& text, ImU32 color) {
      if (y + font <= plot.top + plot.height) {
        draw_clipped_text(list, {x, y}, room, color, text.data(), text.data() + text.size());
      }
      y += font + theme.px(1);
    };
    const bool several = session.runs().size() > 2;  // ranks: their titles tell them apart
    const char* origin = run.origin() == Origin::measured ? "measured" : "predicted";
    line(plot.tier_name + ", " + (several ? run.title() : origin), theme.text);
    line("capacity " + format_bytes(plot.capacity), theme.error);
    line("peak " + format_bytes(run.occupancy().peak(plot.tier)), theme.faint_text);
    if (session.cursor_ns) {
      const auto at = session.shown().origin_ns(plot.run) + static_cast<Nanoseconds>(*session.cursor_ns);
      OccupancyColumn now{run.occupancy().held(plot.tier, at)};
      line("here " + format_bytes(static_cast<Bytes>(std::max<std::int64_t>(0, now.total()))), theme.text);
    }
    if (over && io.MousePos.y >= plot.top && io.MousePos.y < plot.top + plot.height && clicked) listed_ = i;
  }
  list.PushClipRect({axis.left, corner.y}, {axis.left + axis.width, corner.y + std::max(height, content)}, true);
  draw_cursor_and_range(list, theme, session, axis, corner.y, corner.y + content);
  list.PopClipRect();
  ImGui::EndChild();
}

void OccupancyView::draw_residents(Session& session, const Theme& theme) {
  ImGui::BeginChild("residents", {0, 0}, false);
  const Plot& plot = plots_[listed_];
  const Run& run = *session.runs()[plot.run];
  const double cursor = session.cursor_ns.value_or((session.window.begin_ns + session.window.end_ns) / 2);
  const Nanoseconds at = session.shown().origin_ns(plot.run) + static_cast<Nanoseconds>(cursor);
  if (residents_of_ != listed_ || residents_at_ != at) {
    residents_ = run.occupancy().residents(plot.tier, at);
    residents_of_ = listed_;
    residents_at_ = at;
  }
  RoleBytes by_role{};
  std::int64_t total = 0;
  for (const Resident& resident : residents_) {
    by_role[static_cast<std::size_t>(resident.role)] += resident.bytes;
    total += resident.bytes;
  }
  draw_bold(theme, plot.tier_name + " at " + time_text(cursor, session.window.length_ns() / 1000));
  ImGui::TextDisabled("%s, %s", run.title().c_str(), format_bytes(static_cast<Bytes>(total)).c_str());
  const float box = ImGui::GetFontSize();
  const auto row = [&](ImU32 color, const std::string& name, std::int64_t bytes, bool selected) {
    const ImVec2 at_row = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x;
    const std::string size = format_bytes(static_cast<Bytes>(bytes));
    const float size_width = ImGui::CalcTextSize(size.c_str()).x;
    const bool clicked = ImGui::Selectable("##row", selected, 0, {width, box});
    ImDrawList& list = *ImGui::GetWindowDrawList();
    list.AddRectFilled({at_row.x, at_row.y + 1}, {at_row.x + box - 2, at_row.y + box - 1}, color);
    const std::string shown = shortened(name, width - box - size_width - theme.px(14));
    list.AddText({at_row.x + box + theme.px(4), at_row.y}, theme.text, shown.c_str());
    if (shown != name && ImGui::IsItemHovered()) ImGui::SetTooltip("%s", name.c_str());
    list.AddText({at_row.x + width - size_width, at_row.y}, theme.faint_text, size.c_str());
    return clicked;
  };
  // The legend of the plots as well, so every role that occurs in any of them is there.
  for (std::size_t role = 0; role < by_role.size(); ++role) {
    ImGui::PushID(static_cast<int>(role));
    row(theme.palette.roles[role], label_of(static_cast<Role>(role)), by_role[role], false);
    ImGui::PopID();
  }
  ImGui::Separator();
  draw_bold(theme, std::to_string(residents_.size()) + " tensors, the largest first");
  ImGui::BeginChild("tensors", {0, 0}, false);
  ImGuiListClipper clipper;
  clipper.Begin(static_cast<int>(residents_.size()), box + ImGui::GetStyle().ItemSpacing.y);
  while (clipper.Step()) {
    for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
      const Resident& resident = residents_[static_cast<std::size_t>(i)];
      std::string name(run.tensor_name(resident.tensor));
      if (name.empty()) name = resident.tensor == none ? "not named in the recording" : "unnamed";
      const bool selected = resident.tensor != none && session.selection.kind == Selection::Kind::tensor &&
                            session.selected_in(plot.run) == resident.tensor;
      ImGui::PushID(i);
      if (row(theme.palette.of(resident.role), name, resident.bytes, selected) && resident.tensor != none) {
        session.selection = {Selection::Kind::tensor, resident.tensor, plot.run, none};
      }
      ImGui::PopID();
    }
  }
  ImGui::EndChild();
  ImGui::EndChild();
}

void OccupancyView::draw(Session& session, const Theme& theme) {
  if (prepared_ != session.shown().generation()) {
    prepared_ = session.shown().generation();
    find_plots(session);
  }
  if (plots_.empty()) {
    return draw_no_run(session, "No run with occupancy: open a trace, a result or a timeline.");
  }
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float side = std::min(theme.px(300), room.x * 0.35f);
  draw_plots(session, theme, room.x - side - theme.px(10), room.y);
  ImGui::SameLine(0, theme.px(10));
  draw_residents(session, theme);
}

}  // namespace

std::unique_ptr<View> make_occupancy_view() { return std::make_unique<OccupancyView>(); }

}  // namespace tencache::gui
