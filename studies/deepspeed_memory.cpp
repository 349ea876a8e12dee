#include "studies/deepspeed_memory.h"

#include <algorithm>

#include "core/parse_number.h"
#include "policies/registry.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

constexpr Bytes fp32 = 4;

Bytes cpu_capacity(const MachineSpec& machine) {
  const TierId cpu = machine.tier_of(Device::cpu);
  return cpu == no_tier ? 0 : machine.tiers[cpu].capacity;
}

}  // namespace

std::uint64_t shards_of(const Trace& trace) {
  const std::string* const stage = trace.header.provenance.option("zero");
  return stage != nullptr && *stage == "3" ? data_parallel_ranks(trace) : 1;
}

std::uint64_t data_parallel_ranks(const Trace& trace) {
  const std::string* const given = trace.header.provenance.option("data-parallel");
  return std::max<std::uint64_t>(1, given == nullptr ? 1 : parse_number<std::uint64_t>(*given).value_or(1));
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

Bytes second_copy_bytes(std::uint64_t ranks, const ModelShape& model) {
  return ranks == 0 ? 0 : model.element_bytes * model.parameters * model.shards / ranks;
}

std::optional<DeepSpeedMemory> deepspeed_memory(const std::string& policy, const Settings& resolved,
                                                const ModelShape& model) {
  const Counterparts counterparts = counterparts_of(policy);
  if (model.trained == 0 || counterparts.deepspeed_memory == nullptr) return std::nullopt;
  return counterparts.deepspeed_memory(resolved, model);
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
