#include "executor/torch/programs.h"

#include <torch/torch.h>

#include <memory>
#include <utility>

#include "core/error.h"
#include "executor/torch/interception.h"
#include "executor/torch/train.h"

namespace tencache {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

// A model with its data: the loss of a step, with its modules announced.
class Model : public nn::Module {
 public:
  explicit Model(LiveRuntime& runtime) : runtime_(runtime) {}
  virtual torch::Tensor loss() = 0;
  void finish_backward() { enter_backward(""); }

 protected:
  // Runs a part of the model as the module of that name. Parts follow each other, in backward the other way round: one
  // ends where the next begins, when the gradient of what lies between them is there.
  template <typename Part>
  torch::Tensor as_module(const std::string& name, const torch::Tensor& input, const Part& part) {
    const ModuleScope scope(runtime_, name);
    torch::Tensor output = part(input);
    output.register_hook([this, name](const torch::Tensor&) { enter_backward(name); });
    return output;
  }
  torch::Tensor data(const std::string& name, const torch::Tensor& tensor) {
    mark(runtime_, tensor, Role::input, name);
    return tensor;
  }

 private:
  void enter_backward(const std::string& name) {
    if (!backward_module_.empty()) runtime_.module_end();
    backward_module_ = name;
    if (!name.empty()) runtime_.module_begin(name);
  }

  LiveRuntime& runtime_;
  std::string backward_module_;  // that runs now; empty: none
};

// ---- resnet ---------------------------------------------------------------------------------------------------------

// ResNet-18 for images of 32 x 32 (He et al., 2016; first layer and pooling as for CIFAR): 11 million parameters, most
// of the memory is activations, and buffers (running statistics) are written in forward.
class ResNet final : public Model {
 public:
  static constexpr std::int64_t batch = 8, classes = 10;
  explicit ResNet(LiveRuntime& runtime) : Model(runtime) {
    stem_ = register_module("stem", nn::Sequential(convolution(3, 64, 3, 1), nn::BatchNorm2d(64)));
    std::int64_t channels = 64;
    for (const std::int64_t width : {64, 128, 256, 512}) {
      for (int i = 0; i < 2; ++i) {
        const std::int64_t stride = i == 0 && width != 64 ? 2 : 1;
        Block block;
        const std::string name = "block_" + std::to_string(blocks_.size());
        block.residual =
            register_module(name, nn::Sequential(convolution(channels, width, 3, stride), nn::BatchNorm2d(width),
                                                 nn::ReLU(), convolution(width, width, 3, 1), nn::BatchNorm2d(width)));
        if (stride != 1) {
          block.shortcut = register_module(
              name + "_shortcut", nn::Sequential(convolution(channels, width, 1, stride), nn::BatchNorm2d(width)));
        }
        blocks_.push_back(block);
        channels = width;
      }
    }
    head_ = register_module("head", nn::Linear(channels, classes));
    images_ = data("images", torch::randn({batch, 3, 32, 32}));
    labels_ = data("labels", torch::randint(classes, {batch}, torch::kLong));
  }

  torch::Tensor loss() override {
    torch::Tensor hidden =
        as_module("stem", images_, [&](const torch::Tensor& input) { return torch::relu(stem_->forward(input)); });
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      hidden = as_module("block." + std::to_string(i), hidden, [&](const torch::Tensor& input) {
        const torch::Tensor kept = blocks_[i].shortcut.is_empty() ? input : blocks_[i].shortcut->forward(input);
        return torch::relu(blocks_[i].residual->forward(input) + kept);
      });
    }
    return as_module("head", hidden, [&](const torch::Tensor& input) {
      return F::cross_entropy(head_(input.mean({2, 3})), labels_);
    });
  }

 private:
  struct Block {
    nn::Sequential residual{nullptr}, shortcut{nullptr};
  };
  static nn::Conv2d convolution(std::int64_t from, std::int64_t to, std::int64_t kernel, std::int64_t stride) {
    return nn::Conv2d(nn::Conv2dOptions(from, to, kernel).stride(stride).padding(kernel / 2).bias(false));
  }

  nn::Sequential stem_{nullptr};
  std::vector<Block> blocks_;
  nn::Linear head_{nullptr};
  torch::Tensor images_, labels_;
};

// ---- lstm -----------------------------------------------------------------------------------------------------------

// A language model of two LSTM layers: thousands of small ops, and weights that each time step uses.
class LstmLanguageModel final : public Model {
 public:
  static constexpr std::int64_t batch = 16, sequence = 48, vocabulary = 2048, width = 384;
  explicit LstmLanguageModel(LiveRuntime& runtime) : Model(runtime) {
    embedding_ = register_module("embedding", nn::Embedding(vocabulary, width));
    for (const char* name : {"lstm_0", "lstm_1"}) {
      layers_.push_back(register_module(name, nn::LSTM(nn::LSTMOptions(width, width))));
    }
    head_ = register_module("head", nn::Linear(width, vocabulary));
    tokens_ = data("tokens", torch::randint(vocabulary, {sequence, batch}, torch::kLong));
    targets_ = data("targets", torch::randint(vocabulary, {sequence * batch}, torch::kLong));
  }

  torch::Tensor loss() override {
    torch::Tensor hidden =
        as_module("embedding", tokens_, [&](const torch::Tensor& input) { return embedding_(input); });
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      hidden = as_module("lstm." + std::to_string(i), hidden,
                         [&](const torch::Tensor& input) { return std::get<0>(layers_[i]->forward(input)); });
    }
    return as_module("head", hidden, [&](const torch::Tensor& input) {
      return F::cross_entropy(head_(input.flatten(0, 1)), targets_);
    });
  }

 private:
  nn::Embedding embedding_{nullptr};
  std::vector<nn::LSTM> layers_;
  nn::Linear head_{nullptr};
  torch::Tensor tokens_, targets_;
};

// ---- lora-encoder ---------------------------------------------------------------------------------------------------

// A frozen linear layer and, beside it, two narrow ones that are trained (LoRA, Hu et al., 2022).
class AdaptedLinearImpl : public nn::Module {
 public:
  AdaptedLinearImpl(std::int64_t from, std::int64_t to, std::int64_t rank) {
    frozen_ = register_module("frozen", nn::Linear(from, to));
    for (torch::Tensor& parameter : frozen_->parameters()) parameter.set_requires_grad(false);
    down_ = register_module("down", nn::Linear(nn::LinearOptions(from, rank).bias(false)));
    up_ = register_module("up", nn::Linear(nn::LinearOptions(rank, to).bias(false)));
    nn::init::zeros_(up_->weight);
  }
  torch::Tensor forward(const torch::Tensor& input) { return frozen_(input) + up_(down_(input)); }

 private:
  nn::Linear frozen_{nullptr}, down_{nullptr}, up_{nullptr};
};
TORCH_MODULE(AdaptedLinear);

// A classifier on a transformer encoder of 19 million frozen parameters: no gradients and no optimizer states of them.
class LoraEncoder final : public Model {
 public:
  static constexpr std::int64_t batch = 8, sequence = 64, width = 512, heads = 8, rank = 8, classes = 4;
  static constexpr int layers = 6;
  explicit LoraEncoder(LiveRuntime& runtime) : Model(runtime) {
    for (int i = 0; i < layers; ++i) {
      const std::string name = "layer_" + std::to_string(i) + "_";
      const auto adapted = [&](const char* part, std::int64_t from, std::int64_t to) {
        return register_module(name + part, AdaptedLinear(from, to, rank));
      };
      layers_.push_back({register_module(name + "norm1", nn::LayerNorm(nn::LayerNormOptions({width}))),
                         register_module(name + "norm2", nn::LayerNorm(nn::LayerNormOptions({width}))),
                         adapted("query_key_value", width, 3 * width), adapted("projection", width, width),
                         adapted("expand", width, 4 * width), adapted("contract", 4 * width, width)});
    }
    head_ = register_module("head", nn::Linear(width, classes));
    embedded_ = data("embedded", torch::randn({batch, sequence, width}));
    labels_ = data("labels", torch::randint(classes, {batch}, torch::kLong));
  }

  torch::Tensor loss() override {
    torch::Tensor hidden = embedded_;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      hidden = as_module("layer." + std::to_string(i), hidden, [&](const torch::Tensor& input) {
        const torch::Tensor attended = input + attention(layers_[i], layers_[i].norm1(input));
        return attended + layers_[i].contract(torch::gelu(layers_[i].expand(layers_[i].norm2(attended))));
      });
    }
    return as_module("head", hidden,
                     [&](const torch::Tensor& input) { return F::cross_entropy(head_(input.mean(1)), labels_); });
  }

 private:
  struct Layer {
    nn::LayerNorm norm1, norm2;
    AdaptedLinear query_key_value, projection, expand, contract;
  };
  static torch::Tensor attention(Layer& layer, const torch::Tensor& hidden) {
    const auto parts = layer.query_key_value(hidden)
                           .view({batch, sequence, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const torch::Tensor scores = torch::matmul(parts[0] * (1.0 / 8), parts[1].transpose(-2, -1));  // heads are 64 wide
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
    return layer.projection(mixed.transpose(1, 2).reshape({batch, sequence, width}));
  }

  std::vector<Layer> layers_;
  nn::Linear head_{nullptr};
  torch::Tensor embedded_, labels_;
};

// ---- Training -------------------------------------------------------------------------------------------------------

// A model with AdamW on the parameters that are trained.
class ModelTraining {
 public:
  ModelTraining(LiveRuntime& runtime, std::shared_ptr<Model> model) : runtime_(runtime), model_(std::move(model)) {
    std::vector<std::pair<std::string, torch::Tensor>> trained;
    for (const auto& parameter : model_->named_parameters()) {
      mark(runtime_, parameter.value(), Role::parameter, parameter.key());
      if (parameter.value().requires_grad()) trained.emplace_back(parameter.key(), parameter.value());
    }
    for (const auto& buffer : model_->named_buffers()) mark(runtime_, buffer.value(), Role::parameter, buffer.key());
    TrainingConfig config;
    config.sub_group_parameters = 500'000;
    trained_ = trained;
    optimizer_ = std::make_unique<Optimizer>(std::move(trained), config);
    for (const Optimizer::State& state : optimizer_->states()) mark(runtime_, state.tensor, state.role, state.name);
  }

  float step() {
    runtime_.set_phase(Phase::forward);
    const torch::Tensor loss = model_->loss();
    runtime_.set_phase(Phase::backward);
    loss.backward();
    model_->finish_backward();
    const float value = loss.item<float>();
    runtime_.set_phase(Phase::optimizer);
    for (const auto& [name, parameter] : trained_) mark(runtime_, parameter.grad(), Role::gradient, name + ".grad");
    run_updates(*optimizer_, &runtime_);
    for (auto& [name, parameter] : trained_) parameter.mutable_grad().reset();
    return value;
  }

 private:
  LiveRuntime& runtime_;
  std::shared_ptr<Model> model_;
  std::vector<std::pair<std::string, torch::Tensor>> trained_;
  std::unique_ptr<Optimizer> optimizer_;
};

struct KnownProgram {
  ProgramInfo info;
  std::int64_t batch, sequence;
  std::shared_ptr<Model> (*make)(LiveRuntime& runtime);
};

template <typename Kind>
std::shared_ptr<Model> make(LiveRuntime& runtime) {
  return std::make_shared<Kind>(runtime);
}

const std::vector<KnownProgram>& known_programs() {
  static const std::vector<KnownProgram> programs = {
      {{"resnet", "ResNet-18 on images of 32 x 32"}, ResNet::batch, 0, make<ResNet>},
      {{"lstm", "a language model of two LSTM layers"},
       LstmLanguageModel::batch,
       LstmLanguageModel::sequence,
       make<LstmLanguageModel>},
      {{"lora-encoder", "a frozen transformer encoder with trained low-rank adapters"},
       LoraEncoder::batch,
       LoraEncoder::sequence,
       make<LoraEncoder>},
  };
  return programs;
}

}  // namespace

const std::vector<ProgramInfo>& list_programs() {
  static const std::vector<ProgramInfo> list = [] {
    std::vector<ProgramInfo> infos;
    for (const KnownProgram& program : known_programs()) infos.push_back(program.info);
    return infos;
  }();
  return list;
}

Recording record_program(const std::string& name, const RecordingOptions& options) {
  std::string names;
  for (const KnownProgram& program : known_programs()) {
    names += (names.empty() ? "" : ", ") + program.info.name;
    if (program.info.name != name) continue;
    TrainingConfig described;
    described.name = name;
    described.batch = program.batch;
    described.context = program.sequence;
    const auto make = [&program](LiveRuntime& runtime) -> Step {
      torch::manual_seed(1);
      const auto training = std::make_shared<ModelTraining>(runtime, program.make(runtime));
      return [training](std::uint64_t) { return training->step(); };
    };
    return record_steps(recording_header(described), make, options);
  }
  throw Error("unknown program '" + name + "'; there are: " + names + "; or give a training configuration");
}

}  // namespace tencache
