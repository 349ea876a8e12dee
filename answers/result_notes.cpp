// What a reader of a result must know besides its figures.
#include <fmt/format.h>

#include "answers/result.h"
#include "core/text.h"
#include "studies/deepspeed_memory.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

// None: no policy of DeepSpeed's, or nothing that runs.
std::optional<DeepSpeedMemory> deepspeed_memory_of(const Workload& workload, const Outcome& outcome) {
  if (!outcome.result.fits) return std::nullopt;
  return deepspeed_memory(outcome.policy, outcome.options, model_shape(*workload.trace));
}

}  // namespace

CpuWait cpu_wait(const RunResult& result) {
  const Nanoseconds all = result.window.stall_ns[StallCause::cpu_optimizer];
  const Nanoseconds computing = result.window.cpu_wait_compute_ns;
  return {.computing = per_iteration_seconds(result, computing),
          .transfers = per_iteration_seconds(result, all - computing)};
}

std::string cpu_wait_text(const RunResult& result) {
  const CpuWait wait = cpu_wait(result);
  if (wait.computing + wait.transfers <= 0) return "";
  return fmt::format("the CPU computes for {} of that and waits for transfers itself for {}",
                     format_seconds(wait.computing), format_seconds(wait.transfers));
}

std::optional<DeepSpeedCpuMemory> deepspeed_cpu_memory(const Workload& workload, const Outcome& outcome) {
  const auto memory = deepspeed_memory_of(workload, outcome);
  if (!memory) return std::nullopt;
  const MachineSpec& machine = workload.machine.of_rank(outcome.rank);
  const TierId cpu = machine.tier_of(Device::cpu);
  const Bytes capacity = cpu == no_tier ? 0 : machine.tiers[cpu].capacity;
  return DeepSpeedCpuMemory{.bytes = memory->all(false),
                            .bytes_with_pin_memory = memory->all(true),
                            .page_locked_bytes_with_pin_memory = memory->page_locked(true),
                            .fits = memory->all(false) <= capacity,
                            .fits_with_pin_memory = memory->all(true) <= capacity};
}

std::string deepspeed_note(const Workload& workload, const Outcome& outcome) {
  const auto memory = deepspeed_memory_of(workload, outcome);
  return memory ? deepspeed_memory_note(*memory, workload.machine.of_rank(outcome.rank)) : "";
}

namespace {

std::vector<std::string> notes_of_durations(const Workload& workload) {
  const std::string& recorded_on = workload.trace->header.hardware;
  const std::string& gpu = workload.machine.gpu;
  if (const auto& rescaling = workload.rescaling) {
    std::string note = fmt::format(
        "durations are modelled: rescaled from {} to {} in {}, {:.3f} of the GPU's time "
        "(docs/rescaling.md)",
        printable(rescaling->from), printable(rescaling->to), rescaling->precision, rescaling->factor);
    if (rescaling->guessed != 0) {
      note += fmt::format("; {} of {} GPU ops say no flops and were taken for arithmetic by their time",
                          rescaling->guessed, rescaling->ops);
    }
    return {std::move(note)};
  }
  if (recorded_on.empty() || gpu.empty() || recorded_on == gpu || recorded_on == "modelled: " + gpu) return {};
  if (!workload.scenario.trace.rescale.no_rescale) return {};
  return {fmt::format("the trace's durations are those of {}, not rescaled to the machine's {}", printable(recorded_on),
                      printable(gpu))};
}

}  // namespace

namespace {

// Fewer ranks than GPUs have their share of what the computer has, and no more.
std::string note_of_unused_gpus(const Workload& workload) {
  const MachineSpec& machine = workload.machine;
  const std::size_t gpus = machine.rank_count(), ranks = rank_count(*workload.trace);
  const TierId cpu = machine.tier_of(Device::cpu);
  if (ranks >= gpus) return "";
  std::string note = fmt::format("{} of the machine's {} GPUs {} used", ranks, gpus, ranks == 1 ? "is" : "are");
  if (cpu == no_tier || machine.tiers[cpu].capacity == unlimited) return note;
  Bytes all = 0;
  for (std::size_t rank = 0; rank < gpus; ++rank) all += machine.of_rank(rank).tiers[cpu].capacity;
  return note + fmt::format(", with {} of {} CPU memory; --gpus {} gives {} all of it",
                            format_bytes(machine.tiers[cpu].capacity * ranks), format_bytes(all), ranks,
                            ranks == 1 ? "it" : "them");
}

}  // namespace

std::vector<std::string> notes_of(const Workload& workload) {
  std::vector<std::string> notes = notes_of_durations(workload);
  if (std::string note = note_of_unused_gpus(workload); !note.empty()) notes.push_back(std::move(note));
  if (workload.gpu_time) notes.push_back(gpu_time_note(*workload.gpu_time));
  if (!workload.scenario.faults.empty()) {
    notes.push_back("disturbed on purpose, so that no figure here is the machine's: --faults " +
                    workload.scenario.faults);
  }
  return notes;
}

std::string gpu_time_note(const GpuTime& time) {
  std::string note = fmt::format("GPU times are modelled for the {}{}{} ± {:.0f} % (median error)", printable(time.gpu),
                                 time.stack.empty() ? "" : " (" + printable(time.stack) + ")",
                                 time.measured ? ":" : ", not measured on this GPU,", 100 * time.error);
  constexpr double least_shown = 0.005;
  // Where nothing was measured all of it is, and the sentence says so.
  if (time.measured && time.extrapolated_share >= least_shown) {
    note += fmt::format("; {:.0f} % of the GPU's time is of shapes beyond the measured ones",
                        100 * time.extrapolated_share);
  }
  return note;
}

std::optional<GpuTimeAnswer> gpu_time_answer(const Workload& workload) {
  if (!workload.gpu_time) return std::nullopt;
  const GpuTime& time = *workload.gpu_time;
  GpuTimeAnswer answer;
  answer.gpu = time.gpu;
  answer.stack = time.stack;
  answer.measured = time.measured;
  answer.error = time.error;
  answer.extrapolated_share = time.extrapolated_share;
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
    const KernelTime& of_kind = time.by_kernel[kind];
    if (of_kind.seconds <= 0) continue;
    answer.by_kernel.emplace_back(to_string(static_cast<KernelKind>(kind)),
                                  KernelTimeAnswer{of_kind.seconds, of_kind.error});
  }
  return answer;
}

std::optional<RescalingAnswer> rescaling_answer(const Workload& workload) {
  if (!workload.rescaling) return std::nullopt;
  const Rescaling& rescaling = *workload.rescaling;
  return RescalingAnswer{rescaling.from,   rescaling.to,  rescaling.precision,
                         rescaling.factor, rescaling.ops, rescaling.guessed};
}

}  // namespace tencache
