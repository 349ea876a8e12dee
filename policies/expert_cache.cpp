// Two systems that keep the rest of a model with experts on the GPU and cache experts there, whole: what a gate has
// chosen and is not there is fetched at once, in the order of the ops that read it.
//
// expert-lru: Eliseev and Mazur, "Fast inference of mixture-of-experts language models with offloading" (2023), section
// 3.1. Each layer has room for the same number of experts; of its own, the least recently used leaves. The authors'
// guess at the next layer's experts needs the hidden states of a model that runs, which a trace does not have.
//
// moe-infinity: Xue et al., "MoE-Infinity: efficient MoE inference on personal machines with sparsity-aware expert
// cache" (arXiv 2401.14361), as the code released with it does: one cache for all layers, out of which the expert that
// was visited least leaves, and of those the one that was visited first. Prefetching, off there by default, fetches for
// the layers to come what this request's gates have chosen there before, by share of the choices times 1 - (x - l) /
// (L + 1) for layer x of L, seen from layer l. The paper's collection of earlier requests is left out: in a trace, which
// comes again and again, they would all be this one.
//
// Weights move whole. Where what must stay leaves no room for an expert, the coldest of all leaves.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/reveal.h"
#include "policies/classic.h"
#include "policies/footprint.h"
#include "policies/moving_unit.h"
#include "policies/planning/expert_odds.h"
#include "policies/policy_library.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

class ExpertCache : public Policy {
 public:
  Requirements requirements() const override { return Requirements::governing({Role::parameter, Role::expert}); }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.initial[static_cast<std::size_t>(Role::parameter)] = 0;
    if (program != nullptr) require_gates(program->trace, name());
    return layout;
  }

  bool hears(EventKind kind) const override {
    return kind == EventKind::profile_ready || kind == EventKind::revealed || kind == EventKind::op_done ||
           kind == EventKind::transfer_done;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    switch (event.kind) {
      case EventKind::profile_ready:
        layers_.clear();
        experts_.clear();
        if (view.reveals()) start(view);
        break;
      case EventKind::revealed:
        for (const Use& use : event.uses) fetch_missing(use.tensor, view, actions);
        chosen(event, view, actions);
        break;
      case EventKind::op_done:
        for (const Use& use : event.uses) used(use.tensor, view);
        break;
      case EventKind::transfer_done:
        if (event.to == 0) used(event.tensor, view);
        break;
      default:
        break;
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier == 0 && !experts_.empty()) choose(request, view, victims);
    Bytes found = 0;
    for (const ChunkId chunk : victims) found += view.memory.footprint(chunk, request.tier);
    if (found < request.bytes) coldest_victims(request, view, victims);
  }

 protected:
  virtual const char* name() const = 0;
  virtual void chosen(const Event& event, const View& view, Actions& actions) = 0;
  // The tensor, an expert's of this id of the memory, has come to the GPU or was used there.
  virtual void touched(TensorId tensor, Experts::Place place) = 0;
  virtual void choose(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) = 0;
  virtual void start(const View& view) {
    experts_.emplace_back(view.program->trace);
    layers_.resize(experts().layers());
  }

  const Experts& experts() const { return experts_.front(); }
  Experts::Place place(TensorId memory_tensor, const View& view) const {
    const TensorId tensor = view.program_tensor(memory_tensor);
    return tensor == none ? Experts::Place{} : experts().place(tensor);
  }
  // Whether it is on the GPU or on its way there; a tensor of the program.
  static bool comes(TensorId tensor, const View& view) {
    const TensorId id = view.memory_tensor(tensor);
    return id != none && view.memory.copy(view.memory.first_chunk(id), 0).state != CopyState::absent;
  }

  struct Layer {
    std::vector<std::uint32_t> visits;   // by expert
    std::vector<std::uint32_t> request;  // the same, of this iteration
  };
  std::vector<Layer> layers_;

 private:
  void used(TensorId tensor, const View& view) {
    if (experts_.empty() || tensor == none) return;
    if (const Experts::Place at = place(tensor, view); at.layer != none) touched(tensor, at);
  }

  std::vector<Experts> experts_;  // one, or none where no gates are
};

class ExpertLru final : public ExpertCache {
 public:
  explicit ExpertLru(Options& options) {
    options.number("cached", cached_, "experts", "of each layer that are kept; 0: as many as there is room for");
  }

 private:
  const char* name() const override { return "expert-lru"; }
  void start(const View& view) override {
    ExpertCache::start(view);
    all_ = {};
    time_ = 0;
    const Trace& trace = view.program->trace;
    Bytes all = 0, rest = peak_of_intermediates(trace, *view.schedule, true);
    for (const Tensor& tensor : trace.tensors) {
      if (!tensor.persistent) continue;
      (tensor.role == Role::expert ? all : rest) += tensor.bytes;
    }
    std::size_t count = 0;
    for (std::uint32_t layer = 0; layer < experts().layers(); ++layer) count += experts().count_in(layer);
    const Bytes expert = std::max<Bytes>(1, all / std::max<std::size_t>(1, count));
    const Bytes capacity = view.machine.tiers[0].capacity;
    const Bytes room = capacity > rest ? (capacity - rest) / expert : 0;
    quota_ = cached_ != 0 ? cached_ : std::max<Bytes>(1, room / std::max<std::uint32_t>(1, experts().layers()));
  }
  void chosen(const Event& event, const View& view, Actions&) override {
    for (const Use& use : event.uses) {
      if (view.memory.copy(view.memory.first_chunk(use.tensor), 0).state == CopyState::absent) continue;
      touched(use.tensor, place(use.tensor, view));
    }
  }
  // Layer after layer. The lower in its layer the later it was used: the highest leaves.
  void touched(TensorId tensor, Experts::Place place) override {
    if (place.layer != none) all_.set(tensor, {place.layer, ~++time_});
  }
  void choose_of(std::uint32_t layer, const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) {
    all_.choose(request, view.memory, victims, {layer, 0}, {layer, ~std::uint64_t{0}});
  }
  std::size_t cached_in(std::uint32_t layer, const View& view) const {
    std::size_t count = 0;
    for (std::size_t expert = 0; expert < experts().count_in(layer); ++expert) {
      const auto weights = experts().weights_in(layer, expert);
      count += std::ranges::any_of(weights, [&](TensorId tensor) { return comes(tensor, view); });
    }
    return count;
  }
  void choose(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    const std::uint32_t own =
        request.incoming == none ? none : place(view.memory.tensor_of(request.incoming), view).layer;
    if (own != none && cached_in(own, view) >= quota_) choose_of(own, request, view, victims);
    for (std::uint32_t layer = 0; layer < layers_.size() && victims.empty(); ++layer) {
      if (cached_in(layer, view) > quota_) choose_of(layer, request, view, victims);
    }
    if (own != none && victims.empty()) choose_of(own, request, view, victims);
  }

  std::uint64_t cached_ = 0, time_ = 0;
  std::size_t quota_ = 1;
  Ranking all_;
};

class MoeInfinity final : public ExpertCache {
 public:
  explicit MoeInfinity(Options& options) {
    options.flag("prefetch", prefetch_, "for the layers to come what the request's gates chose there before");
    options.number("prefetched", prefetched_, "experts", "at each gate, at most").only_with("prefetch", "true");
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) iteration_ = 0;
    ExpertCache::on(event, view, actions);
  }

 private:
  const char* name() const override { return "moe-infinity"; }
  void start(const View& view) override {
    ExpertCache::start(view);
    all_ = {};
    for (std::uint32_t layer = 0; layer < experts().layers(); ++layer) {
      layers_[layer].visits.assign(experts().count_in(layer), 0);
      layers_[layer].request.assign(experts().count_in(layer), 0);
    }
  }
  void chosen(const Event& event, const View& view, Actions& actions) override {
    if (view.iteration != iteration_) {
      iteration_ = view.iteration;
      for (Layer& layer : layers_) std::ranges::fill(layer.request, 0u);
    }
    std::uint32_t expert = none;
    for (const Use& use : event.uses) {
      const Experts::Place at = place(use.tensor, view);
      if (at.layer == none || std::exchange(expert, at.expert) == at.expert) continue;
      ++layers_[at.layer].visits[at.expert];
      ++layers_[at.layer].request[at.expert];
      for (const TensorId tensor : experts().weights_in(at.layer, at.expert)) {
        if (comes(tensor, view)) touched(view.memory_tensor(tensor), at);
      }
    }
    if (prefetch_) fetch_ahead(experts().layer(event.op), view, actions);
  }
  // The fewer visits the sooner it leaves, of equal ones the one that was touched first.
  void touched(TensorId tensor, Experts::Place at) override {
    all_.set(tensor, {~std::uint64_t{layers_[at.layer].visits[at.expert]}, ~++time_});
  }
  void choose(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    all_.choose(request, view.memory, victims);
  }

  void fetch_ahead(std::uint32_t now, const View& view, Actions& actions) const {
    struct Wanted {
      double priority;
      std::uint32_t layer, expert;
    };
    std::vector<Wanted> wanted;
    const auto count = static_cast<double>(layers_.size());
    for (std::uint32_t layer = now + 1; layer < layers_.size(); ++layer) {
      const std::vector<std::uint32_t>& chosen = layers_[layer].request;
      std::uint64_t sum = 0;
      for (const std::uint32_t times : chosen) sum += times;
      for (std::uint32_t expert = 0; expert < chosen.size(); ++expert) {
        if (chosen[expert] == 0) continue;
        const double share = static_cast<double>(chosen[expert]) / static_cast<double>(sum);
        wanted.push_back({share * (1 - (layer - now) / (count + 1)), layer, expert});
      }
    }
    std::ranges::stable_sort(wanted, std::ranges::greater{}, &Wanted::priority);
    std::uint64_t asked = 0;
    for (const Wanted& one : wanted) {
      if (asked == prefetched_) return;
      bool missing = false;
      for (const TensorId tensor : experts().weights_in(one.layer, one.expert)) {
        const TensorId id = view.memory_tensor(tensor);
        missing |= id != none && fetch_missing(id, view, actions);
      }
      asked += missing ? 1 : 0;
    }
  }

  bool prefetch_ = false;
  std::uint64_t prefetched_ = 2, time_ = 0, iteration_ = 0;
  Ranking all_;
};

}  // namespace

TENCACHE_POLICY({"expert-lru", "the rest of the model on the GPU; of each layer's experts those used last",
                 "Mixtral-offloading (Eliseev and Mazur 2023)", make_policy_of<ExpertLru>, 188},
                {"moe-infinity", "the rest of the model on the GPU; of all experts those chosen most often",
                 "MoE-Infinity (arXiv 2401.14361) and its released code", make_policy_of<MoeInfinity>, 189})

}  // namespace tencache
