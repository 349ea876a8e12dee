// The transfers that foresight has asked for and that have not arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/machine.h"
#include "core/machine_spec.h"
#include "core/trace.h"
#include "core/units.h"

namespace tencache {

class Flights {
 public:
  // Copies down for which the chunk leaves are told from others.
  void add(ChunkId chunk, TierId from, TierId to, Bytes bytes, bool leaves);
  void arrived(ChunkId chunk, TierId from, TierId to);
  void refused(ChunkId chunk);
  void stopped(ChunkId chunk);           // its copies down, since it is written or gone
  void stopped(TierId from, TierId to);  // all copies down on this way
  void clear(std::size_t chunk_count);

  bool leaving(ChunkId chunk, TierId from) const { return chunk < out_.size() && (out_[chunk] >> from & 1) != 0; }
  bool coming(ChunkId chunk, TierId to) const;
  Bytes between(TierId from, TierId to) const;
  std::size_t count() const { return flights_.size(); }
  // Bytes on their way to the tier of chunks that `counts`.
  template <typename Counts>
  Bytes bytes_to(TierId to, Counts counts) const {
    Bytes bytes = 0;
    for (const Flight& flight : flights_) {
      if (flight.to == to && counts(flight.chunk)) bytes += flight.bytes;
    }
    return bytes;
  }

 private:
  struct Flight {
    ChunkId chunk = none;
    TierId from = no_tier, to = no_tier;
    Bytes bytes = 0;
  };
  void not_leaving(ChunkId chunk, TierId from);

  std::vector<Flight> flights_;
  std::vector<std::uint8_t> out_;  // by chunk: a bit for each tier from which it is being copied down
};

}  // namespace tencache
