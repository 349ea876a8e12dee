// The clock of the driver of rules: what jobs and calls take, worked out by hand.
#include "tests/live/rules/device_engines.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "tests/live/rules/rules_driver.h"

namespace tencache::rules {
namespace {

// One thread, whose clock goes on only as it is told.
class OneClock final : public HostOrder {
 public:
  Line line() override { return 0; }
  VectorClock& clock() override { return clock_; }
  Line new_line() override { return ++lines_; }
  void*& own() override { return own_; }
  bool one_at_a_time() const override { return true; }
  Nanoseconds now() override { return now_ns; }
  void spend(Nanoseconds ns) override { now_ns += ns; }

  Nanoseconds now_ns = 0;

 private:
  VectorClock clock_;
  Line lines_ = 0;
  void* own_ = nullptr;
};

class Jobs final : public RulesWatch {
 public:
  void job_over(const DeviceJob& job) override { times.emplace_back(job.kind, job.begin_ns, job.end_ns); }
  void returned(const char*, Line, Nanoseconds, Nanoseconds) override { calls++; }

  std::vector<std::tuple<JobKind, Nanoseconds, Nanoseconds>> times;
  int calls = 0;
};

// Copies at a byte a nanosecond, memory at two.
class DeviceEnginesTest : public testing::Test {
 protected:
  static ModelGpu figures() {
    ModelGpu model;
    model.copy_bytes_per_ns = 1;
    model.hbm_bytes_per_ns = 2;
    model.copy_latency_ns = 10;
    model.kernel_latency_ns = 5;
    model.spin_ns = 3;
    model.wake_ns = 40;
    return model;
  }
  void open(const ModelGpu& model) {
    model_ = model;
    driver_ = std::make_unique<RulesDriver>(
        RulesOptions{.memory = 100 * GiB, .host = &host_, .model = &model_, .watch = &jobs_, .content = false});
    CUcontext context = nullptr;
    cuda().cuDevicePrimaryCtxRetain(&context, 0);
    cuda().cuCtxSetCurrent(context);
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    cuda().cuMemAddressReserve(&memory_, 64 * GiB, 0, 0, 0);
    CUmemGenericAllocationHandle handle = 0;
    cuda().cuMemCreate(&handle, 64 * GiB, &properties, 0);  // which this computer does not have
    cuda().cuMemMap(memory_, 64 * GiB, 0, handle, 0);
    cuda().cuMemSetAccess(memory_, 64 * GiB, &access, 1);
    cuda().cuMemHostRegister(host_bytes_.data(), host_bytes_.size(), 0);
  }
  ~DeviceEnginesTest() override { EXPECT_EQ(driver_->violation(), ""); }

  const CudaDriver& cuda() const { return driver_->table(); }
  CUstream stream() const {
    CUstream made = nullptr;
    cuda().cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    return made;
  }
  void upload(CUstream to, std::size_t at) {
    cuda().cuMemcpyHtoDAsync(memory_ + at, host_bytes_.data() + at, 1000, to);
  }
  void download(CUstream to, std::size_t at) {
    cuda().cuMemcpyDtoHAsync(host_bytes_.data() + at, memory_ + at, 1000, to);
  }
  void kernel(CUstream to, Nanoseconds ns, Bytes traffic) {
    DeviceJob job;
    job.kind = JobKind::kernel;
    job.duration_ns = ns;
    job.traffic = traffic;
    job.run = [] {};
    EXPECT_EQ(driver_->launch(to, std::move(job), {}), CUDA_SUCCESS);
  }

  using Times = std::vector<std::tuple<JobKind, Nanoseconds, Nanoseconds>>;
  OneClock host_;
  Jobs jobs_;
  ModelGpu model_;
  std::unique_ptr<RulesDriver> driver_;
  CUdeviceptr memory_ = 0;
  std::vector<std::byte> host_bytes_{4096};
};

TEST_F(DeviceEnginesTest, CopiesOfADirectionFollowEachOtherAndOppositeOnesDoNot) {
  open(figures());
  const CUstream one = stream(), other = stream(), down = stream();
  upload(one, 0);
  upload(other, 1000);
  download(down, 2000);
  cuda().cuStreamSynchronize(one);
  cuda().cuStreamSynchronize(other);
  // The second one's latency is hidden behind the first.
  EXPECT_EQ(jobs_.times,
            (Times{{JobKind::upload, 10, 1010}, {JobKind::download, 10, 1010}, {JobKind::upload, 1010, 2010}}));
  EXPECT_EQ(host_.now_ns, 2010 + model_.spin_ns);
}

TEST_F(DeviceEnginesTest, KernelsAndCopiesShareTheMemory) {
  ModelGpu model = figures();
  model.copy_latency_ns = model.kernel_latency_ns = 0;
  open(model);
  const CUstream copies = stream();
  // Together they ask for 3 bytes a nanosecond of 2: both run at two thirds until the copy is over, at 1500. The kernel
  // has half of its work left then.
  upload(copies, 0);
  kernel(nullptr, 2000, 4000);
  cuda().cuStreamSynchronize(nullptr);
  EXPECT_EQ(jobs_.times, (Times{{JobKind::upload, 0, 1500}, {JobKind::kernel, 0, 2500}}));
}

TEST_F(DeviceEnginesTest, KernelsThatComputeLeaveTheMemoryToCopies) {
  ModelGpu model = figures();
  model.copy_latency_ns = model.kernel_latency_ns = 0;
  open(model);
  upload(stream(), 0);
  kernel(nullptr, 2000, 1000);
  cuda().cuStreamSynchronize(nullptr);
  EXPECT_EQ(jobs_.times, (Times{{JobKind::upload, 0, 1000}, {JobKind::kernel, 0, 2000}}));
}

TEST_F(DeviceEnginesTest, AStreamWaitsForAnothersEvent) {
  open(figures());
  const CUstream copies = stream(), kernels = stream();
  CUevent copied = nullptr;
  cuda().cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING);
  upload(copies, 0);
  cuda().cuEventRecord(copied, copies);
  cuda().cuStreamWaitEvent(kernels, copied, 0);
  kernel(kernels, 100, 0);
  cuda().cuStreamSynchronize(kernels);
  EXPECT_EQ(jobs_.times, (Times{{JobKind::upload, 10, 1010}, {JobKind::kernel, 1010, 1110}}));
}

TEST_F(DeviceEnginesTest, CallsTakeTheHostsTimeAndWaitersWakeUp) {
  ModelGpu model = figures();
  model.call_ns = {{"cuMemcpyHtoDAsync", 7}, {"cuEventRecord", 2}, {"cuEventSynchronize", 1}};
  model.page_lock_ns_per_byte = 0.5;
  open(model);
  const Nanoseconds begin_ns = static_cast<Nanoseconds>(host_bytes_.size()) / 2;  // page-locking
  EXPECT_EQ(host_.now_ns, begin_ns);
  const CUstream copies = stream();
  CUevent copied = nullptr;
  cuda().cuEventCreate(&copied, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  upload(copies, 0);
  cuda().cuEventRecord(copied, copies);
  EXPECT_EQ(host_.now_ns, begin_ns + 9);
  cuda().cuEventSynchronize(copied);
  EXPECT_EQ(host_.now_ns, begin_ns + 7 + 10 + 1000 + 40);
  // What is over is not waited for.
  cuda().cuEventSynchronize(copied);
  EXPECT_EQ(host_.now_ns, begin_ns + 7 + 10 + 1000 + 40 + 1);
  EXPECT_GT(jobs_.calls, 8);
}

}  // namespace
}  // namespace tencache::rules
