// `tencache sweep` and `tencache sweep merge`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>

#include "answers/sweep.h"
#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/repeat.h"
#include "cli/workload_options.h"
#include "configs/load_policy_library.h"
#include "configs/model_yaml.h"
#include "configs/shipped_files.h"
#include "configs/tool_clock.h"
#include "core/parse_number.h"
#include "studies/sweep/merge.h"
#include "studies/sweep/ranks.h"
#include "studies/sweep/sweep_run.h"
#include "studies/workload.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

struct SweepArguments {
  std::string file, output, csv, shard;
  std::size_t threads = 0, top = 10;
  PriceChoice prices;
  bool json = false;
  Json command;  // for the manifest
};

// "2/8".
std::pair<std::size_t, std::size_t> parse_shard(const std::string& text) {
  std::size_t i = 0, n = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, i);
  if (first.ec == std::errc() && first.ptr != end && *first.ptr == '/') {
    const auto second = std::from_chars(first.ptr + 1, end, n);
    if (second.ec == std::errc() && second.ptr == end && i >= 1 && i <= n) return {i, n};
  }
  throw Error("--shard " + text + ": write it as i/n, from 1/n to n/n");
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

// Whether anything fits.
ExitCode report(const SweepResults& results, const SweepArguments& arguments) {
  const auto said = results.about.find("budget_usd_per_hour");
  const double budget = said == results.about.end() ? 0 : parse_number(said->second).value_or(0);
  if (!arguments.csv.empty()) write_file(arguments.csv, sweep_csv(results.rows));
  if (arguments.json) {
    print_json(to_json_of(sweep_answer(results, budget, arguments.shard)));
  } else {
    print(sweep_text(results, budget, arguments.top));
  }
  const bool any = std::any_of(results.rows.begin(), results.rows.end(),
                               [](const SweepRow& row) { return row.fits && row.policy != "ideal"; });
  // A part may well be without combinations, or with such as do not fit.
  return any || !arguments.shard.empty() ? ExitCode::done : ExitCode::answer_is_no;
}

SweepPlan plan_of(const SweepArguments& arguments) {
  SweepPlan plan = plan_sweep(read_sweep_file(arguments.file), arguments.prices);
  if (!arguments.shard.empty()) {
    const auto [i, n] = parse_shard(arguments.shard);
    take_shard(plan, i, n);
  }
  plan.file_sha256 = sha256_of_file(plan.file.file);
  plan.command = arguments.command.dump();
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

ExitCode lead(const SweepArguments& arguments, RankLeader* leader) {
  if (arguments.file.empty()) throw Error("a sweep file is missing, or `merge`; see tencache sweep --help");
  const SweepPlan plan = plan_of(arguments);
  for (const std::string& warning : plan.warnings) remark(warning);
  std::vector<std::string> others = input_files(plan, arguments.prices);
  check_output("--output", arguments.output, others);
  others.push_back(arguments.output);
  check_output("--csv", arguments.csv, others);
  SweepStore store(arguments.output);
  const SweepResume resumed = resume(plan, store);
  if (!resumed.done.empty()) {
    remark(fmt::format(
        "{} of {} combinations are in {} already{}", combination_count(plan, &resumed.done), combination_count(plan),
        arguments.output,
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
    run_sweep(plan, store, resumed, arguments.threads, progress, leader);
  }
  return report({.about = store.about(), .rows = store.rows()}, arguments);
}

ExitCode sweep(const SweepArguments& arguments) {
  const std::unique_ptr<Ranks> ranks = open_ranks();
  if (ranks == nullptr) return lead(arguments, nullptr);
  // Where one process is started for each core, each takes one, unless told.
  const std::size_t threads = std::max<std::size_t>(1, arguments.threads);
  if (ranks->rank() == 0) {
    RankLeader leader(*ranks, threads);
    return lead(arguments, &leader);
  }
  // Only rank 0 speaks to the user.
  SweepPlan plan;
  const auto prepare = [&] {
    plan = plan_of(arguments);
    return answer_units(plan);
  };
  follow(*ranks, prepare, threads);
  return ExitCode::done;
}

struct MergeArguments {
  std::vector<std::string> files;
  std::string output, csv;
  std::size_t top = 10;
  bool json = false;
};

ExitCode merge(const MergeArguments& arguments) {
  std::vector<std::string> inputs = arguments.files;
  check_output("--output", arguments.output, inputs);
  inputs.push_back(arguments.output);
  check_output("--csv", arguments.csv, inputs);
  const Merge merged = merge_sweeps(arguments.files);
  {
    SweepStore store(arguments.output);
    if (!store.rows().empty()) throw Error("--output: " + arguments.output + " has rows already; name a new file");
    store.add(merged.results.rows);
    store.set_about(merged.results.about);
  }
  if (merged.missing != 0) {
    remark(fmt::format("{} of {} combinations are in none of the files", merged.missing, merged.combinations));
  }
  SweepArguments shown;
  shown.csv = arguments.csv;
  shown.top = arguments.top;
  shown.json = arguments.json;
  return report(merged.results, shown);
}

void add_top_option(CLI::App& command, std::size_t& top) {
  command.add_option("--top", top, "So many of the fastest rows of each workload in the table, beside the front")
      ->capture_default_str()
      ->check(CLI::Range(std::size_t{0}, std::size_t{1'000'000}));
}

void add_merge_command(CLI::App& sweep, Command& chosen) {
  CLI::App* command = sweep.add_subcommand("merge", "Join the results of a sweep's parts");
  auto arguments = std::make_shared<MergeArguments>();
  command->add_option("FILES", arguments->files, "Results of --shard i/n")->required();
  refuse_empty(
      command->add_option("--output,-o", arguments->output, "All of them, with their common fronts")->required());
  refuse_empty(command->add_option("--csv", arguments->csv, "All rows as CSV"));
  add_top_option(*command, arguments->top);
  command->add_flag("--json", arguments->json, "Rows, fronts and advice as JSON");
  command->footer(
      "The files must be of one sweep, build and set of prices. What is missing is said.\n\n"
      "Examples:\n  tencache sweep merge part1.sqlite part2.sqlite -o results.sqlite");
  command->callback([arguments, &chosen] { chosen = [arguments] { return merge(*arguments); }; });
}

}  // namespace

void add_sweep_command(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("sweep", "Simulate workloads × machines × policies × options, with cost and the Pareto front");
  auto arguments = std::make_shared<SweepArguments>();
  command->add_option("FILE", arguments->file, "A sweep (.yaml), or the name of a shipped one");
  refuse_empty(command->add_option("--output,-o", arguments->output,
                                   "Results as SQLite; where it is there already, only what is missing is simulated"));
  refuse_empty(command->add_option("--csv", arguments->csv, "All rows as CSV"));
  command->add_option("--threads", arguments->threads, "Threads (default: one a core; under mpirun one a process)")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1024}));
  refuse_empty(command->add_option("--shard", arguments->shard, "i/n: only the i-th of n parts, for `sweep merge`"));
  add_price_options(*command, arguments->prices);
  add_policy_library_option(*command);
  add_top_option(*command, arguments->top);
  command->add_flag("--json", arguments->json, "Rows, fronts and advice as JSON");
  std::vector<std::string> names;
  for (const auto& [name, path] : shipped_files("sweeps")) names.push_back(name);
  command->footer(
      "The file says what is combined, and with which budget; its format and what a row holds: docs/sweep.md. Shipped "
      "are " +
      join(names) +
      ".\nPrinted is, for each workload, the Pareto front of time against cost and what to take. With -o a sweep may "
      "be "
      "interrupted: the same command\ngoes on where it was. Several computers: mpirun -n 4 tencache sweep …, or "
      "--shard "
      "i/n on each and `sweep merge`. What does not fit and\nwhat a policy refuses are rows with a reason. Exit code "
      "1: "
      "nothing fits.\n\n"
      "Examples:\n"
      "  tencache sweep small\n"
      "  tencache sweep mine.yaml -o results.sqlite --csv results.csv\n"
      "  tencache sweep mine.yaml --shard 3/8 -o part3.sqlite");
  command->callback([arguments, command, &chosen] {
    if (!command->get_subcommands().empty()) return;
    arguments->command = command_json(*command);
    // Parts are joined under the command of the whole; --top is of the text.
    for (const char* option : {"--shard", "--top"}) arguments->command["arguments"].erase(option);
    chosen = [arguments] { return sweep(*arguments); };
  });
  add_merge_command(*command, chosen);
}

}  // namespace tencache
