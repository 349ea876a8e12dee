// The machine as a graph: tiers of memory joined by links that may share resources. Read from YAML by
// configs/machine_yaml.h; the simulator and the executor build their twin from the same description.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/enum_names.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

using TierId = std::uint8_t;
using LinkId = std::uint8_t;
inline constexpr std::uint8_t no_tier = 0xff;
inline constexpr std::uint8_t no_link = 0xff;
inline constexpr std::size_t max_tiers = 8;
inline constexpr std::size_t max_links = 32;

enum class TierKind : std::uint8_t { gpu, cpu, nvme };
template <>
inline constexpr auto enum_texts<TierKind> = std::to_array<std::string_view>({"gpu", "cpu", "nvme"});

// What taking fresh memory costs, where a policy does not reuse buffers: page-locking, cudaMalloc.
struct AllocationCost {
  Nanoseconds per_call_ns = 0;
  BytesPerSecond bandwidth = 0;  // 0: the size costs nothing
  bool power_of_two = false;     // sizes are rounded up to one, as caching host allocators do
};

// How much of a tier its owner leaves to us as time goes by: spare memory of another GPU. Such a tier holds second copies
// only, so that they can be given up at once, without a write.
struct CapacityOverTime {
  struct Change {
    Nanoseconds at_ns = 0;
    Bytes bytes = 0;
    bool operator==(const Change&) const = default;
  };
  std::vector<Change> changes;  // rising, from above 0; before the first: the tier's capacity. Empty: it never changes
  Nanoseconds period_ns = 0;    // above the last change's time: then all begins anew. 0: the last change stays

  bool any() const { return !changes.empty(); }
  // So long after the start; `whole`: the tier's capacity, which is never exceeded.
  Bytes at(Nanoseconds passed_ns, Bytes whole) const;
  // Equal for two times after which capacities are the same for ever.
  Nanoseconds phase(Nanoseconds passed_ns) const;
  bool operator==(const CapacityOverTime&) const = default;
};

struct Tier {
  std::string name;
  TierKind kind = TierKind::cpu;
  Bytes capacity = 0;                    // what tensors may use: context and library workspaces are already taken off
  Bytes granularity = 1;                 // every chunk occupies a multiple of this; a power of two
  std::vector<std::string> directories;  // nvme, on a real machine: one per device
  AllocationCost allocation = {};
  // exact: as the policy has it; another (caching: in simulations only; movable: tier 0's) where it has exact.
  AllocatorKind allocator = AllocatorKind::exact;
  BytesPerSecond bandwidth = 0;  // gpu: of its memory, read and written together: moving chunks in it. 0: not known
  // gpu: bytes a second at which what is kept in a smaller format elsewhere (Tensor::stored_bytes) is expanded when it
  // arrives, counted as it is here; the link waits meanwhile. 0: at once. Simulated machines only.
  BytesPerSecond expand_bandwidth = 0;
  // nvme, on a real machine: how its files are read and written. 0: the executor's own (executor/swap_file.h).
  Bytes io_block_bytes = 0;
  std::uint32_t io_depth = 0;       // blocks in flight, of each directory
  bool checksums = false;           // nvme, on a real machine: every block that is read must be as it was written
  Bytes rated_written_bytes = 0;    // nvme: what one of its devices is rated to have written (TBW); 0: not known
  CapacityOverTime over_time = {};  // gpu, but the first tier; simulated machines only
};

// Bandwidth that several links occupy at once: a PCIe direction, DRAM, an SSD's read + write total.
struct Resource {
  std::string name;
  BytesPerSecond bandwidth = 0;
  std::uint32_t shared = none;  // resources of several ranks with the same number are one; none: this rank's own
};

// One direction between two tiers. Concurrent transfers over links that share a resource share it max-min fairly.
struct Link {
  std::string name;
  TierId from = no_tier;
  TierId to = no_tier;
  BytesPerSecond bandwidth = 0;
  Nanoseconds latency_ns = 0;      // per transfer; the link is busy meanwhile, shared resources are not
  std::vector<std::uint8_t> uses;  // indices into MachineSpec::resources
  std::uint32_t queue_depth = 1;   // latencies of so many transfers overlap
  // Storage striped over several devices (RAID-0): a transfer reaches only as many of them as it has stripes.
  std::uint32_t devices = 1;
  Bytes stripe_bytes = 0;
  // Writes: after `burst_bytes` at `bandwidth` without a pause the device falls to this rate. 0: it never does.
  BytesPerSecond sustained_bandwidth = 0;
  Bytes burst_bytes = 0;
  // Share of the bandwidth that copies of unified memory reach (CopyMemory::unified): page faults and driver's
  // prefetches. Half at best, says bitsandbytes' documentation of paged optimizers.
  double paged_efficiency = 0.5;
  // Of copies from and to CPU memory that is not page-locked (CopyMemory::pageable); 0: as `bandwidth`.
  BytesPerSecond pageable_bandwidth = 0;
};

// What CPU memory a copy to or from it touches: page-locked, pageable, which the driver copies by way of page-locked
// buffers of its own, or unified, which it moves page by page.
enum class CopyMemory : std::uint8_t { pinned, pageable, unified };

// Pinned buffers for the path between two tiers that no link joins (gpu <-> cpu memory <-> nvme).
struct Staging {
  TierId tier = no_tier;    // where the buffers lie; not counted in that tier's capacity
  std::uint32_t count = 0;  // 0: no staged path
  Bytes bytes = 0;          // a larger chunk takes several buffers

  Bytes all_bytes() const { return count * bytes; }
  Bytes buffers_for(Bytes chunk) const { return (chunk + bytes - 1) / bytes; }
};

// Where a figure comes from, kept for reports and for intervals.
struct Fact {
  std::string path;  // "links.h2d.bandwidth"
  std::string source;
  std::string confidence;  // published, measured, estimated
  std::string retrieved;   // date, may be empty
  double spread = 0;       // how far repeated measurements lie apart, relative to the figure; 0: not known
};

// What the CPU computes with, of all its cores together. 0: unknown; a policy that needs the figure is refused.
struct CpuRates {
  double adam_parameters_per_second = 0;  // updates of the optimizer
  double flops_per_second = 0;            // of matrix products, in the precision that it computes in
  BytesPerSecond bandwidth = 0;           // that its kernels reach from memory

  bool can_compute() const { return flops_per_second > 0 && bandwidth > 0; }
};

// How far a program's thread goes on ahead of the GPU: an op is launched while fewer than `ops` launched ones are not
// over and, while copies are under way, those behind the first take less than `time_ns` (above 0). ops 0: not at all,
// each op is waited for. A copy between GPU and CPU memory is handed to its stream while fewer than `copies` are not
// over there, or less data than flows in `copies_ns`: enough to keep the link busy while the host decides, and no more,
// because urgent ones wait behind.
inline constexpr std::uint32_t most_run_ahead = 1'000'000;
struct RunAhead {
  std::uint32_t ops = 0;
  Nanoseconds time_ns = 2'000'000;
  std::uint32_t copies = 2;
  Nanoseconds copies_ns = 400'000;
  bool operator==(const RunAhead&) const = default;
};

// What an hour of the whole machine costs, all its ranks together; 0: unknown. Source and date are facts.
struct Price {
  double on_demand = 0;
  double spot = 0;
  std::string currency = "USD";

  bool in_usd() const { return on_demand > 0 && currency == "USD"; }
};

// What the host's own work costs.
struct HostCosts {
  Nanoseconds per_module_ns = 0;    // what a policy driven by module hooks adds to a module call
  Nanoseconds per_transfer_ns = 0;  // what each copy costs the GPU's lane: mapping, waking up
  // At which CPU memory is page-locked before the first step; 0: not known. For predictions of the start-up.
  BytesPerSecond lock_bandwidth = 0;
};

struct MachineSpec {
  std::string name;
  std::string description;
  std::string file;                     // where it was read from
  std::vector<std::string> base_files;  // and what that file builds on
  std::string gpu;                      // "a100-40g" of configs/gpus.yaml; empty: durations are never rescaled to it
  std::vector<Tier> tiers;              // [0] is the GPU's; then from fast to slow
  std::vector<Resource> resources;
  std::vector<Link> links;
  Staging staging;
  TierId initial_tier = no_tier;  // where persistent tensors start; spills to slower tiers
  CpuRates cpu;
  std::uint32_t issue_ahead = 1;       // ops issued ahead of the one that runs
  std::uint32_t copies_in_flight = 1;  // transfers handed to a link at once
  HostCosts host;
  RunAhead run_ahead = {};  // in simulation sim/ordered_machine.h, on a GPU executor/device_order.h
  // Shared resources that a lane's op occupies while it runs (its bytes over its duration): CPU Adam and DRAM.
  std::array<std::vector<std::uint8_t>, 2> lane_uses;  // 0: GPU, 1: CPU
  Price price;
  std::vector<MachineSpec> other_ranks;  // ranks 1, 2, …: each a machine of its own but for shared resources
  std::vector<Fact> facts;

  std::size_t rank_count() const { return 1 + other_ranks.size(); }
  const MachineSpec& of_rank(std::size_t rank) const { return rank == 0 ? *this : other_ranks[rank - 1]; }

  TierId tier_of(Device device) const;                // the first tier of that kind; no_tier if there is none
  LinkId link_between(TierId from, TierId to) const;  // no_link if none
  // The links from one tier to another: one, two by way of the staging buffers, or none.
  std::vector<LinkId> path_between(TierId from, TierId to) const;
  // Throws Error (placed at `file`) on a broken graph: no GPU tier, a link of no bandwidth, a tier that cannot be
  // reached …
  void validate() const;
};

}  // namespace tencache
