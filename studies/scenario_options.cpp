#include "studies/scenario_options.h"

#include "configs/load_policy_library.h"
#include "core/remark.h"
#include "studies/workload.h"
#include "traces/transform/fold_updates.h"

namespace tencache {

void choose_trace(TraceChoice& trace, const std::string& word, const GivenTraces& given) {
  trace.file = word;
  const auto found = given.find(word);
  if (found == given.end()) return;
  Trace ready = *found->second.trace;
  if (const FoldedUpdates folded = fold_updates(ready); folded.kernels > 0) remark("note: " + folded.to_string());
  trace.loaded = std::make_shared<const Trace>(std::move(ready));
  trace.loaded_sha256 = found->second.sha256;
}

void add_memory_options(QuestionOptions& options, MachineChoice& machine) {
  options.word("--gpu-memory", machine.gpu_memory, "GPU memory that tensors may use, such as 24GiB");
  options.word("--cpu-memory", machine.cpu_memory,
               "CPU memory that tensors may use, such as 128GiB: of each rank, with --gpus of all");
}

void add_limit_option(QuestionOptions& options, MachineChoice& machine) {
  options.list("--limit", machine.limits,
               "A link is no faster than this, LINK=BANDWIDTH such as h2d=12GB/s, any number of times");
}

void add_machine_choice_options(QuestionOptions& options, Scenario& scenario) {
  options
      .word("--machine,-m", scenario.machine.name,
            "Machine: a name of `tencache machines`, a card of `tencache gpus` (a desktop around it), here, or a YAML "
            "file")
      .needed();
  add_memory_options(options, scenario.machine);
  options.word("--gpus", scenario.machine.gpus, "So many of the machine's GPUs, in the same computer");
  options.word("--link", scenario.machine.link, "Between GPU and CPU memory: pcie4x8, or a bandwidth such as 12GB/s");
  options.word("--nvme", scenario.machine.nvme,
               "What the SSDs reach together: 7GB/s, or 7GB/s,5GB/s to read and write");
  options.word("--gpu-allocator", scenario.machine.gpu_allocator,
               "How GPU memory is laid out where the policy does not say: exact (pages from anywhere), caching "
               "(PyTorch's allocator), or movable (one range, whole tensors, which are moved to make holes) (default: "
               "the machine's, exact if it says nothing; of `run` on a GPU movable)");
  add_limit_option(options, scenario.machine);
  options.word("--run-ahead", scenario.machine.run_ahead,
               "Ops that the program's thread launches ahead of the GPU; 0: each is waited for (default: the "
               "machine's, 0 if it says nothing; of `run` on a GPU with movable memory 256)");
  options.word("--assume-gpu", scenario.trace.rescale.assume_gpu,
               "The GPU that the trace's durations are of, where it does not say");
  options.flag("--no-rescale", scenario.trace.rescale.no_rescale,
               "Take durations as they are, whatever GPU the machine has");
  // For `reproduce`.
  options.text("--trace-at", scenario.trace.found_at, "").unlisted();
  options.text("--machine-at", scenario.machine.found_at, "").unlisted();
}

void add_model_options(QuestionOptions& options, GenerateSettings& settings) {
  for (const GenerateOption& described : generate_options()) {
    const std::string name = described.name;
    if (name == "seed") continue;
    const bool flag = described.type == GenerateOption::Type::flag;
    options.add({.names = "--" + name,
                 .help = described.help,
                 .kind = flag ? QuestionOption::Kind::flag : QuestionOption::Kind::text,
                 .take = [name, &settings](const auto& texts) { settings.emplace_back(name, texts.front()); },
                 .group = "A model instead of TRACE, as of `tencache generate`"});
  }
}

void add_machine_options(QuestionOptions& options, Scenario& scenario) {
  options.word("TRACE", scenario.trace.file, "Trace file (.trace.jsonl, .trace.jsonl.zst), or else --model").take =
      [&trace = scenario.trace, given = options.traces()](const auto& texts) {
        choose_trace(trace, texts.front(), *given);
      };
  add_machine_choice_options(options, scenario);
  add_model_options(options, scenario.trace.generate);
}

void add_iterations_option(QuestionOptions& options, Scenario& scenario) {
  options.whole("--iterations", scenario.iterations, 1, 1'000'000,
                "Run exactly so many iterations, the second half of which is the result (default: until the "
                "state at an iteration's end recurs)");
}

void add_policy_library_option(QuestionOptions& options) {
  options
      .add({.names = "--policy-library",
            .help = "A shared library with more policies, any number of times; see docs/writing-a-policy.md",
            .kind = QuestionOption::Kind::list,
            .take =
                [](const auto& files) {
                  for (const std::string& file : files) load_policy_library(file);
                }})
      .unrecorded();
}

void add_workload_options(QuestionOptions& options, Scenario& scenario) {
  add_machine_options(options, scenario);
  add_iterations_option(options, scenario);
  add_policy_library_option(options);
}

void add_price_options(QuestionOptions& options, PriceChoice& prices) {
  options.word("--prices", prices.file, "A price table; its prices go before all others");
  options.list("--price", prices.prices,
               "What an hour of a machine costs in USD, TYPE=3.06 or TYPE:spot=1.1, any number of times");
}

void add_settings_option(QuestionOptions& options, std::map<std::string, std::string>& settings) {
  options.add({.names = "--set",
               .help = settings_help,
               .kind = QuestionOption::Kind::list,
               .take = [&settings](const auto& texts) { settings = parse_settings(texts); }});
}

void add_policy_options(QuestionOptions& options, PolicyChoice& policy) {
  options.text("--policy,-p", policy.name, "A name of `tencache policies`").needed();
  add_settings_option(options, policy.settings);
}

void add_sample_options(QuestionOptions& options, SampleOptions& sampling) {
  options.whole("--samples", sampling.samples, fewest_samples, most_samples,
                "Simulate so many machines whose figures are drawn within what their sources allow, and report an "
                "interval (64 or more say something)");
  options.seed("--seed", sampling.seed, "Seed of --samples").needing("--samples");
}

QuestionOption& add_faults_option(QuestionOptions& options, std::string& plan) {
  return options.word("--faults", plan,
                      "Make things go wrong by this plan, such as seed=7 (a mixture drawn from the seed) or "
                      "seed=7,copy_error=0.01,delay=0.05:2ms (docs/reliability.md)");
}

}  // namespace tencache
