// GPUDirect Storage: blocks of files straight into a GPU's memory and back, by libcufile.so.0, which is loaded when a
// link wants it. Declarations of our own, as in CUDA 11.4 to 13, since the header is a package of its own; tests bring
// a table of their own.
#pragma once

#include <cuda.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "executor/accelerator.h"

namespace tencache {

class CudaDevice;

struct CuFileError {
  int error = 0;  // 0: success
  CUresult cuda_error = CUDA_SUCCESS;
};
struct CuFileDescription {
  int type = 1;  // a file descriptor of Linux
  union {
    int descriptor;
    void* handle;
  };
  const void* file_system = nullptr;
};

// Members have the names of the functions.
struct CuFile {
  CuFileError (*cuFileDriverOpen)() = nullptr;
  CuFileError (*cuFileHandleRegister)(void** handle, CuFileDescription* file) = nullptr;
  void (*cuFileHandleDeregister)(void* handle) = nullptr;
  // The bytes moved, or a negative number: -1 with errno, else an error of cuFile.
  ssize_t (*cuFileRead)(void* handle, void* device, std::size_t bytes, off_t offset, off_t device_offset) = nullptr;
  ssize_t (*cuFileWrite)(void* handle, const void* device, std::size_t bytes, off_t offset,
                         off_t device_offset) = nullptr;
};

// This computer's, opened; nullptr, with the reason, where it cannot be used. Loads it at the first call.
const CuFile* cufile(std::string& reason);

// Of one link; the device outlives it.
class CudaDirectFiles final : public DirectFiles {
 public:
  CudaDirectFiles(const CuFile& library, const CudaDevice& device) : library_(library), device_(device) {}
  ~CudaDirectFiles() override;
  CudaDirectFiles(const CudaDirectFiles&) = delete;
  CudaDirectFiles& operator=(const CudaDirectFiles&) = delete;

  std::string read(int descriptor, Bytes offset, std::byte* device, Bytes bytes) override;
  std::string write(int descriptor, Bytes offset, const std::byte* device, Bytes bytes) override;

 private:
  template <typename Move>
  std::string move(int descriptor, Bytes bytes, const Move& step);

  const CuFile& library_;
  const CudaDevice& device_;
  std::map<int, void*> handles_;  // by descriptor
};

}  // namespace tencache
