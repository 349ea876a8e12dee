// foresight: TenCache's own policy. What the others do one by one, at once.
//
// Before the run:
//   1. Updates of the optimizer are shared out between the GPU and the CPU, evenly over the step: the share for which
//   an
//      estimate of compute, links and CPU is least (foresight_updates.cpp).
//   2. Of a known future, which periods between two uses the GPU's memory cannot bridge, and which not even CPU memory
//      (Belady's choice; foresight_future.cpp).
// In the run, whenever something has happened:
//   3. A horizon goes through the GPU's ops to come, up to a round ahead, as long as all that they need will have room:
//      what is used now, born and dead by then, missing, less the clean bytes that no op before the horizon needs. Each
//      access is looked at once; it goes back only for what has left.
//   4. Up to there, missing chunks are fetched in the order of their ops, on each link a few at a time. What leaves for
//      them is clean, needed farthest in the future, and never before what is fetched.
//   5. Whenever a way out is idle, it cleans: first what the CPU waits for, then what step 2 says will have to leave,
//   of
//      that what is needed last; and, if the horizon is held up for want of room, whatever is needed beyond it. To CPU
//      memory if there is room; to the SSD, where the GPU reaches it, as many bytes an iteration as step 2 sends there.
//   6. What an op itself has no room for: clean chunks that are not needed soon, the farthest first, then dirty ones.
//   7. CPU memory over an SSD is such a cache too: the next chunk that is in neither memory is read ahead, what step 2
//      says is copied down whenever the SSD is idle, and a reserve is kept free by dropping what is clean.
#include <algorithm>
#include <deque>

#include "policies/foresight_future.h"
#include "policies/foresight_updates.h"
#include "policies/policies.h"
#include "policies/updates.h"

namespace tencache {
namespace {

// What planning may move.
struct Knobs {
  bool follow = false;  // what the plan keeps leaves after what it spills
  double weight = 0;    // step 2: how much longer a period counts for whose end the GPU waited

  std::uint64_t in_flight = 3;  // chunks asked for on a link at once
  double nearness = 0;          // step 6: "soon", as a share of the time until the farthest dirty chunk is needed
  double gpu_share = 0.95, cpu_share = 0.95;  // of the memories that step 2 counts on
};

class Foresight final : public Policy {
 public:
  explicit Foresight(Options& options) {
    options.choice("updates", updates_, {"auto", "gpu", "cpu"}, "where the updates of the optimizer run");
    options.number("in_flight", knobs_.in_flight, "chunks", "asked for on each link at once");
    options.real("nearness", knobs_.nearness, "share",
                 "of the time until the farthest dirty chunk is needed, before which a clean one stays");
    options.real("gpu_share", knobs_.gpu_share, "share", "of GPU memory that the plan counts on");
    options.real("cpu_share", knobs_.cpu_share, "share", "of CPU memory that the plan counts on");
    plan_events_ = 5'000'000;
    options.number("plan_events", plan_events_, "events", "simulated completions that planning may take");
    options.bytes("chunk", layout_.chunk_bytes, "unit that moves, or 'whole'");
  }

  Foresight(const Layout& layout, const Knobs& knobs) : layout_(layout), knobs_(knobs) {}

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = layout_;
    const TierId host = machine.tier_of(Device::cpu);
    if (program == nullptr || host == no_tier) return layout;
    std::vector<Device> devices;
    for (const Op& op : program->trace.ops) devices.push_back(op.device);
    const std::array<bool, role_count> of_cpu = roles_of_cpu(program->trace, devices);
    for (std::size_t role = 0; role < role_count; ++role) {
      if (of_cpu[role]) layout.initial[role] = host;  // they may have no way there from elsewhere
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    if (updates_ == "gpu") return;
    if (updates_ == "cpu") {
      place_updates_on_cpu(trace, devices);
      return;
    }
    place_updates(trace, machine, devices);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::profile_ready:
        if (plan_events_ > 0 && view.can_rehearse()) plan(view);
        start(view);
        break;
      case EventKind::schedule_deviated:
        known_ = false;
        return;
      case EventKind::tensor_freed:
        forget(event.tensor, view);
        return;
      case EventKind::op_issued:
        if (view.schedule == nullptr || event.op == none) return;
        if (!known_) start(view);
        issued(event, view);
        break;
      case EventKind::op_ready:
        if (!known_ || event.op == none || event.device != Device::gpu) return;
        in_use_ = future_.alive(gpu_);
        waits_for_ = 0;
        break;
      case EventKind::op_done:
        if (!known_ || event.op == none) return;
        done(event, view);
        if (event.device == Device::gpu) return;  // the next one is issued at once
        break;
      case EventKind::transfer_done:
        if (!known_) return;
        arrived(event, view);
        break;
      case EventKind::refused:
        if (known_ && event.chunk != none) refused(event, view);
        return;
      default:
        return;
    }
    if (!known_) return;
    look_ahead(view);
    fetch(view, actions);
    clean(view, actions);
    if (cpu_ != no_tier) tend_host(view, actions);
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!known_ || request.tier >= shelves_.size()) {
      coldest_victims(request, view, victims);
      return;
    }
    Bytes found = 0;
    Place floor = gpu_;
    if (request.prefetch && request.tier == 0) {
      floor = needed_[program_id(request.incoming, view)].gpu;
      if (floor == never) floor = gpu_;
    }
    if (request.prefetch) {
      choose(request, Shelf::spare, floor, view, victims, found);
      choose(request, Shelf::clean, floor, view, victims, found);
      return;
    }
    const Shelf& shelf = shelves_[request.tier];
    std::uint32_t dirty = shelf.farthest(Shelf::due, index(gpu_));
    if (dirty == none) dirty = shelf.farthest(Shelf::dirty, index(gpu_));
    if (dirty != none) {
      const Nanoseconds far = dirty == shelf.never() ? time_of(gpu_ + op_count_) : time_of(place_of(dirty));
      const Nanoseconds least = static_cast<Nanoseconds>(knobs_.nearness * static_cast<double>(far - time_of(gpu_)));
      Place from = gpu_;
      while (from < gpu_ + op_count_ && time_of(from) - time_of(gpu_) < least) ++from;
      choose(request, Shelf::spare, from, view, victims, found);
      choose(request, Shelf::clean, from, view, victims, found);
      choose(request, Shelf::due, from, view, victims, found);
      choose(request, Shelf::dirty, from, view, victims, found);
    }
    choose(request, Shelf::spare, floor, view, victims, found);
    choose(request, Shelf::clean, floor, view, victims, found);
    choose(request, Shelf::due, floor, view, victims, found);
    choose(request, Shelf::dirty, floor, view, victims, found);
    choose(request, Shelf::owed, floor, view, victims, found);
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = 0;
    const auto mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    };
    mix(horizon_.op - std::min(horizon_.op, gpu_));
    mix(horizon_.use);
    mix(horizon_.chunk);
    mix(host_.op - std::min(host_.op, gpu_));
    mix(ssd_left_);
    for (const Cursor& cursor : fetched_) {
      mix(cursor.op - std::min(cursor.op, gpu_));
      mix(cursor.use);
      mix(cursor.chunk);
    }
    mix(needed_bytes_);
    return hash;
  }

 private:
  // Ops are numbered on from iteration to iteration: op i of the second is op_count + i.
  using Place = std::uint64_t;
  static constexpr Place never = ~Place{0};
  struct Cursor {
    Place op = 0;
    std::size_t use = 0;
    std::uint32_t chunk = 0;
    bool operator<(const Cursor& other) const {
      return op != other.op ? op < other.op : use != other.use ? use < other.use : chunk < other.chunk;
    }
  };
  struct Needed {
    Place gpu = never, cpu = never, touch = never;
  };
  struct Flight {
    ChunkId chunk = none;
    TierId from = no_tier, to = no_tier;
    Bytes bytes = 0;
  };

  Nanoseconds time_of(Place place) const {
    return times_ns_[place % op_count_] + static_cast<Nanoseconds>(place / op_count_) * times_ns_.back();
  }
  OpIndex index(Place place) const { return static_cast<OpIndex>(place % op_count_); }
  Place following(Place place, OpIndex op) const {
    const OpIndex last = index(place);
    return place + (op > last ? op - last : op + op_count_ - last);
  }
  // The next place of the op after what the GPU was issued.
  Place place_of(std::uint32_t op) const { return following(gpu_, op); }
  TensorId program_id(ChunkId chunk, const View& view) const {
    return view.program_tensor(view.memory.tensor_of(chunk));
  }

  static std::vector<Nanoseconds> compute_times(const Trace& trace) {
    std::vector<Nanoseconds> times_ns(1, 0);
    for (const Op& op : trace.ops) {
      times_ns.push_back(times_ns.back() + (op.device == Device::gpu ? op.duration_ns + op.gap_before_ns : 0));
    }
    return times_ns;
  }

  // Rehearses itself with other decisions, one changed at a time, as long as that makes the iteration shorter.
  void plan(const View& view) {
    std::uint64_t left = plan_events_;
    const std::vector<Nanoseconds> compute = compute_times(view.program->trace);
    std::vector<Nanoseconds> stalled;
    Knobs best = knobs_;
    Nanoseconds least = 0;
    bool on_stalled = false;
    const auto rehearse = [&](const Knobs& knobs, bool use_stalled) {
      if (left == 0) return false;
      Foresight candidate(layout_, knobs);
      candidate.times_ns_ = use_stalled ? stalled : compute;
      const Rehearsal told = view.rehearse(candidate, left);
      left -= std::min(left, told.events);
      if (!told.fits || told.iteration_ns == 0) return false;
      if (least != 0 && told.iteration_ns >= least - least / 1000) return false;
      least = told.iteration_ns;
      best = knobs;
      on_stalled = use_stalled;
      next_stalled_.assign(told.issued_ns.begin(), told.issued_ns.end());
      next_stalled_.push_back(std::max(told.iteration_ns, told.issued_ns.empty() ? 0 : told.issued_ns.back()));
      for (std::size_t i = 1; i < next_stalled_.size(); ++i)
        next_stalled_[i] = std::max(next_stalled_[i], next_stalled_[i - 1]);
      return true;
    };
    rehearse(best, false);
    stalled = next_stalled_;
    for (bool better = true; better && left > 0;) {
      better = false;
      const auto attempt = [&](auto change) {
        Knobs knobs = best;
        change(knobs);
        if (rehearse(knobs, on_stalled)) better = true;
      };
      const auto variants = [&](auto member, std::initializer_list<double> values) {
        for (const double value : values) {
          if (static_cast<double>(best.*member) != value) {
            attempt([&](Knobs& k) { k.*member = static_cast<std::remove_reference_t<decltype(k.*member)>>(value); });
          }
        }
      };
      variants(&Knobs::gpu_share, {1, 0.9, 0.8, 0.6});
      attempt([](Knobs& k) { k.follow = !k.follow; });
      if (!stalled.empty() && rehearse(best, !on_stalled)) better = true;
      variants(&Knobs::nearness, {0, 0.05, 0.2, 0.5});
      variants(&Knobs::in_flight, {2, 3, 6});
      if (ssd_of(view) != no_tier) variants(&Knobs::cpu_share, {1, 0.9, 0.8});
      if (better) stalled = next_stalled_;
    }
    knobs_ = best;
    times_ns_ = on_stalled ? stalled : compute;
  }

  static TierId ssd_of(const View& view) {
    for (TierId tier = 1; tier < view.memory.tier_count(); ++tier) {
      if (view.machine.tiers[tier].kind == TierKind::nvme) return tier;
    }
    return no_tier;
  }

  void start(const View& view) {
    known_ = true;
    op_count_ = view.schedule->op_count();
    cpu_ = view.machine.tier_of(Device::cpu);
    const Tier& gpu = view.machine.tiers[0];
    std::vector<Bytes> footprints;
    for (const Tensor& tensor : view.program->trace.tensors) {
      const Bytes chunk = layout_.chunk_bytes == 0 ? tensor.bytes : std::min(tensor.bytes, layout_.chunk_bytes);
      const auto rounded = [&](Bytes bytes) {
        return (bytes + gpu.granularity - 1) / gpu.granularity * gpu.granularity;
      };
      footprints.push_back(tensor.bytes / chunk * rounded(chunk) + rounded(tensor.bytes % chunk));
    }
    if (times_ns_.size() != op_count_ + 1) times_ns_ = compute_times(view.program->trace);
    ssd_ = no_tier;
    for (TierId tier = 1; tier < view.memory.tier_count(); ++tier) {
      if (view.machine.tiers[tier].kind == TierKind::nvme && ssd_ == no_tier) ssd_ = tier;
    }
    direct_ = ssd_ != no_tier && view.machine.link_between(0, ssd_) != no_link;
    std::vector<Device> devices;
    for (const Op& op : view.program->trace.ops) devices.push_back(op.device);
    const double room = static_cast<double>(gpu.capacity) * knobs_.gpu_share;
    const Seen by_gpu{view.program->trace, *view.schedule, devices, times_ns_, true};
    const std::vector<std::uint8_t> away = spilled(by_gpu, static_cast<Bytes>(room));
    due_ = worth_cleaning(by_gpu, away);
    away_.clear();
    if (knobs_.follow) away_ = away;
    away_now_.assign(view.schedule->tensor_count(), 0);
    ssd_budget_ = ssd_left_ = 0;
    sink_.clear();
    sink_now_.assign(view.schedule->tensor_count(), 0);
    two_levels_ = ssd_ != no_tier && cpu_ != no_tier && view.machine.link_between(cpu_, ssd_) != no_link &&
                  view.machine.link_between(ssd_, cpu_) != no_link;
    cpu_ops_.clear();
    for (OpIndex op = 0; op < op_count_; ++op) {
      if (devices[op] == Device::cpu) cpu_ops_.push_back(op);
    }
    if (ssd_ != no_tier) {
      const double all =
          room + (cpu_ == no_tier ? 0 : knobs_.cpu_share * static_cast<double>(view.machine.tiers[cpu_].capacity));
      const Seen by_both{view.program->trace, *view.schedule, devices, times_ns_, false};
      ssd_budget_ = ssd_left_ = moved_by(by_both, spilled(by_both, static_cast<Bytes>(all))).down;
      if (two_levels_) sink_ = worth_cleaning(by_both, spilled(by_both, static_cast<Bytes>(all)));
    }
    due_now_.assign(view.schedule->tensor_count(), 0);
    future_ = Future(view.program->trace, *view.schedule, footprints);
    shelves_.assign(std::min<std::size_t>(view.memory.tier_count(), 3), {});
    for (Shelf& shelf : shelves_) shelf.reset(op_count_);
    outgoing_.assign(view.memory.chunk_total(), 0);
    flights_.clear();
    peaks_.clear();
    needed_at_.assign(op_count_, 0);
    needed_bytes_ = waits_for_ = 0;
    const OpIndex at = view.op == none ? static_cast<OpIndex>(op_count_ - 1) : view.op;
    gpu_ = op_count_ + at;  // issued last: before the first op, or the present one
    if (at == op_count_ - 1) gpu_ = op_count_ - 1;
    cpu_done_ = op_count_ - 1;
    in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(index(gpu_)));
    horizon_ = {gpu_ + 1, 0, 0};
    fetched_.assign(view.memory.tier_count(), horizon_);
    host_ = horizon_;
    needed_.assign(view.schedule->tensor_count(), {});
    for (TensorId tensor = 0; tensor < needed_.size(); ++tensor) {
      // From where the GPU is: the last use before it says what comes next.
      const auto ops = view.schedule->ops_of(tensor);
      const auto after = std::upper_bound(ops.begin(), ops.end(), at);
      Needs needs;
      Place from = gpu_;
      if (at == op_count_ - 1) {
        needs = future_.at_start(tensor);
      } else if (after != ops.begin()) {
        const OpIndex last = *std::prev(after);
        from = gpu_ - (at - last);
        const auto uses = view.schedule->uses(last);
        for (std::size_t i = 0; i < uses.size(); ++i) {
          if (uses[i].tensor == tensor) needs = future_.after(last, i);
        }
      } else {
        needs = future_.at_start(tensor);
        from = gpu_ - at - 1;
      }
      needed_[tensor] = {ahead(from, needs.gpu), ahead(from, needs.cpu), ahead(from, needs.touch)};
      const TensorId id = view.memory_tensor(tensor);
      if (id != none) refresh_all(id, view);
    }
  }

  static Place ahead(Place from, std::uint32_t distance) { return distance == none ? never : from + distance; }

  // ---- Where every chunk stands ------------------------------------------------------------------------------------

  void refresh_all(TensorId tensor, const View& view) {
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
      for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(chunk, tier, view);
    }
  }

  void refresh(ChunkId chunk, TierId tier, const View& view) {
    if (chunk >= outgoing_.size()) outgoing_.resize(view.memory.chunk_total(), 0);
    const TensorId tensor = view.memory.tensor_of(chunk);
    const TensorId id = view.program_tensor(tensor);
    Shelf& shelf = shelves_[tier];
    if (id == none || !view.memory.evictable(chunk, tier) || view.dead(tensor) || (outgoing_[chunk] >> tier & 1) != 0) {
      shelf.take(chunk);
      return;
    }
    const Bytes bytes = view.memory.footprint(chunk, tier);
    const Needed& needed = needed_[id];
    const auto bucket = [&](Place place) { return place == never ? shelf.never() : index(place); };
    if (tier == 0) {
      if (view.memory.valid_elsewhere(chunk, 0)) {
        shelf.put(chunk, away_now_[id] != 0 ? Shelf::spare : Shelf::clean, bucket(needed.gpu), bytes);
      } else if (needed.cpu != never) {
        shelf.put(chunk, Shelf::owed, bucket(needed.cpu), bytes);
      } else {
        shelf.put(chunk, due_now_[id] != 0 ? Shelf::due : Shelf::dirty,
                  bucket(needed.gpu != never ? needed.gpu : needed.touch), bytes);
      }
      return;
    }
    bool below = false;
    for (TierId lower = static_cast<TierId>(tier + 1); lower < view.memory.tier_count(); ++lower) {
      below |= view.memory.valid(chunk, lower);
    }
    Place next = std::min(needed.gpu, needed.cpu);
    if (!below && next == never) next = needed.touch;
    if (tier == cpu_ && view.memory.valid(chunk, 0) && due_now_[id] == 0 && needed.cpu == never) {
      shelf.put(chunk, Shelf::spare, bucket(next), bytes);  // it stays on the GPU until it is written again
      return;
    }
    shelf.put(chunk, below ? Shelf::clean : sink_now_[id] != 0 ? Shelf::due : Shelf::dirty, bucket(next), bytes);
  }

  void forget(TensorId tensor, const View& view) {
    if (shelves_.empty() || tensor == none || tensor >= view.memory.tensor_count()) return;
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
      for (Shelf& shelf : shelves_) shelf.take(chunk);
      if (chunk < outgoing_.size()) outgoing_[chunk] = 0;
    }
  }

  // ---- What happened -----------------------------------------------------------------------------------------------

  void issued(const Event& event, const View& view) {
    if (event.device == Device::gpu) {
      if (event.op <= index(gpu_)) ssd_left_ = ssd_budget_;
      gpu_ = following(gpu_, event.op);
      while (!peaks_.empty() && peaks_.front().first <= gpu_) peaks_.pop_front();
      needed_bytes_ -= std::min(needed_bytes_, needed_at_[event.op]);
      needed_at_[event.op] = 0;
      in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.born(event.op));
      waits_for_ = 0;
    }
    for (const Use& use : event.uses) {
      if (use.tensor == none) continue;
      refresh_all(use.tensor, view);
      if (event.device != Device::gpu || !(use.read || view.memory.persistent(use.tensor))) continue;
      const ChunkId begin = view.memory.first_chunk(use.tensor);
      for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(use.tensor); ++chunk) {
        if (view.memory.copy(chunk, 0).state == CopyState::absent) waits_for_ += view.memory.footprint(chunk, 0);
      }
    }
  }

  void done(const Event& event, const View& view) {
    const bool gpu = event.device == Device::gpu;
    if (!gpu) cpu_done_ = following(cpu_done_, event.op);
    const Place place = gpu ? gpu_ : cpu_done_;
    if (gpu) in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(event.op));
    const auto uses = future_uses(event.op, view);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      const TensorId tensor = view.memory_tensor(uses[i].tensor);
      const Needs& after = future_.after(event.op, i);
      Needed& needed = needed_[uses[i].tensor];
      if (gpu || uses[i].write) {
        needed.gpu = ahead(place, after.gpu);
        needed.touch = ahead(place, after.touch);
      }
      if (!gpu || uses[i].write) needed.cpu = ahead(place, after.cpu);
      if (needed.gpu <= gpu_) needed.gpu = gpu_ + 1;
      if (!sink_.empty()) sink_now_[uses[i].tensor] = sink_[future_.use_index(event.op, i)];
      if (!away_.empty()) away_now_[uses[i].tensor] = away_[future_.use_index(event.op, i)];
      due_now_[uses[i].tensor] = due_[future_.use_index(event.op, i)];
      if (tensor == none) continue;
      if (future_.dies(event.op, i)) {
        forget(tensor, view);
        continue;
      }
      if (uses[i].write) clear_outgoing(tensor, view);
      refresh_all(tensor, view);
      if (!gpu && uses[i].write) absent(tensor, needed.gpu, view);
    }
  }

  std::span<const Use> future_uses(OpIndex op, const View& view) const { return view.schedule->uses(op); }

  void clear_outgoing(TensorId tensor, const View& view) {
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
      if (chunk < outgoing_.size()) outgoing_[chunk] = 0;
    }
  }

  // The chunk has gone from the GPU and from CPU memory: the cursor goes back for it.
  void sunk(ChunkId chunk, const View& view) {
    const TensorId id = program_id(chunk, view);
    if (!two_levels_ || id == none || view.memory.valid(chunk, 0) || view.memory.valid(chunk, cpu_)) return;
    const Place place = std::min(needed_[id].gpu, needed_[id].cpu);
    if (place <= host_.op) host_ = {place, 0, 0};
  }

  void arrived(const Event& event, const View& view) {
    std::erase_if(flights_, [&](const Flight& f) { return f.chunk == event.chunk && f.to == event.to; });
    if (event.chunk < outgoing_.size() && event.from != no_tier) {
      outgoing_[event.chunk] = static_cast<std::uint8_t>(outgoing_[event.chunk] & ~(1u << event.from));
    }
    for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(event.chunk, tier, view);
    if (event.to != 0) chunk_absent(event.chunk, view);
    if (event.to == ssd_) sunk(event.chunk, view);
  }

  void refused(const Event& event, const View& view) {
    std::erase_if(flights_, [&](const Flight& f) { return f.chunk == event.chunk; });
    if (event.chunk < outgoing_.size()) outgoing_[event.chunk] = 0;
    for (TierId tier = 0; tier < shelves_.size(); ++tier) refresh(event.chunk, tier, view);
  }

  // ---- Looking ahead -----------------------------------------------------------------------------------------------

  // A chunk that the GPU lacks, needed by an op that the horizon has passed: the cursors go back for it.
  void chunk_absent(ChunkId chunk, const View& view) {
    const TensorId id = program_id(chunk, view);
    if (id == none || view.memory.copy(chunk, 0).state != CopyState::absent) return;
    const Place place = needed_[id].gpu;
    if (place == never || place > horizon_.op) return;
    if (place < horizon_.op) need(index(place), view.memory.footprint(chunk, 0));
    for (Cursor& cursor : fetched_) {
      if (place <= cursor.op) cursor = {place, 0, 0};
    }
    if (place == horizon_.op) horizon_ = std::min(horizon_, Cursor{place, 0, 0});
  }

  void absent(TensorId tensor, Place place, const View& view) {
    if (place == never || place > horizon_.op) return;
    const ChunkId begin = view.memory.first_chunk(tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) chunk_absent(chunk, view);
  }

  void need(OpIndex op, Bytes bytes) {
    needed_at_[op] += bytes;
    needed_bytes_ += bytes;
  }
  void got(OpIndex op, Bytes bytes) {
    const Bytes taken = std::min(bytes, needed_at_[op]);
    needed_at_[op] -= taken;
    needed_bytes_ -= std::min(needed_bytes_, taken);
  }

  // Room that will be lacking if everything up to the place is there by then.
  std::int64_t excess(Place place, Bytes more, const View& view) const {
    std::int64_t peak = future_.alive(place);
    if (!peaks_.empty()) peak = std::max(peak, peaks_.front().second);
    Bytes unreserved = 0;
    for (const Flight& flight : flights_) {
      if (flight.to == 0 && view.memory.copy(flight.chunk, 0).state == CopyState::absent) unreserved += flight.bytes;
    }
    const Bytes lasting = shelves_[0].clean_beyond(index(gpu_), index(place), place == gpu_ + op_count_);
    const auto n = [](Bytes bytes) { return static_cast<std::int64_t>(bytes); };
    return n(view.memory.used(0)) - n(view.memory.leaving(0)) + n(unreserved + waits_for_ + needed_bytes_ + more) +
           (peak - in_use_) - n(lasting) - n(view.memory.capacity(0));
  }

  void look_ahead(const View& view) {
    if (horizon_.op <= gpu_) {
      horizon_ = {gpu_ + 1, 0, 0};
      peaks_.clear();
      std::fill(needed_at_.begin(), needed_at_.end(), 0);
      needed_bytes_ = 0;
    }
    blocked_ = 0;
    while (horizon_.op < gpu_ + op_count_) {
      const OpIndex op = index(horizon_.op);
      if (future_.device(op) == Device::gpu && !admit(op, view)) return;
      const std::int64_t alive = future_.alive(horizon_.op);
      while (!peaks_.empty() && peaks_.back().second <= alive) peaks_.pop_back();
      peaks_.emplace_back(horizon_.op, alive);
      horizon_ = {horizon_.op + 1, 0, 0};
    }
  }

  bool admit(OpIndex op, const View& view) {
    const auto uses = view.schedule->uses(op);
    if (const std::int64_t lacking = excess(horizon_.op, 0, view); lacking > 0) {
      blocked_ = lacking;
      return false;
    }
    for (; horizon_.use < uses.size(); ++horizon_.use, horizon_.chunk = 0) {
      const Use& use = uses[horizon_.use];
      const TensorId tensor = view.memory_tensor(use.tensor);
      if (tensor == none) continue;
      if (use.read ? needed_[use.tensor].gpu != horizon_.op : !view.memory.persistent(tensor)) continue;
      const ChunkId begin = view.memory.first_chunk(tensor);
      for (; horizon_.chunk < view.memory.chunk_count(tensor); ++horizon_.chunk) {
        const ChunkId chunk = begin + horizon_.chunk;
        if (view.memory.copy(chunk, 0).state != CopyState::absent) continue;
        const Bytes bytes = view.memory.footprint(chunk, 0);
        if (const std::int64_t lacking = excess(horizon_.op, bytes, view); lacking > 0) {
          blocked_ = lacking;
          return false;
        }
        need(op, bytes);
      }
    }
    return true;
  }

  // ---- Fetching ----------------------------------------------------------------------------------------------------

  TierId source_of(ChunkId chunk, const View& view) const {
    TierId best = no_tier;
    BytesPerSecond most = 0;
    for (TierId tier = 1; tier < view.memory.tier_count(); ++tier) {
      if (!view.memory.valid(chunk, tier) || view.memory.copy(chunk, tier).writers > 0) continue;
      const auto path = view.machine.path_between(tier, 0);
      if (path.empty()) continue;
      BytesPerSecond bandwidth = view.machine.links[path.front()].bandwidth;
      for (const LinkId link : path) bandwidth = std::min(bandwidth, view.machine.links[link].bandwidth);
      if (best == no_tier || bandwidth > most) best = tier, most = bandwidth;
    }
    return best;
  }

  Bytes flying(TierId from, TierId to) const {
    Bytes bytes = 0;
    for (const Flight& flight : flights_) {
      if (flight.from == from && flight.to == to) bytes += flight.bytes;
    }
    return bytes;
  }
  Bytes window() const { return knobs_.in_flight * (layout_.chunk_bytes == 0 ? 64 * MiB : layout_.chunk_bytes); }

  void fetch(const View& view, Actions& actions) {
    for (TierId tier = 1; tier < fetched_.size(); ++tier) fetch_from(tier, view, actions);
  }

  void fetch_from(TierId tier, const View& view, Actions& actions) {
    Cursor& cursor = fetched_[tier];
    if (cursor.op <= gpu_) cursor = {gpu_ + 1, 0, 0};
    Bytes underway = flying(tier, 0);
    for (; cursor < horizon_; cursor = {cursor.op + 1, 0, 0}) {
      const OpIndex op = index(cursor.op);
      if (future_.device(op) != Device::gpu) continue;
      const auto uses = view.schedule->uses(op);
      for (; cursor.use < uses.size() && cursor < horizon_; ++cursor.use, cursor.chunk = 0) {
        const Use& use = uses[cursor.use];
        const TensorId tensor = view.memory_tensor(use.tensor);
        if (!use.read || tensor == none || view.dead(tensor) || needed_[use.tensor].gpu != cursor.op) continue;
        const ChunkId begin = view.memory.first_chunk(tensor);
        for (; cursor.chunk < view.memory.chunk_count(tensor) && cursor < horizon_; ++cursor.chunk) {
          const ChunkId chunk = begin + cursor.chunk;
          if (view.memory.copy(chunk, 0).state != CopyState::absent || source_of(chunk, view) != tier) continue;
          if (on_its_way(chunk, 0) || (two_levels_ && on_its_way(chunk, cpu_))) continue;
          if (underway >= window() || flights_.size() > 256) return;
          const Bytes bytes = view.memory.footprint(chunk, 0);
          actions.push({.verb = Verb::fetch, .tensor = tensor, .chunk = cursor.chunk});
          flights_.push_back({chunk, tier, 0, bytes});
          underway += bytes;
          got(op, bytes);
        }
        if (!(cursor < horizon_)) return;
      }
      if (!(cursor < horizon_)) return;
    }
  }

  bool on_its_way(ChunkId chunk, TierId to) const {
    return std::any_of(flights_.begin(), flights_.end(),
                       [chunk, to](const Flight& f) { return f.chunk == chunk && f.to == to; });
  }

  // ---- Who leaves --------------------------------------------------------------------------------------------------

  void choose(const RoomRequest& request, Shelf::Kind kind, Place floor, const View& view,
              std::vector<ChunkId>& victims, Bytes& found) {
    Shelf& shelf = shelves_[request.tier];
    const std::uint32_t now = index(gpu_);
    for (std::uint32_t op = shelf.farthest(kind, now); op != none && found < request.bytes;
         op = shelf.nearer(kind, op, now)) {
      if (op != shelf.never() && place_of(op) <= floor) return;
      for (ChunkId chunk = shelf.first(kind, op); chunk != none && found < request.bytes;) {
        const ChunkId next = shelf.next(chunk);
        const bool free = kind == Shelf::clean || kind == Shelf::spare;
        const bool may =
            view.memory.evictable(chunk, request.tier) && (!free || view.memory.valid_elsewhere(chunk, request.tier));
        if (may) {
          victims.push_back(chunk);
          found += view.memory.footprint(chunk, request.tier);
          shelf.take(chunk);
          if (free && request.tier == 0 && op != shelf.never()) dropped(chunk, place_of(op), view);
        } else {
          refresh(chunk, request.tier, view);
        }
        chunk = next;
      }
    }
  }

  void dropped(ChunkId chunk, Place place, const View& view) {
    if (two_levels_ && !view.memory.valid(chunk, cpu_) && place <= host_.op) host_ = {place, 0, 0};
    if (place > horizon_.op) return;
    if (place < horizon_.op) need(index(place), view.memory.footprint(chunk, 0));
    for (Cursor& cursor : fetched_) {
      if (place <= cursor.op) cursor = {place, 0, 0};
    }
  }

  // ---- Cleaning ----------------------------------------------------------------------------------------------------

  void clean(const View& view, Actions& actions) {
    if (cpu_ != no_tier) clean_to(cpu_, view, actions);
    if (direct_) clean_to(ssd_, view, actions);
  }

  void clean_to(TierId to, const View& view, Actions& actions) {
    const LinkId out = view.machine.link_between(0, to);
    if (out == no_link) return;
    if (view.transfers_on(out) == 0) {
      for (Flight& f : flights_) {
        if (f.from == 0 && f.to == to) outgoing_[f.chunk] = static_cast<std::uint8_t>(outgoing_[f.chunk] & ~1u);
      }
      std::erase_if(flights_, [&](const Flight& f) { return f.from == 0 && f.to == to; });
    }
    Bytes underway = flying(0, to);
    while (underway < window()) {
      const ChunkId chunk = to == cpu_ ? to_clean(underway, view) : ssd_to_clean();
      if (chunk == none) return;
      Shelf& shelf = shelves_[0];
      if (!view.memory.evictable(chunk, 0) || view.memory.valid_elsewhere(chunk, 0)) {
        const Shelf::Kind was = shelf.kind(chunk);
        refresh(chunk, 0, view);
        if (shelf.kind(chunk) == was) return;
        continue;
      }
      const Bytes bytes = view.memory.footprint(chunk, 0);
      if (view.memory.free(to) < view.memory.footprint(chunk, to) + flying(0, to)) return;
      const TensorId tensor = view.memory.tensor_of(chunk);
      actions.push(
          {.verb = Verb::clean, .destination = to, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
      flights_.push_back({chunk, 0, to, bytes});
      due_now_[view.program_tensor(tensor)] = 1;  // whatever the plan says: its copy will be of use
      if (to == ssd_) ssd_left_ -= std::min(ssd_left_, bytes);
      outgoing_[chunk] |= 1;
      shelf.take(chunk);
      underway += bytes;
    }
  }

  ChunkId to_clean(Bytes underway, const View&) const {
    const Shelf& shelf = shelves_[0];
    if (const std::uint32_t op = shelf.nearest(Shelf::owed, index(cpu_done_)); op != none) {
      return shelf.first(Shelf::owed, op);
    }
    if (const std::uint32_t op = shelf.farthest(Shelf::due, index(gpu_)); op != none)
      return shelf.first(Shelf::due, op);
    if (blocked_ <= static_cast<std::int64_t>(underway)) return none;
    const std::uint32_t op = shelf.farthest(Shelf::dirty, index(gpu_));
    if (op == none || (op != shelf.never() && place_of(op) <= horizon_.op)) return none;
    return shelf.first(Shelf::dirty, op);
  }

  ChunkId ssd_to_clean() const {
    const Shelf& shelf = shelves_[0];
    const std::uint32_t op = shelf.farthest(Shelf::due, index(gpu_));
    const ChunkId chunk = op == none ? none : shelf.first(Shelf::due, op);
    return ssd_left_ == 0 ? none : chunk;
  }

  // ---- CPU memory as a cache of the SSD ----------------------------------------------------------------------------

  Place host_base() const {
    if (cpu_ops_.empty()) return gpu_;
    const auto next = std::upper_bound(cpu_ops_.begin(), cpu_ops_.end(), index(cpu_done_));
    const Place place = following(cpu_done_, next == cpu_ops_.end() ? cpu_ops_.front() : *next);
    return std::min(gpu_, place - 1);
  }
  Bytes reserve(const View& view) const { return std::min(view.memory.capacity(cpu_) / 8, 8 * window()); }

  void tend_host(const View& view, Actions& actions) {
    host_now_ = host_base();
    host_blocked_ = false;
    dropped_ = 0;
    if (two_levels_) read_ahead(view, actions);
    while (view.memory.free(cpu_) + dropped_ < reserve(view)) {
      if (!drop_from_host(Shelf::spare, host_now_, view, actions) &&
          (ssd_ == no_tier || !drop_from_host(Shelf::clean, host_.op, view, actions))) {
        break;
      }
    }
    if (two_levels_) sink(view, actions);
  }

  // Next use, counted from the base: places of a round.
  Place host_place(std::uint32_t op) const { return following(host_now_, op); }

  bool drop_from_host(Shelf::Kind kind, Place floor, const View& view, Actions& actions) {
    Shelf& shelf = shelves_[cpu_];
    const std::uint32_t op = shelf.farthest(kind, index(host_now_));
    if (op == none || (op != shelf.never() && host_place(op) <= floor)) return false;
    const ChunkId chunk = shelf.first(kind, op);
    const TierId other = kind == Shelf::spare ? TierId{0} : ssd_;
    if (!view.memory.evictable(chunk, cpu_) || !view.memory.valid(chunk, other) ||
        (other == 0 && view.memory.copy(chunk, 0).evicting)) {
      refresh(chunk, cpu_, view);
      return shelf.kind(chunk) != kind;
    }
    const TensorId tensor = view.memory.tensor_of(chunk);
    actions.push(
        {.verb = Verb::drop, .tier = cpu_, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
    dropped_ += view.memory.footprint(chunk, cpu_);
    shelf.take(chunk);
    Shelf& gpu = shelves_[0];
    const bool elsewhere = ssd_ != no_tier && view.memory.valid(chunk, ssd_);
    if (other == 0 && !elsewhere && gpu.kind(chunk) != Shelf::off) {
      gpu.put(chunk, Shelf::dirty, gpu.op(chunk), view.memory.footprint(chunk, 0));
    }
    return true;
  }

  void read_ahead(const View& view, Actions& actions) {
    const LinkId link = view.machine.link_between(ssd_, cpu_);
    if (host_.op <= host_now_) host_ = {host_now_ + 1, 0, 0};
    for (; host_.op < host_now_ + op_count_; host_ = {host_.op + 1, 0, 0}) {
      const OpIndex op = index(host_.op);
      const bool gpu = future_.device(op) == Device::gpu;
      const auto uses = view.schedule->uses(op);
      for (; host_.use < uses.size(); ++host_.use, host_.chunk = 0) {
        const Use& use = uses[host_.use];
        const TensorId tensor = view.memory_tensor(use.tensor);
        if (!use.read || tensor == none || view.dead(tensor)) continue;
        if ((gpu ? needed_[use.tensor].gpu : needed_[use.tensor].cpu) != host_.op) continue;
        const ChunkId begin = view.memory.first_chunk(tensor);
        for (; host_.chunk < view.memory.chunk_count(tensor); ++host_.chunk) {
          const ChunkId chunk = begin + host_.chunk;
          if (!view.memory.valid(chunk, ssd_) || view.memory.copy(chunk, cpu_).state != CopyState::absent) continue;
          if (view.memory.copy(chunk, 0).state != CopyState::absent || on_its_way(chunk, 0)) continue;
          if (on_its_way(chunk, cpu_)) continue;
          if (view.transfers_on(link) > 1 || flying(ssd_, cpu_) >= window()) return;
          const Bytes bytes = view.memory.footprint(chunk, cpu_);
          while (view.memory.free(cpu_) + dropped_ < flying(ssd_, cpu_) + bytes + reserve(view) / 2) {
            if (!drop_from_host(Shelf::spare, host_now_, view, actions) &&
                !drop_from_host(Shelf::clean, host_.op, view, actions)) {
              host_blocked_ = true;
              return;
            }
          }
          actions.push({.verb = Verb::fetch, .tier = cpu_, .tensor = tensor, .chunk = host_.chunk});
          flights_.push_back({chunk, ssd_, cpu_, bytes});
        }
      }
    }
  }

  // Copies down what will have to leave CPU memory, or, if it is short, whatever is needed last.
  void sink(const View& view, Actions& actions) {
    const LinkId link = view.machine.link_between(cpu_, ssd_);
    if (view.transfers_on(link) == 0) {
      for (Flight& f : flights_) {
        if (f.from == cpu_ && f.to == ssd_)
          outgoing_[f.chunk] = static_cast<std::uint8_t>(outgoing_[f.chunk] & ~(1u << cpu_));
      }
      std::erase_if(flights_, [&](const Flight& f) { return f.from == cpu_ && f.to == ssd_; });
    }
    Shelf& shelf = shelves_[cpu_];
    Bytes underway = flying(cpu_, ssd_);
    const bool is_short = host_blocked_ || view.memory.free(cpu_) < reserve(view);
    while (underway < window() && view.transfers_on(link) < 2) {
      std::uint32_t op = shelf.farthest(Shelf::due, index(host_now_));
      Shelf::Kind kind = Shelf::due;
      if (op == none && is_short) {
        kind = Shelf::dirty;
        op = shelf.farthest(kind, index(host_now_));
        if (op != none && op != shelf.never() && host_place(op) <= host_.op) return;
      }
      if (op == none) return;
      const ChunkId chunk = shelf.first(kind, op);
      if (!view.memory.evictable(chunk, cpu_) || view.memory.valid(chunk, ssd_)) {
        refresh(chunk, cpu_, view);
        if (shelf.kind(chunk) == kind) return;
        continue;
      }
      const TensorId tensor = view.memory.tensor_of(chunk);
      actions.push({.verb = Verb::clean,
                    .tier = cpu_,
                    .destination = ssd_,
                    .tensor = tensor,
                    .chunk = chunk - view.memory.first_chunk(tensor)});
      const Bytes bytes = view.memory.footprint(chunk, cpu_);
      flights_.push_back({chunk, cpu_, ssd_, bytes});
      outgoing_[chunk] = static_cast<std::uint8_t>(outgoing_[chunk] | 1u << cpu_);
      shelf.take(chunk);
      underway += bytes;
    }
  }

  std::string updates_ = "auto";
  Layout layout_;
  Knobs knobs_;
  std::uint64_t plan_events_ = 0;
  std::vector<Nanoseconds> next_stalled_;
  bool known_ = false;
  TierId cpu_ = no_tier;
  std::size_t op_count_ = 1;
  Future future_;
  std::vector<Nanoseconds> times_ns_;
  TierId ssd_ = no_tier;
  bool direct_ = false;
  std::vector<std::uint8_t> due_, due_now_, away_, away_now_;
  std::vector<std::uint8_t> sink_, sink_now_;
  bool two_levels_ = false, host_blocked_ = false;
  std::vector<OpIndex> cpu_ops_;
  Cursor host_;
  Place host_now_ = 0;
  Bytes dropped_ = 0;
  Bytes ssd_budget_ = 0, ssd_left_ = 0;
  std::vector<Shelf> shelves_;                        // by tier
  std::vector<Needed> needed_;                        // by tensor of the program: the places of its next uses
  std::vector<std::uint8_t> outgoing_;                // by chunk: a bit for each tier from which it is being cleaned
  std::vector<Flight> flights_;                       // asked for and not arrived
  Place gpu_ = 0, cpu_done_ = 0;                      // the ops that were issued to the GPU, done by the CPU, last
  std::int64_t in_use_ = 0;                           // Future::alive of what `used` has in it by now
  Bytes waits_for_ = 0;                               // room that the waiting op has to take still
  Cursor horizon_;                                    // up to here everything fits
  std::vector<Cursor> fetched_;                       // by tier: up to here it has nothing that the GPU lacks
  std::vector<Bytes> needed_at_;                      // by op before the horizon: what it lacks
  Bytes needed_bytes_ = 0;                            // their sum
  std::int64_t blocked_ = 0;                          // what is lacking at the horizon; 0: nothing up to a round ahead
  std::deque<std::pair<Place, std::int64_t>> peaks_;  // of Future::alive between the GPU and the horizon, falling
};

}  // namespace

std::unique_ptr<Policy> make_foresight(Options& options) { return std::make_unique<Foresight>(options); }

}  // namespace tencache
