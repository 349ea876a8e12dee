// Rows of a sweep that `tencache sweep --json` printed, or that --csv wrote.
#pragma once

#include <string>
#include <vector>

#include "answers/json.h"
#include "gui/model/table.h"
#include "studies/sweep/sweep_row.h"

namespace tencache::gui {

// Whether a JSON document or a table is one; its rows. Throw Error that names the file.
bool is_sweep(const Json& document);
bool is_sweep(const DataTable& table);
std::vector<SweepRow> read_sweep_rows(const Json& document, const std::string& file);
std::vector<SweepRow> read_sweep_rows(const DataTable& table, const std::string& file);

}  // namespace tencache::gui
