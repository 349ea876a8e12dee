#include "answers/validation_gpu.h"

#include <fmt/format.h>

#include <algorithm>

namespace tencache {
namespace {

using Wanted = std::function<bool(const TrainingRatio&)>;

constexpr RatioUse all_uses[] = {RatioUse::fit, RatioUse::judge, RatioUse::list};

RatioUse use_of(const TrainingRatio& ratio) {
  if (ratio.fitted) return RatioUse::fit;
  return ratio.judged ? RatioUse::judge : RatioUse::list;
}

struct Class {
  std::string name;
  Wanted wanted;
};

template <typename Value, typename Name>
void add_classes(std::vector<Class>& classes, std::vector<Value> values, bool sorted, Value TrainingRun::*field,
                 Name name) {
  if (sorted) std::ranges::sort(values);
  std::vector<Value> seen;
  for (const Value& value : values) {
    if (std::ranges::find(seen, value) != seen.end()) continue;
    seen.push_back(value);
    classes.push_back({name(value), [value, field](const TrainingRatio& r) { return r.run->*field == value; }});
  }
}

std::vector<Class> classes_of(const std::vector<TrainingRatio>& ratios) {
  std::vector<std::string> models;
  std::vector<std::uint64_t> sequences, counts;
  for (const TrainingRatio& ratio : ratios) {
    models.push_back(ratio.run->model);
    sequences.push_back(ratio.run->sequence);
    counts.push_back(ratio.run->gpus);
  }
  std::vector<Class> classes;
  add_classes(classes, models, false, &TrainingRun::model, [](const std::string& name) { return name; });
  add_classes(classes, sequences, true, &TrainingRun::sequence,
              [](std::uint64_t length) { return fmt::format("{} tokens", length); });
  for (const bool again : {false, true}) {
    classes.push_back({again ? "recomputation" : "no recomputation",
                       [again](const TrainingRatio& r) { return r.run->recomputed == again; }});
  }
  add_classes(classes, counts, true, &TrainingRun::gpus,
              [](std::uint64_t count) { return fmt::format("{} GPU{}", count, count == 1 ? "" : "s"); });
  return classes;
}

std::string share_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

bool by_pattern(const std::vector<TrainingRatio>& ratios) { return ratios.size() > 30; }

DocumentTable pattern_table(const std::vector<TrainingRatio>& ratios) {
  const std::vector<std::string> gpus = gpus_of(ratios);
  DocumentTable table{"", "", {"median ratio (rows)"}};
  table.columns.insert(table.columns.end(), gpus.begin(), gpus.end());
  for (const Class& of : classes_of(ratios)) {
    std::vector<Cell> cells{of.name};
    for (const std::string& gpu : gpus) {
      const RatioFigures figures =
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && of.wanted(r); });
      cells.emplace_back(figures.rows == 0 ? "–" : fmt::format("{:.2f} ({})", figures.median_ratio, figures.rows));
    }
    table.add(std::move(cells));
  }
  return table;
}

std::vector<GpuAccuracy> accuracies_of(const std::vector<TrainingRatio>& ratios) {
  std::vector<GpuAccuracy> all;
  for (const RatioUse use : all_uses) {
    for (const std::string& gpu : gpus_of(ratios)) {
      const RatioFigures figures =
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && use_of(r) == use; });
      if (figures.rows != 0) all.push_back({{use, gpu}, figures});
    }
  }
  return all;
}

DocumentTable accuracy_table(const std::vector<TrainingRatio>& ratios) {
  DocumentTable table{"", "", {"use", "GPU", "rows", "median ratio", "median error", "p90", "worst"}};
  const auto add = [&](RatioUse use, const std::string& gpu, const RatioFigures& figures) {
    if (figures.rows == 0) return;
    table.add({name_of(use), gpu, std::to_string(figures.rows), fmt::format("{:.3f}", figures.median_ratio),
               share_text(figures.median_error), share_text(figures.p90_error), share_text(figures.worst_error)});
  };
  const std::vector<GpuAccuracy> accuracies = accuracies_of(ratios);
  for (const RatioUse use : all_uses) {
    for (const GpuAccuracy& of_gpu : accuracies) {
      if (of_gpu.use == use) add(use, of_gpu.gpu, of_gpu);
    }
    if (gpus_of(ratios).size() < 2) continue;
    add(use, "all", figures_where(ratios, [use](const TrainingRatio& r) { return use_of(r) == use; }));
  }
  return table;
}

}  // namespace tencache
