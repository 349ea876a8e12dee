#include "answers/sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/questions.h"
#include "configs/load_policy_library.h"
#include "configs/model_yaml.h"
#include "configs/shipped_files.h"
#include "configs/tool_clock.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/split.h"
#include "core/text.h"
#include "studies/scenario_options.h"
#include "studies/sweep/merge.h"
#include "studies/sweep/ranks.h"
#include "studies/sweep/sweep_run.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

struct SweepQuestion {
  std::string file, output, csv, shard;
  std::size_t threads = 0, top = 10;
  bool any_policy = false;
  PriceChoice prices;
  Json command = nullptr;  // for the manifest
};

// "2/8".
std::pair<std::size_t, std::size_t> parse_shard(const std::string& text) {
  const std::vector<std::string> parts = split(text, "/");
  const std::size_t i = parse_number<std::size_t>(parts.front()).value_or(0);
  const std::size_t n = parse_number<std::size_t>(parts.back()).value_or(0);
  if (parts.size() == 2 && i >= 1 && i <= n) return {i, n};
  throw Error("--shard " + text + ": write it as i/n, from 1/n to n/n");
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

// Yes: something fits.
Answered report(SweepResults results, const SweepQuestion& asked) {
  const auto said = results.about.find("budget_usd_per_hour");
  const double budget = said == results.about.end() ? 0 : parse_number(said->second).value_or(0);
  if (!asked.csv.empty()) write_file(asked.csv, sweep_csv(results.rows));
  const bool any =
      std::ranges::any_of(results.rows, [](const SweepRow& row) { return row.fits && row.policy != "ideal"; });
  // A part may well be without combinations, or with such as do not fit.
  const auto kept = std::make_shared<const SweepResults>(std::move(results));
  return {.json = [kept, budget, shard = asked.shard] { return to_json_of(sweep_answer(*kept, budget, shard)); },
          .text = [kept, budget, top = asked.top] { return sweep_text(*kept, budget, top); },
          .yes = any || !asked.shard.empty()};
}

SweepPlan plan_of(const SweepQuestion& asked) {
  SweepPlan plan = plan_sweep(read_sweep_file(asked.file), asked.prices);
  if (!asked.shard.empty()) {
    const auto [i, n] = parse_shard(asked.shard);
    take_shard(plan, i, n);
  }
  plan.file_sha256 = sha256_of_file(plan.file.file);
  plan.command = asked.command.dump();
  plan.any_policy = asked.any_policy;
  return plan;
}

// As of one scenario.
std::vector<std::string> input_files(const SweepPlan& plan, const PriceChoice& prices) {
  std::vector<std::string> files = loaded_policy_libraries();
  files.insert(files.end(), {plan.file.file, prices.file});
  for (const SweepWorkload& workload : plan.file.workloads) {
    files.push_back(workload.trace.file);
    for (const auto& [name, value] : workload.trace.generate) {
      if (name == "model") files.push_back(find_model_file(value));
    }
  }
  for (const PlannedMachine& machine : plan.machines) {
    files.push_back(machine.spec.file);
    files.insert(files.end(), machine.spec.base_files.begin(), machine.spec.base_files.end());
  }
  return files;
}

Answered lead(const SweepQuestion& asked, RankLeader* leader) {
  if (asked.file.empty()) throw Error("a sweep file is missing, or `merge`; see tencache sweep --help");
  const SweepPlan plan = plan_of(asked);
  for (const std::string& warning : plan.warnings) remark(warning);
  std::vector<std::string> others = input_files(plan, asked.prices);
  check_output("--output", asked.output, others);
  others.push_back(asked.output);
  check_output("--csv", asked.csv, others);
  SweepStore store(asked.output);
  const SweepResume resumed = resume(plan, store);
  if (!resumed.done.empty()) {
    remark(fmt::format(
        "{} of {} combinations are in {} already{}", combination_count(plan, &resumed.done), combination_count(plan),
        asked.output,
        resumed.dropped == 0 ? "" : fmt::format("; {} that the sweep no longer has are dropped", resumed.dropped)));
  }
  {
    ProgressLine line;
    const std::int64_t start = tool_clock_ns();
    const auto progress = [&](std::uint64_t done, std::uint64_t rows) {
      const double share = static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(1, rows));
      const auto made = static_cast<double>(done - resumed.done.size());
      const double left = made > 0 ? seconds_since(start) / made * static_cast<double>(rows - done) : 0;
      constexpr std::size_t width = 30;
      const auto filled = static_cast<std::size_t>(share * width);
      std::string bar;
      for (std::size_t i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
      line.show(fmt::format("{} {} of {}, {} left", bar, done, rows, time_text(left)));
    };
    run_sweep(plan, store, resumed, asked.threads, progress, leader);
  }
  return report({.about = store.about(), .rows = store.rows()}, asked);
}

Answered sweep(const SweepQuestion& asked) {
  const std::unique_ptr<Ranks> ranks = open_ranks();
  if (ranks == nullptr) return lead(asked, nullptr);
  // Where one process is started for each core, each takes one, unless told.
  const std::size_t threads = std::max<std::size_t>(1, asked.threads);
  if (ranks->rank() == 0) {
    RankLeader leader(*ranks, threads);
    return lead(asked, &leader);
  }
  // Only rank 0 has an answer.
  SweepPlan plan;
  const auto prepare = [&] {
    plan = plan_of(asked);
    return answer_units(plan);
  };
  follow(*ranks, prepare, threads);
  return {};
}

struct MergeQuestion {
  std::vector<std::string> files;
  std::string output, csv;
  std::size_t top = 10;
};

Answered merge(const MergeQuestion& asked) {
  std::vector<std::string> inputs = asked.files;
  check_output("--output", asked.output, inputs);
  inputs.push_back(asked.output);
  check_output("--csv", asked.csv, inputs);
  const Merge merged = merge_sweeps(asked.files);
  {
    SweepStore store(asked.output);
    if (!store.rows().empty()) throw Error("--output: " + asked.output + " has rows already; name a new file");
    store.add(merged.results.rows);
    store.set_about(merged.results.about);
  }
  if (merged.missing != 0) {
    remark(fmt::format("{} of {} combinations are in none of the files", merged.missing, merged.combinations));
  }
  SweepQuestion shown;
  shown.csv = asked.csv;
  shown.top = asked.top;
  return report(merged.results, shown);
}

void add_top_option(QuestionOptions& options, std::size_t& top) {
  options
      .whole("--top", top, 0, 1'000'000, "So many of the fastest rows of each workload in the table, beside the front")
      .unrecorded();  // it is of the text
}

}  // namespace

std::unique_ptr<Question> sweep_question() {
  auto question = std::make_unique<Question>("sweep");
  std::vector<std::string> shipped;
  for (const auto& [name, path] : shipped_files("sweeps")) shipped.push_back(name);
  question->help = {
      .summary = "Simulate workloads × machines × policies × options, with cost and the Pareto front",
      .json = "Rows, fronts and advice as JSON",
      .footer =
          "The file says what is combined, and with which budget; its format and what a row holds: docs/sweep.md. "
          "Shipped are " +
          join(shipped) +
          ".\n"
          "Printed is, for each workload, the Pareto front of time against cost and what to take. With -o a sweep may "
          "be interrupted: the same command\n"
          "goes on where it was. Several computers: mpirun -n 4 tencache sweep …, or --shard i/n on each and `sweep "
          "merge`. What does not fit and\n"
          "what a policy refuses are rows with a reason. Exit code 1: nothing fits.\n\n"
          "Examples:\n"
          "  tencache sweep small\n"
          "  tencache sweep mine.yaml -o results.sqlite --csv results.csv\n"
          "  tencache sweep mine.yaml --shard 3/8 -o part3.sqlite"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<SweepAnswer>(
        "sweep", "TenCache sweep results",
        "What `tencache sweep --json` and `tencache sweep merge --json` print; docs/sweep.md says what each "
        "field means. The rows' fields are the columns of the results file and of the CSV; advice names rows "
        "by position.")};
  };
  auto asked = std::make_shared<SweepQuestion>();
  QuestionOptions& options = question->options;
  options.text("FILE", asked->file, "A sweep (.yaml), or the name of a shipped one");
  options.output("--output,-o", asked->output,
                 "Results as SQLite; where it is there already, only what is missing is simulated");
  options.output("--csv", asked->csv, "All rows as CSV");
  options.whole("--threads", asked->threads, 1, 1024, "Threads (default: one a core; under mpirun one a process)")
      .unrecorded();
  options.word("--shard", asked->shard, "i/n: only the i-th of n parts, for `sweep merge`");
  options.flag("--any-policy", asked->any_policy, "Recommend policies, too, that no system runs on such a step today");
  add_price_options(options, asked->prices);
  add_policy_library_option(options);
  add_top_option(options, asked->top);
  question->ask = [asked, question = question.get()] {
    asked->command = command_json(*question);
    asked->command["arguments"].erase("--shard");  // parts are joined under the command of the whole
    return sweep(*asked);
  };
  return question;
}

std::unique_ptr<Question> sweep_merge_question() {
  auto question = std::make_unique<Question>("sweep merge");
  question->help = {.summary = "Join the results of a sweep's parts",
                    .json = "Rows, fronts and advice as JSON",
                    .footer =
                        "The files must be of one sweep, build and set of prices. What is missing is said.\n\n"
                        "Examples:\n"
                        "  tencache sweep merge part1.sqlite part2.sqlite -o results.sqlite"};
  auto asked = std::make_shared<MergeQuestion>();
  QuestionOptions& options = question->options;
  options.list("FILES", asked->files, "Results of --shard i/n").needed();
  options.word("--output,-o", asked->output, "All of them, with their common fronts").needed();
  options.word("--csv", asked->csv, "All rows as CSV");
  add_top_option(options, asked->top);
  question->ask = [asked] { return merge(*asked); };
  return question;
}

}  // namespace tencache
