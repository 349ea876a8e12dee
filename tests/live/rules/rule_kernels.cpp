#include "tests/live/rules/rule_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "executor/clock.h"
#include "executor/cuda/replay_kernels.h"
#include "executor/replay_pattern.h"

namespace tencache::rules {
namespace {

using replay_kernels::Report;
enum Kernel : std::uint8_t { begin, write, check, compute };
const std::array<std::string, 4> names = {"tencache_replay_begin", "tencache_replay_write", "tencache_replay_check",
                                          "tencache_replay_compute"};

template <typename Type>
Type parameter(void** parameters, std::size_t index) {
  Type value;
  std::memcpy(&value, parameters[index], sizeof value);
  return value;
}

std::function<void()> timer(Kernel kernel, void** parameters, const KernelTouch& touch) {
  const auto address = parameter<CUdeviceptr>(parameters, 0);
  touch(address, sizeof(Report), true);
  auto* report = reinterpret_cast<Report*>(address);
  if (kernel == begin) return [report] { report->start_ns = static_cast<std::uint64_t>(clock_ns()); };
  const auto duration_ns = parameter<std::uint64_t>(parameters, 1);
  return [report, duration_ns] {
    const auto start_ns = static_cast<Nanoseconds>(report->start_ns);
    report->reached_ns = static_cast<std::uint64_t>(clock_ns() - start_ns);
    if (duration_ns > 0) wait_until(start_ns + static_cast<Nanoseconds>(duration_ns));
  };
}

std::function<void()> pattern(Kernel kernel, void** parameters, const KernelTouch& touch) {
  const auto seed = parameter<std::uint64_t>(parameters, 0);
  const auto address = parameter<CUdeviceptr>(parameters, 1);
  const auto bytes = parameter<std::uint64_t>(parameters, 2);
  const auto step = parameter<std::uint64_t>(parameters, 3);
  touch(address, bytes, kernel == write);
  auto* content = reinterpret_cast<unsigned char*>(address);
  if (kernel == write) {
    return [=] {
      for (std::uint64_t i = 0; i * 8 < bytes; i += step) replay_pattern::write_word(seed, content, bytes, i);
    };
  }
  const auto wrong_at = parameter<CUdeviceptr>(parameters, 4);
  touch(wrong_at, sizeof(std::uint64_t), true);
  return [=] {
    auto* wrong = reinterpret_cast<std::uint64_t*>(wrong_at);
    for (std::uint64_t i = 0; i * 8 < bytes; i += step) {
      if (!replay_pattern::word_is_right(seed, content, bytes, i)) *wrong = std::min(*wrong, i * 8);
    }
  };
}

}  // namespace

CUfunction find_kernel(const std::string& name) {
  const auto* found = std::ranges::find(names, name);
  return found == names.end() ? nullptr : reinterpret_cast<CUfunction>(const_cast<std::string*>(found));
}

std::function<void()> launch_kernel(CUfunction function, void** parameters, const KernelTouch& touch) {
  const auto* name = reinterpret_cast<const std::string*>(function);
  const auto place = name - names.data();
  if (function == nullptr || place < 0 || static_cast<std::size_t>(place) >= names.size()) return nullptr;
  const auto kernel = static_cast<Kernel>(place);
  const bool times = kernel == begin || kernel == compute;
  return times ? timer(kernel, parameters, touch) : pattern(kernel, parameters, touch);
}

}  // namespace tencache::rules
