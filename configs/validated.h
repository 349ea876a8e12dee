// What predictions were held against: `configs/validated.yaml`, the summary of docs/validation.md by machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tencache {

struct Validated {
  std::string system;                 // the published experiments: "10Cache (SoCC'25)"
  std::vector<std::string> machines;  // shipped ones
  std::string traces;                 // kind_of_trace
  std::vector<std::string> policies;  // of the rows that count
  std::vector<std::string> models;    // of generated traces; empty: any
  std::string quantity;               // that they compare: "seconds", "ratios of times"
  std::uint64_t rows = 0;             // that count
  std::optional<double> median;       // of the relative errors, absolute; none: only ranges were published
  double worst = 0;
};

// Throws Error where the file is missing or wrong.
std::vector<Validated> read_validated();

// "generated" (from a model's description), "imported" (recordings of others), "recorded" (by `tencache record`), or
// empty; of TraceHeader::recorded_by.
std::string_view kind_of_trace(std::string_view recorded_by);

// Of the same machine and kind of trace; null if there is none.
const Validated* validated_for(const std::vector<Validated>& list, std::string_view machine,
                               std::string_view recorded_by);

// Whether the experiments say how far a policy's time on that machine may be off: it is one of theirs, on one of their
// models, and what they compare is seconds.
bool validates_time(const Validated& validated, std::string_view policy, std::string_view recorded_by);

// What may be believed of a policy's time, in the words of all reports: "validated within 43.7 % (MLP-Offload
// (SC'25))"; "extrapolated (on this machine ratios of times of teraio were checked, within 78.5 %)"; "extrapolated" of
// none.
std::string validity_text(const Validated* validated, std::string_view policy, std::string_view recorded_by);

}  // namespace tencache
