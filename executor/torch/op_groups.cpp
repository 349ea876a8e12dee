#include "executor/torch/op_groups.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tencache::paging {
namespace {

bool is_list(const c10::IValue& value) { return value.isList() && !value.toListRef().empty(); }

// How long its lists are; 0: no list, or lists of several lengths.
std::size_t list_length(const torch::jit::Stack& stack, std::size_t count) {
  std::size_t length = 0;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!is_list(stack[i])) continue;
    const std::size_t mine = stack[i].toListRef().size();
    if (length != 0 && mine != length) return 0;
    length = mine;
  }
  return length;
}

c10::IValue part_of(const c10::IValue& value, std::size_t begin, std::size_t end) {
  if (!is_list(value)) return value;
  c10::impl::GenericList part(value.toList().elementType());
  for (std::size_t i = begin; i < end; ++i) part.push_back(value.toListRef()[i]);
  return part;
}

std::uint64_t in_pages(std::uint64_t bytes) {
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

// Of what the op makes of an element of its lists: as much as the first of its tensors.
std::uint64_t result_bytes(const torch::jit::Stack& stack, std::size_t count, std::size_t element) {
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!is_list(stack[i])) continue;
    const c10::IValue& value = stack[i].toListRef()[element];
    if (value.isTensor() && value.toTensor().defined()) return in_pages(value.toTensor().nbytes());
  }
  return 0;
}

}  // namespace

std::vector<Group> groups_of(const torch::jit::Stack& stack, std::size_t count, std::size_t returns,
                             const OpTouch& touch, std::uint64_t group_bytes) {
  std::vector<std::uint64_t> element_bytes(list_length(stack, count), 0);
  for (const OpTouch::Argument& argument : touch.arguments) {
    if (!argument.in_list || argument.tensor == tencache_no_tensor || element_bytes.empty()) continue;
    element_bytes[argument.element] += in_pages(argument.storage->nbytes());
  }
  std::vector<Group> groups;
  std::size_t begin = 0;
  std::uint64_t bytes = 0, largest = 0;
  for (std::size_t i = 0; i < element_bytes.size(); ++i) {
    if (i == 0 || (bytes != 0 && bytes + element_bytes[i] > group_bytes)) {
      groups.emplace_back();
      begin = i;
      bytes = largest = 0;
    }
    bytes += element_bytes[i];
    largest = std::max(largest, element_bytes[i] + (returns != 0 ? result_bytes(stack, count, i) : 0));
    groups.back() = {i + 1, i > begin ? largest : 0};
  }
  return groups;
}

torch::jit::Stack group_arguments(const torch::jit::Stack& stack, std::size_t count, std::size_t begin,
                                  std::size_t end) {
  torch::jit::Stack part;
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) part.push_back(part_of(stack[i], begin, end));
  return part;
}

void add_results(std::vector<c10::IValue>& all, torch::jit::Stack& part, std::size_t returns) {
  const bool first = all.empty();
  for (std::size_t i = 0; i < returns; ++i) {
    c10::IValue& value = part[part.size() - returns + i];
    if (first) {
      all.push_back(std::move(value));
    } else if (value.isList()) {
      c10::impl::GenericList list = all[i].toList();
      for (const c10::IValue& element : value.toListRef()) list.push_back(element);
    }
  }
}

}  // namespace tencache::paging
