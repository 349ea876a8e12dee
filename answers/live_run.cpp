#include "answers/live_run.h"

#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "core/forwarding_policy.h"
#include "executor/live/fault_handler.h"
#include "sim/rehearse.h"

namespace tencache {
namespace {

class OpsStay final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    std::vector<Device> wanted = devices;
    asked_.place(trace, machine, wanted);
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].placeable) devices[op] = wanted[op];
    }
  }
};

}  // namespace

std::shared_ptr<LivePrediction> predict_live(const LiveSetting& setting, const Trace& recorded,
                                             const std::string& file) {
  auto predicted = std::make_shared<LivePrediction>();
  Trace program = recorded;
  program.choices.clear();  // it keeps what it keeps, whatever the policy would choose
  predicted->workload = setting.workload(program);
  const MadePolicy made = make_policy(setting.scenario.policy.name, setting.scenario.policy.settings);
  OpsStay policy(*made.policy);
  predicted->prediction = predict(predicted->workload, file, &predicted->timeline, &policy);
  return predicted;
}

LiveRun::LiveRun(LiveSetting setting, LiveRunOptions options)
    : setting_(std::move(setting)),
      predicted_(std::move(options.predicted)),
      made_(make_policy(setting_.scenario.policy.name, setting_.scenario.policy.settings)) {
  LiveOptions live;
  live.engine.rehearse = rehearse;
  live.sleep = options.sleep;
  live.machine.pace = options.pace;
  live.machine.accelerator = setting_.accelerator;
  live.machine.locked =
      locked_bytes(setting_.machine, predicted_ != nullptr ? &predicted_->prediction.outcome : nullptr);
  live.machine.faults = setting_.faults;
  if (const LiveRanks& ranks = setting_.ranks; ranks.count_here > 1 && !ranks.share.empty()) {
    const TierId cpu = setting_.machine.tier_of(Device::cpu);
    const Bytes capacity = cpu == no_tier ? 0 : setting_.machine.tiers[cpu].capacity;
    const Bytes cpu_memory = capacity < unlimited ? capacity : 0;
    live.machine.share = std::make_shared<HostShare>(ranks.share, ranks.rank_here, setting_.host, cpu_memory);
  }
  paced_ = options.pace;
  const bool raw_access = live.machine.raw_access = setting_.accelerator == nullptr;
  TENCACHE_CHECK((options.fence == nullptr) == raw_access);
  live.fence = std::move(options.fence);
  live.stream = std::move(options.stream);
  live.interpose = std::move(options.interpose);
  live.relocates = std::move(options.relocates);
  if (!options.timeline.empty()) {
    parts_.attach(live.engine);
    const std::string& policy = setting_.scenario.policy.name;
    timeline_.emplace(options.timeline, "measured: " + policy, setting_.machine);
    if (predicted_ != nullptr && !predicted_->timeline.spans.empty()) {
      timeline_->put({.name = "predicted: " + policy,
                      .timeline = &predicted_->timeline,
                      .machine = &predicted_->workload.machine,
                      .trace = &predicted_->prediction.outcome.program.trace});
    }
  }
  runtime_ = std::make_unique<LiveRuntime>(setting_.machine, *made_.policy, std::move(live));
  if (raw_access) serve_faults(runtime_.get());
}

LiveRun::~LiveRun() {
  if (close() == 0) return;
  static_cast<void>(runtime_.release());
  static_cast<void>(made_.policy.release());
}

Bytes LiveRun::close() {
  if (runtime_ == nullptr) return 0;
  try {
    runtime_->finish_tasks();  // and hears of the latest frees
  } catch (const std::exception&) {
    // An earlier call threw it.
  }
  const Bytes left = runtime_->figures().live_bytes;
  if (left == 0) {
    serve_faults(nullptr);
    runtime_.reset();
  }
  return left;
}

LiveRuntime& LiveRun::runtime() {
  if (runtime_ == nullptr) throw Error("this live run is over");
  return *runtime_;
}

bool LiveRun::iteration_boundary() {
  if (setting_.accelerator == nullptr) keep_serving_faults();
  runtime().iteration_boundary();
  // The policy knows the schedule from here on.
  if (++boundaries_ == first_named_step + 1) window_begin_ = runtime_->figures().counters;
  if (timeline_) timeline_->add(parts_.take(), newly_recorded());
  return runtime_->asleep();
}

void LiveRun::end() {
  runtime().finish_tasks();
  before_end_ = runtime_->figures();  // what the last step lacks, where the program ends, is no deviation
  runtime().iteration_boundary();
  result_ = runtime_->result();
  if (boundaries_ > first_named_step) {
    result_.window = runtime_->figures().counters - window_begin_;
    result_.period = boundaries_ - first_named_step;
  }
  if (!timeline_) return;
  timeline_->add(parts_.rest(), newly_recorded());
  timeline_->end(runtime_->has_recorded() ? runtime_->program().trace : Trace());
  timeline_.reset();
}

RuntimeFigures LiveRun::figures() {
  const LiveFigures now = runtime().figures();
  const LiveFigures& followed = before_end_ ? *before_end_ : now;
  const MachineSpec& spec = runtime_->spec();
  RuntimeFigures figures;
  for (std::size_t i = 0; i < spec.links.size(); ++i) {
    figures.link_bytes.emplace_back(spec.links[i].name, now.counters.links[i].bytes);
  }
  figures.peak_bytes = now.peak_live_bytes;
  figures.live_bytes = now.live_bytes;
  figures.gpu_memory_bytes = spec.tiers.front().capacity;
  figures.largest_op_bytes = now.largest_op_bytes;
  figures.largest_op = now.largest_op;
  figures.faults = now.touches;
  figures.exposed_tensors = now.exposed;
  figures.evictions = now.counters.evictions;
  figures.deviations = followed.deviations;
  figures.first_deviation = followed.first_deviation;
  figures.ops = now.ops;
  figures.ops_on_schedule = now.ops_on_schedule;
  figures.steps_asleep = now.steps_asleep;
  figures.stall_seconds = to_seconds(sum_of(now.counters.stall_ns));
  if (setting_.ranks.world > 1) figures.ranks.emplace(rank_figures());
  return figures;
}

RankFigures LiveRun::rank_figures() {
  const LiveRanks& ranks = setting_.ranks;
  RankFigures figures;
  figures.rank = ranks.rank;
  figures.world_size = ranks.world;
  figures.rank_of_host = ranks.rank_here;
  figures.ranks_of_host = ranks.count_here;
  figures.paced = paced_;
  if (const TierId cpu = runtime_->spec().tier_of(Device::cpu); cpu != no_tier) {
    figures.cpu_memory_bytes = figures.most_cpu_memory_bytes = runtime_->spec().tiers[cpu].capacity;
    figures.host_cpu_memory_bytes = figures.cpu_memory_bytes * ranks.count_here;
  }
  if (const HostShare* const share = runtime_->machine().share()) {
    figures.most_cpu_memory_bytes = share->most_held();
    figures.shared_links = share->shared_links();
  }
  return figures;
}

LiveAnswer LiveRun::answer(ProgramFigures figures, double seconds) {
  Outcome outcome;
  outcome.policy = setting_.scenario.policy.name;
  outcome.options = made_.options;
  outcome.result = result_;
  outcome.seconds = seconds;
  outcome.faults = runtime().figures().faults;
  if (runtime_->has_recorded()) outcome.program = runtime_->program();
  Workload workload = setting_.workload(runtime_->has_recorded() ? runtime_->recorded() : Trace());
  workload.scenario.iterations = figures.step_seconds.size();
  return live_answer(workload, outcome, std::move(figures), predicted_ != nullptr ? &predicted_->prediction : nullptr);
}

Trace LiveRun::newly_recorded() {
  return !std::exchange(named_, runtime_->has_recorded()) && named_ ? runtime_->program().trace : Trace();
}

}  // namespace tencache
