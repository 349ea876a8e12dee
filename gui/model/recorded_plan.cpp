#include "gui/model/recorded_plan.h"

#include <map>
#include <utility>

#include "core/forwarding_policy.h"

namespace tencache::gui {

// Passes everything on to the planner.
class RecordedPlan::Recorder : public ForwardingPolicy {
 public:
  explicit Recorder(std::unique_ptr<Policy> planner) : ForwardingPolicy(*planner), planner_(std::move(planner)) {}

  void on(const Event& event, const View& view, Actions& actions) override {
    const auto before = static_cast<std::ptrdiff_t>(actions.list().size());
    planner_->on(event, view, actions);
    if (view.program == nullptr) return;
    present_.resize(view.program->trace.ops.size());
    const OpIndex op = event.kind == EventKind::op_issued ? event.op : view.op;
    if (op < present_.size()) {
      present_[op].insert(present_[op].end(), actions.list().begin() + before, actions.list().end());
    }
    if (event.kind == EventKind::iteration_end) {
      whole_ = std::move(present_);
      present_.clear();
    }
  }

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    planner_->place(trace, machine, devices);
    devices_ = devices;
  }
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override {
    std::vector<std::int32_t>& ordered = orders_[groups];
    planner_->order(trace, machine, groups);
    ordered = groups;
  }

  const std::vector<std::vector<Action>>& actions() const { return whole_; }
  const std::vector<Device>& devices() const { return devices_; }
  const std::map<std::vector<std::int32_t>, std::vector<std::int32_t>>& orders() const { return orders_; }

 private:
  std::unique_ptr<Policy> planner_;
  std::vector<std::vector<Action>> present_, whole_;                               // by op
  mutable std::vector<Device> devices_;                                            // where each op was placed
  mutable std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> orders_;  // of sub-groups, by the recorded one
};

class RecordedPlan::Replay : public Policy {
 public:
  explicit Replay(const Recorder& recorded) : recorded_(recorded) {}

  Requirements requirements() const override { return recorded_.requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = recorded_.layout(machine, program);
    layout.fallback_eviction = true;  // nobody plans for what did not happen before
    return layout;
  }
  void on(const Event& event, const View&, Actions& actions) override {
    if (event.kind != EventKind::op_issued || event.op >= recorded_.actions().size()) return;
    for (const Action& action : recorded_.actions()[event.op]) actions.push(action);
  }
  void place(const Trace&, const MachineSpec&, std::vector<Device>& devices) const override {
    if (devices.size() == recorded_.devices().size()) devices = recorded_.devices();
  }
  void order(const Trace&, const MachineSpec&, std::vector<std::int32_t>& groups) const override {
    const auto found = recorded_.orders().find(groups);
    if (found != recorded_.orders().end()) groups = found->second;
  }

 private:
  const Recorder& recorded_;
};

RecordedPlan::RecordedPlan(std::unique_ptr<Policy> planner)
    : recorder_(std::make_unique<Recorder>(std::move(planner))) {}
RecordedPlan::~RecordedPlan() = default;

Policy& RecordedPlan::recorder() { return *recorder_; }
std::unique_ptr<Policy> RecordedPlan::replay() const { return std::make_unique<Replay>(*recorder_); }

}  // namespace tencache::gui
