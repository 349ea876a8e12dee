#include "answers/recompute_plan.h"

#include <fmt/format.h>

#include <utility>

namespace tencache {

bool has_member(const PlannedRun& run, std::string_view name) {
  if (name == "reason") return !run.reason.empty();
  return name == "fits" || run.fits;
}

std::string format_plan(const RecomputePlan& plan) {
  Json head = to_json_of(plan);
  const Json layers = std::move(head["layers"]);
  head.erase("layers");
  std::string text = head.dump(2);
  text.resize(text.size() - 2);  // without "\n}"
  text += ",\n  \"layers\": [";
  for (std::size_t i = 0; i < layers.size(); ++i) text += (i == 0 ? "\n    " : ",\n    ") + layers[i].dump();
  return text + "\n  ]\n}\n";
}

void add_plan(Document& document, const RecomputePlan& plan) {
  DocumentTable table{"plan", "Recomputation", {"recomputed", "a step", "GPU memory at most"}};
  const auto add = [&table](std::string what, const PlannedRun& run) {
    table.add({std::move(what), run.fits ? seconds_cell(run.seconds) : Cell(""),
               run.fits ? bytes_cell(run.gpu_peak_bytes) : Cell("")});
    if (run.fits) return;
    table.rows.back().instead = "does not fit: " + run.reason;
    table.rows.back().line_width = 100;
  };
  const PlannedRuns& predicted = plan.predicted;
  add("nothing", predicted.keep);
  add("every layer", predicted.block);
  if (predicted.plan.fits) {
    add(fmt::format("the plan: {} of {} layers{}", plan.recomputed(), plan.layers.size(),
                    plan.micro_batches > 1 ? fmt::format(" in {} micro-batches", plan.micro_batches) : ""),
        predicted.plan);
    table.rows.back().weight = DocumentTable::Row::Weight::best;
  }
  document.add_text("\n");
  document.blocks.emplace_back(std::move(table));
  if (!predicted.plan.fits) return;
  for (const std::string& settings : settings_of_systems(plan)) {
    document.add_text(settings + "\n");
    document.add_paragraph(settings);
  }
}

}  // namespace tencache
