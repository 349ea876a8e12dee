#include "executor/torch/recorder/observed_step.h"

namespace tencache {
namespace {

void append_string(std::string& json, const std::string& value) {
  json += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  json += '"';
}

void append_list(std::string& json, const Uses& values) {
  json += '[';
  for (const std::uint32_t value : values) json += (json.back() == '[' ? "" : ",") + std::to_string(value);
  json += ']';
}

void append_kernel(std::string& json, const OpKernel& kernel) {
  json += ",\"kernel\":{";
  if (!kernel.kind.empty()) {
    json += "\"kernel\":\"" + std::string(kernel.kind) + '"';
    if (kernel.numbers != 0) {
      json += ",\"shape\":[";
      for (std::size_t i = 0; i < kernel.numbers; ++i) json += (i == 0 ? "" : ",") + std::to_string(kernel.shape[i]);
      json += ']';
    }
    if (kernel.causal) json += ",\"causal\":true";
    if (!kernel.attention.empty()) json += ",\"attention_kernel\":\"" + std::string(kernel.attention) + '"';
    if (kernel.unaligned) json += ",\"unaligned\":true";
    if (kernel.launches != 1) json += ",\"launches\":" + std::to_string(kernel.launches);
  }
  json += '}';
}

}  // namespace

std::string to_json(const Step& step) {
  const std::int64_t duration_ns = step.end_ns - step.begin_ns;
  std::string json = "{\"duration_ns\":" + std::to_string(duration_ns) + ",\"tensors\":[";
  for (const SeenTensor& tensor : step.tensors) {
    if (json.back() != '[') json += ',';
    json += "{\"storage\":" + std::to_string(reinterpret_cast<std::uintptr_t>(tensor.storage)) +
            ",\"bytes\":" + std::to_string(tensor.bytes) + ",\"old\":" + (tensor.old ? "true" : "false") +
            ",\"alive\":" + (tensor.alive.expired() ? "false" : "true") + '}';
  }
  json += "],\"ops\":[";
  for (const SeenOp& op : step.ops) {
    if (op.unfinished) continue;
    if (json.back() != '[') json += ',';
    json += "{\"name\":";
    append_string(json, op.schema->name);
    json += ",\"module\":" + std::to_string(op.module) + ",\"phase\":\"" +
            (op.optimizer ? "optimizer" : (op.backward ? "backward" : "forward")) +
            "\",\"graph\":" + (op.graph ? "true" : "false") +
            ",\"uninitialised\":" + (op.schema->uninitialised ? "true" : "false");
    json += ",\"start_ns\":" + std::to_string(op.start_ns - step.begin_ns) +
            ",\"end_ns\":" + std::to_string(op.end_ns - step.begin_ns) +
            ",\"flops\":" + std::to_string(static_cast<std::uint64_t>(op.flops)) +
            ",\"bytes\":" + std::to_string(op.bytes) + ",\"temporary_bytes\":" + std::to_string(op.temporary_bytes) +
            ",\"sum\":" + (op.sum ? "true" : "false");
    append_kernel(json, op.kernel);
    json += ",\"reads\":";
    append_list(json, op.reads);
    json += ",\"writes\":";
    append_list(json, op.writes);
    json += '}';
  }
  json += "],\"compiled_regions\":[";
  for (const auto& [name, region] : step.regions) {
    if (json.back() != '[') json += ',';
    json += "{\"name\":";
    append_string(json, name);
    json +=
        ",\"calls\":" + std::to_string(region.calls) + ",\"duration_ns\":" + std::to_string(region.duration_ns) + '}';
  }
  return json + "]}";
}

}  // namespace tencache
