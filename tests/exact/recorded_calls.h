// Execution traces as PyTorch writes them, put together call by call for the importer's tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tencache {

// An argument or result: its JSON value, shape, type and strides.
struct RecordedValue {
  std::string value, shape, type, strides;
};

// A dense tensor of a shape in a storage. Ids are those of the recording.
inline RecordedValue tensor(std::uint64_t id, std::uint64_t storage, const std::vector<std::uint64_t>& shape,
                            const std::string& device = "cuda:0", std::uint64_t offset = 0,
                            const std::string& type = "float", std::uint64_t item_bytes = 4) {
  std::uint64_t elements = 1;
  std::string sizes, strides;
  for (const std::uint64_t size : shape) elements *= size;
  std::uint64_t stride = elements;
  for (const std::uint64_t size : shape) {
    stride /= size == 0 ? 1 : size;
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    strides += (strides.empty() ? "" : ", ") + std::to_string(stride);
  }
  // Appended piece by piece: GCC 12 warns without reason of strings that are put together in one expression.
  std::string value = "[";
  for (const std::uint64_t field : {id, storage, offset, elements, item_bytes}) {
    value += std::to_string(field);
    value += ", ";
  }
  value += '"';
  value += device;
  value += "\"]";
  return {value, '[' + sizes + ']', "Tensor(" + type + ")", '[' + strides + ']'};
}

inline RecordedValue list(const std::vector<RecordedValue>& items) {
  RecordedValue all{"[", "[", "GenericList[", "["};
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string comma = i == 0 ? "" : ", ";
    all.value += comma + items[i].value;
    all.shape += comma + items[i].shape;
    all.type += (i == 0 ? "" : ",") + items[i].type;
    all.strides += comma + items[i].strides;
  }
  for (std::string* text : {&all.value, &all.shape, &all.type, &all.strides}) *text += "]";
  return all;
}

inline RecordedValue number(double value) { return {std::to_string(value), "[]", "Double", "[]"}; }

struct RecordedCall {
  std::uint64_t id = 0, parent = 0;
  std::string name, schema;
  std::vector<RecordedValue> inputs, outputs;
  std::int64_t sequence = -1;
  int scope = 0;
  int thread = 1;
  std::uint64_t rf_id = 0;
  std::string kernel_backend;
};

// A call with a schema.
inline RecordedCall op(std::uint64_t id, std::uint64_t parent, const std::string& schema,
                       const std::vector<RecordedValue>& inputs, const std::vector<RecordedValue>& outputs,
                       std::int64_t sequence = -1) {
  const std::string name = schema.substr(0, schema.find('('));
  return {id, parent, name.substr(0, name.find('.')), schema, inputs, outputs, sequence, 0, 1, id, {}};
}

// A call without one.
inline RecordedCall around(std::uint64_t id, std::uint64_t parent, const std::string& name, int scope = 7,
                           int thread = 1, std::int64_t sequence = -1, const std::vector<RecordedValue>& inputs = {}) {
  return {id, parent, name, "", inputs, {}, sequence, scope, thread, id, {}};
}

inline std::string side_of(const std::vector<RecordedValue>& values, std::string RecordedValue::*part, bool quoted) {
  std::string all;
  for (const RecordedValue& value : values) {
    all += (all.empty() ? "" : ", ") + (quoted ? "\"" + value.*part + "\"" : value.*part);
  }
  return "[" + all + "]";
}

// The document, in one of the schemas 1.0.1, 1.1.0 and 1.1.1.
inline std::string recording(const std::vector<RecordedCall>& calls, const std::string& schema = "1.1.0-chakra.0.0.4") {
  const bool nested = schema.starts_with("1.1.");
  std::string text = "{\n  \"schema\": \"" + schema + "\", \"pid\": 7, \"time\": \"today\", \"nodes\": [";
  bool first = true;
  for (const RecordedCall& call : calls) {
    text += first ? "\n" : ",\n";
    first = false;
    const std::string id = std::to_string(call.id), parent = std::to_string(call.parent);
    const auto values = [&](const std::vector<RecordedValue>& v) { return side_of(v, &RecordedValue::value, false); };
    const auto shapes = [&](const std::vector<RecordedValue>& v) { return side_of(v, &RecordedValue::shape, false); };
    const auto types = [&](const std::vector<RecordedValue>& v) { return side_of(v, &RecordedValue::type, true); };
    if (!nested) {
      text += R"({"name": ")" + call.name + R"(", "id": )" + id + R"(, "rf_id": )" + std::to_string(call.rf_id) +
              R"(, "parent": )" + parent + R"(, "seq_id": )" + std::to_string(call.sequence) + R"(, "scope": )" +
              std::to_string(call.scope) + R"(, "tid": )" + std::to_string(call.thread) + R"(, "op_schema": ")" +
              call.schema + R"(", "inputs": )" + values(call.inputs) + R"(, "input_shapes": )" + shapes(call.inputs) +
              R"(, "input_types": )" + types(call.inputs) + R"(, "outputs": )" + values(call.outputs) +
              R"(, "output_shapes": )" + shapes(call.outputs) + R"(, "output_types": )" + types(call.outputs) + "}";
      continue;
    }
    const auto side = [&](const std::vector<RecordedValue>& v) {
      return R"({"values": )" + values(v) + R"(, "shapes": )" + shapes(v) + R"(, "types": )" + types(v) +
             (schema.starts_with("1.1.0") ? std::string()
                                          : R"(, "strides": )" + side_of(v, &RecordedValue::strides, false)) +
             "}";
    };
    text += R"({"id": )" + id + R"(, "name": ")" + call.name + R"(", "ctrl_deps": )" + parent + R"(, "inputs": )" +
            side(call.inputs) + R"(, "outputs": )" + side(call.outputs) +
            R"(, "attrs": [{"name": "rf_id", "type": "uint64", "value": )" + std::to_string(call.rf_id) +
            R"(}, {"name": "seq_id", "type": "int64", "value": )" + std::to_string(call.sequence) +
            R"(}, {"name": "scope", "type": "uint64", "value": )" + std::to_string(call.scope) +
            R"(}, {"name": "tid", "type": "uint64", "value": )" + std::to_string(call.thread) +
            R"(}, {"name": "kernel_backend", "type": "string", "value": ")" + call.kernel_backend +
            R"("}, {"name": "op_schema", "type": "string", "value": ")" + call.schema + R"("}]})";
  }
  return text + "\n  ],\n  \"finish_ts\": 9\n}\n";
}

// The bytes with a few of them changed, left out, doubled or cut off: the same for a seed.
inline std::string damaged(std::string bytes, unsigned seed) {
  std::mt19937 random(seed);
  for (unsigned change = 0; change <= seed % 4 && !bytes.empty(); ++change) {
    const std::size_t at = random() % bytes.size(), length = random() % std::min<std::size_t>(bytes.size() - at, 40);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 3:
        bytes[at] = "{}[],:\"0-9e\\"[random() % 12];
        break;
      default:
        if (random() % 8 == 0) bytes.resize(at);
        break;
    }
  }
  return bytes;
}

}  // namespace tencache
