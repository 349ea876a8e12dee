#include "tests/live/machine_case.h"

#include <vector>

#include "core/error.h"
#include "executor/host_machine.h"
#include "executor/replay_bodies.h"

namespace tencache {
namespace {

constexpr LinkId h2d = 0, d2h = 1;
constexpr TierId gpu = 0, cpu = 1;
constexpr TensorId tensor_count = 3;

MachineSpec two_tiers() {
  MachineSpec spec;
  spec.name = "test";
  spec.tiers = {{"gpu", TierKind::gpu, 16 * page_bytes, page_bytes, {}},
                {"cpu", TierKind::cpu, 16 * page_bytes, page_bytes, {}}};
  spec.links = {{"h2d", cpu, gpu, unlimited, 0, {}}, {"d2h", gpu, cpu, unlimited, 0, {}}};
  return spec;
}

// An op per tensor, which reads and writes it.
Trace ops(Random& random) {
  Trace trace;
  for (TensorId i = 0; i < tensor_count; ++i) {
    const Bytes bytes = page_bytes * random.between(1, 4) - random.below(100);
    const TensorId tensor = trace.add_tensor(std::string("t").append(std::to_string(i)), bytes, Role::parameter, true);
    Op op;
    op.name = trace.names.intern(std::string("op").append(std::to_string(i)));
    trace.add_op(op, std::vector<TensorId>{tensor}, std::vector<TensorId>{tensor});
  }
  return trace;
}

CopyCommand copy(LinkId link, TensorId tensor, Bytes bytes) {
  CopyCommand command;
  command.link = link;
  command.tensor = command.chunk = tensor;
  command.bytes = bytes;
  command.from = {link == h2d ? cpu : gpu, 0};
  command.to = {link == h2d ? gpu : cpu, 0};
  return command;
}

void finish_all(HostMachine& machine) {
  Completion completion;
  while (machine.wait(completion)) {
    if (completion.status == CompletionStatus::failed) throw Error(machine.last_error());
  }
}

}  // namespace

std::string use_machine(const std::shared_ptr<Accelerator>& accelerator, Random& random,
                        const std::function<void()>& pause) {
  const Trace trace = ops(random);
  const std::unique_ptr<ReplayKernels> kernels = accelerator->replay_kernels();
  ReplayBodies bodies(trace, {.check_everything = true, .write_everything = true, .duration_scale = 0}, kernels.get());
  HostMachineOptions options;
  options.pace = false;
  options.accelerator = accelerator;
  HostMachine machine(two_tiers(), bodies, options);
  for (TensorId i = 0; i < tensor_count; ++i) {
    const Bytes bytes = trace.tensors[i].bytes;
    machine.tensor_created(i, bytes);
    for (const TierId tier : {gpu, cpu}) machine.map(i, i, 0, bytes, {tier, 0}, MappedFor::op);
    machine.initialise(i, i, 0, bytes, {gpu, 0});
  }
  for (std::uint64_t steps = random.between(3, 30); steps > 0; --steps) {
    const auto tensor = static_cast<TensorId>(random.below(tensor_count));
    const Fence fence = machine.submit(copy(d2h, tensor, trace.tensors[tensor].bytes), 0);
    for (std::uint64_t pauses = random.below(8); pauses > 0; --pauses) pause();
    machine.cancel(fence);
    const std::vector<Use> uses{{tensor, true, true}};
    machine.execute({.lane = 0, .op = tensor, .idle = false, .duration_ns = 0, .uses = uses}, 1);
    finish_all(machine);
    if (!random.one_in(3)) continue;
    machine.submit(copy(d2h, tensor, trace.tensors[tensor].bytes), 0);
    finish_all(machine);
    machine.submit(copy(h2d, tensor, trace.tensors[tensor].bytes), 0);
    finish_all(machine);
  }
  return bodies.counts().first_corruption;
}

}  // namespace tencache
