#include "traces/import/pytorch/import_pytorch.h"

#include <filesystem>

#include "core/error.h"
#include "traces/generate/host_issue.h"
#include "traces/import/pytorch/join.h"

namespace tencache {

std::string model_name_of(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  for (const char* ending : {".gz", ".zst", ".tar", ".tgz", ".json", ".et", ".pt.trace", "_et", "_kineto"}) {
    if (name.size() > std::string_view(ending).size() && name.ends_with(ending)) {
      name.resize(name.size() - std::string_view(ending).size());
    }
  }
  return name;
}

ImportedTrace import_pytorch(const PytorchImportOptions& options) {
  // First of all: what is no execution trace needs no advice on durations.
  const ExecutionTrace recording = read_execution_trace(options.execution_trace, options.progress);
  if (options.kineto.empty() && !options.gpu) {
    throw Error(options.execution_trace, 0,
                "an execution trace has no times; give the Kineto trace of the same run as a second file, or "
                "--assume-gpu NAME for durations modelled for that GPU");
  }
  const Storages storages = find_storages(recording);
  const std::vector<CallOp> ops = find_ops(recording, storages);
  const Iterations iterations = find_iterations(recording, options.iteration);
  const std::vector<Part> parts = find_parts(recording, iterations);
  const Iteration& iteration = iterations.all[iterations.chosen];
  const Roles roles = find_roles(recording, storages, ops, parts, iteration);

  std::optional<Joined> joined;
  if (!options.kineto.empty()) {
    joined = join_kineto(recording, iterations, options.kineto, options.kineto_iteration, options.progress);
  }
  ImportedTrace imported =
      make_trace({recording, storages, ops, parts, roles, iteration, options.gpu ? &*options.gpu : nullptr,
                  joined ? &joined->measured : nullptr, options.as_recorded});
  std::vector<std::string> notes{"iteration: " + iterations.evidence};
  if (joined) notes.insert(notes.end(), joined->notes.begin(), joined->notes.end());
  notes.insert(notes.end(), roles.evidence.begin(), roles.evidence.end());
  imported.notes.insert(imported.notes.begin(), notes.begin(), notes.end());
  TraceHeader& header = imported.trace.header;
  header.model = options.model.empty() ? model_name_of(options.execution_trace) : options.model;
  header.batch = options.batch;
  header.sequence_length = options.sequence_length;
  header.hardware = joined ? joined->measured.hardware : "modelled: " + options.gpu->name;
  header.provenance.made_by = MadeBy::imported;
  header.recorded_by = std::string("import pytorch (execution trace") + (joined ? " and Kineto trace" : "") +
                       ", schema " + recording.schema + "; " + iterations.evidence +
                       "; roles inferred: " + roles.summary + ")";
  if (!joined) issue(imported.trace, options.launch_ns);  // recorded gaps hold all of the host's time
  imported.trace.validate(recording.file);
  return imported;
}

}  // namespace tencache
