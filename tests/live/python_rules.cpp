// The module tencache._core once more, for tests: live runs of PyTorch programs on CPU tensors have the driver of rules
// as their GPU, and their ops are late kernels (rules/late_kernels.h). What a judge finds ends the process.
//
// Code that is no op reads tensors that it has allocated itself (states of generators of random numbers): these stay in
// the GPU's memory, as nothing serves faults there. So do those at addresses that it was given (numpy).
//
// TENCACHE_RULES_SEED: the device's strategy and choices follow from it. TENCACHE_RULES_ARENA, if it is 1: the GPU tier
// is mapped once, and tensors move in it.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "executor/cuda/cuda_device.h"
#include "python/test_device.h"
#include "tests/live/rules/late_kernels.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache {
namespace {

// Of the process; PyTorch keeps storages beyond the end of main.
struct TestDevice {
  static rules::RulesOptions options() {
    const char* const text = std::getenv("TENCACHE_RULES_SEED");
    const std::uint64_t seed = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
    const auto strategy = static_cast<rules::Strategy>(seed % rules::strategy_names.size());
    return {.memory = 6 * GiB, .granularity = 4096, .strategy = strategy, .seed = seed};
  }

  rules::LateKernels kernels;
  rules::RulesDriver driver{options()};
  std::shared_ptr<CudaDevice> device = std::make_shared<CudaDevice>(driver.table(), 0);
  tencache_live late{};  // the runtime's functions, with late kernels

  static TestDevice& get() {
    static auto* const instance = new TestDevice;
    return *instance;
  }

  void synchronize() const {
    device->bind();
    check_cuda(device->driver(), device->driver().cuStreamSynchronize(nullptr), "an op of the program");
    if (driver.violation().empty()) return;
    std::fprintf(stderr, "%s\n", driver.violation().c_str());
    std::abort();
  }
};

// Code that is no op writes to it from the host, as soon as it has it.
int allocate(void* runtime, std::uint64_t bytes, int inside_op, tencache_storage* storage) {
  const TestDevice& on = TestDevice::get();
  const int status = on.late.allocate(runtime, bytes, inside_op, storage);
  if (status != tencache_ok || inside_op != 0) return status;
  on.synchronize();
  return on.late.keep(runtime, &storage->tensor, 1);
}

// Tensors on the CPU are read where they lie, as soon as somebody has the address; those of a GPU after a wait for it.
int expose(void* runtime, std::uint32_t tensor) {
  const TestDevice& on = TestDevice::get();
  const int status = on.late.expose(runtime, tensor);
  if (status == tencache_ok) on.synchronize();
  return status;
}

void say_counts() {
  const TestDevice& on = TestDevice::get();
  const rules::LateCounts& counts = on.kernels.counts();
  const rules::RulesCounts done = on.driver.counts();
  std::fprintf(stderr, "rules: %llu late kernels, %llu waited for, %llu by order alone, %llu copies\n",
               static_cast<unsigned long long>(counts.late), static_cast<unsigned long long>(counts.waited),
               static_cast<unsigned long long>(counts.ordered),
               static_cast<unsigned long long>(done.uploads + done.downloads));
}

}  // namespace

void put_on_test_device(LiveSetting& setting, LiveRunOptions& options) {
  static const int at_exit = std::atexit(say_counts);
  static_cast<void>(at_exit);
  TestDevice& on = TestDevice::get();
  setting.accelerator = on.device;
  options.fence = [&on] { on.synchronize(); };
  options.stream = [] { return nullptr; };
  if (const char* const arena = std::getenv("TENCACHE_RULES_ARENA"); arena != nullptr && *arena == '1') {
    setting.machine.tiers.front().allocator = AllocatorKind::movable;
    const char* const ahead = std::getenv("TENCACHE_RULES_AHEAD");
    if (ahead != nullptr && *ahead == '1') setting.machine.run_ahead.ops = 256;
  }
  options.interpose = [&on](const tencache_live& live) {
    on.late = on.kernels.interpose(live);
    tencache_live ours = on.late;
    ours.cuda_tensors = 0;  // PyTorch computes on the CPU
    ours.allocate = allocate;
    ours.expose = expose;
    ours.unkeep = [](void*, const std::uint32_t*, std::size_t) -> int { return tencache_ok; };
    return ours;
  };
}

}  // namespace tencache
