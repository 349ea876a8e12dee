#include "traces/import/pytorch/import_kineto.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "traces/import/pytorch/import_pytorch.h"
#include "traces/import/pytorch/join.h"
#include "traces/import/pytorch/pieces.h"
#include "traces/import/pytorch/steps.h"

namespace tencache {
namespace {

constexpr Bytes allocation_unit = 512;  // of PyTorch's allocator on a GPU

// Names alone tell what only views where there is no schema; with calls within them they may copy.
bool only_views(std::string_view name) {
  constexpr std::array<std::string_view, 24> names{
      "aten::view",      "aten::as_strided", "aten::t",       "aten::transpose",      "aten::permute",
      "aten::expand",    "aten::reshape",    "aten::slice",   "aten::select",         "aten::narrow",
      "aten::unsqueeze", "aten::squeeze",    "aten::detach",  "aten::_reshape_alias", "aten::alias",
      "aten::to",        "aten::contiguous", "aten::flatten", "aten::_unsafe_view",   "aten::split",
      "aten::chunk",     "aten::expand_as",  "aten::view_as", "aten::unbind"};
  return std::ranges::find(names, name) != names.end();
}

// What the allocator recorded, as tensors with the ops that write and read them.
class Blocks {
 public:
  struct Block {
    Bytes bytes = 0;
    std::uint32_t writer = none, reader = none;  // ops
    std::vector<std::uint32_t> readers;          // by shape
    bool persistent = false, gradient = false;
  };

  explicit Blocks(const std::string& file) : file_(file) {}

  // Of the first event: what was in use before it.
  void begin(const KinetoMemory& event) {
    if (event.total_allocated == 0) return;
    const auto before = static_cast<std::int64_t>(event.total_allocated) - event.bytes;
    resident_ = static_cast<Bytes>(std::max<std::int64_t>(0, before));
    total_known_ = true;
  }

  void allocate(const KinetoMemory& event, std::uint32_t writer) {
    const auto bytes = static_cast<Bytes>(event.bytes);
    if (bytes > largest_extent) {
      throw Error(file_, 0, "an allocation of " + std::to_string(bytes) + " bytes, which cannot be right");
    }
    live_[event.address] = static_cast<std::uint32_t>(all_.size());
    all_.push_back({.bytes = bytes, .writer = writer, .readers = {}});
  }

  void free(const KinetoMemory& event, std::uint32_t reader, bool accumulated) {
    const auto found = live_.find(event.address);
    if (found == live_.end()) {
      const auto bytes = static_cast<Bytes>(-event.bytes);
      resident_ -= std::min(resident_, bytes);
      ++freed_only_;
      all_.push_back({.bytes = bytes, .reader = reader, .readers = {}, .persistent = true});
      return;
    }
    Block& block = all_[found->second];
    block.reader = std::max(reader, block.writer);
    block.gradient = accumulated;
    live_.erase(found);
  }

  // What an op is given, by the sizes of its arguments.
  void read_by_size(std::uint32_t op, std::span<const OpTensor> inputs) {
    std::set<std::uint32_t> taken;
    for (const OpTensor& input : inputs) {
      const auto bytes = static_cast<Bytes>(op_kernel::bytes(input));
      std::uint32_t best = none;
      for (const auto& [address, block] : live_) {
        const Bytes size = all_[block].bytes;
        if (size < bytes || size >= bytes + allocation_unit || taken.contains(block)) continue;
        if (best == none || block > best) best = block;
      }
      if (best == none) {
        ++unknown_arguments_;
        continue;
      }
      taken.insert(best);
      ++known_arguments_;
      if (op > all_[best].writer) all_[best].readers.push_back(op);
    }
  }

  // What one iteration leaves behind is what the next one finds.
  void pair_carried(std::uint32_t last_op) {
    std::multimap<Bytes, std::uint32_t> found;
    for (std::uint32_t i = 0; i < all_.size(); ++i) {
      if (all_[i].persistent) found.emplace(all_[i].bytes, i);
    }
    for (Block& block : all_) {
      if (block.persistent || block.reader != none) continue;
      const auto earlier = found.find(block.bytes);
      if (earlier != found.end()) {
        all_[earlier->second].writer = block.writer;
        block.bytes = 0;  // the same tensor
        found.erase(earlier);
        ++carried_;
      } else {
        block.reader = last_op;
        ++kept_;
      }
    }
  }

  std::vector<Block>& all() { return all_; }
  Bytes resident() const { return resident_; }  // in use throughout

  void add_notes(bool has_shapes, std::vector<std::string>& notes) const {
    const auto count = [](std::uint64_t n, const std::string& what) { return std::to_string(n) + " " + what; };
    notes.push_back(total_known_
                        ? format_bytes(resident_) +
                              " in use throughout (parameters, states and all that is neither allocated nor "
                              "freed) are one tensor that every op reads: which op uses what of it is not recorded"
                        : std::string("the memory in use before the iteration is not recorded and missing"));
    notes.push_back(
        "tensors live from their allocation to their free, as recorded; read by the last op before the free" +
        std::string(has_shapes ? ", and by ops with arguments of their size: " +
                                     count(known_arguments_, "arguments found, ") + count(unknown_arguments_, "not")
                               : "; other reads are not known (record_shapes=True would tell some)"));
    if (carried_ != 0)
      notes.push_back(count(carried_, "tensors handed on from one iteration to the next, paired by size"));
    if (freed_only_ > carried_) notes.push_back(count(freed_only_ - carried_, "tensors from before that are freed"));
    if (kept_ != 0) notes.push_back(count(kept_, "tensors allocated and not freed: they live to the end"));
  }

 private:
  const std::string& file_;
  std::vector<Block> all_;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;  // by address
  Bytes resident_ = 0;
  bool total_known_ = false;
  std::uint64_t freed_only_ = 0, carried_ = 0, kept_ = 0, known_arguments_ = 0, unknown_arguments_ = 0;
};

class KinetoImporter {
 public:
  explicit KinetoImporter(const KinetoWindow& window)
      : window_(window), has_shapes_(!window.inputs.empty()), gpu_(!window.work.empty()), blocks_(window.file) {}

  ImportedTrace run() {
    find_phases();
    find_ops();
    if (ops_.empty()) {
      throw Error(window_.file, 0, "no op of the chosen iteration ran on a device; choose another with --iteration");
    }
    replay_memory();
    blocks_.pair_carried(static_cast<std::uint32_t>(ops_.size() - 1));
    emit();
    return std::move(out_);
  }

 private:
  void find_phases() {
    std::set<std::uint64_t> backward_threads, forward_threads;
    for (const KinetoCall& call : window_.calls) {
      const std::string_view name = window_.names[call.name];
      if (name.starts_with("autograd::engine::")) backward_threads.insert(call.thread);
      if (is_optimizer_step(name)) forward_threads.insert(call.thread);
    }
    phases_.resize(window_.calls.size(), Phase::forward);
    std::uint32_t last_backward = none;
    bool step = false;
    for (std::uint32_t i = 0; i < window_.calls.size(); ++i) {
      const KinetoCall& call = window_.calls[i];
      const std::string_view name = window_.names[call.name];
      if (call.parent != none) phases_[i] = phases_[call.parent];
      if (is_optimizer_step(name)) {
        phases_[i] = Phase::optimizer;
        step = true;
      } else if (name.starts_with("autograd::engine::") ||
                 (backward_threads.contains(call.thread) && !forward_threads.contains(call.thread))) {
        phases_[i] = Phase::backward;
      } else if (phases_[i] == Phase::forward && is_loss(name)) {
        phases_[i] = Phase::loss;
      }
      if (phases_[i] == Phase::backward) last_backward = i;
    }
    if (last_backward == none || !step) return;
    for (std::uint32_t i = last_backward + 1; i < window_.calls.size(); ++i) phases_[i] = Phase::optimizer;
  }

  void find_ops() {
    std::vector<std::uint32_t> op_of(window_.calls.size(), none);  // itself, while the order is not known
    if (gpu_) {
      for (const KinetoWork& work : window_.work) {
        if (work.call != none) op_of[work.call] = work.call;
      }
    } else {
      std::vector<bool> has_calls(window_.calls.size(), false);
      for (std::uint32_t i = static_cast<std::uint32_t>(window_.calls.size()); i-- > 0;) {
        const KinetoCall& call = window_.calls[i];
        const std::string_view name = window_.names[call.name];
        const bool touches = name.find("::") != std::string_view::npos && !name.starts_with("autograd::") &&
                             !name.starts_with("torch::autograd::") && touches_memory(name) && !only_views(name);
        if (touches && !has_calls[i] && !call.annotation) op_of[i] = i;
        if ((touches || has_calls[i]) && call.parent != none) has_calls[call.parent] = true;
      }
    }
    const std::vector<Activity> activities = activities_of(window_, op_of);
    // In the order in which their work began.
    op_of_call_.assign(window_.calls.size(), none);
    for (const Activity& activity : activities) {
      if (activity.node == none || op_of_call_[activity.node] != none) continue;
      op_of_call_[activity.node] = static_cast<std::uint32_t>(ops_.size());
      ops_.push_back(activity.node);
    }
    launches_.assign(ops_.size(), 0);
    for (const Activity& activity : activities) {
      if (gpu_ && activity.node != none) ++launches_[op_of_call_[activity.node]];
    }
    times_ = times_of_ops(activities, window_.end_ns - window_.begin_ns, ops_.size(),
                          [&](std::uint32_t call) { return op_of_call_[call]; });
  }

  // The op of a call, or of the call around it.
  std::uint32_t op_around(std::uint32_t call) const {
    while (call != none && op_of_call_[call] == none) call = window_.calls[call].parent;
    return call == none ? none : op_of_call_[call];
  }

  // Calls that are ops, by their beginning on the host.
  void order_by_host() {
    for (const std::uint32_t call : ops_) by_begin_.push_back(call);
    std::ranges::sort(by_begin_);
  }
  std::uint32_t last_begun(Nanoseconds time) const {
    const auto after =
        std::ranges::upper_bound(by_begin_, time, {}, [&](std::uint32_t i) { return window_.calls[i].begin_ns; });
    return after == by_begin_.begin() ? 0 : op_of_call_[*(after - 1)];
  }
  std::uint32_t next_on_thread(std::uint64_t thread, Nanoseconds time) const {
    auto call =
        std::ranges::lower_bound(by_begin_, time, {}, [&](std::uint32_t i) { return window_.calls[i].begin_ns; });
    while (call != by_begin_.end() && window_.calls[*call].thread != thread) ++call;
    return call == by_begin_.end() ? last_begun(time) : op_of_call_[*call];
  }

  void replay_memory() {
    order_by_host();
    std::size_t next_op = 0;
    const auto read_until = [&](Nanoseconds time) {
      for (; next_op < by_begin_.size(); ++next_op) {
        const KinetoCall& call = window_.calls[by_begin_[next_op]];
        if (call.begin_ns > time) return;
        if (has_shapes_) blocks_.read_by_size(op_of_call_[by_begin_[next_op]], window_.inputs_of(call));
      }
    };
    bool first = true;
    for (const KinetoMemory& event : window_.memory) {
      if (event.host == gpu_ || event.bytes == 0) continue;
      if (std::exchange(first, false)) blocks_.begin(event);
      read_until(event.time_ns);
      const std::uint32_t around = op_around(event.call);
      if (event.bytes > 0) {
        blocks_.allocate(event, around != none ? around : next_on_thread(event.thread, event.time_ns));
      } else {
        blocks_.free(event, around != none ? around : last_begun(event.time_ns), is_accumulated(event.call));
      }
    }
    read_until(std::numeric_limits<Nanoseconds>::max());
  }

  bool is_accumulated(std::uint32_t call) const {
    for (; call != none; call = window_.calls[call].parent) {
      if (window_.names[window_.calls[call].name] == "torch::autograd::AccumulateGrad") return true;
    }
    return false;
  }

  void emit() {
    Trace& trace = out_.trace;
    std::vector<std::vector<TensorId>> reads(ops_.size()), writes(ops_.size());
    TensorId resident = none;
    if (blocks_.resident() > 0) resident = trace.add_tensor("resident", blocks_.resident(), Role::parameter, true);
    std::uint64_t number = 0;
    for (Blocks::Block& block : blocks_.all()) {
      if (block.bytes == 0) continue;
      const bool workspace = block.writer != none && block.writer == block.reader && block.readers.empty();
      const Role role = block.gradient ? Role::gradient : workspace ? Role::workspace : Role::activation;
      const TensorId id = trace.add_tensor(numbered(to_string(role), number++), block.bytes, role, block.persistent);
      if (block.writer != none) writes[block.writer].push_back(id);
      if (block.reader != none && block.reader != block.writer) block.readers.push_back(block.reader);
      std::ranges::sort(block.readers);
      block.readers.erase(std::unique(block.readers.begin(), block.readers.end()), block.readers.end());
      for (const std::uint32_t reader : block.readers) reads[reader].push_back(id);
    }
    for (std::uint32_t i = 0; i < ops_.size(); ++i) {
      Op op;
      op.name = trace.names.intern(window_.names[window_.calls[ops_[i]].name]);
      op.phase = phases_[ops_[i]];
      op.duration_ns = times_.duration_ns[i];
      op.gap_before_ns = times_.gap_before_ns[i];
      op.duration_source = DurationSource::measured;
      for (const TensorId id : reads[i]) op.bytes += trace.tensors[id].bytes;
      for (const TensorId id : writes[i]) op.bytes += trace.tensors[id].bytes;
      set_kernel(op, ops_[i], i, writes[i]);
      op.bytes = std::max<Bytes>(op.bytes, 1);  // 0 would be taken for that of all tensors, the resident one included
      if (resident != none) reads[i].push_back(resident);
      trace.add_op(op, reads[i], writes[i]);
    }
    add_notes();
  }

  // By the shapes of the call's arguments, where they are recorded. The result's size is that of what the op writes,
  // or, in place, of what it is given.
  void set_kernel(Op& op, std::uint32_t index, std::uint32_t number, const std::vector<TensorId>& writes) {
    if (!has_shapes_ || !gpu_) return;
    Trace& trace = out_.trace;
    const KinetoCall& call = window_.calls[index];
    const std::string_view name = window_.names[call.name];
    const std::span<const OpTensor> given = window_.inputs_of(call);
    const std::vector<OpTensor> tensors(given.begin(), given.end());
    OpKernel found = kernel_of(name, tensors);
    found.causal = found.numbers == 6 && (call.true_arguments >> causal_argument(name) & 1) != 0;
    if (launches_[number] > 0) found.launches = launches_[number];
    const double flops = flops_of(arithmetic_of(name), [&](std::size_t i) {
      return i < tensors.size() ? std::span<const std::int64_t>(tensors[i].sizes) : std::span<const std::int64_t>();
    });
    if (found.numbers != 0 && flops < 1e18) op.flops = static_cast<std::uint64_t>(flops);
    op.kernel = trace.kernels.intern(kernel_of(found));
    if (tensors.empty()) return;
    double bytes = found.more_bytes, written = 0;
    for (const OpTensor& tensor : tensors) bytes += op_kernel::bytes(tensor);
    for (const TensorId id : writes) {
      if (trace.tensors[id].role != Role::workspace) written += static_cast<double>(trace.tensors[id].bytes);
    }
    if (writes.empty() && name != "aten::copy_") written = op_kernel::bytes(tensors.front());
    op.bytes = static_cast<Bytes>(std::clamp(bytes + written, 1.0, 1e15));
  }

  void add_notes() {
    std::vector<std::string>& notes = out_.notes;
    notes.push_back(gpu_ ? "ops: the calls that launched work on the GPU, with the time of that work"
                         : "ops: the innermost calls that touch memory, with their own time on the host");
    blocks_.add_notes(has_shapes_, notes);
    notes.push_back(
        "roles: gradients are freed while autograd accumulates them, a workspace is freed within the op that "
        "allocates it, all others count as activations");
    if (times_.foreign_ns > 0)
      notes.push_back(format_duration(times_.foreign_ns) + " of work of no op counted as gaps");
    if (times_.overrun_ns > 0) {
      notes.push_back("the recorded work ends " + format_duration(times_.overrun_ns) + " after the iteration's period");
    }
    if (window_.unlinked_work != 0) {
      notes.push_back("kernels within the iteration that were launched before it or by no recorded call: " +
                      std::to_string(window_.unlinked_work));
    }
  }

  const KinetoWindow& window_;
  const bool has_shapes_;
  const bool gpu_;
  ImportedTrace out_;
  std::vector<Phase> phases_;       // by call
  std::vector<std::uint32_t> ops_;  // calls
  std::vector<std::uint32_t> op_of_call_;
  std::vector<std::uint32_t> by_begin_;  // the ops' calls, by their beginning on the host
  OpTimes times_;
  std::vector<std::uint32_t> launches_;  // by op
  Blocks blocks_;
};

}  // namespace

ImportedTrace import_kineto(const KinetoImportOptions& options) {
  const KinetoIterations found = find_kineto_iterations(options.file, options.progress);
  if (!found.memory && !found.gpu_work) {
    throw Error(
        options.file, 0,
        "has no kernels and no memory events: recorded where all work is on the CPU, as under the gloo backend, "
        "or without activities=[…, ProfilerActivity.CUDA]; record with it and profile_memory=True");
  }
  if (!found.memory) {
    throw Error(
        options.file, 0,
        "has no memory events, without which there are no tensors: record with profile_memory=True, or record an "
        "execution trace as well and use 'tencache import pytorch ET.json KINETO.json'");
  }
  std::string evidence;
  const KinetoIteration& iteration = choose_iteration(found, options.iteration, options.file, evidence);
  const KinetoWindow window = read_kineto_window(options.file, iteration, options.progress);
  ImportedTrace imported = KinetoImporter(window).run();
  imported.notes.insert(imported.notes.begin(),
                        "iteration: " + evidence + ", " + format_duration(iteration.end_ns - iteration.begin_ns));
  TraceHeader& header = imported.trace.header;
  header.model = options.model.empty() ? model_name_of(options.file) : options.model;
  header.batch = options.batch;
  header.sequence_length = options.sequence_length;
  header.hardware = window.hardware;
  const auto most = std::ranges::max_element(window.products);
  if (*most > 0) header.precision = to_string(static_cast<Precision>(most - window.products.begin()));
  header.provenance.made_by = MadeBy::imported;
  header.recorded_by = "import kineto (" + evidence + "; lifetimes recorded, reads partly inferred)";
  imported.trace.validate(options.file);
  return imported;
}

}  // namespace tencache
