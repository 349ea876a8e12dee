// The order of work on an accelerator, by the bytes that it touches (core/ordering.h): streams are lines, waits between
// them are events, which are recorded when somebody has to wait for them.
//
// A stream's work is announced in this order, for each work:
//
//   order.before(line, accesses);          // the stream waits for what conflicts with them
//   ...                                    // the stream is given the work
//   order.after(line, accesses);           // its ticket: from now on others find it
//
// Between the two other works may be announced, also of the same line: a ticket is given when its work is in the
// stream, so an event that is recorded later is behind it. Who waits for a ticket waits for the first mark behind it. A
// mark is an event with the number of the last ticket before it: it covers whatever the stream was given until it was
// recorded, announced or not. Lines of works whose ends count are marked often (`mark`), so that nobody waits for much
// more than he needs.
//
// Threads of the host have no lines: what they do is over before others hear of it. `before_host` says what one has to
// wait for first.
//
// Nothing is forgotten but what was seen to be over, by `look` or by a thread that waited (`passed`). Calls come from
// one thread at a time (the caller has a lock). Errors: as in device_streams.h.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/ordering.h"
#include "executor/device_streams.h"

namespace tencache {

// Bytes that a work touches: the device's, or the host's where its copies find them. Addresses of both are apart.
struct MemoryAccess {
  const std::byte* begin = nullptr;
  Bytes bytes = 0;
  bool write = false;
};

// An event behind works of a line. The last owner gives it back.
class DeviceMark {
 public:
  DeviceMark(std::shared_ptr<DeviceStreams> streams, Ticket ticket, DeviceEvent event)
      : streams_(std::move(streams)), ticket_(ticket), event_(event) {}
  ~DeviceMark() { streams_->let_go(event_); }
  DeviceMark(const DeviceMark&) = delete;
  DeviceMark& operator=(const DeviceMark&) = delete;

  Ticket ticket() const { return ticket_; }
  DeviceEvent event() const { return event_; }
  // Waits on the calling thread, which needs no lock. Errors: as DeviceStreams::await.
  void await() const;

 private:
  std::shared_ptr<DeviceStreams> streams_;
  Ticket ticket_;  // it is behind this work, and all before it
  DeviceEvent event_;
};
using SharedMark = std::shared_ptr<const DeviceMark>;

class DeviceOrder {
 public:
  explicit DeviceOrder(std::shared_ptr<DeviceStreams> streams);

  DeviceStreams& streams() const { return *streams_; }
  // A line of a stream, which outlives this object; a line of its own for each.
  Line open(DeviceStream stream);
  DeviceStream stream_of(Line line) const { return lines_[line].stream; }

  // `but`: works of these lines need no wait; who has submitted them orders them. Adds what the line was made to wait
  // for to `put`.
  void before(Line line, std::span<const MemoryAccess> accesses, std::span<const Line> but = {},
              std::vector<Ticket>* put = nullptr);
  // The line comes after the ticket's work.
  void follow(Line line, Ticket ticket);
  Ticket after(Line line, std::span<const MemoryAccess> accesses);
  // What a thread of the host waits for before it touches these.
  std::vector<SharedMark> before_host(std::span<const MemoryAccess> accesses);
  // An event behind all that the line was given, if it was given anything since the last one.
  SharedMark mark(Line line);
  // The first mark behind the work; null: it is over.
  SharedMark mark_behind(Ticket ticket);

  // Asks the device how far the line is; true if it got further.
  bool look(Line line);
  void passed(const DeviceMark& mark);
  bool over(Ticket ticket) const { return clocks_.over(ticket); }
  std::size_t lines() const { return lines_.size(); }
  Ticket last(Line line) const { return clocks_.last(line); }

  std::uint64_t waits() const { return waits_; }  // put between streams so far

 private:
  struct LineState {
    DeviceStream stream = nullptr;
    std::deque<SharedMark> marks = {};  // not over as far as is known, ascending
  };

  void collect(Line line, std::span<const MemoryAccess> accesses, std::span<const Line> but);
  void drop_passed(Line line);

  std::shared_ptr<DeviceStreams> streams_;
  RegionTickets bytes_;
  LineClocks clocks_;
  Line host_;                     // of all threads of the host: it is given no work
  std::vector<LineState> lines_;  // by line
  Waits found_, needed_;          // memory for `before`
  std::uint64_t waits_ = 0;
};

}  // namespace tencache
