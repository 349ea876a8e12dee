#include "answers/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "answers/result.h"
#include "answers/text_table.h"
#include "answers/validation_gpu.h"

namespace tencache {
namespace {

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::within:
      return "within";
    case Verdict::missed:
      return "missed";
    case Verdict::listed:
      return "listed";
    case Verdict::skipped:
      return "skipped";
  }
  return "";
}

const char* name_of(RowKind kind) {
  switch (kind) {
    case RowKind::figure:
      return "figure";
    case RowKind::order:
      return "order";
    case RowKind::fails:
      return "fails";
    case RowKind::kernels:
      return "kernels";
  }
  return "";
}

bool is_share(const ValidationRow& row) {
  const bool rate = row.metric == Metric::hit_rate_tensors || row.metric == Metric::hit_rate_accesses ||
                    row.metric == Metric::hit_rate_bytes;
  return row.over.empty() && rate;
}

bool is_peak(Metric metric) {
  return metric == Metric::peak_bytes || metric == Metric::peak_bytes_less_optimizer ||
         metric == Metric::peak_activation_bytes;
}

// With its unit where it has one; ratios and seconds of four digits.
std::string figure_text(const ValidationRow& row, double value) {
  if (is_share(row) || row.kind == RowKind::kernels) return fmt::format("{:.1f} %", 100 * value);
  if (row.training) return fmt::format("{:.0f} tokens/s", value);
  if (!row.over.empty()) return fmt::format("{:.3f}", value);
  if (row.metric == Metric::link_bytes) return fmt::format("{:.4g} GB", value * 1e-9);
  if (is_peak(row.metric)) return fmt::format("{:.4g} GiB", value / GiB);
  return format_seconds(value);
}

std::string published_text(const ValidationRow& row) {
  if (row.kind == RowKind::kernels) return fmt::format("at most {:.0f} %", 100 * row.kernels->target);
  if (row.kind != RowKind::figure) return row.kind == RowKind::fails ? "fails" : "in this order";
  const Published& published = row.published;
  if (published.from == published.to) return figure_text(row, published.from);
  return figure_text(row, published.from) + " … " + figure_text(row, published.to);
}

std::string percent(double share) { return fmt::format("{:+.1f} %", 100 * share); }
std::string percent_or_none(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "none";
}

std::string simulated_text(const ValidationRow& row, const RowResult& result) {
  if (!result.simulated) return result.detail;
  return figure_text(row, *result.simulated) + (result.kernels ? ": " + result.detail : "");
}

// What stands in the last column: the verdict and why a row does not count.
std::string remark_of(const ValidationRow& row, const RowResult& result) {
  if (result.verdict == Verdict::skipped) return "skipped";
  if (row.fitted) return "fitted";
  if (!row.not_judged.empty()) return "not judged: " + row.not_judged;
  const bool figure = row.kind == RowKind::figure || row.kind == RowKind::kernels;
  if (result.verdict == Verdict::missed) return figure ? "missed" : "does not hold";
  return figure ? "" : "holds";
}

std::string workloads_text(const ValidationRow& row) {
  std::string text;
  for (const std::string& name : row.workloads) text += (text.empty() ? "" : ", ") + name;
  return row.workloads.size() > 1 && row.kind == RowKind::figure ? "mean of " + text : text;
}

template <typename Visit>
void each_row(const ValidationResult& result, Visit visit) {
  for (std::size_t e = 0; e < result.rows.size(); ++e) {
    const ValidationExperiment& experiment = result.file->experiments[e];
    for (std::size_t r = 0; r < result.rows[e].size(); ++r) visit(experiment, experiment.rows[r], result.rows[e][r]);
  }
}

// A cell of a table.
std::string cell(std::string text) {
  std::replace(text.begin(), text.end(), '|', '/');
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string tolerance_text(const ValidationFile& file) {
  std::string text;
  const auto add = [&text](const char* what, const std::optional<double>& most) {
    if (most) text += fmt::format("{}{} at most {:.0f} %", text.empty() ? "" : ", ", what, 100 * *most);
  };
  add("median", file.tolerance_median);
  add("p90", file.tolerance_p90);
  add("each", file.tolerance_worst);
  add("a GPU's median off by", file.tolerance_gpu_median);
  return text;
}

std::string summary_sentence(const ValidationSummary& all, bool with_p90 = false) {
  const std::string p90 = with_p90 ? ", p90 " + percent_or_none(all.p90) : "";
  return fmt::format(
      "{} rows count, {} of them missed; median error {}{}, worst {}. {} rows that a parameter was fitted on, {} that "
      "are listed only and {} that were skipped do not count.",
      all.judged, all.missed, percent_or_none(all.median), p90, percent_or_none(all.worst), all.fitted, all.listed,
      all.skipped);
}
std::string summary_sentence(const ValidationResult& result) {
  return summary_sentence(summarize({result}), result.file->kind == ValidationKind::gpu);
}

std::string failures_text(const ValidationResult& result) {
  if (result.passed) return "";
  std::string text;
  for (const std::string& failure : result.failures) text += (text.empty() ? ": " : "; ") + failure;
  return text;
}

void add_list(std::string& text, const std::string& title, const std::vector<std::string>& items) {
  if (items.empty()) return;
  text += "\n" + title + "\n\n";
  for (const std::string& item : items) text += "- " + item + "\n";
}

std::string experiment_table(const ValidationExperiment& experiment, const std::vector<RowResult>& rows) {
  std::string text = "\n### " + experiment.name + "\n\n";
  if (!experiment.source.empty()) text += experiment.source + "\n\n";
  text += "| | workload | published | simulated | error | |\n|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ValidationRow& row = experiment.rows[i];
    const RowResult& result = rows[i];
    const std::string source = row.source.empty() ? "" : " (" + row.source + ")";
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", cell(row.name + source), cell(workloads_text(row)),
                        published_text(row), cell(simulated_text(row, result)),
                        result.error ? percent(*result.error) : "", cell(remark_of(row, result)));
  }
  return text;
}

std::string runs_table(const ValidationResult& result) {
  std::string text =
      "\n### Simulations\n\n| workload | system | seconds an iteration | waits most for |\n|---|---|---|---|\n";
  for (const RunKey& key : runs_needed(*result.file)) {
    const RunFigures& run = result.runs.at(key);
    const std::string time = run.state == RunState::done ? fmt::format("{:.4g}", run.seconds) : cell(run.reason);
    text += fmt::format("| {} | {} | {} | {} |\n", cell(key.first), cell(key.second), time, run.waits_for);
  }
  return text;
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
  std::string text = "\n### Setup\n\n| system | policy and options | machine |\n|---|---|---|\n";
  for (const ValidationSystem& system : file.systems) {
    const std::string when =
        system.scenario.iterations == 0 ? "" : fmt::format("; iteration {}", system.scenario.iterations);
    text += fmt::format("| {} | `{}{}`{}{} | {} |\n", cell(system.name), system.scenario.policy.name,
                        settings_text(system.scenario.policy.settings), when,
                        generate_text("; traces with", system.generate), system.machine().name);
  }
  text += "\n| workload | | |\n|---|---|---|\n";
  for (const ValidationWorkload& workload : file.workloads) {
    std::string how = "recording " + workload.recording + ", " + workload.size_column;
    if (workload.recording.empty()) {
      how = generate_text("generated with", workload.generate);
    }
    for (const auto& [system, settings] : workload.settings) how += "; " + system + ":" + settings_text(settings);
    text += fmt::format("| {} | {} | {} |\n", cell(workload.name), cell(workload.title), cell(how));
  }
  return text;
}

std::string options_text(const ValidationFile& file) {
  if (file.options.empty()) return "";
  std::string text = "\n### Options\n\n| table | option | value | because |\n|---|---|---|---|\n";
  for (const StatedOption& o : file.options) {
    text += fmt::format("| {} | `--{}` | {} | {} |\n", cell(o.section), o.option, o.value, cell(o.source));
  }
  return text;
}

std::string file_markdown(const ValidationResult& result) {
  const ValidationFile& file = *result.file;
  std::string text =
      fmt::format("\n## {}\n\n{}{}\n\n", file.system, file.source, file.url.empty() ? "" : ", <" + file.url + ">");
  text += fmt::format("{} Tolerated: {}. {}{}.\n", summary_sentence(result), tolerance_text(file),
                      result.passed ? "Passed" : "**Not passed**", failures_text(result));
  if (const auto ratios = training_ratios(result); !ratios.empty()) {
    text += "\nRatios are simulated ÷ published throughput: above 1, the simulator is too fast.\n\n" +
            markdown_of(accuracy_grid(ratios));
  }
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    const auto ratios = training_ratios(result, i);
    if (by_pattern(ratios)) {
      text += "\n### " + file.experiments[i].name + ", by model and sequence\n\n" + markdown_of(pattern_grid(ratios));
    }
  }
  for (std::size_t i = 0; i < result.rows.size(); ++i) text += experiment_table(file.experiments[i], result.rows[i]);
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
std::vector<std::string> missed_rows(const std::vector<ValidationResult>& results) {
  std::vector<std::string> missed;
  for (const ValidationResult& result : results) {
    each_row(result, [&](const ValidationExperiment& experiment, const ValidationRow& row, const RowResult& of_row) {
      if (of_row.verdict != Verdict::missed) return;
      const std::string error = of_row.error ? fmt::format(" ({})", percent(*of_row.error)) : "";
      missed.push_back(fmt::format("{}, {}, {}: published {}, simulated {}{}.{}", result.file->system, experiment.name,
                                   row.name, published_text(row), simulated_text(row, of_row), error,
                                   row.note.empty() ? "" : " " + row.note));
    });
  }
  return missed;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json row_json(const ValidationExperiment& experiment, const ValidationRow& row, const RowResult& result) {
  Json json = {
      {"experiment", experiment.name}, {"row", row.name}, {"kind", name_of(row.kind)}, {"workloads", row.workloads}};
  if (row.kind == RowKind::figure) {
    json["metric"] = row.metric_text;
    json["of"] = row.of;
    json["over"] = row.over.empty() ? Json(nullptr) : Json(row.over);
    json["published"] = {{"text", row.published.text}, {"from", row.published.from}, {"to", row.published.to}};
    if (row.training) {
      json["training"] = {{"gpu", row.training->gpu},
                          {"model", row.training->model},
                          {"sequence", row.training->sequence},
                          {"gpus", row.training->gpus},
                          {"recomputed", row.training->recomputed}};
    }
  } else if (row.kind == RowKind::kernels) {
    const KernelGroup& group = *row.kernels;
    json["kernels"] = {
        {"chip", group.chip}, {"gpu", group.gpu}, {"kind", to_string(group.kind)}, {"target", group.target}};
    json["kernels"]["head_dimension"] = group.head_dimension == 0 ? Json(nullptr) : Json(group.head_dimension);
    json["kernels"]["causal"] = group.head_dimension == 0 ? Json(nullptr) : Json(group.causal);
    if (group.fp8) json["kernels"]["fp8"] = true;
    if (result.kernels) {
      json["kernels"]["count"] = result.kernels->kernels;
      json["kernels"]["median_ratio"] = result.kernels->median_ratio;
      json["kernels"]["median_error"] = result.kernels->median;
      json["kernels"]["p90_error"] = result.kernels->p90;
    }
  } else if (row.kind == RowKind::order) {
    json["order"] = row.order;
  } else {
    json["of"] = row.of;
  }
  json["source"] = row.source.empty() ? experiment.source : row.source;
  json["fitted"] = row.fitted;
  json["note"] = row.note.empty() ? Json(nullptr) : Json(row.note);
  json["not_judged"] = row.not_judged.empty() ? Json(nullptr) : Json(row.not_judged);
  json["verdict"] = name_of(result.verdict);
  json["simulated"] = or_null(result.simulated);
  json["error"] = or_null(result.error);
  json["detail"] = result.detail.empty() ? Json(nullptr) : Json(result.detail);
  return json;
}

Json run_json(const RunKey& key, const RunFigures& run) {
  Json json = {{"workload", key.first}, {"system", key.second}, {"iteration_seconds", nullptr}, {"reason", nullptr}};
  if (run.state != RunState::done) {
    json["reason"] = run.reason;
    return json;
  }
  json["iteration_seconds"] = run.seconds;
  json["gpu_hit_rate"] = {
      {"accesses", run.hit_rate_accesses}, {"bytes", run.hit_rate_bytes}, {"tensors", run.hit_rate_tensors}};
  Json traffic = Json::object();
  for (const auto& [link, bytes] : run.link_bytes) traffic[link] = bytes;
  json["traffic_bytes"] = std::move(traffic);
  json["policy_notes"] = run.notes;
  return json;
}

Json summary_json(const ValidationSummary& summary) {
  return {{"judged", summary.judged},          {"missed", summary.missed},
          {"fitted", summary.fitted},          {"listed", summary.listed},
          {"skipped", summary.skipped},        {"median_error", or_null(summary.median)},
          {"p90_error", or_null(summary.p90)}, {"worst_error", or_null(summary.worst)},
          {"passed", summary.passed}};
}

}  // namespace

namespace {

ValidationKind kind_of(SummaryOf which) {
  if (which == SummaryOf::gpu) return ValidationKind::gpu;
  return which == SummaryOf::memory ? ValidationKind::memory : ValidationKind::offloading;
}

}  // namespace

ValidationSummary summarize(const std::vector<ValidationResult>& results, SummaryOf which) {
  ValidationSummary all;
  std::vector<double> errors;
  for (const ValidationResult& result : results) {
    if (which != SummaryOf::all && kind_of(which) != result.file->kind) continue;
    const bool whole = which != SummaryOf::without_recordings;
    if (whole) all.passed = all.passed && result.passed;
    each_row(result, [&](const ValidationExperiment&, const ValidationRow& row, const RowResult& of_row) {
      if (!whole && result.file->needs_recording(row)) return;
      if (of_row.verdict == Verdict::skipped) ++all.skipped;
      if (of_row.verdict == Verdict::listed) ++(row.fitted ? all.fitted : all.listed);
      if (of_row.verdict != Verdict::within && of_row.verdict != Verdict::missed) return;
      ++all.judged;
      if (of_row.verdict == Verdict::missed) ++all.missed, all.passed = false;
      if (!of_row.error) return;
      all.worst = std::max(all.worst.value_or(0), std::abs(*of_row.error));
      if (!row.published.is_range()) errors.push_back(std::abs(*of_row.error));
    });
  }
  all.p90 = p90_of(errors);
  all.median = median_of(std::move(errors));
  return all;
}

namespace {

struct NamedSummary {
  const char* name;
  ValidationSummary summary;
  bool gpu;
};
// Of the kinds that are there.
std::vector<NamedSummary> summaries_of(const std::vector<ValidationResult>& results) {
  std::vector<NamedSummary> list;
  for (const auto& [name, which] : {std::pair{"Offloading systems", SummaryOf::offloading},
                                    {"Offloading systems, rows that need no recordings", SummaryOf::without_recordings},
                                    {"GPU", SummaryOf::gpu},
                                    {"GPU memory", SummaryOf::memory}}) {
    const ValidationSummary summary = summarize(results, which);
    if (summary.rows() != 0) list.push_back({name, summary, which == SummaryOf::gpu});
  }
  return list;
}

std::vector<TrainingRatio> all_ratios(const std::vector<ValidationResult>& results) {
  std::vector<TrainingRatio> all;
  for (const ValidationResult& result : results) {
    const std::vector<TrainingRatio> some = training_ratios(result);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::string rows_text(const ValidationResult& result) {
  Table table({"  experiment", "published", "simulated", "error", "row"});
  bool empty = true;
  for (std::size_t e = 0; e < result.rows.size(); ++e) {
    const ValidationExperiment& experiment = result.file->experiments[e];
    const bool only_missed = by_pattern(training_ratios(result, e));
    for (std::size_t r = 0; r < result.rows[e].size(); ++r) {
      const ValidationRow& row = experiment.rows[r];
      const RowResult& of_row = result.rows[e][r];
      if (only_missed && of_row.verdict != Verdict::missed) continue;
      empty = false;
      const bool figure = of_row.simulated.has_value();
      std::string remark = remark_of(row, of_row);
      if ((!figure || of_row.kernels) && !of_row.detail.empty()) remark += (remark.empty() ? "" : ": ") + of_row.detail;
      const bool has_published = row.kind == RowKind::figure || row.kind == RowKind::kernels;
      const std::string name = row.training ? row.training->gpu + ", " + row.name : row.name;
      table.add({"  " + experiment.name, has_published ? published_text(row) : "",
                 figure ? figure_text(row, *of_row.simulated) : "", of_row.error ? percent(*of_row.error) : "",
                 name + (remark.empty() ? "" : "  [" + remark + "]")});
    }
  }
  return empty ? "" : table.text();
}

}  // namespace

std::string validation_text(const std::vector<ValidationResult>& results) {
  std::string text;
  for (const ValidationResult& result : results) {
    text += result.file->system + "\n" + patterns_text(result) + rows_text(result);
    text += fmt::format("  {}{}\n\n", summary_sentence(result),
                        result.passed ? "" : " Not passed" + failures_text(result) + ".");
  }
  for (const NamedSummary& named : summaries_of(results)) {
    text += fmt::format("{}: {}\n", named.name, summary_sentence(named.summary, named.gpu));
  }
  const auto ratios = all_ratios(results);
  return text + (ratios.empty() || results.size() == 1 ? "" : "\n" + text_of(accuracy_grid(ratios)));
}

std::string validation_markdown(const std::vector<ValidationResult>& results) {
  std::string text =
      "# Published results, simulated again\n\n"
      "Written by `tencache validate --report`; the experiments are the files of `configs/validation` (their format:\n"
      "`validation-format.md`). An error is simulated ÷ published − 1 of a ratio, a rate or a time. Rows that a "
      "parameter\n"
      "was fitted on and rows that are listed only do not count; nor do those that could not be simulated.\n\n";
  text +=
      "| | rows that count | missed | median error | p90 | worst | fitted | listed only | skipped |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  const auto add = [&text](const std::string& name, const ValidationSummary& s) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", name, s.judged, s.missed,
                        percent_or_none(s.median), percent_or_none(s.p90), percent_or_none(s.worst), s.fitted, s.listed,
                        s.skipped);
  };
  for (const ValidationResult& result : results) add(cell(result.file->system), summarize({result}));
  for (const NamedSummary& named : summaries_of(results)) add("**" + std::string(named.name) + "**", named.summary);
  add_list(text, "Missed:", missed_rows(results));
  for (const ValidationResult& result : results) text += file_markdown(result);
  return text;
}

Json validation_json(const std::vector<ValidationResult>& results) {
  Json systems = Json::array();
  for (const ValidationResult& result : results) {
    const ValidationFile& file = *result.file;
    Json rows = Json::array(), runs = Json::array(), fitted = Json::array();
    each_row(result, [&](const ValidationExperiment& experiment, const ValidationRow& row, const RowResult& of_row) {
      rows.push_back(row_json(experiment, row, of_row));
    });
    for (const RunKey& key : runs_needed(file)) runs.push_back(run_json(key, result.runs.at(key)));
    for (const FittedParameter& p : file.fitted) {
      fitted.push_back({{"parameter", p.parameter}, {"value", p.value}, {"on", p.on}});
    }
    systems.push_back({{"name", file.name},
                       {"system", file.system},
                       {"source", file.source},
                       {"url", file.url},
                       {"kind", validation_kind_names()[static_cast<std::size_t>(file.kind)]},
                       {"tolerance",
                        {{"median", or_null(file.tolerance_median)},
                         {"p90", or_null(file.tolerance_p90)},
                         {"worst", or_null(file.tolerance_worst)},
                         {"gpu_median", or_null(file.tolerance_gpu_median)}}},
                       {"failures", result.failures},
                       {"gpus", accuracy_json(training_ratios(result))},
                       {"summary", summary_json(summarize({result}))},
                       {"fitted", std::move(fitted)},
                       {"remarks", file.remarks},
                       {"not_modelled", file.not_modelled},
                       {"rows", std::move(rows)},
                       {"runs", std::move(runs)}});
  }
  return {{"version", TENCACHE_VERSION},
          {"summary", summary_json(summarize(results, SummaryOf::offloading))},
          {"summary_without_recordings", summary_json(summarize(results, SummaryOf::without_recordings))},
          {"gpu_summary", summary_json(summarize(results, SummaryOf::gpu))},
          {"memory_summary", summary_json(summarize(results, SummaryOf::memory))},
          {"gpus", accuracy_json(all_ratios(results))},
          {"systems", std::move(systems)}};
}

}  // namespace tencache
