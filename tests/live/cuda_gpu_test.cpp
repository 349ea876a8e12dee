// The accelerator under test is this computer's GPU.
#include "core/error.h"
#include "executor/cuda/cuda_backend.h"
#include "tests/live/cuda_machine_cases.h"

namespace tencache {

std::shared_ptr<Accelerator> test_accelerator(std::string& why_not) {
  try {
    return open_cuda();
  } catch (const Error& error) {
    why_not = error.what();
    return nullptr;
  }
}

std::string test_accelerator_leftovers() { return ""; }

}  // namespace tencache
