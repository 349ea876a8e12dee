#include "answers/fit.h"

#include <fmt/format.h>

#include <mutex>

#include "answers/questions.h"
#include "core/remark.h"
#include "studies/bound.h"
#include "studies/fit.h"
#include "studies/fit_system.h"
#include "studies/largest.h"
#include "studies/parallel.h"
#include "studies/scenario_options.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

struct FitQuestion {
  Scenario scenario;
  std::string policies = "all";
  std::map<std::string, std::string> settings;
  std::string minimum;  // none, gpu, all; empty: all of one policy, of several gpu or, on a long trace, none
  std::vector<std::string> allocators;
  std::string largest;       // axes of a generation, all, none; empty: all of one policy
  std::string changes;       // none: what makes it fit is not tried
  std::string with;          // software, with its file
  std::string pinned_limit;  // of page-locked CPU memory: a size, or percent of the machine's
};

// What is searched by default: every tier of one policy, the GPU's of several, where that takes seconds.
std::vector<TierKind> searched_kinds(const FitQuestion& asked, std::size_t policies, std::size_t ops) {
  constexpr std::size_t most_ops = 50'000;
  if (asked.minimum == "none") return {};
  if (asked.minimum.empty() && policies > 1 && ops > most_ops) {
    remark(
        fmt::format("note: the least memory of {} policies is not searched on a trace of {} ops; --minimum gpu does, "
                    "and one -p",
                    policies, ops));
    return {};
  }
  const bool all = asked.minimum == "all" || (asked.minimum.empty() && policies == 1);
  if (all) return {TierKind::gpu, TierKind::cpu, TierKind::nvme};
  return {TierKind::gpu};
}

// The largest generation on each axis that was asked for, by policy.
std::vector<LargestGeneration> largest_generations(const FitQuestion& asked, const Workload& workload,
                                                   const std::vector<std::string>& policies) {
  std::vector<GenerationAxis> axes;
  if (!asked.largest.empty() && asked.largest != "none") {
    axes = parse_axes(asked.largest, workload);
  } else if (asked.largest.empty() && policies.size() == 1) {
    axes = axes_of(workload);
  }
  std::vector<LargestGeneration> found(policies.size() * axes.size());
  ProgressLine progress;
  std::mutex mutex;
  std::size_t done = 0;
  on_all_cores(found.size(), [&](std::size_t i) {
    found[i] = largest_generation(workload, axes[i % axes.size()], policies[i / axes.size()], asked.settings);
    const std::lock_guard lock(mutex);
    progress.show(fmt::format("{} of {}: most {} under {}", ++done, found.size(), found[i].axis, found[i].policy));
  });
  return found;
}

Answered fit(const FitQuestion& asked, const Json& command) {
  std::vector<std::string> names = policies_named(asked.policies);
  // That the ideal fits says nothing, unless nothing else was asked.
  if (names.size() > 1) std::erase(names, "ideal");
  const auto& settings = asked.settings;
  if (!settings.empty() && names.size() > 1) throw Error("--set goes with one policy; name it with --policy");
  Scenario scenario = asked.scenario;
  const std::string spread = spread_over_gpus(scenario, asked.with);
  const Workload workload = load_workload(scenario);
  FitRequest request;
  request.workload = &workload;
  request.policies = names;
  request.settings = settings;
  request.searched = searched_kinds(asked, names.size(), workload.trace->ops.size());
  request.pinned_limit = parse_pinned_limit(asked.pinned_limit, workload.machine, rank_count(*workload.trace));
  std::optional<SystemVerdict> with;
  if (!asked.with.empty()) with = judge_system(asked.with, workload);
  std::vector<LargestGeneration> largest = largest_generations(asked, workload, names);
  std::vector<FitVerdict> verdicts;
  {
    ProgressLine progress;
    request.progress = [&](std::size_t done, std::size_t of, const std::string& what) {
      progress.show(fmt::format("{} of {}: {}", done, of, what));
    };
    verdicts = judge_fit(request);
  }
  FitAnswer answer = fit_answer(request, std::move(verdicts), lower_bound_of(*workload.trace, workload.machine),
                                recorded_bound_seconds(*workload.trace, workload.machine));
  if (!largest.empty()) answer.largest.emplace(std::move(largest));
  if (!asked.allocators.empty()) answer.allocators.emplace(allocator_answers(workload, asked.allocators));
  if (with) {
    answer.missing_bytes = with->missing_bytes;
    if (!spread.empty()) answer.assumed.push_back(spread);
    answer.assumed.insert(answer.assumed.end(), with->assumed.begin(), with->assumed.end());
    answer.with.emplace(std::move(*with));
  }
  const bool fits =
      answer.with ? answer.with->fits : answer.without_offloading && (asked.pinned_limit.empty() || answer.fits);
  if (!fits && asked.changes != "none") {
    remark("note: trying what makes it fit (--changes none leaves that out)");
    answer.changes = changes_that_help(workload);
  }
  return answered(std::move(answer), fits, command);
}

}  // namespace

std::unique_ptr<Question> fit_question() {
  auto question = std::make_unique<Question>("fit");
  question->help = {
      .summary = "Does a training step fit on a machine, what overflows first, and what memory would be enough",
      .json = "The same as JSON",
      .footer =
          "The step is a trace, or a model of which --model, --batch and --seq are enough. The first table needs no "
          "policy: it fills the tiers, the fastest\n"
          "first, with all that is alive at once. The second simulates each policy: whether it fits, the most that "
          "each tier holds (start-up and\n"
          "staging buffers counted), and the least memory, in whole MiB by bisection, with the other tiers as the "
          "machine has them; `+`: so much\n"
          "more than there is. Of a single policy it says when each tier is fullest as well. How to read it: "
          "docs/explain.md.\n\n"
          "It begins with what people ask: whether it runs without offloading, whether it does under the software that "
          "they have (--with), and the changes\n"
          "that make it fit, the least slowed first. Exit code 0: it runs without offloading, or under the software "
          "that --with names; 1: it does not;\n"
          "2: bad input.\n\n"
          "Examples:\n"
          "  tencache fit step.trace.jsonl.zst --machine g10-a100\n"
          "  tencache fit --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge -p zero-infinity\n"
          "  tencache fit --model llama-3-8b --batch 1 --seq 2048 -m g5.xlarge --with deepspeed=ds.json\n"
          "  tencache fit step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{schema_named<FitAnswer>(
        "fit", "Whether a training step fits",
        "What `tencache fit --json` prints. docs/explain.md explains it. `demand` is what the step needs, by "
        "rank: what is alive at once fills the tiers, the fastest first. `policies`: the most that each tier "
        "holds under a policy, and the least memory where it was searched.")};
  };
  auto request = std::make_shared<FitQuestion>();
  QuestionOptions& options = question->options;
  add_workload_options(options, request->scenario);
  options.text("--policy,-p,--policies", request->policies, "Names separated by commas, or all");
  add_settings_option(options, request->settings);
  options
      .text("--minimum", request->minimum,
            "Search the least memory of: none, gpu, all tiers, each with the others as the machine has them "
            "(default: all of one policy; of several gpu, or none on a trace of over 50,000 ops)")
      .one_of({"none", "gpu", "all"});
  options.word("--largest", request->largest,
               "Of a text generation, search the most that fits, all else as asked: requests (of a micro-batch), "
               "micro-batches, prompt (tokens), several with commas, all, none (default: all of one policy, none of "
               "several)");
  options.word("--with", request->with,
               "Does it fit under this software: deepspeed=FILE, accelerate[=FILE], fsdp[=FILE], llama.cpp, vllm, "
               "torchtune");
  options.text("--changes", request->changes, "Try what makes it fit, where it does not: all (the default), none")
      .one_of({"all", "none"});
  options.word("--pinned-limit", request->pinned_limit,
               "It fits only if page-locked CPU memory of all ranks, staging buffers included, is "
               "within this: 64GiB, or 50% of CPU memory");
  options
      .list("--allocator", request->allocators,
            "Also what this allocator reserves with all of the step on the GPU: default, expandable, gmlake, stweaver, "
            "planned, or settings such as max_split_size_mb:128; any number of times")
      .with_type("NAME");
  question->ask = [request, question = question.get()] { return fit(*request, command_json(*question)); };
  return question;
}

}  // namespace tencache
