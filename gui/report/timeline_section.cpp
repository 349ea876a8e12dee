// Timelines: lanes of each run above one another on one scale, and what the tiers held meanwhile. What is narrower than
// a pixel is merged, so that the page's size does not grow with the spans.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "gui/model/describe.h"
#include "gui/report/html.h"
#include "gui/report/page.h"

namespace tencache::gui {
namespace {

constexpr std::size_t pixels = 900, most_runs = 6;
constexpr double name_width = 130, right_margin = 20;
constexpr double lane_height = 24, row_height = 12, lane_gap = 5, title_height = 24, axis_height = 22;
constexpr double occupancy_height = 110, plot_gap = 34;
constexpr double step_names_height = 14;
constexpr double least_titled_pixels = 4;  // a span that is wider can be pointed at
constexpr std::size_t longest_name = 120;

// The same stretch of every run: its last iteration, from its start, as long as the longest of them.
struct Scale {
  double length_ns = 1;
  double x(double ns) const { return name_width + ns / length_ns * static_cast<double>(pixels); }
};

Nanoseconds origin_of(const Run& run) { return run.iteration_begin_ns(run.iteration_count() - 1); }
Nanoseconds length_of(const Run& run) { return run.iteration_ns(run.iteration_count() - 1); }

std::string time_axis(const Scale& scale, double top, double bottom) {
  const double step = round_step(scale.length_ns);
  std::string svg;
  for (int i = 0; i * step <= scale.length_ns * 1.0001; ++i) {
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{0} {1}V{2}\"/><text class=\"faint\" x=\"{0}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        coordinate(scale.x(i * step)), coordinate(top), coordinate(bottom), coordinate(bottom + 15),
        i == 0 ? "0" : time_text(i * step, step));
  }
  return svg;
}

// What was drawn, for the legend: the slots of lanes of ops, then those of links by cause.
struct UsedSlots {
  std::array<bool, slot_count> ops{};
  EnumMap<StallCause, std::array<bool, 2>> links;
  void add(std::optional<StallCause> link, std::size_t slot) {
    if (link) {
      links[*link][slot == urgent_slot ? 1 : 0] = true;
    } else {
      ops[slot] = true;
    }
  }
};

std::optional<StallCause> link_of(const Run& run, const Track& track) {
  if (!track.is_link()) return std::nullopt;
  return cause_of(run.machine(), static_cast<LinkId>(track.lane() - first_link_lane));
}

// What has no pixel of its own: shares of each pixel, one above the other.
std::string merged_columns(std::optional<StallCause> link, const VisibleTrack& visible, double top, double height,
                           UsedSlots& used) {
  std::vector<double> base(pixels, 0.0);
  std::string svg;
  for (std::size_t slot = 0; slot < slot_count; ++slot) {
    BoxPath path(class_of_slot(link, slot));
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      const double share = visible.share(pixel, slot);
      if (share <= 0) continue;
      const double from = std::round(base[pixel] * height);
      base[pixel] = std::min(1.0, base[pixel] + share);
      // The last pixel line belongs to whoever has anything: nothing vanishes for being short.
      const double to = std::max(std::round(base[pixel] * height), from == 0 ? 1.0 : from);
      path.add(name_width + static_cast<double>(pixel), top + height - to, 1, to - from);
    }
    if (!path.empty()) used.add(link, slot);
    svg += path.svg();
  }
  return svg;
}

std::string span_title(const Run& run, const Span& span) {
  std::string time = duration_text(span.end_ns - span.start_ns);
  switch (span.kind) {
    case SpanKind::op:
      return std::string(run.op_name(span.op)) + ", " + time;
    case SpanKind::gap:
      return "host time, " + time;
    case SpanKind::stall:
      return std::string("waits for ") + label_of(span.cause) + ", " + time;
    case SpanKind::transfer:
      return std::string(run.tensor_name(span.tensor)) + ", " + format_bytes(span.bytes) + ", " + time;
    case SpanKind::move:
      return std::string(run.tensor_name(span.tensor)) + " moves, " + format_bytes(span.bytes) + ", " + time;
  }
  return time;
}

std::string lane(const Run& run, const Track& track, const Scale& scale, double top, UsedSlots& used) {
  const double rows = track.row_count();
  const double height = track.is_link() && rows > 1 ? rows * row_height : lane_height;
  const double origin = static_cast<double>(origin_of(run)), end = origin + scale.length_ns;
  const std::optional<StallCause> link = link_of(run, track);
  VisibleTrack visible;
  track.collect(origin, end, pixels, visible);
  std::string svg = fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><rect class=\"lane\" x=\"{}\" y=\"{}\" width=\"{}\" "
      "height=\"{}\"/>\n",
      coordinate(name_width - 8), coordinate(top + height / 2 + 4), html_text(track.name(), 20), coordinate(name_width),
      coordinate(top), pixels, coordinate(height));
  svg += merged_columns(link, visible, top, height, used);
  std::vector<BoxPath> paths;
  for (std::size_t slot = 0; slot < slot_count; ++slot) paths.emplace_back(class_of_slot(link, slot));
  std::string titled;
  for (const std::uint32_t index : visible.items) {
    const TrackItem& item = track.items()[index];
    const double from = std::max(static_cast<double>(item.begin_ns) - origin, 0.0);
    const double to = std::min(static_cast<double>(item.end_ns) - origin, scale.length_ns);
    if (to <= from) continue;
    const double left = std::round(2 * scale.x(from)) / 2,
                 width = std::max(std::round(2 * scale.x(to)) / 2 - left, 0.5);
    const double share = height / rows, y = top + item.row * share;
    const std::size_t slot = std::min<std::size_t>(item.slot, slot_count - 1);
    used.add(link, slot);
    if (width < least_titled_pixels) {
      paths[slot].add(left, y, width, share);
    } else {
      titled += fmt::format(
          "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
          class_of_slot(link, slot), coordinate(left), coordinate(y), coordinate(std::max(width - 0.5, 0.5)),
          coordinate(share), html_text(span_title(run, run.spans()[item.span]), longest_name));
    }
  }
  for (const BoxPath& path : paths) svg += path.svg();
  return svg + titled;
}

// The beginnings of a text generation's steps in the iteration shown, with their names where there is room.
std::string step_lines(const Run& run, const Scale& scale, double top, double bottom, bool named) {
  constexpr double least_distance = 4, character_width = 6.5;
  const Nanoseconds origin = origin_of(run), end = origin + length_of(run);
  const std::vector<StepBegin>& steps = run.steps();
  std::string svg;
  double last = -least_distance;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].time_ns < origin || steps[i].time_ns >= end) continue;
    const double x = scale.x(static_cast<double>(steps[i].time_ns - origin));
    if (x - last < least_distance) continue;
    last = x;
    const std::string name = step_name(steps[i]);
    svg += fmt::format("<path class=\"step\" data-step=\"{}\" d=\"M{} {}V{}\"/>\n", html_text(name), coordinate(x),
                       coordinate(top), coordinate(bottom));
    const Nanoseconds next = i + 1 < steps.size() ? std::min(steps[i + 1].time_ns, end) : end;
    const double room = scale.x(static_cast<double>(next - origin)) - x;
    if (!named || room < character_width * static_cast<double>(name.size()) + 6) continue;
    svg += fmt::format("<text class=\"faint\" x=\"{}\" y=\"{}\">{}</text>\n", coordinate(x + 3), coordinate(top - 3),
                       html_text(name));
  }
  return svg;
}

double lane_height_of(const Track& track) {
  return track.is_link() && track.row_count() > 1 ? track.row_count() * row_height : lane_height;
}

std::string lanes_figure(const std::vector<RunPointer>& runs, const Scale& scale) {
  std::string body;
  UsedSlots used{};
  double y = 0;
  for (const RunPointer& run : runs) {
    body += fmt::format(
        "<text class=\"title\" x=\"{}\" y=\"{}\" data-spans=\"{}\" data-iteration-ns=\"{}\">{}: an iteration "
        "of {}</text>\n",
        coordinate(name_width), coordinate(y + 16), run->spans().size(), length_of(*run), html_text(run->title(), 80),
        duration_text(length_of(*run)));
    y += title_height + (run->steps().empty() ? 0 : step_names_height);
    const double end = scale.x(static_cast<double>(length_of(*run)));
    const double first = y;
    for (const Track& track : run->tracks()) {
      body += lane(*run, track, scale, y, used);
      y += lane_height_of(track) + lane_gap;
    }
    body += step_lines(*run, scale, first, y - lane_gap, true);
    body += fmt::format("<path class=\"mark\" d=\"M{} {}V{}\"/>\n", coordinate(end), coordinate(first),
                        coordinate(y - lane_gap));
    y += 6;
  }
  std::vector<LegendEntry> entries;
  const auto add = [&entries](std::optional<StallCause> link, std::size_t slot, bool drawn) {
    if (drawn) entries.push_back({class_of_slot(link, slot), label_of_slot(link, slot)});
  };
  for (std::size_t slot = 0; slot < slot_count; ++slot) add({}, slot, used.ops[slot]);
  for (const StallCause cause : all_causes) {
    add(cause, urgent_slot, used.links[cause][1]);
    add(cause, ahead_slot, used.links[cause][0]);
  }
  return fmt::format(
      "<figure>\n{}<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"Timeline\">\n{}{}</svg>\n"
      "<figcaption>The last recorded iteration, all runs on one scale; the upright line is its end. What is "
      "narrower than a pixel is drawn as its share of the pixel. Point at a wide span for its name.{}</figcaption>\n"
      "</figure>\n",
      legend(entries), coordinate(name_width + pixels + right_margin), coordinate(y + axis_height),
      coordinate(name_width + pixels + right_margin), time_axis(scale, 0, y), body,
      std::ranges::any_of(runs, [](const RunPointer& run) { return !run->steps().empty(); })
          ? " Thin lines: where a step of the generation begins, as far as they have room."
          : "");
}

// ---- Occupancy ------------------------------------------------------------------------------------------------------

std::string occupancy_plot(const Run& run, TierId tier, const Scale& scale, double most_bytes, double top,
                           std::array<bool, role_count>& used) {
  const double origin = static_cast<double>(origin_of(run));
  const double shown = std::min(scale.length_ns, static_cast<double>(length_of(run)));
  const auto columns_shown = static_cast<std::size_t>(std::ceil(shown / scale.length_ns * static_cast<double>(pixels)));
  std::vector<OccupancyColumn> columns;
  run.occupancy().collect(tier, origin, origin + scale.length_ns, pixels, columns);
  columns.resize(std::min(columns.size(), columns_shown));
  std::vector<double> base(columns.size(), 0.0);
  std::string svg;
  for (std::size_t role = 0; role < role_count; ++role) {
    BoxPath path(fmt::format("r{}", role));
    for (std::size_t pixel = 0; pixel < columns.size(); ++pixel) {
      const auto bytes = static_cast<double>(std::max<std::int64_t>(0, columns[pixel].roles[role]));
      if (bytes <= 0) continue;
      const double from = std::round(base[pixel] / most_bytes * 2 * occupancy_height) / 2;
      base[pixel] += bytes;
      const double to = std::round(base[pixel] / most_bytes * 2 * occupancy_height) / 2;
      path.add(name_width + static_cast<double>(pixel), top + occupancy_height - to, 1, to - from);
      used[role] = true;
    }
    svg += path.svg();
  }
  return svg;
}

std::string bytes_axis(double most_bytes, double top) {
  const bool large = most_bytes >= static_cast<double>(GiB);
  const auto unit = static_cast<double>(large ? GiB : MiB);
  const double step = 2 * round_step(most_bytes / unit);
  std::string svg;
  for (int i = 0; i * step * unit <= most_bytes; ++i) {
    const double y = top + occupancy_height * (1 - i * step * unit / most_bytes);
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{} {}h{}\"/><text class=\"faint\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n",
        coordinate(name_width), coordinate(y), pixels, coordinate(name_width - 8), coordinate(y + 4),
        i == 0 ? "0" : fmt::format("{:.6g} {}", i * step, large ? "GiB" : "MiB"));
  }
  return svg;
}

std::string occupancy_figure(const std::vector<RunPointer>& runs, const Scale& scale) {
  struct Plot {
    const Run* run;
    TierId tier;
  };
  // Tiers of the same name stand together, predicted above measured, on one scale.
  std::vector<std::string> names;
  for (const RunPointer& run : runs) {
    for (TierId tier = 0; tier < run->machine().tiers.size(); ++tier) {
      const std::string name(run->tier_name(tier));
      if (!run->occupancy().empty(tier) && std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  if (names.empty()) return "";
  std::string body;
  std::array<bool, role_count> used{};
  double y = 0;
  for (const std::string& name : names) {
    std::vector<Plot> plots;
    Bytes most = 1;
    for (const RunPointer& run : runs) {
      for (TierId tier = 0; tier < run->machine().tiers.size(); ++tier) {
        if (run->tier_name(tier) != name || run->occupancy().empty(tier)) continue;
        plots.push_back({run.get(), tier});
        const Bytes capacity = run->machine().tiers[tier].capacity, peak = run->occupancy().peak(tier);
        most = std::max(most, peak);
        // A limit that is far above the contents would flatten them; it is then said in words.
        if (capacity > 0 && capacity < unlimited && capacity <= 3 * peak) most = std::max(most, capacity);
      }
    }
    const double most_bytes = static_cast<double>(most) * 1.06;
    for (const auto& [run, tier] : plots) {
      const Bytes capacity = run->machine().tiers[tier].capacity, peak = run->occupancy().peak(tier);
      const bool limited = capacity > 0 && capacity < unlimited;
      body += fmt::format(
          "<text class=\"title\" x=\"{}\" y=\"{}\" data-tier=\"{}\" data-peak=\"{}\" data-capacity=\"{}\">{} of {}: at "
          "most {} {}</text>\n",
          coordinate(name_width), coordinate(y + 18), html_text(name), peak, limited ? std::to_string(capacity) : "",
          html_text(name, 30), html_text(run->title(), 60), format_bytes(peak),
          limited ? "of " + format_bytes(capacity) : "(no limit)");
      const double top = y + plot_gap - 8;
      body += bytes_axis(most_bytes, top) + occupancy_plot(*run, tier, scale, most_bytes, top, used);
      if (limited && static_cast<double>(capacity) <= most_bytes) {
        body +=
            fmt::format("<path class=\"limit\" d=\"M{} {}h{}\"/>\n", coordinate(name_width),
                        coordinate(top + occupancy_height * (1 - static_cast<double>(capacity) / most_bytes)), pixels);
      }
      body += step_lines(*run, scale, top, top + occupancy_height, false);
      body += fmt::format("<path class=\"axis\" d=\"M{} {}h{}\"/>\n", coordinate(name_width),
                          coordinate(top + occupancy_height), pixels);
      y += occupancy_height + plot_gap;
    }
  }
  std::vector<LegendEntry> entries;
  for (std::size_t role = 0; role < role_count; ++role) {
    if (used[role]) entries.push_back({fmt::format("r{}", role), label_of(static_cast<Role>(role))});
  }
  return fmt::format(
      "<figure>\n{}<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" "
      "aria-label=\"Memory\">\n{}{}</svg>\n<figcaption>What "
      "each tier holds meanwhile, by role: of each pixel the moment at which most was held. Dashed: what the tier can "
      "hold.</figcaption>\n</figure>\n",
      legend(entries), coordinate(name_width + pixels + right_margin), coordinate(y + axis_height),
      coordinate(name_width + pixels + right_margin), time_axis(scale, 0, y), body);
}

}  // namespace

std::string timeline_section(const Document& timeline) {
  std::vector<RunPointer> runs = timeline.runs;
  std::string left_out;
  if (runs.size() > most_runs) {
    left_out = fmt::format("<p class=\"faint\">The first {} of {} runs.</p>\n", most_runs, runs.size());
    runs.resize(most_runs);
  }
  Scale scale;
  for (const RunPointer& run : runs) scale.length_ns = std::max(scale.length_ns, static_cast<double>(length_of(*run)));
  const std::string name = std::filesystem::path(timeline.path).filename().string();
  return "<section>\n<h2>Timeline " + html_text(name) + "</h2>\n" + left_out + lanes_figure(runs, scale) +
         occupancy_figure(runs, scale) + "</section>\n";
}

}  // namespace tencache::gui
