// The dashboard's program: pictures without a display, a window under Xvfb, a run that is watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "answers/timeline/chrome_trace.h"
#include "gui/shell/app.h"
#include "tests/faces/gui_dashboard.h"
#include "tests/faces/gui_plot_cases.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

using ::testing::HasSubstr;

class Programs : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tencache-gui-view-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    setenv("XDG_STATE_HOME", folder_.c_str(), 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  int run(const std::string& arguments, const std::string& before = "") const {
    const std::string command = before + std::string(TENCACHE_BINARY_DIR) + "/cli/tencache gui " + arguments + " >" +
                                path("out") + " 2>" + path("err");
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string errors() const { return read_file(path("err")); }

  std::filesystem::path folder_;
};

TEST_F(Programs, ScreenshotsNeedNoDisplay) {
  if (make_screen(320, 320) == nullptr) GTEST_SKIP() << "no EGL to draw with";
  const Recording recording = simulate_recording("predicted: on-demand");
  write_chrome_trace(path("t.json"), {{recording.title, &recording.timeline, &recording.machine, &recording.trace}});
  ASSERT_EQ(run(path("t.json") + " --screenshot " + path("a.png") + " --size 800x600", "env -u DISPLAY "), 0)
      << errors();
  const std::string png = read_file(path("a.png"));
  ASSERT_GT(png.size(), 5000u);
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(16, 8), std::string("\0\0\x03\x20\0\0\x02\x58", 8));  // 800 × 600
  EXPECT_EQ(run("/nowhere.json --screenshot " + path("b.png")), 2);
  EXPECT_THAT(errors(), HasSubstr("/nowhere.json"));
  EXPECT_EQ(run(path("t.json") + " /nowhere.json --screenshot " + path("b.png")), 2);
  EXPECT_THAT(errors(), HasSubstr("/nowhere.json"));  // beside one that opens
  EXPECT_EQ(run("--view nonsense --screenshot " + path("b.png")), 2);
  EXPECT_THAT(errors(),
              HasSubstr("valid names are timeline, memory, what-if, comparison, sensitivity, cost, browser, table"));
  EXPECT_EQ(run("--size 10x10 --screenshot " + path("b.png")), 2);
  EXPECT_THAT(errors(), HasSubstr("WIDTHxHEIGHT"));
  EXPECT_EQ(run("--size 16384x800 --screenshot " + path("b.png")), 2);
  EXPECT_THAT(errors(), HasSubstr("each from 320 to 8192"));
  EXPECT_EQ(run("--screenshot " + path("b.jpg")), 2);
  EXPECT_THAT(errors(), HasSubstr("is a PNG file; let its name end in .png"));
}

TEST_F(Programs, AScreenshotIsNotWrittenOverWhatItShows) {
  write_file(path("r.png"), "{}");
  EXPECT_EQ(run(path("r.png") + " --screenshot " + path("./r.png")), 2);
  EXPECT_THAT(errors(), HasSubstr("is another file of this command"));
  EXPECT_EQ(read_file(path("r.png")), "{}");
}

TEST_F(Programs, ARunIsFollowedWhileItGoesOn) {
  if (make_screen(320, 320) == nullptr) GTEST_SKIP() << "no EGL to draw with";
  if (std::string(TENCACHE_WITH_EXECUTOR_TEXT) != "1") GTEST_SKIP() << "no executor in this build";
  const std::string run_command =
      std::string(TENCACHE_BINARY_DIR) + "/cli/tencache run replay " + TENCACHE_SOURCE_DIR +
      "/traces/samples/gpt-small.trace.jsonl.zst -m small-host -p on-demand "
      "--scale-bytes 1/16 --scale-time 1/8 --iterations 40 --verify stamps --predict --timeline " +
      path("run.json") + " >" + path("run.out") + " 2>&1 &";
  ASSERT_EQ(std::system(run_command.c_str()), 0);
  for (int i = 0; i < 400 && !std::filesystem::exists(path("run.json")); ++i) usleep(10'000);
  ASSERT_TRUE(std::filesystem::exists(path("run.json"))) << read_file(path("run.out"));
  EXPECT_EQ(run(path("run.json") + " --screenshot " + path("live.png") + " --size 800x600"), 0) << errors();
  EXPECT_GT(read_file(path("live.png")).size(), 5000u);
  // In this process: the prediction is there whole, and measured iterations are added while one looks.
  const std::unique_ptr<Screen> screen = make_screen();
  Session& session = screen->session();
  session.open(path("run.json"));
  std::size_t fewest = 0, most = 0;
  for (int i = 0; i < 3000 && session.watching(); ++i) {
    screen->frames(1);
    const RunPointer measured = session.shown().of(Origin::measured);
    if (measured == nullptr) continue;
    if (fewest == 0) fewest = measured->iteration_count();
    most = measured->iteration_count();
    EXPECT_EQ(session.shown().aligned() + 1, session.shown().iterations());
    usleep(1000);
  }
  ASSERT_NE(session.shown().of(Origin::predicted), nullptr) << session.messages().last();
  EXPECT_EQ(session.shown().of(Origin::predicted)->iteration_count(), 40u);
  EXPECT_EQ(most, 40u) << session.messages().last();
  EXPECT_LT(fewest, most);  // it was there before its end
  const Picture picture = screen->picture();
  EXPECT_GE(screen->find_text("iteration 40 of 40", screen->theme().text, picture).x, 0);
  EXPECT_GT(Screen::count(picture, screen->theme().palette.compute()), 5000);
  const Json events = Json::parse(read_file(path("run.json")));
  EXPECT_TRUE(events.is_array());
}

TEST_F(Programs, WithoutADisplayAWindowSaysWhatToDo) {
  EXPECT_EQ(run("", "env -u DISPLAY -u WAYLAND_DISPLAY "), 2);
  EXPECT_THAT(errors(), HasSubstr("--screenshot"));
}

TEST_F(Programs, AWindowOpensUnderXvfb) {
  if (std::system("command -v xvfb-run >/dev/null 2>&1 && command -v xauth >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no xvfb-run (packages xvfb xauth)";
  }
  const std::string command = "timeout 60 xvfb-run -a -s '-screen 0 1280x720x24' " + std::string(TENCACHE_BINARY_DIR) +
                              "/gui/tencache-gui --frames 20 2>" + path("err");
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << errors();
}

TEST_F(Programs, RecentFilesAreKept) {
  for (const char* name : {"a", "b", "a"}) {
    std::ofstream(path(name)) << "x";
    add_recent_file(path(name));
  }
  add_recent_file(path("never there"));
  EXPECT_THAT(recent_files(), ::testing::ElementsAre(path("a"), path("b")));
  std::filesystem::remove(path("a"));
  EXPECT_THAT(recent_files(), ::testing::ElementsAre(path("b")));
}

}  // namespace
}  // namespace tencache::gui
