#include "policies/updates.h"

#include <algorithm>
#include <map>

namespace tencache {

bool goes_with_optimizer(Role role) {
  return role == Role::gradient || role == Role::optimizer_state || role == Role::master_parameter;
}

bool is_model_state(Role role) { return role == Role::parameter || goes_with_optimizer(role); }

Requirements govern_model_states(bool module_hooks) {
  Requirements r =
      Requirements::governing({Role::parameter, Role::gradient, Role::optimizer_state, Role::master_parameter});
  r.module_hooks = module_hooks;
  return r;
}

Layout states_with_optimizer(TierId home, Bytes chunk_bytes, bool evict) {
  Layout layout;
  layout.chunk_bytes = chunk_bytes;
  layout.blocking_step = true;
  layout.fallback_eviction = evict;
  layout.initial.fill(0);
  layout.initial[static_cast<std::size_t>(Role::optimizer_state)] = home;
  layout.initial[static_cast<std::size_t>(Role::master_parameter)] = home;
  return layout;
}

void ColdestVictims::on(const Event& event, const View& view) {
  if (staying_.empty()) return;
  const auto leaves_its_place = [this](ChunkId chunk) {
    if (chunk < places_.size()) places_[chunk] = 0;  // a live program may have made it since
  };
  if (event.kind == EventKind::op_issued && event.device == Device::gpu) {
    for (const Use& use : event.uses) {
      if (use.tensor == none) continue;
      for (const ChunkId chunk : view.memory.chunks_of(use.tensor)) leaves_its_place(chunk);
    }
  } else if (event.kind == EventKind::transfer_done && event.to == 0) {
    leaves_its_place(event.chunk);
  }
}

ChunkId ColdestVictims::first_to_look_at(const View& view) {
  const Residency& memory = view.memory;
  if (view.to_memory != nullptr) staying_.clear();  // a live program's tensors come and go, and change their roles
  places_.resize(memory.chunk_total(), 0);
  const auto stands = [&](std::size_t place) {
    return places_[staying_[place]] == place + 1 && memory.valid(staying_[place], 0);
  };
  while (!staying_.empty() && !stands(staying_.size() - 1)) {
    if (places_[staying_.back()] == staying_.size()) places_[staying_.back()] = 0;
    staying_.pop_back();
  }
  if (staying_.size() > 2 * places_.size()) {
    std::size_t kept = 0;
    for (std::size_t place = 0; place < staying_.size(); ++place) {
      if (places_[staying_[place]] != place + 1) continue;
      staying_[kept] = staying_[place];
      places_[staying_[kept]] = kept + 1;
      ++kept;
    }
    staying_.resize(kept);
  }
  return staying_.empty() ? memory.coldest(0) : memory.warmer(staying_.back(), 0);
}

void ColdestVictims::find(const MayLeave& may_leave, const RoomRequest& request, const View& view,
                          std::vector<ChunkId>& victims) {
  const Residency& memory = view.memory;
  Bytes found = 0;
  bool all_stay = true;
  for (ChunkId chunk = first_to_look_at(view); chunk != none && found < request.bytes;
       chunk = memory.warmer(chunk, 0)) {
    if (!may_leave(view, memory.tensor_of(chunk))) {
      if (!all_stay) continue;
      staying_.push_back(chunk);
      places_[chunk] = staying_.size();
      continue;
    }
    all_stay = false;
    if (!memory.evictable(chunk, 0)) continue;
    victims.push_back(chunk);
    found += memory.footprint(chunk, 0);
  }
}

void ColdestVictims::find(bool (*may_leave)(Role), const RoomRequest& request, const View& view,
                          std::vector<ChunkId>& victims) {
  find([may_leave](const View& of, TensorId tensor) { return may_leave(of.memory.role(tensor)); }, request, view,
       victims);
}

void ColdestVictims::find_with_optimizer(bool evict, const RoomRequest& request, const View& view,
                                         std::vector<ChunkId>& victims) {
  if (evict || request.tier != 0) return coldest_victims(request, view, victims);
  find(goes_with_optimizer, request, view, victims);
}

bool is_update(const Trace& trace, const Op& op) {
  if (op.phase != Phase::optimizer || op.stream == OpStream::communication) return false;
  if (op.placeable) return true;
  for (const TensorId tensor : trace.writes(op)) {
    if (trace.tensors[tensor].persistent && trace.tensors[tensor].role != Role::input) return true;
  }
  return false;
}

void place_updates_on_cpu(const Trace& trace, std::vector<Device>& devices) {
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    if (is_update(trace, trace.ops[op])) devices[op] = Device::cpu;
  }
}

void order_as_ready(const Trace& trace, std::vector<std::int32_t>& groups) {
  std::vector<OpIndex> written_by(trace.tensors.size(), 0);
  std::map<std::int32_t, OpIndex> ready;  // by group
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (!op.reorderable) {
      for (const TensorId tensor : trace.writes(op)) written_by[tensor] = index;
      continue;
    }
    OpIndex& last = ready[op.group];
    for (const TensorId tensor : trace.reads(op)) last = std::max(last, written_by[tensor]);
  }
  std::ranges::stable_sort(groups, [&ready](std::int32_t a, std::int32_t b) { return ready[a] < ready[b]; });
}

std::vector<SubGroup> sub_groups_of(const Trace& trace) {
  std::vector<SubGroup> groups;
  std::vector<std::uint8_t> listed(trace.tensors.size(), 0);
  std::int32_t recorded = -1;
  for (OpIndex index = 0; index < trace.ops.size(); ++index) {
    const Op& op = trace.ops[index];
    if (op.phase != Phase::optimizer) continue;
    const auto is_state = [&trace](TensorId tensor) {
      const Role role = trace.tensors[tensor].role;
      return role == Role::optimizer_state || role == Role::master_parameter;
    };
    const auto reads = trace.reads(op), writes = trace.writes(op);
    if (std::ranges::none_of(writes, is_state)) continue;
    const bool goes_on = !groups.empty() && op.group >= 0 && op.group == recorded;
    if (!goes_on) {
      const auto number = op.group >= 0 ? std::int64_t{op.group} : static_cast<std::int64_t>(groups.size());
      groups.push_back({number, op.device, index, index, {}, 0});
    }
    recorded = op.group;
    SubGroup& group = groups.back();
    group.last_op = index;
    for (const auto& uses : {reads, writes}) {
      for (const TensorId tensor : uses) {
        if (!is_state(tensor) || listed[tensor] != 0) continue;
        listed[tensor] = 1;
        group.states.push_back(tensor);
        group.bytes += trace.tensors[tensor].bytes;
      }
    }
  }
  return groups;
}

OpIndex first_of_step(const Trace& trace) {
  const auto first = std::ranges::find(trace.ops, Phase::optimizer, &Op::phase);
  return first == trace.ops.end() ? none : static_cast<OpIndex>(first - trace.ops.begin());
}

bool next_used_by_cpu(TensorId gradient, OpIndex op, const View& view) {
  const TensorId id = view.program_tensor(gradient);
  if (view.schedule == nullptr || id == none || op == none) return false;
  const std::uint32_t distance = view.schedule->distance_to_next_use(id, op);
  if (distance == none) return false;
  return view.program->trace.ops[(op + distance) % view.schedule->op_count()].device == Device::cpu;
}

}  // namespace tencache
