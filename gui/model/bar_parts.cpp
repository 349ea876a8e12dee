#include "gui/model/bar_parts.h"

#include <algorithm>
#include <numeric>

namespace tencache::gui {

std::vector<double> part_widths(const std::vector<double>& values, double pixels, double most, double least) {
  std::vector<double> widths, order;
  double sum = 0;
  for (const double value : values) {
    sum += std::max(0.0, value) * pixels;
    widths.push_back(value > 0 ? std::max(least, value * pixels) : 0);
    if (value > 0) order.push_back(widths.back());
  }
  const double room = std::min(sum > 0 ? std::max(sum, least) : 0, most);
  double rest = std::accumulate(order.begin(), order.end(), 0.0) - room;  // too much
  if (rest <= 0) return widths;
  // The width that none exceeds: the widest are cut down to the next, and on, until the rest is gone.
  std::ranges::sort(order, std::greater<>());
  double level = order.front();
  for (std::size_t i = 0; i < order.size() && rest > 0; ++i) {
    const double next = i + 1 < order.size() ? order[i + 1] : 0;
    const auto count = static_cast<double>(i + 1);
    const double cut = std::min(rest, (order[i] - next) * count);
    level = order[i] - cut / count;
    rest -= cut;
  }
  for (double& width : widths) width = std::min(width, level);
  return widths;
}

}  // namespace tencache::gui
