#include "traces/generate/generate.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/error.h"
#include "core/text.h"
#include "core/units.h"
#include "traces/generate/context_cache.h"
#include "traces/generate/host_issue.h"
#include "traces/generate/rank.h"

namespace tencache {
namespace {

std::string number(std::uint64_t value) { return std::to_string(value); }

[[noreturn]] void refuse(const std::string& option, const std::string& problem) {
  throw Error("--" + option + ": " + problem);
}

void check_at_least_one(const char* option, std::uint64_t value) {
  if (value == 0) refuse(option, "is 0; it must be at least 1");
}

void check_batch(const GenerateOptions& o) {
  check_at_least_one("batch", o.batch);
  check_at_least_one("micro-batches", o.micro_batches);
  constexpr std::uint64_t largest = 1u << 30;
  if (o.batch > largest) refuse("batch", number(o.batch) + " is absurd; it may be at most " + number(largest));
  if (o.micro_batches > o.batch) {
    refuse("micro-batches",
           number(o.micro_batches) + " are more than the " + number(o.batch) + " sequences of --batch");
  }
  const std::uint64_t parts = o.micro_batches * o.data_parallel;  // at most 2^30 × 65535, which check_parallel ensures
  if (o.batch % parts != 0) {
    refuse("batch", number(o.batch) + " sequences cannot be dealt evenly to " + number(o.micro_batches) +
                        " micro-batches on each of " + number(o.data_parallel) +
                        " data-parallel ranks; take a multiple of " + number(parts));
  }
}

void check_sequences(const GenerateOptions& o) {
  if (facts_of(o.model.family).images) {
    if (!o.sequence_lengths.empty()) {
      refuse("seq", "model " + o.model.name + " takes its sequence from the image; leave it out");
    }
    return;
  }
  const char* const option = o.generation ? "prompt" : "seq";
  if (o.sequence_lengths.empty()) refuse(option, "is missing: tokens a sequence, such as 512");
  if (o.sequence_lengths.size() != 1 && o.sequence_lengths.size() != o.micro_batches) {
    refuse(option, number(o.sequence_lengths.size()) + " lengths for " + number(o.micro_batches) +
                       " micro-batches; give one, or one for each");
  }
  for (const std::uint64_t length : o.sequence_lengths) {
    check_at_least_one(option, length);
    const bool stretched = o.context.tokens != 0 && facts_of(o.model.family).rotary;  // beyond what it was trained for
    const std::uint64_t longest = o.model.max_sequence != 0 && !stretched ? o.model.max_sequence : 1u << 24;
    if (length > longest) {
      refuse(option,
             number(length) + " is longer than the " + number(longest) + " tokens that " + o.model.name + " takes");
    }
  }
}

void check_pipeline_chunks(const GenerateOptions& o) {
  check_at_least_one("pipeline-chunks", o.pipeline_chunks);
  if (o.pipeline_chunks == 1) return;
  const std::uint64_t stages = o.pipeline_parallel;
  if (stages == 1) {
    refuse("pipeline-chunks", "interleaves the layers of pipeline stages; give --pipeline-parallel 2 or more");
  }
  if (o.pipeline_chunks > o.model.layers / stages) {
    refuse("pipeline-chunks", number(stages) + " stages of " + number(o.pipeline_chunks) + " chunks for the " +
                                  number(o.model.layers) + " layers of " + o.model.name + "; give at most " +
                                  number(o.model.layers / stages));
  }
  if (o.micro_batches % stages != 0) {
    refuse("pipeline-chunks", "needs --micro-batches to be a multiple of the " + number(stages) + " stages; " +
                                  number(o.micro_batches) + " is not one");
  }
}

void check_parallel(const GenerateOptions& o) {
  const std::uint64_t tensor = o.tensor_parallel;
  check_at_least_one("data-parallel", o.data_parallel);
  check_at_least_one("tensor-parallel", tensor);
  check_at_least_one("pipeline-parallel", o.pipeline_parallel);
  constexpr std::uint64_t most_ranks = 65535;
  if (o.data_parallel > most_ranks || tensor > most_ranks || o.pipeline_parallel > most_ranks ||
      o.data_parallel * tensor > most_ranks || o.data_parallel * tensor * o.pipeline_parallel > most_ranks) {
    throw Error("--data-parallel × --tensor-parallel × --pipeline-parallel: at most " + number(most_ranks) + " ranks");
  }
  if (o.model.heads % tensor != 0) {
    refuse("tensor-parallel",
           number(tensor) + " does not divide the " + number(o.model.heads) + " heads of " + o.model.name);
  }
  if (o.model.key_value_heads % tensor != 0 && tensor % o.model.key_value_heads != 0) {
    refuse("tensor-parallel", number(tensor) + " neither divides the " + number(o.model.key_value_heads) +
                                  " key-value heads of " + o.model.name + " nor is a multiple of them");
  }
  for (const std::uint64_t width : {o.model.intermediate, o.model.expert_width()}) {
    if (width % tensor == 0) continue;
    refuse("tensor-parallel",
           number(tensor) + " does not divide the feed-forward width " + number(width) + " of " + o.model.name);
  }
  if (o.pipeline_parallel > o.model.layers) {
    refuse("pipeline-parallel",
           number(o.pipeline_parallel) + " stages for the " + number(o.model.layers) + " layers of " + o.model.name);
  }
  check_pipeline_chunks(o);
  if (o.zero < 0 || o.zero > 3) refuse("zero", std::to_string(o.zero) + "; stages are 0, 1, 2, 3");
  if (o.zero > 0 && o.data_parallel == 1) {
    refuse("zero", "shares the optimizer over data-parallel ranks; give --data-parallel 2 or more");
  }
}

// Whether it is for kernels that read dense weights only.
bool is_expanded(const WeightFormat& format) {
  const Packing* const packing = format.packing_of({.use = WeightUse::linear, .of_expert = true}, 256, {});
  return packing != nullptr && packing->expanded;
}

void check_lora(const GenerateOptions& o) {
  if (o.weights != nullptr && o.lora_rank == 0 && !o.forward_only) {
    refuse("quantise", "quantised weights are frozen; give --lora-rank or --forward-only as well");
  }
  if (o.weights != nullptr && o.precision == Precision::fp8) {
    refuse("quantise", "quantised weights are expanded to 16 bits, not to fp8; give --precision bf16");
  }
  if (o.weights != nullptr && o.lora_rank != 0 && !is_expanded(*o.weights)) {
    refuse("weights",
           std::string(o.weights->name) + " is read by kernels for inference; for adapters give --quantise 4 or 8");
  }
  if (o.lora_rank == 0 && !o.lora_targets.empty()) refuse("lora-targets", "needs --lora-rank");
  if (o.lora_rank > o.model.hidden) {
    refuse("lora-rank", number(o.lora_rank) + " is above the width " + number(o.model.hidden) + " of " + o.model.name);
  }
}

// Of --context-chunk: keys, values and their gradients, all of which is in CPU memory between uses.
std::string context_memory(const GenerateOptions& o) {
  const std::uint64_t token =
      4 * o.model.layers * o.model.key_value_heads * o.model.head_dimension * bytes_of(o.precision);
  const std::uint64_t tokens = o.batch * o.sequence_lengths.front();
  return "; keys, values and gradients of " + number(tokens) + " tokens take " + format_bytes(tokens * token) + " (" +
         number(tokens * token / 1'000'000'000) + " GB) of page-locked CPU memory, " + number(token) + " bytes a token";
}

void check_context(const GenerateOptions& o) {
  if (o.context.tokens == 0) {
    if (o.context.pages != 0) refuse("context-pages", "belongs to --context-chunk");
    return;
  }
  const FamilyFacts& facts = facts_of(o.model.family);
  if (!facts.causal || facts.latent_attention || o.model.sliding_window != 0 || o.head != Head::language_model) {
    refuse("context-chunk", "is for language models whose tokens attend to all before them; " + o.model.name +
                                " is none, or has another head");
  }
  if (o.generation || o.forward_only) refuse("context-chunk", "trains; leave it out with --new-tokens, --forward-only");
  if (o.attention != AttentionKind::flash) refuse("context-chunk", "needs --attention flash");
  if (o.recompute != Recompute::none && o.recompute != Recompute::block) {
    refuse("context-chunk", "goes with --recompute none or block");
  }
  if (o.micro_batches != 1 || o.data_parallel * o.tensor_parallel * o.pipeline_parallel != 1) {
    refuse("context-chunk", "is of one micro-batch on one GPU; leave out --micro-batches and the parallel options");
  }
  if (o.lora_rank != 0 || o.trained.last_layers || o.trained.biases_only) {
    refuse("context-chunk", "trains all of the model; leave out --lora-rank and --train-layers");
  }
  constexpr double most_uses = 2e7;
  const double uses = generator::ContextPlan(o).uses(o.model.layers);
  if (uses > most_uses) {
    refuse("context-chunk", number(o.sequence_lengths.front()) + " tokens in chunks of " + number(o.context.tokens) +
                                " are " + number(static_cast<std::uint64_t>(uses)) +
                                " uses of keys and values, above " + number(static_cast<std::uint64_t>(most_uses)) +
                                "; take larger chunks" + context_memory(o));
  }
}

// Refuses what no trace can hold (traces/file/trace_file.h: sums below 2^61) before any product of sizes can overflow.
void check_size(const GenerateOptions& o) {
  const ModelDescription& m = o.model;
  constexpr double most_flops = 2305843009213693952.0, most_ops = 2e8;
  const auto real = [](std::uint64_t value) { return static_cast<double>(value); };
  double longest = real(facts_of(m.family).images ? m.positions : 0), tokens = 0;
  for (const std::uint64_t length : o.sequence_lengths) {
    longest = std::max(longest, real(length));
    tokens += real(length) * real(o.batch) / real(o.sequence_lengths.size());
  }
  if (o.sequence_lengths.empty()) tokens = longest * real(o.batch);
  const double idle_experts =
      real(m.layers - m.dense_layers) * real(m.experts - m.experts_per_token) * 3 * real(m.hidden * m.expert_width());
  const double parameters = real(parameter_count(m, o.head)) - idle_experts + real(m.hidden * m.vocabulary);
  if (o.context.pages != 0)
    longest = std::min(longest, real(generator::ContextPlan::page_tokens * o.context.pages + o.context.tokens));
  const double attention = 7 * real(m.layers) * real(m.heads * m.head_dimension) * longest;
  const double flops = tokens * (6 * parameters + 2 * attention) * (o.recompute == Recompute::none ? 1 : 4.0 / 3);
  if (flops > most_flops) {
    throw Error(
        "the iteration takes more floating-point operations than a trace can hold (2^61); take a smaller --batch "
        "or shorter --seq" +
        (o.context.tokens != 0 ? context_memory(o) : ""));
  }
  // Of a layer and micro-batch; five or more for each expert that runs.
  double passes = 25 * std::max(1.0, real(m.experts));
  if (o.generation) {
    const double steps = real(o.generation->new_tokens), experts = real(m.experts);
    const double touched = std::min(experts, real(o.batch / o.micro_batches * m.experts_per_token));
    passes = 25 * steps + 5 * (experts + (steps - 1) * touched);
  }
  const double ops = passes * real(m.layers) * real(o.micro_batches) * real(o.data_parallel * o.tensor_parallel);
  if (ops > most_ops) {
    throw Error("--micro-batches: the trace would have more than " + number(static_cast<std::uint64_t>(most_ops)) +
                " ops; take fewer micro-batches or ranks");
  }
}

void check_recompute(const GenerateOptions& o) {
  const std::string text(to_string(o.recompute));
  if (is_choice(o.recompute) && o.data_parallel * o.tensor_parallel * o.pipeline_parallel > 1) {
    refuse("recompute",
           "'" + text + "' is for one rank; leave out --data-parallel, --tensor-parallel and --pipeline-parallel");
  }
  if (o.recompute_share == 1) return;
  if (o.recompute == Recompute::none || o.recompute == Recompute::selective || o.recompute == Recompute::reversible ||
      is_choice(o.recompute)) {
    refuse("recompute", "'" + text + "' takes no share of the layers; block, block-early-stop, ops and attention do");
  }
  if (!(o.recompute_share > 0 && o.recompute_share < 1)) {
    refuse("recompute", "the share " + std::to_string(o.recompute_share) +
                            " of the layers is not above 0 and up to 1; write " + text + ":0.5 for every second layer");
  }
}

void check_loss(const GenerateOptions& o) {
  if (o.loss != LossKind::fused_linear) return;
  if (o.head != Head::language_model)
    refuse("loss", "'fused-linear' is of a language model's head; take full or fused");
  if (o.tensor_parallel * o.pipeline_parallel > 1) {
    refuse("loss", "'fused-linear' goes without --tensor-parallel and --pipeline-parallel; take chunked or fused");
  }
}

void check_trained(const GenerateOptions& o) {
  if (!o.trained.last_layers && !o.trained.biases_only) return;
  if (o.lora_rank != 0) refuse("train-layers", "goes without --lora-rank, which freezes the model");
  if (o.pipeline_parallel > 1)
    refuse("train-layers", "goes without --pipeline-parallel: stages below would have no step");
  if (o.trained.last_layers && (*o.trained.last_layers == 0 || *o.trained.last_layers > o.model.layers)) {
    refuse("train-layers", "'last:" + number(*o.trained.last_layers) + "': " + o.model.name + " has " +
                               number(o.model.layers) + " layers");
  }
}

void check_optimizer(const GenerateOptions& o) {
  const bool ranked =
      o.optimizer == Optimizer::galore || o.optimizer == Optimizer::galore8bit || o.optimizer == Optimizer::apollo;
  if (o.low_rank != 0 && !ranked) refuse("rank", "is of galore, galore8bit and apollo; for LoRA give --lora-rank");
  if (o.fp32_embedding_states && o.optimizer != Optimizer::adam8bit) refuse("embedding-states", "is of adam8bit");
  const bool whole_states =
      o.optimizer == Optimizer::adamw || o.optimizer == Optimizer::sgd || o.optimizer == Optimizer::lamb;
  if (o.fp32_states && !whole_states) refuse("state-precision", "is of adamw, sgd and lamb");
}

void check_forward_only(const GenerateOptions& o) {
  const FamilyFacts& facts = facts_of(o.model.family);
  if (!facts.trained && !o.forward_only) {
    throw Error("model " + o.model.name + ": training steps of the " + facts.name +
                " family are not modelled; give --new-tokens, or --forward-only for a pass without training");
  }
  if (facts.latent_attention && o.attention != AttentionKind::flash) {
    refuse("attention", "latent attention is modelled with fused kernels only; leave it out");
  }
  if (!o.forward_only) return;
  if (o.recompute != Recompute::none && !(o.generation && o.recompute == Recompute::choose)) {
    refuse("recompute",
           "a forward pass keeps no activations to compute again; leave it out with --forward-only, or with "
           "--new-tokens take choose, for keys and values of prompts");
  }
  if (o.zero == 1 || o.zero == 2) {
    refuse("zero", "stage " + std::to_string(o.zero) +
                       " shares gradients and optimizer, which --forward-only leaves out; give 3, which shares the "
                       "parameters, or 0");
  }
}

// That a policy may have a prompt's keys and values computed again.
void check_cache_choice(const GenerateOptions& o) {
  if (o.recompute != Recompute::choose) return;
  const FamilyFacts& facts = facts_of(o.model.family);
  const auto no = [](const std::string& why) { refuse("recompute", "with --new-tokens 'choose' " + why); };
  using enum ModelFamily;
  const bool joint = o.model.family == gpt2 || o.model.family == bloom || o.model.family == falcon;
  if (joint || facts.latent_attention || o.model.sliding_window != 0 || o.model.query_key_norm) {
    no("is for models with a product each for keys and values, which all later tokens see; " + o.model.name +
       " has none");
  }
  if (o.attention != AttentionKind::flash) no("is modelled with fused kernels only; leave --attention out");
  if (o.generation->attention != Device::gpu) no("computes on the GPU; leave --attention-on out");
  if (o.generation->shared_prefix != 0) no("needs the whole prompt's inputs; leave --shared-prefix out");
  if (o.weights != nullptr || o.precision == Precision::fp8) {
    no("reads weights in 16 or 32 bits; leave out --weights and --quantise, and take another --precision than fp8");
  }
}

void check_generation(const GenerateOptions& o) {
  if (!o.generation) return;
  check_cache_choice(o);
  check_at_least_one("new-tokens", o.generation->new_tokens);
  if (!facts_of(o.model.family).causal) refuse("new-tokens", o.model.name + " generates no text; take a decoder");
  if (o.head != Head::language_model) refuse("head", "a generation needs lm");
  const ExpertRouting& routing = o.generation->routing;
  constexpr double steepest = 16;
  if (!(routing.popularity >= 0 && routing.popularity <= steepest)) {
    refuse("routing-popularity", std::to_string(routing.popularity) + " is not an exponent from 0 to 16");
  }
  if (!(routing.repeat >= 0 && routing.repeat <= 1)) {
    refuse("routing-repeat", std::to_string(routing.repeat) + " is not a probability from 0 to 1");
  }
  if (!(routing.topic >= 0 && routing.topic <= 2)) {
    refuse("routing-topic", std::to_string(routing.topic) + " is not an exponent from 0 to 2");
  }
  if (o.data_parallel > 1) {
    refuse("data-parallel",
           "replicas of a generation are runs of their own; take --tensor-parallel or "
           "--pipeline-parallel");
  }
  if (o.pipeline_chunks > 1) refuse("pipeline-chunks", "interleaves a training step; leave it out with --new-tokens");
  if (o.lora_rank != 0) refuse("lora-rank", "is for training; leave it out with --new-tokens");
  if (o.loss) refuse("loss", "a generation has none; leave it out with --new-tokens");
  for (const std::uint64_t prompt : o.sequence_lengths) {
    const std::uint64_t longest = o.model.max_sequence != 0 ? o.model.max_sequence : 1u << 24;
    if (prompt + o.generation->new_tokens > longest) {
      refuse("new-tokens", "a prompt of " + number(prompt) + " and " + number(o.generation->new_tokens) +
                               " new tokens are longer than the " + number(longest) + " that " + o.model.name +
                               " takes");
    }
    if (o.generation->shared_prefix >= prompt) {
      refuse("shared-prefix", number(o.generation->shared_prefix) + " tokens are no beginning of a prompt of " +
                                  number(prompt) + "; take fewer");
    }
  }
  if (o.generation->shared_prefix == 0) return;
  if (facts_of(o.model.family).latent_attention || o.model.sliding_window != 0) {
    refuse("shared-prefix", "is not modelled for latent attention and sliding windows; leave it out");
  }
  if (o.attention != AttentionKind::flash) refuse("shared-prefix", "is modelled with fused kernels only");
  if (o.generation->cache_packing != nullptr) refuse("shared-prefix", "is kept in --precision; leave --kv-format out");
}

void check(const GenerateOptions& o) {
  if (const std::string problem = problem_of(o.model); !problem.empty()) {
    throw Error("model " + o.model.name + ": " + problem);
  }
  check_parallel(o);
  check_batch(o);
  check_sequences(o);
  check_lora(o);
  if (o.update == Update::fused && o.clip != Clip::off) {
    refuse("update", "fused has no norm of all gradients to clip by; give --clip off as well");
  }
  if (o.update == Update::fused && o.optimizer == Optimizer::lamb) {
    refuse("update", "fused goes with no lamb, whose ranks exchange norms after all gradients; take adamw or sgd");
  }
  if (o.update == Update::fused && o.data_parallel > 1 && o.zero < 3 && o.zero > 0) {
    refuse("update", "fused goes with --zero 0 or 3: stages 1 and 2 gather parameters after all updates");
  }
  check_recompute(o);
  check_loss(o);
  check_trained(o);
  check_optimizer(o);
  check_forward_only(o);
  check_generation(o);
  check_context(o);
  check_size(o);
  check_at_least_one("sub-group", o.sub_group);
  if (o.launch_gap_ns && *o.launch_gap_ns < 0) refuse("launch-gap", "is negative");
}

void check_lora_targets(const GenerateOptions& options, const std::vector<ParameterShape>& shapes) {
  const std::vector<std::string> labels = generator::linear_labels(options, shapes);
  for (const std::string& target : options.lora_targets) {
    if (std::find(labels.begin(), labels.end(), target) == labels.end()) {
      refuse("lora-targets",
             "'" + target + "' is no linear layer of " + options.model.name + "; valid are " + join(labels));
    }
  }
}

}  // namespace

void check_generate_options(const GenerateOptions& options) {
  check(options);
  [[maybe_unused]] const KernelModel computes_in(options.gpu, options.precision);
  if (options.lora_rank != 0 && !options.lora_targets.empty()) {
    check_lora_targets(options, parameters_of(options.model, options.head));
  }
}

Trace generate(const GenerateOptions& given) {
  check_generate_options(given);
  GenerateOptions options = given;
  const std::vector<ParameterShape> shapes = parameters_of(options.model, options.head);
  if (options.lora_rank != 0 && options.lora_targets.empty()) {
    options.lora_targets = facts_of(options.model.family).lora_targets;
    check_lora_targets(options, shapes);
  }
  if (facts_of(options.model.family).images) {
    const std::uint64_t side = options.model.image_size / options.model.patch_size;
    options.sequence_lengths = {side * side + 1};
  }
  if (!options.loss && !options.forward_only)
    options.loss = options.stack == Stack::eager ? LossKind::full : LossKind::fused;
  if (!options.communication) options.communication = options.zero == 0 ? Communication::ddp : Communication::deepspeed;
  if (options.attention_kernel == AttentionKernel::unspecified) {
    options.attention_kernel = options.stack == Stack::fused ? options.gpu.fused_attention : options.gpu.attention;
  }
  const KernelModel model(options.gpu, options.precision);

  Trace trace;
  std::uint64_t length_sum = 0;
  for (const std::uint64_t length : options.sequence_lengths) length_sum += length;
  TraceHeader& header = trace.header;
  header.model = options.model.name;
  header.batch = options.batch;
  const std::uint64_t lengths = options.sequence_lengths.size();
  // The mean; of a generation, what comes out of it.
  header.sequence_length = options.generation ? options.generation->new_tokens : (length_sum + lengths / 2) / lengths;
  header.precision = to_string(options.precision);
  header.hardware = "modelled: " + options.gpu.name;
  header.provenance = {MadeBy::generated, options.origin.settings};
  header.recorded_by = options.origin.command;
  header.stack = to_string(options.stack);

  const std::uint64_t ranks = options.data_parallel * options.tensor_parallel * options.pipeline_parallel;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    const auto progress = [&](double share) {
      if (options.progress) options.progress((static_cast<double>(rank) + share) / static_cast<double>(ranks));
    };
    generator::emit_rank(trace, options, shapes, model, rank, progress);
  }
  if (options.launch_gap_ns) {
    for (Op& op : trace.ops) op.gap_before_ns = *options.launch_gap_ns;
  } else {
    issue(trace, options.stack_figures.launch_ns[static_cast<std::size_t>(options.stack)]);
  }
  trace.validate();
  return trace;
}

}  // namespace tencache
