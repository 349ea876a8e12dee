#include "executor/torch/random_state.h"

#include <cstring>
#include <mutex>

#include "core/error.h"

namespace tencache {
namespace {

struct CpuGeneratorBytes {
  std::uint64_t seed;
  std::int32_t left, seeded;
  std::uint32_t next;
  std::uint32_t has_float, has_double;
  float next_float;
  double next_double;
  std::uint32_t state[at::MERSENNE_STATE_N];
};

}  // namespace

RandomState RandomState::capture() {
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const implementation = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(implementation->mutex_);
  RandomState state;
  state.engine_ = implementation->engine();
  state.next_float_ = implementation->next_float_normal_sample();
  state.next_double_ = implementation->next_double_normal_sample();
  state.gpu_ = torch_cuda::random_state();
  return state;
}

void RandomState::restore() const {
  const at::Generator generator = at::detail::getDefaultCPUGenerator();
  auto* const implementation = at::check_generator<at::CPUGeneratorImpl>(generator);
  const std::lock_guard lock(implementation->mutex_);
  implementation->set_engine(engine_);
  implementation->set_next_float_normal_sample(next_float_);
  implementation->set_next_double_normal_sample(next_double_);
  if (gpu_) torch_cuda::set_random_state(*gpu_);
}

std::string RandomState::to_bytes() const {
  const at::mt19937_data_pod data = engine_.data();
  CpuGeneratorBytes bytes;
  std::memset(&bytes, 0, sizeof bytes);  // padding, too
  bytes.seed = data.seed_;
  bytes.left = data.left_;
  bytes.seeded = data.seeded_ ? 1 : 0;
  bytes.next = data.next_;
  bytes.has_float = next_float_.has_value() ? 1 : 0;
  bytes.has_double = next_double_.has_value() ? 1 : 0;
  bytes.next_float = next_float_.value_or(0);
  bytes.next_double = next_double_.value_or(0);
  std::memcpy(bytes.state, data.state_.data(), sizeof bytes.state);
  std::string text(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  if (gpu_) text.append(reinterpret_cast<const char*>(&*gpu_), sizeof *gpu_);
  return text;
}

RandomState RandomState::from_bytes(const std::string& text) {
  const bool with_gpu = text.size() == sizeof(CpuGeneratorBytes) + sizeof(torch_cuda::RandomState);
  if (!with_gpu && text.size() != sizeof(CpuGeneratorBytes))
    throw Error("the state of the random numbers has another size than LibTorch's");
  CpuGeneratorBytes bytes;
  std::memcpy(&bytes, text.data(), sizeof bytes);
  RandomState state;
  if (with_gpu) {
    torch_cuda::RandomState gpu;
    std::memcpy(&gpu, text.data() + sizeof bytes, sizeof gpu);
    state.gpu_ = gpu;
  }
  at::mt19937_data_pod data;
  data.seed_ = bytes.seed;
  data.left_ = bytes.left;
  data.seeded_ = bytes.seeded != 0;
  data.next_ = bytes.next;
  std::memcpy(data.state_.data(), bytes.state, sizeof bytes.state);
  state.engine_.set_data(data);
  if (bytes.has_float != 0) state.next_float_ = bytes.next_float;
  if (bytes.has_double != 0) state.next_double_ = bytes.next_double;
  return state;
}

}  // namespace tencache
