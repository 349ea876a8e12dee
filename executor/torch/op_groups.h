// Ops on lists of tensors, in groups: parts of the lists give the same as all of them at once (OpSchema::on_lists).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/torch/op_touch.h"

namespace tencache::paging {

struct Group {
  std::size_t end = 0;           // the element behind it
  std::uint64_t part_bytes = 0;  // what its largest element takes with its result, if it has several elements
};

// Of an op with `count` arguments on top of the stack and `returns` results: each group takes at most `group_bytes` of
// the runtime's memory, or has one element. Empty: it has no lists, or lists of several lengths.
std::vector<Group> groups_of(const torch::jit::Stack& stack, std::size_t count, std::size_t returns,
                             const OpTouch& touch, std::uint64_t group_bytes);

// Calls run(part, group) for each group, with a stack of the arguments' parts; it leaves the results there. Their
// lists, one after the other, take the place of the arguments.
template <typename Run>
void run_groups(torch::jit::Stack& stack, std::size_t count, std::size_t returns, const std::vector<Group>& groups,
                const Run& run);

// ---- Implementation -------------------------------------------------------------------------------------------------

torch::jit::Stack group_arguments(const torch::jit::Stack& stack, std::size_t count, std::size_t begin,
                                  std::size_t end);
void add_results(std::vector<c10::IValue>& all, torch::jit::Stack& part, std::size_t returns);

template <typename Run>
void run_groups(torch::jit::Stack& stack, std::size_t count, std::size_t returns, const std::vector<Group>& groups,
                const Run& run) {
  std::vector<c10::IValue> results;
  std::size_t begin = 0;
  for (const Group& group : groups) {
    torch::jit::Stack part = group_arguments(stack, count, begin, group.end);
    run(part, group);
    add_results(results, part, returns);
    begin = group.end;
  }
  torch::jit::drop(stack, count);
  for (c10::IValue& value : results) stack.push_back(std::move(value));
}

}  // namespace tencache::paging
