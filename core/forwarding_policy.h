// A policy that asks another one everything: what records it, stops it or changes what it sees derives from this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/policy.h"

namespace tencache {

class ForwardingPolicy : public Policy {
 public:
  explicit ForwardingPolicy(Policy& asked) : asked_(asked) {}  // which outlives this one

  bool oracle() const override { return asked_.oracle(); }
  Requirements requirements() const override { return asked_.requirements(); }
  void prepare(const Trace& trace, const MachineSpec& machine, const RehearseTrace& rehearse) override {
    asked_.prepare(trace, machine, rehearse);
  }
  void recompute(const Trace& trace, const MachineSpec& machine, std::vector<RecomputeLevel>& levels) const override {
    asked_.recompute(trace, machine, levels);
  }
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    return asked_.layout(machine, program);
  }
  // This one hears of everything, the asked one of what it hears.
  void on(const Event& event, const View& view, Actions& actions) override {
    if (asked_.hears(event.kind)) asked_.on(event, view, actions);
  }
  void make_room(const RoomRequest& request, const View& view, std::vector<ChunkId>& victims) override {
    asked_.make_room(request, view, victims);
  }
  void place(const Trace& trace, const MachineSpec& machine, std::vector<Device>& devices) const override {
    asked_.place(trace, machine, devices);
  }
  std::unique_ptr<DecidedPlaces> place_decided(const Trace& trace, const MachineSpec& machine) const override {
    return asked_.place_decided(trace, machine);
  }
  void read_in_place(const Trace& trace, const MachineSpec& machine, std::vector<bool>& tensors) const override {
    asked_.read_in_place(trace, machine, tensors);
  }
  void order(const Trace& trace, const MachineSpec& machine, std::vector<std::int32_t>& groups) const override {
    asked_.order(trace, machine, groups);
  }
  std::uint64_t fingerprint() const override { return asked_.fingerprint(); }
  void notes(std::vector<std::string>& notes) const override { asked_.notes(notes); }

 protected:
  Policy& asked_;
};

}  // namespace tencache
