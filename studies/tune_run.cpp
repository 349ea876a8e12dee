#include "studies/tune_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "configs/load_policy_library.h"
#include "configs/tool_clock.h"
#include "core/recompute.h"
#include "core/remark.h"
#include "core/reveal.h"
#include "core/text.h"
#include "policies/registry.h"
#include "studies/deepspeed_memory.h"
#include "studies/generation.h"
#include "traces/generate/generate.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

constexpr std::uint64_t copies_with_jitter = 5;

PolicyInfo policy_named(const std::string& name) {
  make_policy(name);  // throws for an unknown one
  for (PolicyInfo& info : list_policies()) {
    if (info.name == name) return info;
  }
  throw Error("no policy is named '" + name + "'");
}

const Options::Info& option_of(const PolicyInfo& policy, const std::string& name) {
  for (const Options::Info& option : policy.options) {
    if (option.name == name) return option;
  }
  std::vector<std::string> valid;
  for (const Options::Info& option : policy.options) valid.push_back(option.name);
  throw Error(fmt::format("policy '{}' has no option '{}'; it has: {}", policy.name, name,
                          valid.empty() ? "none" : join(valid)));
}

bool has_nvme(const MachineSpec& machine) {
  return std::ranges::any_of(machine.tiers, [](const Tier& tier) { return tier.kind == TierKind::nvme; });
}

constexpr std::array block_options{"requests", "micro-batches", "order", "kv-page"};
bool is_of_block(const std::string& name) { return std::ranges::find(block_options, name) != block_options.end(); }

// With this block; `block` has all of block_options.
GenerateSettings with_block(GenerateSettings settings, const Settings& block) {
  for (const auto& [option, text] :
       {std::pair{std::string("block"), block.at("requests") + "x" + block.at("micro-batches")},
        {"order", block.at("order")},
        {"kv-page", block.at("kv-page")}}) {
    const auto at = std::ranges::find(settings, option, &GenerateSettings::value_type::first);
    at == settings.end() ? void(settings.emplace_back(option, text)) : void(at->second = text);
  }
  return settings;
}

// What of a generation's block may be searched, and what is asked of it.
struct BlockKnobs {
  std::vector<Knob> knobs;
  Settings defaults;
};

// Empty unless the one workload is a text generation of a model. What the user said is no knob, but with --over.
BlockKnobs block_knobs(const TuneRequest& request, const Settings& over) {
  const GenerateSettings& asked = request.scenario.trace.generate;
  if (asked.empty() || !request.traces.empty()) return {};
  const GenerateOptions options = parse_generate_settings(asked);
  if (!options.generation) return {};
  const auto given = [&](const char* name) -> const std::string* {
    const auto at = std::ranges::find(asked, name, &GenerateSettings::value_type::first);
    return at == asked.end() ? nullptr : &at->second;
  };
  const auto asked_or = [&](const char* name, const char* standard) {
    return given(name) == nullptr ? std::string(standard) : *given(name);
  };
  BlockKnobs block;
  block.defaults = {{"requests", std::to_string(options.batch / options.micro_batches)},
                    {"micro-batches", std::to_string(options.micro_batches)},
                    {"order", asked_or("order", "row")},
                    {"kv-page", asked_or("kv-page", "16")}};
  const auto add = [&](const char* name, const char* option, std::vector<std::string> values, bool ordered) {
    if (given(option) != nullptr && !over.contains(name)) return;
    Knob knob{.name = name, .values = std::move(values), .ordered = ordered, .unit = "", .only_with = {}};
    // In row order micro-batches only follow each other.
    if (knob.name == "micro-batches") knob.only_with = {{"order", "zigzag"}};
    if (over.contains(name)) {
      knob = restricted(knob, over.at(name));
      for (const std::string& value : knob.values) {  // throws for what generate would not take
        Settings one = block.defaults;
        one[name] = value;
        parse_generate_settings(with_block(asked, one));
      }
    } else {
      add_value(knob, block.defaults.at(name));
    }
    block.knobs.push_back(std::move(knob));
  };
  add("requests", "block", {"1", "2", "4", "8", "16", "32", "64", "128", "256"}, true);
  add("micro-batches", "block", {"1", "2", "4", "8"}, true);
  add("order", "order", {"row", "zigzag"}, false);
  add("kv-page", "kv-page", {"16", "256", "whole"}, false);
  return block;
}

// Sizes of weights on the GPU and in CPU memory are tried as shares of what the machine has.
void set_shares_of_tiers(std::vector<Knob>& knobs, const MachineSpec& machine) {
  for (Knob& knob : knobs) {
    const bool gpu = knob.name.starts_with("gpu_"), cpu = knob.name.starts_with("cpu_");
    const TierId tier = machine.tier_of(gpu ? Device::gpu : Device::cpu);
    if (knob.unit != "bytes" || !(gpu || cpu) || tier == no_tier || machine.tiers[tier].capacity == unlimited) continue;
    std::erase_if(knob.values, [](const std::string& value) { return value.ends_with("B"); });  // words stay
    for (const Bytes eighths : {1u, 2u, 4u, 6u}) {
      const Bytes size = machine.tiers[tier].capacity / 8 * eighths;
      if (size >= MiB) add_value(knob, std::to_string(size / MiB) + "MiB");
    }
  }
}

// The policy's knobs but those that --set fixes; with the values of --over, and without devices that are not there.
std::vector<Knob> knobs_to_turn(const PolicyInfo& policy, const TuneRequest& request, const Settings& fixed,
                                const MachineSpec& machine) {
  std::vector<Knob> knobs = knobs_of(policy);
  set_shares_of_tiers(knobs, machine);
  std::erase_if(knobs, [&](const Knob& knob) { return fixed.contains(knob.name); });
  if (!has_nvme(machine)) {
    for (Knob& knob : knobs) std::erase(knob.values, "nvme");
  }
  for (const auto& [name, values] : parse_settings(request.over)) {
    if (is_of_block(name)) continue;
    const Options::Info& option = option_of(policy, name);
    if (fixed.contains(name)) throw Error("--over " + name + ": --set fixes it");
    const Knob knob = restricted(knob_of(option), values);
    for (const std::string& value : knob.values) {
      make_policy(policy.name, {{name, value}});  // throws for what --set would not take
    }
    const auto at = std::ranges::find(knobs, name, &Knob::name);
    at == knobs.end() ? knobs.push_back(knob) : void(*at = knob);
  }
  std::erase_if(knobs, [&](const Knob& knob) {
    return knob.values.size() < 2 && index_of(knob, option_of(policy, knob.name).default_value);
  });
  return knobs;
}

[[noreturn]] void refuse_without_knobs(const PolicyInfo& policy) {
  std::vector<std::string> names;
  for (const Options::Info& option : policy.options) names.push_back(option.name);
  throw Error(fmt::format(
      "policy '{}' has no knob left to turn; {}", policy.name,
      names.empty() ? "it has no options" : "--over OPTION=a,b turns another of its options: " + join(names)));
}

std::uint64_t jitter_seed(const TuneRequest& request, std::size_t copy) { return request.seed * 1'000'003 + copy; }

class ProgressOfTune {
 public:
  void show(std::uint64_t done, std::uint64_t budget) {
    const double passed = seconds_since(start_ns_);
    const double left =
        done == 0 ? 0 : passed / static_cast<double>(done) * static_cast<double>(budget - std::min(done, budget));
    line_.show(fmt::format("{} of at most {} simulations, {} left", done, budget,
                           format_duration(static_cast<Nanoseconds>(left * 1e9))));
  }

 private:
  ProgressLine line_;
  std::int64_t start_ns_ = tool_clock_ns();
};

void check_choices(const std::vector<Workload>& workloads) {
  if (workloads.size() != 1) throw Error("a plan of recomputation is of one trace or model; leave the others out");
  const Trace& trace = *workloads.front().trace;
  if (trace.choices.empty()) throw Error("no plan of recomputation: " + why_no_choices(trace));
}

// What gates choose is not known when something is tuned: settings are tried with other choices.
void forget_choices(Workload& workload) {
  if (!has_gates(*workload.trace)) return;
  workload.trace = std::make_shared<const Trace>(draw_experts(sealed(*workload.trace)));
}

// A trace that the workload's options with another block give, its durations varied as those of the copy.
Trace trace_of_block(const Tuned& tuned, const Workload& workload, const GenerateSettings& settings, std::size_t copy) {
  Scenario scenario = workload.scenario;
  scenario.trace.file.clear();
  scenario.trace.generate = settings;
  Workload other = load_workload(scenario);
  forget_choices(other);
  const TuneRequest& request = tuned.request;
  return request.jitter > 0 ? jittered(*other.trace, request.jitter, jitter_seed(request, copy)) : *other.trace;
}

// Why a generation that fits does not count; empty: it does.
std::string too_slow(const TuneRequest& request, const TokenTimes& times) {
  if (!request.most_per_token || !times.time_per_output_token_seconds) return "";
  const double most = to_seconds(*request.most_per_token);
  if (*times.time_per_output_token_seconds <= most) return "";
  return fmt::format("its time per output token of {} is above --max-tpot {}",
                     format_seconds(*times.time_per_output_token_seconds), format_seconds(most));
}

Measured simulate_candidate(const Tuned& tuned, const std::vector<std::vector<Trace>>& copies, const Settings& settings,
                            std::size_t workload, std::size_t copy) {
  const Workload& what = tuned.workloads[workload];
  Candidate candidate;
  candidate.settings = settings;
  const MachineSpec& machine = what.machine;
  const ReservedMemory reserved =
      reserved_memory(tuned.request.policy, tuned.resolved(candidate), tuned.models[workload]);
  const TierId cpu = machine.tier_of(Device::cpu);
  const Bytes in_cpu = reserved.pinned_buffers + reserved.cpu_home;
  if (cpu != no_tier && in_cpu > machine.tiers[cpu].capacity) {
    return {.misfit =
                fmt::format("its pinned buffers of {} and what stays in CPU memory, {}, are more than the {} there",
                            format_bytes(reserved.pinned_buffers), format_bytes(reserved.cpu_home),
                            format_bytes(machine.tiers[cpu].capacity))};
  }
  try {
    std::optional<Trace> own;
    if (const GenerateSettings block = tuned.generated(settings, workload); !block.empty()) {
      own = trace_of_block(tuned, what, block, copy);
    }
    const Trace& trace = own ? *own : copies.empty() ? *what.trace : copies[workload][copy];
    const Outcome outcome = simulate_policy(trace, machine, tuned.request.policy, tuned.of_policy(settings),
                                            limits_of(what.scenario.iterations));
    if (!outcome.result.fits) return {.misfit = outcome.result.misfit};
    // Gradients that wait are in the peak and in the bucket: at most the bucket too much.
    const Tier& gpu = machine.tiers.front();
    if (outcome.result.peak_bytes[0] > gpu.capacity - std::min(gpu.capacity, reserved.gpu_bucket)) {
      return {.misfit = fmt::format("its reduction bucket of {} beside the peak of {} is more than the GPU's {}",
                                    format_bytes(reserved.gpu_bucket), format_bytes(outcome.result.peak_bytes[0]),
                                    format_bytes(gpu.capacity))};
    }
    Measured measured{.seconds = outcome.result.iteration_seconds()};
    if (own) {
      measured.work = static_cast<double>(trace.header.tokens_per_iteration()) /
                      static_cast<double>(what.trace->header.tokens_per_iteration());
    }
    const std::optional<Generation> generation = generation_of(trace, outcome.rank);
    if (!generation) return measured;
    measured.tokens = TokenTimes{time_to_first_token_seconds(*generation, outcome.result),
                                 time_per_output_token_seconds(*generation, outcome.result)};
    if (std::string why = too_slow(tuned.request, *measured.tokens); !why.empty()) return {.misfit = std::move(why)};
    return measured;
  } catch (const Error& error) {
    return {.misfit = error.what()};
  }
}

bool is_knob(const Tuned& tuned, const std::string& name) {
  return std::ranges::find(tuned.knobs, name, &Knob::name) != tuned.knobs.end();
}

// Whether the start, as a candidate, has another value of an option that is no knob, as the size of swap buffers is.
bool differs_as_candidate(const Tuned& tuned, const TuneProblem& problem) {
  Settings settings = problem.fixed;
  for (const auto& [name, value] : *tuned.start) {
    if (is_knob(tuned, name) && tuned.defaults.at(name) != value) settings.emplace(name, value);
  }
  problem.complete(settings);
  return std::ranges::any_of(*tuned.start, [&](const auto& said) {
    if (is_knob(tuned, said.first) || problem.fixed.contains(said.first)) return false;
    const auto at = settings.find(said.first);
    return (at == settings.end() ? tuned.defaults.at(said.first) : at->second) != said.second;
  });
}

// The start with values that --over leaves out, or that no candidate has: simulated beside the search, so that it is
// never the best.
void add_outside_start(Tuned& tuned, const TuneProblem& problem) {
  Candidate start;
  start.settings = problem.fixed;
  for (const auto& [name, value] : *tuned.start) {
    // What completes settings leaves alone what they say.
    if (problem.fixed.contains(name) || (is_knob(tuned, name) && tuned.defaults.at(name) == value)) continue;
    start.settings[name] = value;
    if (tuned.defaults.at(name) == value) continue;
    ++start.changed;
  }
  problem.complete(start.settings);
  start.fits = true;
  double sum = 0;
  for (std::size_t w = 0; w < problem.workloads; ++w) {
    start.seconds.emplace_back();
    for (std::size_t copy = 0; copy < problem.copies; ++copy) {
      const Measured measured = problem.measure(start.settings, w, copy);
      start.seconds.back().push_back(measured.seconds);
      if (w == 0 && copy == 0) start.tokens = measured.tokens;
      if (measured.misfit.empty()) continue;
      start.fits = false;
      start.misfit = measured.misfit;
    }
    sum += std::log(start.median_seconds(w) / tuned.result.reference_seconds[w]);
  }
  if (start.fits) start.score = std::exp(sum / static_cast<double>(problem.workloads));
  tuned.start_candidate = tuned.result.candidates.size();
  tuned.result.candidates.push_back(std::move(start));
  tuned.result.simulations += problem.workloads * problem.copies;
}

}  // namespace

std::vector<Scenario> workloads_of(const TuneRequest& request) {
  std::vector<Scenario> workloads;
  for (const TraceChoice& trace : request.traces) {
    workloads.push_back(request.scenario);
    TraceChoice& own = workloads.back().trace;
    own.file = trace.file;
    own.loaded = trace.loaded;
    own.loaded_sha256 = trace.loaded_sha256;
    own.generate.clear();
  }
  if (!request.scenario.trace.generate.empty()) workloads.push_back(request.scenario);
  if (workloads.empty()) throw Error("TRACES are required, or --model with the options of `tencache generate`");
  return workloads;
}

Settings Tuned::resolved(const Candidate& candidate) const {
  Settings all = defaults;
  for (const auto& [name, value] : candidate.settings) all[name] = value;
  return all;
}

Settings Tuned::of_policy(Settings settings) const {
  for (const std::string& name : of_block) settings.erase(name);
  return settings;
}

GenerateSettings Tuned::generated(const Settings& settings, std::size_t workload) const {
  const bool other = std::ranges::any_of(of_block, [&](const std::string& name) { return settings.contains(name); });
  if (!other) return {};
  Settings block;
  for (const std::string& name : of_block) {
    block[name] = settings.contains(name) ? settings.at(name) : defaults.at(name);
  }
  return with_block(workloads[workload].scenario.trace.generate, block);
}

ReservedMemory reserved_memory(const Tuned& tuned, const Candidate& candidate) {
  ReservedMemory most;
  for (const ModelShape& model : tuned.models) {
    const ReservedMemory memory = reserved_memory(tuned.request.policy, tuned.resolved(candidate), model);
    if (memory.pinned_buffers + memory.cpu_home >= most.pinned_buffers + most.cpu_home) most = memory;
  }
  return most;
}

Tuned run_tune(const TuneRequest& request, const std::optional<Settings>& start) {
  const std::int64_t begin = tool_clock_ns();
  Tuned tuned;
  tuned.request = request;
  if (request.jitter == 0 && request.copies > 1) throw Error("--copies: without --jitter the copies would be the same");
  const std::size_t copies = request.jitter == 0 ? 1 : request.copies == 0 ? copies_with_jitter : request.copies;
  const PolicyInfo policy = policy_named(request.policy);
  for (const Options::Info& option : policy.options) tuned.defaults[option.name] = option.default_value;
  tuned.fixed = parse_settings(request.settings);
  make_policy(request.policy, tuned.fixed);  // throws for what it does not have
  const Settings over = parse_settings(request.over);
  const BlockKnobs block = block_knobs(request, over);
  for (const auto& [name, values] : over) {
    if (is_of_block(name) && block.defaults.empty()) {
      throw Error("--over " + name + ": is of one text generation; give --model with --new-tokens, and no TRACES");
    }
  }
  for (const Scenario& scenario : workloads_of(request)) {
    tuned.workloads.push_back(load_workload(scenario));
    forget_choices(tuned.workloads.back());
    tuned.ideal_seconds.push_back(references_of(tuned.workloads.back()).ideal_seconds);
  }
  if (request.chooses_plan) check_choices(tuned.workloads);
  for (const Workload& workload : tuned.workloads) tuned.models.push_back(model_shape(*workload.trace));
  tuned.knobs = knobs_to_turn(policy, request, tuned.fixed, tuned.machine());
  tuned.knobs.insert(tuned.knobs.end(), block.knobs.begin(), block.knobs.end());
  if (tuned.knobs.empty() && !request.chooses_plan) refuse_without_knobs(policy);
  if (!block.knobs.empty()) {
    for (const auto& [name, standard] : block.defaults) {
      tuned.defaults[name] = standard;
      tuned.of_block.push_back(name);
    }
  }
  if (request.most_per_token) {
    for (const Workload& workload : tuned.workloads) {
      if (generation_of(*workload.trace)) continue;
      throw Error("--max-tpot: " + workload.scenario.trace.file + " is no text generation");
    }
  }
  bool outside = false;  // the start has a value that no candidate has
  if (start) {
    // What the start says and is no knob holds for every candidate.
    tuned.start = *start;
    for (const auto& [name, value] : *start) {
      const auto knob = std::ranges::find(tuned.knobs, name, &Knob::name);
      if (over.contains(name)) {
        outside = outside || (knob == tuned.knobs.end() ? tuned.defaults.at(name) != value : !index_of(*knob, value));
      } else if (knob != tuned.knobs.end()) {
        add_value(*knob, value);
      } else if (option_of(policy, name).why_fixed.empty() && tuned.defaults.at(name) != value) {
        tuned.fixed.emplace(name, value);
      }
    }
  }

  std::vector<std::vector<Trace>> jittered_copies;
  for (std::size_t w = 0; w < tuned.workloads.size() && request.jitter > 0; ++w) {
    jittered_copies.emplace_back();
    for (std::size_t copy = 0; copy < copies; ++copy) {
      jittered_copies.back().push_back(jittered(*tuned.workloads[w].trace, request.jitter, jitter_seed(request, copy)));
    }
  }
  TuneProblem problem;
  problem.knobs = tuned.knobs;
  problem.defaults = tuned.defaults;
  problem.fixed = tuned.fixed;
  if (start) problem.starts.push_back(*start);
  problem.workloads = tuned.workloads.size();
  problem.copies = copies;
  problem.reference_seconds = tuned.ideal_seconds;
  std::uint64_t largest_parameter = 0;
  for (const ModelShape& model : tuned.models) largest_parameter = std::max(largest_parameter, model.largest_parameter);
  problem.complete = [&](Settings& settings) { complete(request.policy, largest_parameter, settings); };
  outside = outside || (start && differs_as_candidate(tuned, problem));
  problem.measure = [&](const Settings& settings, std::size_t workload, std::size_t copy) {
    return simulate_candidate(tuned, jittered_copies, settings, workload, copy);
  };
  TuneOptions options{.budget = request.budget,
                      .seed = request.seed,
                      .threads = request.threads,
                      .tie = request.tie,
                      .spread = request.jitter};
  ProgressOfTune progress;
  options.progress = [&progress](std::uint64_t done, std::uint64_t budget) { progress.show(done, budget); };
  tuned.result = tune(problem, options);
  if (outside) {
    add_outside_start(tuned, problem);
  } else if (start) {
    tuned.start_candidate = tuned.result.starts.front();
  }
  for (const Workload& workload : tuned.workloads) {
    tuned.levels.emplace_back();
    if (workload.trace->choices.empty() || !tuned.best().fits) continue;
    tuned.levels.back() =
        simulate_policy(*workload.trace, workload.machine, request.policy, tuned.of_policy(tuned.best().settings),
                        limits_of(workload.scenario.iterations))
            .levels;
  }
  tuned.run_seconds = seconds_since(begin);
  return tuned;
}

std::string replay_command(const Tuned& tuned, const Candidate& candidate, std::size_t workload) {
  const Scenario& scenario = tuned.workloads[workload].scenario;
  const TraceChoice& trace = scenario.trace;
  const MachineChoice& machine = scenario.machine;
  std::string command = "tencache replay";
  if (trace.generate.empty()) command += " " + quoted_word(trace.file);
  const GenerateSettings other_block = tuned.generated(candidate.settings, workload);
  for (const auto& [name, value] : other_block.empty() ? trace.generate : other_block) {
    command += " --" + name + " " + quoted_word(value);
  }
  command += " --machine " + quoted_word(machine.name);
  if (!machine.gpu_memory.empty()) command += " --gpu-memory " + quoted_word(machine.gpu_memory);
  if (!machine.cpu_memory.empty()) command += " --cpu-memory " + quoted_word(machine.cpu_memory);
  for (const auto& [option, text] :
       {std::pair("--gpus", &machine.gpus), {"--link", &machine.link}, {"--nvme", &machine.nvme}}) {
    if (!text->empty()) command += fmt::format(" {} {}", option, quoted_word(*text));
  }
  for (const std::string& limit : machine.limits) command += " --limit " + quoted_word(limit);
  if (!machine.run_ahead.empty()) command += " --run-ahead " + quoted_word(machine.run_ahead);
  if (!trace.rescale.assume_gpu.empty()) command += " --assume-gpu " + quoted_word(trace.rescale.assume_gpu);
  if (trace.rescale.no_rescale) command += " --no-rescale";
  if (scenario.iterations != 0) command += fmt::format(" --iterations {}", scenario.iterations);
  const std::string library = origin_of_policy(tuned.request.policy).file;
  if (!library.empty()) command += " --policy-library " + quoted_word(library);
  command += " --policy " + quoted_word(tuned.request.policy);
  for (const auto& [name, value] : tuned.of_policy(candidate.settings))
    command += " --set " + quoted_word(name + "=" + value);
  return command;
}

}  // namespace tencache
