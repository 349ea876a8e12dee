// What foresight finds out before it runs: the tiers there are, step 2, and where everything stands.
#include <algorithm>
#include <utility>

#include "policies/foresight_flow.h"
#include "policies/foresight_plan.h"

namespace tencache {

ForesightClock compute_clock(const Trace& trace) {
  std::vector<Nanoseconds> times_ns(1, 0);
  for (const Op& op : trace.ops) {
    times_ns.push_back(times_ns.back() + (op.device == Device::gpu ? op.duration_ns + op.gap_before_ns : 0));
  }
  return {std::move(times_ns), {}};
}

void ForesightFlow::start(const View& view) {
  known_ = true;
  op_count_ = view.schedule->op_count();
  if (at_.times_ns.size() != op_count_ + 1) at_ = compute_clock(view.program->trace);
  find_tiers(view);
  make_plan(view);
  shelves_.assign(cpu_ == no_tier ? 1 : cpu_ + 1u, {});
  for (Shelf& shelf : shelves_) shelf.reset(op_count_);
  outgoing_.assign(view.memory.chunk_total(), 0);
  flights_.clear();
  peaks_.clear();
  needed_at_.assign(op_count_, 0);
  needed_bytes_ = waits_for_ = 0;
  const OpIndex last = static_cast<OpIndex>(op_count_ - 1);
  const OpIndex at = view.op == none ? last : view.op;
  gpu_ = at == last ? last : op_count_ + at;  // before the first op, or, live, in the midst of an iteration
  cpu_done_ = last;
  in_use_ = future_.alive(gpu_) - static_cast<std::int64_t>(future_.died(at));
  horizon_ = {gpu_ + 1, 0, 0};
  fetched_.assign(view.memory.tier_count(), horizon_);
  for (Store& store : stores_) store.read = horizon_;
  needed_.resize(view.schedule->tensor_count());
  for (TensorId tensor = 0; tensor < needed_.size(); ++tensor) {
    needed_[tensor] = needed_at(tensor, at, view);
    if (const TensorId id = view.memory_tensor(tensor); id != none) refresh_all(id, view);
  }
}

void ForesightFlow::find_tiers(const View& view) {
  const MachineSpec& machine = view.machine;
  cpu_ = machine.tier_of(Device::cpu);
  if (cpu_ != no_tier && machine.link_between(0, cpu_) == no_link) cpu_ = no_tier;
  const auto joined = [&](TierId a, TierId b) {
    return a != no_tier && machine.link_between(a, b) != no_link && machine.link_between(b, a) != no_link;
  };
  stores_.clear();
  std::vector<std::pair<BytesPerSecond, TierId>> sources;
  for (TierId tier = 1; tier < machine.tiers.size(); ++tier) {
    const auto path = machine.path_between(tier, 0);
    if (!path.empty()) {
      BytesPerSecond bandwidth = machine.links[path.front()].bandwidth;
      for (const LinkId link : path) bandwidth = std::min(bandwidth, machine.links[link].bandwidth);
      sources.emplace_back(bandwidth, tier);
    }
    if (machine.tiers[tier].kind != TierKind::nvme) continue;
    Store store;
    store.tier = tier;
    store.by_gpu = joined(0, tier);
    store.by_cpu = joined(cpu_, tier);
    stores_.push_back(store);
  }
  std::stable_sort(sources.begin(), sources.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  sources_.clear();
  for (const auto& [bandwidth, tier] : sources) sources_.push_back(tier);
}

// Step 2.
void ForesightFlow::make_plan(const View& view) {
  const Trace& trace = view.program->trace;
  const Tier& gpu = view.machine.tiers[0];
  std::vector<Device> devices;
  std::vector<Bytes> footprints;
  cpu_ops_.clear();
  for (OpIndex op = 0; op < op_count_; ++op) {
    devices.push_back(trace.ops[op].device);
    if (devices.back() == Device::cpu) cpu_ops_.push_back(op);
  }
  const auto rounded = [&](Bytes bytes) { return (bytes + gpu.granularity - 1) / gpu.granularity * gpu.granularity; };
  for (const Tensor& tensor : trace.tensors) {
    const Bytes chunk = chunk_bytes_ == 0 ? tensor.bytes : std::min(tensor.bytes, chunk_bytes_);
    footprints.push_back(tensor.bytes / chunk * rounded(chunk) + rounded(tensor.bytes % chunk));
  }
  future_ = Future(trace, *view.schedule, footprints);
  const auto share = [](Bytes bytes, double of) { return static_cast<Bytes>(static_cast<double>(bytes) * of); };
  const Seen by_gpu{trace, *view.schedule, devices, at_.times_ns, at_.weights, true};
  const std::vector<std::uint8_t> away = spilled(by_gpu, share(gpu.capacity, knobs_.gpu_share));
  due_ = worth_cleaning(by_gpu, away);
  away_ = knobs_.follow ? away : std::vector<std::uint8_t>(away.size(), 0);
  sink_.assign(due_.size(), 0);
  budget_ = 0;
  if (!stores_.empty()) {
    const Bytes all = gpu.capacity + (cpu_ == no_tier ? 0 : view.machine.tiers[cpu_].capacity);
    const Seen by_both{trace, *view.schedule, devices, at_.times_ns, at_.weights, false};
    const std::vector<std::uint8_t> stored = spilled(by_both, all);
    budget_ = moved_by(by_both, stored).all_down();
    sink_ = worth_cleaning(by_both, stored);
  }
  budget_left_ = budget_;
  for (auto* now : {&away_now_, &due_now_, &sink_now_}) now->assign(trace.tensors.size(), 0);
}

// From where the GPU is: the tensor's last use up to it says what comes next.
ForesightFlow::Needed ForesightFlow::needed_at(TensorId tensor, OpIndex op, const View& view) const {
  const auto ops = view.schedule->ops_of(tensor);
  const auto after = std::upper_bound(ops.begin(), ops.end(), op);
  Needs needs = future_.at_start(tensor);
  Place from = gpu_;
  if (gpu_ >= op_count_) {  // live, in the midst of an iteration
    from = gpu_ - op - 1;
    if (after != ops.begin()) {
      const OpIndex last = *std::prev(after);
      const auto uses = view.schedule->uses(last);
      const auto use = std::find_if(uses.begin(), uses.end(), [&](const Use& u) { return u.tensor == tensor; });
      needs = future_.after(last, static_cast<std::size_t>(use - uses.begin()));
      from = gpu_ - (op - last);
    }
  }
  const auto place = [from](std::uint32_t distance) { return distance == none ? never : from + distance; };
  return {place(needs.gpu), place(needs.cpu), place(needs.touch)};
}

}  // namespace tencache
