// One trace of several recordings of the same step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "traces/transform/edits.h"

namespace tencache {
namespace {

Trace two_ops(Nanoseconds first_ns, Nanoseconds second_ns, const char* second_name = "second") {
  Trace trace;
  const TensorId tensor = trace.add_tensor("x", 8, Role::parameter, true);
  Op op;
  op.name = trace.names.intern("first");
  op.duration_ns = first_ns;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  op.name = trace.names.intern(second_name);
  op.duration_ns = second_ns;
  op.gap_before_ns = 2 * second_ns;
  trace.add_op(op, std::vector<TensorId>{tensor}, {});
  return trace;
}

// The ops' medians are 20 and 7, the steps take 15, 37 and 1020: both ops are scaled by 37 / 27.
TEST(MedianTrace, TakesEachOpsMedianAndTheMedianStep) {
  const Trace median = median_trace({two_ops(10, 5), two_ops(30, 7), two_ops(20, 1000)});
  EXPECT_EQ(median.ops[0].duration_ns, 27);
  EXPECT_EQ(median.ops[1].duration_ns, 9);
  EXPECT_EQ(median.ops[1].gap_before_ns, 14);
}

TEST(MedianTrace, RefusesStepsThatDiffer) {
  try {
    median_trace({two_ops(1, 1), two_ops(1, 1, "other")});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("op 1 is 'other', was 'second'"));
  }
}

}  // namespace
}  // namespace tencache
