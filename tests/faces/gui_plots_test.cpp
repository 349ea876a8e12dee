// The dashboard's plots: sensitivity analyses and sweeps, as files and as models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "answers/cost.h"
#include "core/error.h"
#include "gui/model/document.h"
#include "gui/model/session.h"
#include "studies/sweep/sweep_results.h"
#include "tests/faces/gui_cases.h"
#include "tests/faces/gui_folder.h"
#include "tests/faces/gui_plot_cases.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Plots : public FilesInAFolder {};

TEST_F(Plots, SensitivityReadsAsItWasWritten) {
  Session session;
  session.open(write("s.json", some_sensitivity));
  session.wait();
  ASSERT_EQ(session.documents().plots().size(), 1u) << session.messages().last();
  EXPECT_EQ(session.take_view().name, "sensitivity");
  EXPECT_EQ(session.take_view().name, "");
  const SensitivityAnswer& plot = *session.documents().plots()[0];
  EXPECT_EQ(title_of(plot), "pcie of box, step.trace.jsonl");
  EXPECT_EQ(plot.axis().text(plot.axis().machine_value), "12.00 GB/s");
  ASSERT_EQ(plot.lines.size(), 3u);
  EXPECT_EQ(label_of(plot, plot.lines[0]), "swift");
  EXPECT_DOUBLE_EQ(plot.lines[0].knee.value().value, 8e9);
  EXPECT_EQ(knee_text(plot, plot.lines[0]), "beyond 8.00 GB/s nothing is gained");
  EXPECT_FALSE(plot.lines[1].points[0].fits);
  EXPECT_FALSE(plot.lines[1].knee.has_value());
  EXPECT_EQ(knee_text(plot, plot.lines[1]), "more than the largest value shown would still help");
  EXPECT_EQ(plot.lines[2].policy, bound_line);
  const std::string csv = table_csv(points_table(plot));
  EXPECT_THAT(csv, HasSubstr("kind,policy,pcie_bytes_per_second,fits,iteration_seconds,reason\n"
                             "point,swift,4000000000,true,4,\n"));
  EXPECT_THAT(csv, HasSubstr("knee,swift,8000000000,true,2,\n"));
  EXPECT_THAT(csv, HasSubstr("point,lazy,4000000000,false,,no room\n"));
}

// What `tencache sensitivity --csv` writes, and the dashboard exports.
TEST_F(Plots, SensitivityReadsFromCsvToo) {
  const DocumentPointer document = open_document(
      write("s.csv", table_csv(points_table(*open_document(write("s.json", some_sensitivity))->sensitivity))));
  EXPECT_EQ(document->kind, Document::Kind::sensitivity);
  ASSERT_NE(document->sensitivity, nullptr);
  ASSERT_EQ(document->tables.size(), 1u);  // and as a table
  const SensitivityAnswer& plot = *document->sensitivity;
  EXPECT_EQ(title_of(plot), "pcie, s.csv");
  EXPECT_EQ(plot.axis().unit, ParameterUnit::bytes_per_second);
  ASSERT_EQ(plot.lines.size(), 3u);
  EXPECT_EQ(plot.lines[0].points.size(), 3u);
  EXPECT_DOUBLE_EQ(plot.lines[0].points[2].iteration_seconds, 2);
  ASSERT_TRUE(plot.lines[0].knee.has_value());
  EXPECT_DOUBLE_EQ(plot.lines[0].knee->value, 8e9);
  EXPECT_EQ(knee_text(plot, plot.lines[0]), "beyond 8.00 GB/s nothing is gained");
  EXPECT_FALSE(plot.lines[1].points[0].fits);
  EXPECT_EQ(plot.lines[1].points[0].reason, "no room");
  EXPECT_DOUBLE_EQ(plot.lines[1].unlimited.iteration_seconds, 1.5);
  EXPECT_FALSE(plot.lines[1].knee.has_value());
  EXPECT_EQ(plot.lines[2].policy, bound_line);
  const std::string two = "kind,policy,pcie_bytes_per_second,gpu_speed_factor,fits,iteration_seconds,reason\n";
  const DocumentPointer second =
      open_document(write("two.csv", two + "point,p,4e9,1,true,3,\npoint,p,4e9,2,true,2,\n"));
  ASSERT_EQ(second->sensitivity->lines.size(), 2u);
  EXPECT_EQ(label_of(*second->sensitivity, second->sensitivity->lines[1]), "p, gpu_speed × 2");
  EXPECT_THAT(refusal(write("odd.csv", two + "hint,p,4e9,1,true,3,\n")), HasSubstr("odd.csv:2: 'hint' is neither"));
  EXPECT_THAT(refusal(write("cut.csv", two + "point,p,,1,true,3,\n")), HasSubstr("cut.csv:2"));
}

TEST_F(Plots, DamagedOnesSayWhatTheyAre) {
  const std::string whole = some_sensitivity;
  std::string other_unit = whole;
  other_unit.replace(other_unit.find("bytes_per_second"), 16, "furlongs_a_night");
  EXPECT_THAT(refusal(write("unit.json", other_unit)), HasSubstr("furlongs_a_night"));
  EXPECT_THAT(refusal(write("empty.json", R"({"parameters": [], "lines": []})")), HasSubstr("no sensitivity analysis"));
  EXPECT_THAT(refusal(write("cut.json", whole.substr(0, whole.size() / 2))), HasSubstr("cut.json"));
  EXPECT_THAT(refusal(write("none.json", R"({"sweep": {}, "rows": []})")), HasSubstr("no combination"));
  EXPECT_THAT(refusal(write("keys.json", R"({"sweep": {}, "rows": [{"key": "a"}]})")), HasSubstr("no sweep"));
  EXPECT_THAT(refusal(write("not.sqlite", std::string("SQLite format 3") + std::string(200, '\0'))),
              HasSubstr("not.sqlite"));
}

// The same figures as `tencache sensitivity` has: more GPU memory helps until everything is there.
TEST_F(Plots, ASliderVariesItsFigure) {
  Workload workload;
  workload.trace = std::make_shared<const Trace>(gui_trace());
  workload.scenario.trace.file = "test";
  workload.machine = gui_machine();
  workload.scenario.policy.name = "lru";
  Session session;
  session.what_if.emplace(workload);
  session.plot(session.what_if->knobs()[0]);
  EXPECT_TRUE(session.documents().plotting());
  EXPECT_TRUE(session.busy());
  session.wait();
  ASSERT_EQ(session.documents().plots().size(), 1u) << session.messages().last();
  const SensitivityAnswer& plot = *session.documents().plots()[0];
  EXPECT_EQ(plot.axis().name, "gpu_memory");
  EXPECT_DOUBLE_EQ(plot.axis().machine_value, 5'600'000);
  EXPECT_EQ(plot.lines.front().policy, "lru");
  EXPECT_EQ(plot.lines.back().policy, bound_line);
  const SensitivityLine& lru = plot.lines.front();
  EXPECT_FALSE(lru.points.front().fits);
  EXPECT_TRUE(lru.points.back().fits);
  ASSERT_TRUE(lru.knee.has_value()) << knee_text(plot, lru);
  EXPECT_NEAR(lru.knee->value, 12'500'000, 600'000);  // what the trace needs at once
  EXPECT_EQ(parameter_of_knob(workload, "batch"), "");
  EXPECT_EQ(parameter_of_knob(workload, "nvme"), "");  // it has none
  EXPECT_EQ(parameter_of_knob(workload, "pcie"), "pcie");
}

TEST_F(Plots, SweepsOpenFromBothTheirFiles) {
  const std::vector<SweepRow> rows = some_sweep();
  {
    SweepStore store(path("r.sqlite"));
    store.set_about({{"name", "test"}});
    store.add(rows);
  }
  EXPECT_EQ(open_document(path("r.sqlite"))->sweep_rows, rows);
  const DocumentPointer json = open_document(write("r.json", sweep_text_of(rows)));
  EXPECT_EQ(json->kind, Document::Kind::sweep);
  EXPECT_EQ(json->sweep_rows, rows);
  Session session;
  session.open(path("r.sqlite"));
  session.wait();
  EXPECT_EQ(session.take_view().name, "cost");
  EXPECT_EQ(session.documents().sweep_rows().size(), rows.size());
}

// cheap-slow, dear-fast and the one between them are the front; the dominated one is not, until the one that beats it
// is filtered away.
TEST_F(Plots, TheFrontIsThatOfWhatIsShown) {
  const std::vector<SweepRow> rows = some_sweep();
  EXPECT_THAT(workloads_of(rows), ElementsAre("small", "large"));
  EXPECT_THAT(machines_of(rows, "small"), ElementsAre("cheap", "dear", "tiny"));
  EXPECT_THAT(policies_of(rows, "small"), ElementsAre("lru", "g10"));
  CostFilter filter;
  filter.workload = "small";
  const auto front = [&] {
    std::vector<std::string> names;
    for (const CostPoint& point : cost_chart(rows, filter).points) {
      if (point.on_front) names.push_back(point.row->machine + " " + point.row->policy);
    }
    return names;
  };
  CostChart chart = cost_chart(rows, filter);
  EXPECT_EQ(chart.unit, CostUnit::million_tokens);
  EXPECT_EQ(chart.points.size(), 4u);
  EXPECT_EQ(chart.misfits, 1u);
  EXPECT_THAT(front(), ElementsAre("dear g10", "cheap g10"));
  filter.hidden_policies = {"g10"};
  EXPECT_THAT(front(), ElementsAre("dear lru", "cheap lru"));
  filter = {.workload = "small", .spot = true, .hidden_machines = {}, .hidden_policies = {}};
  chart = cost_chart(rows, filter);
  EXPECT_EQ(chart.points.size(), 1u);  // one has a price on spot
  EXPECT_EQ(chart.without_price, 3u);
  EXPECT_DOUBLE_EQ(chart.points[0].seconds, 4 * 1.5);
  std::vector<SweepRow> with_ideal = rows;
  with_ideal.push_back(rows[3]);
  with_ideal.back().policy = "ideal";
  with_ideal.back().iteration_seconds = 1;
  with_ideal.back().usd_per_million_tokens = 0.1;
  filter = {.workload = "small", .spot = false, .hidden_machines = {}, .hidden_policies = {}};
  chart = cost_chart(with_ideal, filter);
  EXPECT_TRUE(chart.points[0].reference);  // shown, but on no front and in nobody's way
  EXPECT_FALSE(chart.points[0].on_front);
  EXPECT_TRUE(chart.points[1].on_front);
  filter = {.workload = "large", .spot = false, .hidden_machines = {}, .hidden_policies = {}};
  EXPECT_EQ(cost_chart(rows, filter).unit, CostUnit::iteration);  // its tokens are not known
}

}  // namespace
}  // namespace tencache::gui
