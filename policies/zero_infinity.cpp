// zero-infinity: ZeRO-Infinity (Rajbhandari et al., SC'21) as DeepSpeed's stage 3 does it. Parameters live in CPU
// memory or on NVMe and visit the GPU module by module; gradients leave as the backward pass produces them; the CPU
// runs the optimizer, sub-group by sub-group, on states in CPU memory or on NVMe. Counts are in elements, as in
// DeepSpeed.
//
// A module is a run of GPU ops with the same module name, forward and backward apart; an op without one is a module by
// itself. The first iteration only records the order of the modules' parameters, from the second on:
//   fetch    a module's first op waits for all of the module's parameters that are missing;
//   prefetch only after that wait: parameters in recorded order, while what they count is below
//            min(max_live - live, prefetch_bucket), up to the first one that is still on NVMe. Then NVMe is read ahead
//            into the swap buffers, until twice as many elements were looked at as are on their way to the GPU;
//   release  a module's parameters leave when its last op is done, unless they are small enough to persist, were
//            fetched for a later module already, or are used again within max_reuse_distance elements.
// With offload_optimizer=nvme the backward pass is over when all gradients have been written: the step begins then.
//
// Nothing is ever driven out by lack of room: what does not fit is out of memory (overflow=evict: the engine may move
// the coldest tensors instead).
//
// Where the schedule is not known (the first steps of a live program, or one that left its recorded order) ops fetch
// what they miss and a module's end releases what it used.
#include <algorithm>
#include <span>

#include "core/error.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"
#include "policies/updates.h"

namespace tencache {
namespace {

// What DeepSpeed's configuration says.
struct ZeroInfinityOptions {
  explicit ZeroInfinityOptions(Options& options) {
    options.number("prefetch_bucket", prefetch_bucket, "elements", "prefetched at most after each module's wait");
    options.number("max_live", max_live, "elements", "of parameters on the GPU, beyond which nothing is prefetched");
    options.number("max_reuse_distance", max_reuse_distance, "elements",
                   "a parameter that is used again so soon stays on the GPU");
    options.number("persistence_threshold", persistence_threshold, "elements",
                   "parameters up to this size stay on the GPU");
    options.number("reduce_bucket", reduce_bucket, "elements", "of gradients that gather before they leave the GPU");
    options.number("sub_group", sub_group, "elements", "of parameters that the optimizer updates at once")
        .only_with("offload_optimizer", "nvme");
    options
        .choice("sub_groups", sub_groups, {"trace", "count"},
                "trace: as recorded, where the trace has sub-groups; count: of sub_group elements")
        .fixed(Options::follows);
    options.choice("offload_param", offload_param, {"cpu", "nvme", "none"}, "where parameters live");
    options.choice("offload_optimizer", offload_optimizer, {"cpu", "nvme"},
                   "where gradients, master parameters and optimizer states live");
    options
        .number("buffer_count", buffer_count, "buffers",
                "for parameters on their way from NVMe; one holds one parameter")
        .only_with("offload_param", "nvme");
    options.number("buffer_size", buffer_size, "elements", "of one such buffer: the largest parameter must fit")
        .fixed(Options::follows)
        .only_with("offload_param", "nvme");
    options
        .number("max_in_cpu", max_in_cpu, "elements", "of parameters that stay in CPU memory with offload_param=nvme")
        .only_with("offload_param", "nvme");
    options
        .number("optimizer_buffer_count", optimizer_buffer_count, "buffers",
                "for states on NVMe; a sub-group in CPU memory takes 4")
        .fixed(Options::follows)
        .only_with("offload_optimizer", "nvme");
    options.flag("pipeline_read", pipeline_read, "read the next sub-group during an update; needs 8 buffers")
        .only_with("offload_optimizer", "nvme");
    options.flag("pipeline_write", pipeline_write, "write a sub-group during the next update; needs 12 with reading")
        .only_with("offload_optimizer", "nvme");
    options.bytes("minimum_swap", minimum_swap, "only tensors of this size go to NVMe (1 MiB or the block, if larger)")
        .fixed("a constant of DeepSpeed's");
    options.flag("pin_memory", pin_memory,
                 "false: parameters lie in the machine's tier 'pageable', if it has one, and copy more slowly");
    options
        .choice("buffers", buffers, {"reuse", "allocate"},
                "allocate: each gradient that leaves the GPU takes fresh memory, at the machine's cost")
        .fixed("how memory is taken");
    add_overflow_option(options, overflow);
  }

  // Buffers that the states of a sub-group take in CPU memory; and of all sub-groups that are there at once.
  static constexpr std::uint64_t buffers_of_a_group = 4;
  std::uint64_t optimizer_buffers() const {
    return buffers_of_a_group * (1u + (pipeline_read ? 1u : 0u) + (pipeline_write ? 1u : 0u));
  }

  std::uint64_t prefetch_bucket = 50'000'000, max_live = 1'000'000'000, max_reuse_distance = 1'000'000'000;
  std::uint64_t persistence_threshold = 100'000, reduce_bucket = 500'000'000, sub_group = 1'000'000'000;
  std::uint64_t buffer_count = 5, buffer_size = 100'000'000, max_in_cpu = 1'000'000'000;
  std::uint64_t optimizer_buffer_count = 4;
  std::string sub_groups = "trace", offload_param = "cpu", offload_optimizer = "cpu", overflow = "oom",
              buffers = "reuse";
  bool pipeline_read = false, pipeline_write = false, pin_memory = false;
  Bytes minimum_swap = MiB;
};

// A parameter of the program.
struct Parameter {
  std::uint64_t elements = 0;
  std::uint32_t fetched_for = 0;  // the latest module, counted from 1, that it was fetched for; 0: none yet
  bool governed = false;          // it is a parameter that visits the GPU
  bool persists = false;
  bool on_nvme = false;   // lives there
  bool live = false;      // on the GPU or on its way: counted in live
  bool coming = false;    // on its way: counted in coming
  bool buffered = false;  // has an NVMe swap buffer: counted in buffers
};

// All of them, and what they take together.
class LiveParameters {
 public:
  void clear(std::size_t count) {
    *this = {};
    all_.assign(count, {});
  }
  std::size_t count() const { return all_.size(); }
  Parameter& operator[](TensorId tensor) { return all_[tensor]; }
  const Parameter& operator[](TensorId tensor) const { return all_[tensor]; }
  std::uint64_t live() const { return live_; }  // elements, as below
  std::uint64_t coming() const { return coming_; }
  std::uint64_t buffers() const { return buffers_; }

  void take(Parameter& parameter) {
    if (!parameter.live && !parameter.persists) live_ += parameter.elements;
    parameter.live = !parameter.persists;
  }
  void start(Parameter& parameter) {
    if (!parameter.coming) coming_ += parameter.elements;
    parameter.coming = true;
  }
  void finish(Parameter& parameter) {
    if (parameter.coming) coming_ -= parameter.elements;
    parameter.coming = false;
  }
  void let_go(Parameter& parameter) {
    finish(parameter);
    if (parameter.live) live_ -= parameter.elements;
    parameter.live = false;
  }
  void take_buffer(Parameter& parameter) {
    if (!parameter.buffered) ++buffers_;
    parameter.buffered = true;
  }
  void give_buffer(Parameter& parameter) {
    if (parameter.buffered) --buffers_;
    parameter.buffered = false;
  }
  void begin_iteration() {
    for (Parameter& parameter : all_) parameter.fetched_for = 0;
  }
  std::uint64_t mixed_into(std::uint64_t hash) const {
    for (const Parameter& parameter : all_) {
      hash = (hash ^ parameter.fetched_for ^ (parameter.live ? 1u << 30 : 0u) ^ (parameter.buffered ? 1u << 31 : 0u)) *
             0x100000001b3;
    }
    return hash;
  }

 private:
  std::vector<Parameter> all_;           // by tensor of the program
  std::uint64_t live_ = 0, coming_ = 0;  // elements
  std::uint64_t buffers_ = 0;
};

// A module's use of a parameter. A queue of these in recorded order is what prefetching follows.
struct Visit {
  TensorId parameter;
  std::uint32_t module;
  std::uint32_t next_module = none;  // that uses it in this iteration
};
struct Module {
  OpIndex first_op, last_op;
  std::uint32_t first_visit = 0;
  std::uint64_t elements_before = 0;  // of all visits of earlier modules
};

// The modules in recorded order, and the queue of their visits.
class ModuleOrder {
 public:
  void learn(const Trace& trace, const Schedule& schedule, const LiveParameters& parameters);

  // Of an op; none: it is in no module.
  std::uint32_t of(OpIndex op) const { return op < of_op_.size() ? of_op_[op] : none; }
  bool begins_with(OpIndex op) const { return of(op) != none && list_[of(op)].first_op == op; }
  bool ends_with(OpIndex op) const { return of(op) != none && list_[of(op)].last_op == op; }
  std::span<const Visit> queue() const { return queue_; }
  std::span<const Visit> visits_of(std::uint32_t module) const {
    return queue().subspan(list_[module].first_visit, end_of(module) - list_[module].first_visit);
  }
  std::size_t end_of(std::uint32_t module) const { return list_[module + 1].first_visit; }  // in the queue
  // Elements of the visits that come between the two modules.
  std::uint64_t elements_between(std::uint32_t module, std::uint32_t later) const {
    return list_[later].elements_before - list_[module + 1].elements_before;
  }

  bool is_last_backward(OpIndex op) const { return op == last_backward_; }
  bool is_before_last_backward(OpIndex op) const { return op == before_last_; }
  OpIndex last_backward() const { return last_backward_; }

 private:
  std::vector<Visit> queue_;
  std::vector<Module> list_;                           // and one past the end
  std::vector<std::uint32_t> of_op_;                   // by op
  OpIndex before_last_ = none, last_backward_ = none;  // of the backward pass
};

// A sub-group of the optimizer step whose states are on NVMe.
struct StateGroup {
  OpIndex first_op, last_op;
  std::uint64_t elements = 0;
  std::vector<TensorId> states;  // that go to NVMe: its masters, moments and gradients
};

// The sub-groups, in the order of the step.
class StateGroups {
 public:
  // None but with offload_optimizer=nvme.
  void learn(const Trace& trace, const Schedule& schedule, const ZeroInfinityOptions& options);

  std::size_t count() const { return list_.size(); }
  const StateGroup& operator[](std::uint32_t group) const { return list_[group]; }
  // Of an op, of a tensor of the program; none: it is in no sub-group.
  std::uint32_t of(OpIndex op) const { return op < of_op_.size() ? of_op_[op] : none; }
  std::uint32_t of_state(TensorId tensor) const { return tensor < of_state_.size() ? of_state_[tensor] : none; }
  bool begins_with(OpIndex op) const { return of(op) != none && list_[of(op)].first_op == op; }
  bool ends_with(OpIndex op) const { return of(op) != none && list_[of(op)].last_op == op; }
  OpIndex first_of_step() const { return first_of_step_; }

  // Those before it were read, or are being read, in this iteration.
  std::uint32_t wanted() const { return wanted_; }
  void want(std::uint32_t group) { wanted_ = std::max(wanted_, group + 1); }
  void begin_iteration() { wanted_ = 0; }

 private:
  std::vector<StateGroup> list_;
  std::vector<std::uint32_t> of_op_, of_state_;
  OpIndex first_of_step_ = none;
  std::uint32_t wanted_ = 0;
};

void ModuleOrder::learn(const Trace& trace, const Schedule& schedule, const LiveParameters& parameters) {
  list_.clear();
  queue_.clear();
  of_op_.assign(trace.ops.size(), none);
  std::vector<std::uint32_t> visited_by(trace.tensors.size(), none), used_by(trace.tensors.size(), none);
  std::uint64_t elements = 0;
  OpIndex previous = none;
  last_backward_ = before_last_ = none;
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.device != Device::gpu) continue;
    if (op.phase == Phase::backward) {
      before_last_ = last_backward_;
      last_backward_ = i;
    }
    const bool goes_on = previous != none && op.module != 0 && op.module == trace.ops[previous].module &&
                         (op.phase == Phase::backward) == (trace.ops[previous].phase == Phase::backward);
    if (!goes_on) list_.push_back({i, i, static_cast<std::uint32_t>(queue_.size()), elements});
    previous = i;
    const std::uint32_t module = static_cast<std::uint32_t>(list_.size() - 1);
    list_.back().last_op = i;
    of_op_[i] = module;
    for (const Use& use : schedule.uses(i)) {
      if (!parameters[use.tensor].governed || visited_by[use.tensor] == module) continue;
      visited_by[use.tensor] = module;
      queue_.push_back({use.tensor, module});
      elements += parameters[use.tensor].elements;
    }
  }
  list_.push_back({none, none, static_cast<std::uint32_t>(queue_.size()), elements});  // the end
  for (std::size_t i = queue_.size(); i-- > 0;) {
    queue_[i].next_module = used_by[queue_[i].parameter];
    used_by[queue_[i].parameter] = queue_[i].module;
  }
}

void StateGroups::learn(const Trace& trace, const Schedule& schedule, const ZeroInfinityOptions& options) {
  list_.clear();
  of_op_.clear();
  of_state_.clear();
  first_of_step_ = none;
  if (options.offload_optimizer != "nvme") return;
  const Bytes element_bytes = trace.header.element_bytes();
  of_op_.assign(trace.ops.size(), none);
  of_state_.assign(trace.tensors.size(), none);
  std::int32_t recorded = -1;
  for (OpIndex i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.device != Device::cpu) continue;
    if (first_of_step_ == none && op.phase == Phase::optimizer) first_of_step_ = i;
    std::vector<TensorId> states;
    std::uint64_t elements = 0;
    for (const Use& use : schedule.uses(i)) {
      const Tensor& tensor = trace.tensors[use.tensor];
      if (tensor.role == Role::gradient) elements += tensor.bytes / element_bytes;
      const bool leaves = goes_with_optimizer(tensor.role) && tensor.bytes >= options.minimum_swap;
      if (leaves) states.push_back(use.tensor);
    }
    const bool updates =
        std::ranges::any_of(states, [&](TensorId tensor) { return trace.tensors[tensor].role != Role::gradient; });
    if (!updates) continue;  // a norm, say
    const bool by_trace = options.sub_groups == "trace" && op.group >= 0;
    const bool goes_on =
        !list_.empty() && (by_trace ? op.group == recorded : list_.back().elements < options.sub_group);
    if (!goes_on) list_.push_back({i, i, 0, {}});
    recorded = op.group;
    StateGroup& group = list_.back();
    group.last_op = i;
    group.elements += elements;
    group.states.insert(group.states.end(), states.begin(), states.end());
    of_op_[i] = static_cast<std::uint32_t>(list_.size() - 1);
    for (const TensorId tensor : states) of_state_[tensor] = of_op_[i];
  }
}

class ZeroInfinity final : public Policy {
 public:
  explicit ZeroInfinity(Options& options) : options_(options) {
    const std::uint64_t needed = options_.optimizer_buffers();
    if (options_.offload_optimizer == "nvme" && options_.optimizer_buffer_count < needed) {
      throw Error(
          "policy 'zero-infinity': optimizer_buffer_count=" + std::to_string(options_.optimizer_buffer_count) +
          " is too few: each sub-group in CPU memory takes 4, and with pipeline_read and pipeline_write as set " +
          std::to_string(needed) + " are in use at once");
    }
  }

  Requirements requirements() const override {
    Requirements r = Requirements::governing({Role::parameter});
    r.module_hooks = true;
    return r;
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    // Parameters go from NVMe to the GPU through staging buffers, which hold a part of a large one; so do those that
    // CPU memory has no room for.
    const bool in_parts = options_.offload_param == "nvme" || (program != nullptr && spills(*program, machine));
    layout.chunk_bytes = in_parts ? unit_that_moves(machine, 0) : 0;
    layout.fallback_eviction = options_.overflow == "evict";
    layout.blocking_step = true;
    layout.initial.fill(machine.tier_of(Device::cpu));
    layout.initial[static_cast<std::size_t>(Role::parameter)] = parameter_home(machine);
    const TierId states =
        options_.offload_optimizer == "nvme" ? nvme_of(machine, "offload_optimizer") : cpu_of(machine);
    layout.initial[static_cast<std::size_t>(Role::optimizer_state)] = states;
    layout.initial[static_cast<std::size_t>(Role::master_parameter)] = states;
    if (const TierId cpu = machine.tier_of(Device::cpu); cpu != no_tier) {
      layout.allocate_each[cpu] = options_.buffers == "allocate";
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    const auto offloaded = [&](TensorId tensor) { return goes_with_optimizer(trace.tensors[tensor].role); };
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      const bool update = op.placeable && op.phase == Phase::optimizer;
      if (update || std::ranges::any_of(trace.reads(op), offloaded) ||
          std::ranges::any_of(trace.writes(op), offloaded)) {
        devices[index] = Device::cpu;
      }
    }
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    victims_.on(event, view);
    const bool gpu = event.device == Device::gpu;
    switch (event.kind) {
      case EventKind::profile_ready:
        learn(view, actions);
        break;
      case EventKind::iteration_begin:
        head_ = 0;
        groups_.begin_iteration();
        parameters_.begin_iteration();
        break;
      case EventKind::op_issued:
        if (gpu && modules_.begins_with(event.op)) fetch(event.op, view, actions);
        if (!gpu && groups_.begins_with(event.op)) read(groups_.of(event.op), event.op, view, actions);
        break;
      case EventKind::op_ready:
        if (gpu && modules_.begins_with(event.op)) prefetch(view, actions);
        if (!gpu && options_.pipeline_read && groups_.begins_with(event.op)) {
          read(groups_.of(event.op) + 1, none, view, actions);
        }
        break;
      case EventKind::op_done:
        gpu ? gpu_op_done(event, view, actions) : update_done(event, view, actions);
        break;
      case EventKind::module_end:
        for (const TensorId id : unscheduled_) leave(id, 0, parameter_home(view.machine), view, actions);
        unscheduled_.clear();
        break;
      case EventKind::transfer_done:
        arrived(event, view, actions);
        break;
      case EventKind::refused:
        if (const TensorId tensor = known(event.tensor, view); tensor != none && event.from == 0)
          parameters_.let_go(parameters_[tensor]);
        break;
      case EventKind::tensor_freed:
        std::erase(bucket_, event.tensor);
        std::erase(unscheduled_, event.tensor);
        break;
      case EventKind::schedule_deviated:
        for (TensorId tensor = 0; tensor < parameters_.count(); ++tensor) drop_live(tensor, view, actions);
        break;
      default:
        break;
    }
  }

  // The engine may drive out what ZeRO-Infinity offloads; the rest (activations) only with overflow=evict. A prefetch
  // drives out nobody.
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.prefetch && request.tier == 0) return;
    if (options_.overflow == "evict" || request.tier != 0) {
      coldest_victims(request, view, victims);
    } else {
      victims_.find(options_.offload_param == "none" ? goes_with_optimizer : is_model_state, request, view, victims);
    }
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = head_;
    for (const std::uint64_t part :
         {parameters_.live(), parameters_.coming(), bucket_elements_, parameters_.buffers()}) {
      hash = (hash ^ part) * 0x100000001b3;
    }
    return parameters_.mixed_into(hash);
  }

 private:
  // ---- The recording.

  void learn(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    element_bytes_ = trace.header.element_bytes();
    head_ = 0;
    bucket_elements_ = 0;
    bucket_.clear();
    unscheduled_.clear();
    learn_parameters(view, actions);
    modules_.learn(trace, *view.schedule, parameters_);
    groups_.learn(trace, *view.schedule, options_);
  }

  void learn_parameters(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    const TierId home = parameter_home(view.machine), cpu = view.machine.tier_of(Device::cpu);
    parameters_.clear(trace.tensors.size());
    std::uint64_t in_cpu = 0;
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      if (trace.tensors[tensor].role != Role::parameter || options_.offload_param == "none") continue;
      Parameter& parameter = parameters_[tensor];
      parameter.governed = true;
      parameter.elements = trace.tensors[tensor].bytes / element_bytes_;
      parameter.persists = parameter.elements <= options_.persistence_threshold;
      const TensorId id = view.memory_tensor(tensor);
      if (options_.offload_param == "nvme" && !parameter.persists &&
          trace.tensors[tensor].bytes >= options_.minimum_swap) {
        parameter.on_nvme = in_cpu + parameter.elements > options_.max_in_cpu;
        if (!parameter.on_nvme) in_cpu += parameter.elements;
        if (parameter.on_nvme && parameter.elements > options_.buffer_size) {
          throw Error("policy 'zero-infinity': parameter '" + trace.name(trace.tensors[tensor]) + "' of " +
                      std::to_string(parameter.elements) + " elements does not fit a buffer of buffer_size=" +
                      std::to_string(options_.buffer_size) + "; raise buffer_size");
        }
      }
      if (id == none || !trace.tensors[tensor].persistent) continue;
      if (parameter.persists) {
        actions.fetch(id);
      } else if (options_.offload_param == "nvme" && !parameter.on_nvme) {
        leave(id, home, cpu, view, actions);
      }
      if (!parameter.persists && view.memory.resident(id, 0)) parameters_.take(parameter);
    }
  }

  // ---- Parameters.

  void fetch(OpIndex op, const View& view, Actions& actions) {
    const std::uint32_t module = modules_.of(op);
    for (const Visit& visit : modules_.visits_of(module)) {
      Parameter& parameter = parameters_[visit.parameter];
      const TensorId id = view.memory_tensor(visit.parameter);
      parameter.fetched_for = std::max(parameter.fetched_for, module + 1);
      if (id == none || view.memory.resident(id, 0)) continue;
      if (waits_on_nvme(parameter, id, view)) {
        if (!parameter.buffered && parameters_.buffers() >= options_.buffer_count) {
          throw Error("policy 'zero-infinity': no buffer is left for parameter '" +
                      view.program->trace.name(view.program->trace.tensors[visit.parameter]) +
                      "', whose module needs it from NVMe; raise buffer_count (it is " +
                      std::to_string(options_.buffer_count) + ")");
        }
        parameters_.take_buffer(parameter);
      }
      parameters_.take(parameter);
      parameters_.start(parameter);
      actions.fetch(id);
      actions.hold(op, id);
    }
    head_ = std::max<std::size_t>(head_, modules_.end_of(module));
  }

  void prefetch(const View& view, Actions& actions) {
    if (view.iteration == 0) return;
    const std::uint64_t budget =
        std::min(options_.max_live - std::min(options_.max_live, parameters_.live()), options_.prefetch_bucket);
    for (std::uint64_t fetching = 0; head_ < modules_.queue().size() && fetching < budget; ++head_) {
      const Visit& visit = modules_.queue()[head_];
      Parameter& parameter = parameters_[visit.parameter];
      const TensorId id = view.memory_tensor(visit.parameter);
      if (id != none && !parameter.live && waits_on_nvme(parameter, id, view)) break;
      parameter.fetched_for = std::max(parameter.fetched_for, visit.module + 1);
      if (id == none || parameter.live || parameter.persists) continue;
      parameters_.take(parameter);
      parameters_.start(parameter);
      actions.fetch(id);
      fetching += parameter.elements;
    }
    if (options_.offload_param == "nvme") read_ahead(view, actions);
  }

  void read_ahead(const View& view, Actions& actions) {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    std::uint64_t considered = 0;
    for (std::size_t i = head_; i < modules_.queue().size(); ++i) {
      if (considered > 2 * parameters_.coming() || parameters_.buffers() >= options_.buffer_count) return;
      Parameter& parameter = parameters_[modules_.queue()[i].parameter];
      const TensorId id = view.memory_tensor(modules_.queue()[i].parameter);
      considered += parameter.elements;
      if (id == none || parameter.live || parameter.buffered || !waits_on_nvme(parameter, id, view)) continue;
      parameters_.take_buffer(parameter);
      actions.fetch(id, cpu);
    }
  }

  void release(std::uint32_t module, const View& view, Actions& actions) {
    for (const Visit& visit : modules_.visits_of(module)) {
      const Parameter& parameter = parameters_[visit.parameter];
      if (parameter.persists) continue;
      if (view.iteration > 0) {
        const bool reused_soon = visit.next_module != none &&
                                 modules_.elements_between(module, visit.next_module) < options_.max_reuse_distance;
        if (parameter.fetched_for > module + 1 || reused_soon) continue;
      }
      drop_live(visit.parameter, view, actions);
    }
  }

  void arrived(const Event& event, const View& view, Actions& actions) {
    const TensorId tensor = known(event.tensor, view);
    const TierId cpu = view.machine.tier_of(Device::cpu);
    if (event.to == 0 && tensor != none && view.memory.resident(event.tensor, 0)) {
      parameters_.finish(parameters_[tensor]);
      if (parameters_[tensor].buffered) {
        leave(event.tensor, cpu, nvme_of(view.machine, "offload_param"), view, actions);
        parameters_.give_buffer(parameters_[tensor]);
      }
    }
    // Gradients pass CPU memory on their way to NVMe; those of a sub-group that is being updated stay.
    const TensorId gradient = view.program_tensor(event.tensor);
    if (event.from == 0 && event.to == cpu && groups_.of_state(gradient) != none &&
        groups_.of_state(gradient) >= groups_.wanted()) {
      const TierId nvme = nvme_of(view.machine, "offload_optimizer");
      leave(event.tensor, cpu, nvme, view, actions);
      if (groups_.first_of_step() != none) actions.hold(groups_.first_of_step(), event.tensor, nvme);
    }
  }

  // The tensor of the program, if it is a parameter that visits the GPU.
  TensorId known(TensorId id, const View& view) const {
    const TensorId tensor = id == none ? none : view.program_tensor(id);
    return tensor < parameters_.count() && parameters_[tensor].governed ? tensor : none;
  }

  // Its value is on NVMe only.
  static bool waits_on_nvme(const Parameter& parameter, TensorId id, const View& view) {
    return parameter.on_nvme && !view.memory.resident(id, view.machine.tier_of(Device::cpu));
  }

  void drop_live(TensorId tensor, const View& view, Actions& actions) {
    if (!parameters_[tensor].governed || parameters_[tensor].persists) return;
    parameters_.let_go(parameters_[tensor]);
    if (const TensorId id = view.memory_tensor(tensor); id != none) {
      leave(id, 0, parameter_home(view.machine), view, actions);
    }
  }

  // ---- Gradients and the optimizer.

  void gpu_op_done(const Event& event, const View& view, Actions& actions) {
    for (const Use& use : event.uses) {
      if (use.tensor == none) continue;
      if (event.op == none && view.memory.role(use.tensor) == Role::parameter) {
        if (std::ranges::find(unscheduled_, use.tensor) == unscheduled_.end()) unscheduled_.push_back(use.tensor);
      }
      if (view.memory.role(use.tensor) != Role::gradient || !next_used_by_cpu(use.tensor, event.op, view)) continue;
      const std::uint64_t elements = view.memory.bytes(use.tensor) / element_bytes_;
      if (bucket_elements_ + elements > options_.reduce_bucket) flush_bucket(view, actions);
      bucket_.push_back(use.tensor);
      bucket_elements_ += elements;
    }
    if (event.op == none) return;
    // The pass' last op waits for what takes fresh memory: its own gradients are all that is left for the step.
    if (modules_.is_last_backward(event.op) ||
        (modules_.is_before_last_backward(event.op) && options_.buffers == "allocate"))
      flush_bucket(view, actions);
    if (modules_.ends_with(event.op)) release(modules_.of(event.op), view, actions);
  }

  void flush_bucket(const View& view, Actions& actions) {
    const TierId cpu = view.machine.tier_of(Device::cpu);
    for (const TensorId id : bucket_) {
      leave(id, 0, cpu, view, actions);
      if (groups_.first_of_step() != none) actions.hold(groups_.first_of_step(), id, cpu);
      // Fresh memory keeps the host busy, which is behind the GPU by what it has to copy: the pass ends when it is
      // done.
      const bool waits = options_.buffers == "allocate" && cpu != no_tier && modules_.last_backward() != none &&
                         view.op != modules_.last_backward();
      if (waits) actions.hold(modules_.last_backward(), id, cpu);
    }
    bucket_.clear();
    bucket_elements_ = 0;
  }

  // The states of a sub-group, for `op`, which waits for all of them; `none`: ahead.
  void read(std::uint32_t group, OpIndex op, const View& view, Actions& actions) {
    if (group >= groups_.count()) return;
    groups_.want(group);
    const TierId cpu = view.machine.tier_of(Device::cpu);
    for (const TensorId tensor : groups_[group].states) {
      const TensorId id = view.memory_tensor(tensor);
      if (id == none || view.memory.resident(id, cpu)) continue;
      actions.fetch(id, cpu);
      if (op != none) actions.hold(op, id, cpu);
    }
  }

  void update_done(const Event& event, const View& view, Actions& actions) {
    const TierId home = parameter_home(view.machine), cpu = view.machine.tier_of(Device::cpu);
    for (const Use& use : event.uses) {
      if (use.tensor == none || !use.write || view.memory.role(use.tensor) != Role::parameter) continue;
      const TensorId tensor = known(use.tensor, view);
      if (options_.offload_param == "none" || (tensor != none && parameters_[tensor].persists)) {
        actions.fetch(use.tensor);
      } else if (tensor != none) {
        parameters_.let_go(parameters_[tensor]);
        const bool goes_home = home != cpu && (options_.offload_param == "cpu" || parameters_[tensor].on_nvme);
        if (goes_home) leave(use.tensor, cpu, home, view, actions);
      }
    }
    if (groups_.ends_with(event.op)) write(groups_.of(event.op), view, actions);
  }

  // The next sub-group waits for this one's write or, with pipeline_write, for that of the one before.
  void write(std::uint32_t group, const View& view, Actions& actions) const {
    const TierId cpu = view.machine.tier_of(Device::cpu), nvme = nvme_of(view.machine, "offload_optimizer");
    const auto wait_for = [&](std::uint32_t written) {
      if (group + 1 >= groups_.count()) return;
      for (const TensorId tensor : groups_[written].states) {
        const TensorId id = view.memory_tensor(tensor);
        if (id != none) actions.hold(groups_[group + 1].first_op, id, nvme);
      }
    };
    if (options_.pipeline_write && group > 0) wait_for(group - 1);
    for (const TensorId tensor : groups_[group].states) {
      const TensorId id = view.memory_tensor(tensor);
      const bool over = id == none || view.memory.role(id) == Role::gradient;  // its value is used up
      if (!over) leave(id, cpu, nvme, view, actions);
    }
    if (!options_.pipeline_write) wait_for(group);
  }

  // ---- Tiers.

  // Frees the tensor's room in `from`: what has no other copy goes to `to`.
  static void leave(TensorId id, TierId from, TierId to, const View& view, Actions& actions) {
    const ChunkId begin = view.memory.first_chunk(id);
    for (std::uint32_t i = 0; i < view.memory.chunk_count(id); ++i) {
      if (!view.memory.evictable(begin + i, from)) continue;
      actions.push({.verb = Verb::evict, .tier = from, .destination = to, .tensor = id, .chunk = i});
    }
  }

  // Not all that starts in CPU memory fits there.
  bool spills(const Program& program, const MachineSpec& machine) const {
    const TierId cpu = machine.tier_of(Device::cpu);
    Bytes bytes = 0;
    for (const Tensor& tensor : program.trace.tensors) {
      const bool state = tensor.role == Role::optimizer_state || tensor.role == Role::master_parameter;
      if (tensor.persistent && !(state && options_.offload_optimizer == "nvme")) bytes += tensor.bytes;
    }
    return cpu != no_tier && bytes > machine.tiers[cpu].capacity;
  }
  static TierId cpu_of(const MachineSpec& machine) { return machine.tier_of(Device::cpu); }

  static TierId nvme_of(const MachineSpec& machine, const char* option) {
    if (const TierId tier = first_storage(machine); tier != no_tier) return tier;
    throw Error("policy 'zero-infinity': " + std::string(option) + "=nvme, but machine '" + machine.name +
                "' has no tier of kind nvme");
  }

  TierId parameter_home(const MachineSpec& machine) const {
    if (options_.offload_param == "none") return 0;
    if (options_.offload_param == "nvme") return nvme_of(machine, "offload_param");
    for (TierId tier = 0; tier < machine.tiers.size() && !options_.pin_memory; ++tier) {
      if (machine.tiers[tier].name == "pageable") return tier;
    }
    return cpu_of(machine);
  }

  ZeroInfinityOptions options_;

  Bytes element_bytes_ = 4;
  LiveParameters parameters_;
  ModuleOrder modules_;
  StateGroups groups_;
  ColdestVictims victims_;
  std::size_t head_ = 0;                        // of the modules' queue: what comes before was fetched or considered
  std::vector<TensorId> bucket_, unscheduled_;  // ids of the memory
  std::uint64_t bucket_elements_ = 0;
};

// ---- For tuning.

ZeroInfinityOptions read_options(const Settings& settings) {
  Options options("zero-infinity", settings);
  return ZeroInfinityOptions(options);
}

// Sub-groups are counted, where their size is a knob; each overlap in the step takes 4 more optimizer buffers; a
// parameter buffer holds the largest parameter.
void complete_settings(std::uint64_t largest_parameter, Settings& settings) {
  const ZeroInfinityOptions options = read_options(settings);
  if (options.offload_optimizer == "nvme") {
    settings.emplace("sub_groups", "count");
    const std::uint64_t needed = options.optimizer_buffers();
    if (needed > ZeroInfinityOptions::buffers_of_a_group) {
      settings.emplace("optimizer_buffer_count", std::to_string(needed));
    }
  }
  constexpr std::uint64_t standard_buffer_size = 100'000'000, step = 10'000'000;
  if (options.offload_param == "nvme" && largest_parameter > standard_buffer_size) {
    settings.emplace("buffer_size", std::to_string((largest_parameter + step - 1) / step * step));
  }
}

ReservedMemory memory_of_settings(const Settings& resolved, const ModelShape& model) {
  const ZeroInfinityOptions options = read_options(resolved);
  ReservedMemory memory;
  const Bytes parameter_bytes = model.parameters * model.element_bytes;
  if (options.offload_param == "nvme") {
    memory.pinned_buffers += options.buffer_count * options.buffer_size * model.element_bytes;
    memory.cpu_home += std::min(parameter_bytes, options.max_in_cpu * model.element_bytes);
  } else if (options.offload_param == "cpu") {
    memory.cpu_home += parameter_bytes;
  }
  if (options.offload_optimizer == "nvme") {
    const std::uint64_t group = std::min(options.sub_group, model.parameters);
    memory.pinned_buffers += options.optimizer_buffer_count * group * 4;  // of fp32
  } else {
    memory.cpu_home += model.state_bytes;
  }
  memory.gpu_bucket = options.reduce_bucket * model.shards * model.element_bytes;
  return memory;
}

// ---- What other tools are told.

DeepSpeedDevices deepspeed_of_zero_infinity(const Settings& resolved) {
  DeepSpeedDevices devices{.optimizer = resolved.at("offload_optimizer"), .parameters = resolved.at("offload_param")};
  if (resolved.at("overflow") == "evict") {
    devices.remarks.emplace_back("overflow=evict has no key: DeepSpeed runs out of memory instead");
  }
  if (resolved.at("buffers") == "allocate") devices.remarks.emplace_back("buffers=allocate has no key");
  return devices;
}

// Each sub-group is a piece.
DeepSpeedMemory memory_of_zero_infinity(const Settings& resolved, const ModelShape& model) {
  constexpr Bytes fp32 = 4, adam_states = 8;
  const ZeroInfinityOptions options = read_options(resolved);
  const Bytes element = model.element_bytes;
  DeepSpeedMemory memory;
  if (options.offload_param == "cpu") {
    memory.locked += DeepSpeedMemory::rounded(model.parameters * element);
  } else if (options.offload_param == "nvme") {
    memory.locked += DeepSpeedMemory::rounded(std::min(model.parameters, options.max_in_cpu) * element);
    memory.locked += DeepSpeedMemory::rounded(options.buffer_count * options.buffer_size * element);
  }
  memory.add_if_asked(model.trained * element);
  if (options.offload_optimizer == "nvme") {
    memory.locked +=
        options.optimizer_buffer_count * DeepSpeedMemory::rounded(std::min(options.sub_group, model.trained) * fp32);
    return memory;
  }
  memory.pageable += model.trained * (fp32 + adam_states);
  for (std::uint64_t left = model.trained; left > 0;) {
    const std::uint64_t group = std::min(left, std::max<std::uint64_t>(1, options.sub_group));
    memory.add_if_asked(group * fp32);
    left -= group;
  }
  return memory;
}

FsdpSettings fsdp_of_zero_infinity(const Settings& resolved, std::uint64_t shards, const LayerShape& layers) {
  const ZeroInfinityOptions options = read_options(resolved);
  FsdpSettings fsdp;
  fsdp.offload = options.offload_param != "none";
  if (options.offload_param == "nvme" || options.offload_optimizer == "nvme") {
    fsdp.remarks.emplace_back("FSDP does not offload to NVMe: what is said is CPU memory");
  }
  if (!fsdp.offload) {
    fsdp.remarks.emplace_back("FSDP does not offload the optimizer alone: its states stay on the GPU");
  }
  fsdp.reshard = options.max_reuse_distance * shards < layers.all;
  const std::uint64_t bucket = options.prefetch_bucket * shards;
  if (layers.layer == 0) {
    fsdp.prefetched = bucket > 0 ? 1 : 0;
    fsdp.remarks.emplace_back("no tensor's name says its layer: one layer is prefetched");
  } else {
    fsdp.prefetched = (bucket + layers.layer - 1) / layers.layer;
    fsdp.remarks.push_back("FSDP prefetches whole layers: " + std::to_string(bucket) + " elements are " +
                           std::to_string(fsdp.prefetched) + " of " + std::to_string(layers.layer));
  }
  fsdp.remarks.emplace_back("max_live, persistence_threshold, reduce_bucket and sub_group have no counterpart in FSDP");
  return fsdp;
}

}  // namespace

TENCACHE_POLICY(
    {"zero-infinity",
     "parameters visit the GPU module by module, prefetched in recorded order; the rest lives in CPU memory or NVMe",
     "ZeRO-Infinity (SC'21), DeepSpeed stage 3",
     make_policy_of<ZeroInfinity>,
     230,
     complete_settings,
     memory_of_settings,
     {.zero_stage = 3,
      .deepspeed = deepspeed_of_zero_infinity,
      .deepspeed_memory = memory_of_zero_infinity,
      .fsdp = fsdp_of_zero_infinity}})

}  // namespace tencache
