#include "tests/differential/naive_engine.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/metrics.h"
#include "core/residency.h"
#include "core/schedule.h"
#include "tests/differential/naive_machine.h"

namespace tencache::naive {
namespace {

enum class Kind { fetch, evict, clean };
enum Rank { urgent_rank, normal_rank, background_rank };

struct Where {
  CopyState state = CopyState::absent;
  int pins = 0, readers = 0, writers = 0;
  bool leaving = false;
};

struct Move {
  ChunkId chunk = none;
  TierId from = 0, to = 0;
  Kind kind = Kind::fetch;
  int rank = normal_rank;
  std::vector<LinkId> path;
  std::size_t hop = 0;
  bool queued = false, flying = false, useless = false;
  long long place = 0;  // in its queue: the least is the first
  OpIndex not_before = none;
  std::vector<std::size_t> buffers;
  int job = 0;
  LinkId link() const { return path[hop]; }
};

struct Hold {
  OpIndex op;
  TensorId tensor;
  TierId tier;
};

struct Running {
  OpIndex op = none;
  bool started = false;
  std::vector<ChunkId> outputs, stranded;
  std::vector<Hold> holds;
};

struct NaiveLane {
  TierId tier = no_tier;
  std::vector<OpIndex> ops;
  std::uint64_t issued = 0, done = 0;
  std::deque<Running> running;
  bool waiting = false, gap_pending = false, gap_done = false, boundary_crossed = false;
};

struct NoRoom {};

class Naive {
 public:
  Naive(const Program& program, const MachineSpec& spec, Policy& policy, std::uint64_t iterations);

  NaiveResult run();

 private:
  // Chunks and room.
  std::size_t tiers() const { return spec_.tiers.size(); }
  Where& at(ChunkId chunk, TierId tier) { return where_[chunk][tier]; }
  bool valid(ChunkId chunk, TierId tier) { return at(chunk, tier).state == CopyState::valid; }
  Bytes room_of(ChunkId chunk, TierId tier) const;
  Bytes free(TierId tier);
  Bytes capacity(TierId tier) const;
  Bytes leaving(TierId tier);
  // What the waiting ops of the tier still need.
  Bytes wanted(const NaiveLane& lane);
  Bytes wanted(TierId tier);
  bool evictable(ChunkId chunk, TierId tier);
  bool droppable(ChunkId chunk, TierId tier);
  void rank(ChunkId chunk, TierId tier, bool coldest);
  void rank_below(ChunkId chunk, bool coldest);
  bool take(ChunkId chunk, TierId tier);
  void make_valid(ChunkId chunk, TierId tier);
  void give_back(ChunkId chunk, TierId tier);
  void condemn(ChunkId chunk, TierId tier);
  void drop(ChunkId chunk, TierId tier) { at(chunk, tier).readers > 0 ? condemn(chunk, tier) : give_back(chunk, tier); }

  void place_initially(TensorId tensor);

  // The policy.
  View view(const Residency& memory);
  // What a policy may look at, built anew from this engine's own state.
  Residency mirror();
  void tell(const Event& event);
  void refuse(Refusal reason, const Action& action, ChunkId chunk);
  bool out_of_patience() const { return copies_waited_ > 1000 + 16 * std::uint64_t{first_.back()}; }
  void apply(const Action& action);
  Refusal act(const Action& action, ChunkId chunk);

  // Transfers.
  std::vector<LinkId> path(TierId from, TierId to) const;
  BytesPerSecond speed(TierId from, TierId to) const;
  int arriving(ChunkId chunk, TierId to) const;
  std::vector<int> moves_of(ChunkId chunk) const;
  TierId source(ChunkId chunk, TierId to);
  int request(ChunkId chunk, TierId from, TierId to, Kind kind, int rank);
  void enqueue(int id, bool front);
  int head(LinkId link, int rank, long long after = std::numeric_limits<long long>::min()) const;
  Refusal fetch(ChunkId chunk, TierId to, int rank, OpIndex not_before);
  bool reserve(ChunkId chunk, TierId tier);
  bool may_receive(ChunkId chunk, TierId from, TierId to, Kind kind);
  Refusal send(ChunkId chunk, TierId from, TierId destination, Kind kind, int rank);
  Refusal evict(ChunkId chunk, TierId from, TierId destination, int rank);
  void withdraw(int id);
  void free_buffers(const Move& move);
  // An op waits for it.
  void demand(int id);
  void lift(int id);
  void rescue(ChunkId chunk, TierId tier);
  void stop_reading(ChunkId chunk, TierId tier);
  void make_useless(ChunkId chunk, TierId tier);

  bool start_transfers(LinkId link);
  // Past prefetches that find no room.
  void start_behind_blocked();
  bool takes_another(LinkId link);
  // What taking the memory for the chunk costs.
  Nanoseconds setup_of(ChunkId chunk, TierId tier);
  bool source_stands(const Move& move);
  void look_elsewhere(int id);
  bool try_copy(int id);
  bool take_buffers(Move& move);
  bool room_for(int id);
  void make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, int rank);

  // Ops.
  bool all_done(const NaiveLane& lane) const { return lane.done == iterations_ * lane.ops.size(); }
  bool advance(std::size_t index);
  // Every earlier op of the other lane, of this iteration and the one before, that conflicts is done.
  bool may_issue(std::size_t index);
  bool issue_next(std::size_t index);
  void issue(std::size_t index);
  void change_module(NameId module);
  void require(NaiveLane& lane, Running& running, const Use& use, ChunkId chunk);
  void give_rooms(NaiveLane& lane);
  bool try_start(std::size_t index);
  void finish(std::size_t index, const Job& job);
  void die(TensorId tensor);

  // Inputs.
  void handle(const Ended& ended);
  void transfer_over(const Ended& ended);
  // The first copy is over: an eviction's room goes free, if nobody took the chunk back meanwhile.
  void leave(const Move& move);
  void discard(int id);
  void cross_boundary();
  void pump();
  bool moving() const;
  bool standstill();

  const Program& program_;
  const MachineSpec& spec_;
  Policy& policy_;
  std::uint64_t iterations_;
  Schedule schedule_;
  NaiveMachine machine_;
  Layout layout_;
  NaiveLane lanes_[2];
  std::vector<ChunkId> first_;
  std::vector<Bytes> bytes_;
  std::vector<TensorId> owner_;
  std::vector<std::vector<Where>> where_;
  std::vector<std::vector<ChunkId>> order_;
  std::map<int, Move> moves_;
  int last_move_ = 0;
  long long front_place_ = 0, back_place_ = 0;
  std::vector<bool> buffers_;
  std::vector<std::uint8_t> dead_, born_;
  std::vector<std::size_t> left_;
  std::vector<std::uint32_t> load_;
  std::set<std::pair<TierId, bool>> asked_;
  std::vector<Hold> holds_;
  std::uint64_t copies_waited_ = 0;
  std::deque<std::pair<Event, int>> events_;
  bool telling_ = false;
  int depth_ = 0;
  NameId module_ = 0;
  OpIndex position_ = none;
  std::uint64_t iteration_ = 0;
  Nanoseconds boundary_ns_ = 0;
  bool finished_ = false;
  NaiveResult result_;
};

// ---- Program, ops, inputs. -------------------------------------------------------------------------------------------

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

// ---- Chunks and room, and what the policy sees of them and asks for. -------------------------------------------------

Bytes Naive::room_of(ChunkId chunk, TierId tier) const {
  const Bytes unit = spec_.tiers[tier].granularity;
  return (bytes_[chunk] + unit - 1) / unit * unit;
}

Bytes Naive::free(TierId tier) {
  Bytes used = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk)
    used += at(chunk, tier).state == CopyState::absent ? 0 : room_of(chunk, tier);
  return capacity(tier) - used;
}

Bytes Naive::capacity(TierId tier) const {
  return tier == 0 && layout_.unlimited_gpu ? unlimited : spec_.tiers[tier].capacity;
}

Bytes Naive::leaving(TierId tier) {
  Bytes sum = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) sum += at(chunk, tier).leaving ? room_of(chunk, tier) : 0;
  return sum;
}

Bytes Naive::wanted(const NaiveLane& lane) {
  if (!lane.waiting) return 0;
  Bytes sum = 0;
  for (const Use& use : schedule_.uses(lane.running.back().op)) {
    for (ChunkId chunk = first_[use.tensor]; chunk < first_[use.tensor + 1]; ++chunk) {
      const CopyState state = at(chunk, lane.tier).state;
      if (state == CopyState::absent || state == CopyState::condemned) sum += room_of(chunk, lane.tier);
    }
  }
  return sum;
}

Bytes Naive::wanted(TierId tier) {
  Bytes sum = 0;
  for (const NaiveLane& lane : lanes_) sum += lane.tier == tier ? wanted(lane) : 0;
  return sum;
}

bool Naive::evictable(ChunkId chunk, TierId tier) {
  const Where& w = at(chunk, tier);
  return w.state == CopyState::valid && w.pins == 0 && !w.leaving;
}

bool Naive::droppable(ChunkId chunk, TierId tier) {
  if (dead_[owner_[chunk]] != 0) return true;
  for (TierId other = 0; other < tiers(); ++other) {
    if (other != tier && valid(chunk, other)) return true;
  }
  return false;
}

void Naive::rank(ChunkId chunk, TierId tier, bool coldest) {
  std::erase(order_[tier], chunk);
  order_[tier].insert(coldest ? order_[tier].begin() : order_[tier].end(), chunk);
}

void Naive::rank_below(ChunkId chunk, bool coldest) {
  for (TierId tier = 1; tier < tiers(); ++tier) {
    if (valid(chunk, tier)) rank(chunk, tier, coldest);
  }
}

bool Naive::take(ChunkId chunk, TierId tier) {
  if (room_of(chunk, tier) > free(tier)) return false;
  at(chunk, tier).state = CopyState::reserved;
  return true;
}

void Naive::make_valid(ChunkId chunk, TierId tier) {
  at(chunk, tier).state = CopyState::valid;
  rank(chunk, tier, tier != 0 && valid(chunk, 0));
  if (tier == 0) rank_below(chunk, true);
}

void Naive::give_back(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::absent;
  at(chunk, tier).leaving = false;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

void Naive::condemn(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::condemned;
  at(chunk, tier).leaving = true;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

void Naive::place_initially(TensorId tensor) {
  const TierId role = layout_.initial[static_cast<std::size_t>(program_.trace.tensors[tensor].role)];
  for (ChunkId chunk = first_[tensor]; chunk < first_[tensor + 1]; ++chunk) {
    TierId tier = layout_.unlimited_gpu ? TierId{0} : role != no_tier ? role : spec_.initial_tier;
    while (tier < tiers() && !take(chunk, tier)) ++tier;
    if (tier == tiers()) throw NoRoom{};
    make_valid(chunk, tier);
  }
  born_[tensor] = 1;
}

View Naive::view(const Residency& memory) {
  View v{.machine = spec_, .memory = memory};
  v.program = &program_;
  v.schedule = &schedule_;
  v.now = machine_.now();
  v.iteration = iteration_;
  v.op = position_;
  v.dead_flags = &dead_;
  load_.assign(spec_.links.size(), 0);
  for (const auto& [id, move] : moves_) load_[move.link()] += move.queued || move.flying ? 1 : 0;
  v.link_load = {load_.data(), load_.size()};
  return v;
}

Residency Naive::mirror() {
  Residency memory(spec_, layout_.allocators, layout_.chunk_bytes, layout_.unlimited_gpu);
  for (const Tensor& tensor : program_.trace.tensors) memory.add_tensor(tensor.bytes, tensor.role, tensor.persistent);
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) {
    for (TierId tier = 0; tier < tiers(); ++tier) {
      if (at(chunk, tier).state == CopyState::absent) continue;
      if (!memory.reserve(chunk, tier)) throw std::logic_error("the naive engine overfills a tier");
      if (valid(chunk, tier)) memory.commit(chunk, tier);
      if (at(chunk, tier).state == CopyState::condemned)
        memory.condemn(chunk, tier);
      else if (at(chunk, tier).leaving)
        memory.set_evicting(chunk, tier, true);
    }
  }
  for (TierId tier = 0; tier < tiers(); ++tier) {
    for (const ChunkId chunk : order_[tier]) memory.touch(chunk, tier);
    for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) {
      for (int i = 0; i < at(chunk, tier).pins; ++i) memory.pin(chunk, tier);
      for (int i = 0; i < at(chunk, tier).readers; ++i) memory.add_reader(chunk, tier);
      for (int i = 0; i < at(chunk, tier).writers; ++i) memory.add_writer(chunk, tier);
    }
  }
  return memory;
}

void Naive::tell(const Event& event) {
  events_.push_back({event, depth_});
  if (telling_) return;
  telling_ = true;
  while (!events_.empty()) {
    const auto [next, depth] = events_.front();
    events_.pop_front();
    Actions actions;
    const Residency memory = mirror();
    policy_.on(next, view(memory), actions);
    depth_ = next.kind == EventKind::refused ? depth + 1 : 0;
    for (const Action& action : actions.list()) apply(action);
    depth_ = 0;
  }
  telling_ = false;
}

void Naive::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  if (depth_ <= 2) {
    tell({.kind = EventKind::refused,
          .refusal = reason,
          .from = action.tier,
          .to = action.destination,
          .op = position_,
          .tensor = action.tensor,
          .chunk = chunk});
  }
}

void Naive::apply(const Action& action) {
  if (action.tensor + 1 >= first_.size() || action.tier >= tiers()) return refuse(Refusal::stale, action, none);
  if (out_of_patience()) return refuse(Refusal::no_room, action, none);
  if (action.verb == Verb::hold) {
    const Hold hold{action.op, action.tensor, action.tier};
    for (NaiveLane& lane : lanes_) {
      if (!lane.waiting || lane.running.back().op != action.op) continue;
      lane.running.back().holds.push_back(hold);
      return;
    }
    holds_.push_back(hold);
    return;
  }
  const ChunkId count = first_[action.tensor + 1] - first_[action.tensor];
  if (action.chunk != all_chunks && action.chunk >= count) return refuse(Refusal::stale, action, none);
  for (ChunkId i = 0; i < count; ++i) {
    if (action.chunk != all_chunks && action.chunk != i) continue;
    const Refusal refusal = act(action, first_[action.tensor] + i);
    if (refusal != Refusal::none) refuse(refusal, action, first_[action.tensor] + i);
  }
}

Refusal Naive::act(const Action& action, ChunkId chunk) {
  const int rank = action.urgent ? urgent_rank : normal_rank;
  const int coming = arriving(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      if (at(chunk, action.tier).state == CopyState::absent && at(chunk, action.tier).pins > 0 && coming < 0)
        return Refusal::stale;
      return fetch(chunk, action.tier, rank, action.not_before);
    case Verb::evict:
      return evict(chunk, action.tier, action.destination, rank);
    case Verb::clean:
      return send(chunk, action.tier, action.destination, Kind::clean, action.urgent ? urgent_rank : background_rank);
    case Verb::drop:
      if (!evictable(chunk, action.tier) || !droppable(chunk, action.tier)) return Refusal::stale;
      drop(chunk, action.tier);
      return Refusal::none;
    case Verb::cancel:
      if (coming < 0 || moves_[coming].flying || moves_[coming].hop > 0 || moves_[coming].kind != Kind::fetch ||
          at(chunk, action.tier).pins > 0)
        return Refusal::stale;
      withdraw(coming);
      return Refusal::none;
    case Verb::hold:
      break;
  }
  return Refusal::none;
}

// ---- Copies: queues, hops, room, staging buffers. --------------------------------------------------------------------

std::vector<LinkId> Naive::path(TierId from, TierId to) const {
  if (from == to) return {};
  if (const LinkId direct = spec_.link_between(from, to); direct != no_link) return {direct};
  if (spec_.staging.count == 0 || spec_.staging.tier == from || spec_.staging.tier == to) return {};
  const LinkId in = spec_.link_between(from, spec_.staging.tier), out = spec_.link_between(spec_.staging.tier, to);
  if (in == no_link || out == no_link) return {};
  return {in, out};
}

BytesPerSecond Naive::speed(TierId from, TierId to) const {
  BytesPerSecond least = std::numeric_limits<BytesPerSecond>::max();
  for (const LinkId link : path(from, to)) least = std::min(least, spec_.links[link].bandwidth);
  return least;
}

int Naive::arriving(ChunkId chunk, TierId to) const {
  for (const auto& [id, move] : moves_) {
    if (move.chunk == chunk && move.to == to && !move.useless) return id;
  }
  return -1;
}

std::vector<int> Naive::moves_of(ChunkId chunk) const {
  std::vector<int> ids;
  for (const auto& [id, move] : moves_) {
    if (move.chunk == chunk) ids.push_back(id);
  }
  return ids;
}

TierId Naive::source(ChunkId chunk, TierId to) {
  TierId best = no_tier;
  for (TierId tier = 0; tier < tiers(); ++tier) {
    if (tier == to || !valid(chunk, tier) || at(chunk, tier).writers > 0 || path(tier, to).empty()) continue;
    if (best == no_tier || speed(tier, to) > speed(best, to)) best = tier;
  }
  return best;
}

int Naive::request(ChunkId chunk, TierId from, TierId to, Kind kind, int rank) {
  Move move;
  move.chunk = chunk;
  move.from = from;
  move.to = to;
  move.kind = kind;
  move.rank = rank;
  move.path = path(from, to);
  moves_[++last_move_] = move;
  return last_move_;
}

void Naive::enqueue(int id, bool front) {
  moves_[id].queued = true;
  moves_[id].place = front ? --front_place_ : ++back_place_;
}

int Naive::head(LinkId link, int rank, long long after) const {
  int best = -1;
  for (const auto& [id, move] : moves_) {
    if (!move.queued || move.link() != link || move.rank != rank || move.place <= after) continue;
    if (best < 0 || move.place < moves_.at(best).place) best = id;
  }
  return best;
}

Refusal Naive::fetch(ChunkId chunk, TierId to, int rank, OpIndex not_before) {
  if (valid(chunk, to)) {
    if (at(chunk, to).leaving) rescue(chunk, to);
    return Refusal::none;
  }
  if (const int coming = arriving(chunk, to); coming >= 0) {
    if (rank == urgent_rank) demand(coming);
    return Refusal::none;
  }
  if (at(chunk, to).state != CopyState::absent || dead_[owner_[chunk]] != 0 || source(chunk, to) == no_tier)
    return Refusal::stale;
  if (path(source(chunk, to), to).size() > 1) {  // staged, and it is being copied into that tier already
    const int coming = arriving(chunk, spec_.staging.tier);
    if (coming >= 0 && moves_[coming].flying) return Refusal::stale;
  }
  if (room_of(chunk, to) > capacity(to)) return Refusal::no_room;
  const int id = request(chunk, source(chunk, to), to, Kind::fetch, rank);
  if (rank != urgent_rank && not_before != none && not_before != position_)
    moves_[id].not_before = not_before;
  else
    enqueue(id, false);
  return Refusal::none;
}

bool Naive::reserve(ChunkId chunk, TierId tier) {
  if (take(chunk, tier)) return true;
  // Copies that the GPU holds too are given up: those at the cold end, up to the first that it does not hold.
  for (const ChunkId other : std::vector<ChunkId>(tier == 0 ? std::vector<ChunkId>{} : order_[tier])) {
    if (free(tier) >= room_of(chunk, tier) || !valid(other, 0)) break;
    if (evictable(other, tier) && at(other, tier).readers == 0) drop(other, tier);
  }
  return take(chunk, tier);
}

bool Naive::may_receive(ChunkId chunk, TierId from, TierId to, Kind kind) {
  if (to == from || path(from, to).empty() || at(chunk, to).state != CopyState::absent || at(chunk, to).pins > 0)
    return false;
  const int coming = arriving(chunk, to);
  if (coming < 0) return true;
  const Move& move = moves_[coming];
  return kind == Kind::evict && move.kind == Kind::fetch && !move.flying && move.hop == 0;
}

Refusal Naive::send(ChunkId chunk, TierId from, TierId destination, Kind kind, int rank) {
  if (!valid(chunk, from) || at(chunk, from).writers > 0 || dead_[owner_[chunk]] != 0) return Refusal::stale;
  TierId to = no_tier;
  if (destination != no_tier) {
    if (destination >= tiers() || !may_receive(chunk, from, destination, kind)) return Refusal::stale;
    if (reserve(chunk, destination)) to = destination;
  } else {
    for (TierId tier = static_cast<TierId>(from + 1); tier < tiers() && to == no_tier; ++tier) {
      if (may_receive(chunk, from, tier, kind) && reserve(chunk, tier)) to = tier;
    }
  }
  if (to == no_tier) return Refusal::no_room;
  if (const int replaced = arriving(chunk, to); replaced >= 0) withdraw(replaced);
  enqueue(request(chunk, from, to, kind, rank), false);
  return Refusal::none;
}

Refusal Naive::evict(ChunkId chunk, TierId from, TierId destination, int rank) {
  if (!evictable(chunk, from)) return Refusal::stale;
  if (droppable(chunk, from)) {
    drop(chunk, from);
    return Refusal::none;
  }
  const Refusal refusal = send(chunk, from, destination, Kind::evict, rank);
  if (refusal == Refusal::none) at(chunk, from).leaving = true;
  return refusal;
}

void Naive::withdraw(int id) {
  const Move move = moves_[id];
  moves_.erase(id);
  free_buffers(move);
  if (move.kind != Kind::fetch || move.hop > 0) give_back(move.chunk, move.to);
  if (move.kind == Kind::evict && valid(move.chunk, move.from)) at(move.chunk, move.from).leaving = false;
}

void Naive::free_buffers(const Move& move) {
  for (const std::size_t buffer : move.buffers) buffers_[buffer] = false;
}

void Naive::demand(int id) {
  if (layout_.promote)
    lift(id);
  else if (!moves_[id].queued && !moves_[id].flying)
    enqueue(id, false);
}

void Naive::lift(int id) {
  Move& move = moves_[id];
  const bool moves_up = !move.flying && move.rank != urgent_rank;
  move.rank = urgent_rank;
  if (moves_up) enqueue(id, false);
}

void Naive::rescue(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.from != tier || move.kind != Kind::evict) continue;
    if (!move.flying && move.hop == 0 && at(chunk, move.to).pins == 0) {
      withdraw(id);
    } else {
      move.kind = Kind::clean;
      at(chunk, tier).leaving = false;
    }
  }
}

void Naive::stop_reading(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.from != tier || move.hop > 0) continue;
    if (!move.flying) {
      withdraw(id);
      continue;
    }
    move.useless = true;
    machine_.cancel(move.job);
  }
}

void Naive::make_useless(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_[id];
    if (move.flying && move.to == tier) {
      move.useless = true;
      machine_.cancel(move.job);
    } else if (!move.flying && (move.to == tier || (move.from == tier && move.hop == 0))) {
      withdraw(id);
    }
  }
  if (valid(chunk, tier))
    drop(chunk, tier);
  else if (at(chunk, tier).state == CopyState::reserved)
    condemn(chunk, tier);
}

bool Naive::start_transfers(LinkId link) {
  bool progress = false;
  while (true) {
    if (!takes_another(link)) return progress;
    bool started = false;
    for (int rank = urgent_rank; rank <= background_rank && !started; ++rank) {
      int id = head(link, rank);
      while (id >= 0 && !source_stands(moves_[id])) {
        look_elsewhere(id);
        id = head(link, rank);
      }
      if (id >= 0) started = try_copy(id);
    }
    if (!started) return progress;
    progress = true;
  }
}

void Naive::start_behind_blocked() {
  for (bool progress = true; progress;) {
    progress = false;
    const long long queued = back_place_ - front_place_;
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      for (int rank = urgent_rank; rank <= background_rank; ++rank) {
        for (int id = head(link, rank); id >= 0 && takes_another(link);) {
          const Move& move = moves_[id];
          const int next = head(link, rank, move.place);
          const bool prefetch = move.kind == Kind::fetch && move.hop == 0 && at(move.chunk, move.to).pins == 0;
          if (!prefetch && !source_stands(move))
            look_elsewhere(id);
          else if (!prefetch)
            progress |= try_copy(id);
          id = next;
        }
      }
    }
    progress |= back_place_ - front_place_ != queued;
  }
}

bool Naive::takes_another(LinkId link) {
  std::map<int, Bytes> flying;  // by job: in order of submission
  for (const auto& [id, move] : moves_) {
    if (move.flying && move.link() == link) flying[move.job] = bytes_[move.chunk];
  }
  if (flying.size() < spec_.copies_in_flight) return true;
  const Link& l = spec_.links[link];
  if (flying.size() >= l.queue_depth) return false;
  Bytes behind_first = 0;
  for (auto it = std::next(flying.begin()); it != flying.end(); ++it) behind_first += it->second;
  const uint128 per_latency =
      (static_cast<uint128>(l.bandwidth) * static_cast<uint128>(l.latency_ns) + 999'999'999u) / 1'000'000'000u;
  return static_cast<uint128>(behind_first) < per_latency;
}

Nanoseconds Naive::setup_of(ChunkId chunk, TierId tier) {
  const AllocationCost& cost = spec_.tiers[tier].allocation;
  if (!layout_.allocate_each[tier]) return 0;
  Bytes bytes = bytes_[chunk];
  if (cost.power_of_two) {
    bytes = 1;
    while (bytes < bytes_[chunk]) bytes *= 2;
  }
  if (cost.bandwidth == 0) return cost.per_call_ns;
  return cost.per_call_ns +
         static_cast<Nanoseconds>((static_cast<uint128>(bytes) * 1'000'000'000u + cost.bandwidth - 1) / cost.bandwidth);
}

bool Naive::source_stands(const Move& move) {
  return move.hop > 0 || (valid(move.chunk, move.from) && at(move.chunk, move.from).writers == 0);
}

void Naive::look_elsewhere(int id) {
  const Move old = moves_[id];
  withdraw(id);
  const bool needed = at(old.chunk, old.to).pins > 0;
  if (at(old.chunk, old.to).state != CopyState::absent || (old.kind != Kind::fetch && !needed)) return;
  if (fetch(old.chunk, old.to, old.kind == Kind::fetch ? old.rank : urgent_rank, none) != Refusal::none && needed) {
    lanes_[old.to == 0 ? 0 : 1].running.back().stranded.push_back(old.chunk);
  }
}

bool Naive::try_copy(int id) {
  Move& move = moves_[id];
  if (move.hop == 0) {
    if (move.path.size() > 1 && !take_buffers(move)) return false;
    if (move.kind == Kind::fetch && !room_for(id)) {
      free_buffers(move);
      move.buffers.clear();
      return false;
    }
    ++at(move.chunk, move.from).readers;
  }
  move.queued = false;
  move.flying = true;
  const bool last = move.hop + 1 == move.path.size();
  Job job = machine_.copy(move.link(), bytes_[move.chunk], last ? setup_of(move.chunk, move.to) : 0);
  job.transfer = id;
  move.job = machine_.push(2 + std::size_t{move.link()}, job);
  machine_.begin_what_can();
  return true;
}

bool Naive::take_buffers(Move& move) {
  const std::size_t count = (bytes_[move.chunk] + spec_.staging.bytes - 1) / spec_.staging.bytes;
  for (std::size_t first = 0; first + count <= buffers_.size(); ++first) {
    if (std::any_of(buffers_.begin() + static_cast<std::ptrdiff_t>(first),
                    buffers_.begin() + static_cast<std::ptrdiff_t>(first + count), [](bool used) { return used; }))
      continue;
    for (std::size_t i = first; i < first + count; ++i) {
      buffers_[i] = true;
      move.buffers.push_back(i);
    }
    return true;
  }
  return false;
}

bool Naive::room_for(int id) {
  const Move& move = moves_[id];
  const TierId to = move.to;
  if (at(move.chunk, to).state != CopyState::absent) return false;
  const bool needed = at(move.chunk, to).pins > 0;
  const Bytes others = wanted(to);
  if (!needed && others > 0 && free(to) < others + room_of(move.chunk, to)) return false;
  if (take(move.chunk, to)) return true;
  Bytes bytes = room_of(move.chunk, to);
  if (needed) {
    bytes = wanted(lanes_[to == 0 ? 0 : 1]);
  } else if (const int behind = head(move.link(), move.rank, move.place); behind >= 0) {
    bytes += room_of(moves_[behind].chunk, to);
  }
  make_room(to, bytes, !needed, move.chunk, needed ? urgent_rank : normal_rank);
  return source_stands(move) && take(move.chunk, to);
}

void Naive::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, int rank) {
  const auto lacking = [&]() -> Bytes {
    const Bytes have = free(tier) + leaving(tier);
    return have < bytes ? bytes - have : 0;
  };
  if (lacking() == 0 || !asked_.insert({tier, prefetch}).second) return;
  std::vector<ChunkId> victims;
  const Residency memory = mirror();
  policy_.make_room({tier, lacking(), prefetch, incoming}, view(memory), victims);
  for (const ChunkId chunk : victims) {
    if (chunk < bytes_.size()) evict(chunk, tier, no_tier, rank);
  }
  if (prefetch || !layout_.fallback_eviction) return;
  for (const ChunkId chunk : std::vector<ChunkId>(order_[tier])) {
    if (lacking() == 0) break;
    if (evictable(chunk, tier)) evict(chunk, tier, no_tier, rank);
  }
}

}  // namespace
}  // namespace tencache::naive

namespace tencache {

NaiveResult run_naive(const Program& program, const MachineSpec& machine, Policy& policy, std::uint64_t iterations) {
  return naive::Naive(program, machine, policy, iterations).run();
}

}  // namespace tencache
