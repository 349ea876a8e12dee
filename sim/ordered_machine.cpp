#include "sim/ordered_machine.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/state_hash.h"

namespace tencache {
namespace {

// Tags of the machine below: the line, or this.
constexpr Tag host_tag = ~Tag{0};

Line line_of(LinkId link) { return static_cast<Line>(lane_count + link); }

bool is_stream(const MachineSpec& spec, const Link& link) {
  const TierKind from = spec.tiers[link.from].kind, to = spec.tiers[link.to].kind;
  return (from == TierKind::gpu && to == TierKind::cpu) || (from == TierKind::cpu && to == TierKind::gpu);
}

}  // namespace

OrderedMachine::OrderedMachine(SimMachine& below, const MachineSpec& spec)
    : below_(below), spec_(spec), regions_(spec.tiers.size() + 1), lines_(lane_count + spec.links.size()) {
  TENCACHE_CHECK(spec.run_ahead.ops > 0);
  for (std::size_t line = 0; line < lines_.size(); ++line) {
    clocks_.open();
    LineState& state = lines_[line];
    state.link = line >= lane_count;
    state.stream = line == gpu_lane || line == communication_lane;
    if (!state.link) continue;
    const Link& link = spec.links[line - lane_count];
    state.stream = is_stream(spec, link);
    state.bytes_at_once = static_cast<Bytes>(
        (static_cast<uint128>(link.bandwidth) * static_cast<uint128>(spec.run_ahead.copies_ns) + second_ns - 1) /
        second_ns);
  }
}

// ---- What the engine asks for ---------------------------------------------------------------------------------------

Fence OrderedMachine::submit(const CopyCommand& copy, Tag tag) {
  const Fence fence = ++last_fence_;
  ++uncharged_;
  LineState& line = lines_[line_of(copy.link)];
  if (line.stream) {
    line.offered.push_back({fence, tag, copy});
  } else {
    give_ticket(line_of(copy.link), {.fence = fence, .tag = tag, .copy = copy}, accesses_of(copy));
  }
  go_on();
  return fence;
}

Fence OrderedMachine::execute(const OpCommand& op, Tag tag) {
  const Fence fence = ++last_fence_;
  std::vector<Access> accesses = accesses_of(op);
  OpCommand kept = op;
  kept.uses = {};
  if (op.lane == cpu_lane) {
    give_ticket(op.lane, {.fence = fence, .tag = tag, .op = kept}, accesses);
  } else {
    host_.push_back({fence, tag, kept, std::move(accesses)});
  }
  go_on();
  return fence;
}

void OrderedMachine::cancel(Fence fence) {
  for (LineState& line : lines_) {
    const auto offer = std::ranges::find(line.offered, fence, &Offer::fence);
    if (offer != line.offered.end()) {
      withdrawn_.push_back({fence, offer->tag, CompletionStatus::cancelled, now(), now()});
      line.offered.erase(offer);
      return;
    }
    for (Work& work : line.works) {
      if (work.fence != fence || work.ordered || work.cancelled) continue;
      work.cancelled = true;
      if (work.below != 0) below_.cancel(work.below);
    }
  }
}

Nanoseconds OrderedMachine::move(const MoveCommand& move) {
  ++uncharged_;
  const Line line = move.link == no_link ? Line{gpu_lane} : line_of(move.link);
  ++lines_[line].moves;
  give_ticket(line, {.fence = ++last_fence_, .ordered = true, .move = move}, accesses_of(move));
  go_on();
  return below_.time_of(move);
}

bool OrderedMachine::wait(Completion& completion) {
  while (!next(completion)) {
    Completion below;
    if (!below_.wait(below)) return false;
    take(below);
  }
  return true;
}

bool OrderedMachine::next(Completion& completion) {
  std::ranges::sort(withdrawn_, {}, &Completion::fence);
  ready_.insert(ready_.end(), withdrawn_.begin(), withdrawn_.end());
  withdrawn_.clear();
  if (ready_.empty()) return false;
  completion = ready_.front();
  ready_.pop_front();
  return true;
}

void OrderedMachine::tell(const Work& work, CompletionStatus status, Nanoseconds start_ns, Nanoseconds end_ns) {
  ready_.push_back({work.fence, work.tag, status, start_ns, end_ns, work.waited_for, work.waited_until_ns});
}

// ---- Order ----------------------------------------------------------------------------------------------------------

// Chunks of one tensor, which have consecutive ids.
OrderedMachine::Access OrderedMachine::access(TierId tier, ChunkId first, ChunkId count, bool write) const {
  if (!memory_->addressed(tier)) return {tier, {first, count}, write};
  return {tier, {memory_->offset(first, tier), memory_->bytes_in(first, tier)}, write};
}

OrderedMachine::Access OrderedMachine::access(const CopyCommand& copy, bool source) const {
  const Place& place = source ? copy.from : copy.to;
  if (source ? copy.from_staging : copy.to_staging) {
    return {spec_.tiers.size(), {place.offset, spec_.staging.buffers_for(copy.bytes)}, !source};
  }
  return access(place.tier, copy.chunk, 1, !source);
}

std::vector<OrderedMachine::Access> OrderedMachine::accesses_of(const CopyCommand& copy) const {
  return {access(copy, true), access(copy, false)};
}

std::vector<OrderedMachine::Access> OrderedMachine::accesses_of(const OpCommand& op) const {
  std::vector<Access> accesses;
  const TierId tier = op.lane == cpu_lane ? spec_.tier_of(Device::cpu) : TierId{0};
  for (const Use& use : op.uses) {
    if (use.tensor == none) continue;
    if (!memory_->addressed(tier)) {
      const ChunkId count = memory_->chunk_count(use.tensor);
      if (count > 0) accesses.push_back(access(tier, memory_->first_chunk(use.tensor), count, use.write));
      continue;
    }
    for (const ChunkId chunk : memory_->chunks_of(use.tensor)) accesses.push_back(access(tier, chunk, 1, use.write));
  }
  return accesses;
}

std::vector<OrderedMachine::Access> OrderedMachine::accesses_of(const MoveCommand& move) const {
  return {{move.from.tier, {move.from.offset, move.bytes}, false}, {move.to.tier, {move.to.offset, move.bytes}, true}};
}

void OrderedMachine::give_ticket(Line line, Work work, const std::vector<Access>& accesses) {
  waits_.clear();
  for (const Access& one : accesses) regions_[one.region].before(one.extent, one.write, line, waits_);
  clocks_.reduce(line, waits_);
  for (const Ticket ticket : waits_) {
    work.waits.push_back(ticket);
    clocks_.waited(line, ticket);
  }
  const Ticket ticket = clocks_.next(line);
  work.number = ticket.number;
  StateHash identity;
  identity.mix(work.op.op);
  identity.mix(work.move.bytes > 0 ? work.move.chunk : work.copy.chunk);
  identity.mix(static_cast<std::uint64_t>(work.op.duration_ns));
  for (const Access& one : accesses) {
    regions_[one.region].after(one.extent, one.write, ticket);
    regions_[one.region].forget(clocks_);
    identity.mix(one.region * 2 + (one.write ? 1 : 0));
    identity.mix(one.extent.begin);
    identity.mix(one.extent.bytes);
  }
  work.identity = identity.value();
  lines_[line].bytes += work.copy.bytes;
  lines_[line].works.push_back(std::move(work));
}

// ---- Time passes ----------------------------------------------------------------------------------------------------

void OrderedMachine::take(const Completion& below) {
  if (below.tag != host_tag) {
    end(static_cast<Line>(below.tag), below);
  } else if (host_pays_) {
    host_busy_ = host_pays_ = false;
  } else {
    const HostJob job = std::move(host_.front());
    host_.pop_front();
    host_busy_ = false;
    if (job.op.idle) {
      ready_.push_back({job.fence, job.tag, CompletionStatus::done, below.start_ns, below.end_ns});
    } else {
      launch(job);
    }
  }
  go_on();
}

void OrderedMachine::launch(const HostJob& job) {
  launched_ns_ += job.op.duration_ns;
  give_ticket(job.op.lane, {.fence = job.fence, .tag = job.tag, .ordered = true, .op = job.op}, job.accesses);
  ready_.push_back({job.fence, job.tag, CompletionStatus::done, now(), now()});
}

void OrderedMachine::end(Line index, const Completion& below) {
  LineState& line = lines_[index];
  TENCACHE_CHECK(line.let_go > 0 && line.works.front().below == below.fence);
  const Work work = std::move(line.works.front());
  line.works.pop_front();
  --line.let_go;
  line.bytes -= work.copy.bytes;
  if (index == gpu_lane || index == communication_lane) launched_ns_ -= work.op.duration_ns;
  ended_ = {index, work.number};
  clocks_.passed(ended_);
  if (work.move.bytes > 0) {
    --line.moves;
    if (line.works.empty()) return;
    line.works.front().waited_for = static_cast<std::uint8_t>(index);
    line.works.front().waited_until_ns = now();
    return;
  }
  const bool done = below.status == CompletionStatus::done;
  if (!work.ordered) tell(work, below.status, below.start_ns, below.end_ns);
  if (work.ordered && !done) {
    throw Error("a copy over link '" + spec_.links[work.copy.link].name + "' failed after it was handed over" +
                reason_of_failure(below_) + "; a GPU cannot go on then; inject such faults without run_ahead");
  }
  if (done && !work.op.idle) tell(work, CompletionStatus::observed, below.start_ns, below.end_ns);
}

void OrderedMachine::go_on() {
  for (Line line = lane_count; line < lines_.size(); ++line) hand_over(line);
  use_host();
  for (Line line = 0; line < lines_.size(); ++line) let_go(line);
}

void OrderedMachine::hand_over(Line index) {
  LineState& line = lines_[index];
  while (!line.offered.empty() &&
         (line.works.size() - line.moves < spec_.run_ahead.copies || line.bytes < line.bytes_at_once)) {
    const Offer offer = line.offered.front();
    line.offered.pop_front();
    give_ticket(index, {.fence = offer.fence, .tag = offer.tag, .ordered = true, .copy = offer.copy},
                accesses_of(offer.copy));
    ready_.push_back({offer.fence, offer.tag, CompletionStatus::done, now(), now()});
  }
}

// What copies cost, then a gap, or a launch once the window is open.
void OrderedMachine::use_host() {
  if (host_busy_) return;
  OpCommand on_host{.lane = SimWorld::host_lane, .op = none, .idle = true, .uses = {}};
  host_pays_ = uncharged_ > 0 && spec_.host.per_transfer_ns > 0;
  if (host_pays_) {
    on_host.duration_ns = spec_.host.per_transfer_ns * static_cast<Nanoseconds>(uncharged_);
  } else if (host_.empty() || (!host_.front().op.idle && !window_open())) {
    return;
  } else if (host_.front().op.idle) {
    on_host.duration_ns = host_.front().op.duration_ns;
  }
  uncharged_ = 0;
  host_busy_ = true;
  below_.execute(on_host, host_tag);
}

bool OrderedMachine::window_open() const {
  std::size_t launched = 0;
  Nanoseconds behind_ns = launched_ns_;
  for (const Line lane : {gpu_lane, communication_lane}) {
    const LineState& line = lines_[lane];
    launched += line.works.size() - line.moves;
    const auto first = std::ranges::find(line.works, Bytes{0}, [](const Work& work) { return work.move.bytes; });
    if (first != line.works.end()) behind_ns -= first->op.duration_ns;
  }
  if (launched >= spec_.run_ahead.ops) return false;
  const auto copies = [](const LineState& line) { return line.link && line.stream && line.works.size() > line.moves; };
  return behind_ns < spec_.run_ahead.time_ns || std::ranges::none_of(lines_, copies);
}

void OrderedMachine::let_go(Line index) {
  LineState& line = lines_[index];
  for (; line.let_go < line.works.size(); ++line.let_go) {
    Work& work = line.works[line.let_go];
    std::erase_if(work.waits, [&](Ticket ticket) {
      if (!clocks_.over(ticket)) return false;
      if (ticket == ended_) {
        work.waited_for = static_cast<std::uint8_t>(ticket.line);
        work.waited_until_ns = now();
      }
      return true;
    });
    if (!work.waits.empty()) return;
    if (work.move.bytes > 0) {
      work.below = below_.move(work.move, index);
    } else {
      work.below = line.link ? below_.submit(work.copy, index) : below_.execute(work.op, index);
    }
    if (work.cancelled) below_.cancel(work.below);
  }
}

std::uint64_t OrderedMachine::state() const {
  StateHash hash;
  hash.mix(below_.state());
  hash.mix(spec_.host.per_transfer_ns > 0 ? uncharged_ : 0);
  hash.mix(host_pays_ ? 2 : host_busy_ ? 1 : 0);
  for (const HostJob& job : host_) hash.mix(job.op.op);
  for (const LineState& line : lines_) {
    hash.mix(line.works.size());
    hash.mix(line.let_go);
    for (const Work& work : line.works) {
      hash.mix(work.identity);
      for (const Ticket wait : work.waits) {
        if (clocks_.over(wait)) continue;
        hash.mix(wait.line);
        hash.mix(clocks_.last(wait.line).number - wait.number);
      }
    }
    for (const Offer& offer : line.offered) hash.mix(offer.copy.chunk);
  }
  hash.mix(withdrawn_.size());
  for (const Completion& completion : ready_) hash.mix(static_cast<std::uint64_t>(completion.status));
  return hash.value();
}

}  // namespace tencache
