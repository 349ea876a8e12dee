// What `tencache tune` prints.
#include "answers/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "answers/result.h"
#include "answers/text_table.h"
#include "configs/load_policy_library.h"
#include "core/text.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

constexpr std::size_t ties_shown = 5, reasons_shown = 3;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json settings_json(const Settings& settings) {
  Json json = Json::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

std::string text_of_settings(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text.empty() ? "the defaults" : text;
}

Json candidate_json(const Tuned& tuned, const Candidate& candidate) {
  Json seconds = Json::array();
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    seconds.push_back(candidate.capped ? Json(nullptr) : number_or_null(candidate.median_seconds(w)));
  }
  Json samples = Json::array();
  for (const std::vector<double>& copies : candidate.seconds) {
    Json list = Json::array();
    for (const double value : copies) list.push_back(number_or_null(value));
    samples.push_back(std::move(list));
  }
  return {{"settings", settings_json(candidate.settings)},
          {"fits", candidate.fits},
          {"reason", candidate.fits ? Json(nullptr) : Json(candidate.misfit)},
          {"capped", candidate.capped},
          {"relative_time", number_or_null(candidate.score)},
          {"iteration_seconds", std::move(seconds)},
          {"samples", std::move(samples)},
          {"changed", candidate.changed}};
}

// Reasons with their figures left out, and how many candidates have each.
std::vector<std::pair<std::string, std::size_t>> misfit_reasons(const TuneResult& result) {
  std::vector<std::pair<std::string, std::size_t>> reasons;
  std::vector<std::string> kinds;
  for (const Candidate& candidate : result.candidates) {
    if (candidate.fits) continue;
    std::string kind = candidate.misfit;
    std::erase_if(kind, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    const auto at = std::ranges::find(kinds, kind);
    if (at == kinds.end()) {
      kinds.push_back(kind);
      reasons.emplace_back(candidate.misfit, 1);
    } else {
      ++reasons[static_cast<std::size_t>(at - kinds.begin())].second;
    }
  }
  std::ranges::stable_sort(reasons, std::greater<>(), [](const auto& reason) { return reason.second; });
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
  Json hash = {{"traces", std::move(hashes)}, {"machine", tuned.workloads.front().machine_sha256}};
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

Json flatness_json(const Flatness& flatness) {
  Json steps = Json::array();
  for (const Flatness::Step& step : flatness.steps) {
    steps.push_back({{"value", step.value},
                     {"simulated", step.known},
                     {"fits", step.known ? Json(std::isfinite(step.ratio)) : Json(nullptr)},
                     {"relative_time", step.known ? number_or_null(step.ratio) : Json(nullptr)},
                     {"ties", step.ties}});
  }
  return {{"knob", flatness.knob},
          {"value", flatness.value},
          {"has_effect", flatness.has_effect},
          {"steps", std::move(steps)}};
}

std::string step_text(const Flatness::Step& step) {
  if (!step.known) return step.value + " ?";
  if (!std::isfinite(step.ratio)) return step.value + " does not fit";
  if (step.ties) return step.value + " =";
  return fmt::format("{} {:+.1f} %", step.value, 100 * (step.ratio - 1));
}

std::string flatness_table(const Tuned& tuned) {
  Table table({"knob", "best", "default", "this one alone, others as in best"});
  std::vector<std::string> without_effect;
  bool unknown = false;
  for (const Flatness& flatness : tuned.result.flatness) {
    if (!flatness.has_effect) {
      without_effect.push_back(flatness.knob);
      continue;
    }
    std::vector<std::string> steps;
    for (const Flatness::Step& step : flatness.steps) {
      steps.push_back(step_text(step));
      unknown = unknown || !step.known;
    }
    table.add({flatness.knob, flatness.value, tuned.defaults.at(flatness.knob), join(steps)});
  }
  std::string text = table.text() + "= a tie";
  const Candidate& standard = tuned.standard();
  const bool spent =
      tuned.result.simulations + standard.seconds.size() * standard.seconds.front().size() > tuned.request.budget;
  if (unknown) {
    text += spent ? ", ? not simulated: the budget is spent; raise --budget"
                  : ", ? not simulated: the rest of the budget is kept for trying each change of a better one without; "
                    "raise --budget";
  }
  text += '\n';
  if (!without_effect.empty()) text += "Without effect here: " + join(without_effect) + ".\n";
  return text;
}

std::string gain_text(double relative) {
  return relative < 1 ? fmt::format("{:.3f} × as fast as", 1 / relative)
                      : fmt::format("{:.3f} × the time of", relative);
}

std::string times_text(const Tuned& tuned) {
  const Candidate& best = tuned.best();
  const Candidate& standard = tuned.standard();
  std::vector<std::string> header = {"workload", "best", "defaults"};
  if (tuned.start_candidate) header.push_back("start");
  header.push_back("ideal");
  Table table(header);
  const auto cell = [](const Candidate& candidate, std::size_t w) {
    if (candidate.capped) return std::string("far slower");
    return candidate.fits ? format_seconds(candidate.median_seconds(w)) : std::string("does not fit");
  };
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    std::vector<std::string> row = {trace_title(tuned.workloads[w]), cell(best, w), cell(standard, w)};
    if (tuned.start_candidate) row.push_back(cell(tuned.result.candidates[*tuned.start_candidate], w));
    row.push_back(format_seconds(tuned.ideal_seconds[w]));
    table.add(row);
  }
  std::string text = table.text();
  if (standard.fits) {
    text += ties(best, standard, tuned.request.tie)
                ? "A tie with the defaults: there is nothing to gain.\n"
                : fmt::format("{} the defaults{}.\n", gain_text(best.score),
                              tuned.workloads.size() > 1 ? " (geometric mean)" : "");
  } else {
    text += fmt::format("The defaults do not fit: {}.\n", printable(standard.misfit));
  }
  return text;
}

std::string ties_and_misfits(const Tuned& tuned) {
  const TuneResult& result = tuned.result;
  std::string text;
  if (!result.ties.empty()) {
    text += fmt::format("{} other candidates tie with it{}:\n", result.ties.size(),
                        result.ties.size() > ties_shown ? ", among them" : "");
    for (std::size_t i = 0; i < std::min(ties_shown, result.ties.size()); ++i) {
      text += fmt::format("  {}\n", text_of_settings(result.candidates[result.ties[i]].settings));
    }
  }
  const auto reasons = misfit_reasons(result);
  std::size_t misfits = 0;
  for (const auto& reason : reasons) misfits += reason.second;
  if (misfits != 0) {
    text += fmt::format("{} of {} candidates do not fit, such as\n", misfits, result.candidates.size());
    for (std::size_t i = 0; i < std::min(reasons_shown, reasons.size()); ++i) {
      text += fmt::format("  {} × {}\n", reasons[i].second, printable(reasons[i].first));
    }
  }
  return text;
}

}  // namespace

Json tune_json(const Tuned& tuned) {
  const TuneResult& result = tuned.result;
  Json workloads = Json::array();
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    workloads.push_back({{"trace", tuned.workloads[w].scenario.trace.file},
                         {"iteration_seconds", number_or_null(tuned.best().median_seconds(w))},
                         {"defaults_seconds", number_or_null(tuned.standard().median_seconds(w))},
                         {"ideal_seconds", tuned.ideal_seconds[w]},
                         {"replay", replay_command(tuned, tuned.best(), w)},
                         {"notes", notes_of(tuned.workloads[w])},
                         {"gpu_time", gpu_time_json(tuned.workloads[w])}});
  }
  Json knobs = Json::array(), flatness = Json::array(), tied = Json::array(), misfits = Json::array();
  for (const Knob& knob : tuned.knobs) {
    knobs.push_back(
        {{"name", knob.name}, {"values", knob.values}, {"default", tuned.defaults.at(knob.name)}, {"unit", knob.unit}});
  }
  for (const Flatness& one : result.flatness) flatness.push_back(flatness_json(one));
  for (const std::size_t index : result.ties) tied.push_back(candidate_json(tuned, result.candidates[index]));
  for (const auto& [reason, count] : misfit_reasons(result)) misfits.push_back({{"reason", reason}, {"count", count}});
  const bool gained = tuned.best().fits && tuned.standard().fits;
  return {{"policy", tuned.request.policy},
          {"machine", tuned.machine().name},
          {"workloads", std::move(workloads)},
          {"best", candidate_json(tuned, tuned.best())},
          {"defaults", candidate_json(tuned, tuned.standard())},
          {"start",
           tuned.start_candidate ? candidate_json(tuned, result.candidates[*tuned.start_candidate]) : Json(nullptr)},
          {"speedup", gained ? number_or_null(1 / tuned.best().score) : Json(nullptr)},
          {"ties_with_defaults", gained && ties(tuned.best(), tuned.standard(), tuned.request.tie)},
          {"pinned_buffer_bytes", reserved_memory(tuned, tuned.best()).pinned_buffers},
          {"knobs", std::move(knobs)},
          {"untested", result.untested},
          {"flatness", std::move(flatness)},
          {"ties", std::move(tied)},
          {"misfits", std::move(misfits)},
          {"combinations", result.combinations},
          {"exhaustive", result.exhaustive},
          {"candidates", result.candidates.size()},
          {"simulations", result.simulations},
          {"manifest", manifest_of(tuned)},
          {"timing", {{"run_seconds", tuned.run_seconds}}}};
}

std::string tune_text(const Tuned& tuned) {
  const TuneResult& result = tuned.result;
  // A start that --over leaves out is none of the combinations.
  const bool outside = static_cast<double>(result.candidates.size()) > static_cast<double>(result.combinations);
  const std::size_t candidates = result.candidates.size() - (outside ? 1 : 0);
  std::string text =
      fmt::format("{} on {}: {} candidate{} of {:.3g}{}{}, {} simulation{}\n", tuned.request.policy,
                  machine_title(tuned.workloads.front()), candidates, candidates == 1 ? "" : "s", result.combinations,
                  result.exhaustive ? " (all)" : "", outside ? " and the start" : "", result.simulations,
                  result.simulations == 1 ? "" : "s");
  if (tuned.request.jitter > 0) {
    text += fmt::format("each by the median of {} copies whose durations vary by {:g} %\n",
                        result.candidates.front().seconds.front().size(), 100 * tuned.request.jitter);
  }
  for (const std::string& note : notes_of(tuned.workloads.front())) text += fmt::format("note: {}\n", note);
  const Candidate& best = tuned.best();
  if (!best.fits) return text + "\nNone fits.\n" + ties_and_misfits(tuned);
  text += fmt::format("\n{}\nbest: {}\n", times_text(tuned), text_of_settings(best.settings));
  const ReservedMemory reserved = reserved_memory(tuned, best);
  if (reserved.pinned_buffers != 0) {
    text += fmt::format("CPU memory: {} for pinned buffers, {} for what stays there\n",
                        format_bytes(reserved.pinned_buffers), format_bytes(reserved.cpu_home));
  }
  if (!result.untested.empty()) {
    text += fmt::format("The budget ended before it was known whether these gain anything: {}; raise --budget.\n",
                        join(result.untested));
  }
  text += fmt::format("\n{}{}", flatness_table(tuned), ties_and_misfits(tuned));
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w)
    text += fmt::format("\n{}\n", replay_command(tuned, best, w));
  return text;
}

std::string tune_csv(const Tuned& tuned) {
  std::string text = "candidate,best,ties,fits,capped,relative_time";
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) text += fmt::format(",seconds_{}", w + 1);
  std::vector<std::string> names;
  for (const auto& [name, value] : tuned.defaults) names.push_back(name);
  for (const std::string& name : names) text += fmt::format(",{}", name);
  text += ",reason\n";
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : std::string(); };
  for (std::size_t i = 0; i < tuned.result.candidates.size(); ++i) {
    const Candidate& candidate = tuned.result.candidates[i];
    const bool tied = std::ranges::find(tuned.result.ties, i) != tuned.result.ties.end();
    text += fmt::format("{},{},{},{},{},{}", i, i == tuned.result.best, tied, candidate.fits, candidate.capped,
                        number(candidate.score));
    for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
      text += fmt::format(",{}", candidate.capped ? std::string() : number(candidate.median_seconds(w)));
    }
    const Settings all = tuned.resolved(candidate);
    for (const std::string& name : names) text += fmt::format(",{}", all.at(name));
    text += fmt::format(",{}\n", csv_field(candidate.misfit));
  }
  return text;
}

}  // namespace tencache
