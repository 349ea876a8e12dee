// stronghold: Sun et al., "STRONGHOLD: Fast and Affordable Billion-Scale Deep Learning Model Training" (SC'22). CPU
// memory is the home of all parameters and optimizer states; a window of whole layers moves over the model on the GPU,
// forward and back, and the CPU updates the layers that it has left.
//   1. When a layer begins, the window is that layer and those after it, `window` in all, over the iteration's end too.
//      What comes into it is fetched, what leaves it is dropped.
//   2. The window (window=0) is the smallest for which every fetch is hidden: the computing of the layers that are in
//      it before the last takes at least as long as fetching the last one's parameters. If memory does not allow that,
//      it is the largest that fits: the GPU's memory without the peak of the activations, and without the gradients of
//      two layers.
//   3. A gradient goes to the CPU as soon as it is made. The CPU updates sub-groups in the order in which their
//      gradients are complete, beside the backward pass; a barrier, such as clipping by the global norm, is kept where
//      the trace has one.
//   4. A parameter that is in the window comes back as soon as it has been updated, others when the window reaches
//      them.
// A layer is one of layers.h with parameters; what runs after it, before the next begins, counts as its computing.
// Activations stay; they move only when room is short.
#include <algorithm>

#include "policies/common_options.h"
#include "policies/footprint.h"
#include "policies/layers.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {
namespace {

class StrongHold final : public Policy {
 public:
  explicit StrongHold(Options& options) {
    options.number("window", window_option_, "layers",
                   "on the GPU at once, the running one too; 0: as the paper's rule");
    options
        .choice("optimizer", optimizer_, {"cpu", "recorded"},
                "cpu: the host updates the parameters, as StrongHold does; recorded: where the trace has it")
        .fixed(Options::rules_of_a_system);
    add_chunk_option(options, chunk_bytes_);
  }

  Layout layout(const MachineSpec& machine, const Program*) const override {
    Layout layout;
    layout.chunk_bytes = chunk_bytes_;
    layout.initial.fill(machine.tier_of(Device::cpu));
    return layout;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    if (optimizer_ == "cpu") place_updates_on_cpu(trace, devices);
  }

  void order(const Trace& trace, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    order_as_ready(trace, groups);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) make_plan(view);
    if (event.kind == EventKind::schedule_deviated) slots_.clear();
    if (slots_.empty() || event.op == none) return;
    if (event.kind == EventKind::op_issued && event.device == Device::gpu) enter(event.op, view, actions);
    if (event.kind != EventKind::op_done) return;
    for (const Use& use : event.uses) {
      const TensorId tensor = use.tensor == none ? none : view.program_tensor(use.tensor);
      if (tensor == none) continue;
      const Role role = view.memory.role(use.tensor);
      if (event.device == Device::gpu) {
        if (role == Role::gradient && next_used_by_cpu(use.tensor, event.op, view)) {
          actions.evict(use.tensor, view.machine.tier_of(Device::cpu));
        }
        if (parameters_[tensor].last_gpu_use == event.op) parameters_[tensor].outdated = parameters_[tensor].on_cpu;
      } else if (use.write && role == Role::parameter) {
        parameters_[tensor].outdated = false;
        if (in_window(tensor)) actions.fetch(use.tensor);
      }
    }
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (!request.prefetch) coldest_victims(request, view, victims);  // the window waits for what leaves it
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = running_;
    for (const Parameter& parameter : parameters_) hash = hash * 31 + (parameter.outdated ? 1 : 0);
    return hash;
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!plan_.empty()) notes.push_back(plan_);
  }

 private:
  struct Slot {
    const Layers::Layer* layer = nullptr;
    OpIndex first_op = 0;
    Bytes bytes = 0;  // of its parameters
    Nanoseconds compute_ns = 0;
  };
  struct Parameter {
    OpIndex last_gpu_use = none;  // of the iteration
    bool on_cpu = false;          // the CPU updates it
    bool outdated = false;        // and has still to do so
  };

  void make_plan(const View& view) {
    const Trace& trace = view.program->trace;
    layers_ = find_layers(*view.program, *view.schedule);
    slots_.clear();
    running_ = none;
    parameters_.assign(trace.tensors.size(), {});
    slot_of_.assign(trace.ops.size(), none);
    Bytes gradients = 0;  // of the layer with most
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      const Layers::Layer& layer = layers_.list[layers_.of_op[op]];
      const bool gpu = trace.ops[op].device == Device::gpu;
      if (gpu && !layer.parameters.empty() && (slots_.empty() || slots_.back().layer != &layer)) {
        Slot& slot = slots_.emplace_back(Slot{&layer, op});
        for (const TensorId tensor : layer.parameters) slot.bytes += trace.tensors[tensor].bytes;
        Bytes made = 0;
        for (const TensorId tensor : layer.gradients) made += trace.tensors[tensor].bytes;
        gradients = std::max(gradients, made);
      }
      if (gpu && !slots_.empty()) {
        slots_.back().compute_ns += trace.ops[op].occupied_ns();
        slot_of_[op] = static_cast<std::uint32_t>(slots_.size() - 1);
      }
      for (const Use& use : view.schedule->uses(op)) {
        if (trace.tensors[use.tensor].role != Role::parameter) continue;
        if (gpu) parameters_[use.tensor].last_gpu_use = op;
        if (!gpu && use.write) parameters_[use.tensor].on_cpu = true;
      }
    }
    if (slots_.empty()) return;
    const Bytes others = peak_of_intermediates(trace, *view.schedule, false) + 2 * gradients;
    const Bytes capacity = view.machine.tiers[0].capacity;
    size_window(view.machine, capacity > others ? capacity - others : 0);
  }

  // Rule 2. `room`: for the window's parameters.
  void size_window(const MachineSpec& machine, Bytes room) {
    window_ = window_option_;
    bool hidden = true;
    for (std::uint64_t window = 1; window_option_ == 0 && window <= slots_.size(); ++window) {
      if (window > 1 && largest_window(window) > room) break;
      window_ = window;
      hidden = every_fetch_is_hidden(machine, window);
      if (hidden) break;
    }
    window_ = std::min<std::uint64_t>(window_, slots_.size());
    plan_ = "a window of " + std::to_string(window_) + " of " + std::to_string(slots_.size()) + " layers, " +
            format_bytes(largest_window(window_)) + " of parameters at most";
    if (!hidden) plan_ += "; a larger one, which hides every fetch, does not fit";
  }

  // Parameters of so many layers in a row, at most.
  Bytes largest_window(std::uint64_t window) const {
    Bytes bytes = 0, largest = 0;
    for (std::size_t last = 0; last < slots_.size() + window; ++last) {
      bytes += slots_[last % slots_.size()].bytes;
      if (last >= window) bytes -= slots_[(last - window) % slots_.size()].bytes;
      largest = std::max(largest, bytes);
    }
    return largest;
  }

  bool every_fetch_is_hidden(const MachineSpec& machine, std::uint64_t window) const {
    Nanoseconds compute_ns = 0;  // of the window - 1 layers before the last
    for (std::size_t last = 0; last < slots_.size(); ++last) {
      if (last >= window) compute_ns -= slots_[last - window].compute_ns;
      if (last + 1 >= window && compute_ns < fetch_ns(machine, slots_[last].bytes) && last > 0) return false;
      compute_ns += slots_[last].compute_ns;
    }
    return true;
  }

  static Nanoseconds fetch_ns(const MachineSpec& machine, Bytes bytes) {
    Nanoseconds longest_ns = 0;
    for (const LinkId link : machine.path_between(machine.tier_of(Device::cpu), 0)) {
      const double seconds = static_cast<double>(bytes) / static_cast<double>(machine.links[link].bandwidth);
      longest_ns = std::max(longest_ns, machine.links[link].latency_ns + static_cast<Nanoseconds>(seconds * 1e9));
    }
    return longest_ns;
  }

  bool in_window(TensorId tensor) const {
    for (std::uint64_t i = 0; running_ != none && i < window_; ++i) {
      const auto& parameters = slots_[(running_ + i) % slots_.size()].layer->parameters;
      if (std::ranges::find(parameters, tensor) != parameters.end()) return true;
    }
    return false;
  }

  void enter(OpIndex op, const View& view, Actions& actions) {
    const std::uint32_t slot = slot_of_[op];
    if (slot == running_ || slot == none) return;
    const std::uint32_t left = running_;
    running_ = slot;
    if (left != none) {
      for (const TensorId tensor : slots_[left].layer->parameters) {
        if (!in_window(tensor)) send_home(tensor, view, actions);
      }
    }
    for (std::uint64_t i = 0; i < window_; ++i) {
      for (const TensorId tensor : slots_[(running_ + i) % slots_.size()].layer->parameters) {
        const TensorId id = parameters_[tensor].outdated ? none : view.memory_tensor(tensor);
        if (id != none && !view.memory.resident(id, 0)) actions.fetch(id);
      }
    }
  }

  std::uint64_t window_option_ = 0, window_ = 1;
  std::string optimizer_ = "cpu";
  Bytes chunk_bytes_ = 16 * MiB;
  Layers layers_;
  std::vector<Slot> slots_;             // layers with parameters, in program order; empty: no plan
  std::vector<std::uint32_t> slot_of_;  // by op; none: before the first, or on the CPU
  std::vector<Parameter> parameters_;   // by tensor of the program
  std::uint32_t running_ = none;
  std::string plan_;
};

}  // namespace

TENCACHE_POLICY({"stronghold",
                 "a window of whole layers moves over the model on the GPU; the CPU updates what it has left",
                 "StrongHold (SC'22)", make_policy_of<StrongHold>, 190})

}  // namespace tencache
