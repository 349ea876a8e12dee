#include "studies/validation/kernels.h"

#include <fmt/format.h>

#include <set>
#include <tuple>

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "core/error.h"
#include "studies/validation/gpu.h"
#include "traces/generate/kernel_model.h"

namespace tencache {
namespace {

// Head dimension and causality, and products in fp8, which are fitted apart; of other kinds all are one.
using Variant = std::tuple<std::uint64_t, bool, bool>;
Variant variant_of(const MeasuredKernel& row) {
  if (!is_attention(row.kernel.kind)) return {0, false, row.kernel.fp8};
  return {row.kernel.shape[5], row.kernel.causal, false};
}
// Of those of one head dimension, or in fp8: a target of its own, which goes before that of the kind. Empty: none.
std::string special_name(KernelKind kind, std::uint64_t dimension, bool fp8) {
  if (fp8) return fmt::format("{} fp8", to_string(kind));
  return dimension == 0 ? "" : fmt::format("{} {}", to_string(kind), dimension);
}

}  // namespace

void read_kernel_section(const YamlValue& item, const std::string& file, ValidationFile& result) {
  const YamlMap keys({item}, "recorded kernels", {"chip", "gpu", "source", "median"});
  FigureReader figures;
  const std::string chip = figures.text(keys.require("chip"), "kernels.chip");
  const std::string gpu = figures.text(keys.require("gpu"), "kernels.gpu");
  std::vector<MeasuredKernel> table;
  try {
    read_gpu(gpu);
    table = read_kernel_table(kernel_folder(), chip);
  } catch (const Error& error) {
    fail_at(item, std::string("kernels: ") + error.what());
  }
  std::map<KernelKind, std::set<Variant>> variants;  // of the judged kernels
  for (const MeasuredKernel& row : table) {
    if (row.judge) variants[row.kernel.kind].insert(variant_of(row));
  }
  ValidationExperiment experiment;
  experiment.name = "kernels on " + chip;
  if (const auto value = keys.get("source")) experiment.source = figures.text(*value, "kernels.source");
  std::vector<std::string> valid;
  for (const auto& [kind, of_kind] : variants) {
    valid.emplace_back(to_string(kind));
    for (const auto& [dimension, causal, fp8] : of_kind) {
      if (const std::string special = special_name(kind, dimension, fp8); !special.empty()) valid.push_back(special);
    }
  }
  const YamlValue limits = keys.require("median");
  const YamlMap targets({limits}, "kernels.median", valid);
  for (const auto& [kind, of_kind] : variants) {
    for (const auto& [dimension, causal, fp8] : of_kind) {
      const std::string name = std::string(to_string(kind)), special = special_name(kind, dimension, fp8);
      const auto own = special.empty() ? std::nullopt : targets.get(special);
      const auto target = own || fp8 ? own : targets.get(name);
      if (!target) continue;
      ValidationRow row;
      row.kind = RowKind::kernels;
      row.name = dimension == 0 ? name + (fp8 ? ", fp8" : "")
                                : fmt::format("{}, head size {}, {}", name, dimension, causal ? "causal" : "full");
      row.kernels = {.chip = chip, .gpu = gpu, .kind = kind, .head_dimension = dimension, .causal = causal, .fp8 = fp8};
      row.kernels->target = figures.positive_number(*target, "kernels.median." + name);
      experiment.rows.push_back(std::move(row));
    }
  }
  if (experiment.rows.empty()) fail_at({limits.node, &file}, "kernels.median: names no kind of kernel");
  result.experiments.push_back(std::move(experiment));
}

KernelFigures figures_of_kernels(const KernelGroup& group) {
  GpuSpec gpu = read_gpu(group.gpu);
  gpu.kernels.sustained = 1;  // the tables are of short measurements
  const KernelModel model(std::move(gpu), Precision::bf16);
  const Variant wanted{group.head_dimension, group.causal, group.fp8};
  std::vector<double> ratios;
  for (const MeasuredKernel& row : read_kernel_table(kernel_folder(), group.chip)) {
    if (!row.judge || row.kernel.kind != group.kind || variant_of(row) != wanted) continue;
    ratios.push_back(static_cast<double>(modelled_ns(model, row)) / static_cast<double>(row.time_ns));
  }
  const RatioFigures figures = ratio_figures(std::move(ratios));
  return {.kernels = figures.rows,
          .median = figures.median_error,
          .p90 = figures.p90_error,
          .median_ratio = figures.median_ratio};
}

}  // namespace tencache
