#include "executor/cuda/cuda_driver.h"

#include <dlfcn.h>

#include "core/error.h"

namespace tencache {
namespace {

#define TENCACHE_CUDA_NAME(function) #function
#define TENCACHE_CUDA_SYMBOL(function) TENCACHE_CUDA_NAME(function)

#if CUDA_VERSION >= 12080
// Before CUDA 13 it has one parameter more, the copy that failed.
CUresult(CUDAAPI* batch_before_13)(CUdeviceptr*, CUdeviceptr*, std::size_t*, std::size_t, CUmemcpyAttributes*,
                                   std::size_t*, std::size_t, std::size_t*, CUstream) = nullptr;

CUresult CUDAAPI batch(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                       CUmemcpyAttributes* attributes, std::size_t* first_of, std::size_t attribute_count,
                       CUstream stream) {
  std::size_t failed = 0;
  return batch_before_13(to, from, bytes, count, attributes, first_of, attribute_count, &failed, stream);
}
#endif

CudaDriver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays: contexts live until the program ends
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(std::string("no CUDA driver here: ") + (reason != nullptr ? reason : "libcuda.so.1 cannot be loaded") +
                "; install NVIDIA's driver, or let ordinary memory stand in for the GPU's (--device host)");
  }
  CudaDriver driver;
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function != nullptr) return;
    throw Error(std::string("the CUDA driver is too old: it has no ") + name + "; install one for CUDA 11.2 or later");
  };
#define TENCACHE_CUDA_FIND(function) find(driver.function, TENCACHE_CUDA_SYMBOL(function));
  TENCACHE_CUDA_FUNCTIONS(TENCACHE_CUDA_FIND)
#undef TENCACHE_CUDA_FIND
#if CUDA_VERSION >= 12080
  const auto look_for = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!look_for(driver.cuMemcpyBatchAsync, "cuMemcpyBatchAsync_v2") &&
      look_for(batch_before_13, "cuMemcpyBatchAsync")) {
    driver.cuMemcpyBatchAsync = batch;
  }
#endif
  return driver;
}

}  // namespace

const CudaDriver& cuda_driver() {
  static const CudaDriver driver = load();
  return driver;
}

std::string cuda_error(const CudaDriver& driver, CUresult result) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "error " + std::to_string(static_cast<int>(result));
  }
  if (driver.cuGetErrorString(result, &words) != CUDA_SUCCESS || words == nullptr) return name;
  return std::string(name) + " (" + words + ")";
}

void check_cuda(const CudaDriver& driver, CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw Error(std::string("CUDA: ") + what + ": " + cuda_error(driver, result));
}

}  // namespace tencache
