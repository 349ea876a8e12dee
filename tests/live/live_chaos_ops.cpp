// Programs of the chaos that call ops: linear algebra, views, indexing, sparse and complex tensors, lifetimes.
#include <algorithm>

#include "tests/live/live_chaos_programs.h"

namespace tencache::live_test {
namespace {

using torch::Tensor;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

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
  session.keep(torch::max_pool1d(x.detach().flatten(2), 3));
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
  Tensor directions = torch::zeros({3, 30}, torch::kLong);
  torch::_sobol_engine_initialize_state_(directions, 3);
  const Tensor start = torch::zeros({3}, torch::kLong);
  session.keep(std::get<0>(torch::_sobol_engine_draw(start, 8, directions, 3, 0, torch::kFloat)));
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

}  // namespace

std::vector<ChaosProgram> chaos_ops() {
  return {
      {"linear_algebra", linear_algebra},
      {"fourier", fourier},
      {"complex_numbers", complex_numbers},
      {"views_and_in_place", views_and_in_place},
      {"set_and_resize", set_and_resize},
      {"indexing", indexing},
      {"scatter_and_gather", scatter_and_gather},
      {"sparse_matrices", sparse_matrices},
      {"cumulative", cumulative},
      {"sorting", sorting},
      {"contractions", contractions},
      {"masks", masks},
      {"joining", joining},
      {"pooling", pooling},
      {"resampling", resampling},
      {"rearranging", rearranging},
      {"distances", distances},
      {"bins", bins},
      {"random_numbers", random_numbers},
      {"types_and_copies", types_and_copies},
      {"tensor_lists", tensor_lists},
      {"odd_lifetimes", odd_lifetimes},
      {"small_types", small_types},
  };
}

}  // namespace tencache::live_test
