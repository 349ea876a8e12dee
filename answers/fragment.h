// `tencache fragment` as an answer: what allocators make of a program's allocations, and what to set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/allocation_source.h"
#include "studies/fragment.h"

namespace tencache {

BOOST_DESCRIBE_ENUM(FragmentVerdict, fits_gains, fits_no_gain, cured, needs_memory, needs_another)

struct FragmentOomAnswer {
  std::uint64_t event = 0;
  std::uint32_t iteration = 0;
  Bytes wanted_bytes = 0, asked_for_bytes = 0, allocated_bytes = 0, reserved_bytes = 0;
};
TENCACHE_ANSWER(FragmentOomAnswer, event, iteration, wanted_bytes, asked_for_bytes, allocated_bytes, reserved_bytes)

TENCACHE_ANSWER(FragmentIteration, allocated_bytes, reserved_bytes, device_calls, retries)

struct FragmentRow {
  std::string allocator;
  std::optional<std::string> setting;  // of PYTORCH_CUDA_ALLOC_CONF; none: another allocator, or the default
  Bytes requested_bytes = 0, allocated_bytes = 0, reserved_bytes = 0;  // at most
  double utilisation = 1;
  std::uint64_t device_allocations = 0, device_frees = 0, retries = 0;
  std::optional<FragmentOomAnswer> out_of_memory;
  // Of what is reserved and was not asked for, when most was reserved, or memory ran out.
  Bytes rounding_bytes = 0, unsplit_bytes = 0, hole_bytes = 0, idle_bytes = 0;
  std::vector<FragmentIteration> iterations;

  Bytes at_peak_bytes = 0;  // requested then; known only while the command runs
};
TENCACHE_ANSWER(FragmentRow, allocator, setting, requested_bytes, allocated_bytes, reserved_bytes, utilisation,
                device_allocations, device_frees, retries, out_of_memory, rounding_bytes, unsplit_bytes, hole_bytes,
                idle_bytes, iterations)

struct FragmentAdviceAnswer {
  FragmentVerdict verdict = FragmentVerdict::fits_no_gain;
  std::optional<std::string> setting;  // of PYTORCH_CUDA_ALLOC_CONF
  std::optional<Bytes> reserved_bytes, saved_bytes;
  std::string text;
};
TENCACHE_ANSWER(FragmentAdviceAnswer, verdict, setting, reserved_bytes, saved_bytes, text)

// Addresses over time: a text a column, whose characters are cells from the lowest address: '0' in use, '1' reserved
// and free, ' ' not reserved.
struct FragmentMapAnswer {
  std::string allocator;
  Bytes bytes_per_row = 0;
  std::vector<std::string> columns;
  std::vector<std::uint32_t> iterations;
};
TENCACHE_ANSWER(FragmentMapAnswer, allocator, bytes_per_row, columns, iterations)

struct FragmentAnswer {
  std::string allocations;  // the files
  std::uint64_t events = 0, blocks = 0, iterations = 0;
  std::optional<Bytes> limit_bytes;
  bool fits = true;  // under the first allocator
  std::optional<Bytes> recorded_allocated_bytes, recorded_reserved_bytes;
  std::vector<FragmentRow> allocators;
  std::optional<FragmentAdviceAnswer> advice;
  std::optional<FragmentMapAnswer> map;
  std::vector<std::string> notes;
  Json manifest;
};
TENCACHE_ANSWER(FragmentAnswer, allocations, events, blocks, iterations, limit_bytes, fits, recorded_allocated_bytes,
                recorded_reserved_bytes, allocators, advice, map, notes, manifest)

// `limit`: none where there is none. `map`: of the first allocator.
FragmentAnswer fragment_answer(const LoadedAllocations& loaded, const std::vector<FragmentRun>& runs,
                               const std::optional<FragmentAdvice>& advice, std::optional<Bytes> limit,
                               const AddressMap& map);
Document document_of(const FragmentAnswer& answer);

}  // namespace tencache
