// pressurefit: the planner of dataflow (github.com/als244/dataflow, c56b6ab, 2026): PressureFit, which decides what is
// on the GPU between tasks, and its planner of recomputation. Rules: docs/dataflow_sim of that repository.
//
// Tasks are runs of ops of a layer in one phase. Objects are tensors that the same tasks use; what lives in one task
// only is its workspace. Memory for objects is the GPU's less the largest workspace and `leeway`.
//   1. An object has to be on the GPU at its uses. It is at first from the first to the last of them. At the start are
//      there: the inputs of the first task.
//   2. While a border between tasks has more than fits: at the worst, of the objects that are there and not used, cut
//      the best gap between two uses. min-stall: by the delay at the next use as far as this object alone causes it,
//      write-back or none, the start kept or not, latest first use, largest, longest gap. min-transfer: without the
//      delay.
//   3. Five strategies: with a border of headroom before each arrival or without (tight), each with both scores; and
//      tight with min-stall that stops once what leaves and what arrives early at the worst border makes it fit.
//   4. Four rules say after which task an object is asked for: packed-fifo packs all backwards from their uses into one
//      queue; packed-fit then waits until it fits; interval-entry lets an object come earlier wherever there is room;
//      latest-safe asks as late as the object alone allows. Each also with what leaves clean and returns at the same
//      border kept (coalesced).
//   5. Each of the plans is simulated: tasks, arrivals and departures each in order, the head of a queue waits for room
//      and nobody overtakes it. Where one does not fit, the border is charged more and 2 to 4 repeat, twelve times at
//      most. The fastest is taken; none is needed after one without stalls.
//   6. Recomputation (traces with choices): from all kept, all blocks and every other block; then from all kept, eight
//      times: benefit = waiting for a layer's kept results, and their transfers while others queued, less the time of
//      the ops. The better half of those above 0 is recomputed if that is faster; else half of these, and so on.
// Run: the plan's transfers one after the other in both directions, whole objects. A step begins when all transfers of
// the one before have ended, because each is a program of its own.
//
// Differences: docs/policies.md.
#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/recompute.h"
#include "core/state_hash.h"
#include "policies/layers.h"
#include "policies/policy_library.h"

namespace tencache {
namespace {

constexpr Nanoseconds never = std::numeric_limits<Nanoseconds>::max();

struct PressureTask {
  OpIndex first = 0, last = 0;                 // ops of the GPU
  Nanoseconds begin_ns = 0, end_ns = 0;        // without stalls
  std::vector<std::uint32_t> inputs, outputs;  // objects
  Bytes output_bytes = 0;
};

struct PressureObject {
  Bytes bytes = 0;
  std::vector<TensorId> tensors;
  bool persistent = false;  // in CPU memory at the start and at the end; others are an output of `producer`
  int producer = -1;
  std::vector<int> uses, mutations;  // by tasks after it
  Nanoseconds in_ns = 0, out_ns = 0;
};

// A program as tasks and objects.
struct PressureChain {
  PressureChain(const Trace& trace, const MachineSpec& machine, Bytes leeway);

  int count() const { return static_cast<int>(tasks.size()); }
  Nanoseconds compute_ns() const { return tasks.empty() ? 0 : tasks.back().end_ns; }

  std::vector<PressureTask> tasks;
  std::vector<PressureObject> objects;
  Bytes capacity = 0;  // for objects; 0: not even the workspaces fit

 private:
  struct Using {
    int task = 0;
    bool writes = false;
    auto operator<=>(const Using&) const = default;
  };
  std::vector<std::vector<Using>> add_tasks(const Trace& trace);
  Bytes add_objects(const Trace& trace, const std::vector<std::vector<Using>>& uses_of);
};

// Which GPU ops begin a task: the first of another layer or phase. In a backward pass, what runs again up to its last
// product is a task of its own; the first gradient ends it.
std::vector<OpIndex> task_starts(const Trace& trace) {
  std::vector<OpIndex> starts;
  std::pair<std::string_view, Phase> present;
  OpIndex last = none;            // of the task
  bool before_gradients = false;  // so far
  const auto is_gradient = [&](TensorId id) { return trace.tensors[id].role == Role::gradient; };
  OpIndex part = none;  // after which a task of its own ends
  const auto split = [&] {
    if (part != none && part != last) starts.push_back(part + 1);
    part = none;
  };
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (op.device != Device::gpu) continue;
    const std::pair group(layer_of_module(trace.module(op)), op.phase);
    if (starts.empty() || group != present) {
      split();
      starts.push_back(index);
      present = group;
      before_gradients = op.phase == Phase::backward;
    }
    if (std::ranges::any_of(trace.reads(op), is_gradient) || std::ranges::any_of(trace.writes(op), is_gradient)) {
      before_gradients = false;
    }
    if (before_gradients && trace.kernel(op).kind == KernelKind::matmul) part = index;
    last = index;
  }
  split();
  std::ranges::sort(starts);
  return starts;
}

PressureChain::PressureChain(const Trace& trace, const MachineSpec& machine, Bytes leeway) {
  const Bytes workspace = add_objects(trace, add_tasks(trace));
  const TierId cpu = machine.tier_of(Device::cpu);
  const auto transfer_ns = [&](Bytes bytes, TierId from, TierId to) -> Nanoseconds {
    BytesPerSecond rate = 0;
    for (const Link& link : machine.links) {
      if (link.from == from && link.to == to) rate = std::max(rate, link.bandwidth);
    }
    return rate == 0 ? 0 : static_cast<Nanoseconds>(static_cast<double>(bytes) * 1e9 / static_cast<double>(rate)) + 1;
  };
  for (PressureObject& object : objects) {
    object.in_ns = transfer_ns(object.bytes, cpu, 0);
    object.out_ns = transfer_ns(object.bytes, 0, cpu);
  }
  const Bytes taken = workspace + leeway;
  capacity = machine.tiers[0].capacity > taken ? machine.tiers[0].capacity - taken : 0;
}

// Returns which tasks use each tensor.
std::vector<std::vector<PressureChain::Using>> PressureChain::add_tasks(const Trace& trace) {
  std::vector<std::vector<Using>> uses_of(trace.tensors.size());
  const std::vector<OpIndex> starts = task_starts(trace);
  Nanoseconds now_ns = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const OpIndex end = i + 1 < starts.size() ? starts[i + 1] : static_cast<OpIndex>(trace.ops.size());
    PressureTask task;
    task.first = starts[i];
    task.begin_ns = now_ns;
    const auto use = [&](std::span<const TensorId> ids, bool writes) {
      for (const TensorId id : ids) {
        std::vector<Using>& uses = uses_of[id];
        if (uses.empty() || uses.back().task != static_cast<int>(i)) uses.push_back({static_cast<int>(i), false});
        uses.back().writes = uses.back().writes || writes;
      }
    };
    for (OpIndex op = task.first; op < end; ++op) {
      if (trace.ops[op].device != Device::gpu) continue;
      task.last = op;
      now_ns += trace.ops[op].occupied_ns();
      use(trace.reads(trace.ops[op]), false);
      use(trace.writes(trace.ops[op]), true);
    }
    task.end_ns = now_ns;
    tasks.push_back(std::move(task));
  }
  return uses_of;
}

// Returns the largest workspace.
Bytes PressureChain::add_objects(const Trace& trace, const std::vector<std::vector<Using>>& uses_of) {
  std::map<std::pair<bool, std::vector<Using>>, std::uint32_t> object_of;
  std::vector<std::int64_t> workspace(trace.ops.size() + 1, 0);  // changes
  const std::vector<OpIndex> deaths = trace.deaths();
  std::vector<OpIndex> births(trace.tensors.size(), none);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const TensorId id : trace.writes(trace.ops[op])) births[id] = std::min(births[id], op);
  }
  for (TensorId id = 0; id < trace.tensors.size(); ++id) {
    const Tensor& tensor = trace.tensors[id];
    const std::vector<Using>& uses = uses_of[id];
    if (uses.empty()) continue;
    if (!tensor.persistent && uses.size() == 1) {
      workspace[births[id]] += static_cast<std::int64_t>(tensor.bytes);
      workspace[deaths[id] + 1] -= static_cast<std::int64_t>(tensor.bytes);
      continue;
    }
    const auto [found, added] =
        object_of.try_emplace({tensor.persistent, uses}, static_cast<std::uint32_t>(objects.size()));
    if (added) {
      PressureObject object;
      object.persistent = tensor.persistent;
      for (const Using& use : uses) {
        PressureTask& task = tasks[static_cast<std::size_t>(use.task)];
        if (!tensor.persistent && use.task == uses.front().task) {
          object.producer = use.task;
          task.outputs.push_back(found->second);
          continue;
        }
        object.uses.push_back(use.task);
        if (use.writes) object.mutations.push_back(use.task);
        task.inputs.push_back(found->second);
      }
      objects.push_back(std::move(object));
    }
    objects[found->second].bytes += tensor.bytes;
    objects[found->second].tensors.push_back(id);
  }
  for (PressureTask& task : tasks) {
    for (const std::uint32_t object : task.outputs) task.output_bytes += objects[object].bytes;
  }
  std::int64_t inside = 0, most = 0;
  for (const std::int64_t change : workspace) most = std::max(most, inside += change);
  return static_cast<Bytes>(most);
}

// What happens after each task, in this order; and what is there at the start.
struct PressurePlan {
  struct After {
    std::vector<std::uint32_t> releases, offloads, fetches;
  };
  std::vector<std::uint32_t> initial;
  std::vector<After> after;  // by task
};

// A plan, simulated: or where it does not fit.
struct PressureReplay {
  Nanoseconds end_ns = never;  // of the last task and transfer; `never`: it does not fit
  int task = 0;                // that cannot start
  Bytes need = 0, over = 0;    // for it at once, and how much of that has no room
  // By object: waiting for its arrival, and its transfers while others waited in the same queue.
  std::vector<Nanoseconds> blame_ns;
};

class PressureSimulator {
 public:
  PressureSimulator(const PressureChain& chain, const PressurePlan& plan)
      : chain_(chain), plan_(plan), states_(chain.objects.size()) {
    replay_.blame_ns.assign(chain.objects.size(), 0);
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i].backed = chain.objects[i].persistent;
    for (const std::uint32_t object : plan.initial) {
      states_[object].live = true;
      used_ += chain.objects[object].bytes;
    }
  }

  PressureReplay run() {
    Nanoseconds ready_ns = 0;
    for (int i = 0; i < chain_.count(); ++i) {
      const PressureTask& task = chain_.tasks[static_cast<std::size_t>(i)];
      while (!can_start(task)) {
        if (!advance(never)) return fail(i, task);
      }
      blame_arrivals(task, ready_ns);
      used_ += task.output_bytes;
      ready_ns = std::max(ready_ns, now_ns_) + task.end_ns - task.begin_ns;
      while (advance(ready_ns)) {
      }
      now_ns_ = ready_ns;
      for (const std::uint32_t object : task.outputs) states_[object].live = true;
      for (const std::uint32_t object : task.inputs) {
        if (std::ranges::binary_search(chain_.objects[object].mutations, i)) states_[object].backed = false;
      }
      finish(plan_.after[static_cast<std::size_t>(i)]);
    }
    while (advance(never)) {
    }
    if (!in_.waiting.empty() || !out_.waiting.empty()) return fail(chain_.count() - 1, chain_.tasks.back());
    replay_.end_ns = now_ns_;
    blame_backlog(in_);
    blame_backlog(out_);
    return std::move(replay_);
  }

 private:
  struct State {
    bool live = false, backed = false, leaving = false;
    bool asked = false;              // for, while it is leaving
    Nanoseconds arrived_ns = never;  // last
  };
  struct Transfer {
    std::uint32_t object = none;
    Nanoseconds asked_ns = 0, begin_ns = 0, end_ns = 0;
  };
  struct Queue {
    std::deque<Transfer> waiting;
    std::optional<Transfer> running;
    std::vector<Transfer> done;
  };

  bool can_start(const PressureTask& task) const {
    return used_ + task.output_bytes <= chain_.capacity &&
           std::ranges::all_of(task.inputs, [&](std::uint32_t object) { return states_[object].live; });
  }

  void start_heads() {
    if (!in_.running && !in_.waiting.empty()) {
      const std::uint32_t object = in_.waiting.front().object;
      const Bytes bytes = chain_.objects[object].bytes;
      if (used_ + bytes <= chain_.capacity) {
        used_ += bytes;
        start(in_, chain_.objects[object].in_ns);
      }
    }
    if (!out_.running && !out_.waiting.empty()) start(out_, chain_.objects[out_.waiting.front().object].out_ns);
  }
  void start(Queue& queue, Nanoseconds takes_ns) {
    queue.running = queue.waiting.front();
    queue.waiting.pop_front();
    queue.running->begin_ns = now_ns_;
    queue.running->end_ns = now_ns_ + takes_ns;
  }

  // To the end of the next transfer, if it is not after `until`.
  bool advance(Nanoseconds until) {
    const Nanoseconds in_ns = in_.running ? in_.running->end_ns : never;
    const Nanoseconds out_ns = out_.running ? out_.running->end_ns : never;
    const Nanoseconds next_ns = std::min(in_ns, out_ns);
    if (next_ns == never || next_ns > until) return false;
    now_ns_ = next_ns;
    Queue& queue = in_ns <= out_ns ? in_ : out_;
    const Transfer transfer = *queue.running;
    queue.running.reset();
    queue.done.push_back(transfer);
    State& state = states_[transfer.object];
    if (&queue == &in_) {
      state.live = true;
      state.arrived_ns = now_ns_;
    } else {
      state.leaving = false;
      state.backed = true;
      used_ -= chain_.objects[transfer.object].bytes;
      if (std::exchange(state.asked, false)) in_.waiting.push_back({.object = transfer.object, .asked_ns = now_ns_});
    }
    start_heads();
    return true;
  }

  void finish(const PressurePlan::After& after) {
    for (const std::uint32_t object : after.releases) {
      states_[object].live = false;
      used_ -= chain_.objects[object].bytes;
    }
    for (const std::uint32_t object : after.offloads) {
      states_[object].live = false;
      states_[object].leaving = true;
      out_.waiting.push_back({.object = object, .asked_ns = now_ns_});
    }
    for (const std::uint32_t object : after.fetches) {
      if (states_[object].leaving) {
        states_[object].asked = true;
      } else {
        in_.waiting.push_back({.object = object, .asked_ns = now_ns_});
      }
    }
    start_heads();
  }

  void blame_arrivals(const PressureTask& task, Nanoseconds ready_ns) {
    if (now_ns_ <= ready_ns) return;
    std::vector<std::uint32_t> last;
    for (const std::uint32_t object : task.inputs) {
      if (states_[object].arrived_ns == now_ns_) last.push_back(object);
    }
    for (const std::uint32_t object : last) {
      replay_.blame_ns[object] += (now_ns_ - ready_ns) / static_cast<Nanoseconds>(last.size());
    }
  }

  // Of each transfer, the time while others waited behind it.
  void blame_backlog(const Queue& queue) {
    std::vector<std::pair<Nanoseconds, int>> changes;
    for (const Transfer& transfer : queue.done) {
      if (transfer.asked_ns == transfer.begin_ns) continue;
      changes.emplace_back(transfer.asked_ns, 1);
      changes.emplace_back(transfer.begin_ns, -1);
    }
    std::ranges::sort(changes);
    std::vector<std::pair<Nanoseconds, Nanoseconds>> windows;
    int depth = 0;
    for (const auto& [at_ns, change] : changes) {
      if (depth == 0) windows.emplace_back(at_ns, at_ns);
      depth += change;
      windows.back().second = at_ns;
    }
    std::size_t next = 0;
    for (const Transfer& transfer : queue.done) {  // in order, as the windows
      while (next < windows.size() && windows[next].second <= transfer.begin_ns) ++next;
      for (std::size_t i = next; i < windows.size() && windows[i].first < transfer.end_ns; ++i) {
        replay_.blame_ns[transfer.object] +=
            std::min(transfer.end_ns, windows[i].second) - std::max(transfer.begin_ns, windows[i].first);
      }
    }
  }

  PressureReplay fail(int number, const PressureTask& task) {
    replay_.task = number;
    replay_.need = used_ + task.output_bytes;
    if (replay_.need <= chain_.capacity) {
      Bytes missing = 0;
      for (const std::uint32_t object : task.inputs) missing += states_[object].live ? 0 : chain_.objects[object].bytes;
      replay_.need = chain_.capacity + std::max<Bytes>(missing, 1);
    }
    replay_.over = replay_.need - chain_.capacity;
    return std::move(replay_);
  }

  const PressureChain& chain_;
  const PressurePlan& plan_;
  std::vector<State> states_;
  Queue in_, out_;
  Bytes used_ = 0;
  Nanoseconds now_ns_ = 0;
  PressureReplay replay_;
};

// Borders from `first` to `last` between which an object is on the GPU: border b lies after task b, -1 before all.
struct PressureSpan {
  int first = 0, last = 0;
};

struct PressureStrategy {
  bool headroom = false, by_stall = true, strict = true;
};
constexpr std::array<PressureStrategy, 5> strategies{{{.headroom = true, .by_stall = true},
                                                      {.headroom = true, .by_stall = false},
                                                      {.headroom = false, .by_stall = true},
                                                      {.headroom = false, .by_stall = false},
                                                      {.headroom = false, .by_stall = true, .strict = false}}};
enum class FetchRule : std::uint8_t { packed_fifo, packed_fit, interval_entry, latest_safe };

// Spans of one strategy, cut until they fit.
class PressureReducer {
 public:
  // What is looked at counts in `looks`, which all that plan a chain share and which outlives them.
  PressureReducer(const PressureChain& chain, PressureStrategy strategy, std::uint64_t& looks)
      : chain_(chain), strategy_(strategy), looks_(&looks), spans_(chain.objects.size()), extra_(borders(), 0) {
    for (std::uint32_t object = 0; object < spans_.size(); ++object) {
      const PressureObject& of = chain.objects[object];
      const bool initial = of.persistent && of.uses.front() == 0;
      const int first = initial ? -1 : of.persistent ? of.uses.front() - 1 : of.producer;
      spans_[object].push_back({first, of.uses.back() - 1});
    }
    pool_.assign(borders(), 0);
    relief_.assign(borders(), 0);
    for (std::uint32_t object = 0; object < spans_.size(); ++object) charge(object, spans_[object].front(), 1);
  }

  // False if nothing is left to cut, or too much was looked at.
  bool reduce() {
    while (!exhausted()) {
      *looks_ += borders();
      int worst = worst_border(false);
      if (over(worst, false) <= 0) return true;
      if (!strategy_.strict && over(worst_border(true), true) <= 0) return true;
      std::optional<Cut> cut = next_cut(worst);
      if (!cut) {
        worst = worst_border(true);
        if (over(worst, true) <= 0) return true;
        cut = best_cut(worst);
        cuts_of_.reset();
      }
      if (!cut) return false;
      apply(*cut);
    }
    return false;
  }
  bool exhausted() const { return *looks_ > most_looks; }

  // After a replay that did not fit.
  void add_pressure(const PressureReplay& failed) {
    cuts_of_.reset();
    const std::size_t border = static_cast<std::size_t>(failed.task);
    const std::int64_t modelled = pool_[border] - relief_[border] + reserved(border);
    std::int64_t wanted = static_cast<std::int64_t>(failed.need) - modelled;
    if (wanted <= extra_[border]) wanted = extra_[border] + static_cast<std::int64_t>(failed.over);
    extra_[border] = std::max<std::int64_t>(1, wanted);
  }

  // interval-entry: lets objects come earlier where there is room, from the last use to the first.
  void extend(bool coalesced);
  PressurePlan plan(FetchRule rule, bool coalesced) const;

 private:
  struct Cut {
    std::array<std::int64_t, 6> rank{};  // the least is the best
    std::uint32_t object = 0;
    std::size_t span = 0;
    std::optional<int> left, right;  // the borders that are kept on both sides
  };
  struct Window {
    std::uint32_t object = 0;
    std::size_t span = 0;
    int earliest = 0, latest = 0, use = 0, entry = 0;  // tasks, and the border
  };

  std::size_t borders() const { return chain_.tasks.size() + 1; }
  std::int64_t reserved(std::size_t border) const {
    return border < chain_.tasks.size() ? static_cast<std::int64_t>(chain_.tasks[border].output_bytes) : 0;
  }
  int charged_from(std::uint32_t object, int first) const {
    return strategy_.headroom && first > -1 && first != chain_.objects[object].producer ? first - 1 : first;
  }
  // The first use at this border or later; the number of tasks: none is.
  int next_use(std::uint32_t object, int border) const {
    const std::vector<int>& uses = chain_.objects[object].uses;
    const auto found = std::ranges::lower_bound(uses, border + 1);
    return found == uses.end() ? chain_.count() : *found;
  }
  // After which task an object leaves that stays until the border `last`.
  int departure(std::uint32_t object, PressureSpan span) const {
    const PressureObject& of = chain_.objects[object];
    int after = of.producer >= span.first && of.producer <= span.last ? of.producer : -1;
    const auto next = std::ranges::upper_bound(of.uses, span.last + 1);
    if (next != of.uses.begin() && *std::prev(next) > span.first) after = std::max(after, *std::prev(next));
    return std::max(after, 0);
  }
  bool mutated(std::uint32_t object, PressureSpan span) const {
    const std::vector<int>& mutations = chain_.objects[object].mutations;
    const auto found = std::ranges::lower_bound(mutations, span.first + 1);
    return found != mutations.end() && *found <= span.last + 1;
  }
  // Whether CPU memory has its value before the span.
  bool backed_before(std::uint32_t object, std::size_t span) const {
    return span > 0 || chain_.objects[object].persistent;
  }
  bool dirty_after(std::uint32_t object, std::size_t span, PressureSpan part) const {
    return !backed_before(object, span) || mutated(object, part);
  }

  // Adds or takes away (sign) a span's share of the pool, and of what the relaxed view leaves out of it: what leaves
  // at a border, and what arrives there but is not used by the next task.
  void charge(std::uint32_t object, PressureSpan span, std::int64_t sign) {
    const std::int64_t bytes = sign * static_cast<std::int64_t>(chain_.objects[object].bytes);
    const int from = charged_from(object, span.first);
    for (int border = from; border <= span.last; ++border) pool_[static_cast<std::size_t>(border + 1)] += bytes;
    const int leaves = departure(object, span);
    if (leaves < chain_.count() - 1 && leaves >= from && leaves <= span.last) {
      relief_[static_cast<std::size_t>(leaves + 1)] += bytes;
    }
    const bool fetched = span.first > -1 && span.first != chain_.objects[object].producer;
    if (fetched && from >= 0 && from < chain_.count() - 1 && next_use(object, span.first) > from + 1) {
      relief_[static_cast<std::size_t>(from + 1)] += bytes;
    }
  }

  std::int64_t over(int border, bool relaxed) const {
    const auto at = static_cast<std::size_t>(border + 1);
    return pool_[at] - (relaxed ? relief_[at] : 0) + reserved(at) + extra_[at] -
           static_cast<std::int64_t>(chain_.capacity);
  }
  int worst_border(bool relaxed) const {
    int worst = -1;
    for (int border = 0; border < chain_.count(); ++border) {
      if (over(border, relaxed) > over(worst, relaxed)) worst = border;
    }
    return worst;
  }

  template <typename Take>
  void each_cut(int border, bool at_use, Take take) const {
    for (std::uint32_t object = 0; object < spans_.size(); ++object) {
      const std::vector<PressureSpan>& spans = spans_[object];
      auto found = std::ranges::upper_bound(spans, border + 1, {}, &PressureSpan::first);
      if (found == spans.begin()) continue;
      --found;
      if (charged_from(object, found->first) > border || found->last < border) continue;
      const std::optional<Cut> cut = cut_at(object, static_cast<std::size_t>(found - spans.begin()), border, at_use);
      if (cut) take(*cut);
    }
  }
  // Also right after a use.
  std::optional<Cut> best_cut(int border) const {
    std::optional<Cut> best;
    each_cut(border, true, [&](const Cut& cut) {
      if (!best || worse(*best, cut)) best = cut;
    });
    return best;
  }
  // The best of those that do not touch a use. Several in a row are of one border: a cut leaves the others as they are,
  // and its object is there no more.
  std::optional<Cut> next_cut(int border) {
    if (cuts_of_ != border) {
      *looks_ += looks_of_an_object * spans_.size();
      cuts_.clear();
      each_cut(border, false, [&](const Cut& cut) { cuts_.push_back(cut); });
      std::ranges::make_heap(cuts_, worse);
      cuts_of_ = border;
    }
    if (cuts_.empty()) return std::nullopt;
    std::ranges::pop_heap(cuts_, worse);
    const Cut best = cuts_.back();
    cuts_.pop_back();
    return best;
  }
  static bool worse(const Cut& a, const Cut& b) { return std::tie(a.rank, a.object) > std::tie(b.rank, b.object); }

  std::optional<Cut> cut_at(std::uint32_t object, std::size_t number, int border, bool at_use) const {
    const PressureObject& of = chain_.objects[object];
    const PressureSpan span = spans_[object][number];
    Cut cut;
    cut.object = object;
    cut.span = number;
    const auto keep_left = [&](int kept) {
      if (kept >= span.first && kept <= span.last && kept <= border) cut.left = std::max(cut.left.value_or(kept), kept);
    };
    const auto keep_right = [&](int kept) {
      if (kept >= span.first && kept <= span.last && kept > border)
        cut.right = std::min(cut.right.value_or(kept), kept);
    };
    if (of.producer >= 0) keep_left(of.producer), keep_right(of.producer);
    const auto next = std::ranges::upper_bound(of.uses, border + 1);
    if (next != of.uses.begin()) keep_left(*std::prev(next) - 1);
    if (next != of.uses.end()) keep_right(*next - 1);
    if (cut.left == border) {  // it has to be there: the next task, or the one before, uses it
      if (!at_use || !cut.right || departure(object, {span.first, border}) != border) return std::nullopt;
    }
    const int gap = cut.right.value_or(span.last + 1) - cut.left.value_or(span.first - 1) - 1;
    if (gap <= 0) return std::nullopt;
    const bool drops_start = !cut.left;
    if (drops_start && (span.first != -1 || !backed_before(object, number))) return std::nullopt;
    const bool writes = cut.left && dirty_after(object, number, {span.first, *cut.left});
    std::int64_t delay_ns = 0;
    if (cut.right) {
      const int leaves = cut.left ? departure(object, {span.first, *cut.left}) : -1;
      const int asked = leaves + 1, use = next_use(object, *cut.right);
      if (asked >= use) return std::nullopt;
      const Nanoseconds written_ns = writes ? chain_.tasks[static_cast<std::size_t>(leaves)].end_ns + of.out_ns : 0;
      const Nanoseconds there_ns =
          std::max(chain_.tasks[static_cast<std::size_t>(asked)].end_ns, written_ns) + of.in_ns;
      delay_ns = std::max<Nanoseconds>(0, there_ns - chain_.tasks[static_cast<std::size_t>(use)].begin_ns);
    }
    cut.rank = {strategy_.by_stall ? delay_ns : 0,
                writes ? 1 : 0,
                drops_start ? 0 : 1,
                -of.uses.front(),
                -static_cast<std::int64_t>(of.bytes),
                -gap};
    return cut;
  }

  void apply(const Cut& cut) {
    std::vector<PressureSpan>& spans = spans_[cut.object];
    const PressureSpan span = spans[cut.span];
    charge(cut.object, span, -1);
    std::vector<PressureSpan> parts;
    if (cut.left) parts.push_back({span.first, *cut.left});
    if (cut.right) parts.push_back({*cut.right, span.last});
    for (const PressureSpan& part : parts) charge(cut.object, part, 1);
    const auto at = spans.erase(spans.begin() + static_cast<std::ptrdiff_t>(cut.span));
    spans.insert(at, parts.begin(), parts.end());
  }

  std::vector<Window> windows(bool coalesced) const;
  int latest_safe(const Window& window, int latest) const;

  // Some seconds; looks take times of their own.
  static constexpr std::uint64_t most_looks = 1'500'000'000, looks_of_an_object = 8;

  const PressureChain& chain_;
  PressureStrategy strategy_;
  std::uint64_t* looks_;
  std::optional<int> cuts_of_;                       // the border of `cuts_`
  std::vector<Cut> cuts_;                            // a heap, the best first
  std::vector<std::vector<PressureSpan>> spans_;     // by object, in order
  std::vector<std::int64_t> pool_, relief_, extra_;  // by border, from -1
};

// When each object that has to be fetched may be asked for.
std::vector<PressureReducer::Window> PressureReducer::windows(bool coalesced) const {
  std::vector<Window> windows;
  for (std::uint32_t object = 0; object < spans_.size(); ++object) {
    for (std::size_t i = 0; i < spans_[object].size(); ++i) {
      const PressureSpan span = spans_[object][i];
      const bool starts = i == 0 && (span.first == -1 || span.first == chain_.objects[object].producer);
      if (starts) continue;
      int earliest = 0;
      if (i > 0) {
        const PressureSpan before = spans_[object][i - 1];
        const bool kept = coalesced && !dirty_after(object, i - 1, before);
        earliest = departure(object, before) + (kept ? 0 : 1);
      }
      const int use = next_use(object, span.first);
      windows.push_back({object, i, earliest, use - 1, use, span.first});
    }
  }
  return windows;
}

// The last task after which its transfer alone would be in time, up to `latest`.
int PressureReducer::latest_safe(const Window& window, int latest) const {
  const PressureTask& use = chain_.tasks[static_cast<std::size_t>(window.use)];
  for (int task = latest; task >= window.earliest; --task) {
    if (chain_.tasks[static_cast<std::size_t>(task)].end_ns + chain_.objects[window.object].in_ns <= use.begin_ns) {
      return task;
    }
  }
  return latest;
}

void PressureReducer::extend(bool coalesced) {
  std::vector<Window> list = windows(coalesced);
  std::erase_if(list, [](const Window& window) { return window.entry <= 0 || window.earliest >= window.entry; });
  std::ranges::stable_sort(list, [&](const Window& a, const Window& b) { return a.use > b.use; });
  Nanoseconds next_ns = never;
  for (const Window& window : list) {
    const PressureObject& object = chain_.objects[window.object];
    const Nanoseconds use_ns = chain_.tasks[static_cast<std::size_t>(window.use)].begin_ns;
    const Nanoseconds begin_ns = std::max<Nanoseconds>(0, std::min(use_ns, next_ns) - object.in_ns);
    const auto after = std::ranges::upper_bound(chain_.tasks, begin_ns, {}, &PressureTask::end_ns);
    int entry = std::max(static_cast<int>(after - chain_.tasks.begin()), window.earliest);
    const int old_from = charged_from(window.object, window.entry);
    for (; entry < window.entry; ++entry) {
      bool fits = true;
      for (int border = charged_from(window.object, entry); border < old_from && fits; ++border) {
        fits = over(border, false) + static_cast<std::int64_t>(object.bytes) <= 0;
      }
      if (fits) break;
    }
    PressureSpan& span = spans_[window.object][window.span];
    if (entry < window.entry) {
      charge(window.object, span, -1);
      span.first = entry;
      charge(window.object, span, 1);
    }
    next_ns = chain_.tasks[static_cast<std::size_t>(std::min(entry, window.entry) - 1)].end_ns;
  }
}

PressurePlan PressureReducer::plan(FetchRule rule, bool coalesced) const {
  PressurePlan plan;
  plan.after.resize(chain_.tasks.size());
  const auto after = [&](int task) -> PressurePlan::After& { return plan.after[static_cast<std::size_t>(task)]; };
  std::vector<Window> list = windows(coalesced);
  std::vector<std::pair<int, const Window*>> asked;  // after which task
  if (rule == FetchRule::packed_fifo || rule == FetchRule::packed_fit) {
    std::vector<std::int64_t> pool = pool_;
    std::ranges::stable_sort(list, [](const Window& a, const Window& b) { return a.use > b.use; });
    Nanoseconds next_ns = never;
    for (const Window& window : list) {
      const PressureObject& object = chain_.objects[window.object];
      const Nanoseconds use_ns = chain_.tasks[static_cast<std::size_t>(window.use)].begin_ns;
      const Nanoseconds begin_ns = std::min(use_ns, next_ns) - object.in_ns;
      int task = window.latest;
      while (task > window.earliest && chain_.tasks[static_cast<std::size_t>(task)].end_ns > begin_ns) --task;
      if (rule == FetchRule::packed_fit) {
        const int from = charged_from(window.object, window.entry);
        const auto room = [&](int border) {
          const auto at = static_cast<std::size_t>(border + 1);
          return pool[at] + static_cast<std::int64_t>(object.bytes) + reserved(at) + extra_[at] <=
                 static_cast<std::int64_t>(chain_.capacity);
        };
        for (int border = from - 1; border >= task; --border) {
          if (!room(border)) task = border + 1;
        }
        for (int border = task; border < from; ++border)
          pool[static_cast<std::size_t>(border + 1)] += static_cast<std::int64_t>(object.bytes);
      }
      asked.emplace_back(task, &window);
      next_ns = std::max(chain_.tasks[static_cast<std::size_t>(task)].end_ns, begin_ns);
    }
  } else {
    for (const Window& window : list) {
      const int latest = rule == FetchRule::interval_entry
                             ? std::max(window.earliest, std::min(window.latest, std::max(0, window.entry - 1)))
                             : window.latest;
      asked.emplace_back(latest_safe(window, latest), &window);
    }
  }
  std::ranges::stable_sort(asked, {},
                           [](const auto& one) { return std::tuple(one.first, one.second->use, one.second->object); });
  std::vector<std::vector<int>> asked_for(chain_.objects.size());
  for (const auto& [task, window] : asked) asked_for[window->object].push_back(task);
  std::vector<std::vector<int>> kept(chain_.objects.size());  // it is not released and fetched after the same task
  for (std::uint32_t object = 0; object < spans_.size(); ++object) {
    const std::vector<PressureSpan>& spans = spans_[object];
    if (spans.front().first == -1 && chain_.objects[object].persistent) plan.initial.push_back(object);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const int leaves = departure(object, spans[i]);
      const bool last = i + 1 == spans.size();
      const bool dirty = dirty_after(object, i, spans[i]) && (!last || chain_.objects[object].persistent);
      if (!dirty && !last && std::ranges::find(asked_for[object], leaves) != asked_for[object].end()) {
        kept[object].push_back(leaves);
      } else {
        (dirty ? after(leaves).offloads : after(leaves).releases).push_back(object);
      }
    }
  }
  for (const auto& [task, window] : asked) {
    if (std::ranges::find(kept[window->object], task) == kept[window->object].end())
      after(task).fetches.push_back(window->object);
  }
  return plan;
}

struct PlannedChain {
  PressurePlan plan;
  PressureReplay replay;
  bool stopped = false;  // before all were tried: there is too much to look at
};

// The fastest plan of all strategies and rules; none fits: end_ns is `never`.
PlannedChain plan_chain(const PressureChain& chain) {
  constexpr int most_repairs = 12;
  PlannedChain best;
  if (chain.capacity == 0 || chain.tasks.empty()) return best;
  std::uint64_t looks = 0;
  for (const PressureStrategy& strategy : strategies) {
    PressureReducer seed(chain, strategy, looks);
    const bool reduced = seed.reduce();
    best.stopped = seed.exhausted();
    if (best.stopped) return best;
    if (!reduced) continue;
    for (const bool coalesced : {false, true}) {
      for (const FetchRule rule :
           {FetchRule::packed_fifo, FetchRule::packed_fit, FetchRule::interval_entry, FetchRule::latest_safe}) {
        PressureReducer spans = seed;
        if (rule == FetchRule::interval_entry) spans.extend(coalesced);
        for (int repair = 0; repair <= most_repairs; ++repair) {
          PressurePlan plan = spans.plan(rule, coalesced);
          PressureReplay replay = PressureSimulator(chain, plan).run();
          if (replay.end_ns < best.replay.end_ns) best = {std::move(plan), replay, false};
          if (replay.end_ns != never) break;
          spans.add_pressure(replay);
          if (!spans.reduce()) break;
          if (rule == FetchRule::interval_entry) spans.extend(coalesced);
        }
        if (best.replay.end_ns <= chain.compute_ns()) return best;
      }
    }
  }
  return best;
}

// What the replay of a program of some levels says of each choice: waiting for what it keeps, and its transfers while
// others waited behind them.
struct ChoiceBlame {
  Nanoseconds end_ns = never;
  std::vector<Nanoseconds> by_choice_ns;
};

ChoiceBlame blame_of(const Trace& trace, const std::vector<RecomputeLevel>& levels, const Trace& program,
                     const PressureChain& chain, const PressureReplay& replay) {
  ChoiceBlame blame{replay.end_ns, std::vector<Nanoseconds>(levels.size(), 0)};
  if (replay.end_ns == never) return blame;
  std::vector<OpIndex> moved(trace.ops.size());  // by op of the trace: where it is in the program
  OpIndex more = 0;
  std::size_t next = 0;
  for (OpIndex op = 0; op < moved.size(); ++op) {
    for (; next < levels.size() && trace.choices[next].before == op; ++next) {
      more += static_cast<OpIndex>(trace.choices[next].again[static_cast<std::size_t>(levels[next])].size());
    }
    moved[op] = op + more;
  }
  std::vector<std::uint32_t> object_of(program.tensors.size(), none);
  for (std::uint32_t object = 0; object < chain.objects.size(); ++object) {
    for (const TensorId id : chain.objects[object].tensors) object_of[id] = object;
  }
  std::vector<bool> counted(chain.objects.size(), false);
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const RecomputeChoice& choice = trace.choices[i];
    for (const OpIndex op : choice.again.back()) {
      for (const TensorId id : program.writes(program.ops[moved[op]])) {
        const std::uint32_t object = object_of[id];
        if (object == none || counted[object]) continue;
        // The layer's result is not among them: the next layer's backward pass, which is before, reads it.
        const int last = chain.objects[object].uses.back();
        if (chain.tasks[static_cast<std::size_t>(last)].last < moved[choice.before]) continue;
        counted[object] = true;
        blame.by_choice_ns[i] += replay.blame_ns[object];
      }
    }
  }
  return blame;
}

class PressureFit final : public Policy {
 public:
  explicit PressureFit(Options& options) {
    options.bytes("leeway", leeway_, "GPU memory that plans leave free, beside the largest workspace", "none")
        .fixed("it stands for memory outside the model");
  }

  void prepare(const Trace& trace, const MachineSpec&, const RehearseTrace&) override {
    if (trace.choices.empty()) why_none_ = why_no_choices(trace);
  }
  void recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const override;

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = 0;
    layout.initial.fill(machine.tier_of(Device::cpu));
    if (program != nullptr) make_plan(program->trace, machine);
    return layout;
  }

  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::schedule_deviated || kind == EventKind::op_issued ||
           kind == EventKind::op_done || kind == EventKind::transfer_done;
  }
  void on(const Event& event, const View& view, Actions& actions) override;
  // Where the plan left too little room, the coldest go; for its own fetches none.
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!request.prefetch) coldest_victims(request, view, victims);
  }
  std::uint64_t fingerprint() const override;
  void notes(std::vector<std::string>& notes) const override {
    if (!why_none_.empty()) notes.push_back("recomputation: " + why_none_);
    if (!chain_) return;
    if (planned_.stopped) notes.push_back("planning stopped: so many objects at so many borders take too long");
    notes.push_back(planned_.replay.end_ns == never
                        ? "no plan was found that fits; what is needed is fetched when it is"
                        : std::to_string(chain_->tasks.size()) + " tasks and " +
                              std::to_string(chain_->objects.size()) +
                              " objects: " + format_duration(planned_.replay.end_ns));
  }

 private:
  enum class Place : std::uint8_t { away, coming, there, leaving };

  void make_plan(const Trace& trace, const MachineSpec& machine) const {
    if (chain_) return;
    chain_.emplace(trace, machine, leeway_);
    planned_ = plan_chain(*chain_);
    places_.assign(chain_->objects.size(), Place::away);
    task_of_.clear();
    object_of_.assign(trace.tensors.size(), none);
    for (std::uint32_t task = 0; task < chain_->tasks.size(); ++task) {
      task_of_.resize(chain_->tasks[task].last + std::size_t{1}, task);
    }
    for (std::uint32_t object = 0; object < chain_->objects.size(); ++object) {
      for (const TensorId id : chain_->objects[object].tensors) object_of_[id] = object;
    }
  }
  struct Attempt {
    std::vector<RecomputeLevel> levels;
    ChoiceBlame blame;
  };
  bool has_plan() const { return chain_ && planned_.replay.end_ns != never; }
  const PressureObject& object(std::uint32_t number) const { return chain_->objects[number]; }
  void begin_task(std::uint32_t task);
  void end_task(std::uint32_t task, const View& view, Actions& actions);
  void fetch_next(const View& view, Actions& actions);
  void move(std::uint32_t number, Place place) {
    if (places_[number] == Place::away && place != Place::away) used_ += object(number).bytes;
    if (places_[number] != Place::away && place == Place::away) used_ -= object(number).bytes;
    places_[number] = place;
  }
  // Whether any of its tensors has a copy on the GPU.
  bool on_gpu(std::uint32_t number, const View& view) const {
    return std::ranges::any_of(object(number).tensors, [&](TensorId id) {
      const TensorId tensor = view.memory_tensor(id);
      return tensor != none && view.memory.copy(view.memory.first_chunk(tensor), 0).state != CopyState::absent;
    });
  }
  bool resident(std::uint32_t number, const View& view) const {
    return std::ranges::all_of(object(number).tensors, [&](TensorId id) {
      const TensorId tensor = view.memory_tensor(id);
      return tensor == none || view.memory.resident(tensor, 0);
    });
  }

  Bytes leeway_ = 0;
  std::string why_none_;
  mutable std::optional<PressureChain> chain_;  // of the program
  mutable PlannedChain planned_;
  mutable std::vector<std::uint32_t> task_of_;    // by op
  mutable std::vector<std::uint32_t> object_of_;  // by tensor of the program; none: workspace
  mutable std::vector<Place> places_;             // by object
  std::deque<std::uint32_t> queue_;               // to be fetched, in order
  std::vector<std::uint32_t> again_;              // to be fetched once they have left
  std::uint32_t coming_ = none;                   // the object that is fetched
  std::uint32_t task_ = none;                     // that runs
  Bytes used_ = 0;                                // by objects
};

void PressureFit::recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const {
  std::vector<RecomputeLevel> kept, blocks, half;
  std::vector<Nanoseconds> costs_ns;  // of a block's recomputation
  for (const RecomputeChoice& choice : trace.choices) {
    const auto time_of = [&](RecomputeLevel level) {
      Nanoseconds sum_ns = 0;
      for (const OpIndex op : choice.again[static_cast<std::size_t>(level)]) sum_ns += trace.ops[op].occupied_ns();
      return sum_ns;
    };
    // dataflow's kernels keep the results neither of norms nor of activation functions.
    kept.push_back(choice.offers(RecomputeLevel::elementwise) ? RecomputeLevel::elementwise : RecomputeLevel::keep);
    blocks.push_back(choice.offers(RecomputeLevel::block) ? RecomputeLevel::block : kept.back());
    half.push_back(half.size() % 2 == 0 ? blocks.back() : kept.back());
    costs_ns.push_back(time_of(blocks.back()) - time_of(kept.back()));
  }
  const auto attempt = [&](const std::vector<RecomputeLevel>& tried) {
    const Trace program = with_levels(trace, tried);
    const PressureChain chain(program, machine, leeway_);
    return Attempt{tried, blame_of(trace, tried, program, chain, plan_chain(chain).replay)};
  };
  Attempt present = attempt(kept);
  Attempt best = present;
  for (const auto* start : {&blocks, &half}) {
    Attempt other = attempt(*start);
    if (other.blame.end_ns < best.blame.end_ns) best = std::move(other);
  }
  if (present.blame.end_ns == never) present = best;
  constexpr int most_rounds = 8;
  for (int round = 0; round < most_rounds && present.blame.end_ns != never; ++round) {
    std::vector<std::pair<Nanoseconds, std::size_t>> gains;  // negative, so that the greatest comes first
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const Nanoseconds gain_ns = present.blame.by_choice_ns[i] - costs_ns[i];
      if (present.levels[i] == kept[i] && kept[i] != blocks[i] && gain_ns > 0) gains.emplace_back(-gain_ns, i);
    }
    std::ranges::sort(gains);
    bool faster = false;
    const std::size_t first_batch = gains.size() == 1 ? 1 : gains.size() / 2;
    for (std::size_t batch = first_batch; batch > 0 && !faster; batch /= 2) {
      std::vector<RecomputeLevel> tried = present.levels;
      for (std::size_t i = 0; i < batch; ++i) tried[gains[i].second] = RecomputeLevel::block;
      Attempt other = attempt(tried);
      if (other.blame.end_ns >= present.blame.end_ns) continue;
      faster = true;
      if (other.blame.end_ns < best.blame.end_ns) best = other;
      present = std::move(other);
    }
    if (!faster) break;
  }
  levels = best.levels;
}

void PressureFit::begin_task(std::uint32_t task) {
  task_ = task;
  for (const std::uint32_t number : chain_->tasks[task].outputs) move(number, Place::there);
  // What did not come in time comes on demand, which overtakes the queue.
  for (const std::uint32_t number : chain_->tasks[task].inputs) {
    if (places_[number] != Place::away) continue;
    move(number, Place::there);
    const auto asked = std::ranges::find(queue_, number);
    if (asked != queue_.end()) queue_.erase(asked);
  }
}

void PressureFit::end_task(std::uint32_t task, const View& view, Actions& actions) {
  const PressurePlan::After& after = planned_.plan.after[task];
  const auto each = [&](std::uint32_t number, const auto& act) {
    for (const TensorId id : object(number).tensors) {
      const TensorId tensor = view.memory_tensor(id);
      if (tensor != none && !view.dead(tensor)) act(tensor);
    }
  };
  for (const std::uint32_t number : after.releases) {
    each(number, [&](TensorId tensor) { actions.drop(tensor); });
    move(number, Place::away);
  }
  const TierId cpu = view.machine.tier_of(Device::cpu);
  for (const std::uint32_t number : after.offloads) {
    each(number, [&](TensorId tensor) { actions.evict(tensor, cpu); });
    move(number, Place::leaving);
  }
  queue_.insert(queue_.end(), after.fetches.begin(), after.fetches.end());
}

void PressureFit::fetch_next(const View& view, Actions& actions) {
  while (coming_ == none && !queue_.empty()) {
    const std::uint32_t number = queue_.front();
    if (places_[number] == Place::away && resident(number, view)) {
      move(number, Place::there);
    } else if (places_[number] == Place::away) {
      if (used_ + object(number).bytes > chain_->capacity) return;
      coming_ = number;
      move(number, Place::coming);
      for (const TensorId id : object(number).tensors) actions.fetch(view.memory_tensor(id));
    } else if (places_[number] == Place::leaving) {
      again_.push_back(number);
    }
    queue_.pop_front();
  }
}

void PressureFit::on(const Event& event, const View& view, Actions& actions) {
  if (event.kind == EventKind::profile_ready) {
    if (view.to_memory != nullptr) chain_.reset();  // of a live program, perhaps another one than before
    make_plan(view.program->trace, view.machine);
  }
  if (event.kind == EventKind::schedule_deviated) task_ = coming_ = none, queue_.clear(), again_.clear();
  if (!has_plan()) return;
  if (event.kind == EventKind::transfer_done) {
    const TensorId id = view.program_tensor(event.tensor);
    const std::uint32_t number = id == none ? none : object_of_[id];
    if (number == none) return;
    if (number == coming_ && resident(number, view)) {
      coming_ = none;
      move(number, Place::there);
    } else if (event.from == 0 && !on_gpu(number, view)) {
      // What the present task waits for comes back on demand.
      const bool waited_for =
          task_ != none && std::ranges::find(chain_->tasks[task_].inputs, number) != chain_->tasks[task_].inputs.end();
      move(number, waited_for ? Place::there : Place::away);
      if (std::erase(again_, number) > 0 && !waited_for) queue_.push_back(number);
    }
    fetch_next(view, actions);
  }
  if (event.op == none || event.op >= task_of_.size() || event.device != Device::gpu) return;
  const std::uint32_t task = task_of_[event.op];
  const PressureTask& run = chain_->tasks[task];
  if (event.kind == EventKind::op_issued && event.op == run.first) {
    if (task == 0) {
      const TierId cpu = view.machine.tier_of(Device::cpu);
      for (std::uint32_t number = 0; number < places_.size(); ++number) {
        if (places_[number] != Place::leaving) continue;
        for (const TensorId id : object(number).tensors) actions.hold(event.op, view.memory_tensor(id), cpu);
      }
    }
    begin_task(task);
  } else if (event.kind == EventKind::op_done && event.op == run.last) {
    end_task(task, view, actions);
    fetch_next(view, actions);
  }
}

std::uint64_t PressureFit::fingerprint() const {
  StateHash hash;
  for (const Place place : places_) hash.mix(static_cast<std::uint64_t>(place));
  for (const std::uint32_t number : queue_) hash.mix(number);
  for (const std::uint32_t number : again_) hash.mix(number);
  hash.mix(coming_);
  hash.mix(task_);
  return hash.value();
}

}  // namespace

TENCACHE_POLICY(
    {"pressurefit",
     "cuts what is on the GPU between tasks until it fits, picks the fastest of forty plans, and recomputes "
     "the layers whose transfers hold up others",
     "dataflow (als244/dataflow, 2026)",
     make_policy_of<PressureFit>,
     145,
     nullptr,
     nullptr,
     {.artifact = true}})

}  // namespace tencache
