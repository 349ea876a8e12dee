// `tencache why` as an answer: what a message or a log says of memory that ran out, and what to do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/why.h"

namespace tencache {

struct WhyProcess {
  std::uint64_t id = 0;
  Bytes bytes = 0;
};
TENCACHE_ANSWER(WhyProcess, id, bytes)

// One failure: of a rank, or of a try.
struct WhyFailure {
  std::optional<FailureKind> kind;
  FailurePlatform platform = FailurePlatform::other;
  FailureSoftware software = FailureSoftware::pytorch;
  std::optional<std::string> rank;
  std::optional<std::uint64_t> gpu;
  std::uint64_t line = 0, times = 1;
  std::uint64_t job = 0;  // of a log that has several, one after the other: which, from 0
  bool uncertain = false;
  std::string headline, words;
  std::optional<Bytes> tried_bytes, total_bytes, free_bytes, allowed_bytes, allocated_bytes, unallocated_bytes,
      private_pool_bytes, process_bytes, beside_pytorch_bytes, other_bytes;
  Bytes missing_bytes = 0;
  std::vector<WhyProcess> processes;
  std::vector<std::string> explanation, actions;
};
TENCACHE_ANSWER(WhyFailure, kind, platform, software, rank, gpu, line, times, job, uncertain, headline, words,
                tried_bytes, total_bytes, free_bytes, allowed_bytes, allocated_bytes, unallocated_bytes,
                private_pool_bytes, process_bytes, beside_pytorch_bytes, other_bytes, missing_bytes, processes,
                explanation, actions)

struct WhyAnswer {
  std::optional<FailureKind> kind;  // none: no message tells
  FailurePlatform platform = FailurePlatform::other;
  FailureSoftware software = FailureSoftware::pytorch;
  std::string headline;
  std::vector<std::string> explanation, actions;
  std::uint64_t verdict = 0;  // the failure that these are of, from 0
  std::vector<WhyFailure> failures;
  Json fit;              // of the model that was named; null: none was
  std::string fit_text;  // the same for a terminal
};
TENCACHE_ANSWER(WhyAnswer, kind, platform, software, headline, explanation, actions, verdict, failures, fit)

WhyAnswer why_answer(const WhyAnswered& why);
Document document_of(const WhyAnswer& answer);

}  // namespace tencache
