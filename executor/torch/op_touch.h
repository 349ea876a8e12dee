// What an op touches: the storages behind its arguments, and which tensors of the runtime it uses how. Computed once
// for each intercepted op, before it runs.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/live/live_abi.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache::paging {

class Pager;

struct OpTouch {
  struct Argument {
    ArgumentInfo* info = nullptr;
    c10::StorageImpl* storage = nullptr;  // the stack's: it may go as soon as the op runs
    std::uint32_t tensor = tencache_no_tensor;
    bool overwritten = false;  // all of it, and not read
    bool in_list = false;
    std::size_t element = 0;  // of that list

    c10::Storage hold() const;
  };
  std::vector<Argument> arguments;  // one for each storage, in order
  std::vector<tencache_use> uses;   // each of the runtime's tensors once
  // Wrappers (of vmap, of tensor subclasses) have no memory themselves: their own kernels call ops on what they wrap.
  // All else is not known then.
  bool has_wrapper = false;

  // Of the op whose arguments are on top of the stack. `moves`: tencache_live has it.
  void find(OpSchema& info, const torch::jit::Stack& stack, Pager& pager, bool moves);
  // Whether the op says that it uses this tensor of the runtime and does not write it.
  bool only_reads(std::uint32_t tensor) const;

 private:
  void add(const Argument& argument, const c10::IValue& value);
  void add(const Argument& argument, const c10::Storage& storage, bool overwritten);
  void add_use(const Argument& argument);
};

}  // namespace tencache::paging
