// Tables and pictures of whatever the commands write: what they hold, and that every output of every command opens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "answers/explain.h"
#include "core/error.h"
#include "gui/model/document.h"
#include "gui/model/session.h"
#include "gui/model/table.h"
#include "studies/sweep/sweep_results.h"
#include "tests/faces/gui_folder.h"
#include "tests/faces/gui_plot_cases.h"
#include "traces/file/file_io.h"

namespace tencache::gui {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Tables : public FilesInAFolder {
 protected:
  // What a command prints.
  std::string printed(const std::string& arguments, const std::string& name) const {
    const std::string command = std::string("cd ") + folder_.string() + " && " + TENCACHE_BINARY_DIR +
                                "/cli/tencache " + arguments + " >" + name + " 2>" + name + ".err";
    EXPECT_NE(std::system(command.c_str()), -1);
    EXPECT_GT(std::filesystem::file_size(path(name)), 2u) << command << "\n" << read_file(path(name + ".err"));
    return path(name);
  }
};

const DataTable& named(const DataTables& tables, std::string_view name) {
  const auto found = std::ranges::find(tables, name, &DataTable::name);
  if (found == tables.end()) throw Error("no table " + std::string(name));
  return *found;
}

std::vector<std::string> column(const DataTable& table, const std::string& name,
                                const std::vector<std::uint32_t>& rows) {
  std::vector<std::string> values;
  for (const std::uint32_t row : rows) values.push_back(table.raw(row, table.find_column(name)));
  return values;
}

constexpr const char* some_csv =
    "name,peak_bytes,iteration_seconds,note\r\nsmall,1048576,0.25,\"a \"\"b\"\", c\"\nlarge,2147483648,12,\n"
    "none,,,does not fit\n007,9,1,x\n";

TEST_F(Tables, CsvReadsAsItIs) {
  const DataTable table = read_csv(some_csv, "t.csv");
  ASSERT_EQ(table.row_count(), 4u);
  EXPECT_EQ(table.raw(0, 3), "a \"b\", c");
  EXPECT_EQ(table.shown(0, 1), "1.00 MiB");
  EXPECT_EQ(table.shown(0, 2), "250.0 ms");
  EXPECT_EQ(table.shown(2, 1), "");
  EXPECT_EQ(table.raw(3, 0), "007");
  EXPECT_TRUE(table.is_numeric(1));
  EXPECT_FALSE(table.is_numeric(0));
  // Written again, it is the same but for the quotes that are not needed and the ends of lines.
  const DataTable again = read_csv(table.csv(table.select("", DataTable::unsorted, true)), "again.csv");
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t c = 0; c < 4; ++c) EXPECT_EQ(again.raw(row, c), table.raw(row, c));
  }
}

TEST_F(Tables, RowsAreSortedAndFiltered) {
  const DataTable table = read_csv(some_csv, "t.csv");
  const auto names = [&](const std::string& filter, const char* by, bool ascending) {
    return column(table, "name", table.select(filter, table.find_column(by), ascending));
  };
  EXPECT_THAT(names("", "peak_bytes", true), ElementsAre("007", "small", "large", "none"));
  EXPECT_THAT(names("", "peak_bytes", false), ElementsAre("large", "small", "007", "none"));  // empty: last, always
  EXPECT_THAT(names("", "name", true), ElementsAre("007", "large", "none", "small"));
  EXPECT_THAT(names("AL", "name", true), ElementsAre("small"));  // lArge has none
  EXPECT_THAT(names("peak_bytes>1MiB", "name", true), ElementsAre("large"));
  EXPECT_THAT(names("iteration_seconds<2 name=small", "name", true), ElementsAre("small"));
  EXPECT_THAT(names("12", "name", true), ElementsAre("large"));
  EXPECT_THAT(names("nowhere", "name", true), ElementsAre());
}

TEST_F(Tables, ListsInDocumentsAreTablesOfTheirOwn) {
  const DataTables tables =
      tables_of(Json::parse(R"({"machine": "box", "peak": {"bytes": 2048}, "notes": ["a", "b"], "policies": [
        {"policy": "swift", "fits": true, "limits": {"gpu_bytes": 1024}, "tiers": [{"tier": "gpu", "held_bytes": 1}],
         "manifest": {"version": "1"}},
        {"policy": "lazy", "fits": false, "tiers": [{"tier": "gpu"}, {"tier": "cpu", "held_bytes": 3}]}]})"),
                "x.json");
  ASSERT_EQ(tables.size(), 4u);
  EXPECT_EQ(tables[0].name(), "figures");  // first, wherever the lists stand
  EXPECT_EQ(tables[0].raw(1, 0), "peak.bytes");
  EXPECT_EQ(tables[0].shown(1, 1), "2.00 KiB");
  EXPECT_EQ(tables[0].raw(2, 1), "a, b");
  const DataTable& policies = named(tables, "policies");
  EXPECT_EQ(policies.row_count(), 2u);
  EXPECT_EQ(policies.shown(0, policies.find_column("limits.gpu_bytes")), "1.00 KiB");
  EXPECT_EQ(policies.raw(1, policies.find_column("fits")), "no");
  EXPECT_EQ(policies.find_column("manifest.version"), DataTable::unsorted);
  const DataTable& tiers = named(tables, "policies.tiers");
  EXPECT_THAT(column(tiers, "of", {0, 1, 2}), ElementsAre("swift", "lazy", "lazy"));
  EXPECT_THAT(column(tiers, "held_bytes", {0, 1, 2}), ElementsAre("1", "", "3"));
  EXPECT_EQ(named(tables, "manifest").raw(0, 0), "manifest.version");
  EXPECT_EQ(tables[most_telling(tables)].name(), "policies.tiers");
  const DataTables list = tables_of(
      Json::parse(R"([{"policy": "swift", "ranks": [{"rank": 0}, {"rank": 1}], "manifest": {"version": "1"}}])"),
      "list");
  EXPECT_EQ(list[most_telling(list)].name(), "list");  // `compare --json`: not a list in it, though that be longer
}

// By its name, by the unit that a row names, or by what the document is.
TEST_F(Tables, FiguresHaveUnits) {
  const DataTables explained = tables_of(Json::parse(R"({"changes": [
    {"name": "pcie", "value": 1e9, "unit": "bytes_per_second", "gained_seconds": 0.5},
    {"name": "gpu_memory", "value": 2147483648, "unit": "bytes", "gained_seconds": 0},
    {"name": "cpu_adam", "value": 2e8, "unit": "parameters_per_second", "gained_seconds": -0.25},
    {"name": "gpu_speed", "value": 2, "unit": "factor", "gained_seconds": 2e-6},
    {"name": "g10", "value": null, "unit": null, "gained_seconds": 1}]})"),
                                         "explain.json");
  const DataTable& changes = named(explained, "changes");
  const auto shown = [](const DataTable& table, const char* name) {
    std::vector<std::string> texts;
    for (std::size_t row = 0; row < table.row_count(); ++row) {
      texts.push_back(table.shown(row, table.find_column(name)));
    }
    return texts;
  };
  EXPECT_THAT(shown(changes, "value"), ElementsAre("1.00 GB/s", "2.00 GiB", "0.2 G/s", "× 2", ""));
  EXPECT_THAT(shown(changes, "gained_seconds"), ElementsAre("500.0 ms", "0", "-250.0 ms", "2.000 µs", "1.000 s"));
  const DataTable other = read_csv(
      "slowdown,mean_utilization.gpu,error,usd_per_hour,run_hours,usd_per_million_tokens,tokens_per_second\n"
      "1.25,0.5,-0.103,3.912,12.25,0.0349,1200\n",
      "t.csv");
  std::vector<std::string> row;
  for (std::size_t column = 0; column < other.column_count(); ++column) row.push_back(other.shown(0, column));
  EXPECT_THAT(row, ElementsAre("× 1.25", "50.0 %", "-10.3 %", "$3.912", "12.25 h", "$0.0349", "1200.0"));
  EXPECT_EQ(other.select("mean_utilization.gpu>40%", DataTable::unsorted, true).size(), 1u);
  EXPECT_EQ(other.select("mean_utilization.gpu>60%", DataTable::unsorted, true).size(), 0u);
  // As the commands print them: of SSDs, nanoseconds by cause, intervals, published figures by their metric.
  const DataTables worn = tables_of(Json::parse(R"({"duty": 0.5, "write_amplification": 1.5, "tiers": [
    {"ssd_capacity_bytes": 3840000000000, "ssd_written_bytes_per_day": 512000000000, "drive_writes_per_day": 0.133,
     "years": 0.5}, {"ssd_capacity_bytes": 1e12, "ssd_written_bytes_per_day": 1e9, "years": 12.25}]})"),
                                    "endurance.json");
  EXPECT_THAT(shown(worn[0], "value"), ElementsAre("50.0 %", "1.5"));
  const DataTable& tiers = named(worn, "tiers");
  EXPECT_THAT(shown(tiers, "ssd_capacity_bytes"), ElementsAre("3.84 TB", "1 TB"));
  EXPECT_THAT(shown(tiers, "ssd_written_bytes_per_day"), ElementsAre("512 GB", "1 GB"));
  EXPECT_THAT(shown(tiers, "years"), ElementsAre("182 days", "12.2 years"));
  EXPECT_THAT(column(tiers, "ssd_capacity_bytes", {0, 1}), ElementsAre("3840000000000", "1000000000000"));  // and CSV
  const DataTables compared = tables_of(Json::parse(R"([{"interval_seconds": [1.5, 0.25], "attribution":
    {"time_ns": 2500000, "stall_ns": {"h2d": 1500}}, "tokens_per_second": 1234.56, "usd_per_iteration": 0.00001234,
    "allocators": {"gpu": {"padding": 0.25}}, "gpu_hit_rate": {"bytes": 0.75}, "names": ["a", "b"]}])"),
                                        "compare.json");
  std::vector<std::string> figures;
  for (std::size_t i = 0; i < compared[0].column_count(); ++i) figures.push_back(compared[0].shown(0, i));
  EXPECT_THAT(figures, ElementsAre("1.500 s, 250.0 ms", "2.500 ms", "1.500 µs", "1234.6", "$0.00001234", "25.0 %",
                                   "75.0 %", "a, b"));
  EXPECT_EQ(compared[0].raw(0, 0), "1.5, 0.25");
  const DataTables validated = tables_of(Json::parse(R"({"rows": [
    {"metric": "seconds", "over": "other", "simulated": 1.234567}, {"metric": "hit_rate.bytes", "simulated": 0.5},
    {"metric": "bytes.h2d", "simulated": 2.5e9}, {"metric": "seconds", "simulated": 1.5}]})"),
                                         "validate.json");
  EXPECT_THAT(shown(named(validated, "rows"), "simulated"), ElementsAre("1.235", "50.0 %", "2.5 GB", "1.500 s"));
  // The figure that a sensitivity analysis varies is of the whole document.
  const DocumentPointer varied = open_document(write("pcie.json", some_sensitivity));
  const DataTable& points = named(varied->tables, "lines.points");
  EXPECT_EQ(points.shown(0, points.find_column("value")), "4.00 GB/s");
}

TEST_F(Tables, BrokenOnesSayWhere) {
  EXPECT_THAT(refusal(write("a.csv", "a,b\n1,2\n1,2,3\n")),
              HasSubstr("a.csv:3: the row has 3 fields, the first line names 2"));
  EXPECT_THAT(refusal(write("b.csv", "a,b\n1,\"2\n")), HasSubstr("quote"));
  EXPECT_THAT(refusal(write("c.csv", "a,a\n1,2\n")), HasSubstr("'a' stands twice"));
  EXPECT_THAT(refusal(write("d.csv", "a,b\n")), HasSubstr("no row"));
  EXPECT_THAT(refusal(write("e.json", R"({"name": "left-pad", "version": "1.0.0"})")), HasSubstr("is no result"));
  EXPECT_THAT(refusal(write("f.json", R"({"terms": [)")), HasSubstr("was it copied whole?"));
  EXPECT_THAT(refusal(write("h.jsonl", "{\"action\": \"fetch\"}\n{\"action\": \"fe")),
              HasSubstr("h.jsonl:2: is no JSON"));
  EXPECT_THAT(refusal(write("i.svg", "<svg/>")), HasSubstr("for a browser"));
  EXPECT_THAT(refusal(write("j.html", "<!DOCTYPE html>")), HasSubstr("for a browser"));
}

// Stalls of 2 s, of which 1.5 go with the cause, 0.25 wait all the same and 0.25 move.
TEST_F(Tables, ExplainIsBarsOfStallsByCause) {
  ExplainAnswer answer;
  answer.run = {.fits = true,
                .reason = {},
                .iteration_seconds = 6,
                .compute_seconds = 3,
                .gap_seconds = 1,
                .stall_seconds = {{StallCause::h2d, 2}}};
  answer.ideal_seconds = 4;
  answer.causes = {{StallCause::h2d,
                    2,
                    "h2d takes no time",
                    1.5,
                    0.25,
                    0.25,
                    {.fits = true, .reason = {}, .iteration_seconds = 4.5}}};
  answer.in_turn.steps = {{StallCause::h2d, "", 1.5, 4.5, {}}};
  const std::optional<tencache::Document> document = document_of(to_json_of(answer), "x.json");
  ASSERT_TRUE(document);
  const BarChart* const chart = document->first<BarChart>();
  ASSERT_NE(chart, nullptr);
  ASSERT_EQ(chart->bars.size(), 4u);
  EXPECT_DOUBLE_EQ(chart->axis.most, 6);
  EXPECT_DOUBLE_EQ(chart->bars[0].total(), 6);
  const ChartBar& cause = chart->bars[2];
  EXPECT_EQ(cause.label, "copies to GPU");
  ASSERT_EQ(cause.parts.size(), 3u);
  EXPECT_EQ(cause.parts[0].ink, (Ink{Ink::Kind::stall, 0}));
  EXPECT_DOUBLE_EQ(cause.parts[0].value, 1.5);
  EXPECT_DOUBLE_EQ(cause.parts[1].value, 0.25);
  EXPECT_DOUBLE_EQ(cause.parts[2].value, 0.25);
  EXPECT_EQ(cause.text, "2.000 s, 1.500 s confirmed");
  EXPECT_EQ(chart->legend().size(), 6u);  // compute, host, the stall, nothing moves, still, moved
}

// What could not be simulated confirms nothing, which is not the same as none of it.
TEST_F(Tables, ACauseThatCannotBeTakenAwayIsNotConfirmed) {
  ExplainAnswer answer;
  answer.run = {.fits = true,
                .reason = {},
                .iteration_seconds = 6,
                .compute_seconds = 4,
                .gap_seconds = 0,
                .stall_seconds = {{StallCause::memory, 2}}};
  answer.ideal_seconds = 4;
  ExplainedCause memory{
      .cause = StallCause::memory, .attributed_seconds = 2, .change = "GPU memory for everything", .without = {}};
  memory.without.reason = "no room at all";
  answer.causes = {memory};
  answer.in_turn.steps = {{StallCause::h2d, "", 1.5, 4.5, {}}, {StallCause::d2h, "", 0.25, 4.25, {}}};
  const std::optional<tencache::Document> document = document_of(to_json_of(answer), "x.json");
  ASSERT_TRUE(document);
  const BarChart* const chart = document->first<BarChart>();
  ASSERT_NE(chart, nullptr);
  EXPECT_EQ(chart->bars[2].text, "2.000 s, not confirmed");
  EXPECT_THAT(chart->bars[2].facts, ::testing::Contains(::testing::Pair("no such run", "no room at all")));
  EXPECT_EQ(chart->bars[3].label, "without copies to GPU");
  EXPECT_EQ(chart->bars[4].label, "and copies from GPU");
  EXPECT_THAT(chart->bars[0].facts, ::testing::Contains(::testing::Pair("compute", "4.000 s, 66.7 %")));
}

// Rows of one name are told apart by their workload; groups are experiments.
TEST_F(Tables, ValidatedRowsHaveLabelsOfTheirOwn) {
  const std::optional<tencache::Document> document =
      document_of(Json::parse(R"({"version": "0", "summary": {"judged": 3, "missed": 0, "median_error": 0},
    "summary_without_recordings": {}, "gpu_summary": {}, "memory_summary": {}, "gpus": [],
    "systems": [{"system": "S", "rows": [
    {"experiment": "peak", "row": "S ÷ all", "workloads": ["A"], "published": {"from": 1, "to": 1}, "simulated": 1},
    {"experiment": "peak", "row": "S ÷ all", "workloads": ["B"], "published": {"from": 1, "to": 1}, "simulated": 1},
    {"experiment": "time", "row": "S ÷ all", "workloads": ["A"], "published": {"from": 1, "to": 1}, "simulated": 1}
    ]}]})"),
                  "x.json");
  ASSERT_TRUE(document);
  const BarChart* const chart = document->first<BarChart>();
  ASSERT_NE(chart, nullptr);
  std::vector<std::string> labels, groups;
  for (const ChartBar& bar : chart->bars) {
    labels.push_back(bar.label);
    groups.push_back(bar.group);
  }
  EXPECT_THAT(labels, ElementsAre("A: S ÷ all", "B: S ÷ all", "S ÷ all"));
  EXPECT_THAT(groups, ElementsAre("S: peak", "S: peak", "S: time"));
}

TEST_F(Tables, TunedCandidatesAreDots) {
  const std::optional<ScatterChart> chart = candidates_of(
      read_csv("candidate,best,fits,relative_time\n0,false,true,1.5\n1,true,true,1\n2,false,false,\n", "t"));
  ASSERT_TRUE(chart.has_value());
  ASSERT_EQ(chart->dots.size(), 2u);
  EXPECT_DOUBLE_EQ(chart->dots[0].y, 1.5);
  EXPECT_TRUE(chart->dots[1].marked);
  EXPECT_EQ(chart->note, "1 do not fit");
}

TEST_F(Tables, ASweepsCsvIsASweep) {
  const std::vector<SweepRow> rows = some_sweep();
  Session session;
  session.open(write("sweep.csv", sweep_csv(rows)));
  session.wait();
  EXPECT_EQ(session.take_view().name, "cost") << session.messages().last();
  EXPECT_EQ(sweep_csv(session.documents().sweep_rows()), sweep_csv(rows));
  std::string damaged = sweep_csv(rows);
  damaged.replace(damaged.find(",8,"), 3, ",x,");
  EXPECT_THAT(refusal(write("damaged.csv", damaged)), HasSubstr("'x' is no"));
}

// Each output of each command, as it is now.
TEST_F(Tables, WhatTheCommandsWriteOpens) {
  const std::string trace = std::string(TENCACHE_SOURCE_DIR) + "/traces/samples/gpt-small.trace.jsonl.zst";
  const std::string on = " " + trace + " -m demo-small-gpu ";
  struct Case {
    std::string name, arguments;
    bool has_chart = false;
    Document::Kind kind = Document::Kind::table;
  };
  const Case cases[] = {
      {"explain.json", "explain" + on + "-p on-demand --json", true},
      {"bound.json", "bound" + on + "--json", true},
      {"fit.json", "fit" + on + "-p on-demand --json", true},
      {"fragment.json", "fragment " + trace + " --json", true},
      {"ids.json", "rows generate --rows 100,50 --batches 4 -o small.ids --json"},
      {"rows.json", "rows small.ids --slots 10% --slots 50% --json", true},
      {"message.json", "why 'CUDA out of memory. Tried to allocate 2.00 GiB.' --json"},
      {"tune.json", "tune" + on + "-p 10cache --budget 4 --csv tune.csv --json", true},
      {"validate.json", "validate ssdtrain --json", true},
      {"endurance.json", "endurance" + on + "-p on-demand --json"},
      {"info.json", "info " + trace + " --json"},
      {"policies.json", "policies --json"},
      {"machines.json", "machines --json"},
      {"models.json", "models --json"},
      {"model.json", "models --model gpt2 --json"},
      {"prices.json", "prices --json"},
      {"generate.json", "generate --model gpt2 --batch 1 --seq 64 --gpu a100-40g -o t.trace.jsonl --json"},
      {"replay.json", "replay" + on + "-p lru --decisions d.jsonl.zst --json", false, Document::Kind::results},
      {"other.json", "replay" + on + "-p on-demand --decisions d.jsonl --timeline t.json --json", false,
       Document::Kind::results},
      {"diff.json", "diff replay.json other.json --json"},
      {"reproduce.json", "reproduce replay.json --json"},
      {"sensitivity.json", "sensitivity" + on + "--over pcie=4GB/s..8GB/s:2 -p lru --csv s.csv --svg s.svg --json",
       false, Document::Kind::sensitivity}};
  for (const Case& c : cases) {
    const DocumentPointer document = open_document(printed(c.arguments, c.name));
    EXPECT_EQ(document->kind, c.kind) << c.name;
    ASSERT_FALSE(document->tables.empty()) << c.name;
    EXPECT_GT(document->tables.front().row_count(), 0u) << c.name;
    EXPECT_EQ(document->first<BarChart>() != nullptr, c.has_chart) << c.name;
  }
  ASSERT_NE(open_document(path("fragment.json"))->first<CellMap>(), nullptr);
  EXPECT_EQ(open_document(path("fragment.json"))->first<CellMap>()->columns.size(), 240u);
  for (const char* file : {"d.jsonl", "d.jsonl.zst", "tune.csv"}) {
    const DocumentPointer document = open_document(path(file));
    EXPECT_EQ(document->kind, Document::Kind::table) << file;
    EXPECT_GT(document->tables.front().row_count(), 1u) << file;
  }
  EXPECT_NE(open_document(path("tune.csv"))->first<ScatterChart>(), nullptr);
  const DocumentPointer varied = open_document(path("s.csv")), as_json = open_document(path("sensitivity.json"));
  EXPECT_EQ(varied->kind, Document::Kind::sensitivity);
  EXPECT_EQ(table_csv(points_table(*varied->sensitivity)), table_csv(points_table(*as_json->sensitivity)));
  EXPECT_EQ(open_document(path("t.json"))->kind, Document::Kind::timeline);
  EXPECT_EQ(open_document(path("t.trace.jsonl"))->kind, Document::Kind::trace);
  const DocumentPointer log = open_document(path("d.jsonl"));
  const DataTable& decisions = log->tables.front();
  EXPECT_LT(decisions.select("action=fetch why.reason=demand", DataTable::unsorted, true).size(),
            decisions.row_count());
  EXPECT_GT(decisions.select("action=fetch why.reason=demand", DataTable::unsorted, true).size(), 10u);
  for (const char* file : {"machines/demo-small-gpu.yaml", "prices/aws.yaml"}) {
    const DocumentPointer document = open_document(std::string(TENCACHE_SOURCE_DIR) + "/configs/" + file);
    EXPECT_GT(document->tables.front().row_count(), 2u) << file;
  }
}

}  // namespace
}  // namespace tencache::gui
