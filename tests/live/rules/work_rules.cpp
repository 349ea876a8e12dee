// Copies, kernels, streams and events.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "tests/live/rules/rule_kernels.h"
#include "tests/live/rules/rules_state.h"

namespace tencache::rules {
namespace {

// ---- Copies ---------------------------------------------------------------------------------------------------------

// "If the memory is page-locked, a copy may overlap with other operations"; "for transfers between device memory and
// pageable host memory, the function might be synchronous with respect to host" (API synchronization behavior). So a
// pageable copy may be over when the call returns, and may not.
CUresult copy(Call& call, JobKind kind, CUdeviceptr device, std::byte* host, Bytes bytes, CUstream stream) {
  RulesState& at = call.state();
  const bool up = kind == JobKind::upload;
  const Range range{reinterpret_cast<std::uint64_t>(host), bytes};
  DeviceJob job;
  job.kind = kind;
  RULE(call.touch_device(job, device, bytes, up), "all of the device's memory is mapped and accessible",
       CUDA_ERROR_ILLEGAL_ADDRESS);
  const DeviceMemory::Locked locked = at.memory.page_locked(range);
  RULE(locked != DeviceMemory::Locked::partly, "all of the host's range is page-locked in one piece, or none of it",
       CUDA_ERROR_INVALID_VALUE);
  (up ? at.counts.uploads : at.counts.downloads)++;
  const bool pageable = locked == DeviceMemory::Locked::none;
  if (pageable) at.counts.unpinned_copies++;
  auto* on_device = reinterpret_cast<std::byte*>(device);
  // The destination changes at any moment from now on: until the copy is there, it is anything.
  if (!up && at.options.content && !at.queue.touches(range)) poison({host, bytes});
  job.accesses.push_back({range, !up, pageable});
  job.run = [=] { up ? std::memcpy(on_device, host, bytes) : std::memcpy(host, on_device, bytes); };
  const CUresult result = call.submit(stream, std::move(job));
  if (result == CUDA_SUCCESS && pageable && !at.held && !at.engines && at.adversary.coin())
    at.queue.force(at.queue.last(at.streams[stream]));
  return result;
}

CUresult CUDAAPI upload(CUdeviceptr device, const void* host, std::size_t bytes, CUstream stream) {
  RULES_CALL("cuMemcpyHtoDAsync");
  return copy(call, JobKind::upload, device, static_cast<std::byte*>(const_cast<void*>(host)), bytes, stream);
}

CUresult CUDAAPI download(void* host, CUdeviceptr device, std::size_t bytes, CUstream stream) {
  RULES_CALL("cuMemcpyDtoHAsync");
  return copy(call, JobKind::download, device, static_cast<std::byte*>(host), bytes, stream);
}

// "Copies from device memory to device memory." "The source and destination object may not overlap. If overlapping
// source and destination objects are specified, undefined behavior will result" (cudaMemcpy3DAsync, of which this is a
// part).
CUresult CUDAAPI copy_inside(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  RULES_CALL("cuMemcpyDtoDAsync");
  DeviceJob job;
  job.kind = JobKind::copy;
  RULE(to + bytes <= from || from + bytes <= to, "source and destination do not overlap", CUDA_ERROR_INVALID_VALUE);
  RULE(call.touch_device(job, from, bytes, false) && call.touch_device(job, to, bytes, true),
       "all of the memory is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
  at.counts.moves++;
  job.run = [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); };
  return call.submit(stream, std::move(job));
}

// "Since there are no ordering guarantees for copies within a batch, specifying any dependent copies within a batch will
// result in undefined behavior." hStream "must not be legacy NULL stream". Sources are read in stream order: the only
// srcAccessOrder that is modelled.
#if CUDA_VERSION >= 12080
CUresult CUDAAPI copy_batch(CUdeviceptr* to, CUdeviceptr* from, std::size_t* sizes, std::size_t count,
                            CUmemcpyAttributes* attributes, std::size_t* first_of, std::size_t attribute_count,
                            CUstream stream) {
  RULES_CALL("cuMemcpyBatchAsync");
  RULE(stream != nullptr, "the stream \"must not be legacy NULL stream\"", CUDA_ERROR_INVALID_VALUE);
  RULE(attribute_count > 0 && attribute_count <= count && first_of[0] == 0,
       "\"the first entry in attrsIdxs must always be 0\"", CUDA_ERROR_INVALID_VALUE);
  for (std::size_t i = 0; i < attribute_count; ++i) {
    RULE(i == 0 || (first_of[i] > first_of[i - 1] && first_of[i] < count),
         "\"each entry must be greater than the previous entry and … less than count\"", CUDA_ERROR_INVALID_VALUE);
    RULE(attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, "sources are read in stream order",
         CUDA_ERROR_INVALID_VALUE);
  }
  // Each copy costs the host as much as the call does: what is published is a time a copy.
  if (at.options.model != nullptr) {
    const auto cost = at.options.model->call_ns.find("cuMemcpyBatchAsync");
    if (cost != at.options.model->call_ns.end()) at.host.spend(cost->second * static_cast<Nanoseconds>(count - 1));
  }
  DeviceJob job;
  const auto on_host = [&](CUdeviceptr address, Bytes bytes) {
    return at.memory.page_locked({address, bytes}) == DeviceMemory::Locked::all;
  };
  const bool up = on_host(from[0], sizes[0]), down = on_host(to[0], sizes[0]);
  job.kind = up && !down ? JobKind::upload : down && !up ? JobKind::download : JobKind::copy;
  std::vector<std::function<void()>> copies;
  for (std::size_t i = 0; i < count; ++i) {
    for (const bool write : {false, true}) {
      const Range range{write ? to[i] : from[i], sizes[i]};
      const std::size_t before = job.accesses.size();
      if (!call.touch_device(job, range.begin, range.bytes, write)) {
        RULE(on_host(range.begin, range.bytes),
             "all of the memory is the device's, mapped and accessible, or page-locked", CUDA_ERROR_ILLEGAL_ADDRESS);
        if (write && at.options.content && !at.queue.touches(range)) {
          poison({reinterpret_cast<std::byte*>(range.begin), range.bytes});
        }
        job.accesses.push_back({range, write, false});
      }
      for (std::size_t mine = before; mine < job.accesses.size(); ++mine) {
        for (std::size_t other = 0; other < before; ++other) {
          const Access &a = job.accesses[mine], &b = job.accesses[other];
          const bool apart =
              a.range.begin + a.range.bytes <= b.range.begin || b.range.begin + b.range.bytes <= a.range.begin;
          RULE(apart || !(a.write || b.write), "no copy of a batch depends on another", CUDA_ERROR_INVALID_VALUE);
        }
      }
    }
    copies.emplace_back([source = from[i], target = to[i], bytes = sizes[i]] {
      std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
    });
  }
  if (job.kind != JobKind::copy) (job.kind == JobKind::upload ? at.counts.uploads : at.counts.downloads) += count;
  if (at.adversary.coin()) std::ranges::reverse(copies);
  job.run = [copies] { std::ranges::for_each(copies, [](const auto& one) { one(); }); };
  return call.submit(stream, std::move(job));
}
#endif

CUresult CUDAAPI fill(CUdeviceptr device, unsigned char value, std::size_t bytes, CUstream stream) {
  RULES_CALL("cuMemsetD8Async");
  DeviceJob job;
  job.kind = JobKind::fill;
  RULE(call.touch_device(job, device, bytes, true), "all of the memory is mapped and accessible",
       CUDA_ERROR_ILLEGAL_ADDRESS);
  job.run = [=] { std::memset(reinterpret_cast<void*>(device), value, bytes); };
  return call.submit(stream, std::move(job));
}

// ---- Kernels: looked for in the very PTX that was built. ------------------------------------------------------------

CUresult CUDAAPI load_module(CUmodule* module, const void* image) {
  RULES_CALL("cuModuleLoadData");
  RULE(image != nullptr, "there is an image", CUDA_ERROR_INVALID_VALUE);
  *module = reinterpret_cast<CUmodule>(++at.last_object);
  at.modules[*module] = static_cast<const char*>(image);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI unload_module(CUmodule module) {
  RULES_CALL("cuModuleUnload");
  RULE(at.modules.contains(module), "the module exists", CUDA_ERROR_INVALID_HANDLE);
  RULE(at.queue.kernels() == 0, "\"Attempts to use … functions … of a module that is unloaded are undefined\"",
       CUDA_ERROR_INVALID_VALUE);
  at.modules.erase(module);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI find_function(CUfunction* function, CUmodule module, const char* name) {
  RULES_CALL("cuModuleGetFunction");
  RULE(at.modules.contains(module), "the module exists", CUDA_ERROR_INVALID_HANDLE);
  const std::string entry = std::string(".entry ") + name + "(";
  *function = at.modules[module].find(entry) == std::string::npos ? nullptr : find_kernel(name);
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult CUDAAPI launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void** parameters,
                        void** extra) {
  RULES_CALL("cuLaunchKernel");
  // Technical specifications per compute capability: blocks of at most 1,024 threads, grids of 2^31-1 x 65,535 x
  // 65,535.
  RULE(grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_x <= 0x7fffffff && grid_y <= 65'535 && grid_z <= 65'535,
       "the grid has a size that devices have", CUDA_ERROR_INVALID_VALUE);
  RULE(std::uint64_t{block_x} * block_y * block_z - 1 < 1024, "the block has a size that devices have",
       CUDA_ERROR_INVALID_VALUE);
  RULE(shared <= 48 * KiB, "a block has 48 KiB of shared memory", CUDA_ERROR_INVALID_VALUE);
  RULE(parameters != nullptr && extra == nullptr, "\"kernelParams and extra\": one of them", CUDA_ERROR_INVALID_VALUE);
  DeviceJob job;
  bool there = true;
  job.run = launch_kernel(function, parameters, [&](CUdeviceptr begin, Bytes bytes, bool write) {
    there = there && call.touch_device(job, begin, bytes, write);
  });
  RULE(job.run != nullptr, "the function is one of cuModuleGetFunction", CUDA_ERROR_INVALID_HANDLE);
  RULE(there, "all that the kernel touches is mapped and accessible", CUDA_ERROR_ILLEGAL_ADDRESS);
  at.counts.kernels++;
  return call.submit(stream, std::move(job));
}

// ---- Streams and events ---------------------------------------------------------------------------------------------

CUresult CUDAAPI create_stream(CUstream* stream, unsigned flags) {
  RULES_CALL("cuStreamCreate");
  RULE(flags == CU_STREAM_DEFAULT || flags == CU_STREAM_NON_BLOCKING, "the flags are some of CUstream_flags",
       CUDA_ERROR_INVALID_VALUE);
  *stream = reinterpret_cast<CUstream>(++at.last_object);
  at.queue.add_stream(at.streams[*stream] = at.host.new_line(), flags == CU_STREAM_DEFAULT);
  return CUDA_SUCCESS;
}

// "In case the device is still doing work in the stream …, the function will return immediately and the resources …
// will be released automatically once the device has completed all work."
CUresult CUDAAPI destroy_stream(CUstream stream) {
  RULES_CALL("cuStreamDestroy");
  const auto found = at.streams.find(stream);
  RULE(stream != nullptr && found != at.streams.end(), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  at.queue.destroy_stream(found->second);
  at.streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI synchronize_stream(CUstream stream) {
  RULES_CALL("cuStreamSynchronize");
  const auto found = at.streams.find(stream);
  RULE(found != at.streams.end(), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  RULE(!at.captures.contains(stream), "\"the operation is not permitted when the stream is capturing\"",
       CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  return at.wait(call.lock(), at.works_of(found->second), at.queue.known_after(found->second), HowToWait::asking);
}

CUresult CUDAAPI create_event(CUevent* event, unsigned flags) {
  RULES_CALL("cuEventCreate");
  RULE((flags & ~unsigned{CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING}) == 0,
       "the flags are some of CUevent_flags", CUDA_ERROR_INVALID_VALUE);
  *event = reinterpret_cast<CUevent>(++at.last_object);
  at.events[*event].timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  at.events[*event].how = (flags & CU_EVENT_BLOCKING_SYNC) != 0 ? HowToWait::asleep : HowToWait::asking;
  return CUDA_SUCCESS;
}

// "An event may be destroyed before it is complete …. In this case, the call does not block on completion of the
// event."
CUresult CUDAAPI destroy_event(CUevent event) {
  RULES_CALL("cuEventDestroy");
  RULE(at.events.erase(event) == 1, "the event exists", CUDA_ERROR_INVALID_HANDLE);
  return CUDA_SUCCESS;
}

// "Captures in hEvent the contents of hStream at the time of this call. … cuEventRecord() can be called multiple times
// on the same event and will overwrite the previously captured state."
CUresult CUDAAPI record_event(CUevent event, CUstream stream) {
  RULES_CALL("cuEventRecord");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  const auto on = at.streams.find(stream);
  RULE(on != at.streams.end(), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  CapturedWork& captured = found->second;
  captured.works = at.works_of(on->second);
  captured.recorded_ns = at.options.model != nullptr ? at.host.now() : 0;
  captured.known = at.queue.known_after(on->second);
  captured.recorded = true;
  return CUDA_SUCCESS;
}

// "Waits until the completion of all work currently captured in hEvent." "Before the first call to cuEventRecord(), an
// event represents an empty set of work."
CUresult CUDAAPI synchronize_event(CUevent event) {
  RULES_CALL("cuEventSynchronize");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  return at.wait(call.lock(), found->second.works, found->second.known, found->second.how);
}

// "Makes all future work submitted to hStream wait for all work captured in hEvent." "Other APIs such as
// cuStreamWaitEvent() use the most recently captured state at the time of the API call, and are not affected by later
// calls to cuEventRecord()."
CUresult CUDAAPI wait_event(CUstream stream, CUevent event, unsigned flags) {
  RULES_CALL("cuStreamWaitEvent");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  const auto on = at.streams.find(stream);
  RULE(on != at.streams.end(), "the stream exists", CUDA_ERROR_INVALID_HANDLE);
  RULE(flags == CU_EVENT_WAIT_DEFAULT, "\"CU_EVENT_WAIT_EXTERNAL … is invalid outside of stream capture\"",
       CUDA_ERROR_INVALID_VALUE);
  // Too much order is a failure as well: whatever is submitted next knows what its thread does.
  at.counts.waits++;
  at.counts.stream_waits++;
  VectorClock known = at.queue.known_after(on->second);
  known.learn(at.host.clock());
  if (!known.learn(found->second.known)) {
    at.counts.implied_waits++;
    at.counts.implied_stream_waits++;
  }
  for (const Moment& work : found->second.works) at.queue.wait(on->second, work, found->second.known);
  return CUDA_SUCCESS;
}

// "Returns CUDA_SUCCESS if all captured work has been completed, or CUDA_ERROR_NOT_READY if any captured work is
// incomplete."
CUresult CUDAAPI query(CUevent event) {
  RULES_CALL("cuEventQuery");
  const auto found = at.events.find(event);
  RULE(found != at.events.end(), "the event exists", CUDA_ERROR_INVALID_HANDLE);
  if (!at.over(found->second.works)) return CUDA_ERROR_NOT_READY;
  at.host.clock().learn(found->second.known);
  return CUDA_SUCCESS;
}

// "If cuEventRecord() has not been called on either event then CUDA_ERROR_INVALID_HANDLE is returned. If … one or both
// of them has not yet been completed …, CUDA_ERROR_NOT_READY is returned. If either event was created with the
// CU_EVENT_DISABLE_TIMING flag, then this function will return CUDA_ERROR_INVALID_HANDLE."
CUresult CUDAAPI elapsed(float* milliseconds, CUevent start, CUevent end) {
  RULES_CALL("cuEventElapsedTime");
  const auto first = at.events.find(start), second = at.events.find(end);
  RULE(first != at.events.end() && second != at.events.end(), "both events exist", CUDA_ERROR_INVALID_HANDLE);
  for (const CapturedWork* event : {&first->second, &second->second}) {
    RULE(event->recorded && event->timed, "both events are recorded, and made with timing", CUDA_ERROR_INVALID_HANDLE);
  }
  if (!at.over(first->second.works) || !at.over(second->second.works)) return CUDA_ERROR_NOT_READY;
  // When the stream came to it: not before the host has recorded it.
  const auto reached_ns = [&](const CapturedWork& event) {
    Nanoseconds ns = event.recorded_ns;
    for (const Moment& work : event.works) ns = std::max(ns, at.queue.end_ns(work));
    return ns;
  };
  const Nanoseconds ns = reached_ns(second->second) - reached_ns(first->second);
  *milliseconds = static_cast<float>(static_cast<double>(ns) / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

void add_work_rules(CudaDriver& table) {
  table.cuMemcpyHtoDAsync = upload;
  table.cuMemcpyDtoHAsync = download;
  table.cuMemcpyDtoDAsync = copy_inside;
#if CUDA_VERSION >= 12080
  table.cuMemcpyBatchAsync = copy_batch;
#endif
  table.cuMemsetD8Async = fill;
  table.cuModuleLoadData = load_module;
  table.cuModuleUnload = unload_module;
  table.cuModuleGetFunction = find_function;
  table.cuLaunchKernel = launch;
  table.cuStreamCreate = create_stream;
  table.cuStreamDestroy = destroy_stream;
  table.cuStreamSynchronize = synchronize_stream;
  table.cuEventCreate = create_event;
  table.cuEventDestroy = destroy_event;
  table.cuEventRecord = record_event;
  table.cuEventSynchronize = synchronize_event;
  table.cuEventQuery = query;
  table.cuEventElapsedTime = elapsed;
  table.cuStreamWaitEvent = wait_event;
}

}  // namespace tencache::rules
