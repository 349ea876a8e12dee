#include "sim/interruption.h"

#include <atomic>

namespace tencache {
namespace {

std::atomic<void (*)()> interruption_check = nullptr;

}  // namespace

void set_interruption_check(void (*check)()) { interruption_check = check; }

void interruption_point() {
  if (void (*check)() = interruption_check.load(std::memory_order_relaxed)) check();
}

}  // namespace tencache
