// Published experiments against their simulations: for the terminal, as Markdown and as JSON. Deterministic.
#pragma once

#include <string>
#include <vector>

#include "answers/json.h"
#include "studies/validation/run.h"

namespace tencache {

struct ValidationSummary {
  std::size_t judged = 0, fitted = 0, listed = 0, skipped = 0, missed = 0;
  std::optional<double> median, p90, worst;
  bool passed = true;

  std::size_t rows() const { return judged + fitted + listed + skipped; }
};
// Which rows a summary is of. Files of the two kinds are summed up apart: neither hides what the other misses.
enum class SummaryOf : std::uint8_t { all, offloading, without_recordings, gpu, memory };
ValidationSummary summarize(const std::vector<ValidationResult>& results, SummaryOf which = SummaryOf::all);

std::string validation_text(const std::vector<ValidationResult>& results);
std::string validation_markdown(const std::vector<ValidationResult>& results);
Json validation_json(const std::vector<ValidationResult>& results);

}  // namespace tencache
