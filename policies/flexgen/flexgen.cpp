// flexgen: weights, KV cache and hidden states are shared out between GPU, CPU memory and storage by percentages, and
// a block of micro-batches passes layer by layer while the next layer's weights come in. Sheng et al. 2023, "FlexGen",
// ICML'23, section 4 and algorithm 1; FMInference/FlexLLMGen at 004ffef (flexllmgen/flex_opt.py, opt_config.py).
//
// A slot is one micro-batch's pass through one layer at one step (block_slots.h).
// 1. Homes. placement=midpoint: a weight lies whole where the middle of its bytes, in the order of their use, falls in
//    the percentages of its part of the layer (attention, feed-forward), storage first, then CPU memory, then the GPU.
//    A percentage is a step function so: weights_gpu=20 keeps only the projection of the attention's output there.
//    placement=exact: the same over all weights of the model, which comes as close as whole weights can. KV caches and
//    hidden states of a layer and micro-batch lie in one place as well, shared out by the same rule over all of them.
//    FlexGen cuts each of them along its heads, or rows, instead.
// 2. In the first slot of a layer the weights of the next one are fetched; in every slot the KV cache of the next.
//    What a slot wrote goes home when it has ended: keys and values, hidden states. Weights leave after their last slot.
// 3. barrier=slot: a slot begins when all of these copies of the one before are done, as FlexGen synchronises its
//    streams. barrier=none: when its own are.
// 4. cpu_attention=serial: the next layer's weights are fetched after the first slot's attention on the CPU, not beside
//    it. FlexGen's published times add up so (weights + KV), though its code asks for both at once. overlapped: beside.
// 5. Nothing else moves: what does not fit is out of memory.
//
// 6. solve=lp: the percentages are those of FlexGen's linear program (cost_model.h) for this block, at the rates of the
//    machine and of the trace's kernels, filling 0.8 of each memory; solve=given: the options'.
//
// Which requests make a block, their order and where new tokens attend are the trace's (tencache generate --block
// --order zigzag --attention-on, or --placeable attention and attention=cpu here). FlexGen takes attention and
// feed-forward of a layer for two (sep_layer); here they are one, whose weights come together.
// KV caches are copied from and to pageable memory, weights too with pin_weights=false (CopyMemory).
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "policies/block_slots.h"
#include "policies/common_options.h"
#include "policies/flexgen/question.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

// Shares of bytes, in percent, of GPU and CPU memory; storage has the rest.
struct Percents {
  std::uint64_t gpu = 0, cpu = 100;
};
struct Shares {
  double gpu = 0, cpu = 1;
};
struct AllShares {
  Shares weights, cache, hidden;
};

void check(const char* what, const Percents& percents) {
  if (percents.gpu + percents.cpu <= 100) return;
  throw Error(std::string("policy 'flexgen': ") + what + "_gpu and " + what + "_cpu are percentages of the same; " +
              std::to_string(percents.gpu) + " and " + std::to_string(percents.cpu) + " are more than 100 together");
}
Shares shares_of(const Percents& percents) {
  return {static_cast<double>(percents.gpu) / 100, static_cast<double>(percents.cpu) / 100};
}

class Flexgen final : public Policy {
 public:
  explicit Flexgen(Options& options) {
    add_shares(options, "weights", weights_);
    add_shares(options, "cache", cache_);
    add_shares(options, "hidden", hidden_);
    options.choice("solve", solve_, {"given", "lp"}, "percentages as given, or FlexGen's linear program's");
    options.choice("placement", placement_, {"midpoint", "exact"}, "how weights follow their percentages")
        .fixed(Options::rules_of_a_system);
    options.choice("attention", attention_, {"trace", "cpu"},
                   "where new tokens attend to the KV cache: as the trace says, or on the CPU where it is placeable");
    options
        .choice("cpu_attention", cpu_attention_, {"serial", "overlapped"},
                "whether weights are fetched beside attention on the CPU")
        .fixed(Options::rules_of_a_system);
    options.choice("barrier", barrier_, {"slot", "none"}, "what a slot waits for").fixed(Options::rules_of_a_system);
    add_overflow_option(options, overflow_);
    options.flag("pin_weights", pin_weights_, "weights in CPU memory are page-locked");
    check("weights", weights_);
    check("cache", cache_);
    check("hidden", hidden_);
    if (hidden_.gpu + hidden_.cpu < 100) {
      throw Error("policy 'flexgen': hidden_gpu and hidden_cpu must be 100 together; storage keeps no hidden states");
    }
  }

  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::kv_cache}); }
  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::op_issued || kind == EventKind::op_done;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    if (attention_ == "cpu") attend_on_cpu(trace, "flexgen", devices);
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.copy_memory[static_cast<std::size_t>(Role::kv_cache)] = CopyMemory::pageable;
    if (!pin_weights_) {
      layout.copy_memory[static_cast<std::size_t>(Role::parameter)] = CopyMemory::pageable;
      layout.copy_memory[static_cast<std::size_t>(Role::expert)] = CopyMemory::pageable;
    }
    if (program == nullptr) return layout;
    const Schedule schedule(program->trace);
    const BlockSlots slots(program->trace, schedule);
    const Homes homes = find_homes(machine, program->trace, slots, find_shares(machine, program->trace, slots));
    layout.start = start_in(program->trace, homes, layout.chunk_bytes);
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) return learn(view);
    if (plan_.of_op.empty() || event.op == none) return;
    const std::size_t number = plan_.of_op[event.op];
    const BlockSlot& slot = plan_.slots[number];
    if (event.kind == EventKind::op_issued && event.op == first_on_gpu(slot, view)) begin(number, view, actions);
    if (event.kind == EventKind::op_done && event.op == slot.last_on_cpu) fetch_weights_late(number, view, actions);
    if (event.kind == EventKind::op_done && event.op == slot.last) end(number, view, actions);
  }

  void notes(std::vector<std::string>& notes) const override {
    if (solve_ == "given" || homes_.empty()) return;
    const auto text = [](const char* what, const Shares& shares) {
      const auto percent = [](double share) { return std::to_string(std::lround(100 * share)); };
      return std::string(what) + " " + percent(shares.gpu) + " " + percent(shares.cpu);
    };
    notes.push_back("percent on GPU and CPU by FlexGen's linear program: " + text("weights", shares_.weights) +
                    text(", cache", shares_.cache) + text(", hidden states", shares_.hidden));
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  using Homes = std::vector<TierId>;  // by tensor; no_tier: it has none, and stays where it was made

  static void add_shares(Options& options, const std::string& name, Percents& shares) {
    options.number(name + "_gpu", shares.gpu, "%", "share of the " + name + " that lives on the GPU")
        .fixed(Options::follows);  // with solve=lp
    options.number(name + "_cpu", shares.cpu, "%", "share of the " + name + " that lives in CPU memory")
        .fixed(Options::follows);
  }

  // ---- Homes.
  // By the middle of what lies at [begin, begin + size) of `all`.
  static TierId home_of(double begin, double size, double all, const Shares& shares, const MachineSpec& machine) {
    const double middle = all == 0 ? 0 : (begin + size / 2) / all;
    const double storage = 1 - shares.gpu - shares.cpu;
    constexpr double rounding = 1e-9;
    if (middle < storage - rounding) return require_ssd(machine, "flexgen");
    return middle < storage + shares.cpu - rounding ? machine.tier_of(Device::cpu) : TierId{0};
  }

  static void share_out(const std::vector<TensorId>& list, const Trace& trace, const Shares& shares,
                        const MachineSpec& machine, Homes& homes) {
    double all = 0, begin = 0;
    for (const TensorId tensor : list) all += static_cast<double>(trace.tensors[tensor].bytes);
    for (const TensorId tensor : list) {
      const auto bytes = static_cast<double>(trace.tensors[tensor].bytes);
      homes[tensor] = home_of(begin, bytes, all, shares, machine);
      begin += bytes;
    }
  }

  AllShares find_shares(const MachineSpec& machine, const Trace& trace, const BlockSlots& slots) const {
    if (solve_ == "given") return {shares_of(weights_), shares_of(cache_), shares_of(hidden_)};
    const FlexgenQuestion asked = ask_flexgen(machine, trace, slots, pin_weights_);
    const auto found = solve_flexgen(asked.model, asked.rates, asked.block, asked.memory);
    if (!found) {
      throw Error("policy 'flexgen': solve=lp finds no percentages with which the block fits; take a smaller block");
    }
    return {{found->weights_gpu, found->weights_cpu},
            {found->cache_gpu, found->cache_cpu},
            {found->hidden_gpu, 1 - found->hidden_gpu}};
  }

  Homes find_homes(const MachineSpec& machine, const Trace& trace, const BlockSlots& slots,
                   const AllShares& shares) const {
    if (machine.tier_of(Device::cpu) == no_tier) {
      throw Error("policy 'flexgen' needs a machine with CPU memory; '" + machine.name + "' has none");
    }
    Homes homes(trace.tensors.size(), no_tier);
    std::vector<TensorId> all;
    for (const BlockLayer& layer : slots.layers) {
      const auto attention = layer.weights.begin() + static_cast<std::ptrdiff_t>(layer.attention_end);
      if (placement_ == "exact") {
        all.insert(all.end(), layer.weights.begin(), layer.weights.end());
        continue;
      }
      share_out({layer.weights.begin(), attention}, trace, shares.weights, machine, homes);
      share_out({attention, layer.weights.end()}, trace, shares.weights, machine, homes);
    }
    share_out(all, trace, shares.weights, machine, homes);
    share_out_slots(machine, slots, shares, homes);
    return homes;
  }

  // Caches and hidden states, of each layer and micro-batch.
  static void share_out_slots(const MachineSpec& machine, const BlockSlots& slots, const AllShares& shares,
                              Homes& homes) {
    std::vector<std::uint64_t> first_of_layer(slots.layers.size(), 0);
    std::vector<std::uint32_t> batches(slots.layers.size(), 0);
    for (const BlockSlot& slot : slots.slots) {
      batches[slot.layer] = std::max(batches[slot.layer], slot.micro_batch + 1);
    }
    std::uint64_t all = 0;
    for (std::size_t layer = 0; layer < slots.layers.size(); ++layer) {
      first_of_layer[layer] = all;
      all += batches[layer];
    }
    for (const BlockSlot& slot : slots.slots) {
      const auto place = static_cast<double>(first_of_layer[slot.layer] + slot.micro_batch);
      for (const TensorId tensor : slot.cache_written) {
        homes[tensor] = home_of(place, 1, static_cast<double>(all), shares.cache, machine);
      }
      for (const TensorId tensor : slot.hidden_kept) {
        homes[tensor] = home_of(place, 1, static_cast<double>(all), shares.hidden, machine);
      }
    }
  }

  void learn(const View& view) {
    const Trace& trace = view.program->trace;
    BlockSlots slots(trace, *view.schedule);
    shares_ = find_shares(view.machine, trace, slots);
    homes_ = find_homes(view.machine, trace, slots, shares_);
    attends_in_ = TierId{0};
    for (const BlockSlot& slot : slots.slots) {
      if (slot.last_on_cpu != none) attends_in_ = view.machine.tier_of(Device::cpu);
    }
    plan_ = std::move(slots);
  }

  // ---- The schedule.
  static OpIndex first_on_gpu(const BlockSlot& slot, const View& view) {
    OpIndex op = slot.first;
    while (op < slot.last && view.program->trace.ops[op].device == Device::cpu) ++op;
    return op;
  }
  std::size_t after(std::size_t number) const { return number + 1 == plan_.slots.size() ? 0 : number + 1; }
  // Where the slot's attention reads its cache.
  TierId tier_of_cache(const BlockSlot& slot) const { return slot.last_on_cpu != none ? attends_in_ : TierId{0}; }

  void fetch(TensorId known, TierId tier, OpIndex before, const View& view, Actions& actions) const {
    const TensorId tensor = view.memory_tensor(known);
    if (tensor == none) return;
    actions.fetch(tensor, tier);
    if (barrier_ == "slot") actions.hold(before, tensor, tier);
  }

  void begin(std::size_t number, const View& view, Actions& actions) const {
    const BlockSlot& slot = plan_.slots[number];
    const BlockSlot& next = plan_.slots[after(number)];
    if (slot.last_on_cpu == none || cpu_attention_ == "overlapped") fetch_weights(number, view, actions);
    if (barrier_ == "slot") {
      // What the slot before sent home.
      const BlockSlot& before = plan_.slots[number == 0 ? plan_.slots.size() - 1 : number - 1];
      for (const TensorId known : before.cache_written) hold_for(known, next, view, actions);
      for (const TensorId known : before.hidden_kept) hold_for(known, next, view, actions);
    }
    for (const TensorId known : next.cache_read) fetch(known, tier_of_cache(next), next.first, view, actions);
    const std::vector<TensorId> made = sorted(slot.hidden_kept);
    for (const TensorId known : next.hidden_read) {
      // What this slot makes is there already.
      if (!std::ranges::binary_search(made, known)) {
        fetch(known, 0, next.first, view, actions);
      }
    }
  }

  void hold_for(TensorId known, const BlockSlot& slot, const View& view, Actions& actions) const {
    const TensorId tensor = view.memory_tensor(known);
    if (tensor != none && homes_[known] != no_tier) actions.hold(slot.first, tensor, homes_[known]);
  }

  // In the first slot of a layer: the next layer's.
  void fetch_weights(std::size_t number, const View& view, Actions& actions) const {
    if (plan_.slots[number].micro_batch != 0) return;
    std::size_t run = number;
    while (!plan_.slots[run].ends_run) ++run;
    const OpIndex next_slot = plan_.slots[after(number)].first;
    for (const TensorId known : plan_.layers[plan_.slots[after(run)].layer].weights) {
      fetch(known, 0, next_slot, view, actions);
    }
  }
  void fetch_weights_late(std::size_t number, const View& view, Actions& actions) const {
    if (cpu_attention_ == "serial") fetch_weights(number, view, actions);
  }

  void end(std::size_t number, const View& view, Actions& actions) const {
    const BlockSlot& slot = plan_.slots[number];
    const BlockSlot& next = plan_.slots[after(number)];
    const TierId tier = tier_of_cache(slot);
    const std::vector<TensorId> cache_stays = sorted(next.cache_read), hidden_stays = sorted(next.hidden_read);
    for (const TensorId known : slot.cache_read) send_home(known, tier, cache_stays, view, actions);
    for (const TensorId known : slot.cache_written) send_home(known, tier, cache_stays, view, actions);
    for (const TensorId known : slot.hidden_kept) send_home(known, 0, hidden_stays, view, actions);
    if (!slot.ends_run) return;
    for (const TensorId known : plan_.layers[slot.layer].weights) send_home(known, 0, {}, view, actions);
  }

  static std::vector<TensorId> sorted(std::vector<TensorId> tensors) {
    std::ranges::sort(tensors);
    return tensors;
  }

  // From `tier`, but for what the next slot reads, sorted.
  void send_home(TensorId known, TierId tier, const std::vector<TensorId>& stay, const View& view,
                 Actions& actions) const {
    const TierId home = homes_[known];
    const TensorId tensor = view.memory_tensor(known);
    if (home == no_tier || home == tier || tensor == none) return;
    if (!std::ranges::binary_search(stay, known)) actions.evict(tensor, home, tier);
  }

  Percents weights_, cache_, hidden_;
  std::string solve_ = "given";
  std::string placement_ = "midpoint", attention_ = "trace", cpu_attention_ = "serial", barrier_ = "slot",
              overflow_ = "oom";
  bool pin_weights_ = true;
  AllShares shares_;
  Homes homes_;
  TierId attends_in_ = 0;  // decode
  BlockSlots plan_;
};

}  // namespace

TENCACHE_POLICY({"flexgen",
                 "weights, KV cache and hidden states shared out between tiers by percentages; block by block",
                 "FlexGen (ICML'23)",
                 make_policy_of<Flexgen>,
                 190,
                 nullptr,
                 nullptr,
                 {.flexgen = true}})

}  // namespace tencache
