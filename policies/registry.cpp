#include "policies/registry.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <string_view>

#include "core/error.h"
#include "core/names.h"
#include "core/text.h"

namespace tencache {
namespace {

struct Registered {
  PolicyMaker maker;
  bool replaceable = false;
};

std::vector<PolicyEntry>& shipped() {
  static std::vector<PolicyEntry> entries;
  return entries;
}

PolicyMaker maker_of(const PolicyEntry& entry) {
  return {entry.name,     entry.summary,         entry.source,      entry.make,
          entry.complete, entry.reserved_memory, entry.counterparts};
}

void add(std::vector<Registered>& all, Registered entry, const std::string& origin) {
  const std::string& name = entry.maker.name;
  const bool fit = !name.empty() && name != "all" && name != "bound" &&
                   name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
  if (!fit) throw Error(origin, 0, "has a policy named '" + name + "'; names are of a-z, 0-9 and -, and not 'all'");
  const auto same = std::ranges::find_if(all, [&](const Registered& other) { return name == other.maker.name; });
  if (same == all.end()) {
    all.push_back(std::move(entry));
  } else if (same->replaceable && entry.replaceable) {
    *same = std::move(entry);
  } else {
    throw Error(origin, 0, "has a policy '" + name + "', which there is already; give it another name");
  }
}

struct Registry {
  // Entries come in whatever order the linker gives their files.
  Registry() {
    std::vector<PolicyEntry> entries = shipped();
    std::ranges::sort(entries, [](const PolicyEntry& a, const PolicyEntry& b) {
      return a.place != b.place ? a.place < b.place : std::string_view(a.name) < b.name;
    });
    for (const PolicyEntry& entry : entries) add(all, {maker_of(entry)}, "tencache");
  }

  std::mutex mutex;
  std::vector<Registered> all;
};
Registry& registry() {
  static Registry one;
  return one;
}

std::vector<Registered> registered() {
  const std::lock_guard lock(registry().mutex);
  return registry().all;
}

PolicyMaker maker_named(const std::string& name) {
  const std::vector<Registered> all = registered();
  std::vector<std::string> names;
  for (const auto& [maker, replaceable] : all) names.push_back(maker.name);
  const std::optional<std::string> found = match_name(name, names);
  if (!found) throw Error("no policy is named '" + name + "'; " + policies_like(name));
  return std::ranges::find(all, *found, [](const Registered& one) { return one.maker.name; })->maker;
}

}  // namespace

std::string policies_like(const std::string& name) {
  const std::string wanted = plain_name(name);
  // A system's name, which begins with a capital: "DeepSpeed", and no word such as "idle".
  const auto is_of_system = [&](const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at;
      while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end])) != 0) ++end;
      const bool capital = std::isupper(static_cast<unsigned char>(text[at])) != 0;
      if (capital && plain_name(text.substr(at, end - at)) == wanted) return true;
      at = end + 1;
    }
    return false;
  };
  std::vector<std::string> names, of_that_system;
  for (const auto& [maker, replaceable] : registered()) {
    names.push_back(maker.name);
    const std::string_view runs = to_string(runs_with(maker.counterparts));
    if (plain_name(runs) == wanted || is_of_system(maker.summary) || is_of_system(maker.source)) {
      of_that_system.push_back(maker.name);
    }
  }
  const std::string all = "; `tencache policies` lists all " + std::to_string(names.size());
  if (!of_that_system.empty()) return "those of " + name + " are " + join(of_that_system) + all;
  return valid_names(name, names, "`tencache policies`");
}

bool ship_policies(std::initializer_list<PolicyEntry> entries) {
  shipped().insert(shipped().end(), entries);
  return true;
}

void register_policies(std::span<const PolicyEntry> more, const std::string& origin) {
  const std::lock_guard lock(registry().mutex);
  std::vector<Registered> all = registry().all;
  for (const PolicyEntry& entry : more) add(all, {maker_of(entry)}, origin);
  registry().all = std::move(all);
}

void register_policy(PolicyMaker maker, const std::string& origin) {
  const std::lock_guard lock(registry().mutex);
  add(registry().all, {std::move(maker), true}, origin);
}

std::vector<PolicyInfo> list_policies() {
  std::vector<PolicyInfo> list;
  for (const auto& [maker, replaceable] : registered()) {
    Options options(maker.name);
    maker.make(options);
    list.push_back({maker.name, maker.summary, maker.source, options.declared(), maker.counterparts});
  }
  return list;
}

MadePolicy make_policy(const std::string& name, const Settings& settings) {
  const PolicyMaker maker = maker_named(name);
  Options options(name, settings);
  std::unique_ptr<Policy> policy = maker.make(options);
  options.check_all_known();
  return {std::move(policy), options.resolved()};
}

void complete(const std::string& policy, std::uint64_t largest_parameter, Settings& settings) {
  const PolicyMaker maker = maker_named(policy);
  if (maker.complete != nullptr) maker.complete(largest_parameter, settings);
}

ReservedMemory reserved_memory(const std::string& policy, const Settings& resolved, const ModelShape& model) {
  const PolicyMaker maker = maker_named(policy);
  return maker.reserved_memory == nullptr ? ReservedMemory{} : maker.reserved_memory(resolved, model);
}

Counterparts counterparts_of(const std::string& policy) {
  for (const auto& [maker, replaceable] : registered()) {
    if (maker.name == policy) return maker.counterparts;
  }
  return {};
}

std::vector<std::string> policies_with(const std::function<bool(const Counterparts&)>& has) {
  std::vector<std::string> names;
  for (const auto& [maker, replaceable] : registered()) {
    if (has(maker.counterparts)) names.push_back(maker.name);
  }
  return names;
}

}  // namespace tencache
