// What predictions were held against: `configs/validated.yaml`, the summary of docs/validation.md by machine.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct Validated {
  std::string system;                 // the published experiments: "10Cache (SoCC'25)"
  std::vector<std::string> machines;  // shipped ones
  MadeBy traces = MadeBy::unknown;    // that they were predicted with
  std::vector<std::string> policies;  // of the rows that count
  std::vector<std::string> models;    // of generated traces; empty: any
  // By policy and option the values that they had, where not only the default.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> options;
  std::string quantity;          // that they compare: "seconds", "ratios of times"
  std::uint64_t rows = 0;        // that count
  std::optional<double> median;  // of the relative errors, absolute; none: only ranges were published
  double worst = 0;
};

// Throws Error where the file is missing or wrong.
std::vector<Validated> read_validated();

// Of the same machine and kind of trace; null if there is none.
const Validated* validated_for(const std::vector<Validated>& list, std::string_view machine, MadeBy made_by);

// A policy as it ran: all of its options, and their defaults.
struct PolicyRun {
  std::string policy;
  std::map<std::string, std::string> options, defaults;
};

// Whether the experiments say how far a policy's time on that machine may be off: it is one of theirs, with options
// that it had there, on one of their models, and what they compare is seconds.
bool validates_time(const Validated& validated, const PolicyRun& run, const Provenance& trace);

// What may be believed of a policy's time, in the words of all reports: "validated within 43.7 % (MLP-Offload
// (SC'25))"; "extrapolated (on this machine ratios of times of teraio were checked, within 78.5 %)", or "…,
// with other options)" where only they differ; "extrapolated" of none.
std::string validity_text(const Validated* validated, const PolicyRun& run, const Provenance& trace);

}  // namespace tencache
