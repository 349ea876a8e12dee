// What the engine knows and changes: the memory and its contents, transfers, lanes, the program and the figures. The
// engine owns it; the parts that hold its rules (mover.h, room_maker.h, op_runner.h) are given it, and own only what
// nobody else looks at.
#pragma once

#include <array>
#include <memory>

#include "core/engine/ledger.h"
#include "core/engine/mapped_copies.h"
#include "core/engine/moment.h"
#include "core/engine/op_lanes.h"
#include "core/engine/program_source.h"
#include "core/engine/tensor_lives.h"
#include "core/engine/transfer_table.h"
#include "core/machine.h"
#include "core/policy.h"
#include "core/residency.h"

namespace tencache {

struct EngineState {
  // `program`, `timeline`: may be null. All must outlive it. Throws Error when the policy's layout does not suit the
  // machine.
  EngineState(const MachineSpec& spec, Machine& machine, Policy& policy, const Program* program, Timeline* timeline);
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  // Whether the copy's room can go without a transfer: the value is dead, or valid somewhere else.
  bool can_drop(ChunkId chunk, TierId tier) const {
    return lives.dead[memory.tensor_of(chunk)] != 0 || memory.valid_elsewhere(chunk, tier);
  }
  // An op that was issued uses the chunk there.
  bool wanted(ChunkId chunk, TierId tier) const { return memory.copy(chunk, tier).pins > 0; }

  const MachineSpec& spec;
  Machine& machine;
  const Layout layout;
  std::array<std::array<Route, max_tiers>, max_tiers> routes{};  // by tiers, from and to
  Residency memory;
  Moment moment;
  TensorLives lives;
  const std::unique_ptr<ProgramSource> program;
  TransferTable transfers;
  OpLanes lanes;
  Ledger ledger;
  MappedCopies copies;
};

}  // namespace tencache
