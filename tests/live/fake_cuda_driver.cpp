#include "tests/live/fake_cuda_driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "tests/live/fake_cuda_kernels.h"

namespace tencache {
namespace {

FakeCudaDriver* active = nullptr;
CUcontext const the_context = reinterpret_cast<CUcontext>(0xc0de);
thread_local CUcontext current_context = nullptr;

}  // namespace

// The table's functions.
struct FakeCudaCalls {
  using Lock = std::unique_lock<std::mutex>;
  static FakeCudaDriver& fake() { return *active; }

#define FAKE_ENTER(function, needs_context) \
  Lock lock(fake().mutex_);                 \
  if (const CUresult failed = fake().enter(function, needs_context); failed != CUDA_SUCCESS) return failed

  static CUresult CUDAAPI init(unsigned) {
    FAKE_ENTER("cuInit", false);
    return fake().memory_.options.devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
  }
  static CUresult CUDAAPI driver_version(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI error_name(CUresult result, const char** name) {
    *name = result == CUDA_ERROR_OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == CUDA_ERROR_LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
                                                 : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI error_string(CUresult, const char** words) {
    *words = "words of the fake driver";
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI device_count(int* count) {
    *count = fake().memory_.options.devices;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI device(CUdevice* device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI device_name(char* name, int length, CUdevice) {
    std::strncpy(name, "FakeCudaDriver", static_cast<std::size_t>(length));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
    const FakeCudaOptions& can = fake().memory_.options;
    *value = (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED && can.can_map) ||
             (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED && can.direct_memory);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI total_memory(std::size_t* bytes, CUdevice) {
    *bytes = fake().memory_.options.memory;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI retain(CUcontext* context, CUdevice) {
    FAKE_ENTER("cuDevicePrimaryCtxRetain", false);
    *context = the_context;
    fake().contexts_++;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI release(CUdevice) {
    FAKE_ENTER("cuDevicePrimaryCtxRelease", false);
    fake().contexts_--;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI set_current(CUcontext context) {
    current_context = context;
    return CUDA_SUCCESS;
  }

  // ---- Memory.
  static CUresult CUDAAPI memory_info(std::size_t* free, std::size_t* total) {
    FAKE_ENTER("cuMemGetInfo", true);
    *free = fake().memory_.options.memory - fake().memory_.used;
    *total = fake().memory_.options.memory;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI granularity(std::size_t* bytes, const CUmemAllocationProp*,
                                      CUmemAllocationGranularity_flags) {
    FAKE_ENTER("cuMemGetAllocationGranularity", true);
    *bytes = fake().memory_.options.granularity;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI reserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                                  unsigned long long) {
    FAKE_ENTER("cuMemAddressReserve", true);
    if (!fake().memory_.whole(bytes)) {
      return fake().refuse("cuMemAddressReserve", "a size that is no multiple", CUDA_ERROR_INVALID_VALUE);
    }
    void* region = ::mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const auto begin = reinterpret_cast<CUdeviceptr>(region);
    *address = (begin + alignment - 1) / alignment * alignment;
    if (*address != begin) ::munmap(region, *address - begin);
    if (const CUdeviceptr end = *address + bytes; end != begin + bytes + alignment) {
      ::munmap(reinterpret_cast<void*>(end), begin + bytes + alignment - end);
    }
    fake().memory_.reservations[*address] = bytes;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI free_addresses(CUdeviceptr address, std::size_t bytes) {
    FAKE_ENTER("cuMemAddressFree", true);
    const auto found = fake().memory_.reservations.find(address);
    const auto mapped = fake().memory_.mappings.lower_bound(address);
    if (found == fake().memory_.reservations.end() || found->second != bytes ||
        (mapped != fake().memory_.mappings.end() && mapped->first < address + bytes)) {
      return fake().refuse("cuMemAddressFree", "not what was reserved, or mapped", CUDA_ERROR_INVALID_VALUE);
    }
    ::munmap(reinterpret_cast<void*>(address), bytes);
    fake().memory_.reservations.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                                 unsigned long long) {
    FAKE_ENTER("cuMemCreate", true);
    if (!fake().memory_.whole(bytes)) {
      return fake().refuse("cuMemCreate", "a size that is no multiple", CUDA_ERROR_INVALID_VALUE);
    }
    if (!fake().memory_.can_hold(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    FakeCudaMemory::Handle made;
    made.bytes = bytes;
    made.memory = ::memfd_create("fake CUDA memory", MFD_CLOEXEC);
    TENCACHE_CHECK(made.memory >= 0 && ::ftruncate(made.memory, static_cast<off_t>(bytes)) == 0);
    *handle = fake().next_++;
    fake().memory_.handles[*handle] = made;
    fake().memory_.used += bytes;
    fake().counts_.creations++;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI release_handle(CUmemGenericAllocationHandle handle) {
    FAKE_ENTER("cuMemRelease", true);
    const auto found = fake().memory_.handles.find(handle);
    if (found == fake().memory_.handles.end() || found->second.released) {
      return fake().refuse("cuMemRelease", "no such memory", CUDA_ERROR_INVALID_VALUE);
    }
    found->second.released = true;
    fake().memory_.forget(handle);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI map(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long) {
    FAKE_ENTER("cuMemMap", true);
    FakeCudaDriver& of = fake();
    const auto found = of.memory_.handles.find(handle);
    if (found == of.memory_.handles.end() || found->second.mapped || found->second.bytes != bytes || offset != 0) {
      return of.refuse("cuMemMap", "memory of another size, unknown or mapped", CUDA_ERROR_INVALID_VALUE);
    }
    auto reserved = of.memory_.reservations.upper_bound(address);
    if (reserved == of.memory_.reservations.begin() ||
        (--reserved, address + bytes > reserved->first + reserved->second)) {
      return of.refuse("cuMemMap", "addresses that are not reserved", CUDA_ERROR_INVALID_VALUE);
    }
    const auto next = of.memory_.mappings.lower_bound(address);
    if ((next != of.memory_.mappings.end() && next->first < address + bytes) ||
        (next != of.memory_.mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address)) {
      return of.refuse("cuMemMap", "addresses that are mapped", CUDA_ERROR_INVALID_VALUE);
    }
    found->second.mapped = true;
    of.memory_.mappings[address] = {bytes, handle, false};
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                                     std::size_t) {
    FAKE_ENTER("cuMemSetAccess", true);
    const auto found = fake().memory_.mappings.find(address);
    if (found == fake().memory_.mappings.end() || found->second.bytes != bytes ||
        access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return fake().refuse("cuMemSetAccess", "not what was mapped", CUDA_ERROR_INVALID_VALUE);
    }
    void* mapped = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                          fake().memory_.handles[found->second.handle].memory, 0);
    TENCACHE_CHECK(mapped != MAP_FAILED);
    found->second.accessible = true;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI unmap(CUdeviceptr address, std::size_t bytes) {
    FAKE_ENTER("cuMemUnmap", true);
    FakeCudaDriver& of = fake();
    const auto found = of.memory_.mappings.find(address);
    if (found == of.memory_.mappings.end() || found->second.bytes != bytes) {
      return of.refuse("cuMemUnmap", "not what was mapped", CUDA_ERROR_INVALID_VALUE);
    }
    if (of.busy({address, bytes})) return of.refuse("cuMemUnmap", "memory in use", CUDA_ERROR_INVALID_VALUE);
    void* gone = ::mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    TENCACHE_CHECK(gone != MAP_FAILED);
    const CUmemGenericAllocationHandle handle = found->second.handle;
    of.memory_.mappings.erase(found);
    of.memory_.handles[handle].mapped = false;
    of.memory_.forget(handle);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI allocate(CUdeviceptr* address, std::size_t bytes) {
    FAKE_ENTER("cuMemAlloc", true);
    if (!fake().memory_.can_hold(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    auto memory = std::make_unique<std::uint64_t[]>((bytes + 7) / 8);
    *address = reinterpret_cast<CUdeviceptr>(memory.get());
    fake().memory_.allocations[*address] = {bytes, std::move(memory)};
    fake().memory_.used += bytes;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI free_allocation(CUdeviceptr address) {
    FAKE_ENTER("cuMemFree", true);
    const auto found = fake().memory_.allocations.find(address);
    if (found == fake().memory_.allocations.end() || fake().busy({address, found->second.first})) {
      return fake().refuse("cuMemFree", "unknown, or in use", CUDA_ERROR_INVALID_VALUE);
    }
    fake().memory_.used -= found->second.first;
    fake().memory_.allocations.erase(found);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI pin(void* host, std::size_t bytes, unsigned) {
    FAKE_ENTER("cuMemHostRegister", true);
    fake().memory_.pinned[static_cast<std::byte*>(host)] = bytes;
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI unpin(void* host) {
    FAKE_ENTER("cuMemHostUnregister", true);
    if (fake().memory_.pinned.erase(static_cast<std::byte*>(host)) == 1) return CUDA_SUCCESS;
    return fake().refuse("cuMemHostUnregister", "not pinned", CUDA_ERROR_INVALID_VALUE);
  }

  // ---- Work.
  static CUresult CUDAAPI upload(CUdeviceptr device, const void* host, std::size_t bytes, CUstream stream) {
    FAKE_ENTER("cuMemcpyHtoDAsync", true);
    fake().counts_.uploads++;
    if (!fake().memory_.is_pinned(host, bytes)) fake().counts_.unpinned_copies++;
    return fake().push("cuMemcpyHtoDAsync", stream,
                       {{{device, bytes}}, [=] { std::memcpy(reinterpret_cast<void*>(device), host, bytes); }});
  }
  static CUresult CUDAAPI download(void* host, CUdeviceptr device, std::size_t bytes, CUstream stream) {
    FAKE_ENTER("cuMemcpyDtoHAsync", true);
    fake().counts_.downloads++;
    if (!fake().memory_.is_pinned(host, bytes)) fake().counts_.unpinned_copies++;
    return fake().push("cuMemcpyDtoHAsync", stream,
                       {{{device, bytes}}, [=] { std::memcpy(host, reinterpret_cast<const void*>(device), bytes); }});
  }
  static CUresult CUDAAPI fill(CUdeviceptr device, unsigned char value, std::size_t bytes, CUstream stream) {
    FAKE_ENTER("cuMemsetD8Async", true);
    return fake().push("cuMemsetD8Async", stream,
                       {{{device, bytes}}, [=] { std::memset(reinterpret_cast<void*>(device), value, bytes); }});
  }
  static CUresult CUDAAPI create_stream(CUstream* stream, unsigned) {
    FAKE_ENTER("cuStreamCreate", true);
    *stream = reinterpret_cast<CUstream>(fake().next_++);
    auto made = std::make_unique<FakeCudaDriver::Stream>();
    made->thread = std::thread([of = &fake(), at = made.get()] { of->serve(*at); });
    fake().streams_[*stream] = std::move(made);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy_stream(CUstream stream) {
    std::unique_ptr<FakeCudaDriver::Stream> gone;
    {
      FAKE_ENTER("cuStreamDestroy", true);
      const auto found = fake().streams_.find(stream);
      if (found == fake().streams_.end()) {
        return fake().refuse("cuStreamDestroy", "unknown", CUDA_ERROR_INVALID_HANDLE);
      }
      gone = std::move(found->second);
      fake().streams_.erase(found);
      gone->closing = true;
      fake().changed_.notify_all();
    }
    gone->thread.join();
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI synchronize_stream(CUstream stream) {
    FAKE_ENTER("cuStreamSynchronize", true);
    const auto found = fake().streams_.find(stream);
    if (found == fake().streams_.end()) return CUDA_ERROR_INVALID_HANDLE;
    fake().changed_.wait(lock, [at = found->second.get()] { return at->jobs.empty(); });
    return fake().broken_;
  }
  static CUresult CUDAAPI create_event(CUevent* event, unsigned) {
    FAKE_ENTER("cuEventCreate", true);
    *event = reinterpret_cast<CUevent>(fake().next_++);
    fake().events_[*event] = {};
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI destroy_event(CUevent event) {
    FAKE_ENTER("cuEventDestroy", true);
    if (fake().events_.erase(event) == 1) return CUDA_SUCCESS;
    return fake().refuse("cuEventDestroy", "unknown", CUDA_ERROR_INVALID_HANDLE);
  }
  static CUresult CUDAAPI record_event(CUevent event, CUstream stream) {
    FAKE_ENTER("cuEventRecord", true);
    const auto found = fake().events_.find(event);
    if (found == fake().events_.end()) return fake().refuse("cuEventRecord", "unknown", CUDA_ERROR_INVALID_HANDLE);
    const std::uint64_t number = ++found->second.recorded;
    return fake().push("cuEventRecord", stream, {{}, [=, of = &fake()] {
                                                   const std::lock_guard reached(of->mutex_);
                                                   if (const auto at = of->events_.find(event); at != of->events_.end())
                                                     at->second.reached = number;
                                                   of->changed_.notify_all();
                                                 }});
  }
  static CUresult CUDAAPI synchronize_event(CUevent event) {
    FAKE_ENTER("cuEventSynchronize", true);
    const auto found = fake().events_.find(event);
    if (found == fake().events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    fake().changed_.wait(
        lock, [at = &found->second] { return fake().broken_ != CUDA_SUCCESS || at->reached == at->recorded; });
    return fake().broken_;
  }

  // ---- Kernels: looked for in the very PTX that was built.
  static CUresult CUDAAPI load_module(CUmodule* module, const void* image) {
    FAKE_ENTER("cuModuleLoadData", true);
    *module = reinterpret_cast<CUmodule>(fake().next_++);
    fake().modules_[*module] = static_cast<const char*>(image);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI unload_module(CUmodule module) {
    FAKE_ENTER("cuModuleUnload", true);
    fake().modules_.erase(module);
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI find_function(CUfunction* function, CUmodule module, const char* name) {
    FAKE_ENTER("cuModuleGetFunction", true);
    static const auto* const names = new std::vector<std::string>{"tencache_replay_begin", "tencache_replay_write",
                                                                  "tencache_replay_check", "tencache_replay_compute"};
    const std::string entry = std::string(".entry ") + name + "(";
    if (fake().modules_[module].find(entry) == std::string::npos) return CUDA_ERROR_NOT_FOUND;
    const auto known = std::find(names->begin(), names->end(), name);
    if (known == names->end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(const_cast<std::string*>(&*known));
    return CUDA_SUCCESS;
  }
  static CUresult CUDAAPI launch(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, CUstream stream, void** parameters, void**) {
    FAKE_ENTER("cuLaunchKernel", true);
    fake().counts_.kernels++;
    FakeCudaDriver::Job job;
    job.run = fake_kernel_job(*reinterpret_cast<const std::string*>(function), parameters,
                              [&job](CUdeviceptr begin, Bytes bytes) {
                                job.touches.push_back({begin, bytes});
                              });
    return fake().push("cuLaunchKernel", stream, std::move(job));
  }
#undef FAKE_ENTER
};

bool FakeCudaMemory::accessible(FakeCudaRange range) const {
  const auto allocated = allocations.upper_bound(range.begin);
  if (allocated != allocations.begin()) {
    const auto& [begin, memory] = *std::prev(allocated);
    if (range.begin + range.bytes <= begin + memory.first) return true;
  }
  auto at = mappings.upper_bound(range.begin);
  if (at == mappings.begin()) return range.bytes == 0;
  --at;
  CUdeviceptr reached = range.begin;
  for (; at != mappings.end() && at->first <= reached && at->second.accessible; ++at) {
    if (at->first + at->second.bytes <= reached) break;
    reached = at->first + at->second.bytes;
    if (reached >= range.begin + range.bytes) return true;
  }
  return range.bytes == 0;
}

bool FakeCudaMemory::is_pinned(const void* host, Bytes bytes) const {
  const auto* begin = static_cast<const std::byte*>(host);
  const auto at = pinned.upper_bound(begin);
  return at != pinned.begin() && begin + bytes <= std::prev(at)->first + std::prev(at)->second;
}

void FakeCudaMemory::forget(CUmemGenericAllocationHandle handle) {
  const auto found = handles.find(handle);
  if (found->second.mapped || !found->second.released) return;
  ::close(found->second.memory);
  used -= found->second.bytes;
  handles.erase(found);
}

void FakeCudaMemory::count(FakeCudaCounts& counts) const {
  counts.handles = handles.size();
  counts.mappings = mappings.size();
  counts.reservations = reservations.size();
  counts.pinned = pinned.size();
  counts.allocations = allocations.size();
  counts.memory = used;
}

void FakeCudaMemory::free_all() {
  for (const auto& [address, mapping] : mappings) ::munmap(reinterpret_cast<void*>(address), mapping.bytes);
  for (const auto& [address, bytes] : reservations) ::munmap(reinterpret_cast<void*>(address), bytes);
  for (const auto& [number, handle] : handles) ::close(handle.memory);
}

CUresult FakeCudaFailures::next(const std::string& function) {
  const auto found = failures_.find(function);
  if (found == failures_.end() || found->second.empty()) return CUDA_SUCCESS;
  const Failure next = found->second.front();
  if (found->second.front().calls-- != 0) return CUDA_SUCCESS;
  found->second.pop_front();
  return next.result;
}

bool FakeCudaDriver::Stream::touches(FakeCudaRange range) const {
  for (const Job& job : jobs) {
    for (const FakeCudaRange& touched : job.touches) {
      if (touched.begin < range.begin + range.bytes && range.begin < touched.begin + touched.bytes) return true;
    }
  }
  return false;
}

bool FakeCudaDriver::busy(FakeCudaRange range) const {
  return std::ranges::any_of(streams_, [&](const auto& stream) { return stream.second->touches(range); });
}

FakeCudaDriver::FakeCudaDriver(FakeCudaOptions options) : memory_{.options = options} {
  TENCACHE_CHECK(active == nullptr);
  active = this;
  using Calls = FakeCudaCalls;
  table_.cuInit = Calls::init;
  table_.cuDriverGetVersion = Calls::driver_version;
  table_.cuGetErrorName = Calls::error_name;
  table_.cuGetErrorString = Calls::error_string;
  table_.cuDeviceGetCount = Calls::device_count;
  table_.cuDeviceGet = Calls::device;
  table_.cuDeviceGetName = Calls::device_name;
  table_.cuDeviceGetAttribute = Calls::device_attribute;
  table_.cuDeviceTotalMem = Calls::total_memory;
  table_.cuDevicePrimaryCtxRetain = Calls::retain;
  table_.cuDevicePrimaryCtxRelease = Calls::release;
  table_.cuCtxSetCurrent = Calls::set_current;
  table_.cuMemGetInfo = Calls::memory_info;
  table_.cuMemGetAllocationGranularity = Calls::granularity;
  table_.cuMemAddressReserve = Calls::reserve;
  table_.cuMemAddressFree = Calls::free_addresses;
  table_.cuMemCreate = Calls::create;
  table_.cuMemRelease = Calls::release_handle;
  table_.cuMemMap = Calls::map;
  table_.cuMemUnmap = Calls::unmap;
  table_.cuMemSetAccess = Calls::set_access;
  table_.cuMemHostRegister = Calls::pin;
  table_.cuMemHostUnregister = Calls::unpin;
  table_.cuMemAlloc = Calls::allocate;
  table_.cuMemFree = Calls::free_allocation;
  table_.cuMemcpyHtoDAsync = Calls::upload;
  table_.cuMemcpyDtoHAsync = Calls::download;
  table_.cuMemsetD8Async = Calls::fill;
  table_.cuStreamCreate = Calls::create_stream;
  table_.cuStreamDestroy = Calls::destroy_stream;
  table_.cuStreamSynchronize = Calls::synchronize_stream;
  table_.cuEventCreate = Calls::create_event;
  table_.cuEventDestroy = Calls::destroy_event;
  table_.cuEventRecord = Calls::record_event;
  table_.cuEventSynchronize = Calls::synchronize_event;
  table_.cuModuleLoadData = Calls::load_module;
  table_.cuModuleUnload = Calls::unload_module;
  table_.cuModuleGetFunction = Calls::find_function;
  table_.cuLaunchKernel = Calls::launch;
}

FakeCudaDriver::~FakeCudaDriver() {
  go_on();
  for (auto& [stream, at] : streams_) {
    {
      const std::lock_guard lock(mutex_);
      at->closing = true;
      changed_.notify_all();
    }
    at->thread.join();
  }
  memory_.free_all();
  active = nullptr;
}

CUresult FakeCudaDriver::enter(const char* function, bool needs_context) {
  if (needs_context && current_context != the_context) {
    return refuse(function, "without a context", CUDA_ERROR_INVALID_CONTEXT);
  }
  if (needs_context && broken_ != CUDA_SUCCESS) return broken_;
  const CUresult result = failures_.next(function);
  if (result == CUDA_ERROR_LAUNCH_FAILED) {
    broken_ = result;
    for (const auto& [stream, at] : streams_) at->drop_waiting();
    Lock lock(mutex_, std::adopt_lock);  // our caller's
    changed_.notify_all();
    changed_.wait(lock, [this] {
      return std::ranges::none_of(streams_, [](const auto& stream) { return stream.second->running; });
    });
    lock.release();
  }
  return result;
}

CUresult FakeCudaDriver::refuse(const char* function, const std::string& what, CUresult result) {
  if (misuse_.empty()) misuse_ = std::string(function) + ": " + what;
  return result;
}

CUresult FakeCudaDriver::push(const char* function, CUstream stream, Job job) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return refuse(function, "unknown stream", CUDA_ERROR_INVALID_HANDLE);
  for (const FakeCudaRange& range : job.touches) {
    if (!memory_.accessible(range)) return refuse(function, "memory that is not mapped", CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  found->second->jobs.push_back(std::move(job));
  changed_.notify_all();
  return CUDA_SUCCESS;
}

void FakeCudaDriver::serve(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stream.jobs.empty() ? stream.closing : !held_; });
    if (stream.jobs.empty()) return;
    stream.running = true;
    const std::function<void()>& run = stream.jobs.front().run;  // stays where it is: the queue grows behind it
    lock.unlock();
    run();
    lock.lock();
    stream.running = false;
    stream.jobs.pop_front();
    changed_.notify_all();
  }
}

void FakeCudaDriver::fail(const std::string& function, CUresult result, std::uint64_t calls) {
  const std::lock_guard lock(mutex_);
  failures_.add(function, result, calls);
}

void FakeCudaDriver::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void FakeCudaDriver::go_on() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void FakeCudaDriver::wait_for_jobs(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    std::size_t waiting = 0;
    for (const auto& [stream, at] : streams_) waiting += at->jobs.size();
    return waiting >= count;
  });
}

bool FakeCudaDriver::context_is_current() { return current_context == the_context; }

std::string FakeCudaDriver::misuse() const {
  const std::lock_guard lock(mutex_);
  return misuse_;
}

FakeCudaDriver::Counts FakeCudaDriver::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  memory_.count(counts);
  counts.streams = streams_.size();
  counts.events = events_.size();
  counts.modules = modules_.size();
  counts.contexts = contexts_;
  return counts;
}

}  // namespace tencache
