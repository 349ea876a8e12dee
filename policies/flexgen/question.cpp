#include "policies/flexgen/question.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/units.h"
#include "policies/storage.h"

namespace tencache {
namespace {

constexpr double memory_filled = 0.8;

class Asking {
 public:
  Asking(const MachineSpec& machine, const Trace& trace, const BlockSlots& slots, bool pinned)
      : machine_(machine), trace_(trace), slots_(slots) {
    set_model();
    set_rates(pinned);
    const auto memory_of = [&](TierKind kind) {
      double bytes = 0;
      for (const Tier& tier : machine.tiers) {
        if (tier.kind == kind) bytes += memory_filled * static_cast<double>(tier.capacity);
      }
      return bytes;
    };
    question_.memory = {memory_of(TierKind::gpu), memory_of(TierKind::cpu), memory_of(TierKind::nvme)};
  }
  const FlexgenQuestion& question() const { return question_; }

 private:
  void set_model() {
    FlexgenModel& model = question_.model;
    const Kernel* attention = nullptr;
    for (const Op& op : trace_.ops) {
      model.new_tokens = std::max(model.new_tokens, 1.0 + trace_.detail(op).step);
      if (attention == nullptr && is_attention(trace_.kernel(op).kind)) attention = &trace_.kernel(op);
    }
    if (attention == nullptr || attention->shape[1] == 0) {
      throw Error("policy 'flexgen': solve=lp needs a generation's trace, whose attention states its shape");
    }
    const auto number = [&](std::size_t i) { return static_cast<double>(attention->shape[i]); };
    model.heads = number(1);
    model.hidden = number(1) * number(5);
    model.prompt = number(3);
    question_.block.micro_batch = number(0);
    double bytes = 0;
    for (const BlockSlot& slot : slots_.slots) {
      question_.block.micro_batches = std::max(question_.block.micro_batches, 1.0 + slot.micro_batch);
    }
    for (const BlockLayer& layer : slots_.layers) {
      if (layer.attention_end == layer.weights.size()) continue;  // an embedding, a head
      ++model.layers;
      for (const TensorId weight : layer.weights) bytes += static_cast<double>(trace_.tensors[weight].bytes);
    }
    if (model.layers == 0) throw Error("policy 'flexgen': solve=lp finds no layers in the trace");
    // As wide as makes the layer's bytes.
    model.feed_forward = std::max(0.0, bytes / model.layers - 8 * model.hidden * model.hidden) / (4 * model.hidden);
  }

  double bandwidth(TierId from, TierId to, bool pinned) const {
    const LinkId link = from == no_tier || to == no_tier ? no_link : machine_.link_between(from, to);
    if (link == no_link) return 1;  // so slow that nothing goes there
    const Link& known = machine_.links[link];
    return static_cast<double>(pinned || known.pageable_bandwidth == 0 ? known.bandwidth : known.pageable_bandwidth);
  }
  // Operations a second of the kernels of a kind.
  double rate(KernelKind kind, Phase phase) const {
    double flops = 0, seconds = 0;
    for (const Op& op : trace_.ops) {
      if (op.phase != phase || trace_.kernel(op).kind != kind || op.device != Device::gpu) continue;
      flops += static_cast<double>(op.flops);
      seconds += to_seconds(op.duration_ns);
    }
    return flops > 0 && seconds > 0 ? flops / seconds : std::numeric_limits<double>::infinity();
  }

  void set_rates(bool pinned) {
    FlexgenRates& rates = question_.rates;
    const TierId cpu = machine_.tier_of(Device::cpu);
    const TierId storage = first_storage(machine_);
    rates.cpu_to_gpu = bandwidth(cpu, 0, pinned);
    rates.cache_to_cpu = bandwidth(0, cpu, false);
    rates.hidden_to_cpu = bandwidth(0, cpu, true);
    rates.storage_to_cpu = bandwidth(storage, cpu, true);
    rates.cache_to_storage_prefill = rates.cache_to_storage_decode = bandwidth(cpu, storage, true);
    rates.product_prefill = rate(KernelKind::matmul, Phase::prefill);
    rates.product_decode = rate(KernelKind::matmul, Phase::decode);
    rates.attention_prefill = rate(KernelKind::attention, Phase::prefill);
    rates.attention_decode = rate(KernelKind::attention, Phase::decode);
    // One operation for each byte of the cache, in 16 bits and without grouped queries.
    rates.cpu = machine_.cpu.can_compute()
                    ? std::min(machine_.cpu.flops_per_second, static_cast<double>(machine_.cpu.bandwidth))
                    : 1;
    rates.cpu_both = rates.cpu_batch = rates.cpu_hidden = 0;
  }

  const MachineSpec& machine_;
  const Trace& trace_;
  const BlockSlots& slots_;
  FlexgenQuestion question_;
};

}  // namespace

FlexgenQuestion ask_flexgen(const MachineSpec& machine, const Trace& trace, const BlockSlots& slots, bool pinned) {
  return Asking(machine, trace, slots, pinned).question();
}

}  // namespace tencache
