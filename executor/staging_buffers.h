// Buffers of CPU memory through which copies between two other tiers go (MachineSpec::staging): one range, locked in
// memory where the system allows that, and page-locked for the accelerator if there is one.
#pragma once

#include <cstddef>
#include <string>

#include "core/machine_spec.h"
#include "executor/accelerator.h"

namespace tencache {

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

}  // namespace tencache
