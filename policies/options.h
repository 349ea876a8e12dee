// Typed, documented options of a policy. A policy's constructor declares each with its default; the same declaration
// parses what the user set and fills the listing of `tencache policies`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/units.h"

namespace tencache {

class Options {
 public:
  struct Info {
    std::string name, type, default_value, unit, help;
    std::vector<std::string> choices;  // of type "choice"
  };

  // `values`: what the user set, key to text. The policy's name is for messages.
  Options(std::string policy, std::map<std::string, std::string> values = {})
      : policy_(std::move(policy)), values_(std::move(values)) {}

  // Each declares an option whose default is the variable's present value, and sets the variable if the user did.
  // They throw Error on a text that is not of the type, naming policy, option and what is valid.
  void flag(std::string_view name, bool& value, std::string_view help);
  void number(std::string_view name, std::uint64_t& value, std::string_view unit, std::string_view help);
  void real(std::string_view name, double& value, std::string_view unit, std::string_view help);  // positive or 0
  void share(std::string_view name, double& value, std::string_view help);                        // above 0, at most 1
  // `zero`: what 0 is written as.
  void bytes(std::string_view name, Bytes& value, std::string_view help, std::string_view zero = "whole");
  void choice(std::string_view name, std::string& value, std::vector<std::string> choices, std::string_view help);

  const std::vector<Info>& declared() const { return declared_; }
  // Throws Error that lists the valid names if the user set one that was not declared.
  void check_all_known() const;
  // Name to text, defaults included: for manifests.
  std::map<std::string, std::string> resolved() const;

 private:
  const std::string* declare(std::string_view name, std::string_view type, std::string default_value,
                             std::string_view unit, std::string_view help, std::vector<std::string> choices = {});
  [[noreturn]] void refuse(std::string_view name, const std::string& text, const std::string& valid) const;

  std::string policy_;
  std::map<std::string, std::string> values_;
  std::vector<Info> declared_;
};

}  // namespace tencache
