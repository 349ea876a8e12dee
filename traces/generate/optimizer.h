// Inside the generator: master copies, optimizer states and the step that updates the parameters.
#pragma once

#include <deque>
#include <vector>

#include "traces/generate/parallel.h"
#include "traces/generate/step.h"

namespace tencache::generator {

// Sub-groups as DeepSpeed cuts them: in the order of the parameters, one ends with the parameter that reaches
// `sub_group` elements of a rank's part; `ranks` share each parameter.
void assign_groups(std::deque<Parameter>& parameters, Count sub_group, Count ranks);

class OptimizerTensors {
 public:
  // Adds the tensors. The parameters must outlive this object.
  OptimizerTensors(Step& step, std::deque<Parameter>& parameters);
  // Clip::early: the norms of these parameters' gradients, which are complete. Those that are not asked for come with
  // the step.
  void emit_norms(std::span<Parameter* const> parameters);
  // Update::fused: the updates of these parameters, whose gradients are complete.
  void emit_fused(std::span<Parameter* const> parameters);
  // The updates that are left. `gather_parameters`: ZeRO-1 and -2, where each rank updates a part of what all have.
  void emit(Collectives& collectives, bool gather_parameters);

 private:
  struct Entry {
    Parameter* parameter;
    TensorId master;
    std::vector<TensorId> states;
    TensorId norm = none;
    Count rank =
        0;  // of the matrix that its gradient is projected to; 0: it is not. `states` begins with the projector
    bool updated = false;
  };
  void emit_norm(Entry& entry);
  // One op that reads the gradient and what the optimizer keeps.
  void emit_update(Entry& entry, TensorId coefficient);
  void emit_low_rank(const Entry& entry, TensorId gradient, TensorId coefficient);
  void emit_lamb(Collectives& collectives, TensorId coefficient);
  // With the bytes of its accesses, of which a stored parameter counts as this rank's part.
  void emit_op(const Entry& entry, std::string_view name, Cost cost, std::span<const TensorId> reads,
               std::span<const TensorId> writes);
  TensorId emit_clip(Collectives& collectives);
  void emit_gather(Collectives& collectives);

  Step& step_;
  std::deque<Parameter>& parameters_;
  std::vector<Entry> entries_;
};

}  // namespace tencache::generator
