// `tencache kv-cache` as an answer: what caches of KV blocks hit, move and save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "studies/kv_study.h"

namespace tencache {

struct KvTierFigures {
  std::string tier;  // gpu, cpu, ssd
  Bytes capacity_bytes = 0;
  std::uint64_t hits = 0, stored = 0;  // blocks
  Bytes bytes_in = 0, bytes_out = 0;   // fetched from it for the GPU, written to it; 0 of the GPU's own
};
TENCACHE_ANSWER(KvTierFigures, tier, capacity_bytes, hits, stored, bytes_in, bytes_out)

struct KvFigures {
  std::string policy;
  bool oracle = false;
  Bytes capacity_bytes = 0;  // of all tiers together
  double hit_rate = 0, token_hit_rate = 0;
  Bytes bytes_in = 0, bytes_out = 0;  // into GPU memory; into CPU memory and SSD
  double prefill_saved_s = 0, fetch_s = 0;
};
TENCACHE_ANSWER(KvFigures, policy, oracle, capacity_bytes, hit_rate, token_hit_rate, bytes_in, bytes_out,
                prefill_saved_s, fetch_s)

struct KvRunAnswer : KvFigures {
  std::uint64_t larger_than_gpu = 0;  // requests
  std::vector<KvTierFigures> tiers;   // those that have a cache
};
BOOST_DESCRIBE_STRUCT(KvRunAnswer, (KvFigures), (larger_than_gpu, tiers))

struct KvBreakEvenAnswer {
  std::uint64_t tokens = 0;
  double compute_s = 0;
  std::optional<double> cpu_fetch_s, ssd_fetch_s;
  double break_even_bytes_per_second = 0;
};
TENCACHE_ANSWER(KvBreakEvenAnswer, tokens, compute_s, cpu_fetch_s, ssd_fetch_s, break_even_bytes_per_second)

// Its own figures are those of the first run.
struct KvCacheAnswer : KvFigures {
  std::string trace, model, gpu, machine;
  std::uint64_t requests = 0, blocks = 0, input_tokens = 0;  // of those that count
  std::uint64_t different_blocks = 0, block_tokens = 0;      // of all
  Bytes block_bytes = 0;
  double endless_hit_rate = 0;  // of all requests, with endless memory
  double prefill_s = 0;         // without a cache
  std::vector<KvBreakEvenAnswer> break_even;
  std::vector<KvRunAnswer> runs;
  std::vector<std::string> notes;
  Json manifest;
};
BOOST_DESCRIBE_STRUCT(KvCacheAnswer, (KvFigures),
                      (trace, model, gpu, machine, requests, blocks, input_tokens, different_blocks, block_tokens,
                       block_bytes, endless_hit_rate, prefill_s, break_even, runs, notes, manifest))

KvCacheAnswer kv_cache_answer(const BlockTrace& trace, const KvStudy& study);
DocumentTable kv_cache_table(const KvCacheAnswer& answer);
LineChart kv_cache_chart(const KvCacheAnswer& answer);
Document document_of(const KvCacheAnswer& answer);

struct KvTraceAnswer {
  std::string trace, sha256;
  std::uint64_t requests = 0, input_tokens = 0, blocks = 0, different_blocks = 0;
};
TENCACHE_ANSWER(KvTraceAnswer, trace, sha256, requests, input_tokens, blocks, different_blocks)
Document document_of(const KvTraceAnswer& answer);

}  // namespace tencache
