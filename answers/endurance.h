// `tencache endurance` as an answer: what is written to each SSD, and how long it lasts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "studies/wear.h"
#include "studies/workload.h"

namespace tencache {

TENCACHE_ANSWER(TierWear, tier, ssds, ssd_capacity_bytes, ssd_written_bytes_per_iteration, ssd_written_bytes_per_day,
                drive_writes_per_day, ssd_rated_bytes, rated_by, years)

struct EnduranceAnswer {
  std::string policy, machine, trace;
  bool fits = false;
  std::optional<std::string> reason;
  std::optional<double> iteration_seconds;
  double duty = 1;  // share of the day that is trained
  double write_amplification = 1;
  std::optional<std::string> rating;  // where it comes from
  std::vector<TierWear> tiers;
  Absent<double> written_bytes_per_million_tokens;  // of a text generation, to all SSDs, in its generated tokens
  std::vector<std::string> notes;
  std::optional<RescalingAnswer> rescaled;
  std::optional<GpuTimeAnswer> gpu_time;
  Json manifest;
  Timing timing;

  // Known only while the command runs.
  std::string title;     // "gpt2, batch 8 on g10-a100 under lru"
  std::string left_out;  // a line on each storage that is no SSD of the machine
};
TENCACHE_ANSWER(EnduranceAnswer, policy, machine, trace, fits, reason, iteration_seconds, duty, write_amplification,
                rating, tiers, written_bytes_per_million_tokens, notes, rescaled, gpu_time, manifest, timing)

// `rated`: what --tbw says; may be empty.
EnduranceAnswer endurance_answer(const Workload& workload, const Outcome& outcome, const WearOptions& options,
                                 const std::string& rated);
Document document_of(const EnduranceAnswer& answer);

}  // namespace tencache
