#include "executor/torch_messages.h"

#include <array>
#include <bit>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "traces/file/trace_file.h"

// Two halves, since JSON knows no such integer.
template <>
struct nlohmann::adl_serializer<tencache::uint128> {
  static void to_json(json& document, const tencache::uint128& value) {
    document = {static_cast<std::uint64_t>(value >> 64), static_cast<std::uint64_t>(value)};
  }
  static void from_json(const json& document, tencache::uint128& value) {
    value = tencache::uint128{document.at(0).get<std::uint64_t>()} << 64 | document.at(1).get<std::uint64_t>();
  }
};

namespace tencache {

using nlohmann::json;

// A trace that is not there has no text: one without ops is none.
static void to_json(json& document, const Trace& trace) {
  document = trace.ops.empty() ? std::string() : format_trace(trace);
}
static void from_json(const json& document, Trace& trace) {
  const auto& text = document.get_ref<const std::string&>();
  trace = text.empty() ? Trace() : parse_trace(text, "tencache-torch");
}

// By its bits: JSON has no NaN.
static void to_json(json& document, const StepDone& step) {
  document = {step.step, std::bit_cast<std::uint32_t>(step.loss), step.duration_ns};
}
static void from_json(const json& document, StepDone& step) {
  step.step = document.at(0).get<std::uint64_t>();
  step.loss = std::bit_cast<float>(document.at(1).get<std::uint32_t>());
  step.duration_ns = document.at(2).get<Nanoseconds>();
}

static void to_json(json& document, const TimelinePart& part) {
  document = {part.timeline.spans.size(), part.timeline.occupancy.size(), part.program};
}
static void from_json(const json& document, TimelinePart& part) {
  part.timeline.spans.resize(document.at(0).get<std::size_t>());
  part.timeline.occupancy.resize(document.at(1).get<std::size_t>());
  document.at(2).get_to(part.program);
}

NLOHMANN_JSON_SERIALIZE_ENUM(TorchTask, {{TorchTask::record, "record"},
                                         {TorchTask::train, "train"},
                                         {TorchTask::train_plain, "train_plain"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TorchJob, task, config, program, steps, device, checkpoint, checkpoint_every, resume,
                                   machine, policy, settings, policy_libraries, faults, recording, timeline)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkCounters, bytes, busy_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AccessCounters, accesses, hits, access_bytes, hit_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TierCounters, occupancy_byte_ns, free_byte_ns, scattered_byte_ns, padding_byte_ns,
                                   placeless)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Counters, time_ns, compute_ns, gap_ns, stall_ns, cpu_compute_ns, communication_ns,
                                   cpu_wait_compute_ns, phase_ns, accesses_by_role, tensors, tensors_held, links, tiers,
                                   completions, refusals, fallback_evictions, evictions)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunResult, fits, misfit, misfit_op, misfit_bytes, iterations, steady, period, window,
                                   first_iteration_ns, iteration_ns, peak_bytes, allocators, simulated_events,
                                   policy_notes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingResult, resumed_steps, parameter_count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Program, trace, changes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PagedTraining, training, faults, run, recorded, program, peak_live_bytes,
                                   largest_op_bytes, largest_op, deviations, first_deviation)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Recording, trace, peak_live_bytes, largest_op_bytes, largest_op)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Remark, text)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointDone, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingDone, result, on_gpu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RecordingDone, result)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failure, message, exit_code, out_of_memory, op, bytes_missing)

namespace {

// Of TorchMessage, in its order.
constexpr std::array<const char*, std::variant_size_v<TorchMessage>> kinds = {
    "remark", "step", "checkpoint", "timeline", "trained", "recorded", "failure"};

// What must be alike where a job is written and where it is read.
json build() { return {TENCACHE_VERSION, sizeof(Span), sizeof(OccupancySample), sizeof(Counters)}; }

std::string line_of(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

template <typename Item>
void write_raw(std::FILE* stream, const std::vector<Item>& items) {
  static_assert(std::is_trivially_copyable_v<Item>);
  std::fwrite(items.data(), sizeof(Item), items.size(), stream);  // a failure stays with the stream
}

template <typename Item>
void read_raw(std::FILE* stream, std::vector<Item>& items) {
  if (std::fread(items.data(), sizeof(Item), items.size(), stream) != items.size()) {
    throw Error("tencache-torch ended in the middle of a message");
  }
}

template <std::size_t kind = 0>
TorchMessage message_of(const json& line) {
  if constexpr (kind == kinds.size()) {
    throw Error("tencache-torch sent a message of an unknown kind: " + line[0].dump());
  } else {
    if (line[0] != kinds[kind]) return message_of<kind + 1>(line);
    return line[1].get<std::variant_alternative_t<kind, TorchMessage>>();
  }
}

}  // namespace

void Failure::raise() const {
  if (out_of_memory) throw OutOfMemory(message, op, bytes_missing);
  throw Error(message, static_cast<ExitCode>(exit_code));
}

std::string write_job(const TorchJob& job) { return line_of({{"build", build()}, {"job", job}}); }

TorchJob read_job(const std::string& text) {
  const json document = json::parse(text, nullptr, false);
  if (!document.is_object() || !document.contains("build")) {
    throw Error(
        "tencache-torch is started by `tencache run train` and `tencache record`, which give it a job on stdin");
  }
  if (document["build"] != build()) {
    throw Error("this tencache-torch is of another build than the tencache that started it; install both from one");
  }
  return document.at("job").get<TorchJob>();
}

void write_message(std::FILE* stream, const TorchMessage& message) {
  const json content = std::visit([](const auto& kind) -> json { return kind; }, message);
  const std::string line = line_of(json::array({kinds[message.index()], content}));
  std::fwrite(line.data(), 1, line.size(), stream);
  if (const auto* part = std::get_if<TimelinePart>(&message)) {
    write_raw(stream, part->timeline.spans);
    write_raw(stream, part->timeline.occupancy);
  }
  if (std::fflush(stream) != 0 || std::ferror(stream) != 0) throw Error("nobody hears tencache-torch any more");
}

std::optional<TorchMessage> read_message(std::FILE* stream) {
  char* buffer = nullptr;
  std::size_t capacity = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(buffer, std::free);
  if (length <= 0) return std::nullopt;
  const json line = json::parse(buffer, buffer + length, nullptr, false);
  if (!line.is_array() || line.size() != 2) {
    throw Error("tencache-torch sent what is no message: " + std::string(buffer, static_cast<std::size_t>(length) - 1));
  }
  TorchMessage message = message_of(line);
  if (auto* part = std::get_if<TimelinePart>(&message)) {
    read_raw(stream, part->timeline.spans);
    read_raw(stream, part->timeline.occupancy);
  }
  return message;
}

}  // namespace tencache
