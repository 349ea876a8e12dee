#include "core/ordering.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "core/check.h"

namespace tencache {

// ---- LineClocks -----------------------------------------------------------------------------------------------------

Line LineClocks::open() {
  TENCACHE_CHECK(lines_.size() <= std::numeric_limits<Line>::max());
  const auto line = static_cast<Line>(lines_.size());
  lines_.emplace_back();
  over_.push_back(0);
  for (LineState& state : lines_) {
    for (Change& change : state.changes) change.clock.resize(lines_.size(), 0);
  }
  return line;
}

// What the work was behind of; null: of nothing. Of works that are over it may be older knowledge.
const LineClocks::Clock* LineClocks::clock_at(Ticket ticket) const {
  const auto known = lines_[ticket.line].known();
  const auto after = std::ranges::upper_bound(known, ticket.number, {}, &Change::from);
  return after == known.begin() ? nullptr : &std::prev(after)->clock;
}

void LineClocks::reduce(Line line, Waits& waits) const {
  std::vector<Ticket>& tickets = waits.tickets_;
  std::erase_if(tickets, [&](Ticket ticket) { return implied(line, ticket); });
  if (tickets.size() < 2) return;
  // Two never imply each other, so what implies one stays or is implied by one that stays.
  for (std::size_t i = 0; i < tickets.size();) {
    const bool implied_by_other = std::ranges::any_of(tickets, [&](Ticket other) {
      const Clock* const clock = other.line == tickets[i].line ? nullptr : clock_at(other);
      return clock != nullptr && (*clock)[tickets[i].line] >= tickets[i].number;
    });
    if (implied_by_other) {
      tickets.erase(tickets.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// What the line knows from its next work on, to be changed.
LineClocks::Clock& LineClocks::change_next(Line line) {
  LineState& state = lines_[line];
  const std::uint64_t from = state.last + 1;
  if (state.used > 0 && state.changes[state.used - 1].from == from) return state.changes[state.used - 1].clock;
  if (state.used == state.changes.size()) {
    // Nobody waits any more for works that are over: only the last change up to the first one that is not counts.
    const auto known = state.known();
    const auto after = std::ranges::upper_bound(known, over_[line] + 1, {}, &Change::from);
    const auto outdated = std::max<std::ptrdiff_t>(0, after - known.begin() - 1);
    std::rotate(state.changes.begin(), state.changes.begin() + outdated, state.changes.end());
    state.used -= static_cast<std::size_t>(outdated);
    if (2 * state.used >= state.changes.size()) state.changes.resize(std::max<std::size_t>(8, 2 * state.used));
  }
  Change& change = state.changes[state.used];
  change.from = from;
  if (state.used > 0) {
    change.clock = state.changes[state.used - 1].clock;
  } else {
    change.clock.assign(lines_.size(), 0);
  }
  ++state.used;
  return change.clock;
}

void LineClocks::waited(Line line, Ticket ticket) {
  TENCACHE_CHECK(ticket.number <= lines_[ticket.line].last);
  if (implied(line, ticket)) return;
  Clock& mine = change_next(line);
  mine[ticket.line] = ticket.number;
  const Clock* const theirs = clock_at(ticket);
  if (theirs == nullptr) return;
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = std::max(mine[i], (*theirs)[i]);
}

void LineClocks::passed(Ticket ticket) {
  TENCACHE_CHECK(ticket.number <= lines_[ticket.line].last);
  if (over(ticket)) return;
  over_[ticket.line] = ticket.number;
  const Clock* const known = clock_at(ticket);
  if (known == nullptr) return;
  for (std::size_t i = 0; i < over_.size(); ++i) over_[i] = std::max(over_[i], (*known)[i]);
}

// ---- RegionTickets --------------------------------------------------------------------------------------------------

// The first piece that ends behind there.
RegionTickets::Pieces::const_iterator RegionTickets::first_reaching(std::uint64_t begin) const {
  const auto next = pieces_.upper_bound(begin);
  if (next == pieces_.begin()) return next;
  const auto piece = std::prev(next);
  return piece->second.end > begin ? piece : next;
}

void RegionTickets::before(ByteRange extent, bool write, Line line, Waits& waits) const {
  if (extent.bytes == 0) return;
  const auto add = [&](Ticket ticket) {
    if (ticket.line != line) waits.add(ticket);
  };
  for (auto piece = first_reaching(extent.begin); piece != pieces_.end() && piece->first < extent.end(); ++piece) {
    add(piece->second.write);
    if (!write) continue;
    for (const Ticket read : piece->second.reads) add(read);
  }
}

// An empty piece in a gap in front of `next`.
RegionTickets::Pieces::iterator RegionTickets::add(Pieces::iterator next, std::uint64_t begin, std::uint64_t end) {
  if (spare_.empty()) return pieces_.emplace_hint(next, begin, Piece{end, {}, {}});
  Pieces::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = begin;
  node.mapped().end = end;
  node.mapped().write = {};
  node.mapped().reads.clear();
  return pieces_.insert(next, std::move(node));
}

// Takes it out and keeps its memory. Returns the next one.
RegionTickets::Pieces::iterator RegionTickets::retire(Pieces::iterator piece) {
  const auto next = std::next(piece);
  spare_.push_back(pieces_.extract(piece));
  return next;
}

// Afterwards no piece reaches across.
void RegionTickets::split(std::uint64_t at) {
  const auto next = pieces_.lower_bound(at);
  if (next == pieces_.begin()) return;
  const auto piece = std::prev(next);
  if (piece->second.end <= at) return;
  const auto rest = add(next, at, piece->second.end);
  piece->second.end = at;
  rest->second.write = piece->second.write;
  rest->second.reads = piece->second.reads;
}

void RegionTickets::after(ByteRange extent, bool write, Ticket ticket) {
  if (extent.bytes == 0) return;
  auto piece = pieces_.lower_bound(extent.begin);
  if (piece == pieces_.end() || piece->first != extent.begin || piece->second.end != extent.end()) {
    split(extent.begin);
    split(extent.end());
    piece = pieces_.lower_bound(extent.begin);
  }
  if (write) {  // one piece, whatever it was
    if (piece == pieces_.end() || piece->first != extent.begin) piece = add(piece, extent.begin, extent.end());
    piece->second.end = extent.end();
    piece->second.write = ticket;
    piece->second.reads.clear();
    for (auto other = std::next(piece); other != pieces_.end() && other->first < extent.end();) other = retire(other);
    return;
  }
  for (std::uint64_t at = extent.begin; at < extent.end(); ++piece) {
    const std::uint64_t next = piece == pieces_.end() ? extent.end() : std::min(extent.end(), piece->first);
    if (at < next) piece = add(piece, at, next);
    std::vector<Ticket>& reads = piece->second.reads;
    const auto same = std::ranges::find(reads, ticket.line, &Ticket::line);
    if (same == reads.end()) {
      reads.push_back(ticket);
    } else {
      same->number = std::max(same->number, ticket.number);
    }
    at = piece->second.end;
  }
}

void RegionTickets::forget(const LineClocks& clocks) {
  if (pieces_.size() < forget_at_) return;
  const auto over = [&](Ticket ticket) { return clocks.over(ticket); };
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    Piece& at = piece->second;
    if (over(at.write)) at.write = {};
    std::erase_if(at.reads, over);
    if (at.write.number == 0 && at.reads.empty()) {
      piece = retire(piece);
      continue;
    }
    if (piece != pieces_.begin()) {
      Piece& left = std::prev(piece)->second;
      if (left.end == piece->first && left.write == at.write && left.reads == at.reads) {
        left.end = at.end;
        piece = retire(piece);
        continue;
      }
    }
    ++piece;
  }
  forget_at_ = std::max(fewest_to_forget, 2 * pieces_.size());
}

}  // namespace tencache
