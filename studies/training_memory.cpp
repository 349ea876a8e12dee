#include "studies/training_memory.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "core/enum_names.h"
#include "traces/generate/model.h"
#include "traces/generate/optimizer_states.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

std::string_view without_last_part(std::string_view name) { return name.substr(0, name.rfind('.')); }

}  // namespace

std::vector<KindMemory> memory_by_kind(const Trace& trace, const GenerateOptions& options) {
  // Of one rank, where each keeps as much.
  if (rank_count(trace) > 1) {
    const std::vector<Trace> ranks = split_ranks(trace);
    const std::vector<std::size_t> first = alike_ranks(ranks);
    if (std::ranges::count(first, 0u) == std::ssize(first)) return memory_by_kind(ranks.front(), options);
  }
  std::unordered_map<std::string_view, ParameterKind> kind_of;
  const std::vector<ParameterShape> shapes = parameters_of(options.model, options.head);
  for (const ParameterShape& shape : shapes) {
    const std::uint64_t rows = shape.shape.empty() ? 1 : shape.shape.front();
    kind_of.emplace(shape.name,
                    OptimizerStates::kind_of(shape.name, rows, shape.elements() / std::max<std::uint64_t>(1, rows)));
  }
  const OptimizerStates states(options);
  std::array<KindMemory, parameter_kind_count> found;
  std::array<std::uint64_t, parameter_kind_count> trained{};
  for (const Tensor& tensor : trace.tensors) {
    const std::string_view name = trace.name(tensor);
    const bool itself = tensor.role == Role::parameter || tensor.role == Role::expert;
    const auto kind = kind_of.find(itself ? name : without_last_part(name));
    if (kind == kind_of.end()) continue;
    const auto index = static_cast<std::size_t>(kind->second);
    KindMemory& memory = found[index];
    if (itself) {
      ++memory.parameters;
      memory.parameter_bytes += tensor.bytes;
    } else if (tensor.role == Role::gradient && name.ends_with(".grad")) {
      memory.gradient_bytes += tensor.bytes;
      ++trained[index];
    } else if (tensor.role == Role::master_parameter) {
      memory.master_bytes += tensor.bytes;
    } else if (tensor.role == Role::optimizer_state) {
      memory.state_bytes += tensor.bytes;
    }
  }
  std::vector<KindMemory> list;
  for (std::size_t index = 0; index < found.size(); ++index) {
    if (found[index].parameters == 0) continue;
    const auto kind = static_cast<ParameterKind>(index);
    found[index].kind = to_string(kind);
    found[index].frozen = found[index].parameters - std::min(found[index].parameters, trained[index]);
    found[index].states = trained[index] == 0 ? "none: frozen" : states.formula(kind);
    list.push_back(std::move(found[index]));
  }
  return list;
}

}  // namespace tencache
