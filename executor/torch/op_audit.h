// Finds ops that write what their schema says they only read: see interception.h. Any thread may call.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <vector>

#include "executor/torch/op_touch.h"
#include "executor/torch/recorder/op_schema.h"

namespace tencache::paging {

struct Finding {
  std::string op, argument;
  bool operator==(const Finding&) const = default;
};
// Off at first. On: forgets what was found.
void set_audit(bool on);
bool auditing();
std::vector<Finding> audit_findings();

// Checksums what an op says it only reads, before and after, on the CPU.
class OpAudit {
 public:
  // Before the op runs, when all that it uses is there.
  OpAudit(const OpSchema& info, const OpTouch& touch);
  // Those that changed, which count as written from now on. While they are still there.
  std::vector<std::uint32_t> changed() const;

 private:
  struct Watched {
    ArgumentInfo* argument;
    std::uint32_t tensor;
    c10::Storage storage;  // held: the op may let go of its inputs
    std::uint64_t sum;
  };
  const OpSchema& info_;
  std::vector<Watched> watched_;
};

}  // namespace tencache::paging
