// Timelines for programs that read tables: the spans as CSV.
#pragma once

#include <string>
#include <vector>

#include "answers/timeline/chrome_trace.h"

namespace tencache {

// A line a span, with the names of what it refers to (RFC 4180). Written atomically; throws Error.
void write_timeline_csv(const std::string& path, const std::vector<TimelineProcess>& processes);

// Throws Error for a name whose format there was once: .sqlite, .db.
void check_timeline_name(const std::string& path);

// By the end of the name: .csv, else Chrome trace JSON. Throws Error.
void write_timeline(const std::string& path, const std::vector<TimelineProcess>& processes);

}  // namespace tencache
