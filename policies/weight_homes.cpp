#include "policies/weight_homes.h"

#include <algorithm>
#include <utility>

#include "policies/layers.h"

namespace tencache {
namespace {

// "model.layers.3" of its weights, "model.norm" of "model.norm.weight".
std::string_view module_of(std::string_view weight) {
  const std::string_view layer = layer_of_module(weight);
  return layer.size() < weight.size() ? layer : weight.substr(0, weight.rfind('.'));
}

// Calls visit(first tensor, past the last one, bytes, whether it is a layer) for each module's run of weights.
template <typename Visit>
void for_modules(const Trace& trace, Visit visit) {
  const auto is_weight = [&](TensorId id) { return tencache::is_weight(trace.tensors[id].role); };
  for (TensorId begin = 0; begin < trace.tensors.size();) {
    if (!is_weight(begin)) {
      ++begin;
      continue;
    }
    const std::string_view name = trace.name(trace.tensors[begin]);
    const std::string_view module = module_of(name);
    Bytes bytes = 0;
    TensorId end = begin;
    for (; end < trace.tensors.size() && is_weight(end); ++end) {
      if (module_of(trace.name(trace.tensors[end])) != module) break;
      bytes += trace.tensors[end].bytes;
    }
    visit(begin, end, bytes, layer_of_module(name).size() < name.size());
    begin = end;
  }
}

}  // namespace

Bytes largest_layer_weight(const Trace& trace) {
  Bytes largest = 0;
  for_modules(trace, [&](TensorId begin, TensorId end, Bytes, bool is_layer) {
    for (TensorId id = begin; is_layer && id < end; ++id) largest = std::max(largest, trace.tensors[id].bytes);
  });
  return largest;
}

WeightHomes::WeightHomes(const Trace& trace, std::span<const Bytes> bytes, Mapped mapped)
    : tiers_(trace.tensors.size(), no_tier) {
  std::vector<Bytes> reserved;  // by module: the largest behind it
  if (mapped == Mapped::all) {
    for_modules(trace, [&](TensorId, TensorId, Bytes module, bool) { reserved.push_back(module); });
    Bytes largest = 0;
    for (std::size_t i = reserved.size(); i-- > 0;) largest = std::max(largest, std::exchange(reserved[i], largest));
  }
  std::size_t tier = 0, index = 0;
  Bytes used = 0;
  for_modules(trace, [&](TensorId begin, TensorId end, Bytes module, bool is_layer) {
    TierId home = 0;
    if (is_layer || mapped == Mapped::all) {
      const Bytes needed = module + (mapped == Mapped::all ? reserved[index] : 0);
      // That the slowest is too small shows when the run begins.
      while (tier + 1 < bytes.size() && used + needed > bytes[tier]) {
        ++tier;
        used = 0;
      }
      used += module;
      home = static_cast<TierId>(tier);
    }
    std::fill(tiers_.begin() + begin, tiers_.begin() + end, home);
    ++index;
  });
}

std::vector<std::uint8_t> start_of_weights(const Trace& trace, const std::vector<bool>& away, TierId below,
                                           Bytes chunk_bytes) {
  std::vector<TierId> homes(trace.tensors.size(), no_tier);
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    if (is_weight(trace.tensors[id].role)) homes[id] = away[id] ? below : TierId{0};
  }
  return start_in(trace, homes, chunk_bytes);
}

std::vector<std::uint8_t> start_in(const Trace& trace, std::span<const TierId> homes, Bytes chunk_bytes) {
  std::vector<std::uint8_t> start;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const Tensor& known = trace.tensors[tensor];
    const Bytes chunks = chunk_bytes == 0 ? 1 : (known.bytes + chunk_bytes - 1) / chunk_bytes;
    const TierId home = known.persistent ? homes[tensor] : no_tier;
    start.insert(start.end(), chunks, home == no_tier ? std::uint8_t{0} : static_cast<std::uint8_t>(1u << home));
  }
  return start;
}

}  // namespace tencache
