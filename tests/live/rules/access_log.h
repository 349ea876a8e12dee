// The happens-before judge: of each byte, the last write and the reads since. Two accesses to the same byte of which
// one writes must be ordered: the later one is made by somebody who knows that the earlier is over. So one run judges
// every order in which a device may do what it was given, not only the one that came about.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/units.h"
#include "tests/live/rules/call_stack.h"
#include "tests/live/rules/vector_clock.h"

namespace tencache::rules {

// Memory by where it is: the device's by its place in physical memory, so that two addresses of the same memory are one
// range; the host's by address.
struct Range {
  std::uint64_t begin = 0;
  Bytes bytes = 0;

  bool overlaps(const Range& other) const { return begin < other.begin + other.bytes && other.begin < begin + bytes; }
};

struct Access {
  Range range;
  bool write = false;
  bool forgettable = false;  // memory of which the driver does not hear when it is freed: see `forget`
};

class AccessLog {
 public:
  // Who accesses, and what is known to be over when it begins.
  struct Actor {
    Moment moment;
    const char* what = nullptr;  // the function of the driver
    CallStack stack;
  };

  // Empty, or both accesses of the first pair without order, with their call stacks.
  std::string access(const Access& access, const Actor& actor, const VectorClock& known);
  // The memory is somebody else's from now on.
  void forget(const Range& range);
  // Drops forgettable accesses that are known there to be over: their memory may have another owner by now.
  void forget_known(const VectorClock& known);

 private:
  struct Record {
    Moment moment;
    std::uint32_t actor = 0;
    bool forgettable = false;
  };
  struct Piece {
    std::uint64_t end = 0;
    Record write;  // number 0: none
    std::vector<Record> reads;
  };
  using Pieces = std::map<std::uint64_t, Piece>;  // by begin; no two overlap

  void split(std::uint64_t at);
  void fill_gaps(const Range& range);
  std::string describe(const Record& record) const;

  Pieces pieces_;
  std::deque<Actor> actors_;
  bool any_forgettable_ = false;
};

}  // namespace tencache::rules
