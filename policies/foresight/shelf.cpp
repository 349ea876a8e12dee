#include "policies/foresight/shelf.h"

namespace tencache {

void Shelf::reset(std::size_t op_count) {
  op_count_ = op_count;
  entries_.clear();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    heads_[kind].assign(op_count + 1, none);
    ops_[kind] = IndexSet(op_count);
    counts_[kind] = 0;
    totals_[kind] = 0;
  }
  clean_at_ = CyclicSums(std::vector<std::int64_t>(op_count, 0));
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
    const bool last = entry.previous == none && entry.next == none;
    if (last && entry.op != never()) ops_[entry.kind].erase(entry.op);
    add(entry, -1);
  }
  entry.kind = kind;
  if (kind == off) return;
  ChunkId& head = heads_[kind][op];
  if (head == none && op != never()) ops_[kind].insert(op);
  if (head != none) entries_[head].previous = chunk;
  entry = {none, head, op, bytes, kind};
  head = chunk;
  add(entry, 1);
}

void Shelf::add(const Entry& entry, std::int64_t sign) {
  const std::int64_t bytes = sign * static_cast<std::int64_t>(entry.bytes);
  counts_[entry.kind] += static_cast<std::uint32_t>(sign);
  totals_[entry.kind] += static_cast<Bytes>(bytes);
  if ((entry.kind == clean || entry.kind == spare) && entry.op != never()) {
    clean_at_.set(entry.op, clean_at_.at(entry.op) + bytes);
  }
}

// From the op a round ahead, which is `now` itself, down to 0, then from the last down to the one after `now`.
std::uint32_t Shelf::nearer(Kind kind, std::uint32_t op, std::uint32_t now) const {
  const IndexSet& ops = ops_[kind];
  const bool wrapped = op != never() && op > now;
  if (!wrapped) {
    const auto found = ops.before(op == never() ? std::size_t{now} + 1 : op);
    if (found) return static_cast<std::uint32_t>(*found);
  }
  const auto found = ops.before(wrapped ? op : op_count_);
  return found && *found > now ? static_cast<std::uint32_t>(*found) : none;
}

std::uint32_t Shelf::some_nearest(Kind kind, std::uint32_t now) const {
  auto found = ops_[kind].at_or_after(std::size_t{now} + 1);
  if (!found) found = ops_[kind].at_or_after(0);
  return found ? static_cast<std::uint32_t>(*found) : none;
}

Bytes Shelf::clean_beyond(std::uint32_t now, std::uint32_t op, bool whole_round) const {
  const KernelIndex round = op < now || (op == now && whole_round) ? static_cast<KernelIndex>(op_count_) : 0;
  const std::int64_t within = clean_at_.between(KernelIndex{now} + 1, op + 1 + round);
  return totals_[clean] + totals_[spare] - static_cast<Bytes>(within);
}

}  // namespace tencache
