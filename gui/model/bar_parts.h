// How bars in parts are divided into pixels, alike on the screen and in the report.
#pragma once

#include <vector>

namespace tencache::gui {

// The width of each part: its value times `pixels`, but none that is above 0 narrower than `least`, and all together
// as wide as they would be, at most `most`: the widest give way. So no part vanishes, neither for being short nor
// because the bar is cut off. Where there is no room for that, all above 0 are equally wide.
std::vector<double> part_widths(const std::vector<double>& values, double pixels, double most, double least);

}  // namespace tencache::gui
