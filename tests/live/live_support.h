// What the tests of the live runtime share: machines, policies that are hard on programs, and running one program both
// plainly and paged.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/policy.h"
#include "executor/live/live_runtime.h"
#include "executor/torch/interception.h"
#include "policies/registry.h"

namespace tencache::live_test {

// A GPU tier of that size before CPU memory (and, with a directory, before a file instead). Links as fast as they go.
inline MachineSpec machine_of(Bytes gpu_bytes, const std::string& directory = "") {
  MachineSpec machine;
  machine.name = "test";
  machine.tiers.push_back(
      {.name = "gpu", .kind = TierKind::gpu, .capacity = gpu_bytes, .granularity = 4096, .directories = {}});
  machine.tiers.push_back(
      {.name = "cpu", .kind = TierKind::cpu, .capacity = 512 * MiB, .granularity = 4096, .directories = {}});
  const BytesPerSecond fast = 100'000'000'000;
  machine.links.push_back({.name = "h2d", .from = 1, .to = 0, .bandwidth = fast, .latency_ns = 0, .uses = {}});
  machine.links.push_back({.name = "d2h", .from = 0, .to = 1, .bandwidth = fast, .latency_ns = 0, .uses = {}});
  if (!directory.empty()) {
    machine.tiers[1].capacity = 4096;  // so that everything goes to the file
    machine.tiers.push_back({.name = "file",
                             .kind = TierKind::nvme,
                             .capacity = 512 * MiB,
                             .granularity = 4096,
                             .directories = {directory}});
    machine.links.push_back({.name = "read", .from = 2, .to = 0, .bandwidth = fast, .latency_ns = 0, .uses = {}});
    machine.links.push_back({.name = "write", .from = 0, .to = 2, .bandwidth = fast, .latency_ns = 0, .uses = {}});
  }
  machine.initial_tier = 1;
  return machine;
}

// Evicts everything that is not pinned, after every op.
class ChaosPolicy final : public Policy {
 public:
  Layout layout(const MachineSpec& machine, const Program* program) const override {
    Layout layout = Policy::layout(machine, program);
    layout.chunk_bytes = 16 * KiB;  // so that residency is partial, too
    return layout;
  }
  void on(const Event& event, const View& view, Actions& actions) override {
    if (event.kind != EventKind::op_done && event.kind != EventKind::op_issued) return;
    for (ChunkId chunk = view.memory.coldest(0); chunk != none; chunk = view.memory.warmer(chunk, 0)) {
      if (!view.memory.evictable(chunk, 0)) continue;
      const TensorId tensor = view.memory.tensor_of(chunk);
      actions.push({.verb = Verb::evict, .tensor = tensor, .chunk = chunk - view.memory.first_chunk(tensor)});
    }
  }
};

// One run of a program; it calls `step` before each of its steps.
class Session {
 public:
  explicit Session(LiveRuntime* runtime) : runtime_(runtime) {}
  void step() {
    if (runtime_ != nullptr) runtime_->iteration_boundary();
  }
  // The last step is over; what is kept from here on is no step.
  void end_steps() {
    if (runtime_ != nullptr) deviations = runtime_->figures().deviations;
  }
  LiveRuntime* runtime() const { return runtime_; }
  // A result, to be compared bit by bit.
  void keep(const torch::Tensor& tensor) {
    const torch::Tensor dense = tensor.detach().is_sparse() ? tensor.detach().to_dense() : tensor.detach();
    const torch::Tensor resolved = dense.is_complex() ? torch::view_as_real(dense.resolve_conj()) : dense;
    const torch::Tensor plain = runtime_ != nullptr ? bring_back(*runtime_, resolved) : resolved.contiguous();
    std::string bytes(plain.nbytes(), '\0');
    if (!bytes.empty()) std::memcpy(bytes.data(), plain.data_ptr(), bytes.size());
    results.push_back(std::move(bytes));
  }
  std::vector<std::string> results;
  std::uint64_t deviations = 0;

 private:
  LiveRuntime* runtime_;
};
using LiveProgram = std::function<void(Session&)>;

struct LiveRun {
  std::vector<std::string> results;
  Bytes peak_live_bytes = 0, largest_op_bytes = 0;
  std::string largest_op, first_deviation;
  std::uint64_t deviations = 0;
  Counters counters;
  std::vector<AuditFinding> findings;
};

inline std::vector<std::string> run_plain(const LiveProgram& program) {
  torch::manual_seed(1);
  Session session(nullptr);
  program(session);
  return session.results;
}

inline LiveRun run_live(const LiveProgram& program, const MachineSpec& machine, Policy& policy,
                        LiveOptions options = {}) {
  LiveRun run;
  options.machine.pace = false;
  options.machine.raw_access = true;  // as under Python programs
  LiveRuntime runtime(machine, policy, options);
  const ThreadGuard guard(runtime);
  torch::manual_seed(1);
  {
    Session session(&runtime);
    program(session);
    run.results = session.results;
    run.deviations = session.deviations;
  }
  const LiveFigures figures = runtime.figures();
  run.peak_live_bytes = figures.peak_live_bytes;
  run.largest_op_bytes = figures.largest_op_bytes;
  run.largest_op = figures.largest_op;
  run.first_deviation = figures.first_deviation;
  run.counters = figures.counters;
  run.findings = audit_findings();
  return run;
}

}  // namespace tencache::live_test
