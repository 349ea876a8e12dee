#include "policies/knobs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/split.h"
#include "core/text.h"

namespace tencache {
namespace {

// Of numbers, reals and sizes; words such as "whole" come last, "auto" too.
double rank_of(const Knob& knob, const std::string& text) {
  if (knob.unit == "bytes") {
    try {
      return static_cast<double>(parse_bytes(text));
    } catch (const Error&) {
      return HUGE_VAL;
    }
  }
  return parse_number(text).value_or(HUGE_VAL);
}

std::string text_of(double value, bool whole) {
  std::array<char, 40> text{};
  const auto end =
      whole ? std::to_chars(text.data(), text.data() + text.size(), static_cast<std::uint64_t>(std::llround(value))).ptr
            : std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::general, 6).ptr;
  return {text.data(), end};
}

std::string size_text(double bytes) {
  const auto whole = static_cast<Bytes>(std::llround(bytes));
  for (const auto& [unit, name] : {std::pair{GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}}) {
    if (whole % unit == 0) return std::to_string(whole / unit) + name;
  }
  return std::to_string(whole);
}

void add_number_values(Knob& knob, const Options::Info& option, double standard) {
  const bool whole = option.type == "number";
  std::vector<double> values;
  if (whole && standard == 0) {
    values = {1, 2, 4, 8, 16, 32, 64};
  } else if (whole && standard < 1000) {
    for (const double factor : {0.25, 0.5, 2.0, 4.0, 8.0}) values.push_back(std::round(standard * factor));
    values.insert(values.end(), {standard - 1, standard + 1});
    std::erase_if(values, [](double value) { return value < 1; });
  } else if (whole) {
    for (const double factor : {0.05, 0.2, 0.5, 2.0, 5.0, 20.0}) values.push_back(std::round(standard * factor));
  } else if (option.unit == "share") {
    values = {0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1};
  } else {
    for (const double factor : {0.25, 0.5, 0.8, 1.25, 2.0, 4.0}) values.push_back(standard * factor);
  }
  for (const double value : values) add_value(knob, text_of(value, whole));
}

void add_size_values(Knob& knob, const Options::Info& option) {
  if (const std::optional<double> standard = parse_number(option.default_value)) {
    for (const double factor : {1.0 / 16, 0.25, 4.0, 16.0}) add_value(knob, size_text(*standard * factor));
    if (option.pieces) add_value(knob, option.zero);
    return;
  }
  const double unit = static_cast<double>(option.pieces ? MiB : GiB);
  for (const double factor : {1.0, 4.0, 16.0, 64.0, 256.0}) add_value(knob, size_text(factor * unit));
}

[[noreturn]] void refuse(const Knob& knob, const std::string& values, const std::string& what) {
  throw Error("--over " + knob.name + "=" + values + ": " + what);
}

void add_range(Knob& knob, const std::string& values, std::size_t dots) {
  if (!knob.ordered) refuse(knob, values, "it is no number; list its values, such as a,b");
  const std::string low_text = values.substr(0, dots), high_text = values.substr(dots + 2);
  const double low = rank_of(knob, low_text), high = rank_of(knob, high_text);
  if (!std::isfinite(low) || !std::isfinite(high) || low < 0 || low > high) {
    refuse(knob, values, "write a range as lo..hi, such as 1..8 or 1e7..1e9");
  }
  const auto text = [&](double value) {
    return knob.unit == "bytes" ? size_text(value) : text_of(value, value == std::floor(value));
  };
  const bool each = knob.unit != "bytes" && low == std::floor(low) && high == std::floor(high) && high - low < 10;
  for (double value = low; value < high; value = each ? value + 1 : value == 0 ? 1 : 2 * value) {
    add_value(knob, text(value));
  }
  add_value(knob, text(high));
}

}  // namespace

Knob knob_of(const Options::Info& option) {
  Knob knob{.name = option.name, .values = {}, .ordered = true, .unit = option.unit, .only_with = option.conditions};
  if (option.type == "flag" || option.type == "choice") {
    knob.ordered = false;
    knob.values = option.type == "flag" ? std::vector<std::string>{"false", "true"} : option.choices;
    return knob;
  }
  add_value(knob, option.default_value);
  if (option.type == "bytes") {
    add_size_values(knob, option);
  } else {
    add_number_values(knob, option, parse_number(option.default_value).value_or(1));
  }
  return knob;
}

std::vector<Knob> knobs_of(const PolicyInfo& policy) {
  std::vector<Knob> knobs;
  for (const Options::Info& option : policy.options) {
    if (option.why_fixed.empty()) knobs.push_back(knob_of(option));
  }
  return knobs;
}

Knob restricted(Knob knob, const std::string& values) {
  const std::vector<std::string> valid = knob.values;
  knob.values.clear();
  if (const std::size_t dots = values.find(".."); dots != std::string::npos) {
    add_range(knob, values, dots);
    return knob;
  }
  for (const std::string& value : split(values)) {
    if (value.empty()) refuse(knob, values, "a value is missing; write them as a,b,c or lo..hi");
    if (!knob.ordered && std::ranges::find(valid, value) == valid.end()) {
      refuse(knob, values, "'" + value + "' is none of its values: " + join(valid));
    }
    add_value(knob, value);
  }
  return knob;
}

void add_value(Knob& knob, const std::string& value) {
  if (index_of(knob, value)) return;
  const auto larger = [&](const std::string& other) { return rank_of(knob, other) > rank_of(knob, value); };
  knob.values.insert(knob.ordered ? std::ranges::find_if(knob.values, larger) : knob.values.end(), value);
}

std::optional<std::size_t> index_of(const Knob& knob, const std::string& value) {
  for (std::size_t i = 0; i < knob.values.size(); ++i) {
    const bool same = knob.ordered && rank_of(knob, value) == rank_of(knob, knob.values[i]);
    if (same || knob.values[i] == value) return i;
  }
  return std::nullopt;
}

}  // namespace tencache
