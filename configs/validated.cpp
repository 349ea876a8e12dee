#include "configs/validated.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>

#include "configs/shipped_files.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/text.h"

namespace tencache {
namespace {

// "11.4 %"; none: "none".
std::optional<double> share(const YAML::Node& node) {
  const auto text = node.as<std::string>();
  if (text == "none") return std::nullopt;
  const std::optional<double> value = parse_number(std::string_view(text).substr(0, text.rfind(" %")));
  if (!value || !text.ends_with(" %")) throw YAML::Exception(node.Mark(), "expected a percentage such as 11.4 %");
  return *value / 100;
}

}  // namespace

std::vector<Validated> read_validated() {
  const std::string file = config_file("validated.yaml");
  try {
    std::vector<Validated> list;
    for (const YAML::Node& node : YAML::LoadFile(file)) {
      Validated& added = list.emplace_back();
      added.system = node["system"].as<std::string>();
      added.machines = node["machines"].as<std::vector<std::string>>();
      const auto made_by = parse_enum<MadeBy>(node["traces"].as<std::string>());
      if (!made_by) throw YAML::Exception(node["traces"].Mark(), "expected one of " + enum_names<MadeBy>());
      added.traces = *made_by;
      added.policies = node["policies"].as<std::vector<std::string>>();
      if (node["models"]) added.models = node["models"].as<std::vector<std::string>>();
      if (node["options"]) added.options = node["options"].as<decltype(added.options)>();
      added.quantity = node["quantity"].as<std::string>();
      added.rows = node["rows"].as<std::uint64_t>();
      added.median = share(node["median"]);
      added.worst = share(node["worst"]).value_or(1);
    }
    return list;
  } catch (const YAML::Exception& error) {
    throw Error(file, static_cast<std::uint64_t>(std::max(0, error.mark.line + 1)), error.msg);
  }
}

const Validated* validated_for(const std::vector<Validated>& list, std::string_view machine, MadeBy made_by) {
  const auto found = std::ranges::find_if(list, [&](const Validated& entry) {
    return entry.traces == made_by && std::ranges::find(entry.machines, machine) != entry.machines.end();
  });
  return found == list.end() ? nullptr : &*found;
}

namespace {

bool has_options(const Validated& validated, const PolicyRun& run) {
  const auto of_policy = validated.options.find(run.policy);
  return std::ranges::all_of(run.options, [&](const auto& option) {
    const auto& [name, value] = option;
    if (of_policy != validated.options.end()) {
      const auto listed = of_policy->second.find(name);
      if (listed != of_policy->second.end()) return std::ranges::find(listed->second, value) != listed->second.end();
    }
    const auto standard = run.defaults.find(name);
    return standard != run.defaults.end() && standard->second == value;
  });
}

bool validates_policy(const Validated& validated, std::string_view policy, const Provenance& trace) {
  if (validated.quantity != "seconds" || std::ranges::find(validated.policies, policy) == validated.policies.end()) {
    return false;
  }
  if (validated.models.empty()) return true;
  const std::string* const model = trace.option("model");
  return model != nullptr && std::ranges::find(validated.models, *model) != validated.models.end();
}

}  // namespace

bool validates_time(const Validated& validated, const PolicyRun& run, const Provenance& trace) {
  return validates_policy(validated, run.policy, trace) && has_options(validated, run);
}

std::string validity_text(const Validated* validated, const PolicyRun& run, const Provenance& trace) {
  if (validated == nullptr) return "extrapolated";
  char share[32];
  std::snprintf(share, sizeof share, "%.1f", 100 * validated->worst);
  if (validates_time(*validated, run, trace)) {
    return std::string("validated within ") + share + " % (" + validated->system + ")";
  }
  return "extrapolated (on this machine " + validated->quantity + " of " + join(validated->policies) +
         (validated->models.empty() ? "" : " on " + join(validated->models)) + " were checked, within " + share + " %" +
         (validates_policy(*validated, run.policy, trace) ? ", with other options)" : ")");
}

}  // namespace tencache
