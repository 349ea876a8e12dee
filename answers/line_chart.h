// Line charts as SVG: self-contained (no fonts, scripts or styles from elsewhere), colours that colour-blind readers
// tell apart (Okabe and Ito, "Color Universal Design", 2008) together with a marker shape for each line.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tencache {

struct ChartLine {
  std::string name;
  std::vector<std::optional<std::pair<double, double>>> points;  // nullopt: a gap
  std::optional<std::pair<double, double>> mark;                 // ringed, with a line down to the axis
  std::string mark_label;
  bool reference = false;  // grey and dashed, without markers
};

struct ChartPanel {
  std::string title;
  std::vector<ChartLine> lines;  // the same names in the same order in every panel
};

struct Chart {
  std::string title, subtitle;
  std::string x_label, y_label;                        // with units
  std::vector<std::pair<double, std::string>> ticks;   // of the x axis, which is logarithmic
  std::optional<std::pair<double, std::string>> here;  // a value of the x axis with its name
  std::vector<ChartPanel> panels;                      // side by side, up to three a row; all on the same axes
  std::string note;                                    // below
};

// The y axis begins at 0, or is logarithmic where the largest value is more than 30 times the smallest.
std::string draw_svg(const Chart& chart);

}  // namespace tencache
