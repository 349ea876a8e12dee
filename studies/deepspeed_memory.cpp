#include "studies/deepspeed_memory.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

constexpr Bytes fp32 = 4, adam_states = 8;

// Counts are texts of digits: make_policy has checked them.
std::uint64_t count_of(const Settings& settings, const char* option) {
  const std::string& text = settings.at(option);
  double count = 0;
  std::from_chars(text.data(), text.data() + text.size(), count);
  return static_cast<std::uint64_t>(count);
}

Bytes rounded(Bytes bytes) { return bytes == 0 ? 0 : std::bit_ceil(bytes); }

void add_if_asked(DeepSpeedMemory& memory, Bytes bytes) {
  memory.if_asked += bytes;
  memory.if_asked_rounded += rounded(bytes);
}

// Each sub-group is a piece.
void add_sub_groups(DeepSpeedMemory& memory, std::uint64_t elements, std::uint64_t sub_group) {
  while (elements > 0) {
    const std::uint64_t group = std::min(elements, std::max<std::uint64_t>(1, sub_group));
    add_if_asked(memory, group * fp32);
    elements -= group;
  }
}

DeepSpeedMemory of_stage_3(const Settings& resolved, const ModelShape& model) {
  DeepSpeedMemory memory;
  const Bytes element = model.element_bytes;
  if (resolved.at("offload_param") == "cpu") {
    memory.locked += rounded(model.parameters * element);
  } else if (resolved.at("offload_param") == "nvme") {
    memory.locked += rounded(std::min(model.parameters, count_of(resolved, "max_in_cpu")) * element);
    memory.locked += rounded(count_of(resolved, "buffer_count") * count_of(resolved, "buffer_size") * element);
  }
  add_if_asked(memory, model.trained * element);
  const std::uint64_t sub_group = count_of(resolved, "sub_group");
  if (resolved.at("offload_optimizer") == "nvme") {
    memory.locked += count_of(resolved, "optimizer_buffer_count") * rounded(std::min(sub_group, model.trained) * fp32);
  } else {
    memory.pageable += model.trained * (fp32 + adam_states);
    add_sub_groups(memory, model.trained, sub_group);
  }
  return memory;
}

DeepSpeedMemory of_stage_2(const ModelShape& model) {
  DeepSpeedMemory memory;
  memory.pageable = model.trained * adam_states;
  for (const Bytes bytes : {fp32, fp32, model.element_bytes}) add_if_asked(memory, model.trained * bytes);
  return memory;
}

Bytes cpu_capacity(const MachineSpec& machine) {
  const TierId cpu = machine.tier_of(Device::cpu);
  return cpu == no_tier ? 0 : machine.tiers[cpu].capacity;
}

}  // namespace

std::uint64_t shards_of(const Trace& trace) {
  return trace.header.recorded_by.find(" --zero 3") == std::string::npos ? 1 : data_parallel_ranks(trace);
}

std::uint64_t data_parallel_ranks(const Trace& trace) {
  const std::string& made = trace.header.recorded_by;
  const std::string data_parallel = " --data-parallel ";
  const std::size_t at = made.find(data_parallel);
  if (at == std::string::npos) return 1;
  std::uint64_t ranks = 1;
  std::from_chars(made.data() + at + data_parallel.size(), made.data() + made.size(), ranks);
  return std::max<std::uint64_t>(1, ranks);
}

ModelShape model_shape(const Trace& trace) {
  ModelShape model;
  model.element_bytes = trace.header.element_bytes();
  model.shards = shards_of(trace);
  Bytes master = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (!tensor.persistent) continue;
    if (tensor.role == Role::parameter) {
      const std::uint64_t elements = tensor.bytes / model.element_bytes;
      model.largest_parameter = std::max(model.largest_parameter, elements);
      model.parameters += elements;
    } else if (tensor.role == Role::master_parameter || tensor.role == Role::optimizer_state) {
      model.state_bytes += tensor.bytes;
      if (tensor.role == Role::master_parameter) master += tensor.bytes;
    }
  }
  const std::size_t ranks = rank_count(trace);
  // PyTorch's own Adam has two states in the parameter's type, and no master weights.
  model.trained = (master > 0 ? master / fp32 : model.state_bytes / (2 * model.element_bytes)) / ranks;
  model.parameters /= ranks;
  model.state_bytes /= ranks;
  return model;
}

std::optional<DeepSpeedMemory> deepspeed_memory(const std::string& policy, const Settings& resolved,
                                                const ModelShape& model) {
  if (model.trained == 0) return std::nullopt;
  if (policy == "zero-infinity") return of_stage_3(resolved, model);
  if (policy == "zero-offload") return of_stage_2(model);
  return std::nullopt;
}

std::string deepspeed_memory_note(const DeepSpeedMemory& memory, const MachineSpec& machine) {
  const Bytes capacity = cpu_capacity(machine);
  if (memory.all(false) > capacity) {
    return "DeepSpeed itself would run out of CPU memory: its weights, Adam states, gradients and buffers there take " +
           format_bytes(memory.all(false)) + " of " + format_bytes(capacity);
  }
  if (const std::string why = why_not_pinned(memory, machine, std::nullopt); !why.empty()) {
    return "DeepSpeed itself would run out of CPU memory with pin_memory: " + why;
  }
  return "";
}

std::string why_not_pinned(const DeepSpeedMemory& memory, const MachineSpec& machine,
                           std::optional<Bytes> pinned_limit) {
  if (memory.all(true) > cpu_capacity(machine)) {
    return "page-locked pieces are rounded up to powers of two, " + format_bytes(memory.all(true)) + " of " +
           format_bytes(cpu_capacity(machine)) + "; without it takes " + format_bytes(memory.all(false));
  }
  if (pinned_limit && memory.page_locked(true) > *pinned_limit) {
    return "page-locked pieces, rounded up to powers of two, take " + format_bytes(memory.page_locked(true)) + " of " +
           format_bytes(*pinned_limit) + " allowed a rank";
  }
  return "";
}

}  // namespace tencache
