// The registry and the options of policies: what a user may write, and what a wrong word is answered with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "policies/registry.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Pair;
using Settings = std::map<std::string, std::string>;

std::string refusal_of(const std::string& policy, const Settings& settings = {}) {
  try {
    make_policy(policy, settings);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::bad_usage);
    return error.what();
  }
  return "accepted";
}

TEST(PolicyOptionsTest, TheListingIsComplete) {
  std::vector<std::string> names;
  for (const PolicyInfo& policy : list_policies()) {
    names.push_back(policy.name);
    EXPECT_FALSE(policy.summary.empty()) << policy.name;
    EXPECT_EQ(policy.summary.find('\n'), std::string::npos) << policy.name;
    EXPECT_FALSE(policy.source.empty()) << policy.name;
    std::set<std::string> options;
    for (const Options::Info& option : policy.options) {
      EXPECT_TRUE(options.insert(option.name).second) << policy.name << " lists " << option.name << " twice";
      EXPECT_FALSE(option.help.empty()) << policy.name << " " << option.name;
      EXPECT_FALSE(option.default_value.empty()) << policy.name << " " << option.name;
      EXPECT_THAT(option.type, testing::AnyOf("flag", "number", "real", "bytes", "choice"));
      EXPECT_EQ(option.choices.empty(), option.type != "choice") << policy.name << " " << option.name;
      if (option.type == "choice") {
        EXPECT_THAT(option.choices, testing::Contains(option.default_value));
      }
    }
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"ideal", "on-demand", "layer-streaming", "zero-offload"}));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(PolicyOptionsTest, TheSystemThatRunsAPolicy) {
  std::map<RunsWith, std::set<std::string>> by_system;
  for (const PolicyInfo& policy : list_policies()) by_system[runs_with(policy.counterparts)].insert(policy.name);
  using Names = std::set<std::string>;
  EXPECT_EQ(by_system[RunsWith::deepspeed], (Names{"zero-inference", "zero-infinity", "zero-offload"}));
  EXPECT_EQ(by_system[RunsWith::fsdp], (Names{"l2l", "layer-streaming"}));
  EXPECT_EQ(by_system[RunsWith::accelerate], Names{"accelerate"});
  EXPECT_EQ(by_system[RunsWith::flexgen], Names{"flexgen"});
  EXPECT_EQ(by_system[RunsWith::llama_cpp], Names{"llama-cpp"});
  EXPECT_EQ(by_system[RunsWith::bitsandbytes], Names{"paged-optimizer"});
  EXPECT_EQ(by_system[RunsWith::oracle], Names{"ideal"});
  EXPECT_TRUE(by_system[RunsWith::artifact].empty() && by_system[RunsWith::nothing].empty());
}

TEST(PolicyOptionsTest, TheSystemDependsOnTheStep) {
  const auto system = [](const char* policy, bool training, bool placed) {
    return runs_with(counterparts_of(policy), {.training = training, .placed = placed});
  };
  EXPECT_EQ(system("zero-infinity", true, true), RunsWith::deepspeed);
  EXPECT_EQ(system("flexgen", true, false), RunsWith::tencache_run) << "FlexGen generates, it does not train";
  EXPECT_EQ(system("mlp-offload", true, true), RunsWith::artifact);
  EXPECT_EQ(system("foresight", true, false), RunsWith::tencache_run);
  EXPECT_EQ(system("foresight", true, true), RunsWith::nothing);
  EXPECT_EQ(system("ideal", true, false), RunsWith::oracle);
  EXPECT_EQ(system("a-library's-own", true, false), RunsWith::tencache_run);
}

TEST(PolicyOptionsTest, EveryListedDefaultIsAValidSetting) {
  for (const PolicyInfo& policy : list_policies()) {
    Settings defaults;
    for (const Options::Info& option : policy.options) defaults[option.name] = option.default_value;
    EXPECT_EQ(make_policy(policy.name, defaults).options, make_policy(policy.name).options) << policy.name;
    EXPECT_EQ(make_policy(policy.name).options, defaults) << policy.name;
  }
}

TEST(PolicyOptionsTest, AnUnknownPolicyIsAnsweredWithTheNames) {
  const std::string message = refusal_of("on_damand");
  EXPECT_THAT(message, HasSubstr("'on_damand'"));
  EXPECT_THAT(message, HasSubstr("on-demand"));
  EXPECT_THAT(message, HasSubstr("lists all " + std::to_string(list_policies().size())));
}

TEST(PolicyOptionsTest, ASystemsNameIsAnsweredWithItsPolicies) {
  EXPECT_THAT(refusal_of("deepspeed"),
              HasSubstr("those of deepspeed are zero-inference, zero-infinity, zero-offload;"));
  EXPECT_THAT(refusal_of("FSDP"), HasSubstr("l2l, layer-streaming"));
}

TEST(PolicyOptionsTest, NamesAreTakenAsPeopleWriteThem) {
  for (const char* name : {"on_demand", "On-Demand", "ondemand"}) EXPECT_EQ(refusal_of(name), "accepted");
}

TEST(PolicyOptionsTest, AnUnknownOptionIsAnsweredWithTheNames) {
  for (const PolicyInfo& policy : list_policies()) {
    const std::string message = refusal_of(policy.name, {{"colour", "red"}});
    EXPECT_THAT(message, AllOf(HasSubstr("'" + policy.name + "'"), HasSubstr("'colour'")));
    for (const Options::Info& option : policy.options) EXPECT_THAT(message, HasSubstr(option.name));
    if (policy.options.empty()) {
      EXPECT_THAT(message, HasSubstr("none"));
    }
  }
}

TEST(PolicyOptionsTest, AWrongChoiceIsAnsweredWithTheChoices) {
  std::size_t choices = 0;
  for (const PolicyInfo& policy : list_policies()) {
    for (const Options::Info& option : policy.options) {
      if (option.type != "choice") continue;
      const std::string message = refusal_of(policy.name, {{option.name, "neither"}});
      EXPECT_THAT(message, AllOf(HasSubstr("'" + policy.name + "'"), HasSubstr(option.name + "=neither")));
      for (const std::string& choice : option.choices) EXPECT_THAT(message, HasSubstr(choice));
      ++choices;
    }
  }
  EXPECT_GE(choices, 5U);  // on-demand has four, zero-offload one
}

TEST(PolicyOptionsTest, AWrongNumberFlagOrSizeIsRefused) {
  for (const char* text : {"two", "-1", "2.5", "2 layers", "", "99999999999999999999"}) {
    EXPECT_THAT(refusal_of("layer-streaming", {{"buffers", text}}),
                AllOf(HasSubstr("buffers=" + std::string(text)), HasSubstr("a whole number")));
  }
  for (const char* text : {"yes", "1", "True", ""}) {
    EXPECT_THAT(refusal_of("on-demand", {{"promote", text}}), HasSubstr("true or false"));
  }
  for (const char* text : {"big", "-1", "16 furlongs"}) {
    EXPECT_THAT(refusal_of("on-demand", {{"chunk", text}}),
                AllOf(HasSubstr("'on-demand'"), HasSubstr("chunk=" + std::string(text)), HasSubstr("16MiB")));
  }
  EXPECT_THAT(refusal_of("on-demand", {{"chunk", "0"}}), HasSubstr("a positive size or 'whole'"));
}

TEST(PolicyOptionsTest, SettingsReachTheLayoutAndTheManifest) {
  const MachineSpec machine = small_machine(1000);
  const MadePolicy made = make_policy("on-demand", {{"chunk", "4MiB"}, {"victim", "fifo"}, {"promote", "false"}});
  const Layout layout = made.policy->layout(machine, nullptr);
  EXPECT_EQ(layout.chunk_bytes, 4 * MiB);
  EXPECT_FALSE(layout.use_touches);
  EXPECT_FALSE(layout.promote);
  EXPECT_EQ(layout.free_dead, FreeDead::now);
  EXPECT_FALSE(layout.exclusive_copies);
  EXPECT_THAT(made.options, testing::IsSupersetOf({Pair("chunk", "4MiB"), Pair("victim", "fifo"),
                                                   Pair("promote", "false"), Pair("free_dead", "now")}));
  EXPECT_EQ(make_policy("on-demand", {{"chunk", "whole"}}).policy->layout(machine, nullptr).chunk_bytes, 0U);
}

TEST(PolicyOptionsTest, G10ModeSetsTheFourOthers) {
  const MachineSpec machine = small_machine(1000);
  const Layout layout = make_policy("on-demand", {{"mode", "g10-uvm"}}).policy->layout(machine, nullptr);
  EXPECT_EQ(layout.chunk_bytes, 2 * MiB);
  EXPECT_FALSE(layout.use_touches);
  EXPECT_EQ(layout.free_dead, FreeDead::never);
  EXPECT_TRUE(layout.exclusive_copies);
}

TEST(PolicyOptionsTest, WhatIsSetOverridesTheModeAndTheManifestSaysWhatRan) {
  const MachineSpec machine = small_machine(1000);
  const MadePolicy made = make_policy("on-demand", {{"mode", "g10-uvm"}, {"victim", "lru"}});
  EXPECT_TRUE(made.policy->layout(machine, nullptr).use_touches);
  EXPECT_EQ(made.options.at("victim"), "lru");
  EXPECT_EQ(made.options.at("free_dead"), "never");
  EXPECT_EQ(made.options.at("copies"), "exclusive");
  EXPECT_EQ(made.options.at("chunk"), std::to_string(2 * MiB));
}

TEST(PolicyOptionsTest, OverflowChoosesBetweenOutOfMemoryAndEviction) {
  const MachineSpec machine = small_machine(1000);
  EXPECT_FALSE(make_policy("zero-offload").policy->layout(machine, nullptr).fallback_eviction);
  EXPECT_TRUE(make_policy("zero-offload", {{"overflow", "evict"}}).policy->layout(machine, nullptr).fallback_eviction);
}

}  // namespace
}  // namespace tencache
