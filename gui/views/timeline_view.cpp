// The timeline: lanes of every run, predicted above measured, on one scale and aligned by iteration.
#include <fmt/format.h>
#include <imgui.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gui/model/describe.h"
#include "gui/model/session.h"
#include "gui/views/bars.h"
#include "gui/views/canvas.h"
#include "gui/views/theme.h"
#include "gui/views/view.h"

namespace tencache::gui {
namespace {

// ---- Lanes: spans with their names, marks of what is searched and selected, arrows from copies to the ops that use
// them, and the errors between two runs.

// Where a lane is drawn.
struct Lane {
  std::size_t run = 0, track = 0;
  float top = 0, height = 0;
};

constexpr std::size_t most_arrows = 400;

const Lane* lane_of(const Session& session, const std::vector<Lane>& lanes, std::size_t run, std::uint8_t number) {
  for (const Lane& lane : lanes) {
    if (lane.run == run && session.runs()[run]->tracks()[lane.track].lane() == number) return &lane;
  }
  return nullptr;
}

std::string name_of(const Run& run, const Span& span) {
  if (span.kind == SpanKind::transfer) return std::string(run.tensor_name(span.tensor));
  if (span.kind == SpanKind::stall) return "waits for " + std::string(label_of(span.cause));
  return span.kind == SpanKind::gap ? "host" : std::string(run.op_name(span.op));
}

void draw_name(ImDrawList& list, const Theme& theme, const Run& run, const Span& span, ImVec2 min, ImVec2 max,
               ImU32 color) {
  const float font = ImGui::GetFontSize();
  if (max.x - min.x < theme.px(26) || max.y - min.y < font) return;
  const std::string text = name_of(run, span);
  const ImVec2 at{min.x + theme.px(3), min.y + (max.y - min.y - font) / 2};
  const float room = max.x - theme.px(3) - at.x;
  if (span.kind == SpanKind::stall && room > theme.px(26)) {  // letters on hatching need a ground
    const float width = std::min(room, ImGui::CalcTextSize(text.c_str()).x);
    list.AddRectFilled({at.x - theme.px(2), at.y}, {at.x + width + theme.px(2), at.y + font}, color);
  }
  draw_clipped_text(list, at, room, readable_on(color), text.data(), text.data() + text.size());
}

// Ticks above and below the lane where matches and the selection are too narrow to be outlined.
void draw_marks(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, const Lane& lane,
                VisibleTrack& visible) {
  const Run& run = *session.runs()[lane.run];
  const auto origin = static_cast<double>(session.shown().origin_ns(lane.run));
  const auto tick = [&](float begin, float end, ImU32 color) {
    end = std::max(end, begin + theme.px(2));
    if (end < axis.left || begin > axis.left + axis.width) return;
    list.AddRectFilled({begin, lane.top - theme.px(2)}, {end, lane.top + theme.px(2)}, color);
    list.AddRectFilled({begin, lane.top + lane.height - theme.px(4)}, {end, lane.top + lane.height}, color);
  };
  if (const Track* marks = session.search().marks(lane.run, lane.track); marks != nullptr) {
    marks->collect(axis.begin_ns + origin, axis.end_ns + origin, axis.pixels(), visible);
    std::size_t first = 0;  // of the pixels with any, beside each other
    for (std::size_t pixel = 0; pixel <= axis.pixels(); ++pixel) {
      const bool any = pixel < axis.pixels() && std::any_of(&visible.columns[pixel * slot_count],
                                                            &visible.columns[pixel * slot_count] + slot_count,
                                                            [](float share) { return share > 0; });
      if (any) continue;
      if (first < pixel)
        tick(axis.left + static_cast<float>(first), axis.left + static_cast<float>(pixel), theme.match);
      first = pixel + 1;
    }
    for (const std::uint32_t index : visible.items) {
      const TrackItem& item = marks->items()[index];
      tick(axis.clamped_x(static_cast<double>(item.begin_ns) - origin),
           axis.clamped_x(static_cast<double>(item.end_ns) - origin), theme.match);
    }
  }
  const std::uint32_t selected = session.selected_in(lane.run);
  if (selected == none) return;
  const std::uint8_t number = run.tracks()[lane.track].lane();
  const bool op = session.selection.kind == Selection::Kind::op;
  for (const std::uint32_t index : op ? run.spans_of_op(selected) : run.transfers_of(selected)) {
    const Span& span = run.spans()[index];
    if (span.lane != number) continue;
    tick(axis.clamped_x(static_cast<double>(span.start_ns) - origin),
         axis.clamped_x(static_cast<double>(span.end_ns) - origin), theme.selection);
  }
}

// `visible`: scratch.
void draw_lane(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, const Lane& lane,
               VisibleTrack& visible) {
  const Run& run = *session.runs()[lane.run];
  const Track& track = run.tracks()[lane.track];
  const bool searching = !session.search().text().empty();
  const std::uint32_t selected = session.selected_in(lane.run);
  const auto span_of = [&run](const TrackItem& item) -> const Span& { return run.spans()[item.span]; };
  const auto on_item = [&](const TrackItem& item, ImVec2 min, ImVec2 max, ImU32 color) {
    const Span& span = span_of(item);
    const bool is_selected = selected != none && (session.selection.kind == Selection::Kind::op
                                                      ? span.kind != SpanKind::transfer && span.op == selected
                                                      : span.kind == SpanKind::transfer && span.tensor == selected);
    if (is_selected) list.AddRect(min, max, theme.selection, 0, 0, theme.px(2));
    if (searching && session.search().matches(lane.run, span))
      list.AddRect(min, max, theme.match, 0, 0, theme.px(1.5f));
    draw_name(list, theme, run, span, min, max, color);
  };
  const auto strength = [&](const TrackItem& item) {
    return searching && !session.search().matches(lane.run, span_of(item)) ? 0.35f : 1.0f;
  };
  draw_track(list, theme, axis, run, track, session.shown().origin_ns(lane.run), lane.top, lane.height - 1, visible,
             searching ? 0.45f : 1.0f, on_item, strength);
  draw_marks(session, theme, list, axis, lane, visible);
}

// A strip, up where the prediction took longer than the measured op did; full height is a factor of two.
void draw_errors(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis, float top,
                 float height) {
  const std::vector<OpError>& errors = session.shown().op_errors();
  const float middle = std::floor(top + height / 2), half = height / 2 - 1;
  list.AddRectFilled({axis.left, top}, {axis.left + axis.width, top + height}, theme.lane);
  for (std::size_t pixel = 0; pixel < axis.pixels(); ++pixel) {
    const double begin = axis.begin_ns + axis.pixel_ns() * static_cast<double>(pixel);
    const std::optional<double> error = error_between(errors, begin, begin + axis.pixel_ns());
    if (!error) continue;
    const double off = std::clamp(std::log2(std::max(1e-3, *error)), -1.0, 1.0);
    const float length = static_cast<float>(off) * half;
    const float x = axis.left + static_cast<float>(pixel);
    list.AddRectFilled({x, std::min(middle, middle - length)}, {x + 1, std::max(middle, middle - length) + 1},
                       off > 0 ? theme.text : theme.faint_text);
  }
  list.AddLine({axis.left, middle}, {axis.left + axis.width, middle}, theme.faint_text);
}

// Of what is selected.
void draw_arrows(const Session& session, const Theme& theme, ImDrawList& list, const TimeAxis& axis,
                 const std::vector<Lane>& lanes) {
  const Selection& selection = session.selection;
  for (std::size_t r = 0; r < session.runs().size(); ++r) {
    const std::uint32_t id = session.selected_in(r);
    if (id == none) continue;
    const Run& run = *session.runs()[r];
    const Nanoseconds origin = session.shown().origin_ns(r);
    std::vector<std::uint32_t> transfers;
    const auto inside = [&](std::uint32_t index) {
      const Span& span = run.spans()[index];
      return axis.clamped_x(static_cast<double>(span.end_ns - origin)) > axis.left - 8 &&
             axis.clamped_x(static_cast<double>(span.start_ns - origin)) < axis.left + axis.width + 8;
    };
    if (selection.kind == Selection::Kind::tensor) {
      for (const std::uint32_t transfer : run.transfers_of(id)) {
        if (run.used_by(transfer) != none && (inside(transfer) || inside(run.used_by(transfer)))) {
          transfers.push_back(transfer);
        }
      }
    } else {
      for (const std::uint32_t span : run.spans_of_op(id)) {
        if (!inside(span)) continue;
        const std::vector<std::uint32_t> brought = run.brought_for(span);
        transfers.insert(transfers.end(), brought.begin(), brought.end());
      }
    }
    if (transfers.size() > most_arrows) transfers.resize(most_arrows);
    for (const std::uint32_t transfer : transfers) {
      const Span& copy = run.spans()[transfer];
      const Span& use = run.spans()[run.used_by(transfer)];
      const Lane* from = lane_of(session, lanes, r, copy.lane);
      const Lane* to = lane_of(session, lanes, r, use.lane);
      if (from == nullptr || to == nullptr) continue;
      const ImVec2 a{axis.clamped_x(static_cast<double>(copy.end_ns - origin)), from->top + from->height / 2};
      const ImVec2 b{axis.clamped_x(static_cast<double>(use.start_ns - origin)), to->top + to->height};
      const float bend = std::max(theme.px(12), (b.x - a.x) / 3);
      const ImU32 color = copy.urgent ? theme.error : theme.selection;
      list.AddBezierCubic(a, {a.x + bend, a.y}, {b.x - bend / 2, b.y + theme.px(18)}, b, color, theme.px(1.5f));
      list.AddCircleFilled(a, theme.px(2.5f), color);
      list.AddTriangleFilled({b.x - theme.px(4), b.y + theme.px(6)}, {b.x + theme.px(4), b.y + theme.px(6)}, b, color);
    }
  }
}

// Only what occurs, so that it stays short. Of a generation: it asks all tracks.
std::vector<LegendItem> timeline_legend(const Session& session, const Theme& theme) {
  std::array<bool, slot_count> used{};
  bool links = false;
  for (const RunPointer& run : session.runs()) {
    for (const Track& track : run->tracks()) {
      links = links || track.is_link();
      if (track.is_link()) continue;
      const Track::Covered covered = track.covered();
      for (std::size_t slot = 0; slot < slot_count; ++slot) used[slot] = used[slot] || covered[slot] > 0;
    }
  }
  std::vector<LegendItem> entries;
  for (std::size_t slot = 0; slot < gap_slot; ++slot) {
    if (used[slot]) entries.push_back({theme.palette.phases[slot], label_of_op(slot)});
  }
  if (used[gap_slot]) entries.push_back({theme.gap, "host time"});
  bool stalls_named = false;
  for (const StallCause cause : all_causes) {
    if (!used[slot_of(cause)]) continue;
    const std::string label = (stalls_named ? "" : "stalls for: ") + std::string(label_of(cause));
    entries.push_back({theme.palette.of(cause), label, true});
    stalls_named = true;
  }
  if (links) entries.push_back({theme.ghost, "copies: asked for ahead, waited for", false, true});
  if (!session.shown().op_errors().empty()) entries.push_back({theme.text, "error: up, predicted too long"});
  return entries;
}

constexpr std::size_t least_detail_lines = 7;

class TimelineView : public View {
 public:
  const char* name() const override { return "timeline"; }
  const char* title() const override { return "Timeline"; }
  void draw(Session& session, const Theme& theme) override;
  std::vector<std::pair<const char*, const char*>> keys() const override {
    return {{"W S, wheel", "zoom at the cursor"},
            {"A D, drag", "move in time"},
            {"F", "fit one iteration"},
            {"0", "show the whole run"},
            {"[ ]", "align at the iteration before, after"},
            {"click", "select an op, a copy, a stall"},
            {"shift+drag", "measure a stretch of time"},
            {"/", "search ops, modules, tensors"},
            {"N, shift+N", "next, previous match"},
            {"G", "go to what is selected"},
            {"esc", "clear selection and range"}};
  }
  std::string csv(const Session& session) const override {
    const auto [begin, end] = session.time_range.value_or(std::pair(session.window.begin_ns, session.window.end_ns));
    return spans_csv(session, begin, end);
  }

 private:
  void draw_toolbar(Session& session, const Theme& theme);
  void draw_choice_of_runs(Session& session, const Theme& theme);
  void draw_canvas(Session& session, const Theme& theme, float height);
  float layout(const Session& session, const Theme& theme, float top, float height);
  void draw_run_header(const Session& session, const Theme& theme, ImDrawList& list, std::size_t run, float top,
                       float right);
  void draw_details(Session& session, const Theme& theme, float height);
  const Lane* lane_at(float y) const;
  const TrackItem* item_at(const Session& session, const TimeAxis& axis, const Lane& lane, ImVec2 mouse) const;

  std::vector<Lane> lanes_;
  std::vector<float> run_tops_;
  float label_width_ = 0, errors_top_ = 0, errors_height_ = 0;
  VisibleTrack visible_;
  std::string search_;
  // What costs more than a frame may: of one generation.
  std::uint64_t prepared_ = ~std::uint64_t{0};
  std::vector<std::string> headlines_, beliefs_;
  std::vector<Measurement> iterations_;
  std::vector<LegendItem> legend_;
  bool legend_is_light_ = false;
  std::size_t detail_lines_ = least_detail_lines;
};

// ---- Layout ---------------------------------------------------------------------------------------------------------

float header_height(const Theme& theme) { return ImGui::GetFontSize() + theme.px(8); }

float TimelineView::layout(const Session& session, const Theme& theme, float top, float height) {
  lanes_.clear();
  run_tops_.clear();
  const float op_lane = theme.px(40), link_lane = theme.px(24), gap = theme.px(3);
  errors_height_ = session.shown().op_errors().empty() ? 0 : theme.px(30);
  float fixed = errors_height_ > 0 ? errors_height_ + theme.px(4) : 0, stretching = 0;
  label_width_ = theme.px(90);
  for (const RunPointer& run : session.runs()) {
    fixed += header_height(theme);
    for (const Track& track : run->tracks()) {
      stretching += track.is_link() ? link_lane : op_lane;
      fixed += gap;
      label_width_ = std::max(label_width_, ImGui::CalcTextSize(track.name().c_str()).x + theme.px(16));
    }
  }
  const float stretch = std::clamp((height - fixed) / std::max(1.0f, stretching), 0.75f, 7.0f);
  float y = top;
  for (std::size_t r = 0; r < session.runs().size(); ++r) {
    const Run& run = *session.runs()[r];
    if (r > 0 && run.origin() == Origin::measured && session.runs()[r - 1]->origin() == Origin::predicted) {
      errors_top_ = y;
      if (errors_height_ > 0) y += errors_height_ + theme.px(4);
    }
    run_tops_.push_back(y);
    y += header_height(theme);
    for (std::size_t t = 0; t < run.tracks().size(); ++t) {
      const float lane = std::floor((run.tracks()[t].is_link() ? link_lane : op_lane) * stretch);
      lanes_.push_back({r, t, y, lane});
      y += lane + gap;
    }
  }
  return y - top;
}

const Lane* TimelineView::lane_at(float y) const {
  for (const Lane& lane : lanes_) {
    if (y >= lane.top && y < lane.top + lane.height) return &lane;
  }
  return nullptr;
}

const TrackItem* TimelineView::item_at(const Session& session, const TimeAxis& axis, const Lane& lane,
                                       ImVec2 mouse) const {
  const Track& track = session.runs()[lane.run]->tracks()[lane.track];
  const auto row = static_cast<std::uint8_t>((mouse.y - lane.top) / lane.height * track.row_count());
  const double time = axis.time(mouse.x) + static_cast<double>(session.shown().origin_ns(lane.run));
  return track.at(time, row, 2 * axis.pixel_ns());
}

// ---- The whole ------------------------------------------------------------------------------------------------------

void TimelineView::draw_run_header(const Session& session, const Theme& theme, ImDrawList& list, std::size_t run,
                                   float top, float right) {
  const Run& r = *session.runs()[run];
  const float x = ImGui::GetWindowPos().x + theme.px(4), y = top + theme.px(4);
  list.AddRectFilled({x, top}, {right, top + header_height(theme)}, theme.background);  // over the lines of time
  ImFont* bold = theme.fonts.bold != nullptr ? theme.fonts.bold : ImGui::GetFont();
  const float size = ImGui::GetFontSize();
  list.AddText(bold, size, {x, y}, theme.text, r.title().c_str());
  float at = x + bold->CalcTextSizeA(size, FLT_MAX, 0, r.title().c_str()).x + theme.px(14);
  list.AddText({at, y}, theme.text, headlines_[run].c_str());
  at += ImGui::CalcTextSize(headlines_[run].c_str()).x + theme.px(14);
  const std::string& believed = beliefs_[run];
  draw_clipped_text(list, {at, y}, right - at, theme.faint_text, believed.data(), believed.data() + believed.size());
  const float source = ImGui::CalcTextSize(r.source().c_str()).x;  // if there is room
  at += ImGui::CalcTextSize(believed.c_str()).x + theme.px(14);
  if (at + source <= right) list.AddText({right - source, y}, theme.faint_text, r.source().c_str());
}

void TimelineView::draw_toolbar(Session& session, const Theme& theme) {
  if (session.search().text() != search_) search_ = session.search().text();
  ImGui::SetNextItemWidth(theme.px(260));
  const bool wanted = typed('/');
  if (ImGui::InputTextWithHint("##search", "search ops, modules, tensors  (/)", &search_)) session.look_for(search_);
  if (wanted) ImGui::SetKeyboardFocusHere(-1);  // asked for before the item, ImGui 1.90 does not give it
  if (ImGui::IsItemDeactivated() && ImGui::IsKeyPressed(ImGui::GetKeyIndex(ImGuiKey_Enter))) {
    session.select_next_match(1);
  }
  if (!search_.empty()) {
    ImGui::SameLine();
    ImGui::TextDisabled("%zu ops, %zu tensors", session.search().ops().size(), session.search().tensors().size());
  }
  ImGui::SameLine(0, theme.px(18));
  draw_iteration_choice(session, theme);
  ImGui::SameLine(0, theme.px(18));
  if (ImGui::Button("Fit")) session.fit();
  ImGui::SameLine();
  if (ImGui::Button("Whole run")) session.fit_all();
  draw_choice_of_runs(session, theme);
  ImGui::SameLine(0, theme.px(18));
  draw_legend(theme, legend_);
}

// Of the ranks of a trace of several, and of files of many runs.
void TimelineView::draw_choice_of_runs(Session& session, const Theme& theme) {
  if (session.shown().all().size() < 3 && session.runs().size() == session.shown().all().size()) return;
  ImGui::SameLine(0, theme.px(18));
  ImGui::SetNextItemWidth(theme.px(130));
  const std::string label = fmt::format("{} of {} runs", session.runs().size(), session.shown().all().size());
  if (!ImGui::BeginCombo("##runs", label.c_str(), ImGuiComboFlags_HeightLarge)) return;
  for (std::size_t i = 0; i < session.shown().all().size(); ++i) {
    bool chosen = session.shown().chosen()[i] != 0;
    ImGui::PushID(static_cast<int>(i));
    if (ImGui::Checkbox(session.shown().all()[i]->title().c_str(), &chosen)) session.choose(i, chosen);
    ImGui::PopID();
  }
  ImGui::EndCombo();
}

void TimelineView::draw_canvas(Session& session, const Theme& theme, float height) {
  ImGui::BeginChild("lanes", {0, height}, false, ImGuiWindowFlags_NoScrollWithMouse);
  const ImVec2 corner = ImGui::GetCursorScreenPos();
  const float ruler = ruler_height(theme), width = ImGui::GetContentRegionAvail().x;
  const float content = layout(session, theme, corner.y + ruler, height - ruler);
  const float bottom = corner.y + ruler + content;
  ImGui::InvisibleButton("canvas", {width, std::max(height, ruler + content) - 1});
  const bool hovered = ImGui::IsItemHovered();
  const TimeAxis axis = axis_of(session, corner.x + label_width_, width - label_width_ - theme.px(4));
  ImGuiIO& io = ImGui::GetIO();
  const bool over_lanes = hovered && io.MousePos.x >= axis.left;
  const bool clicked = handle_time_input(session, axis, over_lanes);

  ImDrawList& list = *ImGui::GetWindowDrawList();
  draw_ruler(list, theme, axis, corner.y, bottom);
  for (std::size_t run = 0; run < session.runs().size(); ++run) {
    draw_run_header(session, theme, list, run, run_tops_[run], axis.left + axis.width);
  }
  for (const Lane& lane : lanes_) {
    const std::string& name = session.runs()[lane.run]->tracks()[lane.track].name();
    list.AddText({corner.x + theme.px(6), lane.top + (lane.height - ImGui::GetFontSize()) / 2}, theme.text,
                 name.c_str());
  }
  if (errors_height_ > 0) {
    list.AddText({corner.x + theme.px(6), errors_top_ + (errors_height_ - ImGui::GetFontSize()) / 2}, theme.faint_text,
                 "error");
  }
  list.PushClipRect({axis.left, corner.y}, {axis.left + axis.width, corner.y + std::max(height, ruler + content)},
                    true);
  for (const Lane& lane : lanes_) draw_lane(session, theme, list, axis, lane, visible_);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {  // from the first lane of a run to its last
    const std::size_t run = lanes_[i].run;
    if (i > 0 && lanes_[i - 1].run == run) continue;
    std::size_t last = i;
    while (last + 1 < lanes_.size() && lanes_[last + 1].run == run) ++last;
    draw_steps(list, theme, axis, *session.runs()[run], session.shown().origin_ns(run), lanes_[i].top,
               lanes_[last].top + lanes_[last].height);
  }
  if (errors_height_ > 0) draw_errors(session, theme, list, axis, errors_top_, errors_height_);
  draw_arrows(session, theme, list, axis, lanes_);
  draw_cursor_and_range(list, theme, session, axis, corner.y, bottom);
  list.PopClipRect();

  if (over_lanes) {
    const Lane* lane = lane_at(io.MousePos.y);
    const TrackItem* item = lane == nullptr ? nullptr : item_at(session, axis, *lane, io.MousePos);
    if (clicked) session.selection = {};
    if (item != nullptr && clicked) session.select_span(lane->run, item->span);
    if (item != nullptr && !ImGui::IsMouseDown(ImGuiMouseButton_Left)) {
      draw_facts_tooltip(theme, describe_span(*session.runs()[lane->run], item->span));
    } else if (errors_height_ > 0 && io.MousePos.y >= errors_top_ && io.MousePos.y < errors_top_ + errors_height_) {
      ImGui::SetTooltip(
          "predicted against measured time of each op with its waits:\nup: predicted longer, down: shorter; "
          "full height: twice or half");
    }
  }
  ImGui::EndChild();
}

void TimelineView::draw_details(Session& session, const Theme& theme, float height) {
  ImGui::BeginChild("details", {0, height}, false);
  const bool selected = session.selection.kind != Selection::Kind::nothing;
  if (selected && !session.time_range) {
    draw_facts(theme, describe_selection(session), ImGui::GetContentRegionAvail().x - theme.px(20));
  } else {  // where the time of the stretch, or else of the whole iteration, goes
    const float width = ImGui::GetContentRegionAvail().x / static_cast<float>(2 * session.runs().size());
    float at = ImGui::GetCursorPosX();
    const auto column = [&](const Facts& facts) {
      ImGui::BeginGroup();
      draw_facts(theme, facts, width - theme.px(20));
      ImGui::EndGroup();
      at += width;
      ImGui::SameLine(at);
    };
    for (std::size_t run = 0; run < session.runs().size(); ++run) {
      Measurement measured = iterations_[run];
      if (session.time_range)
        measured = session.shown().measure(run, session.time_range->first, session.time_range->second);
      column(describe_measurement(session, run, measured));
      column(describe_moved(measured));
    }
    ImGui::NewLine();
  }
  ImGui::EndChild();
}

void TimelineView::draw(Session& session, const Theme& theme) {
  if (session.runs().empty()) {
    return draw_no_run(session, "No timeline: open a trace, a result or a timeline, or drop one here.");
  }
  draw_toolbar(session, theme);  // first: it may change which runs there are
  if (prepared_ != session.shown().generation() || legend_is_light_ != theme.light) {
    prepared_ = session.shown().generation();
    legend_is_light_ = theme.light;
    legend_ = timeline_legend(session, theme);
    headlines_.clear();
    beliefs_.clear();
    iterations_.clear();
    detail_lines_ = least_detail_lines;
    for (std::size_t run = 0; run < session.runs().size(); ++run) {
      headlines_.push_back(headline(session, run));
      beliefs_.push_back(belief(session, run));
      const auto length = static_cast<double>(session.shown().aligned_length_ns(run));
      iterations_.push_back(session.shown().measure(run, 0, length));
      detail_lines_ = std::max(detail_lines_, describe_measurement(session, run, iterations_.back()).size());
    }
  }
  const float available = ImGui::GetContentRegionAvail().y;
  const float line = ImGui::GetFontSize() + ImGui::GetStyle().ItemSpacing.y;
  const float details = std::min(available * 0.35f, line * static_cast<float>(detail_lines_) + theme.px(8));
  draw_canvas(session, theme, available - details - ImGui::GetStyle().ItemSpacing.y);
  draw_details(session, theme, details);
}

}  // namespace

std::unique_ptr<View> make_timeline_view() { return std::make_unique<TimelineView>(); }

}  // namespace tencache::gui
