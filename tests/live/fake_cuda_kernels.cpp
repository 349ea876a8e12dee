#include "tests/live/fake_cuda_kernels.h"

#include <algorithm>
#include <cstring>

#include "executor/adamw_kernels.h"
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

// The optimizer's kernels are the host's functions.
std::function<void()> adamw_job(const std::string& name, void** parameters, const FakeTouch& touch) {
  if (name == "tencache_adamw_norm") {
    const auto gradient = parameter<CUdeviceptr>(parameters, 0);
    const bool low = parameter<std::uint32_t>(parameters, 1) != 0;
    const auto elements = parameter<std::uint64_t>(parameters, 2);
    const auto partials = parameter<CUdeviceptr>(parameters, 3);
    touch(gradient, elements * (low ? 2 : 4));
    touch(partials, norm_blocks(elements) * 8);
    return [=] {
      HostAdamWKernels().norm(reinterpret_cast<const std::byte*>(gradient), low, elements,
                              reinterpret_cast<double*>(partials));
    };
  }
  if (name == "tencache_adamw_add") {
    const auto sum = parameter<CUdeviceptr>(parameters, 0), partials = parameter<CUdeviceptr>(parameters, 1);
    const auto count = parameter<std::uint64_t>(parameters, 2);
    const bool first = parameter<std::uint32_t>(parameters, 3) != 0;
    touch(sum, 8);
    touch(partials, count * 8);
    return [=] {
      auto* total = reinterpret_cast<double*>(sum);
      *total = add_partials(first ? 0 : *total, {reinterpret_cast<const double*>(partials), count});
    };
  }
  if (name == "tencache_adamw_clip") {
    const auto sum = parameter<CUdeviceptr>(parameters, 0), coefficient = parameter<CUdeviceptr>(parameters, 2);
    const auto max_norm = parameter<double>(parameters, 1);
    touch(sum, 8);
    touch(coefficient, 4);
    return [=] {
      *reinterpret_cast<float*>(coefficient) = clip_coefficient(*reinterpret_cast<const double*>(sum), max_norm);
    };
  }
  const bool low = parameter<std::uint32_t>(parameters, 3) != 0;
  const auto elements = parameter<std::uint64_t>(parameters, 8);
  const auto by = parameter<adamw_math::Factors>(parameters, 7);
  const auto array = [&](std::size_t index, Bytes element) {
    const auto address = parameter<CUdeviceptr>(parameters, index);
    if (address != 0) touch(address, elements * element);
    return address;
  };
  auto* weight = reinterpret_cast<float*>(array(0, 4));
  auto* rounded = reinterpret_cast<Bfloat16*>(array(1, 2));
  const CUdeviceptr gradient = array(2, low ? 2 : 4);
  auto* first_moment = reinterpret_cast<float*>(array(4, 4));
  auto* second_moment = reinterpret_cast<float*>(array(5, 4));
  const auto coefficient = parameter<CUdeviceptr>(parameters, 6);
  touch(coefficient, 4);
  return [=] {
    const float factor = *reinterpret_cast<const float*>(coefficient);
    for (std::uint64_t i = 0; i < elements; i++) {
      const float slope =
          low ? to_float(reinterpret_cast<const Bfloat16*>(gradient)[i]) : reinterpret_cast<const float*>(gradient)[i];
      weight[i] = adamw_math::updated(weight[i], slope, factor, first_moment[i], second_moment[i], by);
      if (low) rounded[i] = to_bfloat16(weight[i]);
    }
  };
}

}  // namespace

std::function<void()> fake_kernel_job(const std::string& name, void** parameters, const FakeTouch& touch) {
  using replay_kernels::Report;
  if (name.starts_with("tencache_adamw_")) return adamw_job(name, parameters, touch);
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
