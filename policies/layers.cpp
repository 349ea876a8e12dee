#include "policies/layers.h"

#include <algorithm>
#include <utility>

#include "core/reveal.h"
#include "policies/weight_homes.h"

namespace tencache {

std::string_view layer_of_module(std::string_view module) {
  for (std::size_t begin = 0; begin < module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    const std::string_view part = module.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) return module.substr(0, end);
    begin = end + 1;
  }
  return module;
}

Layers find_layers(const Program& program, const Schedule& schedule) {
  const Trace& trace = program.trace;
  const Experts experts(trace);
  Layers layers;
  layers.of_op.reserve(trace.ops.size());
  // The layer that last listed the tensor: no tensor is listed twice.
  std::vector<std::uint32_t> listed_parameter(trace.tensors.size(), none), listed_gradient(trace.tensors.size(), none);
  NameId module = none;
  std::string_view running;
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].module != module) {
      module = trace.ops[op].module;
      const std::string_view layer = layer_of_module(trace.names[module]);
      if (layers.list.empty() || layer != running) layers.list.emplace_back();
      running = layer;
    }
    const std::uint32_t at = static_cast<std::uint32_t>(layers.list.size() - 1);
    layers.of_op.push_back(at);
    if (module == 0) continue;
    const auto add_weight = [&](TensorId tensor) {
      if (std::exchange(listed_parameter[tensor], at) != at) layers.list[at].parameters.push_back(tensor);
    };
    for (std::size_t i = 0; i < experts.count(op); ++i) {  // whichever the gate will choose
      for (const TensorId tensor : experts.weights(op, i)) add_weight(tensor);
    }
    for (const Use& use : schedule.uses(op)) {
      const Role role = trace.tensors[use.tensor].role;
      if (is_weight(role)) add_weight(use.tensor);
      if (role == Role::gradient && use.write && std::exchange(listed_gradient[use.tensor], at) != at) {
        layers.list[at].gradients.push_back(use.tensor);
      }
    }
  }
  return layers;
}

void send_home(TensorId tensor, const View& view, Actions& actions) {
  const TensorId id = view.memory_tensor(tensor);
  if (id == none || view.dead(id)) return;
  const ChunkId begin = view.memory.first_chunk(id);
  for (std::uint32_t i = 0; i < view.memory.chunk_count(id); ++i) {
    if (!view.memory.evictable(begin + i, 0)) continue;
    actions.push({.verb = Verb::evict, .destination = view.machine.tier_of(Device::cpu), .tensor = id, .chunk = i});
  }
}

}  // namespace tencache
