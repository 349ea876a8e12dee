// How long the transfers of a batch of rows take: rows are gathered into one copy, which crosses the link, and
// scattered.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/units.h"
#include "sim/rows/row_cache.h"

namespace tencache {

// The defaults are those of CachedEmbedding's published logs, batch 1024 (an A100 80 GB; PCIe 4.0).
struct RowRates {
  BytesPerSecond gather = 11'000'000'000, scatter = 6'600'000'000;  // rows of CPU memory, at random
  BytesPerSecond link_in = 18'500'000'000, link_out = 18'500'000'000;
  BytesPerSecond link_out_pageable = 6'400'000'000;  // to memory that is not page-locked
  Nanoseconds fixed_ns = 0;                          // per batch: looking rows up, starting kernels
  Nanoseconds train_ns = 0;                          // per batch: all that is not the cache
};

// Parts of a batch's time.
enum class RowStage : std::uint8_t { fixed, gather, link_in, link_out, scatter, direct, train };
inline constexpr std::size_t row_stages = 7;
using RowStageTimes = std::array<Nanoseconds, row_stages>;

struct RowBytes {
  Bytes in = 0, out = 0;
  Bytes direct = 0;  // rows that the GPU reads over the bus, and writes there in the backward pass
};

// What each stage of one batch takes. cached-embedding and belady gather and scatter on the CPU, before training; the
// former's copies to the CPU are pageable. uvm-… has no such stages: the GPU reads and writes CPU memory itself.
RowStageTimes row_stage_times(const RowPolicy& policy, const RowRates& rates, const RowBytes& bytes);

// Batch after batch: the sum of the stages, or of a pipeline, whose steps (a step: stages that share nothing with other
// steps' and run side by side within) begin when the step before and the same step of the batch before are over.
// scratchpipe: plan, collect, exchange, insert, train; uvm-… with `ahead`: fill the cache, train.
class RowClock {
 public:
  RowClock(const RowPolicy& policy, std::uint32_t ahead) : policy_(policy), ahead_(ahead) {}
  void add(const RowStageTimes& times);
  Nanoseconds end_ns() const { return ends_.back(); }

 private:
  const RowPolicy& policy_;
  std::uint32_t ahead_;
  std::array<Nanoseconds, 5> ends_{};
};

}  // namespace tencache
