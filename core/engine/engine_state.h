// What the engine knows and changes: the memory and its contents, transfers, lanes, the program and the figures. The
// engine owns it; the parts that hold its rules (mover.h, room_maker.h, op_runner.h) are given it, and own only what
// nobody else looks at.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/engine/ledger.h"
#include "core/engine/mapped_copies.h"
#include "core/engine/moment.h"
#include "core/engine/op_lanes.h"
#include "core/engine/program_source.h"
#include "core/engine/transfer_table.h"
#include "core/machine.h"
#include "core/policy.h"
#include "core/residency.h"
#include "core/trace.h"

namespace tencache {

// How the engine recognises its own completions: the kind in the top byte of the tag, the rest is the kind's.
enum class TagKind : std::uint8_t { transfer, op, gap };
inline constexpr int tag_kind_shift = 56;

inline Tag make_tag(TagKind kind, std::uint64_t value) {
  return (static_cast<std::uint64_t>(kind) << tag_kind_shift) | value;
}
inline TagKind tag_kind(Tag tag) { return static_cast<TagKind>(tag >> tag_kind_shift); }
inline std::uint64_t tag_value(Tag tag) { return tag & ((std::uint64_t{1} << tag_kind_shift) - 1); }

// Which tensors have a value that somebody needs. By id of the memory; ids of tensors that have gone are used again.
struct TensorLives {
  // The value is needed no more: nothing copies it. A write, from the op's issue on, begins a new life.
  std::vector<std::uint8_t> dead;
  // It has had content in this life. Never with `dead`, but for victims that keep their room (FreeDead::when_victim).
  std::vector<std::uint8_t> born;
  // Destroyed by the program, and therefore dead; gone when the last transfer and copy are.
  std::vector<std::uint8_t> doomed;

  void reserve(std::size_t tensors) {  // these will begin
    for (auto* flags : {&dead, &born, &doomed}) flags->reserve(tensors);
  }
  void begin(TensorId tensor) {
    if (tensor >= dead.size()) {
      for (auto* flags : {&dead, &born, &doomed}) flags->resize(tensor + std::size_t{1}, 0);
    }
    dead[tensor] = born[tensor] = doomed[tensor] = 0;
  }
};

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
  const std::unique_ptr<const Program> sealed;  // what the policy sees of an owned program with gates; else null
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
