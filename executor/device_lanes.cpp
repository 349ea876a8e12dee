#include "executor/device_lanes.h"

#include <algorithm>

#include "core/check.h"
#include "core/error.h"
#include "core/metrics.h"
#include "core/timeline.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

// Of ops between two marks on a stream of the program, unless each is observed: who waits for one of them waits for
// little more, and an op costs no call of the driver. Durations that are not known count as none.
constexpr std::uint32_t most_between_marks = 16;
constexpr Nanoseconds longest_between_marks = 50'000;

}  // namespace

bool DeviceLanes::is_stream(const MachineSpec& spec, const Link& link) {
  const TierKind from = spec.tiers[link.from].kind, to = spec.tiers[link.to].kind;
  return (from == TierKind::gpu && to == TierKind::cpu) || (from == TierKind::cpu && to == TierKind::gpu);
}

DeviceLanes::DeviceLanes(const MachineSpec& spec, Accelerator& accelerator, WorkLanes& lanes, OpOver op_over)
    : spec_(spec),
      lanes_(lanes),
      op_over_(std::move(op_over)),
      streams_(accelerator.streams()),
      order_(streams_),
      links_(spec.links.size()) {
  TENCACHE_CHECK(spec.run_ahead.ops > 0);
  const MutexLock lock(mutex_);
  for (LinkId id = 0; id < links_.size(); ++id) {
    StreamLink& link = links_[id];
    link.stream = is_stream(spec, spec.links[id]);
    if (!link.stream) continue;
    open_own(link, first_link_lane + id);
    link.bytes_at_once = static_cast<Bytes>(
        (static_cast<uint128>(spec.links[id].bandwidth) * static_cast<uint128>(spec.run_ahead.copies_ns) + second_ns -
         1) /
        second_ns);
  }
  open_own(moves_, gpu_lane);
}

void DeviceLanes::open_own(LineState& line, std::size_t lane) {
  line.own = std::make_unique<OwnStream>(streams_);
  open(line, lane, line.own->get());
}

void DeviceLanes::open(LineState& line, std::size_t lane, DeviceStream stream) {
  line.copies = streams_->copies_on(stream);
  line.line = order_.open(stream);
  line.lane = static_cast<std::uint8_t>(lane);
  lane_of_.resize(line.line + std::size_t{1});
  lane_of_[line.line] = line.lane;
}

DeviceLanes::~DeviceLanes() {
  const MutexLock lock(mutex_);
  const auto await = [this](DeviceStream stream) {
    try {
      TENCACHE_ORDER_SITE("wait", streams_->await_stream(stream));
    } catch (...) {  // said before, or nothing runs any more
    }
  };
  // Who does not have its ops observed has waited for them.
  for (const ProgramStream& program : programs_) {
    if (op_over_) await(program.stream);
  }
  for (const StreamLink& link : links_) {
    if (link.own != nullptr) await(link.own->get());
  }
  await(moves_.own->get());
}

// ---- Failures -------------------------------------------------------------------------------------------------------

void DeviceLanes::check_device() const {
  if (!failure_.empty()) throw Error(failure_);
}

void DeviceLanes::lose(const std::string& reason) {
  if (!failure_.empty()) return;
  failure_ = "the GPU failed at something that it was given before, and cannot go on: " + reason;
}

std::string DeviceLanes::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

// ---- Copies and moves -----------------------------------------------------------------------------------------------

Fence DeviceLanes::submit(LinkId id, CopyWork copy, Tag tag, std::string fails) {
  const Fence fence = lanes_.expect();
  const MutexLock lock(mutex_);
  const bool was_busy = busy_now();
  StreamLink& link = links_[id];
  TENCACHE_CHECK(link.stream);
  link.offered.push_back({fence, tag, std::move(copy), std::move(fails)});
  hand_over(link);
  if (!was_busy) lanes_.nudge();
  return fence;
}

bool DeviceLanes::cancel(Fence fence) {
  const MutexLock lock(mutex_);
  for (StreamLink& link : links_) {
    const auto offer = std::ranges::find(link.offered, fence, &Offer::fence);
    if (offer == link.offered.end()) continue;
    lanes_.post({.fence = fence, .tag = offer->tag, .status = CompletionStatus::cancelled, .start_ns = lanes_.now()});
    link.offered.erase(offer);
    return true;
  }
  return false;
}

void DeviceLanes::hand_over(StreamLink& link) {
  while (!link.offered.empty() && (link.works.size() < spec_.run_ahead.copies || link.bytes < link.bytes_at_once)) {
    const Offer offer = std::move(link.offered.front());
    link.offered.pop_front();
    Completion completion{.fence = offer.fence, .tag = offer.tag, .start_ns = lanes_.now()};
    try {
      if (!offer.fails.empty()) throw Error(offer.fails);
      hand_over(link, offer);
      lanes_.post(completion);
    } catch (const std::exception& error) {
      completion.status = CompletionStatus::failed;
      lanes_.post(completion, error.what());
    }
  }
}

void DeviceLanes::hand_over(StreamLink& link, const Offer& offer) {
  check_device();
  const CopyWork& copy = offer.copy;
  const bool up = copy.kind == CopyWork::Kind::upload;
  TENCACHE_CHECK(up || copy.kind == CopyWork::Kind::download);
  std::byte* const device = up ? copy.to : const_cast<std::byte*>(copy.from);  // both only read then
  accesses_.assign(1, {device, copy.bytes, up});
  pieces_.clear();
  Bytes position = 0;
  for (const HostPiece& piece : copy.pieces) {
    accesses_.push_back({piece.address, piece.bytes, !up});
    pieces_.push_back({device + position, piece.address, piece.bytes});
    position += piece.bytes;
  }
  TENCACHE_CHECK(position == copy.bytes);
  Work work{.fence = offer.fence, .tag = offer.tag, .bytes = copy.bytes, .given_ns = lanes_.now()};
  // If this fails nothing was started, and others' works on the bytes stay known: the stream does not come after all.
  TENCACHE_ORDER_SITE("wait", order_.before(link.line, accesses_, {}, &work.waits));
  try {
    up ? link.copies->upload(pieces_) : link.copies->download(pieces_);
    work.number = TENCACHE_ORDER_SITE("table", order_.after(link.line, accesses_)).number;
    order_.mark(link.line);
  } catch (...) {  // some of it may have been started
    // Equivalent: in random replays, whose copies are one call each (device_lanes_test has others).
    TENCACHE_ORDER_SITE("table", order_.after(link.line, accesses_));
    throw;
  }
  link.bytes += work.bytes;
  link.works.push_back(std::move(work));
}

void DeviceLanes::move(const std::byte* from, std::byte* to, Bytes bytes, LinkId link) {
  const MutexLock lock(mutex_);
  check_device();
  LineState* line = &moves_;
  if (link == no_link) {
    // Works of the program's streams do not wait for each other; for moves they do.
    if (programs_.size() == 1) line = &programs_.front();
  } else if (links_[link].stream) {
    line = &links_[link];
  }
  const MemoryAccess accesses[] = {{from, bytes, false}, {to, bytes, true}};
  TENCACHE_ORDER_SITE("wait", order_.before(line->line, accesses));
  line->copies->move(from, to, bytes);
  const Ticket moved = TENCACHE_ORDER_SITE("table", order_.after(line->line, accesses));
  order_.mark(line->line);  // who waits for it waits for none of the ops behind it
  if (op_over_ && line != &moves_ && link == no_link) moved_ = moved;
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

DeviceLanes::ProgramStream& DeviceLanes::program_stream(DeviceStream stream) {
  const auto found = std::ranges::find(programs_, stream, &ProgramStream::stream);
  if (found != programs_.end()) return *found;
  ProgramStream& added = programs_.emplace_back();
  added.stream = stream;
  open(added, gpu_lane, stream);
  // Moves may be on the first one, and its own works need no wait (`own`).
  if (programs_.size() == 2) {
    const Line first = programs_.front().line;
    // Equivalent: in nearly all random programs (device_lanes_test has one where it is not).
    TENCACHE_ORDER_SITE("wait", order_.follow(added.line, order_.last(first)));
  }
  program_lines_.push_back(added.line);
  return added;
}

void DeviceLanes::use_stream(DeviceStream stream) {
  const MutexLock lock(mutex_);
  program_stream(stream);
}

std::size_t DeviceLanes::before_op(DeviceStream stream, std::span<const MemoryAccess> accesses, bool own) {
  const MutexLock lock(mutex_);
  check_device();
  ProgramStream& program = program_stream(stream);
  waits_.clear();
  const std::span<const Line> but = own ? std::span<const Line>(program_lines_) : std::span<const Line>();
  TENCACHE_ORDER_SITE("wait", order_.before(program.line, accesses, but, &waits_));
  return waits_.size();
}

void DeviceLanes::after_op(DeviceStream stream, std::span<const MemoryAccess> accesses, const Op& op) {
  const MutexLock lock(mutex_);
  ProgramStream& program = program_stream(stream);
  const bool was_busy = busy_now();
  Work work{.number = TENCACHE_ORDER_SITE("table", order_.after(program.line, accesses)).number,
            .fence = op.fence,
            .tag = op.tag,
            .op = op.op,
            .duration_ns = op.duration_ns,
            .given_ns = lanes_.now()};
  if (op_over_) {
    work.waits = std::exchange(waits_, {});
    if (moved_) work.waits.push_back(*std::exchange(moved_, std::nullopt));
  }
  program.works.push_back(std::move(work));
  ++launched_;
  launched_ns_ += op.duration_ns;
  ++program.since_mark;
  program.since_mark_ns += op.duration_ns;
  if (op_over_ || program.since_mark >= most_between_marks || program.since_mark_ns >= longest_between_marks) {
    order_.mark(program.line);
    program.since_mark = 0;
    program.since_mark_ns = 0;
  }
  if (op_over_ && !was_busy) lanes_.nudge();
}

void DeviceLanes::after_use(DeviceStream stream, std::span<const MemoryAccess> accesses) {
  const MutexLock lock(mutex_);
  order_.after(program_stream(stream).line, accesses);
}

// The last stream comes after the others, so that its ticket says all.
void DeviceLanes::after_any_use(std::span<const MemoryAccess> accesses) {
  const MutexLock lock(mutex_);
  if (programs_.empty()) return;
  const Line last = programs_.back().line;
  for (const ProgramStream& program : programs_) {
    if (program.line == last) continue;
    order_.after(program.line, {});  // behind all that it was given so far
    TENCACHE_ORDER_SITE("wait", order_.follow(last, order_.last(program.line)));
  }
  TENCACHE_ORDER_SITE("table", order_.after(last, accesses));
}

bool DeviceLanes::window_open() const {
  if (launched_ >= spec_.run_ahead.ops) return false;
  if (std::ranges::all_of(links_, [](const StreamLink& link) { return link.works.empty(); })) return true;
  Nanoseconds behind_ns = launched_ns_;
  for (const ProgramStream& program : programs_) {
    if (!program.works.empty()) behind_ns -= program.works.front().duration_ns;
  }
  return behind_ns < spec_.run_ahead.time_ns;
}

Nanoseconds DeviceLanes::await_window() {
  MutexLock lock(mutex_);
  check_device();
  Nanoseconds since_ns = -1;
  while (TENCACHE_ORDER_SITE("guard", !window_open())) {
    if (since_ns < 0) since_ns = lanes_.now();
    if (observe_ops()) continue;
    const auto first = std::ranges::find_if(programs_, [](const ProgramStream& one) { return !one.works.empty(); });
    const SharedMark mark = order_.mark_behind({first->line, first->works.front().number});
    lock.unlock();
    await({&mark, 1});
    lock.lock();
  }
  return since_ns < 0 ? 0 : lanes_.now() - since_ns;
}

// ---- Threads of the host --------------------------------------------------------------------------------------------

std::vector<SharedMark> DeviceLanes::before_host(std::span<const MemoryAccess> accesses) {
  const MutexLock lock(mutex_);
  check_device();
  return order_.before_host(accesses);
}

void DeviceLanes::await(std::span<const SharedMark> marks) {
  for (const SharedMark& mark : marks) {
    std::string failed;
    try {
      mark->await();
    } catch (const Error& error) {
      failed = error.what();
    }
    const MutexLock lock(mutex_);
    if (failed.empty()) {
      order_.passed(*mark);
    } else {
      lose(failed);
    }
    check_device();
  }
}

void DeviceLanes::await_all() {
  std::vector<SharedMark> marks;
  {
    const MutexLock lock(mutex_);
    check_device();
    for (Line line = 1; line < order_.lines(); ++line) {
      const Ticket last = order_.last(line);
      if (const SharedMark mark = order_.mark_behind(last)) marks.push_back(mark);
    }
  }
  await(marks);
}

// ---- Observation ----------------------------------------------------------------------------------------------------

bool DeviceLanes::observe(LineState& line, const std::function<void(const Work&)>& ended) {
  if (line.works.empty()) return false;
  order_.look(line.line);
  const Nanoseconds now = lanes_.now();
  bool any = false;
  while (!line.works.empty()) {
    Work& work = line.works.front();
    std::erase_if(work.waits, [&](Ticket ticket) TENCACHE_REQUIRES(mutex_) {
      if (!order_.over(ticket)) return false;
      work.waited_for = lane_of_[ticket.line];
      work.waited_until_ns = std::max(work.given_ns, now);
      return true;
    });
    if (TENCACHE_ORDER_SITE("guard", !order_.over({line.line, work.number}))) break;
    Work over = std::move(work);
    line.works.pop_front();
    // Seen at one look, the wait was over before the op ran.
    if (over.waited_until_ns == now) {
      over.waited_until_ns = std::max(over.given_ns, now - over.duration_ns);
    }
    ended(over);
    if (over.fence != 0) {
      lanes_.post({.fence = over.fence,
                   .tag = over.tag,
                   .status = CompletionStatus::observed,
                   .start_ns = std::max({over.given_ns, line.last_end_ns, over.waited_until_ns}),
                   .waited_for = over.waited_for,
                   .waited_until_ns = over.waited_until_ns});
    }
    line.last_end_ns = now;
    any = true;
  }
  return any;
}

bool DeviceLanes::observe_links() {
  bool any = false;
  for (StreamLink& link : links_) {
    any |= observe(link, [&link](const Work& over) { link.bytes -= over.bytes; });
  }
  return any;
}

bool DeviceLanes::observe_ops() {
  bool any = false;
  for (ProgramStream& program : programs_) {
    any |= observe(program, [this](const Work& over) TENCACHE_REQUIRES(mutex_) {
      --launched_;
      launched_ns_ -= over.duration_ns;
      if (op_over_) op_over_(over.op);
    });
  }
  return any;
}

bool DeviceLanes::poll() {
  const MutexLock lock(mutex_);
  if (!failure_.empty()) return false;
  bool any = false;
  try {
    any |= observe_links();
    if (op_over_) any |= observe_ops();
    for (StreamLink& link : links_) {
      const std::size_t before = link.offered.size();
      hand_over(link);
      any |= link.offered.size() != before;
    }
  } catch (const Error& error) {
    lose(error.what());
    any = true;
  }
  return any;
}

bool DeviceLanes::busy() const {
  const MutexLock lock(mutex_);
  return busy_now();
}

bool DeviceLanes::busy_now() const {
  const auto waits = [](const StreamLink& link) { return !link.works.empty() || !link.offered.empty(); };
  const auto runs = [](const ProgramStream& program) { return !program.works.empty(); };
  return failure_.empty() && (std::ranges::any_of(links_, waits) || (op_over_ && std::ranges::any_of(programs_, runs)));
}

void DeviceLanes::await_next() {
  SharedMark mark;
  {
    const MutexLock lock(mutex_);
    if (!failure_.empty()) return;
    const LineState* line = nullptr;
    for (const StreamLink& link : links_) {
      if (!link.works.empty() && (line == nullptr || !link.offered.empty())) line = &link;
    }
    for (const ProgramStream& program : programs_) {
      if (op_over_ && line == nullptr && !program.works.empty()) line = &program;
    }
    if (line == nullptr) return;
    mark = order_.mark_behind({line->line, line->works.front().number});
  }
  if (mark != nullptr) await({&mark, 1});
}

std::uint64_t DeviceLanes::waits() const {
  const MutexLock lock(mutex_);
  return order_.waits();
}

}  // namespace tencache
