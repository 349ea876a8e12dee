#include "sim/rehearse.h"

#include <utility>

#include "core/engine/engine.h"
#include "sim/sim_machine.h"

namespace tencache {
namespace {

constexpr std::uint64_t most_iterations = 8;

// The candidate, and when its ops came to pass.
class Observed final : public Policy {
 public:
  Observed(Policy& inner, std::size_t op_count) : inner_(inner) {
    for (std::vector<Nanoseconds>* times : {&now_.issued_ns, &now_.ready_ns, &now_.done_ns}) times->resize(op_count);
  }

  Requirements requirements() const override { return inner_.requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    return inner_.layout(machine, program);
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::iteration_begin:
        begin_ns_ = view.now;
        break;
      case EventKind::op_issued:
        now_.issued_ns[event.op] = view.now - begin_ns_;
        break;
      case EventKind::op_ready:
        now_.ready_ns[event.op] = view.now - begin_ns_;
        break;
      case EventKind::op_done:
        now_.done_ns[event.op] = view.now - begin_ns_;
        break;
      default:
        break;
    }
    inner_.on(event, view, actions);
    if (event.kind == EventKind::iteration_end) last_ = now_;
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    inner_.make_room(request, view, victims);
  }
  std::uint64_t fingerprint() const override { return inner_.fingerprint(); }

  Rehearsal take_times() { return std::move(last_); }

 private:
  Policy& inner_;
  Nanoseconds begin_ns_ = 0;
  Rehearsal now_, last_;
};

}  // namespace

Rehearsal rehearse(const Program& program, const MachineSpec& machine, Policy& candidate, std::uint64_t max_events) {
  Observed observed(candidate, program.trace.ops.size());
  SimMachine simulated(machine);
  Engine engine(machine, simulated, observed, &program);
  std::uint64_t events = 0;
  bool fits = true;
  try {
    engine.start({.max_iterations = most_iterations, .until_steady = true});
    Completion completion;
    for (; !engine.finished() && events < max_events;) {
      if (simulated.wait(completion)) {
        engine.handle(completion);
        ++events;
      } else if (!engine.stand_still()) {
        engine.throw_out_of_memory();
      }
    }
  } catch (const OutOfMemory&) {
    fits = false;
  }
  Rehearsal rehearsal = observed.take_times();
  rehearsal.fits = fits;
  rehearsal.complete = engine.finished();
  rehearsal.events = events;
  const RunResult result = engine.result();
  if (result.iterations > 0) rehearsal.iteration_ns = result.window.time_ns / static_cast<Nanoseconds>(result.period);
  return rehearsal;
}

}  // namespace tencache
