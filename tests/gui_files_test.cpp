// The dashboard's files: which open and as what, what broken ones say, results as rows, and runs that are watched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "answers/timeline/chrome_trace.h"
#include "answers/timeline/timeline_csv.h"
#include "answers/timeline/training_timeline.h"
#include "core/error.h"
#include "gui/model/comparison.h"
#include "gui/model/describe.h"
#include "gui/model/session.h"
#include "gui/model/timeline_file.h"
#include "tests/gui_cases.h"
#include "traces/file_io.h"
#include "traces/trace_file.h"
#ifdef TENCACHE_WITH_EXECUTOR
#include "executor/live_socket.h"
#endif

namespace tencache::gui {
namespace {

using ::testing::HasSubstr;

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

// As a watched run sends it: the prediction and the head first, then iteration by iteration.
TEST_F(Files, AStreamIsTheFileInPieces) {
  const Recording predicted = simulate_recording("predicted: on-demand");
  const Recording measured = simulate_recording("measured: on-demand", slower_machine());
  Timeline growing;
  const TimelineProcess first{predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace};
  TimelineStream stream({measured.title, &growing, &measured.machine, &measured.trace}, &first);
  TimelineParser parser("socket");
  std::size_t spans = 0, changes = 0;
  parser.feed(stream.next());
  EXPECT_EQ(parser.snapshot(1'000'000).size(), 1u);  // nothing was measured yet
  for (std::uint64_t iteration = 0; iteration < 3; ++iteration) {
    while (spans < measured.timeline.spans.size() && measured.timeline.spans[spans].iteration == iteration) {
      growing.spans.push_back(measured.timeline.spans[spans++]);
    }
    const Nanoseconds end = growing.spans.back().end_ns;
    while (changes < measured.timeline.occupancy.size() && measured.timeline.occupancy[changes].time_ns <= end) {
      growing.occupancy.push_back(measured.timeline.occupancy[changes++]);
    }
    const std::string piece = stream.next();
    for (std::size_t i = 0; i < piece.size(); i += 1000) parser.feed(piece.substr(i, 1000));  // as sockets cut it
    EXPECT_EQ(parser.iteration(), iteration);
    ASSERT_EQ(parser.snapshot(1'000'000).size(), 2u);
    EXPECT_EQ(parser.snapshot(1'000'000)[1].timeline.spans.size(), spans);
  }
  EXPECT_FALSE(parser.complete());
  // Of a long run the last iterations.
  const Recording last = parser.snapshot(60).at(1);
  EXPECT_EQ(last.timeline.spans.front().iteration, 2u);
  const gui::Run indexed(parser.snapshot(60).at(1));
  EXPECT_EQ(indexed.iteration_count(), 1u);
  parser.feed(TimelineStream::end);
  EXPECT_TRUE(parser.complete());
  const std::vector<Recording> read = parser.take();
  expect_same(read.at(0), predicted);
  expect_same(read.at(1), measured);
}

// The measured run in pieces, an iteration each after the head; with `emptied` nobody keeps what was sent.
std::vector<std::string> pieces_of(const Recording& measured, bool emptied) {
  Timeline growing;
  TimelineStream stream({measured.title, &growing, &measured.machine, &measured.trace}, nullptr);
  std::vector<std::string> pieces{stream.next()};
  std::size_t spans = 0, changes = 0;
  const std::uint64_t last = measured.timeline.spans.back().iteration;
  for (std::uint64_t iteration = 0; iteration <= last; ++iteration) {
    for (; spans < measured.timeline.spans.size() && measured.timeline.spans[spans].iteration == iteration; ++spans) {
      growing.spans.push_back(measured.timeline.spans[spans]);
    }
    const Nanoseconds end = spans == 0 ? 0 : measured.timeline.spans[spans - 1].end_ns;
    for (; changes < measured.timeline.occupancy.size(); ++changes) {
      if (iteration < last && measured.timeline.occupancy[changes].time_ns > end) break;
      growing.occupancy.push_back(measured.timeline.occupancy[changes]);
    }
    pieces.push_back(stream.next());
    if (!emptied) continue;
    growing = {};
    stream.emptied();
  }
  return pieces;
}

TEST_F(Files, WhatWasSentNeedNotBeKept) {
  const Recording measured = simulate_recording("measured: on-demand");
  EXPECT_EQ(pieces_of(measured, true), pieces_of(measured, false));
}

// Who misses a piece, or attaches late, has the run from the next one on, and knows what the tiers held by then.
TEST_F(Files, ARunOfWhichPiecesWereLostBeginsAnew) {
  const Recording measured = simulate_recording("measured: on-demand");
  const gui::Run whole(measured);
  const std::vector<std::string> pieces = pieces_of(measured, true);
  TimelineParser parser("socket");
  for (const std::size_t i : {0U, 1U, 3U}) parser.feed(pieces[i]);
  const std::vector<Recording> seen = parser.snapshot(1'000'000);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_THAT(seen[0].title, HasSubstr("its beginning was not received"));
  EXPECT_EQ(seen[0].timeline.spans.front().iteration, 2u);
  const gui::Run run(seen[0]);
  EXPECT_EQ(run.iteration_count(), 1u);
  EXPECT_EQ(run.first_iteration(), 2u);
  const Nanoseconds begin = run.iteration_begin_ns(0), end = run.iteration_begin_ns(1);
  for (Nanoseconds time = begin; time <= end; time += (end - begin) / 20) {
    for (TierId tier = 0; tier < 2; ++tier) {
      EXPECT_EQ(run.occupancy().held(tier, time), whole.occupancy().held(tier, time)) << time;
      const std::vector<Resident> there = run.occupancy().residents(tier, time),
                                  expected = whole.occupancy().residents(tier, time);
      ASSERT_EQ(there.size(), expected.size()) << time;
      for (std::size_t i = 0; i < there.size(); ++i) EXPECT_EQ(there[i].tensor, expected[i].tensor) << time;
    }
  }
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
  TimelineParser parser("socket", most);
  for (const std::string& piece : pieces_of(measured, true)) {
    parser.feed(piece);
    EXPECT_LE(parser.span_count(), 2 * most + second.size());
  }
  EXPECT_EQ(parser.spans_ever_seen(), measured.timeline.spans.size());
  EXPECT_EQ(parser.iteration(), iterations - 1);
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
  EXPECT_THAT(refusal(write("cut.json", whole.substr(0, whole.size() * 2 / 3))), HasSubstr("ends in the middle"));
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

TEST_F(Files, ResultsBecomeRows) {
  Session session;
  session.open(write("compare.json", some_results));
  session.wait();
  std::vector<ComparisonRow> rows = comparison_rows(session);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[0].bound);
  const TimeParts& parts = rows[1].parts;
  EXPECT_DOUBLE_EQ(parts.stalled_seconds(), 1.5);
  EXPECT_DOUBLE_EQ(parts.compute_seconds + parts.gap_seconds + parts.stalled_seconds(), rows[1].seconds);
  EXPECT_DOUBLE_EQ(rows[1].slowdown(), 3);
  EXPECT_DOUBLE_EQ(rows[1].moved_bytes, 1500);
  EXPECT_EQ(rows[1].belief(), "extrapolated, no interval");
  EXPECT_EQ(rows[3].belief(), "ties: 1.900 s to 2.200 s, extrapolated");
  sort_rows(rows, ComparisonColumn::seconds, false);
  EXPECT_EQ(rows[0].policy, "slow");
  EXPECT_EQ(rows[3].policy, "tight");  // whatever the order
  sort_rows(rows, ComparisonColumn::policy, true);
  EXPECT_EQ(rows[1].policy, "fast");
  EXPECT_THAT(comparison_csv(rows), HasSubstr("\ntight,m,t,0,0,,,"));
  // None of them says what was simulated.
  EXPECT_TRUE(session.message_is_error());
  EXPECT_TRUE(session.runs().empty());
}

// Measurements of the same machine and kind of trace count; else published ones of the machine; else none.
TEST_F(Files, RowsSayHowFarTheyAreValidated) {
  const auto result = [](const char* policy, const char* machine, const char* recorded_by, const char* more) {
    return std::string(R"({"policy": ")") + policy + R"(", "machine": ")" + machine +
           R"(", "trace": "t", "fits": true, "iteration_seconds": 2.0, "ideal_seconds": 1.0, "manifest": {"run":
           {"recorded_by": ")" +
           recorded_by + "\"}}" + more + "}";
  };
  Session session;
  session.open(write(
      "all.json", "[" + result("a", "here", "tencache record", "") + "," +
                      result("b", "here", "tencache record", R"(,"measured": true, "prediction": {"error": -0.04})") +
                      "," +
                      result("c", "here", "tencache record", R"(,"measured": true, "prediction": {"error": 0.02})") +
                      "," + result("d", "here", "tencache generate --model gpt2", "") + "," +
                      result("e", "10cache-l40s", "tencache generate --model opt-6.7b",
                             R"(,"mean_utilization": {"gpu": 0.5, "h2d": 0.25}, "traffic_bytes": {"h2d": 7})") +
                      "," + result("f", "10cache-l40s", R"(tencache generate", "gpu_memory": "12GiB)", "") + "," +
                      result("g", "here", "", "") + "]"));
  session.wait();
  const std::vector<ComparisonRow> rows = comparison_rows(session);
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[5].validity, "extrapolated");  // not the machine that was measured
  EXPECT_EQ(rows[6].validity, "extrapolated");  // nobody knows what trace it is
  EXPECT_EQ(rows[0].validity, "validated within 4.0 % (2 measured)");
  EXPECT_EQ(rows[0].belief(), "validated within 4.0 %, no interval");
  EXPECT_EQ(rows[1].belief(), "measured; predicted -4.0 %");
  EXPECT_EQ(rows[3].validity, "extrapolated");
  EXPECT_THAT(rows[4].validity, HasSubstr("extrapolated (on this machine ratios of times and hit rates of 10cache"));
  EXPECT_EQ(resources_of(rows), (std::vector<std::string>{"gpu", "h2d"}));
  EXPECT_DOUBLE_EQ(figure(rows[4].utilization, "h2d").value(), 0.25);
  EXPECT_FALSE(figure(rows[0].utilization, "h2d").has_value());
  EXPECT_THAT(comparison_csv(rows), HasSubstr("utilization_gpu,utilization_h2d"));
}

#ifdef TENCACHE_WITH_EXECUTOR
TEST_F(Files, AWatchedRunArrivesIterationByIteration) {
  const Recording measured = simulate_recording("measured: on-demand");
  Timeline growing;
  TimelineStream stream({measured.title, &growing, &measured.machine, &measured.trace}, nullptr);
  auto server = std::make_unique<LiveServer>(path("run.socket"));
  EXPECT_EQ(std::filesystem::status(path("run.socket")).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_THROW(LiveServer another(path("run.socket")), Error);  // it is taken
  server->publish(stream.next());
  Session session;
  session.open(path("run.socket"));
  ASSERT_TRUE(session.watching()) << session.message();
  const auto grow = [&](std::uint64_t iteration) {
    for (const Span& span : measured.timeline.spans) {
      if (span.iteration == iteration) growing.spans.push_back(span);
    }
    for (std::size_t i = growing.occupancy.size(); i < measured.timeline.occupancy.size(); ++i) {
      const OccupancySample& sample = measured.timeline.occupancy[i];
      if (iteration < 2 && sample.time_ns > growing.spans.back().end_ns) break;
      growing.occupancy.push_back(sample);
    }
  };
  const auto send_iteration = [&](std::uint64_t iteration) {
    grow(iteration);
    server->publish(stream.next());
    for (int i = 0; i < 500 && (session.runs().empty() || session.iterations() != iteration + 1); ++i) {
      session.update();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(session.iterations(), iteration + 1);
    EXPECT_EQ(session.aligned_iteration(), iteration);  // the newest is looked at
  };
  send_iteration(0);
  session.window = {100, 5'000};
  send_iteration(1);
  EXPECT_DOUBLE_EQ(session.window.end_ns, 5'000);
  session.align(0);
  grow(2);
  server->publish(stream.next() + TimelineStream::end);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path("run.socket")));
  for (int i = 0; i < 500 && session.watching(); ++i) {
    session.update();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(session.watching());
  EXPECT_THAT(session.message(), HasSubstr("over"));
  ASSERT_EQ(session.runs().size(), 1u);
  EXPECT_EQ(session.runs()[0]->spans().size(), measured.timeline.spans.size());
  EXPECT_EQ(session.runs()[0]->title(), measured.title);
  const gui::Run whole(measured);
  for (TierId tier = 0; tier < 2; ++tier) {
    EXPECT_GT(whole.occupancy().peak(tier), 0u);
    EXPECT_EQ(session.runs()[0]->occupancy().peak(tier), whole.occupancy().peak(tier));
  }
  EXPECT_EQ(session.aligned_iteration(), 0u);  // who looked elsewhere still does
}

TEST_F(Files, ASlowWatcherNeitherDelaysTheRunNorFillsItsMemory) {
  LiveServer server(path("run.socket"), 1 << 20);
  server.publish("head\n");
  LiveClient client(path("run.socket"));
  for (int i = 0; i < 500 && server.attached() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_EQ(server.attached(), 1u);
  const std::string piece(100'000, 'x');
  const auto before = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) server.publish(piece);  // 20 MB that nobody takes
  server.publish("last\n");
  // Publishing only hands over; a reader that takes nothing is no reason to wait.
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  std::string received;
  while (!received.ends_with("last\n")) {
    const std::string_view text = client.read();
    ASSERT_FALSE(text.empty());
    received += text;
  }
  EXPECT_TRUE(received.starts_with("head\n"));
  EXPECT_LT(received.size(), 10'000'000u);
  EXPECT_GT(received.size(), 500'000u);
}

TEST_F(Files, ARunThatDiesInTheMiddleIsNotTakenForWhole) {
  const Recording measured = simulate_recording("measured: on-demand");
  Timeline growing = measured.timeline;
  TimelineStream stream({measured.title, &growing, &measured.machine, &measured.trace}, nullptr);
  auto server = std::make_unique<LiveServer>(path("run.socket"));
  server->publish(stream.next());
  gui::LiveRun run(path("run.socket"));
  for (int i = 0; i < 500 && server->attached() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  server.reset();  // without the end of the file
  while (!run.over()) {
    run.wait();
    run.take();
  }
  EXPECT_THAT(run.error(), HasSubstr("ended in the middle"));
}

TEST_F(Files, ASocketIsRemovedByThoseThatItIsOf) {
  auto first = std::make_unique<LiveServer>(path("run.socket"));
  std::filesystem::rename(path("run.socket"), path("elsewhere"));
  LiveServer second(path("run.socket"));
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path("run.socket")));
  LiveServer third(path("elsewhere"));  // nobody listens there any more
}

TEST_F(Files, SocketsOfOthersAreLeftAlone) {
  write("not-a-socket", "precious");
  EXPECT_THROW(LiveServer server(path("not-a-socket")), Error);
  EXPECT_EQ(read_file(path("not-a-socket")), "precious");
  EXPECT_THROW(LiveServer server(path(std::string(200, 'x'))), Error);
  Session session;
  session.open(path("nothing-there"));
  session.wait();
  EXPECT_TRUE(session.message_is_error());
}

// A training run: the steps before the schedule is known are left out, what the recorded step does not know says so,
// and the prediction stands above.
TEST_F(Files, ATrainingRunIsWatchedFromItsThirdStepOn) {
  const Recording predicted = simulate_recording("predicted: on-demand");
  Recording measured = simulate_recording("measured: on-demand", slower_machine());
  measured.timeline.spans.back().op = 1'000;
  write_chrome_trace(path("p.json"), {{predicted.title, &predicted.timeline, &predicted.machine, &predicted.trace}});
  Session session;
  {
    WatchedTraining watched(path("train.socket"), measured.title, measured.machine, path("p.json"));
    session.open(path("train.socket"));
    Timeline growing;
    std::size_t taken = 0;
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (; taken < measured.timeline.spans.size() && measured.timeline.spans[taken].iteration <= step; ++taken) {
        growing.spans.push_back(measured.timeline.spans[taken]);
      }
      if (step == 0) growing.occupancy = measured.timeline.occupancy;
      watched.collect(growing, false);
      watched.publish(step == 0 ? Trace() : measured.trace);
    }
    for (int i = 0; i < 500 && session.runs().size() < 2; ++i) {
      session.update();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    watched.end();
  }
  for (int i = 0; i < 500 && session.watching(); ++i) {
    session.update();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_THAT(session.message(), HasSubstr("over")) << session.message();
  ASSERT_EQ(session.runs().size(), 2u);
  EXPECT_EQ(session.runs()[0]->origin(), Origin::predicted);
  const gui::Run& run = *session.runs()[1];
  EXPECT_EQ(run.title(), measured.title);
  EXPECT_EQ(run.iteration_count(), 1u);
  EXPECT_EQ(run.spans().front().iteration, 2u);
  EXPECT_EQ(run.op_name(run.spans().back().op), "not in the recorded step");
  EXPECT_EQ(run.spans_of_op(3).size(), 1u);
  EXPECT_FALSE(run.occupancy().empty(0));
}
#endif

}  // namespace
}  // namespace tencache::gui
