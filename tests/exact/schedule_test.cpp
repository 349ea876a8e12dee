#include "core/schedule.h"

#include <gtest/gtest.h>

namespace tencache {
namespace {

TEST(ScheduleTest, UsesAreEachTensorOnceAndDistancesWrapAround) {
  Trace trace;
  const TensorId a = trace.add_tensor("a", 1, Role::parameter, true);
  const TensorId b = trace.add_tensor("b", 1, Role::activation, false);
  const TensorId unused = trace.add_tensor("c", 1, Role::parameter, true);
  trace.add_op({}, std::vector<TensorId>{a}, std::vector<TensorId>{b, a});
  trace.add_op({}, std::vector<TensorId>{}, std::vector<TensorId>{});
  trace.add_op({}, std::vector<TensorId>{b, b}, std::vector<TensorId>{});
  const Schedule schedule(trace);
  ASSERT_EQ(schedule.uses(0).size(), 2U);
  EXPECT_EQ(schedule.uses(0)[0].tensor, a);
  EXPECT_TRUE(schedule.uses(0)[0].read && schedule.uses(0)[0].write);
  EXPECT_TRUE(!schedule.uses(0)[1].read && schedule.uses(0)[1].write);
  EXPECT_EQ(schedule.uses(2).size(), 1U);
  EXPECT_EQ(schedule.distance_to_next_use(b, 0), 2U);
  EXPECT_EQ(schedule.distance_to_next_use(b, 2), 1U);
  EXPECT_EQ(schedule.distance_to_next_use(a, 0), 3U);
  EXPECT_EQ(schedule.distance_to_next_use(unused, 0), none);
}

}  // namespace
}  // namespace tencache
