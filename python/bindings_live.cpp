// A live run: policy and runtime, for python/tencache/_live.py, which pages the tensors of a PyTorch program on it.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "configs/machine_yaml.h"
#include "core/error.h"
#include "executor/live/fault_handler.h"
#include "executor/live/live_runtime.h"
#include "executor/room.h"
#include "policies/registry.h"
#include "python/bindings.h"
#include "studies/workload.h"

namespace tencache {
namespace {

class PythonLiveRun {
 public:
  PythonLiveRun(MachineChoice machine, const std::vector<std::string>& directories, const std::string& policy,
                const Settings& settings, bool pace)
      : made_(make_policy(policy, settings)) {
    MachineSpec spec = load_machine(machine);
    choose_directories(spec, directories);
    LiveOptions options;
    options.machine.pace = pace;
    options.machine.raw_access = true;
    runtime_ = std::make_unique<LiveRuntime>(with_real_pages(spec), *made_.policy, options);
    serve_faults(runtime_.get());
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
    const Bytes left = runtime_->live_bytes();
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

  py::dict figures() const {
    const Counters counters = runtime_->counters();
    const MachineSpec& spec = runtime_->spec();
    py::dict figures, links;
    for (std::size_t i = 0; i < spec.links.size(); ++i) links[spec.links[i].name.c_str()] = counters.links[i].bytes;
    figures["link_bytes"] = links;
    figures["peak_bytes"] = runtime_->peak_live_bytes();
    figures["live_bytes"] = runtime_->live_bytes();
    figures["gpu_memory_bytes"] = spec.tiers.front().capacity;
    figures["largest_op_bytes"] = runtime_->largest_op_bytes();
    figures["largest_op"] = runtime_->largest_op();
    figures["faults"] = runtime_->touches();
    figures["evictions"] = counters.evictions;
    figures["deviations"] = runtime_->deviations();
    figures["first_deviation"] = runtime_->first_deviation();
    figures["stall_seconds"] = stall_seconds(counters);
    return figures;
  }

  std::shared_ptr<PythonTrace> recorded() const {
    return runtime_->has_recorded() ? std::make_shared<PythonTrace>(PythonTrace{runtime_->recorded()}) : nullptr;
  }

 private:
  static double stall_seconds(const Counters& counters) {
    Nanoseconds sum = 0;
    for (const Nanoseconds stall : counters.stall_ns) sum += stall;
    return to_seconds(sum);
  }

  MadePolicy made_;
  std::unique_ptr<LiveRuntime> runtime_;
};

}  // namespace

void bind_live(py::module_& module) {
  using Others = py::call_guard<py::gil_scoped_release>;
  py::class_<PythonLiveRun>(module, "LiveRun", "A live runtime and its policy. Threads may call everything.")
      .def(py::init([](const std::string& machine, const std::string& gpu_memory, const std::string& cpu_memory,
                       const std::vector<std::string>& limits, const std::vector<std::string>& directories,
                       const std::string& policy, const Settings& settings, bool pace) {
             const py::gil_scoped_release others_may_run;
             MachineChoice choice;
             choice.name = machine;
             choice.gpu_memory = gpu_memory;
             choice.cpu_memory = cpu_memory;
             choice.limits = limits;
             return std::make_unique<PythonLiveRun>(std::move(choice), directories, policy, settings, pace);
           }),
           py::kw_only(), py::arg("machine"), py::arg("gpu_memory"), py::arg("cpu_memory"), py::arg("limits"),
           py::arg("directories"), py::arg("policy"), py::arg("settings"), py::arg("pace"))
      .def_property_readonly(
          "abi", [](PythonLiveRun& run) { return reinterpret_cast<std::uintptr_t>(&run.runtime().abi()); },
          "The address of its table of functions (executor/live/live_abi.h).")
      .def(
          "iteration_boundary", [](PythonLiveRun& run) { run.runtime().iteration_boundary(); }, Others())
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
      .def("recorded", &PythonLiveRun::recorded, "The second step as a Trace; None until it is over.");
}

}  // namespace tencache
