// All of a live program that needs a PyTorch with CUDA, behind functions that every build has: torch_cuda.cpp where
// PyTorch has CUDA, torch_cuda_missing.cpp elsewhere.
//
// PyTorch and the CUDA backend (executor/cuda) share the device's primary context. Only PyTorch's default stream is
// known here: a program that starts work on streams of its own must wait for it itself, inside the op.
#pragma once

namespace tencache::torch_cuda {

// PyTorch's allocator for GPUs is ours from here on: the runtime's memory on guarded threads (paged_storage.h), its
// own elsewhere. No effect the second time.
void install_allocator();
// Of cuBLAS, which PyTorch keeps for ever once it has used them.
void let_go_of_workspaces();
// A storage of the runtime's is about to be let go of, by the context of its DataPtr: waits for all that was started on
// streams that it was used on besides the current one (Tensor.record_stream).
void before_release(const void* context);
// Waits for PyTorch's streams: the default one, and the calling thread's where that is another. Throws Error when the
// device failed.
void synchronize();
// The calling thread's, as the driver knows it.
void* current_stream();

}  // namespace tencache::torch_cuda
