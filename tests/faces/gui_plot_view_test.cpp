// The plots as they are drawn and used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "answers/bound.h"
#include "gui/views/plot.h"
#include "tests/faces/gui_dashboard.h"
#include "tests/faces/gui_plot_cases.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

class PlotsOnScreen : public Dashboard {
 protected:
  void open_text(const std::string& text) {
    const std::string file =
        (std::filesystem::temp_directory_path() / ("tencache-plot-" + std::to_string(::getpid()) + ".json")).string();
    write_file(file, text);
    screen_->session().open(file);
    screen_->session().wait();
    std::filesystem::remove(file);
  }
};

TEST_F(PlotsOnScreen, SensitivityShowsLinesKneesAndTheMachine) {
  open_text(some_sensitivity);
  const Picture picture = screen_->picture();
  EXPECT_EQ(screen_->app().view(), "sensitivity");  // the view of the file
  const Theme& theme = screen_->theme();
  for (const char* text :
       {"swift", "lazy", "lower bound", "the machine's 12.00 GB/s", "time of an iteration", "8.00 GB/s",
        "beyond 8.00 GB/s nothing is gained", "more than the largest value shown would still help"}) {
    EXPECT_TRUE(shows(text, picture)) << text;
  }
  for (const char* text : {"4 GB/s", "2 s"}) EXPECT_TRUE(shows_faintly(text, picture)) << text;
  // Lines of two pixels: swift's are 1000 pixels long, lazy's half of it, the bound's has no markers.
  EXPECT_GT(Screen::count(picture, theme.palette.series[0]), 900);
  EXPECT_GT(Screen::count(picture, theme.palette.series[1]), 400);
  EXPECT_GT(Screen::count(picture, theme.ghost), 900);
  EXPECT_EQ(Screen::count(picture, theme.palette.series[4]), 0);  // no third policy
}

// The ring is all of the text's colour in the plot but for the dashed line; without a knee there is none.
TEST_F(PlotsOnScreen, KneesHaveRings) {
  const auto text_in_plot = [this] {
    const Picture picture = screen_->picture();
    int pixels = 0;
    for (int y = 110; y < 400; ++y) {
      for (int x = 100; x < 1000; ++x) pixels += Screen::near(picture.at(x, y), screen_->theme().text, 60);
    }
    return pixels;
  };
  open_text(some_sensitivity);
  const int with_knee = text_in_plot();
  std::string without = some_sensitivity;
  const std::string knee = R"("knee": {"value": 8e9, "fits": true, "reason": null, "iteration_seconds": 2.0})";
  without.replace(without.find(knee), knee.size(), R"("knee": null)");
  open_text(without);
  EXPECT_GT(with_knee, text_in_plot() + 30);
}

TEST_F(PlotsOnScreen, PointingAtALineFadesTheOthers) {
  open_text(some_sensitivity);
  Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  const int lazy = Screen::count(picture, theme.palette.series[1]);
  const ImVec2 label = screen_->find_text("swift", theme.text, picture);
  ASSERT_GT(label.x, 900);  // right of the plot
  screen_->move(label.x + 4, label.y + 4);
  picture = screen_->picture();
  EXPECT_LT(Screen::count(picture, theme.palette.series[1]), lazy / 4);
  EXPECT_GT(Screen::count(picture, theme.palette.series[0]), 900);
  // The time is linear until told otherwise: its axis begins at 0.
  screen_->move(2, 2);
  EXPECT_TRUE(shows_faintly("0", screen_->picture()));
  EXPECT_TRUE(shows_faintly("4 s", screen_->picture()));
  screen_->press('L');
  EXPECT_TRUE(shows_faintly("5 s", screen_->picture()));  // 1, 2 and 5
  EXPECT_FALSE(shows_faintly("4 s", screen_->picture()));
}

TEST_F(PlotsOnScreen, CostShowsTheFrontAndWhatIsBehindIt) {
  open_text(sweep_text_of(some_sweep()));
  const Picture picture = screen_->picture();
  EXPECT_EQ(screen_->app().view(), "cost");
  const Theme& theme = screen_->theme();
  for (const char* text : {"Pareto front: nothing is faster and cheaper", "USD a million tokens, on demand", "cheap",
                           "dear", "tiny", "lru", "g10", "dear, g10", "cheap, g10", "the front: machine"}) {
    EXPECT_TRUE(shows(text, picture)) << text;
  }
  EXPECT_FALSE(shows("dear, lru", picture));  // it is beaten
  EXPECT_TRUE(shows_faintly("4 combinations; 1 do not fit", picture));
  EXPECT_GT(Screen::count(picture, theme.palette.series[0]), 60);  // a dot of the front, and that of the box
  EXPECT_GT(Screen::count(picture, theme.palette.series[1]), 60);
  // The steps of the front: hundreds of pixels of the text's colour in a row.
  int longest = 0;
  for (int y = 80; y < 600; ++y) {
    int row = 0;
    for (int x = 320; x < picture.width; ++x) {
      row = Screen::near(picture.at(x, y), theme.text, 40) ? row + 1 : 0;
      longest = std::max(longest, row);
    }
  }
  EXPECT_GT(longest, 200);
}

TEST(PlotAxes, TicksAreRoundAndEnough) {
  using Ticks = std::vector<double>;
  const auto ticks = [](double from, double to, bool logarithmic, bool binary, std::size_t most) {
    PlotAxis axis;
    axis.from = from, axis.to = to, axis.logarithmic = logarithmic, axis.binary = binary;
    return axis.ticks(most);
  };
  EXPECT_EQ(ticks(0, 3.2, false, false, 4), (Ticks{0, 1, 2, 3}));
  EXPECT_EQ(ticks(0.9, 55, true, false, 9), (Ticks{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(ticks(0.9, 55, true, false, 5), (Ticks{1, 5, 10, 50}));  // none far from its neighbours
  EXPECT_EQ(ticks(0.9, 150, true, false, 4), (Ticks{1, 10, 100}));
  EXPECT_EQ(ticks(2.1, 4.4, true, false, 6), (Ticks{2.5, 3, 3.5, 4}));  // less than a power of ten
  EXPECT_EQ(ticks(3, 40, true, true, 8), (Ticks{4, 8, 16, 32}));
  EXPECT_EQ(ticks(6.5, 9, true, true, 6), (Ticks{6.5, 7, 7.5, 8, 8.5, 9}));
}

TEST(PlotLabels, CoverNeitherPointsNorEachOther) {
  LabelPlacer labels({0, 0}, {200, 100});
  labels.keep_point_free({50, 50}, 4);
  labels.keep_point_free({80, 45}, 4);  // where the text would stand
  labels.keep_free({50, 50}, {200, 50});
  const std::optional<ImVec2> first = labels.place({50, 50}, 8, {40, 12});
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(first->y, 50);  // below the line instead
  const std::optional<ImVec2> second = labels.place({52, 50}, 8, {40, 12});
  ASSERT_TRUE(second.has_value());
  EXPECT_TRUE(second->x >= first->x + 40 || second->x + 40 <= first->x || second->y >= first->y + 12 ||
              second->y + 12 <= first->y);
  EXPECT_FALSE(labels.place({100, 20}, 8, {300, 12}).has_value());  // wider than the plot
}

// A lower bound of 2 s, which is that of fetching.
std::string bound_text(const Named<double>& terms) {
  BoundAnswer answer;
  answer.machine = "box";
  answer.trace = "in/t";
  answer.bound_seconds = 2;
  answer.bound_term = "fetch";
  for (const auto& [name, seconds] : terms) {
    answer.terms.push_back({});
    answer.terms.back().name = name;
    answer.terms.back().seconds = seconds;
  }
  return to_json_of(answer).dump();
}

// The last character that fits is followed by "…" and the end, which tells names apart that begin alike.
TEST_F(PlotsOnScreen, LongLabelsAreShortenedInTheMiddle) {
  screen_->frames();
  const std::string name = "a-policy-with-a-name-that-is-longer-than-any-column/of-the-second-kind";
  screen_->app().choose_view("table");
  open_text(bound_text({{name + name + name, 1.0}, {"fetch", 2.0}}));
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("of-the-second-kind", picture));
  EXPECT_TRUE(shows("a-policy-with", picture));
  const ImVec2 label = screen_->find_text("a-policy-with", screen_->theme().text, picture);
  screen_->move(label.x + 4, label.y + 4);
  EXPECT_TRUE(shows_faintly("at least", screen_->picture()));  // and what is known of it, when pointed at
}

TEST_F(PlotsOnScreen, BoxesFilterAndClicksMark) {
  open_text(sweep_text_of(some_sweep()));
  Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  const ImVec2 policy = screen_->find_text("g10", theme.text, picture, 100);
  ASSERT_GE(policy.x, 0);
  screen_->click(policy.x + 4, policy.y + 4);
  screen_->move(2, 2);
  picture = screen_->picture();
  EXPECT_TRUE(shows("dear, lru", picture));  // now the front
  EXPECT_FALSE(shows("dear, g10", picture));
  const ImVec2 name = screen_->find_text("dear, lru", theme.text, picture);
  EXPECT_EQ(Screen::count(picture, theme.match), 0);
  screen_->click(name.x - 11, name.y + 14);  // its dot
  EXPECT_TRUE(shows_faintly("waits most for", screen_->picture()));
  screen_->move(2, 2);
  EXPECT_GT(Screen::count(screen_->picture(), theme.match), 30);
}

TEST_F(PlotsOnScreen, WithoutFilesTheySayWhatToOpen) {
  screen_->app().choose_view("cost");
  EXPECT_TRUE(shows_faintly("No sweep: open what `tencache sweep SWEEP -o results.sqlite` wrote", screen_->picture()));
  screen_->app().choose_view("sensitivity");
  EXPECT_TRUE(shows_faintly("No sensitivity: open what", screen_->picture()));
}

// The button beside a slider.
TEST_F(PlotsOnScreen, VaryPlotsTheTimeAgainstASlider) {
  Session& session = screen_->session();
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.scenario.trace.file = "test";
  workload.machine = gui_machine();
  workload.scenario.policy.name = "lru";
  session.what_if.emplace(workload);
  session.rerun();
  session.wait();
  screen_->app().choose_view("what-if");
  const Picture before = screen_->picture();
  const ImVec2 button = screen_->find_text("vary", screen_->theme().text, before);
  ASSERT_GE(button.x, 0);
  screen_->click(button.x + 4, button.y + 4);
  session.wait();
  ASSERT_EQ(session.documents().plots().size(), 1u);
  const Picture picture = screen_->picture();
  EXPECT_EQ(screen_->app().view(), "sensitivity");
  EXPECT_TRUE(shows("lru", picture));
  EXPECT_TRUE(shows("gpu_memory", picture));
  int lines = 0;  // some lie on others
  for (const ImU32 color : screen_->theme().palette.series) lines += Screen::count(picture, color);
  EXPECT_GT(lines, 500);
}

// The picture above, the table below; a click on a heading sorts, typing filters, and Copy takes what is left.
TEST_F(PlotsOnScreen, TablesHaveAPictureRowsAndAFilter) {
  open_text(bound_text({{"compute", 1.0}, {"fetch", 2.0}, {"cpu", 0.5}}));
  const Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  EXPECT_EQ(screen_->app().view(), "table");
  for (const char* text : {"compute", "cpu", "seconds", "2.000 s", "binds"}) EXPECT_TRUE(shows(text, picture)) << text;
  EXPECT_TRUE(shows_faintly("1.000 s", picture));  // beside the bar
  EXPECT_TRUE(shows_faintly("3 of 3 rows", picture));
  EXPECT_GT(Screen::count(picture, theme.accent), 9000);  // the bar that binds, 14 pixels high
  const int others = Screen::count(picture, theme.ghost);
  EXPECT_GT(others, 8000);  // three quarters of it in all
  EXPECT_LT(others, 14'000);
  // The heading of the second column, in the table: below the picture.
  const ImVec2 heading = screen_->find_text("seconds", theme.text, picture);
  screen_->click(heading.x + 4, heading.y + 4);
  const Picture sorted = screen_->picture();
  const auto row_of = [&](const char* name, const Picture& in) {  // the lower of the two: the first is the bar's
    for (int y = static_cast<int>(heading.y); y < in.height - 20; ++y) {
      Picture below = in;
      below.rgba.erase(below.rgba.begin(), below.rgba.begin() + std::ptrdiff_t{4} * below.width * y);
      below.height -= y;
      return screen_->find_text(name, theme.text, below).y;
    }
    return -1.0f;
  };
  EXPECT_LT(row_of("cpu", sorted), row_of("compute", sorted));
  EXPECT_LT(row_of("compute", sorted), row_of("fetch", sorted));
  screen_->type("/");
  screen_->frames(1);  // the box takes the keyboard
  screen_->type("seconds>0.7");
  const Picture filtered = screen_->picture();
  EXPECT_TRUE(shows_faintly("2 of 3 rows", filtered));
  EXPECT_LT(row_of("cpu", filtered), 0);
  EXPECT_GE(row_of("compute", filtered), 0);
}

}  // namespace
}  // namespace tencache::gui
