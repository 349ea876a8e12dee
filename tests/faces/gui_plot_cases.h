// A sensitivity analysis and a sweep for the tests of the dashboard.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "answers/described.h"
#include "studies/sweep/sweep_row.h"

namespace tencache::gui {

inline constexpr const char* some_sensitivity = R"({"trace": "in/step.trace.jsonl", "machine": "box",
  "parameters": [{"name": "pcie", "unit": "bytes_per_second", "machine_value": 12e9, "values": [4e9, 8e9, 16e9]}],
  "tolerance": 0.01, "lines": [
  {"policy": "swift", "second_value": null, "points": [
    {"value": 4e9, "fits": true, "reason": null, "iteration_seconds": 4.0},
    {"value": 8e9, "fits": true, "reason": null, "iteration_seconds": 2.0},
    {"value": 16e9, "fits": true, "reason": null, "iteration_seconds": 2.0}],
   "unlimited": {"value": null, "fits": true, "reason": null, "iteration_seconds": 2.0}, "knee_state": "found",
   "knee": {"value": 8e9, "fits": true, "reason": null, "iteration_seconds": 2.0}},
  {"policy": "lazy", "second_value": null, "points": [
    {"value": 4e9, "fits": false, "reason": "no room", "iteration_seconds": null},
    {"value": 8e9, "fits": true, "reason": null, "iteration_seconds": 5.0},
    {"value": 16e9, "fits": true, "reason": null, "iteration_seconds": 3.0}],
   "unlimited": {"value": null, "fits": true, "reason": null, "iteration_seconds": 1.5}, "knee_state": "above_range",
   "knee": null},
  {"policy": "bound", "second_value": null, "points": [
    {"value": 4e9, "fits": true, "reason": null, "iteration_seconds": 1.0},
    {"value": 8e9, "fits": true, "reason": null, "iteration_seconds": 1.0},
    {"value": 16e9, "fits": true, "reason": null, "iteration_seconds": 1.0}],
   "unlimited": {"value": null, "fits": true, "reason": null, "iteration_seconds": 1.0}, "knee_state": "below_range",
   "knee": null}]})";

inline std::vector<SweepRow> some_sweep() {
  std::vector<SweepRow> rows;
  const auto add = [&rows](const char* workload, const char* machine, const char* policy, double seconds, double usd) {
    SweepRow& row = rows.emplace_back();
    row.position = rows.size() - 1;
    row.key = "key" + std::to_string(row.position);
    row.workload = workload;
    row.machine = machine;
    row.policy = policy;
    row.options = "{}";
    row.fits = seconds > 0;
    if (row.fits) {
      row.iteration_seconds = seconds;
      row.usd_per_iteration = usd / 1000;
      if (row.workload == "small") row.usd_per_million_tokens = usd;
      row.waits_for = "h2d";
      row.waits_seconds = seconds / 2;
    } else {
      row.reason = "no room";
    }
    row.usd_per_hour = 1.5;
  };
  add("small", "cheap", "lru", 8, 0.5);
  add("small", "cheap", "g10", 6, 0.4);
  add("small", "dear", "lru", 2.5, 2.5);
  add("small", "dear", "g10", 2, 2);
  add("small", "tiny", "lru", 0, 0);
  add("large", "cheap", "lru", 30, 9);
  rows[1].iteration_seconds = 4;
  rows[1].spot_usd_per_hour = 0.5;
  rows[1].spot_usd_per_million_tokens = 0.2;
  rows[1].spot_slowdown = 1.5;
  return rows;
}

// As `tencache sweep --json` prints them.
inline std::string sweep_text_of(const std::vector<SweepRow>& rows) {
  const Json document = {{"sweep", Json::object()}, {"rows", to_json_of(rows)}, {"advice", Json::array()}};
  return document.dump(2);
}

}  // namespace tencache::gui
