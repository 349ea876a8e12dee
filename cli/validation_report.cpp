#include "cli/validation_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report.h"

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
  return kind == RowKind::figure ? "figure" : kind == RowKind::order ? "order" : "fails";
}

bool is_share(const ValidationRow& row) {
  const bool rate = row.metric == Metric::hit_rate_tensors || row.metric == Metric::hit_rate_accesses ||
                    row.metric == Metric::hit_rate_bytes;
  return row.over.empty() && rate;
}

// With its unit where it has one; ratios and seconds of four digits.
std::string figure_text(const ValidationRow& row, double value) {
  if (is_share(row)) return fmt::format("{:.1f} %", 100 * value);
  if (!row.over.empty()) return fmt::format("{:.3f}", value);
  if (row.metric == Metric::link_bytes || row.metric == Metric::peak_activation_bytes) {
    return fmt::format("{:.4g} GB", value * 1e-9);
  }
  return format_seconds(value);
}

std::string published_text(const ValidationRow& row) {
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
  if (result.simulated) return figure_text(row, *result.simulated);
  return result.detail;
}

// What stands in the last column: the verdict and why a row does not count.
std::string remark_of(const ValidationRow& row, const RowResult& result) {
  if (result.verdict == Verdict::skipped) return "skipped";
  if (row.fitted) return "fitted";
  if (!row.not_judged.empty()) return "not judged: " + row.not_judged;
  if (result.verdict == Verdict::missed) return row.kind == RowKind::figure ? "missed" : "does not hold";
  return row.kind == RowKind::figure ? "" : "holds";
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
  return fmt::format("median at most {:.0f} %, each at most {:.0f} %", 100 * file.tolerance_median,
                     100 * file.tolerance_worst);
}

std::string summary_sentence(const ValidationSummary& all) {
  return fmt::format(
      "{} rows count, {} of them missed; median error {}, worst {}. {} rows that a parameter was fitted on, {} that "
      "are "
      "listed only and {} that were skipped do not count.",
      all.judged, all.missed, percent_or_none(all.median), percent_or_none(all.worst), all.fitted, all.listed,
      all.skipped);
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
    const std::string when = system.iteration == 0 ? "" : fmt::format("; iteration {}", system.iteration);
    text += fmt::format("| {} | `{}{}`{}{} | {} |\n", cell(system.name), system.policy, settings_text(system.settings),
                        when, generate_text("; traces with", system.generate), system.machine.name);
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

std::string file_markdown(const ValidationResult& result) {
  const ValidationFile& file = *result.file;
  std::string text =
      fmt::format("\n## {}\n\n{}{}\n\n", file.system, file.source, file.url.empty() ? "" : ", <" + file.url + ">");
  const ValidationSummary summary = summarize({result});
  text += fmt::format("{} Tolerated: {}. {}.\n", summary_sentence(summary), tolerance_text(file),
                      result.passed ? "Passed" : "**Not passed**");
  for (std::size_t i = 0; i < result.rows.size(); ++i) text += experiment_table(file.experiments[i], result.rows[i]);
  std::vector<std::string> fitted;
  for (const FittedParameter& parameter : file.fitted) {
    fitted.push_back(fmt::format("{} = {}, on {}", parameter.parameter, parameter.value, parameter.on));
  }
  add_list(text, "Fitted:", fitted);
  add_list(text, "Remarks:", file.remarks);
  add_list(text, "Not modelled:", file.not_modelled);
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
  return {{"judged", summary.judged},
          {"missed", summary.missed},
          {"fitted", summary.fitted},
          {"listed", summary.listed},
          {"skipped", summary.skipped},
          {"median_error", or_null(summary.median)},
          {"worst_error", or_null(summary.worst)},
          {"passed", summary.passed}};
}

}  // namespace

ValidationSummary summarize(const std::vector<ValidationResult>& results) {
  ValidationSummary all;
  std::vector<double> errors;
  for (const ValidationResult& result : results) {
    all.judged += result.judged;
    all.fitted += result.fitted;
    all.listed += result.listed;
    all.skipped += result.skipped;
    all.missed += result.missed;
    all.passed = all.passed && result.passed;
    if (result.worst) all.worst = std::max(all.worst.value_or(0), *result.worst);
    errors.insert(errors.end(), result.errors.begin(), result.errors.end());
  }
  all.median = median_of(errors);
  return all;
}

std::string validation_text(const std::vector<ValidationResult>& results) {
  std::string text;
  for (const ValidationResult& result : results) {
    text += result.file->system + "\n";
    Table table({"  experiment", "published", "simulated", "error", "row"});
    each_row(result, [&](const ValidationExperiment& experiment, const ValidationRow& row, const RowResult& of_row) {
      const bool figure = of_row.simulated.has_value();
      std::string remark = remark_of(row, of_row);
      if (!figure && !of_row.detail.empty()) remark += (remark.empty() ? "" : ": ") + of_row.detail;
      table.add({"  " + experiment.name, row.kind == RowKind::figure ? published_text(row) : "",
                 figure ? figure_text(row, *of_row.simulated) : "", of_row.error ? percent(*of_row.error) : "",
                 row.name + (remark.empty() ? "" : "  [" + remark + "]")});
    });
    text += table.text();
    text += fmt::format("  {}{}\n\n", summary_sentence(summarize({result})), result.passed ? "" : " Not passed.");
  }
  return text + "All: " + summary_sentence(summarize(results)) + "\n";
}

std::string validation_markdown(const std::vector<ValidationResult>& results) {
  std::string text =
      "# Published results, simulated again\n\n"
      "Written by `tencache validate --report`; the experiments are the files of `configs/validation` (their format:\n"
      "`validation-format.md`). An error is simulated ÷ published − 1 of a ratio, a rate or a time. Rows that a "
      "parameter\n"
      "was fitted on and rows that are listed only do not count; nor do those that could not be simulated.\n\n";
  text +=
      "| | rows that count | missed | median error | worst | fitted | listed only | skipped |\n"
      "|---|---|---|---|---|---|---|---|\n";
  const auto add = [&text](const std::string& name, const ValidationSummary& s) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", name, s.judged, s.missed,
                        percent_or_none(s.median), percent_or_none(s.worst), s.fitted, s.listed, s.skipped);
  };
  for (const ValidationResult& result : results) add(cell(result.file->system), summarize({result}));
  if (results.size() > 1) add("all", summarize(results));
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
                       {"tolerance", {{"median", file.tolerance_median}, {"worst", file.tolerance_worst}}},
                       {"summary", summary_json(summarize({result}))},
                       {"fitted", std::move(fitted)},
                       {"remarks", file.remarks},
                       {"not_modelled", file.not_modelled},
                       {"rows", std::move(rows)},
                       {"runs", std::move(runs)}});
  }
  return {
      {"version", TENCACHE_VERSION}, {"summary", summary_json(summarize(results))}, {"systems", std::move(systems)}};
}

}  // namespace tencache
