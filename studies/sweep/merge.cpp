#include "studies/sweep/merge.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "studies/sweep/sweep_costs.h"
#include "studies/sweep/sweep_run.h"

namespace tencache {
namespace {

std::string about(const SweepResults& results, const std::string& name) {
  const auto found = results.about.find(name);
  return found == results.about.end() ? std::string() : found->second;
}

// But for where the trace's file lay, which each part may have named in its own way: its content is in the key.
bool same_result(const SweepRow& a, SweepRow b) {
  b.trace = a.trace;
  return a == b;
}

}  // namespace

Merge merge_sweeps(const std::vector<std::string>& paths) {
  Merge merge;
  std::map<std::string, SweepRow> rows;  // by key
  for (const std::string& path : paths) {
    SweepResults part = read_sweep(path);
    if (part.about.empty()) throw Error(path + " has no end yet: sweep it again with the same command first");
    if (merge.results.about.empty()) merge.results.about = part.about;
    for (const auto& [name, what] :
         {std::pair("build", "of another build of the program"),
          std::pair("combinations_sha256", "part of another sweep"), std::pair("prices_sha256", "at other prices")}) {
      if (about(part, name) != about(merge.results, name)) {
        throw Error(path + " is " + what + " than " + paths.front());
      }
    }
    for (SweepRow& row : part.rows) {
      row.on_front = row.ties_with_front = false;
      const auto [found, is_new] = rows.emplace(row.key, row);
      if (is_new) continue;
      if (!same_result(found->second, row)) {
        throw Error(path + " has another result for " + row.workload + " on " + row.machine + ", " + row.policy +
                    " than an earlier file; sweep both again");
      }
      ++merge.in_several;
    }
  }
  for (auto& [key, row] : rows) merge.results.rows.push_back(std::move(row));
  std::ranges::sort(merge.results.rows, {}, &SweepRow::position);
  mark_fronts(merge.results.rows, advises_any_policy(merge.results));
  const std::string combinations = about(merge.results, "combinations");
  if (!combinations.empty()) {
    const std::uint64_t all = std::stoull(combinations);
    if (merge.results.rows.size() > all) throw Error(paths.front() + ": more rows than the sweep has combinations");
    // What is said to people leaves out the ideal, as all tables do.
    const std::string ideals = about(merge.results, "ideal_combinations");
    merge.combinations = all - (ideals.empty() ? 0 : std::stoull(ideals));
    const auto there = std::ranges::count_if(
        merge.results.rows, [&](const SweepRow& row) { return ideals.empty() || row.policy != "ideal"; });
    merge.missing = merge.combinations - static_cast<std::uint64_t>(there);
  }
  return merge;
}

}  // namespace tencache
