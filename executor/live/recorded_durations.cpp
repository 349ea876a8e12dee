#include "executor/live/recorded_durations.h"

#include <utility>

namespace tencache {
namespace {

class WithDurations final : public Policy {
 public:
  WithDurations(Trace recording, Policy& policy) : recording_(std::move(recording)), policy_(policy) {}

  Requirements requirements() const override { return policy_.requirements(); }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    return policy_.layout(machine, program);
  }
  void on(const Event& event, const View& view, Actions& actions) override { policy_.on(event, view, actions); }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    policy_.make_room(request, view, victims);
  }
  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    policy_.place(as_recorded(trace), machine, devices);
  }
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override {
    policy_.order(as_recorded(trace), machine, groups);
  }
  std::uint64_t fingerprint() const override { return policy_.fingerprint(); }
  void notes(std::vector<std::string>& notes) const override { policy_.notes(notes); }

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
  Policy& policy_;
};

}  // namespace

std::unique_ptr<Policy> with_durations_of(Trace recording, Policy& policy) {
  return std::make_unique<WithDurations>(std::move(recording), policy);
}

}  // namespace tencache
