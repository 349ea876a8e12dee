// 10cache: 10Cache (Afroz et al., SoCC'25, arXiv 2511.14124), built on DeepSpeed's stage 3.
//
// A warm-up iteration gives the *prefetch table*, one row a parameter and visit of its module, forward then backward,
// and the histogram of sizes, which divides memory into buffers of one size each (ten_cache.h). Parameters are placed
// in the table's order: GPU buffers until a class has none left, then CPU buffers, the rest on NVMe.
// The *active tensor window* is what is on the GPU. A parameter is released when its module is done with it: it leaves
// the window, and the next row of the pass whose tensor is not in the window comes in. When nothing of the pass is left
// to come in, releasing stops, so that the window stands at the last tensors when the backward pass begins, and at the
// first ones again when the next iteration does. What comes from NVMe is read into CPU memory one release earlier.
// The optimizer runs on the CPU, tensor by tensor; the first states live there, a second window slides over the rest.
//
// What the text leaves open, and what is done here:
//  - `window_reserve` buffers are left free while the window slides; the last rows of a pass use them, so that the
//    window is full where it rests.
//  - prefetch=false ("SC") has no window: a parameter is on the GPU while its module runs, fetched on demand.
//  - buffers=allocate ("SC", "SC+P") takes fresh pinned memory, at the machine's cost, for each gradient and for each
//    parameter that comes from a place of its own on the GPU; as page-locking blocks the host, the next op waits until
//    the tensor has left. Parameters that live in CPU memory keep their place there, so they are dropped.
//  - free_gpu, unless given, is the GPU's memory less the peak of all that is not a parameter. The driver of the
//    paper's L40S must have reported about 30 GB for BLOOM-7B and Falcon-7B: the framework's own cache was in its way.
//  - A tensor larger than all staging buffers, which the system makes large enough for any, passes them in parts.
//  - A parameter that the backward pass does not read (a bias) still has a row there: hooks fetch whole modules.
#include "policies/ten_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>

#include "core/error.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/updates.h"

namespace tencache {

std::vector<std::uint64_t> ten_cache_buffers(std::span<const TensorClass> classes, const BufferRule& rule) {
  double all_bytes = 0;
  for (const TensorClass& c : classes) all_bytes += static_cast<double>(c.bytes) * static_cast<double>(c.tensors);
  std::vector<std::uint64_t> counts;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const TensorClass& c = classes[i];
    const double size = static_cast<double>(c.bytes);
    const double share = size * static_cast<double>(c.tensors) / all_bytes;
    const std::uint64_t cap = rule.cap.empty() ? c.tensors : rule.cap[i];
    const double fitting = std::round(share * rule.memory_bytes / (size * rule.buffer_scale));
    const double wanted = c.tensors <= rule.all_up_to ? static_cast<double>(c.tensors) : fitting;
    counts.push_back(wanted < static_cast<double>(cap) ? static_cast<std::uint64_t>(wanted) : cap);
  }
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::uint64_t goal =
        std::min(rule.at_least, rule.cap.empty() ? classes[i].tensors : std::min(classes[i].tensors, rule.cap[i]));
    const std::size_t donor = static_cast<std::size_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    if (counts[i] >= goal || donor == i) continue;
    const Bytes mine = classes[i].bytes, theirs = classes[donor].bytes;
    if (theirs % mine != 0 && mine % theirs != 0) continue;
    const std::uint64_t gives = std::max<std::uint64_t>(mine / theirs, 1), makes = std::max<Bytes>(theirs / mine, 1);
    while (counts[i] < goal && counts[donor] >= rule.at_least + gives) {
      counts[donor] -= gives;
      counts[i] = std::min(counts[i] + makes, goal);
    }
  }
  return counts;
}

namespace {

constexpr std::uint64_t spare_cpu_buffers = 12;              // of a class, beyond those of tensors not on the GPU
constexpr std::uint64_t fewest_fp16 = 20, fewest_fp32 = 15;  // what the ratio correction lifts a class to
constexpr double fp32_tensors = 4;                           // parameter, gradient, momentum, variance

class TenCache final : public Policy {
 public:
  explicit TenCache(Options& options) {
    options.flag("prefetch", prefetch_, "the active tensor window; false is the paper's SC").fixed(Options::ablation);
    options
        .choice("buffers", buffers_, {"reuse", "allocate"},
                "reuse pinned buffers (SC+P+M), or take fresh memory for each tensor that leaves the GPU (SC+P)")
        .fixed(Options::ablation);
    options
        .flag("optimizer_states", optimizer_states_,
              "keep the first states in CPU memory and slide over the rest; false is the paper's 10Cache+FP16: each is "
              "read when its update asks for it")
        .fixed(Options::ablation);
    options.number("window_reserve", window_reserve_, "buffers",
                   "GPU buffers left free for what is on its way, at most half of them");
    options.number("states_window", states_window_, "tensors",
                   "states that slide when not all fit into CPU memory; the others live there for good");
    options.real("gpu_share", gpu_share_, "divisor", "parameters may take free_gpu divided by this");
    options.real("cpu_share", cpu_share_, "divisor", "parameters may take free_cpu divided by this");
    options.share("states_share", states_share_, "of free_cpu that optimizer states may take");
    options.bytes("free_gpu", free_gpu_, "GPU memory found free after the warm-up iteration", "auto")
        .fixed(Options::machine_figure);
    options.bytes("free_cpu", free_cpu_, "CPU memory found free after the warm-up iteration", "auto")
        .fixed(Options::machine_figure);
    if (gpu_share_ <= 0) throw Error("policy '10cache': option gpu_share must be above 0");
    if (cpu_share_ <= 0) throw Error("policy '10cache': option cpu_share must be above 0");
  }

  Requirements requirements() const override {
    Requirements r = Requirements::governing({Role::parameter});
    r.module_hooks = true;
    return r;
  }

  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout;
    layout.chunk_bytes = unit_of_whole_tensors(machine, program, 0);
    layout.blocking_step = true;  // DeepSpeed's step() returns when the CPU's Adam is done
    const TierId cpu = machine.tier_of(Device::cpu);
    for (const Role role : {Role::parameter, Role::master_parameter, Role::optimizer_state}) {
      layout.initial[static_cast<std::size_t>(role)] = cpu;
    }
    if (allocates() && cpu != no_tier) {
      layout.allocate_each[cpu] = true;
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    place_updates_on_cpu(trace, devices);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) learn(view, actions);
    if (view.program == nullptr || rows_.empty()) return;  // a live program's warm-up iteration: on demand
    if (event.kind == EventKind::transfer_done) arrived(event, view, actions);
    if (event.kind != EventKind::op_done || event.op == none) return;
    if (event.device == Device::cpu) {
      updated(event, view, actions);
      return;
    }
    send_gradients(event, view, actions);
    const std::uint32_t begin = first_release_[event.op], end = first_release_[event.op + 1];
    if (begin == end) return;
    if (pass_of_op_[event.op] != pass_) enter_pass(pass_of_op_[event.op]);
    fetch_what_was_read(view, actions);
    for (std::uint32_t i = begin; i < end; ++i) release(releases_[i], event.op, view, actions);
  }

  // The buffers are this policy's own and it keeps within them. When room is short nevertheless, a prefetch waits, and
  // for an op the engine takes the coldest.
  void make_room(const RoomRequest&, const View&, std::vector<ChunkId>&) override {}

  void notes(std::vector<std::string>& notes) const override {
    if (rows_.empty()) return;
    notes.push_back("parameters placed: " + std::to_string(placed_[0]) + " on the GPU, " + std::to_string(placed_[1]) +
                    " in CPU memory, " + std::to_string(placed_[2]) + " on NVMe");
    notes.push_back("optimizer states: those of " + std::to_string(first_sliding_) +
                    " tensors stay in CPU memory, of " + std::to_string(units_.size() - first_sliding_) + " slide");
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = membership_;
    const auto mix = [&hash](std::uint64_t value) { hash = mixed(hash ^ mixed(value)); };
    for (const std::uint64_t value : {row_, next_unit_, pass_}) mix(value);
    for (const Class& c : classes_) {
      for (const std::deque<TensorId>* list : {&c.oldest, &c.cached}) {
        mix(list->size());
        for (const TensorId tensor : *list) mix(tensor);
      }
    }
    for (const TensorId id : read_) mix(id);
    for (const std::uint8_t wanted : wanted_) mix(wanted);
    return hash;
  }

 private:
  struct Class {
    std::uint64_t gpu_buffers = 0, cpu_buffers = 0, gpu_used = 0, cpu_used = 0;
    // Of the CPU buffers, each tensor at most once: all; those whose tensor came to the GPU too, and may have left it.
    std::deque<TensorId> oldest, cached;
  };

  bool allocates() const { return buffers_ == "allocate"; }

  // ---- The warm-up iteration ----------------------------------------------------------------------------------------

  void learn(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    cpu_ = view.machine.tier_of(Device::cpu);
    nvme_ = no_tier;
    for (TierId tier = 0; tier < view.machine.tiers.size(); ++tier) {
      if (view.machine.tiers[tier].kind == TierKind::nvme && nvme_ == no_tier) nvme_ = tier;
    }
    make_table(trace, *view.schedule);
    make_buffers(view);
    place_parameters(view, actions);
    make_units(view, actions);
  }

  // Rows, passes and releases. A visit is a run of ops of one module in one pass.
  void make_table(const Trace& trace, const Schedule& schedule) {
    rows_.clear();
    first_row_.clear();
    pass_of_op_.assign(trace.ops.size(), 0);
    next_gpu_op_.assign(trace.ops.size(), 0);
    std::vector<OpIndex> last_use(trace.tensors.size(), none);
    std::vector<std::uint32_t> seen(trace.tensors.size(), 0);  // the visit that used it last
    std::vector<std::uint8_t> read_backward(trace.tensors.size(), 0);
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].phase != Phase::backward || trace.ops[op].device != Device::gpu) continue;
      for (const Use& use : schedule.uses(op)) read_backward[use.tensor] |= use.read ? 1 : 0;
    }
    std::vector<std::vector<std::vector<TensorId>>> forward_visits(trace.names.size());  // by module, latest last
    std::vector<OpIndex> release_of_row;
    std::vector<TensorId> used;  // by the present visit
    std::uint32_t visit = 0;
    NameId module = none;
    bool backward = false;
    OpIndex last = none;
    const auto end_visit = [&] {
      if (visit == 0) return;
      if (module != 0 && !backward) forward_visits[module].push_back(used);
      if (module != 0 && backward && !forward_visits[module].empty()) {
        for (const TensorId tensor : forward_visits[module].back()) {
          if (read_backward[tensor] != 0 || seen[tensor] == visit) continue;
          used.push_back(tensor);
          last_use[tensor] = last;
        }
        forward_visits[module].pop_back();
      }
      for (const TensorId tensor : used) {
        rows_.push_back(tensor);
        release_of_row.push_back(last_use[tensor]);
      }
      used.clear();
    };
    for (OpIndex i = 0; i < trace.ops.size(); ++i) {
      const Op& op = trace.ops[i];
      if (op.device != Device::gpu || op.phase == Phase::optimizer) continue;
      const bool now_backward = op.phase == Phase::backward;
      const bool new_pass = first_row_.empty() || now_backward != backward;
      if (new_pass || op.module != module || module == 0) {
        end_visit();
        ++visit;
      }
      if (new_pass) first_row_.push_back(static_cast<std::uint32_t>(rows_.size()));
      module = op.module;
      backward = now_backward;
      last = i;
      pass_of_op_[i] = static_cast<std::uint32_t>(first_row_.size() - 1);
      for (const Use& use : schedule.uses(i)) {
        if (trace.tensors[use.tensor].role != Role::parameter) continue;
        if (seen[use.tensor] != visit) used.push_back(use.tensor);
        seen[use.tensor] = visit;
        last_use[use.tensor] = i;
      }
    }
    end_visit();
    first_row_.push_back(static_cast<std::uint32_t>(rows_.size()));
    sort_releases(trace, release_of_row);
  }

  void sort_releases(const Trace& trace, const std::vector<OpIndex>& release_of_row) {
    first_release_.assign(trace.ops.size() + 1, 0);
    for (const OpIndex op : release_of_row) ++first_release_[op + 1];
    for (std::size_t i = 1; i < first_release_.size(); ++i) first_release_[i] += first_release_[i - 1];
    std::vector<std::uint32_t> next(first_release_.begin(), first_release_.end() - 1);
    releases_.resize(release_of_row.size());
    for (std::uint32_t row = 0; row < release_of_row.size(); ++row) releases_[next[release_of_row[row]]++] = row;
    OpIndex next_gpu = 0;
    for (std::size_t i = 0; i < trace.ops.size() && trace.ops[next_gpu].device != Device::gpu; ++i) ++next_gpu;
    for (std::size_t i = trace.ops.size(); i-- > 0;) {
      next_gpu_op_[i] = next_gpu;
      if (trace.ops[i].device == Device::gpu) next_gpu = static_cast<OpIndex>(i);
    }
  }

  void make_buffers(const View& view) {
    const Trace& trace = view.program->trace;
    std::map<Bytes, std::uint64_t> histogram;
    std::vector<std::uint8_t> counted(trace.tensors.size(), 0);
    for (const TensorId tensor : rows_) {
      if (counted[tensor] == 0) ++histogram[trace.tensors[tensor].bytes];
      counted[tensor] = 1;
    }
    std::vector<TensorClass> sizes;
    for (const auto& [bytes, tensors] : histogram) sizes.push_back({bytes, tensors});
    class_of_.assign(trace.tensors.size(), none);
    for (const TensorId tensor : rows_) {
      const auto less = [](const TensorClass& c, Bytes bytes) { return c.bytes < bytes; };
      const auto found = std::lower_bound(sizes.begin(), sizes.end(), trace.tensors[tensor].bytes, less);
      class_of_[tensor] = static_cast<std::uint32_t>(found - sizes.begin());
    }
    const Bytes gpu = view.memory.capacity(0), others = peak_besides_parameters(view);
    const Bytes free_gpu = free_gpu_ > 0 ? free_gpu_ : gpu > others ? gpu - others : 0;
    const Bytes free_cpu = free_cpu_ > 0 ? free_cpu_ : cpu_ != no_tier ? view.memory.capacity(cpu_) : 0;
    const auto on_gpu = ten_cache_buffers(sizes, {.memory_bytes = static_cast<double>(free_gpu) / gpu_share_,
                                                  .buffer_scale = 1,
                                                  .all_up_to = 2,
                                                  .at_least = fewest_fp16,
                                                  .cap = {}});
    BufferRule cpu_rule{.memory_bytes = static_cast<double>(free_cpu) / cpu_share_,
                        .buffer_scale = 1,
                        .all_up_to = 2,
                        .at_least = fewest_fp16,
                        .cap = {}};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      cpu_rule.cap.push_back(sizes[i].tensors - (prefetch_ ? on_gpu[i] : 0) + spare_cpu_buffers);
    }
    const auto on_cpu = ten_cache_buffers(sizes, cpu_rule);
    classes_.assign(sizes.size(), {});
    double cpu_bytes = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      classes_[i].gpu_buffers = on_gpu[i];
      classes_[i].cpu_buffers = on_cpu[i];
      cpu_bytes += static_cast<double>(on_cpu[i] * sizes[i].bytes);
    }
    free_for_states_ = std::max(0.0, static_cast<double>(free_cpu) - cpu_bytes);
  }

  // Of what lies on the GPU between its first and its last use there.
  static Bytes peak_besides_parameters(const View& view) {
    const Trace& trace = view.program->trace;
    const Bytes granularity = view.machine.tiers[0].granularity;
    std::vector<Bytes> born(trace.ops.size() + 1, 0), gone(trace.ops.size() + 1, 0);
    for (TensorId tensor = 0; tensor < trace.tensors.size(); ++tensor) {
      if (trace.tensors[tensor].role == Role::parameter) continue;
      OpIndex first = none, last = none;
      for (const OpIndex op : view.schedule->ops_of(tensor)) {
        if (trace.ops[op].device != Device::gpu) continue;
        if (first == none) first = op;
        last = op;
      }
      if (first == none) continue;
      const Bytes bytes = (trace.tensors[tensor].bytes + granularity - 1) / granularity * granularity;
      born[trace.tensors[tensor].persistent ? 0 : first] += bytes;
      gone[trace.tensors[tensor].persistent ? trace.ops.size() : last + std::size_t{1}] += bytes;
    }
    Bytes alive = 0, peak = 0;
    for (std::size_t op = 0; op < trace.ops.size(); ++op) {
      alive = alive + born[op] - gone[op];
      peak = std::max(peak, alive);
    }
    return peak;
  }

  // In the table's order: GPU buffers until a class has none left, then CPU buffers, the rest on NVMe.
  void place_parameters(const View& view, Actions& actions) {
    in_window_.assign(class_of_.size(), 0);
    in_cpu_.assign(class_of_.size(), 0);
    in_cached_.assign(class_of_.size(), 0);
    wanted_.assign(class_of_.size(), 0);
    lives_on_gpu_.assign(class_of_.size(), 0);
    read_.clear();
    window_ = membership_ = 0;
    row_ = 0;
    pass_ = 0;
    bool to_gpu = true, to_cpu = true;
    cpu_is_short_ = false;
    placed_ = {};
    std::vector<std::uint8_t> placed(class_of_.size(), 0);
    for (const TensorId tensor : rows_) {
      if (placed[tensor] != 0) continue;
      placed[tensor] = 1;
      Class& c = classes_[class_of_[tensor]];
      to_gpu = to_gpu && prefetch_ && c.gpu_used < c.gpu_buffers;
      const TensorId id = view.memory_tensor(tensor);
      if (to_gpu) {
        ++placed_[0];
        add_to_window(tensor);
        lives_on_gpu_[tensor] = 1;
        if (id != none) actions.fetch(id);
        continue;
      }
      const bool fits = nvme_ == no_tier || cpu_ == no_tier || c.cpu_used < c.cpu_buffers;
      to_cpu = to_cpu && fits;
      ++placed_[to_cpu ? 1 : 2];
      if (to_cpu) {
        enter_cpu(tensor);
      } else {
        cpu_is_short_ = true;
        leave_cpu(id, view, actions);
      }
    }
    if (!cpu_is_short_) {
      for (Class& c : classes_) c.oldest.clear();
    }
    capacity_ = window_;
    reserve_ = std::min(window_reserve_, capacity_ / 2);
  }

  // ---- The active tensor window -------------------------------------------------------------------------------------

  void enter_pass(std::uint32_t pass) {
    pass_ = pass;
    row_ = first_row_[pass];
  }

  void add_to_window(TensorId tensor) {
    in_window_[tensor] = 1;
    ++classes_[class_of_[tensor]].gpu_used;
    ++window_;
    membership_ ^= mixed(tensor);
  }

  // Passes over the rows whose tensor is in the window; whether one of this pass is left.
  bool more_to_come() {
    const std::uint32_t end = first_row_[pass_ + 1];
    while (row_ < end && in_window_[rows_[row_]] != 0) ++row_;
    return row_ < end;
  }

  void release(std::uint32_t row, OpIndex op, const View& view, Actions& actions) {
    const TensorId tensor = rows_[row];
    row_ = std::max(row_, row + 1);  // what is behind is not brought back
    if (!prefetch_) {
      leave_gpu(tensor, op, view, actions);
      return;
    }
    if (!more_to_come()) {
      if (in_window_[tensor] == 0)
        leave_gpu(tensor, op, view, actions);  // came on demand: its class has no buffer left
      return;
    }
    if (in_window_[tensor] != 0) {
      in_window_[tensor] = 0;
      --classes_[class_of_[tensor]].gpu_used;
      --window_;
      membership_ ^= mixed(tensor);
    }
    leave_gpu(tensor, op, view, actions);
    while (more_to_come()) {
      const TensorId next = rows_[row_];
      const Class& c = classes_[class_of_[next]];
      const std::uint64_t left = first_row_[pass_ + 1] - row_ - 1;  // behind this one
      if (window_ + std::min(reserve_, left) >= capacity_ || c.gpu_used >= c.gpu_buffers) break;
      add_to_window(next);
      ++row_;
      bring(view.memory_tensor(next), view, actions);
    }
  }

  // Two stages from NVMe: into CPU memory now, to the GPU at the next release.
  void bring(TensorId id, const View& view, Actions& actions) {
    if (id == none) return;
    const ChunkId chunk = view.memory.first_chunk(id);
    const bool on_nvme_alone = nvme_ != no_tier && cpu_ != no_tier && view.memory.valid(chunk, nvme_) &&
                               !view.memory.valid(chunk, cpu_) && !view.memory.valid(chunk, 0);
    if (on_nvme_alone) {
      actions.fetch(id, cpu_);
      read_.push_back(id);
    } else {
      actions.fetch(id);
    }
  }

  void fetch_what_was_read(const View& view, Actions& actions) {
    for (const TensorId id : read_) {
      const TensorId tensor = view.program_tensor(id);
      if (tensor == none || in_window_[tensor] == 0) continue;
      if (view.memory.resident(id, cpu_)) {
        actions.fetch(id);
      } else {
        wanted_[tensor] = 1;  // as soon as it is read
      }
    }
    read_.clear();
  }

  void leave_gpu(TensorId tensor, OpIndex op, const View& view, Actions& actions) {
    const TensorId id = view.memory_tensor(tensor);
    if (id == none) return;
    wanted_[tensor] = 0;
    const ChunkId chunk = view.memory.first_chunk(id);
    if (view.memory.copy(chunk, 0).state == CopyState::absent) actions.cancel(id);
    if (!view.memory.evictable(chunk, 0)) return;
    actions.evict(id);
    wait_for_memory(id, op, actions);
  }

  // Page-locking fresh memory blocks the host: what follows waits until the tensor has left.
  void wait_for_memory(TensorId id, OpIndex op, Actions& actions) const {
    if (allocates() && cpu_ != no_tier) actions.hold(next_gpu_op_[op], id, cpu_);
  }

  void arrived(const Event& event, const View& view, Actions& actions) {
    const TensorId tensor = view.program_tensor(event.tensor);
    if (tensor == none || tensor >= class_of_.size() || class_of_[tensor] == none) return;
    if (event.to == 0) {
      if (cpu_is_short_ && in_cpu_[tensor] != 0 && in_cached_[tensor] == 0) {
        classes_[class_of_[tensor]].cached.push_back(tensor);
        in_cached_[tensor] = 1;
      }
      if (allocates() && lives_on_gpu_[tensor] != 0 && view.memory.resident(event.tensor, cpu_)) {
        actions.drop(event.tensor, cpu_);
      }
      if (prefetch_ && in_window_[tensor] == 0 && view.memory.evictable(event.chunk, 0)) actions.evict(event.tensor);
    } else if (event.to == cpu_) {
      enter_cpu(tensor);
      if (wanted_[tensor] != 0) actions.fetch(event.tensor);
      wanted_[tensor] = 0;
      shrink_cpu(classes_[class_of_[tensor]], view, actions);
    }
  }

  // ---- CPU buffers: counted only where parameters live on NVMe ------------------------------------------------------

  void enter_cpu(TensorId tensor) {
    Class& c = classes_[class_of_[tensor]];
    if (in_cpu_[tensor] != 0) return;
    in_cpu_[tensor] = 1;
    ++c.cpu_used;
    c.oldest.push_back(tensor);
  }

  // More tensors than buffers: the CPU copy of one that the GPU holds goes, else the oldest is written to NVMe.
  void shrink_cpu(Class& c, const View& view, Actions& actions) {
    if (!cpu_is_short_) return;
    while (c.cpu_used > c.cpu_buffers && !(c.cached.empty() && c.oldest.empty())) {
      const bool from_cached = !c.cached.empty();
      const TensorId tensor = from_cached ? c.cached.front() : c.oldest.front();
      if (from_cached) {
        c.cached.pop_front();
        in_cached_[tensor] = 0;
      }
      if (in_cpu_[tensor] == 0) continue;
      const TensorId id = view.memory_tensor(tensor);
      const bool gone = id == none || !view.memory.resident(id, cpu_);
      if (!gone && from_cached && !view.memory.resident(id, 0)) continue;
      in_cpu_[tensor] = 0;
      c.oldest.erase(std::find(c.oldest.begin(), c.oldest.end(), tensor));
      --c.cpu_used;
      if (!gone) leave_cpu(id, view, actions);
    }
  }

  void leave_cpu(TensorId id, const View& view, Actions& actions) const {
    if (id == none || cpu_ == no_tier || !view.memory.evictable(view.memory.first_chunk(id), cpu_)) return;
    actions.evict(id, nvme_, cpu_);
  }

  // ---- Gradients and the optimizer ----------------------------------------------------------------------------------

  void send_gradients(const Event& event, const View& view, Actions& actions) const {
    if (cpu_ == no_tier) return;
    for (const Use& use : event.uses) {
      if (use.tensor == none || !use.write || view.memory.role(use.tensor) != Role::gradient) continue;
      const TensorId tensor = view.program_tensor(use.tensor);
      if (tensor == none) continue;
      const std::uint32_t distance = view.schedule->distance_to_next_use(tensor, event.op);
      if (distance == none) continue;
      const Trace& trace = view.program->trace;
      if (trace.ops[(event.op + distance) % trace.ops.size()].device != Device::cpu) continue;
      actions.evict(use.tensor, cpu_);
      wait_for_memory(use.tensor, event.op, actions);
    }
  }

  // An op of the optimizer and the states that it alone works on.
  struct Unit {
    OpIndex op = none;
    std::uint32_t first = 0, count = 0;  // in unit_tensors_
    Bytes bytes = 0;                     // of the largest: the parameter in fp32
  };

  void make_units(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    units_.clear();
    unit_tensors_.clear();
    unit_of_op_.assign(trace.ops.size(), none);
    for (OpIndex op = 0; op < trace.ops.size(); ++op) {
      if (trace.ops[op].device != Device::cpu) continue;
      Unit unit{.op = op, .first = static_cast<std::uint32_t>(unit_tensors_.size())};
      for (const Use& use : view.schedule->uses(op)) {
        const Role role = trace.tensors[use.tensor].role;
        if (role != Role::optimizer_state && role != Role::master_parameter) continue;
        unit_tensors_.push_back(use.tensor);
        ++unit.count;
        unit.bytes = std::max(unit.bytes, trace.tensors[use.tensor].bytes);
      }
      if (unit.count == 0) continue;
      unit_of_op_[op] = static_cast<std::uint32_t>(units_.size());
      units_.push_back(unit);
    }
    const std::uint32_t all = static_cast<std::uint32_t>(units_.size());
    const std::uint32_t fitting =
        nvme_ == no_tier ? all : std::min(all, std::max(fitting_units(), optimizer_states_ ? 2u : 1u));
    const std::uint64_t window = optimizer_states_ ? std::max<std::uint64_t>(states_window_, 1) : fitting;
    first_sliding_ =
        fitting == all ? all : fitting - static_cast<std::uint32_t>(std::min<std::uint64_t>(window, fitting));
    next_unit_ = fitting;
    for (std::uint32_t unit = 0; unit < all; ++unit) {
      for_states(unit, view, [&](TensorId id, ChunkId chunk) {
        if (unit < fitting && !view.memory.valid(chunk, cpu_)) actions.fetch(id, cpu_);
        if (unit >= fitting) leave_cpu(id, view, actions);
      });
    }
  }

  // How many units, from the first on, find buffers in CPU memory.
  std::uint32_t fitting_units() const {
    if (!optimizer_states_) return 1;  // the one being updated: none is read ahead, as all miss
    std::map<Bytes, std::uint64_t> histogram;
    for (const Unit& unit : units_) ++histogram[unit.bytes];
    std::vector<TensorClass> sizes;
    for (const auto& [bytes, tensors] : histogram) sizes.push_back({bytes, tensors});
    const auto counts = ten_cache_buffers(sizes, {.memory_bytes = free_for_states_ * states_share_,
                                                  .buffer_scale = fp32_tensors,
                                                  .all_up_to = 2,
                                                  .at_least = fewest_fp32,
                                                  .cap = {}});
    std::map<Bytes, std::uint64_t> left;
    for (std::size_t i = 0; i < sizes.size(); ++i) left[sizes[i].bytes] = counts[i];
    std::uint32_t fitting = 0;
    while (fitting < units_.size() && left[units_[fitting].bytes] > 0) --left[units_[fitting++].bytes];
    return fitting;
  }

  template <typename Function>
  void for_states(std::uint32_t unit, const View& view, Function function) const {
    for (std::uint32_t i = units_[unit].first; i < units_[unit].first + units_[unit].count; ++i) {
      const TensorId id = view.memory_tensor(unit_tensors_[i]);
      if (id != none) function(id, view.memory.first_chunk(id));
    }
  }

  // An update is done: a parameter of the window goes back to the GPU; sliding states are written out and the next ones
  // read, around to the first of them for the next iteration.
  void updated(const Event& event, const View& view, Actions& actions) {
    for (const Use& use : event.uses) {
      if (use.tensor == none || !use.write || view.memory.role(use.tensor) != Role::parameter) continue;
      const TensorId tensor = view.program_tensor(use.tensor);
      if (tensor == none || class_of_[tensor] == none) continue;
      enter_cpu(tensor);
      if (in_window_[tensor] != 0) actions.fetch(use.tensor);
      shrink_cpu(classes_[class_of_[tensor]], view, actions);
    }
    const std::uint32_t unit = unit_of_op_[event.op];
    if (unit == none || unit < first_sliding_) return;
    for_states(unit, view, [&](TensorId id, ChunkId) {
      leave_cpu(id, view, actions);
      actions.hold(units_[next_unit_].op, id, nvme_);  // whose states take these buffers
    });
    for_states(next_unit_, view, [&](TensorId id, ChunkId) { actions.fetch(id, cpu_); });
    if (++next_unit_ == units_.size()) next_unit_ = first_sliding_;
  }

  static std::uint64_t mixed(std::uint64_t value) {
    value = (value + 1) * 0x9e3779b97f4a7c15ull;
    return (value ^ (value >> 32)) * 0xd6e8feb86659fd93ull;
  }

  bool prefetch_ = true, optimizer_states_ = true;
  std::string buffers_ = "reuse";
  std::uint64_t window_reserve_ = 30, states_window_ = 30;
  double gpu_share_ = 2.5, cpu_share_ = 2, states_share_ = 0.67;
  Bytes free_gpu_ = 0, free_cpu_ = 0;

  TierId cpu_ = no_tier, nvme_ = no_tier;
  // The table; all ids are those of the program.
  std::vector<TensorId> rows_;
  std::vector<std::uint32_t> releases_;                   // rows, by the op after which they are released
  std::vector<std::uint32_t> first_row_, first_release_;  // of a pass; of an op
  std::vector<std::uint32_t> pass_of_op_;
  std::vector<OpIndex> next_gpu_op_;
  std::vector<Class> classes_;
  std::vector<std::uint32_t> class_of_;  // `none`: not a parameter of the table
  double free_for_states_ = 0;
  // The window.
  std::vector<std::uint8_t> in_window_, in_cpu_, in_cached_, lives_on_gpu_;
  std::vector<std::uint8_t> wanted_;  // on the GPU as soon as it is read from NVMe
  std::vector<TensorId> read_;        // from NVMe since the last release: ids of the memory
  std::uint64_t window_ = 0, capacity_ = 0, reserve_ = 0, membership_ = 0;
  std::uint32_t row_ = 0, pass_ = 0;
  bool cpu_is_short_ = false;
  std::array<std::uint64_t, 3> placed_{};  // parameters: GPU, CPU memory, NVMe
  // The optimizer.
  std::vector<Unit> units_;
  std::vector<TensorId> unit_tensors_;
  std::vector<std::uint32_t> unit_of_op_;
  std::uint32_t first_sliding_ = 0, next_unit_ = 0;
};

}  // namespace

TENCACHE_POLICY({"10cache",
                 "an active window of tensors slides over the recorded order; buffers of one size each are reused",
                 "10Cache (SoCC'25), arXiv 2511.14124", make_policy_of<TenCache>, 10})

}  // namespace tencache
