#include "tests/fuzz/readers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "configs/deepspeed_config.h"
#include "configs/gpu_yaml.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "configs/price_table.h"
#include "core/check.h"
#include "core/error.h"
#include "gui/model/document.h"
#include "gui/model/timeline_file.h"
#include "sim/rows/row_file.h"
#include "sim/rows/row_generator.h"
#include "studies/allocation_source.h"
#include "studies/fragment.h"
#include "studies/sweep/sweep_file.h"
#include "studies/validation/file.h"
#include "studies/why.h"
#include "traces/file/trace_file.h"
#include "traces/import/block_trace.h"
#include "traces/import/csv.h"
#include "traces/import/pytorch/chakra.h"
#include "traces/import/pytorch/import_kineto.h"
#include "traces/import/pytorch/import_pytorch.h"
#include "traces/import/request_file.h"

namespace tencache::fuzz {
namespace {

// A file in memory, for readers that take paths.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
    while (!bytes.empty()) {
      const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
      if (written < 0) throw std::system_error(errno, std::generic_category(), "write");
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// Two files in one: what stands before and after a line of "--------".
std::pair<std::string_view, std::string_view> two_files(std::string_view bytes) {
  constexpr std::string_view line = "\n--------\n";
  const std::size_t at = bytes.find(line);
  if (at == std::string_view::npos) return {bytes, {}};
  return {bytes.substr(0, at + 1), bytes.substr(at + line.size())};
}

void csv(std::string_view bytes) {
  const auto [ops, tensors] = two_files(bytes);
  const MemoryFile ops_file(ops), tensors_file(tensors);
  CsvImportOptions options;
  options.ops_file = ops_file.path();
  options.tensors_file = tensors_file.path();
  import_csv(options).validate();
}

void pytorch(std::string_view bytes) {
  const auto [trace, kineto] = two_files(bytes);
  const MemoryFile trace_file(trace), kineto_file(kineto);
  PytorchImportOptions options;
  options.execution_trace = trace_file.path();
  if (!kineto.empty()) options.kineto = kineto_file.path();
  options.gpu = read_gpu("a100-80g");
  import_pytorch(options).trace.validate();
}

void kineto(std::string_view bytes) {
  const MemoryFile file(bytes);
  KinetoImportOptions options;
  options.file = file.path();
  import_kineto(options).trace.validate();
}

void chakra(std::string_view bytes) {
  const MemoryFile file(bytes);
  ChakraImportOptions options;
  options.files = {file.path()};
  import_chakra(options).trace.validate();
}

void document(std::string_view bytes) {
  const MemoryFile file(bytes);
  gui::open_document(file.path());
}

// As a growing file is read: in pieces, whose sizes follow from the bytes.
void timeline(std::string_view bytes) {
  gui::TimelineParser parser("timeline", 1000);
  std::size_t piece = 1;
  while (!bytes.empty()) {
    piece = 1 + (piece * 31 + static_cast<unsigned char>(bytes.front())) % 97;
    parser.feed(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  parser.snapshot(100);
  if (parser.complete()) parser.take();
}

// Traces, recordings, logs and event files, told by their content; then replayed.
void allocations(std::string_view bytes) {
  const MemoryFile file(bytes);
  const LoadedAllocations loaded = load_allocations({.files = {file.path()}, .traces = {.rounds = 1}});
  if (loaded.allocations.events.size() > 2000) return;
  for (const char* allocator : {"default", "expandable", "gmlake", "planned", "stweaver"}) {
    run_fragment(loaded.allocations, fragment_allocator(allocator), 64 * GiB);
  }
}

constexpr Reader all_readers[] = {
    {"allocations", allocations},
    {"blocks", [](std::string_view bytes) { read_block_trace(MemoryFile(bytes).path()); }},
    {"chakra", chakra},
    {"csv", csv},
    {"deepspeed", [](std::string_view bytes) { parse_deepspeed_config(std::string(bytes), "ds.json", 4); }},
    {"document", document},
    {"gpus", [](std::string_view bytes) { parse_gpus(bytes, "gpus.yaml"); }},
    {"hugging_face", [](std::string_view bytes) { parse_model(bytes, "config.json"); }},
    {"kineto", kineto},
    {"machine", [](std::string_view bytes) { parse_machine(bytes, "machine.yaml"); }},
    {"model", [](std::string_view bytes) { parse_model(bytes, "model.yaml"); }},
    {"prices", [](std::string_view bytes) { parse_price_table(bytes, "prices.yaml"); }},
    {"pytorch", pytorch},
    {"requests", [](std::string_view bytes) { read_requests(MemoryFile(bytes).path()); }},
    {"reuse_histogram", [](std::string_view bytes) { parse_reuse_histogram(bytes, "histogram.txt"); }},
    {"row_ids", [](std::string_view bytes) { read_row_ids(MemoryFile(bytes).path()); }},
    {"sweep",
     [](std::string_view bytes) {
       parse_sweep_file(bytes, "sweep.yaml",
                        {"batch", "data-parallel", "head", "micro-batches", "model", "pipeline-parallel", "precision",
                         "recompute", "seq", "zero"});
     }},
    {"timeline", timeline},
    {"trace", [](std::string_view bytes) { parse_trace(bytes, "t.trace.jsonl").validate(); }},
    {"validation", [](std::string_view bytes) { parse_validation(std::string(bytes), "validation.yaml"); }},
    {"why", [](std::string_view bytes) { explain_failures(read_failure_log(bytes, "log"), ""); }},
};

}  // namespace

std::span<const Reader> readers() { return all_readers; }

std::string read_or_refuse(std::string_view name, std::string_view bytes) {
  for (const Reader& reader : readers()) {
    if (reader.name != name) continue;
    try {
      reader.read(bytes);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  check_failed("there is a reader of this name", __FILE__, __LINE__);
}

}  // namespace tencache::fuzz
