#include "answers/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/split.h"
#include "core/text.h"

namespace tencache {
namespace {

// With its unit where it has one; ratios and seconds of four digits.
std::string figure_text(const ValidatedRow& row, double value) {
  const std::string metric = row.metric.value_or("");
  const bool is_ratio = row.over && *row.over;
  if (row.kind == RowKind::kernels || (!is_ratio && metric.starts_with("hit_rate."))) {
    return fmt::format("{:.1f} %", 100 * value);
  }
  if (row.training) return fmt::format("{:.0f} tokens/s", value);
  if (is_ratio) return fmt::format("{:.3f}", value);
  if (metric.starts_with("bytes.")) return fmt::format("{:.4g} GB", value * 1e-9);
  if (metric.starts_with("peak_")) return fmt::format("{:.4g} GiB", value / GiB);
  return format_seconds(value);
}

std::string published_text(const ValidatedRow& row) {
  if (row.kernels) return fmt::format("at most {:.0f} %", 100 * row.kernels->target);
  if (!row.published) return row.kind == RowKind::fails ? "fails" : "in this order";
  const std::string from = figure_text(row, row.published->from);
  return row.published->is_range() ? from + " … " + figure_text(row, row.published->to) : from;
}

std::string error_text(const ValidatedRow& row) {
  return row.error ? fmt::format("{:+.1f} %", 100 * *row.error) : std::string();
}
std::string percent_or_none(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "none";
}

std::string simulated_text(const ValidatedRow& row) {
  const std::string detail = row.detail.value_or("");
  if (!row.simulated) return detail;
  return figure_text(row, *row.simulated) + (row.kernels ? ": " + detail : "");
}

// What stands in the last column: the verdict and why a row does not count.
std::string remark_of(const ValidatedRow& row) {
  if (row.verdict == Verdict::skipped) return "skipped";
  if (row.fitted) return "fitted";
  if (row.not_judged) return "not judged: " + *row.not_judged;
  const bool figure = row.kind == RowKind::figure || row.kind == RowKind::kernels;
  if (row.verdict == Verdict::missed) return figure ? "missed" : "does not hold";
  return figure ? "" : "holds";
}

std::string workloads_text(const ValidatedRow& row) {
  return (row.workloads.size() > 1 && row.kind == RowKind::figure ? "mean of " : "") + join(row.workloads);
}

std::vector<TrainingRatio> ratios_of(const std::vector<ValidatedRow>& rows) {
  std::vector<TrainingRatio> ratios;
  for (const ValidatedRow& row : rows) {
    if (!row.training || !row.error) continue;
    ratios.push_back({&*row.training, row.fitted, !row.fitted && !row.not_judged, 1 + *row.error});
  }
  return ratios;
}

std::vector<std::vector<ValidatedRow>> by_experiment(const ValidatedSystem& system) {
  std::vector<std::vector<ValidatedRow>> experiments;
  for (const ValidatedRow& row : system.rows) {
    if (experiments.empty() || experiments.back().front().experiment != row.experiment) experiments.emplace_back();
    experiments.back().push_back(row);
  }
  return experiments;
}

std::string summary_sentence(const ValidationSummary& all, bool with_p90 = false) {
  const std::string p90 = with_p90 ? ", p90 " + percent_or_none(all.p90_error) : "";
  return fmt::format(
      "{} rows count, {} of them missed; median error {}{}, worst {}. {} rows that a parameter was fitted on, {} that "
      "are listed only and {} that were skipped do not count.",
      all.judged, all.missed, percent_or_none(all.median_error), p90, percent_or_none(all.worst_error), all.fitted,
      all.listed, all.skipped);
}
std::string summary_sentence(const ValidatedSystem& system) {
  return summary_sentence(system.summary, system.kind == ValidationKind::gpu);
}

std::string failures_text(const ValidatedSystem& system) {
  std::string text;
  for (const std::string& failure : system.failures) text += (text.empty() ? ": " : "; ") + failure;
  return text;
}

struct NamedSummary {
  const char* name;
  ValidationSummary summary;
  bool gpu = false;
};
// Of the kinds that are there.
std::vector<NamedSummary> summaries_of(const ValidationAnswer& answer) {
  std::vector<NamedSummary> list = {
      {"Offloading systems", answer.summary},
      {"Offloading systems, rows that need no recordings", answer.summary_without_recordings},
      {"GPU", answer.gpu_summary, true},
      {"GPU memory", answer.memory_summary}};
  std::erase_if(list, [](const NamedSummary& named) { return named.summary.rows() == 0; });
  return list;
}

// ---- Answer ---------------------------------------------------------------------------------------------------------

std::optional<std::string> said(const std::string& text) { return text.empty() ? std::nullopt : std::optional(text); }

KernelsAnswer kernels_answer(const KernelGroup& group, const std::optional<KernelFigures>& figures) {
  KernelsAnswer answer;
  answer.chip = group.chip;
  answer.gpu = group.gpu;
  answer.kind = to_string(group.kind);
  answer.target = group.target;
  if (group.head_dimension != 0) {
    answer.head_dimension = group.head_dimension;
    answer.causal = group.causal;
  }
  if (group.fp8) answer.fp8 = true;
  if (figures) {
    answer.count = figures->kernels;
    answer.median_ratio = figures->median_ratio;
    answer.median_error = figures->median;
    answer.p90_error = figures->p90;
  }
  return answer;
}

ValidatedRow row_answer(const ValidationExperiment& experiment, const ValidationRow& row, const RowResult& result) {
  ValidatedRow answer;
  answer.experiment = experiment.name;
  answer.row = row.name;
  answer.kind = row.kind;
  answer.workloads = row.workloads;
  if (row.kind == RowKind::figure) {
    answer.metric = row.metric;
    answer.over.emplace(said(row.over));
    answer.published = row.published;
    if (row.training) answer.training = *row.training;
  }
  if (row.kind == RowKind::figure || row.kind == RowKind::fails) answer.of = row.of;
  if (row.kind == RowKind::kernels) answer.kernels = kernels_answer(*row.kernels, result.kernels);
  if (row.kind == RowKind::order) answer.order = row.order;
  answer.source = row.source.empty() ? experiment.source : row.source;
  answer.fitted = row.fitted;
  answer.note = said(row.note);
  answer.not_judged = said(row.not_judged);
  answer.verdict = result.verdict;
  answer.simulated = result.simulated;
  answer.error = result.error;
  answer.detail = said(result.detail);
  return answer;
}

ValidationRun run_answer(const RunKey& key, const RunFigures& run) {
  ValidationRun answer{.workload = key.first,
                       .system = key.second,
                       .iteration_seconds = {},
                       .reason = run.reason,
                       .gpu_hit_rate = {},
                       .traffic_bytes = {},
                       .policy_notes = {}};
  if (run.state != RunState::done) return answer;
  answer.reason.reset();
  answer.iteration_seconds = run.figure("seconds");
  answer.gpu_hit_rate =
      ValidationHits{run.figure("hit_rate.accesses"), run.figure("hit_rate.bytes"), run.figure("hit_rate.tensors")};
  answer.traffic_bytes.emplace();
  for (const auto& [name, bytes] : run.figures) {
    if (name.starts_with("bytes.")) answer.traffic_bytes->emplace_back(name.substr(6), bytes);
  }
  answer.policy_notes = run.notes;
  return answer;
}

ValidatedSystem system_answer(const ValidationResult& result) {
  ValidatedSystem answer;
  static_cast<ValidationHead&>(answer) = *result.file;
  static_cast<ValidationRemarks&>(answer) = *result.file;
  answer.failures = result.failures;
  answer.gpus = accuracies_of(training_ratios(result));
  answer.summary = result;
  for (std::size_t e = 0; e < result.rows.size(); ++e) {
    const ValidationExperiment& experiment = result.file->experiments[e];
    for (std::size_t r = 0; r < result.rows[e].size(); ++r) {
      answer.rows.push_back(row_answer(experiment, experiment.rows[r], result.rows[e][r]));
    }
  }
  for (const RunKey& key : runs_needed(*result.file)) answer.runs.push_back(run_answer(key, result.runs.at(key)));
  return answer;
}

std::vector<TrainingRatio> all_ratios(const ValidationAnswer& answer) {
  std::vector<TrainingRatio> all;
  for (const ValidatedSystem& system : answer.systems) {
    const std::vector<TrainingRatio> some = ratios_of(system.rows);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// ---- Document -------------------------------------------------------------------------------------------------------

// Of tables that are long only what was missed: the rest is in tables by pattern.
DocumentTable terminal_rows(const ValidatedSystem& system) {
  DocumentTable table{
      "systems.rows", "", {"experiment", "published", "simulated", "error", "row"}, Shown::on_terminal, "  "};
  for (const std::vector<ValidatedRow>& rows : by_experiment(system)) {
    const bool only_missed = by_pattern(ratios_of(rows));
    for (const ValidatedRow& row : rows) {
      if (only_missed && row.verdict != Verdict::missed) continue;
      std::string remark = remark_of(row);
      if ((!row.simulated || row.kernels) && row.detail) remark += (remark.empty() ? "" : ": ") + *row.detail;
      table.add({row.experiment, row.published || row.kernels ? published_text(row) : "",
                 row.simulated ? figure_text(row, *row.simulated) : "", error_text(row),
                 (row.training ? row.training->gpu + ", " + row.row : row.row) +
                     (remark.empty() ? "" : "  [" + remark + "]")});
    }
  }
  return table;
}

DocumentTable page_rows(const ValidationAnswer& answer) {
  DocumentTable table{"systems.rows",
                      "",
                      {"system", "experiment", "row", "published", "simulated", "error", "verdict", "remark"},
                      Shown::on_page};
  for (const ValidatedSystem& system : answer.systems) {
    for (const ValidatedRow& row : system.rows) {
      const FigureUnit unit = unit_of_metric(row.metric.value_or(""), row.over && *row.over);
      const auto figure = [](const std::optional<double>& value, FigureUnit of) {
        return value ? Cell("", *value, of) : Cell("");
      };
      table.add({system.system, row.experiment, row.row, row.published ? row.published->text : "",
                 figure(row.simulated, unit), figure(row.error, FigureUnit::share), name_of(row.verdict),
                 row.detail.value_or("")});
    }
  }
  return table;
}

ChartBar bar_of(const ValidatedSystem& system, const ValidatedRow& row) {
  const double middle = (row.published->from + row.published->to) / 2, ratio = *row.simulated / middle;
  const auto same = [&](const ValidatedRow& other) {
    return other.row == row.row && other.experiment == row.experiment;
  };
  ChartBar bar;
  bar.group = system.system + ": " + row.experiment;
  // The workload first, since what is too long for the picture is cut off at its end.
  bar.label = (std::ranges::count_if(system.rows, same) > 1 ? join(row.workloads) + ": " : "") + row.row;
  bar.marked = row.verdict == Verdict::missed;
  const bool judged = row.verdict == Verdict::within;
  bar.parts = {{{bar.marked ? Ink::Kind::marked
                 : judged   ? Ink::Kind::plain
                            : Ink::Kind::pale},
                ratio,
                bar.marked ? "missed"
                : judged   ? "within what its file tolerates"
                           : "listed, not judged"}};
  bar.between = {row.published->from / middle, row.published->to / middle};
  const std::string off = fmt::format("{:+.1f} %", 100 * (ratio - 1));
  bar.text = off + (bar.marked ? ", missed" : row.fitted ? ", fitted" : "");
  bar.facts = {{"", bar.label},
               {"of", row.metric.value_or("")},
               {"published", row.published->text},
               {"simulated", fmt::format("{:.4g}", *row.simulated)},
               {"error", off}};
  if (row.note) bar.facts.emplace_back("note", *row.note);
  return bar;
}

// The summary that a picture of all is named after.
const ValidationSummary& first_summary(const ValidationAnswer& answer) {
  if (answer.summary.judged > 0) return answer.summary;
  return answer.gpu_summary.judged > 0 ? answer.gpu_summary : answer.memory_summary;
}

BarChart rows_chart(const ValidationAnswer& answer) {
  const ValidationSummary& summary = first_summary(answer);
  BarChart chart;
  chart.title = fmt::format("Simulated against published: {} rows judged, {} missed, median error {}", summary.judged,
                            summary.missed, percent(summary.median_error.value_or(0)));
  chart.mark_label = "published";
  for (const ValidatedSystem& system : answer.systems) {
    for (const ValidatedRow& row : system.rows) {  // orders, and what was skipped, are in the table
      const bool drawn = row.published && row.published->from + row.published->to > 0 && row.simulated.value_or(0) > 0;
      if (drawn) chart.bars.push_back(bar_of(system, row));
    }
  }
  return chart;
}

// ---- Markdown -------------------------------------------------------------------------------------------------------

// A cell of a table.
std::string cell(std::string text) {
  std::ranges::replace(text, '|', '/');
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string markdown_of(const DocumentTable& table) {
  std::string text, line;
  for (const Column& column : table.columns) {
    text += "| " + column.heading + (column.heading.empty() ? "" : " ");
    line += "|---";
  }
  text += "|\n" + line + "|\n";
  for (const DocumentTable::Row& row : table.rows) {
    for (const Cell& item : row.cells) text += "| " + cell(item.text) + " ";
    text += "|\n";
  }
  return text;
}

// Characters of UTF-8.
std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Would begin an item or a heading, if it came first in a line.
bool is_mark(std::string_view word) {
  if (word.empty()) return false;
  return word.find_first_not_of("-+*#>") == word.npos ||
         (word.back() == '.' && word.find_first_not_of("0123456789") == word.size() - 1);
}

// In lines of at most 120 characters, further ones with `indent`.
std::string wrapped(std::string_view line, std::string_view indent) {
  constexpr std::size_t most = 120;
  std::vector<std::string> words;
  for (const std::string& word : split(line, " ")) {
    if (!words.empty() && is_mark(word)) {
      words.back().append(" ").append(word);
    } else {
      words.emplace_back(word);
    }
  }
  std::string text;
  std::size_t used = 0;
  for (const std::string& word : words) {
    const bool fits = text.empty() || used + 1 + length_of(word) <= most;
    if (!fits) text.append("\n").append(indent);
    used = fits ? used : indent.size();
    if (fits && !text.empty()) {
      text += ' ';
      ++used;
    }
    text += word;
    used += length_of(word);
  }
  return text;
}

// Rows of tables and headings have to be one line each.
std::string within_lines(std::string_view text) {
  std::string result;
  for (const std::string& line : split(text, "\n")) {
    const bool whole = line.starts_with("|") || line.starts_with("#");
    result += (whole ? line : wrapped(line, line.starts_with("- ") ? "  " : "")) + "\n";
  }
  result.pop_back();  // the text's own last line is empty
  return result;
}

std::string tolerance_text(const ValidationTolerance& tolerance) {
  std::vector<std::string> limits;
  const auto add = [&limits](const char* what, const std::optional<double>& most) {
    if (most) limits.push_back(fmt::format("{} at most {:.0f} %", what, 100 * *most));
  };
  add("median", tolerance.median);
  add("p90", tolerance.p90);
  add("each", tolerance.worst);
  add("a GPU's median off by", tolerance.gpu_median);
  return join(limits);
}

void add_list(std::string& text, const std::string& title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  text += "\n" + title + "\n\n";
  for (const std::string& item : items) text += "- " + item + "\n";
}

std::string experiment_table(const ValidationExperiment& experiment, const std::vector<ValidatedRow>& rows) {
  std::string text = "\n### " + experiment.name + "\n\n";
  if (!experiment.source.empty()) text += experiment.source + "\n\n";
  DocumentTable table{"", "", {"", "workload", "published", "simulated", "error", ""}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& source = experiment.rows[i].source;
    table.add({rows[i].row + (source.empty() ? "" : " (" + source + ")"), workloads_text(rows[i]),
               published_text(rows[i]), simulated_text(rows[i]), error_text(rows[i]), remark_of(rows[i])});
  }
  return text + markdown_of(table);
}

std::string runs_table(const ValidationResult& result) {
  DocumentTable table{"", "", {"workload", "system", "seconds an iteration", "waits most for"}};
  for (const RunKey& key : runs_needed(*result.file)) {
    const RunFigures& run = result.runs.at(key);
    const bool done = run.state == RunState::done;
    table.add({key.first, key.second, done ? fmt::format("{:.4g}", run.figure("seconds")) : run.reason, run.waits_for});
  }
  return "\n### Simulations\n\n" + markdown_of(table);
}

std::string settings_text(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) text += " " + key + "=" + value;
  return text;
}

// " --batch 16 …" behind `title`; nothing of nothing.
std::string generate_text(const std::string& title, const GenerateSettings& settings) {
  if (settings.empty()) return "";
  std::string text;
  for (const auto& [name, value] : settings) text += (text.empty() ? "--" : " --") + name + " " + value;
  return title + " `" + text + "`";
}

std::string setup_text(const ValidationFile& file) {
  DocumentTable systems{"", "", {"system", "policy and options", "machine"}}, workloads{"", "", {"workload", "", ""}};
  for (const ValidationSystem& system : file.systems) {
    const std::string when =
        system.scenario.iterations == 0 ? "" : fmt::format("; iteration {}", system.scenario.iterations);
    systems.add({system.name,
                 fmt::format("`{}{}`{}{}", system.scenario.policy.name, settings_text(system.scenario.policy.settings),
                             when, generate_text("; traces with", system.generate)),
                 system.machine().name});
  }
  for (const ValidationWorkload& workload : file.workloads) {
    std::string how = workload.recording.empty() ? generate_text("generated with", workload.generate)
                                                 : "recording " + workload.recording + ", " + workload.size_column;
    for (const auto& [system, settings] : workload.settings) how += "; " + system + ":" + settings_text(settings);
    workloads.add({workload.name, workload.title, how});
  }
  return "\n### Setup\n\n" + markdown_of(systems) + "\n" + markdown_of(workloads);
}

std::string options_text(const ValidationFile& file) {
  if (file.options.empty()) return "";
  DocumentTable table{"", "", {"table", "option", "value", "because"}};
  for (const StatedOption& o : file.options) table.add({o.section, "`--" + o.option + "`", o.value, o.source});
  return "\n### Options\n\n" + markdown_of(table);
}

std::string file_markdown(const ValidationResult& result, const ValidatedSystem& system) {
  const ValidationFile& file = *result.file;
  std::string text =
      fmt::format("\n## {}\n\n{}{}\n\n", file.system, file.source, file.url.empty() ? "" : ", <" + file.url + ">");
  text += fmt::format("{} Tolerated: {}. {}{}.\n", summary_sentence(system), tolerance_text(file.tolerance),
                      result.passed ? "Passed" : "**Not passed**", result.passed ? "" : failures_text(system));
  if (const auto ratios = ratios_of(system.rows); !ratios.empty()) {
    text += "\nRatios are simulated ÷ published throughput: above 1, the simulator is too fast.\n\n" +
            markdown_of(accuracy_table(ratios));
  }
  const std::vector<std::vector<ValidatedRow>> experiments = by_experiment(system);
  for (const std::vector<ValidatedRow>& rows : experiments) {
    const auto ratios = ratios_of(rows);
    if (!by_pattern(ratios)) continue;
    text += "\n### " + rows.front().experiment + ", by model and sequence\n\n" + markdown_of(pattern_table(ratios));
  }
  for (const std::vector<ValidatedRow>& rows : experiments) {
    const auto experiment = std::ranges::find(file.experiments, rows.front().experiment, &ValidationExperiment::name);
    text += experiment_table(*experiment, rows);
  }
  std::vector<std::string> fitted;
  for (const FittedParameter& parameter : file.fitted) {
    fitted.push_back(fmt::format("{} = {}, on {}", parameter.parameter, parameter.value, parameter.on));
  }
  add_list(text, "Fitted:", fitted);
  add_list(text, "Remarks:", file.remarks);
  add_list(text, "Not modelled:", file.not_modelled);
  if (file.kind == ValidationKind::gpu) return text + options_text(file);
  return text + runs_table(result) + setup_text(file);
}

// With the reasons that the files name.
std::vector<std::string> missed_rows(const ValidationAnswer& answer) {
  std::vector<std::string> missed;
  for (const ValidatedSystem& system : answer.systems) {
    for (const ValidatedRow& row : system.rows) {
      if (row.verdict != Verdict::missed) continue;
      missed.push_back(fmt::format("{}, {}, {}: published {}, simulated {}{}.{}", system.system, row.experiment,
                                   row.row, published_text(row), simulated_text(row),
                                   row.error ? " (" + error_text(row) + ")" : "", row.note ? " " + *row.note : ""));
    }
  }
  return missed;
}

}  // namespace

ValidationAnswer validation_answer(const std::vector<ValidationResult>& results) {
  ValidationAnswer answer;
  answer.version = TENCACHE_VERSION;
  answer.summary = summarize(results, ValidationKind::offloading);
  answer.summary_without_recordings = summarize(results, ValidationKind::offloading, true);
  answer.gpu_summary = summarize(results, ValidationKind::gpu);
  answer.memory_summary = summarize(results, ValidationKind::memory);
  for (const ValidationResult& result : results) answer.systems.push_back(system_answer(result));
  answer.gpus = accuracies_of(all_ratios(answer));
  return answer;
}

Document document_of(const ValidationAnswer& answer) {
  BarChart chart = rows_chart(answer);
  Document document{.kind = "validate", .title = chart.title, .blocks = {}};
  document.add_paragraph(summary_sentence(first_summary(answer)));
  constexpr double most_times_published = 2;
  if (chart.fit(most_times_published)) document.blocks.emplace_back(std::move(chart));
  document.add_table(page_rows(answer));
  const auto add_grid = [&](DocumentTable grid, const char* indent) {
    grid.indent = indent;
    grid.shown = Shown::on_terminal;
    document.add_table(std::move(grid));
  };
  for (const ValidatedSystem& system : answer.systems) {
    document.add_text(system.system + "\n");
    for (const std::vector<ValidatedRow>& rows : by_experiment(system)) {
      const auto ratios = ratios_of(rows);
      if (!by_pattern(ratios)) continue;
      add_grid(pattern_table(ratios), "  ");
      document.add_text("\n");
    }
    if (const auto ratios = ratios_of(system.rows); !ratios.empty()) {
      add_grid(accuracy_table(ratios), "  ");
      document.add_text("\n");
    }
    document.add_table(terminal_rows(system));
    document.add_text(fmt::format("  {}{}\n\n", summary_sentence(system),
                                  system.summary.passed ? "" : " Not passed" + failures_text(system) + "."));
  }
  for (const NamedSummary& named : summaries_of(answer)) {
    document.add_text(fmt::format("{}: {}\n", named.name, summary_sentence(named.summary, named.gpu)));
  }
  if (const auto ratios = all_ratios(answer); !ratios.empty() && answer.systems.size() > 1) {
    document.add_text("\n");
    add_grid(accuracy_table(ratios), "");
  }
  return document;
}

std::string validation_markdown(const std::vector<ValidationResult>& results) {
  const ValidationAnswer answer = validation_answer(results);
  std::string text =
      "# Published results, simulated again\n\n"
      "Written by `tencache validate --report`; the experiments are the files of `configs/validation` (their format:\n"
      "`validation-format.md`). An error is simulated ÷ published − 1 of a ratio, a rate or a time. Rows that a "
      "parameter\n"
      "was fitted on and rows that are listed only do not count; nor do those that could not be simulated.\n\n";
  DocumentTable table{
      "", "", {"", "rows that count", "missed", "median error", "p90", "worst", "fitted", "listed only", "skipped"}};
  const auto add = [&table](const std::string& name, const ValidationSummary& s) {
    table.add({name, count_cell(s.judged), count_cell(s.missed), percent_or_none(s.median_error),
               percent_or_none(s.p90_error), percent_or_none(s.worst_error), count_cell(s.fitted), count_cell(s.listed),
               count_cell(s.skipped)});
  };
  for (const ValidatedSystem& system : answer.systems) add(system.system, system.summary);
  for (const NamedSummary& named : summaries_of(answer)) add("**" + std::string(named.name) + "**", named.summary);
  text += markdown_of(table);
  add_list(text, "Missed:", missed_rows(answer));
  for (std::size_t i = 0; i < results.size(); ++i) text += file_markdown(results[i], answer.systems[i]);
  return within_lines(text);
}

}  // namespace tencache
