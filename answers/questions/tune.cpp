#include "answers/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "answers/questions.h"
#include "configs/deepspeed_config.h"
#include "configs/fsdp_config.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/text.h"
#include "policies/registry.h"
#include "studies/deepspeed_memory.h"
#include "studies/generation.h"
#include "studies/inference_config.h"
#include "studies/scenario_options.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"
#include "traces/generate/generate.h"
#include "traces/transform/fold_updates.h"
#include "traces/transform/split_ranks.h"

namespace tencache {
namespace {

struct TuneQuestion {
  TuneRequest request;
  std::string jitter, tie = "0.5%", max_tpot;
  std::string csv, plan;
  std::map<std::string, std::string> configs;  // file by writer's option
  std::string pinned_limit;
};

// "5%" or "0.05".
double parse_share(const std::string& option, const std::string& text) {
  const bool percent = text.ends_with('%');
  const double value = parse_number(text.substr(0, text.size() - (percent ? 1 : 0))).value_or(-1) / (percent ? 100 : 1);
  if (!(value >= 0 && value < 1)) throw Error(option + " " + text + ": write a share below 1, such as 5% or 0.05");
  return value;
}

Nanoseconds parse_tpot(const std::string& text) {
  try {
    if (const Nanoseconds time = parse_duration(text); time > 0) return time;
  } catch (const Error&) {  // as below
  }
  throw Error("--max-tpot " + text + ": write a time above 0 with its unit, such as 100ms or 2s");
}

TrainingShape shape_of(const Workload& workload) {
  TrainingShape shape;
  const TraceHeader& header = workload.trace->header;
  // These files say what is stored; fp8 is switched on in the program.
  shape.precision = header.precision == "fp8" ? "bf16" : header.precision;
  shape.ranks = rank_count(*workload.trace);
  shape.shards = shards_of(*workload.trace);
  shape.data_parallel = data_parallel_ranks(*workload.trace);
  for (const Tier& tier : workload.machine.tiers) shape.pageable = shape.pageable || tier.name == "pageable";
  if (const std::string* const batches = header.provenance.option("micro-batches")) {
    shape.accumulation = parse_number<std::uint64_t>(*batches).value_or(shape.accumulation);
  }
  if (generation_of(*workload.trace)) {
    if (const GenerateSettings* const made_with = generate_settings_of(header)) {
      const GenerateOptions options = parse_generate_settings(*made_with);
      shape.micro_batch = options.batch / options.micro_batches;
    }
    return shape;
  }
  const std::uint64_t parts = std::max<std::uint64_t>(1, shape.accumulation) * shape.data_parallel;
  shape.micro_batch = header.batch % parts == 0 ? header.batch / parts : 0;
  return shape;
}

// How Accelerate's YAML names DeepSpeed's file. Accelerate takes the name relative to where it is started, others
// relative to the YAML: only a YAML that is started at may say it relatively.
std::string deepspeed_file_of(const std::map<std::string, std::string>& configs) {
  const auto file_of = [&](const char* option) { return configs.contains(option) ? configs.at(option) : ""; };
  const std::filesystem::path yaml = file_of("--accelerate"), file = file_of("--deepspeed");
  if (file.empty() || !yaml.has_parent_path()) return file.string();
  return std::filesystem::absolute(file).lexically_normal().string();
}

// Of the first workload for which it would not do; empty: none.
std::string obstacle_to_pinning(const TuneQuestion& asked, const Tuned& tuned, const Settings& resolved) {
  for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
    const auto memory = deepspeed_memory(tuned.request.policy, resolved, tuned.models[w]);
    const std::size_t ranks = rank_count(*tuned.workloads[w].trace);
    const auto limit = parse_pinned_limit(asked.pinned_limit, tuned.machine(), ranks);
    std::string why =
        memory ? why_not_pinned(*memory, tuned.machine(), limit ? std::optional(*limit / ranks) : std::nullopt) : "";
    if (!why.empty()) return why;
  }
  return "";
}

// What a configuration is written from.
struct ConfigSource {
  std::string policy;
  Settings resolved;
  TrainingShape shape = {};
  LayerShape layers = {};
  const Trace* trace = nullptr;  // null: only whether it can be written is asked
  const MachineSpec* machine = nullptr;
  nlohmann::ordered_json base = nullptr;  // of --from-deepspeed
  std::string deepspeed_file = {};
  std::uint64_t micro_batches = 1;  // of a text generation's block
};

// Throws Error unless the policy has that counterpart.
void require(const ConfigSource& source, const char* option, bool Counterparts::*counterpart) {
  if (counterparts_of(source.policy).*counterpart) return;
  const auto names = policies_with([&](const Counterparts& others) { return others.*counterpart; });
  throw Error(fmt::format("{}: is of policy {}, not of {}", option, join(names), source.policy));
}

struct ConfigWriter {
  const char* option;
  const char* help;
  // Throws Error for a policy that has no such configuration.
  WrittenConfig (*write)(const ConfigSource& source);
};

// A system's own form of the best settings, a row each.
constexpr ConfigWriter config_writers[] = {
    {"--deepspeed",
     "Write the best settings as a DeepSpeed configuration, with the other keys of --from-deepspeed; of zero-inference "
     "as one for ZeRO-Inference",
     [](const ConfigSource& source) {
       if (!counterparts_of(source.policy).zero_inference) {
         return write_deepspeed_config(source.policy, source.resolved, source.shape, source.base);
       }
       return source.trace == nullptr ? WrittenConfig()
                                      : write_zero_inference_config(source.resolved, *source.trace, source.shape);
     }},
    {"--fsdp", "The same for PyTorch's FSDP, as JSON",
     [](const ConfigSource& source) {
       return write_fsdp_config(source.policy, source.resolved, source.shape, source.layers);
     }},
    {"--accelerate",
     "The same for Hugging Face Accelerate, as YAML that refers to the file of --deepspeed; of policy accelerate as a "
     "device map, JSON",
     [](const ConfigSource& source) {
       if (!counterparts_of(source.policy).device_map) {
         return write_accelerate_config(source.policy, source.resolved, source.shape, source.layers,
                                        source.deepspeed_file);
       }
       return source.trace == nullptr
                  ? WrittenConfig()
                  : write_device_map(source.policy, source.resolved, *source.trace, *source.machine);
     }},
    {"--flexgen", "The same of policy flexgen, as arguments of FlexGen: --percent and the block",
     [](const ConfigSource& source) {
       require(source, "--flexgen", &Counterparts::flexgen);
       return write_flexgen_arguments(source.resolved, source.shape.micro_batch, source.micro_batches);
     }},
    {"--llama-cpp",
     "The same of policy llama-cpp, as arguments of llama.cpp: -ngl, --n-cpu-moe, --n-cpu-ffn, --no-kv-offload",
     [](const ConfigSource& source) {
       require(source, "--llama-cpp", &Counterparts::llama_cpp);
       return source.trace == nullptr
                  ? WrittenConfig()
                  : write_llama_cpp_arguments(source.policy, source.resolved, *source.trace, *source.machine);
     }},
    {"--vllm",
     "The same of policies vllm-uva and vllm-prefetch, as arguments of vLLM: --cpu-offload-gb, or "
     "--offload-group-size and its like",
     [](const ConfigSource& source) {
       require(source, "--vllm", &Counterparts::vllm);
       return write_vllm_arguments(source.resolved);
     }},
    {"--sglang",
     "The same of policies vllm-uva with copied=true and vllm-prefetch with experts=true, as arguments of SGLang: "
     "--cpu-offload-gb, or --offload-group-size and its like",
     [](const ConfigSource& source) {
       require(source, "--sglang", &Counterparts::sglang);
       return write_sglang_arguments(source.resolved);
     }},
    {"--ktransformers",
     "The same of policy ktransformers, as arguments of KTransformers' server: --kt-num-gpu-experts or "
     "--kt-gpu-experts-ratio, --kt-expert-placement-strategy",
     [](const ConfigSource& source) {
       require(source, "--ktransformers", &Counterparts::ktransformers);
       return source.trace == nullptr
                  ? WrittenConfig()
                  : write_ktransformers_arguments(source.policy, source.resolved, *source.trace, *source.machine);
     }},
};

// Writes what was asked for; what its format cannot say goes to stderr.
void write_configurations(const TuneQuestion& asked, const Tuned& tuned, const DeepSpeedConfig* start) {
  const Workload& workload = tuned.workloads.front();
  ConfigSource source{.policy = tuned.request.policy, .resolved = tuned.of_policy(tuned.resolved(tuned.best()))};
  source.shape = shape_of(workload);
  source.shape.why_not_pinned = obstacle_to_pinning(asked, tuned, source.resolved);
  source.layers = layer_shape(*workload.trace);
  source.trace = workload.trace.get();
  source.machine = &workload.machine;
  if (start != nullptr) source.base = start->document;
  source.deepspeed_file = deepspeed_file_of(asked.configs);
  if (const auto requests = tuned.best().settings.find("requests"); requests != tuned.best().settings.end()) {
    source.shape.micro_batch = std::stoull(requests->second);
  }
  if (const std::uint64_t one = source.shape.micro_batch; one > 0) {
    const auto batches = tuned.best().settings.find("micro-batches");
    source.micro_batches =
        batches == tuned.best().settings.end()
            ? std::max<std::uint64_t>(
                  1, workload.trace->header.batch / std::max<std::uint64_t>(1, shape_of(workload).micro_batch))
            : std::stoull(batches->second);
  }
  const auto write = [](const std::string& file, const WrittenConfig& written) {
    write_file(file, written.text);
    for (const std::string& text : written.remarks) remark(fmt::format("{}: {}", file, text));
  };
  for (const ConfigWriter& writer : config_writers) {
    if (const std::string& file = asked.configs.at(writer.option); !file.empty()) write(file, writer.write(source));
  }
}

// What cannot be written is an error before anything runs.
void check_configurations(const TuneQuestion& asked, const std::string& policy) {
  Settings defaults;
  for (const PolicyInfo& info : list_policies()) {
    if (info.name != policy) continue;
    for (const Options::Info& option : info.options) defaults[option.name] = option.default_value;
  }
  for (const auto& [name, value] : parse_settings(asked.request.settings)) defaults[name] = value;
  const GenerateSettings& model = asked.request.scenario.trace.generate;
  if (!asked.configs.at("--ktransformers").empty() && !model.empty()) {
    const ModelDescription described = parse_generate_settings(model).model;
    if (described.experts == 0) throw Error(no_experts(described.name));
  }
  for (const ConfigWriter& writer : config_writers) {
    if (!asked.configs.at(writer.option).empty()) writer.write({.policy = policy, .resolved = defaults});
  }
}

void check_outputs(const TuneQuestion& asked) {
  std::vector<std::string> others = input_files(asked.request.scenario);
  for (const TraceChoice& trace : asked.request.traces) others.push_back(trace.file);
  const auto check = [&](const char* option, const std::string& path) {
    check_output(option, path, others);
    others.push_back(path);
  };
  check("--deepspeed", asked.configs.at("--deepspeed"));
  others.push_back(asked.request.from_deepspeed);  // may be the same
  check("--csv", asked.csv);
  check("--plan", asked.plan);
  for (const auto& [option, path] : asked.configs) {
    if (option != "--deepspeed") check(option.c_str(), path);
  }
}

std::optional<DeepSpeedConfig> start_of(TuneRequest& request) {
  if (request.from_deepspeed.empty()) return std::nullopt;
  request.from_deepspeed_sha256 = sha256_of_file(request.from_deepspeed);  // --deepspeed may write the same file
  const Scenario first = workloads_of(request).front();
  const std::string& file = first.trace.found_at.empty() ? first.trace.file : first.trace.found_at;
  const bool is_file = first.trace.generate.empty() && first.trace.loaded == nullptr;
  const Trace trace = is_file ? read_trace_to_simulate(file) : *load_workload(first).trace;
  DeepSpeedConfig start = read_deepspeed_config(request.from_deepspeed, shards_of(trace));
  for (const std::string& warning : start.warnings) remark(request.from_deepspeed + ": " + warning);
  const std::string precision = trace.header.precision == "fp8" ? "bf16" : trace.header.precision;
  if (!start.precision.empty() && !precision.empty() && start.precision != precision) {
    remark(fmt::format("{}: trains in {}, the trace is of {}", request.from_deepspeed, start.precision, precision));
  }
  if (const Bytes copy = second_copy_bytes(start.second_copy_ranks, model_shape(trace)); copy > 0) {
    const Bytes room = load_machine(first.machine).tiers.front().capacity;
    remark(
        fmt::format("{}: zero_hpz_partition_size {} keeps a second 16-bit copy, {} of each GPU's memory; no time is "
                    "gained by it in what is simulated",
                    request.from_deepspeed, start.second_copy_ranks, format_bytes(copy)));
    if (room != unlimited) request.scenario.machine.gpu_memory = std::to_string(room > copy ? room - copy : 1);
  }
  if (request.policy.empty()) request.policy = start.policy;
  if (request.policy != start.policy) {
    throw Error(request.from_deepspeed, 0,
                fmt::format("is of policy {}, not of {}; leave --policy out", start.policy, request.policy));
  }
  return start;
}

// Says where DeepSpeed itself would end, while a simulation moves to storage. The best counts where it is written.
void say_cpu_memory(const TuneRequest& request, const Tuned& tuned, bool written) {
  const auto say = [&](const std::string& whose, const Candidate& candidate) {
    for (std::size_t w = 0; w < tuned.workloads.size(); ++w) {
      const auto memory = deepspeed_memory(request.policy, tuned.of_policy(tuned.resolved(candidate)), tuned.models[w]);
      const std::string note = memory ? deepspeed_memory_note(*memory, tuned.workloads[w].machine) : "";
      if (!note.empty()) return remark(whose + ": " + note);
    }
  };
  if (tuned.start_candidate) say(request.from_deepspeed, tuned.result.candidates[*tuned.start_candidate]);
  if (written && tuned.best().fits) say("the best", tuned.best());
}

// With the best settings, or where none fits with those that were given.
RecomputePlan plan_of(const Tuned& tuned) {
  const Candidate& candidate = tuned.best().fits ? tuned.best() : tuned.standard();
  return choose_plan(tuned.workloads.front(), tuned.request.policy, tuned.of_policy(candidate.settings));
}

Answered tune_policy(const TuneQuestion& asked, const Json& command) {
  TuneRequest request = asked.request;
  if (!asked.jitter.empty()) request.jitter = parse_share("--jitter", asked.jitter);
  request.tie = parse_share("--tie", asked.tie);
  if (!asked.max_tpot.empty()) request.most_per_token = parse_tpot(asked.max_tpot);
  const std::optional<DeepSpeedConfig> start = start_of(request);
  if (request.policy.empty()) throw Error("--policy is missing; see tencache tune --help");
  check_configurations(asked, request.policy);
  check_outputs(asked);
  parse_pinned_limit(asked.pinned_limit, load_machine(request.scenario.machine),
                     1);  // a mistake is said before the search
  const Tuned tuned = run_tune(request, start ? std::optional(start->settings) : std::nullopt);
  if (!asked.csv.empty()) write_file(asked.csv, table_csv(candidates_table(tuned)));
  if (tuned.best().fits) write_configurations(asked, tuned, start ? &*start : nullptr);
  say_cpu_memory(request, tuned, !asked.configs.at("--deepspeed").empty());
  std::vector<std::string> said;
  if (!asked.csv.empty()) said.push_back(fmt::format("{} candidates in {}", tuned.result.candidates.size(), asked.csv));
  TuneAnswer tuned_answer = tune_answer(tuned);
  bool fits = tuned.best().fits;
  if (request.chooses_plan) {
    const RecomputePlan& plan = tuned_answer.plan.emplace(plan_of(tuned));
    fits = plan.predicted.plan.fits;
    if (fits && !asked.plan.empty()) write_file(asked.plan, format_plan(plan));
    if (!asked.plan.empty())
      said.push_back(fits ? "plan in " + asked.plan : asked.plan + " is not written: no plan fits");
  }
  Answered answer = answered(std::move(tuned_answer), fits, command);
  answer.text_remarks = std::move(said);
  return answer;
}

}  // namespace

std::unique_ptr<Question> tune_question() {
  auto question = std::make_unique<Question>("tune");
  question->help = {
      .summary = "The best knobs of a policy, by simulations",
      .json = "The result as JSON",
      .footer =
          "Tried are the values that `tencache policies --json` lists for each option with \"tuned\": true "
          "(tune_values); --set fixes one, --over\n"
          "lists others. The text says the best, the gain over the defaults, what each knob alone would change, and a "
          "`replay` command with the best\n"
          "settings. Nothing is written but the files that are named: docs/tune.md. Exit code 1: nothing fits.\n\n"
          "Examples:\n"
          "  tencache tune step.trace.jsonl.zst --machine g5.xlarge --policy zero-infinity\n"
          "  tencache tune short.trace.jsonl.zst long.trace.jsonl.zst -m g5.xlarge -p 10cache --jitter 5%\n"
          "  tencache tune step.trace.jsonl.zst -m g5.xlarge -p layer-streaming --over buffers=2..6 --csv all.csv\n"
          "  tencache tune step.trace.jsonl.zst -m g5.xlarge --from-deepspeed ds.json --deepspeed tuned.json"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{
        schema_named<TuneAnswer>("tune", "The best knobs of a policy",
                                 "What `tencache tune --json` prints. docs/tune.md says what the figures mean.")};
  };
  auto asked = std::make_shared<TuneQuestion>();
  TuneRequest& request = asked->request;
  QuestionOptions& options = question->options;
  options.add({.names = "TRACES",
               .help =
                   "Trace files, or else or besides --model; of several workloads, the geometric mean of their times "
                   "counts",
               .kind = QuestionOption::Kind::list,
               .take = [&traces = request.traces, given = options.traces()](const auto& words) {
                 for (const std::string& word : words) choose_trace(traces.emplace_back(), word, *given);
               }});
  add_machine_choice_options(options, request.scenario);
  add_model_options(options, request.scenario.trace.generate);
  add_iterations_option(options, request.scenario);
  add_policy_library_option(options);
  options.text("--policy,-p", request.policy,
               "A name of `tencache policies` (default: what --from-deepspeed configures)");
  options.whole("--budget", request.budget, 1, 10'000'000,
                "Simulations at most, but the defaults and the start of --from-deepspeed always run");
  options.seed("--seed", request.seed, "Of the search and of --jitter");
  options.whole("--threads", request.threads, 1, 1024, "Simulations at once (default: one a core)").unrecorded();
  options.word("--jitter", asked->jitter,
               "Judge each candidate on copies of the traces whose durations vary by this, such "
               "as 5%");
  options.whole("--copies", request.copies, 2, 1000, "Such copies of each trace (default: 5)");
  options.word("--tie", asked->tie, "Times that are closer are a tie");
  options.list("--set", request.settings, settings_help);
  options.list("--over", request.over,
               "A knob's values, KEY=a,b,c or KEY=lo..hi, any number of times (default: `tencache policies --json`); "
               "of a text generation also requests, micro-batches, order, kv-page (default: those that are not given)");
  options.word("--max-tpot", asked->max_tpot,
               "Of text generations, count only candidates whose time per output token is at most this, such as 100ms");
  options.output("--csv", asked->csv, "Write all candidates to this file");
  options.flag("--choose-plan", request.chooses_plan,
               "Choose which layers are recomputed, of a trace with choices: a recording, or a model with --recompute "
               "choose-early-stop");
  options.output("--plan", asked->plan,
                 "The same, and write the plan to this file, for tencache.checkpoint() in Python");
  options.word("--from-deepspeed", request.from_deepspeed,
               "Start at this DeepSpeed configuration (JSON, or Accelerate's YAML)");
  for (const ConfigWriter& writer : config_writers) {
    options.output(writer.option, asked->configs[writer.option], writer.help);
  }
  options.word("--pinned-limit", asked->pinned_limit,
               "--deepspeed writes pin_memory: false where all ranks would page-lock more than "
               "this: 64GiB, or 50% of CPU memory");
  question->ask = [asked, question = question.get()] {
    if (!asked->plan.empty()) {  // which no answer records, unlike what it implies
      asked->request.chooses_plan = true;
      question->options.find("--choose-plan")->given = {"true"};
    }
    return tune_policy(*asked, command_json(*question));
  };
  return question;
}

}  // namespace tencache
