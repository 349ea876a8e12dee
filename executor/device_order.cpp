#include "executor/device_order.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

ByteRange extent_of(const MemoryAccess& access) {
  return {reinterpret_cast<std::uint64_t>(access.begin), access.bytes};
}

}  // namespace

DeviceOrder::DeviceOrder(std::shared_ptr<DeviceStreams> streams)
    : streams_(std::move(streams)), host_(clocks_.open()), lines_(1) {}

Line DeviceOrder::open(DeviceStream stream) {
  const Line line = clocks_.open();
  lines_.push_back({stream});
  return line;
}

void DeviceOrder::collect(Line line, std::span<const MemoryAccess> accesses, std::span<const Line> but) {
  found_.clear();
  for (const MemoryAccess& access : accesses) bytes_.before(extent_of(access), access.write, line, found_);
  needed_.clear();
  for (const Ticket ticket : found_) {
    if (std::ranges::find(but, ticket.line) == but.end()) needed_.add(ticket);
  }
  clocks_.reduce(line, needed_);  // after that: what only those imply that nobody waits for has to be waited for
}

void DeviceOrder::before(Line line, std::span<const MemoryAccess> accesses, std::span<const Line> but,
                         std::vector<Ticket>* put) {
  collect(line, accesses, but);
  for (const Ticket ticket : needed_) {
    if (clocks_.implied(line, ticket)) continue;
    follow(line, ticket);
    if (put != nullptr) put->push_back(ticket);
  }
}

void DeviceOrder::follow(Line line, Ticket ticket) {
  if (clocks_.implied(line, ticket)) return;
  const SharedMark mark = mark_behind(ticket);
  TENCACHE_ORDER_SITE("wait", streams_->wait(lines_[line].stream, mark->event()));
  clocks_.waited(line, mark->ticket());
  ++waits_;
}

Ticket DeviceOrder::after(Line line, std::span<const MemoryAccess> accesses) {
  const Ticket ticket = clocks_.next(line);
  for (const MemoryAccess& access : accesses) {
    TENCACHE_ORDER_SITE("table", bytes_.after(extent_of(access), access.write, ticket));
  }
  bytes_.forget(clocks_);
  return ticket;
}

std::vector<SharedMark> DeviceOrder::before_host(std::span<const MemoryAccess> accesses) {
  collect(host_, accesses, {});
  std::vector<SharedMark> marks;
  for (const Ticket ticket : needed_) marks.push_back(mark_behind(ticket));
  return marks;
}

SharedMark DeviceOrder::mark(Line line) {
  LineState& state = lines_[line];
  const Ticket last = clocks_.last(line);
  if (!state.marks.empty() && state.marks.back()->ticket() == last) return state.marks.back();
  state.marks.push_back(
      std::make_shared<const DeviceMark>(streams_, last, TENCACHE_ORDER_SITE("event", streams_->record(state.stream))));
  return state.marks.back();
}

SharedMark DeviceOrder::mark_behind(Ticket ticket) {
  if (clocks_.over(ticket)) return nullptr;
  const std::deque<SharedMark>& marks = lines_[ticket.line].marks;
  const auto found =
      std::ranges::lower_bound(marks, ticket.number, {}, [](const SharedMark& mark) { return mark->ticket().number; });
  return found != marks.end() ? *found : mark(ticket.line);
}

// Few questions, as each costs the driver's lock: the first mark, and if that is over, the rest by halves.
bool DeviceOrder::look(Line line) {
  std::deque<SharedMark>& marks = lines_[line].marks;
  bool further = false;
  for (std::size_t asked = 0, end = marks.size(); asked < end; asked = further ? end / 2 : end) {
    if (!streams_->over(marks[asked]->event())) {
      end = asked;
      continue;
    }
    further = true;
    end -= asked + 1;
    const SharedMark mark = marks[asked];
    passed(*mark);
  }
  return further;
}

void DeviceMark::await() const { TENCACHE_ORDER_SITE("wait", streams_->await(event_)); }

void DeviceOrder::passed(const DeviceMark& mark) {
  clocks_.passed(mark.ticket());
  for (Line line = 0; line < lines_.size(); ++line) drop_passed(line);
}

void DeviceOrder::drop_passed(Line line) {
  std::deque<SharedMark>& marks = lines_[line].marks;
  while (!marks.empty() && clocks_.over(marks.front()->ticket())) marks.pop_front();
}

}  // namespace tencache
