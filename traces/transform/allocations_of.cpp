#include "traces/transform/allocations_of.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::uint32_t no_block = ~0u;

bool of_forward(Phase phase) {
  return phase == Phase::forward || phase == Phase::prefill || phase == Phase::decode || phase == Phase::loss;
}

// A name, and which of those that have it: names need not differ.
using PersistentKey = std::pair<std::string, std::size_t>;

// Of one trace, by tensor, as ops of the first rank use it on the GPU.
struct GpuUses {
  std::vector<OpIndex> last;  // none: they do not
  std::vector<char> in_forward;
  std::vector<PersistentKey> key;  // of persistent ones

  explicit GpuUses(const Trace& trace)
      : last(trace.tensors.size(), none), in_forward(trace.tensors.size(), 0), key(trace.tensors.size()) {
    std::unordered_map<NameId, std::size_t> seen;
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      const Tensor& tensor = trace.tensors[id];
      if (tensor.persistent) key[id] = {std::string(trace.name(tensor)), seen[tensor.name]++};
    }
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      if (op.rank != 0 || op.device != Device::gpu) continue;
      for (const auto& list : {trace.reads(op), trace.writes(op)}) {
        for (const TensorId tensor : list) {
          last[tensor] = index;
          if (of_forward(op.phase)) in_forward[tensor] = 1;
        }
      }
      for (const TensorId tensor : trace.frees(op)) last[tensor] = index;
    }
  }
};

class EventMaker {
 public:
  explicit EventMaker(const AllocationsOfTraces& how) : how_(how) {}

  void begin(const Trace& trace, const GpuUses& uses) {
    for (TensorId id = 0; id < trace.tensors.size(); ++id) {
      if (!trace.tensors[id].persistent || !uses.in_forward[id]) continue;
      const bool batch = trace.tensors[id].role == Role::input;  // that of the first iteration is there
      if (!batch || !persistent_.contains(uses.key[id])) born(trace, uses, id);
    }
  }

  void run(const Trace& trace, const GpuUses& uses) {
    made_.events.push_back({AllocationEvent::Kind::iteration});
    for (const std::uint32_t block : kept_) made_.events.push_back({AllocationEvent::Kind::release, block});
    kept_.clear();
    blocks_.assign(trace.tensors.size(), no_block);
    std::vector<TensorId> dead;
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      if (op.rank != 0 || op.device != Device::gpu) continue;
      dead.clear();
      for (const auto& list : {trace.reads(op), trace.writes(op)}) {
        for (const TensorId tensor : list) {
          born(trace, uses, tensor);
          if (!trace.tensors[tensor].persistent && uses.last[tensor] == index) dead.push_back(tensor);
        }
      }
      for (const TensorId tensor : trace.frees(op)) {
        if (uses.last[tensor] == index && blocks_[tensor] != no_block) dead.push_back(tensor);
      }
      std::ranges::sort(dead);
      dead.erase(std::unique(dead.begin(), dead.end()), dead.end());
      for (const TensorId tensor : dead) die(trace, tensor);
    }
  }

  Allocations finish() { return std::move(made_); }

 private:
  std::uint32_t allocate(Bytes bytes) {
    made_.events.push_back({AllocationEvent::Kind::allocate, made_.blocks, 0, bytes});
    return made_.blocks++;
  }

  void born(const Trace& trace, const GpuUses& uses, TensorId id) {
    const Tensor& tensor = trace.tensors[id];
    if (tensor.bytes == 0) return;
    if (!tensor.persistent) {
      if (blocks_[id] == no_block) blocks_[id] = allocate(tensor.bytes);
      return;
    }
    Persistent& known = persistent_[uses.key[id]];
    if (known.bytes == 0) {
      known = {tensor.bytes, allocate(tensor.bytes)};
    } else if (known.bytes != tensor.bytes && tensor.role == Role::input) {  // a batch of another length
      made_.events.push_back({AllocationEvent::Kind::release, known.block});
      known = {tensor.bytes, allocate(tensor.bytes)};
    } else if (known.bytes != tensor.bytes) {
      throw Error(
          fmt::format("'{}' has {} bytes in one trace and {} in another: several traces are iterations of one "
                      "model",
                      trace.name(tensor), known.bytes, tensor.bytes));
    }
  }

  void die(const Trace& trace, TensorId id) {
    if (trace.tensors[id].bytes == 0) return;
    if (how_.gradients_kept && trace.tensors[id].role == Role::gradient) {
      kept_.push_back(blocks_[id]);
    } else {
      made_.events.push_back({AllocationEvent::Kind::release, blocks_[id]});
    }
  }

  AllocationsOfTraces how_;
  Allocations made_;
  struct Persistent {
    Bytes bytes = 0;
    std::uint32_t block = no_block;
  };

  std::map<PersistentKey, Persistent> persistent_;
  std::vector<std::uint32_t> blocks_;  // of the iteration, by tensor
  std::vector<std::uint32_t> kept_;    // of the iteration before
};

}  // namespace

Allocations allocations_of(const std::vector<const Trace*>& traces, const AllocationsOfTraces& how) {
  std::vector<GpuUses> uses;
  for (const Trace* trace : traces) uses.emplace_back(*trace);
  EventMaker maker(how);
  for (std::size_t i = 0; i < traces.size(); ++i) maker.begin(*traces[i], uses[i]);
  for (unsigned round = 0; round < how.rounds; ++round) {
    for (std::size_t i = 0; i < traces.size(); ++i) maker.run(*traces[i], uses[i]);
  }
  return maker.finish();
}

}  // namespace tencache
