// `tencache bound`: the lower bound of the iteration time, its terms, and where they bind. studies/bound.h says why it
// holds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "answers/bound.h"
#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"
#include "studies/bound.h"
#include "traces/split_ranks.h"

namespace tencache {
namespace {

constexpr std::size_t windows_shown = 5;

Json bound_json(const Workload& workload, const Bound& bound, double run_seconds) {
  Json terms = Json::array(), notes = notes_of(workload);
  for (const BoundTerm& term : bound.terms) terms.push_back(bound_term_json(workload, term, bound.rank));
  if (const std::string note = storage_bound_note(workload, bound.binding, bound.rank); !note.empty()) {
    notes.push_back(note);
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  return {{"machine", workload.machine.name},
          {"trace", workload.options.trace},
          {"fits", bound.misfit.empty()},
          {"reason", or_null(bound.misfit)},
          {"bound_seconds", bound.seconds},
          {"bound_term", bound.term},
          {"binding", bound_term_json(workload, bound.binding, bound.rank)},
          {"compute_bound_seconds", bound.compute_seconds},
          {"rank", bound.rank},
          {"terms", std::move(terms)},
          {"windows", bound_windows_json(workload.trace, bound.windows)},
          {"notes", std::move(notes)},
          {"gpu_time", gpu_time_json(workload)},
          {"manifest",
           {{"version", TENCACHE_VERSION},
            {"hashes", {{"trace", or_null(workload.trace_sha256)}, {"machine", workload.machine_sha256}}},
            {"run",
             {{"trace", workload.options.trace},
              {"machine", workload.options.machine},
              {"gpu_memory", or_null(workload.options.gpu_memory)},
              {"cpu_memory", or_null(workload.options.cpu_memory)}}}}},
          {"timing", {{"load_seconds", workload.load_seconds}, {"run_seconds", run_seconds}}}};
}

std::string windows_text(const Trace& trace, const std::vector<BoundWindow>& windows) {
  const std::size_t shown = std::min(windows_shown, windows.size());
  std::string text =
      fmt::format("\nWindows that take longer than their compute, {}:\n",
                  shown < windows.size() ? fmt::format("{} of {}", shown, windows.size()) : std::string("all"));
  for (std::size_t i = 0; i < shown; ++i) {
    const BoundWindow& window = windows[i];
    text += fmt::format("  ops {} ({}) to {} ({}), {}: {}, compute {}; {}\n", window.first,
                        printable(trace.name(trace.ops[window.first])), window.last,
                        printable(trace.name(trace.ops[window.last])), window.term, format_seconds(window.seconds),
                        format_seconds(window.compute_seconds), crossing_text(window));
  }
  return text;
}

std::string bound_text(const Workload& workload, const Bound& bound) {
  const MachineSpec& machine = workload.machine.of_rank(bound.rank);
  const Trace& trace = workload.trace;
  std::string text = fmt::format("{} on {}\n", trace_title(workload), machine_title(workload));
  if (!bound.misfit.empty()) text += fmt::format("  fits under no policy: {}\n", printable(bound.misfit));
  text += fmt::format("  no policy is faster than {} an iteration; what binds: {}\n", format_seconds(bound.seconds),
                      bound.term);
  text += fmt::format("  that is {}\n", binding_text(workload, bound.binding, bound.rank));
  if (rank_count(trace) > 1) text += fmt::format("  of rank {}, whose bound is the greatest\n", bound.rank);
  Table table({"  term", "alone", "bandwidth", "over", "beyond the compute of"});
  for (const BoundTerm& term : bound.terms) {
    std::vector<std::string> links;
    for (const LinkId link : term.links) links.push_back(machine.links[link].name);
    std::vector<std::string> row = {"  " + term.name, format_seconds(term.seconds)};
    if (!links.empty()) {
      row.push_back(format_bandwidth(
          static_cast<BytesPerSecond>(std::min(term.bytes_per_second, static_cast<double>(unlimited)))));
      row.push_back(join(links));
      row.push_back(fmt::format("{} windows", term.windows.size()));
    }
    table.add(std::move(row));
  }
  text += "\n" + table.text();
  if (!bound.windows.empty()) text += windows_text(trace, bound.windows);
  if (const std::string note = storage_bound_note(workload, bound.binding, bound.rank); !note.empty()) {
    text += "\n" + note + "\n";
  }
  for (const std::string& note : notes_of(workload)) text += note + "\n";
  return text;
}

}  // namespace

void add_bound_command(CLI::App& app, Command& chosen) {
  struct Arguments {
    WorkloadOptions workload;
    bool json = false;
    Json command;  // for the manifest
  };
  CLI::App* command = app.add_subcommand("bound", "The lower bound of the iteration time, and what binds");
  auto arguments = std::make_shared<Arguments>();
  add_machine_options(*command, arguments->workload);
  command->add_flag("--json", arguments->json, "The same as JSON");
  command->footer(
      "No policy is faster: the compute of the GPU and of the CPU, and what must cross the machine's links beyond "
      "what\n"
      "its memory holds, window by window. Exit code 1: the trace fits under no policy at all.\n\n"
      "Examples:\n"
      "  tencache bound step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache bound step.trace.jsonl.zst -m my-computer.yaml --gpu-memory 8GiB --json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] {
      const Workload workload = load_workload(arguments->workload);
      const std::int64_t start = tool_clock_ns();
      const Bound bound = lower_bound_of(workload.trace, workload.machine);
      if (arguments->json) {
        print_repeatable(bound_json(workload, bound, seconds_since(start)), arguments->command);
      } else {
        print(bound_text(workload, bound));
      }
      return bound.misfit.empty() ? ExitCode::done : ExitCode::answer_is_no;
    };
  });
}

}  // namespace tencache
