// What the tests of the generator share.
#pragma once

#include <string>

#include "configs/gpu_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "traces/generate/generate.h"

namespace tencache {

using Count = std::uint64_t;

// Four sequences of 64 tokens in fp16 on an h100.
inline GenerateOptions small(const std::string& model) {
  GenerateOptions options;
  options.model = read_model(model);
  options.gpu = read_gpu("h100");
  options.head = usual_head(options.model);
  options.batch = 4;
  if (options.model.family != ModelFamily::vit) options.sequence_lengths = {64};
  return options;
}

inline Bytes bytes_of_role(const Trace& trace, Role role, bool persistent) {
  Bytes bytes = 0;
  for (const Tensor& tensor : trace.tensors) {
    if (tensor.role == role && tensor.persistent == persistent) bytes += tensor.bytes;
  }
  return bytes;
}

inline Count flops(const Trace& trace, Phase phase) {
  Count sum = 0;
  for (const Op& op : trace.ops) {
    if (op.phase == phase) sum += op.flops;
  }
  return sum;
}

// What it is refused with.
inline std::string error_of(const GenerateOptions& options) {
  try {
    generate(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace tencache
