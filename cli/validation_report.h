// Published experiments against their simulations: for the terminal, as Markdown and as JSON. Deterministic.
#pragma once

#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/validation_run.h"

namespace tencache {

// All files together.
struct ValidationSummary {
  std::size_t judged = 0, fitted = 0, listed = 0, skipped = 0, missed = 0;
  std::optional<double> median, worst;
  bool passed = true;
};
ValidationSummary summarize(const std::vector<ValidationResult>& results);

std::string validation_text(const std::vector<ValidationResult>& results);
std::string validation_markdown(const std::vector<ValidationResult>& results);
Json validation_json(const std::vector<ValidationResult>& results);

}  // namespace tencache
