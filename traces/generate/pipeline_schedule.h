// Inside the generator: in which order a pipeline stage computes its micro-batches and exchanges data with other
// stages.
//
// With one chunk of layers per stage the schedule is 1F1B (PipeDream-Flush, Narayanan et al. 2021, "Memory-Efficient
// Pipeline-Parallel DNN Training"). With several it is the interleaved schedule of Narayanan et al., SC'21, section 2.2
// (Megatron-LM's forward_backward_pipelining_with_interleaving, without overlapped communication). Chunk c of stage s
// is then virtual stage c × stages + s, so the output of the last stage goes to the next chunk of the first stage.
//
// An exchange is a rendezvous of two stages. The lists of all stages are projections of one global order, so no two
// stages wait for each other.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/trace.h"

namespace tencache::generator {

struct PipelinePlan {
  std::uint64_t stages = 1;
  std::uint64_t chunks = 1;         // of each stage
  std::uint64_t micro_batches = 1;  // with several chunks a multiple of `stages`
  bool forward_only = false;

  std::uint64_t virtual_stages() const { return stages * chunks; }
};

// An activation (Phase::forward) or its gradient (Phase::backward) between neighbouring virtual stages.
struct PipelineMessage {
  Phase phase = Phase::forward;
  std::uint64_t from = 0, to = 0;  // virtual stages
  std::uint64_t micro_batch = 0;

  auto operator<=>(const PipelineMessage&) const = default;
};

struct PipelineAction {
  enum class Kind : std::uint8_t { forward, backward, exchange };

  Kind kind = Kind::forward;
  std::uint64_t chunk = 0, micro_batch = 0;  // of forward and backward
  // Of an exchange: the other stage, and what this stage sends to it and receives from it. At least one is there.
  std::uint64_t peer = 0;
  std::optional<PipelineMessage> sent = {}, received = {};

  // The message that names the exchange: the same one in the lists of both stages, and a different one for every
  // exchange.
  const PipelineMessage& occurrence() const;
};

// All actions of one stage, in order. Every message that a micro-batch needs is received before its computation and
// sent after the computation that makes it.
std::vector<PipelineAction> pipeline_schedule(const PipelinePlan& plan, std::uint64_t stage);

}  // namespace tencache::generator
