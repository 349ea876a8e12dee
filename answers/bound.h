// The lower bound in words and as JSON: what binds, where, and what it takes for granted.
#pragma once

#include <string>

#include "answers/json.h"
#include "studies/bound.h"
#include "studies/workload.h"

namespace tencache {

// "nvme_read at 3.50 GB/s, from op 5 (x) to 9 (y): 4.00 GiB must cross; and 2 more such windows". Links are those of
// the rank whose bound it is.
std::string binding_text(const Workload& workload, const BoundTerm& binding, std::size_t rank);

// "4.00 GiB must cross".
std::string crossing_text(const BoundWindow& window);

Json bound_term_json(const Workload& workload, const BoundTerm& term, std::size_t rank);
Json bound_windows_json(const Trace& trace, const std::vector<BoundWindow>& windows);

// A sentence where links to or from storage bind: the bound has them always at their full bandwidth. Else empty.
std::string storage_bound_note(const Workload& workload, const BoundTerm& binding, std::size_t rank);

}  // namespace tencache
