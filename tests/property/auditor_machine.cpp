#include "tests/property/auditor_machine.h"

#include <algorithm>
#include <stdexcept>

namespace tencache {
namespace {

constexpr std::uint64_t completions_at_most = 300'000;  // of a case with a dozen ops: it does not end

std::string place_text(const Place& place) {
  return "tier " + std::to_string(place.tier) + " at " + std::to_string(place.offset);
}

}  // namespace

ProgramProgress::ProgramProgress(const Trace& trace, bool overlaps) : schedule_(trace), op_count_(trace.ops.size()) {
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    const bool beside = overlaps && trace.ops[op].stream == OpStream::communication;
    lane_ops_[trace.ops[op].device == Device::cpu ? cpu_lane : beside ? communication_lane : gpu_lane].push_back(op);
  }
}

bool ProgramProgress::submit(std::uint8_t lane, OpIndex op) {
  const auto& ops = lane_ops_[lane];
  return !ops.empty() && op == ops[submitted_[lane]++ % ops.size()];
}

bool ProgramProgress::needs(TensorId tensor) const {
  std::array<std::uint64_t, lane_count> at = done_;
  for (std::uint64_t i = 0; i < 3 * op_count_; ++i) {
    // The ops that are not over, in program order: of each lane the next, the earlier one in the iteration first.
    std::array<std::uint64_t, lane_count> order{};
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      const auto& ops = lane_ops_[lane];
      order[lane] = ops.empty() ? ~std::uint64_t{0} : at[lane] / ops.size() * op_count_ + ops[at[lane] % ops.size()];
    }
    const std::size_t lane = static_cast<std::size_t>(std::ranges::min_element(order) - order.begin());
    const OpIndex op = static_cast<OpIndex>(order[lane] % op_count_);
    ++at[lane];
    for (const Use& use : schedule_.uses(op)) {
      if (use.tensor == tensor) return use.read;
    }
  }
  return false;
}

AuditorMachine::AuditorMachine(Machine& inner, const MachineSpec& spec, const Trace& trace, const Layout& layout)
    : inner_(inner), spec_(spec), trace_(trace), progress_(trace, inner.pretends()), staging_(spec.staging.count) {
  const std::vector<AllocatorSpec> allocators = allocators_of(spec, layout);
  for (TierId tier = 0; tier < spec.tiers.size(); ++tier) {
    allocators_.push_back(
        make_allocator(allocators[tier], tier == 0 && layout.unlimited_gpu ? unlimited : spec.tiers[tier].capacity));
  }
}

void AuditorMachine::complain(const std::string& what) {
  if (violation_.empty()) violation_ = "at " + std::to_string(now()) + " ns: " + what;
}

void AuditorMachine::map(TensorId tensor, ChunkId id, Bytes begin, Bytes bytes, Place place, MappedFor what) {
  inner_.map(tensor, id, begin, bytes, place, what);  // may refuse: then nothing has happened
  Chunk& chunk = chunks_[id];
  chunk.tensor = tensor;
  chunk.begin = begin;
  if (chunk.copies.contains(place.tier))
    complain("chunk " + std::to_string(id) + " is mapped twice in " + place_text(place));
  const Bytes granularity = spec_.tiers[place.tier].granularity;
  const Bytes rounded = (bytes + granularity - 1) / granularity * granularity;
  const Allocator& allocator = *allocators_[place.tier];
  const Bytes footprint = allocator.footprint(rounded);
  if (allocator.addressed()) check_place("is mapped", id, place, footprint);
  chunk.copies[place.tier] = {place, footprint, garbage, bytes, garbage, 0};
  used_[place.tier] += footprint;
  if (used_[place.tier] > allocator.capacity())
    complain("tier " + std::to_string(place.tier) + " is overfilled by chunk " + std::to_string(id));
}

void AuditorMachine::check_place(const std::string& what, ChunkId id, const Place& place, Bytes footprint) {
  const Allocator& allocator = *allocators_[place.tier];
  if (place.offset + footprint > (allocator.movable() ? spec_.tiers[place.tier].capacity : allocator.capacity()))
    complain("chunk " + std::to_string(id) + " " + what + " beyond the end of " + place_text(place));
  for (const auto& [other_id, other] : chunks_) {
    const auto copy = other.copies.find(place.tier);
    if (copy == other.copies.end() || other_id == id) continue;
    if (place.offset < copy->second.place.offset + copy->second.footprint &&
        copy->second.place.offset < place.offset + footprint) {
      complain("chunk " + std::to_string(id) + " " + what + " over chunk " + std::to_string(other_id) + " in " +
               place_text(place));
    }
  }
}

void AuditorMachine::check_at_rest(const std::string& what, ChunkId id, const Place& place) {
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
    if (tier_of(lane) != place.tier) continue;
    for (const RunningOp& op : lanes_[lane]) {
      if (op.uses_tensor(chunks_[id].tensor, false))
        complain("chunk " + std::to_string(id) + " " + what + " while op " + std::to_string(op.command.op) +
                 " runs with it");
    }
  }
  for (const auto& [fence, running] : copies_) {
    if (running.command.chunk == id && running.touches(place.tier))
      complain("chunk " + std::to_string(id) + " " + what + " in " + place_text(place) + " while it is copied");
  }
}

Nanoseconds AuditorMachine::move(const MoveCommand& move) {
  Copy* const copy = chunks_[move.chunk].at(move.from);
  if (copy == nullptr || move.to.tier != move.from.tier) {
    complain("chunk " + std::to_string(move.chunk) + " moves from where it is not, " + place_text(move.from));
    return 0;
  }
  if (copy->bytes != move.bytes) complain("chunk " + std::to_string(move.chunk) + " moves in part");
  if (move.from.offset == move.to.offset) complain("chunk " + std::to_string(move.chunk) + " moves to where it is");
  check_at_rest("moves", move.chunk, move.from);
  check_place("moves", move.chunk, move.to, copy->footprint);
  copy->place = move.to;
  moved_bytes_ += copy->footprint;
  return inner_.move(move);
}

// Whether the chunk's value is needed and nowhere any more.
bool AuditorMachine::lost(ChunkId id) const {
  const Chunk& chunk = chunks_.at(id);
  for (const auto& [tier, copy] : chunk.copies) {
    if (copy.version == chunk.latest) return false;
  }
  for (const Staged& staged : staging_) {
    if (staged.chunk == id && staged.version == chunk.latest) return false;
  }
  return progress_.needs(chunk.tensor);
}

void AuditorMachine::unmap(TensorId tensor, ChunkId id, Bytes begin, Bytes bytes, Place place) {
  Chunk& chunk = chunks_[id];
  const Copy* const found = chunk.at(place);
  if (found == nullptr) {
    complain("chunk " + std::to_string(id) + " is unmapped where it is not, in " + place_text(place));
    return;
  }
  const Copy copy = *found;
  check_at_rest("is unmapped", id, place);
  chunk.copies.erase(place.tier);
  used_[place.tier] -= copy.footprint;
  if (copy.version == chunk.latest && lost(id)) {
    complain("the last copy of chunk " + std::to_string(id) + " goes from " + place_text(place) +
             " and its value is needed");
  }
  inner_.unmap(tensor, id, begin, bytes, place);
}

void AuditorMachine::initialise(TensorId tensor, ChunkId id, Bytes begin, Bytes bytes, Place place) {
  if (!chunks_[id].copies.contains(place.tier))
    complain("content is given to chunk " + std::to_string(id) + ", which is not mapped");
  chunks_[id].copies[place.tier].version = chunks_[id].latest;
  inner_.initialise(tensor, id, begin, bytes, place);
}

std::uint32_t AuditorMachine::buffers_of(const CopyCommand& copy) const {
  return static_cast<std::uint32_t>(spec_.staging.buffers_for(copy.bytes));
}

// That of the form in which it leaves, or comes to, tiers of other kinds than the GPU's; a copy between the GPU and
// staging buffers may have either form.
bool AuditorMachine::has_size(const CopyCommand& copy) const {
  const Chunk& chunk = chunks_.at(copy.chunk);
  const Tensor& tensor = trace_.tensors[chunk.tensor];
  bool known = false, equal = true;
  const auto look_at = [&](const Place& place, bool staging) {
    if (staging || (tensor.stored_bytes != 0 && spec_.tiers[place.tier].kind == TierKind::gpu)) return;
    const auto there = chunk.copies.find(place.tier);
    if (there == chunk.copies.end()) return;
    known = true;
    const Bytes whole = there->second.bytes, buffers = spec_.staging.all_bytes();
    const Bytes left = whole - std::min(whole, copy.begin - chunk.begin);
    const bool piece = (copy.from_staging || copy.to_staging) && whole > buffers;
    equal &= copy.bytes == (piece ? std::min(left, buffers) : whole);
  };
  look_at(copy.from, copy.from_staging);
  look_at(copy.to, copy.to_staging);
  return equal && (known || tensor.stored_bytes != 0);
}

Fence AuditorMachine::submit(const CopyCommand& command, Tag tag) {
  const std::string text =
      "copy of chunk " + std::to_string(command.chunk) + " over link " + std::to_string(command.link);
  Chunk& chunk = chunks_[command.chunk];
  const Link& link = spec_.links[command.link];
  RunningCopy running{command, garbage};
  std::size_t on_link = 1;
  for (const auto& [fence, other] : copies_) on_link += other.command.link == command.link ? 1 : 0;
  if (on_link > std::max(spec_.copies_in_flight, link.queue_depth)) complain(text + ": too many copies on that link");
  if (!has_size(command)) complain(text + ": wrong size");
  if (link.from != (command.from_staging ? spec_.staging.tier : command.from.tier) ||
      link.to != (command.to_staging ? spec_.staging.tier : command.to.tier)) {
    complain(text + ": the link does not join these tiers");
  }
  if (command.from_staging) {
    for (std::uint64_t i = command.from.offset; i < command.from.offset + buffers_of(command); ++i) {
      if (i >= staging_.size() || staging_[i].chunk != command.chunk)
        complain(text + ": from a buffer that holds something else");
      else
        running.version = staging_[i].version;
    }
  } else {
    const Copy* const source = chunk.at(command.from);
    if (source == nullptr) {
      complain(text + ": from where it is not");
    } else {
      running.version = source->version;
      if (running.version != chunk.latest) complain(text + ": from a copy that does not hold the value");
    }
    for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
      if (tier_of(lane) != command.from.tier) continue;
      for (const RunningOp& op : lanes_[lane]) {
        if (op.uses_tensor(chunk.tensor, true))
          complain(text + ": from a copy that op " + std::to_string(op.command.op) + " writes");
      }
    }
  }
  if (command.to_staging) {
    for (std::uint64_t i = command.to.offset; i < command.to.offset + buffers_of(command); ++i) {
      if (i >= staging_.size()) {
        complain(text + ": into a buffer that does not exist");
        break;
      }
      for (const auto& [fence, other] : copies_) {
        const Place& buffer = other.command.from_staging ? other.command.from : other.command.to;
        const bool staged = other.command.from_staging || other.command.to_staging;
        if (staged && buffer.offset <= i && i < buffer.offset + buffers_of(other.command))
          complain(text + ": into a buffer that is taken");
      }
      const Staged before = staging_[i];
      staging_[i] = {command.chunk, garbage};
      if (before.version != garbage && before.version == chunks_[before.chunk].latest && lost(before.chunk)) {
        complain(text + ": over the last copy of chunk " + std::to_string(before.chunk));
      }
    }
  } else if (Copy* const target = chunk.at(command.to); target == nullptr) {
    complain(text + ": to where it has no room");
  } else {
    target->version = garbage;
    if (command.begin == chunk.begin) {
      target->arriving = running.version;
      target->arrived = 0;
    } else if (target->arriving != running.version || target->arrived != command.begin - chunk.begin) {
      complain(text + ": a piece of another value, or out of order");
    }
  }
  const Fence fence = inner_.submit(command, tag);
  copies_.emplace(fence, running);
  return fence;
}

Fence AuditorMachine::execute(const OpCommand& command, Tag tag) {
  const Fence fence = inner_.execute(command, tag);
  if (command.idle) return fence;
  if (!progress_.submit(command.lane, command.op)) complain("op " + std::to_string(command.op) + " is out of order");
  lanes_[command.lane].push_back({fence, command, {command.uses.begin(), command.uses.end()}});
  if (lanes_[command.lane].size() == 1) start_op(command.lane);
  return fence;
}

void AuditorMachine::start_op(std::uint8_t lane) {
  const RunningOp& op = lanes_[lane].front();
  const TierId tier = tier_of(lane);
  for (std::uint8_t beside = 0; beside < lane_count; ++beside) {
    if (beside == lane || lanes_[beside].empty()) continue;
    const RunningOp& other = lanes_[beside].front();
    for (const Use& a : op.uses) {
      for (const Use& b : other.uses) {
        if (a.tensor == b.tensor && (a.write || b.write))
          complain("ops " + std::to_string(op.command.op) + " and " + std::to_string(other.command.op) +
                   " run at once");
      }
    }
  }
  for (const Use& use : op.uses) {
    Bytes bytes = 0;
    for_chunks(use.tensor, [&](ChunkId id, const Chunk& chunk) {
      const auto copy = chunk.copies.find(tier);
      if (copy != chunk.copies.end()) bytes += copy->second.bytes;
      const std::string text = "op " + std::to_string(op.command.op) + " starts and chunk " + std::to_string(id);
      if (copy == chunk.copies.end()) {
        complain(text + " has no room");
      } else if (use.read && copy->second.version != chunk.latest) {
        complain(text + " does not hold the value");
      }
    });
    const bool as_it_is = trace_.tensors[use.tensor].stored_bytes == 0 || spec_.tiers[tier].kind == TierKind::gpu;
    if (as_it_is && bytes != trace_.tensors[use.tensor].bytes)
      complain("op " + std::to_string(op.command.op) + " starts without all of tensor " + std::to_string(use.tensor));
  }
}

void AuditorMachine::finish_op(std::uint8_t lane) {
  const RunningOp op = lanes_[lane].front();
  lanes_[lane].pop_front();
  for (const Use& use : op.uses) {
    if (!use.write) continue;
    for_chunks(use.tensor, [&](ChunkId, Chunk& chunk) {
      ++chunk.latest;
      if (const auto copy = chunk.copies.find(tier_of(lane)); copy != chunk.copies.end())
        copy->second.version = chunk.latest;
    });
  }
  progress_.finish(lane);
  if (!lanes_[lane].empty()) start_op(lane);
}

void AuditorMachine::finish_copy(const RunningCopy& copy, bool done) {
  const CopyCommand& command = copy.command;
  Chunk& chunk = chunks_[command.chunk];
  if (done) copied_bytes_[command.link] += command.bytes;
  if (command.to_staging) {
    for (std::uint64_t i = command.to.offset;
         i < std::min<std::uint64_t>(staging_.size(), command.to.offset + buffers_of(command)); ++i) {
      if (done) staging_[i].version = copy.version;
    }
  } else if (done) {
    const auto target = chunk.copies.find(command.to.tier);
    if (target == chunk.copies.end()) return;
    target->second.arrived += command.bytes;
    const bool as_it_is = trace_.tensors[chunk.tensor].stored_bytes == 0;
    if (!as_it_is || target->second.arrived == target->second.bytes) target->second.version = copy.version;
  }
}

bool AuditorMachine::wait(Completion& completion) {
  if (!inner_.wait(completion)) return false;
  if (++completions_ > completions_at_most) throw std::runtime_error("the run does not end");
  if (completion.end_ns < last_end_ns_ || completion.start_ns > completion.end_ns)
    complain("a completion goes back in time");
  last_end_ns_ = completion.end_ns;
  if (const auto copy = copies_.find(completion.fence); copy != copies_.end()) {
    const RunningCopy running = copy->second;
    copies_.erase(copy);
    const bool done = completion.status == CompletionStatus::done;
    finish_copy(running, done);
    const CopyCommand& command = running.command;
    const bool to_free = (command.from_staging && (done || completion.status == CompletionStatus::cancelled)) ||
                         (command.to_staging && !done);
    const std::uint64_t first = command.from_staging ? command.from.offset : command.to.offset;
    for (std::uint64_t i = first; to_free && i < std::min<std::uint64_t>(staging_.size(), first + buffers_of(command));
         ++i)
      staging_[i] = {};
    return true;
  }
  for (std::uint8_t lane = 0; lane < lane_count; ++lane) {
    if (!lanes_[lane].empty() && lanes_[lane].front().fence == completion.fence) {
      finish_op(lane);
      return true;
    }
  }
  return true;  // a gap
}

bool TroubleMachine::wait(Completion& completion) {
  while (true) {
    if (!late_.empty() && random_.one_in(3)) {
      completion = late_.front();
      late_.pop_front();
    } else if (!inner_.wait(completion)) {
      if (late_.empty()) return false;
      completion = late_.front();
      late_.pop_front();
    } else if (std::find(copies_.begin(), copies_.end(), completion.fence) != copies_.end()) {
      if (completion.status == CompletionStatus::done && random_.one_in(12))
        completion.status = CompletionStatus::failed;
      if (random_.one_in(4)) {  // later copies of the link wait too: completions of a link keep their order
        late_.push_back(completion);
        continue;
      }
    }
    now_ = std::max({now_, completion.end_ns, inner_.now()});
    completion.end_ns = now_;
    return true;
  }
}

}  // namespace tencache
