// Programs of the chaos that train: layers, losses, optimizers, and what autograd can do.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/live/live_chaos_programs.h"

namespace tencache::live_test {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

void convolutions(Session& session) {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                     nn::ReLU(nn::ReLUOptions(true)), nn::MaxPool2d(2),
                     nn::Conv2d(nn::Conv2dOptions(8, 8, 3).groups(2)), nn::Flatten(), nn::Linear(8 * 6 * 6, 10));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const Tensor images = torch::randn({4, 3, 16, 16}), labels = torch::randint(10, {4}, torch::kLong);
  train(session, net, optimizer, [&] { return F::cross_entropy(net->forward(images), labels); });
}

void other_convolutions(Session& session) {
  nn::Conv1d one(nn::Conv1dOptions(4, 6, 3).stride(2));
  nn::ConvTranspose1d back(nn::ConvTranspose1dOptions(6, 4, 3).stride(2));
  nn::Conv3d three(nn::Conv3dOptions(2, 3, 3));
  const Tensor sound = leaf({2, 4, 33}), volume = leaf({1, 2, 8, 8, 8});
  backward_and_keep(session, back(one(sound)).pow(2).mean() + three(volume).pow(2).mean(),
                    {sound, volume, one->weight, back->weight, three->weight});
}

void depthwise_and_dilated(Session& session) {
  nn::Conv2d depthwise(nn::Conv2dOptions(8, 8, 3).groups(8).padding(1)),
      dilated(nn::Conv2dOptions(8, 4, 3).dilation(2));
  const Tensor x = leaf({2, 8, 14, 14});
  backward_and_keep(session, dilated(depthwise(x)).square().sum(),
                    {x, depthwise->weight, dilated->weight, dilated->bias});
}

void lstm(Session& session) {
  nn::LSTM net(nn::LSTMOptions(8, 16).num_layers(2).batch_first(true).dropout(0.2));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const Tensor input = torch::randn({3, 7, 8});
  train(session, net, optimizer, [&] { return std::get<0>(net->forward(input)).pow(2).mean(); });
}

void bidirectional_lstm(Session& session) {
  nn::LSTM net(nn::LSTMOptions(8, 12).bidirectional(true));
  const Tensor x = leaf({5, 2, 8});
  backward_and_keep(session, std::get<0>(net->forward(x)).square().sum(), {x});
}

void packed_lstm(Session& session) {
  nn::LSTM net(nn::LSTMOptions(8, 16));
  const Tensor x = leaf({6, 3, 8});
  Tensor lengths = torch::arange(6, 0, -2, torch::kLong);  // 6, 4, 2
  const auto packed = nn::utils::rnn::pack_padded_sequence(x, lengths);
  const auto output = std::get<0>(net->forward_with_packed_input(packed));
  const auto padded = nn::utils::rnn::pad_packed_sequence(output);
  backward_and_keep(session, std::get<0>(padded).square().sum(), {x});
}

void gru(Session& session) {
  nn::GRU net(nn::GRUOptions(8, 16));
  torch::optim::RMSprop optimizer(net->parameters(), torch::optim::RMSpropOptions(1e-2));
  const Tensor input = torch::randn({7, 3, 8});
  train(session, net, optimizer, [&] { return std::get<0>(net->forward(input)).pow(2).mean(); });
}

void plain_rnn_and_cells(Session& session) {
  nn::RNN net(nn::RNNOptions(8, 16));
  nn::LSTMCell cell(8, 8);
  nn::GRUCell gru_cell(8, 8);
  const Tensor input = leaf({7, 3, 8});
  auto state = cell->forward(input[0]);
  for (int i = 1; i < 7; ++i) state = cell->forward(input[i], state);
  backward_and_keep(
      session, std::get<0>(net->forward(input)).sum() + std::get<0>(state).sum() + gru_cell->forward(input[1]).sum(),
      {input});
}

void transformer_encoder(Session& session) {
  nn::TransformerEncoder net(
      nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.1)), 2);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  const Tensor input = torch::randn({9, 2, 16});
  train(session, net, optimizer, [&] { return net->forward(input).pow(2).mean(); });
}

void attention(Session& session) {
  nn::MultiheadAttention net(nn::MultiheadAttentionOptions(16, 4));
  const Tensor x = leaf({9, 2, 16});
  const Tensor mask = torch::ones({9, 9}).triu(1).to(torch::kBool);
  backward_and_keep(session, std::get<0>(net->forward(x, x, x, {}, true, mask)).square().sum(), {x});
}

void double_backward(Session& session) {
  const Tensor x = leaf({32, 8}), w = leaf({8, 8});
  const Tensor y = torch::tanh(x.matmul(w)).pow(3).sum();
  const Tensor first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
  backward_and_keep(session, first.square().sum(), {x, w});
}

struct Doubling : torch::autograd::Function<Doubling> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x.mul(2).add(x.pow(2));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * (2 + 2 * context->get_saved_variables()[0])};
  }
};

void custom_function(Session& session) {
  const Tensor x = leaf({64, 64});
  backward_and_keep(session, Doubling::apply(Doubling::apply(x)).sum(), {x});
}

Tensor segment(const Tensor& x, const Tensor& w) { return torch::gelu(torch::relu(x.matmul(w)).matmul(w)); }

// Keeps inputs only and runs the segment again in backward: recomputation, and a backward inside a backward.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& w) {
    context->save_for_backward({x, w});
    return segment(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::AutoGradMode on(true);
    const Tensor x = saved[0].detach().requires_grad_(), w = saved[1].detach().requires_grad_();
    const Tensor y = segment(x, w);
    y.backward(gradients[0]);
    return {x.grad(), w.grad()};
  }
};

void recompute(Session& session) {
  const Tensor x = leaf({16, 32}), w = leaf({32, 32});
  for (int i = 0; i < 4; ++i) {
    session.step();
    const Tensor y = Recomputed::apply(Recomputed::apply(x, w), w);
    y.square().mean().backward();
  }
  session.keep(x.grad());
  session.keep(w.grad());
}

// Deep enough that autograd moves the inner backward to another thread.
struct Nesting : torch::autograd::Function<Nesting> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, std::int64_t depth) {
    context->save_for_backward({x});
    context->saved_data["depth"] = depth;
    return x.square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const std::int64_t depth = context->saved_data["depth"].toInt();
    const Tensor x = context->get_saved_variables()[0];
    if (depth > 0) {
      const torch::AutoGradMode on(true);
      const Tensor inner = x.detach().mul(0.99).requires_grad_();
      Nesting::apply(inner, depth - 1).sum().backward();
      return {gradients[0] * inner.grad(), Tensor()};
    }
    return {gradients[0] * 2 * x, Tensor()};
  }
};

void reentrant_backward(Session& session) {
  const Tensor x = leaf({40, 40});
  backward_and_keep(session, Nesting::apply(x, 70).sum(), {x});
}

void lbfgs(Session& session) {
  nn::Linear net(8, 8);
  torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(5));
  const Tensor x = torch::randn({16, 8}), y = torch::randn({16, 8});
  train(
      session, net, optimizer, [&] { return F::mse_loss(net->forward(x), y); }, 2);
}

void adagrad_and_clipping(Session& session) {
  nn::Sequential net(nn::Linear(16, 32), nn::Tanh(), nn::Linear(32, 4));
  torch::optim::Adagrad optimizer(net->parameters(), torch::optim::AdagradOptions(1e-2));
  const Tensor x = torch::randn({8, 16});
  for (int i = 0; i < 4; ++i) {
    session.step();
    optimizer.zero_grad();
    net->forward(x).square().sum().backward();
    session.keep(torch::tensor(nn::utils::clip_grad_norm_(net->parameters(), 0.5)));
    optimizer.step();
  }
  for (const Tensor& parameter : net->parameters()) session.keep(parameter);
}

void sparse_embedding(Session& session) {
  nn::Embedding embedding(nn::EmbeddingOptions(100, 16).sparse(true));
  torch::optim::SGD optimizer(embedding->parameters(), torch::optim::SGDOptions(0.1));
  const Tensor tokens = torch::randint(100, {4, 12}, torch::kLong);
  train(session, embedding, optimizer, [&] { return embedding->forward(tokens).square().sum(); });
}

void embedding_bag(Session& session) {
  nn::EmbeddingBag bag(nn::EmbeddingBagOptions(50, 16).mode(torch::kMean));
  nn::Embedding normed(nn::EmbeddingOptions(50, 16).max_norm(1.0).scale_grad_by_freq(true));
  const Tensor tokens = torch::randint(50, {4, 6}, torch::kLong);
  backward_and_keep(session, bag->forward(tokens).square().sum() + normed->forward(tokens).square().sum(),
                    {bag->weight, normed->weight});
}

void dropouts(Session& session) {
  const Tensor x = leaf({32, 32});
  const Tensor y = F::dropout2d(x.view({2, 4, 16, 8}), F::Dropout2dFuncOptions().p(0.3)).view({32, 32});
  backward_and_keep(session,
                    (F::dropout(x, F::DropoutFuncOptions().p(0.5)) +
                     F::alpha_dropout(y, F::AlphaDropoutFuncOptions().p(0.2).training(true)))
                        .sum(),
                    {x});
}

void normalisations(Session& session) {
  nn::BatchNorm1d batch(16);
  nn::LayerNorm layer(nn::LayerNormOptions({16}));
  nn::GroupNorm group(4, 16);
  nn::InstanceNorm1d instance(nn::InstanceNorm1dOptions(16).affine(true).track_running_stats(true));
  const Tensor x = leaf({8, 16});
  for (int i = 0; i < 3; ++i) {
    session.step();
    const Tensor y = group(layer(batch(x)));
    (y * y).sum().backward();
    instance(x.view({2, 16, 4})).square().sum().backward();
  }
  batch->eval();
  session.keep(batch(x));
  session.keep(x.grad());
  for (const Tensor& buffer : batch->buffers()) session.keep(buffer);
  for (const Tensor& buffer : instance->buffers()) session.keep(buffer);
  session.keep(F::local_response_norm(x.detach().view({2, 16, 4}), F::LocalResponseNormFuncOptions(3)));
  session.keep(F::normalize(x.detach()));
}

void losses(Session& session) {
  const Tensor x = leaf({12, 7}), y = torch::rand({12, 7});
  const Tensor labels = torch::randint(7, {12}, torch::kLong);
  const Tensor loss =
      F::nll_loss(x.log_softmax(1), labels) + F::binary_cross_entropy(x.sigmoid(), y) +
      F::binary_cross_entropy_with_logits(x, y) + F::mse_loss(x, y) + F::smooth_l1_loss(x, y) +
      F::kl_div(x.log_softmax(1), y) + F::huber_loss(x, y) + F::multi_margin_loss(x, labels) +
      F::cosine_embedding_loss(x, y, labels.sign() * 2 - 1) + F::poisson_nll_loss(x, y) +
      F::cross_entropy(x, labels, F::CrossEntropyFuncOptions().label_smoothing(0.1).weight(torch::rand({7})));
  backward_and_keep(session, loss, {x});
}

void ctc(Session& session) {
  const Tensor x = leaf({20, 3, 10});
  const Tensor targets = torch::randint(1, 10, {3, 8}, torch::kLong);
  const Tensor input_lengths = torch::full({3}, 20, torch::kLong), target_lengths = torch::arange(5, 8, torch::kLong);
  backward_and_keep(session, F::ctc_loss(x.log_softmax(2), targets, input_lengths, target_lengths), {x});
}

void activations(Session& session) {
  const Tensor x = leaf({40, 40});
  nn::PReLU prelu;
  const Tensor loss = prelu(x).sum() + F::rrelu(x, F::RReLUFuncOptions().training(true)).square().sum() +
                      F::selu(x).sum() + F::elu(x).sum() + F::celu(x).sum() + F::softplus(x).sum() +
                      F::hardshrink(x).sum() + F::logsigmoid(x).sum() + F::glu(x).sum() + F::mish(x).sum() +
                      F::silu(x).sum() + F::gelu(x).sum() + F::leaky_relu(x).sum() + F::hardtanh(x).sum() +
                      F::softmax(x, 1).square().sum() +
                      F::gumbel_softmax(x, F::GumbelSoftmaxFuncOptions().dim(1)).square().sum();
  backward_and_keep(session, loss, {x, prelu->weight});
}

void channels_last(Session& session) {
  nn::Conv2d conv(nn::Conv2dOptions(4, 8, 3));
  const Tensor x = torch::randn({2, 4, 12, 12}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  backward_and_keep(session, F::avg_pool2d(conv(x), F::AvgPool2dFuncOptions(2)).square().sum(), {x, conv->weight});
}

void frozen_and_shared(Session& session) {
  nn::Linear a(16, 16), b(16, 16);
  b->weight = a->weight;  // shared
  a->bias.set_requires_grad(false);
  torch::optim::SGD optimizer({a->weight, b->bias}, torch::optim::SGDOptions(0.1));
  const Tensor x = torch::randn({8, 16});
  train(session, a, optimizer, [&] { return b(torch::relu(a(x))).square().mean(); });
  const torch::NoGradGuard off;
  a->weight.mul_(0.5).sub_(b->weight.t().clone());
  session.keep(b->weight);
}

void gradient_accumulation(Session& session) {
  nn::Linear net(32, 32);
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-3));
  for (int step = 0; step < 4; ++step) {
    session.step();
    optimizer.zero_grad();
    for (int part = 0; part < 3; ++part) net(torch::randn({8, 32})).square().mean().backward();
    optimizer.step();
  }
  session.keep(net->weight);
}

void retained_graph_and_hooks(Session& session) {
  const Tensor x = leaf({30, 30});
  const Tensor y = x.sin() * x.cos();
  y.retain_grad();
  y.register_hook([](const Tensor& gradient) { return gradient * 2; });
  y.sum().backward({}, true);
  y.square().sum().backward();
  session.keep(y.grad());
  session.keep(x.grad());
}

struct Failing : torch::autograd::Function<Failing> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.mul(2); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    static_cast<void>(gradients[0].add(1));
    throw std::runtime_error("on purpose");
  }
};

// Ops that throw, in forward and in the middle of backward; what they touched is as in the plain run.
void failing_ops(Session& session) {
  const Tensor x = leaf({50, 50});
  for (int i = 0; i < 3; ++i) {
    session.step();
    EXPECT_THROW(torch::mm(x, torch::ones({3, 3})), c10::Error);
    EXPECT_THROW(x.index_select(0, torch::full({1}, 100, torch::kLong)), c10::Error);
    EXPECT_THROW(Tensor(x).add_(1), c10::Error);  // a leaf that requires a gradient
    const Tensor y = x.exp().sum();
    y.backward();
    EXPECT_THROW(y.backward(), c10::Error);  // the graph is gone
    EXPECT_THROW((Failing::apply(x.sin()) + x).square().sum().backward(), std::runtime_error);
  }
  session.keep(x);
  session.keep(x.exp());
}

}  // namespace

std::vector<ChaosProgram> chaos_networks() {
  return {
      {"convolutions", convolutions},
      {"other_convolutions", other_convolutions},
      {"depthwise_and_dilated", depthwise_and_dilated},
      {"lstm", lstm},
      {"bidirectional_lstm", bidirectional_lstm},
      {"packed_lstm", packed_lstm},
      {"gru", gru},
      {"plain_rnn_and_cells", plain_rnn_and_cells},
      {"transformer_encoder", transformer_encoder},
      {"attention", attention},
      {"double_backward", double_backward},
      {"custom_function", custom_function},
      {"recompute", recompute},
      {"reentrant_backward", reentrant_backward},
      {"lbfgs", lbfgs},
      {"adagrad_and_clipping", adagrad_and_clipping},
      {"sparse_embedding", sparse_embedding},
      {"embedding_bag", embedding_bag},
      {"dropouts", dropouts},
      {"normalisations", normalisations},
      {"losses", losses},
      {"ctc", ctc},
      {"activations", activations},
      {"channels_last", channels_last},
      {"frozen_and_shared", frozen_and_shared},
      {"gradient_accumulation", gradient_accumulation},
      {"retained_graph_and_hooks", retained_graph_and_hooks},
      {"failing_ops", failing_ops},
  };
}

}  // namespace tencache::live_test
