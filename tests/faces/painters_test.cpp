// One answer by each of its painters: text, JSON, CSV, page and dashboard have the same figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "answers/compare.h"
#include "answers/explain.h"
#include "gui/model/document.h"
#include "gui/report/page.h"
#include "tests/faces/gui_dashboard.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

using testing::ElementsAre;

// An iteration of 6 s waits 2 s for copies to the GPU: 1.5 s go with them, 0.25 s stay and 0.25 s move.
ExplainAnswer some_answer() {
  const tencache::TimeParts without{.fits = true,
                                    .reason = {},
                                    .iteration_seconds = 4.5,
                                    .compute_seconds = 3,
                                    .gap_seconds = 1,
                                    .stall_seconds = {{StallCause::h2d, 0.25}, {StallCause::d2h, 0.25}}};
  ExplainAnswer answer;
  answer.policy = "lru";
  answer.machine = "m";
  answer.trace = "in/t";
  answer.run = without;
  answer.run.iteration_seconds = 6;
  answer.run.stall_seconds = {{StallCause::h2d, 2}};
  answer.causes = {{StallCause::h2d, 2, "h2d takes no time", 1.5, 0.25, 0.25, without}};
  answer.in_turn.steps = {{StallCause::h2d, "h2d takes no time", 1.5, 4.5, without}};
  answer.ideal_seconds = 4;
  answer.bound_seconds = 3.5;
  answer.bound_term = "fetch";
  return answer;
}

// The line that begins so; empty: none does.
std::string line_of(const std::string& text, const std::string& beginning) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(beginning)) return line;
  }
  return "";
}

// "2.000 s  250.0 ms" as seconds.
std::vector<double> seconds_in(const std::string& text) {
  std::vector<double> seconds;
  std::istringstream words(text);
  double value = 0;
  for (std::string unit; words >> value >> unit;) seconds.push_back(unit == "ms" ? value / 1000 : value);
  return seconds;
}

// What stands between these two, each time.
std::vector<double> numbers_between(const std::string& text, const std::string& before, const std::string& after) {
  std::vector<double> numbers;
  for (std::size_t at = text.find(before); at != std::string::npos; at = text.find(before, at)) {
    at += before.size();
    numbers.push_back(std::stod(text.substr(at, text.find(after, at) - at)));
  }
  return numbers;
}

TEST_F(Dashboard, EveryPainterHasTheSameFigures) {
  const std::string file = testing::TempDir() + "/painters_test.json";
  write_file(file, to_json_of(some_answer()).dump());
  const DocumentPointer opened = open_document(file);  // by way of JSON
  const auto figures = ElementsAre(2, 1.5, 0.25, 0.25);
  ASSERT_TRUE(opened->answer);
  const tencache::Document& document = *opened->answer;

  const Json cause = Json::parse(read_file(file))["causes"][0];
  EXPECT_THAT((std::vector<double>{cause["attributed_seconds"], cause["confirmed_seconds"], cause["still_seconds"],
                                   cause["moved_seconds"]}),
              figures);

  const std::string on_terminal = line_of(document_text(document), "h2d ");
  EXPECT_THAT(seconds_in(on_terminal.substr(3)), figures) << on_terminal;
  EXPECT_EQ(document_text(document), document_text(document_of(some_answer())));

  const auto table = std::ranges::find_if(
      document.blocks, [](const auto& block) { return std::holds_alternative<DocumentTable>(block); });
  ASSERT_NE(table, document.blocks.end());
  const std::string csv = line_of(table_csv(std::get<DocumentTable>(*table)), "h2d");
  EXPECT_EQ(csv.substr(0, csv.find_last_not_of(',') + 1), "h2d,2,1.5,0.25,0.25");

  std::vector<std::string> errors;
  const std::string page = report_page({opened}, "", errors);
  EXPECT_THAT(numbers_between(line_of(page, "<tr><td class=\"left wide\">h2d"), "data-value=\"", "\""), figures);

  const BarChart* const chart = opened->first<BarChart>();
  ASSERT_NE(chart, nullptr);
  std::vector<double> drawn = {chart->bars[2].total()};
  for (const ChartPart& part : chart->bars[2].parts) drawn.push_back(part.value);
  EXPECT_THAT(drawn, figures);
  screen_->session().open(file);
  screen_->session().wait();
  screen_->app().choose_view("table");
  const Picture picture = screen_->picture();
  EXPECT_TRUE(shows("copies to GPU", picture));
  EXPECT_TRUE(shows_faintly("2.000 s, 1.500 s confirmed", picture));
  std::filesystem::remove(file);
}

// Of `compare` the table is painted with the bars in it: characters, a figure of its own, rectangles.
TEST_F(Dashboard, EveryPainterHasTheSameComparison) {
  CompareAnswer answer;
  answer.title = "some step on m";
  for (const double seconds : {2.0, 4.0}) {
    ResultAnswer& result = answer.results.emplace_back();
    result.policy = seconds < 3 ? "swift" : "lazy";
    result.fits = true;
    result.iteration_seconds = seconds;
    result.ideal_seconds = 1;
    result.compute_seconds = 1;
    result.stall_seconds = StallSeconds{{StallCause::h2d, seconds - 1}};
    result.validity = "extrapolated";
  }
  const std::string text = document_text(document_of(answer));
  EXPECT_THAT(line_of(text, "swift"), testing::HasSubstr("2.000 s"));
  EXPECT_THAT(line_of(text, "lazy"), testing::EndsWith("████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒"));  // 1 of 4 s, of 30
  EXPECT_THAT(text, testing::HasSubstr("Figures are extrapolated"));

  const std::string file = testing::TempDir() + "/painters_test_compare.json";
  write_file(file, to_json_of(answer).dump());
  const DocumentPointer opened = open_document(file);
  ASSERT_EQ(opened->results.size(), 2u);
  std::vector<std::string> errors;
  const std::string page = report_page({opened}, "", errors);
  EXPECT_THAT(page, testing::HasSubstr("<td data-value=\"2\">2.000 s</td>"));
  EXPECT_THAT(page, testing::HasSubstr("data-value=\"3\""));  // the part of the bar that waits
  EXPECT_THAT(page, testing::HasSubstr("swift is the fastest: 2.000 s an iteration, 2.00 times"));

  screen_->session().open(file);
  screen_->session().wait();
  screen_->app().choose_view("comparison");
  const Picture picture = screen_->picture();
  for (const char* shown : {"swift", "2.000 s", "4.000", "extrapolated, no interval"}) {
    EXPECT_TRUE(shows(shown, picture)) << shown;
  }
  const int computes = Screen::count(picture, screen_->theme().palette.compute()),
            waits = Screen::count(picture, screen_->theme().palette.causes[0]);
  EXPECT_GT(computes, 2000);
  EXPECT_GT(waits, computes / 2);  // twice as long, less the hatching
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tencache::gui
