// A live run: policy and runtime, for python/tencache/_live.py, which pages the tensors of a PyTorch program on it; and
// the prediction that is made before.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "answers/live_run.h"
#include "configs/machine_yaml.h"
#include "core/error.h"
#include "core/reveal.h"
#include "executor/chunk_memory.h"
#include "python/bindings.h"
#include "python/test_device.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

using Fence = const char* (*)();  // waits for the GPU: returns null, or why that failed

std::function<void()> fence_of(std::uintptr_t address) {
  const auto fence = reinterpret_cast<Fence>(address);
  if (fence == nullptr) return {};
  return [fence] {
    if (const char* const why = fence()) throw Error(why);
  };
}

std::function<DeviceStream()> stream_of(std::uintptr_t address) {
  const auto stream = reinterpret_cast<DeviceStream (*)()>(address);
  if (stream == nullptr) return {};
  return stream;
}

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// `figures`: `live` of the answer, as JSON.
std::pair<std::string, std::string> answer_of(LiveRun& run, const std::string& figures, double seconds) {
  const Json given = Json::parse(figures);
  ProgramFigures live;
  read_answer(given, live, "live");
  if (given.size() != to_json_of(live).size()) throw Error("live: not the figures of answers/measured.h: " + figures);
  const LiveAnswer answer = run.answer(std::move(live), seconds);
  return {text_of(to_json_of(answer)), document_text(document_of(answer))};
}

Trace with_choices(const Trace& step, const std::vector<std::vector<std::vector<std::string>>>& choices) {
  const Experts experts(step);
  const std::span<const OpIndex> gates = experts.gates();
  std::vector<StepChoices> numbers;
  for (const auto& of_step : choices) {
    if (of_step.size() != gates.size()) continue;
    StepChoices& chosen = numbers.emplace_back(gates.size());
    for (std::size_t gate = 0; gate < gates.size(); ++gate) {
      for (const std::string& name : of_step[gate]) {
        if (const auto number = experts.find(gates[gate], name); number != none) chosen[gate].push_back(number);
      }
    }
  }
  return numbers.empty() ? step : repeat_step(step, numbers);
}

}  // namespace

[[gnu::weak]] void put_on_test_device(LiveSetting& /*setting*/, LiveRunOptions& /*options*/) {}

void bind_live(py::module_& module) {
  using Others = py::call_guard<py::gil_scoped_release>;
  py::class_<LiveSetting>(module, "LiveSetting", "Program, machine and policy of a live run and of its prediction.")
      .def(py::init([](const std::string& program, const std::string& device, const std::string& machine,
                       const std::string& gpu_memory, const std::string& cpu_memory,
                       const std::vector<std::string>& limits, const std::vector<std::string>& directories,
                       const std::string& policy, const Settings& settings, const std::array<std::uint64_t, 4>& ranks,
                       const std::string& share, const std::string& faults, const std::string& gpu_allocator,
                       const std::string& run_ahead) {
             Scenario scenario;
             scenario.trace.file = program;
             scenario.machine.name = machine;
             scenario.machine.gpu_memory = gpu_memory;
             scenario.machine.cpu_memory = cpu_memory;
             scenario.machine.limits = limits;
             scenario.machine.gpu_allocator = gpu_allocator;
             scenario.machine.run_ahead = run_ahead;
             scenario.policy = {policy, settings};
             scenario.hardware.device = device == "cpu" ? "host" : device;
             scenario.faults = faults;
             const auto& [rank, world, rank_here, count_here] = ranks;
             return LiveSetting(std::move(scenario), directories, {rank, world, rank_here, count_here, share});
           }),
           py::kw_only(), py::arg("program"), py::arg("device"), py::arg("machine"), py::arg("gpu_memory"),
           py::arg("cpu_memory"), py::arg("limits"), py::arg("directories"), py::arg("policy"), py::arg("settings"),
           py::arg("ranks"), py::arg("share"), py::arg("faults"), py::arg("gpu_allocator") = "",
           py::arg("run_ahead") = "",
           "`device`: \"cpu\", or \"cuda\". `ranks`: this process's number and that of all, and the same of those on "
           "this "
           "computer, which share its CPU memory and disks. `share`: the name under which they meet "
           "(executor/host_share.h); empty: each keeps to its part. `faults`: a plan (docs/reliability.md) by which "
           "the run is disturbed, or empty.")
      .def_property_readonly(
          "machine", [](const LiveSetting& setting) { return write_machine_yaml(setting.machine); }, "As YAML.");

  py::class_<LivePrediction, std::shared_ptr<LivePrediction>>(module, "LivePrediction")
      .def(py::init([](const LiveSetting& setting, const PythonTrace& trace, const std::string& file) {
             return predict_live(setting, trace.trace, file);
           }),
           Others(), py::arg("setting"), py::arg("trace"), py::arg("file"),
           "Simulates, and writes the result to the file before anything is measured; without a name it is a "
           "temporary one.")
      .def_property_readonly("fits", [](const LivePrediction& self) { return self.prediction.outcome.result.fits; })
      .def_property_readonly("misfit", [](const LivePrediction& self) { return self.prediction.outcome.result.misfit; })
      .def_property_readonly(
          "seconds",
          [](const LivePrediction& self) {
            return self.prediction.outcome.result.iteration_seconds() / repeated_steps(*self.workload.trace);
          },
          "Of a step.")
      .def_property_readonly("sha256", [](const LivePrediction& self) { return self.prediction.sha256; });

  py::class_<LiveRun>(module, "LiveRun", "A live runtime and its policy. Threads may call everything.")
      .def(py::init([](LiveSetting setting, bool pace, bool sleep, std::uintptr_t fence, const std::string& timeline,
                       std::shared_ptr<LivePrediction> predicted, std::uintptr_t stream) {
             const py::gil_scoped_release others_may_run;
             LiveRunOptions options{.pace = pace,
                                    .sleep = sleep,
                                    .fence = fence_of(fence),
                                    .stream = stream_of(stream),
                                    .timeline = timeline,
                                    .predicted = std::move(predicted)};
             put_on_test_device(setting, options);
             return std::make_unique<LiveRun>(std::move(setting), std::move(options));
           }),
           py::arg("setting"), py::kw_only(), py::arg("pace"), py::arg("sleep"), py::arg("fence"), py::arg("timeline"),
           py::arg("predicted"), py::arg("stream") = 0,
           "`sleep`: the program may sleep (executor/live/live_sleep.h). `fence`: the address of a C function that "
           "waits for the GPU and returns NULL, or why that failed, and `stream` of one that returns the calling "
           "thread's "
           "stream there; 0 without one.")
      .def_property_readonly(
          "abi", [](LiveRun& run) { return reinterpret_cast<std::uintptr_t>(&run.runtime().abi()); },
          "The address of its table of functions (executor/live/live_abi.h).")
      .def("iteration_boundary", &LiveRun::iteration_boundary, Others(), "Returns whether the program sleeps now.")
      .def(
          "stay_awake", [](LiveRun& run) { run.runtime().stay_awake(); }, Others(), "From now on.")
      .def("end", &LiveRun::end, Others(), "The last step is over.")
      .def(
          "record_next", [](LiveRun& run) { run.runtime().record_next(); }, Others())
      .def(
          "set_phase", [](LiveRun& run, int phase) { run.runtime().set_phase(static_cast<Phase>(phase)); }, Others(),
          py::arg("phase"))
      .def(
          "set_aside", [](LiveRun& run, bool on) { run.runtime().set_aside(on); }, Others(), py::arg("on"))
      .def(
          "module_begin", [](LiveRun& run, const std::string& name) { run.runtime().module_begin(name); }, Others(),
          py::arg("name"))
      .def(
          "module_end", [](LiveRun& run) { run.runtime().module_end(); }, Others())
      .def(
          "chose",
          [](LiveRun& run, const std::string& block, const std::vector<std::string>& experts) {
            run.runtime().chose(block, experts);
          },
          Others(), py::arg("block"), py::arg("experts"),
          "The op before has chosen these experts (\"experts.3\"), in the order in which they will run, of the block.")
      .def("close", &LiveRun::close, Others(), "Ends it, unless tensors still have its memory: returns how many bytes.")
      .def(
          "figures", [](LiveRun& run) { return text_of(to_json_of(run.figures())); }, Others(),
          "What the runtime knows so far, as JSON.")
      .def(
          "recorded",
          [](LiveRun& run) {
            const LiveRuntime& runtime = run.runtime();
            return runtime.has_recorded() ? std::make_shared<PythonTrace>(PythonTrace{runtime.recorded()}) : nullptr;
          },
          "The second step, or the last recorded one; None until it is over.")
      .def("answer", &answer_of, Others(), py::arg("figures"), py::arg("seconds"),
           "After end(): the run (schemas/live.schema.json), as JSON and as text. `figures`: its `live`, as JSON.");

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
  module.def(
      "repeat_step",
      [](const PythonTrace& step, const std::vector<std::vector<std::vector<std::string>>>& choices) {
        return std::make_shared<PythonTrace>(PythonTrace{with_choices(step.trace, choices)});
      },
      Others(), py::arg("step"), py::arg("choices"),
      "A step with gates, once for each of the choices, with the experts that were chosen: by gate, their names "
      "(\"experts.3\") in the order in which they ran. Those of other gates than the step has are left out.");
}

}  // namespace tencache
