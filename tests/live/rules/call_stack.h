// Where a call of the driver came from. Taking it follows frame pointers, which costs a few loads; words are made only
// for a report.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace tencache::rules {

struct CallStack {
  static constexpr std::size_t deepest = 12;
  std::array<void*, deepest> frames{};

  // Of the caller. Ends where code without frame pointers begins.
  static CallStack here();
  // A line a frame: function, object and offset (addr2line -Cfe OBJECT OFFSET).
  std::string describe() const;
};

}  // namespace tencache::rules
