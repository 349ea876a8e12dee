#include "tests/live/fake_cuda_kernels.h"

#include <algorithm>
#include <cstring>

#include "executor/clock.h"
#include "executor/cuda/replay_kernels.h"
#include "executor/replay_pattern.h"

namespace tencache {
namespace {

template <typename Type>
Type parameter(void** parameters, std::size_t index) {
  Type value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

}  // namespace

std::function<void()> fake_kernel_job(const std::string& name, void** parameters, const FakeTouch& touch) {
  using replay_kernels::Report;
  if (name == "tencache_replay_begin" || name == "tencache_replay_compute") {
    const auto address = parameter<CUdeviceptr>(parameters, 0);
    touch(address, sizeof(Report));
    auto* report = reinterpret_cast<Report*>(address);
    if (name == "tencache_replay_begin") {
      return [report] { report->start_ns = static_cast<std::uint64_t>(clock_ns()); };
    }
    const auto duration_ns = parameter<std::uint64_t>(parameters, 1);
    return [report, duration_ns] {
      const auto start_ns = static_cast<Nanoseconds>(report->start_ns);
      report->reached_ns = static_cast<std::uint64_t>(clock_ns() - start_ns);
      wait_until(start_ns + static_cast<Nanoseconds>(duration_ns));
    };
  }
  const auto seed = parameter<std::uint64_t>(parameters, 0);
  const auto address = parameter<CUdeviceptr>(parameters, 1);
  const auto bytes = parameter<std::uint64_t>(parameters, 2);
  const auto step = parameter<std::uint64_t>(parameters, 3);
  touch(address, bytes);
  auto* content = reinterpret_cast<unsigned char*>(address);
  if (name == "tencache_replay_write") {
    return [=] {
      for (std::uint64_t i = 0; i * 8 < bytes; i += step) replay_pattern::write_word(seed, content, bytes, i);
    };
  }
  const auto wrong_at = parameter<CUdeviceptr>(parameters, 4);
  touch(wrong_at, sizeof(std::uint64_t));
  return [=] {
    auto* wrong = reinterpret_cast<std::uint64_t*>(wrong_at);
    for (std::uint64_t i = 0; i * 8 < bytes; i += step) {
      if (!replay_pattern::word_is_right(seed, content, bytes, i)) *wrong = std::min(*wrong, i * 8);
    }
  };
}

}  // namespace tencache
