#include "gui/views/timeline_lanes.h"

#include <algorithm>
#include <cmath>

#include "gui/model/describe.h"

namespace tencache::gui {
namespace {

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

}  // namespace

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
  for (std::size_t phase = 0; phase < phase_count; ++phase) {
    if (used[phase]) entries.push_back({theme.palette.phases[phase], label_of(static_cast<Phase>(phase))});
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

}  // namespace tencache::gui
