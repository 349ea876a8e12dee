// Chunks and room, and what the policy sees of them and asks for.
#include <algorithm>
#include <stdexcept>

#include "core/metrics.h"
#include "tests/naive_state.h"

namespace tencache::naive {

Bytes Naive::room_of(ChunkId chunk, TierId tier) const {
  const Bytes unit = spec_.tiers[tier].granularity;
  return (bytes_[chunk] + unit - 1) / unit * unit;
}

Bytes Naive::free(TierId tier) {
  Bytes used = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk)
    used += at(chunk, tier).state == CopyState::absent ? 0 : room_of(chunk, tier);
  return capacity(tier) - used;
}

Bytes Naive::capacity(TierId tier) const {
  return tier == 0 && layout_.unlimited_gpu ? unlimited : spec_.tiers[tier].capacity;
}

Bytes Naive::leaving(TierId tier) {
  Bytes sum = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) sum += at(chunk, tier).leaving ? room_of(chunk, tier) : 0;
  return sum;
}

Bytes Naive::wanted(const NaiveLane& lane) {
  if (!lane.waiting) return 0;
  Bytes sum = 0;
  for (const Use& use : schedule_.uses(lane.running.back().op)) {
    for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk) {
      const CopyState state = at(chunk, lane.tier).state;
      if (state == CopyState::absent || state == CopyState::condemned) sum += room_of(chunk, lane.tier);
    }
  }
  return sum;
}

Bytes Naive::wanted(TierId tier) {
  Bytes sum = 0;
  for (const NaiveLane& lane : lanes_) sum += lane.tier == tier ? wanted(lane) : 0;
  return sum;
}

bool Naive::evictable(ChunkId chunk, TierId tier) {
  const Where& w = at(chunk, tier);
  return w.state == CopyState::valid && w.pins == 0 && !w.leaving;
}

bool Naive::droppable(ChunkId chunk, TierId tier) {
  if (dead_[owner_[chunk]] != 0) return true;
  for (TierId other = 0; other < tiers(); ++other) {
    if (other != tier && valid(chunk, other)) return true;
  }
  return false;
}

void Naive::rank(ChunkId chunk, TierId tier, bool coldest) {
  std::erase(order_[tier], chunk);
  order_[tier].insert(coldest ? order_[tier].begin() : order_[tier].end(), chunk);
}

void Naive::rank_below(ChunkId chunk, bool coldest) {
  for (TierId tier = 1; tier < tiers(); ++tier) {
    if (valid(chunk, tier)) rank(chunk, tier, coldest);
  }
}

bool Naive::take(ChunkId chunk, TierId tier) {
  if (room_of(chunk, tier) > free(tier)) return false;
  at(chunk, tier).state = CopyState::reserved;
  return true;
}

void Naive::make_valid(ChunkId chunk, TierId tier) {
  at(chunk, tier).state = CopyState::valid;
  rank(chunk, tier, tier != 0 && valid(chunk, 0));
  if (tier == 0) rank_below(chunk, true);
}

void Naive::give_back(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::absent;
  at(chunk, tier).leaving = false;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

void Naive::condemn(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::condemned;
  at(chunk, tier).leaving = true;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

void Naive::place_initially(TensorId tensor) {
  const TierId role = layout_.initial[static_cast<std::size_t>(program_.trace.tensors[tensor].role)];
  for (ChunkId chunk = first_[tensor]; chunk < first_[tensor + 1]; ++chunk) {
    TierId tier = layout_.unlimited_gpu ? TierId{0} : role != no_tier ? role : spec_.initial_tier;
    while (tier < tiers() && !take(chunk, tier)) ++tier;
    if (tier == tiers()) throw NoRoom{};
    make_valid(chunk, tier);
  }
  born_[tensor] = 1;
}

View Naive::view(const Residency& memory) {
  View v{.machine = spec_, .memory = memory};
  v.program = &program_;
  v.schedule = &schedule_;
  v.now = machine_.now();
  v.iteration = iteration_;
  v.op = position_;
  v.dead_flags = &dead_;
  load_.assign(spec_.links.size(), 0);
  for (const auto& [id, move] : moves_) load_[move.link()] += move.queued || move.flying ? 1 : 0;
  v.link_load = {load_.data(), load_.size()};
  return v;
}

Residency Naive::mirror() {
  Residency memory(spec_, layout_.allocators, layout_.chunk_bytes, layout_.unlimited_gpu);
  for (const Tensor& tensor : program_.trace.tensors) memory.add_tensor(tensor.bytes, tensor.role, tensor.persistent);
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) {
    for (TierId tier = 0; tier < tiers(); ++tier) {
      if (at(chunk, tier).state == CopyState::absent) continue;
      if (!memory.reserve(chunk, tier)) throw std::logic_error("the naive engine overfills a tier");
      if (valid(chunk, tier)) memory.commit(chunk, tier);
      if (at(chunk, tier).state == CopyState::condemned)
        memory.condemn(chunk, tier);
      else if (at(chunk, tier).leaving)
        memory.set_evicting(chunk, tier, true);
    }
  }
  for (TierId tier = 0; tier < tiers(); ++tier) {
    for (const ChunkId chunk : order_[tier]) memory.touch(chunk, tier);
    for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) {
      for (int i = 0; i < at(chunk, tier).pins; ++i) memory.pin(chunk, tier);
      for (int i = 0; i < at(chunk, tier).readers; ++i) memory.add_reader(chunk, tier);
      for (int i = 0; i < at(chunk, tier).writers; ++i) memory.add_writer(chunk, tier);
    }
  }
  return memory;
}

void Naive::tell(const Event& event) {
  events_.push_back({event, depth_});
  if (telling_) return;
  telling_ = true;
  while (!events_.empty()) {
    const auto [next, depth] = events_.front();
    events_.pop_front();
    Actions actions;
    const Residency memory = mirror();
    policy_.on(next, view(memory), actions);
    depth_ = next.kind == EventKind::refused ? depth + 1 : 0;
    for (const Action& action : actions.list()) apply(action);
    depth_ = 0;
  }
  telling_ = false;
}

void Naive::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  if (depth_ <= 2) {
    tell({.kind = EventKind::refused,
          .refusal = reason,
          .from = action.tier,
          .to = action.destination,
          .op = position_,
          .tensor = action.tensor,
          .chunk = chunk});
  }
}

void Naive::apply(const Action& action) {
  if (action.tensor + 1 >= first_.size() || action.tier >= tiers()) return refuse(Refusal::stale, action, none);
  if (out_of_patience()) return refuse(Refusal::no_room, action, none);
  if (action.verb == Verb::hold) {
    const Hold hold{action.op, action.tensor, action.tier};
    for (NaiveLane& lane : lanes_) {
      if (!lane.waiting || lane.running.back().op != action.op) continue;
      lane.running.back().holds.push_back(hold);
      return;
    }
    holds_.push_back(hold);
    return;
  }
  const ChunkId count = first_[action.tensor + 1] - first_[action.tensor];
  if (action.chunk != all_chunks && action.chunk >= count) return refuse(Refusal::stale, action, none);
  for (ChunkId i = 0; i < count; ++i) {
    if (action.chunk != all_chunks && action.chunk != i) continue;
    const Refusal refusal = act(action, first_[action.tensor] + i);
    if (refusal != Refusal::none) refuse(refusal, action, first_[action.tensor] + i);
  }
}

Refusal Naive::act(const Action& action, ChunkId chunk) {
  const int rank = action.urgent ? urgent_rank : normal_rank;
  const int coming = arriving(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      if (at(chunk, action.tier).state == CopyState::absent && at(chunk, action.tier).pins > 0 && coming < 0)
        return Refusal::stale;
      return fetch(chunk, action.tier, rank, action.not_before);
    case Verb::evict:
      return evict(chunk, action.tier, action.destination, rank);
    case Verb::clean:
      return send(chunk, action.tier, action.destination, Kind::clean, action.urgent ? urgent_rank : background_rank);
    case Verb::drop:
      if (!evictable(chunk, action.tier) || !droppable(chunk, action.tier)) return Refusal::stale;
      drop(chunk, action.tier);
      return Refusal::none;
    case Verb::cancel:
      if (coming < 0 || moves_[coming].flying || moves_[coming].hop > 0 || moves_[coming].kind != Kind::fetch ||
          at(chunk, action.tier).pins > 0)
        return Refusal::stale;
      withdraw(coming);
      return Refusal::none;
    case Verb::hold:
      break;
  }
  return Refusal::none;
}

}  // namespace tencache::naive
