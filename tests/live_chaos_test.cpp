// Chaos: small programs over much of LibTorch run with a policy that evicts everything after every op, and with one
// that acts at random on no more memory than the largest op needs. What is evicted has no pages, so an op that touches
// memory which nobody announced crashes; and every result is compared bit by bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "tests/live_support.h"
#include "tests/random_case.h"

namespace tencache::live_test {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

// Trains a module for a few steps and keeps its parameters, buffers and losses.
template <typename Module, typename Loss>
void train(Session& session, Module& module, torch::optim::Optimizer& optimizer, const Loss& loss_of, int steps = 4) {
  for (int step = 0; step < steps; ++step) {
    session.step();
    const auto closure = [&] {
      optimizer.zero_grad();
      const Tensor loss = loss_of();
      loss.backward();
      return loss;
    };
    session.keep(optimizer.step(closure));
  }
  for (const Tensor& parameter : module->parameters()) session.keep(parameter);
  for (const Tensor& buffer : module->buffers()) session.keep(buffer);
}

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

void backward_and_keep(Session& session, const Tensor& loss, const std::vector<Tensor>& leaves) {
  loss.backward();
  session.keep(loss);
  for (const Tensor& tensor : leaves) session.keep(tensor.grad());
}

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

void linear_algebra(Session& session) {
  const Tensor a = leaf({24, 24}), b = leaf({24, 5});
  const Tensor spd = a.matmul(a.t()) + 24 * torch::eye(24);
  const Tensor loss = torch::linalg_solve(spd, b).sum() + torch::linalg_cholesky(spd).sum() + torch::logdet(spd) +
                      std::get<0>(torch::linalg_qr(spd)).sum() + torch::linalg_inv(spd).sum() +
                      torch::linalg_eigvalsh(spd).sum() + torch::linalg_svdvals(a).sum() + torch::linalg_norm(a) +
                      torch::matrix_exp(a * 0.01).sum();
  backward_and_keep(session, loss, {a, b});
  // LAPACK's least squares depend in the last bit on where its operands lie.
  const Tensor fit = std::get<0>(
      torch::linalg_lstsq(a.detach().to(torch::kDouble), b.detach().to(torch::kDouble), c10::nullopt, c10::nullopt));
  session.keep((fit * 1000).round());
  session.keep(torch::linalg_pinv(a.detach()));
}

void fourier(Session& session) {
  const Tensor x = leaf({4, 64});
  const Tensor spectrum = torch::fft_rfft(x);
  backward_and_keep(session, torch::fft_irfft(spectrum * spectrum).square().sum() + torch::fft_fft2(x).abs().sum(),
                    {x});
  session.keep(torch::stft(x.detach(), 16, 4, c10::nullopt, torch::hann_window(16), false, true, true));
}

void complex_numbers(Session& session) {
  const Tensor real = leaf({16, 16}), imaginary = leaf({16, 16});
  const Tensor z = torch::complex(real, imaginary);
  const Tensor w = z.matmul(z.conj().t());
  backward_and_keep(session, torch::real(w * w.conj()).sum() + torch::angle(z).sum(), {real, imaginary});
  session.keep(w);
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

void views_and_in_place(Session& session) {
  const Tensor x = torch::randn({40, 40});
  Tensor view = x.view({20, 80});
  view.narrow(1, 3, 7).mul_(2);
  x.t().select(0, 2).fill_(3);
  x.diagonal().add_(view.reshape({-1}).slice(0, 0, 40));
  view.transpose_(0, 1).unsqueeze_(0).squeeze_(0);
  x.slice(0, 0, 40, 2).copy_(x.slice(0, 1, 40, 2).flip(0));
  Tensor strided = x.as_strided({10, 10}, {41, 3}, 5);
  strided.exp_().clamp_(-2, 2);
  session.keep(x);
  session.keep(view);
  const Tensor w = leaf({10, 10});
  Tensor y = w * 2;
  y.index({torch::indexing::Slice(0, 3)}).mul_(3);
  y.abs_();
  y.unfold(0, 2, 2).add_(1);
  backward_and_keep(session, y.square().sum(), {w});
}

void set_and_resize(Session& session) {
  Tensor a = torch::arange(4096, torch::kFloat), b = torch::ones({10});
  b.set_(a);
  b.add_(1);
  Tensor c = torch::zeros({3});
  c.resize_({2000}).fill_(7);
  c.set_(a.storage(), 5, {100}, {2});
  c.mul_(2);
  a.resize_({5000}).slice(0, 4096, 5000).zero_();
  Tensor d = torch::empty({0});
  d.resize_as_(a).copy_(a);
  Tensor out = torch::empty({0});
  torch::add_out(out, a, d);
  torch::matmul_out(d, out.slice(0, 0, 4096).view({64, 64}), a.slice(0, 0, 4096).view({64, 64}));
  for (const Tensor& tensor : {a, b, c, d, out}) session.keep(tensor);
  Tensor parameter = leaf({8});
  parameter.set_data(torch::full({8}, 2.0f));
  session.keep(parameter);
}

void indexing(Session& session) {
  const Tensor x = leaf({50, 20});
  const Tensor rows = torch::randint(50, {30}, torch::kLong), columns = torch::randint(20, {30}, torch::kLong);
  Tensor y = x.clone();
  y.index_put_({rows, columns}, torch::ones({30}), true);
  y.index_put_({rows}, torch::zeros({20}));
  const Tensor picked = y.index({rows, columns}) + y.index({y.select(1, 0) > 0}).sum();
  backward_and_keep(session, picked.sum() + y.take(rows).sum() + y.index_fill(0, rows, 2).sum(), {x});
  session.keep(torch::nonzero(y > 0.5));
}

void scatter_and_gather(Session& session) {
  const Tensor x = leaf({30, 20});
  const Tensor index = torch::randint(30, {30, 20}, torch::kLong), rows = torch::randint(30, {30}, torch::kLong);
  const Tensor y = torch::zeros({30, 20}).scatter_add(0, index, x).scatter(0, index.slice(0, 0, 3), 1.5);
  const Tensor z = x.gather(0, index) + torch::zeros({30, 20}).index_add(0, rows, x) + x.index_select(0, rows);
  backward_and_keep(session, (y * z).sum() + torch::scatter_reduce(x, 0, index, x, "amax").sum(), {x});
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

void sparse_matrices(Session& session) {
  const Tensor indices = torch::randint(30, {2, 80}, torch::kLong), values = torch::randn({80});
  Tensor a = torch::sparse_coo_tensor(indices, values, {30, 30}).coalesce();
  const Tensor dense = leaf({30, 8});
  backward_and_keep(session, torch::_sparse_mm(a, dense).square().sum(), {dense});
  a = a + a * 2;
  a.mul_(0.5);
  session.keep(a.transpose(0, 1));
  session.keep(torch::_sparse_sum(a));
  session.keep(a.to_dense().to_sparse_csr().matmul(dense.detach()));
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

void cumulative(Session& session) {
  const Tensor x = leaf({20, 30});
  backward_and_keep(session,
                    (x.cumsum(1) * x.cumprod(0)).sum() + x.logcumsumexp(1).sum() + std::get<0>(x.cummax(1)).sum() +
                        torch::trapezoid(x).sum(),
                    {x});
  session.keep(torch::diff(x.detach()));
}

void sorting(Session& session) {
  const Tensor x = leaf({20, 30});
  const Tensor loss = std::get<0>(x.sort(1)).slice(1, 3, 7).sum() + std::get<0>(x.topk(5)).sum() +
                      std::get<0>(x.median(1)).sum() + std::get<0>(x.kthvalue(4, 0)).sum() + x.max() +
                      std::get<0>(x.min(1)).sum() + torch::quantile(x, 0.3) + std::get<0>(x.mode(1)).sum();
  backward_and_keep(session, loss, {x});
  session.keep(x.detach().argsort(std::int64_t{1}));
  session.keep(std::get<0>(torch::_unique2(x.detach().round(), true, true, true)));
  session.keep(std::get<0>(torch::unique_consecutive(x.detach().sign().view({-1}))));
}

void contractions(Session& session) {
  const Tensor a = leaf({4, 10, 12}), b = leaf({4, 12, 6}), v = leaf({6});
  const Tensor c = torch::einsum("bij,bjk->bik", {a, b});
  backward_and_keep(session,
                    torch::bmm(a, b).sum() + (c.matmul(v)).square().sum() + torch::tensordot(a, b, {2}, {1}).mean() +
                        torch::baddbmm(c, a, b, 0.5, 2).sum() + torch::outer(v, v).sum() +
                        torch::kron(b[0], b[1]).mean(),
                    {a, b, v});
}

void masks(Session& session) {
  const Tensor x = leaf({30, 30});
  const Tensor mask = x > 0.2;
  Tensor y = torch::where(mask, x, x.exp()).masked_fill(x.detach() < -1, 3);
  y = y + torch::zeros({30, 30}).masked_scatter(mask, x.masked_select(mask));
  backward_and_keep(session, y.square().sum() + x.masked_select(mask).sum(), {x});
  session.keep(mask.any(0).logical_and(mask.all(1)));
  session.keep(torch::isnan(x.detach()).sum());
}

void joining(Session& session) {
  const Tensor a = leaf({12, 8}), b = leaf({12, 8});
  const Tensor joined = torch::cat({a, b}, 1);
  const auto parts = joined.split(5, 1);
  const auto halves = joined.chunk(3, 0);
  const Tensor loss = torch::stack({a, b}, 2).square().sum() + parts[1].sum() * halves[2].mean() +
                      torch::hstack({a, b.flip(1)}).std() + torch::cartesian_prod({a[0], b[0]}).sum() +
                      a.repeat({2, 3}).sum() + a.repeat_interleave(3, 0).mean() + a.tile({2, 2}).sum() +
                      a.unbind(0)[3].sum() + torch::tensor_split(a, 5, 0)[2].sum();
  backward_and_keep(session, loss, {a, b});
  const Tensor counts = torch::arange(12, torch::kLong);
  session.keep(torch::repeat_interleave(a.detach(), counts, 0));
  session.keep(torch::tensor_split(a.detach(), torch::arange(2, 10, 3, torch::kLong), 0)[1]);
  session.keep(torch::block_diag({a.detach(), b.detach()}));
  session.keep(torch::meshgrid({a[0].detach(), b[0].detach()}, "ij")[1]);
}

void pooling(Session& session) {
  const Tensor x = leaf({2, 4, 16, 16});
  const Tensor loss = F::avg_pool2d(x, F::AvgPool2dFuncOptions(3)).square().sum() +
                      F::max_pool2d(x, F::MaxPool2dFuncOptions(2)).square().sum() +
                      F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(5)).square().sum() +
                      F::adaptive_max_pool2d(x, F::AdaptiveMaxPool2dFuncOptions(5)).sum() +
                      F::lp_pool2d(x, F::LPPool2dFuncOptions(2, 2)).sum();
  backward_and_keep(session, loss, {x});
  const auto pooled = F::max_pool2d_with_indices(x.detach(), F::MaxPool2dFuncOptions(2));
  session.keep(F::max_unpool2d(std::get<0>(pooled), std::get<1>(pooled), F::MaxUnpool2dFuncOptions(2)));
}

void resampling(Session& session) {
  const Tensor x = leaf({2, 3, 8, 8});
  const Tensor theta = torch::randn({2, 2, 3});
  const Tensor grid = F::affine_grid(theta, {2, 3, 6, 6}, false);
  const Tensor loss =
      F::interpolate(x, F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest))
          .square()
          .sum() +
      F::interpolate(x, F::InterpolateFuncOptions()
                            .size(std::vector<std::int64_t>{5, 11})
                            .mode(torch::kBilinear)
                            .align_corners(false))
          .square()
          .sum() +
      F::interpolate(
          x,
          F::InterpolateFuncOptions().size(std::vector<std::int64_t>{5, 11}).mode(torch::kBicubic).align_corners(true))
          .square()
          .sum() +
      F::grid_sample(x, grid, F::GridSampleFuncOptions().align_corners(false)).square().sum();
  backward_and_keep(session, loss, {x});
}

void rearranging(Session& session) {
  const Tensor x = leaf({2, 8, 6, 6});
  const Tensor loss = F::pixel_shuffle(x, F::PixelShuffleFuncOptions(2)).square().sum() +
                      F::unfold(x, F::UnfoldFuncOptions(3)).square().sum() +
                      F::pad(x, F::PadFuncOptions({1, 2, 2, 1}).mode(torch::kReflect)).square().sum() +
                      F::pad(x, F::PadFuncOptions({1, 2}).value(3)).sum() + x.roll(3, 2).tril().sum() +
                      x.flip({1, 2}).rot90(1, {2, 3}).sum() + x.permute({3, 1, 0, 2}).contiguous().sum();
  backward_and_keep(session, loss, {x});
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

void distances(Session& session) {
  const Tensor x = leaf({20, 10}), y = leaf({15, 10});
  backward_and_keep(session,
                    torch::cdist(x, y).sum() + torch::pdist(x).sum() + x.norm() + x.var() + x.std(1).sum() +
                        torch::logsumexp(x, 1).sum() + F::cosine_similarity(x.slice(0, 0, 15), y).sum() +
                        x.renorm(2, 0, 1).sum() + torch::dist(x.slice(0, 0, 15), y, 3),
                    {x, y});
  session.keep(torch::cov(x.detach()));
}

void bins(Session& session) {
  const Tensor x = torch::randn({500});
  session.keep(torch::histc(x, 20, -3, 3));
  session.keep(torch::bucketize(x, torch::arange(-3, 3, 0.5)));
  session.keep(torch::searchsorted(std::get<0>(x.sort()), torch::linspace(-2, 2, 50)));
  session.keep(torch::bincount(torch::randint(30, {400}, torch::kLong), torch::rand({400})));
  session.keep(torch::combinations(x.slice(0, 0, 12), 2));
}

void random_numbers(Session& session) {
  session.keep(torch::multinomial(torch::rand({5, 40}), 10));
  session.keep(torch::bernoulli(torch::rand({40, 40})));
  session.keep(torch::randperm(500));
  session.keep(at::normal(torch::zeros({30, 30}), torch::rand({30, 30})));
  session.keep(torch::poisson(torch::rand({30, 30}) * 5));
  Tensor x = torch::empty({50, 50});
  x.uniform_().exponential_().log_normal_().geometric_(0.3).cauchy_().random_(10);
  session.keep(x);
  Tensor w = torch::empty({40, 30});
  session.keep(nn::init::orthogonal_(w));
  session.keep(nn::init::kaiming_normal_(w));
}

void types_and_copies(Session& session) {
  const Tensor x = leaf({40, 40});
  const Tensor y = x.to(torch::kDouble).mul(1.1).to(torch::kFloat).to(torch::kHalf).to(torch::kFloat) +
                   x.to(torch::kBFloat16).to(torch::kFloat);
  backward_and_keep(session, y.sum(), {x});
  Tensor z = torch::empty({40, 40}, torch::kInt);
  z.copy_(x.detach() * 100);
  z.bitwise_and_(0xff).bitwise_xor_(z.t().contiguous());
  session.keep(z);
  session.keep(x.detach().to(torch::MemoryFormat::Contiguous, false).clone());
  session.keep(torch::zeros_like(z).scalar_type() == torch::kInt ? torch::full_like(z, 3) : z);
  Tensor scalar = x.detach().sum();
  session.keep(torch::full({5}, scalar.item<float>()));
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

// Ops on lists of tensors, which are one op for many.
void tensor_lists(Session& session) {
  std::vector<Tensor> parameters, gradients;
  for (std::int64_t rows = 7; rows < 80; rows += 9) {
    parameters.push_back(torch::randn({rows, 30}));
    gradients.push_back(torch::randn({rows, 30}));
  }
  for (int i = 0; i < 3; ++i) {
    session.step();
    at::_foreach_mul_(gradients, 0.9);
    at::_foreach_add_(parameters, gradients, -0.1);
    at::_foreach_addcmul_(parameters, gradients, gradients, 0.01);
    gradients = at::_foreach_sqrt(at::_foreach_abs(parameters));
  }
  for (const Tensor& parameter : parameters) session.keep(parameter);
  session.keep(gradients[2]);
}

// Views that outlive their bases, expanded tensors, tensors that go while others like them come.
void odd_lifetimes(Session& session) {
  std::vector<Tensor> kept;
  for (int i = 0; i < 24; ++i) {
    const Tensor base = torch::randn({40 + i, 30});
    kept.push_back(i % 3 == 0 ? base.t().slice(0, 2, 9) : i % 3 == 1 ? base.sum(0).expand({50, 30}) : base);
    if (i % 5 == 4) kept.erase(kept.begin() + i % 4);
    if (i % 7 == 6) kept.front() = kept.back().clone();
  }
  Tensor square = torch::randn({64, 64});
  square = square.matmul(square);
  square = square + square.t();
  Tensor alias = square.detach();
  square = Tensor();
  kept.push_back(alias.view({-1}));
  alias.mul_(0.5);
  for (Tensor& tensor : kept) {
    session.keep(tensor * 2);
    tensor = Tensor();
  }
}

void small_types(Session& session) {
  const Tensor bits = torch::randint(2, {100, 37}, torch::kBool), counts = torch::randint(50, {100, 37}, torch::kByte);
  const Tensor w = torch::randn({37, 20}).to(torch::kBFloat16).requires_grad_();
  const Tensor product = torch::gelu(torch::matmul(counts.to(torch::kBFloat16), w));
  backward_and_keep(session, product.square().mean(), {w});
  session.keep(product);
  session.keep(bits.logical_xor(counts > 20).logical_not_());
  session.keep(counts.bitwise_or(counts.flip(0)).bitwise_and_(15));
  session.keep(counts.to(torch::kShort).mul_(300).remainder(7));
  session.keep(counts.to(torch::kInt).floor_divide(3).cumsum(1));
  session.keep(bits.sum(0) + counts.argmax(0));
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

struct Case {
  const char* name;
  void (*program)(Session&);
};
std::ostream& operator<<(std::ostream& stream, const Case& value) { return stream << value.name; }

constexpr Case cases[] = {
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
    {"linear_algebra", linear_algebra},
    {"fourier", fourier},
    {"complex_numbers", complex_numbers},
    {"double_backward", double_backward},
    {"custom_function", custom_function},
    {"recompute", recompute},
    {"reentrant_backward", reentrant_backward},
    {"lbfgs", lbfgs},
    {"adagrad_and_clipping", adagrad_and_clipping},
    {"views_and_in_place", views_and_in_place},
    {"set_and_resize", set_and_resize},
    {"indexing", indexing},
    {"scatter_and_gather", scatter_and_gather},
    {"sparse_embedding", sparse_embedding},
    {"embedding_bag", embedding_bag},
    {"sparse_matrices", sparse_matrices},
    {"dropouts", dropouts},
    {"normalisations", normalisations},
    {"cumulative", cumulative},
    {"sorting", sorting},
    {"contractions", contractions},
    {"masks", masks},
    {"joining", joining},
    {"pooling", pooling},
    {"resampling", resampling},
    {"rearranging", rearranging},
    {"losses", losses},
    {"ctc", ctc},
    {"activations", activations},
    {"distances", distances},
    {"bins", bins},
    {"random_numbers", random_numbers},
    {"types_and_copies", types_and_copies},
    {"channels_last", channels_last},
    {"frozen_and_shared", frozen_and_shared},
    {"gradient_accumulation", gradient_accumulation},
    {"retained_graph_and_hooks", retained_graph_and_hooks},
    {"tensor_lists", tensor_lists},
    {"odd_lifetimes", odd_lifetimes},
    {"small_types", small_types},
    {"failing_ops", failing_ops},
};

class Chaos : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

void expect_same(const std::vector<std::string>& plain, const LiveRun& live, const char* what) {
  ASSERT_EQ(plain.size(), live.results.size()) << what;
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i] == live.results[i]) << what << ", result " << i;
}

TEST_P(Chaos, ResultsAreThoseOfThePlainRun) {
  const LiveProgram program = GetParam().program;
  const std::vector<std::string> plain = run_plain(program);
  ASSERT_FALSE(plain.empty());

  // The audit sees each op with its inputs before and after: LibTorch's ops are all announced, or in our lists.
  const auto on_demand = make_policy("on-demand").policy;
  set_audit(true);
  const LiveRun audited = run_live(program, machine_of(64 * MiB), *on_demand);
  set_audit(false);
  for (const AuditFinding& finding : audited.findings) ADD_FAILURE() << finding.op << " writes " << finding.argument;
  expect_same(plain, audited, "audited");

  ChaosPolicy chaos;
  LiveOptions options;
  options.settle = true;  // what is to be evicted is gone when the next op begins
  const LiveRun evicted = run_live(program, machine_of(64 * MiB), chaos, options);
  expect_same(plain, evicted, "everything evicted");
  EXPECT_GT(evicted.counters.link_bytes[0] + evicted.counters.link_bytes[1], 0u) << "nothing was evicted";

  // No byte more than the largest op needs, and a policy that asks for anything, which is mostly refused.
  const char* const seeds = std::getenv("TENCACHE_CASES");
  for (int seed = 0; seed < (seeds != nullptr ? std::max(1, std::atoi(seeds)) : 1); ++seed) {
    SCOPED_TRACE(seed);
    const std::unique_ptr<Policy> random = random_policy(plain.size() + static_cast<std::uint64_t>(seed), 1);
    const LiveRun least = run_live(program, machine_of(audited.largest_op_bytes), *random);
    expect_same(plain, least, "random actions on the least memory");
    EXPECT_GT(least.counters.refusals, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Chaos, ::testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tencache::live_test
