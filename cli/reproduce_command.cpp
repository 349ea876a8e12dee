// `tencache reproduce`: a result again from its manifest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>

#include "answers/intervals.h"
#include "answers/result.h"
#include "answers/result_file.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/load_policy_library.h"
#include "studies/faults.h"

namespace tencache {
namespace {

struct ReproduceArguments {
  std::string file;
  std::string trace, machine;  // where they are now; empty: where they were
  bool json = false;
};

// What the manifest says was asked for.
struct Request {
  WorkloadOptions options;
  SampleOptions sampling;
  std::string policy;
  std::map<std::string, std::string> settings;
};

std::string library_is_missing(const std::string& library) {
  return "is of a policy in the library " + library + "; if you trust it, add --policy-library " + library;
}

class ManifestReader {
 public:
  ManifestReader(const std::string& file, const Json& result) : file_(file), result_(result) {}

  Request read() const {
    if (result_.contains("measured") && !result_["measured"].is_boolean()) {
      fail("has a 'measured' that is neither true nor false");
    }
    if (result_.value("measured", false) || result_.contains("training")) {
      fail("was measured, which no run repeats to the byte; `run` it again and look at `diff`");
    }
    const Json& manifest = result_["manifest"];
    const Json& run = object(manifest, "run");
    constexpr const char* known[] = {"trace",      "recorded_by", "policy",     "machine",        "gpu_memory",
                                     "cpu_memory", "limits",      "iterations", "policy_library", "assume_gpu",
                                     "no_rescale", "prices",      "price",      "generate",       "faults"};
    for (const auto& [key, value] : run.items()) {
      if (key == "samples" || key == "sample_seed") continue;
      if (std::find(std::begin(known), std::end(known), key) == std::end(known)) {
        fail("manifest.run has '" + key + "', which this version cannot repeat");
      }
    }
    Request request;
    request.options.trace = text(run, "trace");
    request.options.machine = text(run, "machine");
    request.options.gpu_memory = text_or_null(run, "gpu_memory");
    request.options.cpu_memory = text_or_null(run, "cpu_memory");
    if (run.contains("limits")) {
      if (!run["limits"].is_array()) fail("manifest.run.limits is no list of limits");
      for (const Json& limit : run["limits"]) {
        if (!limit.is_string()) fail("manifest.run.limits is no list of limits");
        request.options.limits.push_back(limit.get<std::string>());
      }
    }
    request.options.faults = text_or_null(run, "faults");
    request.options.prices.file = text_or_null(run, "prices");
    if (run.contains("price")) {
      if (!run["price"].is_array()) fail("manifest.run.price is no list of prices");
      for (const Json& price : run["price"]) {
        if (!price.is_string()) fail("manifest.run.price is no list of prices");
        request.options.prices.prices.push_back(price.get<std::string>());
      }
    }
    request.options.rescale = {.assume_gpu = text_or_null(run, "assume_gpu"), .no_rescale = run.contains("no_rescale")};
    if (run.contains("generate")) {
      for (const auto& [key, value] : object(run, "generate").items()) {
        request.options.generate.emplace_back(key, text(run["generate"], key.c_str()));
      }
    }
    request.policy = text(run, "policy");
    // Code is run only where the user names it, never because a result does.
    if (const std::string library = text_or_null(run, "policy_library");
        !library.empty() && origin_of_policy(request.policy).file.empty()) {
      fail(library_is_missing(library));
    }
    if (run.contains("iterations") && !run["iterations"].is_null()) {
      if (!run["iterations"].is_number_unsigned() || run["iterations"].get<std::uint64_t>() > 1'000'000) {
        fail("manifest.run.iterations is no number of iterations");
      }
      request.options.iterations = run["iterations"].get<std::uint64_t>();
    }
    if (run.contains("samples")) {
      request.sampling = {.samples = number(run, "samples"), .seed = number(run, "sample_seed")};
      if (request.sampling.samples < fewest_samples || request.sampling.samples > most_samples) {
        fail(fmt::format("has {} samples; it may have {} to {}", request.sampling.samples, fewest_samples,
                         most_samples));
      }
    }
    for (const auto& [key, value] : object(manifest, "options").items()) {
      request.settings[key] = text(manifest["options"], key.c_str());
    }
    return request;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw Error(file_, 0, title_of(result_) + " " + message); }
  const Json& object(const Json& json, const char* key) const {
    if (!json.contains(key) || !json[key].is_object()) fail(std::string("lacks manifest.") + key);
    return json[key];
  }
  std::string text(const Json& json, const char* key) const {
    if (!json.contains(key) || !json[key].is_string()) fail(std::string("has no text '") + key + "' in its manifest");
    return json[key].get<std::string>();
  }
  std::uint64_t number(const Json& json, const char* key) const {
    const std::string digits = text(json, key);
    std::uint64_t value = 0;
    const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || rest != digits.data() + digits.size()) fail(std::string("has no number '") + key + "'");
    return value;
  }
  std::string text_or_null(const Json& json, const char* key) const {
    return !json.contains(key) || json[key].is_null() ? std::string() : text(json, key);
  }

  const std::string& file_;
  const Json& result_;
};

bool same_run(const Request& a, const Request& b) {
  return a.options.trace == b.options.trace && a.options.machine == b.options.machine &&
         a.options.generate == b.options.generate && a.options.gpu_memory == b.options.gpu_memory &&
         a.options.cpu_memory == b.options.cpu_memory && a.options.prices.file == b.options.prices.file &&
         a.options.prices.prices == b.options.prices.prices &&
         a.options.rescale.assume_gpu == b.options.rescale.assume_gpu &&
         a.options.rescale.no_rescale == b.options.rescale.no_rescale && a.options.limits == b.options.limits &&
         a.options.iterations == b.options.iterations && a.options.faults == b.options.faults &&
         a.sampling.samples == b.sampling.samples && a.sampling.seed == b.sampling.seed;
}

// Rows of one run, as `compare` made them: read once and, where they have intervals, sampled together, since an
// interval says how often its policy was the fastest of them. Appends the results of now.
void simulate_rows(const ReproduceArguments& arguments, const std::vector<Json>& then, const std::vector<Request>& rows,
                   std::size_t begin, std::size_t end, std::vector<Json>& now) {
  WorkloadOptions options = rows[begin].options;
  if (!options.generate.empty()) options.trace.clear();  // only the name of what was generated
  if (!arguments.trace.empty()) {
    options.trace = arguments.trace;
    options.generate.clear();
  }
  if (!arguments.machine.empty()) options.machine = arguments.machine;
  Workload workload = load_workload(options);
  workload.options = rows[begin].options;  // the result speaks of the names of then
  note_samples(workload, rows[begin].sampling);
  const std::optional<FaultPlan> faults = announce_faults(workload.options, workload.machine);
  const References references = references_of(workload);
  std::vector<Sampled> sampled;
  std::vector<std::size_t> sampled_rows;
  for (std::size_t i = begin; i < end; ++i) {
    if (rows[i].policy == bound_row) {
      now.push_back(bound_row_json(workload, references));
      continue;
    }
    const Outcome outcome = simulate_or_refuse(workload, rows[i].policy, rows[i].settings, faults ? &*faults : nullptr);
    now.push_back(result_json(workload, outcome, references));
    if (then[i].value("samples", Json()).is_null()) continue;
    sampled_rows.push_back(i);
    sampled.push_back(
        {rows[i].policy, rows[i].settings,
         outcome.result.fits ? outcome.result.iteration_seconds() : std::numeric_limits<double>::infinity()});
  }
  if (sampled.empty()) return;
  const Intervals intervals = sample_intervals(workload, sampled, rows[begin].sampling);
  for (std::size_t i = 0; i < sampled_rows.size(); ++i) {
    add_interval(now[sampled_rows[i]], intervals, intervals.policies[i]);
  }
}

Json without_timing(Json result) {
  result.erase("timing");
  return result;
}

// What changed before anything ran, in words.
std::string explanation(const std::vector<Change>& changes) {
  const auto changed = [&](const std::string& path) {  // or one of its parts: hashes.traces.0
    return std::any_of(changes.begin(), changes.end(), [&](const Change& change) {
      return change.path == path || change.path.starts_with(path + ".");
    });
  };
  std::string text;
  if (changes.empty()) return "  the figures are the same, but not the keys that they stand under\n";
  if (changed("manifest.version")) text += "  another version of tencache made it\n";
  if (changed("manifest.hashes.trace") || changed("manifest.hashes.traces"))
    text += "  the trace is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.from_deepspeed"))
    text += "  the file of --from-deepspeed is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.gpus")) text += "  the figures of GPUs that durations are rescaled by have changed\n";
  if (changed("manifest.hashes.machine")) text += "  the machine file is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.sweep")) text += "  the sweep's file is not the one of then: its hash differs\n";
  if (changed("manifest.hashes.combinations"))
    text += "  traces, machine files, policies or the build of tencache are not those of then\n";
  if (changed("manifest.hashes.prices") || changed("manifest.price.per_hour"))
    text += "  the price of the machine is not the one of then\n";
  if (changed("manifest.hashes.policy_library"))
    text += "  the policy library is not the one of then: its hash differs\n";
  if (text.empty()) text = "  version, trace, machine and options are the same; only what came out differs\n";
  return text;
}

// The results of `replay` and `compare` again.
std::vector<Json> rows_again(const ReproduceArguments& arguments, const std::vector<Json>& results) {
  std::vector<Request> requests;
  for (const Json& result : results) requests.push_back(ManifestReader(arguments.file, result).read());
  std::vector<Json> now;
  ProgressLine progress;
  for (std::size_t begin = 0, end = 0; begin < requests.size(); begin = end) {
    while (end < requests.size() && same_run(requests[begin], requests[end])) ++end;
    progress.show(fmt::format("{} of {} results", end, results.size()));
    simulate_rows(arguments, results, requests, begin, end, now);
  }
  return now;
}

// What a command printed of a whole question (`tune`, `explain`, …) again.
Json command_again(const ReproduceArguments& arguments, const Json& document) {
  const Json &library = member(member(document["manifest"], "run"), "policy_library"),
             &policy = member(document, "policy");
  if (library.is_string() && policy.is_string() && origin_of_policy(policy.get<std::string>()).file.empty()) {
    throw Error(arguments.file, 0, library_is_missing(library.get<std::string>()));
  }
  return Json::parse(output_of(words_again(arguments.file, document, arguments.trace, arguments.machine)));
}

std::string title_of_document(const Json& document) {
  if (!is_repeatable(document)) return title_of(document);
  const Json &name = member(document["manifest"]["command"], "name"), &machine = member(document, "machine");
  const Json& on = machine.is_string() ? machine : member(member(document, "sweep"), "name");
  return printable(fmt::format("{} {} {}", name.get<std::string>(), machine.is_string() ? "on" : "of",
                               on.is_string() ? on.get<std::string>() : std::string("?")));
}

// A table of all would bury what it is about.
std::string some_changes_text(std::vector<Change> changes) {
  constexpr std::size_t shown = 40;
  const std::size_t more = changes.size() - std::min(changes.size(), shown);
  changes.resize(changes.size() - more);
  return changes_text(changes, "then", "now") +
         (more == 0 ? std::string() : fmt::format("  and {} more; --json has all\n", more));
}

ExitCode reproduce(const ReproduceArguments& arguments) {
  Json document = read_json(arguments.file);
  std::vector<Json> results, now;
  if (is_repeatable(document)) {
    now.push_back(command_again(arguments, document));
    results.push_back(std::move(document));
  } else {
    results = results_of(std::move(document), arguments.file);
    now = rows_again(arguments, results);
  }
  std::size_t reproduced = 0;
  std::string text;
  Json list = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Json& again = now[i];
    const std::vector<Change> changes = changes_between(results[i], again);
    const bool same = without_timing(results[i]).dump() == without_timing(again).dump();
    if (same) {
      ++reproduced;
    } else {
      text += fmt::format("{}\n{}{}", title_of_document(results[i]), explanation(changes), some_changes_text(changes));
    }
    Json changes_list = Json::array();
    for (const Change& change : changes) changes_list.push_back(change_json(change));
    list.push_back({{"policy", member(again, "policy")},
                    {"machine", member(again, "machine")},
                    {"trace", member(again, "trace")},
                    {"reproduced", same},
                    {"changes", std::move(changes_list)}});
    if (is_repeatable(again)) list.back()["command"] = again["manifest"]["command"]["name"];
  }
  const bool all = reproduced == results.size();
  if (arguments.json) {
    print_json({{"reproduced", all}, {"file", arguments.file}, {"results", std::move(list)}});
  } else {
    print(fmt::format("{}reproduced {} of {} result{}{}\n", text, reproduced, results.size(),
                      results.size() == 1 ? "" : "s", all ? ": every figure, hash and option is the same" : ""));
  }
  return all ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_reproduce_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("reproduce", "A simulated result again, from its manifest");
  auto arguments = std::make_shared<ReproduceArguments>();
  command
      ->add_option("RESULT", arguments->file,
                   "A result, or a list of them, as replay, compare, fit, explain, endurance, bound, sensitivity, "
                   "sweep or tune print with --json")
      ->required();
  refuse_empty(command->add_option("--trace", arguments->trace, "Where the trace is now, if not where it was"));
  refuse_empty(
      command->add_option("--machine,-m", arguments->machine, "Where the machine is now, if not where it was"));
  add_policy_library_option(*command);
  command->add_flag("--json", arguments->json, "What changed, as JSON");
  command->footer(
      "Reproduced means the same bytes but for `timing`. Else it says what changed: version, hashes of trace and "
      "machine,\nfigures. Paths are those of then, from the present folder. Exit code 1: not reproduced.\n\n"
      "Examples:\n"
      "  tencache reproduce results.json\n"
      "  tencache reproduce results.json --trace elsewhere/step.trace.jsonl\n"
      "where results.json is, for instance, of\n"
      "  tencache compare step.trace.jsonl -m g10-a100 --json > results.json");
  command->callback([arguments, &chosen] { chosen = [arguments] { return reproduce(*arguments); }; });
}

}  // namespace tencache
