// The state of the naive engine (naive_engine.h) and what its files share: naive_engine.cpp (program, ops, inputs),
// naive_memory.cpp (chunks, room, the policy), naive_transfers.cpp (copies).
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/residency.h"
#include "core/schedule.h"
#include "tests/naive_engine.h"
#include "tests/naive_machine.h"

namespace tencache::naive {

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

}  // namespace tencache::naive
