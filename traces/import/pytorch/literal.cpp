#include "traces/import/pytorch/literal.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <vector>

#include "core/error.h"

namespace tencache {
namespace {

constexpr int deepest = 16;

struct Value {
  enum class Kind { number, text, list } kind = Kind::text;
  std::int64_t number = 0;
  std::string_view text;
  std::vector<Value> items;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Value list() {
    Value value = parse(0);
    skip();
    if (value.kind != Value::Kind::list || !rest_.empty()) fail();
    return value;
  }

 private:
  [[noreturn]] static void fail() { throw Error("arguments that are no list in Python's notation"); }

  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\t"), rest_.size())); }

  Value parse(int depth) {
    skip();
    if (rest_.empty() || depth > deepest) fail();
    const char c = rest_.front();
    if (c == '[' || c == '(') return sequence(depth);
    if (c == '\'' || c == '"') return quoted();
    const std::size_t end = std::min(rest_.find_first_of(",])"), rest_.size());
    Value value;
    value.text = rest_.substr(0, end);
    rest_.remove_prefix(end);
    const auto [last, error] = std::from_chars(value.text.data(), value.text.data() + value.text.size(), value.number);
    if (error == std::errc() && last == value.text.data() + value.text.size()) value.kind = Value::Kind::number;
    return value;
  }

  Value sequence(int depth) {
    const char close = rest_.front() == '[' ? ']' : ')';
    rest_.remove_prefix(1);
    Value value;
    value.kind = Value::Kind::list;
    while (true) {
      skip();
      if (rest_.empty()) fail();
      if (rest_.front() == close) break;
      if (!value.items.empty()) {
        if (rest_.front() != ',') fail();
        rest_.remove_prefix(1);
        skip();
        if (!rest_.empty() && rest_.front() == close) break;  // "(1,)"
      }
      value.items.push_back(parse(depth + 1));
    }
    rest_.remove_prefix(1);
    return value;
  }

  Value quoted() {
    const char quote = rest_.front();
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail();
    Value value;
    value.text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return value;
  }

  std::string_view rest_;
};

bool is_tensor(const Value& value) {
  return value.items.size() == 6 && value.items[5].kind == Value::Kind::text &&
         std::all_of(value.items.begin(), value.items.begin() + 5,
                     [](const Value& field) { return field.kind == Value::Kind::number; });
}

void add_tensor(const Value& value, const Value* shape, std::string_view type, std::uint16_t argument, bool in_list,
                std::uint32_t position, ExecutionTrace& trace) {
  TensorRef ref;
  ref.argument = argument;
  ref.in_list = in_list;
  ref.position = position;
  std::array<std::uint64_t, 5> fields{};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (value.items[i].number < 0) throw Error("a tensor with a negative number");
    fields[i] = static_cast<std::uint64_t>(value.items[i].number);
  }
  if (fields[4] > 64 || fields[2] > largest_extent || fields[3] > largest_extent ||
      (fields[2] + fields[3]) * fields[4] > largest_extent) {
    throw Error("a tensor beyond 1 PiB, which cannot be right");
  }
  ref.tensor = fields[0];
  ref.storage = fields[1];
  ref.offset = fields[2];
  ref.numel = fields[3];
  ref.item_bytes = static_cast<std::uint8_t>(fields[4]);
  ref.extent = (ref.offset + ref.numel) * fields[4];
  const std::string_view device = value.items[5].text;
  if (!device.empty()) ref.device = device.starts_with("cpu") ? TensorDevice::host : TensorDevice::accelerator;
  ref.type = element_type(type);
  ref.first_size = static_cast<std::uint32_t>(trace.sizes.size());
  if (shape != nullptr && shape->kind == Value::Kind::list && shape->items.size() <= 64 &&
      std::ranges::all_of(shape->items,
                          [](const Value& size) { return size.kind == Value::Kind::number && size.number >= 0; })) {
    for (const Value& size : shape->items) trace.sizes.push_back(static_cast<std::uint64_t>(size.number));
    ref.rank = static_cast<std::uint16_t>(shape->items.size());
  }
  trace.refs.push_back(ref);
}

void add_list(const Value& list, const Value* shapes, std::string_view type, std::uint16_t argument,
              std::uint32_t& position, ExecutionTrace& trace) {
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const Value* shape = shapes != nullptr && i < shapes->items.size() ? &shapes->items[i] : nullptr;
    if (is_tensor(list.items[i])) {
      add_tensor(list.items[i], shape, type, argument, true, position++, trace);
    } else if (list.items[i].kind == Value::Kind::list) {
      add_list(list.items[i], shape, type, argument, position, trace);
    }
  }
}

}  // namespace

std::uint32_t read_literal_tensors(std::string_view values, std::string_view shapes, std::string_view types,
                                   ExecutionTrace& trace) {
  if (values.empty()) return 0;
  const Value value_list = Parser(values).list();
  const Value shape_list = shapes.empty() ? Value{} : Parser(shapes).list();
  const Value type_list = types.empty() ? Value{} : Parser(types).list();
  const std::size_t before = trace.refs.size();
  for (std::size_t i = 0; i < value_list.items.size(); ++i) {
    const std::string_view type = i < type_list.items.size() ? type_list.items[i].text : std::string_view();
    if (type.find("Tensor(") == std::string_view::npos) continue;
    const Value& value = value_list.items[i];
    const Value* shape = i < shape_list.items.size() ? &shape_list.items[i] : nullptr;
    const auto argument = static_cast<std::uint16_t>(std::min<std::size_t>(i, 0xffff));
    if (is_tensor(value)) {
      add_tensor(value, shape, type, argument, false, 0, trace);
    } else if (value.kind == Value::Kind::list) {
      std::uint32_t position = 0;
      add_list(value, shape, type, argument, position, trace);
    }
  }
  return static_cast<std::uint32_t>(trace.refs.size() - before);
}

}  // namespace tencache
