// A live run: policy and runtime, for python/tencache/_live.py, which pages the tensors of a PyTorch program on it; and
// the prediction that is made before.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "answers/prediction.h"
#include "answers/timeline/training_timeline.h"
#include "cli/training_report.h"
#include "configs/machine_yaml.h"
#include "core/check.h"
#include "core/error.h"
#include "core/forwarding_policy.h"
#include "executor/accelerator.h"
#include "executor/choose_device.h"
#include "executor/chunk_memory.h"
#include "executor/live/fault_handler.h"
#include "executor/live/live_runtime.h"
#include "executor/live/timeline_parts.h"
#include "executor/room.h"
#include "policies/registry.h"
#include "python/bindings.h"
#include "sim/rehearse.h"
#include "studies/faults.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"
#include "traces/transform/median_trace.h"

namespace tencache {
namespace {

// What a live run of a program and its prediction have in common.
struct LiveSetting {
  Scenario scenario;  // its trace is the program
  MachineSpec machine;
  std::string machine_sha256;
  std::shared_ptr<Accelerator> accelerator;  // null: ordinary memory stands in for the GPU's
  std::optional<FaultPlan> faults;           // of the run; a prediction has none

  LiveSetting(const std::string& program, const std::string& device, MachineChoice choice,
              const std::vector<std::string>& directories, const std::string& policy, const Settings& settings,
              std::uint64_t ranks, const std::string& fault_plan) {
    machine = load_machine(choice, &machine_sha256);
    for (Tier& tier : machine.tiers) {
      const bool asked_for = tier.kind == TierKind::cpu && !choice.cpu_memory.empty();
      if (tier.kind == TierKind::gpu || asked_for || tier.capacity >= unlimited) continue;
      tier.capacity = tier.capacity / ranks / tier.granularity * tier.granularity;
    }
    choose_directories(machine, directories);
    fit_to_disks(machine);
    accelerator = device == "cpu" ? nullptr : choose_device(device, machine).accelerator;
    machine = with_real_pages(machine, accelerator.get());
    scenario.trace.file = program;
    scenario.trace.rescale.no_rescale = true;  // recorded where it runs
    scenario.machine = std::move(choice);
    scenario.policy.name = policy;
    scenario.policy.settings = settings;
    scenario.hardware.device = device == "cpu" ? "host" : device;
    scenario.faults = fault_plan;
    faults = announce_faults(scenario, machine);
  }

  Workload workload(const Trace& trace) const {
    Workload workload;
    workload.scenario = scenario;
    workload.machine = machine;
    workload.machine_sha256 = machine_sha256;
    workload.trace = std::make_shared<const Trace>(trace);
    workload.trace_sha256 = sha256_hex(format_trace(trace));
    return workload;
  }
};

struct LivePrediction {
  Prediction prediction;
  Workload workload;
  Timeline timeline;
};

class PythonLiveRun {
 public:
  using Fence = const char* (*)();  // waits for the GPU: returns null, or why that failed

  // `fence`: null without a GPU. `timeline`: a file, or empty. `predicted`: what stands above it there; may be null.
  PythonLiveRun(LiveSetting setting, bool pace, Fence fence, const std::string& timeline,
                std::shared_ptr<const LivePrediction> predicted)
      : setting_(std::move(setting)),
        predicted_(std::move(predicted)),
        made_(make_policy(setting_.scenario.policy.name, setting_.scenario.policy.settings)) {
    LiveOptions options;
    options.engine.rehearse = rehearse;
    options.machine.pace = pace;
    options.machine.accelerator = setting_.accelerator;
    options.machine.raw_access = setting_.accelerator == nullptr;
    options.machine.faults = setting_.faults;
    TENCACHE_CHECK((fence != nullptr) == (setting_.accelerator != nullptr));
    if (fence != nullptr) {
      options.fence = [fence] {
        if (const char* const why = fence()) throw Error(why);
      };
    }
    if (!timeline.empty()) {
      parts_.attach(options.engine);
      timeline_.emplace(timeline, "measured: " + setting_.scenario.policy.name, setting_.machine);
      if (predicted_ != nullptr && !predicted_->timeline.spans.empty()) {
        timeline_->put({.name = "predicted: " + setting_.scenario.policy.name,
                        .timeline = &predicted_->timeline,
                        .machine = &predicted_->workload.machine,
                        .trace = &predicted_->prediction.outcome.program.trace});
      }
    }
    runtime_ = std::make_unique<LiveRuntime>(setting_.machine, *made_.policy, options);
    if (options.machine.raw_access) serve_faults(runtime_.get());
  }

  ~PythonLiveRun() {
    if (close() == 0) return;
    static_cast<void>(
        runtime_.release());  // storages that PyTorch still has keep their memory to the end of the process
    static_cast<void>(made_.policy.release());
  }

  // Ends the runtime, unless storages still have its memory: how much.
  Bytes close() {
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

  LiveRuntime& runtime() {
    if (runtime_ == nullptr) throw Error("this live run is over");
    return *runtime_;
  }

  void iteration_boundary() {
    if (setting_.accelerator == nullptr) keep_serving_faults();
    runtime().iteration_boundary();
    // The policy knows the schedule from here on.
    if (++boundaries_ == first_named_step + 1) window_begin_ = runtime_->figures().counters;
    if (timeline_) timeline_->add(parts_.take(), newly_recorded());
  }

  // The last step is over, and so is what is measured.
  void end() {
    runtime().finish_tasks();
    // What the last step lacks, where the program ends, is none.
    deviations_ = deviations();
    runtime().iteration_boundary();
    run_ = runtime_->result();
    if (boundaries_ > first_named_step) {
      run_.window = runtime_->figures().counters - window_begin_;
      run_.period = boundaries_ - first_named_step;
    }
    if (!timeline_) return;
    timeline_->add(parts_.rest(), newly_recorded());
    timeline_->end(runtime_->has_recorded() ? runtime_->program().trace : Trace());
    timeline_.reset();
  }

  py::dict figures() const {
    const LiveFigures live = runtime_->figures();
    const MachineSpec& spec = runtime_->spec();
    py::dict figures, links;
    for (std::size_t i = 0; i < spec.links.size(); ++i) links[spec.links[i].name.c_str()] = live.counters.links[i].bytes;
    figures["link_bytes"] = links;
    figures["peak_bytes"] = live.peak_live_bytes;
    figures["live_bytes"] = live.live_bytes;
    figures["gpu_memory_bytes"] = spec.tiers.front().capacity;
    figures["largest_op_bytes"] = live.largest_op_bytes;
    figures["largest_op"] = live.largest_op;
    figures["faults"] = live.touches;
    figures["evictions"] = live.counters.evictions;
    figures["deviations"] = deviations().first;
    figures["first_deviation"] = deviations().second;
    figures["ops"] = live.ops;
    figures["ops_on_schedule"] = live.ops_on_schedule;
    figures["stall_seconds"] = stall_seconds(live.counters);
    return figures;
  }

  std::shared_ptr<PythonTrace> recorded() const {
    return runtime_->has_recorded() ? std::make_shared<PythonTrace>(PythonTrace{runtime_->recorded()}) : nullptr;
  }

  // After `end`: the run's report, as JSON and as text.
  std::pair<std::string, std::string> answer(const std::vector<double>& step_seconds, double seconds) {
    PagedTraining paged;
    for (const double step : step_seconds) paged.training.step_ns.push_back(static_cast<Nanoseconds>(step * 1e9));
    paged.machine = setting_.machine;
    paged.run = run_;
    if (runtime().has_recorded()) {
      paged.recorded = runtime_->recorded();
      paged.program = runtime_->program();
    }
    const LiveFigures live = runtime_->figures();
    paged.peak_live_bytes = live.peak_live_bytes;
    paged.largest_op_bytes = live.largest_op_bytes;
    paged.largest_op = live.largest_op;
    std::tie(paged.deviations, paged.first_deviation) = deviations();
    Outcome outcome;
    outcome.policy = setting_.scenario.policy.name;
    outcome.options = made_.options;
    outcome.result = run_;
    outcome.program = paged.program;
    outcome.seconds = seconds;
    outcome.faults = live.faults;
    Workload workload = setting_.workload(paged.recorded);
    workload.scenario.iterations = step_seconds.size();
    const Prediction* const prediction = predicted_ != nullptr ? &predicted_->prediction : nullptr;
    return {paged_training_json(workload, outcome, paged, prediction).dump(),
            paged_training_text(workload, outcome, paged, prediction)};
  }

  const LiveSetting& setting() const { return setting_; }

 private:
  Trace newly_recorded() {
    return !std::exchange(named_, runtime_->has_recorded()) && named_ ? runtime_->program().trace : Trace();
  }

  std::pair<std::uint64_t, std::string> deviations() const {
    if (deviations_) return *deviations_;
    const LiveFigures live = runtime_->figures();
    return {live.deviations, live.first_deviation};
  }

  static double stall_seconds(const Counters& counters) {
    Nanoseconds sum = 0;
    for (const Nanoseconds stall : counters.stall_ns) sum += stall;
    return to_seconds(sum);
  }

  const LiveSetting setting_;
  const std::shared_ptr<const LivePrediction> predicted_;
  MadePolicy made_;
  std::optional<TrainingTimeline> timeline_;
  TimelineParts parts_;
  bool named_ = false;
  std::uint64_t boundaries_ = 0;
  Counters window_begin_;
  // After `end`.
  RunResult run_;
  std::optional<std::pair<std::uint64_t, std::string>> deviations_;
  std::unique_ptr<LiveRuntime> runtime_;
};

// The ops of a Python optimizer run where PyTorch runs them; those that were recorded as tasks run where the policy says.
class UpdatesStay final : public ForwardingPolicy {
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

std::shared_ptr<LivePrediction> predict_live(const LiveSetting& setting, const PythonTrace& trace,
                                             const std::string& file) {
  auto predicted = std::make_shared<LivePrediction>();
  predicted->workload = setting.workload(trace.trace);
  const MadePolicy made = make_policy(setting.scenario.policy.name, setting.scenario.policy.settings);
  UpdatesStay policy(*made.policy);
  predicted->prediction = predict(predicted->workload, file, &predicted->timeline, &policy);
  return predicted;
}

}  // namespace

void bind_live(py::module_& module) {
  using Others = py::call_guard<py::gil_scoped_release>;
  py::class_<LiveSetting>(module, "LiveSetting", "Program, machine and policy of a live run and of its prediction.")
      .def(py::init([](const std::string& program, const std::string& device, const std::string& machine,
                       const std::string& gpu_memory, const std::string& cpu_memory,
                       const std::vector<std::string>& limits, const std::vector<std::string>& directories,
                       const std::string& policy, const Settings& settings, std::uint64_t ranks,
                       const std::string& faults) {
             MachineChoice choice;
             choice.name = machine;
             choice.gpu_memory = gpu_memory;
             choice.cpu_memory = cpu_memory;
             choice.limits = limits;
             return LiveSetting(program, device, std::move(choice), directories, policy, settings, ranks, faults);
           }),
           py::kw_only(), py::arg("program"), py::arg("device"), py::arg("machine"), py::arg("gpu_memory"),
           py::arg("cpu_memory"), py::arg("limits"), py::arg("directories"), py::arg("policy"), py::arg("settings"),
           py::arg("ranks"), py::arg("faults"),
           "`device`: \"cpu\", or \"cuda\". `ranks`: how many processes of this computer share its CPU memory and "
           "disks. `faults`: a plan (docs/reliability.md) by which the run is disturbed, or empty.")
      .def_property_readonly(
          "machine", [](const LiveSetting& setting) { return write_machine_yaml(setting.machine); }, "As YAML.");

  py::class_<LivePrediction, std::shared_ptr<LivePrediction>>(module, "LivePrediction")
      .def(py::init(&predict_live), Others(), py::arg("setting"), py::arg("trace"), py::arg("file"),
           "Simulates, and writes the result to the file before anything is measured.")
      .def_property_readonly("fits", [](const LivePrediction& self) { return self.prediction.outcome.result.fits; })
      .def_property_readonly("misfit", [](const LivePrediction& self) { return self.prediction.outcome.result.misfit; })
      .def_property_readonly(
          "seconds", [](const LivePrediction& self) { return self.prediction.outcome.result.iteration_seconds(); },
          "Of a step.")
      .def_property_readonly("sha256", [](const LivePrediction& self) { return self.prediction.sha256; });

  py::class_<PythonLiveRun>(module, "LiveRun", "A live runtime and its policy. Threads may call everything.")
      .def(
          py::init([](LiveSetting setting, bool pace, std::uintptr_t fence, const std::string& timeline,
                      std::shared_ptr<LivePrediction> predicted) {
            const py::gil_scoped_release others_may_run;
            return std::make_unique<PythonLiveRun>(std::move(setting), pace,
                                                   reinterpret_cast<PythonLiveRun::Fence>(fence), timeline,
                                                   std::move(predicted));
          }),
          py::arg("setting"), py::kw_only(), py::arg("pace"), py::arg("fence"), py::arg("timeline"),
          py::arg("predicted"),
          "`fence`: the address of a C function that waits for the GPU and returns NULL, or why that failed; 0 without "
          "one.")
      .def_property_readonly(
          "abi", [](PythonLiveRun& run) { return reinterpret_cast<std::uintptr_t>(&run.runtime().abi()); },
          "The address of its table of functions (executor/live/live_abi.h).")
      .def("iteration_boundary", &PythonLiveRun::iteration_boundary, Others())
      .def("end", &PythonLiveRun::end, Others(), "The last step is over.")
      .def(
          "record_next", [](PythonLiveRun& run) { run.runtime().record_next(); }, Others())
      .def(
          "set_phase", [](PythonLiveRun& run, int phase) { run.runtime().set_phase(static_cast<Phase>(phase)); },
          Others(), py::arg("phase"))
      .def(
          "set_aside", [](PythonLiveRun& run, bool on) { run.runtime().set_aside(on); }, Others(), py::arg("on"))
      .def(
          "module_begin", [](PythonLiveRun& run, const std::string& name) { run.runtime().module_begin(name); },
          Others(), py::arg("name"))
      .def(
          "module_end", [](PythonLiveRun& run) { run.runtime().module_end(); }, Others())
      .def("close", &PythonLiveRun::close, Others(),
           "Ends it, unless tensors still have its memory: returns how many bytes.")
      .def("figures", &PythonLiveRun::figures)
      .def("recorded", &PythonLiveRun::recorded, "The second step, or the last recorded one; None until it is over.")
      .def("answer", &PythonLiveRun::answer, Others(), py::arg("step_seconds"), py::arg("seconds"),
           "After end(): the run's report, as JSON and as text.");

  module.def("parse_bytes", &parse_bytes, py::arg("text"), "\"8GiB\" as a number.");
  module.def("available_memory", &available_memory, "What this computer has free.");
  module.def(
      "median_trace",
      [](const std::vector<std::shared_ptr<PythonTrace>>& traces) {
        std::vector<Trace> recordings;
        for (const auto& one : traces) recordings.push_back(one->trace);
        return std::make_shared<PythonTrace>(PythonTrace{median_trace(recordings)});
      },
      "One trace of several recordings of the same step. Raises Error where they differ.");
}

}  // namespace tencache
