#include "answers/prediction.h"

#include <fmt/format.h>

#include "answers/result_file.h"
#include "answers/text_table.h"
#include "core/remark.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

Json side_by_side(const Json& predicted, const Json& measured) {
  Json error;
  if (predicted.is_number() && measured.is_number() && measured.get<double>() != 0) {
    error = predicted.get<double>() / measured.get<double>() - 1;
  }
  return {{"predicted", predicted}, {"measured", measured}, {"error", error}};
}

}  // namespace

Prediction predict(const Workload& workload, const std::string& file, Timeline* timeline, Policy* in_place) {
  const PolicyChoice& policy = workload.scenario.policy;
  Prediction prediction;
  prediction.outcome =
      simulate_policy(workload, policy.name, policy.settings, {.timeline = timeline, .policy = in_place});
  prediction.references = references_of(workload);
  prediction.file = file;
  prediction.result = result_json(workload, prediction.outcome, prediction.references);
  prediction.result.erase("timing");  // of the tool: the same input gives the same bytes
  const std::string text = prediction.result.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  write_file(file, text);
  prediction.sha256 = sha256_hex(text);
  remark(fmt::format("prediction: {}, sha256 {}", file, prediction.sha256));
  return prediction;
}

Json comparison_json(const Json& predicted, const Json& measured, std::optional<double> measured_seconds) {
  if (member(predicted, "fits") != true || member(measured, "fits") != true) return nullptr;
  Json comparison;
  comparison["iteration_seconds"] =
      side_by_side(member(predicted, "iteration_seconds"),
                   measured_seconds ? Json(*measured_seconds) : member(measured, "iteration_seconds"));
  for (const auto& [name, key] : {std::pair("compute", "compute_seconds"), {"gaps", "gap_seconds"}}) {
    comparison["time_seconds"][name] = side_by_side(member(predicted, key), member(measured, key));
  }
  for (const char* group : {"stall_seconds", "busy_seconds", "traffic_bytes", "peak_bytes"}) {
    comparison[group] = Json::object();
    for (const auto& [name, value] : member(predicted, group).items()) {
      comparison[group][name] = side_by_side(value, member(member(measured, group), name));
    }
  }
  return comparison;
}

std::string comparison_text(const Json& comparison) {
  if (comparison.is_null()) return "";
  Table table({"predicted against measured", "predicted", "measured", "error"});
  const auto add = [&table](const std::string& label, const Json& pair, bool bytes) {
    const auto shown = [bytes](const Json& value) -> std::string {
      if (!value.is_number()) return "-";
      const double number = value.get<double>();
      return bytes ? format_bytes(static_cast<Bytes>(number)) : format_seconds(number);
    };
    const auto is_zero = [](const Json& value) { return !value.is_number() || value.get<double>() == 0; };
    if (is_zero(pair["predicted"]) && is_zero(pair["measured"])) return;
    table.add({label, shown(pair["predicted"]), shown(pair["measured"]),
               pair["error"].is_null() ? "-" : fmt::format("{:+.1f} %", 100 * pair["error"].get<double>())});
  };
  add("  iteration", comparison["iteration_seconds"], false);
  const auto group = [&](const char* key, const std::string& before, const std::string& after, bool bytes) {
    for (const auto& [name, pair] : comparison[key].items()) add("  " + before + name + after, pair, bytes);
  };
  group("time_seconds", "", "", false);
  group("stall_seconds", "waits for ", "", false);
  group("busy_seconds", "", " busy", false);
  group("traffic_bytes", "", " traffic", true);
  group("peak_bytes", "", " peak", true);
  return table.text();
}

}  // namespace tencache
