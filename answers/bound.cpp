#include "answers/bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "answers/result.h"
#include "core/text.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

constexpr std::size_t windows_shown = 5;

std::string rate_text(double bytes_per_second) {
  return format_bandwidth(static_cast<BytesPerSecond>(std::min(bytes_per_second, static_cast<double>(unlimited))));
}

// "4.00 GiB must cross".
std::string crossing_text(const WindowAnswer& window) {
  if (window.bytes < 1) return "what must cross depends on the updates that the CPU runs";
  return format_bytes(static_cast<Bytes>(window.bytes)) + " must cross";
}

std::string place_text(const OpPlace& place) { return fmt::format("{} ({})", place.op, printable(place.name)); }

WindowAnswer window_answer(const Trace& trace, const BoundWindow& window) {
  const auto place = [&trace](OpIndex op) { return OpPlace{op, std::string(trace.name(trace.ops[op]))}; };
  return {window.term, place(window.first), place(window.last), window.seconds, window.compute_seconds, window.bytes};
}

std::vector<WindowAnswer> window_answers(const Trace& trace, const std::vector<BoundWindow>& windows) {
  std::vector<WindowAnswer> answers;
  for (const BoundWindow& window : windows) answers.push_back(window_answer(trace, window));
  return answers;
}

DocumentTable terms_table(const BoundAnswer& answer) {
  DocumentTable table{"terms", "", {"term", "alone", "bandwidth", "over"}, Shown::everywhere, "  "};
  table.columns.emplace_back("beyond the compute of", Shown::on_terminal);
  table.columns.emplace_back("beyond what these hold", Shown::on_page);
  for (const TermAnswer& term : answer.terms) {
    std::vector<Cell> cells = {term.name, seconds_cell(term.seconds)};
    if (!term.links.empty()) {
      const double rate = term.bandwidth_bytes_per_second.value_or(0);
      cells.insert(cells.end(), {{rate_text(rate), rate, FigureUnit::bytes_per_second},
                                 join(term.links),
                                 fmt::format("{} windows", term.windows.size()),
                                 join(term.inside)});
    }
    table.add(std::move(cells));
  }
  return table;
}

DocumentTable windows_table(const std::vector<WindowAnswer>& windows) {
  DocumentTable table{"windows",
                      "Windows that take longer than their compute",
                      {"from op", "name", "to op", "name", "takes", "compute", "must cross"},
                      Shown::on_page};
  for (const WindowAnswer& window : windows) {
    table.add({count_cell(window.first.op), window.first.name, count_cell(window.last.op), window.last.name,
               seconds_cell(window.seconds), seconds_cell(window.compute_seconds),
               bytes_cell(static_cast<Bytes>(window.bytes))});
  }
  return table;
}

BarChart terms_chart(const BoundAnswer& answer) {
  BarChart chart;
  chart.title = fmt::format("No policy is faster: {} on {}", std::filesystem::path(answer.trace).filename().string(),
                            answer.machine);
  for (const TermAnswer& term : answer.terms) {
    const bool binds = term.name == answer.bound_term;
    ChartBar bar;
    bar.label = term.name;
    bar.marked = binds;
    bar.parts = {{{binds ? Ink::Kind::marked : Ink::Kind::plain}, term.seconds, binds ? "binds" : ""}};
    bar.text = format_seconds(term.seconds) + (binds ? ", binds" : "");
    bar.facts = {{"", bar.label}, {"at least", format_seconds(term.seconds)}};
    if (term.bandwidth_bytes_per_second) bar.facts.emplace_back("at", rate_text(*term.bandwidth_bytes_per_second));
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

std::string windows_text(const std::vector<WindowAnswer>& windows) {
  const std::size_t shown = std::min(windows_shown, windows.size());
  std::string text =
      fmt::format("\nWindows that take longer than their compute, {}:\n",
                  shown < windows.size() ? fmt::format("{} of {}", shown, windows.size()) : std::string("all"));
  for (std::size_t i = 0; i < shown; ++i) {
    const WindowAnswer& window = windows[i];
    text += fmt::format("  ops {} to {}, {}: {}, compute {}; {}\n", place_text(window.first), place_text(window.last),
                        window.term, format_seconds(window.seconds), format_seconds(window.compute_seconds),
                        crossing_text(window));
  }
  return text;
}

}  // namespace

TermAnswer term_answer(const Workload& workload, const BoundTerm& term, std::size_t rank) {
  const MachineSpec& machine = workload.machine.of_rank(rank);
  TermAnswer answer;
  answer.name = term.name;
  answer.seconds = term.seconds;
  for (const TierId tier : term.inside) answer.inside.push_back(machine.tiers[tier].name);
  for (const LinkId link : term.links) answer.links.push_back(machine.links[link].name);
  if (term.bytes_per_second > 0) answer.bandwidth_bytes_per_second = term.bytes_per_second;
  answer.windows = window_answers(*workload.trace, term.windows);
  return answer;
}

std::string binding_text(const TermAnswer& binding) {
  if (binding.name == "cpu") return "the CPU's lane, which runs the optimizer, over the whole iteration";
  if (binding.name == "dependencies") {
    return "GPU ops and the CPU's updates that wait for each other, round the iteration";
  }
  if (binding.name == "lanes") return "computing, each op where it takes less of the two devices' time";
  if (binding.links.empty()) return "computing, over the whole iteration";
  std::string text =
      fmt::format("{} at {}", join(binding.links), rate_text(binding.bandwidth_bytes_per_second.value_or(0)));
  if (binding.windows.empty()) return text;
  const WindowAnswer& window = binding.windows.front();
  text +=
      fmt::format(", from op {} to {}: {}", place_text(window.first), place_text(window.last), crossing_text(window));
  if (binding.windows.size() > 1) text += fmt::format("; and {} more such windows", binding.windows.size() - 1);
  return text;
}

std::string storage_bound_note(const Workload& workload, const BoundTerm& binding, std::size_t rank) {
  const MachineSpec& machine = workload.machine.of_rank(rank);
  const auto any = [&](auto end) {
    return std::ranges::any_of(
        binding.links, [&](LinkId link) { return machine.tiers[machine.links[link].*end].kind == TierKind::nvme; });
  };
  const bool reads = any(&Link::from), writes = any(&Link::to);
  if (!reads && !writes) return "";
  std::vector<std::string> links;
  for (const LinkId link : binding.links) links.push_back(machine.links[link].name);
  return fmt::format("The lower bound has {} always at {}{}: a limit, no prediction.", join(links),
                     rate_text(binding.bytes_per_second),
                     reads && writes ? " together" : ", reads and writes overlapping");
}

BoundAnswer bound_answer(const Workload& workload, const Bound& bound, std::optional<double> recorded_seconds,
                         double run_seconds) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  BoundAnswer answer;
  answer.machine = workload.machine.name;
  answer.trace = workload.scenario.trace.file;
  answer.fits = bound.misfit.empty();
  if (!answer.fits) answer.reason = bound.misfit;
  answer.bound_seconds = recorded_seconds.value_or(bound.seconds);
  if (recorded_seconds) answer.bound_choice_seconds = bound.seconds;
  answer.bound_term = bound.term;
  answer.binding = term_answer(workload, bound.binding, bound.rank);
  answer.compute_bound_seconds = bound.compute_seconds;
  answer.rank = bound.rank;
  for (const BoundTerm& term : bound.terms) answer.terms.push_back(term_answer(workload, term, bound.rank));
  answer.windows = window_answers(*workload.trace, bound.windows);
  answer.notes = notes_of(workload);
  answer.own_note = storage_bound_note(workload, bound.binding, bound.rank);
  if (!answer.own_note.empty()) answer.notes.push_back(answer.own_note);
  answer.gpu_time = gpu_time_answer(workload);
  answer.manifest = {{"version", TENCACHE_VERSION},
                     {"hashes", {{"trace", or_null(workload.trace_sha256)}, {"machine", workload.machine_sha256}}},
                     {"run",
                      {{"trace", workload.scenario.trace.file},
                       {"machine", workload.scenario.machine.name},
                       {"gpu_memory", or_null(workload.scenario.machine.gpu_memory)},
                       {"cpu_memory", or_null(workload.scenario.machine.cpu_memory)}}}};
  answer.timing = {workload.load_seconds, run_seconds};
  answer.title = fmt::format("{} on {}", trace_title(workload), machine_title(workload));
  answer.several_ranks = rank_count(*workload.trace) > 1;
  return answer;
}

Document document_of(const BoundAnswer& answer) {
  Document document{.kind = "bound", .title = "", .blocks = {}};
  BarChart chart = terms_chart(answer);
  document.title = chart.title;
  std::string text =
      answer.title.empty() ? fmt::format("{} on {}\n", answer.trace, answer.machine) : answer.title + "\n";
  if (answer.reason) text += fmt::format("  fits under no policy: {}\n", printable(*answer.reason));
  const double least_seconds = answer.bound_choice_seconds.value_or(answer.bound_seconds);
  const std::string recorded = answer.bound_choice_seconds ? fmt::format(", whatever it recomputes; as recorded {}",
                                                                         format_seconds(answer.bound_seconds))
                                                           : "";
  if (least_seconds > 0) {
    text += fmt::format("  no policy is faster than {} an iteration{}; what binds: {}\n", format_seconds(least_seconds),
                        recorded, answer.bound_term);
    text += fmt::format("  that is {}\n", binding_text(answer.binding));
  } else {
    text += "  no bound: nothing in the trace takes time, and nothing has to move\n";
  }
  if (answer.several_ranks) text += fmt::format("  of rank {}, whose bound is the greatest\n", answer.rank);
  document.add_text(std::move(text));
  const std::string misfit = answer.reason ? fmt::format("Fits under no policy: {}. ", *answer.reason) : "";
  document.add_paragraph(misfit + (least_seconds > 0
                                       ? fmt::format("No policy is faster than {} an iteration{}; what binds: {}.",
                                                     seconds_text(least_seconds), recorded, answer.bound_term)
                                       : "There is no bound: nothing in the trace takes time."));
  document.add_chart(std::move(chart));
  document.add_text("\n");
  document.add_table(terms_table(answer));
  document.add_table(windows_table(answer.windows));
  if (!answer.windows.empty()) document.add_text(windows_text(answer.windows));
  // The bound's own note stands apart from those of the trace.
  std::string notes = answer.own_note.empty() ? "" : "\n" + answer.own_note + "\n";
  for (const std::string& note : answer.notes) {
    if (note != answer.own_note) notes += note + "\n";
  }
  document.add_text(std::move(notes));
  return document;
}

}  // namespace tencache
