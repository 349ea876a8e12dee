#include "python/bindings.h"

#include <chrono>
#include <thread>
#include <utility>

#include "configs/generate_settings.h"
#include "configs/shipped_files.h"
#include "core/error.h"
#include "sim/interruption.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

// Ctrl-C is for Python's main thread, which alone runs the handlers of signals.
std::thread::id main_thread;

void look_for_signals() {
  if (std::this_thread::get_id() != main_thread) return;
  // Now and then only: where other threads keep Python busy, its lock takes milliseconds to get.
  constexpr auto pause = std::chrono::milliseconds(50);
  static auto last = std::chrono::steady_clock::time_point();
  const auto now = std::chrono::steady_clock::now();
  if (now - last < pause) return;
  last = now;
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// A copy for commands, which may still have it when the trace is changed. Throws Error where it cannot be run.
const EmbeddedTrace& given(PythonTrace& python) {
  if (python.given.trace == nullptr || python.given_revision != python.revision) {
    python.trace.validate();
    python.given = {std::make_shared<const Trace>(python.trace), sha256_hex(format_trace(python.trace))};
    python.given_revision = python.revision;
  }
  return python.given;
}

py::tuple run(const std::vector<std::string>& words, const std::map<std::string, std::shared_ptr<PythonTrace>>& traces,
              bool keep_timelines) {
  Embedding embedding;
  for (const auto& [word, trace] : traces) embedding.traces.emplace(word, given(*trace));
  embedding.keep_timelines = keep_timelines;
  ExitCode code = ExitCode::done;
  {
    const py::gil_scoped_release others_may_run;
    code = run_embedded(words, embedding);
  }
  py::list timelines;
  for (KeptTimeline& timeline : embedding.timelines) {
    timelines.append(py::cast(std::make_shared<KeptTimeline>(std::move(timeline))));
  }
  return py::make_tuple(static_cast<int>(code), to_text(embedding.output), to_text(embedding.remarks), timelines);
}

std::shared_ptr<PythonTrace> generate(const GenerateSettings& settings) {
  const py::gil_scoped_release others_may_run;
  return std::make_shared<PythonTrace>(PythonTrace{generate_trace(settings)});
}

}  // namespace
}  // namespace tencache

PYBIND11_MODULE(_core, module) {
  using namespace tencache;
  module.doc() = "What tencache's Python functions are made of; use the package `tencache`.";
  module.attr("version") = TENCACHE_VERSION;
  module.attr("source_folder") = TENCACHE_SOURCE_FOLDER;
  module.attr("NONE") = none;
  py::register_exception<Error>(module, "Error", PyExc_ValueError);
  module.attr("Error").attr("__module__") = "tencache";
  module.attr("Error").attr("__doc__") = "Bad usage or bad input: what, where, and what to do about it.";

  bind_trace(module);
  bind_timeline(module);
  bind_policy(module);
  module.def("run", &run, py::arg("words"), py::arg("traces") = std::map<std::string, std::shared_ptr<PythonTrace>>(),
             py::arg("keep_timelines") = false,
             "Runs a command: (exit code, what it printed, its remarks, timelines). `traces`: those that words stand "
             "for. Raises Error.");
  module.def("generate", &generate, py::arg("settings"), "A trace from (option, text) pairs of `tencache generate`.");
  module.def("set_installed_configs", &set_installed_configs, py::arg("folder"));
  module.def(
      "watch_signals", [] { main_thread = std::this_thread::get_id(); },
      "The calling thread, which must be the main one, answers Ctrl-C while it simulates.");
  set_interruption_check(look_for_signals);
}
