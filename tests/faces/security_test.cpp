// Names that others laid, and what others may open: swap files, outputs, temporary files. Where another user is needed,
// root plays one; without root those parts are skipped.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <csignal>
#include <functional>

#include "core/error.h"
#include "executor/swap_file.h"
#include "studies/sweep/sweep_results.h"
#include "tests/cli_fixture.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uid_t another = 54321;

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Files with all permissions that are asked for.
class NoUmask {
 public:
  NoUmask() : before_(::umask(0)) {}
  ~NoUmask() { ::umask(before_); }
  NoUmask(const NoUmask&) = delete;
  NoUmask& operator=(const NoUmask&) = delete;

 private:
  mode_t before_;
};

class Security : public CommandLine {
 protected:
  void SetUp() override {
    CommandLine::SetUp();
    write_file(path("precious"), "precious");
    fs::create_directory(path("swap"));
    fs::create_directory(path("everyones"));
    ::chmod(path("everyones").c_str(), 01777);
  }
  Tier tier() const {
    Tier tier;
    tier.name = "nvme";
    tier.kind = TierKind::nvme;
    tier.capacity = MiB;
    tier.granularity = 4096;
    tier.directories = {path("swap")};
    return tier;
  }
  void expect_precious() const { EXPECT_EQ(content(path("precious")), "precious"); }
  // As another user, who may enter the folder; its exit code.
  int as_another(const std::function<int()>& work) const {
    ::chmod(folder_.c_str(), 0777);
    ::chmod(path(".").c_str(), 0777);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::setresuid(another, another, another) == 0 ? work() : 99);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
  }
};

// ---- Swap files -----------------------------------------------------------------------------------------------------

TEST_F(Security, SwapFilesAreTheirOwnersWhateverTheUmask) {
  const NoUmask no_umask;
  for (const bool nameless : {true, false}) {
    const SwapFiles files(tier(), {.nameless = nameless});
    struct stat status {};
    ASSERT_EQ(::fstat(files.descriptor(0), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0600u);
    EXPECT_EQ(status.st_nlink, 0u) << "nobody can open it by a name";
    EXPECT_TRUE(fs::is_empty(path("swap")));
  }
}

TEST_F(Security, ALinkOfASwapFilesNameIsNotFollowed) {
  const std::string name = path("swap/tencache-swap-" + std::to_string(::getpid()) + "-");
  fs::create_symlink(path("precious"), name + "0");
  fs::create_symlink(path("made"), name + "1");
  fs::create_hard_link(path("precious"), name + "2");
  {
    SwapFiles files(tier(), {.direct = false, .nameless = false});
    FileLane lane(files);
    files.take(0, 0, 4096);
    alignas(4096) std::byte block[4096]{};
    EXPECT_TRUE(lane.write(files.blocks(0, 0, 4096), block, [](Bytes) { return true; }));
  }
  expect_precious();
  EXPECT_FALSE(fs::exists(path("made")));
  EXPECT_EQ(std::distance(fs::directory_iterator(path("swap")), fs::directory_iterator()), 3);
}

TEST_F(Security, ALinkInPlaceOfTheFolderIsNotFollowed) {
  fs::create_directory(path("elsewhere"));
  fs::remove(path("swap"));
  fs::create_symlink(path("elsewhere"), path("swap"));
  for (const bool nameless : {true, false}) {
    EXPECT_THAT(refusal([&] { SwapFiles files(tier(), {.nameless = nameless}); }),
                HasSubstr("cannot make a swap file"));
  }
}

// ---- Outputs and temporary files ------------------------------------------------------------------------------------

TEST_F(Security, ALinkOfATemporaryNameIsNotFollowed) {
  const auto lay_and_write = [&](const std::string& output, int names) {  // counted on from one to the next
    for (int i = 0; i < names; ++i) {
      fs::create_symlink(path("precious"), output + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(i));
    }
    write_file(output, "old");  // where nothing lies yet, no second name is needed
    write_file(output, "new");
    return content(output) == "new" && !fs::is_symlink(output) && content(path("precious")) == "precious";
  };
  EXPECT_TRUE(lay_and_write(path("output"), 200));
  // Without /proc a file without a name cannot be given one: the way of file systems that have no such files.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) {
      ::_exit(77);
    }
    ::_exit(lay_and_write(path("fallback"), 400) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no namespace of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Security, OutputsFollowLinksOfTheirUserOnly) {
  const std::string own = path("everyones/own");
  fs::create_symlink(path("output"), own);
  write_file(own, "own");
  EXPECT_EQ(content(path("output")), "own");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can lay a link as another";

  const std::string laid = path("everyones/laid");
  fs::create_symlink(path("precious"), laid);
  ASSERT_EQ(::lchown(laid.c_str(), another, another), 0);
  fs::create_symlink(laid, path("to-laid"));
  const std::string pipe = path("everyones/pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  ASSERT_EQ(::chown(pipe.c_str(), another, another), 0);
  const int reader = ::open(pipe.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // who writes there need not wait
  for (const std::string& output : {laid, path("to-laid"), pipe}) {
    EXPECT_THAT(refusal([&] { write_file(output, "new"); }), HasSubstr("was laid by another user")) << output;
    EXPECT_THAT(refusal([&] { const SweepStore store(output); }), HasSubstr("was laid by another user")) << output;
    expect_bad_usage({"import", "trace", path("small.trace.jsonl"), "-o", output}, HasSubstr("laid by another user"));
  }
  ::close(reader);
  expect_precious();

  // In a folder that not everyone may write to, its owner knows what is there.
  fs::create_symlink(path("output"), path("known"));
  ASSERT_EQ(::lchown(path("known").c_str(), another, another), 0);
  write_file(path("known"), "known");
  EXPECT_EQ(content(path("output")), "known");
}

TEST_F(Security, TemporaryFilesLieInAFolderOfTheirOwner) {
  const NoUmask no_umask;
  std::string first_path;
  {
    TemporaryFile first(".json"), second(".json");
    first_path = first.path();
    EXPECT_NE(first.path(), second.path());
    write_file(first.path(), "x");
    struct stat status {};
    ASSERT_EQ(::stat(fs::path(first.path()).parent_path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777u, 0700u);
    EXPECT_EQ(status.st_uid, ::geteuid());
  }
  EXPECT_FALSE(fs::exists(fs::path(first_path).parent_path()));
}

TEST_F(Security, TemporaryFilesGoWithTheProgram) {
  fs::create_directory(path("tmp"));
  for (const int signal : {0, SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("TMPDIR", path("tmp").c_str(), 1);
      TemporaryFile unused(".json");
      if (!fs::is_empty(path("tmp"))) ::_exit(1);
      TemporaryFile used(".json"), earlier(".json");
      {
        TemporaryFile gone(".json");
        write_file(gone.path(), "x");
      }
      earlier.path();
      write_file(used.path(), "x");
      if (signal != 0) ::kill(::getpid(), signal);
      ::_exit(std::distance(fs::directory_iterator(path("tmp")), fs::directory_iterator()) == 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (signal == 0) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      for (const auto& left : fs::directory_iterator(path("tmp"))) fs::remove_all(left);
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << signal;
      EXPECT_TRUE(fs::is_empty(path("tmp"))) << signal;
    }
  }
}

}  // namespace
}  // namespace tencache
