#include "answers/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "answers/result.h"
#include "core/text.h"

namespace tencache {
namespace {

constexpr double rounding_seconds = 1e-6;  // differences of simulated times that are less say nothing

// ---- Words ----------------------------------------------------------------------------------------------------------

double noticed(double seconds) { return std::abs(seconds) < rounding_seconds ? 0 : seconds; }

std::string signed_seconds(double seconds) {
  return (seconds <= -rounding_seconds ? "-" : "") + format_seconds(std::abs(noticed(seconds)));
}
std::string with_sign(double seconds) { return (seconds > 0 ? "+" : "") + signed_seconds(seconds); }

// Below a microsecond is rounding on a terminal; none: "-".
Cell difference_cell(double seconds) {
  if (std::isnan(seconds)) return text_cell("-", "");
  return {signed_seconds(seconds), seconds, FigureUnit::seconds};
}

// "nvme_read 81 %, h2d 19 %"
std::string shares(const StallSeconds& stalls) {
  const double sum = sum_of(stalls);
  auto causes = all_causes;
  std::ranges::stable_sort(causes, std::ranges::greater(), [&](StallCause cause) { return stalls[cause]; });
  std::vector<std::string> texts;
  for (const StallCause cause : causes) {
    if (stalls[cause] <= 0.005 * sum) continue;
    texts.push_back(fmt::format("{} {:.0f} %", to_string(cause), 100 * stalls[cause] / sum));
  }
  return join(texts);
}

// "computes 1.2 ms longer"
std::string computes_text(double more) {
  return fmt::format("computes {} {}", signed_seconds(std::abs(more)), more > 0 ? "longer" : "less");
}

// Where the time goes that a cause held before, or what else gets shorter with it.
std::string moved_text(const TimeParts& before, const ExplainedCause& cause) {
  const TimeParts& after = cause.without;
  const double least = 0.005 * before.iteration_seconds;
  std::vector<std::string> texts;
  for (const StallCause other : all_causes) {
    const double change = after.stall_seconds[other] - before.stall_seconds[other];
    if (other == cause.cause || std::abs(change) <= least) continue;
    texts.push_back(fmt::format("{} {}", to_string(other), with_sign(change)));
  }
  const double more = after.busy_seconds() - before.compute_seconds - before.gap_seconds;
  const bool computes = std::abs(more) > least;
  if (after.rank != before.rank) {
    texts.push_back(fmt::format("rank {} is then the slowest{}", after.rank,
                                computes ? "; it " + computes_text(more) : std::string()));
  } else if (computes) {
    texts.push_back("compute and gaps " + with_sign(more));
  }
  return join(texts);
}

std::string remainder_text(const ExplainAnswer& answer) {
  const auto& [steps, attributed, confirmed, remainder, refused] = answer.in_turn;
  std::string text = fmt::format("  attributed {}, confirmed {}, remainder {} ({:.2f} %)", signed_seconds(attributed),
                                 signed_seconds(confirmed), signed_seconds(remainder),
                                 attributed > 0 ? 100 * remainder / attributed : 0.0);
  if (!steps.empty() && steps.back().without.rank != answer.run.rank) {
    const TimeParts& last = steps.back().without;
    text += fmt::format(": rank {} is then the slowest, which {}", last.rank,
                        computes_text(last.busy_seconds() - answer.run.compute_seconds - answer.run.gap_seconds));
  }
  return text + "\n";
}

// The end of a name; pages have all of it.
Cell name_cell(const std::string& name, const std::string& before = "") {
  constexpr std::size_t width = 44;
  if (name.size() <= width) return text_cell(before + name, name);
  std::string_view end = std::string_view(name).substr(name.size() - width + 1);
  while (!end.empty() && columns_of(end.substr(0, 1)) == 0) end.remove_prefix(1);  // not in the middle of a character
  return text_cell(fmt::format("{}…{}", before, end), name);
}

// ---- Tables ---------------------------------------------------------------------------------------------------------

DocumentTable causes_table(const ExplainAnswer& answer) {
  DocumentTable table{"causes",
                      "",
                      {"waits for",
                       "attributed",
                       "confirmed",
                       "still",
                       "moved",
                       {"to or from", Shown::on_terminal},
                       {"no such run", Shown::on_page}}};
  for (const ExplainedCause& cause : answer.causes) {
    const std::string refused = cause.without.reason.value_or("");
    table.add({name_of(cause.cause), difference_cell(cause.attributed_seconds),
               difference_cell(cause.confirmed_seconds), difference_cell(cause.still_seconds),
               difference_cell(cause.moved_seconds),
               cause.without.fits ? moved_text(answer.run, cause) : "no such run: " + refused, refused});
  }
  return table;
}

DocumentTable steps_table(const ExplainedSteps& in_turn) {
  DocumentTable table{
      "in_turn.steps", "Taken away one after the other, the longest first", {"without", "gained", "iteration"}};
  table.indent = "  ";
  const auto name = [&table](StallCause cause) {
    return text_cell((table.rows.empty() ? "" : "and ") + name_of(cause), name_of(cause));
  };
  for (const ExplainedStep& step : in_turn.steps) {
    table.add({name(step.cause), difference_cell(step.seconds), difference_cell(step.iteration_seconds)});
  }
  if (const auto& refused = in_turn.refused) {
    table.rows.push_back({{name(refused->cause)}, "no such run, and no further: " + refused->reason, 160});
  }
  return table;
}

// A table of the first of a list, under what it is a list of; `cells` of one.
template <typename Costly, typename Cells>
void add_costly(Document& document, const char* name, const std::vector<Costly>& list, std::size_t of,
                const std::string& what, std::vector<Column> columns, const Cells& cells) {
  columns.emplace_back("for", Shown::on_terminal);
  document.add_text(fmt::format("\n{} of {} {}:\n", list.size(), std::max(of, list.size()), what));
  DocumentTable table{name, "", std::move(columns)};
  for (const Costly& one : list) {
    std::vector<Cell> row = cells(one);
    row.emplace_back(shares(one.stall_seconds));
    table.add(std::move(row));
  }
  document.blocks.emplace_back(std::move(table));  // a terminal has its headings without a row too
}

void add_costly(Document& document, const ExplainAnswer& answer) {
  using Cells = std::vector<Cell>;
  add_costly(document, "ops", answer.ops, answer.all_ops, "ops that wait",
             {{"op that waits longest", Shown::on_terminal},
              {"op", Shown::on_page},
              {"op that waits longest", Shown::on_page},
              {"module", Shown::on_page},
              "phase",
              "waits"},
             [](const CostlyOp& op) -> Cells {
               return {name_cell(op.name + " " + op.module, fmt::format("{} ", op.op)),
                       count_cell(op.op),
                       op.name,
                       op.module,
                       op.phase,
                       difference_cell(op.seconds)};
             });
  add_costly(document, "layers", answer.layers, answer.all_layers, "layers", {"layer", "waits"},
             [](const CostlyLayer& layer) -> Cells {
               return {layer.layer.empty() ? text_cell("(no module)", "") : name_cell(layer.layer),
                       difference_cell(layer.seconds)};
             });
  add_costly(document, "tensors", answer.tensors, answer.all_tensors,
             fmt::format("tensors, on their way in or out ({} wait for none)",
                         signed_seconds(answer.stalls_of_no_tensor_seconds)),
             {"tensor waited for", "role", "bytes", "waits", "gained without"},
             [](const CostlyTensor& tensor) -> Cells {
               return {name_cell(tensor.name), tensor.role, bytes_cell(tensor.bytes), difference_cell(tensor.seconds),
                       difference_cell(tensor.gained_without_seconds)};
             });
}

DocumentTable changes_table(const ExplainAnswer& answer) {
  DocumentTable table{
      "changes", "", {"what would help", {"fits", Shown::on_page}, "iteration", "gained", {"", Shown::on_terminal}}};
  for (const ExplainedChange& change : answer.changes) {
    table.add({change.change, yes_or_no(change.fits), difference_cell(change.iteration_seconds),
               difference_cell(change.gained_seconds),
               fmt::format("{:.1f} %", 100 * change.gained_seconds / answer.run.iteration_seconds)});
    if (change.fits) continue;
    table.rows.back().instead = "does not fit: " + change.then.reason.value_or("");
    table.rows.back().line_width = 100;
  }
  return table;
}

// What recomputation takes, and what other levels would.
void add_recomputation(Document& document, const ExplainAnswer& answer) {
  const ExplainedRecomputation& recomputation = *answer.recomputation;
  document.add_text(
      fmt::format("\nrecomputation takes {} of compute and gaps\n", signed_seconds(recomputation.seconds)));
  const auto parts = [](const TimeParts& run) -> std::vector<Cell> {
    if (!run.fits) return {"", "", ""};
    return {difference_cell(run.iteration_seconds), difference_cell(run.busy_seconds()),
            difference_cell(run.stalled_seconds())};
  };
  const auto add = [&parts](DocumentTable& table, Cell what, const TimeParts& run, std::vector<Cell> more) {
    std::vector<Cell> row = {std::move(what)};
    std::ranges::move(parts(run), std::back_inserter(row));
    std::ranges::move(more, std::back_inserter(row));
    table.add(std::move(row));
    if (run.fits) return;
    table.rows.back().instead = "does not fit: " + run.reason.value_or("");
    table.rows.back().line_width = 100;
  };
  if (!recomputation.others.empty()) {
    DocumentTable table{"recomputation.others",
                        "What is recomputed",
                        {"recomputed", "iteration", "compute and gaps", "stalls", "the choice gains"}};
    add(table, "as chosen", answer.run, {""});
    for (const OtherRecomputation& other : recomputation.others) {
      const bool nothing = other.level == RecomputeLevel::keep;
      add(table, nothing ? "nothing" : "every layer", other.then,
          {other.then.fits ? difference_cell(other.gained_seconds) : Cell("")});
    }
    document.blocks.emplace_back(std::move(table));
    document.add_text("\n");
  }
  if (recomputation.layers.empty()) return;
  if (answer.all_recomputed > recomputation.layers.size()) {
    document.add_text(
        fmt::format("{} of {} layers that are recomputed:\n", recomputation.layers.size(), answer.all_recomputed));
  }
  DocumentTable table{"recomputation.layers",
                      "Layers that are recomputed",
                      {"layer", "recomputes", "iteration if kept", "compute and gaps", "stalls", "gained"}};
  for (const RecomputedLayer& layer : recomputation.layers) {
    if (!layer.kept) {
      table.add({name_cell(layer.layer), difference_cell(layer.seconds)});
      continue;
    }
    std::vector<Cell> row = {name_cell(layer.layer), difference_cell(layer.seconds)};
    std::ranges::move(parts(*layer.kept), std::back_inserter(row));
    row.push_back(layer.kept->fits ? difference_cell(layer.gained_seconds) : Cell(""));
    table.add(std::move(row));
    if (layer.kept->fits) continue;
    table.rows.back().instead = "kept, it does not fit: " + layer.kept->reason.value_or("");
    table.rows.back().line_width = 100;
  }
  document.blocks.emplace_back(std::move(table));
}

// ---- The picture ----------------------------------------------------------------------------------------------------

Ink stall_ink(StallCause cause, bool pale = false) { return {Ink::Kind::stall, static_cast<std::size_t>(cause), pale}; }
std::string waits_text(StallCause cause) { return std::string("waits for ") + label_of(cause); }

ChartBar time_bar(const TimeParts& run) {
  const double seconds = run.fits ? run.iteration_seconds : 0;
  ChartBar bar{.label = "iteration", .text = run.fits ? seconds_text(seconds) : "does not fit"};
  bar.parts = chart_parts(run);
  bar.facts = {{"", bar.label}, {"takes", bar.text}};
  for (const ChartPart& part : bar.parts) {
    bar.facts.emplace_back(part.label,
                           seconds_text(part.value) + (seconds > 0 ? ", " + percent(part.value / seconds) : ""));
  }
  return bar;
}

ChartBar cause_bar(const ExplainedCause& cause) {
  const std::string waits = waits_text(cause.cause), attributed = seconds_text(cause.attributed_seconds);
  ChartBar bar{.group = "each stall: what goes with its cause, waits all the same, or moves elsewhere",
               .label = label_of(cause.cause)};
  bar.facts = {{"", bar.label}, {"tried", cause.change}, {"attributed", attributed}};
  if (!cause.without.fits) {  // nothing is known of what it would gain
    bar.parts = {{stall_ink(cause.cause), cause.attributed_seconds, waits}};
    bar.text = attributed + ", not confirmed";
    bar.facts.emplace_back("no such run", cause.without.reason.value_or(""));
    return bar;
  }
  const auto part = [](double seconds) { return std::max(0.0, noticed(seconds)); };
  const std::string confirmed = seconds_text(std::max(0.0, cause.confirmed_seconds));
  bar.parts = {{stall_ink(cause.cause), part(cause.confirmed_seconds), waits},
               {stall_ink(cause.cause, true), part(cause.still_seconds), waits + " all the same"},
               {{Ink::Kind::pale}, part(cause.moved_seconds), "moves elsewhere"}};
  bar.text = fmt::format("{}, {} confirmed", attributed, confirmed);
  bar.facts.insert(bar.facts.end(),
                   {{"confirmed", confirmed},
                    {"still", seconds_text(cause.still_seconds)},
                    {"moved", (cause.moved_seconds < 0 ? "-" : "") + seconds_text(std::abs(cause.moved_seconds))},
                    {"without it", seconds_text(cause.without.iteration_seconds)}});
  return bar;
}

BarChart chart_of(const ExplainAnswer& answer) {
  BarChart chart;
  chart.title = fmt::format("Where the time goes: {} on {}, {}", answer.policy, answer.machine,
                            std::filesystem::path(answer.trace).filename().string());
  chart.bars.push_back(time_bar(answer.run));
  chart.bars.push_back(
      plain_bar("", "ideal", answer.ideal_seconds, seconds_text(answer.ideal_seconds), "nothing moves"));
  for (const ExplainedCause& cause : answer.causes) chart.bars.push_back(cause_bar(cause));
  const char* joint = "without ";
  for (const ExplainedStep& step : answer.in_turn.steps) {
    chart.bars.push_back(plain_bar("an iteration, the causes taken away one after the other",
                                   joint + std::string(label_of(step.cause)), step.iteration_seconds,
                                   seconds_text(step.iteration_seconds)));
    joint = "and ";
  }
  if (answer.recomputation && !answer.recomputation->others.empty()) {
    const auto add = [&chart](const char* what, const TimeParts& run) {
      chart.bars.push_back(plain_bar("an iteration, by what is recomputed", what, run.fits ? run.iteration_seconds : 0,
                                     run.fits ? seconds_text(run.iteration_seconds) : "does not fit"));
    };
    add("as chosen", answer.run);
    for (const OtherRecomputation& other : answer.recomputation->others) {
      add(other.level == RecomputeLevel::keep ? "nothing" : "every layer", other.then);
    }
  }
  return chart;
}

template <typename Costly>
std::size_t keep_first(std::vector<Costly>& list, std::size_t top) {
  const std::size_t all = list.size();
  if (all > top) list.resize(top);
  return all;
}

}  // namespace

std::vector<ChartPart> chart_parts(const TimeParts& run) {
  std::vector<ChartPart> parts = {{{Ink::Kind::compute}, run.compute_seconds, "compute"},
                                  {{Ink::Kind::host}, run.gap_seconds, "host time"}};
  for (const StallCause cause : all_causes) {
    parts.push_back({stall_ink(cause), run.stall_seconds[cause], waits_text(cause)});
  }
  std::erase_if(parts, [](const ChartPart& part) { return part.value <= 0; });
  return parts;
}

bool has_member(const TimeParts& parts, std::string_view name) {
  return parts.fits || name == "fits" || name == "reason" || name == "iteration_seconds";
}

ExplainAnswer explain_answer(const Workload& workload, Explanation explanation, const References& references,
                             std::size_t top, double run_seconds) {
  ExplainAnswer answer;
  static_cast<Explanation&>(answer) = std::move(explanation);
  const Outcome& outcome = answer.outcome;
  answer.policy = outcome.policy;
  answer.machine = workload.machine.name;
  answer.trace = workload.scenario.trace.file;
  answer.fits = answer.run.fits;
  answer.reason = answer.run.reason;
  answer.ideal_seconds = references.ideal_seconds;
  references.name_bounds(answer, references.bound_seconds);
  answer.run_bound_seconds = references.bound_of(outcome.result);
  answer.bound_term = references.bound_term;
  answer.binding = term_answer(workload, references.binding, references.bound_rank);
  answer.all_ops = keep_first(answer.ops, top);
  answer.all_layers = keep_first(answer.layers, top);
  answer.all_tensors = keep_first(answer.tensors, top);
  if (answer.recomputation) answer.all_recomputed = keep_first(answer.recomputation->layers, top);
  answer.notes = notes_of(workload);
  if (!outcome.levels.empty()) {  // what was chosen, and why
    answer.notes.insert(answer.notes.end(), outcome.program.changes.begin(), outcome.program.changes.end());
    answer.notes.insert(answer.notes.end(), outcome.result.policy_notes.begin(), outcome.result.policy_notes.end());
  }
  const std::string note = storage_bound_note(workload, references.binding, references.bound_rank);
  if (!note.empty()) answer.notes.push_back(note);
  answer.rescaled = rescaling_answer(workload);
  answer.gpu_time = gpu_time_answer(workload);
  answer.manifest = manifest_json(workload, outcome.policy, outcome.options);
  answer.timing = {workload.load_seconds, run_seconds};
  answer.title = fmt::format("{} on {} under {}", trace_title(workload), machine_title(workload), outcome.policy);
  return answer;
}

Document document_of(const ExplainAnswer& answer) {
  Document document{.kind = "explain"};
  BarChart chart = chart_of(answer);
  document.title = chart.title;
  const TimeParts& run = answer.run;
  document.add_text((answer.title.empty()
                         ? fmt::format("{} on {} under {}", answer.trace, answer.machine, answer.policy)
                         : answer.title) +
                    "\n");
  if (!run.fits) {
    const std::string reason = run.reason.value_or("");
    document.add_text("  does not fit: " + printable(reason) + "; see `tencache fit`\n");
    document.add_paragraph("Does not fit: " + reason);
    document.add_chart(std::move(chart));
    return document;
  }
  if (!answer.outcome.ranks.empty()) document.add_text(fmt::format("  of rank {}, the slowest\n", run.rank));
  const double least_seconds = answer.bound_choice_seconds.value_or(answer.bound_seconds);
  const auto sentence = [&](const char* format, auto text, double bound_seconds) {
    return fmt::format(fmt::runtime(format), text(run.iteration_seconds), text(run.compute_seconds),
                       text(run.gap_seconds), text(answer.in_turn.attributed_seconds), text(answer.ideal_seconds),
                       text(bound_seconds), answer.bound_term, binding_text(answer.binding));
  };
  document.add_text(
      sentence("  iteration {} = compute {} + gaps {} + stalls {}\n"
               "  ideal {}; no policy is faster than {}, where {} binds:\n  {}\n\n",
               format_seconds, answer.title.empty() ? least_seconds : answer.run_bound_seconds));
  document.add_paragraph(
      sentence("Iteration {} = compute {} + gaps {} + stalls {}. Ideal {}; no policy is faster than "
               "{}, where {} binds.",
               seconds_text, least_seconds));
  document.add_chart(std::move(chart));
  if (answer.causes.empty()) {
    document.add_text("It waits for nothing.\n");
  } else {
    document.add_table(causes_table(answer));
    DocumentTable steps = steps_table(answer.in_turn);
    document.add_text("\n" + steps.title + ":\n");
    document.blocks.emplace_back(std::move(steps));
    document.add_text(remainder_text(answer));
    add_costly(document, answer);
  }
  if (answer.recomputation) add_recomputation(document, answer);
  document.add_text("\n");
  document.blocks.emplace_back(changes_table(answer));
  for (const std::string& note : answer.notes) document.add_text(note + "\n");
  return document;
}

}  // namespace tencache
