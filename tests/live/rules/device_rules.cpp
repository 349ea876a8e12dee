// Devices, contexts and errors.
#include <algorithm>
#include <cstring>

#include "tests/live/rules/rules_state.h"

namespace tencache::rules {
namespace {

struct NamedResult {
  CUresult result;
  const char* name;
};
constexpr NamedResult errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

CUresult CUDAAPI init(unsigned flags) {
  RULES_CALL("cuInit", Call::Needs::nothing);
  RULE(flags == 0, "\"Currently, the Flags parameter must be 0\"", CUDA_ERROR_INVALID_VALUE);
  return at.options.devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult CUDAAPI driver_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

// "If the error code is not recognized, CUDA_ERROR_INVALID_VALUE will be returned and *pStr will be set to the NULL
// address."
CUresult CUDAAPI error_name(CUresult result, const char** name) {
  const auto* found = std::ranges::find(errors, result, &NamedResult::result);
  *name = found == std::end(errors) ? nullptr : found->name;
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI error_string(CUresult result, const char** words) {
  const auto* found = std::ranges::find(errors, result, &NamedResult::result);
  *words = found == std::end(errors) ? nullptr : "words of the driver of rules";
  return *words == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI device_count(int* count) {
  RULES_CALL("cuDeviceGetCount", Call::Needs::nothing);
  *count = at.options.devices;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI device_at(CUdevice* device, int ordinal) {
  RULES_CALL("cuDeviceGet", Call::Needs::nothing);
  RULE(ordinal >= 0 && ordinal < at.options.devices, "\"an ordinal in the range [0, cuDeviceGetCount()-1]\"",
       CUDA_ERROR_INVALID_DEVICE);
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI device_name(char* name, int length, CUdevice) {
  std::strncpy(name, "RulesDriver", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI device_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  RULES_CALL("cuDeviceGetAttribute", Call::Needs::nothing);
  *value = (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED && at.options.can_map) ||
           (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED && at.options.direct_memory);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI total_memory(std::size_t* bytes, CUdevice) {
  *bytes = RulesState::active->options.memory;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI retain(CUcontext* context, CUdevice device) {
  RULES_CALL("cuDevicePrimaryCtxRetain", Call::Needs::nothing);
  RULE(device >= 0 && device < at.options.devices, "the device is one of cuDeviceGet", CUDA_ERROR_INVALID_DEVICE);
  *context = the_context;
  at.counts.contexts++;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI release(CUdevice) {
  RULES_CALL("cuDevicePrimaryCtxRelease", Call::Needs::nothing);
  RULE(at.counts.contexts > 0, "\"Releases the primary context interop on the device\": one that is retained",
       CUDA_ERROR_INVALID_CONTEXT);
  // "If there are no references left": the context and all that it has are destroyed, whatever still runs.
  RULE(at.counts.contexts > 1 || at.broken != CUDA_SUCCESS || at.queue.waiting() == 0,
       "nothing is under way when the last reference goes", CUDA_ERROR_INVALID_CONTEXT);
  at.counts.contexts--;
  return CUDA_SUCCESS;
}

// "Binds the specified CUDA context to the calling CPU thread."
CUresult CUDAAPI set_current(CUcontext context) {
  RULES_CALL("cuCtxSetCurrent", Call::Needs::nothing);
  RULE(context == nullptr || (context == the_context && at.counts.contexts > 0), "the context exists",
       CUDA_ERROR_INVALID_CONTEXT);
  at.host.own() = context;
  return CUDA_SUCCESS;
}

}  // namespace

void add_device_rules(CudaDriver& table) {
  table.cuInit = init;
  table.cuDriverGetVersion = driver_version;
  table.cuGetErrorName = error_name;
  table.cuGetErrorString = error_string;
  table.cuDeviceGetCount = device_count;
  table.cuDeviceGet = device_at;
  table.cuDeviceGetName = device_name;
  table.cuDeviceGetAttribute = device_attribute;
  table.cuDeviceTotalMem = total_memory;
  table.cuDevicePrimaryCtxRetain = retain;
  table.cuDevicePrimaryCtxRelease = release;
  table.cuCtxSetCurrent = set_current;
}

}  // namespace tencache::rules
