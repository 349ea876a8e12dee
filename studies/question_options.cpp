#include "studies/question_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/names.h"
#include "core/parse_number.h"
#include "core/split.h"
#include "core/text.h"

namespace tencache {
namespace {

std::string without_dashes(const std::string& name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

// "--policies" of "--policies,-p,--policy" by any of the three, with or without dashes.
bool is_called(const QuestionOption& option, const std::string& name) {
  if (name.empty()) return !option.is_named();
  return std::ranges::any_of(split(option.names),
                             [&](const std::string& one) { return without_dashes(one) == without_dashes(name); });
}

template <typename Field>
QuestionOption real_option(std::string names, Field& field, double least, double most, std::string help) {
  const std::string range = fmt::format("in [{:g} - {:g}]", least, most);
  QuestionOption option{.names = std::move(names), .help = std::move(help)};
  option.type = "FLOAT:FLOAT " + range;
  option.take = [&field](const std::vector<std::string>& texts) { field = parse_number(texts.front()).value_or(0); };
  option.refusal = [least, most, range](const std::string& text) {
    const std::optional<double> value = parse_number(text);
    const bool valid = value && *value >= least && *value <= most;
    return valid ? std::string() : fmt::format("Value {} not {}", text, range);
  };
  return option;
}

QuestionOption whole_option(std::string names, std::uint64_t& field, std::string help) {
  QuestionOption option{.names = std::move(names), .help = std::move(help)};
  option.take = [&field](const std::vector<std::string>& texts) {
    field = parse_number<std::uint64_t>(texts.front()).value_or(0);
  };
  if (field != 0) option.standard = std::to_string(field);
  return option;
}

}  // namespace

QuestionOption& QuestionOption::one_of(std::vector<std::string> values) {
  const std::string list = fmt::format("{{{}}}", fmt::join(values, ","));
  type += ":" + list;
  refusal = [values = std::move(values), list](const std::string& text) {
    return std::ranges::find(values, text) != values.end() ? std::string() : text + " not in " + list;
  };
  return *this;
}

QuestionOption& QuestionOptions::text(std::string names, std::string& field, std::string help) {
  return add({.names = std::move(names),
              .help = std::move(help),
              .take = [&field](const std::vector<std::string>& texts) { field = texts.front(); },
              .standard = field});
}

QuestionOption& QuestionOptions::word(std::string names, std::string& field, std::string help) {
  QuestionOption& option = text(std::move(names), field, std::move(help));
  option.refusal = [](const std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); };
  return option;
}

QuestionOption& QuestionOptions::output(std::string names, std::string& field, std::string help) {
  return word(std::move(names), field, std::move(help)).unrecorded();
}

QuestionOption& QuestionOptions::flag(std::string names, bool& field, std::string help) {
  return add({.names = std::move(names),
              .help = std::move(help),
              .kind = QuestionOption::Kind::flag,
              .take = [&field](const std::vector<std::string>&) { field = true; }});
}

QuestionOption& QuestionOptions::list(std::string names, std::vector<std::string>& field, std::string help) {
  return add({.names = std::move(names),
              .help = std::move(help),
              .kind = QuestionOption::Kind::list,
              .take = [&field](const std::vector<std::string>& texts) { field = texts; }});
}

QuestionOption& QuestionOptions::whole(std::string names, std::uint64_t& field, std::uint64_t least, std::uint64_t most,
                                       std::string help) {
  QuestionOption option = whole_option(std::move(names), field, std::move(help));
  option.type = fmt::format("UINT:UINT in [{} - {}]", least, most);
  option.refusal = [least, most](const std::string& text) {
    const std::optional<std::uint64_t> value = parse_number<std::uint64_t>(text);
    const bool valid = value && *value >= least && *value <= most;
    return valid ? std::string() : fmt::format("Value {} not in range {} to {}", text, least, most);
  };
  return add(std::move(option));
}

QuestionOption& QuestionOptions::seed(std::string names, std::uint64_t& field, std::string help) {
  QuestionOption option = whole_option(std::move(names), field, std::move(help));
  option.type = "UINT";
  option.refusal = [](const std::string& text) {
    return parse_number<std::uint64_t>(text) ? std::string() : "'" + text + "' is no whole number from 0";
  };
  return add(std::move(option));
}

QuestionOption& QuestionOptions::real(std::string names, double& field, double least, double most, std::string help) {
  QuestionOption option = real_option(std::move(names), field, least, most, std::move(help));
  if (field != 0) option.standard = fmt::format("{:g}", field);
  return add(std::move(option));
}

QuestionOption& QuestionOptions::real(std::string names, std::optional<double>& field, double least, double most,
                                      std::string help) {
  return add(real_option(std::move(names), field, least, most, std::move(help)));
}

void QuestionOptions::set(const QuestionSettings& settings, const std::string& question) {
  for (const auto& [name, text] : settings) {
    QuestionOption* const option = find(name);
    if (option == nullptr) {
      std::vector<std::string> valid;
      for (const QuestionOption& one : options_) {
        if (one.is_named() && one.listed) valid.push_back(one.name());
      }
      throw Error(name.empty() ? "unexpected argument '" + text + "' of tencache " + question
                               : fmt::format("unknown option '--{}={}' of tencache {}; {}", without_dashes(name), text,
                                             question, valid_names(name, valid, "--help")));
    }
    const bool flag = option->kind == QuestionOption::Kind::flag;
    std::string refused = option->refusal ? option->refusal(text) : "";
    if (flag && text != "true" && text != "false") refused = "'" + text + "' is neither true nor false";
    if (!refused.empty()) throw Error(option->name() + ": " + refused);
    if (flag && text == "false") continue;
    if (option->kind == QuestionOption::Kind::text && !option->given.empty()) {
      throw Error(option->name() + " is given twice; it takes one value");
    }
    option->given.push_back(text);
  }
  for (QuestionOption& option : options_) {
    const auto is_given = [this](const std::string& name) { return !name.empty() && !find(name)->given.empty(); };
    if (option.given.empty()) {
      if (option.required) throw Error(fmt::format("{} is required of tencache {}", option.name(), question));
      continue;
    }
    if (!option.needs.empty() && !is_given(option.needs)) throw Error(option.name() + " requires " + option.needs);
    if (is_given(option.excludes)) throw Error(option.name() + " excludes " + option.excludes);
    if (option.most != 0 && option.given.size() > option.most) {
      throw Error(fmt::format("{}: at most {}, not {}", option.name(), option.most, option.given.size()));
    }
  }
  for (const QuestionOption& option : options_) {
    if (!option.given.empty()) option.take(option.given);
  }
}

QuestionOption* QuestionOptions::find(const std::string& name) {
  const auto found = std::ranges::find_if(options_, [&](const QuestionOption& one) { return is_called(one, name); });
  return found == options_.end() ? nullptr : &*found;
}

}  // namespace tencache
