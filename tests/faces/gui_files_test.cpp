// The dashboard's files: which open and as what, what broken ones say, results as rows, and runs that are watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "answers/compare.h"
#include "answers/timeline/chrome_trace.h"
#include "answers/timeline/timeline_csv.h"
#include "answers/timeline/training_timeline.h"
#include "core/error.h"
#include "core/text.h"
#include "gui/model/describe.h"
#include "gui/model/results.h"
#include "gui/model/session.h"
#include "gui/model/timeline_file.h"
#include "tests/faces/gui_cases.h"
#include "traces/file/file_io.h"
#include "traces/file/trace_file.h"

namespace tencache::gui {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("tencache-gui-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string write_timelines(const std::string& name) const {
    const Recording predicted = simulate_recording("predicted: on-demand");
    const Recording measured = simulate_recording("measured: on-demand", slower_machine());
    write_chrome_trace(path(name), {{predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace},
                                    {measured.title, &measured.timeline, &measured.machine, &measured.trace}});
    return path(name);
  }
  std::string refusal(const std::string& file) const {
    try {
      open_document(file);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(file));
      return error.what();
    }
    ADD_FAILURE() << file << " was opened";
    return "";
  }

 private:
  std::filesystem::path folder_;
};

void expect_same(const Recording& read, const Recording& written) {
  EXPECT_EQ(read.title, written.title);
  ASSERT_EQ(read.timeline.spans.size(), written.timeline.spans.size());
  for (std::size_t i = 0; i < read.timeline.spans.size(); ++i) {
    const Span &a = read.timeline.spans[i], &b = written.timeline.spans[i];
    EXPECT_EQ(a.start_ns, b.start_ns);
    EXPECT_EQ(a.end_ns, b.end_ns);
    EXPECT_EQ(a.kind, b.kind);
    EXPECT_EQ(a.lane, b.lane);
    EXPECT_EQ(a.iteration, b.iteration);
    EXPECT_EQ(a.op, b.op);
    EXPECT_EQ(a.tensor, b.tensor);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(a.urgent, b.urgent);
    EXPECT_EQ(a.from, b.from);
    EXPECT_EQ(a.to, b.to);
    if (a.kind == SpanKind::stall) {
      EXPECT_EQ(a.cause, b.cause);
    }
  }
  ASSERT_EQ(read.timeline.occupancy.size(), written.timeline.occupancy.size());
  for (std::size_t i = 0; i < read.timeline.occupancy.size(); ++i) {
    const OccupancySample &a = read.timeline.occupancy[i], &b = written.timeline.occupancy[i];
    EXPECT_EQ(std::tie(a.time_ns, a.tier, a.role, a.tensor, a.used, a.change),
              std::tie(b.time_ns, b.tier, b.role, b.tensor, b.used, b.change));
  }
  ASSERT_EQ(read.trace.ops.size(), written.trace.ops.size());
  for (OpIndex op = 0; op < read.trace.ops.size(); ++op) {
    EXPECT_EQ(read.trace.name(read.trace.ops[op]), written.trace.name(written.trace.ops[op]));
    EXPECT_EQ(read.trace.ops[op].phase, written.trace.ops[op].phase);
    EXPECT_TRUE(std::ranges::equal(read.trace.reads(read.trace.ops[op]), written.trace.reads(written.trace.ops[op])));
  }
  EXPECT_EQ(read.machine.tiers[0].capacity, written.machine.tiers[0].capacity);
  EXPECT_EQ(read.machine.links[0].bandwidth, written.machine.links[0].bandwidth);
}

TEST_F(Files, TimelinesReadAsTheyWereWritten) {
  const std::vector<Recording> read = read_timeline(write_timelines("t.json"));
  ASSERT_EQ(read.size(), 2u);
  expect_same(read[0], simulate_recording("predicted: on-demand"));
  expect_same(read[1], simulate_recording("measured: on-demand", slower_machine()));
  EXPECT_EQ(read[1].origin, Origin::measured);
  // On one line, and compressed.
  std::string text = read_file(path("t.json"));
  std::erase(text, '\n');
  write_file(path("t.json.zst"), text);
  expect_same(read_timeline(path("t.json.zst")).at(0), read[0]);
}

// Of a text generation, a step begins with the first of its ops, in each iteration.
TEST_F(Files, TimelinesKeepSteps) {
  Recording recording = simulate_recording("predicted: on-demand");
  EXPECT_TRUE(gui::Run(recording).steps().empty());
  Trace& trace = recording.trace;
  ASSERT_GT(trace.ops.size(), 3u);
  for (OpIndex op = 0; op < trace.ops.size(); ++op) {
    trace.ops[op].phase = op < 2 ? Phase::prefill : Phase::decode;
    trace.ops[op].detail = trace.add_detail({.step = op < 2 ? 0 : 1 + (op - 2) / 2});
    trace.ops[op].device = Device::gpu;
  }
  write_chrome_trace(path("t.json"), {{recording.title, &recording.timeline, &recording.machine, &recording.trace}});
  const gui::Run run(std::move(read_timeline(path("t.json")).at(0)));
  const std::size_t in_iteration = 1 + (trace.ops.size() - 1) / 2;
  ASSERT_EQ(run.steps().size(), run.iteration_count() * in_iteration);
  for (std::size_t i = 0; i < run.steps().size(); ++i) {
    const StepBegin& step = run.steps()[i];
    EXPECT_EQ(step_name(step), i % in_iteration == 0 ? "prefill" : "decode " + std::to_string(i % in_iteration));
    const OpIndex first = i % in_iteration == 0 ? 0 : static_cast<OpIndex>(2 * (i % in_iteration));
    EXPECT_EQ(step.time_ns, run.spans()[run.spans_of_op(first)[i / in_iteration]].start_ns);
  }
}

// What is recomputed has a colour and a name of its own, also after it was written and read.
TEST_F(Files, TimelinesShowWhatIsRecomputed) {
  const Recording recording = simulate_recomputation();
  write_chrome_trace(path("t.json"), {{recording.title, &recording.timeline, &recording.machine, &recording.trace}});
  EXPECT_THAT(read_file(path("t.json")), HasSubstr("\"name\":\"recompute forward11\""));
  for (const bool read : {false, true}) {
    const gui::Run run(read ? read_timeline(path("t.json")).at(0) : recording);
    EXPECT_EQ(run.op_name(13), "forward11");
    std::size_t again = 0;
    for (const TrackItem& item : run.tracks()[0].items()) {
      const Span& span = run.spans()[item.span];
      if (span.kind != SpanKind::op) continue;
      again += item.slot == recompute_slot;
      EXPECT_EQ(item.slot == recompute_slot, span.op == 13) << span.op;
      EXPECT_EQ(run.recomputes(span.op), span.op == 13);
    }
    EXPECT_EQ(again, run.iteration_count());
    EXPECT_THAT(describe_span(run, run.spans_of_op(13)[0]), Contains(Pair("part of", "backward, again, layer11")));
  }
}

// What was added to a file since the last call.
class Additions {
 public:
  explicit Additions(std::string file) : file_(std::move(file)) {}
  std::string next() {
    const std::string all = read_file(file_);
    return all.substr(std::exchange(taken_, all.size()));
  }

 private:
  std::string file_;
  std::size_t taken_ = 0;
};

// A run that goes on: `grow` adds an iteration of the recording to the timeline. The last one ends with all that is
// left.
struct GrowingRun {
  const Recording& whole;
  Timeline timeline{};

  TimelineProcess process() const { return {whole.title, &timeline, &whole.machine, &whole.trace}; }
  std::uint64_t last() const { return whole.timeline.spans.back().iteration; }
  void grow(std::uint64_t iteration) {
    const std::vector<Span>& spans = whole.timeline.spans;
    for (std::size_t i = timeline.spans.size(); i < spans.size() && spans[i].iteration == iteration; ++i) {
      timeline.spans.push_back(spans[i]);
    }
    const std::vector<OccupancySample>& occupancy = whole.timeline.occupancy;
    for (std::size_t i = timeline.occupancy.size(); i < occupancy.size(); ++i) {
      if (iteration < last() && occupancy[i].time_ns > timeline.spans.back().end_ns) break;
      timeline.occupancy.push_back(occupancy[i]);
    }
  }
};

// The prediction first, then iteration by iteration.
TEST_F(Files, AGrowingFileIsReadWhileItGrows) {
  const Recording predicted = simulate_recording("predicted: on-demand");
  const Recording measured = simulate_recording("measured: on-demand", slower_machine());
  GrowingRun run{measured};
  GrowingTimeline file(path("t.json"));
  EXPECT_FALSE(std::filesystem::exists(path("t.json")));  // an older one would still be there
  file.put({predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace});
  file.follow(run.process());
  Additions additions(path("t.json"));
  TimelineParser parser("t.json");
  parser.feed(additions.next());
  EXPECT_EQ(parser.snapshot(1'000'000).size(), 1u);  // nothing was measured yet
  for (std::uint64_t iteration = 0; iteration < 3; ++iteration) {
    run.grow(iteration);
    file.append();
    const std::string piece = additions.next();
    for (std::size_t i = 0; i < piece.size(); i += 1000) parser.feed(piece.substr(i, 1000));  // as reads cut it
    ASSERT_EQ(parser.snapshot(1'000'000).size(), 2u);
    EXPECT_EQ(parser.snapshot(1'000'000)[1].timeline.spans.back().iteration, iteration);
    EXPECT_EQ(parser.snapshot(1'000'000)[1].timeline.spans.size(), run.timeline.spans.size());
  }
  EXPECT_FALSE(parser.complete());
  // Of a long run the last iterations.
  const Recording last = parser.snapshot(60).at(1);
  EXPECT_EQ(last.timeline.spans.front().iteration, 2u);
  const gui::Run indexed(parser.snapshot(60).at(1));
  EXPECT_EQ(indexed.iteration_count(), 1u);
  file.end();
  parser.feed(additions.next());
  EXPECT_TRUE(parser.complete());
  const std::vector<Recording> read = parser.take();
  expect_same(read.at(0), predicted);
  expect_same(read.at(1), measured);
  // The same document as any other: a list of the events of both, but for where counters and descriptions stand.
  EXPECT_EQ(open_document(path("t.json"))->runs.size(), 2u);
  write_chrome_trace(path("whole.json"), {{predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace},
                                          {measured.title, &measured.timeline, &measured.machine, &measured.trace}});
  const auto drawn = [](const Json& events) {
    std::vector<std::string> list;
    for (const Json& event : events) {
      if (event["ph"] != "M") list.push_back(event.dump());
    }
    std::ranges::sort(list);
    return list;
  };
  EXPECT_EQ(drawn(Json::parse(read_file(path("t.json")))),
            drawn(Json::parse(read_file(path("whole.json")))["traceEvents"]));
}

// Of a long run the last iterations, under their own numbers and with what the tiers hold.
TEST_F(Files, AWatchersMemoryIsBounded) {
  constexpr std::uint64_t iterations = 200;
  const Recording once = simulate_recording("measured: on-demand");
  Recording measured = once;
  const Nanoseconds begin = gui::Run(once).iteration_begin_ns(1), length = gui::Run(once).iteration_ns(1);
  std::vector<Span> second;
  std::ranges::copy_if(once.timeline.spans, std::back_inserter(second), [](const Span& s) { return s.iteration == 1; });
  measured.timeline.spans = second;
  std::erase_if(measured.timeline.occupancy, [&](const OccupancySample& s) { return s.time_ns > begin + length; });
  for (std::uint64_t i = 2; i < iterations; ++i) {
    for (Span span : second) {
      const Nanoseconds later = length * static_cast<Nanoseconds>(i - 1);
      span.start_ns += later, span.end_ns += later;
      span.iteration = i;
      measured.timeline.spans.push_back(span);
    }
  }
  const std::size_t most = 10 * second.size();
  TimelineParser parser("t.json", most);
  GrowingRun growing{measured};
  GrowingTimeline file(path("t.json"));
  file.follow(growing.process());
  Additions additions(path("t.json"));
  for (std::uint64_t iteration = 1; iteration < iterations; ++iteration) {
    growing.grow(iteration);
    file.append();
    parser.feed(additions.next());
    EXPECT_LE(parser.snapshot(100 * most).at(0).timeline.spans.size(), 2 * most + second.size());
  }
  EXPECT_EQ(parser.spans_ever_seen(), measured.timeline.spans.size());
  EXPECT_EQ(parser.snapshot(most).at(0).timeline.spans.back().iteration, iterations - 1);
  const gui::Run run(parser.snapshot(most).at(0));
  EXPECT_LE(run.iteration_count(), 10u);
  EXPECT_EQ(run.first_iteration() + run.iteration_count(), iterations);
  EXPECT_EQ(run.occupancy().held(0, run.iteration_begin_ns(0)), gui::Run(once).occupancy().held(0, begin + length));
}

TEST_F(Files, EveryKindIsToldByItsContent) {
  write_trace(gui_trace(), path("a.trace.jsonl.zst"));
  EXPECT_EQ(open_document(path("a.trace.jsonl.zst"))->kind, Document::Kind::trace);
  EXPECT_EQ(open_document(write_timelines("b"))->kind, Document::Kind::timeline);
  const DocumentPointer results =
      open_document(write("c", R"([{"policy": "lru", "manifest": {}, "iteration_seconds": 1.5, "fits": true}])"));
  EXPECT_EQ(results->kind, Document::Kind::results);
  EXPECT_EQ(results->results.size(), 1u);
}

TEST_F(Files, BrokenOnesSayWhatIsWrong) {
  EXPECT_THAT(refusal(path("missing.json")), HasSubstr("cannot be opened"));
  EXPECT_THAT(refusal(write("empty.json", "")), HasSubstr("is empty"));
  EXPECT_THAT(refusal(write("blank.json", " \n")), HasSubstr("is empty"));
  EXPECT_THAT(refusal(write("text.txt", "hello")), HasSubstr("is no trace, result, timeline"));
  EXPECT_THAT(refusal(write("object.json", "{}")), HasSubstr("is no result"));
  EXPECT_THAT(refusal(write("foreign.json", R"({"traceEvents":[{"ph":"X","pid":1,"tid":1,"ts":0,"dur":1}]})")),
              HasSubstr("not an event"));
  EXPECT_THAT(refusal(write("nothing.json", R"({"traceEvents":[]})")), HasSubstr("no timeline"));
  const std::string whole = read_file(write_timelines("t.json"));
  const DocumentPointer cut = open_document(write("cut.json", whole.substr(0, whole.size() * 2 / 3)));
  EXPECT_THAT(cut->note, AllOf(HasSubstr("cut.json"), HasSubstr("ends in the middle")));
  EXPECT_FALSE(cut->runs.empty());
  EXPECT_THAT(refusal(write("head.json", whole.substr(0, 60))), HasSubstr("ends in the middle"));
  for (const std::string impossible : {"-5", "1e300"}) {
    std::string damaged = whole;
    const std::size_t at = damaged.find("\"dur\":") + 6;
    damaged.replace(at, damaged.find(',', at) - at, impossible);
    EXPECT_THAT(refusal(write("impossible.json", damaged)), HasSubstr("not an event")) << impossible;
  }
  // Bytes overturned anywhere are an error or another timeline, never a crash.
  std::mt19937_64 random(7);
  for (int i = 0; i < 60; ++i) {
    std::string damaged = whole;
    for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    const std::string file = write("damaged.json", damaged);
    try {
      open_document(file);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(file));
    }
  }
}

// ---- Comparison -----------------------------------------------------------------------------------------------------

constexpr const char* some_results = R"([
  {"policy": "bound", "machine": "m", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 1.0,
   "ideal_seconds": 1.0},
  {"policy": "slow", "machine": "m", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 3.0,
   "ideal_seconds": 1.0, "compute_seconds": 1.0, "gap_seconds": 0.5, "stall_seconds": {"h2d": 1.25, "memory": 0.25},
   "gpu_hit_rate": {"bytes": 0.25}, "traffic_bytes": {"h2d": 1000, "d2h": 500}},
  {"policy": "tight", "machine": "m", "trace": "t", "fits": false, "manifest": {}, "iteration_seconds": null,
   "reason": "op 3 needs 5 bytes"},
  {"policy": "fast", "machine": "m", "trace": "t", "fits": true, "manifest": {}, "iteration_seconds": 2.0,
   "ideal_seconds": 1.0, "compute_seconds": 1.5, "gap_seconds": 0.5, "stall_seconds": {},
   "interval_seconds": [1.9, 2.2], "ties_with_best": true}])";

// The table of what people read, where a column has the heading.
struct ResultsTable {
  DocumentTable table;

  explicit ResultsTable(const std::vector<DocumentPointer>& documents) {
    CompareAnswer answer;
    answer.results = open_results(documents);
    table = *document_of(answer).first<DocumentTable>();
  }
  const Cell& cell(std::size_t row, std::string_view heading) const {
    const auto found = std::ranges::find(table.columns, heading, &Column::on_page);
    EXPECT_NE(found, table.columns.end()) << heading;
    return table.rows.at(row).cells.at(static_cast<std::size_t>(found - table.columns.begin()));
  }
};

TEST_F(Files, ResultsBecomeRows) {
  Session session;
  session.open(write("compare.json", some_results));
  session.wait();
  const ResultsTable results(session.documents().all());
  ASSERT_EQ(results.table.rows.size(), 4u);
  EXPECT_EQ(results.cell(0, "policy").on_page(), "bound");
  const CellBar& bar = results.cell(1, "where the time goes").bar.value();
  EXPECT_DOUBLE_EQ(bar.total(), 3);
  EXPECT_EQ(bar.parts.size(), 4u);  // computing, host time and two stalls
  EXPECT_DOUBLE_EQ(results.cell(1, "× ideal").number, 3);
  EXPECT_DOUBLE_EQ(results.cell(1, "moved").number, 1500);
  EXPECT_EQ(results.cell(1, "to be believed").text, "extrapolated, no interval");
  EXPECT_EQ(results.table.rows[2].instead, "does not fit: op 3 needs 5 bytes");
  EXPECT_EQ(results.cell(3, "to be believed").text, "extrapolated");
  EXPECT_EQ(results.cell(3, "interval").text, "= 1.90–2.20 s");
  EXPECT_EQ(results.table.rows[3].weight, DocumentTable::Row::Weight::best);
  const std::string csv = table_csv(results.table);
  EXPECT_THAT(csv, HasSubstr("\ntight,,,"));
  EXPECT_THAT(csv, HasSubstr(",does not fit: op 3 needs 5 bytes\n"));
  EXPECT_THAT(csv, HasSubstr("stall_h2d_seconds"));
  // None of them says what was simulated.
  EXPECT_TRUE(session.messages().last_is_error());
  EXPECT_TRUE(session.runs().empty());
}

// What the study said, but for what measurements of the same machine and kind of trace say; a file that says nothing is
// extrapolated.
TEST_F(Files, RowsSayHowFarTheyAreValidated) {
  const auto result = [](const char* policy, const char* machine, const char* run, const char* more) {
    return std::string(R"({"policy": ")") + policy + R"(", "machine": ")" + machine +
           R"(", "trace": "t", "fits": true, "iteration_seconds": 2.0, "ideal_seconds": 1.0, "manifest": {"run": {)" +
           run + "}}" + more + "}";
  };
  const char* const recorded = R"("made_by": "recorded")";
  const char* const alone = R"(,"validity": "extrapolated")";
  const std::vector<std::string> texts{
      result("a", "here", recorded, alone),
      result("b", "here", recorded, R"(,"measured": true, "prediction": {"error": -0.04})"),
      result("c", "here", recorded, R"(,"measured": true, "prediction": {"error": 0.02})"),
      result("d", "here", R"("made_by": "generated", "made_with": {"model": "gpt2"})", alone),
      result("e", "there", R"("made_by": "generated", "made_with": {"model": "opt-6.7b"})",
             R"x(,"validity": "validated within 25.0 % (S)", "mean_utilization": {"gpu": 0.5, "h2d": 0.25},)x"
             R"("traffic_bytes": {"h2d": 7})"),
      result("f", "here", R"("made_by": "recorded", "gpu_memory": "12GiB")", alone),
      result("g", "here", R"("recorded_by": "tencache record")", alone),
      result("h", "here", recorded, "")};
  Session session;
  session.open(write("all.json", "[" + join(texts) + "]"));
  session.wait();
  const std::vector<ResultAnswer> rows = open_results(session.documents().all());
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[0].validity, "validated within 4.0 % (2 measured)");
  EXPECT_EQ(rows[3].validity, "extrapolated");
  EXPECT_EQ(rows[4].validity, "validated within 25.0 % (S)");
  EXPECT_EQ(rows[5].validity, "extrapolated");  // not the machine that was measured
  EXPECT_EQ(rows[6].validity, "extrapolated");  // nobody knows what trace it is
  EXPECT_EQ(rows[7].validity, std::nullopt);
  const ResultsTable results(session.documents().all());
  EXPECT_EQ(results.cell(0, "to be believed").text, "validated within 4.0 %, no interval");
  EXPECT_EQ(results.cell(1, "to be believed").text, "measured; predicted -4.0 %");
  EXPECT_EQ(results.cell(7, "to be believed").text, "extrapolated, no interval");
  EXPECT_DOUBLE_EQ(results.cell(4, "utilization_h2d").number, 0.25);
  EXPECT_FALSE(results.cell(0, "utilization_h2d").is_number());
  EXPECT_THAT(table_csv(results.table), HasSubstr("utilization_gpu,utilization_h2d"));
}

// ---- Runs that go on ------------------------------------------------------------------------------------------------

void update_until(Session& session, const std::function<bool()>& condition) {
  for (int i = 0; i < 500 && !condition(); ++i) {
    session.update();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(Files, AFollowedRunArrivesIterationByIteration) {
  const Recording measured = simulate_recording("measured: on-demand");
  GrowingRun run{measured};
  GrowingTimeline file(path("t.json"));
  file.follow(run.process());
  Session session;
  const auto write_iteration = [&](std::uint64_t iteration) {
    run.grow(iteration);
    file.append();
    if (iteration == 0) session.open(path("t.json"));
    ASSERT_TRUE(session.watching()) << session.messages().last();
    update_until(session, [&] {
      return !session.runs().empty() && session.runs()[0]->spans().size() == run.timeline.spans.size();
    });
    EXPECT_EQ(session.shown().iterations(), iteration + 1);
    EXPECT_EQ(session.shown().aligned(), iteration);  // the newest is looked at
  };
  write_iteration(0);
  session.window = {100, 5'000};
  write_iteration(1);
  EXPECT_DOUBLE_EQ(session.window.end_ns, 5'000);
  session.align(0);
  run.grow(2);
  file.end();
  update_until(session, [&] { return !session.watching(); });
  EXPECT_FALSE(session.watching());
  EXPECT_THAT(session.messages().last(), HasSubstr("over"));
  ASSERT_EQ(session.runs().size(), 1u);
  EXPECT_EQ(session.runs()[0]->spans().size(), measured.timeline.spans.size());
  EXPECT_EQ(session.runs()[0]->title(), measured.title);
  const gui::Run whole(measured);
  for (TierId tier = 0; tier < 2; ++tier) {
    EXPECT_GT(whole.occupancy().peak(tier), 0u);
    EXPECT_EQ(session.runs()[0]->occupancy().peak(tier), whole.occupancy().peak(tier));
  }
  EXPECT_EQ(session.shown().aligned(), 0u);  // who looked elsewhere still does
}

// Whether it was followed or is opened later: what it wrote is shown, with one note.
TEST_F(Files, AKilledRunIsShownAsFarAsItGoes) {
  const Recording measured = simulate_recording("measured: on-demand");
  GrowingRun run{measured};
  auto file = std::make_unique<GrowingTimeline>(path("t.json"));
  file->follow(run.process());
  run.grow(0);
  file->append();
  Session following;
  following.open(path("t.json"));
  ASSERT_TRUE(following.watching());
  file.reset();  // as when the process ends
  update_until(following, [&] { return !following.watching(); });
  std::ofstream(path("t.json"), std::ios::app) << ",\n{\"ph\":\"X\",\"pid";  // cut off in an event
  Session later;
  later.open(path("t.json"));
  later.wait();
  for (const Session* session : {&following, &later}) {
    EXPECT_FALSE(session->watching());
    EXPECT_THAT(session->messages().last(), HasSubstr("ends in the middle (was its run killed"));
    EXPECT_FALSE(session->messages().last_is_error());
    ASSERT_EQ(session->runs().size(), 1u);
    EXPECT_EQ(session->runs()[0]->spans().size(), run.timeline.spans.size());
  }
}

// The steps before the schedule is known are left out, what the recorded step does not know says so, and the prediction
// stands above.
TEST_F(Files, ATrainingRunIsFollowedFromItsThirdStepOn) {
  const Recording predicted = simulate_recording("predicted: on-demand");
  Recording measured = simulate_recording("measured: on-demand", slower_machine());
  measured.timeline.spans.back().op = 1'000;
  TrainingTimeline file(path("train.json"), measured.title, measured.machine);
  file.put({predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace});
  Session session;
  session.open(path("train.json"));
  ASSERT_TRUE(session.watching());
  for (std::uint64_t step = 0; step < 3; ++step) {
    Timeline added;
    std::ranges::copy_if(measured.timeline.spans, std::back_inserter(added.spans),
                         [step](const Span& span) { return span.iteration == step; });
    if (step == 0) added.occupancy = measured.timeline.occupancy;
    file.add(added, step == 1 ? measured.trace : Trace());
  }
  update_until(session, [&] { return session.runs().size() == 2; });
  file.end(measured.trace);
  update_until(session, [&] { return !session.watching(); });
  EXPECT_THAT(session.messages().last(), HasSubstr("over")) << session.messages().last();
  ASSERT_EQ(session.runs().size(), 2u);
  EXPECT_EQ(session.runs()[0]->origin(), Origin::predicted);
  const gui::Run& shown = *session.runs()[1];
  EXPECT_EQ(shown.title(), measured.title);
  EXPECT_EQ(shown.iteration_count(), 1u);
  EXPECT_EQ(shown.spans().front().iteration, 2u);
  EXPECT_EQ(shown.op_name(shown.spans().back().op), "not in the recorded step");
  EXPECT_EQ(shown.spans_of_op(3).size(), 1u);
  EXPECT_FALSE(shown.occupancy().empty(0));
}

// Of one that ends before its schedule is known, all steps.
TEST_F(Files, AShortTrainingRunIsWrittenAtItsEnd) {
  Recording measured = simulate_recording("measured: on-demand");
  TrainingTimeline file(path("train.json"), measured.title, measured.machine);
  std::erase_if(measured.timeline.spans, [](const Span& span) { return span.iteration >= first_named_step; });
  const std::size_t spans = measured.timeline.spans.size();
  file.add(measured.timeline, {});
  EXPECT_FALSE(std::filesystem::exists(path("train.json")));
  file.end(measured.trace);
  EXPECT_EQ(read_timeline(path("train.json")).at(0).timeline.spans.size(), spans);
}

}  // namespace
}  // namespace tencache::gui
