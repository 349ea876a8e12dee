#include "policies/foresight/foreknowledge.h"

#include <algorithm>
#include <iterator>

#include "policies/footprint.h"

namespace tencache {
namespace {

// What a tensor takes on the GPU.
std::vector<Bytes> footprints_on_gpu(const View& view, Bytes chunk_bytes) {
  const Bytes granularity = view.machine.tiers[0].granularity;
  const auto rounded = [&](Bytes bytes) { return (bytes + granularity - 1) / granularity * granularity; };
  std::vector<Bytes> footprints;
  for (const Tensor& tensor : view.program->trace.tensors) {
    const Bytes chunk = chunk_bytes == 0 ? tensor.bytes : std::min(tensor.bytes, chunk_bytes);
    footprints.push_back(tensor.bytes / chunk * rounded(chunk) + rounded(tensor.bytes % chunk));
  }
  return footprints;
}

}  // namespace

// ---- The start ------------------------------------------------------------------------------------------------------

void Foreknowledge::start(const View& view, Bytes chunk_bytes, bool forgets, const ForesightKnobs& knobs) {
  const Trace& trace = view.program->trace;
  ways = Ways(view.machine);
  future = Future(trace, *view.schedule, footprints_on_gpu(view, chunk_bytes), forgets);
  plan = SpillPlan(view, ways, forgets, knobs);
  exclusive_ = ways.cpu == no_tier ? Exclusive::none : knobs.exclusive;
  shelves.assign(ways.cpu == no_tier ? 1 : ways.cpu + 1u, {});
  for (Shelf& shelf : shelves) shelf.reset(trace.ops.size());
  flights.clear(view.memory.chunk_total());
  places = OpPlaces(trace, view.op);
  horizon = Horizon(places, future);
  fetched.assign(view.memory.tier_count(), horizon.end());
  for (Store& store : ways.stores) store.read = horizon.end();
  needed.resize(view.schedule->tensor_count());
  const double all = std::max(1.0, static_cast<double>(persistent_bytes(trace)));
  const double kept = std::min(1.0, static_cast<double>(view.machine.tiers[0].capacity) / all);
  odds_ = view.reveals() ? ExpertOdds(trace, kept) : ExpertOdds();
  homes_.reset();
  if (!odds_.empty() && view.to_memory == nullptr && ExpertHomes::apply(trace, view.machine)) {
    homes_ = std::make_unique<ExpertHomes>(trace, view.machine, odds_.experts());
  }
  revealed_.clear();
  for (TensorId tensor = 0; tensor < needed.size(); ++tensor) {
    needed[tensor] = needed_from(tensor, places.index(places.gpu()), view);
    if (is_guess(tensor)) guess(tensor);
    if (const TensorId id = view.memory_tensor(tensor); id != none) refresh_all(id, view);
  }
  lacking_ = IndexSet(trace.ops.size());
  all_may_lack();
  left_ = view.memory.left_first_tier();
}

// From where the GPU is: the tensor's last use up to it says what comes next.
NeededAt Foreknowledge::needed_from(TensorId tensor, OpIndex op, const View& view) const {
  const auto ops = view.schedule->ops_of(tensor);
  const auto after = std::ranges::upper_bound(ops, op);
  Needs needs = future.at_start(tensor);
  OpPlace from = places.gpu();
  if (places.begun()) {  // live, in the midst of an iteration
    from = places.gpu() - op - 1;
    if (after != ops.begin()) {
      const OpIndex last = *std::prev(after);
      const auto uses = view.schedule->uses(last);
      const auto use = std::ranges::find(uses, tensor, &Use::tensor);
      needs = future.after(last, static_cast<std::size_t>(use - uses.begin()));
      from = places.gpu() - (op - last);
    }
  }
  const auto place = [from](std::uint32_t distance) { return distance == none ? no_place : from + distance; };
  return {place(needs.gpu), place(needs.cpu), place(needs.touch)};
}

void Foreknowledge::guess(TensorId tensor) {
  const Experts::Place place = odds_.experts().place(tensor);
  const OpIndex now = places.index(places.gpu());
  std::uint32_t distance = odds_.ops_until(place.layer, place.expert, now);
  // What is at home there leaves after all that is not.
  if (homes_) {
    const auto half = static_cast<std::uint32_t>(places.op_count() / 2);
    distance = homes_->has(place) ? odds_.ops_until_gate(place.layer, now) : std::max(distance, half);
  }
  needed[tensor].gpu = places.gpu() + distance;
}

// Lowering gives it no time then (core/reveal.h).
bool Foreknowledge::given_to_cpu(OpIndex op, const View& view) const {
  const Trace& trace = view.program->trace;
  const Op& decided = trace.ops[op];
  return homes_ && decided.placeable && decided.duration_ns == 0 && trace.detail(decided).revealed_by != none;
}

void Foreknowledge::choose_homes(const Event& event, const View& view) {
  std::vector<ExpertHomes::Run> runs;
  for (const Use& use : event.uses) {
    const OpIndex op = places.index(places.gpu() + view.distance_to_revealed_use(use.tensor));
    runs.push_back({use.tensor, view.program->trace.ops[op].flops, !given_to_cpu(op, view)});
  }
  homes_->chosen(event.op, runs, odds_.experts());
}

// ---- What happens ---------------------------------------------------------------------------------------------------

void Foreknowledge::issued(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    if (event.op <= places.index(places.gpu())) plan.begin_iteration();
    places.issued_to_gpu(event.op);
  }
  std::erase_if(revealed_, [&event](const Revealed& one) { return one.op == event.op; });
  Bytes lacking = 0;
  for (const Use& use : event.uses) {
    if (use.tensor == none) continue;
    refresh_all(use.tensor, view);
    const TensorId id = view.program_tensor(use.tensor);
    const bool persistent = id != none && view.program->trace.tensors[id].persistent;
    if (!gpu || !(use.read || persistent)) continue;
    const ChunkId begin = view.memory.first_chunk(use.tensor);
    for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(use.tensor); ++chunk) {
      if (view.memory.copy(chunk, 0).state == CopyState::absent) lacking += view.memory.footprint(chunk, 0);
    }
  }
  if (gpu) horizon.issued(event.op, lacking, places, future, view);
}

void Foreknowledge::revealed(const Event& event, const View& view) {
  std::vector<Use> decided(event.uses.begin(), event.uses.end());
  for (Use& use : decided) use.tensor = view.program_tensor(use.tensor);
  odds_.chosen(event.op, decided);
  if (homes_) choose_homes(event, view);
  const std::uint32_t layer = odds_.experts().layer(event.op);
  for (std::size_t expert = 0; expert < odds_.experts().count_in(layer); ++expert) {
    for (const TensorId tensor : odds_.experts().weights_in(layer, expert)) guess(tensor);
  }
  for (std::size_t i = 0; i < decided.size(); ++i) {
    const TensorId id = decided[i].tensor;
    const std::uint32_t distance = view.distance_to_revealed_use(id);
    if (distance == none) continue;  // live, more experts than in the recorded step
    if (given_to_cpu(places.index(places.gpu() + distance), view)) continue;
    needed[id].gpu = places.gpu() + distance;
    revealed_.push_back({places.index(needed[id].gpu), event.uses[i].tensor});
  }
  for (std::size_t expert = 0; expert < odds_.experts().count_in(layer); ++expert) {
    for (const TensorId tensor : odds_.experts().weights_in(layer, expert)) {
      if (const TensorId id = view.memory_tensor(tensor); id != none) refresh_all(id, view);
    }
  }
}

// The program shows ops on the GPU that a gate decides; once it is done the CPU's are known.
Needs Foreknowledge::needs_after(const Event& event, std::size_t use, const View& view) const {
  const Needs after = future.after(event.op, use);
  if (!homes_ || after.gpu == none || event.op + std::size_t{after.gpu} >= places.op_count()) return after;
  const OpIndex next = event.op + after.gpu;
  const OpIndex gate = view.program->trace.detail(view.program->trace.ops[next]).revealed_by;
  if (gate == none || gate > event.op || !given_to_cpu(next, view)) return after;
  return {none, after.gpu, none};
}

void Foreknowledge::done(const Event& event, const View& view) {
  const bool gpu = event.device == Device::gpu;
  if (gpu) {
    horizon.done(event.op, places, future);
  } else {
    places.done_by_cpu(event.op);
  }
  const OpPlace from = gpu ? places.gpu() : places.cpu();
  const auto place = [from](std::uint32_t distance) { return distance == none ? no_place : from + distance; };
  const auto uses = view.schedule->uses(event.op);
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const TensorId id = uses[i].tensor;
    const Needs after = needs_after(event, i, view);
    NeededAt& next = needed[id];
    if (gpu || uses[i].write) {
      next.gpu = std::max(place(after.gpu), places.gpu() + 1);  // a CPU op may be far behind
      next.touch = place(after.touch);
      if (!gpu && next.gpu != no_place) lacking_.insert(places.index(next.gpu));  // what the GPU used, it has
    }
    const bool now_known = after.gpu == none && after.cpu != none && homes_;
    if (!gpu || uses[i].write || now_known) next.cpu = place(after.cpu);
    plan.used(id, future.use_index(event.op, i));
    const TensorId tensor = view.memory_tensor(id);
    if (tensor == none) continue;
    if (future.dies(event.op, i)) {
      forget(tensor, view);
      continue;
    }
    const ChunkId begin = view.memory.first_chunk(tensor), end = begin + view.memory.chunk_count(tensor);
    for (ChunkId chunk = begin; chunk < end && uses[i].write; ++chunk) {
      flights.stopped(chunk);  // it was about to be written
      if (!gpu) absent(chunk, next.gpu, view);
    }
    refresh_all(tensor, view);
  }
  for (const Use& use : event.uses) {
    const TensorId id = use.tensor == none ? none : view.program_tensor(use.tensor);
    if (id == none || !is_guess(id)) continue;
    guess(id);
    refresh_all(use.tensor, view);
  }
  const Trace& trace = view.program->trace;
  for (const TensorId id : trace.frees(trace.ops[event.op])) forget(view.memory_tensor(id), view);
}

void Foreknowledge::arrived(const Event& event, const View& view) {
  flights.arrived(event.chunk, event.from, event.to);
  for (TierId tier = 0; tier < shelves.size(); ++tier) refresh(event.chunk, tier, view);
  if (event.to == 0) return;
  if (view.machine.tiers[event.to].kind == TierKind::nvme) gone_from_memory(event.chunk, view);
  const TensorId id = view.program_tensor(event.tensor);
  if (id != none && !is_guess(id)) absent(event.chunk, needed[id].gpu, view);
}

void Foreknowledge::refused(ChunkId chunk, const View& view) {
  flights.refused(chunk);
  for (TierId tier = 0; tier < shelves.size(); ++tier) refresh(chunk, tier, view);
}

void Foreknowledge::forget(TensorId tensor, const View& view) {
  if (shelves.empty() || tensor == none || tensor >= view.memory.tensor_count()) return;
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    for (Shelf& shelf : shelves) shelf.take(chunk);
    flights.stopped(chunk);
  }
}

// ---- What is lacking ------------------------------------------------------------------------------------------------

// The GPU has no copy and needs one at that place: cursors that have passed it go back.
void Foreknowledge::absent(ChunkId chunk, OpPlace place, const View& view) {
  if (place > horizon.end().op || view.memory.copy(chunk, 0).state != CopyState::absent) return;
  horizon.absent(place, places.index(place), view.memory.footprint(chunk, 0));
  for (UseCursor& cursor : fetched) go_back(cursor, place);
}

void Foreknowledge::dropped(ChunkId chunk, OpIndex needed_by, const View& view) {
  if (const TensorId id = view.program_tensor(view.memory.tensor_of(chunk)); id != none && is_guess(id)) return;
  const OpPlace place = places.after_gpu(needed_by);
  if (place < horizon.end().op) horizon.need(needed_by, view.memory.footprint(chunk, 0));
  for (UseCursor& cursor : fetched) go_back(cursor, place);
  for (Store& store : ways.stores) go_back(store.read, place);
}

void Foreknowledge::all_may_lack() {
  for (OpIndex op = 0; op < places.op_count(); ++op) lacking_.insert(op);
}

void Foreknowledge::find_lacking(const View& view) {
  const std::uint64_t left = view.memory.left_first_tier();
  if (left - left_ > Residency::left_kept) all_may_lack();
  for (left_ = std::max(left_, left - std::min(left, Residency::left_kept)); left_ < left; ++left_) {
    const TensorId id = view.program_tensor(view.memory.tensor_of(view.memory.left_first_tier(left_)));
    if (id != none && needed[id].gpu != no_place && !is_guess(id)) lacking_.insert(places.index(needed[id].gpu));
  }
}

// Live, other tensors may be there than when an op was looked at.
OpPlace Foreknowledge::next_lacking(OpPlace from, OpPlace end, const View& view) const {
  if (view.to_memory != nullptr) return from;
  const OpIndex op = places.index(from);
  if (const auto next = lacking_.at_or_after(op)) return std::min(end, from + (*next - op));
  const auto next = lacking_.at_or_after(0);
  return next ? std::min(end, from + (places.op_count() - op + *next)) : end;
}

// The only copy is in storage: cursors that have passed where it is needed go back.
void Foreknowledge::gone_from_memory(ChunkId chunk, const View& view) {
  const TensorId id = view.program_tensor(view.memory.tensor_of(chunk));
  if (id == none || view.memory.valid(chunk, 0) || (ways.cpu != no_tier && view.memory.valid(chunk, ways.cpu))) return;
  const OpPlace place = std::min(needed[id].gpu, needed[id].cpu);
  for (Store& store : ways.stores) go_back(store.read, place);
}

// ---- Where every chunk stands ---------------------------------------------------------------------------------------

void Foreknowledge::refresh_all(TensorId tensor, const View& view) {
  const TensorId id = listed_as(tensor, view);
  const ChunkId begin = view.memory.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + view.memory.chunk_count(tensor); ++chunk) {
    refresh(chunk, 0, id, view);
    if (ways.cpu != no_tier) refresh(chunk, ways.cpu, id, view);
  }
}

void Foreknowledge::refresh(ChunkId chunk, TierId tier, const View& view) {
  if (tier == 0 || tier == ways.cpu) refresh(chunk, tier, listed_as(view.memory.tensor_of(chunk), view), view);
}

// The program's tensor, if chunks may be on a shelf; none: they are not.
TensorId Foreknowledge::listed_as(TensorId tensor, const View& view) const {
  return view.dead(tensor) ? none : view.program_tensor(tensor);
}

void Foreknowledge::refresh(ChunkId chunk, TierId tier, TensorId id, const View& view) {
  Shelf& shelf = shelves[tier];
  if (id == none || !view.memory.evictable(chunk, tier) || flights.leaving(chunk, tier)) {
    shelf.take(chunk);
    return;
  }
  const NeededAt& at = needed[id];
  const Bytes bytes = view.memory.footprint(chunk, tier);
  if (tier == 0) {
    const Shelf::Kind kind = kind_on_gpu(chunk, id, view);
    OpPlace next = kind == Shelf::owed ? at.cpu : at.gpu;
    if (next == no_place && (kind == Shelf::due || kind == Shelf::dirty)) next = at.touch;
    shelf.put(chunk, kind, places.shelf_op(next), bytes);
    return;
  }
  const bool stored = ways.store_of(chunk, view.memory) != no_tier;
  OpPlace next = std::min(at.gpu, at.cpu);
  if (!stored && next == no_place) next = at.touch;
  // What stays on the GPU until it is written again needs no copy here.
  const bool useless =
      view.memory.valid(chunk, 0) && at.cpu == no_place && (!plan.worth_cleaning(id) || exclusive_ == Exclusive::both);
  shelf.put(chunk,
            useless                  ? Shelf::spare
            : stored                 ? Shelf::clean
            : plan.worth_storing(id) ? Shelf::due
                                     : Shelf::dirty,
            places.shelf_op(next), bytes);
}

Shelf::Kind Foreknowledge::kind_on_gpu(ChunkId chunk, TensorId id, const View& view) const {
  if (view.memory.valid_elsewhere(chunk, 0)) {
    if (exclusive() && !view.memory.valid(chunk, ways.cpu)) return Shelf::alone;
    return plan.leaves_gpu(id) ? Shelf::spare : Shelf::clean;
  }
  if (needed[id].cpu != no_place) return Shelf::owed;
  return plan.worth_cleaning(id) ? Shelf::due : Shelf::dirty;
}

// ---- Transfers asked for --------------------------------------------------------------------------------------------

void Foreknowledge::ask(Verb verb, ChunkId chunk, TierId from, TierId to, const View& view, Actions& actions) {
  const TensorId tensor = view.memory.tensor_of(chunk);
  const std::uint32_t number = chunk - view.memory.first_chunk(tensor);
  const bool leaves = verb != Verb::fetch;
  if (leaves) {
    actions.push({.verb = verb, .tier = from, .destination = to, .tensor = tensor, .chunk = number});
    shelves[from].take(chunk);
  } else {
    actions.push({.verb = verb, .tier = to, .tensor = tensor, .chunk = number});
  }
  flights.add(chunk, from, to, view.memory.footprint(chunk, to), leaves);
}

void Foreknowledge::forget_lost(TierId from, TierId to, const View& view) {
  if (view.transfers_on(ways.link(from, to)) == 0) flights.stopped(from, to);
}

}  // namespace tencache
