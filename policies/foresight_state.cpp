// What foresight knows, in the order in which it comes to know it:
//   1. Of the program, once: Future, the tiers there are, step 2 of foresight.cpp, and where everything stands.
//   2. Of every event: which op is where, which transfer has arrived.
//   3. After it, of every chunk concerned: the shelf on which it stands, and whether it is lacking before the horizon.
#include <algorithm>
#include <utility>

#include "policies/foresight_flow.h"
#include "policies/foresight_plan.h"

namespace tencache {

// ---- Future and Shelf -----------------------------------------------------------------------------------------------

Future::Future(const Trace& trace, const Schedule& schedule, const std::vector<Bytes>& footprints) {
  const std::size_t ops = trace.ops.size();
  devices_.resize(ops);
  first_use_.resize(ops + 1);
  for (OpIndex op = 0; op < ops; ++op) {
    devices_[op] = trace.ops[op].device;
    first_use_[op + 1] = first_use_[op] + schedule.uses(op).size();
  }
  after_.resize(first_use_.back());
  dies_.resize(first_use_.back());
  born_.resize(ops);
  died_.resize(ops);
  alive_.resize(ops);
  // Backwards over two rounds: the second sees what comes after the iteration's end.
  constexpr std::int64_t unknown = -1;
  struct Ahead {
    std::int64_t gpu = unknown, cpu = unknown, touch = unknown;
  };
  std::vector<Ahead> ahead(trace.tensors.size());
  const auto distances = [](const Ahead& a, std::int64_t from) {
    const auto distance = [from](std::int64_t place) {
      return place == unknown ? none : static_cast<std::uint32_t>(place - from);
    };
    return Needs{distance(a.gpu), distance(a.cpu), distance(a.touch)};
  };
  for (std::int64_t round = 1; round >= 0; --round) {
    for (OpIndex op = static_cast<OpIndex>(ops); op-- > 0;) {
      const std::int64_t place = round * static_cast<std::int64_t>(ops) + op;
      const auto uses = schedule.uses(op);
      for (std::size_t i = 0; i < uses.size(); ++i) {
        const Use& use = uses[i];
        const Tensor& tensor = trace.tensors[use.tensor];
        const auto others = schedule.ops_of(use.tensor);
        Ahead& a = ahead[use.tensor];
        const std::size_t index = first_use_[op] + i;
        dies_[index] = !tensor.persistent && others.back() == op ? 1 : 0;
        if (dies_[index] != 0) a = {};
        if (round == 0) after_[index] = distances(a, place);
        if (devices_[op] == Device::gpu) {
          if (use.write) a.cpu = unknown;
          a.gpu = use.read ? place : unknown;
          a.touch = place;
          if (round == 0 && dies_[index] != 0) died_[op] += footprints[use.tensor];
          if (round == 0 && !tensor.persistent && others.front() == op) born_[op] += footprints[use.tensor];
        } else {
          a.cpu = use.read ? place : unknown;
          if (use.write) a.gpu = a.touch = unknown;
        }
      }
    }
  }
  at_start_.resize(trace.tensors.size());
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    if (trace.tensors[tensor].persistent) at_start_[tensor] = distances(ahead[tensor], -1);
  }
  std::int64_t alive = 0;
  for (OpIndex op = 0; op < ops; ++op) {
    alive += static_cast<std::int64_t>(born_[op]);
    alive_[op] = alive;
    alive -= static_cast<std::int64_t>(died_[op]);
  }
  alive_each_ = alive;
}

void Shelf::reset(std::size_t op_count) {
  op_count_ = op_count;
  entries_.clear();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    heads_[kind].assign(op_count + 1, none);
    ops_[kind].clear();
    totals_[kind] = 0;
  }
  clean_at_ = CyclicSums(std::vector<std::int64_t>(op_count, 0));
}

void Shelf::put(ChunkId chunk, Kind kind, std::uint32_t op, Bytes bytes) {
  if (chunk >= entries_.size()) {
    if (kind == off) return;
    entries_.resize(chunk + 1);
  }
  Entry& entry = entries_[chunk];
  if (entry.kind == kind && (kind == off || entry.op == op)) return;
  if (entry.kind != off) {
    (entry.previous == none ? heads_[entry.kind][entry.op] : entries_[entry.previous].next) = entry.next;
    if (entry.next != none) entries_[entry.next].previous = entry.previous;
    if (entry.op != never() && heads_[entry.kind][entry.op] == none) ops_[entry.kind].erase(entry.op);
    add(entry, -1);
  }
  entry.kind = kind;
  if (kind == off) return;
  ChunkId& head = heads_[kind][op];
  if (head == none && op != never()) ops_[kind].insert(op);
  if (head != none) entries_[head].previous = chunk;
  entry = {none, head, op, bytes, kind};
  head = chunk;
  add(entry, 1);
}

void Shelf::add(const Entry& entry, std::int64_t sign) {
  const std::int64_t bytes = sign * static_cast<std::int64_t>(entry.bytes);
  totals_[entry.kind] += static_cast<Bytes>(bytes);
  if ((entry.kind == clean || entry.kind == spare) && entry.op != never()) {
    clean_at_.set(entry.op, clean_at_.at(entry.op) + bytes);
  }
}

std::uint32_t Shelf::farthest(Kind kind, std::uint32_t now) const {
  return heads_[kind][op_count_] != none ? never() : nearer(kind, never(), now);
}

// From the op a round ahead, which is `now` itself, down to 0, then from the last down to the one after `now`.
std::uint32_t Shelf::nearer(Kind kind, std::uint32_t op, std::uint32_t now) const {
  const std::set<std::uint32_t>& ops = ops_[kind];
  auto found = op == never() ? ops.upper_bound(now) : ops.lower_bound(op);
  const bool wrapped = op != never() && op > now;
  if (found != ops.begin() && !wrapped) return *std::prev(found);
  if (!wrapped) found = ops.end();
  if (found == ops.begin()) return none;
  return *std::prev(found) > now ? *std::prev(found) : none;
}

std::uint32_t Shelf::nearest(Kind kind, std::uint32_t now) const {
  const std::set<std::uint32_t>& ops = ops_[kind];
  const auto found = ops.upper_bound(now);
  return found != ops.end() ? *found : ops.empty() ? none : *ops.begin();
}

Bytes Shelf::clean_beyond(std::uint32_t now, std::uint32_t op, bool whole_round) const {
  const KernelIndex round = op < now || (op == now && whole_round) ? static_cast<KernelIndex>(op_count_) : 0;
  const std::int64_t within = clean_at_.between(KernelIndex{now} + 1, op + 1 + round);
  return totals_[clean] + totals_[spare] - static_cast<Bytes>(within);
}

// ---- The start ------------------------------------------------------------------------------------------------------

ForesightClock compute_clock(const Trace& trace) {
  std::vector<Nanoseconds> times_ns(1, 0);
  for (const Op& op : trace.ops) {
    times_ns.push_back(times_ns.back() + (op.device == Device::gpu ? op.duration_ns + op.gap_before_ns : 0));
  }
  return {std::move(times_ns), {}};
}

void ForesightFlow::start(const View& view) {
  known_ = true;
  op_count_ = view.schedule->op_count();
  if (at_.times_ns.size() != op_count_ + 1) at_ = compute_clock(view.program->trace);
  find_tiers(view);
  make_plan(view);
  shelves_.assign(cpu_ == no_tier ? 1 : cpu_ + 1u, {});
  for (Shelf& shelf : shelves_) shelf.reset(op_count_);
  outgoing_.assign(view.memory.chunk_total(), 0);
  flights_.clear();
  peaks_.clear();
  needed_at_.assign(op_count_, 0);
  needed_bytes_ = waits_for_ = 0;
  const OpIndex last = static_cast<OpIndex>(op_count_ - 1);
  const OpIndex at = view.op == none ? last : view.op;
  gpu_ = at == last ? last : op_count_ + at;  // before the first op, or, live, in the midst of an iteration
  cpu_done_ = last;
  in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(at));
  horizon_ = {gpu_ + 1, 0, 0};
  fetched_.assign(view.memory.tier_count(), horizon_);
  for (Store& store : stores_) store.read = horizon_;
  needed_.resize(view.schedule->tensor_count());
  for (TensorId tensor = 0; tensor < needed_.size(); ++tensor) {
    needed_[tensor] = needed_at(tensor, at, view);
    if (const TensorId id = view.memory_tensor(tensor); id != none) refresh_all(id, view);
  }
}

void ForesightFlow::find_tiers(const View& view) {
  const MachineSpec& machine = view.machine;
  cpu_ = machine.tier_of(Device::cpu);
  if (cpu_ != no_tier && machine.link_between(0, cpu_) == no_link) cpu_ = no_tier;
  const auto joined = [&](TierId a, TierId b) {
    return a != no_tier && machine.link_between(a, b) != no_link && machine.link_between(b, a) != no_link;
  };
  stores_.clear();
  std::vector<std::pair<BytesPerSecond, TierId>> sources;
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    const auto path = machine.path_between(tier, 0);
    if (!path.empty()) {
      BytesPerSecond bandwidth = machine.links[path.front()].bandwidth;
      for (const LinkId link : path) bandwidth = std::min(bandwidth, machine.links[link].bandwidth);
      sources.emplace_back(bandwidth, tier);
    }
    if (machine.tiers[tier].kind != TierKind::nvme) continue;
    Store store;
    store.tier = tier;
    store.by_gpu = joined(0, tier);
    store.by_cpu = joined(cpu_, tier);
    stores_.push_back(store);
  }
  std::stable_sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  sources_.clear();
  for (const auto& [bandwidth, tier] : sources) sources_.push_back(tier);
}

// Step 2.
void ForesightFlow::make_plan(const View& view) {
  const Trace& trace = view.program->trace;
  const Tier& gpu = view.machine.tiers[0];
  std::vector<Device> devices;
  std::vector<Bytes> footprints;
  cpu_ops_.clear();
  for (OpIndex op = 0; op < op_count_; ++op) {
    devices.push_back(trace.ops[op].device);
    if (devices.back() == Device::cpu) cpu_ops_.push_back(op);
  }
  const auto rounded = [&](Bytes bytes) { return (bytes + gpu.granularity - 1) / gpu.granularity * gpu.granularity; };
  for (const Tensor& tensor : trace.tensors) {
    const Bytes chunk = chunk_bytes_ == 0 ? tensor.bytes : std::min(tensor.bytes, chunk_bytes_);
    footprints.push_back(tensor.bytes / chunk * rounded(chunk) + rounded(tensor.bytes % chunk));
  }
  future_ = Future(trace, *view.schedule, footprints);
  const auto share = [](Bytes bytes, double of) { return static_cast<Bytes>(static_cast<double>(bytes) * of); };
  const Seen by_gpu{trace, *view.schedule, devices, at_.times_ns, at_.weights, true};
  const std::vector<std::uint8_t> away = spilled(by_gpu, share(gpu.capacity, knobs_.gpu_share));
  due_ = worth_cleaning(by_gpu, away);
  away_ = knobs_.follow ? away : std::vector<std::uint8_t>(away.size(), 0);
  sink_.assign(due_.size(), 0);
  budget_ = 0;
  if (!stores_.empty()) {
    const Bytes all = gpu.capacity + (cpu_ == no_tier ? 0 : view.machine.tiers[cpu_].capacity);
    const Seen by_both{trace, *view.schedule, devices, at_.times_ns, at_.weights, false};
    const std::vector<std::uint8_t> stored = spilled(by_both, all);
    budget_ = moved_by(by_both, stored).all_down();
    sink_ = worth_cleaning(by_both, stored);
  }
  budget_left_ = budget_;
  for (auto* now : {&away_now_, &due_now_, &sink_now_}) now->assign(trace.tensors.size(), 0);
}

// From where the GPU is: the tensor's last use up to it says what comes next.
ForesightFlow::Needed ForesightFlow::needed_at(TensorId tensor, OpIndex op, const View& view) const {
  const auto ops = view.schedule->ops_of(tensor);
  const auto after = std::upper_bound(ops.begin(), ops.end(), op);
  Needs needs = future_.at_start(tensor);
  Place from = gpu_;
  if (gpu_ >= op_count_) {  // live, in the midst of an iteration
    from = gpu_ - op - 1;
    if (after != ops.begin()) {
      const OpIndex last = *std::prev(after);
      const auto uses = view.schedule->uses(last);
      const auto use = std::find_if(uses.begin(), uses.end(), [&](const Use& u) { return u.tensor == tensor; });
      needs = future_.after(last, static_cast<std::size_t>(use - uses.begin()));
      from = gpu_ - (op - last);
    }
  }
  const auto place = [from](std::uint32_t distance) { return distance == none ? never : from + distance; };
  return {place(needs.gpu), place(needs.cpu), place(needs.touch)};
}

// ---- What happens ---------------------------------------------------------------------------------------------------

void ForesightFlow::issued(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    if (event.op <= index(gpu_)) budget_left_ = budget_;  // another iteration
    gpu_ = following(gpu_, event.op);
    while (!peaks_.empty() && peaks_.front().first <= gpu_) peaks_.pop_front();
    got(event.op, needed_at_[event.op]);
    in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.born(event.op));
    waits_for_ = 0;
  }
  for (const Use& use : event.uses) {
    if (use.tensor == none) continue;
    refresh_all(use.tensor, view);
    if (!gpu || !(use.read || view.memory.persistent(use.tensor))) continue;
    const ChunkId begin = view.memory.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(use.tensor); ++chunk) {
      if (view.memory.copy(chunk, 0).state == CopyState::absent) waits_for_ += view.memory.footprint(chunk, 0);
    }
  }
}

void ForesightFlow::done(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(event.op));
  } else {
    cpu_done_ = following(cpu_done_, event.op);
  }
  const Place from = gpu ? gpu_ : cpu_done_;
  const auto place = [from](std::uint32_t distance) { return distance == none ? never : from + distance; };
  const auto uses = view.schedule->uses(event.op);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const TensorId id = uses[i].tensor;
    const Needs& after = future_.after(event.op, i);
    Needed& needed = needed_[id];
    if (gpu || uses[i].write) {
      needed.gpu = std::max(place(after.gpu), gpu_ + 1);  // a CPU op may be far behind
      needed.touch = place(after.touch);
    }
    if (!gpu || uses[i].write) needed.cpu = place(after.cpu);
    const std::size_t index = future_.use_index(event.op, i);
    away_now_[id] = away_[index];
    due_now_[id] = due_[index];
    sink_now_[id] = sink_[index];
    const TensorId tensor = view.memory_tensor(id);
    if (tensor == none) continue;
    if (future_.dies(event.op, i)) {
      forget(tensor, view);
      continue;
    }
    const ChunkId begin = view.memory.first_chunk(tensor), end = begin + view.memory.chunk_count(tensor);
    for (ChunkId chunk = begin; chunk < end && uses[i].write; ++chunk) {
      if (chunk < outgoing_.size()) outgoing_[chunk] = 0;  // stopped: it was about to be written
      if (!gpu) absent(chunk, needed.gpu, view);
    }
    refresh_all(tensor, view);
  }
}

void ForesightFlow::arrived(const Event& event, const View& view) {
  std::erase_if(flights_, [&](const Flight& f) { return f.chunk == event.chunk && f.to == event.to; });
  if (event.chunk < outgoing_.size() && event.from != no_tier) {
    outgoing_[event.chunk] = static_cast<std::uint8_t>(outgoing_[event.chunk] & ~(1u << event.from));
  }
  for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(event.chunk, tier, view);
  if (event.to == 0) return;
  if (view.machine.tiers[event.to].kind == TierKind::nvme) {
    stored_ += view.memory.bytes_of(event.chunk);
    gone_from_memory(event.chunk, view);
  }
  if (const TensorId id = view.program_tensor(event.tensor); id != none) absent(event.chunk, needed_[id].gpu, view);
}

void ForesightFlow::forget(TensorId tensor, const View& view) {
  if (shelves_.empty() || tensor == none || tensor >= view.memory.tensor_count()) return;
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    for (Shelf& shelf : shelves_) shelf.take(chunk);
    if (chunk < outgoing_.size()) outgoing_[chunk] = 0;
  }
}

// ---- Where every chunk stands ---------------------------------------------------------------------------------------

void ForesightFlow::refresh_all(TensorId tensor, const View& view) {
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(chunk, tier, view);
  }
}

void ForesightFlow::refresh(ChunkId chunk, TierId tier, const View& view) {
  if (chunk >= outgoing_.size()) outgoing_.resize(view.memory.chunk_total(), 0);
  const TensorId tensor = view.memory.tensor_of(chunk);
  const TensorId id = view.program_tensor(tensor);
  Shelf& shelf = shelves_[tier];
  if (id == none || (tier != 0 && tier != cpu_) || !view.memory.evictable(chunk, tier) || view.dead(tensor) ||
      (outgoing_[chunk] >> tier & 1) != 0) {
    shelf.take(chunk);
    return;
  }
  const Needed& needed = needed_[id];
  const Bytes bytes = view.memory.footprint(chunk, tier);
  if (tier == 0) {
    const Shelf::Kind kind = kind_on_gpu(chunk, id, view);
    Place next = kind == Shelf::owed ? needed.cpu : needed.gpu;
    if (next == never && (kind == Shelf::due || kind == Shelf::dirty)) next = needed.touch;
    shelf.put(chunk, kind, shelf_op(next), bytes);
    return;
  }
  const bool stored = store_of(chunk, view) != no_tier;
  Place next = std::min(needed.gpu, needed.cpu);
  if (!stored && next == never) next = needed.touch;
  // What stays on the GPU until it is written again needs no copy here.
  const bool useless = view.memory.valid(chunk, 0) && due_now_[id] == 0 && needed.cpu == never;
  shelf.put(chunk,
            useless              ? Shelf::spare
            : stored             ? Shelf::clean
            : sink_now_[id] != 0 ? Shelf::due
                                 : Shelf::dirty,
            shelf_op(next), bytes);
}

Shelf::Kind ForesightFlow::kind_on_gpu(ChunkId chunk, TensorId id, const View& view) const {
  if (view.memory.valid_elsewhere(chunk, 0)) return away_now_[id] != 0 ? Shelf::spare : Shelf::clean;
  if (needed_[id].cpu != never) return Shelf::owed;
  return due_now_[id] != 0 ? Shelf::due : Shelf::dirty;
}

std::uint64_t ForesightFlow::fingerprint() const {
  std::uint64_t hash = 0;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  };
  const auto mix_cursor = [&](const Cursor& cursor) {
    mix(cursor.op - std::min(cursor.op, gpu_));
    mix(cursor.use);
    mix(cursor.chunk);
  };
  mix_cursor(horizon_);
  for (const Cursor& cursor : fetched_) mix_cursor(cursor);
  for (const Store& store : stores_) mix_cursor(store.read);
  mix(needed_bytes_);
  mix(budget_left_);
  return hash;
}

}  // namespace tencache
