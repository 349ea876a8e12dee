// Results as intervals: the machine's figures are drawn anew within what their source allows, and modelled times of GPU
// ops by the errors of the kernel model; each draw is simulated.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "studies/workload.h"

namespace tencache {

// A figure of the machine whose source is known. Figures of one kind, value and confidence are one: the two directions
// of a link, or a link and the resource that limits it, are right or wrong together. Or the modelled times of one kind
// of kernel.
struct UncertainFigure {
  std::vector<std::string> paths;  // "links.h2d.bandwidth", "links.d2h.bandwidth"; "kernels.h100.matmul"
  std::string confidence;
  double spread = 0;  // between value ÷ (1 + spread) and value × (1 + spread); of kernels their median error
  bool of_kernels = false;
};

// A figure that moves a result, by how much of the variance over the samples it explains: the squared correlation.
struct Influence {
  std::size_t figure = 0;
  double share = 0;  // 0 to 1
};

// Of values that may be infinite: the smallest that at least `percent` of them do not exceed (nearest rank).
double percentile(std::vector<double> values, std::uint64_t percent);

// One policy over all samples.
struct Interval {
  std::vector<double> seconds;        // an iteration of each sample; infinite where it does not fit
  double low = 0, high = 0;           // 5th and 95th percentile (nearest rank); infinite where misfits reach it
  std::uint64_t fastest = 0;          // samples in which no other policy was faster
  bool ties_with_best = false;        // its interval overlaps that of the policy that is best on the machine as written
  std::vector<Influence> influences;  // the largest first, those that explain 5 % or more

  std::uint64_t misfits() const;  // samples in which it does not fit
};

// The figures of a machine's file, and what their spread or else their confidence allows: ±2 % (published), ±5 %
// (measured), ±30 % (estimated; a GPU's memory ±5 %). docs/intervals.md says why.
class MachineSampler {
 public:
  explicit MachineSampler(const MachineSpec& machine);

  const std::vector<UncertainFigure>& figures() const { return figures_; }
  // Of samples 0 to samples - 1, one factor for each figure. A sample's are the same for the same seed, however many
  // samples there are, on every computer: mt19937_64 and the four operations of IEEE arithmetic.
  std::vector<std::vector<double>> factors(std::uint64_t seed, std::uint64_t samples) const;
  MachineSpec machine(const std::vector<double>& factors) const;

 private:
  const MachineSpec& machine_;  // outlives the sampler
  std::vector<UncertainFigure> figures_;
};

struct Sampled {
  std::string policy;
  std::map<std::string, std::string> settings;
  double seconds = 0;  // on the machine as written; infinite where it does not fit
};

struct Intervals {
  std::uint64_t samples = 0;  // 0: none were asked for, or nothing is uncertain
  std::uint64_t seed = 0;
  std::vector<UncertainFigure> figures;
  std::vector<Interval> policies;  // in the order asked for
  // Which figure decides between the policies that were fastest in some sample; empty where one always was.
  std::vector<Influence> winner_depends_on;

  std::string drawn() const;  // what, in words: "the machine's figures"
  // "links.nvme_read.bandwidth (estimated)"
  std::string name_of(const Influence& influence) const;
};

// Simulates each policy on `options.samples` machines; modelled durations are drawn, too, the same for
// all policies and ranks of a sample (traces/generate/gpu_time.h). The result does not depend on how many cores there
// are.
// `recorders`: of each simulation; `threads`: 0: all cores.
Intervals sample_intervals(const Workload& workload, const std::vector<Sampled>& policies, const SampleOptions& options,
                           const Recorders& recorders = {}, std::size_t threads = 0);

// The squared correlation; 0 where either does not vary.
double explained_share(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace tencache
