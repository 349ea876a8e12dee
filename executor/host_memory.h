// The memory side of a HostMachine: its tiers and staging buffers, and where the bytes of a copy lie in them.
//
// Threading: calls come from one thread at a time, but `address` and `bytes`, which any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/fault_plan.h"
#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/policy.h"
#include "executor/accelerator.h"
#include "executor/arena_memory.h"
#include "executor/chunk_memory.h"
#include "executor/copy_lane.h"
#include "executor/device_order.h"
#include "executor/host_share.h"
#include "executor/swap_file.h"

namespace tencache {

// Buffers of CPU memory through which copies between two other tiers go (MachineSpec::staging): one range, locked in
// memory where the system allows that, and page-locked for the accelerator if there is one.
class StagingBuffers {
 public:
  // A machine may have none. The accelerator outlives this; it may be null. Throws Error if there is no memory; memory
  // that cannot be locked is said on stderr.
  StagingBuffers(const MachineSpec& spec, Accelerator* accelerator);
  ~StagingBuffers();
  StagingBuffers(const StagingBuffers&) = delete;
  StagingBuffers& operator=(const StagingBuffers&) = delete;

  // The buffers from `first` on, which `bytes` take.
  std::byte* address(std::uint64_t first, Bytes bytes) const;
  // A line for people; empty if there are none.
  std::string describe() const;

 private:
  Bytes count_, buffer_bytes_;
  Accelerator* accelerator_;
  Bytes stride_ = 0;
  std::byte* memory_ = nullptr;
  bool pinned_ = false, locked_ = false;
};

// HostMachineOptions::addressed under that layout.
std::vector<bool> addressed_tiers(const MachineSpec& spec, const Layout& layout);

struct HostMachineOptions {
  bool pace = true;             // keep to the links' bandwidth and latency
  std::vector<bool> addressed;  // per tier: the engine gives offsets (Place::offset); empty: none does
  bool populate = true;         // ChunkMemoryOptions
  bool prefault = false;
  // Code that is no op may touch the tensors of tier 0 at their addresses: what is copied in shows there when it is
  // whole, exposed tensors are kept from writes that nobody hears of, and children of this process have none of it.
  bool raw_access = false;
  bool unlimited_gpu = false;  // tier 0 is as large as this computer's memory (the layout's `unlimited_gpu`)
  SwapFileOptions files;
  std::shared_ptr<Accelerator> accelerator;  // of tiers of kind gpu; nullptr: ordinary memory stands in
  // Of CPU memory, page-locked for the accelerator before anything runs: what will be used, as far as it is known. More
  // is locked when it is needed.
  Bytes locked = 0;
  std::optional<FaultPlan> faults;  // what is to go wrong
  // With other ranks of this host: the first CPU memory, unless the engine says where chunks lie in it, and, with
  // `pace`, the machine's shared resources. Null: this is the only one.
  std::shared_ptr<HostShare> share = nullptr;
};

class HostMemory {
 public:
  // Spec and faults outlive this; `faults` may be null. Throws Error when the spec asks for what this computer cannot
  // give.
  HostMemory(const MachineSpec& spec, const HostMachineOptions& options, FaultInjector* faults);

  // As in core/machine.h.
  void map(TensorId tensor, Bytes begin, Bytes bytes, Place place, MappedFor what);
  void unmap(TensorId tensor, Bytes begin, Bytes bytes, Place place);
  void move(const MoveCommand& move);  // returns when it is over
  void create(TensorId tensor, Bytes bytes);
  void retire(TensorId tensor);
  void destroy(TensorId tensor);

  // As `move` in an arena, but that the content is the caller's to move.
  ArenaMemory::Relocated relocate_in_arena(const MoveCommand& move) {
    return tiers_[move.from.tier].arena->relocate(move.tensor, move.to.offset);
  }
  // Adds what a chunk occupies in a tier of memory, as copies of an accelerator find it; nothing where it is not
  // mapped, and in tiers of files. Of a copy: of both ends.
  void add_accesses(TensorId tensor, Bytes begin, Bytes bytes, TierId tier, bool write,
                    std::vector<MemoryAccess>& accesses) const;
  std::vector<MemoryAccess> accesses_of(const CopyCommand& copy) const;

  // Where the bytes of a copy come from and go to; a chunk that is written to a file gets its slot.
  CopyWork resolve(const CopyCommand& copy);
  // SwapFiles::store_in_file, in that tier: `map` finds the chunk there.
  void store_in_file(TensorId tensor, Bytes begin, Bytes bytes, TierId tier, std::shared_ptr<const SourceFile> file);
  // Room for a chunk in CPU memory, to be filled by the host: `map` finds the chunk there. Null where the engine says
  // where chunks lie.
  std::byte* room_to_store(TensorId tensor, Bytes begin, Bytes bytes, TierId tier);
  // Writes a chunk that nothing else touches; `write` fills its bytes, wherever they go then.
  void fill(TensorId tensor, Bytes begin, Bytes bytes, TierId tier,
            const std::function<void(std::span<std::byte> content)>& write);
  // A copy of a chunk's content.
  std::vector<std::byte> content(TensorId tensor, Bytes begin, Bytes bytes, TierId tier);

  // With `raw_access`, of tier 0: the tensor whose addresses these are (none: nobody's; any thread may ask), a tensor
  // that is exposed from now on (`writable`: as after open_for_writing) or is no more, and one whose bytes may be written
  // until the next copy from them.
  bool owns(const void* address) const { return tiers_[0].pages->owns(address); }
  TensorId tensor_at(const void* address) const { return tiers_[0].pages->tensor_at(address); }
  void expose(TensorId tensor, bool writable) { tiers_[0].pages->expose(tensor, writable); }
  void conceal(TensorId tensor) { tiers_[0].pages->conceal(tensor); }
  void open_for_writing(TensorId tensor) { tiers_[0].pages->open_for_writing(tensor); }

  // ChunkMemory::set_capacity.
  Bytes set_capacity(TierId tier, Bytes capacity) { return tiers_[tier].pages->set_capacity(capacity); }

  // ChunkMemory::relocate, in tier 0.
  void relocate(TensorId tensor) { tiers_[0].pages->relocate(tensor); }

  std::byte* address(TensorId tensor, TierId tier) const;
  Bytes bytes(TensorId tensor) const { return tiers_[0].memory->bytes(tensor); }
  ChunkMemoryStatistics statistics(TierId tier) const;  // memory tiers only
  // Null for memory.
  const SwapFiles* files(TierId tier) const { return tiers_[tier].files.get(); }
  bool on_accelerator(TierId tier) const { return tiers_[tier].memory != nullptr && tiers_[tier].pages == nullptr; }
  // Of an accelerator: tensors are packed there, and can be moved.
  bool arena(TierId tier) const { return tiers_[tier].arena != nullptr; }
  ArenaMemory* arena() const { return tiers_[0].arena; }  // of tier 0; null: it is none
  // A line per tier, and the staging buffers'.
  std::string describe_tiers() const;
  std::string describe_staging() const { return staging_->describe(); }

 private:
  // Memory or files.
  struct TierStore {
    std::unique_ptr<TierMemory> memory;
    ChunkMemory* pages = nullptr;       // `memory`, if the host can touch it
    ArenaMemory* arena = nullptr;       // `memory`, if it is one
    bool raw_access = false;            // what is copied in shows at the tensor's address when it is whole
    std::vector<std::uint8_t> tensors;  // by tensor: it has addresses; below the first tier, once it has a chunk there
    std::unique_ptr<SwapFiles> files;

    std::set<std::pair<TensorId, Bytes>> stored;  // chunks that have room which the engine does not know of yet

    bool has(TensorId tensor) const { return tensor < tensors.size() && tensors[tensor] != 0; }
  };

  // Of the machine.
  std::span<TierStore> in_use() { return std::span(tiers_).first(spec_.tiers.size()); }
  void build(TierId tier, const HostMachineOptions& options);
  void give_addresses(TierStore& tier, TensorId tensor, Bytes bytes);
  void take_slot(SwapFiles& files, TensorId tensor, Bytes begin, Bytes bytes);
  std::byte* memory_of(const CopyCommand& copy, Place place, bool staging) const;
  std::vector<HostPiece> pieces_of(const CopyCommand& copy, Place place, bool staging) const;
  void transfer_directly(TensorId tensor, Bytes begin, TierId tier, std::byte* content, Bytes bytes, bool upload);

  const MachineSpec& spec_;
  std::shared_ptr<Accelerator> accelerator_;
  FaultInjector* faults_;
  std::array<TierStore, max_tiers> tiers_;
  std::optional<StagingBuffers> staging_;
};

}  // namespace tencache
