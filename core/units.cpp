#include "core/units.h"

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

constexpr std::array<Unit, 13> byte_units{{{"", 1},
                                           {"B", 1},
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
constexpr std::array<Unit, 6> time_units{{{"", 1e9}, {"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}}};

// Number times unit, or a negative value when the text is not of that form.
template <std::size_t n>
double parse(std::string_view text, const std::array<Unit, n>& units) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) return -1;
  std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  for (const Unit& unit : units) {
    if (unit.suffix == suffix) return value * unit.factor;
  }
  return -1;
}

[[noreturn]] void refuse(std::string_view what, std::string_view text, std::string_view example) {
  throw Error("not a " + std::string(what) + ": '" + std::string(text) + "'; write it like " + std::string(example));
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  if (text == "unlimited") return unlimited;
  const double value = parse(text, byte_units);
  if (value < 0 || value > static_cast<double>(unlimited)) {
    refuse("size", text, "24GiB, 512MB, 1.5e9 or unlimited (units kB MB GB TB PB KiB MiB GiB TiB PiB)");
  }
  return static_cast<Bytes>(std::llround(value));
}

Nanoseconds parse_duration(std::string_view text) {
  const double value = parse(text, time_units);
  if (value < 0 || value > 9e18) refuse("time", text, "100ns, 10us, 1.5ms or 2s");
  return std::llround(value);
}

BytesPerSecond parse_bandwidth(std::string_view text) {
  if (text == "unlimited") return unlimited;
  std::string_view number = text;
  if (number.size() > 2 && number.substr(number.size() - 2) == "/s") number.remove_suffix(2);
  const double value = parse(number, byte_units);
  if (value < 0 || value > static_cast<double>(unlimited)) refuse("bandwidth", text, "12GB/s, 3.2e9 or unlimited");
  return static_cast<BytesPerSecond>(std::llround(value));
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
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB/s", static_cast<double>(bandwidth) * 1e-9);
  return text;
}

}  // namespace tencache
