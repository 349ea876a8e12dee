#include "executor/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <span>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "executor/cuda/cuda_arena.h"
#include "executor/cuda/cuda_backend.h"
#include "executor/cuda/cuda_memory.h"
#include "executor/cuda/cuda_streams.h"
#include "executor/order_site.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

constexpr const char* what_to_do = "; see nvidia-smi, or let ordinary memory stand in for the GPU's (--device host)";

// Where starting a copy takes longer than the copy does, so that several are started as one.
constexpr Bytes small_bytes = 256 * KiB;

// A move onto itself goes in steps as wide as it is far; where those would be many and small, through a buffer.
constexpr Bytes wide_step = 4 * MiB;
constexpr Bytes few_steps = 8;
constexpr Bytes largest_buffer = 16 * MiB;

CUdeviceptr pointer(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class CudaCopyEngine final : public CopyEngine {
 public:
  // On a stream of its own, or on another's, which it waits for only when asked to.
  CudaCopyEngine(CudaDevice& device, std::optional<CUstream> stream)
      : device_(device), driver_(device.driver()), stream_(stream.value_or(nullptr)), own_(!stream) {
    device_.bind();
    if (!own_) return;
    check_cuda(driver_, driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "making a stream for copies");
  }
  ~CudaCopyEngine() override {
    if (!device_.try_bind()) return;
    if (!under_way_.empty()) TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_));
    for (const CUevent event : under_way_) driver_.cuEventDestroy(event);
    for (const CUevent event : spare_) driver_.cuEventDestroy(event);
    if (own_) driver_.cuStreamDestroy(stream_);
    if (buffer_ != 0) driver_.cuMemFree(buffer_);
  }
  CudaCopyEngine(const CudaCopyEngine&) = delete;
  CudaCopyEngine& operator=(const CudaCopyEngine&) = delete;

  void upload(std::span<const DeviceCopy> copies) override { start(copies, true); }
  void download(std::span<const DeviceCopy> copies) override { start(copies, false); }
  void move(const std::byte* from, std::byte* to, Bytes bytes) override {
    device_.bind();
    if (!own_) return check_cuda(driver_, give_move(pointer(from), pointer(to), bytes), "a copy within the GPU");
    CUresult given = CUDA_SUCCESS, marked = CUDA_SUCCESS;
    TENCACHE_ORDER_PAIR("copy, event", given = give_move(pointer(from), pointer(to), bytes), marked = mark());
    check_started(given, marked, "a copy within the GPU");
  }
  void wait(std::size_t left) override {
    device_.bind();
    TENCACHE_CHECK(own_);
    while (TENCACHE_ORDER_SITE("guard", under_way_.size() > left)) {
      const CUevent first = under_way_.front();
      under_way_.pop_front();
      spare_.push_back(first);
      check_cuda(driver_, TENCACHE_ORDER_SITE("wait", driver_.cuEventSynchronize(first)), "waiting for a copy");
    }
  }

 private:
  // Whatever fails, what was started is waited for: `wait` knows it, or it is over when this returns.
  void start(std::span<const DeviceCopy> copies, bool up) {
    TENCACHE_CHECK(!copies.empty());
    device_.bind();
    if (!own_) return check_cuda(driver_, give(copies, up), up ? "a copy to the GPU" : "a copy from the GPU");
    CUresult given = CUDA_SUCCESS, marked = CUDA_SUCCESS;
    TENCACHE_ORDER_PAIR("copy, event", given = give(copies, up), marked = mark());
    check_started(given, marked, up ? "a copy to the GPU" : "a copy from the GPU");
  }
  void check_started(CUresult given, CUresult marked, const char* what) const {
    check_cuda(driver_, given, what);
    check_cuda(driver_, marked, "an event behind a copy");
  }
  CUresult give_move(CUdeviceptr from, CUdeviceptr to, Bytes bytes) {
    const Bytes far = from < to ? to - from : from - to;
    if (far == 0) return CUDA_SUCCESS;
    const bool in_place = far >= wide_step || bytes <= few_steps * far || !make_buffer(std::min(bytes, largest_buffer));
    const Bytes width = in_place ? far : buffer_bytes_;
    // From the end at which a step overwrites only what has left.
    const bool from_the_end = TENCACHE_ORDER_SITE("guard", from < to);
    CUresult result = CUDA_SUCCESS;
    for (Bytes done = 0; done < bytes && result == CUDA_SUCCESS;) {
      const Bytes part = std::min(width, bytes - done);
      const Bytes begin = from_the_end ? bytes - done - part : done;
      result = in_place ? driver_.cuMemcpyDtoDAsync(to + begin, from + begin, part, stream_)
                        : give_through_buffer(from + begin, to + begin, part);
      done += part;
    }
    return result;
  }
  CUresult give_through_buffer(CUdeviceptr from, CUdeviceptr to, Bytes bytes) const {
    CUresult first = CUDA_SUCCESS, second = CUDA_SUCCESS;
    TENCACHE_ORDER_PAIR("copy, copy", first = driver_.cuMemcpyDtoDAsync(buffer_, from, bytes, stream_),
                        second = driver_.cuMemcpyDtoDAsync(to, buffer_, bytes, stream_));
    return first != CUDA_SUCCESS ? first : second;
  }
  // Of so many bytes at least; false if the device has no memory for it. What it was used for before may be under way.
  bool make_buffer(Bytes bytes) {
    if (buffer_bytes_ >= bytes) return true;
    if (buffer_ != 0) {
      TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_));
      driver_.cuMemFree(buffer_);
    }
    buffer_bytes_ = std::bit_ceil(bytes);
    if (driver_.cuMemAlloc(&buffer_, buffer_bytes_) == CUDA_SUCCESS) return true;
    buffer_ = 0;
    buffer_bytes_ = 0;
    return false;
  }
  // Up to the first that fails.
  CUresult give(std::span<const DeviceCopy> copies, bool up) {
    CUresult result = CUDA_SUCCESS;
    for (std::size_t first = 0; first < copies.size() && result == CUDA_SUCCESS;) {
      std::size_t end = first;
      while (end < copies.size() && copies[end].bytes < small_bytes) ++end;
      if (end - first < 2 || !batch(copies.subspan(first, end - first), up, result)) {
        end = first + 1;
        result = give_one(copies[first], up);
      }
      first = end;
    }
    return result;
  }
  CUresult give_one(const DeviceCopy& copy, bool up) const {
    const CUdeviceptr device = pointer(copy.device);
    return up ? driver_.cuMemcpyHtoDAsync(device, copy.host, copy.bytes, stream_)
              : driver_.cuMemcpyDtoHAsync(copy.host, device, copy.bytes, stream_);
  }
  // False, and nothing is started, where the driver takes none.
  bool batch([[maybe_unused]] std::span<const DeviceCopy> copies, [[maybe_unused]] bool up,
             [[maybe_unused]] CUresult& result) {
#if CUDA_VERSION >= 12080
    if (driver_.cuMemcpyBatchAsync == nullptr || !device_.batches()) return false;
    to_.clear(), from_.clear(), sizes_.clear();
    for (const DeviceCopy& copy : copies) {
      to_.push_back(pointer(up ? copy.device : copy.host));
      from_.push_back(pointer(up ? copy.host : copy.device));
      sizes_.push_back(copy.bytes);
    }
    CUmemcpyAttributes in_order = {};
    in_order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first_of = 0;
    result = driver_.cuMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), sizes_.size(), &in_order, &first_of, 1,
                                        stream_);
    return true;
#else
    return false;
#endif
  }
  CUresult mark() {
    CUevent event = nullptr;
    CUresult result = CUDA_SUCCESS;
    if (spare_.empty()) {
      // Waiting must not burn a core: several lanes wait most of the time.
      result = driver_.cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
    } else {
      event = spare_.front();
      spare_.pop_front();
    }
    if (result == CUDA_SUCCESS) {
      under_way_.push_back(event);
      result = TENCACHE_ORDER_SITE("event", driver_.cuEventRecord(event, stream_));
      if (result == CUDA_SUCCESS) return result;
    }
    TENCACHE_ORDER_SITE("wait", driver_.cuStreamSynchronize(stream_));
    return result;
  }

  CudaDevice& device_;
  const CudaDriver& driver_;
  CUstream stream_ = nullptr;
  const bool own_;
  std::deque<CUevent> under_way_, spare_;
  std::vector<CUdeviceptr> to_, from_;  // of a batch
  std::vector<std::size_t> sizes_;
  CUdeviceptr buffer_ = 0;  // of a move onto itself
  Bytes buffer_bytes_ = 0;
};

}  // namespace

CudaDevice::CudaDevice(const CudaDriver& driver, int ordinal, const CuFile* files) : driver_(driver), files_(files) {
  const auto check = [&](CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    throw Error(std::string("CUDA: ") + what + ": " + cuda_error(driver_, result) + what_to_do);
  };
  const CUresult started = driver_.cuInit(0);
  if (started == CUDA_ERROR_NO_DEVICE) throw Error(std::string("the CUDA driver finds no GPU") + what_to_do);
  check(started, "the driver does not start");
  int count = 0;
  check(driver_.cuDeviceGetCount(&count), "counting devices");
  if (count == 0) throw Error(std::string("the CUDA driver finds no GPU") + what_to_do);
  if (ordinal >= count) {
    throw Error("GPU " + std::to_string(ordinal) + " is asked for and there are " + std::to_string(count) +
                ", counted from 0");
  }
  check(driver_.cuDeviceGet(&device_, ordinal), "opening the device");
  int can_map = 0;
  check(driver_.cuDeviceGetAttribute(&can_map, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device_),
        "asking the device what it can do");
  if (can_map == 0) {
    throw Error("the GPU or its driver cannot map memory into reserved addresses (virtual memory management)");
  }
  int direct = 0;
  const auto asked = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
  direct_memory_ = driver_.cuDeviceGetAttribute(&direct, asked, device_) == CUDA_SUCCESS && direct != 0;
  check(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "making a context");
  const CUmemAllocationProp properties = allocation_properties();
  std::size_t granularity = 0;
  try {
    bind();
    check(driver_.cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          "asking for the size of its pages");
  } catch (...) {
    driver_.cuDevicePrimaryCtxRelease(device_);
    throw;
  }
  granularity_ = std::bit_ceil(granularity);
}

CudaDevice::~CudaDevice() { driver_.cuDevicePrimaryCtxRelease(device_); }

void CudaDevice::bind() const {
  check_cuda(driver_, TENCACHE_ORDER_SITE("guard", driver_.cuCtxSetCurrent(context_)), "making the context current");
}

bool CudaDevice::try_bind() const noexcept {
  return TENCACHE_ORDER_SITE("guard", driver_.cuCtxSetCurrent(context_)) == CUDA_SUCCESS;
}

CUmemAllocationProp CudaDevice::allocation_properties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device_;
  properties.allocFlags.gpuDirectRDMACapable = direct_memory_ ? 1 : 0;
  return properties;
}

CUmemAccessDesc CudaDevice::access() const {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

void CudaDevice::check_free(const std::string& tier, Bytes capacity) const {
  const Bytes free = free_bytes();
  if (capacity <= free) return;
  throw Error("tier '" + tier + "': " + format_bytes(capacity) + " are asked for and the GPU has " +
              format_bytes(free) + " free; lower the tier's capacity (--gpu-memory)");
}

void CudaDevice::used_up(const std::string& tier, Bytes capacity) const {
  throw Error("tier '" + tier + "': the GPU's memory is used up (" + format_bytes(free_bytes()) +
              " free; is another program using it?); lower the tier's capacity of " + format_bytes(capacity) +
              " (--gpu-memory)");
}

std::string CudaDevice::describe() const {
  std::array<char, 128> name = {};
  std::size_t total = 0;
  int version = 0;
  check_cuda(driver_, driver_.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device_), "its name");
  check_cuda(driver_, driver_.cuDeviceTotalMem(&total, device_), "the size of its memory");
  check_cuda(driver_, driver_.cuDriverGetVersion(&version), "the driver's version");
  return std::string(name.data()) + ", " + format_bytes(total) + ", driver for CUDA " + std::to_string(version / 1000) +
         "." + std::to_string(version % 1000 / 10);
}

Bytes CudaDevice::free_bytes() const {
  bind();
  std::size_t free = 0, total = 0;
  check_cuda(driver_, driver_.cuMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

std::unique_ptr<TierMemory> CudaDevice::memory(const std::string& name, Bytes capacity, Bytes granularity,
                                               bool addressed) {
  return std::make_unique<CudaMemory>(*this, name, capacity, granularity, addressed);
}

std::unique_ptr<DeviceRange> CudaDevice::range(const std::string& tier, Bytes capacity) {
  return std::make_unique<CudaArena>(*this, tier, capacity);
}

bool CudaDevice::pin(std::byte* host, Bytes bytes, std::string& reason) {
  bind();
  const CUresult result = driver_.cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) return true;
  pin_refused_ = true;
  reason = "page-locking " + format_bytes(bytes) + ": " + cuda_error(driver_, result) + " (see ulimit -l)";
  return false;
}

void CudaDevice::unpin(std::byte* host) noexcept {
  if (try_bind()) driver_.cuMemHostUnregister(host);
}

std::unique_ptr<CopyEngine> make_copy_engine(CudaDevice& device, std::optional<CUstream> stream) {
  return std::make_unique<CudaCopyEngine>(device, stream);
}

std::unique_ptr<CopyEngine> CudaDevice::copy_engine() { return make_copy_engine(*this, std::nullopt); }
std::shared_ptr<DeviceStreams> CudaDevice::streams() { return std::make_shared<CudaStreams>(*this); }

std::unique_ptr<DirectFiles> CudaDevice::direct_files(std::string& reason) {
  bind();
  const CuFile* files = files_ != nullptr ? files_ : cufile(reason);
  if (files == nullptr) return nullptr;
  if (!direct_memory_) {
    reason = "the GPU's mapped memory cannot be reached by other devices";
    return nullptr;
  }
  return std::make_unique<CudaDirectFiles>(*files, *this);
}

std::unique_ptr<ReplayKernels> CudaDevice::replay_kernels() { return make_replay_kernels(*this); }

std::shared_ptr<Accelerator> open_cuda(int ordinal) { return std::make_shared<CudaDevice>(cuda_driver(), ordinal); }

}  // namespace tencache
