// The dashboard as it is drawn and used: pictures without a display are searched for what must be in them, a scripted
// mouse and keyboard change the session, and a real window opens under Xvfb.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "answers/timeline/chrome_trace.h"
#include "gui/model/browse.h"
#include "gui/model/describe.h"
#include "gui/shell/app.h"
#include "tests/faces/gui_dashboard.h"
#include "traces/file/file_io.h"

// Objects of graphics drivers that live as long as the process count as leaks.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }  // NOLINT

namespace tencache::gui {
namespace {

// ---- What is drawn --------------------------------------------------------------------------------------------------

TEST_F(Dashboard, TimelineShowsLanesColoursAndFigures) {
  show_both();
  const Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  for (const char* label : {"GPU", "cpu to gpu", "iteration 3 of 3", "forward", "backward", "loss",
                            "copies: asked for ahead, waited for", "error: up, predicted too long"}) {
    EXPECT_TRUE(shows(label, picture)) << label;
  }
  EXPECT_TRUE(shows("stalls for: copies to GPU", picture));
  EXPECT_TRUE(shows_faintly("error", picture));
  // Lanes are 1100 pixels wide; a phase or stall that is half of the time covers thousands of pixels.
  EXPECT_GT(Screen::count(picture, theme.palette.phases[0]), 4000);
  EXPECT_GT(Screen::count(picture, theme.palette.compute()), 8000);
  EXPECT_GT(Screen::count(picture, theme.palette.causes[0]), 8000);
  // What is not there has no colour: no storage, no optimizer.
  EXPECT_EQ(Screen::count(picture, theme.palette.causes[2]), 0);
  EXPECT_EQ(Screen::count(picture, theme.palette.phases[3]), 0);
}

TEST_F(Dashboard, WhatIsRecomputedHasAShadeOfItsOwn) {
  screen_->session().show({std::make_shared<const gui::Run>(simulate_recomputation())});
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("recomputation", picture));
  EXPECT_GT(Screen::count(picture, screen_->theme().palette.phases[recompute_slot]), 300);
  show_both();
  EXPECT_FALSE(shows("recomputation", screen_->picture()));
}

TEST_F(Dashboard, WithoutStallsNothingLooksStalled) {
  screen_->session().show({simulate_run("predicted: on-demand", gui_machine(50'000'000))});
  const Picture picture = screen_->picture();
  // All is there after the first iteration: only the legend has the colour.
  EXPECT_LT(Screen::count(picture, screen_->theme().palette.causes[0]), 150);
  EXPECT_GT(Screen::count(picture, screen_->theme().palette.compute()), 8000);
}

// Ops of 1 ms without a pause, but for a stall of 1 µs before each hundredth, which is a thousandth of a pixel.
RunPointer run_of_many_ops(std::uint32_t ops, bool stalls) {
  Recording recording;
  recording.title = "predicted: by hand";
  recording.machine = gui_machine();
  for (std::uint32_t i = 0; i < ops; ++i) {
    recording.trace.add_op(make_op(recording.trace, "step" + std::to_string(i), "", Phase::backward, 1'000'000), {},
                           {});
    Span span;
    span.op = i;
    span.start_ns = i * Nanoseconds{1'000'000};
    span.end_ns = span.start_ns + 1'000'000;
    if (stalls && i % 100 == 50) {
      Span stall = span;
      stall.kind = SpanKind::stall;
      stall.cause = StallCause::h2d;
      span.start_ns = stall.end_ns = stall.start_ns + 1000;
      recording.timeline.spans.push_back(stall);
    }
    recording.timeline.spans.push_back(span);
  }
  return std::make_shared<const gui::Run>(std::move(recording));
}

TEST_F(Dashboard, AStallDoesNotVanishForBeingShort) {
  screen_->session().show({run_of_many_ops(2000, true)});
  const Picture picture = screen_->picture();
  int below_the_legend = 0;
  for (int y = 90; y < picture.height; ++y) {
    for (int x = 0; x < picture.width; ++x) {
      below_the_legend += Screen::near(picture.at(x, y), screen_->theme().palette.causes[0], 3);
    }
  }
  EXPECT_GE(below_the_legend, 20);
  EXPECT_GT(Screen::count(picture, screen_->theme().palette.compute()), 50'000);
}

// However many spans a search finds, a pixel is marked once.
TEST_F(Dashboard, MarksOfASearchAreMergedByPixel) {
  screen_->session().show({run_of_many_ops(40'000, false)});
  screen_->frames();
  const int before = ImGui::GetDrawData()->TotalVtxCount;
  screen_->session().look_for("step");
  screen_->session().wait();
  screen_->frames();
  const int after = ImGui::GetDrawData()->TotalVtxCount;
  EXPECT_GT(Screen::count(screen_->picture(), screen_->theme().match), 2000);
  EXPECT_LT(after - before, 2 * 4 * 1280);  // two ticks of four corners a pixel at most
}

TEST_F(Dashboard, MemoryShowsRolesCapacityAndResidents) {
  show_both();
  screen_->app().choose_view("memory");
  screen_->session().cursor_ns = 5e6;
  const Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  EXPECT_TRUE(shows("gpu, predicted", picture));
  EXPECT_TRUE(shows("gpu, measured", picture));
  EXPECT_TRUE(shows("cpu, predicted", picture));
  EXPECT_TRUE(shows("parameters", picture));
  EXPECT_GT(Screen::count(picture, theme.palette.roles[0]), 20'000);
  EXPECT_GT(Screen::count(picture, theme.palette.roles[1]), 200);  // the gradient lives half of the time
  EXPECT_GT(Screen::count(picture, theme.error), 700);             // the capacity
  EXPECT_TRUE(shows("weight3", picture) || shows("weight4", picture) || shows("weight5", picture));
}

TEST_F(Dashboard, ComparisonShowsBarsByCause) {
  const std::string file = (std::filesystem::temp_directory_path() / "tencache-gui-compare.json").string();
  std::ofstream(file) << R"([
    {"policy": "swift", "machine": "box", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 2.0,
     "ideal_seconds": 1.0, "compute_seconds": 1.0, "gap_seconds": 0.5, "stall_seconds": {"d2h": 0.5},
     "interval_seconds": [1.9, 2.2], "mean_utilization": {"gpu": 0.75, "h2d": 0.5}, "traffic_bytes": {"h2d": 8}},
    {"policy": "lazy", "machine": "box", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 3.0,
     "ideal_seconds": 1.0, "compute_seconds": 1.0, "gap_seconds": 0.5, "stall_seconds": {"h2d": 1.5}},
    {"policy": "huge", "machine": "box", "trace": "t", "fits": false, "manifest": {}, "iteration_seconds": null,
     "reason": "too little room"}])";
  screen_->session().open(file);
  screen_->session().wait();
  screen_->app().choose_view("comparison");
  const Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  for (const char* text : {"swift", "lazy", "huge", "2.000 s", "3.000", "waits for copies from GPU"}) {
    EXPECT_TRUE(shows(text, picture)) << text;
  }
  EXPECT_TRUE(shows_faintly("too little room", picture));
  EXPECT_TRUE(shows("1.90–2.20 s", picture));
  EXPECT_GT(Screen::count(picture, theme.palette.compute()), 1500);
  EXPECT_GT(Screen::count(picture, theme.palette.causes[0]), 800);
  EXPECT_GT(Screen::count(picture, theme.palette.causes[1]), 200);
  const float swift = screen_->find_text("swift", theme.text, picture).y;
  EXPECT_LT(swift, screen_->find_text("lazy", theme.text, picture).y);
  const ImVec2 heading = screen_->find_text("iteration", theme.text, picture);
  screen_->click(heading.x + 4, heading.y + 4);  // as it was
  screen_->picture();
  screen_->click(heading.x + 4, heading.y + 4);  // the other way round
  const Picture sorted = screen_->picture();
  EXPECT_GT(screen_->find_text("swift", theme.text, sorted).y, screen_->find_text("lazy", theme.text, sorted).y);
  screen_->press('U');
  const Picture used = screen_->picture();
  for (const char* text : {"gpu", "h2d", "75.0 %", "50.0 %"}) EXPECT_TRUE(shows(text, used)) << text;
  EXPECT_GT(Screen::count(used, theme.palette.series[2]), 2000);
  EXPECT_GT(Screen::count(used, theme.palette.series[1]), 1500);
  EXPECT_EQ(Screen::count(used, theme.palette.causes[1]), 0);
  EXPECT_EQ(Screen::count(used, theme.palette.causes[0]), 0);  // no bars of time
  std::filesystem::remove(file);
}

// In a window that is narrow for its columns: what is a thousandth of the time, what is cut off, and the whisker's end.
TEST_F(Dashboard, BarsKeepTheirPartsAndWhiskersInNarrowWindows) {
  open(700, 400);
  if (screen_ == nullptr) return;
  const std::string file = (std::filesystem::temp_directory_path() / "tencache-gui-narrow.json").string();
  std::ofstream(file) << R"([
    {"policy": "swift", "machine": "a-machine-of-some-name", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 2.0,
     "compute_seconds": 1.0, "gap_seconds": 0.5, "stall_seconds": {"d2h": 0.499, "nvme_read": 0.001}},
    {"policy": "unsure", "machine": "a-machine-of-some-name", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 4.0,
     "compute_seconds": 1.0, "stall_seconds": {"d2h": 3.0}, "interval_seconds": [3.8, 5.9]},
    {"policy": "slow", "machine": "a-machine-of-some-name", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 90.0,
     "compute_seconds": 1.0, "stall_seconds": {"h2d": 88.0, "cpu_optimizer": 1.0}}])";
  screen_->session().open(file);
  screen_->session().wait();
  screen_->app().choose_view("comparison");
  const Picture picture = screen_->picture();
  const Theme& theme = screen_->theme();
  // Below the legend, in the rows of bars 13 pixels high.
  const auto in_bars = [&](ImU32 color) {
    int pixels = 0;
    for (int y = 130; y < 250; ++y) {
      for (int x = 0; x < picture.width; ++x) pixels += Screen::near(picture.at(x, y), color, 3);
    }
    return pixels;
  };
  EXPECT_GE(in_bars(theme.palette.causes[2]), 2 * 10);  // of a thousandth
  EXPECT_GE(in_bars(theme.palette.causes[4]), 2 * 10);  // behind the end
  // The end of the whisker: a line of its height, after which the bar's column goes on.
  const ImVec2 unsure = screen_->find_text("unsure", theme.text, picture);
  ASSERT_GE(unsure.x, 0);
  int last = 0;
  for (int x = 300; x < picture.width; ++x) {
    int line = 0;
    for (int y = static_cast<int>(unsure.y) - 2; y < static_cast<int>(unsure.y) + 12; ++y) {
      line += Screen::near(picture.at(x, y), theme.selection, 90);
    }
    if (line >= 7) last = x;
  }
  EXPECT_GT(last, 400);
  EXPECT_LT(last, 690);
  std::filesystem::remove(file);
}

TEST_F(Dashboard, BrowserSaysWhoseFiguresItShows) {
  show_both();
  screen_->app().choose_view("browser");
  screen_->session().align(0);
  const gui::Run& run = *screen_->session().runs()[0];
  const auto length = [&run](std::size_t iteration) { return duration_text(run.iteration_ns(iteration)); };
  // The first op waits for its weight in the first iteration; later the one before left it there.
  const std::string waits = duration_text(op_rows(run, 0)[0].waits_ns);
  ASSERT_GT(op_rows(run, 0)[0].waits_ns, 0);
  ASSERT_EQ(op_rows(run, 2)[0].waits_ns, 0);
  const auto rows_between = [&](const Picture& picture) {  // the first op, and the first that waits so long
    return std::abs(screen_->find_text("forward0", screen_->theme().text, picture).y -
                    screen_->find_text(waits, screen_->theme().text, picture).y);
  };
  Picture picture = screen_->picture();
  EXPECT_TRUE(shows("predicted: on-demand", picture));
  EXPECT_TRUE(shows("iteration 1 of 3", picture));
  EXPECT_TRUE(shows_faintly("times, waits and copies of iteration 1, " + length(0), picture));
  EXPECT_LT(rows_between(picture), 8);
  screen_->session().align(2);
  picture = screen_->picture();
  EXPECT_TRUE(shows("iteration 3 of 3", picture));
  EXPECT_TRUE(shows_faintly("times, waits and copies of iteration 3, " + length(2), picture));
  EXPECT_GT(rows_between(picture), 12);
  // The other run, chosen by its name.
  const ImVec2 title = screen_->find_text("predicted: on-demand", screen_->theme().text, picture);
  screen_->click(title.x + 4, title.y + 4);
  const ImVec2 other = screen_->find_text("measured: on-demand", screen_->theme().text, screen_->picture());
  ASSERT_GE(other.x, 0);
  screen_->frames();
  screen_->click(title.x + 4, title.y + 4);  // again: looking for a text draws frames without the list, which close it
  screen_->click(other.x + 4, other.y + 4);
  const std::string longer = duration_text(screen_->session().runs()[1]->iteration_ns(2));
  EXPECT_TRUE(shows_faintly("times, waits and copies of iteration 3, " + longer, screen_->picture()));
}

TEST_F(Dashboard, BrowserListsAndInspects) {
  show_both();
  screen_->app().choose_view("browser");
  Picture picture = screen_->picture();
  for (const char* text : {"takes", "waits", "forward0", "weight11", "copies", "parameters"}) {
    EXPECT_TRUE(shows(text, picture)) << text;
  }
  const ImVec2 row = screen_->find_text("gradient", screen_->theme().text, picture);
  ASSERT_GE(row.x, 0);
  screen_->click(row.x + 4, row.y + 4);
  EXPECT_EQ(screen_->session().selection.kind, Selection::Kind::tensor);
  EXPECT_EQ(screen_->session().selection.id, 12u);
  screen_->session().fit();
  picture = screen_->picture();
  for (const char* lane : {"gpu", "cpu", "used by"}) {
    EXPECT_GE(screen_->find_text(lane, screen_->theme().text, picture, 40).x, 0) << lane;
  }
  // The only gradient, of half an iteration; and its uses in the backward pass, which are more than half of that.
  const int held = Screen::count(picture, screen_->theme().palette.roles[1]),
            used = Screen::count(picture, screen_->theme().ghost);
  EXPECT_GT(held, 8000);
  EXPECT_GT(used, held / 3);
  EXPECT_LT(used, held);
  const ImVec2 heading = screen_->find_text("takes", screen_->theme().text, picture);
  screen_->click(heading.x + 4, heading.y + 4);
  EXPECT_LT(screen_->find_text("loss", screen_->theme().text, screen_->picture()).y, heading.y + 60);  // the shortest
}

TEST_F(Dashboard, LightAndLargeAreReadableToo) {
  open(3840, 2160, true, 2);
  if (screen_ == nullptr) return;
  show_both();
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("cpu to gpu", picture));
  EXPECT_GT(Screen::count(picture, screen_->theme().palette.causes[0]), 50'000);
  EXPECT_GT(Screen::count(picture, screen_->theme().background), 100'000);
}

TEST_F(Dashboard, EmptyAndFailedSayWhatToDo) {
  EXPECT_TRUE(
      shows_faintly("No timeline: open a trace, a result or a timeline, or drop one here.", screen_->picture()));
  screen_->session().open("/nowhere.json");
  screen_->session().wait();
  const Picture picture = screen_->picture();
  EXPECT_GE(screen_->find_text("/nowhere.json: cannot be opened;", screen_->theme().error, picture).x, 0);
}

TEST_F(Dashboard, HelpListsKeys) {
  show_both();
  EXPECT_FALSE(shows("shift+drag", screen_->picture()));
  screen_->type("?");
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("shift+drag", picture));
  EXPECT_TRUE(shows("ctrl+O", picture));
}

// ---- What mouse and keys do -----------------------------------------------------------------------------------------

TEST_F(Dashboard, WheelZoomsAtTheCursorAndDraggingPans) {
  show_both();
  const ImVec2 lane = label_of("GPU");
  const TimeWindow before = screen_->session().window;
  screen_->move(700, lane.y);
  const double at = screen_->session().cursor_ns.value();
  screen_->wheel(700, lane.y, 3);
  const TimeWindow zoomed = screen_->session().window;
  EXPECT_NEAR(zoomed.length_ns() / before.length_ns(), 0.512, 1e-6);
  EXPECT_NEAR((at - zoomed.begin_ns) / zoomed.length_ns(), (at - before.begin_ns) / before.length_ns(), 1e-6);
  screen_->drag(700, lane.y, 600, lane.y);
  EXPECT_NEAR(screen_->session().window.length_ns(), zoomed.length_ns(), 1);
  EXPECT_GT(screen_->session().window.begin_ns, zoomed.begin_ns);
  screen_->press('F');
  EXPECT_DOUBLE_EQ(screen_->session().window.begin_ns, before.begin_ns);
  screen_->press('0');
  EXPECT_GT(screen_->session().window.length_ns(), 2 * before.length_ns());
  screen_->type("[");
  EXPECT_EQ(screen_->session().shown().aligned(), 1u);
  screen_->type("]");
  EXPECT_EQ(screen_->session().shown().aligned(), 2u);
}

TEST_F(Dashboard, HoveringTellsWhatItIs) {
  screen_->session().show({simulate_run("predicted: on-demand")});
  const gui::Run& run = *screen_->session().runs()[0];
  const std::uint32_t loss = run.spans_of_op(12).back();
  const Nanoseconds origin = screen_->session().shown().origin_ns(0);
  const double middle = static_cast<double>(run.spans()[loss].start_ns - origin) + 150'000;
  screen_->session().window = {middle - 500'000, middle + 500'000};
  const ImVec2 lane = label_of("GPU");
  // The lanes' right end is the window's; the time in the middle of it lies halfway from their left.
  screen_->move(700, lane.y);
  const double time = screen_->session().cursor_ns.value();
  const double pixel_ns = 1'000'000.0 / 1170;
  screen_->move(700 + static_cast<float>((middle - time) / pixel_ns), lane.y);
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("300.0 µs", picture));
  EXPECT_TRUE(shows_faintly("writes", picture));
}

TEST_F(Dashboard, ClickingSelectsAndDrawsArrows) {
  show_both();
  const ImVec2 lane = label_of("cpu to gpu");
  const gui::Run& run = *screen_->session().runs()[0];
  // The first copy of the iteration.
  const Nanoseconds origin = screen_->session().shown().origin_ns(0);
  std::uint32_t copy = none;
  for (const TrackItem& item : run.tracks()[1].items()) {
    if (item.begin_ns >= origin && copy == none) copy = item.span;
  }
  ASSERT_NE(copy, none);
  const auto start = static_cast<double>(run.spans()[copy].start_ns - origin);
  screen_->session().window = {start - 1e6, start + 3e6};
  screen_->frames();
  screen_->move(800, lane.y);
  const double pixel_ns = 4e6 / 1170;
  const float x = 800 + static_cast<float>((start + 4e5 - screen_->session().cursor_ns.value()) / pixel_ns);
  const int before = Screen::count(screen_->picture(), screen_->theme().error);
  screen_->click(x, lane.y);
  const Selection& selection = screen_->session().selection;
  EXPECT_EQ(selection.kind, Selection::Kind::tensor);
  EXPECT_EQ(selection.id, run.spans()[copy].tensor);
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows_faintly("used by", picture));
  EXPECT_GT(Screen::count(picture, screen_->theme().error), before + 20);  // the arrow of a copy asked for too late
  screen_->press_special(ImGuiKey_Escape);
  EXPECT_EQ(selection.kind, Selection::Kind::nothing);
}

TEST_F(Dashboard, ShiftDraggingMeasures) {
  show_both();
  const ImVec2 lane = label_of("GPU");
  screen_->hold_shift(true);
  screen_->drag(400, lane.y, 800, lane.y);
  screen_->hold_shift(false);
  ASSERT_TRUE(screen_->session().time_range.has_value());
  const auto [begin, end] = *screen_->session().time_range;
  EXPECT_NEAR((end - begin) / screen_->session().window.length_ns(), 400.0 / 1170, 0.02);
  EXPECT_TRUE(shows_faintly("waits for copies to GPU", screen_->picture()));
}

TEST_F(Dashboard, TypingSearches) {
  show_both();
  screen_->frames();
  screen_->type("/");
  screen_->frames(1);  // the box takes the keyboard
  screen_->type("weight7");
  EXPECT_EQ(screen_->session().search().text(), "weight7");
  EXPECT_EQ(screen_->session().search().tensors().size(), 1u);
  const TimeWindow before = screen_->session().window;
  screen_->press('W');  // letters that are typed do not zoom
  EXPECT_DOUBLE_EQ(screen_->session().window.begin_ns, before.begin_ns);
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows_faintly("0 ops, 1 tensors", picture));
  EXPECT_GT(Screen::count(picture, screen_->theme().match), 10);
}

TEST_F(Dashboard, ATensorOfTheMemoryListIsSelectedEverywhere) {
  show_both();
  screen_->app().choose_view("memory");
  screen_->session().cursor_ns = 5e6;
  const Picture picture = screen_->picture();
  for (std::uint32_t i = 0; i < 12; ++i) {
    const ImVec2 at = screen_->find_text("weight" + std::to_string(i), screen_->theme().text, picture);
    if (at.x < 0) continue;
    screen_->click(at.x + 4, at.y + 4);
    EXPECT_EQ(screen_->session().selection.kind, Selection::Kind::tensor);
    EXPECT_EQ(screen_->session().runs()[0]->tensor_name(screen_->session().selection.id).substr(0, 7),
              "weight" + std::to_string(i).substr(0, 1));
    return;
  }
  FAIL() << "no tensor is listed";
}

// A slider that is dragged simulates another machine, and what was before stays as a ghost.
TEST_F(Dashboard, DraggingASliderSimulatesAnotherMachine) {
  Session& session = screen_->session();
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.scenario.trace.file = "test";
  workload.machine = gui_machine();
  workload.scenario.policy.name = "on-demand";
  session.what_if.emplace(workload);
  session.rerun();
  session.wait();
  screen_->app().choose_view("what-if");
  const double before = session.simulated()->iteration_seconds();
  Picture picture = screen_->picture();
  EXPECT_TRUE(shows("lower bound", picture));
  EXPECT_TRUE(shows("now: on-demand", picture));
  EXPECT_FALSE(shows_faintly("before: GPU", picture));
  const ImU32 faint = mixed(screen_->theme().lane, screen_->theme().palette.compute(), 0.5f);
  EXPECT_EQ(Screen::count(picture, faint), 0);
  const ImVec2 label = screen_->find_text("PCIe", screen_->theme().text, picture);
  ASSERT_GE(label.x, 0);
  const Knob& pcie = session.what_if->knobs().at(2);
  EXPECT_EQ(pcie.kind, Knob::Kind::pcie);
  screen_->drag(178, label.y + 5, 230, label.y + 5);
  EXPECT_GT(pcie.value, 1.5 * pcie.original);
  session.wait();
  EXPECT_LT(session.simulated()->iteration_seconds(), 0.9 * before);
  ASSERT_NE(session.ghost(), nullptr);
  EXPECT_DOUBLE_EQ(session.ghost()->iteration_seconds(), before);
  picture = screen_->picture();
  EXPECT_TRUE(shows_faintly("before: GPU", picture));
  EXPECT_GT(Screen::count(picture, faint), 2'000);
  EXPECT_TRUE(shows_faintly("before: on-demand", picture));
  EXPECT_TRUE(shows("now: GPU", picture));
}

}  // namespace
}  // namespace tencache::gui
