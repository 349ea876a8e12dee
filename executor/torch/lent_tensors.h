// Tensors that an op has handed to threads which go on after it has returned: those of torch.distributed (c10d), until
// the op's Work is over. Their memory does not move meanwhile, and the runtime copies nothing that they may write.
//
// Where PyTorch has no torch.distributed, no op lends anything.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "executor/live/live_abi.h"

namespace tencache::paging {

struct Loan {
  const tencache_live* live = nullptr;
  std::vector<tencache_use> uses;      // tensors of the runtime
  std::vector<c10::Storage> storages;  // all that the op was given; held until the end
};

// Inside the op, which has returned these values. Nothing happens if no Work is among them: it was over when it
// returned. Throws what `check` does with a status of the runtime.
void lend(Loan loan, at::ArrayRef<c10::IValue> results, void (*check)(const tencache_live&, int status));

bool is_lent(const void* address);

// Ends the loans of Works that tell nobody when they are over (sends and receives): call it now and then.
void take_back_finished();
// As `take_back_finished`, and waits for all others.
void await_lent();

// The runtime ends.
void forget_loans(const tencache_live& live);

}  // namespace tencache::paging
