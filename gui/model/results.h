// Results of all files that are open.
#pragma once

#include <string>
#include <vector>

#include "answers/result.h"
#include "gui/model/session.h"

namespace tencache::gui {

// In order of opening, each with its file; measurements among them say how far simulations like them may be believed
// (studies/validity.h). Throws Error where a member is not of its type.
std::vector<ResultAnswer> open_results(const std::vector<DocumentPointer>& documents);

// The same of a simulation that is no file: "validated within 4.0 % (2 measured)", or what published experiments say.
std::string validity_of(const std::vector<DocumentPointer>& documents, const Workload& workload);

}  // namespace tencache::gui
