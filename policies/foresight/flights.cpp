#include "policies/foresight/flights.h"

#include <algorithm>

namespace tencache {

void Flights::add(ChunkId chunk, TierId from, TierId to, Bytes bytes, bool leaves) {
  if (leaves) {
    if (chunk >= out_.size()) out_.resize(chunk + 1, 0);
    out_[chunk] = static_cast<std::uint8_t>(out_[chunk] | 1u << from);
  }
  flights_.push_back({chunk, from, to, bytes});
}

void Flights::arrived(ChunkId chunk, TierId from, TierId to) {
  std::erase_if(flights_, [&](const Flight& f) { return f.chunk == chunk && f.to == to; });
  if (from != no_tier) not_leaving(chunk, from);
}

void Flights::refused(ChunkId chunk) {
  std::erase_if(flights_, [&](const Flight& f) { return f.chunk == chunk; });
  stopped(chunk);
}

void Flights::stopped(ChunkId chunk) {
  if (chunk < out_.size()) out_[chunk] = 0;
}

void Flights::stopped(TierId from, TierId to) {
  std::erase_if(flights_, [&](const Flight& f) {
    if (f.from != from || f.to != to) return false;
    not_leaving(f.chunk, from);
    return true;
  });
}

void Flights::clear(std::size_t chunk_count) {
  flights_.clear();
  out_.assign(chunk_count, 0);
}

bool Flights::coming(ChunkId chunk, TierId to) const {
  return std::ranges::any_of(flights_, [chunk, to](const Flight& f) { return f.chunk == chunk && f.to == to; });
}

Bytes Flights::between(TierId from, TierId to) const {
  Bytes bytes = 0;
  for (const Flight& flight : flights_) {
    if (flight.from == from && flight.to == to) bytes += flight.bytes;
  }
  return bytes;
}

void Flights::not_leaving(ChunkId chunk, TierId from) {
  if (chunk < out_.size()) out_[chunk] = static_cast<std::uint8_t>(out_[chunk] & ~(1u << from));
}

}  // namespace tencache
