// Timelines for programs that read tables: an SQLite database, or the spans as CSV. docs/results.md has the columns.
#pragma once

#include <string>
#include <vector>

#include "cli/chrome_trace.h"

namespace tencache {

// Tables runs, tiers, lanes, ops, tensors, accesses, spans, occupancy. Equal timelines give equal bytes with the same
// version of SQLite. Written atomically; throws Error.
void write_timeline_sqlite(const std::string& path, const std::vector<TimelineProcess>& processes);

// A line a span, with the names of what it refers to (RFC 4180). Written atomically; throws Error.
void write_timeline_csv(const std::string& path, const std::vector<TimelineProcess>& processes);

// By the end of the name: .sqlite or .db, .csv, else Chrome trace JSON.
void write_timeline(const std::string& path, const std::vector<TimelineProcess>& processes);

}  // namespace tencache
