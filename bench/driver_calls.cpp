#include "bench/driver_calls.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "executor/clock.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

constexpr Nanoseconds kernel_ns = 2'000'000;

// What a call took, each time.
class Times {
 public:
  void add(const char* call, Bytes bytes, double seconds) { of_[{call, bytes}].push_back(seconds); }
  void finish(bool beside_kernel, std::vector<CallTime>& out) {
    for (auto& [key, seconds] : of_) {
      out.push_back({key.first, key.second, beside_kernel, measured_median(std::move(seconds))});
    }
  }

 private:
  std::map<std::pair<std::string, Bytes>, std::vector<double>> of_;
};

class Calls {
 public:
  explicit Calls(CudaDevice& device) : device_(device), driver_(device.driver()) {
    device_.bind();
    check(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    check(driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
    check(driver_.cuEventCreate(&timed_event_, CU_EVENT_DEFAULT));
  }
  ~Calls() {
    driver_.cuEventDestroy(timed_event_);
    driver_.cuEventDestroy(event_);
    driver_.cuStreamDestroy(stream_);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // A piece of memory from nothing to nothing.
  void map(Bytes bytes, Times& times) {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = device_.allocation_properties();
    const CUmemAccessDesc access = device_.access();
    time("cuMemAddressReserve", bytes, times, [&] { return driver_.cuMemAddressReserve(&address, bytes, 0, 0, 0); });
    time("cuMemCreate", bytes, times, [&] { return driver_.cuMemCreate(&handle, bytes, &properties, 0); });
    time("cuMemMap", bytes, times, [&] { return driver_.cuMemMap(address, bytes, 0, handle, 0); });
    time("cuMemSetAccess", bytes, times, [&] { return driver_.cuMemSetAccess(address, bytes, &access, 1); });
    time("cuMemUnmap", bytes, times, [&] { return driver_.cuMemUnmap(address, bytes); });
    time("cuMemRelease", bytes, times, [&] { return driver_.cuMemRelease(handle); });
    time("cuMemAddressFree", bytes, times, [&] { return driver_.cuMemAddressFree(address, bytes); });
  }
  // Page-locks memory whose pages exist.
  void lock(Bytes bytes, Times& times) {
    const AlignedBuffer host = aligned_buffer(bytes, std::byte{1});
    time("cuMemHostRegister", bytes, times, [&] { return driver_.cuMemHostRegister(host.get(), bytes, 0); });
    time("cuMemHostUnregister", bytes, times, [&] { return driver_.cuMemHostUnregister(host.get()); });
  }
  void copy(CUdeviceptr to, const std::byte* from, Bytes bytes, Times& times) {
    time("a copy, submitted and waited for", bytes, times, [&] {
      const CUresult made = driver_.cuMemcpyHtoDAsync(to, from, bytes, stream_);
      return made == CUDA_SUCCESS ? driver_.cuStreamSynchronize(stream_) : made;
    });
    time("cuMemcpyHtoDAsync", bytes, times, [&] { return driver_.cuMemcpyHtoDAsync(to, from, bytes, stream_); });
    time("cuEventRecord", 0, times, [&] { return driver_.cuEventRecord(event_, stream_); });
    time("cuEventRecord with timing", 0, times, [&] { return driver_.cuEventRecord(timed_event_, stream_); });
    check(driver_.cuEventSynchronize(timed_event_));
    time("cuEventSynchronize of what is over", 0, times, [&] { return driver_.cuEventSynchronize(event_); });
    time("cuStreamSynchronize of what is over", 0, times, [&] { return driver_.cuStreamSynchronize(stream_); });
  }

 private:
  void check(CUresult result) const { check_cuda(driver_, result, "timing calls"); }
  void time(const char* call, Bytes bytes, Times& times, const std::function<CUresult()>& work) const {
    CUresult result = CUDA_SUCCESS;
    const double seconds = seconds_of([&] { result = work(); });
    check_cuda(driver_, result, call);
    times.add(call, bytes, seconds);
  }

  CudaDevice& device_;
  const CudaDriver& driver_;
  CUstream stream_ = nullptr;
  CUevent event_ = nullptr, timed_event_ = nullptr;
};

// While it lives, another thread does `work` again and again.
class Beside {
 public:
  explicit Beside(std::function<void()> work)
      : thread_([this, work = std::move(work)] {
          try {
            while (!over_) work();
          } catch (...) {
            failure_ = std::current_exception();
          }
        }) {}
  ~Beside() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
  // Ends it; throws what it threw.
  void finish() {
    over_ = true;
    thread_.join();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  std::atomic<bool> over_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace

DriverCalls time_driver_calls(CudaDevice& device, int repetitions) {
  const Bytes page = device.granularity();
  const std::vector<Bytes> sizes = {page, 8 * page, 32 * page};
  const Bytes small = 4096, locked = 32 * page;
  const AlignedBuffer host = aligned_buffer(small, std::byte{1});
  std::string refusal;
  const bool pinned = device.pin(host.get(), small, refusal);
  const std::unique_ptr<TierMemory> memory = device.memory("probe", page, page, false);
  memory->create(0, page);
  memory->map(0, 0, page, 0);
  const auto target = reinterpret_cast<CUdeviceptr>(memory->address(0));
  const std::unique_ptr<ReplayKernels> kernels = device.replay_kernels();
  const auto kernel = [&] { kernels->run({}, kernel_ns, {}); };

  DriverCalls answer;
  Calls calls(device);
  const auto round = [&](Times& times) {
    for (const Bytes bytes : sizes) calls.map(bytes, times);
    calls.copy(target, host.get(), small, times);
  };
  Times first, alone, beside;
  round(first);  // warms up
  for (int i = 0; i < repetitions; ++i) {
    round(alone);
    calls.lock(locked, alone);
  }
  alone.finish(false, answer.calls);
  kernel();
  std::vector<double> by_itself, with_mapping;
  for (int i = 0; i < repetitions; ++i) by_itself.push_back(seconds_of(kernel));
  {
    Beside busy([&] { kernel(); });
    for (int i = 0; i < repetitions; ++i) round(beside);
    busy.finish();
  }
  beside.finish(true, answer.calls);
  {
    Times unused;
    Beside mapping([&] {
      device.bind();
      calls.map(page, unused);
    });
    for (int i = 0; i < repetitions; ++i) with_mapping.push_back(seconds_of(kernel));
    mapping.finish();
  }
  answer.kernel_alone = measured_median(std::move(by_itself));
  answer.kernel_beside_mapping = measured_median(std::move(with_mapping));
  if (pinned) device.unpin(host.get());
  memory->destroy(0);
  return answer;
}

}  // namespace tencache
