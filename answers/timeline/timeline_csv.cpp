#include "answers/timeline/timeline_csv.h"

#include <fmt/format.h>

#include <iterator>

#include "core/error.h"
#include "traces/file/file_io.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

constexpr std::string_view kinds[] = {"op", "gap", "stall", "transfer", "move"};

std::string_view kind_of(const Span& span) { return kinds[static_cast<std::size_t>(span.kind)]; }

std::string lane_name(const MachineSpec& machine, std::size_t lane) {
  if (lane >= first_link_lane) return machine.links[lane - first_link_lane].name;
  return lane == gpu_lane ? "GPU" : lane == cpu_lane ? "CPU" : "GPU, communication";
}

}  // namespace

void write_timeline_csv(const std::string& path, const std::vector<TimelineProcess>& processes) {
  AtomicFile file(path);
  file.write("run,iteration,lane,kind,start_ns,end_ns,op,module,phase,tensor,bytes,cause,urgent,from_tier,to_tier\n");
  for (const TimelineProcess& process : processes) {
    const Trace& trace = *process.trace;
    const MachineSpec& machine = *process.machine;
    const std::string run = csv_field(process.name);
    for (const Span& span : process.timeline->spans) {
      const bool moves = span.of_chunk();
      std::string line = fmt::format("{},{},{},{},{},{}", run, span.iteration, csv_field(lane_name(machine, span.lane)),
                                     kind_of(span), span.start_ns, span.end_ns);
      const auto out = std::back_inserter(line);
      if (span.op < trace.ops.size()) {
        const Op& op = trace.ops[span.op];
        fmt::format_to(out, ",{},{},{}", csv_field(trace.name(op)), csv_field(trace.module(op)), to_string(op.phase));
      } else {
        line += ",,,";
      }
      if (moves) {
        const bool known = span.tensor < trace.tensors.size();
        fmt::format_to(out, ",{},{},,{},{},{}\n",
                       known ? csv_field(trace.name(trace.tensors[span.tensor])) : std::string(), span.bytes,
                       span.urgent ? 1 : 0, csv_field(machine.tiers[span.from].name),
                       csv_field(machine.tiers[span.to].name));
      } else {
        fmt::format_to(out, ",,,{},,,\n", span.kind == SpanKind::stall ? to_string(span.cause) : std::string_view());
      }
      file.write(line);
    }
  }
  file.commit();
}

void check_timeline_name(const std::string& path) {
  if (!path.ends_with(".sqlite") && !path.ends_with(".db")) return;
  throw Error(
      "--timeline: " + path +
      ": timelines are not written as SQLite any more; name a .csv, or a .json, which Perfetto's trace_processor "
      "answers SQL about");
}

void write_timeline(const std::string& path, const std::vector<TimelineProcess>& processes) {
  if (path.ends_with(".csv")) {
    write_timeline_csv(path, processes);
  } else {
    write_chrome_trace(path, processes);
  }
}

}  // namespace tencache
