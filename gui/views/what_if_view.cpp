// Another machine or policy: knobs on the left, what they change on the right, beside what was before.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "gui/model/describe.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"
#include "gui/views/view.h"
#include "policies/registry.h"

namespace tencache::gui {
namespace {

// One bar of the comparison.
struct Bar {
  std::string label;
  double seconds = 0;
  const Simulated* of = nullptr;  // null: no more is known than the time
  bool faint = false;
};

class WhatIfView : public View {
 public:
  const char* name() const override { return "what-if"; }
  const char* title() const override { return "What if"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"sliders", "another machine, simulated as they move"},
            {"boxes", "the same as a number: 24GiB, 12GB/s, 1.5"},
            {"right click", "a slider back to the machine's own"},
            {"vary", "time against the slider's figure, under several policies"},
            {"As it was", "all sliders back"},
            {"Compare with this", "what is shown is what the next changes are compared with"}};
  }

 private:
  void draw_controls(Session& session, const Theme& theme);
  void draw_policy(Session& session, const Theme& theme);
  bool draw_knob(Session& session, const Theme& theme, Knob& knob);
  void draw_outcome(const Session& session, const Theme& theme);
  void draw_bars(const Session& session, const Theme& theme);
  void draw_lanes(Session& session, const Theme& theme);

  std::vector<PolicyInfo> policies_ = list_policies();
  VisibleTrack visible_;
};

// ---- Controls -------------------------------------------------------------------------------------------------------

bool WhatIfView::draw_knob(Session& session, const Theme& theme, Knob& knob) {
  ImGui::PushID(knob.label);
  ImGui::AlignTextToFramePadding();
  const bool moved = knob.moved();
  ImGui::PushStyleColor(ImGuiCol_Text, moved ? theme.accent : theme.text);
  ImGui::TextUnformatted(knob.label);
  ImGui::PopStyleColor();
  ImGui::SameLine(theme.px(100));
  ImGui::SetNextItemWidth(theme.px(140));
  bool changed = ImGui::SliderScalar("##slider", ImGuiDataType_Double, &knob.value, &knob.least, &knob.most, "",
                                     ImGuiSliderFlags_Logarithmic | ImGuiSliderFlags_NoInput);
  if (ImGui::IsItemActivated()) session.keep_ghost();
  // Where the machine itself stands.
  const ImVec2 min = ImGui::GetItemRectMin(), max = ImGui::GetItemRectMax();
  const float x = min.x + (max.x - min.x) * static_cast<float>(knob.original_share());
  ImGui::GetWindowDrawList()->AddLine({x, max.y - theme.px(3)}, {x, max.y}, theme.faint_text, theme.px(1.5f));
  if (ImGui::IsItemClicked(ImGuiMouseButton_Right) && moved) {
    session.keep_ghost();
    knob.value = knob.original;
    changed = true;
  }
  ImGui::SameLine();
  ImGui::SetNextItemWidth(theme.px(90));
  std::string typed = knob.text();
  if (ImGui::InputText("##box", &typed, ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_AutoSelectAll)) {
    try {
      std::erase(typed, ' ');
      Knob parsed = knob;
      parsed.parse(typed);
      session.keep_ghost();
      knob = parsed;
      changed = true;
    } catch (const Error& error) {
      session.say(error.what(), true);
    }
  }
  if (!parameter_of_knob(session.what_if->base(), knob.name).empty()) {
    ImGui::SameLine(0, theme.px(4));
    if (ImGui::Button("vary")) session.plot(knob);
    if (ImGui::IsItemHovered()) ImGui::SetTooltip("The time against this, under several policies");
  }
  ImGui::PopID();
  return changed;
}

void WhatIfView::draw_policy(Session& session, const Theme& theme) {
  WhatIf& what_if = *session.what_if;
  ImGui::AlignTextToFramePadding();
  ImGui::TextUnformatted("Policy");
  ImGui::SameLine(theme.px(100));
  ImGui::SetNextItemWidth(theme.px(238));
  if (ImGui::BeginCombo("##policy", what_if.policy.name.c_str(), ImGuiComboFlags_HeightLargest)) {
    for (const PolicyInfo& policy : policies_) {
      if (ImGui::Selectable(policy.name.c_str(), policy.name == what_if.policy.name)) {
        session.keep_ghost();
        what_if.policy = {policy.name, {}};
        session.rerun();
      }
      if (ImGui::IsItemHovered()) ImGui::SetTooltip("%s\n%s", policy.summary.c_str(), policy.source.c_str());
    }
    ImGui::EndCombo();
  }
  const auto policy = std::ranges::find(policies_, what_if.policy.name, &PolicyInfo::name);
  if (policy == policies_.end() || policy->options.empty()) return;
  if (!ImGui::CollapsingHeader(fmt::format("options of {}###options", policy->name).c_str())) return;
  for (const Options::Info& option : policy->options) {
    ImGui::PushID(option.name.c_str());
    const auto set = what_if.policy.settings.find(option.name);
    std::string value = set == what_if.policy.settings.end() ? option.default_value : set->second;
    draw_clipped_text(*ImGui::GetWindowDrawList(),
                      {ImGui::GetCursorScreenPos().x, ImGui::GetCursorScreenPos().y + ImGui::GetStyle().FramePadding.y},
                      theme.px(170), theme.text, option.name.data(), option.name.data() + option.name.size());
    ImGui::SetCursorPosX(ImGui::GetCursorPosX() + theme.px(180));
    ImGui::SetNextItemWidth(theme.px(150));
    bool changed = false;
    if (!option.choices.empty()) {
      if (ImGui::BeginCombo("##choice", value.c_str())) {
        for (const std::string& choice : option.choices) {
          if (ImGui::Selectable(choice.c_str(), choice == value)) {
            value = choice;
            changed = true;
          }
        }
        ImGui::EndCombo();
      }
    } else {
      changed = ImGui::InputText("##value", &value, ImGuiInputTextFlags_EnterReturnsTrue);
    }
    if (ImGui::IsItemHovered()) ImGui::SetTooltip("%s", option.help.c_str());
    if (changed) {
      session.keep_ghost();
      what_if.policy.settings[option.name] = value;
      session.rerun();
    }
    ImGui::PopID();
  }
}

void WhatIfView::draw_controls(Session& session, const Theme& theme) {
  WhatIf& what_if = *session.what_if;
  draw_bold(theme, what_if.base().machine.name);
  ImGui::SameLine();
  ImGui::TextDisabled("%s", trace_name(what_if.base()).c_str());
  ImGui::Spacing();
  for (Knob& knob : what_if.knobs()) {
    if (draw_knob(session, theme, knob)) session.rerun();
  }
  ImGui::Spacing();
  draw_policy(session, theme);
  ImGui::Spacing();
  if (ImGui::Button("As it was") && what_if.changed()) {
    session.keep_ghost();
    what_if.reset();
    session.rerun();
  }
  ImGui::SameLine();
  if (ImGui::Button("Compare with this")) session.keep_ghost();
  if (ImGui::IsItemHovered()) ImGui::SetTooltip("What is shown now becomes what the next changes are compared with");
}

// ---- Outcome --------------------------------------------------------------------------------------------------------

// ", 5178 tokens/s", which compares other batches too; empty where the trace does not say.
std::string tokens_text(const Simulated& simulated) {
  const std::uint64_t tokens = simulated.workload.trace->header.tokens_per_iteration();
  if (tokens == 0 || simulated.iteration_seconds() <= 0) return "";
  return fmt::format(", {:.0f} tokens/s", static_cast<double>(tokens) / simulated.iteration_seconds());
}

void WhatIfView::draw_outcome(const Session& session, const Theme& theme) {
  const SimulatedPointer now = session.simulated(), before = session.ghost();
  if (now == nullptr) {
    ImGui::TextDisabled("Simulating…");
    return;
  }
  ImGui::PushFont(theme.fonts.bold);
  if (now->fits) {
    std::string text = duration_text(static_cast<Nanoseconds>(now->iteration_seconds() * 1e9)) + " an iteration";
    text += tokens_text(*now);
    if (before != nullptr && before != now) {
      text += fmt::format(
          "; {:+.1f} % against {} before{}", 100 * (now->iteration_seconds() / before->iteration_seconds() - 1),
          duration_text(static_cast<Nanoseconds>(before->iteration_seconds() * 1e9)), tokens_text(*before));
    }
    ImGui::TextUnformatted(text.c_str());
  } else {
    ImGui::PushStyleColor(ImGuiCol_Text, theme.error);
    ImGui::PushTextWrapPos();
    ImGui::TextUnformatted((now->workload.scenario.policy.name + " does not fit: " + now->reason).c_str());
    ImGui::PopTextWrapPos();
    ImGui::PopStyleColor();
  }
  ImGui::PopFont();
  std::string how = now->old_plan ? "the old plan on this machine; the new plan is being made" : "";
  if (session.simulating() && how.empty()) how = "simulating…";
  if (how.empty() && now->fits) {
    const std::string validity = validity_of(session, *now);
    how = interval_of(*now) + validity + (validity == "extrapolated" ? ": no measurement of such a machine" : "");
  }
  ImGui::TextDisabled("%s", how.c_str());
}

void WhatIfView::draw_bars(const Session& session, const Theme& theme) {
  const SimulatedPointer now = session.simulated(), before = session.ghost();
  std::vector<Bar> bars;
  if (now != nullptr && now->bound_choice_seconds) bars.push_back({"bound, any choice", *now->bound_choice_seconds});
  if (now != nullptr && now->bound_seconds > 0) {
    bars.push_back({now->bound_choice_seconds ? "bound, as recorded" : "lower bound", now->bound_seconds});
  }
  if (now != nullptr && now->ideal_seconds > 0) bars.push_back({"ideal", now->ideal_seconds});
  if (before != nullptr && before != now) {
    bars.push_back(
        {"before: " + before->workload.scenario.policy.name, before->iteration_seconds(), before.get(), true});
  }
  if (now != nullptr && now->fits) {
    bars.push_back({(now->old_plan ? "old plan: " : "now: ") + now->workload.scenario.policy.name,
                    now->iteration_seconds(), now.get()});
  }
  double longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, bar.seconds);
  for (const Bar& bar : bars) {  // with its whisker
    if (bar.of != nullptr && bar.of->samples > 0 && std::isfinite(bar.of->high_seconds)) {
      longest = std::max(longest, bar.of->high_seconds);
    }
  }
  if (longest <= 0) return;
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const float font = ImGui::GetFontSize(), height = font + theme.px(8), labels = theme.px(170), figures = theme.px(90);
  const float width = ImGui::GetContentRegionAvail().x - labels - figures - theme.px(10);
  std::vector<TimeParts> all;
  for (const Bar& bar : bars) {
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const BarScale scale{at.x + labels, width, longest};
    const float top = at.y + theme.px(2), thick = height - theme.px(4), alpha = bar.faint ? 0.5f : 1.0f;
    const ImU32 color = bar.faint ? theme.faint_text : theme.text;
    draw_clipped_text(list, {at.x, at.y + theme.px(4)}, labels - theme.px(8), color, bar.label.data(),
                      bar.label.data() + bar.label.size());
    if (bar.of == nullptr) {
      draw_plain_bar(list, scale, top, thick, bar.seconds, theme.ghost);
    } else {
      all.push_back(parts_of(bar.of->result));
      draw_time_bar(list, theme, scale, top, thick, all.back(), alpha);
      if (bar.of->samples > 0 && std::isfinite(bar.of->high_seconds)) {
        draw_whisker(list, theme, scale, top + thick / 2, bar.of->low_seconds, bar.of->high_seconds);
      }
    }
    const std::string text = duration_text(static_cast<Nanoseconds>(bar.seconds * 1e9));
    list.AddText({at.x + labels + width + theme.px(10), at.y + theme.px(4)}, color, text.c_str());
    ImGui::Dummy({ImGui::GetContentRegionAvail().x, height});
  }
  ImGui::Indent(labels);
  draw_legend(theme, legend_of(theme, all));
  ImGui::Unindent(labels);
}

// What was before, faint, above what is now: the last iteration of each, on one scale.
void WhatIfView::draw_lanes(Session& session, const Theme& theme) {
  struct Part {
    const Run* run;
    std::string label;
    float alpha;
  };
  const SimulatedPointer now = session.simulated(), before = session.ghost();
  std::vector<Part> parts;
  if (before != nullptr && before != now && before->run != nullptr)
    parts.push_back({before->run.get(), "before", 0.5f});
  if (now != nullptr && now->fits && now->run != nullptr) parts.push_back({now->run.get(), "now", 1});
  if (parts.empty()) return;
  double longest = 1;
  std::size_t lanes = 0;
  for (const Part& part : parts) {
    longest = std::max(longest, static_cast<double>(part.run->iteration_ns(part.run->iteration_count() - 1)));
    lanes += part.run->tracks().size();
  }
  ImGui::Spacing();
  const ImVec2 corner = ImGui::GetCursorScreenPos(), room = ImGui::GetContentRegionAvail();
  const float labels = theme.px(170), ruler = ruler_height(theme), font = ImGui::GetFontSize();
  const TimeAxis axis{corner.x + labels, std::floor(room.x - labels - theme.px(4)), 0, longest * 1.01};
  ImDrawList& list = *ImGui::GetWindowDrawList();
  const float gap = theme.px(3), between = theme.px(8);
  const float height =
      std::clamp((room.y - ruler - between * static_cast<float>(parts.size())) / static_cast<float>(lanes) - gap, font,
                 theme.px(72));
  float y = corner.y + ruler;
  const float bottom = y + static_cast<float>(lanes) * (height + gap) + between * static_cast<float>(parts.size() - 1);
  draw_ruler(list, theme, axis, corner.y, bottom);
  Theme as_bars = theme;  // which know no phases: blue is compute in both
  as_bars.palette.phases.fill(theme.palette.compute());
  list.PushClipRect(corner, {corner.x + room.x, corner.y + room.y}, true);
  for (const Part& part : parts) {
    const Nanoseconds origin = part.run->iteration_begin_ns(part.run->iteration_count() - 1);
    for (const Track& track : part.run->tracks()) {
      const std::string label = part.label + ": " + track.name();
      list.AddText({corner.x, y + (height - font) / 2}, part.alpha < 1 ? theme.faint_text : theme.text, label.c_str());
      draw_track(
          list, as_bars, axis, *part.run, track, origin, y, height, visible_, part.alpha,
          [](const TrackItem&, ImVec2, ImVec2, ImU32) {}, [&part](const TrackItem&) { return part.alpha; });
      y += height + gap;
    }
    y += between;
  }
  list.PopClipRect();
  ImGui::Dummy({room.x, std::max(1.0f, std::min(room.y, bottom - corner.y))});
}

void WhatIfView::draw(Session& session, const Theme& theme) {
  if (!session.what_if) {
    ImGui::TextDisabled("%s", session.busy()
                                  ? "Working…"
                                  : "Open a trace, or a result whose trace is still there: its machine and policy "
                                    "can be changed here.");
    return;
  }
  ImGui::BeginChild("controls", {theme.px(396), 0}, false);
  draw_controls(session, theme);
  ImGui::EndChild();
  ImGui::SameLine(0, theme.px(14));
  ImGui::BeginChild("outcome", {0, 0}, false);
  draw_outcome(session, theme);
  ImGui::Spacing();
  draw_bars(session, theme);
  draw_lanes(session, theme);
  ImGui::EndChild();
}

}  // namespace

std::unique_ptr<View> make_what_if_view() { return std::make_unique<WhatIfView>(); }

}  // namespace tencache::gui
