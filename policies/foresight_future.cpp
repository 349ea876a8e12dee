#include "policies/foresight_future.h"

#include <bit>

#include "core/check.h"

namespace tencache {

Future::Future(const Trace& trace, const Schedule& schedule, const std::vector<Bytes>& footprints) {
  const std::size_t ops = trace.ops.size();
  devices_.resize(ops);
  first_use_.resize(ops + 1);
  for (OpIndex op = 0; op < ops; ++op) {
    devices_[op] = trace.ops[op].device;
    first_use_[op + 1] = first_use_[op] + schedule.uses(op).size();
  }
  after_.resize(first_use_.back());
  dies_.resize(first_use_.back());
  born_.resize(ops);
  died_.resize(ops);
  alive_.resize(ops);
  // Backwards over two rounds: the second sees what comes after the iteration's end.
  constexpr std::int64_t unknown = -1;
  struct Ahead {
    std::int64_t gpu = unknown, cpu = unknown, touch = unknown;
  };
  std::vector<Ahead> ahead(trace.tensors.size());
  const auto distances = [](const Ahead& a, std::int64_t from) {
    const auto distance = [from](std::int64_t place) {
      return place == unknown ? none : static_cast<std::uint32_t>(place - from);
    };
    return Needs{distance(a.gpu), distance(a.cpu), distance(a.touch)};
  };
  for (std::int64_t round = 1; round >= 0; --round) {
    for (OpIndex op = static_cast<OpIndex>(ops); op-- > 0;) {
      const std::int64_t place = round * static_cast<std::int64_t>(ops) + op;
      const auto uses = schedule.uses(op);
      for (std::size_t i = 0; i < uses.size(); ++i) {
        const Use& use = uses[i];
        const Tensor& tensor = trace.tensors[use.tensor];
        const auto others = schedule.ops_of(use.tensor);
        Ahead& a = ahead[use.tensor];
        const std::size_t index = first_use_[op] + i;
        dies_[index] = !tensor.persistent && others.back() == op ? 1 : 0;
        if (dies_[index] != 0) a = {};
        if (round == 0) after_[index] = distances(a, place);
        if (devices_[op] == Device::gpu) {
          if (use.write) a.cpu = unknown;
          a.gpu = use.read ? place : unknown;
          a.touch = place;
          if (round == 0 && dies_[index] != 0) died_[op] += footprints[use.tensor];
          if (round == 0 && !tensor.persistent && others.front() == op) born_[op] += footprints[use.tensor];
        } else {
          a.cpu = use.read ? place : unknown;
          if (use.write) a.gpu = a.touch = unknown;
        }
      }
    }
  }
  at_start_.resize(trace.tensors.size());
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].persistent) at_start_[tensor] = distances(ahead[tensor], -1);
  }
  std::int64_t alive = 0;
  for (OpIndex op = 0; op < ops; ++op) {
    alive += static_cast<std::int64_t>(born_[op]);
    alive_[op] = alive;
    alive -= static_cast<std::int64_t>(died_[op]);
  }
  alive_each_ = alive;
}

void OpSet::resize(std::size_t limit) {
  words_.assign(limit / 64 + 1, 0);
  groups_.assign(words_.size() / 64 + 1, 0);
}

void OpSet::insert(std::uint32_t op) {
  words_[op / 64] |= std::uint64_t{1} << (op % 64);
  groups_[op / 4096] |= std::uint64_t{1} << (op / 64 % 64);
}

void OpSet::erase(std::uint32_t op) {
  words_[op / 64] &= ~(std::uint64_t{1} << (op % 64));
  if (words_[op / 64] == 0) groups_[op / 4096] &= ~(std::uint64_t{1} << (op / 64 % 64));
}

std::uint32_t OpSet::last_to(std::uint32_t op) const {
  const auto last = [](std::uint64_t bits) { return static_cast<std::uint32_t>(63 - std::countl_zero(bits)); };
  const auto up_to = [](std::uint32_t bit) { return ~std::uint64_t{0} >> (63 - bit); };
  std::uint32_t word = op / 64;
  if (const std::uint64_t bits = words_[word] & up_to(op % 64); bits != 0) return word * 64 + last(bits);
  if (word == 0) return none;
  --word;
  std::uint32_t group = word / 64;
  std::uint64_t bits = groups_[group] & up_to(word % 64);
  while (bits == 0) {
    if (group == 0) return none;
    bits = groups_[--group];
  }
  word = group * 64 + last(bits);
  return word * 64 + last(words_[word]);
}

std::uint32_t OpSet::first_from(std::uint32_t op) const {
  const auto first = [](std::uint64_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); };
  const auto from = [](std::uint32_t bit) { return ~std::uint64_t{0} << bit; };
  std::uint32_t word = op / 64;
  if (word >= words_.size()) return none;
  if (const std::uint64_t bits = words_[word] & from(op % 64); bits != 0) return word * 64 + first(bits);
  if (++word >= words_.size()) return none;
  std::uint32_t group = word / 64;
  std::uint64_t bits = groups_[group] & from(word % 64);
  while (bits == 0) {
    if (++group >= groups_.size()) return none;
    bits = groups_[group];
  }
  word = group * 64 + first(bits);
  return word * 64 + first(words_[word]);
}

void Shelf::reset(std::size_t op_count) {
  op_count_ = op_count;
  entries_.clear();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    heads_[kind].assign(op_count + 1, none);
    ops_[kind].resize(op_count);
    totals_[kind] = 0;
  }
  sums_.assign(op_count + 1, 0);
}

void Shelf::put(ChunkId chunk, Kind kind, std::uint32_t op, Bytes bytes) {
  if (chunk >= entries_.size()) {
    if (kind == off) return;
    entries_.resize(chunk + 1);
  }
  Entry& entry = entries_[chunk];
  if (entry.kind == kind && (kind == off || entry.op == op)) return;
  if (entry.kind != off) {
    (entry.previous == none ? heads_[entry.kind][entry.op] : entries_[entry.previous].next) = entry.next;
    if (entry.next != none) entries_[entry.next].previous = entry.previous;
    if (entry.op < op_count_ && heads_[entry.kind][entry.op] == none) ops_[entry.kind].erase(entry.op);
    totals_[entry.kind] -= entry.bytes;
    if (free_to_drop(entry.kind) && entry.op < op_count_) add_clean(entry.op, -static_cast<std::int64_t>(entry.bytes));
  }
  entry.kind = kind;
  if (kind == off) return;
  ChunkId& head = heads_[kind][op];
  entry.previous = none;
  entry.next = head;
  entry.op = op;
  entry.bytes = bytes;
  if (head != none) entries_[head].previous = chunk;
  head = chunk;
  if (op < op_count_) ops_[kind].insert(op);
  totals_[kind] += bytes;
  if (free_to_drop(kind) && op < op_count_) add_clean(op, static_cast<std::int64_t>(bytes));
}

std::uint32_t Shelf::farthest(Kind kind, std::uint32_t now) const {
  if (heads_[kind][op_count_] != none) return never();
  return nearer(kind, never(), now);
}

std::uint32_t Shelf::nearer(Kind kind, std::uint32_t op, std::uint32_t now) const {
  // From the op a round ahead, which is `now` itself, down to 0, then from the last down to the one after `now`.
  if (op == never()) {
    if (const std::uint32_t found = ops_[kind].last_to(now); found != none) return found;
    op = never();
  } else if (op <= now) {
    if (op > 0) {
      if (const std::uint32_t found = ops_[kind].last_to(op - 1); found != none) return found;
    }
    op = never();
  }
  if (op == 0) return none;
  const std::uint32_t found = ops_[kind].last_to(op - 1);
  return found != none && found > now ? found : none;
}

std::uint32_t Shelf::nearest(Kind kind, std::uint32_t now) const {
  const std::uint32_t found = ops_[kind].first_from(now + 1);
  if (found != none) return found;
  const std::uint32_t wrapped = ops_[kind].first_from(0);
  return wrapped != none && wrapped <= now ? wrapped : none;
}

Bytes Shelf::clean_beyond(std::uint32_t now, std::uint32_t op, bool whole_round) const {
  std::int64_t within = clean_to(op) - clean_to(now);
  if (op < now || (op == now && whole_round)) within += clean_to(static_cast<std::uint32_t>(op_count_ - 1));
  return totals_[clean] + totals_[spare] - static_cast<Bytes>(within);
}

void Shelf::add_clean(std::uint32_t op, std::int64_t bytes) {
  for (std::size_t i = op + 1; i < sums_.size(); i += i & (~i + 1)) sums_[i] += bytes;
}

std::int64_t Shelf::clean_to(std::uint32_t op) const {
  std::int64_t sum = 0;
  for (std::size_t i = op + 1; i > 0; i &= i - 1) sum += sums_[i];
  return sum;
}

}  // namespace tencache
