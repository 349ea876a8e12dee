// The order that work on memory needs where a machine's completions promise order instead of being over (Completes,
// core/machine.h). The simulator uses it (sim/ordered_machine.h).
//
// A *line* is a stream of a device or a thread of the host: its works run one after the other, and lines run beside
// each other. A *ticket* names a work: the n-th of its line. Waiting for a ticket is waiting for all that its line was
// given up to there. What a work waits for is found in two steps: RegionTickets lists the accesses to the same bytes
// that conflict with its own, LineClocks leaves those that its line is not behind already. For each work, in order of
// submission:
//
//   waits.clear();
//   for each access: regions.before(extent, write, line, waits);
//   clocks.reduce(line, waits);
//   for (const Ticket ticket : waits) { make the line wait for the ticket; clocks.waited(line, ticket); }
//   const Ticket mine = clocks.next(line);
//   for each access: regions.after(extent, write, mine);
//
// If every work that touches a byte is announced like this, no order is missing, and each wait is one that nothing else
// implies (tests/differential/ordering_seeds.cpp). As a wait names a work that was submitted before, waits never form a
// circle. Order between host threads that share a mutex is not seen here; it costs a wait too many and never one too
// few.
//
// Neither a clock nor threads: calls come from one thread at a time, the caller has the lock. Nothing throws but for
// want of memory; a ticket that was never given out is a bug (TENCACHE_CHECK). When the sets of lines and extents do
// not grow any more, nothing is allocated.
//
// Source: happens-before of L. Lamport, "Time, clocks, and the ordering of events in a distributed system" (1978), with
// the vector clocks of F. Mattern, "Virtual time and global states of distributed systems" (1989).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/units.h"

namespace tencache {

using Line = std::uint16_t;

// Works of a line are numbered from 1; number 0 is before all of them.
struct Ticket {
  Line line = 0;
  std::uint64_t number = 0;
  bool operator==(const Ticket&) const = default;
};

// Bytes of one tier, [begin, begin + bytes).
struct ByteRange {
  std::uint64_t begin = 0;
  Bytes bytes = 0;
  std::uint64_t end() const { return begin + bytes; }
};

// What a work has to wait for: of each line the latest ticket, in the order in which lines were first added.
class Waits {
 public:
  void clear() { tickets_.clear(); }
  void add(Ticket ticket) {
    if (ticket.number == 0) return;
    for (Ticket& known : tickets_) {
      if (known.line != ticket.line) continue;
      if (known.number < ticket.number) known.number = ticket.number;
      return;
    }
    tickets_.push_back(ticket);
  }
  bool empty() const { return tickets_.empty(); }
  std::size_t size() const { return tickets_.size(); }
  auto begin() const { return tickets_.begin(); }
  auto end() const { return tickets_.end(); }

 private:
  friend class LineClocks;
  std::vector<Ticket> tickets_;
};

// What each line is behind of: for every other line the last work that is over before the line's next one begins.
// Knowledge is passed on: who waits for a work is behind everything that the work was behind.
class LineClocks {
 public:
  // A new line; they are numbered from 0 and never closed. At most 65,536.
  Line open();
  std::size_t size() const { return lines_.size(); }

  // The line is given its next work.
  Ticket next(Line line) { return {line, ++lines_[line].last}; }
  // The last work that it was given: what somebody waits for who cannot name the works (a kernel that nobody
  // announced).
  Ticket last(Line line) const { return {line, lines_[line].last}; }

  // The ticket's work is over before the line's next one begins, without another wait.
  bool implied(Line line, Ticket ticket) const { return ticket.line == line || over(ticket) || knows(line, ticket); }
  // Leaves those that neither the line is behind of nor another one of them is.
  void reduce(Line line, Waits& waits) const;
  // The line's next work, and those after it, wait for the ticket.
  void waited(Line line, Ticket ticket);

  // Somebody saw that the ticket's work is over, and so is what it was behind of. Nobody waits for that any more.
  void passed(Ticket ticket);
  bool over(Ticket ticket) const { return over_[ticket.line] >= ticket.number; }

 private:
  using Clock = std::vector<std::uint64_t>;  // by line: the last work that is known to be over
  // From that work on the line knows this much.
  struct Change {
    std::uint64_t from = 0;
    Clock clock;
  };
  struct LineState {
    std::uint64_t last = 0;
    std::vector<Change> changes;  // by `from`, ascending; from `used` on they are spare
    std::size_t used = 0;

    std::span<const Change> known() const { return {changes.data(), used}; }
  };

  bool knows(Line line, Ticket ticket) const {
    const LineState& state = lines_[line];
    return state.used > 0 && state.changes[state.used - 1].clock[ticket.line] >= ticket.number;
  }
  const Clock* clock_at(Ticket ticket) const;
  Clock& change_next(Line line);

  std::vector<LineState> lines_;
  Clock over_;
};

// The accesses to one tier's bytes that later ones may have to wait for: of each byte the last write and, of each line,
// the last read since. They belong to bytes, not to tensors, so freeing memory needs no call: its next owner finds the
// tickets.
class RegionTickets {
 public:
  // Adds the tickets that an access must come after: a read the last write (RAW), a write that write (WAW) and the
  // reads since (WAR). Those of `line` itself are left out.
  void before(ByteRange extent, bool write, Line line, Waits& waits) const;
  // That work accesses the extent; it waits for what `before` said, or is behind it already.
  void after(ByteRange extent, bool write, Ticket ticket);
  // Drops accesses that are over and joins neighbours that have the same left. To be called now and then: does nothing
  // until there are twice as many pieces as it left the last time.
  void forget(const LineClocks& clocks);
  // Ranges of bytes that are told apart.
  std::size_t pieces() const { return pieces_.size(); }

 private:
  struct Piece {
    std::uint64_t end = 0;
    Ticket write;               // number 0: none
    std::vector<Ticket> reads;  // one a line
  };
  using Pieces = std::map<std::uint64_t, Piece>;  // by begin; no two overlap

  Pieces::const_iterator first_reaching(std::uint64_t begin) const;
  Pieces::iterator add(Pieces::iterator next, std::uint64_t begin, std::uint64_t end);
  Pieces::iterator retire(Pieces::iterator piece);
  void split(std::uint64_t at);

  static constexpr std::size_t fewest_to_forget = 16;

  Pieces pieces_;
  std::vector<Pieces::node_type> spare_;
  std::size_t forget_at_ = fewest_to_forget;
};

}  // namespace tencache
