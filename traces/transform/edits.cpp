#include "traces/transform/edits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <string_view>
#include <unordered_map>

#include "core/error.h"
#include "core/parse_number.h"

namespace tencache {
namespace {

// Neutral names by number, one for each name that is replaced.
class Numbers {
 public:
  explicit Numbers(NamePool& names) : names_(names) {}
  NameId operator()(NameId old, std::string_view prefix) {
    if (old == 0) return 0;
    const auto [found, added] = number_of_.try_emplace(old, number_of_.size());
    std::string name(prefix);
    name += '.';
    name += std::to_string(found->second);
    return names_.intern(name);
  }

 private:
  NamePool& names_;
  std::unordered_map<NameId, std::size_t> number_of_;
};

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

Trace strip_names(const Trace& trace) {
  Trace stripped;
  stripped.header = trace.header;
  stripped.header.model = "model";
  stripped.header.provenance.made_with.clear();
  stripped.header.recorded_by = "names stripped";
  stripped.kernels = trace.kernels;
  stripped.details = trace.details;
  std::array<std::size_t, role_count> numbers{};
  for (const Tensor& tensor : trace.tensors) {
    std::string name(to_string(tensor.role));
    name += '.';
    name += std::to_string(numbers[static_cast<std::size_t>(tensor.role)]++);
    const TensorId id = stripped.add_tensor(name, tensor.bytes, tensor.role, tensor.persistent);
    stripped.tensors[id].stored_bytes = tensor.stored_bytes;
    stripped.tensors[id].profiled_uses = tensor.profiled_uses;
  }
  Numbers ops(stripped.names), modules(stripped.names), keys(stripped.names);
  for (const Op& recorded : trace.ops) {
    Op op = recorded;
    const std::string_view name = trace.name(recorded);
    const bool attention =
        name.find("flash") != std::string_view::npos || name.find("scaled_dot_product") != std::string_view::npos;
    op.name = ops(recorded.name, attention ? "scaled_dot_product" : "op");
    op.module = modules(recorded.module, "module");
    op.rendezvous = keys(recorded.rendezvous, "rendezvous");
    stripped.add_op(op, trace.reads(recorded), trace.writes(recorded), trace.frees(recorded));
  }
  stripped.choices = trace.choices;
  for (RecomputeChoice& choice : stripped.choices) choice.module = modules(choice.module, "module");
  return stripped;
}

Trace jittered(Trace trace, double spread, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (Op& op : trace.ops) {
    // From -1 to 1, in steps that a double holds exactly.
    const double position = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
    const double factor = 1 + spread * std::fabs(position);
    const auto duration = static_cast<double>(op.duration_ns);
    op.duration_ns = std::llround(position < 0 ? duration / factor : duration * factor);
  }
  return trace;
}

double parse_scale(const std::string& option, const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::optional<double> above = parse_number(std::string_view(text).substr(0, slash));
  const std::optional<double> below =
      slash == std::string::npos ? std::optional(1.0) : parse_number(std::string_view(text).substr(slash + 1));
  if (above && below && *below > 0) {
    const double factor = *above / *below;
    if (factor >= 0 && factor <= 1) return factor;
  }
  throw Error(option + " " + text + ": give a factor from 0 to 1, such as 1/1024 or 0.25");
}

void scale_trace(Trace& trace, double bytes_factor, double time_factor) {
  const auto scaled_bytes = [bytes_factor](Bytes bytes) {
    return bytes_factor == 1 ? bytes : static_cast<Bytes>(static_cast<double>(bytes) * bytes_factor);
  };
  const auto scaled_time = [time_factor](Nanoseconds time_ns) {
    return time_factor == 1 ? time_ns : static_cast<Nanoseconds>(static_cast<double>(time_ns) * time_factor);
  };
  for (Tensor& tensor : trace.tensors) {
    tensor.bytes = std::max<Bytes>(1, scaled_bytes(tensor.bytes));
    if (tensor.stored_bytes != 0) tensor.stored_bytes = std::max<Bytes>(1, scaled_bytes(tensor.stored_bytes));
  }
  for (OpDetail& detail : trace.details) {  // 0 would mean "not known"
    if (detail.cpu_duration_ns != 0) {
      detail.cpu_duration_ns = std::max<Nanoseconds>(1, scaled_time(detail.cpu_duration_ns));
    }
  }
  for (Op& op : trace.ops) {
    op.bytes = scaled_bytes(op.bytes);
    op.duration_ns = scaled_time(op.duration_ns);
    op.gap_before_ns = scaled_time(op.gap_before_ns);
    op.issue_ns = scaled_time(op.issue_ns);
  }
}

Trace median_trace(const std::vector<Trace>& traces) {
  Trace result = traces.front();
  for (std::size_t i = 1; i < traces.size(); ++i) require_same_program(result, traces[i], i);
  for (const auto figure : {&Op::duration_ns, &Op::gap_before_ns, &Op::issue_ns}) {
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
