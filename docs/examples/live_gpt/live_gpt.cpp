#include "docs/examples/live_gpt/live_gpt.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "executor/clock.h"
#include "executor/cuda/cuda_backend.h"
#include "executor/torch/interception.h"
#include "executor/torch/torch_cuda.h"
#include "traces/file/file_io.h"

namespace tencache::live_gpt {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// ---- The model: plain LibTorch, but that it says where its blocks begin and end -------------------------------------

struct BlockImpl : nn::Module {
  explicit BlockImpl(const Options& options) : heads(options.heads) {
    const std::int64_t width = options.width;
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    query_key_value = register_module("query_key_value", nn::Linear(width, 3 * width));
    projection = register_module("projection", nn::Linear(width, width));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    expand = register_module("expand", nn::Linear(width, 4 * width));
    contract = register_module("contract", nn::Linear(4 * width, width));
    dropout = register_module("dropout", nn::Dropout(options.dropout));
  }

  Tensor attention(const Tensor& hidden, const Tensor& mask) {
    const std::int64_t batch = hidden.size(0), length = hidden.size(1), width = hidden.size(2);
    const auto parts =
        query_key_value(hidden).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    const Tensor scores =
        torch::matmul(parts[0] * std::pow(static_cast<double>(width / heads), -0.5), parts[1].transpose(-2, -1));
    const Tensor weights =
        dropout(torch::softmax(scores.masked_fill(mask, -std::numeric_limits<float>::infinity()), -1));
    return projection(torch::matmul(weights, parts[2]).transpose(1, 2).reshape({batch, length, width}));
  }

  Tensor forward(const Tensor& hidden, const Tensor& mask) {
    const Tensor attended = hidden + dropout(attention(norm1(hidden), mask));
    return attended + dropout(contract(torch::gelu(expand(norm2(attended)))));
  }

  std::int64_t heads;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear query_key_value{nullptr}, projection{nullptr}, expand{nullptr}, contract{nullptr};
  nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  explicit GptImpl(const Options& options) {
    tokens = register_module("tokens", nn::Embedding(options.vocabulary, options.width));
    places = register_module("places", nn::Embedding(options.context, options.width));
    for (nn::Embedding& embedding : {std::ref(tokens), std::ref(places)}) {
      nn::init::normal_(embedding->weight, 0.0, 0.02);
    }
    for (std::int64_t i = 0; i < options.layers; ++i) {
      blocks.push_back(register_module("block_" + std::to_string(i), Block(options)));
    }
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({options.width})));
    head = register_module("head", nn::Linear(nn::LinearOptions(options.width, options.vocabulary).bias(false)));
    mask = register_buffer("mask", torch::ones({options.context, options.context}, torch::kBool).triu(1));
    numbers = register_buffer("numbers", torch::arange(options.context));
  }

  Tensor loss(const Tensor& ids, const Tensor& targets, LiveRuntime* runtime) {
    Tensor hidden = tokens(ids) + places(numbers);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      std::optional<ModuleScope> scope;
      if (runtime != nullptr) scope.emplace(*runtime, "block." + std::to_string(i));
      hidden = blocks[i](hidden, mask);
    }
    return nn::functional::cross_entropy(head(norm(hidden)).flatten(0, 1), targets.flatten());
  }

  nn::Embedding tokens{nullptr}, places{nullptr};
  std::vector<Block> blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
  Tensor mask, numbers;
};
TORCH_MODULE(Gpt);

// SplitMix64.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// ---- Training -------------------------------------------------------------------------------------------------------

class Training {
 public:
  Training(const Options& options, LiveRuntime* runtime, const Compute& compute)
      : options_(options), runtime_(runtime), device_(compute.device) {
    torch::manual_seed(options.seed);
    model_ = Gpt(options);  // on the CPU, so that weights are the same on all devices
    if (device_ != c10::DeviceType::CPU) model_->to(c10::Device(device_));
    for (const auto& parameter : model_->named_parameters()) {
      const Tensor& value = parameter.value();
      parameters_.push_back({parameter.key(), value, torch::zeros_like(value), torch::zeros_like(value)});
    }
    if (runtime_ == nullptr) return;
    for (const Parameter& parameter : parameters_) {  // for policies, and as names in recordings
      mark(*runtime_, parameter.value, Role::parameter, parameter.name);
      mark(*runtime_, parameter.first_moment, Role::optimizer_state, parameter.name + ".first_moment");
      mark(*runtime_, parameter.second_moment, Role::optimizer_state, parameter.name + ".second_moment");
    }
    for (const auto& buffer : model_->named_buffers()) mark(*runtime_, buffer.value(), Role::input, buffer.key());
  }

  std::uint64_t steps() const { return steps_; }

  float step() {
    enter(Phase::forward);
    const auto [ids, targets] = batch();
    const Tensor loss = model_->loss(ids, targets, runtime_);
    enter(Phase::backward);
    loss.backward();
    const float value = loss.item<float>();
    enter(Phase::optimizer);
    ++steps_;
    update();
    return value;
  }

  // The file takes the place of the one before when it is whole. Copies in LibTorch's own memory are written, since code
  // that is no op must not touch paged tensors; making them belongs to no step. (LibTorch writes to memory: where the
  // disk is full, its own writer ends the process.)
  void save(const std::string& path) {
    std::optional<AsideScope> aside;
    if (runtime_ != nullptr) aside.emplace(*runtime_);
    std::vector<Tensor> content;
    for (const Tensor& tensor : state()) {
      content.push_back(runtime_ != nullptr ? bring_back(*runtime_, tensor) : tensor.detach());
    }
    std::ostringstream bytes;
    torch::save(content, bytes);
    AtomicFile file(path);
    file.write(std::move(bytes).str());
    file.commit();
  }

  // In LibTorch's own memory, so call it without a guard.
  static std::vector<Tensor> load(const std::string& path) {
    std::vector<Tensor> content;
    try {
      torch::load(content, path);
    } catch (const std::exception& error) {
      throw Error(path + ": the checkpoint cannot be read: " + first_line(error));
    }
    return content;
  }

  void resume(const std::vector<Tensor>& content) {
    const torch::NoGradGuard no_gradient;
    const std::vector<Tensor> mine = state();
    bool suits = mine.size() == content.size();
    for (std::size_t i = 0; suits && i < mine.size(); ++i) suits = mine[i].sizes() == content[i].sizes();
    if (!suits) throw Error(options_.resume + ": this checkpoint is of another model");
    for (std::size_t i = 2; i < mine.size(); ++i) mine[i].detach().copy_(content[i]);
    steps_ = static_cast<std::uint64_t>(content[0].item<std::int64_t>());
    generator().set_state(content[1]);
  }

  std::vector<float> weights() {
    std::optional<AsideScope> aside;
    if (runtime_ != nullptr) aside.emplace(*runtime_);
    std::vector<float> all;
    for (const Parameter& parameter : parameters_) {
      const Tensor& value = parameter.value;
      const Tensor plain = runtime_ != nullptr ? bring_back(*runtime_, value) : value.detach().to(torch::kCPU);
      all.insert(all.end(), plain.data_ptr<float>(), plain.data_ptr<float>() + plain.numel());
    }
    return all;
  }

 private:
  struct Parameter {
    std::string name;
    Tensor value, first_moment, second_moment;
  };

  static std::string first_line(const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }

  void enter(Phase phase) {
    if (runtime_ != nullptr) runtime_->set_phase(phase);
  }

  // Made up from the step's number: each token is one of three that follow the one before, and few of all occur.
  std::pair<Tensor, Tensor> batch() {
    const std::uint64_t kinds = std::min<std::uint64_t>(32, static_cast<std::uint64_t>(options_.vocabulary));
    std::vector<std::int64_t> ids;
    std::uint64_t token = 0;
    for (std::int64_t row = 0; row < options_.batch; ++row) {
      std::uint64_t draw = mixed(mixed(options_.seed + steps_) + static_cast<std::uint64_t>(row));
      for (std::int64_t i = 0; i <= options_.context; ++i) {
        ids.push_back(static_cast<std::int64_t>(token));
        draw = mixed(draw);
        token = (5 * token + 7 + draw % 3) % kinds;
      }
    }
    const Tensor rows = torch::from_blob(ids.data(), {options_.batch, options_.context + 1}, torch::kInt64);
    const auto piece = [&](std::int64_t begin, const char* name) {
      const Tensor copy = rows.slice(1, begin, begin + options_.context).clone().to(c10::Device(device_));
      if (runtime_ != nullptr) mark(*runtime_, copy, Role::input, name);
      return copy;
    };
    return {piece(0, "tokens"), piece(1, "targets")};
  }

  // AdamW (Loshchilov and Hutter, algorithm 2), after clipping.
  void update() {
    const torch::NoGradGuard no_gradient;
    constexpr double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    const auto count = static_cast<double>(steps_);
    const double step_size = options_.learning_rate / (1 - std::pow(beta1, count));
    const double root_correction2 = std::sqrt(1 - std::pow(beta2, count));
    std::vector<Tensor> values;
    for (const Parameter& parameter : parameters_) {
      values.push_back(parameter.value);
      if (runtime_ != nullptr) mark(*runtime_, values.back().grad(), Role::gradient, parameter.name + ".grad");
    }
    nn::utils::clip_grad_norm_(values, options_.clip);
    for (Parameter& parameter : parameters_) {
      const Tensor gradient = parameter.value.grad();
      parameter.first_moment.mul_(beta1).add_(gradient, 1 - beta1);
      parameter.second_moment.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
      const Tensor denominator = parameter.second_moment.sqrt().div_(root_correction2).add_(epsilon);
      parameter.value.mul_(1 - options_.learning_rate * weight_decay);
      parameter.value.addcdiv_(parameter.first_moment, denominator, -step_size);
      parameter.value.mutable_grad().reset();
    }
  }

  at::Generator generator() const { return at::globalContext().defaultGenerator(c10::Device(device_)); }

  // All that the next step depends on: steps done, the state of the random numbers, weights and moments.
  std::vector<Tensor> state() const {
    std::vector<Tensor> all = {torch::full({1}, static_cast<std::int64_t>(steps_), torch::kInt64),
                               generator().get_state()};
    for (const Parameter& parameter : parameters_) {
      all.insert(all.end(), {parameter.value, parameter.first_moment, parameter.second_moment});
    }
    return all;
  }

  const Options& options_;
  LiveRuntime* runtime_;
  c10::DeviceType device_;
  Gpt model_{nullptr};
  std::vector<Parameter> parameters_;
  std::uint64_t steps_ = 0;
};

}  // namespace

Compute on_cuda() {
  Compute compute{c10::DeviceType::CUDA, open_cuda(), torch_cuda::synchronize, torch_cuda::current_stream};
  if (!torch::cuda::is_available()) {
    throw Error(
        "this build's LibTorch has no CUDA, or finds no GPU: install LibTorch with CUDA (`pip install torch` "
        "has it) and configure with -DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; "
        "print(torch.utils.cmake_prefix_path)')");
  }
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);  // the same bits each time, as the next one
  at::globalContext().setDeterministicAlgorithms(true, false);
  return compute;
}

LiveOptions on(const Compute& compute, LiveOptions live) {
  live.machine.accelerator = compute.accelerator;
  live.fence = compute.fence;
  live.stream = compute.stream;
  return live;
}

Result train(const Options& options, LiveRuntime* runtime, const Compute& compute) {
  std::vector<Tensor> resumed;
  if (!options.resume.empty()) resumed = Training::load(options.resume);
  std::optional<ThreadGuard> guard;
  if (runtime != nullptr) guard.emplace(*runtime, compute.device);  // from here on tensors are in the runtime's memory
  Training training(options, runtime, compute);
  if (!resumed.empty()) training.resume(resumed);
  Result result;
  result.resumed_steps = training.steps();
  while (training.steps() < options.steps) {
    const Nanoseconds start_ns = clock_ns();
    if (runtime != nullptr) runtime->iteration_boundary();
    result.losses.push_back(training.step());
    result.step_ns.push_back(clock_ns() - start_ns);
    if (options.on_step) options.on_step(training.steps(), result.losses.back(), result.step_ns.back());
    const bool due = options.checkpoint_every != 0 && training.steps() % options.checkpoint_every == 0;
    if (!options.checkpoint.empty() && (due || training.steps() == options.steps)) {
      training.save(options.checkpoint);
      if (options.on_checkpoint) options.on_checkpoint(training.steps());
    }
  }
  if (runtime != nullptr) runtime->iteration_boundary();  // the last step is over
  result.weights = training.weights();
  result.parameters = result.weights.size();
  return result;
}

}  // namespace tencache::live_gpt
