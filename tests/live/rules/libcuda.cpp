// The driver of rules as a libcuda.so.1: with its folder in LD_LIBRARY_PATH, `tencache` or a test that asks for a GPU
// runs on it as it is. Time is this computer's. Ends the process with 86 if a rule was broken, and says which.
//
// TENCACHE_RULES_CARD: the card's name.
//
// A function that is looked up by its name jumps to where the driver's table points; x86-64 only.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "executor/cuda/cuda_driver.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache::rules {
namespace {

RulesDriver& driver() {
  static auto* const instance =
      new RulesDriver({.memory = 4 * GiB, .strategy = Strategy::eager, .call_stacks = false});  // outlives main
  return *instance;
}

}  // namespace
}  // namespace tencache::rules

#define RULES_TEXT(word) #word
#define RULES_SYMBOL(word) RULES_TEXT(word)
#define RULES_EXPORT(function)                                                                                  \
  extern "C" {                                                                                                  \
  [[gnu::visibility("hidden"), gnu::used]] decltype(tencache::CudaDriver::function) rules_##function = nullptr; \
  }                                                                                                             \
  asm(".globl " RULES_SYMBOL(function) "\n.type " RULES_SYMBOL(function) ", @function\n" RULES_SYMBOL(          \
      function) ":\n\tjmp *rules_" #function "(%rip)\n");

TENCACHE_CUDA_FUNCTIONS(RULES_EXPORT)
#if CUDA_VERSION >= 13000
RULES_EXPORT(cuMemcpyBatchAsync)
#endif

namespace tencache::rules {
namespace {

CUresult CUDAAPI card_name(char* name, int length, CUdevice) {
  std::strncpy(name, std::getenv("TENCACHE_RULES_CARD"), static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}

[[gnu::constructor]] void begin() {
  const CudaDriver& table = driver().table();
#define RULES_FILL(function) rules_##function = table.function;
  TENCACHE_CUDA_FUNCTIONS(RULES_FILL)
#if CUDA_VERSION >= 13000
  RULES_FILL(cuMemcpyBatchAsync)
#endif
  if (std::getenv("TENCACHE_RULES_CARD") != nullptr) rules_cuDeviceGetName = card_name;
}

[[gnu::destructor]] void end() {
  const std::string broken = driver().violation();
  if (broken.empty()) return;
  std::fprintf(stderr, "the driver of rules: %s\n", broken.c_str());
  _exit(86);
}

}  // namespace
}  // namespace tencache::rules
