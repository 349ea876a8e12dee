// Typed, documented options of a policy. A policy's constructor declares each with its default; the same declaration
// parses what the user set and fills the listing of `tencache policies`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"

namespace tencache {

using Settings = std::map<std::string, std::string>;  // option to text, as after --set

class Options {
 public:
  struct Info {
    std::string name, type, default_value, unit, help;
    std::vector<std::string> choices;  // of type "choice"
    std::string zero;                  // of type "bytes": what 0 is written as

    // What tuning has to know (knobs.h).
    std::string why_fixed;  // empty: it is a knob, which a user of the system may turn
    // It has an effect only where each of these options has the value named.
    std::vector<std::pair<std::string, std::string>> conditions;
    bool pieces = false;  // a size of the pieces that something moves in: MiBs, or all in one

    // Said where the option is declared, such as options.choice(…).fixed(Options::rules_of_a_system).
    Info& fixed(std::string_view why);
    Info& only_with(std::string_view option, std::string_view value);
    Info& of_pieces();
  };

  // Why an option is no knob: the fastest value would be an answer to another question.
  static constexpr std::string_view rules_of_a_system = "says which system's rules hold";
  static constexpr std::string_view counts_misfits = "says whether what does not fit counts as a result";
  static constexpr std::string_view ablation = "the paper's ablation";
  static constexpr std::string_view machine_figure = "a figure of the machine";
  static constexpr std::string_view follows = "follows from the others";

  // `values`: what the user set, key to text. The policy's name is for messages.
  Options(std::string policy, Settings values = {}) : policy_(std::move(policy)), values_(std::move(values)) {}

  // Each declares an option whose default is the variable's present value, and sets the variable if the user did.
  // They throw Error on a text that is not of the type, naming policy, option and what is valid. What they return is
  // valid until the next option is declared.
  Info& flag(std::string_view name, bool& value, std::string_view help);
  Info& number(std::string_view name, std::uint64_t& value, std::string_view unit, std::string_view help);
  Info& real(std::string_view name, double& value, std::string_view unit, std::string_view help);  // positive or 0
  Info& share(std::string_view name, double& value, std::string_view help);                        // above 0, at most 1
  // `zero`: what 0 is written as.
  Info& bytes(std::string_view name, Bytes& value, std::string_view help, std::string_view zero = "whole");
  Info& choice(std::string_view name, std::string& value, std::vector<std::string> choices, std::string_view help);

  const std::vector<Info>& declared() const { return declared_; }
  // Throws Error that lists the valid names if the user set one that was not declared.
  void check_all_known() const;
  // Name to text, defaults included: for manifests.
  Settings resolved() const;

 private:
  const std::string* declare(std::string_view name, std::string_view type, std::string default_value,
                             std::string_view unit, std::string_view help, std::vector<std::string> choices = {});
  [[noreturn]] void refuse(std::string_view name, const std::string& text, const std::string& valid) const;

  std::string policy_;
  Settings values_;
  std::vector<Info> declared_;
};

}  // namespace tencache
