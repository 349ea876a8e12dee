// What a policy that is written in Python may look at and do: view, memory, event, actions and request.
//
// They are valid during the call that hands them over only; later they raise Error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/policy.h"
#include "python/bindings.h"

namespace tencache {

// What the present call may look at; null between calls.
struct PolicyCall {
  const View* view = nullptr;
  const Event* event = nullptr;
  Actions* actions = nullptr;
  const RoomRequest* request = nullptr;
  py::object machine;
  std::shared_ptr<PythonTrace> program;  // a copy, made when it is first asked for
};

template <typename T>
const T& present(const T* part) {
  if (part == nullptr)
    throw Error("view, event, actions and request are valid during the policy's call only; keep the figures you need");
  return *part;
}

// What Python holds of a call: handles on the same.
struct ViewHandle {
  std::shared_ptr<PolicyCall> call;
  const View& get() const { return present(call->view); }
};
struct MemoryHandle {
  std::shared_ptr<PolicyCall> call;
  const Residency& get() const { return present(call->view).memory; }
  const Residency& with_tensor(TensorId tensor) const { return check(tensor, get().tensor_count(), "tensor"); }
  const Residency& with_chunk(ChunkId chunk) const { return check(chunk, get().chunk_total(), "chunk"); }
  const Residency& with_tier(std::size_t tier) const { return check(tier, get().tier_count(), "tier"); }
  const Residency& with(ChunkId chunk, std::size_t tier) const {
    with_chunk(chunk);
    return with_tier(tier);
  }

 private:
  const Residency& check(std::size_t index, std::size_t count, const char* what) const {
    if (index < count) return get();
    throw py::index_error(std::string(what) + " " + std::to_string(index) + " does not exist; there are " +
                          std::to_string(count));
  }
};
struct EventHandle {
  std::shared_ptr<PolicyCall> call;
  const Event& get() const { return present(call->event); }
};
struct ActionsHandle {
  std::shared_ptr<PolicyCall> call;
  void push(const Action& action) const {
    present(static_cast<const Actions*>(call->actions));
    const MemoryHandle memory{call};
    memory.with_tensor(action.tensor);
    memory.with_tier(action.tier);
    if (action.destination != no_tier) memory.with_tier(action.destination);
    call->actions->push(action);
  }
};
struct RequestHandle {
  std::shared_ptr<PolicyCall> call;
  const RoomRequest& get() const { return present(call->request); }
};

// The Python classes of the handles.
void bind_policy_call(py::module_& module);

}  // namespace tencache
