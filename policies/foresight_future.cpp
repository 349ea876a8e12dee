#include "policies/foresight_future.h"

#include <algorithm>
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

namespace {

// The greatest of a range, and adding to one: a segment tree over the ops.
class Peaks {
 public:
  explicit Peaks(const std::vector<std::int64_t>& values) {
    while (size_ < values.size()) size_ *= 2;
    most_.assign(2 * size_, 0);
    added_.assign(2 * size_, 0);
    std::copy(values.begin(), values.end(), most_.begin() + static_cast<std::ptrdiff_t>(size_));
    for (std::size_t i = size_; i-- > 1;) most_[i] = std::max(most_[2 * i], most_[2 * i + 1]);
  }
  void add(std::size_t from, std::size_t to, std::int64_t bytes) { change(1, 0, size_, from, to, bytes); }
  std::int64_t most(std::size_t from, std::size_t to) const { return find(1, 0, size_, from, to); }

 private:
  void change(std::size_t node, std::size_t begin, std::size_t end, std::size_t from, std::size_t to,
              std::int64_t bytes) {
    if (to <= begin || end <= from) return;
    if (from <= begin && end <= to) {
      most_[node] += bytes;
      added_[node] += bytes;
      return;
    }
    const std::size_t middle = (begin + end) / 2;
    change(2 * node, begin, middle, from, to, bytes);
    change(2 * node + 1, middle, end, from, to, bytes);
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
  std::int64_t find(std::size_t node, std::size_t begin, std::size_t end, std::size_t from, std::size_t to) const {
    if (to <= begin || end <= from) return 0;
    if (from <= begin && end <= to) return most_[node];
    const std::size_t middle = (begin + end) / 2;
    return std::max(find(2 * node, begin, middle, from, to), find(2 * node + 1, middle, end, from, to)) + added_[node];
  }

  std::size_t size_ = 1;
  std::vector<std::int64_t> most_, added_;
};

}  // namespace

std::vector<std::uint8_t> spilled(const Seen& seen, Bytes capacity) {
  struct Period {
    Nanoseconds length_ns = 0;
    std::size_t use = 0;  // index over all
    std::size_t begin = 0, end = 0;
    std::int64_t bytes = 0;
  };
  const std::size_t ops = seen.schedule.op_count();
  std::vector<std::int64_t> pinned(ops, 0);
  std::vector<Period> periods;
  std::vector<std::size_t> first_use(1, 0);
  for (OpIndex op = 0; op < ops; ++op) first_use.push_back(first_use.back() + seen.schedule.uses(op).size());
  std::vector<std::uint8_t> out(first_use.back(), 0);
  // Backwards over two rounds: the next use in `next`, by tensor; `none`: the content comes from the CPU, or dies.
  std::vector<std::size_t> next(seen.trace.tensors.size(), none);
  for (std::size_t place = 2 * ops; place-- > 0;) {
    const OpIndex op = static_cast<OpIndex>(place % ops);
    const auto uses = seen.schedule.uses(op);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const Use& use = uses[i];
      const Tensor& tensor = seen.trace.tensors[use.tensor];
      if (!tensor.persistent && seen.schedule.ops_of(use.tensor).back() == op) next[use.tensor] = none;
      if (seen.gpu_only && seen.devices[op] == Device::cpu) {
        if (use.write) next[use.tensor] = none;
        if (place < ops && use.write) out[first_use[op] + i] = 1;
        continue;
      }
      if (place < ops) {
        const std::int64_t bytes = static_cast<std::int64_t>(tensor.bytes);
        pinned[op] += bytes;
        const std::size_t end = next[use.tensor];
        if (end != none && end > place + 1) {
          const Nanoseconds until = end < ops ? seen.clock_ns[end] : seen.clock_ns[end - ops] + seen.clock_ns.back();
          periods.push_back({until - seen.clock_ns[op + 1], first_use[op] + i, place + 1, end, bytes});
        }
      }
      next[use.tensor] = use.read ? place : none;  // what is overwritten need not be kept
    }
  }
  std::stable_sort(periods.begin(), periods.end(),
                   [](const Period& a, const Period& b) { return a.length_ns < b.length_ns; });
  Peaks peaks(pinned);
  for (const Period& period : periods) {
    const std::size_t end = std::min(period.end, ops), wrapped = period.end > ops ? period.end - ops : 0;
    const std::int64_t most = std::max(peaks.most(period.begin, end), peaks.most(0, wrapped));
    if (most + period.bytes > static_cast<std::int64_t>(capacity)) {
      out[period.use] = 1;
      continue;
    }
    peaks.add(period.begin, end, period.bytes);
    peaks.add(0, wrapped, period.bytes);
  }
  return out;
}

std::vector<std::uint8_t> worth_cleaning(const Seen& seen, const std::vector<std::uint8_t>& spilled) {
  std::vector<std::uint8_t> worth(spilled.size(), 0), next(seen.trace.tensors.size(), 0);
  for (int round = 0; round < 2; ++round) {  // the second sees over the iteration's end
    std::size_t index = spilled.size();
    for (OpIndex op = static_cast<OpIndex>(seen.schedule.op_count()); op-- > 0;) {
      const auto uses = seen.schedule.uses(op);
      for (std::size_t i = uses.size(); i-- > 0;) {
        --index;
        if (seen.gpu_only && seen.devices[op] == Device::cpu) {
          next[uses[i].tensor] = uses[i].read ? 1 : 0;  // it has to get there
          continue;
        }
        std::uint8_t& after = next[uses[i].tensor];
        worth[index] = spilled[index] != 0 || after != 0 ? 1 : 0;
        after = uses[i].write ? 0 : worth[index];
      }
    }
  }
  return worth;
}

Moved moved_by(const Seen& seen, const std::vector<std::uint8_t>& spilled) {
  const std::vector<std::uint8_t> worth = worth_cleaning(seen, spilled);
  Moved moved;
  std::vector<std::uint8_t> away(seen.trace.tensors.size(), 0);
  for (int round = 0; round < 2; ++round) {
    std::size_t index = 0;
    for (OpIndex op = 0; op < seen.schedule.op_count(); ++op) {
      const bool here = !seen.gpu_only || seen.devices[op] == Device::gpu;
      const bool update = seen.trace.ops[op].phase == Phase::optimizer;
      for (const Use& use : seen.schedule.uses(op)) {
        const Bytes bytes = seen.trace.tensors[use.tensor].bytes;
        if (round == 1 && here && use.read && away[use.tensor] != 0) {
          moved.up += bytes;
          if (update) moved.up_for_updates += bytes;
        }
        if (round == 1 && here && use.write && worth[index] != 0) {
          moved.down += bytes;
          if (update) moved.down_of_updates += bytes;
        }
        if (here || use.write) away[use.tensor] = spilled[index];
        ++index;
      }
    }
  }
  return moved;
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
