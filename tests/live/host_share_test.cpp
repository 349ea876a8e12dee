// Ranks that share a host: each test's ranks are processes of their own, which do what the test tells them.
#include "executor/host_share.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "executor/clock.h"
#include "executor/copy_lane.h"
#include "executor/live/live_runtime.h"
#include "policies/registry.h"
#include "tests/replay_log.h"

namespace tencache {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Ranks with a disk that all share, and a bus that each has by itself. Links: 0 reads the disk, 1 writes it, 2 is slow
// and reads it, 3 and 4 copy over the bus.
MachineSpec host_of(std::size_t ranks) {
  MachineSpec host;
  host.tiers = {{.name = "gpu", .kind = TierKind::gpu, .capacity = GiB, .directories = {}},
                {.name = "cpu", .kind = TierKind::cpu, .capacity = 8 * MiB, .directories = {}},
                {.name = "nvme", .kind = TierKind::nvme, .capacity = GiB, .directories = {}}};
  host.resources = {{"disk", 1'000'000'000, 7}, {"bus", 5'000'000'000, none}};
  host.links = {{.name = "read", .from = 2, .to = 1, .bandwidth = 800'000'000, .uses = {0}},
                {.name = "write", .from = 1, .to = 2, .bandwidth = 600'000'000, .uses = {0}},
                {.name = "slow", .from = 2, .to = 0, .bandwidth = 200'000'000, .uses = {0}},
                {.name = "h2d", .from = 1, .to = 0, .bandwidth = 3'000'000'000, .uses = {1}},
                {.name = "d2h", .from = 0, .to = 1, .bandwidth = 3'000'000'000, .uses = {1}}};
  host.staging = {.tier = 1, .count = 4, .bytes = MiB};
  host.other_ranks.resize(ranks - 1, host);
  return host;
}

class Rank {
 public:
  explicit Rank(std::string run, std::size_t rank, std::size_t ranks = 2, Bytes memory = 8 * MiB)
      : Rank(std::move(run), rank, host_of(ranks), memory) {}
  Rank(std::string run, std::size_t rank, const MachineSpec& host, Bytes memory) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    process_ = ::fork();
    if (process_ == 0) {
      ::close(in[1]);
      ::close(out[0]);
      serve(::fdopen(in[0], "r"), ::fdopen(out[1], "w"), run, rank, host, memory);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
  }
  ~Rank() {
    kill();
    ::fclose(to_);
    ::fclose(from_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  std::string operator()(const std::string& order) {
    std::fputs((order + "\n").c_str(), to_);
    std::fflush(to_);
    char line[1024] = "no answer\n";
    const char* const read = std::fgets(line, sizeof line, from_);
    const std::string answer = read == nullptr ? "no answer\n" : read;
    return answer.substr(0, answer.size() - 1);
  }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  [[noreturn]] static void serve(FILE* in, FILE* out, const std::string& run, std::size_t rank, const MachineSpec& host,
                                 Bytes memory) {
    std::shared_ptr<HostShare> share;
    std::vector<std::unique_ptr<HostShare::Copying>> copies(4);
    char line[256];
    while (std::fgets(line, sizeof line, in) != nullptr) {
      std::istringstream words(line);
      std::string order;
      Bytes number = 0;
      words >> order >> number;
      const auto link = static_cast<LinkId>(number);
      std::string answer = "ok";
      try {
        if (order == "join") share = std::make_shared<HostShare>(run, rank, host, memory);
        if (order == "leave") share.reset();
        if (order == "take") answer = share->take_more() ? "yes" : "no";
        if (order == "give-back-to") share->give_back_to(number);
        if (order == "enough") share->has_enough();
        if (order == "wanted") answer = share->wanted() ? "yes" : "no";
        if (order == "held") answer = std::to_string(share->held());
        if (order == "begin") copies[link] = std::make_unique<HostShare::Copying>(&*share, link);
        if (order == "end") copies[link].reset();
        if (order == "rate") answer = std::to_string(share->rate(link));
        if (order == "program") answer = run_program(share, host, number);
        if (order == "copy") answer = std::to_string(due_after(*share, host, number));
      } catch (const Error& error) {
        answer = error.what();
      }
      std::fputs((answer + "\n").c_str(), out);
      std::fflush(out);
    }
    ::_exit(0);
  }
  // How long a paced copy over link 0 should take. It began so long ago that nobody has to wait.
  static Nanoseconds due_after(HostShare& share, const MachineSpec& host, Bytes bytes) {
    CopyLane lane(host.links[0], {true, &share, 0}, nullptr);
    std::vector<std::byte> from(bytes), to(bytes);
    CopyWork work;
    work.from = from.data();
    work.to = to.data();
    work.bytes = bytes;
    const Nanoseconds start_ns = clock_ns() - 3600 * second_ns;
    if (!lane.run(work, start_ns, std::atomic<bool>(false))) std::abort();
    return lane.due_ns() - start_ns;
  }

  // A step that writes so many tensors of 1 MiB, for two of which the GPU has room, and one that reads them. Returns
  // how much of CPU memory and of the file was in use at most, in MiB, and what was wrong.
  static std::string run_program(std::shared_ptr<HostShare> share, const MachineSpec& host, std::size_t count) {
    const MadePolicy policy = make_policy("lru", {});
    MachineSpec machine = part_of_host(host, 0);
    machine.tiers[0].capacity = 2 * MiB;
    machine.tiers[2].directories = {testing::TempDir()};
    EventLog log;
    LiveOptions options;
    options.machine.pace = false;
    options.machine.share = std::move(share);
    options.engine.log = &log;
    std::string wrong;
    RunResult result;
    {
      LiveRuntime runtime(machine, *policy.policy, std::move(options));
      std::vector<LiveRuntime::Storage> tensors(count);
      for (const bool writes : {true, false}) {
        runtime.iteration_boundary();
        for (std::size_t i = 0; i < count; ++i) {
          if (writes) tensors[i] = runtime.allocate(MiB, false);
          runtime.begin_op("use", std::vector<Use>{{tensors[i].tensor, !writes, writes}});
          const auto value = static_cast<std::byte>(i + 1);
          if (writes) std::fill_n(tensors[i].address, MiB, value);
          if (tensors[i].address[0] != value || tensors[i].address[MiB - 1] != value) wrong += " content";
          runtime.end_op();
        }
      }
      runtime.iteration_boundary();
      result = runtime.result();
      for (const LiveRuntime::Storage& tensor : tensors) runtime.release(tensor.tensor);
    }
    const MadePolicy again = make_policy("lru", {});
    const ReplayedLog replayed = replay_log(log, with_real_pages(machine), *again.policy);
    wrong += replayed.diverged + first_difference(log.decisions, replayed.decisions);
    return std::to_string(result.peak_bytes[1] / MiB) + " " + std::to_string(result.peak_bytes[2] / MiB) + wrong;
  }

  pid_t process_ = 0;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

std::string mib(Bytes count) { return std::to_string(count * MiB); }

// A run's name that nobody else has.
std::string run_of_this_test() {
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  return "host_share_test " + std::string(test->name()) + " " + std::to_string(::getpid());
}

TEST(HostShareTest, ARanksPartIsWhatItHasWhereAllCopyAlike) {
  const MachineSpec part = part_of_host(host_of(4), 2);
  EXPECT_EQ(part.rank_count(), 1u);
  EXPECT_EQ(part.resources[0].bandwidth, 250'000'000u);
  EXPECT_EQ(part.resources[1].bandwidth, 5'000'000'000u);
  EXPECT_EQ(part.links[0].bandwidth, 250'000'000u);
  EXPECT_EQ(part.links[1].bandwidth, 250'000'000u);
  EXPECT_EQ(part.links[2].bandwidth, 200'000'000u) << "a quarter of the disk is more than the link";
  EXPECT_EQ(part.links[3].bandwidth, 3'000'000'000u);
  EXPECT_EQ(part.tiers[1].capacity, 8 * MiB);
}

// Parts of 8 MiB, steps of an eighth of that.
TEST(HostShareTest, WhatOneRankGivesBackAnotherMayTake) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("held"), mib(8));
  EXPECT_EQ(b("wanted"), "no");
  EXPECT_EQ(a("take"), "no");
  EXPECT_EQ(b("wanted"), "yes");
  EXPECT_EQ(a("wanted"), "no") << "its own need is no other's";
  EXPECT_EQ(b("give-back-to " + std::to_string(6 * MiB + MiB / 2)), "ok");
  EXPECT_EQ(a("take"), "yes");
  EXPECT_EQ(a("held"), mib(9));
  EXPECT_EQ(b("wanted"), "no");
  EXPECT_EQ(a("take"), "yes") << "half a step is left";
  EXPECT_EQ(a("held"), std::to_string(9 * MiB + MiB / 2));
  EXPECT_EQ(a("take"), "no");
  EXPECT_EQ(a("enough"), "ok");
  EXPECT_EQ(b("wanted"), "no");
  EXPECT_EQ(b("take"), "no") << "both have 16 MiB together";
}

TEST(HostShareTest, WhoHasNotComeYetKeepsItsPart) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(a("take"), "no");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(b("held"), mib(8));
  EXPECT_EQ(b("leave"), "ok");
  EXPECT_EQ(a("take"), "yes") << "who has gone holds nothing";
}

TEST(HostShareTest, ARankThatWasKilledHoldsNothingAndCopiesNothing) {
  Rank a(run_of_this_test(), 0);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(a("begin 0"), "ok");
  {
    Rank b(run_of_this_test(), 1);
    EXPECT_EQ(b("join"), "ok");
    EXPECT_EQ(b("begin 0"), "ok");
    EXPECT_EQ(a("rate 0"), "500000000");
    EXPECT_EQ(a("take"), "no");
    b.kill();
  }
  EXPECT_EQ(a("rate 0"), "800000000");
  int asked = 1;
  while (asked < 100 && a("take") == "no") ++asked;
  EXPECT_LE(asked, 64);
  for (int step = 1; step < 8; ++step) EXPECT_EQ(a("take"), "yes");
  EXPECT_EQ(a("held"), mib(16));
  EXPECT_EQ(a("take"), "no");
}

// Max-min: of 1000 a slow flow has its 200, and what others are left with is divided.
TEST(HostShareTest, CopiesOfAllRanksShareTheDisk) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("begin 0"), "ok");
  EXPECT_EQ(a("rate 0"), "800000000") << "alone it is bound by its link";
  EXPECT_EQ(b("begin 2"), "ok");
  EXPECT_EQ(a("rate 0"), "800000000");
  EXPECT_EQ(b("rate 2"), "200000000");
  EXPECT_EQ(b("begin 1"), "ok");
  EXPECT_EQ(a("rate 0"), "400000000");
  EXPECT_EQ(b("rate 1"), "400000000");
  EXPECT_EQ(b("rate 2"), "200000000");
  EXPECT_EQ(b("begin 3"), "ok");
  EXPECT_EQ(b("rate 3"), "3000000000") << "nobody shares the bus";
  EXPECT_EQ(b("end 1"), "ok");
  EXPECT_EQ(b("end 2"), "ok");
  EXPECT_EQ(a("rate 0"), "800000000");
}

// Of 14 MiB, all of which leave the GPU in the end, what a rank's part of 8 MiB does not hold goes to the file, unless
// others leave it memory.
TEST(HostShareTest, AProgramHasTheMemoryThatOthersLeave) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("program 14"), "8 6");
  EXPECT_EQ(b("wanted"), "yes");
  EXPECT_EQ(b("give-back-to " + mib(2)), "ok");
  EXPECT_EQ(a("program 14"), "14 0");
  EXPECT_EQ(b("take"), "no");
}

// It uses 4 MiB of its part of 8 MiB: once its steps are known it keeps those, a quarter more, and a step.
TEST(HostShareTest, AProgramGivesBackWhatOthersWant) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("program 4"), "4 0");
  EXPECT_EQ(a("held"), mib(8)) << "nobody wants any";
  EXPECT_EQ(b("take"), "no");
  EXPECT_EQ(a("program 4"), "4 0");
  EXPECT_EQ(a("held"), mib(6));
  EXPECT_EQ(b("take"), "yes");
}

TEST(HostShareTest, APacedCopyIsDueAtTheRateOfEachMoment) {
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("copy 80000000"), "100000000");
  EXPECT_EQ(b("begin 0"), "ok");
  EXPECT_EQ(a("copy 80000000"), "160000000");
  EXPECT_EQ(b("end 0"), "ok");
  EXPECT_EQ(b("begin 3"), "ok");
  EXPECT_EQ(a("copy 80000000"), "100000000");
}

TEST(HostShareTest, TheFileHasNoNameOnceAllHaveCome) {
  const std::string file = HostShare::file_of(run_of_this_test());
  Rank a(run_of_this_test(), 0), b(run_of_this_test(), 1);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(b("join"), "ok");
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(a("leave"), "ok");
  EXPECT_EQ(b("leave"), "ok");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(HostShareTest, TheLastThatGoesTakesTheNameWithIt) {
  const std::string file = HostShare::file_of(run_of_this_test());
  Rank a(run_of_this_test(), 0, 3), b(run_of_this_test(), 1, 3);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_EQ(b("join"), "ok");
  EXPECT_EQ(a("leave"), "ok");
  EXPECT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(b("leave"), "ok");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(HostShareTest, WhatAKilledRunLeavesTheNextOneRemoves) {
  const std::string file = HostShare::file_of(run_of_this_test());
  for (const std::string& next : {run_of_this_test(), run_of_this_test() + " another"}) {
    Rank a(run_of_this_test(), 0);
    EXPECT_EQ(a("join"), "ok");
    a.kill();
    Rank b(next, 0), c(next, 1);
    EXPECT_EQ(b("join"), "ok");
    EXPECT_EQ(b("take"), "no") << "the dead rank's entry counts no more, and the other one has not come";
    EXPECT_EQ(c("join"), "ok");
    EXPECT_EQ(c("held"), mib(8));
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST(HostShareTest, RanksThatDoNotGoTogetherAreRefused) {
  const std::string run = run_of_this_test();
  Rank a(run, 0);
  EXPECT_EQ(a("join"), "ok");
  EXPECT_THAT(Rank(run, 0)("join"),
              AllOf(HasSubstr("rank 0 of '" + run + "' runs already, as process "), HasSubstr("--ranks-share")));
  EXPECT_THAT(Rank(run, 1, 3)("join"),
              AllOf(HasSubstr("is one of 3 on this host, other ranks are of 2"), HasSubstr("LOCAL_WORLD_SIZE")));
  EXPECT_THAT(Rank(run, 1, 2, 4 * MiB)("join"),
              AllOf(HasSubstr("has 4.00 MiB of CPU memory, other ranks have 8.00 MiB"), HasSubstr("--cpu-memory")));
  MachineSpec other = host_of(2);
  other.other_ranks[0].resources[0].bandwidth = other.resources[0].bandwidth = 1;
  EXPECT_THAT(Rank(run, 1, other, 8 * MiB)("join"), HasSubstr("other links than other ranks"));
  EXPECT_EQ(Rank(run, 1)("join"), "ok") << "who was refused is as if it had not come";
}

TEST(HostShareTest, AnotherVersionAndAnotherUserAreRefused) {
  const std::string run = run_of_this_test(), file = HostShare::file_of(run);
  {
    Rank a(run, 0);
    EXPECT_EQ(a("join"), "ok");
    FILE* const written = std::fopen(file.c_str(), "r+");
    ASSERT_NE(written, nullptr);
    std::fputs("another", written);
    std::fclose(written);
    EXPECT_THAT(Rank(run, 1)("join"), AllOf(HasSubstr(file), HasSubstr("another version of TenCache")));
  }
  Rank b(run, 0);
  EXPECT_EQ(b("join"), "ok") << "nobody lives there any more";
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  ASSERT_EQ(::chown(file.c_str(), 65534, 65534), 0);
  EXPECT_THAT(Rank(run, 1)("join"), AllOf(HasSubstr(file), HasSubstr("another user's"), HasSubstr("--ranks-share")));
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tencache
