// The driver of rules itself: each rule that is broken is found, and what keeps the rules is not.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <vector>

#include "gmock/gmock.h"
#include "tests/live/rules/access_log.h"
#include "tests/live/rules/more_rules.h"
#include "tests/live/rules/rules_driver.h"

namespace tencache::rules {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr Bytes page = 4096;

class RulesTest : public testing::Test {
 protected:
  void SetUp() override { open(Strategy::forced); }
  void open(Strategy strategy) {
    driver_.reset();
    driver_ = std::make_unique<RulesDriver>(
        RulesOptions{.memory = 16 * MiB, .granularity = page, .strategy = strategy, .seed = 7});
    CUcontext context = nullptr;
    EXPECT_EQ(cuda().cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuCtxSetCurrent(context), CUDA_SUCCESS);
  }
  const CudaDriver& cuda() const { return driver_->table(); }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) const {
    CUstream made = nullptr;
    EXPECT_EQ(cuda().cuStreamCreate(&made, flags), CUDA_SUCCESS);
    return made;
  }
  CUevent event() const {
    CUevent made = nullptr;
    EXPECT_EQ(cuda().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return made;
  }
  CUdeviceptr memory(Bytes bytes = page) const {
    CUdeviceptr made = 0;
    EXPECT_EQ(cuda().cuMemAlloc(&made, bytes), CUDA_SUCCESS);
    return made;
  }
  std::byte* locked(Bytes bytes = page) {
    host_.emplace_back(bytes);
    EXPECT_EQ(cuda().cuMemHostRegister(host_.back().data(), bytes, 0), CUDA_SUCCESS);
    return host_.back().data();
  }
  static CUmemAllocationProp of_device() {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return properties;
  }
  static CUmemAccessDesc access() { return {{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}; }
  CUmemGenericAllocationHandle physical(Bytes bytes = page) const {
    const CUmemAllocationProp properties = of_device();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuda().cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr reserved(Bytes bytes = page) const {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuda().cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    return address;
  }
  CUdeviceptr mapped(CUmemGenericAllocationHandle handle, Bytes bytes = page) const {
    const CUdeviceptr address = reserved(bytes);
    const CUmemAccessDesc desc = access();
    EXPECT_EQ(cuda().cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuda().cuMemSetAccess(address, bytes, &desc, 1), CUDA_SUCCESS);
    return address;
  }
  void expect_broken(const char* function, const char* rule) {
    EXPECT_THAT(driver_->violation(), testing::AllOf(StartsWith(std::string(function) + ": "), HasSubstr(rule)));
    open(Strategy::forced);
  }
  void expect_race(const char* later, const char* earlier) {
    const std::string found = driver_->violation();
    EXPECT_THAT(found, HasSubstr("is not ordered behind"));
    const std::size_t second = found.find(std::string("  ") + earlier + ", work ");
    EXPECT_THAT(found, HasSubstr(std::string("\n  ") + later + ", work "));
    EXPECT_NE(second, std::string::npos) << found;
    EXPECT_THAT(found, HasSubstr("rules_test")) << "call stacks";
    open(Strategy::forced);
  }
  void expect_order() {
    EXPECT_EQ(driver_->violation(), "");
    open(Strategy::forced);
  }

  std::unique_ptr<RulesDriver> driver_;
  std::vector<std::vector<std::byte>> host_;
};

// ---- Happens-before -------------------------------------------------------------------------------------------------

TEST_F(RulesTest, StreamsAreNotOrdered) {
  const CUdeviceptr at = memory();
  cuda().cuMemsetD8Async(at, 1, page, stream());
  cuda().cuMemcpyHtoDAsync(at + page / 2, locked(), page / 2, stream());
  expect_race("cuMemcpyHtoDAsync", "cuMemsetD8Async");
}

TEST_F(RulesTest, AStreamIsOrderedAndReadsDoNotConflict) {
  const CUdeviceptr at = memory(2 * page);
  const CUstream one = stream(), other = stream();
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuMemcpyDtoHAsync(locked(), at, page, one);
  cuda().cuMemsetD8Async(at + page, 1, page, other);  // its neighbour
  cuda().cuStreamSynchronize(one);
  cuda().cuMemcpyDtoHAsync(locked(), at, page, other);
  cuda().cuMemcpyDtoHAsync(locked(), at, page, one);  // both read
  expect_order();
}

TEST_F(RulesTest, AReadIsNotOverwrittenByAnotherStream) {
  const CUdeviceptr at = memory();
  const CUstream one = stream(), other = stream();
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuStreamSynchronize(one);
  cuda().cuMemcpyDtoHAsync(locked(), at, page, one);
  cuda().cuMemsetD8Async(at, 2, 1, other);
  expect_race("cuMemsetD8Async", "cuMemcpyDtoHAsync");
}

TEST_F(RulesTest, TheHostsEndOfACopyIsJudgedToo) {
  std::byte* host = locked();
  const CUdeviceptr one = memory(), other = memory();
  cuda().cuMemcpyDtoHAsync(host, one, page, stream());
  cuda().cuMemcpyHtoDAsync(other, host + 8, 8, stream());
  expect_race("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync");
}

TEST_F(RulesTest, AnEventIsWhatWasRecordedLast) {
  const CUdeviceptr at = memory();
  const CUstream one = stream(), other = stream();
  const CUevent done = event();
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuEventRecord(done, one);
  cuda().cuEventSynchronize(done);
  cuda().cuMemsetD8Async(at, 2, page, other);
  expect_order();
  const CUdeviceptr again = memory();
  const CUstream third = stream();
  const CUevent early = event();
  cuda().cuEventRecord(early, third);
  cuda().cuMemsetD8Async(again, 1, page, third);
  cuda().cuEventSynchronize(early);  // of nothing
  cuda().cuMemsetD8Async(again, 2, page, stream());
  expect_race("cuMemsetD8Async", "cuMemsetD8Async");
}

TEST_F(RulesTest, AnEventNeverRecordedWaitsForNothing) {
  const CUdeviceptr at = memory();
  cuda().cuMemsetD8Async(at, 1, page, stream());
  EXPECT_EQ(cuda().cuEventSynchronize(event()), CUDA_SUCCESS);
  cuda().cuMemsetD8Async(at, 2, page, stream());
  expect_race("cuMemsetD8Async", "cuMemsetD8Async");
}

TEST_F(RulesTest, TheLegacyStreamIsOrderedWithBlockingStreamsOnly) {
  const CUdeviceptr at = memory();
  cuda().cuMemsetD8Async(at, 1, page, stream(CU_STREAM_DEFAULT));
  cuda().cuMemsetD8Async(at, 2, page, nullptr);
  cuda().cuMemsetD8Async(at, 3, page, stream(CU_STREAM_DEFAULT));
  expect_order();
  const CUdeviceptr other = memory();
  cuda().cuMemsetD8Async(other, 1, page, stream(CU_STREAM_NON_BLOCKING));
  cuda().cuMemsetD8Async(other, 2, page, nullptr);
  expect_race("cuMemsetD8Async", "cuMemsetD8Async");
}

TEST_F(RulesTest, MemoryInUseIsNotUnmappedFreedOrUnlocked) {
  CUdeviceptr at = mapped(physical());
  cuda().cuMemsetD8Async(at, 1, page, stream());
  EXPECT_EQ(cuda().cuMemUnmap(at, page), CUDA_ERROR_INVALID_VALUE);
  expect_race("cuMemUnmap", "cuMemsetD8Async");
  at = memory();
  cuda().cuMemsetD8Async(at, 1, page, stream());
  EXPECT_EQ(cuda().cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  expect_race("cuMemFree", "cuMemsetD8Async");
  std::byte* host = locked();
  cuda().cuMemcpyHtoDAsync(memory(), host, page, stream());
  EXPECT_EQ(cuda().cuMemHostUnregister(host), CUDA_ERROR_INVALID_VALUE);
  expect_race("cuMemHostUnregister", "cuMemcpyHtoDAsync");
}

// Also where the device happens to be done: nobody waited.
TEST_F(RulesTest, AnEagerDeviceHidesNothing) {
  open(Strategy::eager);
  const CUdeviceptr at = mapped(physical());
  cuda().cuMemsetD8Async(at, 1, page, stream());
  EXPECT_EQ(cuda().cuMemUnmap(at, page), CUDA_SUCCESS);
  expect_race("cuMemUnmap", "cuMemsetD8Async");
}

// The same physical memory at two addresses, one after the other.
TEST_F(RulesTest, MemoryIsKnownAgainAtAnotherAddress) {
  const CUmemGenericAllocationHandle handle = physical();
  const CUdeviceptr first = mapped(handle);
  const CUstream one = stream();
  cuda().cuMemsetD8Async(first, 1, page, one);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(cuda().cuMemUnmap(first, page), CUDA_SUCCESS);
  const CUdeviceptr second = mapped(handle);
  cuda().cuMemsetD8Async(second, 1, page, one);
  EXPECT_EQ(cuda().cuMemsetD8Async(first, 1, page, one), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_broken("cuMemsetD8Async", "accessible");
}

// ---- Waits on the device, copies inside it, times -------------------------------------------------------------------

TEST_F(RulesTest, AStreamWaitsForWhatTheEventHadCaptured) {
  for (const Strategy strategy : {Strategy::forced, Strategy::eager, Strategy::starved, Strategy::random}) {
    open(strategy);
    const CUdeviceptr at = memory();
    const CUstream one = stream(), other = stream(), third = stream();
    const CUevent done = event();
    std::byte* host = locked();
    cuda().cuMemsetD8Async(at, 1, page, one);
    cuda().cuEventRecord(done, one);
    EXPECT_EQ(cuda().cuStreamWaitEvent(other, done, 0), CUDA_SUCCESS);
    cuda().cuMemsetD8Async(memory(), 1, page, third);
    cuda().cuEventRecord(done, third);  // does not move the wait
    cuda().cuMemcpyDtoHAsync(host, at, page, other);
    cuda().cuStreamSynchronize(other);
    EXPECT_EQ(host[0], std::byte{1});
    EXPECT_EQ(host[page - 1], std::byte{1});
    EXPECT_EQ(driver_->violation(), "");
  }
  open(Strategy::forced);
  const CUdeviceptr at = memory();
  const CUstream one = stream(), other = stream();
  const CUevent early = event(), never = event();
  cuda().cuEventRecord(early, one);
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuStreamWaitEvent(other, early, 0);
  cuda().cuStreamWaitEvent(other, never, 0);
  cuda().cuMemsetD8Async(at, 2, page, other);
  expect_race("cuMemsetD8Async", "cuMemsetD8Async");
}

// A waits for B's event, C for A's: C is behind B.
TEST_F(RulesTest, OrderIsTransitive) {
  const CUdeviceptr at = memory();
  const CUstream a = stream(), b = stream(), c = stream();
  const CUevent of_b = event(), of_a = event();
  cuda().cuMemsetD8Async(at, 1, page, b);
  cuda().cuEventRecord(of_b, b);
  cuda().cuStreamWaitEvent(a, of_b, 0);
  cuda().cuMemsetD8Async(memory(), 1, page, a);
  cuda().cuEventRecord(of_a, a);
  cuda().cuStreamWaitEvent(c, of_a, 0);
  cuda().cuMemsetD8Async(at, 2, page, c);
  cuda().cuStreamSynchronize(c);
  EXPECT_EQ(*reinterpret_cast<const std::byte*>(at), std::byte{2});
  expect_order();
}

TEST_F(RulesTest, AQueryThatSucceedsIsOrder) {
  const CUdeviceptr at = memory();
  const CUstream one = stream();
  const CUevent done = event();
  EXPECT_EQ(cuda().cuEventQuery(done), CUDA_SUCCESS) << "never recorded";
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuEventRecord(done, one);
  EXPECT_EQ(cuda().cuEventQuery(done), CUDA_ERROR_NOT_READY);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(cuda().cuEventQuery(done), CUDA_SUCCESS);
  cuda().cuMemsetD8Async(at, 1, page, stream());
  expect_order();
}

TEST_F(RulesTest, CopiesInsideTheDeviceAreJudged) {
  const CUdeviceptr from = memory(), to = memory();
  const CUstream one = stream();
  cuda().cuMemsetD8Async(from, 7, page, one);
  cuda().cuMemcpyDtoDAsync(to, from, page, one);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(*reinterpret_cast<const std::byte*>(to), std::byte{7});
  cuda().cuMemcpyDtoDAsync(to, from, page, one);
  cuda().cuMemsetD8Async(from, 8, page, stream());
  expect_race("cuMemsetD8Async", "cuMemcpyDtoDAsync");
  cuda().cuMemcpyDtoDAsync(memory(2 * page), 0, page, nullptr);
  expect_broken("cuMemcpyDtoDAsync", "accessible");
  const CUdeviceptr both = memory(2 * page);
  cuda().cuMemcpyDtoDAsync(both + page, both, page, nullptr);
  EXPECT_EQ(driver_->violation(), "");
  cuda().cuMemcpyDtoDAsync(both + 512, both, page, nullptr);
  expect_broken("cuMemcpyDtoDAsync", "overlap");
}

#if CUDA_VERSION >= 12080
TEST_F(RulesTest, CopiesOfABatchAreInAnyOrder) {
  const CUstream one = stream();
  CUmemcpyAttributes in_order = {};
  in_order.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  const CUdeviceptr at = memory(2 * page);
  std::byte* host = locked(2 * page);
  host[0] = std::byte{5};
  const auto up = reinterpret_cast<CUdeviceptr>(host);
  std::vector<CUdeviceptr> to = {at, at + page}, from = {up, up + page};
  std::vector<std::size_t> sizes = {page, page}, first_of = {0};
  const auto batch = [&](CUstream on) {
    return cuda().cuMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(), &in_order, first_of.data(), 1,
                                     on);
  };
  EXPECT_EQ(batch(one), CUDA_SUCCESS);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(*reinterpret_cast<const std::byte*>(at), std::byte{5});
  EXPECT_EQ(driver_->violation(), "");
  batch(one);
  cuda().cuMemsetD8Async(at, 1, page, stream());
  expect_race("cuMemsetD8Async", "cuMemcpyBatchAsync");
  const CUdeviceptr source = memory(), middle = memory(), target = memory();
  to = {middle, target};
  from = {source, middle};
  batch(stream());
  expect_broken("cuMemcpyBatchAsync", "depends on another");
  batch(nullptr);
  expect_broken("cuMemcpyBatchAsync", "legacy");
}
#endif

TEST_F(RulesTest, AWordIsWrittenInItsStreamAndOrdersNothing) {
  const MoreRules more = more_rules();
  for (const Strategy strategy : {Strategy::forced, Strategy::eager}) {
    open(strategy);
    const CUdeviceptr at = memory();
    const CUstream one = stream();
    std::byte* host = locked();
    const auto* word = reinterpret_cast<const std::uint64_t*>(host);
    const auto address = reinterpret_cast<CUdeviceptr>(host);
    cuda().cuMemsetD8Async(at, 1, page, one);
    EXPECT_EQ(more.cuStreamWriteValue64(one, address, 1, 0), CUDA_SUCCESS);
    EXPECT_EQ(more.cuStreamWriteValue64(one, address, 2, 0), CUDA_SUCCESS);
    EXPECT_EQ(*word, strategy == Strategy::eager ? 2u : 0u) << "late, or at once";
    cuda().cuMemsetD8Async(at, 2, page, stream());
    expect_race("cuMemsetD8Async", "cuMemsetD8Async");
  }
  const CUstream one = stream();
  std::byte* host = locked();
  more.cuStreamWriteValue64(one, reinterpret_cast<CUdeviceptr>(host), 3, 0);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(host), 3u);
  expect_order();
  std::uint64_t pageable = 0;
  more.cuStreamWriteValue64(nullptr, reinterpret_cast<CUdeviceptr>(&pageable), 1, 0);
  expect_broken("cuStreamWriteValue64", "page-locked");
  more.cuStreamWriteValue64(nullptr, memory() + 4, 1, 0);
  expect_broken("cuStreamWriteValue64", "aligned");
}

// A program that captures a graph: what it gives to the stream does not run, and the runtime's own threads may map
// memory beside it in the relaxed mode only.
TEST_F(RulesTest, CapturesProhibit) {
  const MoreRules more = more_rules();
  const CUstream captured = stream();
  const CUdeviceptr at = memory();
  CUgraph graph = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(more.cuStreamIsCapturing(captured, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(more.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  more.cuStreamIsCapturing(captured, &status);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  cuda().cuMemsetD8Async(at, 9, page, captured);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_EQ(more.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  physical();
  EXPECT_EQ(more.cuStreamEndCapture(captured, &graph), CUDA_SUCCESS);
  cuda().cuStreamSynchronize(captured);
  EXPECT_NE(*reinterpret_cast<const std::byte*>(at), std::byte{9});
  EXPECT_EQ(driver_->violation(), "");
  more.cuThreadExchangeStreamCaptureMode(&mode);

  more.cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const CUmemAllocationProp properties = of_device();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda().cuMemCreate(&handle, page, &properties, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_broken("cuMemCreate", "unsafe");
  const CUstream another = stream();
  more.cuStreamBeginCapture(another, CU_STREAM_CAPTURE_MODE_RELAXED);
  physical();
  EXPECT_EQ(cuda().cuStreamSynchronize(another), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_broken("cuStreamSynchronize", "capturing");
  const CUstream of_default = stream(CU_STREAM_DEFAULT);
  more.cuStreamBeginCapture(of_default, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(cuda().cuMemsetD8Async(memory(), 1, page, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  expect_broken("cuMemsetD8Async", "legacy");
  more.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL);
  expect_broken("cuStreamBeginCapture", "legacy");
  more.cuStreamEndCapture(stream(), &graph);
  expect_broken("cuStreamEndCapture", "captured");
}

TEST_F(RulesTest, TimesNeedTimingAndCompletion) {
  driver_.reset();
  driver_ = std::make_unique<RulesDriver>(
      RulesOptions{.strategy = Strategy::forced, .cost = [](const DeviceJob&) { return Nanoseconds{3'000'000}; }});
  CUcontext context = nullptr;
  cuda().cuDevicePrimaryCtxRetain(&context, 0);
  cuda().cuCtxSetCurrent(context);
  CUevent first = nullptr, second = nullptr;
  cuda().cuEventCreate(&first, 0);
  cuda().cuEventCreate(&second, 0);
  const CUstream one = stream();
  float milliseconds = 0;
  const CUdeviceptr at = memory();
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuEventRecord(first, one);
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuEventRecord(second, one);
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, first, second), CUDA_ERROR_NOT_READY);
  cuda().cuEventSynchronize(second);
  cuda().cuMemsetD8Async(at, 1, page, one);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(cuda().cuEventElapsedTime(&milliseconds, first, second), CUDA_SUCCESS);
  EXPECT_EQ(milliseconds, 6.0f);
  EXPECT_EQ(driver_->violation(), "");
  cuda().cuEventElapsedTime(&milliseconds, first, event());
  expect_broken("cuEventElapsedTime", "timing");
}

// ---- Values ---------------------------------------------------------------------------------------------------------

TEST_F(RulesTest, ACopyReadsAndWritesAtAnyMoment) {
  for (const Strategy strategy : {Strategy::eager, Strategy::forced}) {
    open(strategy);
    std::byte* from = locked();
    std::byte* to = locked();
    const CUdeviceptr at = memory();
    const CUstream one = stream();
    std::memset(from, 1, page);
    cuda().cuMemcpyHtoDAsync(at, from, page, one);
    std::memset(from, 2, page);  // too early
    cuda().cuMemcpyDtoHAsync(to, at, page, one);
    if (strategy == Strategy::forced) {
      EXPECT_NE(to[0], std::byte{2}) << "poison";
    }
    cuda().cuStreamSynchronize(one);
    EXPECT_EQ(to[0], strategy == Strategy::eager ? std::byte{1} : std::byte{2});
  }
}

TEST_F(RulesTest, NewAndUnmappedMemoryIsPoison) {
  const CUmemGenericAllocationHandle handle = physical();
  const CUdeviceptr first = mapped(handle);
  const auto* word = reinterpret_cast<const std::uint32_t*>(first);
  const std::uint32_t poisoned = *word;
  EXPECT_NE(poisoned, 0u);
  const CUstream one = stream();
  cuda().cuMemsetD8Async(first, 0, page, one);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(*word, 0u);
  cuda().cuMemUnmap(first, page);
  EXPECT_EQ(*reinterpret_cast<const std::uint32_t*>(mapped(handle)), poisoned);
  EXPECT_EQ(*reinterpret_cast<const std::uint32_t*>(memory()), poisoned);
}

TEST_F(RulesTest, StrategiesAreExtremes) {
  const auto done_before_a_wait = [&](Strategy strategy) {
    open(strategy);
    const CUdeviceptr one = memory(), other = memory();
    const CUstream streams[] = {stream(), stream()};
    cuda().cuMemsetD8Async(one, 1, page, streams[0]);
    cuda().cuMemsetD8Async(other, 1, page, streams[1]);
    for (int i = 0; i < 50; ++i) event();
    return (*reinterpret_cast<const std::byte*>(one) == std::byte{1} ? 1 : 0) +
           (*reinterpret_cast<const std::byte*>(other) == std::byte{1} ? 1 : 0);
  };
  EXPECT_EQ(done_before_a_wait(Strategy::eager), 2);
  EXPECT_EQ(done_before_a_wait(Strategy::forced), 0);
  EXPECT_EQ(done_before_a_wait(Strategy::copies_first), 2);
  EXPECT_EQ(done_before_a_wait(Strategy::kernels_first), 0);
  EXPECT_EQ(done_before_a_wait(Strategy::random), 2);
  open(Strategy::forced);
  const CUdeviceptr one = memory(), other = memory();
  const CUstream asked = stream(), not_asked = stream();
  cuda().cuMemsetD8Async(one, 1, page, asked);
  cuda().cuMemsetD8Async(other, 1, page, not_asked);
  cuda().cuStreamSynchronize(asked);
  EXPECT_EQ(*reinterpret_cast<const std::byte*>(one), std::byte{1});
  EXPECT_NE(*reinterpret_cast<const std::byte*>(other), std::byte{1}) << "nobody waited for it";
}

TEST_F(RulesTest, JobsHaveTimes) {
  std::vector<std::pair<Nanoseconds, Nanoseconds>> times;
  driver_.reset();
  driver_ = std::make_unique<RulesDriver>(RulesOptions{.strategy = Strategy::eager, .cost = [&](const DeviceJob& job) {
                                                         times.emplace_back(job.begin_ns,
                                                                            static_cast<Nanoseconds>(job.bytes()));
                                                         return static_cast<Nanoseconds>(job.bytes());
                                                       }});
  CUcontext context = nullptr;
  cuda().cuDevicePrimaryCtxRetain(&context, 0);
  cuda().cuCtxSetCurrent(context);
  const CUdeviceptr at = memory();
  const CUstream one = stream();
  cuda().cuMemsetD8Async(at, 1, 100, one);
  cuda().cuMemsetD8Async(at, 1, 50, one);
  EXPECT_EQ(times, (std::vector<std::pair<Nanoseconds, Nanoseconds>>{{0, 100}, {100, 50}}));
}

// ---- Arguments, state, failures -------------------------------------------------------------------------------------

TEST_F(RulesTest, EveryArgumentOfMappingIsChecked) {
  const CUmemAccessDesc desc = access();
  EXPECT_NE(cuda().cuMemAddressFree(reserved(2 * page), page), CUDA_SUCCESS);
  expect_broken("cuMemAddressFree", "size must match");
  cuda().cuMemAddressFree(mapped(physical()), page);
  expect_broken("cuMemAddressFree", "unmapped first");
  CUmemAllocationProp properties = of_device();
  CUmemGenericAllocationHandle handle = 0;
  cuda().cuMemCreate(&handle, page + 1, &properties, 0);
  expect_broken("cuMemCreate", "multiple");
  properties.location.id = 3;
  cuda().cuMemCreate(&handle, page, &properties, 0);
  expect_broken("cuMemCreate", "properties");
  cuda().cuMemMap(reserved(), page, 0, 99, 0);
  expect_broken("cuMemMap", "handle");
  cuda().cuMemMap(reserved(2 * page), 2 * page, 0, physical(), 0);
  expect_broken("cuMemMap", "all of the memory");
  cuda().cuMemMap(reserved(2 * page), page, page, physical(2 * page), 0);
  expect_broken("cuMemMap", "must be zero");
  cuda().cuMemMap(reserved() + page, page, 0, physical(), 0);
  expect_broken("cuMemMap", "previously reserved");
  cuda().cuMemMap(mapped(physical()), page, 0, physical(), 0);
  expect_broken("cuMemMap", "not currently mapped");
  handle = physical();
  mapped(handle);
  cuda().cuMemMap(reserved(), page, 0, handle, 0);
  expect_broken("cuMemMap", "one place");
  cuda().cuMemSetAccess(mapped(physical(2 * page), 2 * page), page, &desc, 1);
  expect_broken("cuMemSetAccess", "fully mapped");
  cuda().cuMemUnmap(mapped(physical(2 * page), 2 * page), page);
  expect_broken("cuMemUnmap", "entire");
  handle = physical();
  cuda().cuMemRelease(handle);
  cuda().cuMemRelease(handle);
  expect_broken("cuMemRelease", "undefined");
  // Mapped memory is not yet accessible.
  const CUdeviceptr closed = reserved();
  cuda().cuMemMap(closed, page, 0, physical(), 0);
  EXPECT_EQ(cuda().cuMemsetD8Async(closed, 1, page, stream()), CUDA_ERROR_ILLEGAL_ADDRESS);
  expect_broken("cuMemsetD8Async", "accessible");
  cuda().cuMemFree(memory() + 8);
  expect_broken("cuMemFree", "returned by a previous call");
}

TEST_F(RulesTest, PageLockedRangesAreWhole) {
  std::byte* host = locked(2 * page);
  EXPECT_EQ(cuda().cuMemHostRegister(host + page, page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  expect_broken("cuMemHostRegister", "no part");
  cuda().cuMemHostUnregister(locked(2 * page) + page);
  expect_broken("cuMemHostUnregister", "same one");
  std::vector<std::byte> half(2 * page);
  cuda().cuMemHostRegister(half.data(), page, 0);
  cuda().cuMemcpyHtoDAsync(memory(2 * page), half.data(), 2 * page, stream());
  expect_broken("cuMemcpyHtoDAsync", "in one piece");
}

TEST_F(RulesTest, StreamsEventsAndLaunchesAreChecked) {
  const CUstream gone = stream();
  cuda().cuStreamDestroy(gone);
  EXPECT_EQ(cuda().cuStreamSynchronize(gone), CUDA_ERROR_INVALID_HANDLE);
  expect_broken("cuStreamSynchronize", "exists");
  cuda().cuEventRecord(nullptr, stream());
  expect_broken("cuEventRecord", "exists");
  cuda().cuEventDestroy(nullptr);
  expect_broken("cuEventDestroy", "exists");
  CUevent made = nullptr;
  cuda().cuEventCreate(&made, 0x100);
  expect_broken("cuEventCreate", "flags");
  std::array<void*, 5> parameters{};
  cuda().cuLaunchKernel(nullptr, 1, 1, 1, 2048, 1, 1, 0, stream(), parameters.data(), nullptr);
  expect_broken("cuLaunchKernel", "block");
  cuda().cuLaunchKernel(nullptr, 0, 1, 1, 1, 1, 1, 0, stream(), parameters.data(), nullptr);
  expect_broken("cuLaunchKernel", "grid");
  cuda().cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream(), parameters.data(), nullptr);
  expect_broken("cuLaunchKernel", "cuModuleGetFunction");
}

TEST_F(RulesTest, ADestroyedStreamDoesWhatItWasGiven) {
  const CUdeviceptr at = memory();
  const CUstream one = stream();
  cuda().cuMemsetD8Async(at, 5, page, one);
  EXPECT_EQ(cuda().cuStreamDestroy(one), CUDA_SUCCESS);
  EXPECT_EQ(cuda().cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  expect_race("cuMemFree", "cuMemsetD8Async");
}

TEST_F(RulesTest, EachThreadNeedsTheContext) {
  cuda().cuCtxSetCurrent(nullptr);
  std::size_t free = 0, total = 0;
  EXPECT_EQ(cuda().cuMemGetInfo(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  expect_broken("cuMemGetInfo", "context");
}

TEST_F(RulesTest, FailuresComeByPlanAndAFaultStays) {
  driver_->fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 1);
  CUdeviceptr at = memory();
  EXPECT_EQ(cuda().cuMemAlloc(&at, page), CUDA_ERROR_OUT_OF_MEMORY);
  at = memory();
  const CUstream one = stream();
  cuda().cuMemsetD8Async(at, 5, page, one);
  driver_->fail("cuEventCreate", CUDA_ERROR_LAUNCH_FAILED);
  CUevent made = nullptr;
  EXPECT_EQ(cuda().cuEventCreate(&made, 0), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuda().cuStreamSynchronize(one), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cuda().cuMemFree(at), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_NE(*reinterpret_cast<const std::byte*>(at), std::byte{5}) << "nothing runs any more";
  EXPECT_EQ(driver_->violation(), "");
}

TEST_F(RulesTest, BoundsAreJudged) {
  const CUmemAllocationProp properties = of_device();
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuda().cuMemCreate(&handle, 17 * MiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(driver_->violation(), "");
  driver_->set_budget(2 * page);
  cuda().cuMemRelease(physical(2 * page));
  physical();
  cuda().cuMemCreate(&handle, 2 * page, &properties, 0);
  expect_broken("cuMemCreate", "budget");
  const CUstream one = stream();
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(driver_->counts().implied_waits, 1u) << "for nothing";
  cuda().cuMemsetD8Async(memory(), 5, page, one);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(driver_->counts().implied_waits, 1u);
  cuda().cuStreamSynchronize(one);
  EXPECT_EQ(driver_->counts().implied_waits, 2u);
  EXPECT_EQ(driver_->counts().waits, 3u);
}

// ---- The log of accesses, against bytes one by one ------------------------------------------------------------------

TEST(AccessLogTest, AgreesWithEveryByteAlone) {
  constexpr std::uint64_t size = 24, lines = 3;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    AccessLog log;
    std::array<VectorClock, lines> clocks;
    std::array<Moment, size> writes{};
    std::array<std::vector<Moment>, size> reads;
    for (int step = 0; step < 40; ++step) {
      const Line line = static_cast<Line>(random.below(lines));
      if (random.one_in(4)) {
        clocks[line].learn(clocks[random.below(lines)]);
        continue;
      }
      const std::uint64_t begin = random.below(size), end = random.between(begin, size);
      const bool write = random.one_in(2);
      const Moment moment = clocks[line].tick(line);
      bool race = false;
      for (std::uint64_t at = begin; at < end; ++at) {
        race |= !clocks[line].knows(writes[at]);
        if (!write) {
          reads[at].push_back(moment);
          continue;
        }
        for (const Moment& read : reads[at]) race |= !clocks[line].knows(read);
        reads[at].clear();
        writes[at] = moment;
      }
      const std::string found =
          log.access({{100 + begin, end - begin}, write, false}, {moment, "a call", {}}, clocks[line]);
      ASSERT_EQ(!found.empty(), race) << "seed " << seed << ", step " << step << ": " << found;
      if (random.one_in(10)) {
        log.forget({100 + begin, end - begin});
        for (std::uint64_t at = begin; at < end; ++at) writes[at] = {}, reads[at].clear();
      }
    }
  }
}

}  // namespace
}  // namespace tencache::rules
