#include "cli/generate_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <memory>
#include <random>
#include <sstream>

#include "cli/command_line.h"
#include "cli/console.h"
#include "cli/output_files.h"
#include "cli/shell_words.h"
#include "cli/workload.h"
#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/model_yaml.h"
#include "configs/stack_yaml.h"
#include "core/parse_number.h"
#include "traces/generate.h"
#include "traces/summary.h"
#include "traces/trace_file.h"

namespace tencache {
namespace {

struct GenerateArguments {
  std::string model, gpu = "h100", output;
  std::string head, precision = "bf16", gradient_precision, optimizer = "adamw", recompute = "none";
  std::string stack = "eager", update = "after", loss, communication;
  double predicted_tokens = 1;
  std::string attention = "flash", dropout = "family", clip = "on", gradients = "freed",
              gradient_reduction = "reduce-scatter";
  std::int64_t batch = 0, micro_batches = 1, sub_group = 1'000'000'000, lora_rank = 0, quantise = 0;
  std::int64_t data_parallel = 1, tensor_parallel = 1, pipeline_parallel = 1, pipeline_chunks = 1, zero = 0, seed = 1;
  std::string sequence, sequence_distribution, lora_targets, launch_gap, interconnect, kernels;
  std::string command;
  const ModelDescription* description = nullptr;  // in place of the file that `model` names
  bool forward_only = false, json = false;
};

// "512,128" as numbers.
std::vector<std::uint64_t> parse_lengths(const std::string& text) {
  std::vector<std::uint64_t> lengths;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    std::size_t used = 0;
    std::uint64_t length = 0;
    try {
      length = item.find('-') == std::string::npos ? std::stoull(item, &used) : 0;
    } catch (const std::exception&) {
      used = 0;
    }
    if (item.empty() || used != item.size() || length == 0) {
      throw Error("--seq: '" + text +
                  "' is no list of lengths; write 512, or 512,128,300 with one for each micro-batch");
    }
    lengths.push_back(length);
  }
  return lengths;
}

// "uniform:64:512": a length for each micro-batch. The generator's own arithmetic, so that a seed means the same
// everywhere.
std::vector<std::uint64_t> draw_lengths(const std::string& text, std::uint64_t count, std::uint64_t seed) {
  const std::string form = "write uniform:64:512, the shortest and the longest length";
  constexpr std::string_view name = "uniform:";
  const std::size_t colon = text.starts_with(name) ? text.find(':', name.size()) : std::string::npos;
  if (colon == std::string::npos) throw Error("--seq-distribution: '" + text + "' is unknown; " + form);
  std::uint64_t shortest = 0, longest = 0;
  try {
    shortest = parse_lengths(text.substr(name.size(), colon - name.size())).at(0);
    longest = parse_lengths(text.substr(colon + 1)).at(0);
  } catch (const std::exception&) {
    longest = 0;
  }
  if (longest < shortest || longest == 0) throw Error("--seq-distribution: '" + text + "' has no such range; " + form);
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> lengths(count);
  for (std::uint64_t& length : lengths) length = shortest + random() % (longest - shortest + 1);
  return lengths;
}

// The value of a choice, or an error that lists the valid names.
template <typename Enum>
Enum choose(const char* option, const std::string& text, std::optional<Enum> (*parse)(std::string_view),
            const std::string& names) {
  if (const std::optional<Enum> value = parse(text)) return *value;
  throw Error(fmt::format("--{}: unknown '{}'; valid are {}", option, text, names));
}

// Of what is stored, not of how products are computed.
std::optional<Precision> parse_storage_precision(std::string_view text) {
  const std::optional<Precision> precision = parse_precision(text);
  const bool stored = precision == Precision::fp16 || precision == Precision::bf16 || precision == Precision::fp32;
  return stored ? precision : std::nullopt;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

GenerateOptions options_of(const GenerateArguments& arguments) {
  const auto count = [](const char* option, std::int64_t value) {
    if (value < 0) throw Error(fmt::format("--{}: {} is negative", option, value));
    return static_cast<std::uint64_t>(value);
  };
  GenerateOptions options;
  options.model = arguments.description != nullptr ? *arguments.description : read_model(arguments.model);
  options.gpu = read_gpu(arguments.gpu, arguments.kernels);
  options.head = usual_head(options.model);
  if (arguments.head == "lm") {
    options.head = Head::language_model;
  } else if (arguments.head == "classification") {
    options.head = Head::classification;
  } else if (!arguments.head.empty()) {
    throw Error("--head: unknown '" + arguments.head + "'; valid are lm, classification");
  }
  options.precision = choose<Precision>("precision", arguments.precision, parse_precision, precision_names());
  if (!arguments.gradient_precision.empty()) {
    options.gradient_precision = choose<Precision>("gradient-precision", arguments.gradient_precision,
                                                   parse_storage_precision, "fp16, bf16, fp32");
  }
  options.optimizer = choose<Optimizer>("optimizer", arguments.optimizer, parse_optimizer, optimizer_names());
  // "block:0.5": of half of the layers.
  const std::size_t colon = arguments.recompute.find(':');
  options.recompute =
      choose<Recompute>("recompute", arguments.recompute.substr(0, colon), parse_recompute, recompute_names());
  if (colon != std::string::npos) {
    const std::string share = arguments.recompute.substr(colon + 1);
    const std::optional<double> number = parse_number(share);
    if (!number || !(*number > 0 && *number <= 1)) {
      throw Error(
          fmt::format("--recompute: '{}' is not a share of the layers above 0 and up to 1; write {}:0.5 for "
                      "every second layer",
                      share, arguments.recompute.substr(0, colon)));
    }
    options.recompute_share = *number;
  }
  options.stack = choose<Stack>("stack", arguments.stack, parse_stack, stack_names());
  options.stack_figures = read_stack_figures();
  options.update = choose<Update>("update", arguments.update, parse_update, update_names());
  if (const auto kernel = parse_attention_kernel(arguments.attention)) {
    options.attention_kernel = *kernel;
  } else {
    options.attention = choose<AttentionKind>("attention", arguments.attention, parse_attention,
                                              attention_names() + ", " + attention_kernel_names());
  }
  if (!arguments.loss.empty()) options.loss = choose<LossKind>("loss", arguments.loss, parse_loss, loss_names());
  if (!(arguments.predicted_tokens > 0 && arguments.predicted_tokens <= 1)) {
    throw Error(fmt::format("--predicted-tokens: {} is no share above 0 and up to 1", arguments.predicted_tokens));
  }
  options.predicted_tokens = arguments.predicted_tokens;
  if (!arguments.communication.empty()) {
    options.communication =
        choose<Communication>("communication", arguments.communication, parse_communication, communication_names());
  }
  options.forward_only = arguments.forward_only;
  options.dropout = choose<Dropout>("dropout", arguments.dropout, parse_dropout, dropout_names());
  options.batch = count("batch", arguments.batch);
  options.micro_batches = count("micro-batches", arguments.micro_batches);
  if (!arguments.sequence_distribution.empty()) {
    if (!arguments.sequence.empty()) throw Error("--seq and --seq-distribution exclude each other; give one");
    constexpr std::uint64_t most = 1u << 20;
    if (options.micro_batches > most) throw Error(fmt::format("--micro-batches: at most {} with a distribution", most));
    options.sequence_lengths = draw_lengths(arguments.sequence_distribution, options.micro_batches,
                                            static_cast<std::uint64_t>(arguments.seed));
  } else if (!arguments.sequence.empty()) {
    options.sequence_lengths = parse_lengths(arguments.sequence);
  }
  options.clip = choose<Clip>("clip", arguments.clip, parse_clip, clip_names());
  if (arguments.gradients != "freed" && arguments.gradients != "kept") {
    throw Error("--gradients: unknown '" + arguments.gradients + "'; valid are freed, kept");
  }
  options.keep_gradients = arguments.gradients == "kept";
  options.sub_group = count("sub-group", arguments.sub_group);
  const auto parsed = [](const char* option, const std::string& text, const auto& parse) {
    try {
      return parse(text);
    } catch (const Error& error) {
      throw Error(fmt::format("--{}: {}", option, error.what()));
    }
  };
  if (!arguments.launch_gap.empty()) {
    options.launch_gap_ns = parsed("launch-gap", arguments.launch_gap, parse_duration);
  }
  options.lora_rank = count("lora-rank", arguments.lora_rank);
  options.lora_targets = split(arguments.lora_targets);
  options.quantise_bits = count("quantise", arguments.quantise);
  options.data_parallel = count("data-parallel", arguments.data_parallel);
  options.tensor_parallel = count("tensor-parallel", arguments.tensor_parallel);
  options.pipeline_parallel = count("pipeline-parallel", arguments.pipeline_parallel);
  options.pipeline_chunks = count("pipeline-chunks", arguments.pipeline_chunks);
  options.zero = static_cast<int>(std::min<std::uint64_t>(count("zero", arguments.zero), 99));
  options.gradient_reduction = choose<GradientReduction>("gradient-reduction", arguments.gradient_reduction,
                                                         parse_gradient_reduction, gradient_reduction_names());
  if (!arguments.interconnect.empty()) {
    options.interconnect = parsed("interconnect", arguments.interconnect, parse_bandwidth);
    if (options.interconnect == 0) throw Error("--interconnect: must be above 0");
  }
  options.command = arguments.command;
  return options;
}

std::string summary_text(const GenerateArguments& arguments, const GenerateOptions& options, const Trace& trace,
                         const TraceSummary& summary, std::uint64_t parameters) {
  const std::uint64_t ranks = summary.rank_count;
  std::string text = fmt::format("{}: {}, {:.3f} billion parameters\n", arguments.output, options.model.name,
                                 static_cast<double>(parameters) * 1e-9);
  text += fmt::format("  ops        {} of {} rank{}\n", trace.ops.size(), ranks, ranks == 1 ? "" : "s");
  text += fmt::format("  tensors    {}, {}\n", trace.tensors.size(), format_bytes(summary.tensor_bytes));
  for (int role = 0; role < role_count; ++role) {
    const TraceSummary::Tensors& tensors = summary.tensors[static_cast<std::size_t>(role)];
    if (tensors.count == 0) continue;
    text += fmt::format("    {:<16} {}, {}\n", to_string(static_cast<Role>(role)), tensors.count,
                        format_bytes(tensors.bytes));
  }
  const char* const unit = options.forward_only ? "forward pass" : "step";
  const Nanoseconds step = (summary.compute_ns + summary.gap_ns) / static_cast<Nanoseconds>(ranks);
  text += fmt::format("  modelled   {} a {} on {}{}, with unlimited memory\n", format_duration(step), unit,
                      options.gpu.name, ranks == 1 ? "" : " (mean over ranks, without waiting)");
  if (const std::string note = calibration_note(options.gpu.kernels); !note.empty()) text += "  " + note + "\n";
  return text;
}

ExitCode run_generate(const GenerateArguments& arguments) {
  check_output("--output", arguments.output, {arguments.model});
  GenerateOptions options = options_of(arguments);
  Trace trace;
  {
    ProgressLine progress;
    auto shown = std::chrono::steady_clock::now();
    options.progress = [&](double share) {
      const auto now = std::chrono::steady_clock::now();
      if (now - shown < std::chrono::milliseconds(100)) return;
      shown = now;
      progress.show(fmt::format("generating {:3.0f} %", 100 * share));
    };
    trace = generate(options);
    progress.show(fmt::format("writing {} ops to {}", trace.ops.size(), arguments.output));
    write_trace(trace, arguments.output);
  }
  const TraceSummary summary = summarize(trace);
  const std::uint64_t parameters = parameter_count(options.model, options.head);
  if (arguments.json) {
    Json by_role = Json::object();
    for (int role = 0; role < role_count; ++role) {
      const TraceSummary::Tensors& tensors = summary.tensors[static_cast<std::size_t>(role)];
      if (tensors.count == 0 && static_cast<Role>(role) > Role::workspace) continue;  // roles of inference only
      by_role[std::string(to_string(static_cast<Role>(role)))] = {{"count", tensors.count}, {"bytes", tensors.bytes}};
    }
    print_json({{"trace", arguments.output},
                {"sha256", sha256_of_file(arguments.output)},
                {"model", options.model.name},
                {"parameters", parameters},
                {"ops", trace.ops.size()},
                {"ranks", summary.rank_count},
                {"tensors", {{"count", trace.tensors.size()}, {"by_role", std::move(by_role)}}},
                {"flops", summary.flops},
                {"compute_seconds", to_seconds(summary.compute_ns)},
                {"gap_seconds", to_seconds(summary.gap_ns)}});
  } else {
    print(summary_text(arguments, options, trace, summary, parameters));
  }
  return ExitCode::done;
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// The options as given, for `reproduce`.
std::string command_text(const CLI::App& command) {
  std::string text = "tencache generate";
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || name == "--output" || name == "--json") continue;
    text += " " + name;
    if (!is_flag(*option)) text += " " + quoted_word(join(option->results()));
  }
  return text;
}

// All but where it goes and how it is reported.
void add_generate_options(CLI::App& command, GenerateArguments& a) {
  command.add_option("--model", a.model, "Name (tencache models), or a .yaml or config.json file")->required();
  const auto whole = [](const std::string& text) {
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_whole = error == std::errc() && rest == text.data() + text.size();
    return is_whole ? std::string() : "'" + text + "' is not a whole number from 1";
  };
  command.add_option("--batch", a.batch, "Sequences an iteration, over all ranks and micro-batches")
      ->required()
      ->check(whole);
  command.add_option("--seq", a.sequence, "Tokens a sequence; or a list, one length for each micro-batch");
  command.add_option("--seq-distribution", a.sequence_distribution,
                     "uniform:SHORTEST:LONGEST: a length for each micro-batch is drawn");
  command.add_option("--seed", a.seed, "Of --seq-distribution")->capture_default_str();
  command.add_option("--micro-batches", a.micro_batches, "Parts of the batch; gradients accumulate over them")
      ->capture_default_str();
  command.add_option("--gpu", a.gpu, "GPU whose kernel times are modelled (configs/gpus.yaml)")->capture_default_str();
  refuse_empty(command.add_option("--kernels", a.kernels,
                                  "Constants of its kernels from this file, such as calibrate --from-trace writes "
                                  "(default: the GPU's of configs/kernels)"));
  command
      .add_option("--precision", a.precision,
                  "Compute in fp16 or bf16 (with fp32 master copies), fp32, tf32 (stored in fp32, products at the "
                  "TF32 rate), or fp8 (stored in bf16, the products of the blocks' linear layers in fp8)")
      ->capture_default_str();
  command.add_option("--gradient-precision", a.gradient_precision,
                     "Of the parameters' gradients (default: --precision)");
  command.add_option("--optimizer", a.optimizer, optimizer_names())->capture_default_str();
  command
      .add_option("--recompute", a.recompute,
                  "Compute activations again in the backward pass: " + recompute_names() +
                      "; with a share of the layers as block:0.5, every second one (docs/workloads.md)")
      ->capture_default_str();
  command.add_option("--head", a.head, "lm or classification (default: the model's usual one)");
  command
      .add_option("--stack", a.stack,
                  "Software whose kernels run between the products: " + stack_names() + " (docs/durations.md)")
      ->capture_default_str();
  command
      .add_option("--attention", a.attention,
                  attention_names() + "; or a fused kernel by its generation: " + attention_kernel_names() +
                      " (flash: what stack and GPU have)")
      ->capture_default_str();
  command.add_option("--loss", a.loss,
                     "How cross entropy is computed: " + loss_names() +
                         " (default: full for eager, else fused; with --forward-only there is no loss unless given)");
  command
      .add_option("--predicted-tokens", a.predicted_tokens,
                  "Share of the tokens that a language model's head computes; BERT's masked ones are 0.15")
      ->capture_default_str();
  command.add_flag("--forward-only", a.forward_only,
                   "Generate the forward pass alone, as for evaluation: no gradients, optimizer or kept activations "
                   "(default: a training step)");
  command.add_option("--communication", a.communication,
                     "Software between data-parallel ranks, which hides part of its collectives: " +
                         communication_names() + " (default: ddp without ZeRO, else fsdp)");
  command.add_option("--dropout", a.dropout, dropout_names() + " (family: as published)")->capture_default_str();
  command
      .add_option(
          "--clip", a.clip,
          clip_names() +
              ": gradients by their global norm, a barrier before the updates; early: norms as gradients are complete")
      ->capture_default_str();
  command
      .add_option("--update", a.update,
                  update_names() +
                      " the backward pass; fused: each block's parameters as soon as their gradients are "
                      "there, which are freed (needs --clip off)")
      ->capture_default_str();
  command
      .add_option("--gradients", a.gradients, "freed: after each step; kept: in buffers for good, as Megatron-LM does")
      ->capture_default_str();
  command.add_option("--sub-group", a.sub_group, "Elements of a sub-group of the optimizer step")
      ->capture_default_str();
  command.add_option("--launch-gap", a.launch_gap,
                     "Idle time before each op, such as 5us (default: until the host has issued it)");
  command.add_option("--lora-rank", a.lora_rank, "Train low-rank adapters of this rank only; the model is frozen")
      ->check([](const std::string& text) {
        return std::string(
            text.find_first_not_of('0') == text.npos ? "is at least 1; without it all parameters are trained" : "");
      });
  command.add_option("--lora-targets", a.lora_targets,
                     "Linear layers that are adapted, such as q_proj,v_proj (default: as PEFT)");
  command.add_option("--quantise", a.quantise, "4 or 8: bits of the frozen weights (with --lora-rank)");
  command.add_option("--data-parallel", a.data_parallel, "Ranks that share the batch")->capture_default_str();
  command.add_option("--tensor-parallel", a.tensor_parallel, "Ranks that share each layer")->capture_default_str();
  command.add_option("--pipeline-parallel", a.pipeline_parallel, "Stages of layers")->capture_default_str();
  command
      .add_option("--pipeline-chunks", a.pipeline_chunks,
                  "Chunks of layers on each pipeline stage; above 1, run the interleaved schedule, which needs "
                  "--micro-batches to be a multiple of --pipeline-parallel")
      ->capture_default_str();
  command.add_option("--zero", a.zero, "ZeRO stage over the data-parallel ranks: 0, 1, 2, 3")->capture_default_str();
  command
      .add_option("--gradient-reduction", a.gradient_reduction,
                  "Under ZeRO: " + gradient_reduction_names() + " (DeepSpeed's reduce_scatter false)")
      ->capture_default_str();
  command.add_option("--interconnect", a.interconnect, "Bandwidth between ranks, such as 300GB/s (default: the GPU's)");
}

}  // namespace

std::vector<std::string> generate_option_names() {
  GenerateArguments arguments;
  CLI::App app;
  app.set_help_flag();
  add_generate_options(app, arguments);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_lnames().front());
  return names;
}

void add_model_options(CLI::App& command, GenerateSettings& settings) {
  // Made once: every command has them.
  struct Description {
    std::string name, text;
    bool flag;
  };
  static const std::vector<Description> descriptions = [] {
    GenerateArguments arguments;
    CLI::App app;
    app.set_help_flag();
    add_generate_options(app, arguments);
    std::vector<Description> list;
    for (const CLI::Option* option : app.get_options()) {
      list.push_back({option->get_lnames().front(), option->get_description(), is_flag(*option)});
    }
    return list;
  }();
  const char* const group = "A model instead of TRACE, as of `tencache generate`";
  for (const auto& [name, description, flag] : descriptions) {
    if (name == "seed") continue;
    if (flag) {
      command
          .add_flag_callback(
              "--" + name, [name = name, &settings] { settings.emplace_back(name, "true"); }, description)
          ->group(group);
      continue;
    }
    command
        .add_option_function<std::string>(
            "--" + name, [name = name, &settings](const std::string& value) { settings.emplace_back(name, value); },
            description)
        ->group(group);
  }
}

namespace {

GenerateOptions parse_settings_of(const GenerateSettings& settings, const ModelDescription* model) {
  GenerateArguments arguments;
  arguments.description = model;
  CLI::App app;
  app.set_help_flag();
  add_generate_options(app, arguments);
  arguments.command = "tencache generate";
  std::vector<std::string> words;  // CLI11 takes them from the back
  for (const auto& [name, value] : settings) {
    const CLI::Option* const option = app.get_option_no_throw("--" + name);
    if (option != nullptr && is_flag(*option)) {
      if (value == "true") arguments.command += " --" + name;
    } else {
      arguments.command += " --" + name + " " + quoted_word(value);
    }
    words.insert(words.begin(), "--" + name + "=" + value);
  }
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw Error(error.what());
  }
  return options_of(arguments);
}

}  // namespace

Trace generate_trace(const GenerateSettings& settings, const ModelDescription* model) {
  return generate(parse_settings_of(settings, model));
}

void check_generate_settings(const GenerateSettings& settings) {
  check_generate_options(parse_settings_of(settings, nullptr));
}

std::optional<GenerateSettings> generate_settings_of(const std::string& recorded_by) {
  constexpr std::string_view command = "tencache generate ";
  if (!recorded_by.starts_with(command)) return std::nullopt;
  const std::vector<std::string> words = shell_words(std::string_view(recorded_by).substr(command.size()));
  GenerateSettings settings;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) return std::nullopt;
    const bool flag = i + 1 == words.size() || words[i + 1].starts_with("--");
    settings.emplace_back(words[i].substr(2), flag ? "true" : words[i + 1]);
    if (!flag) ++i;
  }
  return settings;
}

void add_generate_command(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("generate", "Make a trace from a model's description and modelled kernel times");
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& a = *arguments;
  add_generate_options(*command, a);
  refuse_empty(command->add_option("--output,-o", a.output, "The trace to write (.trace.jsonl, .trace.jsonl.zst)"))
      ->required();
  command->add_flag("--json", a.json, "What was generated as JSON");
  command->footer(
      "What is emitted and where the figures come from: docs/workloads.md.\n\nExamples:\n"
      "  tencache generate --model opt-6.7b --batch 16 --seq 75 --head classification --precision fp16 --gpu l40s \\\n"
      "      -o opt.trace.jsonl.zst\n"
      "  tencache generate --model llama-3-8b --batch 32 --micro-batches 8 --seq 2048 --recompute block --gpu a100-80g "
      "\\\n"
      "      -o llama.trace.jsonl.zst\n"
      "  tencache generate --model llama-3-8b --batch 8 --seq 1024 --lora-rank 16 --quantise 4 --gpu l4 \\\n"
      "      -o qlora.trace.jsonl.zst");
  command->callback([arguments, command, &chosen] {
    arguments->command = command_text(*command);
    chosen = [arguments] { return run_generate(*arguments); };
  });
}

}  // namespace tencache
