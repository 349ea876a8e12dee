#include "tests/live/trace_player.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"

namespace tencache::rules {
namespace {

constexpr std::uint64_t marked_steps = 2;  // as in Python programs (_live.py)

// What an op does with each tensor, each once.
std::vector<Use> uses_of(const Trace& trace, const Op& op) {
  std::vector<Use> uses;
  const auto add = [&](TensorId tensor, bool write) {
    const auto found = std::ranges::find(uses, tensor, &Use::tensor);
    Use& use = found != uses.end() ? *found : uses.emplace_back(Use{tensor, false, false});
    (write ? use.write : use.read) = true;
  };
  for (const TensorId tensor : trace.reads(op)) add(tensor, false);
  for (const TensorId tensor : trace.writes(op)) add(tensor, true);
  return uses;
}

// The program's thread is in the runtime for as long as it lives.
class InRuntime {
 public:
  InRuntime(PlayedStep& step, Turns& turns) : step_(step), turns_(turns), begin_ns_(turns.now()) { turns_.returned(); }
  ~InRuntime() { end(); }
  InRuntime(const InRuntime&) = delete;
  InRuntime& operator=(const InRuntime&) = delete;
  void end() {
    if (ended_) return;
    turns_.pass_turn();  // what it computed last takes its time
    step_.in_runtime.push_back({begin_ns_, turns_.now()});
    ended_ = true;
  }

 private:
  PlayedStep& step_;
  Turns& turns_;
  Nanoseconds begin_ns_;
  bool ended_ = false;
};

void check(CUresult result, const RulesDriver& driver) {
  if (result != CUDA_SUCCESS) throw Error("the model GPU: " + driver.violation());
}

}  // namespace

TracePlayer::TracePlayer(const Trace& trace, const ModelGpu& model, RulesDriver& driver, Turns& turns,
                         Nanoseconds op_ns)
    : trace_(trace),
      model_(model),
      driver_(driver),
      turns_(turns),
      op_ns_(op_ns),
      lifetimes_(lifetimes(trace)),
      live_(trace.tensors.size(), none) {}

std::vector<TracePlayer::Lifetime> TracePlayer::lifetimes(const Trace& trace) {
  std::vector<Lifetime> result(trace.tensors.size());
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    for (const Use& use : uses_of(trace, trace.ops[op])) {
      Lifetime& lifetime = result[use.tensor];
      if (trace.tensors[use.tensor].persistent) continue;
      if (lifetime.first == none) lifetime.first = op;
      lifetime.last = op;
    }
  }
  return result;
}

Bytes TracePlayer::peak_bytes(const Trace& trace, Bytes granularity) {
  const std::vector<Lifetime> all = lifetimes(trace);
  std::vector<std::int64_t> change(trace.ops.size() + 1);
  std::int64_t now = 0;
  for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
    const auto room = static_cast<std::int64_t>(round_up(trace.tensors[tensor].bytes, granularity));
    if (trace.tensors[tensor].persistent) now += room;
    if (all[tensor].first == none) continue;
    change[all[tensor].first] += room;
    change[all[tensor].last + 1] -= room;
  }
  std::int64_t peak = now;
  for (const std::int64_t by : change) peak = std::max(peak, now += by);
  return static_cast<Bytes>(peak);
}

// What the recording knows of the host: it was late where the device waited for it.
Nanoseconds TracePlayer::issue_ns(const Op& op) const {
  return std::max<Nanoseconds>(op.gap_before_ns, model_.issue_ns * trace_.kernel(op).launches);
}

void TracePlayer::spend(PlayedStep& step, Nanoseconds ns) {
  turns_.spend(ns);
  step.host_ns += ns;
  turns_.returned();
}

void TracePlayer::launch(const Op& op, std::span<const RulesDriver::ProgramAccess> accesses) {
  if (op.duration_ns == 0) return;  // it only makes or frees something
  DeviceJob job;
  job.kind = JobKind::kernel;
  job.duration_ns = op.duration_ns;
  job.traffic = op.bytes;
  if (op.bytes == 0) {
    for (const Use& use : uses_of(trace_, op)) {
      job.traffic += trace_.tensors[use.tensor].bytes * ((use.read ? 1 : 0) + (use.write ? 1 : 0));
    }
  }
  job.run = [] {};
  check(driver_.launch(nullptr, std::move(job), accesses), driver_);
}

void TracePlayer::fence() { check(driver_.table().cuStreamSynchronize(nullptr), driver_); }

TensorId TracePlayer::allocate_in_op(LiveRuntime& runtime, TensorId tensor) {
  try {
    return runtime.allocate(trace_.tensors[tensor].bytes, true).tensor;
  } catch (...) {
    runtime.end_op();
    throw;
  }
}

void TracePlayer::release_all(LiveRuntime& runtime) {
  for (TensorId& tensor : live_) {
    if (tensor != none) runtime.release(std::exchange(tensor, none));
  }
}

void TracePlayer::play_op(LiveRuntime& runtime, OpIndex index, bool mark, PlayedStep& step) {
  const Op& op = trace_.ops[index];
  std::vector<Use> uses;
  std::vector<TensorId> born, dead;
  std::vector<RulesDriver::ProgramAccess> accesses;
  for (const Use& use : uses_of(trace_, op)) {
    const Lifetime& lifetime = lifetimes_[use.tensor];
    if (lifetime.first == index) {
      born.push_back(use.tensor);
    } else {
      uses.push_back({live_[use.tensor], use.read, use.write});
    }
    if (lifetime.last == index) dead.push_back(use.tensor);
  }
  spend(step, issue_ns(op) + op_ns_);
  const InRuntime inside(step, turns_);
  runtime.begin_op(trace_.name(op), uses);
  for (const TensorId tensor : born) {
    live_[tensor] = allocate_in_op(runtime, tensor);
    const Tensor& made = trace_.tensors[tensor];
    if (mark && made.role != Role::activation) runtime.mark(live_[tensor], made.role, trace_.name(made));
  }
  for (const Use& use : uses_of(trace_, op)) {
    accesses.push_back({reinterpret_cast<CUdeviceptr>(runtime.address(live_[use.tensor])),
                        trace_.tensors[use.tensor].bytes, use.write});
  }
  launch(op, accesses);
  runtime.end_op();
  for (const TensorId tensor : dead) runtime.release(std::exchange(live_[tensor], none));
}

std::vector<PlayedStep> TracePlayer::play(LiveRuntime& runtime, std::uint64_t steps) try {
  for (TensorId tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
    const Tensor& made = trace_.tensors[tensor];
    if (!made.persistent) continue;
    live_[tensor] = runtime.allocate(made.bytes, false).tensor;
    runtime.mark(live_[tensor], made.role, trace_.name(made));
  }
  std::vector<PlayedStep> played;
  for (std::uint64_t step = 0; step < steps; ++step) {
    PlayedStep& now = played.emplace_back();
    now.begin_ns = turns_.now();
    const Nanoseconds charged_ns = turns_.charged_ns();
    {
      const InRuntime inside(now, turns_);
      runtime.iteration_boundary();
    }
    NameId module = 0;
    for (OpIndex op = 0; op < trace_.ops.size(); ++op) {
      const Op& next = trace_.ops[op];
      InRuntime announced(now, turns_);
      runtime.set_phase(next.phase);
      if (next.module != module) {
        if (module != 0) runtime.module_end();
        module = next.module;
        if (module != 0) runtime.module_begin(trace_.names[module]);
      }
      announced.end();
      play_op(runtime, op, step < marked_steps, now);
    }
    if (module != 0) runtime.module_end();
    now.end_ns = turns_.now();
    now.runtime_cpu_ns = turns_.charged_ns() - charged_ns;
  }
  release_all(runtime);
  return played;
} catch (...) {
  release_all(runtime);
  throw;
}

TracePlayer::Loaded TracePlayer::load(LiveRuntime& runtime) try {
  const auto* source = reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 44);  // nobody reads it
  Loaded loaded;
  const Nanoseconds begin_ns = turns_.now();
  for (TensorId tensor = 0; tensor < trace_.tensors.size(); ++tensor) {
    const Bytes bytes = trace_.tensors[tensor].bytes;
    if (!trace_.tensors[tensor].persistent) continue;
    turns_.spend(model_.issue_ns + op_ns_);
    turns_.returned();
    live_[tensor] = runtime.store(bytes, source).tensor;
    if (live_[tensor] != none) {
      loaded.stored_bytes += bytes;
    } else {
      runtime.begin_op("aten::_to_copy", {});
      live_[tensor] = allocate_in_op(runtime, tensor);
      runtime.upload(runtime.address(live_[tensor]), source, bytes, nullptr);
      runtime.end_op();
    }
    loaded.bytes += bytes;
    source += bytes;
  }
  fence();
  turns_.pass_turn();
  loaded.took_ns = turns_.now() - begin_ns;
  loaded.evictions = runtime.figures().counters.evictions;
  release_all(runtime);
  return loaded;
} catch (...) {
  release_all(runtime);
  throw;
}

std::vector<PlayedStep> TracePlayer::play_plain(std::uint64_t steps) {
  std::vector<PlayedStep> played;
  for (std::uint64_t step = 0; step < steps; ++step) {
    PlayedStep& now = played.emplace_back();
    now.begin_ns = turns_.now();
    for (const Op& op : trace_.ops) {
      spend(now, issue_ns(op));
      launch(op, {});
    }
    fence();
    now.end_ns = turns_.now();
  }
  return played;
}

}  // namespace tencache::rules
