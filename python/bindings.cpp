#include "python/bindings.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "answers/embedding.h"
#include "answers/questions.h"
#include "configs/generate_settings.h"
#include "configs/shipped_files.h"
#include "core/error.h"
#include "configs/patience_line.h"
#include "core/remark.h"
#include "gui/report/page.h"
#include "sim/interruption.h"
#include "studies/import_recording.h"
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
const GivenTrace& given(PythonTrace& python) {
  if (python.given.trace == nullptr || python.given_revision != python.revision) {
    python.trace.validate();
    python.given = {std::make_shared<const Trace>(python.trace), sha256_hex(format_trace(python.trace))};
    python.given_revision = python.revision;
  }
  return python.given;
}

using PythonTraces = std::map<std::string, std::shared_ptr<PythonTrace>>;

GivenTraces given(const PythonTraces& traces) {
  GivenTraces result;
  for (const auto& [word, trace] : traces) result.emplace(word, given(*trace));
  return result;
}

py::object to_python(const Json& json) {
  switch (json.type()) {
    case Json::value_t::object: {
      py::dict object;
      for (const auto& [key, value] : json.items()) object[to_text(key)] = to_python(value);
      return object;
    }
    case Json::value_t::array: {
      py::list list(json.size());
      for (std::size_t i = 0; i < json.size(); ++i) list[i] = to_python(json[i]);
      return list;
    }
    case Json::value_t::string:
      return to_text(json.get_ref<const std::string&>());
    case Json::value_t::boolean:
      return py::bool_(json.get<bool>());
    case Json::value_t::number_integer:
      return py::int_(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return py::int_(json.get<std::uint64_t>());
    case Json::value_t::number_float: {
      const double value = json.get<double>();
      if (std::isfinite(value)) return py::float_(value);
      return py::none();
    }
    default:
      return py::none();
  }
}

py::tuple ask(const std::string& name, const QuestionSettings& settings, const PythonTraces& traces,
              bool keep_timelines) {
  const GivenTraces memory = given(traces);
  std::vector<KeptTimeline> kept;
  std::string remarks;
  Json answer;
  {
    const py::gil_scoped_release others_may_run;
    const RemarkSink sink(remarks);
    const auto question = keep_timelines ? replay_question(&kept) : question_named(name);
    *question->options.traces() = memory;
    question->options.set(settings, name);
    answer = question->ask().json();
  }
  py::list timelines;
  for (KeptTimeline& timeline : kept) timelines.append(std::make_shared<KeptTimeline>(std::move(timeline)));
  return py::make_tuple(to_python(answer), to_text(remarks), timelines);
}

py::tuple run(const std::vector<std::string>& words, const PythonTraces& traces) {
  Embedding embedding{.traces = given(traces)};
  {
    const py::gil_scoped_release others_may_run;
    run_embedded(words, embedding);
  }
  return py::make_tuple(to_text(embedding.output), to_text(embedding.remarks));
}

std::string report(const std::vector<std::string>& files, const std::string& output, const std::string& title) {
  const py::gil_scoped_release others_may_run;
  std::string remarks;
  const RemarkSink sink(remarks);
  gui::write_report(files, output, title);
  return remarks;
}

py::tuple import_trace(const std::string& format, const QuestionSettings& settings) {
  ImportedTrace imported;
  std::string remarks;
  {
    const py::gil_scoped_release others_may_run;
    const RemarkSink sink(remarks);
    const std::unique_ptr<RecordingImport> import = recording_import(format);
    import->options.find("--output")->required = false;
    import->options.set(settings, "import " + format);
    imported = import->read();
    imported.trace.validate();
  }
  for (const std::string& note : imported.notes) remarks += note + "\n";
  return py::make_tuple(std::make_shared<PythonTrace>(PythonTrace{std::move(imported.trace)}), to_text(remarks));
}

class PythonPatience {
 public:
  explicit PythonPatience(std::string name) : name_(std::move(name)) {}
  void enter() { line_.emplace(name_); }
  void exit(const py::args& /*why*/) { line_.reset(); }

 private:
  std::string name_;
  std::optional<PatienceLine> line_;
};

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
  bind_rows(module);
#ifdef TENCACHE_WITH_EXECUTOR
  bind_live(module);
#endif
  module.def("ask", &ask, py::arg("question"), py::arg("settings"), py::arg("traces"), py::arg("keep_timelines"),
             "Asks a question of `questions` with (option, text) pairs: (answer, remarks, timelines). `traces`: those "
             "that texts stand for. Raises Error.");
  module.attr("questions") = py::cast(question_names());
  module.def("run", &run, py::arg("words"), py::arg("traces"),
             "Runs a command that is no question: (what it printed, its remarks). `traces`: those that words stand "
             "for. Raises Error.");
  module.def("report", &report, py::arg("files"), py::arg("output"), py::arg("title"),
             "Writes the page; returns remarks. Raises Error.");
  module.def("import_trace", &import_trace, py::arg("format"), py::arg("settings"),
             "A trace from (option, text) pairs of `tencache import`, and remarks. Raises Error.");
  module.def("generate", &generate, py::arg("settings"), "A trace from (option, text) pairs of `tencache generate`.");
  py::class_<PythonPatience>(module, "PatienceLine", "Of configs/patience_line.h, in a `with` block.")
      .def(py::init<std::string>(), py::arg("name"))
      .def("__enter__", &PythonPatience::enter)
      .def("__exit__", &PythonPatience::exit);
  module.def("doing", &doing, py::arg("what"), "What that line shows from now on.");
  module.def("set_installed_configs", &set_installed_configs, py::arg("folder"));
  module.def(
      "watch_signals", [] { main_thread = std::this_thread::get_id(); },
      "The calling thread, which must be the main one, answers Ctrl-C while it simulates.");
  set_interruption_check(look_for_signals);
}
