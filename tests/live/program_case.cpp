#include "tests/live/program_case.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "executor/live/live_runtime.h"
#include "executor/replay_bodies.h"
#include "policies/registry.h"

namespace tencache::rules {
namespace {

constexpr BytesPerSecond fast = 100'000'000'000;

MachineSpec machine_of(Random& random, bool ahead, const std::string& folder) {
  MachineSpec machine;
  machine.name = "program";
  const Bytes gpu_bytes = 4096 * random.between(3, 8);
  machine.tiers = {{"gpu", TierKind::gpu, gpu_bytes, movable_unit, {}}, {"cpu", TierKind::cpu, 1 * MiB, 4096, {}}};
  machine.tiers[0].allocator = AllocatorKind::movable;
  machine.links = {{"h2d", 1, 0, fast, 0, {}}, {"d2h", 0, 1, fast, 0, {}}};
  if (random.one_in(3)) {
    machine.tiers[1].capacity = 4096 * random.between(6, 16);
    machine.tiers.push_back({"nvme", TierKind::nvme, 8 * MiB, 4096, {folder}});
    machine.links.push_back({"stage", 2, 1, fast, 0, {}});
    machine.links.push_back({"store", 1, 2, fast, 0, {}});
  }
  machine.initial_tier = 1;
  if (!ahead) return machine;
  machine.run_ahead.ops = static_cast<std::uint32_t>(random.one_in(2) ? random.between(1, 4) : 256);
  machine.run_ahead.copies = static_cast<std::uint32_t>(random.between(1, 3));
  machine.run_ahead.copies_ns = random.one_in(2) ? 0 : 400'000;
  return machine;
}

// What the program does in each step. Slots are tensors; the first ones live from step to step.
struct Action {
  enum class Kind : std::uint8_t { op, fill, pinned, exposed };
  Kind kind = Kind::op;
  std::size_t stream = 0;
  std::vector<std::size_t> reads = {}, writes = {}, births = {}, deaths = {};  // slots
  Bytes workspace = 0;
};

struct Script {
  std::vector<Bytes> bytes;  // by slot
  std::size_t persistent = 0;
  std::vector<Action> actions;
};

Script script_of(Random& random) {
  Script script;
  const std::size_t slots = random.between(8, 20);
  script.persistent = random.between(1, 4);
  for (std::size_t i = 0; i < slots; ++i) script.bytes.push_back(random.between(1, random.one_in(3) ? 8000 : 3000));
  std::vector<bool> alive(slots);
  std::fill_n(alive.begin(), script.persistent, true);
  const auto some = [&](bool living, std::size_t most) {
    std::vector<std::size_t> chosen;
    for (std::uint64_t tries = random.below(most + 1); tries > 0; --tries) {
      const std::size_t slot = random.below(slots);
      if (alive[slot] == living && std::ranges::count(chosen, slot) == 0) chosen.push_back(slot);
    }
    return chosen;
  };
  const bool only_ops = random.one_in(2);  // the host waits for little then
  for (std::uint64_t left = random.between(6, 20); left > 0; --left) {
    Action& action = script.actions.emplace_back();
    action.stream = random.below(2);
    if (!only_ops && random.one_in(6)) {
      action.kind = Action::Kind::fill;
      action.births = some(false, 1);
    } else if (!only_ops && random.one_in(6)) {
      action.kind = Action::Kind::pinned;
      action.writes = some(true, 1);
    } else if (!only_ops && random.one_in(4)) {
      action.kind = Action::Kind::exposed;
      for (int tries = 0; tries < 4 && action.writes.empty(); ++tries) action.writes = some(true, 1);
      // It would be missing for ops until it goes.
      if (!action.writes.empty() && action.writes.front() < script.persistent) action.writes.clear();
    } else {
      action.reads = some(true, 3);
      action.writes = some(true, 2);
      action.births = some(false, 2);
      if (random.one_in(4)) action.workspace = random.between(1, 4000);
    }
    for (const std::size_t slot : action.births) alive[slot] = true;
    if (action.kind == Action::Kind::exposed && random.one_in(2)) {
      action.deaths = action.writes;
      for (const std::size_t slot : action.deaths) alive[slot] = false;
    }
    for (const std::size_t slot : some(true, 2)) {
      if (slot < script.persistent) continue;
      action.deaths.push_back(slot);
      alive[slot] = false;
    }
  }
  Action& last = script.actions.emplace_back();
  for (std::size_t slot = script.persistent; slot < slots; ++slot) {
    if (alive[slot]) last.deaths.push_back(slot);
  }
  return script;
}

class Program {
 public:
  Program(RulesDriver& driver, CudaDevice& device, Random& random, ProgramRun& run)
      : driver_(driver), device_(device), random_(random), script_(script_of(random)), run_(run) {
    device_.bind();
    if (random.one_in(2)) driver_.table().cuStreamCreate(&streams_[0], CU_STREAM_NON_BLOCKING);
    driver_.table().cuStreamCreate(&streams_[1], CU_STREAM_NON_BLOCKING);
    slots_.resize(script_.bytes.size());
    events_.resize(2 * slots_.size());
    for (CUevent& event : events_) {  // a failure by plan comes once
      const auto make = [&] { return driver_.table().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); };
      if (make() != CUDA_SUCCESS) make();
    }
    two_streams_from_ = random.one_in(2) ? 0 : random.between(1, 4);
  }
  ~Program() {
    device_.bind();
    for (const CUstream stream : streams_) {
      if (stream != nullptr) driver_.table().cuStreamDestroy(stream);
    }
    for (const CUevent event : events_) {
      if (event != nullptr) driver_.table().cuEventDestroy(event);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  CUstream current() const { return streams_[stream_]; }
  void fence() {
    device_.bind();
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (std::exchange(over_[i], launched_[i]) == launched_[i]) continue;
      check_cuda(driver_.table(), driver_.table().cuStreamSynchronize(streams_[i]), "an op of the program");
    }
  }

  void play(LiveRuntime& runtime, std::uint64_t steps) try {
    for (std::size_t slot = 0; slot < script_.persistent; ++slot) make(runtime, slot, false);
    for (std::uint64_t step = 0; step < steps; ++step) {
      runtime.iteration_boundary();
      const bool strays = random_.one_in(6);
      one_stream_ = step < two_streams_from_;
      if (step > 0 && step == two_streams_from_) begin_second_stream(runtime);
      for (const Action& action : script_.actions) {
        take_back(runtime);
        let_go_of_kept(runtime);
        if (strays && random_.one_in(6)) extra_op(runtime);
        play(runtime, action);
      }
    }
    take_back(runtime);
    for (std::size_t slot = 0; slot < script_.persistent; ++slot) {
      Action check;
      check.reads = {slot};
      play(runtime, check);
    }
    release_all(runtime);
  } catch (...) {
    release_all(runtime);
    throw;
  }

 private:
  struct Slot {
    TensorId tensor = none;
    std::uint64_t version = 0;               // 0: nothing was written yet
    std::array<std::uint64_t, 2> used = {};  // by stream: its last kernel that did
    bool kept = false;                       // it stays until an op uses it
  };

  // A kernel that no op announces was the last to need it where it lies.
  void unkeep(LiveRuntime& runtime, std::size_t slot) {
    if (!std::exchange(slots_[slot].kept, false)) return;
    launch(runtime, {}, {slot});
    runtime.unkeep({&slots_[slot].tensor, 1});
  }

  // A workspace that a library keeps, on a stream; later it does not, and then lets go of it.
  void let_go_of_kept(LiveRuntime& runtime) {
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!slots_[slot].kept || !random_.one_in(3)) continue;
      stream_ = announced_[1] ? any_stream() : 0;
      unkeep(runtime, slot);
    }
    if (kept_.tensor == none || !random_.one_in(4)) return;
    if (kept_.let_go) {
      runtime.release(std::exchange(kept_, {}).tensor);
    } else {
      runtime.unkeep({&kept_.tensor, 1});
      kept_.let_go = true;
    }
  }

  void release_all(LiveRuntime& runtime) {
    if (kept_.tensor != none) runtime.release(std::exchange(kept_, {}).tensor);
    for (const auto& [slot, use] : std::exchange(lent_, {})) runtime.take_back({&use, 1}, true);
    if (work_ != none) runtime.release(std::exchange(work_, none));
    for (Slot& slot : slots_) {
      if (slot.tensor != none) runtime.release(std::exchange(slot.tensor, none));
    }
  }

  void make(LiveRuntime& runtime, std::size_t slot, bool inside, bool kept = false) {
    slots_[slot] = {.tensor = runtime.allocate(script_.bytes[slot], inside, kept).tensor, .kept = kept};
  }
  std::size_t any_stream() { return one_stream_ ? 0 : random_.below(2); }

  // The program's own order between its streams: who uses a tensor comes after who used it on the other one.
  void follow(const Slot& slot) {
    const CudaDriver& table = driver_.table();
    const std::size_t other = 1 - stream_;
    if (slot.used[other] <= std::max(known_[stream_], over_[other])) return;
    known_[stream_] = slot.used[other];
    device_.bind();
    check_cuda(table, table.cuStreamWaitEvent(streams_[stream_], event_of(slot, other), 0), "the program's wait");
  }

  // Behind the slot's last use on that stream.
  CUevent& event_of(const Slot& slot, std::size_t stream) {
    return events_[2 * static_cast<std::size_t>(&slot - slots_.data()) + stream];
  }

  // A kernel that checks and writes slots, and scratches in workspaces.
  void launch(LiveRuntime& runtime, const std::vector<std::size_t>& reads, const std::vector<std::size_t>& writes,
              const std::vector<std::span<std::byte>>& workspaces = {}, bool announced = false) {
    struct Access {
      std::size_t slot;
      std::uint64_t version;
      std::span<std::byte> content;
      bool write;
    };
    std::vector<Access> all;
    std::vector<RulesDriver::ProgramAccess> accesses;
    const auto add = [&](std::size_t slot, bool write) {
      Slot& at = slots_[slot];
      follow(at);
      at.used[stream_] = launched_[stream_] + 1;
      if (write) ++at.version;
      const std::span content(runtime.address(at.tensor), script_.bytes[slot]);
      all.push_back({slot, at.version, content, write});
      accesses.push_back({reinterpret_cast<CUdeviceptr>(content.data()), content.size(), write});
    };
    for (const std::size_t slot : reads) add(slot, false);
    for (const std::size_t slot : writes) add(slot, true);
    for (const std::span<std::byte> workspace : workspaces) {
      accesses.push_back({reinterpret_cast<CUdeviceptr>(workspace.data()), workspace.size(), true});
    }
    DeviceJob job;
    job.run = [this, all, workspaces, announced] {
      if (announced) ++done_;
      for (const Access& access : all) {
        if (!access.write && access.version != 0) {
          ++run_.checks;
          const Bytes wrong =
              find_difference(static_cast<TensorId>(access.slot), access.version, 0, access.content, true);
          if (wrong != unlimited && run_.wrong.empty()) {
            run_.wrong = "slot " + std::to_string(access.slot) + " is wrong at byte " + std::to_string(wrong) +
                         ", version " + std::to_string(access.version);
          }
        }
      }
      for (const std::span<std::byte> workspace : workspaces) std::ranges::fill(workspace, std::byte{0x5a});
      for (const Access& access : all) {
        if (access.write) write_pattern(static_cast<TensorId>(access.slot), access.version, 0, access.content, true);
      }
    };
    ++launched_[stream_];
    device_.bind();
    check_cuda(driver_.table(), driver_.launch(streams_[stream_], std::move(job), accesses), "a kernel of the program");
    for (const Access& access : all) {
      const CUevent event = event_of(slots_[access.slot], stream_);
      check_cuda(driver_.table(), driver_.table().cuEventRecord(event, streams_[stream_]), "the program's event");
    }
  }

  void play(LiveRuntime& runtime, const Action& action) {
    stream_ = one_stream_ ? 0 : action.stream;
    switch (action.kind) {
      case Action::Kind::op:
        play_op(runtime, action);
        break;
      case Action::Kind::fill:
        for (const std::size_t slot : action.births) {
          make(runtime, slot, false, random_.one_in(2));
          launch(runtime, {}, {slot});
        }
        break;
      case Action::Kind::pinned:
        for (const std::size_t slot : action.writes) {
          const TensorId tensor = slots_[slot].tensor;
          runtime.pin({&tensor, 1}, true);
          stream_ = random_.below(2);
          launch(runtime, {}, {slot});
          runtime.unpin({&tensor, 1}, true);
        }
        break;
      case Action::Kind::exposed:
        for (const std::size_t slot : action.writes) {
          runtime.expose(slots_[slot].tensor);
          stream_ = random_.below(2);
          launch(runtime, {}, {slot});
        }
        break;
    }
    if (!action.deaths.empty()) take_back(runtime);
    for (const std::size_t slot : action.deaths) runtime.release(std::exchange(slots_[slot], {}).tensor);
  }

  void play_op(LiveRuntime& runtime, const Action& action) {
    std::vector<Use> uses;
    for (const std::size_t slot : action.reads) uses.push_back({slots_[slot].tensor, true, false});
    for (const std::size_t slot : action.writes) {
      const auto found = std::ranges::find(uses, slots_[slot].tensor, &Use::tensor);
      (found != uses.end() ? *found : uses.emplace_back(Use{slots_[slot].tensor, false, false})).write = true;
    }
    for (const std::vector<std::size_t>& used : {action.reads, action.writes}) {
      for (const std::size_t slot : used) unkeep(runtime, slot);
    }
    const bool uses_let_go = kept_.let_go && kept_.stream == stream_ && random_.one_in(2);
    if (uses_let_go) uses.push_back({kept_.tensor, false, true});
    runtime.begin_op("op", uses);
    announced_[stream_] = true;
    ++run_.ops;
    try {
      std::vector<std::span<std::byte>> workspaces;
      if (uses_let_go) {
        workspaces.push_back({runtime.address(kept_.tensor), kept_.content.size()});
      } else if (kept_.tensor != none && !kept_.let_go && kept_.stream == stream_) {
        workspaces.push_back(kept_.content);  // which the op does not say
      }
      if (action.workspace != 0) {
        const LiveRuntime::Storage storage = runtime.allocate(action.workspace, true);
        work_ = storage.tensor;
        workspaces.push_back({storage.address, action.workspace});
      }
      for (const std::size_t slot : action.births) make(runtime, slot, true);
      std::vector<std::size_t> writes = action.writes;
      writes.insert(writes.end(), action.births.begin(), action.births.end());
      ++given_;
      launch(runtime, action.reads, writes, workspaces, true);
      const std::uint32_t most = runtime.spec().run_ahead.ops;
      if (most > 0 && given_ - done_ > most && run_.wrong.empty()) {
        run_.wrong = "the host is " + std::to_string(given_ - done_) + " ops ahead";
      }
      if (!writes.empty() && random_.one_in(6)) lend(runtime, writes.front());
      if (kept_.tensor == none && work_ != none && random_.one_in(4)) {
        runtime.keep({&work_, 1});
        kept_ = {std::exchange(work_, none), workspaces.back(), stream_};
      }
      const bool worked = work_ != none;
      if (worked) runtime.release(std::exchange(work_, none));
      if (worked && random_.one_in(2)) {  // hears of it, and may get its memory
        const LiveRuntime::Storage storage = runtime.allocate(action.workspace, true);
        runtime.release(storage.tensor);
      }
    } catch (...) {
      runtime.end_op();
      throw;
    }
    runtime.end_op();
  }

  // Somebody goes on with a tensor of the op beside it, until the next action.
  void lend(LiveRuntime& runtime, std::size_t slot) {
    const Use use{slots_[slot].tensor, true, true};
    runtime.lend({&use, 1}, true);
    lent_.push_back({slot, use});
  }
  void take_back(LiveRuntime& runtime) {
    for (const auto& [slot, use] : std::exchange(lent_, {})) {
      stream_ = any_stream();
      if (slots_[slot].tensor == use.tensor) launch(runtime, {}, {slot});
      if (runtime.machine().completes() == Completes::over) fence();
      runtime.take_back({&use, 1}, true);
    }
  }

  // Ops that are not in the recording.
  void extra_op(LiveRuntime& runtime) {
    Action action;
    action.stream = random_.below(2);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].tensor == none || !random_.one_in(4) || action.reads.size() > 1) continue;
      action.reads.push_back(slot);
    }
    play(runtime, action);
  }
  // The second stream's first ops read all, what was not used for longest first: what the program itself waits for is
  // long over then.
  void begin_second_stream(LiveRuntime& runtime) {
    std::vector<std::size_t> alive;
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].tensor != none) alive.push_back(slot);
    }
    std::ranges::sort(alive, {}, [this](std::size_t slot) { return slots_[slot].used[0]; });
    for (const std::size_t slot : alive) {
      Action action;
      action.stream = 1;
      action.reads = {slot};
      play(runtime, action);
    }
  }

  RulesDriver& driver_;
  CudaDevice& device_;
  Random& random_;
  Script script_;
  ProgramRun& run_;
  std::array<CUstream, 2> streams_ = {};
  std::vector<CUevent> events_;         // two a slot, one a stream
  std::size_t stream_ = 0;              // the current one
  std::uint64_t two_streams_from_ = 0;  // steps
  bool one_stream_ = false;
  std::array<bool, 2> announced_ = {};          // streams that ops were on
  std::uint64_t given_ = 0, done_ = 0;          // kernels of announced ops
  std::array<std::uint64_t, 2> launched_ = {};  // kernels, by stream
  std::array<std::uint64_t, 2> over_ = {};      // of them those that were waited for
  std::array<std::uint64_t, 2> known_ = {};     // by stream: the other one's kernels that it comes after
  std::vector<Slot> slots_;
  TensorId work_ = none;  // the op's workspace
  struct Kept {
    TensorId tensor = none;
    std::span<std::byte> content = {};
    std::size_t stream = 0;  // of its users
    bool let_go = false;
  } kept_;
  std::vector<std::pair<std::size_t, Use>> lent_;
};

}  // namespace

ProgramRun play_random_program(RulesDriver& driver, const std::shared_ptr<CudaDevice>& device, Random& random,
                               const std::string& policy, bool ahead, const std::string& folder) {
  ProgramRun run;
  const MachineSpec machine = machine_of(random, ahead, folder);
  const MadePolicy made = make_policy(policy);
  Program program(driver, *device, random, run);
  LiveOptions options;
  options.settle = random.one_in(6);
  options.machine.pace = false;
  options.machine.files.direct = options.machine.files.io_uring = false;
  options.machine.accelerator = device;
  options.fence = [&program] { program.fence(); };
  options.stream = [&program] { return program.current(); };
  LiveRuntime runtime(machine, *made.policy, options);
  try {
    program.play(runtime, random.between(3, 6));
  } catch (const OutOfMemory&) {
    run.fits = false;
  }
  const LiveFigures figures = runtime.figures();
  run.evictions = figures.counters.evictions;
  return run;
}

}  // namespace tencache::rules
