#include "configs/generate_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "configs/model_yaml.h"
#include "configs/stack_yaml.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/split.h"
#include "core/text.h"
#include "core/units.h"
#include "traces/generate/generate.h"
#include "traces/import/request_file.h"

namespace tencache {
namespace {

using Type = GenerateOption::Type;

const GenerateOption* find_option(const std::string& name) {
  const std::vector<GenerateOption>& options = generate_options();
  const auto at =
      std::ranges::find(options, name, [](const GenerateOption& option) { return std::string(option.name); });
  return at == options.end() ? nullptr : &*at;
}

// Settings whose names and types are right, with what is not given at its default.
class Values {
 public:
  Values(const GenerateSettings& settings, bool model_is_given) : settings_(settings) {
    for (auto at = settings.begin(); at != settings.end(); ++at) {
      const auto& [name, text] = *at;
      const GenerateOption* const option = find_option(name);
      if (option == nullptr) {
        throw Error("--" + name + ": no option of `tencache generate`; valid are " + join(generate_option_names()));
      }
      if (const std::string reason = refused_text(*option, text); !reason.empty()) {
        throw Error("--" + name + ": " + reason);
      }
      const auto same = [&name = name](const auto& other) { return other.first == name; };
      if (std::any_of(settings.begin(), at, same)) throw Error("--" + name + " is given twice; it takes one value");
    }
    for (const GenerateOption& option : generate_options()) {
      const bool replaced = model_is_given && std::string_view(option.name) == "model";
      if (option.required && !replaced && find(option.name) == nullptr) {
        throw Error(fmt::format("--{} is required", option.name));
      }
    }
  }

  std::string text(const char* name) const {
    const std::string* const given = find(name);
    return given != nullptr ? *given : find_option(name)->standard;
  }
  std::int64_t whole(const char* name) const { return parse_number<std::int64_t>(text(name)).value_or(0); }
  bool given(const char* name) const { return find(name) != nullptr; }
  double real(const char* name) const { return parse_number(text(name)).value_or(0); }
  bool flag(const char* name) const { return text(name) == "true"; }
  // As a shell takes it, for `reproduce`.
  std::string command() const {
    std::string command = "tencache generate";
    for (const auto& [name, text] : settings_) {
      if (find_option(name)->type != Type::flag) {
        command += " --" + name + " " + quoted_word(text);
      } else if (text == "true") {
        command += " --" + name;
      }
    }
    return command;
  }

 private:
  const std::string* find(std::string_view name) const {
    const auto at =
        std::ranges::find(settings_, name, [](const auto& setting) { return std::string_view(setting.first); });
    return at == settings_.end() ? nullptr : &at->second;
  }

  const GenerateSettings& settings_;
};

// "512,128" as numbers.
std::vector<std::uint64_t> parse_lengths(const std::string& text, const std::string& option = "seq") {
  std::vector<std::uint64_t> lengths;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const auto length = parse_number<std::uint64_t>(item.erase(0, item.find_first_not_of(' '))).value_or(0);
    if (length == 0) {
      throw Error("--" + option + ": '" + text +
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
Enum choose(const char* option, const std::string& text, const std::string& names = enum_names<Enum>(),
            std::optional<Enum> (*parse)(std::string_view) = parse_enum<Enum>) {
  if (const std::optional<Enum> value = parse(text)) return *value;
  throw Error(fmt::format("--{}: unknown '{}'; valid are {}", option, text, names));
}

// Of what is stored, not of how products are computed.
std::optional<Precision> parse_storage_precision(std::string_view text) {
  const std::optional<Precision> precision = parse_enum<Precision>(text);
  const bool stored = precision == Precision::fp16 || precision == Precision::bf16 || precision == Precision::fp32;
  return stored ? precision : std::nullopt;
}

// "48x3": requests of a micro-batch, and micro-batches.
std::pair<std::uint64_t, std::uint64_t> parse_block(const std::string& text) {
  const std::size_t by = text.find('x');
  const std::optional<std::int64_t> requests = parse_number<std::int64_t>(text.substr(0, by));
  const std::optional<std::int64_t> batches = by == text.npos ? 1 : parse_number<std::int64_t>(text.substr(by + 1));
  if (!requests || !batches || *requests < 1 || *batches < 1 || *requests > (1 << 20) || *batches > (1 << 20)) {
    throw Error("--block: '" + text + "' is no block; write 48x3, the requests of a micro-batch and how many of these");
  }
  return {static_cast<std::uint64_t>(*requests), static_cast<std::uint64_t>(*batches)};
}

struct DrawnLengths {
  std::vector<std::uint64_t> prompts;  // the longest of each micro-batch
  std::uint64_t new_tokens = 0;        // the longest of all
};

// Requests of the file at random, each as likely as any other, for the micro-batches one after the other.
DrawnLengths draw_requests(const std::string& file, std::uint64_t requests, std::uint64_t batches, std::uint64_t seed) {
  const std::vector<RequestLengths> recorded = read_requests(file);
  std::mt19937_64 random(seed);
  DrawnLengths drawn;
  for (std::uint64_t batch = 0; batch < batches; ++batch) {
    std::uint64_t longest = 0;
    for (std::uint64_t i = 0; i < requests; ++i) {
      const RequestLengths& request = recorded[random() % recorded.size()];
      longest = std::max(longest, request.prompt_tokens);
      drawn.new_tokens = std::max(drawn.new_tokens, request.new_tokens);
    }
    drawn.prompts.push_back(longest);
  }
  return drawn;
}

// Formats of weights; the model's own precision is one by its name.
void set_weights(const Values& values, GenerateOptions& options) {
  const std::string weights = values.text("weights");
  if (weights.empty()) {
    // As the checkpoint is published. What is trained is in 16 bits, and so is what adapters have no kernels for.
    const std::string& published = options.model.quantised;
    if (options.weights != nullptr || options.precision == Precision::fp8) return;
    if (options.forward_only) options.weights = find_weight_format(published);
    if (options.lora_rank != 0 && published == "nf4") options.weights = find_weight_format(published);
    return;
  }
  if (options.weights != nullptr) throw Error("--weights and --quantise exclude each other; give one");
  if (parse_storage_precision(weights)) {
    if (weights == to_string(options.precision)) return;
    throw Error(fmt::format("--weights: {} where the model computes in {}; give --precision {}", weights,
                            to_string(options.precision), weights));
  }
  options.weights = find_weight_format(weights);
  if (options.weights == nullptr) {
    throw Error(
        fmt::format("--weights: unknown '{}'; valid are {}, and that of --precision", weights, weight_format_names()));
  }
  if (!options.forward_only && options.lora_rank == 0) {
    throw Error(fmt::format("--weights: {} cannot be trained; give --new-tokens or --forward-only as well", weights));
  }
}

constexpr const char* routing_options[] = {"routing-seed",    "routing-popularity", "routing-repeat", "routing-topic",
                                           "routing-profile", "experts-per-token",  "grouped-experts"};

// Of a generation. What only training or a single pass has is refused.
void set_generation(const Values& values, GenerateOptions& options) {
  for (const char* name : {"batch", "micro-batches", "seq", "seq-distribution", "forward-only", "optimizer"}) {
    if (values.given(name)) {
      throw Error(fmt::format("--{} is not for --new-tokens; a generation takes --prompt and --block", name));
    }
  }
  const bool recorded = values.given("requests");
  if (recorded && values.given("prompt")) throw Error("--prompt and --requests exclude each other; give one");
  if (!recorded && values.given("request-seed")) throw Error("--request-seed is of --requests, which is missing");
  if (!recorded && !values.given("prompt")) throw Error("--prompt is missing: tokens of a prompt, such as 512");
  const auto [requests, batches] = parse_block(values.text("block"));
  DrawnLengths drawn;
  if (recorded) {
    drawn = draw_requests(values.text("requests"), requests, batches,
                          static_cast<std::uint64_t>(values.whole("request-seed")));
  } else {
    drawn.prompts = parse_lengths(values.text("prompt"), "prompt");
  }
  TextGeneration generation;
  const std::int64_t tokens =
      values.given("new-tokens") ? values.whole("new-tokens") : static_cast<std::int64_t>(drawn.new_tokens);
  if (tokens < 1 || tokens > (1 << 24)) throw Error(fmt::format("--new-tokens: {} is not between 1 and 2^24", tokens));
  generation.new_tokens = static_cast<std::uint64_t>(tokens);
  generation.order = choose<BlockOrder>("order", values.text("order"));
  generation.attention = choose<Device>("attention-on", values.text("attention-on"));
  generation.placeable = choose<Placeable>("placeable", values.text("placeable"));
  const std::string page = values.text("kv-page");
  if (page == "whole") {
    generation.page_tokens = 0;
  } else if (const std::optional<std::int64_t> count = parse_number<std::int64_t>(page); count && *count > 0) {
    generation.page_tokens = static_cast<std::uint64_t>(*count);
  } else {
    try {
      generation.page_bytes = parse_bytes(page);
    } catch (const Error&) {
      generation.page_bytes = 0;
    }
    if (generation.page_bytes == 0) {
      throw Error("--kv-page: '" + page + "' is neither a number of tokens, nor a size such as 2MiB, nor whole");
    }
  }
  const std::int64_t prefix = values.whole("shared-prefix");
  if (prefix < 0) throw Error(fmt::format("--shared-prefix: {} is below 0", prefix));
  generation.shared_prefix = static_cast<std::uint64_t>(prefix);
  if (options.model.experts == 0) {
    for (const char* name : routing_options) {
      if (values.given(name)) throw Error(fmt::format("--{}: {} has no experts", name, options.model.name));
    }
  }
  if (const std::string format = values.text("kv-format"); format == int4_g64.name) {
    generation.cache_packing = &int4_g64;
  } else if (!format.empty() && format != to_string(options.precision)) {
    throw Error(fmt::format("--kv-format: unknown '{}'; valid are {}, and that of --precision, {}", format,
                            int4_g64.name, to_string(options.precision)));
  }
  generation.routing.seed = static_cast<std::uint64_t>(values.whole("routing-seed"));
  generation.routing.popularity = values.real("routing-popularity");
  generation.routing.repeat = values.real("routing-repeat");
  generation.routing.topic = values.real("routing-topic");
  const std::int64_t profile = values.whole("routing-profile");
  if (profile < 0 || profile > 0xffff)
    throw Error(fmt::format("--routing-profile: {} is not from 0 to 65535", profile));
  generation.routing.profile = static_cast<std::uint64_t>(profile);
  generation.grouped_experts = values.flag("grouped-experts");
  if (values.given("experts-per-token")) {
    const std::int64_t experts = values.whole("experts-per-token");
    if (experts < 1 || static_cast<std::uint64_t>(experts) > options.model.experts) {
      throw Error(fmt::format("--experts-per-token: {} is not from 1 to the {} experts of {}", experts,
                              options.model.experts, options.model.name));
    }
    options.model.experts_per_token = static_cast<std::uint64_t>(experts);
  }
  options.batch = requests * batches;
  options.micro_batches = batches;
  options.sequence_lengths = drawn.prompts;
  options.forward_only = true;
  options.generation = generation;
}

GenerateOptions options_of(const Values& values, const ModelDescription* model) {
  const auto count = [&values](const char* option) {
    const std::int64_t value = values.whole(option);
    if (value < 0) throw Error(fmt::format("--{}: {} is negative", option, value));
    return static_cast<std::uint64_t>(value);
  };
  const auto set = [&values]<typename Enum>(const char* option, Enum& field) {
    field = choose<Enum>(option, values.text(option));
  };
  const auto set_if_given = [&values]<typename Enum>(const char* option, std::optional<Enum>& field) {
    if (const std::string text = values.text(option); !text.empty()) field = choose<Enum>(option, text);
  };
  GenerateOptions options;
  options.model = model != nullptr ? *model : read_model(values.text("model"));
  options.gpu = read_gpu(values.text("gpu"), values.text("kernels"));
  set("precision", options.precision);
  if (!values.text("gradient-precision").empty()) {
    options.gradient_precision = choose<Precision>("gradient-precision", values.text("gradient-precision"),
                                                   "fp16, bf16, fp32", parse_storage_precision);
  }
  set("optimizer", options.optimizer);
  // Whether it is the second.
  const auto one_of = [&values](const char* option, const char* first, const char* second) {
    const std::string text = values.text(option);
    if (!text.empty() && text != first && text != second) {
      throw Error(fmt::format("--{}: unknown '{}'; valid are {}, {}", option, text, first, second));
    }
    return text == second;
  };
  const bool classifies = one_of("head", "lm", "classification");
  options.head = values.text("head").empty() ? usual_head(options.model)
                 : classifies                ? Head::classification
                                             : Head::language_model;
  const bool without_master = one_of("master", "on", "off");
  if (!values.text("master").empty()) options.master = !without_master;
  options.fp32_states = one_of("state-precision", "as-parameters", "fp32");
  options.fp32_embedding_states = one_of("embedding-states", "8bit", "fp32");
  const std::string trained = values.text("train-layers");
  options.low_rank = count("rank");
  if (trained.starts_with("last:")) {
    const std::optional<std::int64_t> layers =
        parse_number<std::int64_t>(trained.substr(std::string_view("last:").size()));
    if (!layers || *layers < 1) throw Error("--train-layers: '" + trained + "' has no number; write last:4");
    options.trained.last_layers = static_cast<std::uint64_t>(*layers);
  } else if (trained == "biases") {
    options.trained.biases_only = true;
  } else if (!trained.empty() && trained != "all") {
    throw Error("--train-layers: unknown '" + trained + "'; valid are all, last:4, biases");
  }
  // "block:0.5": of half of the layers.
  const std::string recompute = values.text("recompute");
  const std::size_t colon = recompute.find(':');
  options.recompute = choose<Recompute>("recompute", recompute.substr(0, colon));
  if (colon != std::string::npos) {
    const std::string share = recompute.substr(colon + 1);
    const std::optional<double> number = parse_number(share);
    if (!number || !(*number > 0 && *number <= 1)) {
      throw Error(
          fmt::format("--recompute: '{}' is not a share of the layers above 0 and up to 1; write {}:0.5 for "
                      "every second layer",
                      share, recompute.substr(0, colon)));
    }
    options.recompute_share = *number;
  }
  set("stack", options.stack);
  options.stack_figures = read_stack_figures();
  set("update", options.update);
  if (const auto kernel = parse_enum<AttentionKernel>(values.text("attention"))) {
    options.attention_kernel = *kernel;
  } else {
    options.attention = choose<AttentionKind>("attention", values.text("attention"),
                                              enum_names<AttentionKind>() + ", " + enum_names<AttentionKernel>());
  }
  set_if_given("loss", options.loss);
  const double predicted_tokens = values.real("predicted-tokens");
  if (!(predicted_tokens > 0 && predicted_tokens <= 1)) {
    throw Error(fmt::format("--predicted-tokens: {} is no share above 0 and up to 1", predicted_tokens));
  }
  options.predicted_tokens = predicted_tokens;
  set_if_given("communication", options.communication);
  options.forward_only = values.flag("forward-only");
  options.context.tokens = count("context-chunk");
  options.context.pages = count("context-pages");
  set("dropout", options.dropout);
  options.batch = count("batch");
  options.micro_batches = count("micro-batches");
  const std::string distribution = values.text("seq-distribution");
  if (!distribution.empty()) {
    if (!values.text("seq").empty()) throw Error("--seq and --seq-distribution exclude each other; give one");
    constexpr std::uint64_t most = 1u << 20;
    if (options.micro_batches > most) throw Error(fmt::format("--micro-batches: at most {} with a distribution", most));
    options.sequence_lengths =
        draw_lengths(distribution, options.micro_batches, static_cast<std::uint64_t>(values.whole("seed")));
  } else if (!values.text("seq").empty()) {
    options.sequence_lengths = parse_lengths(values.text("seq"));
  }
  const bool generates = values.given("new-tokens") || values.given("requests");
  if (generates) {
    set_generation(values, options);
  } else {
    std::vector<const char*> names = {"prompt",       "block",     "order",        "kv-page",      "kv-format",
                                      "attention-on", "placeable", "request-seed", "shared-prefix"};
    names.insert(names.end(), std::begin(routing_options), std::end(routing_options));
    for (const char* name : names) {
      if (values.given(name)) throw Error(fmt::format("--{} belongs to a generation; give --new-tokens as well", name));
    }
  }
  set("clip", options.clip);
  options.keep_gradients = one_of("gradients", "freed", "kept");
  options.sub_group = count("sub-group");
  const auto parsed = [](const char* option, const std::string& text, const auto& parse) {
    try {
      return parse(text);
    } catch (const Error& error) {
      throw Error(fmt::format("--{}: {}", option, error.what()));
    }
  };
  if (!values.text("launch-gap").empty()) {
    options.launch_gap_ns = parsed("launch-gap", values.text("launch-gap"), parse_duration);
  }
  options.lora_rank = count("lora-rank");
  if (!values.text("lora-targets").empty()) options.lora_targets = split(values.text("lora-targets"));
  if (const std::uint64_t bits = count("quantise"); bits != 0) {
    if (bits != 4 && bits != 8) throw Error(fmt::format("--quantise: {} bits; it takes 4 or 8", bits));
    options.weights = find_weight_format(bits == 4 ? "nf4" : "int8-expanded");
  }
  set_weights(values, options);
  options.data_parallel = count("data-parallel");
  if (!values.given("batch") && !generates) {
    options.batch =
        std::max<std::uint64_t>(1, options.micro_batches) * std::max<std::uint64_t>(1, options.data_parallel);
  }
  options.tensor_parallel = count("tensor-parallel");
  options.pipeline_parallel = count("pipeline-parallel");
  options.pipeline_chunks = count("pipeline-chunks");
  options.zero = static_cast<int>(std::min<std::uint64_t>(count("zero"), 99));
  set("gradient-reduction", options.gradient_reduction);
  if (values.given("reduce-bucket")) options.reduce_bucket = count("reduce-bucket");
  options.max_reuse_distance = count("max-reuse-distance");
  if (!values.text("interconnect").empty()) {
    options.interconnect = parsed("interconnect", values.text("interconnect"), parse_bandwidth);
    if (options.interconnect == 0) throw Error("--interconnect: must be above 0");
  }
  options.origin.command = values.command();
  return options;
}

}  // namespace

const std::vector<GenerateOption>& generate_options() {
  using enum GenerateOption::Type;
  static const std::vector<GenerateOption> options = {
      {"model", text, "Name (tencache models), or a .yaml or config.json file", "", true},
      {"batch", whole,
       "Sequences an iteration, over all ranks and micro-batches (default: 1 of each; not with --new-tokens)"},
      {"seq", text, "Tokens a sequence; or a list, one length for each micro-batch"},
      {"seq-distribution", text, "uniform:SHORTEST:LONGEST: a length for each micro-batch is drawn"},
      {"seed", whole, "Of --seq-distribution", "1"},
      {"micro-batches", whole, "Parts of the batch; gradients accumulate over them", "1"},
      {"gpu", text, "GPU whose kernel times are modelled (configs/gpus.yaml)", "h100"},
      {"kernels", text,
       "Constants of its kernels from this file, such as calibrate --from-trace writes "
       "(default: the GPU's of configs/kernels)"},
      {"precision", text,
       "Compute in fp16 or bf16 (with fp32 master copies), fp32, tf32 (stored in fp32, products at the "
       "TF32 rate), or fp8 (stored in bf16, the products of the blocks' linear layers in fp8)",
       "bf16"},
      {"gradient-precision", text, "Of the parameters' gradients (default: --precision)"},
      {"optimizer", text, enum_names<Optimizer>(), "adamw"},
      {"master", text,
       "on, off: fp32 copies of 16-bit parameters (default: on, but off for 8-bit and low-rank optimizers, lomo "
       "and adalomo); off: pure 16-bit training, states of adamw, sgd and lamb included"},
      {"state-precision", text, "Without master copies: as-parameters, fp32", "as-parameters"},
      {"embedding-states", text, "Of adam8bit: 8bit, or fp32 for embeddings, as Hugging Face's Trainer has it", "8bit"},
      {"rank", whole, "Of galore, galore8bit (default: 128) and apollo (256)"},
      {"train-layers", text,
       "all; last:4, these layers with the final norm and an untied head; biases. All else is frozen, and what "
       "lies below keeps no activations",
       "all"},
      {"recompute", text,
       "Compute activations again in the backward pass: " + enum_names<Recompute>() +
           "; with a share of the layers as block:0.5, every second one; with --new-tokens choose: keys and values of "
           "prompts, in pieces of --kv-page (docs/workloads.md)",
       "none"},
      {"context-chunk", whole,
       "Train a long sequence by chunks of so many tokens, which leave keys, values and gradients of them "
       "(docs/workloads.md; 0: all at once)",
       "0"},
      {"context-pages", whole,
       "Of --context-chunk: earlier pages of 128 tokens that a page of queries attends to, by a draw (0: all)", "0"},
      {"head", text, "lm or classification (default: the model's usual one)"},
      {"stack", text,
       "Software whose kernels run between the products: " + enum_names<Stack>() + " (docs/durations.md)", "eager"},
      {"attention", text,
       enum_names<AttentionKind>() + "; or a fused kernel by its generation: " + enum_names<AttentionKernel>() +
           " (flash: what stack and GPU have)",
       "flash"},
      {"loss", text,
       "How cross entropy is computed: " + enum_names<LossKind>() +
           " (default: full for eager, else fused; with --forward-only there is no loss unless given)"},
      {"predicted-tokens", real,
       "Share of the tokens that a language model's head computes; BERT's masked ones are 0.15", "1"},
      {"forward-only", flag,
       "Generate the forward pass alone, as for evaluation: no gradients, optimizer or kept activations "
       "(default: a training step)"},
      {"new-tokens", whole,
       "Generate a block of requests for text, not a training step: so many new tokens after each prompt"},
      {"prompt", text, "Tokens of a prompt; or a list, one length for each micro-batch (with --new-tokens)"},
      {"requests", text,
       "In place of --prompt: draw requests from this file, a CSV with ContextTokens and GeneratedTokens or JSON "
       "lines with input_length and output_length; --new-tokens may be left out"},
      {"request-seed", whole, "Of --requests", "1"},
      {"block", text, "48x3: requests of a micro-batch, and micro-batches (with --new-tokens)", "1x1"},
      {"order", text,
       "row: each micro-batch to its last token; zigzag: all of them through a layer before the next one "
       "(with --new-tokens)",
       "row"},
      {"kv-page", text,
       "What the KV cache grows by: tokens, a size such as 2MiB (of a request's keys in a layer), or whole", "16"},
      {"shared-prefix", whole,
       "Tokens that all prompts begin with, whose keys and values are there already, once for all (with --new-tokens)",
       "0"},
      {"attention-on", text,
       "Where new tokens attend to the KV cache: gpu, or cpu, at the machine's cpu.tflops and cpu.bandwidth", "gpu"},
      {"placeable", text,
       "What a policy may compute on the CPU instead: " + enum_names<Placeable>() +
           " ops (attention: of new tokens; llama-cpp needs all)",
       "none"},
      {"kv-format", text,
       "Keep keys and values in int4-g64 and expand them before attention (default: in --precision; with "
       "--new-tokens)"},
      {"routing-seed", whole, "Of the experts that tokens are routed to (with --new-tokens)", "1"},
      {"routing-popularity", real,
       "Zipf's exponent of the experts' popularity, 0 to 16; 0: all alike (with --new-tokens)", "0.16"},
      {"routing-repeat", real, "Probability that a token keeps an expert of the token before it (with --new-tokens)",
       "0"},
      {"routing-topic", real,
       "Zipf's exponent of each request's own preferences, which multiply the popularity, 0 to 2 (with --new-tokens; "
       "0: "
       "requests are alike)",
       "0"},
      {"routing-profile", whole,
       "Count how often so many tokens of other requests choose each expert, for policies that start from such a "
       "profile "
       "(with --new-tokens; 0: none)",
       "0"},
      {"grouped-experts", flag,
       "Kernels that compute all experts of a layer at once, as serving engines have them: they start once for all "
       "(with "
       "--new-tokens; default: kernels of each expert)"},
      {"experts-per-token", whole, "Experts that each token chooses (default: the model's; with --new-tokens)"},
      {"communication", text,
       "Software between data-parallel ranks, which hides part of its collectives: " + enum_names<Communication>() +
           " (default: ddp without ZeRO, else deepspeed)"},
      {"reduce-bucket", whole,
       "Under DeepSpeed's ZeRO: elements of the bucket that gradients are reduced from, which stays on the GPU "
       "(default: 500000000, and no more than are trained)"},
      {"max-reuse-distance", whole,
       "Under DeepSpeed's ZeRO-3: a gathered parameter that is used again so soon, in elements, stays on the GPU",
       "1000000000"},
      {"dropout", text, enum_names<Dropout>() + " (family: as published)", "family"},
      {"clip", text,
       enum_names<Clip>() +
           ": gradients by their global norm, a barrier before the updates; early: norms as gradients are complete",
       "on"},
      {"update", text,
       enum_names<Update>() + " the backward pass; fused: each block's parameters as soon as their gradients are "
                              "there, which are freed (needs --clip off)",
       "after"},
      {"gradients", text, "freed: after each step; kept: in buffers for good, as Megatron-LM does", "freed"},
      {"sub-group", whole, "Elements of a sub-group of the optimizer step", "1000000000"},
      {"launch-gap", text, "Idle time before each op, such as 5us (default: until the host has issued it)"},
      {"lora-rank", whole, "Train low-rank adapters of this rank only; the model is frozen"},
      {"lora-targets", text, "Linear layers that are adapted, such as q_proj,v_proj (default: as PEFT)"},
      {"quantise", whole, "4 or 8: bits of the frozen weights (with --lora-rank or --forward-only)"},
      {"weights", text,
       "Store weights in a format of fewer bits: " + weight_format_names() +
           " (docs/workloads.md; with --new-tokens or --forward-only; default: in --precision)"},
      {"data-parallel", whole, "Ranks that share the batch", "1"},
      {"tensor-parallel", whole, "Ranks that share each layer", "1"},
      {"pipeline-parallel", whole, "Stages of layers", "1"},
      {"pipeline-chunks", whole,
       "Chunks of layers on each pipeline stage; above 1, run the interleaved schedule, which needs "
       "--micro-batches to be a multiple of --pipeline-parallel",
       "1"},
      {"zero", whole, "ZeRO stage over the data-parallel ranks: 0, 1, 2, 3", "0"},
      {"gradient-reduction", text,
       "Under ZeRO: " + enum_names<GradientReduction>() + " (DeepSpeed's reduce_scatter false)", "reduce-scatter"},
      {"interconnect", text, "Bandwidth between ranks, such as 300GB/s (default: the GPU's)"},
  };
  return options;
}

std::vector<std::string> generate_option_names() {
  std::vector<std::string> names;
  for (const GenerateOption& option : generate_options()) names.emplace_back(option.name);
  return names;
}

std::string refused_text(const GenerateOption& option, const std::string& text) {
  const std::string_view name = option.name;
  if (option.type == Type::whole && !parse_number<std::int64_t>(text)) {
    return "'" + text + "' is not a whole number" + (name == "batch" ? " from 1" : "");
  }
  if (option.type == Type::real && !parse_number(text)) return "'" + text + "' is not a number";
  if (option.type == Type::flag && text != "true" && text != "false") return "'" + text + "' is neither true nor false";
  if (name == "kernels" && text.empty()) return "must not be empty";
  if (name == "lora-rank" && text.find_first_not_of('0') == text.npos) {
    return "is at least 1; without it all parameters are trained";
  }
  return "";
}

GenerateOptions parse_generate_settings(const GenerateSettings& settings, const ModelDescription* model) {
  GenerateOptions options = options_of(Values(settings, model != nullptr), model);
  options.origin.settings = settings;
  return options;
}

Trace generate_trace(const GenerateSettings& settings, const ModelDescription* model) {
  return generate(parse_generate_settings(settings, model));
}

void check_generate_settings(const GenerateSettings& settings) {
  check_generate_options(parse_generate_settings(settings));
}

const GenerateSettings* generate_settings_of(const TraceHeader& header) {
  const Provenance& provenance = header.provenance;
  const bool known = provenance.made_by == MadeBy::generated && !provenance.made_with.empty();
  return known ? &provenance.made_with : nullptr;
}

}  // namespace tencache
