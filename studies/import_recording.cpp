#include "studies/import_recording.h"

#include <fmt/format.h>

#include <optional>

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/stack_yaml.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/split.h"
#include "traces/file/output_files.h"
#include "traces/file/trace_file.h"
#include "traces/import/csv.h"
#include "traces/import/pytorch/chakra.h"
#include "traces/import/pytorch/execution_trace.h"
#include "traces/import/pytorch/import_kineto.h"
#include "traces/import/pytorch/import_pytorch.h"
#include "traces/transform/edits.h"
#include "traces/transform/rescale.h"

namespace tencache {
namespace {

struct RecordingChoice {
  std::vector<std::string> files;
  std::string gpu, kernels, model, nodes;
  std::optional<std::int64_t> iteration, kineto_iteration;
  std::uint64_t batch = 0, sequence_length = 0;
  bool as_recorded = false, strip_names = false;
  CsvImportOptions csv;
};

Nanoseconds eager_launch_ns() { return read_stack_figures().launch_ns[static_cast<std::size_t>(Stack::eager)]; }

// "120-4711" as ids of nodes.
void parse_nodes(const std::string& text, IterationChoice& choice) {
  const std::vector<std::string> ends = split(text, "-");
  choice.first_node = parse_number<std::uint64_t>(ends.front()).value_or(0);
  choice.last_node = parse_number<std::uint64_t>(ends.back()).value_or(0);
  if (ends.size() != 2 || choice.first_node == 0 || choice.last_node < choice.first_node) {
    throw Error("--nodes: '" + text + "' is no range of node ids; write 120-4711, the first and the last");
  }
}

ImportProgress progress_line(const std::string& what) {
  auto line = std::make_shared<ProgressLine>();
  return [line, what, shown = std::uint64_t{0}](std::uint64_t consumed, std::uint64_t total) mutable {
    if (consumed >= shown && consumed < shown + 16 * MiB && shown != 0) return;  // a second pass begins anew
    shown = consumed;
    line->show(total == 0 ? fmt::format("reading {}: {}", what, format_bytes(consumed))
                          : fmt::format("reading {}: {} %", what, consumed * 100 / total));
  };
}

void note_kernels(ImportedTrace& imported, const GpuSpec& gpu, const RecordingChoice& asked) {
  if (asked.kernels.empty()) return;
  if (const std::string note = calibration_note(gpu.kernels); !note.empty()) imported.notes.push_back(note);
  imported.trace.header.provenance.made_with.emplace_back("kernels", asked.kernels);
}

ImportedTrace import_execution_trace(const RecordingChoice& asked) {
  PytorchImportOptions options;
  options.execution_trace = asked.files.front();
  if (asked.files.size() == 2) options.kineto = asked.files.back();
  options.as_recorded = asked.as_recorded;
  options.model = asked.model;
  options.batch = asked.batch;
  options.sequence_length = asked.sequence_length;
  if (asked.iteration) options.iteration.number = asked.iteration;
  options.kineto_iteration = asked.kineto_iteration;
  options.progress = progress_line("the recording");
  try {
    if (!asked.gpu.empty()) {
      options.gpu = read_gpu(asked.gpu, asked.kernels);
      options.launch_ns = eager_launch_ns();
    }
    if (!asked.nodes.empty()) parse_nodes(asked.nodes, options.iteration);
  } catch (const Error&) {
    read_execution_trace(options.execution_trace, options.progress);  // what is wrong with the file is said first
    throw;
  }
  ImportedTrace imported = import_pytorch(options);
  options.progress = {};  // clears the line
  if (options.gpu) note_kernels(imported, *options.gpu, asked);
  return imported;
}

ImportedTrace import_kineto_trace(const RecordingChoice& asked) {
  KinetoImportOptions options;
  options.file = asked.files.front();
  options.iteration = asked.iteration;
  options.model = asked.model;
  options.batch = asked.batch;
  options.sequence_length = asked.sequence_length;
  options.progress = progress_line("the recording");
  ImportedTrace imported = import_kineto(options);
  options.progress = {};
  return imported;
}

ImportedTrace import_chakra_trace(const RecordingChoice& asked) {
  ChakraImportOptions options;
  options.files = asked.files;
  options.model = asked.model;
  options.batch = asked.batch;
  options.sequence_length = asked.sequence_length;
  options.as_recorded = asked.as_recorded;
  options.progress = progress_line("the recording");
  ImportedTrace imported = import_chakra(options);
  options.progress = {};
  return imported;
}

ImportedTrace rewrite_trace(const RecordingChoice& asked) {
  ImportedTrace imported;
  imported.trace = read_trace(asked.files.front());
  if (!asked.gpu.empty()) {
    const GpuSpec gpu = read_gpu(asked.gpu, asked.kernels);
    model_durations(imported.trace, gpu, eager_launch_ns());
    imported.notes.push_back("durations are modelled for the " + gpu.name +
                             ", gaps for a host that issues eager PyTorch's kernels");
    note_kernels(imported, gpu, asked);
  }
  return imported;
}

ImportedTrace import_csv_files(const RecordingChoice& asked) {
  CsvImportOptions options = asked.csv;
  options.ops_file = asked.files.front();
  if (asked.files.size() == 2) options.tensors_file = asked.files.back();
  options.model = asked.model;
  options.batch = asked.batch;
  options.sequence_length = asked.sequence_length;
  ImportedTrace imported;
  imported.trace = import_csv(options, &imported.notes);
  return imported;
}

// What --output may not be.
std::vector<std::string> inputs_of(const RecordingChoice& asked, bool csv) {
  std::vector<std::string> inputs = asked.files;
  for (const char* name : {"/ops.csv", "/tensors.csv"}) {
    for (const char* packed : {"", ".gz", ".zst"}) {
      if (csv) inputs.push_back(asked.files.front() + name + packed);
    }
  }
  return inputs;
}

// Adds options in the order of --help; each returns after the ones that it names.
class ImportOptions {
 public:
  ImportOptions(RecordingImport& import, RecordingChoice& asked)
      : import_(import), options_(import.options), asked_(asked) {}

  // One file alone, up to two, or (0) any number.
  void files(std::size_t most, std::string help) {
    if (most == 1) {
      options_
          .add({.names = "FILE",
                .help = std::move(help),
                .take = [&files = asked_.files](const auto& texts) { files = texts; }})
          .needed();
    } else {
      options_.list("FILES", asked_.files, std::move(help)).needed().most = most;
    }
    options_.word("--output,-o", import_.output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)").needed();
  }
  void header(const std::string& model) {
    options_.text("--model", asked_.model, "What was recorded (default: the " + model + "'s name)");
    count("--batch", asked_.batch, "Sequences or samples an iteration");
    count("--sequence-length", asked_.sequence_length, "Tokens a sequence");
  }
  void strip_names() {
    options_.flag("--strip-names", asked_.strip_names,
                  "Neutral names for tensors, ops, modules and the model, to share the trace");
  }
  void json(std::string help = "What was imported as JSON") { options_.flag("--json", import_.json, std::move(help)); }
  void iteration(std::string name, std::optional<std::int64_t>& field, std::string help) {
    options_.add({.names = std::move(name),
                  .help = std::move(help),
                  .take = [&field](const auto& texts) { field = std::stoll(texts.front()); },
                  .refusal =
                      [](const std::string& text) {
                        return parse_number<std::int64_t>(text).value_or(-1) >= 0
                                   ? std::string()
                                   : "'" + text + "' is no whole number from 0";
                      },
                  .type = "INT"});
  }
  void gpu(std::string names, std::string help) { options_.text(std::move(names), asked_.gpu, std::move(help)); }
  void kernels(std::string needed) {
    options_
        .word("--kernels", asked_.kernels,
              "Constants of the GPU's kernels from this file, such as calibrate --from-trace "
              "writes (default: those of configs/kernels)")
        .needing(std::move(needed));
  }
  void as_recorded() {
    options_.flag("--as-recorded", asked_.as_recorded,
                  "Keep the optimizer's step op by op, and what only a first step does: the creation of its states");
  }

 private:
  void count(std::string name, std::uint64_t& field, std::string help) {
    options_.whole(std::move(name), field, 1, 1'000'000'000, std::move(help)).with_type("INT:INT in [1 - 1000000000]");
  }

  RecordingImport& import_;
  QuestionOptions& options_;
  RecordingChoice& asked_;
};

using Read = ImportedTrace (*)(const RecordingChoice&);

// Of the format: its options, and what reads it.
Read describe(const std::string& format, RecordingImport& import, RecordingChoice& asked) {
  ImportOptions options(import, asked);
  if (format == "csv") {
    options.files(2, "A folder with ops.csv and tensors.csv, or these two files (also .gz, .zst)");
    import.options.text("--size-column", asked.csv.size_column,
                        "The column of the tensors' file that holds their sizes");
    options.header("folder");
    import.options.text("--precision", asked.csv.precision, "Such as fp32 or bf16");
    import.options.text("--hardware", asked.csv.hardware, "What the times were measured on, such as a100-40g");
    options.json();
    return import_csv_files;
  }
  if (format == "trace") {
    options.files(1, "A trace of TenCache's");
    options.strip_names();
    options.gpu("--gpu", "Model all durations for this GPU: of a model recorded without its memory");
    options.kernels("--gpu");
    options.json("What was written as JSON");
    return rewrite_trace;
  }
  const bool pytorch = format == "pytorch", kineto = format == "kineto";
  if (pytorch) {
    options.files(2, "The execution trace (.json, .gz, .zst, .tar.gz), and the Kineto trace of the same run");
  } else if (kineto) {
    options.files(1, "The Kineto trace (.json, .gz, .zst, .tar.gz)");
  } else if (format == "chakra") {
    options.files(0, "The trace of each rank, in order (.et, .gz, .zst, .tar.gz)");
  } else {
    throw Error("unknown format '" + format + "'; valid are csv, pytorch, kineto, chakra, trace");
  }
  options.header("file");
  options.strip_names();
  options.json();
  if (pytorch || kineto) {
    options.iteration("--iteration", asked.iteration,
                      "Which iteration: N of ProfilerStep#N, else counted from 0 (default: the last complete one)");
  }
  if (pytorch) {
    options.gpu("--assume-gpu,--gpu", "Model durations for this GPU where the recording has none");
    options.kernels("--assume-gpu");
  }
  if (!kineto) options.as_recorded();
  if (pytorch) {
    options.iteration("--kineto-iteration", asked.kineto_iteration,
                      "Which iteration of the Kineto trace (default: the same one, else the last complete one)");
    import.options.text("--nodes", asked.nodes, "The iteration as ids of its first and last node: 120-4711");
  }
  return pytorch ? import_execution_trace : kineto ? import_kineto_trace : import_chakra_trace;
}

}  // namespace

std::unique_ptr<RecordingImport> recording_import(const std::string& format) {
  auto import = std::make_unique<RecordingImport>(format);
  auto asked = std::make_shared<RecordingChoice>();
  const Read read = describe(format, *import, *asked);
  import->read = [ asked, read, import = import.get() ] {
    check_output("--output", import->output, inputs_of(*asked, import->format == "csv"));
  ImportedTrace imported = read(*asked);
  if (asked->strip_names) imported.trace = strip_names(imported.trace);
  return imported;
};
return import;
}  // namespace tencache

}  // namespace tencache
