// What `tencache tune` prints.
#include "answers/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "configs/load_policy_library.h"
#include "core/reveal.h"
#include "core/text.h"

namespace tencache {
namespace {

constexpr std::size_t ties_shown = 5, reasons_shown = 3;
constexpr double most_times_the_best = 3;  // what is longer is cut off: it would flatten all others

// ---- The answer -----------------------------------------------------------------------------------------------------

// Reasons with their figures left out, and how many candidates have each.
std::vector<MisfitsAnswer> misfits_of(const TuneResult& result) {
  std::vector<MisfitsAnswer> reasons;
  std::vector<std::string> kinds;
  for (const Candidate& candidate : result.candidates) {
    if (candidate.fits) continue;
    std::string kind = candidate.misfit;
    std::erase_if(kind, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    const auto at = std::ranges::find(kinds, kind);
    if (at == kinds.end()) {
      kinds.push_back(kind);
      reasons.push_back({candidate.misfit, 1});
    } else {
      ++reasons[static_cast<std::size_t>(at - kinds.begin())].count;
    }
  }
  std::ranges::stable_sort(reasons, std::greater<>(), &MisfitsAnswer::count);
  return reasons;
}

Json manifest_of(const Tuned& tuned) {
  const TuneRequest& request = tuned.request;
  Json traces = Json::array(), hashes = Json::array();
  for (const Workload& workload : tuned.workloads) {
    traces.push_back(workload.scenario.trace.file);
    hashes.push_back(workload.trace_sha256.empty() ? Json(nullptr) : Json(workload.trace_sha256));
  }
  const Scenario& scenario = tuned.workloads.front().scenario;
  Json run = {{"traces", std::move(traces)},
              {"policy", request.policy},
              {"machine", scenario.machine.name},
              {"gpu_memory", scenario.machine.gpu_memory.empty() ? Json(nullptr) : Json(scenario.machine.gpu_memory)},
              {"cpu_memory", scenario.machine.cpu_memory.empty() ? Json(nullptr) : Json(scenario.machine.cpu_memory)},
              {"limits", scenario.machine.limits},
              {"iterations", scenario.iterations == 0 ? Json(nullptr) : Json(scenario.iterations)},
              {"set", request.settings},
              {"over", request.over},
              {"budget", request.budget},
              {"jitter", request.jitter},
              {"copies", tuned.result.candidates.front().seconds.front().size()},
              {"tie", request.tie}};
  if (request.most_per_token) run["max_tpot"] = to_seconds(*request.most_per_token);
  Json hash = {{"traces", std::move(hashes)}, {"machine", tuned.workloads.front().machine_sha256}};
  if (!scenario.machine.run_ahead.empty()) run["run_ahead"] = scenario.machine.run_ahead;
  if (!scenario.trace.rescale.assume_gpu.empty()) run["assume_gpu"] = scenario.trace.rescale.assume_gpu;
  if (scenario.trace.rescale.no_rescale) run["no_rescale"] = true;
  if (!request.from_deepspeed.empty()) {
    run["from_deepspeed"] = request.from_deepspeed;
    hash["from_deepspeed"] = request.from_deepspeed_sha256;
  }
  if (const PolicyOrigin origin = origin_of_policy(request.policy); !origin.file.empty()) {
    run["policy_library"] = origin.file;
    hash["policy_library"] = origin.sha256;
  }
  return {{"version", TENCACHE_VERSION}, {"hashes", std::move(hash)}, {"run", std::move(run)}, {"seed", request.seed}};
}

// Of the first workload; none: it is no text generation, or the candidate does not fit.
std::optional<TokensAnswer> tokens_of(const Tuned& tuned, const Candidate& candidate) {
  if (!candidate.tokens || !candidate.fits || candidate.capped) return std::nullopt;
  const auto tokens = static_cast<double>(tuned.workloads.front().trace->header.tokens_per_iteration());
  return TokensAnswer{tokens * candidate.work / candidate.median_seconds(0),
                      candidate.tokens->time_to_first_token_seconds, candidate.tokens->time_per_output_token_seconds};
}

CandidateAnswer candidate_answer(const Tuned& tuned, const Candidate& candidate) {
  CandidateAnswer answer;
  answer.settings = {candidate.settings.begin(), candidate.settings.end()};
  answer.fits = candidate.fits;
  answer.capped = candidate.capped;
  answer.relative_time = candidate.score;
  answer.samples = candidate.seconds;
  answer.changed = candidate.changed;
  if (const auto tokens = tokens_of(tuned, candidate)) answer.tokens.emplace(*tokens);
  if (!candidate.fits) answer.reason = candidate.misfit;
  for (std::size_t w = 0; w < candidate.seconds.size(); ++w) {
    answer.iteration_seconds.push_back(candidate.capped ? std::numeric_limits<double>::infinity()
                                                        : candidate.median_seconds(w));
  }
  return answer;
}

// ---- Words ----------------------------------------------------------------------------------------------------------

std::string settings_text(const Named<std::string>& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "the defaults" : text;
}

std::string gain_text(double relative) {
  return relative < 1 ? fmt::format("{:.3f} × as fast as", 1 / relative)
                      : fmt::format("{:.3f} × the time of", relative);
}

std::string off_text(double ratio) { return fmt::format("{:+.1f} %", 100 * (ratio - 1)); }

std::string outcome_text(const TuneAnswer& answer) {
  if (!answer.defaults.fits) {
    return fmt::format("The defaults do not fit: {}.\n", printable(answer.defaults.reason.value_or("")));
  }
  if (answer.ties_with_defaults) return "A tie with the defaults: there is nothing to gain.\n";
  return fmt::format("{} the defaults{}.\n", gain_text(answer.best.relative_time),
                     answer.workloads.size() > 1 ? " (geometric mean)" : "");
}

std::string step_text(const FlatnessStep& step) {
  if (!step.simulated) return step.value + " ?";
  if (!step.fits.value_or(false)) return step.value + " does not fit";
  return step.value + " " + (step.ties ? "=" : off_text(step.relative_time));
}

// What the signs of the table above mean.
std::string signs_text(const TuneAnswer& answer) {
  std::string text = "= a tie";
  std::vector<std::string> without_effect;
  bool unknown = false;
  for (const Flatness& flatness : answer.flatness) {
    if (!flatness.has_effect) {
      without_effect.push_back(flatness.knob);
    } else {
      unknown = unknown || !std::ranges::all_of(flatness.steps, &FlatnessStep::simulated);
    }
  }
  if (unknown) {
    text += answer.spent ? ", ? not simulated: the budget is spent; raise --budget"
                         : ", ? not simulated: the rest of the budget is kept for trying each change of a better one "
                           "without; raise --budget";
  }
  return text + "\n" + (without_effect.empty() ? "" : "Without effect here: " + join(without_effect) + ".\n");
}

std::string ties_and_misfits(const TuneAnswer& answer) {
  std::string text;
  if (!answer.ties.empty()) {
    text += fmt::format("{} other candidates tie with it{}:\n", answer.ties.size(),
                        answer.ties.size() > ties_shown ? ", among them" : "");
    for (std::size_t i = 0; i < std::min(ties_shown, answer.ties.size()); ++i) {
      text += fmt::format("  {}\n", settings_text(answer.ties[i].settings));
    }
  }
  std::size_t misfits = 0;
  for (const MisfitsAnswer& misfit : answer.misfits) misfits += misfit.count;
  if (misfits == 0) return text;
  text += fmt::format("{} of {} candidates do not fit, such as\n", misfits, answer.candidates);
  for (std::size_t i = 0; i < std::min(reasons_shown, answer.misfits.size()); ++i) {
    text += fmt::format("  {} × {}\n", answer.misfits[i].count, printable(answer.misfits[i].reason));
  }
  return text;
}

std::string head_text(const TuneAnswer& answer) {
  // A start that --over leaves out is none of the combinations.
  const bool outside = static_cast<double>(answer.candidates) > answer.combinations;
  const std::size_t candidates = answer.candidates - (outside ? 1 : 0);
  std::string text =
      fmt::format("{} on {}: {} candidate{} of {:.3g}{}{}, {} simulation{}\n", answer.policy,
                  answer.title.empty() ? answer.machine : answer.title, candidates, candidates == 1 ? "" : "s",
                  answer.combinations, answer.exhaustive ? " (all)" : "", outside ? " and the start" : "",
                  answer.simulations, answer.simulations == 1 ? "" : "s");
  text += answer.copies;
  if (answer.workloads.empty()) return text;
  for (const std::string& note : answer.workloads.front().notes) text += fmt::format("note: {}\n", note);
  return text;
}

std::string sentence(const TuneAnswer& answer) {
  std::string text = fmt::format("{} candidates of {}, {} simulations.", answer.candidates,
                                 with_unit(answer.combinations, FigureUnit::none), answer.simulations);
  if (!answer.best.fits) {
    if (!answer.plan || !answer.plan->predicted.plan.fits) return text + " None fits.";
    return fmt::format("{} None fits as recorded; with the plan of recomputation it does.", text);
  }
  text += fmt::format(" Best: {}.", settings_text(answer.best.settings));
  if (answer.ties_with_defaults) return text + " A tie with the defaults: there is nothing to gain.";
  if (!std::isfinite(answer.speedup)) return text;
  return fmt::format("{} {} as fast as the defaults.", text, with_unit(answer.speedup, FigureUnit::factor));
}

// ---- Tables ---------------------------------------------------------------------------------------------------------

DocumentTable times_table(const TuneAnswer& answer) {
  DocumentTable table{"workloads", "", {"workload", "best", "defaults"}};
  if (answer.start) table.columns.emplace_back("start");
  table.columns.emplace_back("ideal");
  table.columns.emplace_back("to have it", Shown::on_page);
  for (std::size_t w = 0; w < answer.workloads.size(); ++w) {
    const TunedWorkloadAnswer& workload = answer.workloads[w];
    const auto cell = [](const CandidateAnswer& candidate, double seconds) -> Cell {
      return candidate.capped ? "far slower" : candidate.fits ? seconds_cell(seconds) : "does not fit";
    };
    std::vector<Cell> row = {text_cell(workload.title.empty() ? workload.trace : workload.title, workload.trace),
                             cell(answer.best, workload.iteration_seconds),
                             cell(answer.defaults, workload.defaults_seconds)};
    if (answer.start) row.push_back(cell(*answer.start, answer.start->seconds(w)));
    row.push_back(seconds_cell(workload.ideal_seconds));
    row.emplace_back(workload.replay);
    table.add(std::move(row));
  }
  return table;
}

// Of a text generation: what its users see.
DocumentTable tokens_table(const TuneAnswer& answer) {
  DocumentTable table{"tokens", "", {"", "tokens/s", "time to first token", "time per output token"}};
  const auto add = [&](const char* name, const CandidateAnswer& candidate) {
    if (!candidate.tokens) return;
    const auto seconds = [](const std::optional<double>& value) { return value ? seconds_cell(*value) : Cell("-"); };
    table.add({name,
               Cell(fmt::format("{:.4g}", candidate.tokens->tokens_per_second), candidate.tokens->tokens_per_second,
                    FigureUnit::rate),
               seconds(candidate.tokens->time_to_first_token_seconds),
               seconds(candidate.tokens->time_per_output_token_seconds)});
  };
  add("best", answer.best);
  add("defaults", answer.defaults);
  return table;
}

// On a terminal a row a knob, on pages a row a step.
void add_flatness(Document& document, const TuneAnswer& answer) {
  DocumentTable knobs{
      "flatness", "", {"knob", "best", "default", "this one alone, others as in best"}, Shown::on_terminal};
  DocumentTable all{
      "flatness.steps", "This one alone, others as in best", {"knob", "value", "fits", "time", "ties"}, Shown::on_page};
  for (const Flatness& flatness : answer.flatness) {
    std::vector<std::string> steps;
    for (const FlatnessStep& step : flatness.steps) {
      steps.push_back(step_text(step));
      all.add({flatness.knob, step.value, step.fits ? yes_or_no(*step.fits) : Cell(""),
               Cell("", step.relative_time, FigureUnit::factor), yes_or_no(step.ties)});
    }
    if (!flatness.has_effect) continue;
    const auto knob = std::ranges::find(answer.knobs, flatness.knob, &KnobAnswer::name);
    knobs.add({flatness.knob, flatness.value, knob == answer.knobs.end() ? "" : knob->default_, join(steps)});
  }
  document.blocks.emplace_back(std::move(knobs));
  document.add_table(std::move(all));
}

DocumentTable misfits_table(const TuneAnswer& answer) {
  DocumentTable table{"misfits", "Candidates that do not fit", {"candidates", "such as"}, Shown::on_page};
  for (const MisfitsAnswer& misfit : answer.misfits) table.add({count_cell(misfit.count), misfit.reason});
  return table;
}

// ---- The picture ----------------------------------------------------------------------------------------------------

BarChart chart_of(const TuneAnswer& answer) {
  BarChart chart;
  chart.title = fmt::format("Tuning of {} on {}: {} of {:.3g} combinations simulated", answer.policy, answer.machine,
                            answer.candidates, answer.combinations);
  for (std::size_t w = 0; w < answer.workloads.size(); ++w) {
    const TunedWorkloadAnswer& workload = answer.workloads[w];
    const double best = workload.iteration_seconds;
    if (!(best > 0) || !std::isfinite(best)) continue;
    const auto add = [&](const char* label, double seconds) {
      const bool known = std::isfinite(seconds) && seconds > 0;
      chart.bars.push_back(plain_bar(std::filesystem::path(workload.trace).filename().string(), label,
                                     known ? seconds / best : 0,
                                     known ? seconds_text(seconds) + ", " + off_text(seconds / best) : "does not fit"));
    };
    add("best", best);
    chart.bars.back().marked = true;
    chart.bars.back().parts = {{{Ink::Kind::marked}, 1, "the best found"}};
    chart.bars.back().text = seconds_text(best);
    add("defaults", workload.defaults_seconds);
    if (answer.start && std::isfinite(answer.start->seconds(w))) {
      add("start", answer.start->seconds(w));
    }
    add("ideal", workload.ideal_seconds);
  }
  for (const Flatness& knob : answer.flatness) {
    for (const FlatnessStep& step : knob.steps) {
      if (!step.simulated) continue;
      const bool fits = step.fits.value_or(false);
      ChartBar bar =
          plain_bar("one knob of the best moved", fmt::format("{} {} → {}", knob.knob, knob.value, step.value),
                    fits ? std::min(1.0, step.relative_time) : 0,
                    !fits       ? "does not fit"
                    : step.ties ? "ties"
                                : off_text(step.relative_time));
      if (fits) bar.parts.push_back({{Ink::Kind::pale}, std::max(0.0, step.relative_time - 1), "slower than the best"});
      chart.bars.push_back(std::move(bar));
    }
  }
  return chart;
}

}  // namespace

TuneAnswer tune_answer(const Tuned& tuned) {
  const TuneResult& result = tuned.result;
  const Candidate &best = tuned.best(), &standard = tuned.standard();
  const ReservedMemory reserved = reserved_memory(tuned, best);
  const bool gained = best.fits && standard.fits;
  TuneAnswer answer;
  answer.policy = tuned.request.policy;
  answer.machine = tuned.machine().name;
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    const Workload& workload = tuned.workloads[w];
    answer.workloads.push_back({workload.scenario.trace.file, best.median_seconds(w), standard.median_seconds(w),
                                tuned.ideal_seconds[w], replay_command(tuned, best, w),
                                recomputation_of(*workload.trace, tuned.levels[w]), notes_of(workload),
                                gpu_time_answer(workload), trace_title(workload)});
    if (!has_gates(*workload.trace)) continue;
    answer.workloads.back().notes.emplace_back(
        "the experts that gates choose are drawn here, because nobody knows them in advance; a replay of the trace "
        "takes another time");
  }
  answer.best = candidate_answer(tuned, best);
  answer.defaults = candidate_answer(tuned, standard);
  if (tuned.start_candidate) answer.start = candidate_answer(tuned, result.candidates[*tuned.start_candidate]);
  answer.speedup = gained ? 1 / best.score : std::numeric_limits<double>::infinity();
  answer.ties_with_defaults = gained && ties(best, standard, tuned.request.tie);
  answer.pinned_buffer_bytes = reserved.pinned_buffers;
  for (const Knob& knob : tuned.knobs) {
    answer.knobs.push_back({knob.name, knob.values, tuned.defaults.at(knob.name), knob.unit});
  }
  answer.untested = result.untested;
  answer.flatness = result.flatness;
  for (const std::size_t index : result.ties) answer.ties.push_back(candidate_answer(tuned, result.candidates[index]));
  answer.misfits = misfits_of(result);
  answer.combinations = result.combinations;
  answer.exhaustive = result.exhaustive;
  answer.candidates = result.candidates.size();
  answer.simulations = result.simulations;
  answer.manifest = manifest_of(tuned);
  answer.timing = {.load_seconds = {}, .run_seconds = tuned.run_seconds};
  answer.title = machine_title(tuned.workloads.front());
  if (tuned.request.jitter > 0) {
    answer.copies = fmt::format("each by the median of {} copies whose durations vary by {:g} %\n",
                                standard.seconds.front().size(), 100 * tuned.request.jitter);
  }
  answer.cpu_home = reserved.cpu_home;
  answer.spent = result.simulations + standard.seconds.size() * standard.seconds.front().size() > tuned.request.budget;
  return answer;
}

Document document_of(const TuneAnswer& answer) {
  Document document{.kind = "tune"};
  BarChart chart = chart_of(answer);
  document.title = chart.title;
  document.add_text(head_text(answer));
  document.add_paragraph(sentence(answer));
  document.add_chart(std::move(chart), most_times_the_best);
  if (!answer.best.fits) {
    const bool plan_fits = answer.plan && answer.plan->predicted.plan.fits;
    if (answer.plan) add_plan(document, *answer.plan);
    document.add_text((plan_fits ? "\nWithout the plan none fits.\n" : "\nNone fits.\n") + ties_and_misfits(answer));
    document.add_table(misfits_table(answer));
    return document;
  }
  document.add_text("\n");
  document.add_table(times_table(answer));
  if (DocumentTable tokens = tokens_table(answer); !tokens.rows.empty()) {
    document.add_text("\n");
    document.add_table(std::move(tokens));
  }
  document.add_text(outcome_text(answer) + fmt::format("\nbest: {}\n", settings_text(answer.best.settings)));
  if (answer.pinned_buffer_bytes != 0) {
    document.add_text(fmt::format("CPU memory: {} for pinned buffers, {} for what stays there\n",
                                  format_bytes(answer.pinned_buffer_bytes), format_bytes(answer.cpu_home)));
  }
  if (!answer.untested.empty()) {
    document.add_text(
        fmt::format("The budget ended before it was known whether these gain anything: {}; raise "
                    "--budget.\n",
                    join(answer.untested)));
  }
  document.add_text("\n");
  add_flatness(document, answer);
  document.add_table(misfits_table(answer));
  document.add_text(signs_text(answer) + ties_and_misfits(answer));
  for (const TunedWorkloadAnswer& workload : answer.workloads) document.add_text("\n" + workload.replay + "\n");
  if (answer.plan) add_plan(document, *answer.plan);
  return document;
}

DocumentTable candidates_table(const Tuned& tuned) {
  DocumentTable table{"candidates", "", {"candidate", "best", "ties", "fits", "capped", "relative_time"}};
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) table.columns.emplace_back(fmt::format("seconds_{}", w + 1));
  const bool generation = std::ranges::any_of(tuned.result.candidates,
                                              [](const Candidate& candidate) { return candidate.tokens.has_value(); });
  if (generation) {
    for (const char* name : {"tokens_per_second", "time_to_first_token_seconds", "time_per_output_token_seconds"}) {
      table.columns.emplace_back(name);
    }
  }
  for (const auto& [name, value] : tuned.defaults) table.columns.emplace_back(name);
  table.columns.emplace_back("reason");
  const auto truth = [](bool is_true) -> Cell { return is_true ? "true" : "false"; };
  const auto number = [](double value) -> Cell { return std::isfinite(value) ? Cell("", value) : Cell(""); };
  for (std::size_t i = 0; i < tuned.result.candidates.size(); ++i) {
    const Candidate& candidate = tuned.result.candidates[i];
    const bool tied = std::ranges::find(tuned.result.ties, i) != tuned.result.ties.end();
    table.add({count_cell(i), truth(i == tuned.result.best), truth(tied), truth(candidate.fits),
               truth(candidate.capped), number(candidate.score)});
    std::vector<Cell>& row = table.rows.back().cells;
    for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
      row.push_back(candidate.capped ? Cell("") : number(candidate.median_seconds(w)));
    }
    if (generation) {
      const std::optional<TokensAnswer> tokens = tokens_of(tuned, candidate);
      const auto seconds = [&](const std::optional<double>& value) { return value ? number(*value) : Cell(""); };
      row.push_back(tokens ? number(tokens->tokens_per_second) : Cell(""));
      row.push_back(tokens ? seconds(tokens->time_to_first_token_seconds) : Cell(""));
      row.push_back(tokens ? seconds(tokens->time_per_output_token_seconds) : Cell(""));
    }
    for (const auto& [name, value] : tuned.resolved(candidate)) row.emplace_back(value);
    row.emplace_back(candidate.misfit);
  }
  return table;
}

}  // namespace tencache
