#include "executor/cuda/cufile.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "executor/cuda/cuda_device.h"

#if __has_include(<cufile.h>)
#include <cufile.h>
#endif

namespace tencache {
namespace {

#if __has_include(<cufile.h>)
static_assert(sizeof(CuFileError) == sizeof(CUfileError_t) && sizeof(CuFileDescription) == sizeof(CUfileDescr_t));
static_assert(offsetof(CuFileDescription, descriptor) == offsetof(CUfileDescr_t, handle));
static_assert(offsetof(CuFileDescription, file_system) == offsetof(CUfileDescr_t, fs_ops));
static_assert(CU_FILE_HANDLE_TYPE_OPAQUE_FD == 1 && CU_FILE_SUCCESS == 0);
#endif

std::string load(CuFile& table) {
  void* library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libcufile.so.0 is not here";
  // Without it the library would read into host memory by itself.
  if (!std::filesystem::exists("/proc/driver/nvidia-fs/version")) return "the kernel module nvidia-fs is not loaded";
  const auto find = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!find(table.cuFileDriverOpen, "cuFileDriverOpen") || !find(table.cuFileHandleRegister, "cuFileHandleRegister") ||
      !find(table.cuFileHandleDeregister, "cuFileHandleDeregister") || !find(table.cuFileRead, "cuFileRead") ||
      !find(table.cuFileWrite, "cuFileWrite")) {
    return "libcufile.so.0 lacks functions";
  }
  const CuFileError opened = table.cuFileDriverOpen();
  return opened.error == 0 ? "" : "cuFileDriverOpen failed with error " + std::to_string(opened.error);
}

}  // namespace

const CuFile* cufile(std::string& reason) {
  static CuFile table;
  static const std::string failure = load(table);
  reason = failure;
  return failure.empty() ? &table : nullptr;
}

CudaDirectFiles::~CudaDirectFiles() {
  if (!device_.try_bind()) return;
  for (const auto& [descriptor, handle] : handles_) library_.cuFileHandleDeregister(handle);
}

template <typename Move>
std::string CudaDirectFiles::move(int descriptor, Bytes bytes, const Move& step) {
  if (!device_.try_bind()) return "the GPU's context cannot be used any more";
  auto handle = handles_.find(descriptor);
  if (handle == handles_.end()) {
    CuFileDescription description;
    description.handle = nullptr;
    description.descriptor = descriptor;
    void* made = nullptr;
    const CuFileError registered = library_.cuFileHandleRegister(&made, &description);
    if (registered.error != 0) return "cuFileHandleRegister failed with error " + std::to_string(registered.error);
    handle = handles_.emplace(descriptor, made).first;
  }
  for (Bytes done = 0; done < bytes;) {
    errno = 0;
    const ssize_t moved = step(handle->second, done);
    if (moved == -1) return std::string("cuFile: ") + (errno != 0 ? std::strerror(errno) : "an error of the system");
    if (moved < 0) return "cuFile failed with error " + std::to_string(-moved);
    if (moved == 0) return "cuFile: the file ends early";
    done += static_cast<Bytes>(moved);
  }
  return "";
}

std::string CudaDirectFiles::read(int descriptor, Bytes offset, std::byte* device, Bytes bytes) {
  return move(descriptor, bytes, [&](void* handle, Bytes done) {
    return library_.cuFileRead(handle, device, bytes - done, static_cast<off_t>(offset + done),
                               static_cast<off_t>(done));
  });
}

std::string CudaDirectFiles::write(int descriptor, Bytes offset, const std::byte* device, Bytes bytes) {
  return move(descriptor, bytes, [&](void* handle, Bytes done) {
    return library_.cuFileWrite(handle, device, bytes - done, static_cast<off_t>(offset + done),
                                static_cast<off_t>(done));
  });
}

}  // namespace tencache
