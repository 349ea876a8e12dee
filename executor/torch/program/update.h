// The update of an optimizer as PyTorch computes it, to be run again elsewhere: the ops that PyTorch's own function calls
// are taken down while it updates a sample of a few elements, and run on the memory of parameters, their gradients and
// states. So the bits are PyTorch's, whatever its version and its options do, as long as each element is computed from
// the same elements of these tensors and from numbers; `python/tencache/_updates.py` compares before it relies on that.
//
// Tensors are updated in blocks: intermediate results stay in the processor's cache, and take none of the run's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "executor/torch/paging.h"

namespace tencache {

class Update final : public paging::OpTaker {
 public:
  // Takes the calling thread's ops down from now until `finish`. `sample`: a parameter, its gradient, its states. `step`
  // counts the steps, undefined where nothing does; what it is at the end is a number like others.
  Update(std::vector<at::Tensor> sample, at::Tensor step);
  ~Update() override;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // Throws std::runtime_error if the ops cannot be run on other tensors, with the reason.
  void finish();

  // ---- After `finish`. Any thread may call.
  std::size_t tensor_count() const { return tensor_count_; }
  // How often the ops write it: 0 if it is only read.
  std::uint32_t writes(std::size_t tensor) const { return writes_[tensor]; }
  // Ops and options in words; numbers are left out.
  const std::string& signature() const { return signature_; }
  // Updates as many elements of each, in the order of the sample. Throws what PyTorch throws.
  void run(const std::vector<float*>& tensors, std::size_t elements) const;

  void take(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack) override;

 private:
  static constexpr std::size_t constant = ~std::size_t{0};
  // An argument, or an element of one that is a list of tensors.
  struct Argument {
    std::size_t position = 0;
    bool in_list = false;
    std::size_t value = constant;  // of the update's values: the sample, then results of ops in their order
    at::Tensor kept;               // of a constant
  };
  struct Call {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;      // without tensors
    std::vector<Argument> tensors;    // in the order of arguments
    std::vector<bool> result_is_new;  // of the tensors that it returns
  };
  Argument look_at(const at::Tensor& tensor, std::size_t position, bool in_list);
  void note_writes(const c10::OperatorHandle& op, const Call& call);
  void note_results(const c10::OperatorHandle& op, Call& call, const torch::jit::Stack& stack);
  void describe(const Call& call);
  void give_up(const std::string& why);
  void run_block(std::vector<at::Tensor> values) const;

  std::size_t tensor_count_;
  at::Tensor step_;
  std::vector<std::uint32_t> writes_;
  std::vector<Call> calls_;
  std::string signature_;
  // While ops are taken down.
  bool taking_ = true;
  std::vector<at::Tensor> values_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> known_;
  std::string problem_;
};

// ---- Updates as tasks of the runtime. `tensors` has for each of the parameters the update's tensors, in their order.

// Why they cannot be; empty: they can.
std::string why_no_tasks(const tencache_live& live, const std::vector<at::Tensor>& tensors, std::size_t tensor_count);
// Runs them, in sub-groups: parameters that follow each other, few enough bytes to move while others are updated. A
// sub-group has the number of its first parameter. Returns how many there are. Throws what `raise` of paging.h throws.
std::size_t run_as_tasks(const tencache_live& live, const std::shared_ptr<const Update>& update,
                         const std::string& name, const std::vector<std::int32_t>& numbers,
                         const std::vector<at::Tensor>& tensors);

}  // namespace tencache
