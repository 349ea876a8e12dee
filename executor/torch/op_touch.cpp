#include "executor/torch/op_touch.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "executor/torch/pager.h"

namespace tencache::paging {

void OpTouch::find(OpSchema& info, const torch::jit::Stack& stack, Pager& pager, bool moves) {
  arguments.clear();
  uses.clear();
  has_wrapper = false;
  const std::size_t first = stack.size() - info.argument_count;
  for (ArgumentInfo& argument : info.arguments) {
    Argument added;
    added.info = &argument;
    const c10::IValue& value = stack[first + argument.position];
    if (!value.isList()) {
      add(added, value);
      continue;
    }
    added.in_list = true;
    for (const c10::IValue& element : value.toListRef()) {
      add(added, element);
      ++added.element;
    }
  }
  if (has_wrapper) return;
  std::unique_lock<std::mutex> lock;
  if (moves) lock = std::unique_lock(pager.addresses());
  for (Argument& argument : arguments) {
    argument.tensor = pager.tensor_of(*argument.storage);
    add_use(argument);
  }
}

void OpTouch::add(const Argument& argument, const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return;
    if (tensor.layout() == c10::kStrided) {
      if (!tensor.has_storage()) {
        has_wrapper = true;
      } else {
        add(argument, tensor.storage(), argument.info->overwritten && covers_storage(tensor));
      }
      return;
    }
  }
  visit_storages(value, [&](const c10::Storage& storage, bool) { add(argument, storage, false); });
}

void OpTouch::add(const Argument& argument, const c10::Storage& storage, bool overwritten) {
  Argument& added = arguments.emplace_back(argument);
  added.storage = storage.unsafeGetStorageImpl();
  added.overwritten = overwritten;
}

void OpTouch::add_use(const Argument& argument) {
  if (argument.tensor == tencache_no_tensor || !argument.info->content) return;
  const tencache_use use = {argument.tensor, !argument.overwritten, argument.info->written, nullptr};
  for (tencache_use& known : uses) {
    if (known.tensor != use.tensor) continue;
    known.read |= use.read;
    known.written |= use.written;
    return;
  }
  uses.push_back(use);
}

c10::Storage OpTouch::Argument::hold() const {
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage));
}

bool OpTouch::only_reads(std::uint32_t tensor) const {
  return std::ranges::any_of(uses,
                             [tensor](const tencache_use& use) { return use.tensor == tensor && use.written == 0; });
}

}  // namespace tencache::paging
