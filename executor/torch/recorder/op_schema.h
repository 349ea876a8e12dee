// What an op of LibTorch reads and writes, by its schema and lists, and the storages behind its arguments.
//
// Used where ops are intercepted and where they are only observed. Depends on LibTorch alone (1.13 and newer): the
// observer compiles this file in a user's own PyTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

namespace tencache {

struct ArgumentInfo {
  std::string name;
  std::size_t position = 0;
  bool content = true;               // false: only its sizes matter
  bool overwritten = false;          // written whole, not read
  std::atomic<bool> written{false};  // an audit may find out late
};

struct OpSchema {
  std::string name;             // with overload
  std::string base_name;        // without
  bool touches_memory = false;  // false: a view, a question about sizes, or made of other ops
  bool uninitialised = false;
  bool goes_on = false;   // after it has returned, until its Work is over
  bool on_lists = false;  // of tensors, element by element: parts of the lists give the same
  std::size_t argument_count = 0, return_count = 0;
  std::size_t causal_position = ~std::size_t{0};  // of the argument that says so; of attention
  std::deque<ArgumentInfo> arguments;             // those that may hold tensors
  std::atomic<std::uint64_t> numbered{0};         // pager.h: a run's number for the name
};

// The same object for the same op, for ever. Thread-safe.
OpSchema& op_schema(const c10::OperatorHandle& op);

// Where the storage's memory is: what tells storages apart while they live.
const void* base_address(const c10::Storage& storage);

// Calls visit(const c10::Storage&, bool whole) for every storage behind a value; `whole`: the tensor is all of it.
template <typename Visit>
void visit_storages(const at::Tensor& tensor, const Visit& visit);
template <typename Visit>
void visit_storages(const c10::IValue& value, const Visit& visit);

// ---- Implementation -------------------------------------------------------------------------------------------------

// Whether the tensor is all of its storage.
bool covers_storage(const at::Tensor& tensor);
// The tensors that hold the content of a sparse tensor, which has no storage itself; the tensor for any other.
c10::SmallVector<at::Tensor, 2> parts_of(const at::Tensor& tensor);

template <typename Visit>
void visit_storages(const at::Tensor& tensor, const Visit& visit) {
  if (!tensor.defined()) return;
  if (tensor.layout() == c10::kStrided) {
    if (tensor.has_storage()) visit(tensor.storage(), covers_storage(tensor));
    return;
  }
  for (const at::Tensor& part : parts_of(tensor)) {  // what overwrites the sparse tensor may keep them
    if (part.defined() && part.has_storage()) visit(part.storage(), false);
  }
}

template <typename Visit>
void visit_storages(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit_storages(value.toTensor(), visit);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_storages(element, visit);
  } else if (value.isStorage()) {
    visit(value.toStorage(), false);
  }
}

}  // namespace tencache
