// Hands out pages of a fixed range as few, long extents. What is asked for may come in pieces: mapped memory and block
// lists of a file do not need to be contiguous, so nothing is ever lost to fragmentation.
// Not thread-safe.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/units.h"

namespace tencache {

struct Extent {
  Bytes offset = 0;
  Bytes bytes = 0;
};

class ExtentAllocator {
 public:
  // Everything is a multiple of `page`, a power of two; the capacity is rounded down to it.
  ExtentAllocator(Bytes capacity, Bytes page);

  Bytes capacity() const { return capacity_; }
  Bytes used() const { return used_; }
  // One past the last byte ever handed out, as far as it still has it.
  Bytes high_water() const { return high_water_; }

  // Appends extents of `bytes` in total: the smallest free extent that holds all of it (which keeps long ones whole and
  // reuses touched pages first), else the longest ones. False, and nothing taken, when fewer bytes are free.
  bool take(Bytes bytes, std::vector<Extent>& extents);
  // Takes exactly this range. False when a part of it is in use.
  bool take_at(Extent extent);
  // From now on so much, or, where room at the end is in use, what ends with it: returns how much it is.
  Bytes set_capacity(Bytes capacity);
  // Gives back what was taken; neighbours coalesce.
  void give(Extent extent);

 private:
  void remove(std::map<Bytes, Bytes>::iterator extent);
  void insert(Bytes offset, Bytes bytes);
  void take_front(std::map<Bytes, Bytes>::iterator extent, Bytes bytes);

  Bytes capacity_;
  Bytes page_;
  Bytes used_ = 0;
  Bytes high_water_ = 0;
  std::map<Bytes, Bytes> free_;                     // offset → bytes
  std::set<std::pair<Bytes, Bytes>> free_by_size_;  // (bytes, offset)
};

}  // namespace tencache
