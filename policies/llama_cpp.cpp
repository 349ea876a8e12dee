// llama-cpp: the last layers live on the GPU, the others in CPU memory, where the CPU computes them. ggml-org/llama.cpp
// (src/llama-model.cpp: load_tensors; ggml/src/ggml-backend.cpp: the scheduler; common/arg.cpp: -ngl, --n-cpu-moe,
// --n-cpu-ffn, --no-kv-offload).
//
// 1. gpu_layers (-ngl) of the model's layers, its last ones, live on the GPU, and one more than it has takes the head as
//    well. The token embedding stays in CPU memory; a head that is tied to it has a copy of its own
//    (TENSOR_DUPLICATED). cpu_moe (--n-cpu-moe): the experts of so many layers, its first
//    ones, stay there too; cpu_ffn (--n-cpu-ffn): the feed-forward block of so many, where they have no experts.
// 2. Each op runs where its weights live; ops without weights where the last one before them did. The KV cache of a
//    layer lives where its attention runs: with kv_offload=false (--no-kv-offload) all attention is the CPU's.
// 3. Prompts of offload_from tokens a micro-batch and more are computed on the GPU even so: weights are copied there
//    when an op needs them, which waits, and freed after it (the scheduler's offload_op).
// 4. fit=true: fewer layers, or, with experts, more of them in CPU memory, until weights, caches and what lies between
//    fit (llama.cpp does so by itself since its pull request 16653). fit=false: out of memory.
// 5. Nothing else moves. Weights that CPU memory does not hold lie on storage (mmap) and are read when they are needed.
//
// The trace must let the CPU compute: tencache generate --placeable all. Other ops stay on the GPU, which waits for their
// weights. A batch of micro-batches one after the other
// (--order row) is what llama.cpp runs.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/reveal.h"
#include "policies/block_slots.h"
#include "policies/common_options.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"
#include "policies/weight_homes.h"

namespace tencache {
namespace {

// What lives on the GPU.
struct Split {
  std::size_t gpu_layers = 0;  // of the model's layers, from the last one on
  bool head = false;
  std::size_t cpu_moe = 0, cpu_ffn = 0;
};

bool is_weight(const Trace& trace, TensorId tensor) { return tencache::is_weight(trace.tensors[tensor].role); }

// The program by layers, and what it holds at a time.
class Model {
 public:
  explicit Model(const Trace& trace)
      : trace_(trace), slots_(trace, Schedule(trace)), experts_(trace), parts_(trace.tensors.size(), Part::rest) {
    for (std::size_t layer = 0; layer < slots_.layers.size(); ++layer) {
      const bool has_attention = slots_.layers[layer].attention_end < slots_.layers[layer].weights.size();
      place_.push_back(has_attention ? static_cast<std::int64_t>(count_++) : before_or_after(count_));
      if (has_attention) find_part(slots_.layers[layer]);
    }
    for (const Op& op : trace.ops) {
      if (trace.kernel(op).kind != KernelKind::norm) continue;
      for (const TensorId tensor : trace.reads(op)) parts_[tensor] = Part::rest;
    }
  }

  std::size_t layers() const { return count_; }
  // Of the model, from 0; embedding: before the first layer, after: a head.
  static constexpr std::int64_t embedding = -1, head = -2;
  std::int64_t layer_of(OpIndex op) const { return place_[slots_.slots[slots_.of_op[op]].layer]; }

  // Of a layer's weights: what --n-cpu-moe and --n-cpu-ffn are about, and the rest.
  enum class Part : std::uint8_t { rest, expert, feed_forward };
  Part part(TensorId tensor) const { return parts_[tensor]; }

  // All weights that the op chooses among if it is a gate.
  template <typename Visit>
  void visit_experts(OpIndex op, Visit visit) const {
    for (std::size_t i = 0; i < experts_.count(op); ++i) {
      for (const TensorId tensor : experts_.weights(op, i)) visit(tensor);
    }
  }

  bool on_gpu(std::int64_t layer, Part part, const Split& split) const {
    if (layer == embedding) return false;
    if (layer == head) return split.head;
    const auto number = static_cast<std::size_t>(layer);
    const std::size_t on_cpu = part == Part::expert ? split.cpu_moe : part == Part::feed_forward ? split.cpu_ffn : 0;
    return number + split.gpu_layers >= count_ && number >= on_cpu;
  }

 private:
  void find_part(const BlockLayer& layer) {
    const auto is_expert = [&](TensorId tensor) { return trace_.tensors[tensor].role == Role::expert; };
    const bool dense = std::ranges::none_of(layer.weights, is_expert);
    for (std::size_t i = layer.attention_end; i < layer.weights.size(); ++i) {
      const TensorId tensor = layer.weights[i];
      parts_[tensor] = dense ? Part::feed_forward : is_expert(tensor) ? Part::expert : Part::rest;
    }
  }

  static std::int64_t before_or_after(std::size_t layers_so_far) { return layers_so_far == 0 ? embedding : head; }

  const Trace& trace_;
  BlockSlots slots_;
  const Experts experts_;
  std::vector<std::int64_t> place_;  // by layer of the slots
  std::size_t count_ = 0;
  std::vector<Part> parts_;  // by tensor
};

class LlamaCpp final : public Policy {
 public:
  explicit LlamaCpp(Options& options) {
    options.number("gpu_layers", gpu_layers_, "layers", "that live on the GPU (-ngl)");
    options.number("cpu_moe", cpu_moe_, "layers", "whose experts live in CPU memory (--n-cpu-moe)");
    options.number("cpu_ffn", cpu_ffn_, "layers", "whose dense feed-forward block lives in CPU memory (--n-cpu-ffn)");
    options.flag("kv_offload", kv_offload_, "KV caches of the GPU's layers live there (false: --no-kv-offload)");
    options.number("offload_from", offload_from_, "tokens", "of a prompt that the GPU computes, whatever the layer")
        .fixed(Options::rules_of_a_system);
    add_overflow_option(options, overflow_);
    options.flag("fit", fit_, "fewer layers on the GPU, if they do not fit").fixed(Options::counts_misfits);
  }

  Requirements requirements() const override {
    return Requirements::governing({Role::parameter, Role::expert, Role::kv_cache});
  }
  bool hears(EventKind kind) const override { return kind == EventKind::profile_ready || kind == EventKind::op_done; }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    const Model model(trace);
    place_ops(trace, model, split_of(trace, machine, model), devices);
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (!trace.ops[op].placeable) devices[op] = trace.ops[op].device;
    }
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.fallback_eviction = overflow_ == "evict";
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    if (program == nullptr) return layout;
    const Trace& trace = program->trace;
    const TierId cpu = machine.tier_of(Device::cpu);
    if (cpu == no_tier) {
      throw Error("policy 'llama-cpp' needs a machine with CPU memory; '" + machine.name + "' has none");
    }
    const Model model(trace);
    const Homes homes = homes_of(trace, machine, model, split_of(trace, machine, model));
    layout.start = start_in(trace, homes.of, layout.chunk_bytes);
    std::size_t chunk = 0;
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      const Bytes bytes = trace.tensors[tensor].bytes;
      const std::size_t chunks = layout.chunk_bytes == 0 ? 1 : (bytes + layout.chunk_bytes - 1) / layout.chunk_bytes;
      for (std::size_t i = 0; homes.copied[tensor] != 0 && i < chunks; ++i) layout.start[chunk + i] |= 1u;
      chunk += chunks;
    }
    return layout;
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) {
      const Trace& trace = view.program->trace;
      const Model model(trace);
      const Split split = split_of(trace, view.machine, model);
      homes_ = homes_of(trace, view.machine, model, split);
      count_misplaced(trace, model, split);
      say_split(model, split);
      return;
    }
    if (event.device != Device::gpu) return;
    for (const Use& use : event.uses) {
      const TensorId known = use.tensor == none ? none : view.program_tensor(use.tensor);
      const TierId home = known == none || homes_.of.empty() ? no_tier : homes_.of[known];
      if (home != no_tier && home != 0 && homes_.copied[known] == 0) actions.evict(use.tensor, home);
    }
  }

  void notes(std::vector<std::string>& notes) const override {
    if (!split_note_.empty()) notes.push_back(split_note_);
    if (misplaced_ == 0) return;
    notes.push_back(std::to_string(misplaced_) +
                    " ops that llama.cpp computes on the CPU run on the GPU, since the trace does not let them move; "
                    "generate it with --placeable all");
  }

  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    if (request.tier != 0) coldest_victims(request, view, victims);
  }

 private:
  // By tensor: the home of weights and caches, and whether the GPU has a copy of what is at home below it.
  struct Homes {
    std::vector<TierId> of;
    std::vector<std::uint8_t> copied;
  };

  // Where `fit` took fewer layers than asked for.
  void say_split(const Model& model, const Split& split) {
    const std::size_t asked = std::min<std::size_t>(gpu_layers_, model.layers() + 1);
    const std::size_t placed = split.gpu_layers + (split.head ? 1 : 0);
    split_note_.clear();
    if (placed == asked && split.cpu_moe <= cpu_moe_) return;
    split_note_ = std::to_string(split.gpu_layers) + " of " + std::to_string(model.layers()) +
                  " layers fit on the GPU" + (split.head ? " with the output" : "") + ": -ngl " +
                  std::to_string(placed);
    if (split.cpu_moe > 0) split_note_ += " --n-cpu-moe " + std::to_string(split.cpu_moe);
    if (split.cpu_ffn > 0) split_note_ += " --n-cpu-ffn " + std::to_string(split.cpu_ffn);
  }

  void count_misplaced(const Trace& trace, const Model& model, const Split& split) {
    std::vector<Device> devices;
    for (const Op& op : trace.ops) devices.push_back(op.device);
    place_ops(trace, model, split, devices);
    misplaced_ = 0;
    // Where an op runs that a gate decides is not to be seen.
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      const bool shown = !trace.ops[op].placeable || trace.detail(trace.ops[op]).expert_bytes == 0;
      misplaced_ += shown && devices[op] != trace.ops[op].device ? 1 : 0;
    }
  }

  // Where each op runs, without regard to what the trace allows.
  void place_ops(const Trace& trace, const Model& model, const Split& split, std::vector<Device>& devices) const {
    Device last = Device::gpu;
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const Op& op = trace.ops[index];
      // Of a program that was lowered, placeable ops may be on the CPU already.
      if (op.stream == OpStream::communication) continue;
      if (op.device == Device::cpu && !op.placeable) {
        last = Device::cpu;
        continue;
      }
      const std::int64_t layer = model.layer_of(index);
      bool weighted = trace.detail(op).expert_bytes > 0, cached = false;
      Model::Part part = weighted ? Model::Part::expert : Model::Part::rest;
      for (const TensorId tensor : trace.reads(op)) {
        weighted |= is_weight(trace, tensor);
        part = std::max(part, model.part(tensor));
        cached |= trace.tensors[tensor].role == Role::kv_cache;
      }
      for (const TensorId tensor : trace.writes(op)) cached |= trace.tensors[tensor].role == Role::kv_cache;
      const bool long_prompt = op.phase == Phase::prefill && tokens_of(trace) >= offload_from_;
      if (cached || is_attention(trace.kernel(op).kind)) {
        const bool there = model.on_gpu(layer, Model::Part::rest, split) && kv_offload_;
        last = there || long_prompt ? Device::gpu : Device::cpu;
      } else if (weighted) {
        const bool there = model.on_gpu(layer, part, split);
        last = there || (long_prompt && layer != Model::embedding) ? Device::gpu : Device::cpu;
      }
      devices[index] = last;
    }
  }

  // Of a micro-batch's prompts together.
  static std::uint64_t tokens_of(const Trace& trace) {
    for (const Op& op : trace.ops) {
      const Kernel& kernel = trace.kernel(op);
      if (op.phase == Phase::prefill && is_attention(kernel.kind)) return kernel.shape[0] * kernel.shape[3];
    }
    return 0;
  }

  Homes homes_of(const Trace& trace, const MachineSpec& machine, const Model& model, const Split& split) const {
    const TierId cpu = machine.tier_of(Device::cpu);
    const TierId storage = first_storage(machine) != no_tier ? first_storage(machine) : cpu;
    Bytes in_cpu = 0;
    Homes homes{std::vector<TierId>(trace.tensors.size(), no_tier), std::vector<std::uint8_t>(trace.tensors.size(), 0)};
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      const std::int64_t layer = model.layer_of(index);
      const auto visit = [&](TensorId tensor) {
        const Tensor& known = trace.tensors[tensor];
        TierId& home = homes.of[tensor];
        if (home != no_tier) {
          const bool tied = layer == Model::head && home != 0 && known.persistent && is_weight(trace, tensor);
          if (tied && split.head) homes.copied[tensor] = 1;
        } else if (known.role == Role::kv_cache) {
          home = model.on_gpu(layer, Model::Part::rest, split) && kv_offload_ ? TierId{0} : cpu;
        } else if (is_weight(trace, tensor)) {
          const bool there = model.on_gpu(layer, model.part(tensor), split);
          home = there ? TierId{0} : in_cpu + known.bytes <= machine.tiers[cpu].capacity ? cpu : storage;
          if (!there) in_cpu += known.bytes;
        }
      };
      for (const TensorId tensor : trace.reads(trace.ops[index])) visit(tensor);
      for (const TensorId tensor : trace.writes(trace.ops[index])) visit(tensor);
      model.visit_experts(index, visit);
    }
    return homes;
  }

  // What is on the GPU at most: weights that live there, caches that do, and all else that GPU ops touch, each from its
  // first op to its last; of weights that live below, those of one op.
  Bytes most_on_gpu(const Trace& trace, const Model& model, const Split& split) const {
    std::vector<Device> devices;
    for (const Op& op : trace.ops) devices.push_back(op.device);
    place_ops(trace, model, split, devices);
    struct Life {
      OpIndex first = none, last = none;
    };
    std::vector<Life> lives(trace.tensors.size());
    std::vector<std::uint8_t> stays(trace.tensors.size(), 0);
    Bytes fixed = 0, copied = 0;
    for (OpIndex index = 0; index < trace.ops.size(); ++index) {
      if (devices[index] == Device::cpu) continue;
      const std::int64_t layer = model.layer_of(index);
      const bool experts_there = model.on_gpu(layer, Model::Part::expert, split);
      Bytes of_op = experts_there ? 0 : trace.detail(trace.ops[index]).expert_bytes;
      if (experts_there) {
        model.visit_experts(index, [&](TensorId tensor) {
          if (std::exchange(stays[tensor], 1) == 0) fixed += trace.tensors[tensor].bytes;
        });
      }
      const auto visit = [&](TensorId tensor) {
        const Tensor& known = trace.tensors[tensor];
        if (known.persistent && is_weight(trace, tensor)) {
          const bool there = model.on_gpu(layer, model.part(tensor), split);
          if (!there) of_op += known.bytes;
          if (there && stays[tensor] == 0) fixed += known.bytes;
          stays[tensor] = 1;
          return;
        }
        if (lives[tensor].first == none) lives[tensor].first = index;
        lives[tensor].last = index;
      };
      for (const TensorId tensor : trace.reads(trace.ops[index])) visit(tensor);
      for (const TensorId tensor : trace.writes(trace.ops[index])) visit(tensor);
      copied = std::max(copied, of_op);
    }
    std::vector<std::int64_t> change(trace.ops.size() + 1, 0);
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      if (lives[tensor].first == none) continue;
      change[lives[tensor].first] += static_cast<std::int64_t>(trace.tensors[tensor].bytes);
      change[lives[tensor].last + 1] -= static_cast<std::int64_t>(trace.tensors[tensor].bytes);
    }
    std::int64_t now = 0, most = 0;
    for (const std::int64_t each : change) most = std::max(most, now += each);
    return fixed + copied + static_cast<Bytes>(most);
  }

  Split split_of(const Trace& trace, const MachineSpec& machine, const Model& model) const {
    Split split{.gpu_layers = std::min<std::size_t>(gpu_layers_, model.layers()),
                .head = gpu_layers_ > model.layers(),
                .cpu_moe = std::min<std::size_t>(cpu_moe_, model.layers()),
                .cpu_ffn = std::min<std::size_t>(cpu_ffn_, model.layers())};
    if (!fit_) return split;
    const Bytes room = machine.tiers[0].capacity;
    const auto fits = [&](const Split& tried) { return most_on_gpu(trace, model, tried) <= room; };
    if (fits(split)) return split;
    const bool has_experts = std::ranges::any_of(trace.tensors, [](const Tensor& t) { return t.role == Role::expert; });
    const auto least = [&](std::size_t from, std::size_t to, auto with) {
      while (from < to) {
        const std::size_t middle = from + (to - from) / 2;
        if (fits(with(middle))) {
          to = middle;
        } else {
          from = middle + 1;
        }
      }
      return with(from);
    };
    if (has_experts) {
      const Split tried = least(split.cpu_moe, model.layers(), [&](std::size_t layers) {
        return Split{split.gpu_layers, split.head, layers, split.cpu_ffn};
      });
      if (fits(tried)) return tried;
      split = tried;
    }
    return least(0, split.gpu_layers, [&](std::size_t fewer) {
      return Split{split.gpu_layers - fewer, split.head && fewer == 0, split.cpu_moe, split.cpu_ffn};
    });
  }

  std::uint64_t gpu_layers_ = 999, cpu_moe_ = 0, cpu_ffn_ = 0, offload_from_ = 32;
  bool kv_offload_ = true, fit_ = true;
  std::string overflow_ = "oom";
  Homes homes_;
  std::string split_note_;
  std::size_t misplaced_ = 0;  // ops
};

}  // namespace

TENCACHE_POLICY({"llama-cpp",
                 "the last layers live on the GPU; the CPU computes the others from its own memory",
                 "llama.cpp",
                 make_policy_of<LlamaCpp>,
                 195,
                 nullptr,
                 nullptr,
                 {.llama_cpp = true}})

}  // namespace tencache
