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

// What may be believed of a prediction, in the words of all reports: "validated within 25.0 % (10Cache (SoCC'25))", or
// "extrapolated" of none.
std::string validity_text(const Validated* validated);

}  // namespace tencache
