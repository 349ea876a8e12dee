// The pictures of documents (answers/document.h) as figures of a page.
#pragma once

#include <string>

#include "answers/document.h"

namespace tencache::gui {

std::string picture_html(const BarChart& chart);
std::string picture_html(const LineChart& chart);
std::string picture_html(const ScatterChart& chart);
std::string picture_html(const CellMap& map);

}  // namespace tencache::gui
