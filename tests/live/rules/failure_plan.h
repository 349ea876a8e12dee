// Calls of the driver that are to fail.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace tencache::rules {

class FailurePlan {
 public:
  // The call of that function after the next `calls` of them, once.
  void add(const std::string& function, CUresult result, std::uint64_t calls) {
    failures_[function].push_back({result, calls});
  }
  // What the call answers; CUDA_SUCCESS: it does not fail.
  CUresult next(const std::string& function) {
    if (failures_.empty()) return CUDA_SUCCESS;
    const auto found = failures_.find(function);
    if (found == failures_.end() || found->second.empty()) return CUDA_SUCCESS;
    const Failure next = found->second.front();
    if (found->second.front().calls-- != 0) return CUDA_SUCCESS;
    found->second.pop_front();
    return next.result;
  }

 private:
  struct Failure {
    CUresult result;
    std::uint64_t calls;
  };
  std::map<std::string, std::deque<Failure>> failures_;
};

}  // namespace tencache::rules
