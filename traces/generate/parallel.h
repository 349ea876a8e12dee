// Inside the generator: ranks, what each holds, and the ops by which they exchange data.
//
// Rank numbers follow Megatron-LM: tensor-parallel neighbours first, then data-parallel ones, then pipeline stages.
// A collective is an op of each participant with the same rendezvous key. Every rank counts its collectives of a group;
// all ranks of a group run the same sequence of them, so equal counts name the same occurrence. Where the software
// overlaps it with kernels, the op takes the share that is exposed in any case, and one on
// the communication stream the rest: hidden as far as kernels run meanwhile.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "traces/generate/step.h"

namespace tencache::generator {

struct RankPosition {
  Count tensor = 0, data = 0, stage = 0;

  static RankPosition of(Count rank, const GenerateOptions& options) {
    return {rank % options.tensor_parallel, rank / options.tensor_parallel % options.data_parallel,
            rank / options.tensor_parallel / options.data_parallel};
  }
};

enum class Group : std::uint8_t { tensor, data, embedding, world };

// Whether the software lets a collective run beside kernels, if it does so at all.
enum class Overlap : std::uint8_t { none, kernels };

class Collectives {
 public:
  Collectives(Step& step, RankPosition position) : step_(step), position_(position) {}

  const RankPosition& position() const { return position_; }
  Count size(Group group) const;
  // Whether the software overlaps anything with kernels.
  bool overlaps() const { return exposed() < 1; }

  // In place. Nothing for a group of one.
  void all_reduce(Group group, const Module& module, TensorId tensor);
  void all_reduce(Group group, const Module& module, std::span<const TensorId> tensors, Bytes bytes,
                  Overlap overlap = Overlap::none);
  // Several tensors as one collective. `bytes` is the whole payload: what a rank has after gathering, or before
  // scattering. `accumulated`: those of the shards that have content, to which is added. Scattered by an all-reduce if
  // the options say so.
  void all_gather(Group group, const Module& module, std::span<const TensorId> shards, std::span<const TensorId> whole,
                  Bytes bytes, Overlap overlap = Overlap::none);
  void reduce_scatter(Group group, const Module& module, std::span<const TensorId> whole,
                      std::span<const TensorId> shards, std::span<const TensorId> accumulated, Bytes bytes,
                      Overlap overlap = Overlap::none);
  // With the stage `peer`: sends `out` and receives `in`, either may be none. `occurrence` is the same on both sides.
  void exchange(Count peer, const std::string& occurrence, std::string_view name, const Module& module, TensorId out,
                TensorId in);

 private:
  Op collective_op(std::string_view name, const Module& module, Count ranks, Bytes moved);
  void collective(Group group, std::string_view name, const Module& module, std::span<const TensorId> reads,
                  std::span<const TensorId> writes, Bytes moved, Overlap overlap);
  // The rest of a collective, beside the kernels that follow it.
  void beside(Op op, std::span<const TensorId> reads, std::span<const TensorId> writes);
  std::string key(Group group);
  double exposed() const;

  Step& step_;
  RankPosition position_;
  std::array<Count, 4> counts_{};
  std::vector<TensorId> reads_;
};

}  // namespace tencache::generator
