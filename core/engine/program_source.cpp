#include "core/engine/program_source.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/metrics.h"

namespace tencache {
namespace {

bool conflict(std::span<const Use> a, std::span<const Use> b) {
  for (const Use& x : a) {
    for (const Use& y : b) {
      if (x.tensor == y.tensor && (x.write || y.write)) return true;
    }
  }
  return false;
}

}  // namespace

std::string ProgramSource::title_of(TensorId tensor) const {
  const TensorId known = in_program(tensor);
  if (program_ == nullptr || known == none) return "tensor " + std::to_string(tensor);
  return "tensor '" + std::string(program_->trace.name(program_->trace.tensors[known])) + "'";
}

// ---- Owned ----------------------------------------------------------------------------------------------------------

OwnedProgram::OwnedProgram(const Program& program, const Program& shown, const MachineSpec& spec,
                           const Machine& machine, const std::array<bool, role_count>& governed, const Layout& layout)
    : ProgramSource(&program),
      schedule_(program.trace),
      shown_(shown),
      revelations_(program.trace),
      lister_(program.trace),
      forgets_overwritten_(layout.forgets_overwritten),
      overlaps_(machine.pretends()),
      runs_ahead_(machine.completes() == Completes::ordered) {
  if (&shown != &program) shown_schedule_.emplace(shown.trace);
  const Trace& trace = program.trace;
  const TierId cpu = spec.tier_of(Device::cpu);
  const auto is_on_gpu = [](const Op& op) { return op.device == Device::gpu; };
  const auto on_gpu = static_cast<std::size_t>(std::ranges::count_if(trace.ops, is_on_gpu));
  sequences_[0].ops.reserve(on_gpu);
  sequences_[1].ops.reserve(trace.ops.size() - on_gpu);
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.rank != trace.ops.front().rank) {
      throw Error("op '" + trace.name(op) + "' belongs to rank " + std::to_string(op.rank) + ", others to rank " +
                  std::to_string(trace.ops.front().rank) + "; a program is one rank's (`replay` simulates several)");
    }
    if (op.device == Device::cpu && cpu == no_tier) {
      throw Error("op '" + trace.name(op) + "' runs on the CPU, but machine '" + spec.name +
                  "' has no tier of kind cpu");
    }
    sequences_[op.device == Device::gpu ? 0 : 1].ops.push_back(i);
  }
  if (sequences_[0].ops.empty()) throw Error("the trace has no op on the GPU");
  uses_total_.assign(trace.tensors.size(), 0);
  std::vector<Use> uses;
  for (const Op& op : trace.ops) {
    uses.clear();
    lister_.append(op, uses);
    for (const Use& use : uses) ++uses_total_[use.tensor];
    for (const TensorId tensor : trace.frees(op)) ++uses_total_[tensor];
  }
  uses_left_ = uses_total_;
  note_what_the_gpu_reads(governed);
  find_needs(layout.blocking_step);
}

void OwnedProgram::note_what_the_gpu_reads(const std::array<bool, role_count>& governed) {
  const Trace& trace = program_->trace;
  std::vector<bool> noted(trace.tensors.size(), false);
  std::size_t count = 0;
  for (const OpIndex op : sequences_[0].ops) {
    for (const TensorId tensor : trace.reads(trace.ops[op])) {
      if (noted[tensor] || !governed[static_cast<std::size_t>(trace.tensors[tensor].role)]) continue;
      noted[tensor] = true;
      ++count;
    }
  }
  read_on_gpu_.reserve(count);
  for (TensorId tensor = 0; tensor < noted.size(); ++tensor) {
    if (noted[tensor]) read_on_gpu_.push_back(tensor);
  }
}

bool OwnedProgram::overwritten_next(TensorId tensor) const {
  const OpIndex next = schedule_.ops_of(tensor)[uses_total_[tensor] - uses_left_[tensor]];
  return !std::ranges::find(schedule_.uses(next), tensor, &Use::tensor)->read;
}

// Which ops of the other lane must be done before an op may be issued: the latest that conflicts, looking back over the
// iteration's end, since the program is cyclic.
void OwnedProgram::find_needs(bool blocking_step) {
  if (sequences_[1].ops.empty()) return;
  for (Sequence& sequence : sequences_) sequence.needs.assign(sequence.ops.size(), no_need);
  const std::size_t tensors = program_->trace.tensors.size();
  const auto frees = [this](OpIndex op) { return program_->trace.frees(program_->trace.ops[op]); };
  std::array<std::vector<std::int64_t>, lane_count> last_read, last_write;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    last_read[lane].assign(tensors, no_need);
    last_write[lane].assign(tensors, no_need);
  }
  for (std::int64_t round = 0; round < 2; ++round) {
    std::array<std::size_t, lane_count> at{};
    for (OpIndex op = 0; op < program_->trace.ops.size(); ++op) {
      const std::size_t mine = program_->trace.ops[op].device == Device::gpu ? 0 : 1;
      const std::size_t other = 1 - mine;
      std::int64_t need = no_need;
      for (const Use& use : schedule_.uses(op)) {
        need = std::max(need, last_write[other][use.tensor]);
        if (use.write) need = std::max(need, last_read[other][use.tensor]);
      }
      // What an op frees it ends as one that reads it does.
      for (const TensorId tensor : frees(op)) need = std::max(need, last_write[other][tensor]);
      const std::int64_t others = static_cast<std::int64_t>(sequences_[other].ops.size());
      if (round == 1 && need != no_need) sequences_[mine].needs[at[mine]] = need - others;
      const std::int64_t done_count =
          round * static_cast<std::int64_t>(sequences_[mine].ops.size()) + static_cast<std::int64_t>(at[mine]) + 1;
      for (const Use& use : schedule_.uses(op)) {
        (use.write ? last_write : last_read)[mine][use.tensor] = done_count;
        if (use.read) last_read[mine][use.tensor] = done_count;
      }
      for (const TensorId tensor : frees(op)) last_read[mine][tensor] = done_count;
      ++at[mine];
    }
  }
  if (blocking_step) sequences_[0].needs[0] = std::max<std::int64_t>(sequences_[0].needs[0], 0);
}

void OwnedProgram::limit(const RunLimits& limits, bool as_others) {
  limits_ = limits;
  begun_iterations_ = limits.max_iterations + (as_others ? 1 : 0);
  uint128 iteration_ns = 0;
  for (const Op& op : program_->trace.ops) {
    iteration_ns += static_cast<uint128>(op.duration_ns + op.host_ns(runs_ahead_));
  }
  if (iteration_ns * limits.max_iterations > static_cast<uint128>(std::numeric_limits<Nanoseconds>::max() / 4)) {
    throw Error("the program's " + std::to_string(limits.max_iterations) +
                " iterations would take more than 70 years; check the durations, or run fewer");
  }
}

void OwnedProgram::show(View& view) const {
  view.program = &shown_;
  view.schedule = shown_schedule_ ? &*shown_schedule_ : &schedule_;
  if (shown_schedule_) view.revelations = &revelations_;
}

std::optional<NextOp> OwnedProgram::next(std::uint8_t lane) const {
  const Sequence& sequence = sequences_[lane];
  if (sequence.ops.empty() || sequence.iteration == begun_iterations_) return {};
  const OpIndex op = sequence.ops[sequence.at];
  return NextOp{op, program_->trace.ops[op].host_ns(runs_ahead_), lane == 0 && sequence.at == 0 && sequence.issued > 0};
}

// `place`: of the op of the other lane, relative to the iteration's first.
StallCause OwnedProgram::cause_of(std::int64_t place, const Sequence& other) const {
  if (place < 0) place += static_cast<std::int64_t>(other.ops.size());
  const Op& op = program_->trace.ops[other.ops[static_cast<std::size_t>(place)]];
  return op.phase == Phase::optimizer ? StallCause::cpu_optimizer : StallCause::cpu_compute;
}

std::optional<StallCause> OwnedProgram::blocked_by(std::uint8_t lane, const OpLanes& lanes) const {
  const Sequence& sequence = sequences_[lane];
  const Sequence& other = sequences_[1 - lane];
  const std::int64_t need = sequence.needs.empty() ? no_need : sequence.needs[sequence.at];
  if (need != no_need) {
    const std::int64_t before = static_cast<std::int64_t>(sequence.iteration * other.ops.size());
    if (static_cast<std::int64_t>(other.passed) < before + need) {
      return cause_of(need - 1, other);
    }
  }
  for (const ActiveOp& op : lanes[communication_lane].active) {
    if (conflict(schedule_.uses(sequence.ops[sequence.at]), op.uses)) return StallCause::collective;
  }
  if (!revelations_.decided(sequence.ops[sequence.at], sequence.iteration))
    return StallCause::cpu_compute;  // or its lane is busy
  return {};
}

void OwnedProgram::passed(std::uint8_t lane) {
  ++sequences_[lane].passed;
  TENCACHE_CHECK(sequences_[lane].passed <= sequences_[lane].issued);
}

void OwnedProgram::issue(std::uint8_t lane, std::uint64_t, ActiveOp& op) {
  Sequence& sequence = sequences_[lane];
  op.times.op = sequence.ops[sequence.at];
  op.times.iteration = sequence.iteration;
  const Op& known = program_->trace.ops[op.times.op];
  op.times.meets = known.rendezvous != 0;
  lister_.append(known, op.own_uses);
  op.uses = op.own_uses;
  op.duration_ns = known.duration_ns;
  op.bytes = known.bytes;
  op.rendezvous = known.rendezvous;
  op.beside = overlaps_ && known.stream == OpStream::communication;
  ++sequence.issued;
  if (++sequence.at < sequence.ops.size()) return;
  sequence.at = 0;
  ++sequence.iteration;
}

bool OwnedProgram::use_ends(TensorId tensor) {
  if (--uses_left_[tensor] > 0) return false;
  uses_left_[tensor] = uses_total_[tensor];
  return true;
}

void OwnedProgram::done(TierId tier, OpIndex op, std::span<const Use> uses, const Residency& memory,
                        std::vector<TensorId>& spent) {
  const auto spend = [&](TensorId tensor) {
    // An op issued ahead gives it a new life already.
    if (memory.copy(memory.first_chunk(tensor), tier).pins == 0) spent.push_back(tensor);
  };
  for (const Use& use : uses) {
    const bool last = use_ends(use.tensor);
    // What outlives the iteration may be looked at between it and the next.
    const bool spent_here =
        memory.persistent(use.tensor) ? forgets_overwritten_ && !last && overwritten_next(use.tensor) : last;
    if (spent_here) spend(use.tensor);
  }
  for (const TensorId tensor : program_->trace.frees(program_->trace.ops[op])) {
    if (use_ends(tensor)) spend(tensor);
  }
  revelations_.done(op);
}

bool OwnedProgram::all_done() const {
  return std::ranges::all_of(sequences_, [this](const Sequence& sequence) {
    return sequence.passed == begun_iterations_ * sequence.ops.size();
  });
}

std::array<std::uint64_t, 2> OwnedProgram::progress(std::uint8_t lane, std::uint64_t iteration) const {
  const Sequence& sequence = sequences_[lane];
  if (sequence.ops.empty()) return {0, 0};
  return {sequence.issued - iteration * sequence.ops.size(), sequence.passed - iteration * sequence.ops.size()};
}

// ---- Live -----------------------------------------------------------------------------------------------------------

void LiveProgram::add_task(std::uint8_t lane, OpIndex op, Tag tag, std::vector<Use> uses, Nanoseconds duration_ns) {
  tasks_[lane].push_back({op, tag, std::move(uses), duration_ns, ++task_sequence_});
}

void LiveProgram::set_profile(std::shared_ptr<const Program> program, std::vector<TensorId> to_memory,
                              std::vector<TensorId> to_program, std::size_t tensors) {
  profile_ = std::move(program);
  program_ = profile_.get();
  sealed_.reset();
  revelations_ = {};
  if (seals_ && has_gates(program_->trace)) {
    sealed_ = std::make_unique<const Program>(Program{sealed(program_->trace), program_->changes});
    revelations_ = Revelations(program_->trace);
    experts_ = std::make_unique<const Experts>(program_->trace);
  }
  schedule_ = std::make_unique<Schedule>(sealed_ ? sealed_->trace : program_->trace);
  to_memory_ = std::move(to_memory);
  to_program_ = std::move(to_program);
  to_program_.resize(std::max(to_program_.size(), tensors), none);
  deviated_ = false;
}

void LiveProgram::match(TensorId memory_tensor, TensorId program_tensor) {
  if (program_tensor == none) return gone(memory_tensor);
  if (memory_tensor >= to_program_.size()) to_program_.resize(memory_tensor + std::size_t{1}, none);
  to_program_[memory_tensor] = program_tensor;
  to_memory_[program_tensor] = memory_tensor;
}

void LiveProgram::created(TensorId tensor) {
  if (tensor < to_program_.size()) to_program_[tensor] = none;
}

void LiveProgram::gone(TensorId tensor) {
  if (in_program(tensor) == none) return;
  if (to_memory_[to_program_[tensor]] == tensor) to_memory_[to_program_[tensor]] = none;
  to_program_[tensor] = none;
}

bool LiveProgram::return_to_schedule() {
  if (!deviated_ || program_ == nullptr) return false;
  deviated_ = false;
  return true;
}

std::span<const Use> LiveProgram::reveal(OpIndex gate, std::span<const std::uint32_t> chosen) {
  decided_.clear();
  if (!sealed_ || deviated_) return {};
  for (const Use& use : revelations_.reveal(gate, *experts_, chosen)) {
    if (const TensorId tensor = to_memory_[use.tensor]; tensor != none) decided_.push_back({tensor, true, false});
  }
  return decided_;
}

void LiveProgram::show(View& view) const {
  if (program_ == nullptr) return;
  view.program = sealed_ ? sealed_.get() : program_;
  view.schedule = schedule_.get();
  view.revelations = sealed_ ? &revelations_ : nullptr;
  view.to_memory = &to_memory_;
  view.to_program = &to_program_;
}

std::optional<Bytes> LiveProgram::births(OpIndex op, Bytes unit) const {
  if (op == none || program_ == nullptr || deviated_) return std::nullopt;
  Bytes sum = 0;
  for (const Use& use : schedule_->uses(op)) {
    if (!use.write || to_memory_[use.tensor] != none) continue;
    sum += (program_->trace.tensors[use.tensor].bytes + unit - 1) / unit * unit;
  }
  return sum;
}

std::optional<NextOp> LiveProgram::next(std::uint8_t lane) const {
  if (tasks_[lane].empty()) return {};
  return NextOp{tasks_[lane].front().op, 0, false};
}

// In the order they were given, wherever they touch the same tensors.
std::optional<StallCause> LiveProgram::blocked_by(std::uint8_t lane, const OpLanes& lanes) const {
  const Task& task = tasks_[lane].front();
  for (const ActiveOp& op : lanes[1 - lane].active) {
    if (conflict(task.uses, op.uses)) return StallCause::cpu_optimizer;
  }
  for (const Task& earlier : tasks_[1 - lane]) {
    if (earlier.sequence < task.sequence && conflict(task.uses, earlier.uses)) return StallCause::cpu_optimizer;
  }
  return {};
}

void LiveProgram::issue(std::uint8_t lane, std::uint64_t iteration, ActiveOp& op) {
  Task& task = tasks_[lane].front();
  op.times.op = task.op;
  op.times.iteration = iteration;
  op.tag = task.tag;
  op.own_uses = std::move(task.uses);
  op.uses = op.own_uses;
  op.duration_ns = task.duration_ns;
  tasks_[lane].pop_front();
}

}  // namespace tencache
