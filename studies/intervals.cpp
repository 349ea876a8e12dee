#include "studies/intervals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <variant>

#include "core/error.h"
#include "studies/parallel.h"

namespace tencache {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double smallest_share = 0.05;

enum class FigureKind { gpu_memory, capacity, bandwidth, time, rate };

double spread_of(FigureKind kind, const Fact& fact) {
  const std::string& confidence = fact.confidence;
  if (fact.spread > 0) return fact.spread;
  if (confidence == "published") return 0.02;
  // Even an estimate of a GPU's memory is about what the driver and libraries take of a size that is on the box.
  if (confidence == "measured" || kind == FigureKind::gpu_memory) return 0.05;
  return 0.30;
}

using FigurePointer = std::variant<std::uint64_t*, std::int64_t*, double*>;

struct FigureReference {
  std::string path;
  FigureKind kind;
  FigurePointer value;
};

// The figures of one rank that may have a fact and that a simulation depends on.
std::vector<FigureReference> figures_of(MachineSpec& machine) {
  std::vector<FigureReference> figures;
  const auto add = [&](const std::string& path, FigureKind kind, FigurePointer value) {
    figures.push_back({path, kind, value});
  };
  for (Tier& tier : machine.tiers) {
    const std::string path = "tiers." + tier.name + ".";
    add(path + "capacity", tier.kind == TierKind::gpu ? FigureKind::gpu_memory : FigureKind::capacity, &tier.capacity);
    add(path + "allocation.per_call", FigureKind::time, &tier.allocation.per_call_ns);
    add(path + "allocation.bandwidth", FigureKind::bandwidth, &tier.allocation.bandwidth);
    add(path + "bandwidth", FigureKind::bandwidth, &tier.bandwidth);
    add(path + "expand", FigureKind::bandwidth, &tier.expand_bandwidth);
  }
  for (Resource& resource : machine.resources) {
    add("resources." + resource.name + ".bandwidth", FigureKind::bandwidth, &resource.bandwidth);
  }
  for (Link& link : machine.links) {
    const std::string path = "links." + link.name + ".";
    add(path + "bandwidth", FigureKind::bandwidth, &link.bandwidth);
    add(path + "latency", FigureKind::time, &link.latency_ns);
    add(path + "sustained", FigureKind::bandwidth, &link.sustained_bandwidth);
    add(path + "burst", FigureKind::capacity, &link.burst_bytes);
    add(path + "pageable", FigureKind::bandwidth, &link.pageable_bandwidth);
  }
  add("cpu.adam_parameters_per_second", FigureKind::rate, &machine.cpu.adam_parameters_per_second);
  add("cpu.tflops", FigureKind::rate, &machine.cpu.flops_per_second);
  add("cpu.bandwidth", FigureKind::bandwidth, &machine.cpu.bandwidth);
  add("host.per_module", FigureKind::time, &machine.host.per_module_ns);
  add("host.per_transfer", FigureKind::time, &machine.host.per_transfer_ns);
  add("host.page_lock", FigureKind::bandwidth, &machine.host.lock_bandwidth);
  return figures;
}

double value_of(const FigurePointer& value) {
  return std::visit([](const auto* number) { return static_cast<double>(*number); }, value);
}

bool is_unlimited(const FigurePointer& value) {
  const auto* number = std::get_if<std::uint64_t*>(&value);
  return number != nullptr && **number >= unlimited;
}

void scale(const FigurePointer& value, double factor) {
  if (const auto* real = std::get_if<double*>(&value)) {
    **real *= factor;
  } else if (const auto* time = std::get_if<std::int64_t*>(&value)) {
    **time = std::llround(static_cast<double>(**time) * factor);
  } else {
    std::uint64_t& size = *std::get<std::uint64_t*>(value);
    const double scaled = std::min(static_cast<double>(size) * factor, static_cast<double>(unlimited - 1));
    size = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(scaled));
  }
}

double simulated_seconds(const Workload& workload, const Trace& trace, const MachineSpec& machine,
                         const Sampled& policy, const Recorders& recorders) {
  try {
    const Outcome outcome = simulate_policy(trace, machine, policy.policy, policy.settings,
                                            limits_of(workload.scenario.iterations), recorders);
    return outcome.result.fits ? outcome.result.iteration_seconds() : infinite;
  } catch (const Error&) {
    return infinite;  // this machine cannot serve the policy
  }
}

// Kinds of kernels that the trace spends modelled time on.
std::vector<std::size_t> uncertain_kinds(const std::optional<GpuTime>& time) {
  std::vector<std::size_t> kinds;
  for (std::size_t kind = 0; time && kind < kernel_kind_count; ++kind) {
    if (time->by_kernel[kind].seconds > 0 && time->by_kernel[kind].error > 0) kinds.push_back(kind);
  }
  return kinds;
}

// What of `outcome` (one value a sample) the figures explain. Samples where it is infinite are left out.
std::vector<Influence> influences_on(const std::vector<double>& outcome,
                                     const std::vector<std::vector<double>>& factors) {
  std::vector<Influence> influences;
  for (std::size_t figure = 0; figure < factors.front().size(); ++figure) {
    std::vector<double> causes, effects;
    for (std::size_t sample = 0; sample < outcome.size(); ++sample) {
      if (!std::isfinite(outcome[sample])) continue;
      causes.push_back(factors[sample][figure]);
      effects.push_back(outcome[sample]);
    }
    const double share = explained_share(causes, effects);
    if (share >= smallest_share) influences.push_back({figure, share});
  }
  std::ranges::stable_sort(influences, std::greater<>(), &Influence::share);
  return influences;
}

// Who is fastest in each sample, ties going to each; and the two that are most often.
std::pair<std::size_t, std::size_t> count_fastest(std::vector<Interval>& policies, std::uint64_t samples) {
  for (std::uint64_t sample = 0; sample < samples; ++sample) {
    double best = infinite;
    for (const Interval& policy : policies) best = std::min(best, policy.seconds[sample]);
    for (Interval& policy : policies) {
      if (std::isfinite(best) && policy.seconds[sample] == best) ++policy.fastest;
    }
  }
  std::vector<std::size_t> order(policies.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return policies[a].fastest > policies[b].fastest; });
  return {order[0], order[std::min<std::size_t>(1, order.size() - 1)]};
}

}  // namespace

double percentile(std::vector<double> values, std::uint64_t percent) {
  std::ranges::sort(values);
  const std::uint64_t rank = (values.size() * percent + 99) / 100;
  return values[std::max<std::uint64_t>(rank, 1) - 1];
}

MachineSampler::MachineSampler(const MachineSpec& machine) : machine_(machine) {
  std::map<std::tuple<FigureKind, double, std::string, double>, std::size_t> known;
  for (std::size_t rank = 0; rank < machine.rank_count(); ++rank) {
    MachineSpec spec = machine.of_rank(rank);
    for (const FigureReference& figure : figures_of(spec)) {
      const auto fact = std::ranges::find(spec.facts, figure.path, &Fact::path);
      if (fact == spec.facts.end() || is_unlimited(figure.value) || value_of(figure.value) == 0) continue;
      const auto key = std::make_tuple(figure.kind, value_of(figure.value), fact->confidence, fact->spread);
      const auto [at, is_new] = known.emplace(key, figures_.size());
      if (is_new) figures_.push_back({{}, fact->confidence, spread_of(figure.kind, *fact)});
      std::vector<std::string>& paths = figures_[at->second].paths;
      // Ranks that differ are told apart.
      const std::string path = rank == 0 ? figure.path : fmt::format("ranks.{}.{}", rank, figure.path);
      const bool stands_there = std::ranges::find(paths, figure.path) != paths.end();
      if (!stands_there) paths.push_back(path);
    }
  }
}

std::vector<std::vector<double>> MachineSampler::factors(std::uint64_t seed, std::uint64_t samples) const {
  std::mt19937_64 generator(seed);
  std::vector<std::vector<double>> result(samples);
  for (std::vector<double>& factors : result) {
    for (const UncertainFigure& figure : figures_) {
      // From -1 to 1, in steps that a double holds exactly; then as far up as down in ratio.
      const double position = static_cast<double>(generator() >> 11) * 0x1p-52 - 1;
      const double factor = 1 + figure.spread * std::fabs(position);
      factors.push_back(position < 0 ? 1 / factor : factor);
    }
  }
  return result;
}

MachineSpec MachineSampler::machine(const std::vector<double>& factors) const {
  MachineSpec result = machine_;
  for (std::size_t rank = 0; rank < result.rank_count(); ++rank) {
    MachineSpec& spec = rank == 0 ? result : result.other_ranks[rank - 1];
    for (const FigureReference& figure : figures_of(spec)) {
      const std::string own_path = fmt::format("ranks.{}.{}", rank, figure.path);
      // The rank's own figure if it has one, else the one that it has in common with the first.
      const UncertainFigure* common = nullptr;
      std::size_t index = 0, common_index = 0;
      for (; index < figures_.size(); ++index) {
        const std::vector<std::string>& paths = figures_[index].paths;
        if (rank > 0 && std::ranges::find(paths, own_path) != paths.end()) break;
        if (std::ranges::find(paths, figure.path) != paths.end()) {
          common = &figures_[index];
          common_index = index;
        }
      }
      if (index < figures_.size()) {
        scale(figure.value, factors[index]);
      } else if (common != nullptr) {
        scale(figure.value, factors[common_index]);
      }
    }
    for (Link& link : spec.links) link.sustained_bandwidth = std::min(link.sustained_bandwidth, link.bandwidth);
  }
  return result;
}

std::uint64_t Interval::misfits() const {
  return static_cast<std::uint64_t>(std::ranges::count_if(seconds, [](double value) { return !std::isfinite(value); }));
}

double explained_share(const std::vector<double>& a, const std::vector<double>& b) {
  const auto count = static_cast<double>(a.size());
  double mean_a = 0, mean_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) mean_a += a[i], mean_b += b[i];
  mean_a /= count;
  mean_b /= count;
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
    ab += (a[i] - mean_a) * (b[i] - mean_b);
  }
  return aa > 0 && bb > 0 ? ab * ab / (aa * bb) : 0;
}

std::string Intervals::name_of(const Influence& influence) const {
  const UncertainFigure& figure = figures[influence.figure];
  return fmt::format("{} ({})", figure.paths.front(), figure.confidence);
}

std::string Intervals::drawn() const {
  const auto of_kernels = [](const UncertainFigure& figure) { return figure.of_kernels; };
  if (std::ranges::none_of(figures, of_kernels)) return "the machine's figures";
  return std::ranges::all_of(figures, of_kernels) ? "modelled GPU times"
                                                  : "the machine's figures and modelled GPU times";
}

Intervals sample_intervals(const Workload& workload, const std::vector<Sampled>& policies, const SampleOptions& options,
                           const Recorders& recorders, std::size_t threads) {
  const MachineSampler sampler(workload.machine);
  Intervals result;
  result.figures = sampler.figures();
  const std::vector<std::size_t> kinds = uncertain_kinds(workload.gpu_time);
  for (const std::size_t kind : kinds) {
    const GpuTime& time = *workload.gpu_time;
    result.figures.push_back({{fmt::format("kernels.{}.{}", time.gpu, to_string(static_cast<KernelKind>(kind)))},
                              time.measured ? "measured" : "estimated",
                              time.by_kernel[kind].error,
                              true});
  }
  result.policies.resize(policies.size());
  if (options.samples == 0 || result.figures.empty() || policies.empty()) return result;
  result.samples = options.samples;
  result.seed = options.seed;

  std::vector<std::vector<double>> factors = sampler.factors(options.seed, options.samples);
  std::vector<KernelFactors> of_kernels;
  if (!kinds.empty()) of_kernels = draw_kernel_factors(*workload.gpu_time, options.seed, options.samples);
  for (Interval& policy : result.policies) policy.seconds.assign(options.samples, infinite);
  const auto simulate = [&](std::size_t task) {
    const std::size_t sample = task / policies.size(), policy = task % policies.size();
    const MachineSpec machine = sampler.machine(factors[sample]);
    result.policies[policy].seconds[sample] =
        kinds.empty() ? simulated_seconds(workload, *workload.trace, machine, policies[policy], recorders)
                      : simulated_seconds(workload, with_kernel_factors(*workload.trace, of_kernels[sample]), machine,
                                          policies[policy], recorders);
  };
  on_all_cores(options.samples * policies.size(), simulate, threads);
  for (std::size_t sample = 0; sample < of_kernels.size(); ++sample) {
    for (const std::size_t kind : kinds) factors[sample].push_back(of_kernels[sample][kind]);
  }

  std::size_t best = 0;
  for (std::size_t i = 0; i < policies.size(); ++i) {
    Interval& interval = result.policies[i];
    interval.low = percentile(interval.seconds, 5);
    interval.high = percentile(interval.seconds, 95);
    interval.influences = influences_on(interval.seconds, factors);
    if (policies[i].seconds < policies[best].seconds) best = i;
  }
  const auto [first, second] = count_fastest(result.policies, options.samples);
  const Interval& winner = result.policies[best];
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const Interval& other = result.policies[i];
    result.policies[i].ties_with_best =
        i != best && std::isfinite(other.low) && other.low <= winner.high && winner.low <= other.high;
  }
  // Equal times in a sample are nobody's win over the other.
  std::vector<double> lead(options.samples, infinite);
  bool changes = false;
  for (std::uint64_t sample = 0; sample < options.samples; ++sample) {
    const double a = result.policies[first].seconds[sample], b = result.policies[second].seconds[sample];
    if (std::isfinite(a) && std::isfinite(b)) lead[sample] = a / b;
    changes = changes || b < a;
  }
  if (changes) result.winner_depends_on = influences_on(lead, factors);
  return result;
}

}  // namespace tencache
