// The report's parts that no reader of HTML can check: escaping, merged boxes, figures that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "answers/bound.h"
#include "answers/compare.h"
#include "answers/explain.h"
#include "answers/fit.h"
#include "answers/measured.h"
#include "answers/tune.h"
#include "core/error.h"
#include "gui/model/results.h"
#include "gui/report/html.h"
#include "gui/report/page.h"
#include "tests/faces/gui_folder.h"
#include "tests/in_process.h"

namespace tencache::gui {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string page_of(const std::vector<DocumentPointer>& documents, const std::string& title = "") {
  std::vector<std::string> errors;
  std::string page = report_page(documents, title, errors);
  EXPECT_THAT(errors, testing::IsEmpty());
  return page;
}

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
  const DocumentPointer document = results(R"([
    {"policy":"lru","machine":"m","trace":"a","fits":true,"iteration_seconds":2.0},
    {"policy":"lru","machine":"m","trace":"b","fits":true,"iteration_seconds":1.0},
    {"policy":"g10","machine":"m","trace":"a","fits":true,"iteration_seconds":1.5},
    {"policy":"g10","machine":"m","trace":"a","fits":true,"iteration_seconds":1.0,
     "manifest":{"run":{"gpu_memory":"6GiB"}}}])");
  const std::vector<CompareAnswer> groups = comparisons_of(open_results({document}));
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].title, "a on m");
  EXPECT_EQ(groups[0].results.size(), 2U);
  EXPECT_EQ(groups[2].title, "a on m, GPU memory 6GiB");
  EXPECT_THAT(page_of({document}), HasSubstr("g10 is the fastest: 1.500 s an iteration."));
}

TEST(ReportTest, WhatFitsNowhereSaysSo) {
  const DocumentPointer document = results(R"([
    {"policy":"lru","machine":"m","trace":"a","fits":false,"reason":"op <x> needs 5 GiB","iteration_seconds":null}])");
  const std::string page = page_of({document});
  EXPECT_THAT(page, HasSubstr("It fits under none of the policies."));
  EXPECT_THAT(page, HasSubstr("does not fit: op &lt;x&gt; needs 5 GiB"));
  EXPECT_THAT(page, Not(HasSubstr("<x>")));
}

TEST(ReportTest, NothingToShowIsAnError) {
  EXPECT_THROW(page_of({results("[]")}), Error);
  EXPECT_THROW(page_of({}), Error);
}

TEST(ReportTest, TheSameDocumentsGiveTheSameBytes) {
  const std::string json = R"([{"policy":"lru","machine":"m","trace":"a","fits":true,"iteration_seconds":2.0,
    "compute_seconds":1.0,"gap_seconds":0.25,"stall_seconds":{"h2d":0.75}}])";
  EXPECT_EQ(page_of({results(json)}, "t"), page_of({results(json)}, "t"));
}

TEST(ReportTest, NamesAreShortenedInTheMiddle) {
  EXPECT_EQ(shortened_to("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened_to("abcdefghij", 7), "abc…hij");
  EXPECT_EQ(shortened_to("äöüßäöüß", 5), "äö…üß");
}

// What is a thousandth of the bar has a pixel and a half of it, and the whisker ends within the picture.
TEST(ReportTest, BarsKeepTheirPartsAndWhiskers) {
  const std::string page = page_of({results(R"([
    {"policy":"lru","machine":"m","trace":"a","fits":true,"iteration_seconds":2.0,"compute_seconds":1.9999,
     "stall_seconds":{"h2d":0.0001},"interval_seconds":[1.9,2.9]}])")});
  EXPECT_THAT(page, HasSubstr("width=\"1.50\" height=\"15\" data-value=\"0.0001\""));
  EXPECT_THAT(page, HasSubstr("v8M780 "));  // the end of the scale, of 240 + 540 pixels
}

class ReportOfFiles : public FilesInAFolder {
 protected:
  InProcessAnswer report(std::vector<std::string> files) const {
    files.insert(files.begin(), "report");
    files.push_back("--output=" + path("page.html"));
    return run_in_process(files);
  }
};

std::string some_explanation() {
  ExplainAnswer answer;
  answer.policy = "lru";
  answer.machine = "m";
  answer.trace = "in/t";
  answer.run = {.fits = true,
                .reason = {},
                .iteration_seconds = 6,
                .compute_seconds = 3,
                .gap_seconds = 1,
                .stall_seconds = {{StallCause::h2d, 2}}};
  answer.ideal_seconds = 4;
  answer.bound_seconds = 3.5;
  answer.bound_term = "fetch";
  answer.in_turn = {.steps = {{StallCause::h2d, "", 1.5, 4.5, {}}},
                    .attributed_seconds = 2,
                    .confirmed_seconds = 1.5,
                    .remainder_seconds = 0.5,
                    .refused = {}};
  answer.causes = {{StallCause::h2d,
                    2,
                    "h2d takes no time",
                    1.5,
                    0.25,
                    0.25,
                    {.fits = true, .reason = {}, .iteration_seconds = 4.5}}};
  answer.changes.push_back({"pcie × 2", "machine", "pcie", 2, {}, true, 5, 1, {}});
  return to_json_of(answer).dump();
}

// Under the headings that the commands print.
TEST_F(ReportOfFiles, EachCommandsDocumentIsASection) {
  const std::string explained = page_of({open_document(write("e.json", some_explanation()))});
  for (const char* text :
       {"Where the time goes: lru on m, t", "Iteration 6.000 s = compute 3.000 s + gaps 1.000 s + stalls 2.000 s",
        "no policy is faster than 3.500 s, where fetch binds", "<th class=\"left\">waits for</th><th>attributed</th>",
        "<td data-value=\"0.25\">250.0 ms</td>", "what would help", "pcie × 2", "waits for copies to GPU all the same",
        "Taken away one after the other"}) {
    EXPECT_THAT(explained, HasSubstr(text));
  }
  BoundAnswer answer;
  answer.bound_seconds = 2;
  answer.bound_term = "h2d <x>";
  answer.terms.resize(2);
  answer.terms[0].name = "compute";
  answer.terms[1].name = "h2d <x>";
  answer.terms[1].seconds = 2;
  answer.terms[1].links = {"h2d", "d2h"};
  answer.terms[1].bandwidth_bytes_per_second = 12e9;
  const std::string bound = page_of({open_document(write("b.json", to_json_of(answer).dump()))});
  for (const char* text : {"No policy is faster than 2.000 s an iteration; what binds: h2d &lt;x&gt;.",
                           "<th>alone</th>", "h2d, d2h", "12.00 GB/s"}) {
    EXPECT_THAT(bound, HasSubstr(text));
  }
  EXPECT_THAT(bound, Not(HasSubstr("<x>")));
  FitAnswer unfit;
  unfit.demand.resize(1);
  unfit.demand[0].peak = {2048, 3, "matmul", {{"parameter", 2048}}};
  unfit.demand[0].tiers = {{"gpu", "gpu", 1024, 1024, 1024, {}}};
  FitPolicyAnswer& lru = unfit.policies.emplace_back();
  lru.policy = "lru";
  lru.reason = "too little";
  lru.minimum_gpu_bytes = 4096;
  const std::string fit = page_of({open_document(write("f.json", to_json_of(unfit).dump()))});
  for (const char* text : {"It does not fit.", "tier, fastest first", "left over", "least GPU memory", "4.00 KiB",
                           "why not", "too little", "alive at most"}) {
    EXPECT_THAT(fit, HasSubstr(text));
  }
  TuneAnswer tuned;
  tuned.workloads = {{"in/t", 1, 1.5, 0.5, "", {}, {}, {}, ""}};
  tuned.best = {{{"window", "4"}}, true, {}, false, 1, {1}, {}, 1, {}};
  tuned.defaults.fits = true;
  tuned.speedup = 1.5;
  tuned.candidates = tuned.simulations = 9;
  tuned.combinations = 100;
  tuned.flatness = {{"window", "4", true, {{"8", true, true, 1.25, false}}}};
  const std::string tune = page_of({open_document(write("t.json", to_json_of(tuned).dump()))});
  for (const char* text : {"9 candidates of 100, 9 simulations. Best: window=4. × 1.5 as fast as the defaults.",
                           "This one alone, others as in best", "× 1.25", "<th>defaults</th>"}) {
    EXPECT_THAT(tune, HasSubstr(text));
  }
  const std::string summary =
      R"({"judged": 1, "missed": 0, "fitted": 0, "listed": 0, "skipped": 0, "median_error": 0.05,
    "p90_error": 0.05, "worst_error": 0.05, "passed": true})";
  const std::string validated = page_of({open_document(
      write("v.json", R"({"version": "0", "summary": )" + summary + R"(, "summary_without_recordings": )" + summary +
                          R"(, "gpu_summary": {}, "memory_summary": {}, "gpus": [],
    "systems": [{"system": "S",
    "rows": [{"experiment": "e", "row": "r", "metric": "seconds", "over": null, "published": {"text": "2 s", "from": 2,
    "to": 2}, "simulated": 2.1, "error": 0.05, "verdict": "within"}]}]})"))});
  for (const char* text : {"1 rows count, 0 of them missed; median error 5.0 %, worst 5.0 %.", "2.100 s", "published",
                           "<th class=\"left\">verdict</th>"}) {
    EXPECT_THAT(validated, HasSubstr(text));
  }
}

// A row among the results, and what only a measurement has.
TEST_F(ReportOfFiles, AMeasuredRunStandsBesideItsPrediction) {
  ReplayedAnswer answer;
  answer.policy = "lru";
  answer.machine = "box";
  answer.trace = "t";
  answer.fits = answer.measured.emplace(true);
  answer.iteration_seconds = 4;
  answer.verification.tensors = 12;
  answer.prediction.emplace().result = answer;
  answer.prediction->iteration_seconds = 3;
  answer.prediction->error = -0.25;
  answer.prediction->comparison.emplace().iteration_seconds = {3, 4, -0.25};
  const DocumentPointer document = open_document(write("m.json", to_json_of(answer).dump()));
  EXPECT_EQ(document->results.size(), 1u);
  const std::string page = page_of({document});
  for (const char* text : {"Measured: lru on box, t", "12 tensors verified, 0 corrupted", "Predicted against measured",
                           "<td data-value=\"-0.25\">", "measured; predicted -25.0 %"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST_F(ReportOfFiles, ABadFileIsNamedAndTheRestIsShown) {
  const std::string good = write("e.json", some_explanation()), bad = write("bad.json", R"({"terms": [)");
  const InProcessAnswer answer = report({bad, good, path("none.json")});
  EXPECT_EQ(answer.code, 2);
  EXPECT_THAT(answer.err, HasSubstr("tencache: " + bad + ": begins as JSON and is none"));
  EXPECT_THAT(answer.err, HasSubstr("none.json: cannot be opened"));
  EXPECT_THAT(answer.err, HasSubstr("without 2 of the files"));
  const std::string page = read_file(path("page.html"));
  EXPECT_THAT(page, HasSubstr("Not shown"));
  EXPECT_THAT(page, HasSubstr("bad.json: begins as JSON and is none"));
  EXPECT_THAT(page, HasSubstr("Where the time goes: lru on m, t"));
  EXPECT_EQ(report({good}).code, 0);
  EXPECT_THAT(read_file(path("page.html")), Not(HasSubstr("Not shown")));
  // Of nothing that could be shown no page is made.
  std::filesystem::remove(path("page.html"));
  EXPECT_EQ(report({bad}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("page.html")));
}

}  // namespace
}  // namespace tencache::gui
