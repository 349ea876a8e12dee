#include "policies/block_slots.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/reveal.h"
#include "policies/layers.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class Builder {
 public:
  Builder(const Trace& trace, const Schedule& schedule, BlockSlots& result)
      : trace_(trace),
        schedule_(schedule),
        result_(result),
        experts_(trace),
        writer_(trace.tensors.size(), none),
        weight_seen_(trace.tensors.size(), 0),
        kept_(trace.tensors.size(), 0),
        cache_written_(trace.tensors.size(), none),
        cache_read_(trace.tensors.size(), none),
        hidden_read_(trace.tensors.size(), none) {}

  void run() {
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      if (begins_slot(op)) begin(op);
      add(op);
    }
    end_run();
    for (BlockLayer& layer : result_.layers) {
      if (layer.attention_end == 0) layer.attention_end = layer.weights.size();
    }
  }

 private:
  BlockSlot& slot() { return result_.slots.back(); }

  std::uint32_t layer_of(const Op& op) {
    const auto known = layer_of_module_.find(op.module);
    if (known != layer_of_module_.end()) return known->second;
    const std::string_view name = layer_of_module(trace_.module(op));
    const auto [place, fresh] = layer_of_name_.try_emplace(name, static_cast<std::uint32_t>(result_.layers.size()));
    if (fresh) result_.layers.emplace_back();
    return layer_of_module_[op.module] = place->second;
  }

  bool begins_slot(OpIndex index) {
    const Op& op = trace_.ops[index];
    layer_ = layer_of(op);
    if (result_.slots.empty()) return true;
    const Op& first = trace_.ops[slot().first];
    if (layer_ != slot().layer || trace_.detail(op).step != trace_.detail(first).step) return true;
    return op.name == first.name && op.module == first.module;
  }

  void begin(OpIndex index) {
    BlockSlot fresh{.first = index, .layer = layer_};
    if (!result_.slots.empty()) {
      const bool same_step = trace_.detail(trace_.ops[index]).step == trace_.detail(trace_.ops[slot().first]).step;
      if (layer_ == slot().layer && same_step) {
        fresh.micro_batch = slot().micro_batch + 1;
      } else {
        end_run();
      }
    }
    result_.slots.push_back(std::move(fresh));
    attended_ = false;
  }

  void end_run() {
    if (!result_.slots.empty()) slot().ends_run = true;
  }

  void add(OpIndex index) {
    const Op& op = trace_.ops[index];
    const auto number = static_cast<std::uint32_t>(result_.slots.size() - 1);
    result_.of_op.push_back(number);
    slot().last = index;
    if (op.device == Device::cpu) slot().last_on_cpu = index;
    const std::size_t weights_before = result_.layers[slot().layer].weights.size();
    for (const Use& use : schedule_.uses(index)) {
      const Role role = trace_.tensors[use.tensor].role;
      if (is_weight(role)) {
        add_weight(use.tensor);
      } else if (role == Role::kv_cache) {
        if (use.write) add_once(slot().cache_written, cache_written_, use.tensor);
        if (use.read && writer_[use.tensor] != number) add_once(slot().cache_read, cache_read_, use.tensor);
      } else if (use.read && writer_[use.tensor] != none && writer_[use.tensor] != number) {
        keep(use.tensor, writer_[use.tensor]);
      }
      if (use.write) writer_[use.tensor] = number;
    }
    for (std::size_t i = 0; i < experts_.count(index); ++i) {  // whichever it will choose
      for (const TensorId tensor : experts_.weights(index, i)) add_weight(tensor);
    }
    // The attention's part ends with the projection of its output, the first product after the kernel.
    attended_ |= is_attention(trace_.kernel(op).kind);
    BlockLayer& layer = result_.layers[slot().layer];
    if (attended_ && layer.attention_end == 0 && layer.weights.size() > weights_before) {
      layer.attention_end = layer.weights.size();
    }
  }

  // To a list of this slot, unless it is there; `lately`: to which slot's it was added last.
  void add_once(std::vector<TensorId>& list, std::vector<std::uint32_t>& lately, TensorId tensor) {
    const auto number = static_cast<std::uint32_t>(result_.slots.size() - 1);
    if (std::exchange(lately[tensor], number) != number) list.push_back(tensor);
  }

  void add_weight(TensorId tensor) {
    if (std::exchange(weight_seen_[tensor], 1) == 0) result_.layers[slot().layer].weights.push_back(tensor);
  }

  void keep(TensorId tensor, std::uint32_t writer) {
    add_once(slot().hidden_read, hidden_read_, tensor);
    if (std::exchange(kept_[tensor], 1) == 0) result_.slots[writer].hidden_kept.push_back(tensor);
  }

  const Trace& trace_;
  const Schedule& schedule_;
  BlockSlots& result_;
  const Experts experts_;
  std::map<NameId, std::uint32_t> layer_of_module_;
  std::map<std::string_view, std::uint32_t> layer_of_name_;
  std::vector<std::uint32_t> writer_;  // by tensor: the slot that wrote it last
  std::vector<std::uint8_t> weight_seen_, kept_;
  std::vector<std::uint32_t> cache_written_, cache_read_, hidden_read_;  // by tensor: in which slot's list it is last
  std::uint32_t layer_ = 0;                                              // of the op that is looked at
  bool attended_ = false;                                                // the slot's attention kernel has come
};

}  // namespace

BlockSlots::BlockSlots(const Trace& trace, const Schedule& schedule) { Builder(trace, schedule, *this).run(); }

std::vector<std::vector<TensorId>> leaving_caches(const Trace& trace, const Schedule& schedule,
                                                  const BlockSlots& slots) {
  std::vector<std::vector<TensorId>> leaving(trace.ops.size());
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].role != Role::kv_cache) continue;
    const std::span<const OpIndex> ops = schedule.ops_of(tensor);
    for (std::size_t i = 0; i + 1 < ops.size(); ++i) {
      if (slots.of_op[ops[i]] != slots.of_op[ops[i + 1]]) leaving[ops[i]].push_back(tensor);
    }
  }
  return leaving;
}

void attend_on_cpu(const Trace& trace, const char* policy, std::vector<Device>& devices) {
  const auto is_cache = [&](TensorId tensor) { return trace.tensors[tensor].role == Role::kv_cache; };
  bool found = false;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (op.phase != Phase::decode) continue;
    if (!std::ranges::any_of(trace.reads(op), is_cache) && !std::ranges::any_of(trace.writes(op), is_cache)) continue;
    found |= op.placeable || op.device == Device::cpu;
    if (op.placeable) devices[index] = Device::cpu;
  }
  if (found) return;
  throw Error(std::string("policy '") + policy +
              "' is to attend on the CPU, and no op on a KV cache is there or may be placed; generate the trace with "
              "--placeable attention");
}

}  // namespace tencache
