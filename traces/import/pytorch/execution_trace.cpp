#include "traces/import/pytorch/execution_trace.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "traces/import/pytorch/json_elements.h"

namespace tencache {
namespace {

constexpr std::size_t most_dimensions = 64;

// A value and what the recording says of it; absent parts are null elements.
struct Argument {
  dom::element value, shape, stride;
  std::string_view type;
};

// A list that goes along with another: absent in some schemas, shorter in some files.
class ListBeside {
 public:
  ListBeside() = default;
  explicit ListBeside(simdjson::simdjson_result<dom::array> list) {
    dom::array array;
    if (std::move(list).get(array)) return;
    present_ = true;
    next_ = array.begin();
    end_ = array.end();
  }
  bool present() const { return present_; }
  // The next element; false where there is none.
  bool take(dom::element& element) {
    if (!present_ || next_ == end_) return false;
    element = *next_;
    ++next_;
    return true;
  }

 private:
  bool present_ = false;
  dom::array::iterator next_, end_;
};

class ExecutionTraceReader {
 public:
  ExecutionTraceReader(const std::string& path, const ImportProgress& progress)
      : stream_(path, ".json"), elements_(stream_, "nodes", progress) {}

  ExecutionTrace read() {
    trace_.file = stream_.name();
    dom::element element;
    while (elements_.next(element)) {
      if (trace_.nodes.empty()) check_schema();
      dom::object object;
      if (element.get_object().get(object)) elements_.fail("a node that is no object; the file is damaged");
      read_node(object);
    }
    if (trace_.nodes.empty())
      throw Error(stream_.name(), 0, "has no nodes; the observer was not started, or nothing ran");
    link_nodes(trace_, parent_ids_);
    return std::move(trace_);
  }

 private:
  void check_schema() {
    std::string_view schema = elements_.document_value("schema");
    if (schema.size() >= 2) schema = schema.substr(1, schema.size() - 2);
    if (!schema.starts_with("1.0.") && !schema.starts_with("1.1.")) {
      throw Error(stream_.name(), 0,
                  schema.empty()
                      ? "does not name its \"schema\" before its nodes; it is no execution trace of PyTorch's"
                      : "has schema '" + std::string(schema.substr(0, 40)) +
                            "', which is not supported; supported are 1.0.x and 1.1.x");
    }
    trace_.schema = schema;
    // PyTorch writes "1.0.2-chakra.0.0.4" in the form of 1.1.
    nested_ = schema.starts_with("1.1.") || schema.find("-chakra") != std::string_view::npos;
  }

  [[noreturn]] void fail(const std::string& message) const {
    elements_.fail("node " + std::to_string(node_.id) + ": " + message);
  }

  static std::uint64_t number_or(dom::object object, std::string_view key, std::uint64_t otherwise) {
    std::uint64_t value = 0;
    return object[key].get_uint64().get(value) ? otherwise : value;
  }
  static std::int64_t signed_or(dom::object object, std::string_view key, std::int64_t otherwise) {
    std::int64_t value = 0;
    return object[key].get_int64().get(value) ? otherwise : value;
  }
  static std::string_view text_or_empty(dom::object object, std::string_view key) {
    std::string_view value;
    return object[key].get_string().get(value) ? std::string_view() : value;
  }

  void read_node(dom::object object) {
    node_ = {};
    if (object["id"].get_uint64().get(node_.id)) elements_.fail("a node without a number as its 'id'");
    std::string_view name;
    if (object["name"].get_string().get(name)) fail("without a text as its 'name'");
    node_.name = trace_.names.intern(name);
    std::uint64_t parent = 0;
    if (object[nested_ ? "ctrl_deps" : "parent"].get_uint64().get(parent)) {
      fail(std::string("without a number as its '") + (nested_ ? "ctrl_deps" : "parent") + "', its parent");
    }
    parent_ids_.push_back(parent);
    if (nested_) {
      read_attributes(object);
    } else {
      node_.rf_id = number_or(object, "rf_id", 0);
      node_.sequence = signed_or(object, "seq_id", -1);
      node_.thread = static_cast<std::uint32_t>(number_or(object, "tid", 0));
      node_.scope = static_cast<std::uint32_t>(number_or(object, "scope", 0));
      node_.schema = trace_.names.intern(text_or_empty(object, "op_schema"));
    }
    if (trace_.refs.size() >= none) fail("the file has more than 2^32 tensors");
    node_.first_ref = static_cast<std::uint32_t>(trace_.refs.size());
    node_.input_count = read_side(object, "input", "inputs");
    node_.output_count = read_side(object, "output", "outputs");
    trace_.nodes.push_back(node_);
  }

  void read_attributes(dom::object object) {
    dom::array attributes;
    if (object["attrs"].get_array().get(attributes)) fail("without its list 'attrs'");
    for (const dom::element entry : attributes) {
      dom::object attribute;
      if (entry.get_object().get(attribute)) continue;
      const std::string_view key = text_or_empty(attribute, "name");
      if (key == "rf_id") node_.rf_id = number_or(attribute, "value", 0);
      if (key == "seq_id") node_.sequence = signed_or(attribute, "value", -1);
      if (key == "tid") node_.thread = static_cast<std::uint32_t>(number_or(attribute, "value", 0));
      if (key == "scope") node_.scope = static_cast<std::uint32_t>(number_or(attribute, "value", 0));
      if (key == "kernel_backend") node_.compiled = text_or_empty(attribute, "value") == "triton";
      if (key == "op_schema") node_.schema = trace_.names.intern(text_or_empty(attribute, "value"));
    }
  }

  std::uint32_t read_side(dom::object object, const std::string& flat, const std::string& nested) {
    const std::size_t before = trace_.refs.size();
    dom::array values;
    ListBeside shapes, types, strides;
    if (nested_) {
      dom::object side;
      if (object[nested].get_object().get(side)) fail("without its '" + nested + "'");
      if (side["values"].get_array().get(values)) fail("'" + nested + "' has no list 'values'");
      shapes = ListBeside(side["shapes"].get_array());
      types = ListBeside(side["types"].get_array());
      strides = ListBeside(side["strides"].get_array());
    } else {
      if (object[nested].get_array().get(values)) fail("without its list '" + nested + "'");
      shapes = ListBeside(object[flat + "_shapes"].get_array());
      types = ListBeside(object[flat + "_types"].get_array());
    }
    if (!types.present()) fail("'" + nested + "' has no types, without which tensors cannot be told from numbers");
    std::size_t position = 0;
    for (const dom::element value : values) {
      Argument argument{value, {}, {}, {}};
      const bool shaped = shapes.take(argument.shape), strided = strides.take(argument.stride);
      dom::element type;
      if (!types.take(type)) break;
      if (type.get_string().get(argument.type)) argument.type = {};
      bool truth = false;
      if (position < 32 && !value.get_bool().get(truth) && truth) node_.true_arguments |= 1u << position;
      if (argument.type.find("Tensor(") != std::string_view::npos) {
        read_argument(argument, shaped, strided, static_cast<std::uint16_t>(std::min<std::size_t>(position, 0xffff)),
                      argument.type.starts_with("Tensor("));
      }
      ++position;
    }
    return static_cast<std::uint32_t>(trace_.refs.size() - before);
  }

  // A tensor, or a list of them, of lists of them, …
  void read_argument(const Argument& argument, bool shaped, bool strided, std::uint16_t index, bool is_tensor) {
    dom::array items;
    if (argument.value.get_array().get(items)) return;  // "<None>" in place of a tensor
    if (is_tensor) {
      read_tensor(items, argument, shaped, strided, index, false, 0);
      return;
    }
    std::uint32_t position = 0;
    std::string_view types = argument.type;
    read_list(items, argument, shaped, strided, index, position, types);
  }

  void read_list(dom::array items, const Argument& list, bool shaped, bool strided, std::uint16_t index,
                 std::uint32_t& position, std::string_view& types) {
    ListBeside shapes, strides;
    if (shaped) shapes = ListBeside(list.shape.get_array());
    if (strided) strides = ListBeside(list.stride.get_array());
    for (const dom::element item : items) {
      dom::array inner;
      Argument argument{item, {}, {}, types};
      const bool has_shape = shapes.take(argument.shape), has_stride = strides.take(argument.stride);
      if (item.get_array().get(inner)) continue;
      std::string_view device;
      if (inner.size() == 6 && !inner.at(5).get_string().get(device)) {
        // The types stand in the order of the tensors.
        const std::size_t begin = types.find("Tensor(");
        if (begin != std::string_view::npos) {
          const std::size_t end = types.find(')', begin);
          argument.type = types.substr(begin, end == std::string_view::npos ? end : end - begin + 1);
          types.remove_prefix(end == std::string_view::npos ? types.size() : end + 1);
        }
        read_tensor(inner, argument, has_shape, has_stride, index, true, position++);
      } else {
        read_list(inner, argument, has_shape, has_stride, index, position, types);
      }
    }
  }

  void read_tensor(dom::array fields, const Argument& argument, bool shaped, bool strided, std::uint16_t index,
                   bool in_list, std::uint32_t position) {
    TensorRef ref;
    ref.argument = index;
    ref.in_list = in_list;
    ref.position = position;
    std::uint64_t item_bytes = 0;
    std::string_view device;
    if (fields.size() != 6 || fields.at(0).get_uint64().get(ref.tensor) || fields.at(1).get_uint64().get(ref.storage) ||
        fields.at(2).get_uint64().get(ref.offset) || fields.at(3).get_uint64().get(ref.numel) ||
        fields.at(4).get_uint64().get(item_bytes) || fields.at(5).get_string().get(device)) {
      fail("a tensor that is not [tensor id, storage id, offset, elements, bytes of one, device]");
    }
    if (item_bytes > 64 || ref.offset > largest_extent || ref.numel > largest_extent) {
      fail("a tensor of " + std::to_string(ref.numel) + " elements of " + std::to_string(item_bytes) + " bytes at " +
           std::to_string(ref.offset) + ", which cannot be right");
    }
    ref.item_bytes = static_cast<std::uint8_t>(item_bytes);
    if (!device.empty()) ref.device = device.starts_with("cpu") ? TensorDevice::host : TensorDevice::accelerator;
    ref.type = element_type(argument.type);
    ref.extent = (ref.offset + ref.numel) * item_bytes;
    ref.first_size = static_cast<std::uint32_t>(trace_.sizes.size());
    if (shaped) read_shape(argument.shape, ref);
    if (strided && ref.numel > 0) read_strides(argument.stride, ref);
    if (ref.extent > largest_extent) fail("a tensor beyond 1 PiB, which cannot be right");
    trace_.refs.push_back(ref);
  }

  void read_shape(dom::element element, TensorRef& ref) {
    dom::array sizes;
    if (element.get_array().get(sizes) || sizes.size() > most_dimensions) return;
    for (const dom::element size : sizes) {
      std::uint64_t value = 0;
      if (size.get_uint64().get(value) || value > largest_extent) {  // a list of lists, or a symbolic size
        trace_.sizes.resize(ref.first_size);
        return;
      }
      trace_.sizes.push_back(value);
    }
    ref.rank = static_cast<std::uint16_t>(sizes.size());
  }

  void read_strides(dom::element element, TensorRef& ref) {
    dom::array strides;
    if (element.get_array().get(strides) || strides.size() != ref.rank) return;
    std::uint64_t last = ref.offset;
    std::size_t dimension = 0;
    for (const dom::element stride : strides) {
      std::uint64_t value = 0;
      const std::uint64_t size = trace_.sizes[ref.first_size + dimension++];
      if (stride.get_uint64().get(value) || size == 0) return;
      if (size > 1 && value > largest_extent / (size - 1)) fail("a tensor with a stride that cannot be right");
      last += (size - 1) * value;
      if (last > largest_extent) fail("a tensor beyond 1 PiB, which cannot be right");
    }
    ref.extent = (last + 1) * ref.item_bytes;
    ref.exact_extent = true;
  }

  ByteStream stream_;
  JsonElements elements_;
  ExecutionTrace trace_;
  CallNode node_;
  std::vector<std::uint64_t> parent_ids_;
  bool nested_ = false;
};

}  // namespace

ElementType element_type(std::string_view text) {
  if (text.find("BFloat16") != std::string_view::npos) return ElementType::bf16;
  if (text.find("Half") != std::string_view::npos) return ElementType::fp16;
  if (text.find("Tensor(float)") != std::string_view::npos) return ElementType::fp32;
  return ElementType::other;
}

ExecutionTrace read_execution_trace(const std::string& path, const ImportProgress& progress) {
  return ExecutionTraceReader(path, progress).read();
}

void link_nodes(ExecutionTrace& trace, const std::vector<std::uint64_t>& parent_ids) {
  std::vector<CallNode>& nodes = trace.nodes;
  if (nodes.size() >= none) throw Error(trace.file, 0, "has more than 2^32 nodes");
  std::vector<std::uint32_t> order(nodes.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) { return nodes[a].id < nodes[b].id; });
  std::unordered_map<std::uint64_t, std::uint32_t> index_of;
  index_of.reserve(nodes.size());
  std::vector<CallNode> sorted;
  sorted.reserve(nodes.size());
  for (const std::uint32_t old : order) {
    CallNode node = nodes[old];
    const auto index = static_cast<std::uint32_t>(sorted.size());
    const auto place = [&] { return "node " + std::to_string(node.id); };
    if (!index_of.emplace(node.id, index).second) {
      throw Error(trace.file, 0, place() + ": the id stands twice; the file is damaged, or two recordings in one");
    }
    const std::uint64_t parent = parent_ids[old];
    if (parent > node.id) {
      throw Error(trace.file, 0,
                  place() + ": its parent is " + std::to_string(parent) +
                      ", which begins later; the parents form a circle, or the file is damaged");
    }
    if (const auto found = index_of.find(parent); parent != node.id && found != index_of.end()) {
      node.parent = found->second;
    } else if (parent != node.id && parent != 0) {
      ++trace.orphans;
    }
    node.last = index;
    sorted.push_back(node);
  }
  nodes = std::move(sorted);
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i].parent != none) nodes[nodes[i].parent].last = std::max(nodes[nodes[i].parent].last, nodes[i].last);
  }
}

}  // namespace tencache
