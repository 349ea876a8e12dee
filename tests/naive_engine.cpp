#include "tests/naive_engine.h"

#include <algorithm>

#include "core/error.h"
#include "tests/naive_state.h"

namespace tencache::naive {

Naive::Naive(const Program& program, const MachineSpec& spec, Policy& policy, std::uint64_t iterations)
    : program_(program),
      spec_(spec),
      policy_(policy),
      iterations_(iterations),
      schedule_(program.trace),
      machine_(spec),
      layout_(policy.layout(spec, &program)) {
  if (layout_.overlap_faults) throw Error("the naive engine has no overlapped arrivals");
  if (layout_.allocators.empty()) layout_.allocators.resize(spec.tiers.size());
  lanes_[0].tier = 0;
  lanes_[1].tier = spec.tier_of(Device::cpu);
  for (OpIndex i = 0; i < program.trace.ops.size(); ++i)
    lanes_[program.trace.ops[i].device == Device::gpu ? 0 : 1].ops.push_back(i);
  for (const Tensor& tensor : program.trace.tensors) {
    first_.push_back(static_cast<ChunkId>(bytes_.size()));
    const Bytes unit = layout_.chunk_bytes == 0 ? tensor.bytes : layout_.chunk_bytes;
    for (Bytes begin = 0; begin < tensor.bytes; begin += unit) {
      bytes_.push_back(std::min(unit, tensor.bytes - begin));
      owner_.push_back(static_cast<TensorId>(first_.size() - 1));
    }
  }
  first_.push_back(static_cast<ChunkId>(bytes_.size()));
  where_.assign(bytes_.size(), std::vector<Where>(tiers()));
  order_.resize(tiers());
  buffers_.assign(spec.staging.count, false);
  const std::size_t tensors = program.trace.tensors.size();
  dead_.assign(tensors, 0);
  born_.assign(tensors, 0);
  for (TensorId tensor = 0; tensor < tensors; ++tensor) left_.push_back(schedule_.ops_of(tensor).size());
}

NaiveResult Naive::run() {
  try {
    for (TensorId tensor = 0; tensor + 1 < first_.size(); ++tensor) {
      if (program_.trace.tensors[tensor].persistent) place_initially(tensor);
    }
    tell({.kind = EventKind::profile_ready});
    tell({.kind = EventKind::iteration_begin});
    pump();
    while (!finished_) {
      if (all_done(lanes_[0]) && all_done(lanes_[1])) {
        cross_boundary();
        break;
      }
      Ended ended;
      if (machine_.next(ended)) {
        asked_.clear();
        handle(ended);
      } else if (!standstill()) {
        throw NoRoom{};
      }
    }
  } catch (const NoRoom&) {
    result_.fits = false;
  }
  for (TierId tier = 0; tier < tiers(); ++tier) result_.residents.push_back(order_[tier]);
  return result_;
}

bool Naive::advance(std::size_t index) {
  NaiveLane& lane = lanes_[index];
  bool progress = false;
  if (lane.waiting) {
    give_rooms(lane);
    if (!try_start(index)) return false;
    progress = true;
  }
  while (!finished_ && !lane.waiting && lane.running.size() < spec_.issue_ahead && issue_next(index)) progress = true;
  return progress;
}

bool Naive::may_issue(std::size_t index) {
  const NaiveLane& lane = lanes_[index];
  const NaiveLane& other = lanes_[1 - index];
  const OpIndex op = lane.ops[lane.issued % lane.ops.size()];
  const std::uint64_t iteration = lane.issued / lane.ops.size();
  const bool first_of_iteration = index == 0 && op == lane.ops.front();
  if (layout_.blocking_step && first_of_iteration && other.done < iteration * other.ops.size()) return false;
  for (std::uint64_t back = 0; back <= std::min<std::uint64_t>(iteration, 1); ++back) {
    for (std::size_t i = 0; i < other.ops.size(); ++i) {
      if (back == 0 && other.ops[i] > op) continue;
      if (other.done > (iteration - back) * other.ops.size() + i) continue;
      for (const Use& a : schedule_.uses(op)) {
        for (const Use& b : schedule_.uses(other.ops[i])) {
          if (a.tensor == b.tensor && (a.write || b.write)) return false;
        }
      }
    }
  }
  return true;
}

bool Naive::issue_next(std::size_t index) {
  NaiveLane& lane = lanes_[index];
  if (lane.ops.empty() || lane.issued == iterations_ * lane.ops.size() || lane.gap_pending || !may_issue(index))
    return false;
  const std::size_t at_op = lane.issued % lane.ops.size();
  const Op& op = program_.trace.ops[lane.ops[at_op]];
  if (index == 0 && at_op == 0 && lane.issued > 0 && !lane.gap_done && !lane.boundary_crossed) {
    lane.boundary_crossed = true;
    cross_boundary();
    if (finished_) return false;
    tell({.kind = EventKind::iteration_begin});
  }
  if (op.gap_before_ns > 0 && !lane.gap_done) {
    lane.gap_pending = true;
    Job job = machine_.op(index, op.gap_before_ns, 0);
    job.gap = true;
    machine_.push(index, job);
    machine_.begin_what_can();
    return false;
  }
  lane.gap_done = lane.boundary_crossed = false;
  lane.running.emplace_back().op = lane.ops[at_op];
  ++lane.issued;
  issue(index);
  return true;
}

void Naive::issue(std::size_t index) {
  NaiveLane& lane = lanes_[index];
  Running& running = lane.running.back();
  lane.waiting = true;
  if (index == 0) {
    position_ = running.op;
    change_module(program_.trace.ops[running.op].module);
    for (auto& [id, move] : moves_) {
      if (move.not_before == running.op && !move.queued && !move.flying) {
        move.not_before = none;
        enqueue(id, false);
      }
    }
  }
  for (const Hold& hold : holds_) {
    if (hold.op == running.op) running.holds.push_back(hold);
  }
  std::erase_if(holds_, [&](const Hold& hold) { return hold.op == running.op; });
  for (const Use& use : schedule_.uses(running.op)) {
    if (use.write) dead_[use.tensor] = 0;
    for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk)
      require(lane, running, use, chunk);
  }
  tell({.kind = EventKind::op_issued,
        .device = index == 0 ? Device::gpu : Device::cpu,
        .op = running.op,
        .uses = schedule_.uses(running.op)});
  give_rooms(lane);
  try_start(index);
}

void Naive::change_module(NameId module) {
  if (module == module_) return;
  if (module_ != 0) tell({.kind = EventKind::module_end, .op = position_, .module = module_});
  module_ = module;
  if (module != 0) tell({.kind = EventKind::module_begin, .op = position_, .module = module});
}

void Naive::require(NaiveLane& lane, Running& running, const Use& use, ChunkId chunk) {
  Where& here = at(chunk, lane.tier);
  ++here.pins;
  if (use.write) {
    stop_reading(chunk, lane.tier);
    ++here.writers;
  }
  if (here.state == CopyState::valid) {
    if (here.leaving) rescue(chunk, lane.tier);
    if (layout_.use_touches) rank(chunk, lane.tier, false);
    return;
  }
  const int coming = arriving(chunk, lane.tier);
  if (here.state == CopyState::reserved) {
    if (coming >= 0) demand(coming);
    return;
  }
  if (use.read || (layout_.free_dead == FreeDead::never && born_[use.tensor] != 0)) {
    if (fetch(chunk, lane.tier, urgent_rank, none) != Refusal::none) running.stranded.push_back(chunk);
  } else {
    if (coming >= 0) withdraw(coming);
    running.outputs.push_back(chunk);
  }
}

void Naive::give_rooms(NaiveLane& lane) {
  Running& running = lane.running.back();
  while (!running.outputs.empty()) {
    const ChunkId chunk = running.outputs.front();
    if (at(chunk, lane.tier).state != CopyState::absent) break;
    if (!take(chunk, lane.tier)) {
      make_room(lane.tier, wanted(lane), false, none, urgent_rank);
      if (!take(chunk, lane.tier)) break;
    }
    make_valid(chunk, lane.tier);
    running.outputs.erase(running.outputs.begin());
  }
  std::vector<ChunkId> still;
  for (const ChunkId chunk : running.stranded) {
    if (fetch(chunk, lane.tier, urgent_rank, none) != Refusal::none) still.push_back(chunk);
  }
  running.stranded = still;
}

bool Naive::try_start(std::size_t index) {
  NaiveLane& lane = lanes_[index];
  Running& running = lane.running.back();
  for (const Use& use : schedule_.uses(running.op)) {
    for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk) {
      if (!valid(chunk, lane.tier) || (use.write && at(chunk, lane.tier).readers > 0)) return false;
    }
  }
  std::erase_if(running.holds, [&](const Hold& hold) {
    for (ChunkId chunk = first_[hold.tensor]; chunk < first_[hold.tensor + 1]; ++chunk) {
      const int coming = arriving(chunk, hold.tier);
      if (coming >= 0 && (moves_[coming].queued || moves_[coming].flying)) return false;
    }
    return true;
  });
  if (!running.holds.empty() && !out_of_patience()) return false;
  lane.waiting = false;
  running.started = true;
  copies_waited_ = 0;
  tell({.kind = EventKind::op_ready,
        .device = index == 0 ? Device::gpu : Device::cpu,
        .op = running.op,
        .uses = schedule_.uses(running.op)});
  const Op& of_program = program_.trace.ops[running.op];
  machine_.push(index, machine_.op(index, of_program.duration_ns, of_program.bytes));
  machine_.begin_what_can();
  return true;
}

void Naive::finish(std::size_t index, const Job& job) {
  NaiveLane& lane = lanes_[index];
  const OpIndex op = lane.running.front().op;
  result_.ops.push_back({static_cast<std::uint8_t>(index), op, job.start_ns, machine_.now()});
  for (const Use& use : schedule_.uses(op)) {
    for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk) {
      --at(chunk, lane.tier).pins;
      if (!use.write) continue;
      --at(chunk, lane.tier).writers;
      for (TierId other = 0; other < tiers(); ++other) {
        if (other != lane.tier) make_useless(chunk, other);
      }
    }
    if (use.write) born_[use.tensor] = 1;
  }
  tell({.kind = EventKind::op_done,
        .device = index == 0 ? Device::gpu : Device::cpu,
        .op = op,
        .uses = schedule_.uses(op)});
  for (const Use& use : schedule_.uses(op)) {
    if (program_.trace.tensors[use.tensor].persistent || --left_[use.tensor] > 0) continue;
    left_[use.tensor] = schedule_.ops_of(use.tensor).size();
    if (at(first_[use.tensor], lane.tier).pins == 0) die(use.tensor);
  }
  lane.running.pop_front();
  ++lane.done;
}

void Naive::die(TensorId tensor) {
  if (layout_.free_dead == FreeDead::never) return;
  dead_[tensor] = 1;
  if (layout_.free_dead != FreeDead::now) return;
  born_[tensor] = 0;
  for (ChunkId chunk = first_[tensor]; chunk < first_[tensor + 1]; ++chunk) {
    for (TierId tier = 0; tier < tiers(); ++tier) make_useless(chunk, tier);
  }
}

void Naive::handle(const Ended& ended) {
  if (ended.server >= 2) {
    ++copies_waited_;
    for (const NaiveLane& lane : lanes_) {
      if (lane.gap_pending) copies_waited_ = 0;
      for (const Running& running : lane.running) {
        if (running.started) copies_waited_ = 0;
      }
    }
    transfer_over(ended);
  } else if (ended.job.gap) {
    lanes_[ended.server].gap_pending = false;
    lanes_[ended.server].gap_done = true;
  } else {
    finish(ended.server, ended.job);
  }
  pump();
}

void Naive::transfer_over(const Ended& ended) {
  const int id = ended.job.transfer;
  Move& move = moves_[id];
  const LinkId link = move.link();
  const bool done = !ended.job.cancelled;
  move.flying = false;
  result_.transfers.push_back(
      {link, move.chunk, move.from, move.to, move.rank == urgent_rank, done, ended.job.start_ns, machine_.now()});
  if (move.hop == 0) --at(move.chunk, move.from).readers;
  if (!done || move.useless) return discard(id);
  if (move.hop == 0 && move.path.size() > 1) {
    ++move.hop;
    leave(move);
    enqueue(id, true);
    return;
  }
  const Move arrived = move;
  free_buffers(arrived);
  make_valid(arrived.chunk, arrived.to);
  if (arrived.hop == 0) leave(arrived);
  if (arrived.kind == Kind::fetch && layout_.exclusive_copies && evictable(arrived.chunk, arrived.from) &&
      at(arrived.chunk, arrived.from).writers == 0) {
    drop(arrived.chunk, arrived.from);
  }
  moves_.erase(id);
  tell({.kind = EventKind::transfer_done,
        .from = arrived.from,
        .to = arrived.to,
        .op = position_,
        .tensor = owner_[arrived.chunk],
        .chunk = arrived.chunk});
}

void Naive::leave(const Move& move) {
  const Where& source = at(move.chunk, move.from);
  if (source.state == CopyState::condemned && source.readers == 0)
    give_back(move.chunk, move.from);
  else if (source.state == CopyState::valid && move.kind == Kind::evict && source.leaving)
    drop(move.chunk, move.from);
}

void Naive::discard(int id) {
  const Move move = moves_[id];
  moves_.erase(id);
  free_buffers(move);
  const bool needed = at(move.chunk, move.to).pins > 0 && at(move.chunk, move.to).state == CopyState::reserved;
  give_back(move.chunk, move.to);
  Where& source = at(move.chunk, move.from);
  if (move.kind == Kind::evict && source.state == CopyState::valid) source.leaving = false;
  if (source.state == CopyState::condemned && source.readers == 0) give_back(move.chunk, move.from);
  if (needed) lanes_[move.to == 0 ? 0 : 1].running.back().stranded.push_back(move.chunk);
}

void Naive::cross_boundary() {
  result_.iteration_ns.push_back(machine_.now() - boundary_ns_);
  boundary_ns_ = machine_.now();
  tell({.kind = EventKind::iteration_end});
  finished_ = ++iteration_ == iterations_;
}

void Naive::pump() {
  for (bool progress = true; progress && !finished_;) {
    progress = false;
    for (std::size_t lane = 0; lane < 2; ++lane) progress |= advance(lane);
    const long long queued = back_place_ - front_place_;
    for (LinkId link = 0; link < spec_.links.size(); ++link) progress |= start_transfers(link);
    progress |= back_place_ - front_place_ != queued;
  }
}

bool Naive::moving() const {
  for (const auto& [id, move] : moves_) {
    if (move.flying) return true;
  }
  for (const NaiveLane& lane : lanes_) {
    if (lane.gap_pending) return true;
    for (const Running& running : lane.running) {
      if (running.started) return true;
    }
  }
  return finished_;
}

bool Naive::standstill() {
  asked_.clear();
  pump();
  if (moving()) return true;
  for (NaiveLane& lane : lanes_) {
    if (!lane.waiting) continue;
    for (const Use& use : schedule_.uses(lane.running.back().op)) {
      for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk) {
        if (const int id = arriving(chunk, lane.tier); id >= 0) lift(id);
      }
    }
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      for (int id = head(link, normal_rank); id >= 0;) {
        const int next = head(link, normal_rank, moves_[id].place);
        if (moves_[id].kind == Kind::evict && moves_[id].from == lane.tier) lift(id);
        id = next;
      }
    }
    lane.running.back().holds.clear();
  }
  asked_.clear();
  pump();
  if (moving()) return true;
  asked_.clear();
  start_behind_blocked();
  pump();
  return moving();
}

}  // namespace tencache::naive

namespace tencache {

NaiveResult run_naive(const Program& program, const MachineSpec& machine, Policy& policy, std::uint64_t iterations) {
  return naive::Naive(program, machine, policy, iterations).run();
}

}  // namespace tencache
