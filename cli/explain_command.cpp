// `tencache explain`: where an iteration's time goes, each second of it set beside a simulation without its cause.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>

#include "answers/bound.h"
#include "answers/result.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/tool_clock.h"
#include "studies/explain.h"
#include "studies/machine_parameter.h"

namespace tencache {
namespace {

struct ExplainArguments {
  Scenario workload;
  std::string policy;
  std::string policies = "foresight,g10,10cache,zero-infinity,on-demand";
  std::map<std::string, std::string> settings;
  std::size_t top = 5;
  bool json = false;
  Json command;  // for the manifest
};

struct Explained {
  const Workload& workload;
  const Explanation& explanation;
  const References& references;
  std::size_t top;

  const Trace& program() const { return explanation.outcome.program.trace; }
};

std::string change_text(StallCause cause) {
  switch (cause) {
    case StallCause::cpu_optimizer:
      return "the CPU's updates take no time";
    case StallCause::memory:
      return "GPU memory for everything";
    case StallCause::collective:
      return "ranks do not wait for each other";
    default:
      return std::string(to_string(cause)) + " takes no time";
  }
}

std::vector<std::string> notes_of_explained(const Explained& explained) {
  std::vector<std::string> notes = notes_of(explained.workload);
  const References& references = explained.references;
  const std::string note = storage_bound_note(explained.workload, references.binding, references.bound_rank);
  if (!note.empty()) notes.push_back(note);
  return notes;
}

std::string cause_name(std::size_t cause) { return std::string(to_string(static_cast<StallCause>(cause))); }

// ---- JSON -----------------------------------------------------------------------------------------------------------

Json stalls_json(const StallSeconds& stalls) {
  Json json = Json::object();
  for (std::size_t i = 0; i < stall_cause_count; ++i) json[cause_name(i)] = stalls[i];
  return json;
}

Json parts_json(const TimeParts& parts) {
  if (!parts.fits) return {{"fits", false}, {"reason", parts.reason}, {"iteration_seconds", nullptr}};
  return {{"fits", true},
          {"reason", nullptr},
          {"iteration_seconds", parts.seconds},
          {"compute_seconds", parts.compute},
          {"gap_seconds", parts.gaps},
          {"stall_seconds", stalls_json(parts.stalls)}};
}

Json causes_json(const Explanation& explanation) {
  Json list = Json::array();
  for (const ExplainedCause& cause : explanation.causes) {
    const auto if_fits = [&](double seconds) { return cause.without.fits ? Json(seconds) : Json(nullptr); };
    list.push_back({{"cause", to_string(cause.cause)},
                    {"attributed_seconds", cause.attributed},
                    {"change", change_text(cause.cause)},
                    {"confirmed_seconds", if_fits(cause.confirmed)},
                    {"still_seconds", if_fits(cause.still)},
                    {"moved_seconds", if_fits(cause.moved)},
                    {"without", parts_json(cause.without)}});
  }
  return list;
}

template <typename Costly, typename Describe>
Json costly_json(const std::vector<Costly>& list, std::size_t top, Describe describe) {
  Json json = Json::array();
  for (std::size_t i = 0; i < std::min(top, list.size()); ++i) {
    Json row = describe(list[i]);
    row["seconds"] = sum_of(list[i].stalls);
    row["stall_seconds"] = stalls_json(list[i].stalls);
    json.push_back(std::move(row));
  }
  return json;
}

// Causes taken away one after the other.
Json in_turn_json(const Explanation& explanation) {
  Json steps = Json::array();
  double confirmed = 0;
  for (const ExplainedStep& step : explanation.steps) {
    steps.push_back({{"cause", to_string(step.cause)},
                     {"change", change_text(step.cause)},
                     {"seconds", step.seconds},
                     {"iteration_seconds", step.without.seconds}});
    confirmed += step.seconds;
  }
  Json json = {{"steps", std::move(steps)},
               {"attributed_seconds", sum_of(explanation.parts.stalls)},
               {"confirmed_seconds", confirmed},
               {"remainder_seconds", explanation.remainder},
               {"refused", nullptr}};
  if (const auto& refused = explanation.refused_step) {
    json["refused"] = {
        {"cause", to_string(refused->cause)}, {"change", change_text(refused->cause)}, {"reason", refused->reason}};
  }
  return json;
}

Json op_json(const CostlyOp& op, const Trace& program) {
  const Op& of = program.ops[op.op];
  return {{"op", op.op}, {"name", program.name(of)}, {"module", program.module(of)}, {"phase", to_string(of.phase)}};
}

// `iteration_seconds`: of the run that is explained.
Json tensor_json(const CostlyTensor& tensor, const Trace& program, double iteration_seconds) {
  const Tensor& of = program.tensors[tensor.tensor];
  Json row = {{"tensor", tensor.tensor},
              {"name", program.name(of)},
              {"role", to_string(of.role)},
              {"bytes", of.bytes},
              {"gained_without_seconds", nullptr}};
  if (tensor.without && tensor.without->fits) {
    row["gained_without_seconds"] = iteration_seconds - tensor.without->seconds;
  }
  return row;
}

Json changes_json(const MachineSpec& machine, const Explanation& explanation) {
  Json changes = Json::array();
  for (const ExplainedChange& change : explanation.changes) {
    changes.push_back(
        {{"change", change.what},
         {"kind", change.policy ? "policy" : "machine"},
         {"name", change.parameter},
         {"value", change.policy ? Json(nullptr) : Json(change.value)},
         {"unit", change.policy ? Json(nullptr) : Json(to_string(parameter_named(machine, change.parameter).unit()))},
         {"fits", change.then.fits},
         {"iteration_seconds", change.then.fits ? Json(change.then.seconds) : Json(nullptr)},
         {"gained_seconds", change.then.fits ? Json(explanation.parts.seconds - change.then.seconds) : Json(nullptr)}});
  }
  return changes;
}

Json explanation_json(const Explained& explained) {
  const Explanation& explanation = explained.explanation;
  const Trace& program = explained.program();
  const bool fits = explanation.parts.fits;
  const References& references = explained.references;
  Json json = {{"policy", explanation.outcome.policy},
               {"machine", explained.workload.machine.name},
               {"trace", explained.workload.scenario.trace.file},
               {"fits", fits},
               {"reason", fits ? Json(nullptr) : Json(explanation.parts.reason)},
               {"run", parts_json(explanation.parts)},
               {"ideal_seconds", references.ideal_seconds},
               {"bound_seconds", references.bound_seconds},
               {"bound_term", references.bound_term},
               {"binding", to_json_of(term_answer(explained.workload, references.binding, references.bound_rank))},
               {"causes", causes_json(explanation)},
               {"in_turn", in_turn_json(explanation)}};
  json["ops"] = costly_json(explanation.ops, explained.top, [&](const CostlyOp& op) { return op_json(op, program); });
  json["layers"] = costly_json(explanation.layers, explained.top, [](const CostlyLayer& layer) -> Json {
    return {{"layer", layer.layer}};
  });
  json["tensors"] = costly_json(explanation.tensors, explained.top, [&](const CostlyTensor& tensor) {
    return tensor_json(tensor, program, explanation.parts.seconds);
  });
  json["stalls_of_no_tensor_seconds"] = explanation.without_tensor;
  json["changes"] = changes_json(explained.workload.machine, explanation);
  json["simulations"] = explanation.simulations;
  json["notes"] = notes_of_explained(explained);
  json["rescaled"] = rescaling_json(explained.workload);
  json["gpu_time"] = gpu_time_json(explained.workload);
  json["manifest"] = manifest_json(explained.workload, explanation.outcome.policy, explanation.outcome.options);
  return json;
}

// ---- Text -----------------------------------------------------------------------------------------------------------

// Below a microsecond is rounding.
std::string seconds_text(double seconds) { return format_seconds(seconds < 1e-6 ? 0 : seconds); }

std::string signed_seconds(double seconds) {
  return (seconds <= -1e-6 ? "-" : "") + seconds_text(seconds < 0 ? -seconds : seconds);
}

// "nvme_read 81 %, h2d 19 %"
std::string shares(const StallSeconds& stalls) {
  const double sum = sum_of(stalls);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    if (stalls[i] > 0.005 * sum) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return stalls[a] > stalls[b]; });
  std::vector<std::string> texts;
  for (const std::size_t i : order) texts.push_back(fmt::format("{} {:.0f} %", cause_name(i), 100 * stalls[i] / sum));
  return join(texts);
}

// Where the time goes that a cause held before, or what else gets shorter with it.
std::string moved_text(const Explanation& explanation, const ExplainedCause& cause) {
  const TimeParts &before = explanation.parts, &after = cause.without;
  const double least = 0.005 * before.seconds;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    if (static_cast<StallCause>(i) == cause.cause) continue;
    const double change = after.stalls[i] - before.stalls[i];
    if (change > least || change < -least)
      texts.push_back(cause_name(i) + " " + (change > 0 ? "+" : "") + signed_seconds(change));
  }
  const double change = after.compute + after.gaps - before.compute - before.gaps;
  const bool changes = change > least || change < -least;
  if (after.rank != before.rank) {
    texts.push_back(fmt::format("rank {} is then the slowest", after.rank));
    if (changes) {
      texts.back() +=
          fmt::format("; it computes {} {}", seconds_text(std::abs(change)), change > 0 ? "longer" : "less");
    }
  } else if (changes) {
    texts.push_back(fmt::format("compute and gaps {}{}", change > 0 ? "+" : "", signed_seconds(change)));
  }
  return join(texts);
}

std::string causes_text(const Explanation& explanation) {
  Table table({"waits for", "attributed", "confirmed", "still", "moved", "to or from"});
  std::string refused;
  for (const ExplainedCause& cause : explanation.causes) {
    std::vector<std::string> row = {std::string(to_string(cause.cause)), seconds_text(cause.attributed)};
    if (cause.without.fits) {
      row.insert(row.end(), {signed_seconds(cause.confirmed), signed_seconds(cause.still), signed_seconds(cause.moved),
                             moved_text(explanation, cause)});
    } else {
      row.insert(row.end(), {"-", "-", "-", "no such run: " + cause.without.reason});
    }
    table.add(std::move(row));
  }
  return table.text();
}

std::string steps_text(const Explanation& explanation) {
  std::string text = "\nTaken away one after the other, the longest first:\n";
  Table table({"  without", "gained", "iteration"});
  double confirmed = 0;
  for (const ExplainedStep& step : explanation.steps) {
    table.add({"  " + std::string(step.cause == explanation.steps.front().cause ? "" : "and ") +
                   std::string(to_string(step.cause)),
               signed_seconds(step.seconds), seconds_text(step.without.seconds)});
    confirmed += step.seconds;
  }
  if (const auto& refused = explanation.refused_step) {
    table.add_wide(fmt::format("  {}{}", explanation.steps.empty() ? "" : "and ", to_string(refused->cause)),
                   "no such run, and no further: " + refused->reason, 160);
  }
  const double attributed = sum_of(explanation.parts.stalls);
  text += table.text() + fmt::format("  attributed {}, confirmed {}, remainder {} ({:.2f} %)", seconds_text(attributed),
                                     signed_seconds(confirmed), signed_seconds(explanation.remainder),
                                     attributed > 0 ? 100 * explanation.remainder / attributed : 0.0);
  if (!explanation.steps.empty() && explanation.steps.back().without.rank != explanation.parts.rank) {
    const TimeParts &last = explanation.steps.back().without, &first = explanation.parts;
    const double more = last.compute + last.gaps - first.compute - first.gaps;
    text += fmt::format(": rank {} is then the slowest, which computes {} {}", last.rank, seconds_text(std::abs(more)),
                        more > 0 ? "longer" : "less");
  }
  return text + "\n";
}

std::string shortened(const std::string_view text, std::size_t width) {
  if (text.size() <= width) return std::string(text);
  std::string_view end = text.substr(text.size() - width + 1);
  while (!end.empty() && columns_of(end.substr(0, 1)) == 0) end.remove_prefix(1);  // not in the middle of a character
  return "…" + std::string(end);
}

std::string costly_text(const Explained& explained) {
  constexpr std::size_t name_width = 44;
  const Explanation& explanation = explained.explanation;
  const Trace& program = explained.program();
  const auto few = [&](std::size_t count) { return std::min(explained.top, count); };
  Table ops({"op that waits longest", "phase", "waits", "for"});
  for (std::size_t i = 0; i < few(explanation.ops.size()); ++i) {
    const CostlyOp& row = explanation.ops[i];
    const Op& op = program.ops[row.op];
    const std::string name = fmt::format("{} {}", program.name(op), program.module(op));
    ops.add({fmt::format("{} {}", row.op, shortened(name, name_width)), std::string(to_string(op.phase)),
             seconds_text(sum_of(row.stalls)), shares(row.stalls)});
  }
  Table layers({"layer", "waits", "for"});
  for (std::size_t i = 0; i < few(explanation.layers.size()); ++i) {
    const CostlyLayer& row = explanation.layers[i];
    layers.add({row.layer.empty() ? "(no module)" : shortened(row.layer, name_width), seconds_text(sum_of(row.stalls)),
                shares(row.stalls)});
  }
  Table tensors({"tensor waited for", "role", "bytes", "waits", "gained without", "for"});
  for (std::size_t i = 0; i < few(explanation.tensors.size()); ++i) {
    const CostlyTensor& row = explanation.tensors[i];
    const Tensor& tensor = program.tensors[row.tensor];
    tensors.add(
        {shortened(program.name(tensor), name_width), std::string(to_string(tensor.role)), format_bytes(tensor.bytes),
         seconds_text(sum_of(row.stalls)),
         row.without && row.without->fits ? signed_seconds(explanation.parts.seconds - row.without->seconds) : "-",
         shares(row.stalls)});
  }
  std::string text =
      fmt::format("\n{} of {} ops that wait:\n{}", few(explanation.ops.size()), explanation.ops.size(), ops.text());
  text +=
      fmt::format("\n{} of {} layers:\n{}", few(explanation.layers.size()), explanation.layers.size(), layers.text());
  text +=
      fmt::format("\n{} of {} tensors, on their way in or out ({} wait for none):\n{}", few(explanation.tensors.size()),
                  explanation.tensors.size(), seconds_text(explanation.without_tensor), tensors.text());
  return text;
}

std::string changes_text(const Explanation& explanation) {
  Table table({"what would help", "iteration", "gained", ""});
  for (const ExplainedChange& change : explanation.changes) {
    if (!change.then.fits) {
      table.add_wide(change.what, "does not fit: " + change.then.reason, 100);
      continue;
    }
    const double gained = explanation.parts.seconds - change.then.seconds;
    table.add({change.what, seconds_text(change.then.seconds), signed_seconds(gained),
               fmt::format("{:.1f} %", 100 * gained / explanation.parts.seconds)});
  }
  return "\n" + table.text();
}

std::string explanation_text(const Explained& explained) {
  const Explanation& explanation = explained.explanation;
  const TimeParts& parts = explanation.parts;
  std::string text = fmt::format("{} on {} under {}\n", trace_title(explained.workload),
                                 machine_title(explained.workload), explanation.outcome.policy);
  if (!parts.fits) return text + "  does not fit: " + printable(parts.reason) + "; see `tencache fit`\n";
  if (!explanation.outcome.ranks.empty()) text += fmt::format("  of rank {}, the slowest\n", explanation.outcome.rank);
  text += fmt::format("  iteration {} = compute {} + gaps {} + stalls {}\n", format_seconds(parts.seconds),
                      format_seconds(parts.compute), format_seconds(parts.gaps), format_seconds(sum_of(parts.stalls)));
  const References& references = explained.references;
  text += fmt::format("  ideal {}; no policy is faster than {}, where {} binds:\n  {}\n\n",
                      format_seconds(references.ideal_seconds),
                      format_seconds(references.bound_of(explanation.outcome.result)), references.bound_term,
                      binding_text(term_answer(explained.workload, references.binding, references.bound_rank)));
  if (explanation.causes.empty()) {
    text += "It waits for nothing.\n";
  } else {
    text += causes_text(explanation) + steps_text(explanation) + costly_text(explained);
  }
  text += changes_text(explanation);
  for (const std::string& note : notes_of_explained(explained)) text += note + "\n";
  return text;
}

ExitCode run_explain(const ExplainArguments& arguments) {
  ExplainRequest request;
  request.policy = policies_named(arguments.policy).front();
  if (arguments.policy.find(',') != std::string::npos || arguments.policy == "all") {
    throw Error("--policy: name one; others to set beside it go to --policies");
  }
  if (arguments.policies != "none") request.other_policies = policies_named(arguments.policies);
  request.settings = arguments.settings;
  const Workload workload = load_workload(arguments.workload);
  request.trace = workload.trace.get();
  request.machine = &workload.machine;
  request.limits = limits_of(workload.scenario.iterations);
  request.tensors_confirmed = arguments.top;
  const std::int64_t start = tool_clock_ns();
  Explanation explanation;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t expected) {
      progress.show(fmt::format(
          "{} of about {} simulations, {} left", done, expected,
          format_seconds(seconds_since(start) / static_cast<double>(done) * static_cast<double>(expected - done))));
    };
    explanation = explain(request);
  }
  const References references = references_of(workload);
  const Explained explained{workload, explanation, references, arguments.top};
  if (arguments.json) {
    Json json = explanation_json(explained);
    json["timing"] = {{"load_seconds", workload.load_seconds}, {"run_seconds", seconds_since(start)}};
    print_repeatable(std::move(json), arguments.command);
  } else {
    print(explanation_text(explained));
  }
  return explanation.parts.fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_explain_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("explain", "Where the time goes, confirmed by simulations without each cause");
  auto arguments = std::make_shared<ExplainArguments>();
  add_workload_options(*command, arguments->workload);
  command->add_option("--policy,-p", arguments->policy, "A name of `tencache policies`")->required();
  add_settings_option(*command, arguments->settings);
  command
      ->add_option("--policies", arguments->policies, "Others to try instead: names separated by commas, all, or none")
      ->capture_default_str();
  command->add_option("--top", arguments->top, "So many ops, layers and tensors")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1'000'000}))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "The same as JSON (docs/schemas/explain.schema.json)");
  command->footer(
      "Attributed: how long the GPU stood for a cause. Confirmed: how much shorter the iteration is in a simulation "
      "without it; the rest is\nstill there, or has moved to what binds next. docs/explain.md. Exit code 1: it does "
      "not fit.\nThen the ops, layers and tensors that wait longest; and what would help: twice as much of each figure "
      "of "
      "the machine, one at a time,\nand the other policies of --policies. All of it is simulated: a few dozen runs.\n\n"
      "Examples:\n"
      "  tencache explain step.trace.jsonl.zst -m 10cache-l40s -p 10cache\n"
      "  tencache explain step.trace.jsonl.zst -m g5.xlarge -p zero-infinity --policies all --top 20 --json");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_json(*command);
    chosen = [arguments] { return run_explain(*arguments); };
  });
}

}  // namespace tencache
