// What foresight knows, kept up to date with every event: where every chunk stands, and what is lacking.
#pragma once

#include <memory>
#include <vector>

#include "core/policy.h"
#include "policies/foresight/expert_homes.h"
#include "policies/foresight/flights.h"
#include "policies/foresight/future.h"
#include "policies/foresight/horizon.h"
#include "policies/foresight/places.h"
#include "policies/foresight/shelf.h"
#include "policies/foresight/spill_plan.h"
#include "policies/foresight/ways.h"
#include "policies/planning/expert_odds.h"
#include "policies/planning/index_set.h"

namespace tencache {

class Foreknowledge {
 public:
  // Of the view's program from here on. O(accesses × log ops).
  void start(const View& view, Bytes chunk_bytes, bool forgets, const ForesightKnobs& knobs);

  // What happens. Ops are those of the schedule.
  void issued(const Event& event, const View& view);
  void revealed(const Event& event, const View& view);
  void done(const Event& event, const View& view);
  void arrived(const Event& event, const View& view);
  void refused(ChunkId chunk, const View& view);
  void forget(TensorId tensor, const View& view);  // its content is gone; an id of the memory

  // Puts the chunk on the shelf where it now belongs; tiers other than the GPU's and CPU memory have none.
  void refresh(ChunkId chunk, TierId tier, const View& view);
  // The GPU drops a chunk that the op needs: it is to be fetched again.
  void dropped(ChunkId chunk, OpIndex needed_by, const View& view);

  // Asks for a transfer. Every verb but fetch copies down: the chunk leaves its shelf.
  void ask(Verb verb, ChunkId chunk, TierId from, TierId to, const View& view, Actions& actions);
  // If nothing is on the link, what was to be copied down over it and has not arrived was stopped.
  void forget_lost(TierId from, TierId to, const View& view);

  // Walks to the horizon leave out ops of the GPU of which nothing is missing there.
  void find_lacking(const View& view);  // brings up to date what the next two know
  OpPlace next_lacking(OpPlace from, OpPlace end, const View& view) const;
  void lacks_nothing(OpPlace place) { lacking_.erase(places.index(place)); }

  bool exclusive() const { return exclusive_ != Exclusive::none; }

  // What gates have decided and the GPU's ops that read it have not been issued: experts' weights, in their order.
  struct Revealed {
    OpIndex op = none;
    TensorId tensor = none;
  };
  const std::vector<Revealed>& revealed() const { return revealed_; }

  // For those who decide: they take chunks off shelves and move cursors, all else is changed by the above.
  OpPlaces places;
  Ways ways;
  Future future;
  SpillPlan plan;
  Flights flights;
  std::vector<NeededAt> needed;  // by tensor of the program
  std::vector<Shelf> shelves;    // of the GPU, and of tiers up to CPU memory
  Horizon horizon;
  std::vector<UseCursor> fetched;  // by tier: up to here it has nothing that the GPU lacks

 private:
  Exclusive exclusive_ = Exclusive::none;
  IndexSet lacking_;        // at least all ops of the GPU that read what it has no copy of
  std::uint64_t left_ = 0;  // so many chunks had left the GPU when that was so
  ExpertOdds odds_;         // by which `needed` has the experts that are not revealed
  std::vector<Revealed> revealed_;
  std::unique_ptr<ExpertHomes> homes_;  // if the CPU can compute experts

  // When an expert will probably be needed: no place that anything has to be ready for.
  void guess(TensorId tensor);
  bool is_guess(TensorId tensor) const { return odds_.of_expert(tensor); }
  // Whether place_decided gave it to the CPU: of an op whose gate is done.
  bool given_to_cpu(OpIndex op, const View& view) const;
  Needs needs_after(const Event& event, std::size_t use, const View& view) const;
  void choose_homes(const Event& event, const View& view);
  NeededAt needed_from(TensorId tensor, OpIndex op, const View& view) const;
  void refresh_all(TensorId tensor, const View& view);
  TensorId listed_as(TensorId tensor, const View& view) const;
  void refresh(ChunkId chunk, TierId tier, TensorId id, const View& view);
  Shelf::Kind kind_on_gpu(ChunkId chunk, TensorId id, const View& view) const;
  void absent(ChunkId chunk, OpPlace place, const View& view);
  void all_may_lack();
  void gone_from_memory(ChunkId chunk, const View& view);
};

}  // namespace tencache
