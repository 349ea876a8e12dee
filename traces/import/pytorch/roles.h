// What each storage of an iteration is, and how that is known.
//
//   parameter        there before the iteration, read outside the optimizer's step and written within it. Without a
//   step,
//                    or frozen: there before, of floating point, never written, and an argument that a schema calls
//                    weight or bias. Buffers (running statistics) count as parameters, as everywhere in TenCache: there
//                    before, read or written by the forward pass and written by it.
//   gradient         of a parameter: read by the optimizer's step, written by the backward pass, and either what
//                    autograd's AccumulateGrad was given or of as many elements as a parameter. Without a step, what
//                    AccumulateGrad was given. Also what is there before and only the backward pass uses (buckets of
//                    DDP). Of an activation: what the backward pass makes otherwise, unless a call made it that is part
//                    of a graph for autograd (has a sequence number): it computes activations again.
//   optimizer_state  used by the step only, and there before the iteration or after it; or, where the recording has one
//                    step only, filled within the step and then updated in place: a state created on first use.
//   workspace        allocated and used within one op, or within the step and no state
//   input            there before, and none of these; or copied from the host's memory within the iteration
//   activation       the others
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/import/pytorch/calls.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {

struct StorageRole {
  Role role = Role::activation;
  bool persistent = false;
  bool created_on_first_use = false;  // an optimizer state that the iteration's own step creates
  bool of_activation = false;         // a gradient that is no parameter's
};

struct Roles {
  std::vector<StorageRole> of_storage;  // meaningful for those that the iteration uses
  std::vector<std::string> evidence;    // a line a role
  std::string summary;                  // the same in one line, for a trace's header
};

// `ops` of the whole recording: what happens to a storage before and after the iteration tells what it is.
Roles find_roles(const ExecutionTrace& trace, const Storages& storages, const std::vector<CallOp>& ops,
                 const std::vector<Part>& parts, const Iteration& iteration);

}  // namespace tencache
