#include "traces/transform/median_trace.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace tencache {
namespace {

bool same_op(const Trace& one, const Trace& other, OpIndex index) {
  const Op& a = one.ops[index];
  const Op& b = other.ops[index];
  return one.name(a) == other.name(b) && std::ranges::equal(one.reads(a), other.reads(b)) &&
         std::ranges::equal(one.writes(a), other.writes(b));
}

void require_same_program(const Trace& first, const Trace& other, std::size_t step) {
  std::string difference;
  if (first.ops.size() != other.ops.size() || first.tensors.size() != other.tensors.size()) {
    difference = std::to_string(other.ops.size()) + " ops and " + std::to_string(other.tensors.size()) +
                 " tensors instead of " + std::to_string(first.ops.size()) + " and " +
                 std::to_string(first.tensors.size());
  }
  for (OpIndex op = 0; op < first.ops.size() && difference.empty(); ++op) {
    if (!same_op(first, other, op)) {
      difference = "op " + std::to_string(op) + " is '" + other.name(other.ops[op]) + "', was '" +
                   first.name(first.ops[op]) + "' or uses other tensors";
    }
  }
  if (!difference.empty()) {
    throw Error("recorded step " + std::to_string(step + 1) + " differs from the first: " + difference +
                "; only programs whose steps are alike can be recorded as one trace");
  }
}

Nanoseconds median(std::vector<Nanoseconds>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Trace median_trace(const std::vector<Trace>& traces) {
  Trace result = traces.front();
  for (std::size_t i = 1; i < traces.size(); ++i) require_same_program(result, traces[i], i);
  for (const auto figure : {&Op::duration_ns, &Op::gap_before_ns}) {
    std::vector<Nanoseconds> steps;
    for (const Trace& trace : traces) {
      Nanoseconds sum = 0;
      for (const Op& op : trace.ops) sum += op.*figure;
      steps.push_back(sum);
    }
    Nanoseconds sum_of_medians = 0;
    for (OpIndex op = 0; op < result.ops.size(); ++op) {
      std::vector<Nanoseconds> values;
      for (const Trace& trace : traces) values.push_back(trace.ops[op].*figure);
      sum_of_medians += result.ops[op].*figure = median(values);
    }
    const Nanoseconds step = median(steps);
    if (sum_of_medians == 0) continue;
    for (Op& op : result.ops) {
      op.*figure = static_cast<Nanoseconds>(static_cast<double>(op.*figure) * static_cast<double>(step) /
                                            static_cast<double>(sum_of_medians));
    }
  }
  return result;
}

}  // namespace tencache
