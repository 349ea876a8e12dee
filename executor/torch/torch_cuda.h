// All of live training that needs a LibTorch with CUDA, behind functions that every build has: torch_cuda.cpp where
// LibTorch has CUDA, torch_cuda_missing.cpp elsewhere, which says what to install.
//
// LibTorch and the CUDA backend (executor/cuda) share the device's primary context. Only LibTorch's default stream is
// known here: a program that starts work on streams of its own must wait for it itself, inside the op.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tencache::torch_cuda {

// Does LibTorch have CUDA?
bool available();
// Before anything else of LibTorch's CUDA. Algorithms are deterministic from here on, matrix products in full
// precision, and cuBLAS gets a workspace of fixed size (CUBLAS_WORKSPACE_CONFIG, unless it is set): same program, same
// bits. Throws Error that says what is missing.
c10::Device open();
// LibTorch's allocator for GPUs is ours from here on: the runtime's memory on guarded threads (paged_storage.h), its
// own elsewhere. No effect the second time.
void install_allocator();
// Of cuBLAS, which LibTorch keeps for ever once it has used them.
void let_go_of_workspaces();
// Waits for LibTorch's streams: the default one, and the calling thread's where that is another. Throws Error when the
// device failed.
void synchronize();

// The GPU's generator of random numbers (dropout); absent while no GPU is open.
struct RandomState {
  std::uint64_t seed = 0, offset = 0;
};
std::optional<RandomState> random_state();
void set_random_state(const RandomState& state);

}  // namespace tencache::torch_cuda
