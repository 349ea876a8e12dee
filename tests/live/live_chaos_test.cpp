// Chaos: small programs over much of LibTorch run with a policy that evicts everything after every op, and with one
// that acts at random on no more memory than the largest op needs. What is evicted has no pages, so an op that touches
// memory which nobody announced crashes; and every result is compared bit by bit.
#include <gtest/gtest.h>

#include "tests/live/live_chaos_programs.h"
#include "tests/property/random_case.h"

namespace tencache::live_test {
namespace {

class Chaos : public ::testing::TestWithParam<ChaosProgram> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
};

void expect_same(const std::vector<std::string>& plain, const LiveRun& live, const char* what) {
  ASSERT_EQ(plain.size(), live.results.size()) << what;
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i] == live.results[i]) << what << ", result " << i;
}

TEST_P(Chaos, ResultsAreThoseOfThePlainRun) {
  const LiveProgram program = GetParam().program;
  const std::vector<std::string> plain = run_plain(program);
  ASSERT_FALSE(plain.empty());

  // The audit sees each op with its inputs before and after: LibTorch's ops are all announced, or in our lists.
  const auto on_demand = make_policy("on-demand").policy;
  set_audit(true);
  const LiveRun audited = run_live(program, machine_of(64 * MiB), *on_demand);
  set_audit(false);
  for (const AuditFinding& finding : audited.findings) ADD_FAILURE() << finding.op << " writes " << finding.argument;
  expect_same(plain, audited, "audited");

  ChaosPolicy chaos;
  LiveOptions options;
  options.settle = true;  // what is to be evicted is gone when the next op begins
  const LiveRun evicted = run_live(program, machine_of(64 * MiB), chaos, options);
  expect_same(plain, evicted, "everything evicted");
  EXPECT_GT(evicted.counters.links[0].bytes + evicted.counters.links[1].bytes, 0u) << "nothing was evicted";

  // The same, and what an op uses lies elsewhere each time: what still has an old address crashes.
  std::uint64_t moves = 0;
  options.relocates = [&moves](Bytes) { return ++moves != 0; };
  expect_same(plain, run_live(program, machine_of(64 * MiB), chaos, options), "everything evicted and moved");
  EXPECT_GT(moves, 0u);

  // No byte more than the largest op needs, and a policy that asks for anything, which is mostly refused.
  for (std::uint64_t seed = 0; seed < case_count(1); ++seed) {
    SCOPED_TRACE(seed);
    const std::unique_ptr<Policy> random = random_policy(plain.size() + seed, 1);
    const LiveRun least = run_live(program, machine_of(audited.largest_op_bytes), *random);
    expect_same(plain, least, "random actions on the least memory");
    EXPECT_GT(least.counters.refusals, 0u);
  }
}

const auto name_of = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Networks, Chaos, ::testing::ValuesIn(chaos_networks()), name_of);
INSTANTIATE_TEST_SUITE_P(Ops, Chaos, ::testing::ValuesIn(chaos_ops()), name_of);

}  // namespace
}  // namespace tencache::live_test
