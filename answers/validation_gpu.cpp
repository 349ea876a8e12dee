#include "answers/validation_gpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/result.h"
#include "answers/text_table.h"

namespace tencache {
namespace {

using Wanted = std::function<bool(const TrainingRatio&)>;

struct RowUse {
  const char* name;
  Wanted wanted;
};
const std::vector<RowUse>& row_uses() {
  static const std::vector<RowUse> all{{"fit", [](const TrainingRatio& r) { return r.row->fitted; }},
                                       {"judge", [](const TrainingRatio& r) { return r.judged(); }},
                                       {"list", [](const TrainingRatio& r) { return !r.row->fitted && !r.judged(); }}};
  return all;
}

struct Class {
  std::string name;
  Wanted wanted;
};

template <typename Value, typename Name>
void add_classes(std::vector<Class>& classes, std::vector<Value> values, bool sorted, Value TrainingRun::*field,
                 Name name) {
  if (sorted) std::sort(values.begin(), values.end());
  std::vector<Value> seen;
  for (const Value& value : values) {
    if (std::find(seen.begin(), seen.end(), value) != seen.end()) continue;
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

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  result.resize(result.size() - 2);
  return result;
}

}  // namespace

bool by_pattern(const std::vector<TrainingRatio>& ratios) { return ratios.size() > 30; }

std::string text_of(const Grid& grid) {
  Table table(grid.front());
  for (std::size_t i = 1; i < grid.size(); ++i) table.add(grid[i]);
  return table.text();
}

std::string markdown_of(const Grid& grid) {
  std::string text;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    for (const std::string& item : grid[i]) text += "| " + item + " ";
    text += "|\n";
    if (i != 0) continue;
    for (std::size_t column = 0; column < grid[i].size(); ++column) text += "|---";
    text += "|\n";
  }
  return text;
}

Grid pattern_grid(const std::vector<TrainingRatio>& ratios) {
  const std::vector<std::string> gpus = gpus_of(ratios);
  Grid grid{{"median ratio (rows)"}};
  grid.front().insert(grid.front().end(), gpus.begin(), gpus.end());
  for (const Class& of : classes_of(ratios)) {
    std::vector<std::string> row{of.name};
    for (const std::string& gpu : gpus) {
      const RatioFigures figures =
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && of.wanted(r); });
      row.push_back(figures.rows == 0 ? "–" : fmt::format("{:.2f} ({})", figures.median_ratio, figures.rows));
    }
    grid.push_back(std::move(row));
  }
  return grid;
}

Grid accuracy_grid(const std::vector<TrainingRatio>& ratios) {
  Grid grid{{"use", "GPU", "rows", "median ratio", "median error", "p90", "worst"}};
  const auto add = [&](const char* use, const std::string& gpu, const RatioFigures& figures) {
    if (figures.rows == 0) return;
    grid.push_back({use, gpu, std::to_string(figures.rows), fmt::format("{:.3f}", figures.median_ratio),
                    share_text(figures.median_error), share_text(figures.p90), share_text(figures.worst)});
  };
  const std::vector<std::string> gpus = gpus_of(ratios);
  for (const RowUse& use : row_uses()) {
    for (const std::string& gpu : gpus) {
      add(use.name, gpu,
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && use.wanted(r); }));
    }
    if (gpus.size() > 1) add(use.name, "all", figures_where(ratios, use.wanted));
  }
  return grid;
}

Json accuracy_json(const std::vector<TrainingRatio>& ratios) {
  Json list = Json::array();
  for (const RowUse& use : row_uses()) {
    for (const std::string& gpu : gpus_of(ratios)) {
      const RatioFigures figures =
          figures_where(ratios, [&](const TrainingRatio& r) { return r.run->gpu == gpu && use.wanted(r); });
      if (figures.rows == 0) continue;
      list.push_back({{"use", use.name},
                      {"gpu", gpu},
                      {"rows", figures.rows},
                      {"median_ratio", figures.median_ratio},
                      {"median_error", figures.median_error},
                      {"p90_error", figures.p90},
                      {"worst_error", figures.worst}});
    }
  }
  return list;
}

std::string patterns_text(const ValidationResult& result) {
  std::string text;
  for (std::size_t e = 0; e < result.rows.size(); ++e) {
    const auto ratios = training_ratios(result, e);
    if (by_pattern(ratios)) text += indented(text_of(pattern_grid(ratios))) + "\n";
  }
  if (const auto ratios = training_ratios(result); !ratios.empty()) {
    text += indented(text_of(accuracy_grid(ratios))) + "\n";
  }
  return text;
}

}  // namespace tencache
