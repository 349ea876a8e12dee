#include "core/error.h"
#include "executor/torch/torch_cuda.h"

namespace tencache::torch_cuda {

bool available() { return false; }
c10::Device open() {
  throw Error(
      "this build's LibTorch has no CUDA, so that training runs on the host only: install LibTorch with CUDA "
      "(https://pytorch.org, `pip install torch` has it), configure again with "
      "-DCMAKE_PREFIX_PATH=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'), or let ordinary memory "
      "stand in for the GPU's (--device host)");
}
void install_allocator() {}
void let_go_of_workspaces() {}
void synchronize() {}
std::optional<RandomState> random_state() { return std::nullopt; }
void set_random_state(const RandomState&) {}

}  // namespace tencache::torch_cuda
