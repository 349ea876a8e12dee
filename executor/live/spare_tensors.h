// Tensors that a sleeping program has let go of, each to become the next one of its size. To the engine they still
// live, in the GPU tier. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

class SpareTensors {
 public:
  struct Spare {
    TensorId tensor = none;
    std::byte* address = nullptr;
    std::uint64_t number = 0;  // ascending as they were added
  };

  void add(Bytes bytes, TensorId tensor, std::byte* address) {
    by_size_[bytes].push_back({tensor, address, ++added_});
    ++count_;
  }
  // The latest one of that size: its bytes are the likeliest in a cache.
  std::optional<Spare> take(Bytes bytes) {
    const auto found = by_size_.find(bytes);
    if (found == by_size_.end() || found->second.empty()) return {};
    const Spare spare = found->second.back();
    found->second.pop_back();
    --count_;
    return spare;
  }
  bool empty() const { return count_ == 0; }
  // Of any size; there is one.
  TensorId take_oldest() {
    std::erase_if(by_size_, [](const auto& of_size) { return of_size.second.empty(); });
    auto oldest = by_size_.begin();
    for (auto at = by_size_.begin(); at != by_size_.end(); ++at) {
      if (at->second.front().number < oldest->second.front().number) oldest = at;
    }
    const TensorId tensor = oldest->second.front().tensor;
    oldest->second.erase(oldest->second.begin());
    --count_;
    return tensor;
  }

 private:
  std::unordered_map<Bytes, std::vector<Spare>> by_size_;  // each from the oldest to the latest
  std::size_t count_ = 0;
  std::uint64_t added_ = 0;
};

}  // namespace tencache
