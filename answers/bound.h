// The lower bound as an answer: what binds, where, and what it takes for granted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/durations.h"
#include "studies/bound.h"
#include "studies/workload.h"

namespace tencache {

struct OpPlace {
  OpIndex op = 0;
  std::string name;
};
TENCACHE_ANSWER(OpPlace, op, name)

struct WindowAnswer {
  std::string term;
  OpPlace first, last;
  double seconds = 0, compute_seconds = 0;
  double bytes = 0;  // that must cross
};
TENCACHE_ANSWER(WindowAnswer, term, first, last, seconds, compute_seconds, bytes)

struct TermAnswer {
  std::string name;
  double seconds = 0;
  std::vector<std::string> inside, links;  // tiers that hold content, and what leads in and out
  std::optional<double> bandwidth_bytes_per_second;
  std::vector<WindowAnswer> windows;
};
TENCACHE_ANSWER(TermAnswer, name, seconds, inside, links, bandwidth_bytes_per_second, windows)

struct BoundAnswer {
  std::string machine, trace;
  bool fits = true;  // under some policy
  std::optional<std::string> reason;
  double bound_seconds = 0;
  std::string bound_term;
  Absent<double> bound_choice_seconds;  // of a trace with choices of recomputation; the rest is about this one
  TermAnswer binding;
  double compute_bound_seconds = 0;
  std::uint64_t rank = 0;  // whose bound is the greatest
  std::vector<TermAnswer> terms;
  std::vector<WindowAnswer> windows;
  std::vector<std::string> notes;
  std::optional<GpuTimeAnswer> gpu_time;
  Json manifest;
  Timing timing;

  // Known only while the command runs.
  std::string title;  // "gpt2, batch 8 on g10-a100 with GPU memory 6.00 GiB"
  bool several_ranks = false;
  std::string own_note;  // which is also among `notes`; may be empty
};
TENCACHE_ANSWER(BoundAnswer, machine, trace, fits, reason, bound_seconds, bound_term, bound_choice_seconds, binding,
                compute_bound_seconds, rank, terms, windows, notes, gpu_time, manifest, timing)

// `recorded_seconds`: recorded_bound_seconds of the trace.
BoundAnswer bound_answer(const Workload& workload, const Bound& bound, std::optional<double> recorded_seconds,
                         double run_seconds);
Document document_of(const BoundAnswer& answer);

// Links are those of the rank whose bound it is.
TermAnswer term_answer(const Workload& workload, const BoundTerm& term, std::size_t rank);
// "nvme_read at 3.50 GB/s, from op 5 (x) to 9 (y): 4.00 GiB must cross; and 2 more such windows".
std::string binding_text(const TermAnswer& binding);
// A sentence where links to or from storage bind: the bound has them always at their full bandwidth. Else empty.
std::string storage_bound_note(const Workload& workload, const BoundTerm& binding, std::size_t rank);

}  // namespace tencache
