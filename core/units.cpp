#include "core/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/error.h"

namespace tencache {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr std::array<Unit, 12> byte_units{{{"B", 1},
                                           {"kB", 1e3},
                                           {"KB", 1e3},
                                           {"MB", 1e6},
                                           {"GB", 1e9},
                                           {"TB", 1e12},
                                           {"PB", 1e15},
                                           {"KiB", 1024.0},
                                           {"MiB", 1048576.0},
                                           {"GiB", 1073741824.0},
                                           {"TiB", 1099511627776.0},
                                           {"PiB", 1125899906842624.0}}};
constexpr std::array<Unit, 5> time_units{{{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}}};

struct Quantity {
  double value = -1;        // number times unit; negative when the text is not of that form
  std::string_view number;  // as it was written
  bool has_unit = false;
};

template <std::size_t n>
Quantity parse(std::string_view text, const std::array<Unit, n>& units) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return {};
  const std::string_view number = text.substr(0, static_cast<std::size_t>(rest - text.data()));
  std::string_view suffix = text.substr(number.size());
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  if (suffix.empty()) return {.value = value, .number = number};
  for (const Unit& unit : units) {
    if (unit.suffix == suffix) return {.value = value * unit.factor, .number = number, .has_unit = true};
  }
  return {};
}

// Small letters as people write them, "64gb" and "24gib"; sizes alone: of a rate they would be bits.
std::string with_capitals(std::string_view text) {
  std::string capitals(text);
  const bool small = std::ranges::none_of(capitals, [](char c) { return c >= 'A' && c <= 'Z'; });
  for (char& c : capitals) {
    if (small && c >= 'a' && c <= 'z' && c != 'i' && c != 'e') c = static_cast<char>(c - 'a' + 'A');
  }
  return capitals;
}

[[noreturn]] void refuse(std::string_view what, std::string_view text, std::string_view example) {
  throw Error("not a " + std::string(what) + ": '" + std::string(text) + "'; write it like " + std::string(example));
}

[[noreturn]] void refuse_bare(std::string_view text, const std::string& example) {
  throw Error("'" + std::string(text) + "' has no unit; write " + example);
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  if (text == "unlimited") return unlimited;
  const double value = parse(with_capitals(text), byte_units).value;
  if (value < 0 || value > static_cast<double>(unlimited)) {
    refuse("size", text, "24GiB, 512MB, 1.5e9 or unlimited (units kB MB GB TB PB KiB MiB GiB TiB PiB)");
  }
  return static_cast<Bytes>(std::llround(value));
}

Bytes parse_capacity(std::string_view text, std::string_view unit) {
  constexpr double fewest_bare = 1e6;
  const std::string capitals = with_capitals(text);  // whose digits `quantity.number` is
  const Quantity quantity = parse(capitals, byte_units);
  if (!quantity.has_unit && quantity.value > 0 && quantity.value < fewest_bare) {
    refuse_bare(text, std::string(quantity.number).append(unit));
  }
  return parse_bytes(text);
}

Nanoseconds parse_duration(std::string_view text) {
  const Quantity quantity = parse(text, time_units);
  if (quantity.value < 0 || quantity.value > 9e18) refuse("time", text, "100ns, 10us, 1.5ms or 2s");
  if (!quantity.has_unit && quantity.value > 0) {
    const std::string number(quantity.number);
    refuse_bare(text, number + "us, " + number + "ms or " + number + "s");
  }
  return std::llround(quantity.value);
}

BytesPerSecond parse_bandwidth(std::string_view text) {
  constexpr double fewest_bytes = 1e6;  // a larger number is of bytes
  if (text == "unlimited") return unlimited;
  std::string_view number = text;
  if (number.size() > 2 && number.substr(number.size() - 2) == "/s") number.remove_suffix(2);
  const Quantity quantity = parse(number, byte_units);
  if (quantity.value < 0 || quantity.value > static_cast<double>(unlimited)) {
    refuse("bandwidth", text, "12GB/s, 800MB/s or unlimited");
  }
  if (!quantity.has_unit && quantity.value > 0) {
    char gigabytes[32];
    std::snprintf(gigabytes, sizeof gigabytes, "%.9g", quantity.value * 1e-9);
    refuse_bare(text, (quantity.value < fewest_bytes ? std::string(quantity.number) : gigabytes) + "GB/s");
  }
  return static_cast<BytesPerSecond>(std::llround(quantity.value));
}

std::string format_bytes(Bytes bytes) {
  if (bytes >= unlimited) return "unlimited";
  constexpr std::array<const char*, 6> names{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < names.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, names[unit]);
  return text;
}

std::string format_duration(Nanoseconds duration) {
  const double ns = static_cast<double>(duration);
  const double size = std::fabs(ns);
  char text[32];
  if (size >= 1e9) {
    std::snprintf(text, sizeof text, "%.3f s", ns * 1e-9);
  } else if (size >= 1e6) {
    std::snprintf(text, sizeof text, "%.3f ms", ns * 1e-6);
  } else if (size >= 1e3) {
    std::snprintf(text, sizeof text, "%.2f us", ns * 1e-3);
  } else {
    std::snprintf(text, sizeof text, "%.0f ns", ns);
  }
  return text;
}

std::string format_bandwidth(BytesPerSecond bandwidth) {
  if (bandwidth >= unlimited) return "unlimited";
  const double value = static_cast<double>(bandwidth);
  char text[32];
  std::snprintf(text, sizeof text, "%.0f B/s", value);
  for (const auto& [suffix, factor] : {Unit{"GB/s", 1e9}, Unit{"MB/s", 1e6}, Unit{"KB/s", 1e3}}) {
    if (value < factor / 10) continue;  // two digits at least
    std::snprintf(text, sizeof text, "%.2f %s", value / factor, suffix.data());
    break;
  }
  return text;
}

std::string format_seconds(double seconds) {
  if (seconds <= 0) return "0 s";
  const char* const unit = seconds >= 1 ? "s" : seconds >= 1e-3 ? "ms" : "us";
  const double value = seconds >= 1 ? seconds : seconds >= 1e-3 ? seconds * 1e3 : seconds * 1e6;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", value >= 100 ? 1 : value >= 10 ? 2 : 3, value, unit);
  return text;
}

}  // namespace tencache
