#include "executor/torch/recorded_durations.h"

#include <utility>

#include "core/forwarding_policy.h"

namespace tencache {
namespace {

class WithDurations final : public ForwardingPolicy {
 public:
  WithDurations(Trace recording, Policy& policy) : ForwardingPolicy(policy), recording_(std::move(recording)) {}

  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    asked_.place(as_recorded(trace), machine, devices);
  }
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override {
    asked_.order(as_recorded(trace), machine, groups);
  }

 private:
  Trace as_recorded(Trace trace) const {
    bool same = trace.ops.size() == recording_.ops.size();
    for (OpIndex op = 0; same && op < trace.ops.size(); ++op) {
      same = trace.name(trace.ops[op]) == recording_.name(recording_.ops[op]);
    }
    for (OpIndex op = 0; same && op < trace.ops.size(); ++op) {
      if (trace.ops[op].device != recording_.ops[op].device) continue;  // placed by now, and priced
      trace.ops[op].duration_ns = recording_.ops[op].duration_ns;
      trace.ops[op].gap_before_ns = recording_.ops[op].gap_before_ns;
    }
    return trace;
  }

  Trace recording_;
};

}  // namespace

std::unique_ptr<Policy> with_durations_of(Trace recording, Policy& policy) {
  return std::make_unique<WithDurations>(std::move(recording), policy);
}

}  // namespace tencache
