// kvpr: the KV cache lives in CPU memory, and a part of each prompt's keys and values is computed again from the
// layer's input, which lies beside them, while the rest is copied. "KVPR: Efficient LLM Inference with I/O-Aware KV
// Cache Partial Recomputation" (Jiang et al., arXiv 2411.17089).
//
// 1. The trace has a choice for each new token, layer, micro-batch and piece of the prompt (tencache generate
//    --new-tokens N --recompute choose; --kv-page is the piece). The first pieces are made again, as many as take the
//    least time t: the inputs of these are copied, then they are computed while all other keys and values are copied,
//      t = inputs / link + max(time of the products, (keys and values - those made again) / link).
//    Times of products are the trace's, the link's rate is the machine's. Nothing is approximated.
// 2. When a micro-batch's pass through a layer begins (`ahead` passes before), the inputs and then the keys and values
//    that it reads are fetched. What a pass has read or written leaves the GPU after it.
// 3. weights=gpu: they stay there (the paper's row-by-row schedule). weights=cpu: they live in CPU memory, and those of
//    the next layer are fetched when the first micro-batch enters a layer (its column-by-column one, FlexGen's).
// 4. Nothing else moves, and what does not fit is out of memory.
//
// An input is as wide as the model, keys and values twice as wide as all their heads. With grouped queries it is often
// no smaller than what it makes: then the policy is refused, as it could only lose.
#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/recompute.h"
#include "policies/block_slots.h"
#include "policies/classic.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

bool is_cache(const Trace& trace, TensorId tensor) { return trace.tensors[tensor].role == Role::kv_cache; }

Bytes cache_bytes(const Trace& trace, std::span<const TensorId> tensors) {
  Bytes bytes = 0;
  for (const TensorId id : tensors) bytes += is_cache(trace, id) ? trace.tensors[id].bytes : 0;
  return bytes;
}

// Keys and values that can be made again: bytes of the input, and of them.
struct Piece {
  Bytes input = 0, made = 0;
  Nanoseconds takes_ns = 0;
};

Piece piece_of(const Trace& trace, const RecomputeChoice& choice) {
  Piece piece;
  for (const OpIndex index : choice.again[static_cast<std::size_t>(RecomputeLevel::block)]) {
    const Op& op = trace.ops[index];
    piece.input += cache_bytes(trace, trace.reads(op));
    piece.made += cache_bytes(trace, trace.writes(op));
    piece.takes_ns += op.occupied_ns();
  }
  return piece;
}

// How many of the pieces to make again: the fewest of the least t. `all`: bytes of keys and values with them.
std::size_t split(std::span<const Piece> pieces, Bytes all, BytesPerSecond link) {
  const auto copy_s = [link](Bytes bytes) { return static_cast<double>(bytes) / static_cast<double>(link); };
  std::size_t best = 0;
  double least_s = copy_s(all), inputs_s = 0, products_s = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    inputs_s += copy_s(pieces[i].input);
    products_s += to_seconds(pieces[i].takes_ns);
    all -= pieces[i].made;
    const double takes_s = inputs_s + std::max(products_s, copy_s(all));
    if (takes_s >= least_s) continue;
    best = i + 1;
    least_s = takes_s;
  }
  return best;
}

class Kvpr final : public Policy {
 public:
  explicit Kvpr(Options& options) {
    options.choice("weights", weights_, {"gpu", "cpu"}, "where the model's weights live")
        .fixed(Options::rules_of_a_system);
    options.number("ahead", ahead_, "passes", "of a micro-batch through a layer that its cache is fetched ahead");
    add_overflow_option(options, overflow_);
  }

  Requirements requirements() const override { return Requirements::governing({Role::kv_cache}); }
  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::op_issued || kind == EventKind::op_done;
  }

  void prepare(const Trace& trace, const MachineSpec&, const RehearseTrace&) override {
    const auto of_generation = [&](const RecomputeChoice& choice) {
      return trace.ops[choice.before].phase == Phase::decode;
    };
    lacks_choices_ = std::ranges::none_of(trace.choices, of_generation);
  }

  void recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const override {
    const std::vector<LinkId> path = machine.path_between(machine.tier_of(Device::cpu), 0);
    if (path.empty()) return;
    const BytesPerSecond link = machine.links[path.back()].bandwidth;
    for (std::size_t begin = 0, end = 0; begin < levels.size(); begin = end) {
      const OpIndex before = trace.choices[begin].before;
      std::vector<Piece> pieces;
      for (; end < levels.size() && trace.choices[end].before == before; ++end) {
        pieces.push_back(piece_of(trace, trace.choices[end]));
      }
      const Op& attention = trace.ops[before];
      if (attention.phase != Phase::decode) continue;
      check_worth(trace, trace.choices[begin], pieces.front());
      const std::size_t made = split(pieces, cache_bytes(trace, trace.reads(attention)), link);
      std::fill_n(levels.begin() + static_cast<std::ptrdiff_t>(begin), made, RecomputeLevel::block);
    }
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    const TierId home = weights_ == "cpu" ? machine.tier_of(Device::cpu) : TierId{0};
    for (const Role role : {Role::parameter, Role::expert}) layout.initial[static_cast<std::size_t>(role)] = home;
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) learn(view, actions);
    if (event.op == none || event.op >= plan_.of_op.size()) return;
    const std::size_t number = plan_.of_op[event.op];
    const BlockSlot& slot = plan_.slots[number];
    if (event.kind == EventKind::op_issued && event.op == slot.first) {
      fetch_cache(number + ahead_, view, actions);
      if (weights_ == "cpu" && slot.micro_batch == 0) fetch_weights(number, view, actions);
    }
    if (event.kind != EventKind::op_done) return;
    if (event.op < leaving_.size()) {
      for (const TensorId tensor : leaving_[event.op]) {
        const TensorId id = view.memory_tensor(tensor);
        if (id != none) actions.evict(id, view.machine.tier_of(Device::cpu));
      }
    }
    if (weights_ == "cpu" && event.op == slot.last && slot.ends_run) {
      for (const TensorId weight : plan_.layers[slot.layer].weights) {
        if (const TensorId id = view.memory_tensor(weight); id != none) actions.drop(id);
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

  void notes(std::vector<std::string>& notes) const override {
    if (lacks_choices_) {
      notes.push_back(
          "nothing is computed again, as the trace has no choice of it: generate it with --new-tokens and "
          "--recompute choose");
    }
  }

 private:
  static void check_worth(const Trace& trace, const RecomputeChoice& choice, const Piece& piece) {
    if (piece.input < piece.made) return;
    throw Error("policy 'kvpr': making keys and values of '" + trace.names[choice.module] +
                "' again cannot pay: their input is " + format_bytes(piece.input) + " and they are " +
                format_bytes(piece.made) +
                " (grouped queries), so copying the input takes as long as copying them; take zero-inference or "
                "flexgen");
  }

  void learn(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    plan_ = BlockSlots(trace, *view.schedule);
    leaving_ = leaving_caches(trace, *view.schedule, plan_);
    for (std::size_t i = 0; i < ahead_; ++i) fetch_cache(i, view, actions);
  }

  void fetch_cache(std::size_t number, const View& view, Actions& actions) const {
    if (number >= plan_.slots.size()) return;
    for (const TensorId tensor : plan_.slots[number].cache_read) {
      if (const TensorId id = view.memory_tensor(tensor); id != none) fetch_missing(id, view, actions);
    }
  }

  // Of this layer and of the next one.
  void fetch_weights(std::size_t number, const View& view, Actions& actions) const {
    std::size_t next = number;
    while (!plan_.slots[next].ends_run) ++next;
    next = (next + 1) % plan_.slots.size();
    for (const std::size_t of : {number, next}) {
      for (const TensorId weight : plan_.layers[plan_.slots[of].layer].weights) {
        if (const TensorId id = view.memory_tensor(weight); id != none) fetch_missing(id, view, actions);
      }
    }
  }

  std::string weights_ = "gpu", overflow_ = "oom";
  std::uint64_t ahead_ = 0;
  bool lacks_choices_ = false;
  BlockSlots plan_;
  std::vector<std::vector<TensorId>> leaving_;  // by op: caches that are not used again in its pass
};

}  // namespace

TENCACHE_POLICY({"kvpr",
                 "the KV cache in CPU memory; a part of it is computed again while the rest is copied",
                 "KVPR (Jiang et al., arXiv 2411.17089)",
                 make_policy_of<Kvpr>,
                 186,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
