// Content that a program copies from ordinary CPU memory to a tensor that is paged on a GPU, such as a model that it
// has read: the runtime brings it (tencache_live::upload), several times as fast as a copy of the driver does.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include "executor/live/live_abi.h"
#include "executor/torch/pager.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache::paging {

// Of an op that has begun, whose arguments are on top of the stack: true if it was such a copy, which is done then,
// with the result on the stack. `below`: the keys that it would be redispatched to.
bool load(const OpSchema& info, c10::DispatchKeySet below, const tencache_live& live, Pager& pager,
          torch::jit::Stack& stack);

// Of an op that has not begun: true if it was a copy to a new tensor for which others would have to leave the GPU. It
// is done then, and lies in CPU memory (tencache_live::store).
bool store(const OpSchema& info, c10::DispatchKeySet below, const tencache_live& live, Pager& pager,
           torch::jit::Stack& stack);

}  // namespace tencache::paging
