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
#include <span>

#include "core/error.h"
#include "policies/moving_unit.h"
#include "policies/policy_library.h"
#include "policies/storage.h"
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
    const std::size_t donor = static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
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

struct TenCacheOptions {
  explicit TenCacheOptions(Options& options) {
    options.flag("prefetch", prefetch, "the active tensor window; false is the paper's SC").fixed(Options::ablation);
    options
        .choice("buffers", buffers, {"reuse", "allocate"},
                "reuse pinned buffers (SC+P+M), or take fresh memory for each tensor that leaves the GPU (SC+P)")
        .fixed(Options::ablation);
    options
        .flag("optimizer_states", optimizer_states,
              "keep the first states in CPU memory and slide over the rest; false is the paper's 10Cache+FP16: each is "
              "read when its update asks for it")
        .fixed(Options::ablation);
    options.number("window_reserve", window_reserve, "buffers",
                   "GPU buffers left free for what is on its way, at most half of them");
    options.number("states_window", states_window, "tensors",
                   "states that slide when not all fit into CPU memory; the others live there for good");
    options.real("gpu_share", gpu_share, "divisor", "parameters may take free_gpu divided by this");
    options.real("cpu_share", cpu_share, "divisor", "parameters may take free_cpu divided by this");
    options.share("states_share", states_share, "of free_cpu that optimizer states may take");
    options.bytes("free_gpu", free_gpu, "GPU memory found free after the warm-up iteration", "auto")
        .fixed(Options::machine_figure);
    options.bytes("free_cpu", free_cpu, "CPU memory found free after the warm-up iteration", "auto")
        .fixed(Options::machine_figure);
    if (gpu_share <= 0) throw Error("policy '10cache': option gpu_share must be above 0");
    if (cpu_share <= 0) throw Error("policy '10cache': option cpu_share must be above 0");
  }

  bool allocates() const { return buffers == "allocate"; }

  bool prefetch = true, optimizer_states = true;
  std::string buffers = "reuse";
  std::uint64_t window_reserve = 30, states_window = 30;
  double gpu_share = 2.5, cpu_share = 2, states_share = 0.67;
  Bytes free_gpu = 0, free_cpu = 0;  // 0: found out
};

std::uint64_t mixed(std::uint64_t value) {
  value = (value + 1) * 0x9e3779b97f4a7c15ull;
  return (value ^ (value >> 32)) * 0xd6e8feb86659fd93ull;
}

// The prefetch table. A visit is a run of ops of one module in one pass; a pass is the forward or the backward one.
class PrefetchTable {
 public:
  void learn(const Trace& trace, const Schedule& schedule);

  const std::vector<TensorId>& rows() const { return rows_; }
  // The rows of a pass are [first_row(pass), first_row(pass + 1)).
  std::uint32_t first_row(std::uint32_t pass) const { return first_row_[pass]; }
  std::uint32_t pass_of(OpIndex op) const { return pass_of_op_[op]; }
  // Rows whose module is done with them after the op.
  std::span<const std::uint32_t> released_after(OpIndex op) const {
    return std::span(releases_).subspan(first_release_[op], first_release_[op + 1] - first_release_[op]);
  }
  OpIndex next_gpu_op(OpIndex op) const { return next_gpu_op_[op]; }

 private:
  void sort_releases(const Trace& trace, const std::vector<OpIndex>& release_of_row);

  std::vector<TensorId> rows_;                            // ids of the program
  std::vector<std::uint32_t> releases_;                   // rows, by the op after which they are released
  std::vector<std::uint32_t> first_row_, first_release_;  // of a pass; of an op
  std::vector<std::uint32_t> pass_of_op_;
  std::vector<OpIndex> next_gpu_op_;
};

void PrefetchTable::learn(const Trace& trace, const Schedule& schedule) {
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

void PrefetchTable::sort_releases(const Trace& trace, const std::vector<OpIndex>& release_of_row) {
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

// The active tensor window, as a set of tensors of the program that moves over the rows of a pass.
class ActiveWindow {
 public:
  void clear(std::size_t tensors) {
    *this = {};
    in_.assign(tensors, 0);
  }
  // It is full: this is its size, of which the reserve is left free while it slides.
  void fix_size(std::uint64_t most_reserve) {
    capacity_ = size_;
    reserve_ = std::min(most_reserve, capacity_ / 2);
  }
  bool has(TensorId tensor) const { return in_[tensor] != 0; }
  void add(TensorId tensor) {
    in_[tensor] = 1;
    ++size_;
    membership_ ^= mixed(tensor);
  }
  void remove(TensorId tensor) {
    in_[tensor] = 0;
    --size_;
    membership_ ^= mixed(tensor);
  }

  void enter_pass(std::uint32_t pass, const PrefetchTable& table) {
    pass_ = pass;
    row_ = table.first_row(pass);
  }
  std::uint32_t pass() const { return pass_; }
  void pass_over(std::uint32_t row) { row_ = std::max(row_, row + 1); }
  // The next tensor of this pass that is not in the window, or none.
  TensorId next(const PrefetchTable& table) {
    const std::uint32_t end = table.first_row(pass_ + 1);
    while (row_ < end && has(table.rows()[row_])) ++row_;
    return row_ < end ? table.rows()[row_] : none;
  }
  // Whether the next one finds room beside the reserve, which the last rows of the pass use.
  bool has_room(const PrefetchTable& table) const {
    const std::uint64_t left = table.first_row(pass_ + 1) - row_ - 1;  // behind that one
    return size_ + std::min(reserve_, left) < capacity_;
  }
  std::uint64_t fingerprint() const { return mixed(mixed(membership_ ^ mixed(row_)) ^ mixed(pass_)); }

 private:
  std::vector<std::uint8_t> in_;
  std::uint64_t size_ = 0, capacity_ = 0, reserve_ = 0;
  std::uint64_t membership_ = 0;  // a hash of the set
  std::uint32_t row_ = 0, pass_ = 0;
};

// The buffers of each size: how many parameters they hold. Those of CPU memory are counted only where parameters live
// on NVMe.
class ParameterBuffers {
 public:
  // By the sizes of the table's tensors. Returns what CPU memory has left for optimizer states.
  double divide(const View& view, const PrefetchTable& table, const TenCacheOptions& options);

  bool has(TensorId tensor) const { return tensor < class_of_.size() && class_of_[tensor] != none; }
  std::size_t tensor_count() const { return class_of_.size(); }

  bool has_gpu_buffer_for(TensorId tensor) const { return of(tensor).gpu_used < of(tensor).gpu_buffers; }
  void take_gpu_buffer(TensorId tensor) { ++of(tensor).gpu_used; }
  void give_gpu_buffer(TensorId tensor) { --of(tensor).gpu_used; }

  bool has_cpu_buffer_for(TensorId tensor) const { return of(tensor).cpu_used < of(tensor).cpu_buffers; }
  void enter_cpu(TensorId tensor) {
    if (in_cpu_[tensor] != 0) return;
    in_cpu_[tensor] = 1;
    ++of(tensor).cpu_used;
    of(tensor).oldest.push_back(tensor);
  }
  // Whether not all parameters found a buffer.
  void cpu_is_short(bool is_short) {
    cpu_is_short_ = is_short;
    if (is_short) return;
    for (Class& c : classes_) c.oldest.clear();
  }
  // The tensor came to the GPU as well.
  void reached_gpu(TensorId tensor) {
    if (!cpu_is_short_ || in_cpu_[tensor] == 0 || in_cached_[tensor] != 0) return;
    of(tensor).cached.push_back(tensor);
    in_cached_[tensor] = 1;
  }
  // More tensors of this one's size than buffers: the CPU copy of one that the GPU holds goes, else the oldest is
  // written to NVMe. Calls `leave(id)` for each, an id of the memory.
  template <typename Leave>
  void shrink_cpu(TensorId same_size, const View& view, Leave leave);

  std::uint64_t mixed_into(std::uint64_t hash) const {
    const auto mix = [&hash](std::uint64_t value) { hash = mixed(hash ^ mixed(value)); };
    for (const Class& c : classes_) {
      for (const std::deque<TensorId>* list : {&c.oldest, &c.cached}) {
        mix(list->size());
        for (const TensorId tensor : *list) mix(tensor);
      }
    }
    return hash;
  }

 private:
  struct Class {
    std::uint64_t gpu_buffers = 0, cpu_buffers = 0, gpu_used = 0, cpu_used = 0;
    // Of the CPU buffers, each tensor at most once: all; those whose tensor came to the GPU too, and may have left it.
    std::deque<TensorId> oldest, cached;
  };
  Class& of(TensorId tensor) { return classes_[class_of_[tensor]]; }
  const Class& of(TensorId tensor) const { return classes_[class_of_[tensor]]; }

  std::vector<Class> classes_;
  std::vector<std::uint32_t> class_of_;  // by tensor of the program; `none`: not a parameter of the table
  std::vector<std::uint8_t> in_cpu_, in_cached_;
  bool cpu_is_short_ = false;
};

// Of what lies on the GPU between its first and its last use there.
Bytes peak_besides_parameters(const View& view) {
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

double ParameterBuffers::divide(const View& view, const PrefetchTable& table, const TenCacheOptions& options) {
  const Trace& trace = view.program->trace;
  const TierId cpu = view.machine.tier_of(Device::cpu);
  std::map<Bytes, std::uint64_t> histogram;
  std::vector<std::uint8_t> counted(trace.tensors.size(), 0);
  for (const TensorId tensor : table.rows()) {
    if (counted[tensor] == 0) ++histogram[trace.tensors[tensor].bytes];
    counted[tensor] = 1;
  }
  std::vector<TensorClass> sizes;
  for (const auto& [bytes, tensors] : histogram) sizes.push_back({bytes, tensors});
  class_of_.assign(trace.tensors.size(), none);
  for (const TensorId tensor : table.rows()) {
    const auto found = std::ranges::lower_bound(sizes, trace.tensors[tensor].bytes, {}, &TensorClass::bytes);
    class_of_[tensor] = static_cast<std::uint32_t>(found - sizes.begin());
  }
  const Bytes gpu = view.memory.capacity(0), others = peak_besides_parameters(view);
  const Bytes free_gpu = options.free_gpu > 0 ? options.free_gpu : gpu > others ? gpu - others : 0;
  const Bytes free_cpu = options.free_cpu > 0 ? options.free_cpu : cpu != no_tier ? view.memory.capacity(cpu) : 0;
  const auto on_gpu = ten_cache_buffers(sizes, {.memory_bytes = static_cast<double>(free_gpu) / options.gpu_share,
                                                .buffer_scale = 1,
                                                .all_up_to = 2,
                                                .at_least = fewest_fp16,
                                                .cap = {}});
  BufferRule cpu_rule{.memory_bytes = static_cast<double>(free_cpu) / options.cpu_share,
                      .buffer_scale = 1,
                      .all_up_to = 2,
                      .at_least = fewest_fp16,
                      .cap = {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cpu_rule.cap.push_back(sizes[i].tensors - (options.prefetch ? on_gpu[i] : 0) + spare_cpu_buffers);
  }
  const auto on_cpu = ten_cache_buffers(sizes, cpu_rule);
  classes_.assign(sizes.size(), {});
  double cpu_bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    classes_[i].gpu_buffers = on_gpu[i];
    classes_[i].cpu_buffers = on_cpu[i];
    cpu_bytes += static_cast<double>(on_cpu[i] * sizes[i].bytes);
  }
  in_cpu_.assign(class_of_.size(), 0);
  in_cached_.assign(class_of_.size(), 0);
  cpu_is_short_ = false;
  return std::max(0.0, static_cast<double>(free_cpu) - cpu_bytes);
}

template <typename Leave>
void ParameterBuffers::shrink_cpu(TensorId same_size, const View& view, Leave leave) {
  if (!cpu_is_short_) return;
  Class& c = of(same_size);
  const TierId cpu = view.machine.tier_of(Device::cpu);
  while (c.cpu_used > c.cpu_buffers && !(c.cached.empty() && c.oldest.empty())) {
    const bool from_cached = !c.cached.empty();
    const TensorId tensor = from_cached ? c.cached.front() : c.oldest.front();
    if (from_cached) {
      c.cached.pop_front();
      in_cached_[tensor] = 0;
    }
    if (in_cpu_[tensor] == 0) continue;
    const TensorId id = view.memory_tensor(tensor);
    const bool gone = id == none || !view.memory.resident(id, cpu);
    if (!gone && from_cached && !view.memory.resident(id, 0)) continue;
    in_cpu_[tensor] = 0;
    c.oldest.erase(std::ranges::find(c.oldest, tensor));
    --c.cpu_used;
    if (!gone) leave(id);
  }
}

// The optimizer's states: the first live in CPU memory, a window slides over the rest.
class StatesWindow {
 public:
  // `free_bytes` of CPU memory are left for them. Calls place(id, fits) for each that starts there or on NVMe.
  template <typename Place>
  void learn(const View& view, double free_bytes, const TenCacheOptions& options, Place place);
  // Of an op that slides it; none: it does not.
  std::uint32_t unit_of(OpIndex op) const {
    return unit_of_op_[op] != none && unit_of_op_[op] >= first_sliding_ ? unit_of_op_[op] : none;
  }
  // The next one to read, around to the first that slides for the next iteration.
  std::uint32_t next() const { return next_; }
  void advance() {
    if (++next_ == units_.size()) next_ = first_sliding_;
  }
  OpIndex op_of(std::uint32_t unit) const { return units_[unit].op; }
  std::size_t staying() const { return first_sliding_; }
  std::size_t sliding() const { return units_.size() - first_sliding_; }
  template <typename Function>
  void for_each_state(std::uint32_t unit, const View& view, Function function) const {
    for (std::uint32_t i = units_[unit].first; i < units_[unit].first + units_[unit].count; ++i) {
      const TensorId id = view.memory_tensor(tensors_[i]);
      if (id != none) function(id);
    }
  }

 private:
  // An op of the optimizer and the states that it alone works on.
  struct Unit {
    OpIndex op = none;
    std::uint32_t first = 0, count = 0;  // in tensors_
    Bytes bytes = 0;                     // of the largest: the parameter in fp32
  };
  std::uint32_t fitting_units(double free_bytes, const TenCacheOptions& options) const;

  std::vector<Unit> units_;
  std::vector<TensorId> tensors_;
  std::vector<std::uint32_t> unit_of_op_;
  std::uint32_t first_sliding_ = 0, next_ = 0;
};

template <typename Place>
void StatesWindow::learn(const View& view, double free_bytes, const TenCacheOptions& options, Place place) {
  const Trace& trace = view.program->trace;
  units_.clear();
  tensors_.clear();
  unit_of_op_.assign(trace.ops.size(), none);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (trace.ops[op].device != Device::cpu) continue;
    Unit unit{.op = op, .first = static_cast<std::uint32_t>(tensors_.size())};
    for (const Use& use : view.schedule->uses(op)) {
      const Role role = trace.tensors[use.tensor].role;
      if (role != Role::optimizer_state && role != Role::master_parameter) continue;
      tensors_.push_back(use.tensor);
      ++unit.count;
      unit.bytes = std::max(unit.bytes, trace.tensors[use.tensor].bytes);
    }
    if (unit.count == 0) continue;
    unit_of_op_[op] = static_cast<std::uint32_t>(units_.size());
    units_.push_back(unit);
  }
  const std::uint32_t all = static_cast<std::uint32_t>(units_.size());
  const std::uint32_t fitting =
      first_storage(view.machine) == no_tier
          ? all
          : std::min(all, std::max(fitting_units(free_bytes, options), options.optimizer_states ? 2u : 1u));
  const std::uint64_t window = options.optimizer_states ? std::max<std::uint64_t>(options.states_window, 1) : fitting;
  first_sliding_ =
      fitting == all ? all : fitting - static_cast<std::uint32_t>(std::min<std::uint64_t>(window, fitting));
  next_ = fitting;
  for (std::uint32_t unit = 0; unit < all; ++unit) {
    for_each_state(unit, view, [&](TensorId id) { place(id, unit < fitting); });
  }
}

// How many units, from the first on, find buffers in CPU memory.
std::uint32_t StatesWindow::fitting_units(double free_bytes, const TenCacheOptions& options) const {
  if (!options.optimizer_states) return 1;  // the one being updated: none is read ahead, as all miss
  std::map<Bytes, std::uint64_t> histogram;
  for (const Unit& unit : units_) ++histogram[unit.bytes];
  std::vector<TensorClass> sizes;
  for (const auto& [bytes, tensors] : histogram) sizes.push_back({bytes, tensors});
  const auto counts = ten_cache_buffers(sizes, {.memory_bytes = free_bytes * options.states_share,
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

class TenCache final : public Policy {
 public:
  explicit TenCache(Options& options) : options_(options) {}

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
    if (options_.allocates() && cpu != no_tier) {
      layout.allocate_each[cpu] = true;
    }
    return layout;
  }

  void place(const Trace& trace, const MachineSpec&, std::vector<Device>& devices) const override {
    place_updates_on_cpu(trace, devices);
  }

  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind == EventKind::profile_ready) learn(view, actions);
    if (view.program == nullptr || table_.rows().empty()) return;  // a live program's warm-up iteration: on demand
    if (event.kind == EventKind::transfer_done) arrived(event, view, actions);
    if (event.kind != EventKind::op_done || event.op == none) return;
    if (event.device == Device::cpu) {
      updated(event, view, actions);
      return;
    }
    send_gradients(event, view, actions);
    const auto released = table_.released_after(event.op);
    if (released.empty()) return;
    if (table_.pass_of(event.op) != window_.pass()) window_.enter_pass(table_.pass_of(event.op), table_);
    fetch_what_was_read(view, actions);
    for (const std::uint32_t row : released) release(row, event.op, view, actions);
  }

  // The buffers are this policy's own and it keeps within them. When room is short nevertheless, a prefetch waits, and
  // for an op the engine takes the coldest.
  void make_room(const RoomRequest&, const View&, std::vector<ChunkId>&) override {}

  void notes(std::vector<std::string>& notes) const override {
    if (table_.rows().empty()) return;
    notes.push_back("parameters placed: " + std::to_string(placed_[0]) + " on the GPU, " + std::to_string(placed_[1]) +
                    " in CPU memory, " + std::to_string(placed_[2]) + " on NVMe");
    notes.push_back("optimizer states: those of " + std::to_string(states_.staying()) +
                    " tensors stay in CPU memory, of " + std::to_string(states_.sliding()) + " slide");
  }

  std::uint64_t fingerprint() const override {
    std::uint64_t hash = buffers_.mixed_into(window_.fingerprint());
    const auto mix = [&hash](std::uint64_t value) { hash = mixed(hash ^ mixed(value)); };
    mix(states_.next());
    for (const TensorId id : read_) mix(id);
    for (const std::uint8_t wanted : wanted_) mix(wanted);
    return hash;
  }

 private:
  // ---- The warm-up iteration ----------------------------------------------------------------------------------------

  void learn(const View& view, Actions& actions) {
    const Trace& trace = view.program->trace;
    cpu_ = view.machine.tier_of(Device::cpu);
    nvme_ = first_storage(view.machine);
    table_.learn(trace, *view.schedule);
    const double left_for_states = buffers_.divide(view, table_, options_);
    place_parameters(view, actions);
    states_.learn(view, left_for_states, options_, [&](TensorId id, bool fits) {
      if (fits && !view.memory.valid(view.memory.first_chunk(id), cpu_)) actions.fetch(id, cpu_);
      if (!fits) leave_cpu(id, view, actions);
    });
  }

  // In the table's order: GPU buffers until a class has none left, then CPU buffers, the rest on NVMe.
  void place_parameters(const View& view, Actions& actions) {
    const std::size_t tensors = buffers_.tensor_count();
    window_.clear(tensors);
    wanted_.assign(tensors, 0);
    lives_on_gpu_.assign(tensors, 0);
    read_.clear();
    bool to_gpu = true, to_cpu = true;
    placed_ = {};
    std::vector<std::uint8_t> placed(tensors, 0);
    for (const TensorId tensor : table_.rows()) {
      if (placed[tensor] != 0) continue;
      placed[tensor] = 1;
      to_gpu = to_gpu && options_.prefetch && buffers_.has_gpu_buffer_for(tensor);
      const TensorId id = view.memory_tensor(tensor);
      if (to_gpu) {
        ++placed_[0];
        add_to_window(tensor);
        lives_on_gpu_[tensor] = 1;
        if (id != none) actions.fetch(id);
        continue;
      }
      const bool fits = nvme_ == no_tier || cpu_ == no_tier || buffers_.has_cpu_buffer_for(tensor);
      to_cpu = to_cpu && fits;
      ++placed_[to_cpu ? 1 : 2];
      if (to_cpu) {
        buffers_.enter_cpu(tensor);
      } else {
        leave_cpu(id, view, actions);
      }
    }
    buffers_.cpu_is_short(!to_cpu);
    window_.fix_size(options_.window_reserve);
  }

  // ---- The active tensor window -------------------------------------------------------------------------------------

  void add_to_window(TensorId tensor) {
    window_.add(tensor);
    buffers_.take_gpu_buffer(tensor);
  }

  void release(std::uint32_t row, OpIndex op, const View& view, Actions& actions) {
    const TensorId tensor = table_.rows()[row];
    window_.pass_over(row);  // what is behind is not brought back
    if (!options_.prefetch) {
      leave_gpu(tensor, op, view, actions);
      return;
    }
    TensorId next = window_.next(table_);
    if (next == none) {
      // What is not in the window came on demand: its class has no buffer left.
      if (!window_.has(tensor)) leave_gpu(tensor, op, view, actions);
      return;
    }
    if (window_.has(tensor)) {
      window_.remove(tensor);
      buffers_.give_gpu_buffer(tensor);
    }
    leave_gpu(tensor, op, view, actions);
    for (; next != none; next = window_.next(table_)) {
      if (!window_.has_room(table_) || !buffers_.has_gpu_buffer_for(next)) break;
      add_to_window(next);
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
      if (tensor == none || !window_.has(tensor)) continue;
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
    if (options_.allocates() && cpu_ != no_tier) actions.hold(table_.next_gpu_op(op), id, cpu_);
  }

  void arrived(const Event& event, const View& view, Actions& actions) {
    const TensorId tensor = view.program_tensor(event.tensor);
    if (tensor == none || !buffers_.has(tensor)) return;
    if (event.to == 0) {
      buffers_.reached_gpu(tensor);
      if (options_.allocates() && lives_on_gpu_[tensor] != 0 && view.memory.resident(event.tensor, cpu_)) {
        actions.drop(event.tensor, cpu_);
      }
      if (options_.prefetch && !window_.has(tensor) && view.memory.evictable(event.chunk, 0))
        actions.evict(event.tensor);
    } else if (event.to == cpu_) {
      buffers_.enter_cpu(tensor);
      if (wanted_[tensor] != 0) actions.fetch(event.tensor);
      wanted_[tensor] = 0;
      shrink_cpu(tensor, view, actions);
    }
  }

  void shrink_cpu(TensorId same_size, const View& view, Actions& actions) {
    buffers_.shrink_cpu(same_size, view, [&](TensorId id) { leave_cpu(id, view, actions); });
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
      if (!next_used_by_cpu(use.tensor, event.op, view)) continue;
      actions.evict(use.tensor, cpu_);
      wait_for_memory(use.tensor, event.op, actions);
    }
  }

  // An update is done: a parameter of the window goes back to the GPU; sliding states are written out and the next ones
  // read, around to the first of them for the next iteration.
  void updated(const Event& event, const View& view, Actions& actions) {
    for (const Use& use : event.uses) {
      if (use.tensor == none || !use.write || view.memory.role(use.tensor) != Role::parameter) continue;
      const TensorId tensor = view.program_tensor(use.tensor);
      if (tensor == none || !buffers_.has(tensor)) continue;
      buffers_.enter_cpu(tensor);
      if (window_.has(tensor)) actions.fetch(use.tensor);
      shrink_cpu(tensor, view, actions);
    }
    const std::uint32_t unit = states_.unit_of(event.op);
    if (unit == none) return;
    states_.for_each_state(unit, view, [&](TensorId id) {
      leave_cpu(id, view, actions);
      actions.hold(states_.op_of(states_.next()), id, nvme_);  // whose states take these buffers
    });
    states_.for_each_state(states_.next(), view, [&](TensorId id) { actions.fetch(id, cpu_); });
    states_.advance();
  }

  TenCacheOptions options_;
  TierId cpu_ = no_tier, nvme_ = no_tier;
  PrefetchTable table_;
  ParameterBuffers buffers_;
  ActiveWindow window_;
  StatesWindow states_;
  std::vector<std::uint8_t> lives_on_gpu_;  // by tensor of the program
  std::vector<std::uint8_t> wanted_;        // on the GPU as soon as it is read from NVMe
  std::vector<TensorId> read_;              // from NVMe since the last release: ids of the memory
  std::array<std::uint64_t, 3> placed_{};   // parameters: GPU, CPU memory, NVMe
};

}  // namespace

TENCACHE_POLICY({"10cache",
                 "an active window of tensors slides over the recorded order; buffers of one size each are reused",
                 "10Cache (SoCC'25), arXiv 2511.14124",
                 make_policy_of<TenCache>,
                 10,
                 nullptr,
                 nullptr,
                 {.artifact = true}})

}  // namespace tencache
