// A trace on a machine under several policies: which is the fastest, how sure that is, and how far the figures may be
// believed.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "studies/intervals.h"
#include "studies/workload.h"

namespace tencache {

struct CompareRequest {
  Scenario scenario;
  std::string policies = "all";  // names separated by commas
  bool any_policy = false;       // the fastest may be one that no system runs
};

struct ComparedPolicy {
  Outcome outcome;                           // without the lowered trace
  std::optional<Interval> interval = {};     // where samples were drawn; none of `ideal`, with which nothing competes
  std::optional<std::string> validity = {};  // studies/validity.h; none of `ideal`, and where it does not fit
};

struct Comparison {
  Workload workload;
  References references;
  std::vector<ComparedPolicy> policies;  // by time, misfits last; `ideal`, unless it was asked for, before all
  Intervals intervals;                   // of the policies but `ideal`, in the order of `policies`
  bool any_fits = false;                 // of the policies asked for; `ideal` counts where it is the only one
};

// `progress(done, all, policy)`, if given, is called before each policy. Throws Error for an unknown policy, and where
// the trace or the machine cannot be read.
Comparison compare_policies(
    const CompareRequest& request,
    const std::function<void(std::size_t done, std::size_t all, const std::string& policy)>& progress = {});

}  // namespace tencache
