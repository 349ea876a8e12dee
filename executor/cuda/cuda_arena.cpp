#include "executor/cuda/cuda_arena.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/error.h"
#include "executor/cuda/cuda_device.h"
#include "executor/order_site.h"

namespace tencache {
namespace {

constexpr Bytes alignment = 2 * MiB;
constexpr Bytes largest_piece = 256 * MiB;
constexpr Bytes parts = 16;  // of a small range

}  // namespace

CudaArena::CudaArena(CudaDevice& device, std::string name, Bytes capacity)
    : device_(device),
      driver_(device.driver()),
      name_(std::move(name)),
      bytes_(round_up(capacity, device.granularity())),
      piece_bytes_(round_up(std::clamp<Bytes>(bytes_ / parts, 1, largest_piece), device.granularity())),
      pieces_((bytes_ + piece_bytes_ - 1) / piece_bytes_) {
  device.check_free(name_, capacity);
  if (bytes_ == 0) return;
  device_.bind();
  check_cuda(driver_,
             driver_.cuMemAddressReserve(&address_, 2 * bytes_, std::max(alignment, device.granularity()), 0, 0),
             "reserving addresses");
}

CudaArena::~CudaArena() {
  if (bytes_ == 0 || !device_.try_bind()) return;
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    if (pieces_[piece] == 0) continue;
    // After a fault of a kernel nothing works any more; the driver frees all with the process.
    const CUdeviceptr at = address_ + piece * piece_bytes_;
    if (TENCACHE_ORDER_SITE("table", driver_.cuMemUnmap(at, bytes_of(piece))) != CUDA_SUCCESS) return;
    TENCACHE_ORDER_SITE("table", driver_.cuMemRelease(pieces_[piece]));
  }
  driver_.cuMemAddressFree(address_, 2 * bytes_);
}

Bytes CudaArena::bytes_of(std::size_t piece) const { return std::min(piece_bytes_, bytes_ - piece * piece_bytes_); }

void CudaArena::cover(Bytes offset, Bytes bytes) {
  if (bytes == 0) return;
  TENCACHE_CHECK(offset + bytes <= bytes_);
  for (std::size_t piece = offset / piece_bytes_; piece <= (offset + bytes - 1) / piece_bytes_; ++piece) {
    if (pieces_[piece] == 0) map(piece);
  }
}

void CudaArena::map(std::size_t piece) {
  device_.bind();
  const CUdeviceptr at = address_ + piece * piece_bytes_;
  const Bytes bytes = bytes_of(piece);
  const CUmemAllocationProp properties = device_.allocation_properties();
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) device_.used_up(name_, bytes_);
  check_cuda(driver_, result, "taking memory");
  result = driver_.cuMemMap(at, bytes, 0, handle, 0);
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access = device_.access();
    result = driver_.cuMemSetAccess(at, bytes, &access, 1);
    if (result != CUDA_SUCCESS) driver_.cuMemUnmap(at, bytes);
  }
  if (result != CUDA_SUCCESS) driver_.cuMemRelease(handle);
  check_cuda(driver_, result, "mapping memory");
  pieces_[piece] = handle;
}

}  // namespace tencache
