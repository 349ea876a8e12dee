// What the observer has seen of a step: tensors, ops, and the text that Python gets of them.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/torch/recorder/op_schema.h"
#include "traces/import/pytorch/op_flops.h"
#include "traces/import/pytorch/op_kernel.h"

namespace tencache {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using Uses = c10::SmallVector<std::uint32_t, 4>;  // of Step::tensors

struct SeenTensor {
  const c10::StorageImpl* storage = nullptr;  // nullptr once its address is free to be used again
  WeakStorage alive;
  std::size_t bytes = 0;  // the most it had
  bool old = false;       // there before the op that used it first
};

struct SeenOp {
  const OpSchema* schema = nullptr;
  int module = -1;
  bool backward = false, optimizer = false;
  bool unfinished = false;  // another thread was at it when the step ended
  bool graph = false;       // part of one that autograd will go back through
  std::int64_t start_ns = 0, end_ns = 0;
  Arithmetic arithmetic = Arithmetic::none;
  double flops = 0;
  std::uint64_t bytes = 0, temporary_bytes = 0;
  OpKernel kernel;
  OpTensor input;    // the first
  bool sum = false;  // of two gradients of one tensor
  Uses reads, writes;
  void* start_event = nullptr;
  void* end_event = nullptr;
};

struct Region {  // compiled code, whose ops are not seen
  std::int64_t duration_ns = 0;
  std::uint64_t calls = 0;
};

struct Step {
  std::vector<SeenTensor> tensors;
  std::vector<SeenOp> ops;
  std::unordered_map<const c10::StorageImpl*, std::uint32_t> tensor_of;
  std::vector<std::uint32_t> young;  // made within the step, and not known to be dead
  std::vector<WeakStorage> held;     // known by address from before
  std::unordered_map<std::int64_t, int> module_of_sequence;
  std::map<std::string, Region> regions;
  std::int64_t begin_ns = 0, end_ns = 0;
  void* begin_event = nullptr;
  void* end_event = nullptr;
};

// As JSON, with times from the beginning of the step and without unfinished ops; _trace.py reads it.
std::string to_json(const Step& step);

}  // namespace tencache
