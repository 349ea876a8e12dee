// All policies by name. A new policy is one file in this folder, which adds itself (policy_library.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/policy.h"
#include "policies/model_shape.h"
#include "policies/options.h"
#include "policies/policy_library.h"

namespace tencache {

struct PolicyInfo {
  std::string name;
  std::string summary;  // one line
  std::string source;   // paper or system
  std::vector<Options::Info> options;
  Counterparts counterparts = {};
};

// More policies, from `origin`; what the entries point to must outlive the process's use of the registry. Throws Error,
// and registers nothing, where a name is taken or unfit for the command line.
void register_policies(std::span<const PolicyEntry> entries, const std::string& origin);

// One whose maker is any function, which is called from whatever thread simulates. A policy registered in this way
// before is replaced; runs that have begun keep theirs.
struct PolicyMaker {
  std::string name, summary, source;
  std::function<std::unique_ptr<Policy>(Options& options)> make;
  decltype(PolicyEntry::complete) complete = nullptr;
  decltype(PolicyEntry::reserved_memory) reserved_memory = nullptr;
  Counterparts counterparts = {};
};
void register_policy(PolicyMaker maker, const std::string& origin);

// Threads may call all of these at once.

// In the order of the listing: those that the program ships by their place, then the others as they were registered.
std::vector<PolicyInfo> list_policies();

// Behind "no policy is named 'deepspeed'; ": those whose system is called so, else the nearest names.
std::string policies_like(const std::string& name);

struct MadePolicy {
  std::unique_ptr<Policy> policy;
  Settings options;  // resolved
};
// `settings`: option to text. Throws Error with the nearest names for an unknown policy or option.
MadePolicy make_policy(const std::string& name, const Settings& settings = {});

// What the policy's entry says of settings (PolicyEntry), if anything. They throw as make_policy does.
void complete(const std::string& policy, std::uint64_t largest_parameter, Settings& settings);
ReservedMemory reserved_memory(const std::string& policy, const Settings& resolved, const ModelShape& model);
// Of a policy that does not exist, none.
Counterparts counterparts_of(const std::string& policy);
// The names of the policies that have such a counterpart, in the order of the listing.
std::vector<std::string> policies_with(const std::function<bool(const Counterparts&)>& has);

}  // namespace tencache
