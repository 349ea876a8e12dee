#include "bench/synthetic_trace.h"

#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "traces/summary.h"

namespace tencache {
namespace {

constexpr std::size_t parts = 8;  // of a layer: a parameter, an activation, two ops back and an update each
static_assert(parts <= 10);       // numbered by one digit
constexpr std::uint32_t ops_per_layer = 4 * parts, tensors_per_layer = 6 * parts;
constexpr Bytes parameter_bytes = 32 * MiB, activation_bytes = 16 * MiB;

struct Layer {
  NameId module = 0;
  std::array<TensorId, parts> parameter{}, activation{}, gradient{}, momentum{}, variance{}, activation_gradient{};
};

class Builder {
 public:
  explicit Builder(std::uint32_t layers) : layers_(layers) {
    const std::size_t count = layers;
    trace_.names.reserve(count * (tensors_per_layer + ops_per_layer + 1) + 2);  // the input, and the empty name
    trace_.tensors.reserve(count * tensors_per_layer + 1);
    trace_.ops.reserve(count * ops_per_layer);
    trace_.accesses.reserve(count * parts * 16);
  }

  Trace build() {
    trace_.header.model = "synthetic";
    const TensorId input = trace_.add_tensor("input", activation_bytes, Role::input, true);
    for (std::size_t l = 0; l < layers_.size(); ++l) add_tensors(l);
    const auto before = [&](std::size_t l, std::size_t i) {
      return i > 0 ? layers_[l].activation[i - 1] : l > 0 ? layers_[l - 1].activation[parts - 1] : input;
    };
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = enter(l);
      for (std::size_t i = 0; i < parts; ++i) {
        add("forward", i, Phase::forward, {before(l, i), layer.parameter[i]}, {layer.activation[i]});
      }
    }
    for (std::size_t l = layers_.size(); l-- > 0;) {
      const Layer& layer = enter(l);
      for (std::size_t i = parts; i-- > 0;) {
        const bool last = i + 1 == parts && l + 1 == layers_.size();
        const TensorId incoming = last             ? layer.activation[i]
                                  : i + 1 == parts ? layers_[l + 1].activation_gradient[0]
                                                   : layer.activation_gradient[i + 1];
        add("backward_input", i, Phase::backward, {incoming, layer.parameter[i]}, {layer.activation_gradient[i]});
        add("backward_weight", i, Phase::backward, {incoming, before(l, i)}, {layer.gradient[i]});
      }
    }
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = enter(l);
      for (std::size_t i = 0; i < parts; ++i) {
        add("adamw", i, Phase::optimizer, {layer.parameter[i], layer.gradient[i], layer.momentum[i], layer.variance[i]},
            {layer.parameter[i], layer.momentum[i], layer.variance[i]});
      }
    }
    return std::move(trace_);
  }

 private:
  // Texts are put together in place: this is timed.
  Layer& enter(std::size_t l) {
    layer_name_.assign("model.layers.").append(std::to_string(l));
    layer_ = &layers_[l];
    return *layer_;
  }

  void add_tensors(std::size_t l) {
    Layer& layer = enter(l);
    layer.module = trace_.names.intern(layer_name_);
    for (std::size_t i = 0; i < parts; ++i) {
      const auto tensor = [&](const char* what, Bytes bytes, Role role, bool persistent) {
        name_.assign(layer_name_).append(".part").append(1, digit(i)).append(what);
        return trace_.add_tensor(name_, bytes, role, persistent);
      };
      layer.parameter[i] = tensor(".weight", parameter_bytes, Role::parameter, true);
      layer.momentum[i] = tensor(".exp_avg", parameter_bytes, Role::optimizer_state, true);
      layer.variance[i] = tensor(".exp_avg_sq", parameter_bytes, Role::optimizer_state, true);
      layer.gradient[i] = tensor(".grad", parameter_bytes, Role::gradient, false);
      layer.activation[i] = tensor(".output", activation_bytes, Role::activation, false);
      layer.activation_gradient[i] = tensor(".output_grad", activation_bytes, Role::gradient, false);
    }
  }

  void add(const char* what, std::size_t i, Phase phase, std::initializer_list<TensorId> reads,
           std::initializer_list<TensorId> writes) {
    Op op;
    op.module = layer_->module;
    op.name = trace_.names.intern(name_.assign(layer_name_).append(".").append(what).append(".").append(1, digit(i)));
    op.phase = phase;
    op.duration_ns = 1'000'000;
    op.flops = 10'000'000'000;
    op.bytes = 2 * parameter_bytes;
    op.duration_source = DurationSource::modelled;
    trace_.add_op(op, {reads.begin(), reads.end()}, {writes.begin(), writes.end()});
  }

  static char digit(std::size_t i) { return static_cast<char>('0' + i); }

  std::vector<Layer> layers_;
  Layer* layer_ = nullptr;  // what is added belongs to it
  std::string layer_name_, name_;
  Trace trace_;
};

}  // namespace

SyntheticTrace synthetic_trace(std::uint32_t op_count) {
  SyntheticTrace made;
  made.trace = Builder((op_count + ops_per_layer - 1) / ops_per_layer).build();
  const TraceSummary summary = summarize(made.trace);
  made.peak_bytes = summary.peak_demand.bytes;
  made.tensor_bytes = summary.all_tensors.bytes;
  return made;
}

MachineSpec synthetic_machine(const SyntheticTrace& made) {
  MachineSpec machine;
  machine.name = "synthetic";
  machine.tiers = {{"gpu", TierKind::gpu, made.peak_bytes / 2, 1, {}},
                   {"cpu", TierKind::cpu, 2 * made.tensor_bytes, 1, {}}};
  machine.links = {{"h2d", 1, 0, 25'000'000'000, 10'000, {}}, {"d2h", 0, 1, 25'000'000'000, 10'000, {}}};
  machine.initial_tier = 1;
  machine.cpu.adam_parameters_per_second = 2e9;
  machine.validate();
  return machine;
}

}  // namespace tencache
