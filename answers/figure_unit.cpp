#include "answers/figure_unit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "core/error.h"
#include "core/parse_number.h"

namespace tencache {

FigureUnit unit_of(std::string_view name) {
  const auto has = [name](std::string_view part) { return name.find(part) != std::string_view::npos; };
  const auto has_any = [&has](std::initializer_list<std::string_view> parts) {
    return std::ranges::any_of(parts, has);
  };
  if (has("bytes_per_second")) return FigureUnit::bytes_per_second;
  if (has("hit_rate")) return FigureUnit::share;  // of bytes, among others
  if (has("ssd_")) return FigureUnit::drive_bytes;
  if (name.ends_with("tokens_per_second")) return FigureUnit::rate;
  if (has_any({"usd", "price_per_hour"})) return FigureUnit::usd;
  if (has("_per_") && !has("bytes_per_")) return FigureUnit::none;
  if (has("seconds")) return FigureUnit::seconds;
  if (name.ends_with("_ns") || has("_ns.")) return FigureUnit::nanoseconds;
  if (name.ends_with("_hours")) return FigureUnit::hours;
  if (name == "years") return FigureUnit::years;
  if (name == "duty") return FigureUnit::share;
  if (has_any({"bytes", "by_role."})) return FigureUnit::bytes;
  if (has_any({"utilization", "fragmentation", "padding", "efficiency", "_share"})) return FigureUnit::share;
  if (has_any({"slowdown", "speedup", "relative_time"})) return FigureUnit::factor;
  const std::size_t last = name.rfind('.') + 1;  // npos: the beginning
  return name.substr(last) == "error" || name.ends_with("_error") || name.substr(last) == "share" ? FigureUnit::share
                                                                                                  : FigureUnit::none;
}

FigureUnit unit_named(std::string_view name) {
  if (name == "bytes_per_second") return FigureUnit::bytes_per_second;
  if (name == "bytes") return FigureUnit::bytes;
  if (name == "parameters_per_second") return FigureUnit::parameters_per_second;
  return name == "factor" ? FigureUnit::factor : FigureUnit::none;
}

std::string words_of(FigureUnit unit) {
  switch (unit) {
    case FigureUnit::seconds:
      return "seconds";
    case FigureUnit::bytes:
      return "bytes";
    case FigureUnit::bytes_per_second:
      return "bytes per second";
    case FigureUnit::parameters_per_second:
      return "parameters per second";
    case FigureUnit::factor:
      return "factor";
    default:
      return "";
  }
}

FigureUnit unit_of_metric(std::string_view metric, bool ratio) {
  if (ratio) return FigureUnit::ratio;
  if (metric.find("bytes") != std::string_view::npos && !metric.starts_with("hit_rate")) return FigureUnit::drive_bytes;
  return metric.starts_with("hit_rate") ? FigureUnit::share : FigureUnit::seconds;
}

const char* label_of(Phase phase) {
  static const char* const labels[] = {"forward", "loss", "backward", "optimizer", "prefill", "decode"};
  static_assert(std::size(labels) == phase_count);
  return labels[static_cast<std::size_t>(phase)];
}

const char* label_of(Role role) {
  static const char* const labels[] = {"parameters", "gradients", "activations", "optimizer state", "master parameters",
                                       "inputs",     "workspace", "KV cache",    "experts"};
  static_assert(std::size(labels) == role_count);
  return labels[static_cast<std::size_t>(role)];
}

std::string duration_text(Nanoseconds duration) {
  const auto ns = static_cast<double>(duration);
  const double size = std::abs(ns);
  const auto [unit, scale] = size >= 1e9   ? std::pair("s", 1e9)
                             : size >= 1e6 ? std::pair("ms", 1e6)
                             : size >= 1e3 ? std::pair("µs", 1e3)
                                           : std::pair("ns", 1.0);
  const int decimals = scale == 1 ? 0 : size / scale >= 100 ? 1 : size / scale >= 10 ? 2 : 3;
  return fmt::format("{:.{}f} {}", ns / scale, decimals, unit);
}

std::string round_figure(std::string text) {
  const std::size_t point = text.find('.');
  if (point != std::string::npos) {
    const std::size_t end = std::min(text.find_first_not_of("0123456789", point + 1), text.size());
    const std::size_t last = text.find_last_not_of('0', end - 1);
    const std::size_t keep = last == point ? point : last + 1;
    text.erase(keep, end - keep);
  }
  const std::size_t unit = text.find(' ');
  return text.substr(0, unit) == "0" ? "0" : text;
}

std::string seconds_text(double seconds) { return duration_text(std::llround(seconds * 1e9)); }

std::string percent(double share) {
  const double value = 100 * share;
  return fmt::format("{:.{}f} %", value, std::abs(value) >= 99.5 || value == 0 ? 0 : 1);
}

double round_step(double most) {
  if (!(most > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(most / 4)));
  for (const double factor : {5.0, 2.0}) {
    if (most / (power * factor) >= 4) return power * factor;
  }
  return power;
}

std::string number_text(double value) {
  constexpr double exact = 9.007e15;  // whole numbers below it are
  return value == std::round(value) && std::abs(value) < exact ? fmt::format("{:.0f}", value)
                                                               : fmt::format("{}", value);
}

std::string usd_text(double usd) {
  if (usd >= 1e-4 || usd <= 0) return fmt::format("${:.4g}", usd);
  const int decimals = 3 - static_cast<int>(std::floor(std::log10(usd)));  // never "1e-05"
  return round_figure(fmt::format("${:.{}f}", usd, std::min(decimals, 15)));
}

std::string moved_text(double bytes) {
  const double value = bytes / (bytes >= 1e9 ? 1e9 : 1e6);
  return fmt::format("{:.{}f} {}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2, bytes >= 1e9 ? "GB" : "MB");
}

std::string drive_bytes_text(double bytes) {
  return bytes >= 1e12 ? fmt::format("{:.4g} TB", bytes * 1e-12) : fmt::format("{:.4g} GB", bytes * 1e-9);
}

std::string with_unit(double value, FigureUnit unit) {
  const bool whole = value >= 0 && value < 1e18;
  if (value == 0 && unit != FigureUnit::bytes && unit != FigureUnit::share) return "0";
  switch (unit) {
    case FigureUnit::seconds:
      return std::abs(value) < 1e8 ? duration_text(std::llround(value * 1e9)) : number_text(value) + " s";
    case FigureUnit::nanoseconds:
      return std::abs(value) < 1e17 ? duration_text(std::llround(value)) : number_text(value) + " ns";
    case FigureUnit::hours:
      return fmt::format("{:.4g} h", value);
    case FigureUnit::bytes:
      return whole ? format_bytes(static_cast<Bytes>(value)) : number_text(value);
    case FigureUnit::bytes_per_second:
      return whole ? format_bandwidth(static_cast<BytesPerSecond>(value)) : number_text(value);
    case FigureUnit::parameters_per_second:
      return fmt::format("{:.4g} G/s", value * 1e-9);
    case FigureUnit::usd:
      return usd_text(value);
    case FigureUnit::share:
      return percent(value);
    case FigureUnit::factor:
      return fmt::format("× {:.4g}", value);
    case FigureUnit::ratio:
      return fmt::format("{:.3f}", value);
    case FigureUnit::rate:
      return fmt::format("{:.1f}", value);
    case FigureUnit::drive_bytes:
      return drive_bytes_text(value);
    case FigureUnit::years:
      return value >= 1 ? fmt::format("{:.3g} years", value) : fmt::format("{:.3g} days", value * 365);
    case FigureUnit::none:
      break;
  }
  return value == std::round(value) ? number_text(value) : fmt::format("{:.4g}", value);
}

std::string with_units(const std::string& text, FigureUnit unit) {
  if (unit == FigureUnit::none) return text;
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(", ", at), text.size());
    const std::optional<double> number = parse_number(std::string_view(text).substr(at, end - at));
    if (!number) return text;
    shown += (shown.empty() ? "" : ", ") + with_unit(*number, unit);
    at = end + 2;
  }
  return shown;
}

double number_with_unit(const std::string& typed, FigureUnit unit) {
  try {
    if (unit == FigureUnit::bytes) return static_cast<double>(parse_bytes(typed));
    if (unit == FigureUnit::bytes_per_second) return static_cast<double>(parse_bandwidth(typed));
  } catch (const Error&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (unit != FigureUnit::share || !typed.ends_with('%')) return std::numeric_limits<double>::quiet_NaN();
  const std::optional<double> percents = parse_number(std::string_view(typed).substr(0, typed.size() - 1));
  return percents ? *percents / 100 : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tencache
