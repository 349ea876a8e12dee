#include "traces/transform/scale.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace tencache {
namespace {

std::optional<double> number(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace

double parse_scale(const std::string& option, const std::string& text) {
  const std::size_t slash = text.find('/');
  const std::optional<double> above = number(std::string_view(text).substr(0, slash));
  const std::optional<double> below =
      slash == std::string::npos ? std::optional(1.0) : number(std::string_view(text).substr(slash + 1));
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
  }
}

}  // namespace tencache
