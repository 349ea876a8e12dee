// The workload generator: a training iteration of a transformer, or its forward pass alone, as a trace from the model's
// description.
//
// Every parameter is a tensor under its Hugging Face name; every kernel of the forward pass, loss, backward pass and
// optimizer step is an op with the tensors that it reads and writes, its flops (of matrix products; elementwise kernels
// count none), the bytes it touches and a modelled duration. What is kept for the backward pass is what
// a later op reads, nothing else. docs/workloads.md says what each kind of model emits and where the figures come from.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/trace.h"
#include "traces/generate/kernel_model.h"
#include "traces/generate/model.h"
#include "traces/generate/weight_format.h"

namespace tencache {

// traces/generate/optimizer_states.h says what each keeps.
enum class Optimizer : std::uint8_t {
  adamw,
  sgd,
  adafactor,
  adam8bit,
  apollo_mini,
  lamb,
  apollo,
  galore,
  galore8bit,
  lomo,
  adalomo
};
template <>
inline constexpr auto enum_texts<Optimizer> = std::to_array<std::string_view>({"adamw", "sgd", "adafactor", "adam8bit",
                                                                               "apollo-mini", "lamb", "apollo",
                                                                               "galore", "galore8bit", "lomo",
                                                                               "adalomo"});
// block: a layer keeps its input and runs its forward pass again, all of it (PyTorch's reentrant checkpoint);
// selective: only scores, softmax and dropout of materialised attention run again (Korthikanti et al. 2022);
// block-early-stop: as block, but up to the last tensor that the backward pass needs (the non-reentrant checkpoint);
// ops: the same with the results of fused attention and of every second product kept (torchtitan's "selective op");
// reversible: of all layers only the last one's output is kept, and each layer's input is rebuilt from its output
// before its forward pass runs again (Gomez et al. 2017), for models that are built so;
// attention: as block, with the results of fused attention kept;
// choose: none runs again, but the trace says for each layer and micro-batch what would (RecomputeChoice), as block and
// attention have it; choose-early-stop: without what the backward pass does not need, as block-early-stop.
enum class Recompute : std::uint8_t {
  none,
  block,
  selective,
  block_early_stop,
  ops,
  reversible,
  attention,
  choose,
  choose_early_stop
};
template <>
inline constexpr auto enum_texts<Recompute> = std::to_array<std::string_view>({"none", "block", "selective",
                                                                               "block-early-stop", "ops", "reversible",
                                                                               "attention", "choose",
                                                                               "choose-early-stop"});
constexpr bool is_choice(Recompute recompute) { return recompute >= Recompute::choose; }
enum class AttentionKind : std::uint8_t { flash, materialised };
template <>
inline constexpr auto enum_texts<AttentionKind> = std::to_array<std::string_view>({"flash", "materialised"});
// Whose kernels run between the products (traces/generate/stack.h).
enum class Stack : std::uint8_t { eager, compiled, fused };
template <>
inline constexpr auto enum_texts<Stack> = std::to_array<std::string_view>({"eager", "compiled", "fused"});
// full: the logits in fp32 at once, as Hugging Face computes the loss; chunked: the same for an eighth of the rows at a
// time (torchtune); fused: one kernel on 16-bit logits, whose gradient takes their place (Apex, flash-attn);
// fused-linear: head, loss and the head's gradients for a piece of the rows after the other, in the forward pass, so
// that the logits of all rows are never there (Liger's fused linear cross entropy).
// `shifted`: as full, with what Transformers of early 2024 did and keeps where the logits are returned.
enum class LossKind : std::uint8_t { full, chunked, fused, shifted, fused_linear };
template <>
inline constexpr auto enum_texts<LossKind> = std::to_array<std::string_view>({"full", "chunked", "fused", "shifted",
                                                                              "fused-linear"});
// Which software moves gradients and parameters between data-parallel ranks; how much of that its overlap with
// kernels leaves exposed stands in configs/stacks.yaml.
enum class Communication : std::uint8_t { ddp, fsdp, deepspeed, serial };
template <>
inline constexpr auto enum_texts<Communication> = std::to_array<std::string_view>({"ddp", "fsdp", "deepspeed",
                                                                                   "serial"});
// family: as the published configuration trains (GPT-2, BERT: all; OPT: hidden; others: none); hidden: on the
// embedding and on the outputs of attention and feed-forward; all: on the attention weights as well.
enum class Dropout : std::uint8_t { family, none, hidden, all };
template <>
inline constexpr auto enum_texts<Dropout> = std::to_array<std::string_view>({"family", "none", "hidden", "all"});
// When parameters are updated. fused: each block's as soon as its gradients are complete, which are then freed (LOMO,
// torchtune's optimizer in backward).
enum class Update : std::uint8_t { after, fused };
template <>
inline constexpr auto enum_texts<Update> = std::to_array<std::string_view>({"after", "fused"});
// Of gradients by their global norm, a barrier before the updates. on: after the backward pass (PyTorch's
// clip_grad_norm_); early: the norm of each gradient as soon as it is complete (DeepSpeed).
enum class Clip : std::uint8_t { off, on, early };
template <>
inline constexpr auto enum_texts<Clip> = std::to_array<std::string_view>({"off", "on", "early"});

// How ZeRO brings gradients to the ranks that update them. all_reduce: each rank gets all of them and keeps its part,
// at twice the traffic (DeepSpeed's reduce_scatter false).
enum class GradientReduction : std::uint8_t { reduce_scatter, all_reduce };
template <>
inline constexpr auto enum_texts<GradientReduction> = std::to_array<std::string_view>({"reduce-scatter", "all-reduce"});

// What is known of stacks, each figure with its source; read by configs/stack_yaml.h.
struct StackFigures {
  std::array<Nanoseconds, 3> launch_ns{};     // host time of a kernel, by Stack
  std::array<double, 4> exposed{0, 0, 0, 1};  // share of collectives that kernels do not hide, by Communication
  std::vector<Fact> facts;
};

// In which order the micro-batches of a block of requests run: row, one after the other, each to its last token;
// zigzag, all of them through a layer before the next layer, and through all layers before the next token, so that
// weights come once for all of them (FlexGen, Sheng et al. 2023, section 4.1).
enum class BlockOrder : std::uint8_t { row, zigzag };
template <>
inline constexpr auto enum_texts<BlockOrder> = std::to_array<std::string_view>({"row", "zigzag"});

// Which ops of a generation a policy may have the CPU compute: none; attention, that of new tokens with its KV cache;
// all, also whole layers.
enum class Placeable : std::uint8_t { none, attention, all };
template <>
inline constexpr auto enum_texts<Placeable> = std::to_array<std::string_view>({"none", "attention", "all"});
// How a generation's tokens choose their experts (traces/generate/generation.h). The defaults are fitted to Mixtral,
// whose experts are nearly equally popular: docs/workloads.md, "Mixtures of experts".
struct ExpertRouting {
  std::uint64_t seed = 1;
  double popularity = 0.16;   // Zipf's exponent: a layer's n-th most popular expert is chosen as n^-popularity
  double repeat = 0;          // the probability that a token keeps an expert of the token before it
  double topic = 0;           // Zipf's exponent of a request's own preferences, which multiply the popularity
  std::uint64_t profile = 0;  // tokens of other requests whose choices are counted in Tensor::profiled_uses
};

// Text generation: one block of requests, from their prompts to their last tokens, is the iteration; the next iteration
// is the next block. Its micro-batches are GenerateOptions::micro_batches, prompts its sequence_lengths.
struct TextGeneration {
  std::uint64_t new_tokens = 1;  // of each request; the first comes out of the prompt
  BlockOrder order = BlockOrder::row;
  // Keys and values of so many tokens lie in one piece; the prompt's pieces are one tensor. 0: those of a request's
  // whole length do. `page_bytes`, if not 0, gives it in bytes of one request's keys in one layer.
  std::uint64_t page_tokens = 16;
  Bytes page_bytes = 0;
  // Tokens that all prompts begin with: their keys and values are there from earlier requests, once for all.
  std::uint64_t shared_prefix = 0;
  // Where new tokens attend to the cache, and their keys and values join it. The attention of prompts is the GPU's.
  Device attention = Device::gpu;
  Placeable placeable = Placeable::none;
  const Packing* cache_packing = nullptr;  // of keys and values; null: in the model's precision
  ExpertRouting routing = {};              // of a model with experts
  bool grouped_experts = false;            // kernels compute all experts of a layer at once, and start once for them
};

// What is not frozen.
struct TrainedParts {
  bool biases_only = false;
  std::optional<std::uint64_t> last_layers = {};  // so many, with the final norm and the head
};

// A sequence that is trained part by part (traces/generate/context_cache.h).
struct ContextChunks {
  std::uint64_t tokens = 0;  // of a chunk; 0: the whole sequence at once
  std::uint64_t pages = 0;   // of 128 earlier tokens that a page of queries attends to; 0: all
};

struct GenerateOptions {
  ModelDescription model;
  GpuSpec gpu;
  Head head = Head::language_model;
  Precision precision = Precision::fp16;
  std::optional<Precision> gradient_precision;  // default: `precision`
  bool keep_gradients = false;  // in buffers that live as long as the parameters, as Megatron-LM's, not freed each step
  Optimizer optimizer = Optimizer::adamw;
  std::optional<bool> master;          // fp32 copies of 16-bit parameters; default: as the optimizer's users train
  bool fp32_states = false;            // also without master copies; else states are then of the parameters' precision
  bool fp32_embedding_states = false;  // of adam8bit, as Hugging Face's Trainer registers embeddings
  Recompute recompute = Recompute::none;
  double recompute_share = 1;  // of the layers, spread evenly, of all kinds but selective
  Stack stack = Stack::eager;
  StackFigures stack_figures;
  AttentionKind attention = AttentionKind::flash;
  AttentionKernel attention_kernel = AttentionKernel::unspecified;  // of flash: as stack and GPU have it
  std::optional<LossKind> loss;  // default: full for the eager stack, fused for the others
  double predicted_tokens = 1;   // share of the tokens that a language model's head computes (BERT: the masked ones)
  Dropout dropout = Dropout::family;

  std::uint64_t batch = 1;          // sequences an iteration, over all ranks and micro-batches
  std::uint64_t micro_batches = 1;  // gradients accumulate over them
  // Tokens a sequence: one for all micro-batches, or one for each. ViT takes its own from the image: leave it empty.
  std::vector<std::uint64_t> sequence_lengths;

  ContextChunks context;

  std::optional<TextGeneration> generation;  // in place of a training step; `forward_only` is then set, too
  // Only the forward passes of the micro-batches, as for evaluation: no gradients, optimizer, dropout or activations
  // kept, and a loss only if `loss` is set.
  bool forward_only = false;

  Clip clip = Clip::on;
  Update update = Update::after;
  std::uint64_t sub_group = 1'000'000'000;  // elements of a sub-group of the optimizer step (DeepSpeed's default)
  // Idle time before every op; default: until the host has issued it (traces/generate/host_issue.h).
  std::optional<Nanoseconds> launch_gap_ns;

  std::uint64_t low_rank = 0;  // of galore and apollo; 0: 128 and 256
  TrainedParts trained;

  std::uint64_t lora_rank = 0;            // 0: all parameters are trained
  std::vector<std::string> lora_targets;  // last part of the names of linear layers; empty: the family's usual ones
  const WeightFormat* weights = nullptr;  // of frozen weights; null: in `precision`. Needs lora_rank or forward_only

  std::uint64_t data_parallel = 1, tensor_parallel = 1, pipeline_parallel = 1;
  std::uint64_t pipeline_chunks = 1;  // of layers, on each pipeline stage; above 1: the interleaved schedule
  int zero = 0;                       // stage 0 … 3 of ZeRO over the data-parallel ranks
  GradientReduction gradient_reduction = GradientReduction::reduce_scatter;  // from stage 1 on
  std::optional<Communication> communication;  // default: ddp without ZeRO, else deepspeed
  // DeepSpeed's, in elements of whole parameters: gradients of a bucket, which stages 1 to 3 keep (default: 5e8, and no
  // more than are trained); a parameter that stage 3 has gathered stays if fewer are used before it is again.
  std::optional<std::uint64_t> reduce_bucket;
  std::uint64_t max_reuse_distance = 1'000'000'000;
  BytesPerSecond interconnect = 0;  // between ranks, one direction; 0: the GPU's

  // For the header: the same options as texts (Provenance::made_with), and as a command (TraceHeader::recorded_by).
  struct Origin {
    std::vector<std::pair<std::string, std::string>> settings;
    std::string command;
  };
  Origin origin;
  std::function<void(double share)> progress;  // called now and then, 0 … 1; may be empty
};

// Throws Error on options that do not go together, naming the option.
void check_generate_options(const GenerateOptions& options);
// The same for what is wrong, else the trace.
Trace generate(const GenerateOptions& options);

}  // namespace tencache
