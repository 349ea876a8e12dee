// Steps of a trace through the real executor (LiveRuntime, HostMachine, executor/cuda) on the model GPU: a driver of
// rules that keeps time as a file of figures says (rules/model_gpu.h). Prints one object of JSON. bench/model_gpu.py
// runs it.
//
//   model_gpu --figures FILE TRACE [--policy P] [--memory BYTES|SHARE%|all] [--host fixed[:US]|measured] [--steps N]
//             [--gpu-allocator exact|movable] [--run-ahead OPS] [--window US] [--locked BYTES]
//             [--bytes|--predict|--load]
//   model_gpu --figures FILE --write-machine FILE [--gpu-allocator A]      the machine for a prediction
//
// --memory: of the GPU tier; a share is one of the trace's peak in pages of 2 MiB, all is the whole device.
// --window: RunAhead::time_ns, in microseconds.
// --locked: of CPU memory, page-locked before the first step (HostMachineOptions::locked).
// --bytes: nothing runs, it only prints what --memory is.
// --predict: the program is simulated on a machine of the same figures, where it runs ahead with what a recording of it
//   states of its thread. As in a live program, ops run where the program runs them: policies that would do the
//   optimizer's on the CPU do not.
// --load: no step; what is there before the first one comes from pageable memory (TracePlayer::load).
// --host: what the runtime's code costs an op, in microseconds, or the processor time that it takes here.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>

#include "configs/machine_overrides.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "policies/registry.h"
#include "sim/rehearse.h"
#include "tests/live/predicted_step.h"
#include "tests/live/rules/rules_driver.h"
#include "tests/live/rules/turns.h"
#include "tests/live/trace_player.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"

namespace tencache::rules {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t steady_steps = 3;  // the last ones; of them the middle one is reported

// ---- Times ----------------------------------------------------------------------------------------------------------

using Intervals = std::vector<Interval>;  // in ascending order, without overlap

Intervals joined(Intervals all) {
  std::ranges::sort(all, {}, &Interval::begin_ns);
  Intervals result;
  for (const Interval& next : all) {
    if (next.begin_ns >= next.end_ns) continue;
    if (!result.empty() && next.begin_ns <= result.back().end_ns) {
      result.back().end_ns = std::max(result.back().end_ns, next.end_ns);
    } else {
      result.push_back(next);
    }
  }
  return result;
}

Nanoseconds length(const Intervals& all) {
  Nanoseconds sum = 0;
  for (const Interval& one : all) sum += one.end_ns - one.begin_ns;
  return sum;
}

Intervals common(const Intervals& left, const Intervals& right) {
  Intervals result;
  for (auto one = left.begin(), other = right.begin(); one != left.end() && other != right.end();) {
    const Interval both{std::max(one->begin_ns, other->begin_ns), std::min(one->end_ns, other->end_ns)};
    if (both.begin_ns < both.end_ns) result.push_back(both);
    one->end_ns < other->end_ns ? ++one : ++other;
  }
  return result;
}

Intervals without(const Intervals& all, const Intervals& taken) {
  Intervals result;
  auto next = taken.begin();
  for (Interval left : all) {
    while (next != taken.end() && next->end_ns <= left.begin_ns) ++next;
    for (auto other = next; other != taken.end() && other->begin_ns < left.end_ns; ++other) {
      if (other->begin_ns > left.begin_ns) result.push_back({left.begin_ns, other->begin_ns});
      left.begin_ns = std::max(left.begin_ns, std::min(other->end_ns, left.end_ns));
    }
    if (left.begin_ns < left.end_ns) result.push_back(left);
  }
  return result;
}

// All that happened in a run.
class Record final : public RulesWatch {
 public:
  struct Call {
    const char* function;
    Line line;
    Interval when;
  };

  void job_over(const DeviceJob& job) override {
    if (job.kind == JobKind::copy) {
      moved.emplace_back(job.begin_ns, job.bytes() / 2);
      return;
    }
    const bool copy = ModelGpu::is_copy(job.kind);
    (copy ? copies : kernels).push_back({job.begin_ns, job.end_ns});
    if (copy) copied.emplace_back(job.begin_ns, job.bytes() / 2);
  }
  void returned(const char* function, Line line, Nanoseconds begin_ns, Nanoseconds end_ns) override {
    calls.push_back({function, line, {begin_ns, end_ns}});
  }
  static bool maps(const Call& call) { return std::strncmp(call.function, "cuMem", 5) == 0 && !copies_memory(call); }
  static bool copies_memory(const Call& call) { return std::strncmp(call.function, "cuMemcpy", 8) == 0; }

  Intervals kernels, copies;
  std::vector<std::pair<Nanoseconds, Bytes>> copied, moved;  // moved: within the device
  std::vector<Call> calls;
};

// Where the time of the program's thread goes in a step. What it waits for is asked in this order: other threads map or
// unmap; a copy is under way; neither, so threads wake up and hand over.
Json breakdown(const PlayedStep& step, const Record& record, Line program) {
  const Intervals whole = {{step.begin_ns, step.end_ns}};
  Intervals waits_for_device, own_calls, own_maps, maps_of_others;
  std::map<std::string, std::uint64_t> counts;
  for (const Record::Call& call : record.calls) {
    if (call.when.begin_ns < step.begin_ns || call.when.begin_ns >= step.end_ns) continue;
    if (Record::maps(call) || Record::copies_memory(call)) counts[call.function]++;
    if (call.line != program) {
      if (Record::maps(call)) maps_of_others.push_back(call.when);
      continue;
    }
    own_calls.push_back(call.when);
    if (Record::maps(call)) own_maps.push_back(call.when);
    if (std::strcmp(call.function, "cuStreamSynchronize") == 0) waits_for_device.push_back(call.when);
  }
  const Intervals kernels = common(joined(record.kernels), whole), copies = common(joined(record.copies), whole);
  const Intervals waits = without(joined(step.in_runtime), joined(own_calls));
  const Intervals waits_maps = common(waits, joined(maps_of_others));
  const Intervals other_waits = without(waits, waits_maps);
  const Intervals waits_copies = common(other_waits, copies);
  const Intervals device = joined(waits_for_device);
  const Nanoseconds computes = length(common(device, kernels));
  const Nanoseconds step_ns = step.end_ns - step.begin_ns;
  const Nanoseconds maps_ns = length(joined(own_maps)), waits_ns = length(waits);
  const auto sum_of = [&](const std::vector<std::pair<Nanoseconds, Bytes>>& all) {
    std::pair<std::uint64_t, Bytes> sum;
    for (const auto& [begin_ns, size] : all) {
      if (begin_ns < step.begin_ns || begin_ns >= step.end_ns) continue;
      sum.first++;
      sum.second += size;
    }
    return sum;
  };
  const auto [count, bytes] = sum_of(record.copied);
  const auto [moves, moved_bytes] = sum_of(record.moved);
  const Nanoseconds copies_ns = length(copies);
  return {
      {"step_ns", step_ns},
      {"host_ns", step.host_ns},
      {"runtime_cpu_ns", step.runtime_cpu_ns == 0 ? Json(nullptr) : Json(step.runtime_cpu_ns)},
      {"kernels_ns", computes},
      {"launch_and_wake_ns", length(device) - computes},
      {"maps_ns", maps_ns},
      {"waits_for_maps_of_others_ns", length(waits_maps)},
      {"waits_for_copies_ns", length(waits_copies)},
      {"waits_for_threads_ns", length(other_waits) - length(waits_copies)},
      {"rest_ns", step_ns - step.host_ns - length(device) - maps_ns - waits_ns},
      {"busy", static_cast<double>(length(kernels)) / static_cast<double>(step_ns)},
      {"copies_ns", copies_ns},
      {"copy_hidden",
       copies_ns == 0 ? Json(nullptr)
                      : Json(static_cast<double>(length(common(copies, kernels))) / static_cast<double>(copies_ns))},
      {"copies", count},
      {"copied_bytes", bytes},
      {"moves", moves},
      {"moved_bytes", moved_bytes},
      {"calls", counts},
  };
}

// ---- The run --------------------------------------------------------------------------------------------------------

constexpr Bytes page_bytes_of_gpu = 2 * MiB;

struct Options {
  std::string trace, figures, write_machine, policy = "foresight", memory = "all", host = "fixed", run_ahead = "0";
  std::string allocator = "exact";  // of the GPU's memory
  std::uint64_t steps = 6;
  Bytes locked = 0;
  std::uint64_t window_us = 0;  // RunAhead::time_ns; 0: its default
  bool bytes = false, predict = false, load = false;
};

Bytes memory_of(const std::string& text, const Trace& trace, Bytes device) {
  if (text == "all") return device;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (number > 0 && unit == "%") {
    const auto peak = static_cast<double>(TracePlayer::peak_bytes(trace, page_bytes_of_gpu));
    return static_cast<Bytes>(peak * number / 100) / page_bytes_of_gpu * page_bytes_of_gpu;
  }
  if (number > 0 && unit.empty()) return static_cast<Bytes>(number) / page_bytes_of_gpu * page_bytes_of_gpu;
  throw Error("--memory " + text + " is no size; give a share of the peak such as 60%, bytes, or all");
}

struct Host {
  bool measured = false;
  Nanoseconds op_ns = 0;

  std::string text() const {
    char fixed[32];
    std::snprintf(fixed, sizeof fixed, "fixed:%g", static_cast<double>(op_ns) / 1e3);
    return measured ? "measured" : fixed;
  }
};

Host parse_host(const std::string& text, const ModelGpu& model) {
  if (text == "measured") return {.measured = true};
  if (text == "fixed") return {.op_ns = model.op_ns};
  char* end = nullptr;
  const double us = text.starts_with("fixed:") ? std::strtod(text.c_str() + 6, &end) : -1;
  if (us < 0 || *end != 0) throw Error("--host " + text + ": give measured, or fixed:US, microseconds an op");
  return {.op_ns = static_cast<Nanoseconds>(1e3 * us)};
}

// The same figures for policies and predictions. CPU memory is more than programs here need.
MachineSpec machine_of(const ModelGpu& model, const std::string& allocator) {
  const auto rate = [](double bytes_per_ns) { return static_cast<BytesPerSecond>(1e9 * bytes_per_ns); };
  MachineSpec machine;
  machine.name = "model-gpu";
  const auto add_tier = [&](const char* name, TierKind kind, Bytes capacity, Bytes granularity) {
    Tier& tier = machine.tiers.emplace_back();
    tier.name = name;
    tier.kind = kind;
    tier.capacity = capacity;
    tier.granularity = granularity;
  };
  add_tier("gpu", TierKind::gpu, model.memory, page_bytes_of_gpu);
  add_tier("cpu", TierKind::cpu, 512 * GiB, 4 * KiB);
  machine.resources = {{.name = "hbm", .bandwidth = rate(model.hbm_bytes_per_ns)}};
  machine.lane_uses[0] = {0};
  const auto add_link = [&](const char* name, TierId from, TierId to) {
    Link& link = machine.links.emplace_back();
    link.name = name;
    link.from = from;
    link.to = to;
    link.bandwidth = rate(model.copy_bytes_per_ns);
    link.latency_ns = model.copy_latency_ns;
    link.uses = {0};
  };
  add_link("h2d", 1, 0);
  add_link("d2h", 0, 1);
  machine.initial_tier = 1;
  override_allocator(machine, "--gpu-allocator", allocator);
  if (machine.tiers[0].allocator == AllocatorKind::movable) {
    machine.tiers[0].granularity = movable_unit;
    machine.tiers[0].bandwidth = rate(model.hbm_bytes_per_ns);
  }
  return machine;
}

// PyTorch alone, in memory for everything.
Nanoseconds plain_ns(const Trace& trace, const ModelGpu& model) {
  Turns turns(HostTime{.wake_ns = model.wake_ns});
  RulesDriver driver({.memory = model.memory, .host = &turns, .model = &model, .content = false, .call_stacks = false});
  const CudaDevice device(driver.table(), 0);
  const std::vector<PlayedStep> steps = TracePlayer(trace, model, driver, turns, 0).play_plain(2);
  return steps.back().end_ns - steps.back().begin_ns;
}

// A program on the model GPU.
struct Program {
  Program(const Trace& trace, const ModelGpu& model, const MachineSpec& machine, Policy& policy, const Host& host,
          Bytes locked, RulesWatch* watch)
      : turns(HostTime{.wake_ns = model.wake_ns, .measured = host.measured}),
        driver({.memory = model.memory + 256 * MiB,  // what is free is a little more than the tier
                .host = &turns,
                .model = &model,
                .watch = watch,
                .content = false,
                .call_stacks = false}),
        player(trace, model, driver, turns, host.op_ns) {
    LiveOptions live;
    live.engine.rehearse = rehearse;
    live.machine.pace = false;
    live.machine.populate = false;
    live.machine.accelerator = std::make_shared<CudaDevice>(driver.table(), 0);
    live.machine.locked = locked;
    live.fence = [this] { player.fence(); };
    live.stream = [] { return nullptr; };
    live.loader.threads = 8;
    live.loader.copy = [&](std::byte*, const std::byte*, Bytes bytes) {
      turns.spend(std::llround(static_cast<double>(bytes) / model.memcpy_bytes_per_ns));
    };
    runtime.emplace(machine, policy, live);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void end() {
    runtime.reset();
    if (!driver.leftovers().empty()) throw Error("the driver of rules: " + driver.leftovers());
  }

  Turns turns;
  RulesDriver driver;
  TracePlayer player;
  std::optional<LiveRuntime> runtime;
};

// With what a recording states of the program's thread, made with memory for everything as users make theirs.
void record_host(Trace& trace, const ModelGpu& model, MachineSpec machine, const Host& host) {
  machine.tiers[0].capacity = model.memory;
  const MadePolicy made = make_policy("lru");
  Program program(trace, model, machine, *made.policy, host, 0, nullptr);
  program.player.play(*program.runtime, 3);
  const Trace recorded = program.runtime->recorded();
  if (recorded.ops.size() != trace.ops.size()) throw Error("the recorded step has other ops");
  for (OpIndex op = 0; op < trace.ops.size(); ++op) trace.ops[op].issue_ns = recorded.ops[op].issue_ns;
  program.end();
}

Json predict(Trace trace, const ModelGpu& model, const MachineSpec& machine, Policy& policy, const Host& host) {
  if (machine.run_ahead.ops > 0) record_host(trace, model, machine, host);
  const PredictedStep step = predict_step(trace, machine, policy);
  return {{"fits", step.fits}, {"predicted_ns", step.step_ns}, {"cpu_memory_bytes", step.peak_bytes[1]}};
}

Json load(TracePlayer& player, LiveRuntime& runtime, const ModelGpu& model) {
  const TracePlayer::Loaded loaded = player.load(runtime);
  const double link_ns = static_cast<double>(loaded.bytes) / model.copy_bytes_per_ns;
  return {{"load_ns", loaded.took_ns},           {"bytes", loaded.bytes},
          {"stored_bytes", loaded.stored_bytes}, {"evictions", loaded.evictions},
          {"link_ns", std::llround(link_ns)},    {"ratio", static_cast<double>(loaded.took_ns) / link_ns}};
}

Json run(const Options& options, const ModelGpu& model) {
  const Trace trace = read_trace(options.trace);
  MachineSpec machine = machine_of(model, options.allocator);
  const Host host = parse_host(options.host, model);
  machine.tiers[0].capacity = memory_of(options.memory, trace, model.memory);
  override_run_ahead(machine, "--run-ahead", options.run_ahead);
  if (options.window_us > 0) machine.run_ahead.time_ns = 1000 * static_cast<Nanoseconds>(options.window_us);
  if (options.bytes) return {{"memory_bytes", machine.tiers[0].capacity}};
  const MadePolicy made = make_policy(options.policy);
  if (options.predict) return predict(trace, model, machine, *made.policy, host);
  const Nanoseconds plain = plain_ns(trace, model);

  Record record;
  Program program(trace, model, machine, *made.policy, host, options.locked, &record);
  LiveRuntime& runtime = *program.runtime;
  if (options.load) {
    Json result = load(program.player, runtime, model);
    program.end();
    return result;
  }
  const std::vector<PlayedStep> steps = program.player.play(runtime, options.steps);
  std::vector<PlayedStep> steady(steps.end() - static_cast<std::ptrdiff_t>(steady_steps), steps.end());
  std::ranges::sort(steady, {}, [](const PlayedStep& step) { return step.end_ns - step.begin_ns; });
  const LiveFigures figures = runtime.figures();
  Json result = {{"trace", options.trace},
                 {"policy", options.policy},
                 {"gpu_allocator", options.allocator},
                 {"run_ahead", machine.run_ahead.ops},
                 {"host", host.text()},
                 {"recorded_ns", std::accumulate(trace.ops.begin(), trace.ops.end(), Nanoseconds{0},
                                                 [](Nanoseconds sum, const Op& op) { return sum + op.occupied_ns(); })},
                 {"memory_bytes", machine.tiers[0].capacity},
                 {"peak_bytes", figures.peak_live_bytes},
                 {"peak_without_padding_bytes", TracePlayer::peak_bytes(trace, 1)},
                 {"ops", trace.ops.size()},
                 {"plain_ns", plain},
                 {"step_ns", steady[steady_steps / 2].end_ns - steady[steady_steps / 2].begin_ns},
                 {"steps_ns", Json::array()},
                 {"deviations", figures.deviations},
                 {"first_deviation", figures.first_deviation},
                 {"evictions", figures.counters.evictions}};
  for (const PlayedStep& step : steps) result["steps_ns"].push_back(step.end_ns - step.begin_ns);
  result["steady"] = breakdown(steady[steady_steps / 2], record, program.turns.line());
  program.end();
  return result;
}

Options parse(int count, char** words) {
  Options options;
  const std::pair<const char*, std::string*> texts[] = {{"--write-machine", &options.write_machine},
                                                        {"--figures", &options.figures},
                                                        {"--policy", &options.policy},
                                                        {"--memory", &options.memory},
                                                        {"--gpu-allocator", &options.allocator},
                                                        {"--run-ahead", &options.run_ahead},
                                                        {"--host", &options.host}};
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto* found = std::ranges::find_if(texts, [&](const auto& text) { return word == text.first; });
    if (found != std::end(texts) && i + 1 < count) {
      *found->second = words[++i];
    } else if (word == "--bytes") {
      options.bytes = true;
    } else if (word == "--predict") {
      options.predict = true;
    } else if (word == "--load") {
      options.load = true;
    } else if (word == "--locked" && i + 1 < count) {
      options.locked = std::strtoull(words[++i], nullptr, 10);
    } else if (word == "--window" && i + 1 < count) {
      options.window_us = std::strtoull(words[++i], nullptr, 10);
    } else if (word == "--steps" && i + 1 < count) {
      options.steps = std::strtoull(words[++i], nullptr, 10);
    } else if (options.trace.empty() && !word.starts_with("-")) {
      options.trace = word;
    } else {
      throw Error("unknown argument '" + word + "'; see tests/live/model_gpu.cpp");
    }
  }
  if (options.figures.empty() || options.trace.empty() == options.write_machine.empty() || options.steps < 5) {
    throw Error(
        "usage: model_gpu --figures FILE TRACE [--policy P] [--memory M] [--host H] [--steps N], N at least 5: "
        "one warms up, one is recorded, and of the last 3 the middle one is reported; or --write-machine FILE");
  }
  return options;
}

}  // namespace
}  // namespace tencache::rules

int main(int count, char** words) {
  try {
    const tencache::rules::Options options = tencache::rules::parse(count, words);
    const tencache::rules::ModelGpu model = tencache::rules::load_model_gpu(options.figures);
    if (!options.write_machine.empty()) {
      tencache::AtomicFile file(options.write_machine);
      file.write(tencache::write_machine_yaml(tencache::rules::machine_of(model, options.allocator)));
      file.commit();
      return 0;
    }
    std::printf("%s\n", tencache::rules::run(options, model).dump(2).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_gpu: %s\n", error.what());
    return 2;
  }
}
