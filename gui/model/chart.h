// The picture that belongs to a document, where there is one: bars, each in parts, or dots; what `explain`, `bound`,
// `fit`, `tune` and `validate` print, as a person would draw it.
#pragma once

#include <optional>
#include <string>

#include "answers/document.h"
#include "answers/json.h"
#include "gui/model/table.h"

namespace tencache::gui {

// What people read of the document; none where no command of tencache prints it. Throws Error where it is damaged.
std::optional<tencache::Document> document_of(const Json& document, const std::string& file);
// Of the candidates that `tune --csv` writes; empty where the table is another.
std::optional<ScatterChart> candidates_of(const DataTable& table);

}  // namespace tencache::gui
