#include "executor/torch/program/update.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cfenv>
#include <stdexcept>
#include <utility>

#include "executor/torch/recorder/op_schema.h"

namespace tencache {
namespace {

// PyTorch runs ops on so few elements on the calling thread, and a whole number of vectors of any processor, so that the
// elements that its kernels compute one by one are the same ones as without blocks.
constexpr std::size_t block_elements = 32768;

// A sub-group of this size takes a fraction of a millisecond: more than what a task costs, little to wait for.
constexpr std::uint64_t worthwhile_bytes = 4 << 20;

template <typename Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), false);
  } else if (value.isTensorList()) {
    for (const c10::IValue& element : value.toListRef()) visit(element.toTensor(), true);
  }
}

// What tells one call from another but for numbers.
std::string in_words(const c10::IValue& value) {
  if (value.isNone()) return "none";
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isString()) return value.toStringRef();
  if (value.isList()) return "list of " + std::to_string(value.toListRef().size());
  return value.isScalar() ? "number" : value.tagKind();
}

}  // namespace

Update::Update(std::vector<at::Tensor> sample, at::Tensor step)
    : tensor_count_(sample.size()), step_(std::move(step)), writes_(sample.size(), 0), values_(std::move(sample)) {
  for (std::size_t i = 0; i < values_.size(); ++i) known_[values_[i].unsafeGetTensorImpl()] = i;
  paging::set_op_taker(this);
}

Update::~Update() {
  if (taking_) paging::set_op_taker(nullptr);
}

void Update::finish() {
  paging::set_op_taker(nullptr);
  taking_ = false;
  values_.clear();
  known_.clear();
  if (problem_.empty() && calls_.empty()) problem_ = "it runs no op on the parameter";
  if (!problem_.empty()) throw std::runtime_error(problem_);
}

void Update::give_up(const std::string& why) {
  if (problem_.empty()) problem_ = why;
}

Update::Argument Update::look_at(const at::Tensor& tensor, std::size_t position, bool in_list) {
  Argument argument{position, in_list, constant, {}};
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (tensor.defined() && found != known_.end()) {
    argument.value = found->second;
  } else {
    argument.kept = tensor;
  }
  return argument;
}

void Update::take(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack& stack) {
  Call call{op, {}, {}, {}};
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = stack[stack.size() - count + i];
    const bool tensors = value.isTensor() || (value.isTensorList() && !value.toListRef().empty());
    call.arguments.push_back(tensors ? c10::IValue() : value);
    each_tensor(value,
                [&](const at::Tensor& tensor, bool in_list) { call.tensors.push_back(look_at(tensor, i, in_list)); });
  }
  op.redispatchBoxed(below, &stack);
  // What has to do with the number of steps alone is done once, not for each parameter.
  const bool ours = std::ranges::any_of(call.tensors, [](const Argument& of) { return of.value != constant; });
  if (!ours) return;
  note_writes(op, call);
  note_results(op, call, stack);
  describe(call);
  calls_.push_back(std::move(call));
}

void Update::note_writes(const c10::OperatorHandle& op, const Call& call) {
  const OpSchema& info = op_schema(op);
  for (const Argument& argument : call.tensors) {
    const bool written = std::ranges::any_of(info.arguments, [&](const ArgumentInfo& candidate) {
      return candidate.position == argument.position && candidate.written;
    });
    if (argument.value < tensor_count_ && written) ++writes_[argument.value];
    if (argument.value != constant || !argument.kept.defined()) continue;
    const bool number = argument.kept.is_same(step_) || argument.kept.unsafeGetTensorImpl()->is_wrapped_number();
    if (!number || written) give_up(info.name + " uses a tensor that is neither the parameter's nor the gradient's");
  }
}

void Update::note_results(const c10::OperatorHandle& op, Call& call, const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().returns().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor() && !stack[i].isTensorList()) give_up(op.schema().name() + " looks at values");
    each_tensor(stack[i], [&](const at::Tensor& tensor, bool) {
      const bool is_new = known_.try_emplace(tensor.unsafeGetTensorImpl(), values_.size()).second;
      call.result_is_new.push_back(is_new);
      if (is_new) values_.push_back(tensor);
    });
  }
}

void Update::describe(const Call& call) {
  signature_ += op_schema(call.op).name + "(";
  for (const c10::IValue& argument : call.arguments) signature_ += in_words(argument) + ", ";
  for (const Argument& argument : call.tensors) {
    signature_ += argument.value == constant ? "constant, " : "%" + std::to_string(argument.value) + ", ";
  }
  signature_ += ")\n";
}

void Update::run(const std::vector<float*>& tensors, std::size_t elements) const {
  const c10::AutoGradMode no_grad(false);
  const at::AutoDispatchBelowADInplaceOrView not_recorded;
  for (std::size_t begin = 0; begin < elements; begin += block_elements) {
    const auto size = static_cast<std::int64_t>(std::min(block_elements, elements - begin));
    std::vector<at::Tensor> block;
    for (float* const tensor : tensors) block.push_back(at::from_blob(tensor + begin, {size}, at::kFloat));
    run_block(std::move(block));
  }
}

void Update::run_block(std::vector<at::Tensor> values) const {
  for (const Call& call : calls_) {
    torch::jit::Stack stack = call.arguments;
    c10::List<at::Tensor> list;
    for (std::size_t i = 0; i < call.tensors.size(); ++i) {
      const Argument& argument = call.tensors[i];
      const at::Tensor& tensor = argument.value == constant ? argument.kept : values[argument.value];
      if (!argument.in_list) {
        stack[argument.position] = tensor;
        continue;
      }
      list.push_back(tensor);
      if (i + 1 < call.tensors.size() && call.tensors[i + 1].position == argument.position) continue;
      stack[argument.position] = std::exchange(list, c10::List<at::Tensor>());
    }
    call.op.callBoxed(&stack);
    std::size_t result = 0;
    for (const c10::IValue& value : stack) {
      each_tensor(value, [&](const at::Tensor& tensor, bool) {
        if (call.result_is_new[result++]) values.push_back(tensor);
      });
    }
  }
}

// ---- Tasks ----------------------------------------------------------------------------------------------------------

namespace {

struct Slice {
  std::size_t use = 0;
  std::size_t offset = 0;  // bytes
};

struct Member {
  std::vector<Slice> tensors;
  std::size_t elements = 0;
};

// Parameters that are updated together.
struct SubGroup {
  std::shared_ptr<const Update> update;
  std::string name;
  std::int32_t number = 0;
  std::vector<tencache_use> uses;
  std::vector<Member> members;
  std::uint64_t bytes = 0;
  std::fenv_t arithmetic{};  // rounding, and what becomes of the smallest numbers, as where the program runs
  std::string failure;

  Slice use(const at::Tensor& tensor, bool written) {
    const std::uint32_t id = paging::tensor_of(tensor.storage());
    const auto known = std::ranges::find(uses, id, &tencache_use::tensor);
    const Slice slice{static_cast<std::size_t>(known - uses.begin()),
                      static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size()};
    if (known != uses.end()) {
      known->written |= written ? 1 : 0;
    } else {
      uses.push_back({id, 1, static_cast<std::uint8_t>(written ? 1 : 0), nullptr});
    }
    return slice;
  }
};

const char* update_members(void* context, void* const* addresses) {
  SubGroup& group = *static_cast<SubGroup*>(context);
  try {
    std::fesetenv(&group.arithmetic);
    for (const Member& member : group.members) {
      std::vector<float*> tensors;
      for (const Slice& slice : member.tensors) {
        tensors.push_back(reinterpret_cast<float*>(static_cast<std::byte*>(addresses[slice.use]) + slice.offset));
      }
      group.update->run(tensors, member.elements);
    }
    return nullptr;
  } catch (const c10::Error& error) {
    group.failure = error.what_without_backtrace();
  } catch (const std::exception& error) {
    group.failure = error.what();
  }
  return group.failure.c_str();
}

// Of a parameter, its gradient and its states, when all of them are there.
std::uint64_t bytes_at_once(const at::Tensor* tensors, std::size_t tensor_count) {
  std::vector<std::uint32_t> seen;
  std::uint64_t bytes = 0;
  for (const at::Tensor* tensor = tensors; tensor < tensors + tensor_count; ++tensor) {
    const std::uint32_t id = paging::tensor_of(tensor->storage());
    if (std::ranges::find(seen, id) != seen.end()) continue;
    seen.push_back(id);
    bytes += tensor->storage().nbytes();
  }
  return bytes;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && tensor.device().is_cpu() &&
         tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

std::string why_no_tasks(const tencache_live& live, const std::vector<at::Tensor>& tensors, std::size_t tensor_count) {
  if (live.on_accelerator != 0) return "its parameters are on an accelerator";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (tensor.scalar_type() != at::kFloat) {
      return std::string("a parameter, gradient or state is ") + c10::toString(tensor.scalar_type()) + ", not Float";
    }
    if (!is_plain(tensor)) return "a parameter, gradient or state is not contiguous";
    if (tensor.numel() != tensors[i - i % tensor_count].numel()) return "a state has another size than its parameter";
    if (tensor.numel() > 0 && paging::tensor_of(tensor.storage()) == tencache_no_tensor) {
      return "a parameter, gradient or state is not paged";
    }
    if (i % tensor_count != 0) continue;
    const std::uint64_t bytes = bytes_at_once(&tensor, tensor_count);
    if (bytes > live.task_bytes) {
      return "a parameter with its gradient and states has " + std::to_string(bytes) + " bytes, and only " +
             std::to_string(live.task_bytes) + " may be there at once";
    }
  }
  return {};
}

std::size_t run_as_tasks(const tencache_live& live, const std::shared_ptr<const Update>& update,
                         const std::string& name, const std::vector<std::int32_t>& numbers,
                         const std::vector<at::Tensor>& tensors) {
  const std::size_t tensor_count = update->tensor_count();
  const std::uint64_t most_bytes = std::min(live.group_bytes, worthwhile_bytes);
  std::vector<std::unique_ptr<SubGroup>> groups;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const at::Tensor* const mine = &tensors[i * tensor_count];
    if (mine->numel() == 0) continue;
    const std::uint64_t bytes = bytes_at_once(mine, tensor_count);
    if (groups.empty() || groups.back()->bytes + bytes > most_bytes) {
      SubGroup& group = *groups.emplace_back(std::make_unique<SubGroup>());
      group.update = update;
      group.number = numbers[i];
      group.name = name + "." + std::to_string(group.number);
      std::fegetenv(&group.arithmetic);
    }
    SubGroup& group = *groups.back();
    group.bytes += bytes;
    Member& member = group.members.emplace_back();
    member.elements = static_cast<std::size_t>(mine->numel());
    for (std::size_t t = 0; t < tensor_count; ++t) member.tensors.push_back(group.use(mine[t], update->writes(t) > 0));
  }
  std::vector<tencache_task> tasks;
  for (std::unique_ptr<SubGroup>& group : groups) {
    tencache_task& task = tasks.emplace_back();
    task = {group->name.data(), group->name.size(), group->number,      group->uses.data(),
            group->uses.size(), update_members,     /*forget=*/nullptr, group.get()};
    task.forget = [](void* context) { delete static_cast<SubGroup*>(context); };
  }
  for (std::unique_ptr<SubGroup>& group : groups) static_cast<void>(group.release());
  const int status = live.run_tasks(live.runtime, tasks.data(), tasks.size());
  // To autograd they were written here.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].is_inference()) continue;
    for (std::uint32_t n = 0; n < update->writes(i % tensor_count); ++n)
      tensors[i].unsafeGetTensorImpl()->bump_version();
  }
  paging::check(live, status);
  return tasks.size();
}

}  // namespace tencache
