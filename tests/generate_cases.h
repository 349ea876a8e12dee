// What the tests of the generator share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "traces/generate/generate.h"

namespace tencache {

using Count = std::uint64_t;

// Four sequences of 64 tokens in fp16 on an h100.
inline GenerateOptions small(const std::string& model) {
  GenerateOptions options;
  options.model = read_model(model);
  options.gpu = read_gpu("h100");
  options.head = usual_head(options.model);
  options.batch = 4;
  if (options.model.family != ModelFamily::vit) options.sequence_lengths = {64};
  return options;
}

inline Bytes bytes_of_role(const Trace& trace, Role role, bool persistent) {
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role == role && tensor.persistent == persistent) bytes += tensor.bytes;
  }
  return bytes;
}

inline Count flops(const Trace& trace, Phase phase) {
  Count sum = 0;
  for (const Op& op : trace.ops) {
    if (op.phase == phase) sum += op.flops;
  }
  return sum;
}

// What it is refused with.
inline std::string error_of(const GenerateOptions& options) {
  try {
    generate(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline std::vector<std::vector<OpIndex>> ops_by_rank(const Trace& trace) {
  std::vector<std::vector<OpIndex>> ranks;
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    if (trace.ops[i].rank >= ranks.size()) ranks.resize(trace.ops[i].rank + 1u);
    ranks[trace.ops[i].rank].push_back(i);
  }
  return ranks;
}

// Runs the ranks side by side, each in its own order; an op with a key starts when all ops of that key may start.
// Empty if all ranks reach their end, else what they wait for.
inline std::string waits_for_ever(const Trace& trace) {
  const auto ranks = ops_by_rank(trace);
  std::map<NameId, std::size_t> participants, arrived;
  for (const Op& op : trace.ops) {
    if (op.rendezvous != 0) ++participants[op.rendezvous];
  }
  std::vector<std::size_t> next(ranks.size(), 0);
  std::vector<bool> waiting(ranks.size(), false);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      while (next[rank] < ranks[rank].size()) {
        const NameId key = trace.ops[ranks[rank][next[rank]]].rendezvous;
        if (key != 0) {
          if (!waiting[rank]) ++arrived[key], waiting[rank] = true, moved = true;
          if (arrived[key] < participants[key]) break;
        }
        waiting[rank] = false;
        ++next[rank];
        moved = true;
      }
    }
  }
  std::string stuck;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (next[rank] == ranks[rank].size()) continue;
    stuck +=
        "rank " + std::to_string(rank) + " at '" + trace.names[trace.ops[ranks[rank][next[rank]]].rendezvous] + "'; ";
  }
  return stuck;
}

}  // namespace tencache
