#include "tests/differential/naive_engine.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/metrics.h"
#include "core/residency.h"
#include "core/schedule.h"
#include "tests/differential/naive_order.h"

namespace tencache::naive {
namespace {

enum class Kind { fetch, evict, clean };
enum Rank { urgent_rank, normal_rank, background_rank };

struct Where {
  CopyState state = CopyState::absent;
  int pins = 0, readers = 0, writers = 0;
  bool leaving = false;
  bool valid() const { return state == CopyState::valid; }
};

struct Move {
  ChunkId chunk = none;
  TierId from = 0, to = 0;
  Kind kind = Kind::fetch;
  int rank = normal_rank;
  std::vector<LinkId> path;
  std::size_t hop = 0;                    // of the piece
  Bytes bytes = 0, moved = 0, piece = 0;  // in all, of the pieces before, of this one
  bool queued = false, flying = false, useless = false;
  long long place = 0;  // in its queue: the least is the first
  OpIndex not_before = none;
  std::vector<std::size_t> buffers;
  int job = 0;
  LinkId link() const { return path[hop]; }
  bool begun() const { return hop > 0 || moved > 0; }
  bool more_pieces() const { return moved + piece < bytes; }
  bool reads() const { return hop == 0 || more_pieces(); }
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
  OpIndex next_op() const { return ops[issued % ops.size()]; }
  std::uint64_t next_iteration() const { return issued / ops.size(); }
  bool at_work() const {
    return gap_pending || std::ranges::any_of(running, [](const Running& op) { return op.started; });
  }
};

struct NoRoom {};

// Memory in which chunks move, one number for each unit of it: the chunk that lies there, or `none`.
class Arena {
 public:
  struct Run {  // of units with the same number
    std::size_t begin = 0, size = 0;
    ChunkId chunk = none;
    std::size_t end() const { return begin + size; }
  };
  struct Step {
    ChunkId chunk = none;
    std::size_t to = 0;
  };

  explicit Arena(std::size_t units) : units_(units, none) {}
  std::vector<Run> runs() const;
  // In the lowest hole that holds so many units, or at the end of the highest.
  std::optional<std::size_t> place_for(std::size_t units, bool high) const;
  // In the smallest, of equal ones the lowest.
  std::optional<std::size_t> smallest_for(std::size_t units) const;
  void put(ChunkId chunk, std::size_t at, std::size_t units) { fill(chunk, at, units); }
  void take_out(ChunkId chunk) { std::ranges::replace(units_, chunk, ChunkId{none}); }
  std::vector<std::uint64_t> units_of(ChunkId chunk) const;
  std::vector<Step> make_hole(std::size_t units, const std::set<ChunkId>& immovable) const;

 private:
  struct Plan {
    std::size_t units = 0;  // that move
    std::vector<Step> steps;
  };
  std::optional<Plan> clear_window(std::size_t begin, std::size_t units, const std::set<ChunkId>& immovable) const;
  std::optional<Plan> slide(std::size_t first_run, std::size_t last_run, std::size_t units,
                            const std::set<ChunkId>& immovable) const;
  void fill(ChunkId chunk, std::size_t at, std::size_t units) {
    std::fill_n(units_.begin() + static_cast<std::ptrdiff_t>(at), units, chunk);
  }

  std::vector<ChunkId> units_;
};

// Which chunk lies where, and the room that is left.
class Chunks {
 public:
  Chunks(const Program& program, const MachineSpec& spec, const Layout& layout);

  std::size_t tiers() const { return spec_.tiers.size(); }
  ChunkId count() const { return static_cast<ChunkId>(bytes_.size()); }
  std::size_t tensor_count() const { return first_.size() - 1; }
  ChunkRange of(TensorId tensor) const { return {first_[tensor], first_[tensor + 1]}; }
  ChunkId first(TensorId tensor) const { return first_[tensor]; }
  TensorId tensor_of(ChunkId chunk) const { return owner_[chunk]; }
  Bytes bytes_in(ChunkId chunk, TierId tier) const {
    return spec_.tiers[tier].kind == TierKind::gpu ? bytes_[chunk] : stored_[chunk];
  }
  Bytes bytes_moved(ChunkId chunk, TierId from, TierId to) const {
    return spec_.tiers[from].kind == TierKind::gpu ? bytes_in(chunk, to) : stored_[chunk];
  }
  Where& at(ChunkId chunk, TierId tier) { return where_[chunk][tier]; }
  bool valid(ChunkId chunk, TierId tier) { return at(chunk, tier).valid(); }
  // From the coldest to the warmest.
  const std::vector<ChunkId>& order(TierId tier) const { return order_[tier]; }
  Bytes room_of(ChunkId chunk, TierId tier) const;
  Bytes free(TierId tier);
  Bytes capacity(TierId tier) const;
  // Of a tier whose capacity changes.
  void set_capacity(TierId tier, Bytes bytes) { present_[tier] = bytes; }
  bool keeps(TierId tier) const { return !spec_.tiers[tier].over_time.any(); }
  Bytes excess(TierId tier);
  Bytes leaving(TierId tier);
  bool evictable(ChunkId chunk, TierId tier);
  void rank(ChunkId chunk, TierId tier, bool coldest);
  bool take(ChunkId chunk, TierId tier);
  bool moves(TierId tier) const { return tier == 0 && arena_.has_value(); }
  bool has_hole(ChunkId chunk, TierId tier);
  // Empty: there is one already, or none can be made, or chunks of the tier do not move. `waiting`: how often ops that
  // wait pin each.
  std::vector<Arena::Step> make_hole(ChunkId chunk, TierId tier, const std::map<ChunkId, int>& waiting);
  // To that unit.
  void move(const Arena::Step& step);
  Bytes unit() const { return std::max<Bytes>(512, spec_.tiers[0].granularity); }
  std::size_t units_of(ChunkId chunk) const { return room_of(chunk, 0) / unit(); }
  void touch(ChunkId chunk, TierId tier, bool write, std::vector<Touch>& touches) const;
  void make_valid(ChunkId chunk, TierId tier);
  void give_back(ChunkId chunk, TierId tier);
  void condemn(ChunkId chunk, TierId tier);
  void drop(ChunkId chunk, TierId tier) { at(chunk, tier).readers > 0 ? condemn(chunk, tier) : give_back(chunk, tier); }
  // What a policy may look at, built anew.
  Residency mirror();

 private:
  void rank_below(ChunkId chunk, bool coldest);

  const Program& program_;
  const MachineSpec& spec_;
  const Layout& layout_;
  std::vector<ChunkId> first_;
  std::vector<Bytes> bytes_, stored_;
  std::vector<TensorId> owner_;
  std::vector<std::vector<Where>> where_;
  std::vector<std::vector<ChunkId>> order_;
  std::vector<ChunkId> left_;  // the first tier, in order
  std::map<TierId, Bytes> present_;
  std::optional<Arena> arena_;
};

// Which tensors are dead, and which have content.
struct Lives {
  std::vector<std::uint8_t> dead, born;
  std::vector<std::size_t> uses, left;  // in an iteration, being freed among them; in this one

  // One of them is over. Whether it was the last.
  bool use_ends(TensorId tensor) {
    if (--left[tensor] > 0) return false;
    left[tensor] = uses[tensor];
    return true;
  }
};

// Where the program is.
struct Progress {
  std::uint64_t iterations = 0, iteration = 0;
  NameId module = 0;
  OpIndex op = none;

  bool over() const { return iteration == iterations; }
  bool all_done(const NaiveLane& lane) const { return lane.done == iterations * lane.ops.size(); }
  bool all_issued(const NaiveLane& lane) const { return lane.issued == iterations * lane.ops.size(); }
};

// Where iterations end. Of a machine that does not run ahead there are no ops to count.
struct Crossings {
  std::vector<std::pair<Nanoseconds, std::size_t>> told;  // when, and after how many ops of the GPU's lane
  std::size_t gpu_ops = 0;                                // so far
  std::vector<Nanoseconds> gpu_op_ends;
  Nanoseconds communication_end_ns = 0;  // of the last op there
};

// Moves by number, and their places in the queues: the least is the first.
struct Moves {
  std::map<int, Move> all;
  int last = 0;
  long long front_place = 0, back_place = 0;

  int add(const Move& move) {
    all[++last] = move;
    return last;
  }
  void enqueue(int id, bool front) {
    all[id].queued = true;
    all[id].place = front ? --front_place : ++back_place;
  }
  long long enqueued() const { return back_place - front_place; }
};

// Events that wait for the policy, with the depth of refusals of refusals at which they came.
struct EventQueue {
  std::deque<std::pair<Event, int>> waiting;
  bool telling = false;
  int depth = 0;

  std::pair<Event, int> take() {
    const auto next = waiting.front();
    waiting.pop_front();
    return next;
  }
};

class Naive {
 public:
  Naive(const Program& program, const MachineSpec& spec, Policy& policy, std::uint64_t iterations);

  NaiveResult run();

 private:
  std::size_t tiers() const { return spec_.tiers.size(); }
  // What the waiting ops of the tier still need.
  Bytes wanted(const NaiveLane& lane);
  Bytes wanted(TierId tier);
  std::vector<Arena::Step> find_hole(ChunkId chunk, TierId tier);
  // If need be after others have moved, which the server does.
  bool take_room(ChunkId chunk, TierId tier, std::size_t server);
  bool droppable(ChunkId chunk, TierId tier);
  void place_initially(TensorId tensor);

  // The policy.
  View view(const Residency& memory);
  void tell(const Event& event);
  void refuse(Refusal reason, const Action& action, ChunkId chunk);
  bool out_of_patience() const { return copies_waited_ > 1000 + 16 * std::uint64_t{chunks_.count()}; }
  void apply(const Action& action);
  Refusal act(const Action& action, ChunkId chunk);

  // Transfers.
  std::vector<LinkId> path(TierId from, TierId to) const;
  BytesPerSecond speed(TierId from, TierId to) const;
  int arriving(ChunkId chunk, TierId to) const;
  std::vector<int> moves_of(ChunkId chunk) const;
  TierId source(ChunkId chunk, TierId to);
  int request(ChunkId chunk, TierId from, TierId to, Kind kind, int rank);
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
  void make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, int rank);

  // Ops.
  bool advance(std::size_t index);
  bool frees_what_is_written(OpIndex freeing, OpIndex writing) const;
  // Every earlier op of the other lane, of this iteration and the one before, that conflicts is done.
  bool may_issue(std::size_t index);
  bool issue_next(std::size_t index);
  void issue(std::size_t index);
  void change_module(NameId module);
  void require(NaiveLane& lane, Running& running, const Use& use, ChunkId chunk);
  void give_rooms(NaiveLane& lane);
  bool try_start(std::size_t index);
  void finish(std::size_t index, const Job& job);
  void forget_if_overwritten(TensorId tensor, TierId tier);
  void die(TensorId tensor);

  // Inputs.
  void follow_capacities();
  void shrink(TierId tier);
  void handle(const Ended& ended);
  void transfer_over(const Ended& ended);
  // The first copy is over: an eviction's room goes free, if nobody took the chunk back meanwhile.
  void leave(const Move& move);
  void discard(int id);
  void record(const NaiveOp& op, const Job& job);
  void record(const NaiveTransfer& transfer, const Job& job);
  void observe(const Ended& ended);
  void count_iterations();
  void cross_boundary();
  void pump();
  bool moving() const;
  bool standstill();

  const Program& program_;
  const MachineSpec& spec_;
  Policy& policy_;
  Schedule schedule_;
  std::map<TensorId, std::size_t> uses_done_;  // ever, of persistent tensors
  NaiveOrderedMachine machine_;
  Nanoseconds input_ns_ = 0;  // of the last completion: moves, which nobody hears of, may end later
  Layout layout_;
  NaiveLane lanes_[lane_count];  // ops come to the communication lane when they have started on the GPU's
  Chunks chunks_;
  Moves moves_;
  std::vector<bool> buffers_;
  Lives lives_;
  std::vector<std::uint32_t> load_;
  std::set<std::pair<TierId, bool>> asked_;
  std::vector<Hold> holds_;
  std::uint64_t copies_waited_ = 0;
  EventQueue events_;
  Progress progress_;
  Crossings crossings_;
  std::map<int, NaiveOp> ops_to_observe_;
  std::map<int, NaiveTransfer> transfers_to_observe_;
  NaiveResult result_;
};

// ---- Memory in which chunks move. -----------------------------------------------------------------------------------

std::vector<Arena::Run> Arena::runs() const {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (runs.empty() || runs.back().chunk != units_[i]) runs.push_back({i, 0, units_[i]});
    ++runs.back().size;
  }
  return runs;
}

std::vector<std::uint64_t> Arena::units_of(ChunkId chunk) const {
  std::vector<std::uint64_t> numbers;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i] == chunk) numbers.push_back(i);
  }
  return numbers;
}

std::optional<std::size_t> Arena::place_for(std::size_t units, bool high) const {
  std::optional<std::size_t> place;
  for (const Run& run : runs()) {
    if (run.chunk != none || run.size < units) continue;
    if (high) {
      place = run.end() - units;
    } else if (!place) {
      place = run.begin;
    }
  }
  return place;
}

std::optional<std::size_t> Arena::smallest_for(std::size_t units) const {
  std::optional<Run> best;
  for (const Run& run : runs()) {
    if (run.chunk == none && run.size >= units && (!best || run.size < best->size)) best = run;
  }
  return best ? std::optional(best->begin) : std::nullopt;
}

std::optional<Arena::Plan> Arena::clear_window(std::size_t begin, std::size_t units,
                                               const std::set<ChunkId>& immovable) const {
  std::vector<Run> leaving;
  bool at_an_edge = begin == 0 || begin + units == units_.size();
  for (const Run& run : runs()) {
    if (run.chunk == none) continue;
    for (const std::size_t edge : {run.begin, run.end()}) at_an_edge |= edge == begin || edge == begin + units;
    if (run.begin < begin + units && run.end() > begin) leaving.push_back(run);
  }
  if (!at_an_edge) return std::nullopt;
  std::ranges::stable_sort(leaving, [](const Run& a, const Run& b) { return a.size > b.size; });
  Arena filling = *this;
  for (std::size_t i = begin; i < begin + units; ++i) {
    if (filling.units_[i] == none) filling.units_[i] = none - 1;  // nobody's, and no hole
  }
  Plan plan;
  for (const Run& run : leaving) {
    const auto to = filling.smallest_for(run.size);
    if (!to || immovable.contains(run.chunk)) return std::nullopt;
    filling.put(run.chunk, *to, run.size);
    plan.steps.push_back({run.chunk, *to});
    plan.units += run.size;
  }
  return plan;
}

// What lies between two holes goes down.
std::optional<Arena::Plan> Arena::slide(std::size_t first_run, std::size_t last_run, std::size_t units,
                                        const std::set<ChunkId>& immovable) const {
  const std::vector<Run> all = runs();
  if (all[first_run].chunk != none || all[last_run].chunk != none) return std::nullopt;
  Plan plan;
  std::size_t free = 0, to = all[first_run].begin;
  for (std::size_t i = first_run; i <= last_run; ++i) {
    if (all[i].chunk == none) {
      free += all[i].size;
      continue;
    }
    if (immovable.contains(all[i].chunk)) return std::nullopt;
    plan.steps.push_back({all[i].chunk, to});
    plan.units += all[i].size;
    to += all[i].size;
  }
  return free >= units ? std::optional(plan) : std::nullopt;
}

std::vector<Arena::Step> Arena::make_hole(std::size_t units, const std::set<ChunkId>& immovable) const {
  std::optional<Plan> best;
  const auto consider = [&best](const std::optional<Plan>& plan) {
    if (plan && (!best || plan->units < best->units)) best = plan;
  };
  for (std::size_t begin = 0; begin + units <= units_.size(); ++begin) consider(clear_window(begin, units, immovable));
  const std::size_t count = runs().size();
  for (std::size_t first = 0; first < count; ++first) {
    for (std::size_t last = first; last < count; ++last) consider(slide(first, last, units, immovable));
  }
  return best ? best->steps : std::vector<Step>();
}

// ---- Chunks. ---------------------------------------------------------------------------------------------------------

Chunks::Chunks(const Program& program, const MachineSpec& spec, const Layout& layout)
    : program_(program), spec_(spec), layout_(layout) {
  for (const Tensor& tensor : program.trace.tensors) {
    first_.push_back(static_cast<ChunkId>(bytes_.size()));
    const Bytes unit = layout.chunk_bytes == 0 ? tensor.bytes : layout.chunk_bytes;
    for (Bytes begin = 0; begin < tensor.bytes; begin += unit) {
      const Bytes end = std::min(tensor.bytes, begin + unit);
      bytes_.push_back(end - begin);
      const auto stored = [&](Bytes until) {
        return static_cast<Bytes>(static_cast<uint128>(until) * tensor.stored_bytes / tensor.bytes);
      };
      stored_.push_back(tensor.stored_bytes == 0 ? end - begin : std::max<Bytes>(1, stored(end) - stored(begin)));
      owner_.push_back(static_cast<TensorId>(first_.size() - 1));
    }
  }
  first_.push_back(static_cast<ChunkId>(bytes_.size()));
  where_.assign(bytes_.size(), std::vector<Where>(tiers()));
  order_.resize(tiers());
  const bool movable = !layout.allocators.empty() && layout.allocators[0].kind == AllocatorKind::movable;
  if (movable && !layout.unlimited_gpu) arena_.emplace(spec.tiers[0].capacity / unit());
}

Bytes Chunks::room_of(ChunkId chunk, TierId tier) const {
  const Bytes unit_there = moves(tier) ? unit() : spec_.tiers[tier].granularity;
  return (bytes_in(chunk, tier) + unit_there - 1) / unit_there * unit_there;
}

Bytes Chunks::free(TierId tier) {
  Bytes used = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk)
    used += at(chunk, tier).state == CopyState::absent ? 0 : room_of(chunk, tier);
  return capacity(tier) - std::min(capacity(tier), used);
}

Bytes Chunks::excess(TierId tier) {
  Bytes stays = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) {
    if (at(chunk, tier).state != CopyState::absent && !at(chunk, tier).leaving) stays += room_of(chunk, tier);
  }
  return stays - std::min(stays, capacity(tier));
}

Bytes Chunks::capacity(TierId tier) const {
  const Bytes all = tier == 0 && layout_.unlimited_gpu ? unlimited : spec_.tiers[tier].capacity;
  if (const auto present = present_.find(tier); present != present_.end()) return present->second;
  return moves(tier) ? all - all / 128 : all;
}

Bytes Chunks::leaving(TierId tier) {
  Bytes sum = 0;
  for (ChunkId chunk = 0; chunk < bytes_.size(); ++chunk) sum += at(chunk, tier).leaving ? room_of(chunk, tier) : 0;
  return sum;
}

bool Chunks::evictable(ChunkId chunk, TierId tier) {
  const Where& w = at(chunk, tier);
  return w.state == CopyState::valid && w.pins == 0 && !w.leaving;
}

void Chunks::rank(ChunkId chunk, TierId tier, bool coldest) {
  std::erase(order_[tier], chunk);
  order_[tier].insert(coldest ? order_[tier].begin() : order_[tier].end(), chunk);
}

void Chunks::rank_below(ChunkId chunk, bool coldest) {
  for (TierId tier = 1; tier < tiers(); ++tier) {
    if (valid(chunk, tier)) rank(chunk, tier, coldest);
  }
}

bool Chunks::take(ChunkId chunk, TierId tier) {
  if (room_of(chunk, tier) > free(tier)) return false;
  if (moves(tier)) {
    const std::size_t units = units_of(chunk);
    const Tensor& tensor = program_.trace.tensors[owner_[chunk]];
    const std::set<Role> kept = {Role::parameter, Role::master_parameter, Role::optimizer_state, Role::expert};
    const auto place = arena_->place_for(units, !tensor.persistent && !kept.contains(tensor.role));
    if (!place) return false;
    arena_->put(chunk, *place, units);
  }
  at(chunk, tier).state = CopyState::reserved;
  return true;
}

bool Chunks::has_hole(ChunkId chunk, TierId tier) {
  if (room_of(chunk, tier) > free(tier)) return false;
  return !moves(tier) || arena_->place_for(units_of(chunk), false);
}

std::vector<Arena::Step> Chunks::make_hole(ChunkId chunk, TierId tier, const std::map<ChunkId, int>& waiting) {
  if (!moves(tier) || room_of(chunk, tier) > free(tier) || has_hole(chunk, tier)) return {};
  std::set<ChunkId> immovable;
  for (ChunkId other = 0; other < bytes_.size(); ++other) {
    const Where& there = at(other, tier);
    const int by_waiting = waiting.contains(other) ? waiting.at(other) : 0;
    if (there.state != CopyState::valid || there.pins > by_waiting || there.readers > 0) immovable.insert(other);
  }
  return arena_->make_hole(units_of(chunk), immovable);
}

void Chunks::move(const Arena::Step& step) {
  arena_->take_out(step.chunk);
  arena_->put(step.chunk, step.to, units_of(step.chunk));
}

void Chunks::touch(ChunkId chunk, TierId tier, bool write, std::vector<Touch>& touches) const {
  if (!moves(tier)) return touches.push_back({tier, chunk, write});
  for (const std::uint64_t unit : arena_->units_of(chunk)) touches.push_back({tier, unit, write});
}

void Chunks::make_valid(ChunkId chunk, TierId tier) {
  at(chunk, tier).state = CopyState::valid;
  rank(chunk, tier, tier != 0 && valid(chunk, 0));
  if (tier == 0) rank_below(chunk, true);
}

void Chunks::give_back(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  if (moves(tier)) arena_->take_out(chunk);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::absent;
  if (tier == 0) left_.push_back(chunk);
  at(chunk, tier).leaving = false;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

void Chunks::condemn(ChunkId chunk, TierId tier) {
  const bool was_valid = valid(chunk, tier);
  std::erase(order_[tier], chunk);
  at(chunk, tier).state = CopyState::condemned;
  at(chunk, tier).leaving = true;
  if (tier == 0 && was_valid) rank_below(chunk, false);
}

Residency Chunks::mirror() {
  // Of holes a policy sees nothing.
  MachineSpec seen = spec_;
  seen.tiers[0].capacity = capacity(0);
  Residency memory(seen, std::vector<AllocatorSpec>(tiers()), layout_.chunk_bytes, layout_.unlimited_gpu);
  for (const Tensor& tensor : program_.trace.tensors) {
    memory.add_tensor(tensor.bytes, tensor.role, tensor.persistent, tensor.stored_bytes);
  }
  for (const ChunkId chunk : left_) {
    if (!memory.reserve(chunk, 0)) throw std::logic_error("what has left the first tier has no room in it");
    memory.release(chunk, 0);
  }
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
  for (const auto& [tier, bytes] : present_) memory.set_capacity(tier, bytes);
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

// ---- Program, ops, inputs. -------------------------------------------------------------------------------------------

Naive::Naive(const Program& program, const MachineSpec& spec, Policy& policy, std::uint64_t iterations)
    : program_(program),
      spec_(spec),
      policy_(policy),
      schedule_(program.trace),
      machine_(spec),
      layout_(policy.layout(spec, &program)),
      chunks_(program, spec, layout_),
      progress_{.iterations = iterations} {
  if (layout_.overlap_faults) throw Error("the naive engine has no overlapped arrivals");
  if (layout_.allocators.empty()) layout_.allocators.resize(spec.tiers.size());
  lanes_[0].tier = 0;
  lanes_[cpu_lane].tier = spec.tier_of(Device::cpu);
  lanes_[communication_lane].tier = 0;
  for (OpIndex i = 0; i < program.trace.ops.size(); ++i)
    lanes_[program.trace.ops[i].device == Device::gpu ? 0 : 1].ops.push_back(i);
  buffers_.assign(spec.staging.count, false);
  const std::size_t tensors = program.trace.tensors.size();
  lives_.dead.assign(tensors, 0);
  lives_.born.assign(tensors, 0);
  for (TensorId tensor = 0; tensor < tensors; ++tensor) lives_.uses.push_back(schedule_.ops_of(tensor).size());
  for (const Op& op : program.trace.ops) {
    for (const TensorId tensor : program.trace.frees(op)) ++lives_.uses[tensor];
  }
  lives_.left = lives_.uses;
}

NaiveResult Naive::run() {
  try {
    for (TensorId tensor = 0; tensor < chunks_.tensor_count(); ++tensor) {
      if (program_.trace.tensors[tensor].persistent) place_initially(tensor);
    }
    tell({.kind = EventKind::profile_ready});
    tell({.kind = EventKind::iteration_begin});
    pump();
    while (!progress_.over()) {
      if (progress_.all_done(lanes_[0]) && progress_.all_done(lanes_[1]) &&
          lanes_[communication_lane].running.empty()) {
        cross_boundary();
        break;
      }
      Ended ended;
      if (!machine_.next(ended)) {
        follow_capacities();  // nothing changes, but what was being copied may leave now
        if (!standstill()) throw NoRoom{};
        continue;
      }
      input_ns_ = machine_.now();
      follow_capacities();
      if (ended.observed) {
        observe(ended);
      } else {
        asked_.clear();
        handle(ended);
      }
    }
    for (Ended ended; !ops_to_observe_.empty() && machine_.next(ended);) {
      if (ended.observed) observe(ended);
    }
  } catch (const NoRoom&) {
    result_.fits = false;
  }
  count_iterations();
  for (TierId tier = 0; tier < tiers(); ++tier) result_.residents.push_back(chunks_.order(tier));
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
  while (!progress_.over() && !lane.waiting && lane.running.size() < spec_.issue_ahead && issue_next(index))
    progress = true;
  return progress;
}

bool Naive::frees_what_is_written(OpIndex freeing, OpIndex writing) const {
  for (const TensorId tensor : program_.trace.frees(program_.trace.ops[freeing])) {
    for (const TensorId written : program_.trace.writes(program_.trace.ops[writing])) {
      if (tensor == written) return true;
    }
  }
  return false;
}

bool Naive::may_issue(std::size_t index) {
  const NaiveLane& lane = lanes_[index];
  const NaiveLane& other = lanes_[1 - index];
  const OpIndex op = lane.next_op();
  const std::uint64_t iteration = lane.next_iteration();
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
      // What one frees the other does not make, before or after.
      if (frees_what_is_written(op, other.ops[i]) || frees_what_is_written(other.ops[i], op)) return false;
    }
  }
  for (const Running& beside : lanes_[communication_lane].running) {
    for (const Use& a : schedule_.uses(op)) {
      for (const Use& b : schedule_.uses(beside.op)) {
        if (a.tensor == b.tensor && (a.write || b.write)) return false;
      }
    }
  }
  return true;
}

bool Naive::issue_next(std::size_t index) {
  NaiveLane& lane = lanes_[index];
  if (lane.ops.empty() || progress_.all_issued(lane) || lane.gap_pending || !may_issue(index)) return false;
  const std::size_t at_op = lane.issued % lane.ops.size();
  const Op& op = program_.trace.ops[lane.ops[at_op]];
  if (index == 0 && at_op == 0 && lane.issued > 0 && !lane.gap_done && !lane.boundary_crossed) {
    lane.boundary_crossed = true;
    cross_boundary();
    if (progress_.over()) return false;
    tell({.kind = EventKind::iteration_begin});
  }
  const bool issued = machine_.runs_ahead() && index == 0 && op.issue_ns > 0;
  const Nanoseconds host_ns = issued ? op.issue_ns : op.gap_before_ns;
  if (host_ns > 0 && !lane.gap_done) {
    lane.gap_pending = true;
    Job job = machine_.below().op(index, host_ns, 0);
    job.gap = true;
    machine_.push(index, job);
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
    progress_.op = running.op;
    change_module(program_.trace.ops[running.op].module);
    for (auto& [id, move] : moves_.all) {
      if (move.not_before == running.op && !move.queued && !move.flying) {
        move.not_before = none;
        moves_.enqueue(id, false);
      }
    }
  }
  for (const Hold& hold : holds_) {
    if (hold.op == running.op) running.holds.push_back(hold);
  }
  std::erase_if(holds_, [&](const Hold& hold) { return hold.op == running.op; });
  for (const Use& use : schedule_.uses(running.op)) {
    if (use.write) lives_.dead[use.tensor] = 0;
    for (const ChunkId chunk : chunks_.of(use.tensor)) require(lane, running, use, chunk);
  }
  tell({.kind = EventKind::op_issued,
        .device = index == cpu_lane ? Device::cpu : Device::gpu,
        .op = running.op,
        .uses = schedule_.uses(running.op)});
  give_rooms(lane);
  try_start(index);
}

void Naive::change_module(NameId module) {
  if (module == progress_.module) return;
  if (progress_.module != 0) tell({.kind = EventKind::module_end, .op = progress_.op, .module = progress_.module});
  progress_.module = module;
  if (module != 0) tell({.kind = EventKind::module_begin, .op = progress_.op, .module = module});
}

void Naive::require(NaiveLane& lane, Running& running, const Use& use, ChunkId chunk) {
  Where& here = chunks_.at(chunk, lane.tier);
  ++here.pins;
  if (use.write) {
    stop_reading(chunk, lane.tier);
    ++here.writers;
  }
  if (here.state == CopyState::valid) {
    if (here.leaving) rescue(chunk, lane.tier);
    if (layout_.use_touches) chunks_.rank(chunk, lane.tier, false);
    return;
  }
  const int coming = arriving(chunk, lane.tier);
  if (here.state == CopyState::reserved) {
    if (coming >= 0) demand(coming);
    return;
  }
  if (use.read || (layout_.free_dead == FreeDead::never && lives_.born[use.tensor] != 0)) {
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
    if (chunks_.at(chunk, lane.tier).state != CopyState::absent) break;
    if (!take_room(chunk, lane.tier, gpu_lane)) {
      make_room(lane.tier, wanted(lane), false, none, chunk, urgent_rank);
      if (!take_room(chunk, lane.tier, gpu_lane)) break;
    }
    chunks_.make_valid(chunk, lane.tier);
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
  const bool beside = program_.trace.ops[running.op].stream == OpStream::communication;
  if (beside && lane.running.size() > 1) return false;
  for (const Use& use : schedule_.uses(running.op)) {
    for (const ChunkId chunk : chunks_.of(use.tensor)) {
      if (!chunks_.valid(chunk, lane.tier) || (use.write && chunks_.at(chunk, lane.tier).readers > 0)) return false;
    }
  }
  std::erase_if(running.holds, [&](const Hold& hold) {
    for (const ChunkId chunk : chunks_.of(hold.tensor)) {
      const int coming = arriving(chunk, hold.tier);
      if (coming >= 0 && (moves_.all[coming].queued || moves_.all[coming].flying)) return false;
    }
    return true;
  });
  if (!running.holds.empty() && !out_of_patience()) return false;
  lane.waiting = false;
  running.started = true;
  copies_waited_ = 0;
  tell({.kind = EventKind::op_ready,
        .device = index == cpu_lane ? Device::cpu : Device::gpu,
        .op = running.op,
        .uses = schedule_.uses(running.op)});
  const Op& of_program = program_.trace.ops[running.op];
  std::size_t server = index;
  if (beside) {
    server = communication_lane;
    lanes_[server].running.push_back(running);
    lane.running.pop_back();
    ++lane.done;
  }
  Job job = machine_.below().op(server, of_program.duration_ns, of_program.bytes);
  job.op = running.op;
  for (const Use& use : schedule_.uses(running.op)) {
    for (const ChunkId chunk : chunks_.of(use.tensor)) {
      chunks_.touch(chunk, lanes_[server].tier, use.write, job.touches);
    }
  }
  machine_.push(server, job);
  return true;
}

void Naive::finish(std::size_t index, const Job& job) {
  NaiveLane& lane = lanes_[index];
  const OpIndex op = lane.running.front().op;
  record(NaiveOp{static_cast<std::uint8_t>(index), op, job.start_ns, machine_.now()}, job);
  for (const Use& use : schedule_.uses(op)) {
    for (const ChunkId chunk : chunks_.of(use.tensor)) {
      --chunks_.at(chunk, lane.tier).pins;
      if (!use.write) continue;
      --chunks_.at(chunk, lane.tier).writers;
      for (TierId other = 0; other < tiers(); ++other) {
        if (other != lane.tier) make_useless(chunk, other);
      }
    }
    if (use.write) lives_.born[use.tensor] = 1;
  }
  tell({.kind = EventKind::op_done,
        .device = index == cpu_lane ? Device::cpu : Device::gpu,
        .op = op,
        .uses = schedule_.uses(op)});
  for (const Use& use : schedule_.uses(op)) {
    if (program_.trace.tensors[use.tensor].persistent) {
      forget_if_overwritten(use.tensor, lane.tier);
      continue;
    }
    if (lives_.use_ends(use.tensor) && chunks_.at(chunks_.first(use.tensor), lane.tier).pins == 0) die(use.tensor);
  }
  for (const TensorId tensor : program_.trace.frees(program_.trace.ops[op])) {
    if (lives_.use_ends(tensor) && chunks_.at(chunks_.first(tensor), lane.tier).pins == 0) die(tensor);
  }
  lane.running.pop_front();
  if (index != communication_lane) ++lane.done;
}

// As many uses are done as come before one in this iteration that writes without reading.
void Naive::forget_if_overwritten(TensorId tensor, TierId tier) {
  const auto ops = schedule_.ops_of(tensor);
  const std::size_t place = ++uses_done_[tensor] % ops.size();
  if (!layout_.forgets_overwritten || place == 0) return;
  for (const Use& use : schedule_.uses(ops[place])) {
    if (use.tensor == tensor && !use.read && chunks_.at(chunks_.first(tensor), tier).pins == 0) die(tensor);
  }
}

void Naive::die(TensorId tensor) {
  if (layout_.free_dead == FreeDead::never) return;
  lives_.dead[tensor] = 1;
  if (layout_.free_dead != FreeDead::now) return;
  lives_.born[tensor] = 0;
  for (const ChunkId chunk : chunks_.of(tensor)) {
    for (TierId tier = 0; tier < tiers(); ++tier) make_useless(chunk, tier);
  }
}

// What is done on a machine that runs ahead is in the result when it is observed.
void Naive::record(const NaiveOp& op, const Job& job) {
  if (!machine_.runs_ahead()) return result_.ops.push_back(op);
  ops_to_observe_[job.number] = op;
  if (op.lane == gpu_lane) ++crossings_.gpu_ops;
}

void Naive::record(const NaiveTransfer& transfer, const Job& job) {
  if (!machine_.runs_ahead() || !transfer.done) return result_.transfers.push_back(transfer);
  transfers_to_observe_[job.number] = transfer;
}

void Naive::observe(const Ended& ended) {
  const int number = ended.job.number;
  if (const auto op = ops_to_observe_.find(number); op != ops_to_observe_.end()) {
    op->second.start_ns = ended.job.start_ns;
    op->second.end_ns = machine_.now();
    result_.ops.push_back(op->second);
    if (op->second.lane == gpu_lane) crossings_.gpu_op_ends.push_back(machine_.now());
    if (op->second.lane == communication_lane) crossings_.communication_end_ns = machine_.now();
    ops_to_observe_.erase(op);
  }
  if (const auto copy = transfers_to_observe_.find(number); copy != transfers_to_observe_.end()) {
    copy->second.start_ns = ended.job.start_ns;
    copy->second.end_ns = machine_.now();
    result_.transfers.push_back(copy->second);
    transfers_to_observe_.erase(copy);
  }
}

// An iteration ends when it has for the engine, or with its last op on the GPU's lane.
void Naive::count_iterations() {
  Nanoseconds last_ns = 0;
  for (const auto& [told_ns, gpu_ops] : crossings_.told) {
    const Nanoseconds ops_ns = gpu_ops == 0 ? 0 : crossings_.gpu_op_ends[gpu_ops - 1];
    Nanoseconds end_ns = std::max(told_ns, ops_ns);
    // The run ends with all ops.
    if (result_.iteration_ns.size() + 1 == progress_.iterations) {
      end_ns = std::max(end_ns, crossings_.communication_end_ns);
    }
    result_.iteration_ns.push_back(end_ns - last_ns);
    last_ns = end_ns;
  }
}

void Naive::follow_capacities() {
  for (TierId tier = 0; tier < tiers(); ++tier) {
    const CapacityOverTime& over_time = spec_.tiers[tier].over_time;
    if (!over_time.any()) continue;
    const Nanoseconds now = over_time.period_ns > 0 ? input_ns_ % over_time.period_ns : input_ns_;
    Bytes bytes = spec_.tiers[tier].capacity;
    for (const CapacityOverTime::Change& change : over_time.changes) {
      if (change.at_ns <= now) bytes = std::min(change.bytes, spec_.tiers[tier].capacity);
    }
    const Bytes before = chunks_.capacity(tier);
    chunks_.set_capacity(tier, bytes);
    for (ChunkId chunk = 0; bytes < before && chunk < chunks_.count(); ++chunk) {
      const int coming = arriving(chunk, tier);
      if (coming >= 0 && !moves_.all[coming].flying && !moves_.all[coming].begun()) withdraw(coming);
    }
    shrink(tier);
    if (bytes != before) tell({.kind = EventKind::capacity_changed, .to = tier});
  }
}

void Naive::shrink(TierId tier) {
  if (chunks_.excess(tier) == 0) return;
  std::vector<ChunkId> victims;
  const Residency memory = chunks_.mirror();
  policy_.make_room({.tier = tier, .bytes = chunks_.excess(tier)}, view(memory), victims);
  const std::vector<ChunkId> coldest = chunks_.order(tier);
  for (const ChunkId chunk : victims) {
    if (chunk < chunks_.count() && chunks_.excess(tier) > 0) evict(chunk, tier, no_tier, urgent_rank);
  }
  for (const ChunkId chunk : coldest) {
    if (chunks_.excess(tier) > 0) evict(chunk, tier, no_tier, urgent_rank);
  }
}

void Naive::handle(const Ended& ended) {
  if (ended.server >= naive_lanes) {
    ++copies_waited_;
    for (const NaiveLane& lane : lanes_) {
      if (lane.at_work()) copies_waited_ = 0;
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
  Move& move = moves_.all[id];
  const LinkId link = move.link();
  const bool done = !ended.job.cancelled;
  move.flying = false;
  record(NaiveTransfer{link, move.chunk, move.from, move.to, move.rank == urgent_rank, done, ended.job.start_ns,
                       machine_.now()},
         ended.job);
  if (move.hop == 0) --chunks_.at(move.chunk, move.from).readers;
  if (!done || move.useless) return discard(id);
  if (move.hop == 0 && move.path.size() > 1) {
    ++move.hop;
    leave(move);
    moves_.enqueue(id, true);
    return;
  }
  if (move.more_pieces()) {
    move.moved += move.piece;
    move.piece = std::min(move.piece, move.bytes - move.moved);
    move.hop = 0;
    moves_.enqueue(id, true);
    return;
  }
  const Move arrived = move;
  free_buffers(arrived);
  chunks_.make_valid(arrived.chunk, arrived.to);
  if (arrived.hop == 0) leave(arrived);
  if (arrived.kind == Kind::fetch && layout_.exclusive_copies && chunks_.evictable(arrived.chunk, arrived.from) &&
      chunks_.at(arrived.chunk, arrived.from).writers == 0) {
    chunks_.drop(arrived.chunk, arrived.from);
  }
  moves_.all.erase(id);
  tell({.kind = EventKind::transfer_done,
        .from = arrived.from,
        .to = arrived.to,
        .op = progress_.op,
        .tensor = chunks_.tensor_of(arrived.chunk),
        .chunk = arrived.chunk});
}

void Naive::leave(const Move& move) {
  const Where& source = chunks_.at(move.chunk, move.from);
  if (source.state == CopyState::condemned && source.readers == 0)
    chunks_.give_back(move.chunk, move.from);
  else if (!move.more_pieces() && source.state == CopyState::valid && move.kind == Kind::evict && source.leaving)
    chunks_.drop(move.chunk, move.from);
}

void Naive::discard(int id) {
  const Move move = moves_.all[id];
  moves_.all.erase(id);
  free_buffers(move);
  const bool needed =
      chunks_.at(move.chunk, move.to).pins > 0 && chunks_.at(move.chunk, move.to).state == CopyState::reserved;
  chunks_.give_back(move.chunk, move.to);
  if (move.reads()) {  // later the chunk may have come back there, and be leaving again
    Where& source = chunks_.at(move.chunk, move.from);
    if (move.kind == Kind::evict && source.state == CopyState::valid) source.leaving = false;
    if (source.state == CopyState::condemned && source.readers == 0) chunks_.give_back(move.chunk, move.from);
  }
  if (needed) lanes_[move.to == 0 ? 0 : 1].running.back().stranded.push_back(move.chunk);
}

void Naive::cross_boundary() {
  crossings_.told.emplace_back(machine_.now(), crossings_.gpu_ops);
  tell({.kind = EventKind::iteration_end});
  ++progress_.iteration;
}

void Naive::pump() {
  for (bool progress = true; progress && !progress_.over();) {
    progress = false;
    for (std::size_t lane = 0; lane < 2; ++lane) progress |= advance(lane);
    const long long queued = moves_.enqueued();
    for (LinkId link = 0; link < spec_.links.size(); ++link) progress |= start_transfers(link);
    progress |= moves_.enqueued() != queued;
  }
}

bool Naive::moving() const {
  for (const auto& [id, move] : moves_.all) {
    if (move.flying) return true;
  }
  for (const NaiveLane& lane : lanes_) {
    if (lane.at_work()) return true;
  }
  return progress_.over();
}

bool Naive::standstill() {
  asked_.clear();
  pump();
  if (moving()) return true;
  for (NaiveLane& lane : lanes_) {
    if (!lane.waiting) continue;
    for (const Use& use : schedule_.uses(lane.running.back().op)) {
      for (const ChunkId chunk : chunks_.of(use.tensor)) {
        if (const int id = arriving(chunk, lane.tier); id >= 0) lift(id);
      }
    }
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      for (int id = head(link, normal_rank); id >= 0;) {
        const int next = head(link, normal_rank, moves_.all[id].place);
        if (moves_.all[id].kind == Kind::evict && moves_.all[id].from == lane.tier) lift(id);
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

Bytes Naive::wanted(const NaiveLane& lane) {
  if (!lane.waiting) return 0;
  Bytes sum = 0;
  for (const Use& use : schedule_.uses(lane.running.back().op)) {
    for (const ChunkId chunk : chunks_.of(use.tensor)) {
      const CopyState state = chunks_.at(chunk, lane.tier).state;
      if (state == CopyState::absent || state == CopyState::condemned) sum += chunks_.room_of(chunk, lane.tier);
    }
  }
  return sum;
}

Bytes Naive::wanted(TierId tier) {
  Bytes sum = 0;
  for (const NaiveLane& lane : lanes_) sum += lane.tier == tier ? wanted(lane) : 0;
  return sum;
}

std::vector<Arena::Step> Naive::find_hole(ChunkId chunk, TierId tier) {
  std::map<ChunkId, int> waiting;
  for (const NaiveLane& lane : lanes_) {
    if (lane.tier != tier) continue;
    for (const Running& running : lane.running) {
      for (const Use& use : schedule_.uses(running.op)) {
        for (const ChunkId used : chunks_.of(use.tensor)) waiting[used] += running.started ? 0 : 1;
      }
    }
  }
  return chunks_.make_hole(chunk, tier, waiting);
}

bool Naive::take_room(ChunkId chunk, TierId tier, std::size_t server) {
  if (chunks_.take(chunk, tier)) return true;
  for (const Arena::Step& step : find_hole(chunk, tier)) {
    Job job = machine_.below().move(chunks_.bytes_in(step.chunk, tier));
    const std::size_t lane = server < naive_lanes ? server : server - naive_lanes + lane_count;
    result_.moves.push_back({lane, step.chunk, step.to * chunks_.unit(), input_ns_, job.fixed_ns});
    chunks_.touch(step.chunk, tier, false, job.touches);
    chunks_.move(step);
    chunks_.touch(step.chunk, tier, true, job.touches);
    machine_.push(server, job);
  }
  return chunks_.take(chunk, tier);
}

bool Naive::droppable(ChunkId chunk, TierId tier) {
  if (lives_.dead[chunks_.tensor_of(chunk)] != 0) return true;
  for (TierId other = 0; other < tiers(); ++other) {
    if (other != tier && chunks_.keeps(other) && chunks_.valid(chunk, other)) return true;
  }
  return false;
}

void Naive::place_initially(TensorId tensor) {
  const TierId role = layout_.initial[static_cast<std::size_t>(program_.trace.tensors[tensor].role)];
  for (const ChunkId chunk : chunks_.of(tensor)) {
    bool placed = false;
    for (TierId tier = 0; tier < tiers() && chunk < layout_.start.size() && !layout_.unlimited_gpu; ++tier) {
      if ((layout_.start[chunk] & 1u << tier) == 0 || !chunks_.keeps(tier) || !chunks_.take(chunk, tier)) continue;
      chunks_.make_valid(chunk, tier);
      placed = true;
    }
    if (placed) continue;
    TierId tier = layout_.unlimited_gpu ? TierId{0} : role != no_tier ? role : spec_.initial_tier;
    while (tier < tiers() && !(chunks_.keeps(tier) && chunks_.take(chunk, tier))) ++tier;
    if (tier == tiers()) throw NoRoom{};
    chunks_.make_valid(chunk, tier);
  }
  lives_.born[tensor] = 1;
}

View Naive::view(const Residency& memory) {
  View v{.machine = spec_, .memory = memory};
  v.program = &program_;
  v.schedule = &schedule_;
  v.now = input_ns_;
  v.iteration = progress_.iteration;
  v.op = progress_.op;
  v.dead_flags = &lives_.dead;
  load_.assign(spec_.links.size(), 0);
  for (const auto& [id, move] : moves_.all) load_[move.link()] += move.queued || move.flying ? 1 : 0;
  v.link_load = {load_.data(), load_.size()};
  return v;
}

void Naive::tell(const Event& event) {
  events_.waiting.push_back({event, events_.depth});
  if (events_.telling) return;
  events_.telling = true;
  while (!events_.waiting.empty()) {
    const auto [next, depth] = events_.take();
    Actions actions;
    const Residency memory = chunks_.mirror();
    policy_.on(next, view(memory), actions);
    events_.depth = next.kind == EventKind::refused ? depth + 1 : 0;
    for (const Action& action : actions.list()) apply(action);
    events_.depth = 0;
  }
  events_.telling = false;
}

void Naive::refuse(Refusal reason, const Action& action, ChunkId chunk) {
  if (events_.depth <= 2) {
    tell({.kind = EventKind::refused,
          .refusal = reason,
          .from = action.tier,
          .to = action.destination,
          .op = progress_.op,
          .tensor = action.tensor,
          .chunk = chunk});
  }
}

void Naive::apply(const Action& action) {
  if (action.tensor >= chunks_.tensor_count() || action.tier >= tiers()) return refuse(Refusal::stale, action, none);
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
  const ChunkId count = chunks_.first(action.tensor + 1) - chunks_.first(action.tensor);
  if (action.chunk != all_chunks && action.chunk >= count) return refuse(Refusal::stale, action, none);
  for (ChunkId i = 0; i < count; ++i) {
    if (action.chunk != all_chunks && action.chunk != i) continue;
    const Refusal refusal = act(action, chunks_.first(action.tensor) + i);
    if (refusal != Refusal::none) refuse(refusal, action, chunks_.first(action.tensor) + i);
  }
}

Refusal Naive::act(const Action& action, ChunkId chunk) {
  const int rank = action.urgent ? urgent_rank : normal_rank;
  const int coming = arriving(chunk, action.tier);
  switch (action.verb) {
    case Verb::fetch:
      if (chunks_.at(chunk, action.tier).state == CopyState::absent && chunks_.at(chunk, action.tier).pins > 0 &&
          coming < 0)
        return Refusal::stale;
      return fetch(chunk, action.tier, rank, action.not_before);
    case Verb::evict:
      return evict(chunk, action.tier, action.destination, rank);
    case Verb::clean:
      return send(chunk, action.tier, action.destination, Kind::clean, action.urgent ? urgent_rank : background_rank);
    case Verb::drop:
      if (!chunks_.evictable(chunk, action.tier) || !droppable(chunk, action.tier)) return Refusal::stale;
      chunks_.drop(chunk, action.tier);
      return Refusal::none;
    case Verb::cancel:
      if (coming < 0 || moves_.all[coming].flying || moves_.all[coming].begun() ||
          moves_.all[coming].kind != Kind::fetch || chunks_.at(chunk, action.tier).pins > 0)
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
  for (const auto& [id, move] : moves_.all) {
    if (move.chunk == chunk && move.to == to && !move.useless) return id;
  }
  return -1;
}

std::vector<int> Naive::moves_of(ChunkId chunk) const {
  std::vector<int> ids;
  for (const auto& [id, move] : moves_.all) {
    if (move.chunk == chunk) ids.push_back(id);
  }
  return ids;
}

TierId Naive::source(ChunkId chunk, TierId to) {
  TierId best = no_tier;
  for (TierId tier = 0; tier < tiers(); ++tier) {
    if (tier == to || !chunks_.valid(chunk, tier) || chunks_.at(chunk, tier).writers > 0 || path(tier, to).empty())
      continue;
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
  move.bytes = move.piece = chunks_.bytes_moved(chunk, from, to);
  if (move.path.size() > 1) move.piece = std::min(move.bytes, spec_.staging.all_bytes());
  return moves_.add(move);
}

int Naive::head(LinkId link, int rank, long long after) const {
  int best = -1;
  for (const auto& [id, move] : moves_.all) {
    if (!move.queued || move.link() != link || move.rank != rank || move.place <= after) continue;
    if (best < 0 || move.place < moves_.all.at(best).place) best = id;
  }
  return best;
}

Refusal Naive::fetch(ChunkId chunk, TierId to, int rank, OpIndex not_before) {
  if (chunks_.valid(chunk, to)) {
    if (chunks_.at(chunk, to).leaving) rescue(chunk, to);
    return Refusal::none;
  }
  if (const int coming = arriving(chunk, to); coming >= 0) {
    if (rank == urgent_rank) demand(coming);
    return Refusal::none;
  }
  if (chunks_.at(chunk, to).state != CopyState::absent || lives_.dead[chunks_.tensor_of(chunk)] != 0 ||
      source(chunk, to) == no_tier)
    return Refusal::stale;
  if (path(source(chunk, to), to).size() > 1) {  // staged, and it is being copied into that tier already
    const int coming = arriving(chunk, spec_.staging.tier);
    if (coming >= 0 && moves_.all[coming].flying) return Refusal::stale;
  }
  if (chunks_.room_of(chunk, to) > chunks_.capacity(to)) return Refusal::no_room;
  const int id = request(chunk, source(chunk, to), to, Kind::fetch, rank);
  if (rank != urgent_rank && not_before != none && not_before != progress_.op)
    moves_.all[id].not_before = not_before;
  else
    moves_.enqueue(id, false);
  return Refusal::none;
}

bool Naive::reserve(ChunkId chunk, TierId tier) {
  if (chunks_.take(chunk, tier)) return true;
  // Copies that the GPU holds too are given up: those at the cold end, up to the first that it does not hold.
  for (const ChunkId other : std::vector<ChunkId>(tier == 0 ? std::vector<ChunkId>{} : chunks_.order(tier))) {
    if (chunks_.free(tier) >= chunks_.room_of(chunk, tier) || !chunks_.valid(other, 0)) break;
    if (chunks_.evictable(other, tier) && chunks_.at(other, tier).readers == 0) chunks_.drop(other, tier);
  }
  return chunks_.take(chunk, tier);
}

bool Naive::may_receive(ChunkId chunk, TierId from, TierId to, Kind kind) {
  if (to == from || path(from, to).empty() || chunks_.at(chunk, to).state != CopyState::absent ||
      chunks_.at(chunk, to).pins > 0)
    return false;
  const int coming = arriving(chunk, to);
  if (coming < 0) return true;
  const Move& move = moves_.all[coming];
  return kind == Kind::evict && move.kind == Kind::fetch && !move.flying && move.hop == 0;
}

Refusal Naive::send(ChunkId chunk, TierId from, TierId destination, Kind kind, int rank) {
  if (!chunks_.valid(chunk, from) || chunks_.at(chunk, from).writers > 0 || lives_.dead[chunks_.tensor_of(chunk)] != 0)
    return Refusal::stale;
  TierId to = no_tier;
  if (destination != no_tier) {
    if (destination >= tiers() || !may_receive(chunk, from, destination, kind)) return Refusal::stale;
    if (kind == Kind::evict && !chunks_.keeps(destination)) return Refusal::stale;
    if (reserve(chunk, destination)) to = destination;
  } else {
    for (TierId tier = static_cast<TierId>(from + 1); tier < tiers() && to == no_tier; ++tier) {
      if (chunks_.keeps(tier) && may_receive(chunk, from, tier, kind) && reserve(chunk, tier)) to = tier;
    }
  }
  if (to == no_tier) return Refusal::no_room;
  if (const int replaced = arriving(chunk, to); replaced >= 0) withdraw(replaced);
  moves_.enqueue(request(chunk, from, to, kind, rank), false);
  return Refusal::none;
}

Refusal Naive::evict(ChunkId chunk, TierId from, TierId destination, int rank) {
  if (!chunks_.evictable(chunk, from)) return Refusal::stale;
  if (droppable(chunk, from)) {
    chunks_.drop(chunk, from);
    return Refusal::none;
  }
  const Refusal refusal = send(chunk, from, destination, Kind::evict, rank);
  if (refusal == Refusal::none) chunks_.at(chunk, from).leaving = true;
  return refusal;
}

void Naive::withdraw(int id) {
  const Move move = moves_.all[id];
  moves_.all.erase(id);
  free_buffers(move);
  if (move.kind != Kind::fetch || move.begun()) chunks_.give_back(move.chunk, move.to);
  if (move.kind == Kind::evict && chunks_.valid(move.chunk, move.from))
    chunks_.at(move.chunk, move.from).leaving = false;
}

void Naive::free_buffers(const Move& move) {
  for (const std::size_t buffer : move.buffers) buffers_[buffer] = false;
}

void Naive::demand(int id) {
  if (layout_.promote)
    lift(id);
  else if (!moves_.all[id].queued && !moves_.all[id].flying)
    moves_.enqueue(id, false);
}

void Naive::lift(int id) {
  Move& move = moves_.all[id];
  const bool moves_up = !move.flying && move.rank != urgent_rank;
  move.rank = urgent_rank;
  if (moves_up) moves_.enqueue(id, false);
}

void Naive::rescue(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_.all[id];
    if (move.from != tier || move.kind != Kind::evict) continue;
    if (!move.flying && move.hop == 0 && chunks_.at(chunk, move.to).pins == 0) {
      withdraw(id);
    } else {
      move.kind = Kind::clean;
      chunks_.at(chunk, tier).leaving = false;
    }
  }
}

void Naive::stop_reading(ChunkId chunk, TierId tier) {
  for (const int id : moves_of(chunk)) {
    Move& move = moves_.all[id];
    if (move.from != tier || !move.reads()) continue;
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
    Move& move = moves_.all[id];
    if (move.flying && move.to == tier) {
      move.useless = true;
      machine_.cancel(move.job);
    } else if (!move.flying && (move.to == tier || (move.from == tier && move.reads()))) {
      withdraw(id);
    }
  }
  if (chunks_.valid(chunk, tier))
    chunks_.drop(chunk, tier);
  else if (chunks_.at(chunk, tier).state == CopyState::reserved)
    chunks_.condemn(chunk, tier);
}

bool Naive::start_transfers(LinkId link) {
  bool progress = false;
  while (true) {
    if (!takes_another(link)) return progress;
    bool started = false;
    for (int rank = urgent_rank; rank <= background_rank && !started; ++rank) {
      int id = head(link, rank);
      while (id >= 0 && !source_stands(moves_.all[id])) {
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
    const long long queued = moves_.enqueued();
    for (LinkId link = 0; link < spec_.links.size(); ++link) {
      for (int rank = urgent_rank; rank <= background_rank; ++rank) {
        for (int id = head(link, rank); id >= 0 && takes_another(link);) {
          const Move& move = moves_.all[id];
          const int next = head(link, rank, move.place);
          const bool prefetch = move.kind == Kind::fetch && !move.begun() && chunks_.at(move.chunk, move.to).pins == 0;
          if (!prefetch && !source_stands(move))
            look_elsewhere(id);
          else if (!prefetch)
            progress |= try_copy(id);
          id = next;
        }
      }
    }
    progress |= moves_.enqueued() != queued;
  }
}

bool Naive::takes_another(LinkId link) {
  std::map<int, Bytes> flying;  // by job: in order of submission
  for (const auto& [id, move] : moves_.all) {
    if (move.flying && move.link() == link) flying[move.job] = move.piece;
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
  Bytes bytes = chunks_.bytes_in(chunk, tier);
  if (cost.power_of_two) {
    bytes = 1;
    while (bytes < chunks_.bytes_in(chunk, tier)) bytes *= 2;
  }
  if (cost.bandwidth == 0) return cost.per_call_ns;
  return cost.per_call_ns +
         static_cast<Nanoseconds>((static_cast<uint128>(bytes) * 1'000'000'000u + cost.bandwidth - 1) / cost.bandwidth);
}

bool Naive::source_stands(const Move& move) {
  return move.hop > 0 || (chunks_.valid(move.chunk, move.from) && chunks_.at(move.chunk, move.from).writers == 0);
}

void Naive::look_elsewhere(int id) {
  const Move old = moves_.all[id];
  withdraw(id);
  const bool needed = chunks_.at(old.chunk, old.to).pins > 0;
  if (chunks_.at(old.chunk, old.to).state != CopyState::absent || (old.kind != Kind::fetch && !needed)) return;
  if (fetch(old.chunk, old.to, old.kind == Kind::fetch ? old.rank : urgent_rank, none) != Refusal::none && needed) {
    lanes_[old.to == 0 ? 0 : 1].running.back().stranded.push_back(old.chunk);
  }
}

bool Naive::try_copy(int id) {
  Move& move = moves_.all[id];
  if (!move.begun()) {
    if (move.path.size() > 1 && !take_buffers(move)) return false;
    if (move.kind == Kind::fetch && !room_for(id)) {
      free_buffers(move);
      move.buffers.clear();
      return false;
    }
  }
  if (move.hop == 0) ++chunks_.at(move.chunk, move.from).readers;
  move.queued = false;
  move.flying = true;
  const bool last = move.hop + 1 == move.path.size();
  const bool pays = last && move.moved == 0;
  Nanoseconds setup = pays ? setup_of(move.chunk, move.to) : 0;
  if (const Bytes there = chunks_.bytes_in(move.chunk, move.to), rate = spec_.tiers[move.to].expand_bandwidth;
      pays && rate != 0 && there > move.bytes) {
    setup += static_cast<Nanoseconds>((static_cast<uint128>(there) * 1'000'000'000u + rate - 1) / rate);
  }
  Job job = machine_.below().copy(move.link(), move.piece, setup);
  job.transfer = id;
  const auto touch = [&](bool staged, TierId tier, bool write) {
    if (!staged) chunks_.touch(move.chunk, tier, write, job.touches);
    for (std::size_t i = 0; staged && i * spec_.staging.bytes < move.piece; ++i) {
      job.touches.push_back({tiers(), move.buffers[i], write});
    }
  };
  touch(move.hop > 0, move.from, false);
  touch(!last, move.to, true);
  move.job = machine_.push(naive_lanes + std::size_t{move.link()}, job);
  return true;
}

bool Naive::take_buffers(Move& move) {
  const std::size_t count = (move.piece + spec_.staging.bytes - 1) / spec_.staging.bytes;
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
  const Move& move = moves_.all[id];
  const TierId to = move.to;
  if (chunks_.at(move.chunk, to).state != CopyState::absent) return false;
  const bool needed = chunks_.at(move.chunk, to).pins > 0;
  const Bytes others = wanted(to);
  if (!needed && others > 0 && chunks_.free(to) < others + chunks_.room_of(move.chunk, to)) return false;
  const std::size_t server = naive_lanes + std::size_t{move.path.back()};
  if (take_room(move.chunk, to, server)) return true;
  Bytes bytes = chunks_.room_of(move.chunk, to);
  if (needed) {
    bytes = wanted(lanes_[to == 0 ? 0 : 1]);
  } else if (const int behind = head(move.link(), move.rank, move.place); behind >= 0) {
    bytes += chunks_.room_of(moves_.all[behind].chunk, to);
  }
  make_room(to, bytes, !needed, move.chunk, move.chunk, needed ? urgent_rank : normal_rank);
  return source_stands(move) && take_room(move.chunk, to, server);
}

void Naive::make_room(TierId tier, Bytes bytes, bool prefetch, ChunkId incoming, ChunkId first, int rank) {
  const auto lacking = [&]() -> Bytes {
    const Bytes have = chunks_.free(tier) + chunks_.leaving(tier);
    if (have < bytes) return bytes - have;
    return chunks_.leaving(tier) > 0 || chunks_.has_hole(first, tier) || !find_hole(first, tier).empty() ? 0 : 1;
  };
  if (lacking() == 0 || !asked_.insert({tier, prefetch}).second) return;
  for (bool again = true; again;) {
    std::vector<ChunkId> victims;
    const Residency memory = chunks_.mirror();
    policy_.make_room({tier, lacking(), prefetch, incoming}, view(memory), victims);
    const Bytes before = chunks_.free(tier);
    for (const ChunkId chunk : victims) {
      if (chunk < chunks_.count()) evict(chunk, tier, no_tier, rank);
    }
    again = !prefetch && chunks_.moves(tier) && chunks_.free(tier) > before && lacking() > 0;
  }
  if (prefetch || !layout_.fallback_eviction) return;
  for (const ChunkId chunk : std::vector<ChunkId>(chunks_.order(tier))) {
    if (lacking() == 0) break;
    if (chunks_.evictable(chunk, tier)) evict(chunk, tier, no_tier, rank);
  }
}

}  // namespace
}  // namespace tencache::naive

namespace tencache {

NaiveResult run_naive(const Program& program, const MachineSpec& machine, Policy& policy, std::uint64_t iterations) {
  return naive::Naive(program, machine, policy, iterations).run();
}

}  // namespace tencache
