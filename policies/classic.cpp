#include "policies/classic.h"

#include <utility>

#include "core/check.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"

namespace tencache {

bool fetch_missing(TensorId tensor, const View& view, Actions& actions) {
  const Residency& memory = view.memory;
  bool any = false;
  const ChunkId begin = memory.first_chunk(tensor);
  for (std::uint32_t i = 0; i < memory.chunk_count(tensor); ++i) {
    if (memory.copy(begin + i, 0).state != CopyState::absent || !memory.valid_elsewhere(begin + i, 0)) continue;
    actions.push({.verb = Verb::fetch, .tensor = tensor, .chunk = i});
    any = true;
  }
  return any;
}

ClassicPolicy::ClassicPolicy(Options& options) {
  layout_.chunk_bytes = 0;
  options.number("window", window_, "rows", "tensor accesses after the op's own whose tensors are fetched ahead");
  add_chunk_option(options, layout_.chunk_bytes);
}

Layout ClassicPolicy::layout(const MachineSpec& machine, const Program* program) const {
  Layout layout = layout_;
  layout.chunk_bytes = unit_of_whole_tensors(machine, program, layout.chunk_bytes);
  return layout;
}

void ClassicPolicy::on(const Event& event, const View& view, Actions& actions) {
  if (window_ == 0 || event.kind != EventKind::op_issued || event.device != Device::gpu || event.op == none) return;
  if (view.schedule != nullptr) prefetch(event.op, view, actions);
}

void ClassicPolicy::prefetch(OpIndex issued, const View& view, Actions& actions) const {
  std::uint64_t rows = window_;
  const std::size_t ops = view.schedule->op_count();
  for (std::size_t ahead = 1; ahead < ops; ++ahead) {  // once around at most
    const OpIndex op = static_cast<OpIndex>((issued + ahead) % ops);
    if (view.program->trace.ops[op].device != Device::gpu) continue;
    for (const Use& use : view.schedule->uses(op)) {
      if (rows-- == 0) return;
      const TensorId tensor = use.read ? view.memory_tensor(use.tensor) : none;
      if (tensor != none && !view.dead(tensor)) fetch_missing(tensor, view, actions);
    }
  }
}

void Ranking::set(TensorId tensor, Rank rank) {
  if (tensor >= ranks_.size()) {
    ranks_.resize(tensor + 1);
    ranked_.resize(tensor + 1, false);
  }
  if (!ranked_[tensor]) {
    order_.insert({rank, tensor});
    ranked_[tensor] = true;
  } else if (ranks_[tensor] != rank) {
    auto node = order_.extract({ranks_[tensor], tensor});  // moved, not made anew
    node.value().rank = rank;
    order_.insert(std::move(node));
  }
  ranks_[tensor] = rank;
}

void Ranking::choose(const RoomRequest& request, const Residency& memory, std::vector<ChunkId>& victims, Rank floor,
                     Rank ceiling) {
  TENCACHE_CHECK(request.tier == 0);
  Bytes found = 0;
  auto next = order_.lower_bound({ceiling, 0});
  while (next != order_.end() && found < request.bytes && next->rank > floor) {
    const TensorId tensor = next->tensor;
    if (!present(memory, tensor)) {
      ranked_[tensor] = false;
      next = order_.erase(next);
      continue;
    }
    const ChunkId begin = memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + memory.chunk_count(tensor) && found < request.bytes; ++chunk) {
      if (!memory.evictable(chunk, 0)) continue;
      victims.push_back(chunk);
      found += memory.footprint(chunk, 0);
    }
    ++next;
  }
}

bool Ranking::present(const Residency& memory, TensorId tensor) {
  const ChunkId begin = memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory.chunk_count(tensor); ++chunk) {
    if (memory.valid(chunk, 0)) return true;
  }
  return false;
}

}  // namespace tencache
