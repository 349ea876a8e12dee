// `tencache compare` as an answer: a result a policy. What each figure of a result means: docs/results.md.
//
// A new figure is a member of ResultAnswer (result.h), its value (result.cpp) and a column here (figures_of): text, CSV,
// pages and the dashboard have it then.
#pragma once

#include <string>
#include <vector>

#include "answers/document.h"
#include "answers/result.h"
#include "studies/compare.h"

namespace tencache {

struct CompareAnswer {
  static constexpr bool is_bare = true;  // its JSON is the list
  std::vector<ResultAnswer> results;     // the lower bound and the ideal first, then the fastest first, misfits last

  // Known only while the command runs, but for the title.
  std::string title;                 // "gpt2, batch 8 on g10-a100"
  std::vector<std::string> remarks;  // what the order hangs on, and what readers must know, a line each
  bool any_policy = false;           // the best may be one that no system runs
};
TENCACHE_ANSWER(CompareAnswer, results)

CompareAnswer compare_answer(const Comparison& comparison, bool any_policy = false);
Document document_of(const CompareAnswer& answer);

// Results of any commands as comparisons: those of one trace on one machine with the same changes stand together.
std::vector<CompareAnswer> comparisons_of(std::vector<ResultAnswer> results);
// The options that make another machine or trace of it, as JSON; empty: none.
std::string changes_of(const ResultAnswer& result);

}  // namespace tencache
