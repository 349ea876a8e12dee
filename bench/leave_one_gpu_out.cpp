// How far off the kernel model is on a GPU that nobody measured: each measured chip in turn is predicted with the
// geometric means of the other chips' constants, and without corrections, on the `judge` rows of its table. A table by
// chip and kind of kernel, and below it the largest medians, which configs/kernels/unmeasured.yaml carries as errors.
//
//   build/release/bench/leave_one_gpu_out
//
// The H100 and the H200 are one chip with two memories: neither is predicted from the other. A kind of kernel is
// predicted only from chips whose tables have rows of it. Tables come from short loops, so `sustained` is 1.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "configs/gpu_yaml.h"
#include "configs/kernel_yaml.h"
#include "core/error.h"
#include "traces/generate/kernel_model.h"

namespace tencache {
namespace {

struct Chip {
  GpuSpec gpu;
  std::vector<MeasuredKernel> rows;  // all of its table
  bool has(KernelKind kind, bool fp8 = false) const {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const MeasuredKernel& row) { return row.kernel.kind == kind && row.kernel.fp8 == fp8; });
  }
};

std::string die_of(const std::string& chip) { return chip == "h200" ? "h100" : chip; }

// A GPU of each measured chip: that of its name, or else the last, which has the most memory.
std::vector<Chip> measured_chips() {
  std::vector<Chip> chips;
  for (const GpuSpec& gpu : list_gpus()) {
    if (!gpu.kernels.measured) continue;
    auto known = std::find_if(chips.begin(), chips.end(),
                              [&](const Chip& chip) { return chip.gpu.kernels.name == gpu.kernels.name; });
    if (known == chips.end()) {
      chips.push_back({gpu, read_kernel_table(kernel_folder(), gpu.kernels.name)});
    } else if (known->gpu.name != gpu.kernels.name) {
      known->gpu = gpu;
    }
  }
  for (Chip& chip : chips) {
    chip.gpu.kernels.sustained = 1;
    // Of attention only the generations that its table has: others' constants are from papers.
    std::erase_if(chip.gpu.kernels.attention, [&](const AttentionConstants& constants) {
      return std::none_of(chip.rows.begin(), chip.rows.end(),
                          [&](const MeasuredKernel& row) { return row.kernel.attention == constants.kernel; });
    });
  }
  return chips;
}

class Mean {
 public:
  void add(double value) {
    sum_ += std::log(value);
    ++count_;
  }
  bool none() const { return count_ == 0; }
  double value() const { return std::exp(sum_ / count_); }

 private:
  double sum_ = 0;
  double count_ = 0;
};

KernelConstants mean_of(const std::vector<const Chip*>& chips) {
  KernelConstants result = chips.front()->gpu.kernels;
  result.measured_matmuls.clear();
  result.measured_matmuls_fp8.clear();
  result.measured = false;
  for (double MatmulConstants::*member :
       {&MatmulConstants::start_ns, &MatmulConstants::share, &MatmulConstants::half_tile,
        &MatmulConstants::quarter_tile, &MatmulConstants::depth, &MatmulConstants::tail, &MatmulConstants::memory_share,
        &MatmulConstants::cache_share, &MatmulConstants::split_start_ns, &MatmulConstants::fp32_share,
        &MatmulConstants::unaligned_share}) {
    for (MatmulConstants KernelConstants::*precision : {&KernelConstants::matmul, &KernelConstants::matmul_fp8}) {
      Mean mean;
      for (const Chip* chip : chips) mean.add((chip->gpu.kernels.*precision).*member);
      (result.*precision).*member = mean.value();
    }
  }
  result.attention.clear();
  std::map<std::tuple<AttentionKernel, std::uint64_t, bool>, std::vector<const AttentionConstants*>> by_kernel;
  for (const Chip* chip : chips) {
    for (const AttentionConstants& constants : chip->gpu.kernels.attention) {
      by_kernel[{constants.kernel, constants.head_dimension, constants.causal}].push_back(&constants);
    }
  }
  for (const auto& [key, all] : by_kernel) {
    AttentionConstants constants = *all.front();
    for (double AttentionConstants::*member :
         {&AttentionConstants::start_ns, &AttentionConstants::share, &AttentionConstants::depth,
          &AttentionConstants::tail, &AttentionConstants::memory_share, &AttentionConstants::cache_share,
          &AttentionConstants::backward}) {
      Mean mean;
      for (const AttentionConstants* one : all) mean.add(one->*member);
      constants.*member = mean.value();
    }
    result.attention.push_back(constants);
  }
  for (std::size_t kind = 0; kind < kernel_kind_count; ++kind) {
    for (auto KernelConstants::*by_kind : {&KernelConstants::bandwidth_share, &KernelConstants::start_ns}) {
      Mean mean;
      for (const Chip* chip : chips) {
        const double value = (chip->gpu.kernels.*by_kind)[kind];
        if (value > 0 && chip->has(static_cast<KernelKind>(kind))) mean.add(value);
      }
      (result.*by_kind)[kind] = mean.none() ? 0 : mean.value();
    }
  }
  if (result.bandwidth_share[static_cast<std::size_t>(KernelKind::elementwise)] == 0) {
    result.bandwidth_share = chips.front()->gpu.kernels.bandwidth_share;
    result.start_ns = chips.front()->gpu.kernels.start_ns;
  }
  return result;
}

// The median of |ln(modelled ÷ measured)| over the judge rows of the kind; none: the table has no such rows.
std::optional<double> median_error(const GpuSpec& gpu, const std::vector<MeasuredKernel>& rows, KernelKind kind,
                                   bool fp8) {
  const KernelModel model(gpu, Precision::bf16);
  std::vector<double> errors;
  for (const MeasuredKernel& row : rows) {
    if (!row.judge || row.kernel.kind != kind || row.kernel.fp8 != fp8) continue;
    errors.push_back(
        std::fabs(std::log(static_cast<double>(modelled_ns(model, row)) / static_cast<double>(row.time_ns))));
  }
  if (errors.empty()) return std::nullopt;
  std::sort(errors.begin(), errors.end());
  return (errors[(errors.size() - 1) / 2] + errors[errors.size() / 2]) / 2;
}

void print_table() {
  const std::vector<Chip> chips = measured_chips();
  std::map<std::string, std::pair<double, std::string>> largest;
  std::printf("%-8s %-20s %8s %13s   %s\n", "chip", "kind", "its own", "left out", "predicted from");
  const auto print_row = [&](const Chip& chip, KernelKind kind, bool fp8) {
    std::vector<const Chip*> others;
    std::string names;
    for (const Chip& other : chips) {
      if (die_of(other.gpu.kernels.name) == die_of(chip.gpu.kernels.name) || !other.has(kind, fp8)) continue;
      others.push_back(&other);
      names += (names.empty() ? "" : ", ") + other.gpu.kernels.name;
    }
    const std::optional<double> own = median_error(chip.gpu, chip.rows, kind, fp8);
    if (!own || others.empty()) return;
    GpuSpec predicted = chip.gpu;
    predicted.kernels = mean_of(others);
    const double error = *median_error(predicted, chip.rows, kind, fp8);
    const std::string name = std::string(to_string(kind)) + (fp8 ? "_fp8" : "");
    std::printf("%-8s %-20s %8.4f %13.4f   %s\n", chip.gpu.kernels.name.c_str(), name.c_str(), *own, error,
                names.c_str());
    auto& most = largest[name];
    if (error > most.first) most = {error, chip.gpu.kernels.name};
  };
  for (const Chip& chip : chips) {
    for (std::size_t i = 1; i < kernel_kind_count; ++i) print_row(chip, static_cast<KernelKind>(i), false);
    print_row(chip, KernelKind::matmul, true);
  }
  std::printf("\nlargest medians, the errors of configs/kernels/unmeasured.yaml\n");
  for (const auto& [name, most] : largest) {
    std::printf("  %s: %.4f  # %s\n", name.c_str(), most.first, most.second.c_str());
  }
}

}  // namespace
}  // namespace tencache

int main() {
  try {
    tencache::print_table();
    return 0;
  } catch (const tencache::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
