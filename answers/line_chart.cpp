#include "answers/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "answers/figure_unit.h"

namespace tencache {
namespace {

// Okabe and Ito, without the yellow, which is too light on white.
constexpr std::array<const char*, 7> colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                             "#e69f00", "#56b4e9", "#000000"};
constexpr double panel_width = 560, panel_height = 360, left = 70, right = 40, top = 34, bottom = 52, margin = 8;
constexpr std::size_t panels_a_row = 3;
constexpr double logarithmic_from = 30;

std::string escaped_xml(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '&') {
      result += "&amp;";
    } else if (letter == '<') {
      result += "&lt;";
    } else if (letter == '>') {
      result += "&gt;";
    } else if (letter == '"') {
      result += "&quot;";
    } else {
      result += letter;
    }
  }
  return result;
}

// "pcie (bytes per second, logarithmic)".
std::string label_with(std::string label, const std::string& unit, const std::string& scale) {
  const std::string both = unit + (unit.empty() || scale.empty() ? "" : ", ") + scale;
  return both.empty() ? label : label + " (" + both + ")";
}

// About as wide as bold letters of common sans-serif fonts are on average.
double width_of(const std::string& text, double font_size) {
  return 0.62 * font_size * static_cast<double>(std::max<std::size_t>(text.size(), 1));
}

std::string text_at(double x, double y, const std::string& text, const char* anchor, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped_xml(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

// A shape for each line, so that colour is not all that tells them apart.
std::string marker(std::size_t line, double x, double y, const std::string& colour) {
  constexpr double r = 4;
  switch (line % 5) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", x, y, r, colour);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", x - r, y - r,
                         2 * r, 2 * r, colour);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f} l{} {} l{} 0 z\" fill=\"{}\"/>\n", x, y - r - 1, r + 1, 2 * r,
                         -2 * (r + 1), colour);
    case 3:
      return fmt::format("<path d=\"M{:.1f} {:.1f} l{} {} l{} {} l{} {} z\" fill=\"{}\"/>\n", x, y - r - 1, r + 1,
                         r + 1, -(r + 1), r + 1, -(r + 1), -(r + 1), colour);
    default:
      return fmt::format(
          "<path d=\"M{:.1f} {:.1f} l{} {} m0 {} l{} {}\" stroke=\"{}\" stroke-width=\"2\" fill=\"none\"/>\n", x - r,
          y - r, 2 * r, 2 * r, -2 * r, -2 * r, 2 * r, colour);
  }
}

// The largest 1, 2 or 5 times a power of ten that is no more; and the next after one of those.
double round_down(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  return value >= 5 * power ? 5 * power : value >= 2 * power ? 2 * power : power;
}
double next_round(double value) { return round_down(value * 2.51); }

class Drawing {
 public:
  explicit Drawing(const LineChart& chart) : chart_(chart) {
    for (const ChartPanel& panel : chart.panels) {
      for (const ChartLine& line : panel.lines) {
        for (const LinePoint& point : line.points) {
          if (!point.has_place()) continue;
          least_y_ = std::min(least_y_, point.y);
          most_y_ = std::max(most_y_, point.y);
          least_x_ = std::min(least_x_, point.x);
          most_x_ = std::max(most_x_, point.x);
        }
      }
    }
    for (const auto& [value, label] : chart.ticks) {
      least_x_ = std::min(least_x_, value);
      most_x_ = std::max(most_x_, value);
    }
    if (!(most_y_ > 0)) least_y_ = most_y_ = 1;
    if (most_x_ <= least_x_) most_x_ = least_x_ * 2;
    logarithmic_ = least_y_ > 0 && most_y_ / least_y_ > logarithmic_from;
    if (logarithmic_) {
      bottom_y_ = round_down(least_y_);
      top_y_ = bottom_y_;
      while (top_y_ < most_y_) top_y_ = next_round(top_y_);
    } else {
      step_ = round_step(most_y_);
      top_y_ = std::ceil(most_y_ / step_ * 1.02) * step_;
    }
  }

  std::string draw() const {
    const std::size_t columns = std::min(chart_.panels.size(), panels_a_row);
    const std::size_t rows = (chart_.panels.size() + panels_a_row - 1) / panels_a_row;
    const std::vector<ChartLine>& lines = chart_.panels.front().lines;
    const double legend_y = 58, legend_rows = std::ceil(static_cast<double>(lines.size()) / legend_columns(columns));
    const double head = legend_y + 18 * legend_rows + 4;
    const double width = static_cast<double>(columns) * panel_width;
    const double height = head + static_cast<double>(rows) * panel_height + 30;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n<rect width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" fill=\"#fff\"/>\n",
        width, height);
    const double size = std::clamp(16 * (width - left - margin) / width_of(chart_.title, 16), 8.0, 16.0);
    svg += text_at(left, 22, chart_.title, "start",
                   fmt::format(" font-size=\"{:.3g}\" font-weight=\"bold\"", size).c_str());
    svg += text_at(left, 41, chart_.subtitle, "start", " fill=\"#555\"");
    svg += legend(lines, legend_y, columns);
    for (std::size_t i = 0; i < chart_.panels.size(); ++i) {
      const std::size_t column = i % panels_a_row, row = i / panels_a_row;
      svg += fmt::format("<g transform=\"translate({:.1f} {:.1f})\">\n", static_cast<double>(column) * panel_width,
                         head + static_cast<double>(row) * panel_height);
      svg += panel(chart_.panels[i]) + "</g>\n";
    }
    svg += text_at(left, height - 12, chart_.note, "start", " fill=\"#555\" font-size=\"11\"");
    return svg + "</svg>\n";
  }

 private:
  static double legend_columns(std::size_t columns) { return static_cast<double>(columns) * 3; }

  std::string legend(const std::vector<ChartLine>& lines, double y, std::size_t columns) const {
    std::string svg;
    const auto a_row = static_cast<std::size_t>(legend_columns(columns));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::size_t column = i % a_row, row = i / a_row;
      const double x = left + static_cast<double>(column) * 160, at = y + 18 * static_cast<double>(row);
      svg += line_at(x, at, x + 26, at, style(lines[i], i).c_str());
      if (!lines[i].reference) svg += marker(i, x + 13, at, colour(lines[i], i));
      svg += text_at(x + 32, at + 4, lines[i].name, "start");
    }
    return svg;
  }

  static std::string colour(const ChartLine& line, std::size_t index) {
    return line.reference ? "#777" : colours[index % colours.size()];
  }
  static std::string style(const ChartLine& line, std::size_t index) {
    return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}", colour(line, index),
                       line.reference ? " stroke-dasharray=\"6 4\"" : "");
  }

  double x_of(double value) const {
    const double share = std::log(value / least_x_) / std::log(most_x_ / least_x_);
    return left + share * (panel_width - left - right);
  }
  double y_of(double value) const {
    const double share = logarithmic_ ? std::log(value / bottom_y_) / std::log(top_y_ / bottom_y_) : value / top_y_;
    return panel_height - bottom - share * (panel_height - top - bottom);
  }

  std::string axes(const ChartPanel& panel) const {
    const double x0 = left, x1 = panel_width - right, y0 = panel_height - bottom;
    std::string svg;
    if (!panel.title.empty()) svg += text_at(x0, top - 12, panel.title, "start", " font-weight=\"bold\"");
    const auto horizontal = [&](double value) {
      svg += line_at(x0, y_of(value), x1, y_of(value), "stroke=\"#e4e4e4\"");
      svg += text_at(x0 - 6, y_of(value) + 4, fmt::format("{:.4g}", value), "end");
    };
    if (logarithmic_) {
      for (double value = bottom_y_; value <= top_y_ * 1.001; value = next_round(value)) horizontal(value);
    } else {
      for (double i = 0; i * step_ <= top_y_ * 1.001; ++i) horizontal(i * step_);
    }
    constexpr double size = 12, between = 4;  // of letters, of labels
    double last_x = 0, last_width = -1;       // of the last label that stands; it has those beside it to itself
    for (const auto& [value, label] : chart_.ticks) {
      const double x = x_of(value), width = width_of(label, size);
      svg += line_at(x, y0, x, y0 + 5, "stroke=\"#222\"");
      if (last_width >= 0 && std::abs(x - last_x) < (width + last_width) / 2 + between) continue;
      svg += text_at(x, y0 + 18, label, "middle");
      last_x = x;
      last_width = width;
    }
    if (chart_.here && chart_.here->first >= least_x_ && chart_.here->first <= most_x_) {
      const double x = x_of(chart_.here->first);
      svg += line_at(x, top, x, y0, "stroke=\"#bbb\" stroke-width=\"6\" stroke-opacity=\"0.5\"");
      svg += text_at(x, top - 2, chart_.here->second, "middle", " fill=\"#777\" font-size=\"10\"");
    }
    svg += line_at(x0, y0, x1, y0, "stroke=\"#222\"") + line_at(x0, top, x0, y0, "stroke=\"#222\"");
    svg +=
        text_at((x0 + x1) / 2, y0 + 38, label_with(chart_.x_label, words_of(chart_.x_unit), "logarithmic"), "middle");
    svg += fmt::format("<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                       (top + y0) / 2, escaped_xml(label_with(chart_.y_label, words_of(chart_.y_unit), "")));
    return svg;
  }

  std::string panel(const ChartPanel& panel) const {
    std::string svg = axes(panel), marks;
    for (std::size_t i = 0; i < panel.lines.size(); ++i) {
      const ChartLine& line = panel.lines[i];
      std::string path, markers;
      bool gap = true;
      for (const LinePoint& point : line.points) {
        gap = gap || !point.has_place();
        if (!point.has_place()) continue;
        path += fmt::format("{}{:.1f} {:.1f} ", gap ? "M" : "L", x_of(point.x), y_of(point.y));
        if (!line.reference) markers += marker(i, x_of(point.x), y_of(point.y), colour(line, i));
        gap = false;
      }
      if (!path.empty()) svg += fmt::format("<path d=\"{}\" {}/>\n", path, style(line, i)) + markers;
      if (!line.mark) continue;
      const double x = x_of(line.mark->x), y = y_of(line.mark->y);
      marks += line_at(x, y, x, panel_height - bottom,
                       fmt::format("stroke=\"{}\" stroke-dasharray=\"2 3\"", colour(line, i)).c_str());
      marks +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"8\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n",
                      x, y, colour(line, i));
      // Of several knees near each other each has a line of its own. At the right edge the text stands on the left.
      const bool fits = x + 4 + width_of(line.mark_label, 11) <= panel_width - margin;
      marks +=
          text_at(fits ? x + 4 : x - 4, panel_height - bottom - 6 - 13 * static_cast<double>(i), line.mark_label,
                  fits ? "start" : "end",
                  fmt::format(" font-size=\"11\" fill=\"{}\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\"",
                              colour(line, i))
                      .c_str());
    }
    return svg + marks;
  }

  const LineChart& chart_;
  double least_x_ = std::numeric_limits<double>::infinity(), most_x_ = 0;
  double least_y_ = std::numeric_limits<double>::infinity(), most_y_ = 0;
  double bottom_y_ = 0, top_y_ = 1, step_ = 1;
  bool logarithmic_ = false;
};

}  // namespace

std::string draw_svg(const LineChart& chart) { return Drawing(chart).draw(); }

}  // namespace tencache
