// Generated workloads against closed forms: parameters, activations kept (Korthikanti et al. 2022, "Reducing Activation
// Recomputation in Large Transformer Models"), flops (Narayanan et al. 2021, Megatron-LM), bytes of optimizers.
#include "traces/generate/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "tests/generate_cases.h"
#include "traces/file/trace_file.h"

namespace tencache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// Bytes of what forward pass and loss write and the backward pass reads.
Bytes kept_for_backward(const Trace& trace) {
  std::vector<bool> written(trace.tensors.size()), kept(trace.tensors.size());
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::forward || op.phase == Phase::loss) {
      for (const TensorId id : trace.writes(op)) written[id] = true;
    } else if (op.phase == Phase::backward) {
      for (const TensorId id : trace.reads(op)) kept[id] = written[id];
    }
  }
  Bytes bytes = 0;
  for (std::size_t id = 0; id < kept.size(); ++id) {
    if (kept[id]) bytes += trace.tensors[id].bytes;
  }
  return bytes;
}

// What one layer adds.
Bytes kept_per_layer(GenerateOptions options) {
  options.model.layers = 3;
  const Bytes more = kept_for_backward(generate(options));
  options.model.layers = 2;
  return more - kept_for_backward(generate(options));
}

// ---- Parameters. ----------------------------------------------------------------------------------------------------

TEST(Generate, HasEveryParameterOfEveryShippedModelUnderItsName) {
  for (const ModelDescription& model : list_models()) {
    for (const Head head : {Head::language_model, Head::classification}) {
      if (model.family == ModelFamily::vit && head == Head::language_model) continue;
      GenerateOptions options = small(model.name);
      options.head = head;
      options.forward_only = !facts_of(model.family).trained;
      const Trace trace = generate(options);
      const std::vector<ParameterShape> shapes = parameters_of(model, head);
      std::vector<TensorId> parameters;
      for (TensorId id = 0; id < trace.tensors.size(); ++id) {
        if (trace.tensors[id].role == Role::parameter) parameters.push_back(id);
      }
      ASSERT_EQ(parameters.size(), shapes.size()) << model.name;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        EXPECT_EQ(trace.name(trace.tensors[parameters[i]]), shapes[i].name);
        EXPECT_EQ(trace.tensors[parameters[i]].bytes, 2 * shapes[i].elements());
      }
      // Each is used by the forward pass, has one gradient and is updated once.
      std::vector<bool> used(trace.tensors.size());
      std::vector<int> updates(trace.tensors.size());
      Bytes gradients = 0;
      for (const Op& op : trace.ops) {
        if (op.phase == Phase::forward) {
          for (const TensorId id : trace.reads(op)) used[id] = true;
        }
        if (op.phase == Phase::optimizer) {
          for (const TensorId id : trace.writes(op)) ++updates[id];
          if (op.placeable && op.reorderable) gradients += trace.tensors[trace.reads(op)[0]].bytes;
        }
      }
      Bytes by_gradient = 0;
      for (const TensorId id : parameters) {
        const Tensor& parameter = trace.tensors[id];
        // Of DeepSeek-V3's routers no gradient reaches the bias.
        const bool fixed = options.forward_only || trace.name(parameter).ends_with("e_score_correction_bias");
        EXPECT_TRUE(used[id]) << model.name << " " << trace.name(parameter);
        EXPECT_EQ(updates[id], fixed ? 0 : 1) << model.name << " " << trace.name(parameter);
        if (!fixed) by_gradient += parameter.bytes;
      }
      EXPECT_EQ(gradients, by_gradient) << model.name;
    }
  }
}

TEST(Generate, GivesModulesAndOpsOfALayerInTheOrderOfTheCalls) {
  GenerateOptions options = small("opt-125m");
  options.model.layers = 1;
  options.head = Head::classification;
  const Trace trace = generate(options);
  std::vector<std::string> forward;
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::forward) forward.push_back(trace.name(op) + " @ " + trace.module(op));
  }
  const std::string layer = "model.decoder.layers.0.";
  EXPECT_THAT(forward,
              ElementsAre("embed_tokens @ model.decoder.embed_tokens", "embed_positions @ model.decoder.embed_tokens",
                          "dropout @ model.decoder.embed_tokens", "norm @ " + layer + "self_attn_layer_norm",
                          "q_proj @ " + layer + "self_attn", "k_proj @ " + layer + "self_attn",
                          "v_proj @ " + layer + "self_attn", "flash_attention @ " + layer + "self_attn",
                          "out_proj @ " + layer + "self_attn", "dropout_add @ " + layer + "self_attn",
                          "norm @ " + layer + "final_layer_norm", "fc1 @ " + layer + "fc1", "relu @ " + layer + "fc1",
                          "fc2 @ " + layer + "fc2", "dropout_add @ " + layer + "fc2",
                          "norm @ model.decoder.final_layer_norm", "score @ score"));
}

// ---- Activations kept for the backward pass. ------------------------------------------------------------------------
// s: sequence length, b: batch, h: hidden, a: heads. Bytes in 16 bits.

struct Shape {
  Bytes s, b, h, a;
  explicit Shape(const GenerateOptions& options)
      : s(options.sequence_lengths[0]), b(options.batch), h(options.model.hidden), a(options.model.heads) {}
  Bytes sbh() const { return s * b * h; }
  Bytes assb() const { return a * s * s * b; }
};

// The paper's block: GELU feed-forward of width 4h in one kernel, dropout on attention weights, attention and
// feed-forward outputs.
TEST(KeptActivations, OfAGptBlockAreKorthikantisClosedForm) {
  for (const char* model : {"gpt2", "gpt2-xl", "bert-base-uncased"}) {  // norms in front and norms behind
    GenerateOptions options = small(model);
    options.stack = Stack::fused;
    options.attention = AttentionKind::materialised;
    const Shape shape(options);
    EXPECT_EQ(kept_per_layer(options), 34 * shape.sbh() + 5 * shape.assb()) << model;
    options.recompute = Recompute::selective;
    EXPECT_EQ(kept_per_layer(options), 34 * shape.sbh()) << model;
    options.recompute = Recompute::block;
    EXPECT_EQ(kept_per_layer(options), 2 * shape.sbh()) << model;
    // A flash kernel has no scores; it keeps one fp32 number a row and head.
    options.recompute = Recompute::none;
    options.attention = AttentionKind::flash;
    EXPECT_EQ(kept_per_layer(options), 34 * shape.sbh() + 4 * shape.a * shape.s * shape.b) << model;
  }
}

// Besides the layers: the mask behind the embedding, the inputs of the last norm and of the head, and the loss in fp32.
TEST(KeptActivations, OfAWholeGptAddUpToThePapersTotal) {
  GenerateOptions options = small("gpt2");
  options.stack = Stack::fused;
  options.loss = LossKind::full;
  options.attention = AttentionKind::materialised;
  const Shape shape(options);
  const Bytes layers = options.model.layers * (34 * shape.sbh() + 5 * shape.assb());
  EXPECT_EQ(kept_for_backward(generate(options)),
            layers + shape.sbh() + 4 * shape.sbh() + 4 * shape.s * shape.b * options.model.vocabulary);
}

// Tensor parallelism splits what lies between the two sums of a block: sbh (10 + 24/t + 5as/(ht)).
TEST(KeptActivations, UnderTensorParallelismKeepTenPartsWhole) {
  GenerateOptions options = small("gpt2");
  options.stack = Stack::fused;
  options.attention = AttentionKind::materialised;
  options.tensor_parallel = 4;
  const Shape shape(options);
  // All four ranks are in the trace.
  EXPECT_EQ(kept_per_layer(options), 4 * (10 * shape.sbh() + 24 * shape.sbh() / 4 + 5 * shape.assb() / 4));
}

// Other families keep more or less than the paper's block, each for a reason.
TEST(KeptActivations, OfOtherFamiliesDifferAsTheirBlocksDo) {
  {  // OPT: ReLU keeps its result only, which is the next layer's input; no dropout on attention weights.
    GenerateOptions options = small("opt-6.7b");
    const Shape shape(options);
    EXPECT_EQ(kept_per_layer(options), 26 * shape.sbh() + 4 * shape.a * shape.s * shape.b);
    options.dropout = Dropout::none;
    EXPECT_EQ(kept_per_layer(options), 24 * shape.sbh() + 4 * shape.a * shape.s * shape.b);
  }
  {  // BLOOM: no dropout.
    GenerateOptions options = small("bloom-7b1");
    const Shape shape(options);
    EXPECT_EQ(kept_per_layer(options), 32 * shape.sbh() + 4 * shape.a * shape.s * shape.b);
  }
  // Eager PyTorch's RMSNorm keeps its input in fp32 and its result before the weight: 4 bytes an element more.
  {  // Llama-3: key and value of a quarter of the heads; four tensors of the gated block's width; no dropout.
    GenerateOptions options = small("llama-3-8b");
    const Shape shape(options);
    EXPECT_EQ(kept_per_layer(options), (2 + 2 + 2 * 2 / 4 + 2 + 2 * 2 + 2 + 2 * 4) * shape.sbh() +
                                           4 * 2 * shape.s * shape.b * options.model.intermediate +
                                           4 * shape.a * shape.s * shape.b);
    options.stack = Stack::fused;  // the activated gate is not kept
    EXPECT_EQ(kept_per_layer(options), (2 + 2 + 2 * 2 / 4 + 2 + 2 * 2 + 2) * shape.sbh() +
                                           3 * 2 * shape.s * shape.b * options.model.intermediate +
                                           4 * shape.a * shape.s * shape.b);
  }
  {  // Qwen3: as Llama-3, and query and key before their norms as well as after.
    GenerateOptions options = small("qwen3-8b");
    const Shape shape(options);
    EXPECT_EQ(kept_per_layer(options),
              (2 + 2 + 2 * 2 / 4 + 2 + 2 * 2 + 2 + 2 * 4) * shape.sbh() + (6 * shape.sbh() + 6 * shape.sbh() / 4) +
                  4 * 2 * shape.s * shape.b * options.model.intermediate + 4 * shape.a * shape.s * shape.b);
  }
  {  // Falcon-7B: one norm for both blocks, one key and one value head; rotated query and key beside the product.
    GenerateOptions options = small("falcon-7b");
    const Shape shape(options);
    const Bytes fused = 2 * shape.s * shape.b * (shape.a + 2 + shape.a + 1) * options.model.head_dimension;
    EXPECT_EQ(kept_per_layer(options), (2 + 2 + 2 + 2 * 8) * shape.sbh() + fused + 4 * shape.a * shape.s * shape.b);
  }
  {  // Mixtral: the inputs, gated tensors and outputs of two experts a token, and the router's weights.
    GenerateOptions options = small("mixtral-8x7b");
    const Shape shape(options);
    const Bytes tokens = shape.s * shape.b, copies = 2 * tokens;
    EXPECT_EQ(kept_per_layer(options), (2 + 2 + 2 * 2 / 4 + 2 + 2 * 2 + 2 + 2 * 4) * shape.sbh() +
                                           copies * (2 * 2 * shape.h + 4 * 2 * options.model.intermediate) +
                                           2 * tokens * options.model.experts + 4 * shape.a * tokens);
  }
}

GenerateOptions two_layers() {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 2;
  options.batch = 16;
  options.sequence_lengths = {512};
  return options;
}

// TF32 is fp32 but for the time of its products; no GPU before Ampere has it.
TEST(Generate, ComputesInTf32WithTensorsOfFp32) {
  GenerateOptions options = two_layers();
  const auto with = [&](Precision precision) {
    options.precision = precision;
    return generate(options);
  };
  const auto products = [](const Trace& trace) {
    Nanoseconds sum = 0;
    for (const Op& op : trace.ops) {
      if (trace.kernel(op).kind == KernelKind::matmul) sum += op.duration_ns;
    }
    return static_cast<double>(sum);
  };
  const Trace tf32 = with(Precision::tf32), fp32 = with(Precision::fp32), bf16 = with(Precision::bf16);
  EXPECT_EQ(tf32.header.precision, "tf32");
  ASSERT_EQ(tf32.ops.size(), fp32.ops.size());
  for (OpIndex i = 0; i < tf32.ops.size(); ++i) {
    EXPECT_EQ(tf32.ops[i].bytes, fp32.ops[i].bytes);
    if (tf32.kernel(tf32.ops[i]).kind == KernelKind::elementwise) {
      EXPECT_EQ(tf32.ops[i].duration_ns, fp32.ops[i].duration_ns);
    }
  }
  // Products reach 0.83 of their share in fp32.
  EXPECT_NEAR(products(fp32) / products(tf32), 494.5 / (67 * 0.83), 1);
  EXPECT_NEAR(products(tf32) / products(bf16), 2, 0.3);
  options.gpu = read_gpu("v100-16g");
  options.precision = Precision::tf32;
  EXPECT_THAT(error_of(options), HasSubstr("GPU 'v100-16g' does not compute in tf32; valid are fp16, fp32"));
}

// FP8 is bf16 but for the products of the blocks and copies of their operands, which live from cast to product.
TEST(Generate, ComputesLinearLayersInFp8OnCopiesOfTheirOperands) {
  GenerateOptions options = two_layers();
  const auto with = [&](Precision precision) {
    options.precision = precision;
    return generate(options);
  };
  for (const Stack stack : {Stack::eager, Stack::fused}) {
    options.stack = stack;
    const Trace fp8 = with(Precision::fp8), bf16 = with(Precision::bf16);
    EXPECT_EQ(fp8.header.precision, "fp8");
    std::vector<const Tensor*> stored;
    std::vector<bool> copy(fp8.tensors.size());
    for (TensorId id = 0; id < fp8.tensors.size(); ++id) {
      const Tensor& tensor = fp8.tensors[id];
      copy[id] = fp8.names[tensor.name].ends_with("_fp8");
      if (!copy[id]) {
        stored.push_back(&tensor);
        continue;
      }
      EXPECT_EQ(tensor.role, Role::workspace);
      EXPECT_FALSE(tensor.persistent);
    }
    ASSERT_EQ(stored.size(), bf16.tensors.size());
    for (std::size_t i = 0; i < stored.size(); ++i) {
      EXPECT_EQ(fp8.names[stored[i]->name], bf16.names[bf16.tensors[i].name]);
      EXPECT_EQ(stored[i]->bytes, bf16.tensors[i].bytes);
      EXPECT_EQ(stored[i]->role, bf16.tensors[i].role);
    }
    // 7 products of a layer three times; those of the head and of attention are in bf16.
    std::size_t products = 0, casts = 0, other = 0;
    Nanoseconds in_fp8 = 0, in_bf16 = 0;
    OpIndex same = 0;
    for (const Op& op : fp8.ops) {
      const Kernel& kernel = fp8.kernel(op);
      if (fp8.name(op).ends_with("_to_fp8")) {
        const Bytes elements = fp8.tensors[fp8.writes(op)[0]].bytes;
        EXPECT_EQ(op.bytes, 3 * elements);
        EXPECT_EQ(fp8.tensors[fp8.reads(op)[0]].bytes, 2 * elements);
        ++casts;
        continue;
      }
      const Op& twin = bf16.ops.at(same++);
      ASSERT_EQ(fp8.name(op), bf16.name(twin));
      EXPECT_EQ(op.flops, twin.flops);
      if (!kernel.fp8) {
        EXPECT_EQ(op.duration_ns, twin.duration_ns);
        other += kernel.kind == KernelKind::matmul ? 1 : 0;
        continue;
      }
      ++products;
      in_fp8 += op.duration_ns;
      in_bf16 += twin.duration_ns;
      EXPECT_TRUE(copy[fp8.reads(op)[0]] && copy[fp8.reads(op)[1]]);
    }
    EXPECT_EQ(same, bf16.ops.size());
    EXPECT_EQ(products, 2u * 7 * 3);
    EXPECT_EQ(other, 3u);
    // Two casts a product. Query, key and value share that of their input, and gate and up; forward and backward.
    EXPECT_EQ(casts, stack == Stack::eager ? 2 * products : 2 * products - 2u * 2 * 3);
    EXPECT_NEAR(static_cast<double>(in_bf16) / static_cast<double>(in_fp8), 1.85, 0.15);
  }
  // Layers whose sizes are no multiples of 16 stay in bf16: here, the tokens.
  options.sequence_lengths = {511};
  options.batch = 1;
  const Trace odd = with(Precision::fp8);
  for (const Op& op : odd.ops) EXPECT_FALSE(odd.kernel(op).fp8);
  options.gpu = read_gpu("a100-80g");
  EXPECT_THAT(error_of(options), HasSubstr("GPU 'a100-80g' does not compute in fp8; valid are fp16, bf16, fp32, tf32"));
  options.gpu = read_gpu("h100");
  options.lora_rank = 8;
  options.weights = find_weight_format("nf4");
  EXPECT_THAT(error_of(options), HasSubstr("--quantise: quantised weights are expanded to 16 bits, not to fp8"));
}

TEST(KeptActivations, InFp32AreTwiceAsLargeButForTheMasks) {
  GenerateOptions options = small("gpt2");
  options.stack = Stack::fused;
  options.attention = AttentionKind::materialised;
  options.precision = Precision::fp32;
  const Shape shape(options);
  EXPECT_EQ(kept_per_layer(options), (2 * 32 + 2) * shape.sbh() + (2 * 4 + 1) * shape.assb());
}

// ---- Recomputation. -------------------------------------------------------------------------------------------------

// Ops of the backward pass that have a forward pass's name, in order, of one module's prefix. Without sums: gradients
// have some, too.
std::vector<std::string> run_again(const Trace& trace, const std::string& prefix) {
  std::vector<std::string> names;
  std::set<std::string> forward;
  for (const Op& op : trace.ops) {
    const std::string name(trace.name(op));
    if (op.phase == Phase::forward && name != "add") forward.insert(name);
    if (op.phase == Phase::backward && forward.contains(name) && trace.module(op).starts_with(prefix)) {
      names.push_back(name);
    }
  }
  return names;
}

// PyTorch's reentrant checkpoint runs the layer again as a whole. The other one ends where the last tensor is that the
// backward pass needs: the down projection's input.
TEST(Recomputation, OfABlockIsWholeOrStopsEarly) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 1;
  options.recompute = Recompute::block;
  const std::string layer = "model.layers.0.";
  const Trace whole = generate(options);
  EXPECT_THAT(run_again(whole, layer),
              ElementsAre("norm", "q_proj", "k_proj", "v_proj", "rotary", "flash_attention", "o_proj", "norm",
                          "gate_proj", "up_proj", "silu", "multiply", "down_proj"));
  options.recompute = Recompute::block_early_stop;
  const Trace early = generate(options);
  EXPECT_THAT(run_again(early, layer), ElementsAre("norm", "q_proj", "k_proj", "v_proj", "rotary", "flash_attention",
                                                   "o_proj", "norm", "gate_proj", "up_proj", "silu", "multiply"));
  EXPECT_EQ(flops(whole, Phase::backward) - flops(early, Phase::backward),
            2 * 4 * 64 * options.model.hidden * options.model.intermediate);
  EXPECT_EQ(kept_per_layer(options), 2 * Shape(options).sbh());
  // A mask behind the last product needs that product's place in the random numbers; a norm behind it needs its input.
  for (const char* model : {"gpt2", "bert-base-uncased"}) {
    GenerateOptions other = small(model);
    other.recompute = Recompute::block;
    const Count all = flops(generate(other), Phase::backward);
    other.recompute = Recompute::block_early_stop;
    EXPECT_EQ(flops(generate(other), Phase::backward), all) << model;
  }
}

// torchtitan keeps attention and the first, third, ... product: of seven, key, output and up run again, down is last.
TEST(Recomputation, OfOpsKeepsAttentionAndEverySecondProduct) {
  for (const Stack stack : {Stack::eager, Stack::fused}) {
    GenerateOptions options = small("llama-3-8b");
    options.stack = stack;
    options.recompute = Recompute::ops;
    const Shape shape(options);
    const Bytes tokens = shape.s * shape.b;
    // The layer's input, query, value, attention's output and sums, gate.
    EXPECT_EQ(kept_per_layer(options), (2 + 2 + 2) * shape.sbh() + shape.sbh() / 2 + 4 * shape.a * tokens +
                                           2 * tokens * options.model.intermediate);
    options.model.layers = 1;
    const Trace trace = generate(options);
    std::vector<std::string> products;
    for (const std::string& name : run_again(trace, "model.layers.0.")) {
      if (name.ends_with("_proj") || name.starts_with("flash")) products.push_back(name);
    }
    EXPECT_THAT(products, ElementsAre("k_proj", "o_proj", "up_proj"));
  }
}

TEST(Recomputation, OfAShareOfTheLayersIsSpreadEvenly) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 8;
  const auto again = [&](Recompute recompute, double share) {
    options.recompute = recompute;
    options.recompute_share = share;
    const Trace trace = generate(options);
    std::string layers;
    for (Count i = 0; i < options.model.layers; ++i) {
      layers += run_again(trace, "model.layers." + std::to_string(i) + ".").empty() ? '.' : 'x';
    }
    return layers;
  };
  EXPECT_EQ(again(Recompute::block, 0.5), ".x.x.x.x");
  EXPECT_EQ(again(Recompute::block_early_stop, 0.25), "...x...x");
  EXPECT_EQ(again(Recompute::ops, 0.75), ".xxx.xxx");
  EXPECT_EQ(again(Recompute::block, 0.1), "........");
  EXPECT_EQ(again(Recompute::block, 1), "xxxxxxxx");
  // Stages count the model's layers, not their own.
  options.pipeline_parallel = 2;
  options.model.layers = 6;
  EXPECT_EQ(again(Recompute::block, 1 / 3.0), "..x..x");
}

// Every kind of model, adapters, experts and tensor-parallel ranks: what is read is there, which generate() checks, and
// ops lie between none and block in memory and work.
TEST(Recomputation, FitsEveryKindOfModel) {
  for (const char* model : {"gpt2", "opt-1.3b", "bloom-7b1", "falcon-7b", "bert-base-uncased", "mixtral-8x7b",
                            "qwen3-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "vit-base-patch16-224"}) {
    for (const Count lora_rank : {0, 4}) {
      GenerateOptions options = small(model);
      options.model.layers = 2;
      options.lora_rank = lora_rank;
      if (lora_rank != 0 && options.model.family == ModelFamily::deepseek) options.lora_targets = {"kv_b_proj"};
      std::map<Recompute, std::pair<Count, Bytes>> found;
      for (const Recompute recompute :
           {Recompute::none, Recompute::block, Recompute::block_early_stop, Recompute::ops}) {
        options.recompute = recompute;
        const Trace trace = generate(options);
        found[recompute] = {flops(trace, Phase::backward), kept_for_backward(trace)};
      }
      const auto& [none, block, early, ops] = std::tie(found[Recompute::none], found[Recompute::block],
                                                       found[Recompute::block_early_stop], found[Recompute::ops]);
      EXPECT_LT(none.first, ops.first) << model;
      EXPECT_LT(ops.first, early.first) << model;
      EXPECT_LE(early.first, block.first) << model;
      EXPECT_GT(none.second, ops.second) << model;
      EXPECT_GT(ops.second, block.second) << model;
      EXPECT_EQ(early.second, block.second) << model;
    }
  }
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 2;
  options.tensor_parallel = 2;
  options.recompute = Recompute::ops;
  std::map<NameId, int> participants;
  const Trace trace = generate(options);
  for (const Op& op : trace.ops) {
    if (op.rendezvous != 0) ++participants[op.rendezvous];
  }
  for (const auto& [key, count] : participants) EXPECT_EQ(count, 2) << key;
}

// ---- Flops. ---------------------------------------------------------------------------------------------------------

// Narayanan et al. 2021: 96 b s l h² (1 + s/(6h) + V/(16 l h)) with recomputation; a forward pass is a quarter of it,
// the backward pass twice that.
TEST(Flops, OfAGptAreMegatronsFormula) {
  GenerateOptions options = small("gpt2");
  options.attention = AttentionKind::materialised;
  const Shape shape(options);
  const Count layers = options.model.layers, vocabulary = options.model.vocabulary;
  const Count blocks = layers * (24 * shape.sbh() * shape.h + 4 * shape.s * shape.sbh());
  const Count head = 2 * shape.sbh() * vocabulary;
  Trace trace = generate(options);
  EXPECT_EQ(flops(trace, Phase::forward), blocks + head);
  EXPECT_EQ(flops(trace, Phase::backward), 2 * (blocks + head));
  options.recompute = Recompute::block;
  trace = generate(options);
  EXPECT_EQ(flops(trace, Phase::forward), blocks + head);
  EXPECT_EQ(flops(trace, Phase::backward), 3 * blocks + 2 * head);
  options.recompute = Recompute::selective;
  EXPECT_EQ(flops(generate(options), Phase::backward), 2 * (blocks + head) + layers * 4 * shape.s * shape.sbh());
  // A causal flash kernel does half of the forward products, and five halves of one product backward.
  options.recompute = Recompute::none;
  options.attention = AttentionKind::flash;
  trace = generate(options);
  EXPECT_EQ(flops(trace, Phase::forward), blocks + head - layers * 2 * shape.s * shape.sbh());
  EXPECT_EQ(flops(trace, Phase::backward), 2 * (blocks + head) - layers * 3 * shape.s * shape.sbh());
}

// Chowdhery et al. 2022 (PaLM): 6 N + 12 l h s a token, where N counts the parameters of products.
TEST(Flops, AreSixPerParameterAndToken) {
  for (const char* model : {"opt-6.7b", "llama-3-8b", "bloom-7b1", "falcon-7b", "gpt2-xl"}) {
    GenerateOptions options = small(model);
    options.attention = AttentionKind::materialised;
    const Trace trace = generate(options);
    const Count tokens = trace.header.tokens_per_iteration();
    // All but the embedding where it is not the head as well.
    Count parameters = parameter_count(options.model, options.head);
    if (!options.model.tied_embeddings) parameters -= options.model.vocabulary * options.model.hidden;
    const ModelDescription& m = options.model;
    const double expected = 6.0 * static_cast<double>(parameters * tokens) +
                            12.0 * static_cast<double>(m.layers * m.heads * m.head_dimension * 64 * tokens);
    const double found = static_cast<double>(flops(trace, Phase::forward) + flops(trace, Phase::backward));
    EXPECT_NEAR(found / expected, 1, 0.002) << model;  // norms, biases and positions multiply nothing
  }
}

// ---- The optimizer. -------------------------------------------------------------------------------------------------

TEST(GeneratedOptimizer, KeepsItsBytesForEveryParameter) {
  struct Case {
    Optimizer optimizer;
    Precision precision;
    double master, states;  // bytes a parameter
  };
  const Case cases[] = {
      {Optimizer::adamw, Precision::fp16, 4, 8},       {Optimizer::adamw, Precision::fp32, 0, 8},
      {Optimizer::lamb, Precision::fp16, 4, 8},        {Optimizer::lamb, Precision::fp32, 0, 8},
      {Optimizer::adamw, Precision::tf32, 0, 8},       {Optimizer::adamw, Precision::fp8, 4, 8},
      {Optimizer::sgd, Precision::bf16, 4, 4},         {Optimizer::sgd, Precision::fp32, 0, 4},
      {Optimizer::adam8bit, Precision::bf16, 0, 2.03}, {Optimizer::adafactor, Precision::bf16, 4, 0.005},
      {Optimizer::adalomo, Precision::bf16, 0, 0.005}, {Optimizer::lomo, Precision::bf16, 0, 0}};
  for (const Case& c : cases) {
    GenerateOptions options = small("opt-1.3b");
    options.optimizer = c.optimizer;
    options.precision = c.precision;
    const Trace trace = generate(options);
    const double count = static_cast<double>(parameter_count(options.model, options.head));
    const auto a_parameter = [&](Role role) { return static_cast<double>(bytes_of_role(trace, role, true)) / count; };
    EXPECT_EQ(a_parameter(Role::parameter), static_cast<double>(bytes_of(c.precision)));
    EXPECT_EQ(a_parameter(Role::master_parameter), c.master);
    EXPECT_NEAR(a_parameter(Role::optimizer_state), c.states, 0.01 * c.states + 0.005) << to_string(c.optimizer);
  }
}

// LLaMA-7B: 32 layers of four matrices of 4096 × 4096 and three of 4096 × 11008; embedding and head of 32000 × 4096, 65
// norms. GB, by the formulas of optimizer_states.h: GaLore at rank 1024 8.36 + 1.05, in 8 bits 5.17 + 0.53; APOLLO at
// 256 1.62 and 0.47 of projectors, + 1.05; at rank 1 0.008 + 1.05.
TEST(GeneratedOptimizer, KeepsLowRankStatesOfAttentionAndMlpAlone) {
  struct Case {
    Optimizer optimizer;
    Count rank;
    double gigabytes;
  };
  for (const Case& c : {Case{Optimizer::adamw, 0, 26.95}, Case{Optimizer::galore, 1024, 9.405},
                        Case{Optimizer::galore8bit, 1024, 5.701}, Case{Optimizer::apollo, 256, 3.14},
                        Case{Optimizer::apollo_mini, 0, 1.058}, Case{Optimizer::lomo, 0, 0}}) {
    GenerateOptions options = small("llama-2-7b");
    options.precision = Precision::bf16;
    options.optimizer = c.optimizer;
    options.low_rank = c.rank;
    options.master = false;
    const Trace trace = generate(options);
    EXPECT_NEAR(static_cast<double>(bytes_of_role(trace, Role::optimizer_state, true)) / 1e9, c.gigabytes,
                0.01 * c.gigabytes)
        << to_string(c.optimizer);
    EXPECT_EQ(bytes_of_role(trace, Role::master_parameter, true), 0u);
  }
}

TEST(GeneratedOptimizer, ProjectsGradientsBeforeTheirMoments) {
  GenerateOptions options = small("llama-2-7b");
  options.model.layers = 1;
  options.optimizer = Optimizer::galore;
  options.low_rank = 64;
  options.clip = Clip::off;
  const Trace trace = generate(options);
  std::map<std::string, std::size_t> ops;
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::optimizer) ++ops[std::string(trace.name(op))];
    if (trace.name(op) == "project") {
      const Kernel& kernel = trace.kernels[op.kernel];
      EXPECT_EQ(kernel.shape[2], 64u);
      EXPECT_EQ(op.flops, 2 * kernel.shape[1] * kernel.shape[2] * kernel.shape[3]);
    }
  }
  EXPECT_EQ(ops["project"], 7u);
  EXPECT_EQ(ops["project_back"], 7u);
  EXPECT_EQ(ops["apply"], 7u);
  EXPECT_EQ(ops["galore"], parameters_of(options.model, options.head).size());
}

TEST(GeneratedOptimizer, MayKeepFullStatesOfEmbeddings) {
  GenerateOptions options = small("llama-2-7b");
  options.precision = Precision::bf16;
  options.optimizer = Optimizer::adam8bit;
  const Bytes small_states = bytes_of_role(generate(options), Role::optimizer_state, true);
  options.fp32_embedding_states = true;
  const Count elements = options.model.vocabulary * options.model.hidden;
  EXPECT_EQ(bytes_of_role(generate(options), Role::optimizer_state, true) - small_states,
            2 * (4 * elements - (elements + 4 * elements / 256)));
}

// Of the frozen layers nothing is kept for the backward pass, which ends above them.
TEST(GeneratedOptimizer, FrozenLayersHaveNoBackwardPass) {
  GenerateOptions options = small("llama-2-7b");
  options.model.layers = 6;
  options.trained.last_layers = 2;
  const Trace trace = generate(options);
  std::set<std::string> backward, updated;
  for (const Op& op : trace.ops) {
    const std::string module(trace.module(op));
    if (op.phase == Phase::backward && module.find("layers.") != std::string::npos) {
      backward.insert(module.substr(module.find("layers."), 8));
    }
    if (op.phase == Phase::optimizer && trace.name(op) == "adamw") updated.insert(module);
  }
  EXPECT_THAT(backward, ::testing::ElementsAre("layers.4", "layers.5"));
  EXPECT_EQ(updated.count("lm_head"), 1u);
  EXPECT_EQ(updated.count("model.norm"), 1u);
  EXPECT_EQ(updated.count("model.embed_tokens"), 0u);
  std::uint64_t last_forward = 0;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    if (trace.ops[index].phase == Phase::forward) last_forward = index;
  }
  for (OpIndex index = static_cast<OpIndex>(last_forward) + 1; index < trace.ops.size(); ++index) {
    for (const TensorId id : trace.reads(trace.ops[index])) {
      if (trace.tensors[id].role != Role::activation) continue;
      const std::string name(trace.name(trace.tensors[id]));
      for (const char* frozen : {"layers.0.", "layers.1.", "layers.2."}) {
        EXPECT_EQ(name.find(frozen), std::string::npos) << name;
      }
    }
  }
  options.trained.last_layers = 7;
  EXPECT_THROW(generate(options), Error);
}

TEST(GeneratedOptimizer, BiasesAloneNeedNoWeightGradients) {
  GenerateOptions options = small("gpt2");
  options.trained.biases_only = true;
  const Trace trace = generate(options);
  for (const Tensor& tensor : trace.tensors) {
    const std::string name(trace.name(tensor));
    if (tensor.role != Role::optimizer_state) continue;
    EXPECT_NE(name.find(".bias."), std::string::npos) << name;
  }
  for (const Op& op : trace.ops) EXPECT_EQ(trace.name(op).find("_backward_weight"), std::string::npos);
}

// Of all layers only the last output is there when the backward pass begins.
TEST(Generate, ReversibleLayersRebuildTheirInputs) {
  GenerateOptions options = small("llama-2-7b");
  options.model.layers = 4;
  options.recompute = Recompute::block;
  const Trace block = generate(options);
  options.recompute = Recompute::reversible;
  const Trace reversible = generate(options);
  const auto count = [](const Trace& trace, std::string_view name) {
    return std::count_if(trace.ops.begin(), trace.ops.end(), [&](const Op& op) { return trace.name(op) == name; });
  };
  EXPECT_EQ(count(reversible, "rebuild_input"), 4);
  EXPECT_EQ(reversible.ops.size(), block.ops.size() + 4);
  // What lives from the forward pass into the backward pass, of the layers.
  const auto kept = [](const Trace& trace) {
    std::set<TensorId> forward, later;
    for (const Op& op : trace.ops) {
      for (const TensorId id : op.phase == Phase::forward ? trace.writes(op) : trace.reads(op)) {
        (op.phase == Phase::forward ? forward : later).insert(id);
      }
    }
    Bytes bytes = 0;
    for (const TensorId id : forward) {
      const bool layer = trace.name(trace.tensors[id]).find("layers.") != std::string_view::npos;
      if (layer && later.contains(id)) bytes += trace.tensors[id].bytes;
    }
    return bytes;
  };
  const Bytes one = options.batch * options.sequence_lengths.front() * options.model.hidden * 2;
  EXPECT_EQ(kept(reversible), one);
  EXPECT_EQ(kept(block), 3 * one) << "the first layer's input is the embedding's";
}

TEST(GeneratedOptimizer, WaitsForTheGlobalNormAndUpdatesEachParameterInPlace) {
  GenerateOptions options = small("opt-125m");
  const Trace trace = generate(options);
  TensorId coefficient = none;
  std::set<TensorId> norms;
  std::size_t updates = 0;
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::optimizer) continue;
    EXPECT_TRUE(op.placeable);
    if (trace.name(op) == "grad_norm") {
      ASSERT_EQ(trace.tensors[trace.reads(op)[0]].role, Role::gradient);
      norms.insert(trace.writes(op)[0]);
    } else if (trace.name(op) == "clip_coefficient") {
      EXPECT_EQ(std::set<TensorId>(trace.reads(op).begin(), trace.reads(op).end()), norms);
      EXPECT_EQ(norms.size(), parameters_of(options.model, options.head).size());
      coefficient = trace.writes(op)[0];
      EXPECT_FALSE(op.reorderable);
    } else {
      ++updates;
      EXPECT_TRUE(op.reorderable);
      EXPECT_THAT(trace.reads(op), ::testing::Contains(coefficient));
      // gradient, coefficient, master, two states; the last three and the parameter are written. One kernel would read
      // 14 bytes and write as many; PyTorch's eight move 80.
      EXPECT_EQ(trace.reads(op).size(), 5u);
      EXPECT_EQ(trace.writes(op).size(), 4u);
      EXPECT_EQ(op.bytes, 80 * trace.tensors[trace.reads(op)[0]].bytes / 2 + 4);
    }
  }
  EXPECT_EQ(updates, norms.size());
  options.clip = Clip::off;
  for (const Trace without = generate(options); const Op& op : without.ops) EXPECT_NE(without.name(op), "grad_norm");
}

// Apex' FusedLAMB, bytes an element: norm of the weights 4; direction 2 + 4 + 8 read, 2 + 8 written; its norm 2; update
// 2 + 4 read, 4 + 2 written.
TEST(GeneratedOptimizer, RunsLambsFourKernelsForEachParameter) {
  GenerateOptions options = small("opt-125m");
  options.optimizer = Optimizer::lamb;
  const Trace trace = generate(options);
  std::vector<std::string> names;
  std::map<std::string, Bytes> bytes;
  Bytes elements = 0;
  TensorId gradient = none;
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::optimizer || !op.reorderable) continue;
    EXPECT_TRUE(op.placeable);
    const std::string name(trace.name(op));
    if (names.size() < 4) names.push_back(name);
    bytes[name] += op.bytes;
    if (name == "lamb_direction") {
      gradient = trace.reads(op)[0];
      elements += trace.tensors[gradient].bytes / 2;
      EXPECT_THAT(trace.writes(op), ::testing::Contains(gradient)) << "the direction takes its place";
    }
    if (name == "lamb_update_norm" || name == "lamb") {
      EXPECT_EQ(trace.reads(op)[0], gradient);
    }
  }
  EXPECT_THAT(names, ElementsAre("lamb_weight_norm", "lamb_direction", "lamb_update_norm", "lamb"));
  const Count parameters = parameters_of(options.model, options.head).size();
  EXPECT_EQ(elements, parameter_count(options.model, options.head));
  EXPECT_EQ(bytes["lamb_weight_norm"], 4 * elements + 4 * parameters);
  EXPECT_EQ(bytes["lamb_direction"], 24 * elements + 4 * parameters);
  EXPECT_EQ(bytes["lamb_update_norm"], 2 * elements + 4 * parameters);
  EXPECT_EQ(bytes["lamb"], 12 * elements + 8 * parameters);
}

// Ranks that share a parameter meet once for all norms, between directions and updates.
TEST(GeneratedOptimizer, SumsLambsNormsOverTheRanksThatShareAParameter) {
  GenerateOptions options = small("opt-125m");
  options.optimizer = Optimizer::lamb;
  options.clip = Clip::off;
  options.data_parallel = 2;
  const auto meetings = [&] {
    std::vector<std::string> names;
    const Trace trace = generate(options);
    for (const Op& op : trace.ops) {
      const std::string name(trace.name(op));
      if (op.rank != 0 || op.phase != Phase::optimizer) continue;
      if ((op.rendezvous != 0 && name == "all_reduce") || names.empty() || names.back() == "all_reduce") {
        names.push_back(name);
      }
    }
    return names;
  };
  EXPECT_THAT(meetings(), ElementsAre("lamb_weight_norm")) << "replicas have all of each";
  options.zero = 2;
  EXPECT_THAT(meetings(), ElementsAre("lamb_weight_norm", "all_reduce", "lamb"));
  options.zero = 0;
  options.data_parallel = 1;
  options.tensor_parallel = 2;
  EXPECT_THAT(meetings(), ElementsAre("lamb_weight_norm", "all_reduce", "lamb"));
}

// DeepSpeed takes the norm of a gradient right after the op that completes it; a tied weight's is complete last.
TEST(GeneratedOptimizer, TakesNormsEarlyIfAsked) {
  for (const Count micro_batches : {1u, 2u}) {
    GenerateOptions options = small("gpt2");
    options.micro_batches = micro_batches;
    options.clip = Clip::early;
    const Trace trace = generate(options);
    std::vector<OpIndex> last_write(trace.tensors.size(), none);
    std::size_t norms = 0;
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      for (const TensorId id : trace.writes(op)) last_write[id] = i;
      if (trace.name(op) != "grad_norm") continue;
      ++norms;
      EXPECT_EQ(op.phase, Phase::backward);
      EXPECT_FALSE(op.placeable);
    }
    EXPECT_EQ(norms, parameters_of(options.model, options.head).size());
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      if (trace.name(trace.ops[i]) != "grad_norm") continue;
      EXPECT_LT(last_write[trace.reads(trace.ops[i])[0]], i);
    }
  }
}

// DeepSpeed's rule: a sub-group ends with the parameter that reaches the size.
TEST(GeneratedOptimizer, CutsSubGroupsByElements) {
  GenerateOptions options = small("opt-125m");
  options.sub_group = 10'000'000;
  const Trace trace = generate(options);
  std::map<std::int32_t, Count> elements;
  std::int32_t group = 0;
  for (const Op& op : trace.ops) {
    if (!op.reorderable) continue;
    EXPECT_TRUE(op.group == group || op.group == group + 1);
    group = op.group;
    elements[op.group] += trace.tensors[trace.reads(op)[0]].bytes / 2;
  }
  EXPECT_GT(elements.size(), 5u);
  for (const auto& [id, count] : elements) {
    EXPECT_TRUE(id == group || count >= options.sub_group) << count;
  }
}

TEST(Generate, AccumulatesGradientsOverMicroBatches) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 2;
  const Trace once = generate(options);
  options.micro_batches = 4;
  const Trace trace = generate(options);
  EXPECT_EQ(flops(trace, Phase::forward), flops(once, Phase::forward));
  // One gradient a parameter: written afresh by the first micro-batch, read and written by the others.
  std::map<TensorId, std::pair<int, int>> fresh_and_added;
  std::set<TensorId> of_parameters;
  for (const Op& op : trace.ops) {
    if (op.phase == Phase::optimizer && op.reorderable) of_parameters.insert(trace.reads(op)[0]);
  }
  EXPECT_EQ(of_parameters.size(), parameters_of(options.model, options.head).size());
  for (const Op& op : trace.ops) {
    if (op.phase != Phase::backward) continue;
    for (const TensorId id : trace.writes(op)) {
      if (!of_parameters.contains(id)) continue;
      const auto reads = trace.reads(op);
      (std::find(reads.begin(), reads.end(), id) == reads.end() ? fresh_and_added[id].first
                                                                : fresh_and_added[id].second)++;
    }
  }
  for (const auto& [id, counts] : fresh_and_added) EXPECT_EQ(counts, std::pair(1, 3)) << trace.name(trace.tensors[id]);
  // In fp32, if asked.
  options.gradient_precision = Precision::fp32;
  const Trace wide = generate(options);
  for (const Op& op : wide.ops) {
    if (!op.reorderable) continue;
    EXPECT_EQ(wide.tensors[wide.reads(op)[0]].bytes, wide.tensors[wide.reads(op)[2]].bytes) << "as the master copy";
  }
}

// The fused stack sums a bias' gradient up in the epilogue of the weight's product, and adds to both from the second
// micro-batch on.
TEST(Generate, JoinsTheGradientOfABiasWithItsWeightsWhereTheStackDoes) {
  GenerateOptions options = small("gpt2");
  options.stack = Stack::fused;
  options.micro_batches = 2;
  const Trace trace = generate(options);
  std::size_t joined = 0;
  for (const Op& op : trace.ops) {
    EXPECT_THAT(trace.name(op), ::testing::Not(::testing::EndsWith("_backward_bias")));
    if (!trace.name(op).ends_with("_backward_weight") || trace.name(op).starts_with("lm_head")) continue;
    ++joined;
    ASSERT_EQ(trace.writes(op).size(), 2u) << trace.name(op);
    EXPECT_EQ(trace.name(trace.tensors[trace.writes(op)[1]]).ends_with(".bias.grad"), true);
    const bool first = trace.reads(op).size() == 2;
    EXPECT_EQ(trace.reads(op).size(), first ? 2u : 4u);
  }
  EXPECT_EQ(joined, 2 * 4 * options.model.layers);
}

TEST(Generate, TakesALengthForEachMicroBatch) {
  GenerateOptions options = small("gpt2");
  options.micro_batches = 4;
  options.sequence_lengths = {512, 128, 300, 60};
  const Trace trace = generate(options);
  EXPECT_EQ(trace.header.tokens_per_iteration(), 512u + 128 + 300 + 60);
  std::vector<Bytes> inputs;
  for (const Tensor& tensor : trace.tensors) {
    if (trace.name(tensor) == "input_ids") inputs.push_back(tensor.bytes / 8);
  }
  EXPECT_THAT(inputs, ElementsAre(512, 128, 300, 60));
}

// A token passes 2.4 billion parameters of DeepSeek-V2-Lite, its report says, and 37 billion of DeepSeek-V3, each with
// two products in the backward pass for one in the forward pass. Attention's kernel has five for two.
TEST(LatentAttention, TrainsTheParametersThatATokenPasses) {
  for (const auto& [model, billion] : {std::pair("deepseek-v2-lite", 2.4), std::pair("deepseek-v3", 37.0)}) {
    GenerateOptions options = small(model);
    options.batch = 1;
    options.sequence_lengths = {512};  // of which each expert gets a whole number of tokens
    const Trace trace = generate(options);
    std::map<Phase, Count> products, attention;
    for (const Op& op : trace.ops) {
      (is_attention(trace.kernel(op).kind) ? attention : products)[op.phase] += op.flops;
    }
    EXPECT_NEAR(static_cast<double>(products[Phase::forward]) / (2 * 512e9), billion, 0.03 * billion);
    EXPECT_EQ(products[Phase::backward], 2 * products[Phase::forward]);
    EXPECT_EQ(2 * attention[Phase::backward], 5 * attention[Phase::forward]);
  }
}

// ---- Forward passes alone. ------------------------------------------------------------------------------------------

TEST(ForwardOnly, KeepsNothingAndEndsWithTheLogits) {
  for (const char* model : {"gpt2", "llama-3-8b", "bert-base-uncased", "mixtral-8x7b", "qwen3-30b-a3b",
                            "deepseek-v2-lite", "vit-base-patch16-224"}) {
    for (const Stack stack : {Stack::eager, Stack::fused}) {
      GenerateOptions options = small(model);
      options.stack = stack;
      options.model.layers = 3;
      options.dropout = Dropout::none;
      const Trace training = generate(options);
      options.dropout = Dropout::all;
      options.forward_only = true;
      options.micro_batches = 2;
      const Trace trace = generate(options);
      EXPECT_EQ(flops(trace, Phase::forward), flops(training, Phase::forward)) << model;
      for (const Op& op : trace.ops) {
        EXPECT_EQ(op.phase, Phase::forward);
        EXPECT_THAT(trace.name(op), ::testing::Not(HasSubstr("dropout")));
      }
      for (const Tensor& tensor : trace.tensors) {
        EXPECT_TRUE(tensor.role == Role::parameter || tensor.role == Role::activation || tensor.role == Role::input ||
                    tensor.role == Role::workspace)
            << trace.name(tensor);
        EXPECT_NE(trace.name(tensor), "labels");
      }
      // Every activation but the logits is read, and none of a layer by a later layer but its result.
      std::vector<bool> read(trace.tensors.size());
      for (const Op& op : trace.ops) {
        for (const TensorId id : trace.reads(op)) read[id] = true;
      }
      std::vector<std::string> unread;
      for (TensorId id = 0; id < trace.tensors.size(); ++id) {
        if (!read[id]) unread.emplace_back(trace.name(trace.tensors[id]));
      }
      EXPECT_EQ(unread.size(), 2u) << model << ": " << ::testing::PrintToString(unread);  // a micro-batch's each
    }
  }
}

TEST(ForwardOnly, HasALossIfOneIsGiven) {
  GenerateOptions options = small("gpt2");
  options.forward_only = true;
  options.loss = LossKind::full;
  const Trace trace = generate(options);
  EXPECT_EQ(trace.ops.back().phase, Phase::loss);
  EXPECT_EQ(trace.name(trace.ops.back()), "cross_entropy");
}

// As Transformers had it: two copies more, and the logits in fp32 live until their gradient is there.
// A vocabulary of 10 inputs' width: ten pieces of 256 rows would have 25.6, so pieces of 32. Work is that of `fused`;
// no op needs more of the logits than a piece, all pieces add to one gradient.
TEST(FusedLinearLoss, HasTheLogitsOfAPieceAtATime) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 1;
  options.model.vocabulary = 10 * options.model.hidden;
  options.micro_batches = 1;
  options.loss = LossKind::fused;
  const Trace whole = generate(options);
  options.loss = LossKind::fused_linear;
  const Trace pieces = generate(options);
  const auto all = [](const Trace& trace) {
    return flops(trace, Phase::forward) + flops(trace, Phase::loss) + flops(trace, Phase::backward);
  };
  EXPECT_EQ(all(pieces), all(whole));
  std::vector<std::string> head;
  Bytes logits = 0;
  std::set<TensorId> gradients;
  for (const Op& op : pieces.ops) {
    if (op.phase != Phase::loss) continue;
    head.emplace_back(pieces.name(op));
    for (const TensorId id : pieces.writes(op)) {
      if (pieces.tensors[id].role == Role::workspace) logits = std::max(logits, pieces.tensors[id].bytes);
      if (pieces.name(op) == "lm_head_backward_weight") gradients.insert(id);
    }
  }
  EXPECT_EQ(head.size(), 8u * 4);
  head.resize(4);
  EXPECT_THAT(head, ElementsAre("lm_head", "cross_entropy", "lm_head_backward_input", "lm_head_backward_weight"));
  EXPECT_EQ(logits, 32 * options.model.vocabulary * 2);
  EXPECT_EQ(gradients.size(), 1u);
  // What is kept beyond the layer: the gradient of the head's input, not the logits.
  EXPECT_LT(kept_for_backward(pieces), kept_for_backward(whole));
  options.forward_only = true;
  const Trace forward = generate(options);
  EXPECT_EQ(flops(forward, Phase::loss), flops(pieces, Phase::loss) / 3);
  options.forward_only = false;
  options.tensor_parallel = 2;
  EXPECT_THAT(error_of(options), HasSubstr("--loss: 'fused-linear' goes without --tensor-parallel"));
  EXPECT_THAT(error_of([&] {
                GenerateOptions other = small("bert-base-uncased");
                other.head = Head::classification;
                other.loss = LossKind::fused_linear;
                return other;
              }()),
              HasSubstr("--loss: 'fused-linear' is of a language model's head"));
}

TEST(ShiftedLoss, CopiesTheLogitsWhichTheCallerKeeps) {
  GenerateOptions options = small("llama-3-8b");
  options.precision = Precision::bf16;
  options.loss = LossKind::full;
  const Trace full = generate(options);
  options.loss = LossKind::shifted;
  const Trace shifted = generate(options);
  EXPECT_EQ(shifted.ops.size(), full.ops.size() + 2 * options.micro_batches);
  const auto last_reader = [](const Trace& trace, std::string_view tensor) {
    std::string_view reader;
    for (const Op& op : trace.ops) {
      for (const TensorId id : trace.reads(op)) {
        if (trace.name(trace.tensors[id]).ends_with(tensor)) reader = trace.name(op);
      }
    }
    return std::string(reader);
  };
  EXPECT_EQ(last_reader(full, "logits_fp32"), "cross_entropy");
  EXPECT_EQ(last_reader(shifted, "logits_fp32"), "shift_logits_backward");
  EXPECT_EQ(last_reader(shifted, "shifted_logits"), "cross_entropy");
  EXPECT_EQ(last_reader(shifted, "unshifted_logits_grad"), "logits_grad_cast");
}

TEST(ForwardOnly, TakesQuantisedWeightsAndRanks) {
  GenerateOptions options = small("llama-3-8b");
  options.model.layers = 4;
  options.forward_only = true;
  options.weights = find_weight_format("nf4");
  options.micro_batches = 2;
  options.data_parallel = options.tensor_parallel = options.pipeline_parallel = 2;
  options.zero = 3;
  const Trace trace = generate(options);
  std::map<NameId, int> participants;
  for (const Op& op : trace.ops) {
    EXPECT_EQ(op.phase, Phase::forward);
    if (op.rendezvous != 0) ++participants[op.rendezvous];
  }
  for (const auto& [key, count] : participants) EXPECT_EQ(count, 2) << trace.names[key];
  options.lora_rank = 4;
  EXPECT_EQ(bytes_of_role(generate(options), Role::optimizer_state, true), 0u);
  options.zero = 2;
  EXPECT_THAT(error_of(options), HasSubstr("--zero: stage 2 shares gradients and optimizer"));
  options.zero = 0;
  options.recompute = Recompute::block;
  EXPECT_THAT(error_of(options), HasSubstr("--recompute: a forward pass keeps no activations"));
}

// ---- LoRA. ----------------------------------------------------------------------------------------------------------

TEST(GeneratedLora, TrainsTheAdaptersOnly) {
  GenerateOptions options = small("llama-3-8b");
  options.lora_rank = 16;
  const Trace trace = generate(options);
  const ModelDescription& m = options.model;
  // A and B beside q_proj (h × h) and v_proj (h × a quarter).
  const Count trained = m.layers * 16 * (m.hidden + m.hidden + m.hidden + m.hidden / 4);
  EXPECT_EQ(bytes_of_role(trace, Role::master_parameter, true), 4 * trained);
  EXPECT_EQ(bytes_of_role(trace, Role::parameter, true), 2 * (parameter_count(m, options.head) + trained));
  for (const Op& op : trace.ops) {
    if (!op.reorderable) continue;
    EXPECT_THAT(trace.name(trace.tensors[trace.writes(op).back()]), HasSubstr(".lora_"));
  }
  // Nothing in front of the first adapters is trained, so no gradient goes there.
  for (const Op& op : trace.ops) EXPECT_NE(trace.name(op), "embed_tokens_backward");
  // A frozen product needs its weight to go back, not its input: forward and backward are the same, adapters aside.
  const double ratio =
      static_cast<double>(flops(trace, Phase::backward)) / static_cast<double>(flops(trace, Phase::forward));
  EXPECT_NEAR(ratio, 1, 0.02);
}

TEST(GeneratedLora, ExpandsQuantisedWeightsBeforeEachUse) {
  GenerateOptions options = small("llama-3-8b");
  options.lora_rank = 16;
  for (const auto& [format, bytes_per_weight] :
       {std::pair{"nf4", 0.5 + 1.0 / 64 + 4.0 / 64 / 256}, std::pair{"int8-expanded", 1.001}}) {
    options.weights = find_weight_format(format);
    const Trace trace = generate(options);
    double stored = 0, elements = 0;
    std::size_t expansions = 0;
    for (const Op& op : trace.ops) {
      if (!trace.name(op).ends_with("_dequantize")) continue;
      ++expansions;
      ASSERT_EQ(trace.tensors[trace.writes(op)[0]].role, Role::workspace);
      stored += static_cast<double>(trace.tensors[trace.reads(op)[0]].bytes);
      elements += static_cast<double>(trace.tensors[trace.writes(op)[0]].bytes) / 2;
    }
    // Seven linear layers a block, forward and backward; the first block's query, key and value need no input gradient.
    EXPECT_EQ(expansions, 2 * 7 * options.model.layers - 3);
    EXPECT_NEAR(stored / elements, bytes_per_weight, 0.0005);
  }
}

// ---- Durations. -----------------------------------------------------------------------------------------------------

// Where a recording gives flops without a shape: the larger of arithmetic and traffic (Williams et al. 2009).
TEST(KernelModel, TakesTheLargerOfArithmeticAndTrafficWithoutAShape) {
  GpuSpec gpu;
  gpu.name = "toy";
  gpu.memory_bandwidth = 1'000'000'000;
  gpu.fp16_flops = 1e12;
  gpu.interconnect = 2'000'000'000;
  gpu.collective_latency_ns = 7;
  gpu.kernels.matmul.share = 0.5;
  gpu.kernels.matmul.start_ns = 100;
  gpu.kernels.bandwidth_share[static_cast<std::size_t>(KernelKind::elementwise)] = 0.8;
  const KernelModel model(gpu, Precision::fp16);
  const Kernel product{.kind = KernelKind::matmul}, elementwise{.kind = KernelKind::elementwise};
  EXPECT_EQ(model.duration_ns(product, 1'000'000'000, 8), 100 + 2'000'000);  // 1e9 / 5e11
  EXPECT_EQ(model.duration_ns(product, 1, 8000), 100 + 10'000);              // 8000 / 8e8
  EXPECT_EQ(model.duration_ns(elementwise, 0, 8000), 10'000);
  EXPECT_EQ(model.collective_ns(2, 2000), 7 + 1000);
  EXPECT_EQ(model.collective_ns(2, 2000, 1'000'000'000), 7 + 2000);
  EXPECT_THROW(KernelModel(gpu, Precision::bf16), Error);
}

TEST(Gpus, AreAllThere) {
  std::vector<std::string> names;
  for (const GpuSpec& gpu : list_gpus()) {
    names.push_back(gpu.name);
    for (const Fact& fact : gpu.facts) EXPECT_FALSE(fact.source.empty()) << gpu.name << " " << fact.path;
  }
  EXPECT_EQ(names.size(), 76u);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_THAT(names, IsSupersetOf(
                         {"v100-16g",        "t4",           "a10g",      "l40s",   "rtx-3090", "rtx-4090", "rtx-5090",
                          "rtx-4060-ti-16g", "rtx-pro-6000", "rtx-a6000", "l20",    "a800-80g", "a100-40g", "h100",
                          "gh200",           "h200",         "b200",      "mi300x", "arc-b580", "gb10",     "m4-max"}));
  try {
    read_gpu("rtx");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("`tencache gpus` lists all 76"));
  }
}

TEST(Gpus, BrokenFilesAreErrorsWithTheirLine) {
  const auto error = [](const std::string& text) -> std::string {
    try {
      parse_gpus(text, "g.yaml");
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const std::string figure = "{value: 1, source: s, confidence: published}";
  EXPECT_THAT(error("gpus:\n  - name: x\n    memroy: " + figure + "\n"), HasSubstr("g.yaml:3: unknown key 'memroy'"));
  EXPECT_THAT(error("gpus:\n  - name: x\n    memory: 5\n"), HasSubstr("g.yaml:3"));
  EXPECT_THAT(error("gpus:\n  - name: x\n    memory: " + figure + "\n"), HasSubstr("'memory_bandwidth' is missing"));
  EXPECT_THAT(error("gpus:\n  - name: x\n    fp32_tflops: {value: -1, source: s, confidence: published}\n"),
              HasSubstr("no number above 0"));
  EXPECT_THAT(error("gpus:\n  - name: x\n    memory: {value: 1, source: s, confidence: guess}\n"),
              HasSubstr("valid are published, measured, estimated"));
}

TEST(Generate, IsModelledAndTheSameEveryTime) {
  GenerateOptions options = small("gpt2");
  options.origin.command = "tencache generate --model gpt2";
  options.origin.settings = {{"model", "gpt2"}};
  const Trace trace = generate(options);
  EXPECT_EQ(trace.header.hardware, "modelled: h100");
  EXPECT_EQ(trace.header.recorded_by, options.origin.command);
  EXPECT_EQ(trace.header.provenance, (Provenance{MadeBy::generated, {{"model", "gpt2"}}}));
  EXPECT_EQ(trace.header.precision, "fp16");
  for (const Op& op : trace.ops) {
    EXPECT_EQ(op.duration_source, DurationSource::modelled);
    EXPECT_EQ(op.gap_before_ns, 0) << "a stack without figures issues at once";
    EXPECT_GT(op.duration_ns, 0);
  }
  const std::string text = format_trace(trace);
  EXPECT_EQ(format_trace(generate(options)), text);
  EXPECT_EQ(format_trace(parse_trace(text, "t")), text);
}

TEST(Generate, RefusesWhatDoesNotGoTogether) {
  const auto with = [](auto change) {
    GenerateOptions options = small("llama-3-8b");
    change(options);
    return error_of(options);
  };
  using O = GenerateOptions;
  EXPECT_THAT(with([](O& o) { o.batch = 0; }), HasSubstr("--batch: is 0"));
  EXPECT_THAT(with([](O& o) { o.micro_batches = 3; }), HasSubstr("--batch: 4 sequences cannot be dealt evenly"));
  EXPECT_THAT(with([](O& o) { o.micro_batches = 1ull << 62, o.data_parallel = 4; }),
              HasSubstr("--micro-batches: 4611686018427387904 are more than the 4 sequences"));
  EXPECT_THAT(with([](O& o) { o.data_parallel = 1ull << 63, o.tensor_parallel = 2; }),
              HasSubstr("at most 65535 ranks"));
  EXPECT_THAT(with([](O& o) { o.sequence_lengths = {}; }), HasSubstr("--seq: is missing"));
  EXPECT_THAT(with([](O& o) { o.sequence_lengths = {1, 2}; }), HasSubstr("--seq: 2 lengths for 1 micro-batches"));
  EXPECT_THAT(with([](O& o) { o.sequence_lengths = {1u << 20}; }), HasSubstr("longer than the 8192 tokens"));
  EXPECT_THAT(with([](O& o) { o.tensor_parallel = 3; }),
              HasSubstr("--tensor-parallel: 3 does not divide the 32 heads"));
  EXPECT_THAT(with([](O& o) { o.pipeline_parallel = 33; }), HasSubstr("33 stages for the 32 layers"));
  EXPECT_THAT(with([](O& o) { o.zero = 3; }), HasSubstr("--zero"));
  EXPECT_THAT(with([](O& o) { o.data_parallel = 2, o.zero = 4; }), HasSubstr("stages are 0, 1, 2, 3"));
  EXPECT_THAT(with([](O& o) { o.weights = find_weight_format("nf4"); }), HasSubstr("give --lora-rank"));
  EXPECT_THAT(with([](O& o) { o.lora_rank = 8, o.weights = find_weight_format("awq"); }),
              HasSubstr("--weights: awq is read by kernels for inference; for adapters give --quantise 4 or 8"));
  EXPECT_THAT(with([](O& o) { o.lora_rank = 8, o.lora_targets = {"c_attn"}; }),
              HasSubstr("valid are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"));
  EXPECT_THAT(with([](O& o) { o.gpu = read_gpu("t4"), o.precision = Precision::bf16; }),
              HasSubstr("valid are fp16, fp32"));
  EXPECT_THAT(with([](O& o) { o.batch = 1u << 29; }),
              HasSubstr("more floating-point operations than a trace can hold"));
  EXPECT_THAT(with([](O& o) { o.batch = o.micro_batches = 1u << 24, o.sequence_lengths = {1}; }),
              HasSubstr("200000000 ops"));
  EXPECT_THAT(with([](O& o) { o.model.heads = 0; }), HasSubstr("llama-3-8b"));
  EXPECT_THAT(
      with([](O& o) { o.recompute_share = 0.5; }),
      HasSubstr("--recompute: 'none' takes no share of the layers; block, block-early-stop, ops and attention do"));
  EXPECT_THAT(with([](O& o) { o.recompute = Recompute::ops, o.recompute_share = 1.5; }),
              HasSubstr("not above 0 and up to 1; write ops:0.5"));
  GenerateOptions vit = small("vit-base-patch16-224");
  vit.sequence_lengths = {10};
  EXPECT_THAT(error_of(vit), HasSubstr("takes its sequence from the image"));
}

}  // namespace
}  // namespace tencache
