// A trace without the names of what was trained, to share it outside.
#pragma once

#include "core/trace.h"

namespace tencache {

// Tensors are called after their role and number in it ("parameter.0"), modules "module.0", …, ops "op.0", … with one
// number a name, each in order of first appearance, and the model "model"; collectives' keys likewise. The header's
// recorded_by and made_with, which may quote commands and paths, become "names stripped" and empty. Sizes, times, order
// and roles stay, so every result stays the same, but for what a policy or the kernel model reads from names (fused
// attention is recognised by its op's name: such ops keep the name "scaled_dot_product.N"). What is not secret in
// itself stays: batch, sequence length, precision, hardware, made_by.
Trace strip_names(const Trace& trace);

}  // namespace tencache
