#include "sim/rows/row_times.h"

#include <algorithm>

namespace tencache {
namespace {

Nanoseconds time_of(Bytes bytes, BytesPerSecond bandwidth) {
  if (bandwidth == 0) return 0;
  const auto scaled = static_cast<unsigned __int128>(bytes) * static_cast<std::uint64_t>(second_ns);
  return static_cast<Nanoseconds>(
      std::min<unsigned __int128>((scaled + bandwidth - 1) / bandwidth, static_cast<std::uint64_t>(longest_clock_ns)));
}

bool is_uvm(const RowPolicy& policy) {
  return policy.kind == RowPolicyKind::uvm_lru || policy.kind == RowPolicyKind::uvm_lfu;
}

}  // namespace

RowStageTimes row_stage_times(const RowPolicy& policy, const RowRates& rates, const RowBytes& bytes) {
  const bool cached_embedding =
      policy.kind == RowPolicyKind::cached_embedding || policy.kind == RowPolicyKind::cached_embedding_dataset;
  RowStageTimes times{};
  const auto set = [&](RowStage stage, Nanoseconds time) { times[static_cast<std::size_t>(stage)] = time; };
  set(RowStage::fixed, rates.fixed_ns);
  set(RowStage::train, rates.train_ns);
  set(RowStage::link_in, time_of(bytes.in, rates.link_in));
  set(RowStage::link_out, time_of(bytes.out, cached_embedding ? rates.link_out_pageable : rates.link_out));
  set(RowStage::direct, time_of(bytes.direct, rates.link_in) + time_of(bytes.direct, rates.link_out));
  if (!is_uvm(policy)) {
    set(RowStage::gather, time_of(bytes.in, rates.gather));
    set(RowStage::scatter, time_of(bytes.out, rates.scatter));
  }
  return times;
}

void RowClock::add(const RowStageTimes& times) {
  const auto of = [&](RowStage stage) { return times[static_cast<std::size_t>(stage)]; };
  const Nanoseconds train = of(RowStage::direct) + of(RowStage::train);
  Nanoseconds all = 0;
  for (const Nanoseconds time : times) all += time;
  std::array<Nanoseconds, 5> steps{};
  if (policy_.kind == RowPolicyKind::scratchpipe) {
    steps = {of(RowStage::fixed), of(RowStage::gather), std::max(of(RowStage::link_in), of(RowStage::link_out)),
             of(RowStage::scatter), train};
  } else if (is_uvm(policy_) && ahead_ > 0) {
    steps = {all - train, 0, 0, 0, train};
  } else {
    steps = {0, 0, 0, 0, all};
  }
  Nanoseconds end = 0;  // of the step before
  for (std::size_t step = 0; step < steps.size(); ++step) {
    end = ends_[step] = std::min(std::max(end, ends_[step]) + steps[step], longest_clock_ns);
  }
}

}  // namespace tencache
