#include "executor/torch/op_audit.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "executor/torch/pager.h"

namespace tencache::paging {
namespace {

class Findings {
 public:
  bool on() const { return on_; }
  void turn(bool on) {
    const std::lock_guard lock(mutex_);
    if (on) found_.clear();
    on_ = on;
  }
  void add(const Finding& finding) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(found_, finding) == found_.end()) found_.push_back(finding);
  }
  std::vector<Finding> all() const {
    const std::lock_guard lock(mutex_);
    return found_;
  }

 private:
  std::atomic<bool> on_ = false;
  mutable std::mutex mutex_;
  std::vector<Finding> found_;
} findings;

std::uint64_t checksum(const void* data, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  const auto* at = static_cast<const std::byte*>(data);
  const auto mix = [&sum](std::uint64_t word) {
    sum = (sum ^ word) * 0x9e3779b97f4a7c15ull;
    sum ^= sum >> 32;
  };
  for (; bytes >= sizeof(std::uint64_t); bytes -= sizeof(std::uint64_t), at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    mix(word);
  }
  for (; bytes > 0; --bytes, ++at) mix(std::to_integer<std::uint64_t>(*at));
  return sum;
}

std::uint64_t checksum(const c10::Storage& storage) { return checksum(base_address(storage), storage.nbytes()); }

}  // namespace

void set_audit(bool on) {
  findings.turn(on);
  const tencache_live* const live = Pager::get().live();
  if (on && live != nullptr) Pager::get().check(*live, live->stay_awake(live->runtime));
}
bool auditing() { return findings.on(); }
std::vector<Finding> audit_findings() { return findings.all(); }

OpAudit::OpAudit(const OpSchema& info, const OpTouch& touch) : info_(info) {
  for (const OpTouch::Argument& argument : touch.arguments) {
    if (!argument.info->content || !touch.only_reads(argument.tensor)) continue;
    c10::Storage storage = argument.hold();
    const std::uint64_t sum = checksum(storage);
    watched_.push_back({argument.info, argument.tensor, std::move(storage), sum});
  }
}

std::vector<std::uint32_t> OpAudit::changed() const {
  std::vector<std::uint32_t> tensors;
  for (const Watched& watched : watched_) {
    if (checksum(watched.storage) == watched.sum) continue;
    tensors.push_back(watched.tensor);
    watched.argument->written = true;
    findings.add({info_.name, watched.argument->name});
  }
  return tensors;
}

}  // namespace tencache::paging
