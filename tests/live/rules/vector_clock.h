// What is known to be over: for each line, the number of its last work that is. A line is a stream of the device or a
// thread of the host; its works are numbered from 1. (Lamport's order with Mattern's vector clocks.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tencache::rules {

using Line = std::uint32_t;

struct Moment {
  Line line = 0;
  std::uint64_t number = 0;
};

class VectorClock {
 public:
  std::uint64_t operator[](Line line) const { return line < numbers_.size() ? numbers_[line] : 0; }
  bool knows(Moment moment) const { return (*this)[moment.line] >= moment.number; }
  // False if that was known.
  bool learn(Moment moment) {
    if (knows(moment)) return false;
    if (numbers_.size() <= moment.line) numbers_.resize(moment.line + 1);
    numbers_[moment.line] = moment.number;
    return true;
  }
  // Of all that `other` knows; false if all of it was known.
  bool learn(const VectorClock& other) {
    bool learnt = false;
    if (numbers_.size() < other.numbers_.size()) numbers_.resize(other.numbers_.size());
    for (std::size_t i = 0; i < other.numbers_.size(); ++i) {
      if (other.numbers_[i] <= numbers_[i]) continue;
      numbers_[i] = other.numbers_[i];
      learnt = true;
    }
    return learnt;
  }
  // The line's next work.
  Moment tick(Line line) {
    if (numbers_.size() <= line) numbers_.resize(line + 1);
    return {line, ++numbers_[line]};
  }

 private:
  std::vector<std::uint64_t> numbers_;
};

}  // namespace tencache::rules
