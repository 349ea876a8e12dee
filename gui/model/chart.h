// The picture that belongs to a document, where there is one: bars, each in parts, or dots; what `explain`, `bound`,
// `fit`, `tune` and `validate` print, as a person would draw it.
#pragma once

#include <optional>
#include <string>

#include "answers/document.h"
#include "answers/json.h"
#include "gui/model/table.h"

namespace tencache::gui {

// What the document is, by its members; empty where no command of tencache prints it.
std::string kind_of_document(const Json& document);
// Empty where the document has no picture. Throws Error where it is damaged.
std::optional<BarChart> chart_of(const Json& document, const std::string& file);
// Of the candidates that `tune --csv` writes; empty where the table is another.
std::optional<BarChart> chart_of(const DataTable& table);

}  // namespace tencache::gui
