#include "tests/exact/small_optimum.h"

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/schedule.h"

namespace tencache {
namespace {

using Mask = std::uint32_t;  // of tensors

struct OpOf {
  Mask reads = 0, writes = 0, outputs = 0;  // outputs: written without being read
  Mask dies = 0;                            // with it: tensors of no more use, values that are overwritten next
  int units = 0;
};

// Between two steps no copy is under way.
struct State {
  std::uint8_t op = 0;         // the one that runs, or comes next
  std::uint8_t remaining = 0;  // units of the one that runs; 0: none does
  std::uint8_t gpu = 0, cpu = 0;
  std::uint32_t key() const {
    return static_cast<std::uint32_t>(op) | static_cast<std::uint32_t>(remaining) << 4 |
           static_cast<std::uint32_t>(gpu) << 16 | static_cast<std::uint32_t>(cpu) << 24;
  }
};

class Search {
 public:
  Search(const Trace& trace, Nanoseconds unit_ns, int gpu_tensors) : room_(gpu_tensors) {
    TENCACHE_CHECK(trace.tensors.size() <= 8 && trace.ops.size() <= 15);
    const Schedule schedule(trace);
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      OpOf op;
      op.units = static_cast<int>(trace.ops[index].duration_ns / unit_ns);
      for (const Use& use : schedule.uses(index)) {
        const Mask bit = Mask{1} << use.tensor;
        if (use.read) op.reads |= bit;
        if (use.write) op.writes |= bit;
        if (use.write && !use.read) op.outputs |= bit;
        const auto ops = schedule.ops_of(use.tensor);
        const auto next = std::upper_bound(ops.begin(), ops.end(), index);
        if (next == ops.end()) {
          if (!trace.tensors[use.tensor].persistent) op.dies |= bit;
        } else {
          for (const Use& later : schedule.uses(*next)) {
            if (later.tensor == use.tensor && !later.read) op.dies |= bit;
          }
        }
      }
      ops_.push_back(op);
    }
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      if (trace.tensors[tensor].persistent) persistent_ |= Mask{1} << tensor;
    }
    slack_ = 2 * static_cast<int>(trace.tensors.size());
  }

  Optimum run() {
    // Where persistent tensors start is a schedule's own affair; from all on the CPU every state can be reached.
    Boundary now{{State{0, 0, 0, static_cast<std::uint8_t>(persistent_)}.key(), 0}};
    std::map<Boundary, std::pair<int, int>> seen;  // normalised: the iteration, its time
    int time = 0;
    for (int iteration = 0;; ++iteration) {
      const int first = std::ranges::min_element(now, {}, &std::pair<const std::uint32_t, int>::second)->second;
      for (auto& [state, at] : now) at -= first;
      time += first;
      const auto [found, is_new] = seen.try_emplace(now, iteration, time);
      if (!is_new) {
        const auto& [earlier, then] = found->second;
        return {static_cast<double>(time - then) / (iteration - earlier), states_};
      }
      now = next_boundary(now);
    }
  }

 private:
  using Boundary = std::map<std::uint32_t, int>;  // state -> the earliest time

  static State state_of(std::uint32_t key) {
    return {static_cast<std::uint8_t>(key & 15), static_cast<std::uint8_t>(key >> 4 & 4095),
            static_cast<std::uint8_t>(key >> 16), static_cast<std::uint8_t>(key >> 24)};
  }

  // All states in which the iteration's last op can be over, but for those that come so late that all copies could be
  // made since the first.
  Boundary next_boundary(const Boundary& from) {
    Boundary result;
    std::map<int, std::vector<std::uint32_t>> at;  // time -> states
    for (const auto& [state, time] : from) at[time].push_back(state);
    std::unordered_set<std::uint32_t> visited;
    int first_end = -1;
    while (!at.empty()) {
      const int time = at.begin()->first;
      if (first_end >= 0 && time > first_end + slack_) break;
      const std::vector<std::uint32_t> states = std::move(at.begin()->second);
      at.erase(at.begin());
      for (const std::uint32_t key : states) {
        if (!visited.insert(key).second) continue;
        ++states_;
        const State state = state_of(key);
        if (state.op == ops_.size()) {
          if (first_end < 0) first_end = time;
          result.try_emplace(State{0, 0, state.gpu, state.cpu}.key(), time);
        }
        // An iteration may begin with copies before its first op, which count for the one before or for it alike.
        step(state, [&](State next) {
          if (next.op < ops_.size() || state.op < ops_.size()) at[time + 1].push_back(next.key());
        });
      }
    }
    return result;
  }

  // One unit: every choice of what to drop, of a copy each way and of whether to start the op.
  template <typename Visit>
  void step(const State& state, Visit visit) {
    if (state.op == ops_.size()) return;
    const OpOf& op = ops_[state.op];
    const bool runs = state.remaining > 0;
    for (int start = 0; start <= 1; ++start) {
      if (start == 1 && (runs || (op.reads & ~state.gpu) != 0)) continue;
      const bool running = runs || start == 1;
      const Mask pinned = running ? op.reads | op.writes : 0;
      // What a running op has begun to write is on the GPU already; a starting one takes the room.
      const Mask gpu = state.gpu | (start == 1 ? op.outputs : 0);
      const Mask writing = running ? op.writes : 0;
      const Mask droppable = gpu & state.cpu & ~pinned & ~writing;
      for (Mask drop = droppable;; drop = (drop - 1) & droppable) {
        const Mask kept = gpu & ~drop;
        const int used = std::popcount(kept);
        if (used <= room_) {
          for (int in = -1; in < 8; ++in) {
            const Mask fetched = in < 0 ? 0 : Mask{1} << in;
            if (in >= 0 && ((state.cpu & fetched & ~kept) == 0 || used + 1 > room_ || (writing & fetched) != 0))
              continue;
            for (int out = -1; out < 8; ++out) {
              const Mask copied = out < 0 ? 0 : Mask{1} << out;
              if (out >= 0 && ((kept & copied & ~state.cpu & ~writing) == 0)) continue;
              visit(after(state, op, running, start == 1, kept, fetched, copied));
            }
          }
        }
        if (drop == 0) break;
      }
    }
  }

  State after(const State& state, const OpOf& op, bool running, bool starts, Mask gpu, Mask fetched,
              Mask copied) const {
    State next = state;
    Mask on_gpu = gpu | fetched, on_cpu = state.cpu | copied;
    if (running) {
      const int remaining = (starts ? op.units : state.remaining) - 1;
      next.remaining = static_cast<std::uint8_t>(remaining);
      if (remaining == 0) {
        on_cpu &= ~op.writes;
        on_gpu &= ~op.dies;
        on_cpu &= ~op.dies;
        ++next.op;
      }
    }
    next.gpu = static_cast<std::uint8_t>(on_gpu);
    next.cpu = static_cast<std::uint8_t>(on_cpu);
    return next;
  }

  std::vector<OpOf> ops_;
  Mask persistent_ = 0;
  int room_;
  int slack_ = 0;
  std::uint64_t states_ = 0;
};

}  // namespace

Optimum small_optimum(const Trace& trace, Nanoseconds unit_ns, int gpu_tensors) {
  return Search(trace, unit_ns, gpu_tensors).run();
}

}  // namespace tencache
