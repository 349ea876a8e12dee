// Two systems that compute experts where they lie: the rest of a model with experts is on the GPU with as many experts
// as fit, which stay; the CPU computes what its own memory holds. Ops of experts must be placeable (`generate
// --placeable all`).
//
// fiddler: Kamahori et al., "Fiddler: CPU-GPU orchestration for fast inference of mixture-of-experts models" (2024), and
// its released code: of the experts that a gate chose and the GPU lacks, each is either copied there, used and
// forgotten, or computed on the CPU, whatever takes less; the code takes the split whose sum of times is least, its
// comment speaks of the maximum (`objective`). The authors fix the experts that were most popular in a profile; without
// one the first of each layer are, as good as any (their own best and worst placements are a few points apart).
//
// ktransformers: KTransformers (SOSP'25; doc/en of its repository): routed experts run on the CPU, but for a share that
// the GPU has, placed by its --kt-expert-placement-strategy: as many of each layer (uniform), the first layers' (front
// -loading), drawn (random), those that other requests chose most (frequency; Tensor::profiled_uses), or from the first
// new token on those that the prompt's tokens chose most (dynamic, which starts from a profile if there is one and
// changes each layer once the prompt is through it).
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/cpu_op.h"
#include "core/error.h"
#include "core/reveal.h"
#include "core/state_hash.h"
#include "policies/classic.h"
#include "policies/moving_unit.h"
#include "policies/planning/expert_odds.h"
#include "policies/planning/resident_experts.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

std::size_t count_of(const Experts& experts) {
  std::size_t count = 0;
  for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) count += experts.count_in(layer);
  return count;
}

// What the two have in common: homes that stay.
class ExpertPlaces : public Policy {
 public:
  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.initial[static_cast<std::size_t>(Role::parameter)] = 0;
    if (program == nullptr) return layout;
    require_gates(program->trace, name());
    const TierId cpu = machine.tier_of(Device::cpu);
    const Experts experts(program->trace);
    if (experts.layers() == 0 || cpu == no_tier) return layout;
    const OnGpu on_gpu = placed(program->trace, machine, experts);
    std::vector<TierId> homes(program->trace.tensors.size(), no_tier);
    for (TensorId tensor = 0; tensor < homes.size(); ++tensor) {
      if (const Experts::Place at = experts.place(tensor); at.layer != none) {
        homes[tensor] = on_gpu[at.layer][at.expert] != 0 ? 0 : cpu;
      }
    }
    layout.start = start_in(program->trace, homes, layout.chunk_bytes);
    return layout;
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!why_copied_.empty()) notes.push_back("experts that the GPU lacks are copied there: " + why_copied_);
  }

  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::revealed || kind == EventKind::op_issued ||
           kind == EventKind::op_done;
  }

  // Experts that lie on the GPU stay, as long as anything else can go.
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    coldest_victims({request.tier, view.memory.capacity(request.tier), request.prefetch, request.incoming}, view,
                    victims);
    if (request.tier != 0 || !experts_) return;
    std::ranges::stable_partition(victims, [&](ChunkId chunk) { return !stays(view.memory.tensor_of(chunk)); });
    Bytes found = 0;
    const auto enough = std::ranges::find_if(victims, [&](ChunkId chunk) {
      const bool reached = found >= request.bytes;
      found += view.memory.footprint(chunk, 0);
      return reached;
    });
    victims.erase(enough, victims.end());
  }

 protected:
  virtual const char* name() const = 0;
  // Where experts lie at the start.
  virtual OnGpu placed(const Trace& trace, const MachineSpec& machine, const Experts& experts) const = 0;

  void learn(const View& view) {
    experts_.reset();
    if (!view.reveals()) return;
    if (view.to_memory != nullptr) {
      why_copied_ = "ops of a live program run where the program runs them";
      return;
    }
    experts_.emplace(view.program->trace);
    on_gpu_ = placed(view.program->trace, view.machine, *experts_);
    why_copied_ = why_not_computed(view.program->trace, view.machine);
  }
  // Of an expert whose place is the GPU, or of no expert.
  bool stays(TensorId tensor) const {
    const Experts::Place at = experts_->place(tensor);
    return at.layer == none ? false : on_gpu_[at.layer][at.expert] != 0;
  }
  // An expert that was copied for an op goes when the op is over.
  void forget_copies(const Event& event, Actions& actions) const {
    if (!experts_ || event.device != Device::gpu) return;
    for (const Use& use : event.uses) {
      if (use.tensor != none && experts_->place(use.tensor).layer != none && !stays(use.tensor)) {
        actions.drop(use.tensor);
      }
    }
  }

  std::optional<Experts> experts_;
  OnGpu on_gpu_;

 private:
  // Why the CPU cannot compute any; empty: it can.
  static std::string why_not_computed(const Trace& trace, const MachineSpec& machine) {
    for (const Op& op : trace.ops) {
      if (trace.detail(op).expert_bytes == 0 || op.device == Device::cpu) continue;
      if (!op.placeable) return "the trace does not let their ops move to the CPU; generate it with --placeable all";
      if (!forward_duration_on_cpu(trace, op, machine))
        return "the machine does not state cpu.tflops and cpu.bandwidth";
    }
    return {};
  }

  std::string why_copied_;
};

class Fiddler final : public ExpertPlaces {
 public:
  explicit Fiddler(Options& options) {
    options.number("resident", resident_, "experts", "that stay on the GPU, of all layers; 0: as many as fit");
    options
        .choice("objective", objective_, {"sum", "max"},
                "of a layer's split: the least sum of the times of both devices, or the least of the longer")
        .fixed(Options::rules_of_a_system);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) learn(view);
    if (event.kind == EventKind::op_done) forget_copies(event, actions);
  }

  std::unique_ptr<DecidedPlaces> place_decided(const Trace& trace, const MachineSpec& machine) const override;

 private:
  const char* name() const override { return "fiddler"; }
  OnGpu placed(const Trace& trace, const MachineSpec& machine, const Experts& experts) const override {
    // One buffer for what is copied.
    return placed_evenly(experts, resident_ != 0
                                      ? resident_
                                      : experts_that_fit(trace, machine, experts, largest_expert(trace, experts)));
  }

  std::uint64_t resident_ = 0;
  std::string objective_ = "sum";
};

class FiddlerPlaces final : public DecidedPlaces {
 public:
  FiddlerPlaces(const Trace& trace, const MachineSpec& machine, OnGpu on_gpu, Experts experts, bool sum)
      : trace_(trace), machine_(machine), on_gpu_(std::move(on_gpu)), experts_(std::move(experts)), sum_(sum) {
    const TierId cpu = machine.tier_of(Device::cpu);
    BytesPerSecond rate = unlimited;
    for (const LinkId link : machine.path_between(cpu, 0)) rate = std::min(rate, machine.links[link].bandwidth);
    rate_ = static_cast<double>(rate);
  }

  void place(OpIndex, std::span<const DecidedOp> decided, std::span<Device> devices) override {
    struct Missing {
      ExpertOps ops;
      Nanoseconds copied_ns = 0, on_cpu_ns = 0;
    };
    std::vector<Missing> missing;
    for (const ExpertOps& ops : experts_of(decided, trace_, experts_)) {
      if (ops.place.layer == none || on_gpu_[ops.place.layer][ops.place.expert] != 0) continue;
      Missing one{ops};
      const Bytes bytes = bytes_of(trace_, experts_.weights_in(ops.place.layer, ops.place.expert));
      one.copied_ns = static_cast<Nanoseconds>(static_cast<double>(bytes) / rate_ * 1e9);
      bool movable = true;
      for (std::size_t i = ops.begin; i < ops.end; ++i) {
        const Op& op = trace_.ops[decided[i].op];
        const auto on_cpu = forward_duration_on_cpu(trace_, op, machine_);
        movable &= op.placeable && on_cpu.has_value();
        one.copied_ns += op.duration_ns;
        one.on_cpu_ns += on_cpu.value_or(0);
      }
      if (movable) missing.push_back(one);
    }
    std::vector<bool> on_cpu;
    for (const Missing& one : missing) on_cpu.push_back(one.on_cpu_ns < one.copied_ns);
    if (!sum_ && missing.size() <= most_tried) {
      Nanoseconds least = longest_clock_ns;
      for (std::uint64_t split = 0; split < std::uint64_t{1} << missing.size(); ++split) {
        Nanoseconds cpu = 0, gpu = 0;
        for (std::size_t i = 0; i < missing.size(); ++i) {
          (split >> i & 1 ? cpu : gpu) += split >> i & 1 ? missing[i].on_cpu_ns : missing[i].copied_ns;
        }
        if (std::max(cpu, gpu) >= least) continue;
        least = std::max(cpu, gpu);
        for (std::size_t i = 0; i < missing.size(); ++i) on_cpu[i] = (split >> i & 1) != 0;
      }
    }
    for (std::size_t i = 0; i < missing.size(); ++i) {
      if (!on_cpu[i]) continue;
      std::fill(devices.begin() + static_cast<std::ptrdiff_t>(missing[i].ops.begin),
                devices.begin() + static_cast<std::ptrdiff_t>(missing[i].ops.end), Device::cpu);
    }
  }

 private:
  static constexpr std::size_t most_tried = 8;  // all splits, as Mixtral's

  const Trace& trace_;
  const MachineSpec& machine_;
  const OnGpu on_gpu_;
  const Experts experts_;
  const bool sum_;
  double rate_ = 0;
};

std::unique_ptr<DecidedPlaces> Fiddler::place_decided(const Trace& trace, const MachineSpec& machine) const {
  if (!has_gates(trace) || machine.tier_of(Device::cpu) == no_tier) return nullptr;
  Experts experts(trace);
  OnGpu on_gpu = placed(trace, machine, experts);
  return std::make_unique<FiddlerPlaces>(trace, machine, std::move(on_gpu), std::move(experts), objective_ == "sum");
}

class Ktransformers final : public ExpertPlaces {
 public:
  explicit Ktransformers(Options& options) {
    options.real("gpu_experts", gpu_experts_, "share", "of all routed experts that are on the GPU");
    options.choice("placement", placement_, {"uniform", "front-loading", "random", "frequency", "dynamic"},
                   "which: as many of each layer, the first layers', drawn, those that other requests chose most (the "
                   "trace's profile), or those that the prompt chose most");
    options.number("seed", seed_, "", "of placement=random").only_with("placement", "random");
    if (gpu_experts_ > 1) throw Error("policy 'ktransformers': option gpu_experts is a share, at most 1");
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::profile_ready:
        learn(view);
        counts_.clear();
        counted_ = none;
        break;
      case EventKind::revealed:
        if (dynamic()) count_prompt(event, view, actions);
        break;
      case EventKind::op_issued:
        if (experts_ && dynamic()) change_places(event, view, actions);
        break;
      case EventKind::op_done:
        forget_copies(event, actions);
        break;
      default:
        break;
    }
  }

  std::unique_ptr<DecidedPlaces> place_decided(const Trace& trace, const MachineSpec& machine) const override;

  using Counts = std::vector<std::vector<std::uint64_t>>;  // choices of the prompt's tokens, by layer and expert

  // By how much is computed for the prompt's tokens.
  static void count(Counts& counts, const Experts& experts, Experts::Place at, std::uint64_t flops) {
    if (at.layer == none) return;
    if (counts.empty()) {
      counts.resize(experts.layers());
      for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) counts[layer].assign(experts.count_in(layer), 0);
    }
    counts[at.layer][at.expert] += flops;
  }
  // Of a layer, as many as before: those that were chosen most; of equal ones those that are there.
  static std::vector<std::uint8_t> chosen_most(const std::vector<std::uint8_t>& before,
                                               const std::vector<std::uint64_t>& counts) {
    std::vector<std::size_t> order(before.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t expert) { return std::pair(counts[expert], before[expert]); });
    const auto room = static_cast<std::size_t>(std::ranges::count(before, 1));
    std::vector<std::uint8_t> on_gpu(before.size(), 0);
    for (std::size_t i = 0; i < room; ++i) on_gpu[order[i]] = 1;
    return on_gpu;
  }

 private:
  const char* name() const override { return "ktransformers"; }
  bool dynamic() const { return placement_ == "dynamic"; }

  OnGpu placed(const Trace& trace, const MachineSpec&, const Experts& experts) const override {
    const std::size_t all = count_of(experts);
    const auto count = static_cast<std::size_t>(gpu_experts_ * static_cast<double>(all) + 0.5);
    const bool profiled =
        std::ranges::any_of(trace.tensors, [](const Tensor& tensor) { return tensor.profiled_uses != 0; });
    if (placement_ == "frequency" && !profiled) {
      throw Error(
          "policy 'ktransformers': placement=frequency needs a profile, and the trace has none; generate it with "
          "--routing-profile 10000");
    }
    if (placement_ == "uniform" || (dynamic() && !profiled)) return placed_evenly(experts, count);
    OnGpu on_gpu = placed_evenly(experts, 0);
    std::vector<std::pair<std::uint32_t, std::size_t>> order;
    for (std::uint32_t layer = 0; layer < experts.layers(); ++layer) {
      for (std::size_t expert = 0; expert < experts.count_in(layer); ++expert) order.emplace_back(layer, expert);
    }
    if (placement_ == "random") {
      StateHash hash;
      hash.mix(seed_);
      for (std::size_t left = order.size(); left > 1; --left) {
        hash.mix(left);
        std::swap(order[left - 1], order[hash.value() % left]);
      }
    }
    if (placement_ == "frequency" || dynamic()) {
      std::ranges::stable_sort(order, std::ranges::greater{}, [&](const auto& place) {
        const auto weights = experts.weights_in(place.first, place.second);
        return weights.empty() ? 0 : trace.tensors[weights.front()].profiled_uses;
      });
    }
    for (std::size_t i = 0; i < count; ++i) on_gpu[order[i].first][order[i].second] = 1;
    return on_gpu;
  }

  void count_prompt(const Event& event, const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    if (!experts_ || trace.ops[event.op].phase != Phase::prefill) return;
    // The prompts are through the layer before.
    const std::uint32_t layer = experts_->layer(event.op);
    if (counted_ != none && counted_ != layer) follow_prompt(counted_, view, actions);
    counted_ = layer;
    for (const Use& use : event.uses) {
      const std::size_t op = (view.op + std::size_t{view.distance_to_revealed_use(use.tensor)}) % trace.ops.size();
      count(counts_, *experts_, experts_->place(use.tensor), trace.ops[op].flops);
    }
  }

  // With the next prompt they are where they were.
  void change_places(const Event& event, const View& view, Actions& actions) {
    const bool decode = event.op != none && view.program->trace.ops[event.op].phase == Phase::decode;
    if (decode == decoding_) return;
    decoding_ = decode;
    if (decode) {
      if (counted_ != none) follow_prompt(counted_, view, actions);
      counted_ = none;
      return;
    }
    counts_.clear();
    const OnGpu at_start = placed(view.program->trace, view.machine, *experts_);
    for (std::uint32_t layer = 0; layer < experts_->layers(); ++layer) {
      move_to(layer, at_start[layer], view, actions);
    }
  }

  void follow_prompt(std::uint32_t layer, const View& view, Actions& actions) {
    if (!counts_.empty()) move_to(layer, chosen_most(on_gpu_[layer], counts_[layer]), view, actions);
  }

  void move_to(std::uint32_t layer, const std::vector<std::uint8_t>& places, const View& view, Actions& actions) {
    const std::vector<std::uint8_t> before = std::exchange(on_gpu_[layer], places);
    const TierId cpu = view.machine.tier_of(Device::cpu);
    for (const bool comes : {false, true}) {
      for (std::size_t i = 0; i < places.size(); ++i) {
        if (before[i] == places[i] || comes != (places[i] != 0)) continue;
        for (const TensorId tensor : experts_->weights_in(layer, i)) {
          if (comes) {
            fetch_missing(tensor, view, actions);
          } else {
            actions.evict(tensor, cpu);
          }
        }
      }
    }
  }

  double gpu_experts_ = 0;
  std::string placement_ = "uniform";
  std::uint64_t seed_ = 1;
  Counts counts_;
  std::uint32_t counted_ = none;  // the layer whose prompts were counted last
  bool decoding_ = false;
};

class KtransformersPlaces final : public DecidedPlaces {
 public:
  KtransformersPlaces(const Trace& trace, OnGpu on_gpu, Experts experts, bool dynamic)
      : trace_(trace), at_start_(on_gpu), on_gpu_(std::move(on_gpu)), experts_(std::move(experts)), dynamic_(dynamic) {}

  void place(OpIndex gate, std::span<const DecidedOp> decided, std::span<Device> devices) override {
    const bool prompt = trace_.ops[gate].phase == Phase::prefill;
    if (dynamic_ && prompt) {
      if (decoding_) {
        counts_.clear();
        on_gpu_ = at_start_;
      }
      for (const DecidedOp& op : decided) {
        for (const TensorId tensor : op.experts) {
          Ktransformers::count(counts_, experts_, experts_.place(tensor), trace_.ops[op.op].flops);
        }
      }
    } else if (dynamic_ && !decoding_) {
      for (std::size_t layer = 0; layer < counts_.size(); ++layer) {
        on_gpu_[layer] = Ktransformers::chosen_most(at_start_[layer], counts_[layer]);
      }
    }
    decoding_ = !prompt;
    for (const ExpertOps& ops : experts_of(decided, trace_, experts_)) {
      if (ops.place.layer == none || on_gpu_[ops.place.layer][ops.place.expert] != 0) continue;
      for (std::size_t i = ops.begin; i < ops.end; ++i) {
        if (trace_.ops[decided[i].op].placeable) devices[i] = Device::cpu;
      }
    }
  }

 private:
  const Trace& trace_;
  const OnGpu at_start_;
  OnGpu on_gpu_;
  const Experts experts_;
  const bool dynamic_;
  Ktransformers::Counts counts_;
  bool decoding_ = false;
};

std::unique_ptr<DecidedPlaces> Ktransformers::place_decided(const Trace& trace, const MachineSpec& machine) const {
  if (!has_gates(trace) || machine.tier_of(Device::cpu) == no_tier) return nullptr;
  Experts experts(trace);
  OnGpu on_gpu = placed(trace, machine, experts);
  return std::make_unique<KtransformersPlaces>(trace, std::move(on_gpu), std::move(experts), dynamic());
}

}  // namespace

TENCACHE_POLICY({"fiddler",
                 "some experts stay on the GPU; of the others each is copied there or computed by the CPU",
                 "Fiddler (Kamahori et al. 2024) and its released code",
                 make_policy_of<Fiddler>,
                 190,
                 nullptr,
                 nullptr,
                 {.artifact = true}},
                {"ktransformers",
                 "routed experts are computed by the CPU, but for a share that lies on the GPU",
                 "KTransformers",
                 make_policy_of<Ktransformers>,
                 191,
                 nullptr,
                 nullptr,
                 {.ktransformers = true}})

}  // namespace tencache
