#include "studies/allocation_source.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/text.h"
#include "traces/file/allocation_file.h"
#include "traces/file/byte_source.h"
#include "traces/file/trace_file.h"
#include "traces/import/allocation_log.h"
#include "traces/import/pytorch/kineto_allocations.h"

namespace tencache {
namespace {

enum class FileKind : std::uint8_t { trace, events, log, kineto };

std::string head_of(const std::string& path) {
  constexpr std::size_t head_bytes = 64 * 1024;
  std::unique_ptr<ByteSource> source = std::make_unique<FileSource>(path);
  decompress(source, path);
  return peek(source, head_bytes);
}

FileKind kind_of(const std::string& path) {
  const std::string head = head_of(path);
  if (is_allocation_file(head)) return FileKind::events;
  const std::string_view line = std::string_view(head).substr(0, head.find('\n'));
  if (line.find("\"kind\"") != std::string_view::npos && line.find("\"header\"") != std::string_view::npos) {
    return FileKind::trace;
  }
  if (is_allocation_log(head)) return FileKind::log;
  // Pickles of protocol 2 and later begin so, zip archives of torch.save otherwise.
  if (head.starts_with("\x80") || head.starts_with("PK")) {
    throw Error(path, 0,
                "is a pickle, such as torch.cuda.memory._dump_snapshot() writes; convert it: tencache import snapshot "
                "FILE -o NAME.alloc.jsonl (of the Python package)");
  }
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  const std::size_t second = first == std::string::npos ? first : head.find_first_not_of(" \t\r\n", first + 1);
  if (second != std::string::npos && head[first] == '[' && head[second] == '[') {
    throw Error(path, 0,
                "is a memory timeline of torch.profiler, which has sizes without addresses; record a memory snapshot "
                "(torch.cuda.memory._dump_snapshot) or export_chrome_trace with profile_memory=True");
  }
  if (first != std::string::npos && (head[first] == '{' || head[first] == '[')) return FileKind::kineto;
  throw Error(path, 0,
              "has no allocations that are known here: it is no trace, no recording of torch.profiler with "
              "profile_memory, no .alloc.jsonl and no log of STAlloc's (docs/fragment.md)");
}

}  // namespace

LoadedAllocations load_allocations(const AllocationSource& source, const ImportProgress& progress) {
  LoadedAllocations loaded;
  std::vector<std::shared_ptr<const Trace>> traces;
  for (const std::string& path : source.files) {
    if (const auto given = source.given.find(path); given != source.given.end()) {
      traces.push_back(given->second.trace);
      continue;
    }
    const FileKind kind = kind_of(path);
    if (kind == FileKind::trace) {
      traces.push_back(std::make_shared<const Trace>(read_trace(path)));
      continue;
    }
    if (source.files.size() > 1) {
      throw Error(path, 0, "is no trace, and of several files each must be one: iterations that take turns");
    }
    loaded.allocations = kind == FileKind::events ? read_allocations(path)
                         : kind == FileKind::log  ? read_allocation_log(path)
                                                  : read_kineto_allocations(path, source.gpu, progress);
  }
  if (!traces.empty()) {
    std::vector<const Trace*> all;
    for (const auto& trace : traces) all.push_back(trace.get());
    loaded.allocations = allocations_of(all, source.traces);
    loaded.generated = true;
    if (loaded.allocations.blocks == 0) throw Error(source.files.front(), 0, "has no tensor on the GPU");
  }
  loaded.allocations.name = join(source.files);
  loaded.iterations = static_cast<std::uint32_t>(
      std::ranges::count(loaded.allocations.events, AllocationEvent::Kind::iteration, &AllocationEvent::kind));
  return loaded;
}

}  // namespace tencache
