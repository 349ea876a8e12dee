// The tiers that foresight works with, and the ways between them.
#pragma once

#include <cstddef>
#include <vector>

#include "core/machine_spec.h"
#include "core/policy.h"
#include "core/residency.h"
#include "policies/foresight/places.h"

namespace tencache {

struct Store {
  TierId tier = no_tier;
  bool by_gpu = false, by_cpu = false;  // whether it has links both ways to that tier
  UseCursor read;                       // up to here it has nothing that is in neither memory
};

struct Ways {
  Ways() = default;
  explicit Ways(const MachineSpec& machine);

  // The first store that has the chunk, or no_tier; the fastest tier that the GPU can fetch it from, or no_tier.
  TierId store_of(ChunkId chunk, const Residency& memory) const;
  TierId source_of(ChunkId chunk, const Residency& memory) const;
  LinkId link(TierId from, TierId to) const { return links[from * tiers + to]; }  // no_link if none
  bool leave(TierId from, const View& view) const;  // whether transfers out of the tier are queued or running

  TierId cpu = no_tier;         // no_tier also where the GPU has no link there
  std::vector<Store> stores;    // tiers of storage
  std::vector<TierId> sources;  // tiers that the GPU fetches from, the fastest first
  std::size_t tiers = 0;        // of the machine
  std::vector<LinkId> links;    // by pair of tiers
};

}  // namespace tencache
