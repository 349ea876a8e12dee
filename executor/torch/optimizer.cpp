#include "executor/torch/optimizer.h"

#include <optional>

#include "core/check.h"

namespace tencache {
// Where a tensor's elements lie: in the use-th storage of a task, from a byte offset on.
struct Optimizer::Slice {
  std::size_t use = 0;
  std::size_t offset = 0;
  std::size_t elements = 0;

  template <class Element>
  std::span<Element> in(std::span<std::byte* const> addresses) const {
    return {reinterpret_cast<Element*>(addresses[use] + offset), elements};
  }
};

Optimizer::Slice Optimizer::Task::use(const torch::Tensor& tensor, bool read, bool write) {
  TENCACHE_CHECK(tensor.defined() && tensor.is_contiguous());
  Slice slice;
  slice.offset = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  slice.elements = static_cast<std::size_t>(tensor.numel());
  for (; slice.use < uses.size(); ++slice.use) {
    Use& earlier = uses[slice.use];
    if (!earlier.tensor.is_alias_of(tensor)) continue;
    earlier.read = earlier.read || read;
    earlier.write = earlier.write || write;
    return slice;
  }
  uses.push_back({tensor, read, write});
  return slice;
}

namespace {

std::size_t blocks_of(const torch::Tensor& tensor) { return norm_blocks(static_cast<std::size_t>(tensor.numel())); }

}  // namespace

Optimizer::Optimizer(std::vector<std::pair<std::string, torch::Tensor>> parameters, const TrainingConfig& config)
    : options_(config.adamw), clip_(config.clip), low_(config.precision == TrainingPrecision::bf16) {
  torch::NoGradGuard no_gradient;
  std::uint64_t in_group = config.sub_group_parameters;  // the first parameter opens the first sub-group
  for (auto& [name, value] : parameters) {
    TENCACHE_CHECK(value.is_contiguous() && value.scalar_type() == (low_ ? torch::kBFloat16 : torch::kFloat32));
    if (in_group >= config.sub_group_parameters) {
      groups_.emplace_back();
      in_group = 0;
    }
    groups_.back().members.push_back(parameters_.size());
    in_group += static_cast<std::uint64_t>(value.numel());
    const auto zeros = [&value = value] {
      return torch::zeros(value.sizes(), torch::TensorOptions(value.device()).dtype(torch::kFloat32));
    };
    parameters_.push_back({name, value, zeros(), zeros(), low_ ? value.detach().to(torch::kFloat32) : torch::Tensor()});
  }
  const torch::TensorOptions on_device(parameters_.at(0).value.device());
  for (Group& group : groups_) {
    std::size_t blocks = 0;
    for (const std::size_t member : group.members) blocks += blocks_of(parameters_[member].value);
    group.partials = torch::zeros({static_cast<std::int64_t>(blocks)}, on_device.dtype(torch::kFloat64));
  }
  coefficient_ = torch::zeros({1}, on_device.dtype(torch::kFloat32));
}

std::vector<Optimizer::State> Optimizer::states() const {
  std::vector<State> states;
  for (const Parameter& parameter : parameters_) {
    if (parameter.master.defined()) {
      states.push_back({parameter.name + ".master", parameter.master, Role::master_parameter});
    }
    states.push_back({parameter.name + ".first_moment", parameter.first_moment});
    states.push_back({parameter.name + ".second_moment", parameter.second_moment});
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    states.push_back({"grad_norm." + std::to_string(i), groups_[i].partials, Role::workspace});
  }
  states.push_back({"clip_coefficient", coefficient_, Role::workspace});
  return states;
}

std::vector<Optimizer::Task> Optimizer::next_step() {
  ++step_;
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < groups_.size(); ++i) tasks.push_back(norm_task(i));
  tasks.push_back(clip_task());
  for (std::size_t i = 0; i < groups_.size(); ++i) tasks.push_back(update_task(i));
  return tasks;
}

Optimizer::Task Optimizer::norm_task(std::size_t group) const {
  Task task{
      .name = "grad_norm." + std::to_string(group), .group = static_cast<std::int32_t>(group), .reorderable = true};
  std::vector<Slice> gradients;
  for (const std::size_t member : groups_[group].members) {
    gradients.push_back(task.use(parameters_[member].value.grad(), true, false));
  }
  const Slice partials = task.use(groups_[group].partials, false, true);
  task.body = [gradients = std::move(gradients), partials, low = low_](AdamWKernels& kernels,
                                                                       std::span<std::byte* const> addresses) {
    double* next = partials.in<double>(addresses).data();
    for (const Slice& gradient : gradients) {
      kernels.norm(gradient.in<const std::byte>(addresses).data(), low, gradient.elements, next);
      next += norm_blocks(gradient.elements);
    }
    kernels.finish();
  };
  return task;
}

Optimizer::Task Optimizer::clip_task() const {
  Task task{.name = "clip"};
  std::vector<Slice> partials;
  for (const Group& group : groups_) partials.push_back(task.use(group.partials, true, false));
  const Slice coefficient = task.use(coefficient_, false, true);
  task.body = [partials = std::move(partials), coefficient, clip = clip_](AdamWKernels& kernels,
                                                                          std::span<std::byte* const> addresses) {
    std::vector<std::span<const double>> sums;
    for (const Slice& slice : partials) sums.push_back(slice.in<const double>(addresses));
    kernels.clip(sums, clip, coefficient.in<float>(addresses).data());
    kernels.finish();
  };
  return task;
}

Optimizer::Task Optimizer::update_task(std::size_t group) const {
  Task task{.name = "adamw." + std::to_string(group), .group = static_cast<std::int32_t>(group), .reorderable = true};
  struct Member {
    Slice value, gradient, first_moment, second_moment;
    std::optional<Slice> master{};
  };
  const Slice coefficient = task.use(coefficient_, true, false);
  std::vector<Member> members;
  for (const std::size_t member : groups_[group].members) {
    const Parameter& parameter = parameters_[member];
    Member& slices = members.emplace_back();
    slices.gradient = task.use(parameter.value.grad(), true, false);
    if (parameter.master.defined()) slices.master = task.use(parameter.master, true, true);
    slices.value = task.use(parameter.value, !slices.master, true);  // of a master the parameter is but a copy
    slices.first_moment = task.use(parameter.first_moment, true, true);
    slices.second_moment = task.use(parameter.second_moment, true, true);
  }
  task.body = [members = std::move(members), coefficient, step = step_, options = options_](
                  AdamWKernels& kernels, std::span<std::byte* const> addresses) {
    for (const Member& member : members) {
      AdamWArrays arrays;
      arrays.weight = (member.master ? *member.master : member.value).in<float>(addresses).data();
      if (member.master) arrays.rounded = member.value.in<Bfloat16>(addresses).data();
      arrays.gradient = member.gradient.in<const std::byte>(addresses).data();
      arrays.first_moment = member.first_moment.in<float>(addresses).data();
      arrays.second_moment = member.second_moment.in<float>(addresses).data();
      arrays.elements = member.value.elements;
      kernels.step(arrays, coefficient.in<const float>(addresses).data(), step, options);
    }
    kernels.finish();
  };
  return task;
}

}  // namespace tencache
