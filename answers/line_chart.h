// Line charts as SVG: self-contained (no fonts, scripts or styles from elsewhere), colours that colour-blind readers
// tell apart (Okabe and Ito, "Color Universal Design", 2008) together with a marker shape for each line.
#pragma once

#include <string>

#include "answers/document.h"

namespace tencache {

// The y axis begins at 0, or is logarithmic where the largest value is more than 30 times the smallest.
std::string draw_svg(const LineChart& chart);

}  // namespace tencache
