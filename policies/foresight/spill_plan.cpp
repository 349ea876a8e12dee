#include "policies/foresight/spill_plan.h"

#include "policies/foresight/spill.h"

namespace tencache {

SpillPlan::SpillPlan(const View& view, const Ways& ways, bool forgets, const ForesightKnobs& knobs) {
  const Trace& trace = view.program->trace;
  const Bytes gpu = view.machine.tiers[0].capacity;
  std::vector<Device> devices;
  std::vector<Nanoseconds> clock_ns(1, 0);  // if the GPU never waits
  for (const Op& op : trace.ops) {
    devices.push_back(op.device);
    const bool anywhere = op.placeable && trace.detail(op).revealed_by != none;  // a gate decides where
    clock_ns.push_back(clock_ns.back() + (op.device == Device::gpu && !anywhere ? op.occupied_ns() : 0));
  }
  const auto share = [](Bytes bytes, double of) { return static_cast<Bytes>(static_cast<double>(bytes) * of); };
  const Seen by_gpu{trace, *view.schedule, devices, clock_ns, true, forgets};
  const std::vector<std::uint8_t> away = spilled(by_gpu, share(gpu, knobs.gpu_share));
  due_ = tencache::worth_cleaning(by_gpu, away);
  away_ = knobs.follow ? away : std::vector<std::uint8_t>(away.size(), 0);
  sink_.assign(due_.size(), 0);
  if (!ways.stores.empty()) {
    const Bytes all = gpu + (ways.cpu == no_tier ? 0 : view.machine.tiers[ways.cpu].capacity);
    const Seen by_both{trace, *view.schedule, devices, clock_ns, false, forgets};
    const std::vector<std::uint8_t> stored = spilled(by_both, all);
    budget_ = moved_by(by_both, stored).all_down();
    sink_ = tencache::worth_cleaning(by_both, stored);
  }
  budget_left_ = budget_;
  for (auto* now : {&away_now_, &due_now_, &sink_now_}) now->assign(trace.tensors.size(), 0);
}

void SpillPlan::used(TensorId tensor, std::size_t use) {
  away_now_[tensor] = away_[use];
  due_now_[tensor] = due_[use];
  sink_now_[tensor] = sink_[use];
}

}  // namespace tencache
