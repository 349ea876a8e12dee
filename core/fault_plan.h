// Faults made on purpose, in both machines by one plan (docs/reliability.md). Whether a fault strikes is a pure
// function of seed, kind and index, so that a seed repeats a failure on every computer and whichever thread asks.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/enum_names.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

enum class FaultKind : std::uint8_t {
  copy_error,   // a copy fails
  delay,        // a copy begins later, by `delay_ns`
  slow_link,    // `slow_group` copies of a link in a row take `slow_factor` times as long
  device_gone,  // from that copy on, all copies from and to one tier fail
  no_memory,    // a tier of memory refuses room
  io_error,     // a copy from or to files fails in the middle of a block
  short_read,   // a block comes in two parts, which the reader has to put together
  torn_write,   // half of a block is not written, and nobody says so: only a checksum notices (Tier::checksums)
  disk_full,    // the disks of a tier of files are full when it holds `disk_percent` of its capacity
};
inline constexpr std::size_t fault_kind_count = 9;
template <>
inline constexpr auto enum_texts<FaultKind> = std::to_array<std::string_view>({"copy_error", "delay", "slow_link",
                                                                               "device_gone", "no_memory", "io_error",
                                                                               "short_read", "torn_write",
                                                                               "disk_full"});

// When a kind strikes: with a probability each time, or the `at`-th time, counted from 0, or from that one on.
struct FaultRate {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
  double probability = 0;
  std::uint64_t at = never;
  bool onwards = false;

  bool any() const { return probability > 0 || at != never; }
};

struct FaultPlan {
  std::uint64_t seed = 1;
  std::array<FaultRate, fault_kind_count> rates;  // that of disk_full is unused
  Nanoseconds delay_ns = 0;
  std::uint64_t slow_factor = 1;
  std::string gone_tier;             // empty: drawn from the seed
  std::uint64_t disk_percent = 100;  // of a tier's capacity

  static constexpr std::uint64_t slow_group = 16;

  FaultRate& rate(FaultKind kind) { return rates[static_cast<std::size_t>(kind)]; }
  const FaultRate& rate(FaultKind kind) const { return rates[static_cast<std::size_t>(kind)]; }
  bool has(FaultKind kind) const { return kind == FaultKind::disk_full ? disk_percent < 100 : rate(kind).any(); }
  // The same for the same arguments, always. `stream` tells apart what is counted apart, such as links.
  bool strikes(FaultKind kind, std::uint64_t index, std::uint64_t stream = 0) const;
  std::uint64_t draw(FaultKind kind, std::uint64_t index, std::uint64_t stream = 0) const;
  // Other draws of the same plan, for another rank.
  FaultPlan of_rank(std::size_t rank) const;
  // What a disk for `capacity` comes to hold.
  Bytes disk_room(Bytes capacity) const;
};

// "seed=7,copy_error=0.01,delay=0.05:2ms,slow_link=0.02:10x,device_gone=@1000:ssd,disk_full=60%". A rate is a
// probability, `@N` for the N-th time alone, or `@N+` from it on. "seed=7" alone is a mixture drawn from the seed.
// Throws Error that lists the valid kinds.
FaultPlan parse_fault_plan(std::string_view text);
// Read again it is the same plan.
std::string to_string(const FaultPlan& plan);

using FaultCounts = std::array<std::uint64_t, fault_kind_count>;
// "3 copy_error, 12 delay"; "none".
std::string to_string(const FaultCounts& counts);

// What happens to one copy.
struct CopyFault {
  std::optional<FaultKind> failure = {};  // copy_error or device_gone: it fails
  std::optional<FaultKind> in_file = {};  // io_error, short_read or torn_write, in one block of its file
  std::uint64_t block = 0;                // which one, modulo their number
  Nanoseconds delay_ns = 0;
  std::uint64_t slow_factor = 1;
};

// A plan at work in one machine: counts what it is asked about. Used by one thread at a time.
class FaultInjector {
 public:
  // The spec outlives it. Throws Error for a tier that the machine does not have.
  FaultInjector(FaultPlan plan, const MachineSpec& spec);

  // Of the next copy, in order of submission.
  CopyFault next_copy(LinkId link);
  // Throws Error where the tier, one of memory, refuses the next room.
  void next_room(TierId tier, Bytes bytes);
  // What the machine itself finds out.
  void count(FaultKind kind) { ++counts_[static_cast<std::size_t>(kind)]; }
  // Why a copy over the link failed, for messages.
  std::string reason(FaultKind kind, LinkId link) const;

  const FaultPlan& plan() const { return plan_; }
  const FaultCounts& counts() const { return counts_; }
  // How much it was asked: never the same again, so that a disturbed run does not look steady.
  std::uint64_t asked() const { return copies_ + rooms_; }

 private:
  bool met(FaultKind kind, std::uint64_t index, std::uint64_t stream = 0);
  bool is_gone(const Link& link) const { return gone_ && (link.from == gone_tier_ || link.to == gone_tier_); }

  FaultPlan plan_;
  const MachineSpec& spec_;
  TierId gone_tier_ = no_tier;
  bool gone_ = false;
  std::uint64_t copies_ = 0, rooms_ = 0;
  std::array<std::uint64_t, max_links> copies_of_link_{};
  FaultCounts counts_{};
};

}  // namespace tencache
