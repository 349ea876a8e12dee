// `tencache kv-cache`: caches of KV blocks on a trace of requests, under several policies and capacities, and what they
// save of a model's prefill on a machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "studies/kv_cache.h"
#include "studies/scenario.h"

namespace tencache {

struct KvRequest {
  std::vector<const KvPolicy*> policies;
  ByKvTier<std::vector<std::string>> sizes;  // of each tier, with each of the others; empty: the tier has no cache
  std::uint64_t warm_up = 0;                 // requests
  std::string model = "llama-3.1-8b";
  MachineChoice machine = {.name = "p5.4xlarge"};
};

// Computing the keys and values of a prompt of so many tokens against fetching them.
struct KvBreakEven {
  std::uint64_t tokens = 0;
  double compute_seconds = 0;
  ByKvTier<double> fetch_seconds{};  // 0: there is no way from the tier
  double bandwidth = 0;              // at which both take the same time
};

struct KvStudy {
  std::string model, gpu, machine;
  Bytes block_bytes = 0;
  ByKvTier<BytesPerSecond> bandwidth{};  // to the GPU; 0: there is no way
  std::uint64_t model_longest = 0;       // tokens that the model takes, 0: unknown
  std::vector<KvBreakEven> break_even;
  std::uint64_t endless_hits = 0;  // blocks that some request before had, of all requests
  std::vector<KvRun> runs;         // each policy with all sizes, in order
};

// Blocks of `block_bytes`: "40GiB", "10%" of the different blocks, "unlimited". `option` is for the message.
std::uint64_t parse_kv_size(const std::string& text, const std::string& option, const BlockTrace& trace,
                            Bytes block_bytes);

// Throws Error for a model or machine that is not known, a machine without a link that is needed, and sizes.
KvStudy study_kv_cache(const BlockTrace& trace, const KvRequest& request);

}  // namespace tencache
