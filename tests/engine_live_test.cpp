// The engine as a live program drives it, on a simulated machine: what is left after it was told that memory is out.
#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "tests/small_cases.h"

namespace tencache {
namespace {

// The next copies fail.
class FailingCopies final : public OtherMachine {
 public:
  using OtherMachine::OtherMachine;
  bool wait(Completion& completion) override {
    const bool any = OtherMachine::wait(completion);
    if (any && completion.status == CompletionStatus::done && failures > 0 && failures-- > 0) {
      completion.status = CompletionStatus::failed;
    }
    return any;
  }
  int failures = 0;
};

class LiveProgram {
 public:
  explicit LiveProgram(const MachineSpec& spec)
      : spec_(spec),
        policy_(whole_tensors()),
        simulated_(spec_),
        machine(simulated_),
        engine(spec_, machine, policy_, nullptr) {}

  TensorId create(Bytes bytes) { return engine.create(bytes, Role::activation, false, machine.now()); }
  void begin(const std::vector<Use>& uses) { engine.begin(none, uses, machine.now()); }
  // Throws OutOfMemory.
  void wait() {
    while (!engine.ready()) step();
  }
  void run(const std::vector<Use>& uses) {
    begin(uses);
    wait();
    engine.end(machine.now());
  }
  TensorId make(Bytes bytes) {
    const TensorId tensor = create(bytes);
    run({{tensor, false, true}});
    return tensor;
  }
  void step() {
    Completion completion;
    if (machine.wait(completion)) {
      engine.handle(completion);
    } else {
      engine.check_progress();
    }
  }

 private:
  MachineSpec spec_;
  ScriptedPolicy policy_;
  SimMachine simulated_;

 public:
  FailingCopies machine;
  Engine engine;
};

MachineSpec small(Bytes gpu, Bytes cpu) {
  MachineSpec spec = small_machine(gpu);
  spec.tiers[1].capacity = cpu;
  return spec;
}

// b := a, for which the GPU has no room: a's old content lies on the CPU, and what it is to become already has its room
// on the GPU. With that it must not be given up to let x leave, since the program goes on without the op.
TEST(EngineLiveTest, WhatAnAbandonedOpWouldHaveOverwrittenIsStillThere) {
  LiveProgram program(small(160, 200));
  const TensorId a = program.make(80), b = program.make(120), x = program.make(80);
  program.begin({{b, true, false}, {a, false, true}});
  EXPECT_THROW(program.wait(), OutOfMemory);
  program.engine.abandon(program.machine.now());
  for (const TensorId tensor : {a, x}) EXPECT_NO_THROW(program.run({{tensor, true, false}})) << tensor;
}

// A tensor that is new has no failures behind it, though it has the number of one that had.
TEST(EngineLiveTest, FailuresAreForgottenWithTheirTensor) {
  LiveProgram program(small(100, 200));
  const TensorId a = program.make(100), b = program.create(100);
  program.machine.failures = 2;
  program.begin({{b, false, true}});
  while (program.machine.failures > 0) program.step();
  program.engine.abandon(program.machine.now());
  program.engine.destroy(a, program.machine.now());
  program.run({{b, false, true}});
  ASSERT_EQ(program.make(100), a) << "the number is to be used again";
  program.machine.failures = 1;
  EXPECT_NO_THROW(program.run({{b, true, false}}));
}

}  // namespace
}  // namespace tencache
