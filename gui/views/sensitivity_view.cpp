// Time against a figure of the machine, a line a policy (answers/sensitivity.h); where more of it gains nothing is
// marked.
#include <imgui.h>

#include <algorithm>

#include "gui/views/canvas.h"
#include "gui/views/chart.h"
#include "gui/views/document_table.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

class SensitivityView : public View {
 public:
  const char* name() const override { return "sensitivity"; }
  const char* title() const override { return "Sensitivity"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"L", "time linear or logarithmic"}, {"point at a line", "its figures; the others fade"}};
  }
  std::string csv(const Session& session) const override {
    const auto& plots = session.documents().plots();
    return plots.empty() ? std::string() : table_csv(points_table(*plots[std::min(chosen_, plots.size() - 1)]));
  }

 private:
  void choose(const SensitivityAnswer& plot);
  void draw_bar(const std::vector<SensitivityPointer>& plots, const Theme& theme);

  std::size_t chosen_ = 0, known_ = 0;
  LineChart chart_;
  DocumentTableView knees_;
  bool logarithmic_ = false;
  std::size_t pointed_at_ = none;  // a line
};

void SensitivityView::choose(const SensitivityAnswer& plot) {
  const tencache::Document document = document_of(plot);
  chart_ = *document.first<LineChart>();
  knees_.show({});
  for (const DocumentBlock& block : document.blocks) {
    const auto* const table = std::get_if<DocumentTable>(&block);
    if (table != nullptr && table->shown == Shown::on_page) knees_.show(*table);
  }
}

void SensitivityView::draw_bar(const std::vector<SensitivityPointer>& plots, const Theme& theme) {
  if (plots.size() != known_) {  // the newest is what somebody waits for
    known_ = plots.size();
    chosen_ = known_ - 1;
    choose(*plots[chosen_]);
    logarithmic_ = wants_logarithm(chart_);
  }
  ImGui::AlignTextToFramePadding();
  if (plots.size() == 1) {
    draw_bold(theme, title_of(*plots[chosen_]));
  } else {
    ImGui::SetNextItemWidth(theme.px(430));
    if (ImGui::BeginCombo("##plot", title_of(*plots[chosen_]).c_str())) {
      for (std::size_t i = 0; i < plots.size(); ++i) {
        ImGui::PushID(static_cast<int>(i));
        if (ImGui::Selectable(title_of(*plots[i]).c_str(), i == chosen_)) choose(*plots[chosen_ = i]);
        ImGui::PopID();
      }
      ImGui::EndCombo();
    }
  }
  ImGui::SameLine(0, theme.px(18));
  if (!ImGui::GetIO().WantTextInput && ImGui::IsKeyPressed(key_of('L'), false)) logarithmic_ = !logarithmic_;
  ImGui::Checkbox("logarithmic time", &logarithmic_);
  ImGui::SameLine(0, theme.px(18));
  ImGui::TextDisabled("%s", chart_.note.c_str());
}

void SensitivityView::draw(Session& session, const Theme& theme) {
  const std::vector<SensitivityPointer>& plots = session.documents().plots();
  if (plots.empty()) {
    ImGui::TextDisabled("%s", session.documents().plotting()
                                  ? "Simulating…"
                                  : "No sensitivity: open what `tencache sensitivity TRACE -m MACHINE "
                                    "--over pcie=4GB/s..64GB/s --json` printed, or choose \"vary\" "
                                    "beside a slider of \"What if\".");
    return;
  }
  draw_bar(plots, theme);
  const ImVec2 room = ImGui::GetContentRegionAvail();
  const float row = ImGui::GetFontSize() + theme.px(8);
  const float table = std::min(room.y * 0.35f, row * static_cast<float>(knees_.table().rows.size() + 1) + theme.px(12));
  const float height = std::max(theme.px(120), room.y - table - ImGui::GetStyle().ItemSpacing.y);
  draw_chart(theme, chart_, {room.x, height}, logarithmic_, pointed_at_);
  knees_.draw(theme);
}

}  // namespace

std::unique_ptr<View> make_sensitivity_view() { return std::make_unique<SensitivityView>(); }

}  // namespace tencache::gui
