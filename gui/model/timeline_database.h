// Timelines that `--timeline F.sqlite` wrote (cli/timeline_tables.h), read again.
#pragma once

#include <string>
#include <vector>

#include "gui/model/run.h"

namespace tencache::gui {

// Whether an SQLite database has their tables; false of what is no whole database.
bool is_timeline_database(const std::string& path);

// One recording a run, in the database's order. It knows no bandwidths of links and no chunks. Throws Error that says
// where the database is damaged.
std::vector<Recording> read_timeline_database(const std::string& path);

}  // namespace tencache::gui
