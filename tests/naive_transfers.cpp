// Copies: queues, hops, room, staging buffers.
#include <algorithm>

#include "tests/naive_state.h"

namespace tencache::naive {

std::vector<LinkId> Naive::path(TierId from, TierId to) const {
  if (from == to) return {};
  if (const LinkId direct = spec_.link_between(from, to); direct != no_link) return {direct};
  if (spec_.staging.count == 0 || spec_.staging.tier == from || spec_.staging.tier == to) return {};
  const LinkId in = spec_.link_between(from, spec_.staging.tier), out = spec_.link_between(spec_.staging.tier, to);
  if (in == no_link || out == no_link) return {};
  return {in, out};
}

BytesPerSecond Naive::speed(TierId from, TierId to) const {
  BytesPerSecond least = std::numeric_limits<BytesPerSecond>::max();
  for (const LinkId link : path(from, to)) least = std::min(least, spec_.links[link].bandwidth);
  return least;
}

int Naive::arriving(ChunkId chunk, TierId to) const {
  for (const auto& [id, move] : moves_) {
    if (move.chunk == chunk && move.to == to && !move.useless) return id;
  }
  return -1;
}

std::vector<int> Naive::moves_of(ChunkId chunk) const {
  std::vector<int> ids;
  for (const auto& [id, move] : moves_) {
    if (move.chunk == chunk) ids.push_back(id);
  }
  return ids;
}

TierId Naive::source(ChunkId chunk, TierId to) {
  TierId best = no_tier;
  for (TierId tier = 0; tier < tiers(); ++tier) {
    if (tier == to || !valid(chunk, tier) || at(chunk, tier).writers > 0 || path(tier, to).empty()) continue;
    if (best == no_tier || speed(tier, to) > speed(best, to)) best = tier;
  }
  return best;
}

int Naive::request(ChunkId chunk, TierId from, TierId to, Kind kind, int rank) {
  Move move;
  move.chunk = chunk;
  move.from = from;
  move.to = to;
  move.kind = kind;
  move.rank = rank;
  move.path = path(from, to);
  moves_[++last_move_] = move;
  return last_move_;
}

void Naive::enqueue(int id, bool front) {
  moves_[id].queued = true;
  moves_[id].place = front ? --front_place_ : ++back_place_;
}

int Naive::head(LinkId link, int rank, long long after) const {
  int best = -1;
  for (const auto& [id, move] : moves_) {
    if (!move.queued || move.link() != link || move.rank != rank || move.place <= after) continue;
    if (best < 0 || move.place < moves_.at(best).place) best = id;
  }
  return best;
}

Refusal Naive::fetch(ChunkId chunk, TierId to, int rank, OpIndex not_before) {
  if (valid(chunk, to)) {
    if (at(chunk, to).leaving) rescue(chunk, to);
    return Refusal::none;
  }
  if (const int coming = arriving(chunk, to); coming >= 0) {
    if (rank == urgent_rank) demand(coming);
    return Refusal::none;
  }
  if (at(chunk, to).state != CopyState::absent || dead_[owner_[chunk]] != 0 || source(chunk, to) == no_tier)
    return Refusal::stale;
  if (path(source(chunk, to), to).size() > 1) {  // staged, and it is being copied into that tier already
    const int coming = arriving(chunk, spec_.staging.tier);
    if (coming >= 0 && moves_[coming].flying) return Refusal::stale;
  }
  if (room_of(chunk, to) > capacity(to)) return Refusal::no_room;
  const int id = request(chunk, source(chunk, to), to, Kind::fetch, rank);
  if (rank != urgent_rank && not_before != none && not_before != position_)
    moves_[id].not_before = not_before;
  else
    enqueue(id, false);
  return Refusal::none;
}

bool Naive::reserve(ChunkId chunk, TierId tier) {
  if (take(chunk, tier)) return true;
  // Copies that the GPU holds too are given up: those at the cold end, up to the first that it does not hold.
  for (const ChunkId other : std::vector<ChunkId>(tier == 0 ? std::vector<ChunkId>{} : order_[tier])) {
    if (free(tier) >= room_of(chunk, tier) || !valid(other, 0)) break;
    if (evictable(other, tier) && at(other, tier).readers == 0) drop(other, tier);
  }
  return take(chunk, tier);
}

bool Naive::may_receive(ChunkId chunk, TierId from, TierId to, Kind kind) {
  if (to == from || path(from, to).empty() || at(chunk, to).state != CopyState::absent || at(chunk, to).pins > 0)
    return false;
  const int coming = arriving(chunk, to);
  if (coming < 0) return true;
  const Move& move = moves_[coming];
  return kind == Kind::evict && move.kind == Kind::fetch && !move.flying && move.hop == 0;
}

Refusal Naive::send(ChunkId chunk, TierId from, TierId destination, Kind kind, int rank) {
  if (!valid(chunk, from) || at(chunk, from).writers > 0 || dead_[owner_[chunk]] != 0) return Refusal::stale;
  TierId to = no_tier;
  if (destination != no_tier) {
    if (destination >= tiers() || !may_receive(chunk, from, destination, kind)) return Refusal::stale;
    if (reserve(chunk, destination)) to = destination;
  } else {
    for (TierId tier = static_cast<TierId>(from + 1); tier < tiers() && to == no_tier; ++tier) {
      if (may_receive(chunk, from, tier, kind) && reserve(chunk, tier)) to = tier;
    }
  }
  if (to == no_tier) return Refusal::no_room;
  if (const int replaced = arriving(chunk, to); replaced >= 0) withdraw(replaced);
  enqueue(request(chunk, from, to, kind, rank), false);
  return Refusal::none;
}

Refusal Naive::evict(ChunkId chunk, TierId from, TierId destination, int rank) {
  if (!evictable(chunk, from)) return Refusal::stale;
  if (droppable(chunk, from)) {
    drop(chunk, from);
    return Refusal::none;
  }
  const Refusal refusal = send(chunk, from, destination, Kind::evict, rank);
  if (refusal == Refusal::none) at(chunk, from).leaving = true;
  return refusal;
}

void Naive::withdraw(int id) {
  const Move move = moves_[id];
  moves_.erase(id);
  free_buffers(move);
  if (move.kind != Kind::fetch || move.hop > 0) give_back(move.chunk, move.to);
  if (move.kind == Kind::evict && valid(move.chunk, move.from)) at(move.chunk, move.from).leaving = false;
}

void Naive::free_buffers(const Move& move) {
  for (const std::size_t buffer : move.buffers) buffers_[buffer] = false;
}

void Naive::demand(int id) {
  if (layout_.promote)
    lift(id);
  else if (!moves_[id].queued && !moves_[id].flying)
    enqueue(id, false);
}

void Naive::lift(int id) {
  Move& move = moves_[id];
  const bool moves_up = !move.flying && move.rank != urgent_rank;
  move.rank = urgent_rank;
  if (moves_up) enqueue(id, false);
}

void Naive::rescue(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.from != tier || move.kind != Kind::evict) continue;
    if (!move.flying && move.hop == 0 && at(chunk, move.to).pins == 0) {
      withdraw(id);
    } else {
      move.kind = Kind::clean;
      at(chunk, tier).leaving = false;
    }
  }
}

void Naive::stop_reading(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.from != tier || move.hop > 0) continue;
    if (!move.flying) {
      withdraw(id);
      continue;
    }
    move.useless = true;
    machine_.cancel(move.job);
  }
}

void Naive::make_useless(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.flying && move.to == tier) {
      move.useless = true;
      machine_.cancel(move.job);
    } else if (!move.flying && (move.to == tier || (move.from == tier && move.hop == 0))) {
      withdraw(id);
    }
  }
  if (valid(chunk, tier))
    drop(chunk, tier);
  else if (at(chunk, tier).state == CopyState::reserved)
    condemn(chunk, tier);
}

bool Naive::start_transfers(LinkId link) {
  bool progress = false;
  while (true) {
    if (!takes_another(link)) return progress;
    bool started = false;
    for (int rank = urgent_rank; rank <= background_rank && !started; ++rank) {
      int id = head(link, rank);
      while (id >= 0 && !source_stands(moves_[id])) {
        look_elsewhere(id);
        id = head(link, rank);
      }
      if (id >= 0) started = try_copy(id);
    }
    if (!started) return progress;
    progress = true;
  }
}

void Naive::start_behind_blocked() {
  for (bool progress = true; progress;) {
    progress = false;
    const long long queued = back_place_ - front_place_;
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      for (int rank = urgent_rank; rank <= background_rank; ++rank) {
        for (int id = head(link, rank); id >= 0 && takes_another(link);) {
          const Move& move = moves_[id];
          const int next = head(link, rank, move.place);
          const bool prefetch = move.kind == Kind::fetch && move.hop == 0 && at(move.chunk, move.to).pins == 0;
          if (!prefetch && !source_stands(move))
            look_elsewhere(id);
          else if (!prefetch)
            progress |= try_copy(id);
          id = next;
        }
      }
    }
    progress |= back_place_ - front_place_ != queued;
  }
}

bool Naive::takes_another(LinkId link) {
  std::map<int, Bytes> flying;  // by job: in order of submission
  for (const auto& [id, move] : moves_) {
    if (move.flying && move.link() == link) flying[move.job] = bytes_[move.chunk];
  }
  if (flying.size() < spec_.copies_in_flight) return true;
  const Link& l = spec_.links[link];
  if (flying.size() >= l.queue_depth) return false;
  Bytes behind_first = 0;
  for (auto it = std::next(flying.begin()); it != flying.end(); ++it) behind_first += it->second;
  const uint128 per_latency =
      (static_cast<uint128>(l.bandwidth) * static_cast<uint128>(l.latency_ns) + 999'999'999u) / 1'000'000'000u;
  return static_cast<uint128>(behind_first) < per_latency;
}

Nanoseconds Naive::setup_of(ChunkId chunk, TierId tier) {
  const AllocationCost& cost = spec_.tiers[tier].allocation;
  if (!layout_.allocate_each[tier]) return 0;
  Bytes bytes = bytes_[chunk];
  if (cost.power_of_two) {
    bytes = 1;
    while (bytes < bytes_[chunk]) bytes *= 2;
  }
  if (cost.bandwidth == 0) return cost.per_call_ns;
  return cost.per_call_ns +
         static_cast<Nanoseconds>((static_cast<uint128>(bytes) * 1'000'000'000u + cost.bandwidth - 1) / cost.bandwidth);
}

bool Naive::source_stands(const Move& move) {
  return move.hop > 0 || (valid(move.chunk, move.from) && at(move.chunk, move.from).writers == 0);
}

void Naive::look_elsewhere(int id) {
  const Move old = moves_[id];
  withdraw(id);
  const bool needed = at(old.chunk, old.to).pins > 0;
  if (at(old.chunk, old.to).state != CopyState::absent || (old.kind != Kind::fetch && !needed)) return;
  if (fetch(old.chunk, old.to, old.kind == Kind::fetch ? old.rank : urgent_rank, none) != Refusal::none && needed) {
    lanes_[old.to == 0 ? 0 : 1].running.back().stranded.push_back(old.chunk);
  }
}

bool Naive::try_copy(int id) {
  Move& move = moves_[id];
  if (move.hop == 0) {
    if (move.path.size() > 1 && !take_buffers(move)) return false;
    if (move.kind == Kind::fetch && !room_for(id)) {
      free_buffers(move);
      move.buffers.clear();
      return false;
    }
    ++at(move.chunk, move.from).readers;
  }
  move.queued = false;
  move.flying = true;
  const bool last = move.hop + 1 == move.path.size();
  Job job = machine_.copy(move.link(), bytes_[move.chunk], last ? setup_of(move.chunk, move.to) : 0);
  job.transfer = id;
  move.job = machine_.push(2 + std::size_t{move.link()}, job);
  machine_.begin_what_can();
  return true;
}

bool Naive::take_buffers(Move& move) {
  const std::size_t count = (bytes_[move.chunk] + spec_.staging.bytes - 1) / spec_.staging.bytes;
  for (std::size_t first = 0; first + count <= buffers_.size(); ++first) {
    if (std::any_of(buffers_.begin() + static_cast<std::ptrdiff_t>(first),
                    buffers_.begin() + static_cast<std::ptrdiff_t>(first + count), [](bool used) { return used; }))
      continue;
    for (std::size_t i = first; i < first + count; ++i) {
      buffers_[i] = true;
      move.buffers.push_back(i);
    }
    return true;
  }
  return false;
}

bool Naive::room_for(int id) {
  const Move& move = moves_[id];
  const TierId to = move.to;
  if (at(move.chunk, to).state != CopyState::absent) return false;
  const bool needed = at(move.chunk, to).pins > 0;
  const Bytes others = wanted(to);
  if (!needed && others > 0 && free(to) < others + room_of(move.chunk, to)) return false;
  if (take(move.chunk, to)) return true;
  Bytes bytes = room_of(move.chunk, to);
  if (needed) {
    bytes = wanted(lanes_[to == 0 ? 0 : 1]);
  } else if (const int behind = head(move.link(), move.rank, move.place); behind >= 0) {
    bytes += room_of(moves_[behind].chunk, to);
  }
  make_room(to, bytes, !needed, move.chunk, needed ? urgent_rank : normal_rank);
  return source_stands(move) && take(move.chunk, to);
}

void Naive::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, int rank) {
  const auto lacking = [&]() -> Bytes {
    const Bytes have = free(tier) + leaving(tier);
    return have < bytes ? bytes - have : 0;
  };
  if (lacking() == 0 || !asked_.insert({tier, prefetch}).second) return;
  std::vector<ChunkId> victims;
  const Residency memory = mirror();
  policy_.make_room({tier, lacking(), prefetch, incoming}, view(memory), victims);
  for (const ChunkId chunk : victims) {
    if (chunk < bytes_.size()) evict(chunk, tier, no_tier, rank);
  }
  if (prefetch || !layout_.fallback_eviction) return;
  for (const ChunkId chunk : std::vector<ChunkId>(order_[tier])) {
    if (lacking() == 0) break;
    if (evictable(chunk, tier)) evict(chunk, tier, no_tier, rank);
  }
}

}  // namespace tencache::naive
