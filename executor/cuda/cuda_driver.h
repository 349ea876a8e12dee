// The functions of the CUDA driver that are used here, in a table: libcuda.so.1 is loaded when a device is asked for,
// so that the program starts on every computer; tests bring a table of their own.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#define TENCACHE_CUDA_FUNCTIONS(X) \
  X(cuInit)                        \
  X(cuDriverGetVersion)            \
  X(cuGetErrorName)                \
  X(cuGetErrorString)              \
  X(cuDeviceGetCount)              \
  X(cuDeviceGet)                   \
  X(cuDeviceGetName)               \
  X(cuDeviceGetAttribute)          \
  X(cuDeviceTotalMem)              \
  X(cuDevicePrimaryCtxRetain)      \
  X(cuDevicePrimaryCtxRelease)     \
  X(cuCtxSetCurrent)               \
  X(cuMemGetInfo)                  \
  X(cuMemGetAllocationGranularity) \
  X(cuMemAddressReserve)           \
  X(cuMemAddressFree)              \
  X(cuMemCreate)                   \
  X(cuMemRelease)                  \
  X(cuMemMap)                      \
  X(cuMemUnmap)                    \
  X(cuMemSetAccess)                \
  X(cuMemHostRegister)             \
  X(cuMemHostUnregister)           \
  X(cuMemAlloc)                    \
  X(cuMemFree)                     \
  X(cuMemcpyHtoDAsync)             \
  X(cuMemcpyDtoHAsync)             \
  X(cuMemcpyDtoDAsync)             \
  X(cuMemsetD8Async)               \
  X(cuStreamCreate)                \
  X(cuStreamDestroy)               \
  X(cuStreamSynchronize)           \
  X(cuEventCreate)                 \
  X(cuEventDestroy)                \
  X(cuEventRecord)                 \
  X(cuEventSynchronize)            \
  X(cuEventQuery)                  \
  X(cuEventElapsedTime)            \
  X(cuStreamWaitEvent)             \
  X(cuModuleLoadData)              \
  X(cuModuleUnload)                \
  X(cuModuleGetFunction)           \
  X(cuLaunchKernel)

namespace tencache {

// Members have the names of the functions; cuda.h renames some of them (cuMemAlloc is cuMemAlloc_v2), here as there.
struct CudaDriver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): no declarator could have them
#define TENCACHE_CUDA_MEMBER(function) decltype(&::function) function = nullptr;
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_CUDA_MEMBER)
#undef TENCACHE_CUDA_MEMBER
#if CUDA_VERSION >= 12080
  // Copies in any order, in that of CUDA 13 and later; null: the driver is older than CUDA 12.8.
  CUresult(CUDAAPI* cuMemcpyBatchAsync)(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                                        CUmemcpyAttributes* attributes, std::size_t* first_of,
                                        std::size_t attribute_count, CUstream stream) = nullptr;
#endif
};

// This computer's. Loads it at the first call; throws Error that says what is missing.
const CudaDriver& cuda_driver();

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
std::string cuda_error(const CudaDriver& driver, CUresult result);
// Throws Error unless the result is success: "CUDA: mapping 2.0 MiB: CUDA_ERROR_…".
void check_cuda(const CudaDriver& driver, CUresult result, const char* what);

}  // namespace tencache
