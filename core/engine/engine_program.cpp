// The engine as the owner of its program: from a trace to a result.
#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/engine/engine.h"

namespace tencache {

void Engine::load_program() {
  const Trace& trace = program_->trace;
  schedule_ = std::make_unique<Schedule>(trace);
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.rank != trace.ops.front().rank) {
      throw Error("op '" + trace.name(op) + "' belongs to rank " + std::to_string(op.rank) + ", others to rank " +
                  std::to_string(trace.ops.front().rank) + "; a program is one rank's (`replay` simulates several)");
    }
    const std::size_t lane = op.device == Device::gpu ? 0 : 1;
    if (lanes_[lane].tier == no_tier) {
      throw Error("op '" + trace.name(op) + "' runs on the CPU, but machine '" + spec_.name +
                  "' has no tier of kind cpu");
    }
    lanes_[lane].ops.push_back(i);
  }
  if (lanes_[0].ops.empty()) throw Error("the trace has no op on the GPU");
  memory_.reserve(trace.tensors);
  for (const Tensor& tensor : trace.tensors) memory_.add_tensor(tensor.bytes, tensor.role, tensor.persistent);
  const std::size_t tensors = trace.tensors.size();
  dead_.assign(tensors, 0);
  doomed_.assign(tensors, 0);
  born_.assign(tensors, 0);
  first_of_chunk_.assign(memory_.chunk_total(), none);
  uses_total_.resize(tensors);
  for (TensorId tensor = 0; tensor < tensors; ++tensor) {
    uses_total_[tensor] = static_cast<std::uint32_t>(schedule_->ops_of(tensor).size());
  }
  uses_left_ = uses_total_;
  std::vector<std::uint8_t> read(tensors, 0);
  for (const OpIndex op : lanes_[0].ops) {
    for (const Use& use : schedule_->uses(op)) read[use.tensor] |= use.read ? 1 : 0;
  }
  for (TensorId tensor = 0; tensor < tensors; ++tensor) {
    if (read[tensor] != 0 && governed_[static_cast<std::size_t>(memory_.role(tensor))]) read_on_gpu_.push_back(tensor);
  }
  compute_dependencies();
}

void Engine::place_initially(TensorId tensor) {
  const TierId wanted = layout_.initial[static_cast<std::size_t>(memory_.role(tensor))];
  const TierId first = layout_.unlimited_gpu ? TierId{0} : wanted != no_tier ? wanted : spec_.initial_tier;
  const ChunkId begin = memory_.first_chunk(tensor);
  for (ChunkId chunk = begin; chunk < begin + memory_.chunk_count(tensor); ++chunk) {
    TierId tier = first;
    while (tier < memory_.tier_count() && !take_copy(chunk, tier)) ++tier;
    if (tier == memory_.tier_count()) {
      throw OutOfMemory("out of memory before the first op: no tier has room for tensor '" +
                            program_->trace.name(program_->trace.tensors[tensor]) + "' (" +
                            format_bytes(memory_.bytes(tensor)) + "); persistent tensors start in tier '" +
                            spec_.tiers[first].name + "' and spill to slower ones",
                        "", memory_.bytes_of(chunk));
    }
    machine_.initialise(tensor, chunk, memory_.begin_of(chunk), memory_.bytes_of(chunk),
                        {tier, memory_.copy(chunk, tier).offset});
    memory_.commit(chunk, tier);
  }
  born_[tensor] = 1;
}

// Which ops of the other lane must be done before an op may be issued: the latest that conflicts, looking back over the
// iteration's end, since the program is cyclic.
void Engine::compute_dependencies() {
  for (Lane& lane : lanes_) lane.needs.assign(lane.ops.size(), no_need);
  if (lanes_[1].ops.empty()) return;
  const std::size_t tensors = program_->trace.tensors.size();
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
      for (const Use& use : schedule_->uses(op)) {
        need = std::max(need, last_write[other][use.tensor]);
        if (use.write) need = std::max(need, last_read[other][use.tensor]);
      }
      const std::int64_t others = static_cast<std::int64_t>(lanes_[other].ops.size());
      if (round == 1 && need != no_need) lanes_[mine].needs[at[mine]] = need - others;
      const std::int64_t done_count =
          round * static_cast<std::int64_t>(lanes_[mine].ops.size()) + static_cast<std::int64_t>(at[mine]) + 1;
      for (const Use& use : schedule_->uses(op)) {
        (use.write ? last_write : last_read)[mine][use.tensor] = done_count;
        if (use.read) last_read[mine][use.tensor] = done_count;
      }
      ++at[mine];
    }
  }
  if (layout_.blocking_step) lanes_[0].needs[0] = std::max<std::int64_t>(lanes_[0].needs[0], 0);
}

RunResult Engine::run(const RunLimits& limits) {
  try {
    start(limits);
    Completion completion;
    while (!finished_) {
      if (machine_.wait(completion)) {
        handle(completion);
      } else if (!stand_still()) {
        throw_out_of_memory();
      }
    }
  } catch (const OutOfMemory& error) {
    give_up(error);
  }
  return result();
}

void Engine::start(const RunLimits& limits) {
  TENCACHE_CHECK(program_ != nullptr && boundaries_.empty());
  limits_ = limits;
  uint128 iteration_ns = 0;
  for (const Op& op : program_->trace.ops) iteration_ns += static_cast<uint128>(op.duration_ns + op.gap_before_ns);
  if (iteration_ns * limits.max_iterations > static_cast<uint128>(std::numeric_limits<Nanoseconds>::max() / 4)) {
    throw Error("the program's " + std::to_string(limits.max_iterations) +
                " iterations would take more than 70 years; check the durations, or run fewer");
  }
  for (TensorId tensor = 0; tensor < memory_.tensor_count(); ++tensor) {
    machine_.tensor_created(tensor, memory_.bytes(tensor));
    if (memory_.persistent(tensor)) place_initially(tensor);
  }
  advance_time(machine_.now());
  if (options_.log != nullptr) options_.log->start_ns = now_;
  lanes_[0].idle_since_ns = lanes_[1].idle_since_ns = now_;
  note_boundary();
  emit({.kind = EventKind::profile_ready});
  emit({.kind = EventKind::iteration_begin});
  pump();
}

// The last iteration ends with its ops: transfers that none will need are not part of it.
void Engine::finish_if_done() {
  const auto all_done = [this](const Lane& lane) { return lane.done == limits_.max_iterations * lane.ops.size(); };
  if (!live_ && !finished_ && all_done(lanes_[0]) && all_done(lanes_[1])) cross_boundary();
}

void Engine::give_up(const OutOfMemory& reason) {
  finished_ = true;
  misfit_ = reason.what();
  misfit_op_ = reason.op();
  misfit_bytes_ = reason.bytes_missing();
}

void Engine::finish_period(std::size_t first_boundary) {
  recurs_ = first_boundary;
  finished_ = true;
}

RunResult Engine::result() const {
  RunResult r;
  r.fits = misfit_.empty();
  r.misfit = misfit_;
  r.misfit_op = misfit_op_;
  r.misfit_bytes = misfit_bytes_;
  r.iterations = boundary_ns_.empty() ? 0 : boundary_ns_.size() - 1;
  r.simulated_events = counters_.completions;
  for (TierId tier = 0; tier < memory_.tier_count(); ++tier) {
    r.peak_bytes[tier] = memory_.peak(tier);
    r.allocators[tier] = layout_.allocators[tier].kind;
  }
  policy_.notes(r.policy_notes);
  if (r.iterations == 0) return r;
  for (std::size_t i = 1; i < boundary_ns_.size(); ++i) {
    r.iteration_ns.push_back(boundary_ns_[i] - boundary_ns_[i - 1]);
  }
  r.first_iteration_ns = r.iteration_ns.front();
  r.steady = recurs_.has_value();
  const std::size_t second_half = boundaries_.size() / 2 - (r.iterations == 1 ? 1 : 0);
  const std::size_t begin = live_ ? 0 : recurs_.value_or(second_half);
  r.window = boundaries_.back() - boundaries_[begin];
  r.period = r.iterations - begin;
  return r;
}

}  // namespace tencache
