// What `tencache tune` found (studies/tune_run.h): JSON, text and all candidates as CSV.
#pragma once

#include <string>

#include "answers/json.h"
#include "studies/tune_run.h"

namespace tencache {

Json tune_json(const Tuned& tuned);
std::string tune_text(const Tuned& tuned);
// All candidates, in the order of their simulation: one row each, a column for each knob.
std::string tune_csv(const Tuned& tuned);

}  // namespace tencache
