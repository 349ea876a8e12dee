#include "policies/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"

namespace tencache {

Options::Info& Options::Info::fixed(std::string_view why) {
  why_fixed = why;
  return *this;
}

Options::Info& Options::Info::only_with(std::string_view option, std::string_view value) {
  conditions.emplace_back(option, value);
  return *this;
}

Options::Info& Options::Info::of_pieces() {
  pieces = true;
  return *this;
}

const std::string* Options::declare(std::string_view name, std::string_view type, std::string default_value,
                                    std::string_view unit, std::string_view help, std::vector<std::string> choices) {
  declared_.push_back({std::string(name),
                       std::string(type),
                       std::move(default_value),
                       std::string(unit),
                       std::string(help),
                       std::move(choices),
                       {},
                       {},
                       {}});
  const auto found = values_.find(std::string(name));
  return found == values_.end() ? nullptr : &found->second;
}

void Options::refuse(std::string_view name, const std::string& text, const std::string& valid) const {
  throw Error("policy '" + policy_ + "': option " + std::string(name) + "=" + text + " is not valid; write " + valid);
}

Options::Info& Options::flag(std::string_view name, bool& value, std::string_view help) {
  const std::string* text = declare(name, "flag", value ? "true" : "false", "", help);
  if (text == nullptr) return declared_.back();
  if (*text != "true" && *text != "false") refuse(name, *text, "true or false");
  value = *text == "true";
  return declared_.back();
}

Options::Info& Options::number(std::string_view name, std::uint64_t& value, std::string_view unit,
                               std::string_view help) {
  const std::string* text = declare(name, "number", std::to_string(value), unit, help);
  if (text == nullptr) return declared_.back();
  if (const auto whole = parse_number<std::uint64_t>(*text)) {
    value = *whole;
    return declared_.back();
  }
  const double number = text->find('e') == text->npos ? -1 : parse_number(*text).value_or(-1);  // 5e8
  if (!(number >= 0 && number < 0x1p53 && number == std::floor(number))) refuse(name, *text, "a whole number");
  value = static_cast<std::uint64_t>(number);
  return declared_.back();
}

Options::Info& Options::real(std::string_view name, double& value, std::string_view unit, std::string_view help) {
  std::array<char, 32> shown{};
  const auto shown_end = std::to_chars(shown.data(), shown.data() + shown.size(), value).ptr;
  const std::string* text = declare(name, "real", std::string(shown.data(), shown_end), unit, help);
  if (text == nullptr) return declared_.back();
  value = parse_number(*text).value_or(-1);
  if (value < 0) refuse(name, *text, "a number that is not negative");
  return declared_.back();
}

Options::Info& Options::share(std::string_view name, double& value, std::string_view help) {
  Info& info = real(name, value, "share", help);
  if (value <= 0 || value > 1) refuse(name, values_.at(std::string(name)), "a share above 0 and at most 1");
  return info;
}

Options::Info& Options::bytes(std::string_view name, Bytes& value, std::string_view help, std::string_view zero) {
  const std::string word(zero);
  const std::string* text = declare(name, "bytes", value == 0 ? word : std::to_string(value), "bytes", help);
  declared_.back().zero = word;
  if (text == nullptr) return declared_.back();
  try {
    value = *text == word ? 0 : parse_bytes(*text);
  } catch (const Error&) {
    refuse(name, *text, "a size such as 16MiB, or '" + word + "'");
  }
  if (*text != word && value == 0) refuse(name, *text, "a positive size or '" + word + "'");
  return declared_.back();
}

Options::Info& Options::choice(std::string_view name, std::string& value, std::vector<std::string> choices,
                               std::string_view help) {
  const std::string* text = declare(name, "choice", value, "", help, choices);
  if (text == nullptr) return declared_.back();
  if (std::ranges::find(choices, *text) == choices.end()) refuse(name, *text, "one of: " + join(choices));
  value = *text;
  return declared_.back();
}

void Options::check_all_known() const {
  for (const auto& [name, text] : values_) {
    const bool known = std::ranges::any_of(declared_, [&name = name](const Info& i) { return i.name == name; });
    if (known) continue;
    std::string valid;
    for (const Info& info : declared_) valid += (valid.empty() ? "" : ", ") + info.name;
    throw Error("policy '" + policy_ + "' has no option '" + name + "'; it has: " + (valid.empty() ? "none" : valid));
  }
}

Settings Options::resolved() const {
  Settings all;
  for (const Info& info : declared_) {
    const auto found = values_.find(info.name);
    all[info.name] = found == values_.end() ? info.default_value : found->second;
  }
  return all;
}

}  // namespace tencache
