// The report's parts that no reader of HTML can check: escaping, merged boxes, figures that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "gui/report/html.h"
#include "gui/report/page.h"

namespace tencache::gui {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ReportTest, TextOfAnyKindIsEscaped) {
  EXPECT_EQ(html_text("a<b>&\"c'"), "a&lt;b&gt;&amp;&quot;c&#39;");
  EXPECT_EQ(html_text("two\nlines\tand more"), "two lines and more");
  EXPECT_EQ(html_text("ü → 語 😀"), "ü → 語 😀");
  const std::string unknown = "\xef\xbf\xbd";
  for (const char* broken : {"\x01", "\x7f", "\xc2\x85", "\xff", "\xc0", "\xf5"})
    EXPECT_EQ(html_text(broken), unknown) << broken;
  EXPECT_EQ(html_text("\xed\xa0\x80"), unknown + unknown + unknown) << "a surrogate";
  EXPECT_EQ(html_text("\xef\xbf\xbe"), unknown + unknown + unknown) << "U+FFFE";
  EXPECT_EQ(html_text("\xe2\x82"), unknown + unknown) << "cut short";
}

TEST(ReportTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(html_text("äöü", 3), "äöü");
  EXPECT_EQ(html_text("äöüß", 3), "äöü…");
  EXPECT_EQ(html_text("&&&", 2), "&amp;&amp;…");
}

TEST(ReportTest, BoxesThatTouchAndAreEquallyHighBecomeOne) {
  BoxPath path("p0");
  path.add(10, 5, 1, 8);
  path.add(11, 5, 1, 8);
  path.add(12, 5, 1, 7);
  path.add(14, 5, 1, 7);
  path.add(15, 5, 0, 7);
  EXPECT_EQ(path.svg(), "<path class=\"p0\" d=\"M10 5h2v8h-2zM12 5h1v7h-1zM14 5h1v7h-1z\"/>\n");
  EXPECT_EQ(BoxPath("p0").svg(), "");
}

TEST(ReportTest, StepsOfAnAxisAreRound) {
  for (const double most : {1e-9, 0.3, 1.0, 4.0, 7.0, 12.0, 99.0, 1e12}) {
    const double step = round_step(most);
    EXPECT_GE(most / step, 3.9) << most;
    EXPECT_LE(most / step, 10.1) << most;
  }
  EXPECT_EQ(round_step(0), 1);
}

DocumentPointer results(const std::string& json) {
  auto document = std::make_shared<Document>();
  document->path = "r.json";
  document->kind = Document::Kind::results;
  document->results = Json::parse(json).get<std::vector<Json>>();
  return document;
}

TEST(ReportTest, ResultsOfOtherTracesOrMemoryStandApart) {
  const auto groups = result_groups({results(R"([
    {"policy":"lru","machine":"m","trace":"a","fits":true,"iteration_seconds":2.0},
    {"policy":"lru","machine":"m","trace":"b","fits":true,"iteration_seconds":1.0},
    {"policy":"g10","machine":"m","trace":"a","fits":true,"iteration_seconds":1.5},
    {"policy":"g10","machine":"m","trace":"a","fits":true,"iteration_seconds":1.0,
     "manifest":{"run":{"gpu_memory":"6GiB"}}}])")});
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].title, "a on m");
  EXPECT_EQ(groups[0].rows.size(), 2U);
  EXPECT_EQ(groups[2].title, "a on m, GPU memory 6GiB");
  EXPECT_EQ(answer(groups[0]), "g10 is the fastest: 1.500 s an iteration.");
}

TEST(ReportTest, WhatFitsNowhereSaysSo) {
  const DocumentPointer document = results(R"([
    {"policy":"lru","machine":"m","trace":"a","fits":false,"reason":"op <x> needs 5 GiB","iteration_seconds":null}])");
  const std::string page = report_page({document}, "");
  EXPECT_THAT(page, HasSubstr("It fits under none of the policies."));
  EXPECT_THAT(page, HasSubstr("does not fit: op &lt;x&gt; needs 5 GiB"));
  EXPECT_THAT(page, Not(HasSubstr("<x>")));
}

TEST(ReportTest, NothingToShowIsAnError) {
  EXPECT_THROW(report_page({results("[]")}, ""), Error);
  EXPECT_THROW(report_page({}, ""), Error);
}

TEST(ReportTest, TheSameDocumentsGiveTheSameBytes) {
  const std::string json = R"([{"policy":"lru","machine":"m","trace":"a","fits":true,"iteration_seconds":2.0,
    "compute_seconds":1.0,"gap_seconds":0.25,"stall_seconds":{"h2d":0.75}}])";
  EXPECT_EQ(report_page({results(json)}, "t"), report_page({results(json)}, "t"));
}

}  // namespace
}  // namespace tencache::gui
