// The dashboard's model: what is on a track at which zoom, what a tier holds, what is selected, what-if.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "core/error.h"
#include "gui/model/bar_parts.h"
#include "gui/model/browse.h"
#include "gui/model/describe.h"
#include "gui/model/session.h"
#include "tests/faces/gui_cases.h"

namespace tencache::gui {
namespace {

using ::testing::HasSubstr;

// ---- Tracks ---------------------------------------------------------------------------------------------------------

// 100,000 spans of 10 ns, one every 20 ns, two kinds in turn.
Track long_track(std::uint32_t spans = 100'000) {
  Track track("lane", 0);
  for (std::uint32_t i = 0; i < spans; ++i) {
    track.add({i * Nanoseconds{20}, i * Nanoseconds{20} + 10, i, static_cast<std::uint8_t>(i % 2), 0});
  }
  track.finish();
  return track;
}

TEST(Track, FarAwayMergesToShares) {
  const Track track = long_track();
  VisibleTrack visible;
  track.collect(0, 2'000'000, 1000, visible);
  EXPECT_TRUE(visible.items.empty());
  // Every pixel is 2000 ns of which each kind covers a quarter.
  double first = 0, second = 0;
  for (std::size_t pixel = 0; pixel < 1000; ++pixel) {
    EXPECT_NEAR(visible.share(pixel, 0), 0.25, 0.02) << pixel;
    first += visible.share(pixel, 0);
    second += visible.share(pixel, 1);
    EXPECT_EQ(visible.share(pixel, 2), 0);
  }
  EXPECT_NEAR(first, 250, 0.1);
  EXPECT_NEAR(second, 250, 0.1);
}

TEST(Track, NearByEverySpanIsItself) {
  const Track track = long_track();
  VisibleTrack visible;
  track.collect(1'000'000, 1'000'200, 1000, visible);
  ASSERT_GE(visible.items.size(), 10u);
  EXPECT_LE(visible.items.size(), 12u);
  EXPECT_EQ(track.items()[visible.items.front()].begin_ns, 1'000'000);
  // Spans of 50 pixels fill theirs; no pixel is shared.
  EXPECT_EQ(std::ranges::count_if(visible.columns, [](float share) { return share > 0 && share < 0.999f; }), 0);
}

// At every zoom, of sixteen times as many spans too: a pixel costs the blocks that make it up, 16 at each end.
TEST(Track, WorkGrowsWithPixelsNotWithSpans) {
  constexpr std::size_t pixels = 1000, most_for_a_pixel = 40;
  for (const std::uint32_t spans : {100'000u, 1'600'000u}) {
    const Track track = long_track(spans);
    const auto whole = static_cast<double>(spans) * 20;
    VisibleTrack visible;
    for (const double part : {1000.0, 1.0, 0.1, 0.01, 1e-3, 1e-4}) {
      track.collect(0.3 * whole, 0.3 * whole + part * whole, pixels, visible);
      EXPECT_LT(visible.visited, most_for_a_pixel * pixels) << part;
      EXPECT_GT(visible.visited, 0u);
    }
    track.collect(2 * whole, 3 * whole, pixels, visible);  // behind the last
    EXPECT_LE(visible.visited, 1u);
    EXPECT_TRUE(visible.items.empty());
    track.collect(0, 100, 0, visible);
    EXPECT_TRUE(visible.columns.empty());
    std::size_t visited = 0;
    const auto covered = track.covered(7, spans * Nanoseconds{20} - 15, &visited);
    EXPECT_EQ(covered[0], spans / 2 * Nanoseconds{10} - 7);
    EXPECT_EQ(covered[1], spans / 2 * Nanoseconds{10} - 5);
    EXPECT_LT(visited, 400u);
    EXPECT_EQ(track.covered()[0], spans / 2 * Nanoseconds{10});
  }
}

TEST(Track, OverlappingCopiesLieInRows) {
  Track track("link", 2);
  track.add({0, 100, 0, 0, 0});
  track.add({50, 150, 1, 1, 0});
  track.add({120, 200, 2, 0, 0});
  track.finish();
  EXPECT_EQ(track.row_count(), 2);
  EXPECT_EQ(track.at(60, 0, 1)->span, 0u);
  EXPECT_EQ(track.at(60, 1, 1)->span, 1u);
  EXPECT_EQ(track.at(125, 0, 1)->span, 2u);
  EXPECT_EQ(track.at(199, 1, 1)->span, 2u);  // nothing in that row: what else is there
  EXPECT_EQ(track.at(300, 0, 1), nullptr);
  const auto covered = track.covered(90, 130);
  EXPECT_EQ(covered[0], 10 + 10);
  EXPECT_EQ(covered[1], 40);
}

TEST(Track, OneAndNone) {
  Track none_there("lane", 0), one("lane", 0);
  none_there.finish();
  one.add({10, 20, 7, 3, 0});
  one.finish();
  VisibleTrack visible;
  none_there.collect(0, 100, 10, visible);
  EXPECT_TRUE(visible.items.empty());
  EXPECT_EQ(none_there.at(5, 0, 5), nullptr);
  one.collect(0, 100, 100, visible);
  EXPECT_EQ(visible.items.size(), 1u);
  // Of ten pixels of 3 ns from 8 on it fills those from 11 to 20 and a third of the first.
  one.collect(8, 38, 10, visible);
  EXPECT_NEAR(visible.share(0, 3), 1.0 / 3, 1e-6);
  one.collect(0, 1e6, 10, visible);
  EXPECT_GT(visible.share(0, 3), 0);
}

// ---- Runs -----------------------------------------------------------------------------------------------------------

TEST(RunModel, KnowsIterationsTracksAndUses) {
  const RunPointer run = simulate_run("predicted: on-demand");
  ASSERT_EQ(run->iteration_count(), 3u);
  std::vector<std::string> names;
  for (const Track& track : run->tracks()) names.push_back(track.name());
  EXPECT_THAT(names, ::testing::ElementsAre("GPU", "cpu to gpu"));  // nothing is written back: parameters stay clean
  // The GPU's lane is covered without a hole: compute + stalls = time.
  const Nanoseconds begin = run->iteration_begin_ns(1), end = run->iteration_begin_ns(2);
  const auto covered = run->tracks()[0].covered(begin, end);
  EXPECT_EQ(std::accumulate(covered.begin(), covered.end(), Nanoseconds{0}), end - begin);
  EXPECT_EQ(covered[static_cast<std::size_t>(Phase::backward)], 12 * 900'000);
  EXPECT_GT(covered[slot_of(StallCause::h2d)], 0);
  // Each copy to the GPU was asked for by an op that used it.
  std::size_t used = 0;
  for (std::uint32_t span = 0; span < run->spans().size(); ++span) {
    if (run->spans()[span].kind != SpanKind::transfer || run->used_by(span) == none) continue;
    ++used;
    const Span& use = run->spans()[run->used_by(span)];
    EXPECT_GE(use.start_ns, run->spans()[span].end_ns);
    EXPECT_THAT(run->brought_for(run->used_by(span)), ::testing::Contains(span));
  }
  EXPECT_GE(used, 3u * 7u);
  EXPECT_EQ(run->spans_of_op(12).size(), 3u);
  EXPECT_EQ(run->op_name(12), "loss");
  EXPECT_TRUE(run->op_name(99).empty());
}

TEST(BrowseModel, RowsAndLivesAddUp) {
  const RunPointer run = simulate_run("predicted: on-demand");
  std::vector<OpRow> ops = op_rows(*run, 2);
  ASSERT_EQ(ops.size(), 25u);
  EXPECT_EQ(ops[12].takes_ns, 300'000);
  EXPECT_EQ(ops[0].touches, 1'000'000u);
  EXPECT_EQ(ops[13].touches, 1'500'000u);
  for (std::size_t iteration = 0; iteration < 3; ++iteration) {  // each its own, exactly
    Nanoseconds waited = 0, stalled = 0;
    Bytes brought = 0, moved = 0;
    for (const OpRow& row : op_rows(*run, iteration)) waited += row.waits_ns, brought += row.brought;
    for (std::uint32_t i = 0; i < run->spans().size(); ++i) {
      const Span& span = run->spans()[i];
      if (span.kind == SpanKind::stall && span.iteration == iteration) stalled += span.end_ns - span.start_ns;
      const std::uint32_t user = span.kind == SpanKind::transfer ? run->used_by(i) : none;
      if (user != none && run->spans()[user].iteration == iteration) moved += span.bytes;
    }
    EXPECT_EQ(waited, stalled) << iteration;
    EXPECT_EQ(brought, moved) << iteration;
    EXPECT_GT(brought, 0u);
  }
  EXPECT_NE(op_rows(*run, 0)[0].waits_ns, ops[0].waits_ns);  // the first begins with other tensors in place
  sort_rows(ops, *run, OpColumn::waits, false);
  EXPECT_GE(ops[0].waits_ns, ops[1].waits_ns);
  sort_rows(ops, *run, OpColumn::name, true);
  EXPECT_EQ(run->op_name(ops[0].op), "backward0");
  std::vector<TensorRow> tensors = tensor_rows(*run, 2);
  EXPECT_EQ(tensors[0].uses, 2u);
  EXPECT_EQ(tensors[12].uses, 13u);
  std::size_t copies = 0;
  for (std::size_t iteration = 0; iteration < 3; ++iteration) {
    copies += copies_of(*run, 0, iteration).size();
    EXPECT_EQ(tensor_rows(*run, iteration)[0].copies, copies_of(*run, 0, iteration).size());
  }
  EXPECT_GT(copies, 0u);
  EXPECT_EQ(copies, run->transfers_of(0).size());  // none crosses the end of an iteration
  EXPECT_EQ(tensors[0].moved, tensors[0].copies * 1'000'000u);
  sort_rows(tensors, *run, TensorColumn::bytes, true);
  EXPECT_EQ(run->tensor_name(tensors[0].tensor), "gradient");
  EXPECT_EQ(uses_of(*run, 3).size(), 2u);
  // What the stays say at a time is what the list of residents says.
  for (const Nanoseconds time : {Nanoseconds{100}, run->iteration_begin_ns(1) + 5'000'000}) {
    for (TierId tier = 0; tier < 2; ++tier) {
      for (const Resident& resident : run->occupancy().residents(tier, time)) {
        Bytes there = 0;
        for (const Stay& stay : stays_of(*run, resident.tensor)) {
          if (stay.tier == tier && stay.begin_ns <= time && time < stay.end_ns) there += stay.bytes;
        }
        EXPECT_EQ(there, static_cast<Bytes>(resident.bytes));
      }
    }
  }
}

// ---- Bars -----------------------------------------------------------------------------------------------------------

TEST(BarParts, NoneIsTooNarrowToBeSeen) {
  using Widths = std::vector<double>;
  EXPECT_EQ(part_widths({3, 0, 2}, 100, 1000, 2), (Widths{300, 0, 200}));
  // Two pixels for what is a tenth of one, at the expense of the widest: the whole stays as wide.
  EXPECT_EQ(part_widths({3, 0.001, 2}, 100, 1000, 2), (Widths{298.1, 2, 200}));
  // What is cut off keeps its last parts as well.
  EXPECT_EQ(part_widths({1, 50, 0.01}, 100, 800, 2), (Widths{100, 698, 2}));
  // Without room for that, all alike; a bar that is shorter than a pixel is seen too.
  EXPECT_EQ(part_widths({9, 1, 1}, 100, 3, 2), (Widths{1, 1, 1}));
  EXPECT_EQ(part_widths({1e-9}, 100, 800, 2), (Widths{2}));
  EXPECT_EQ(part_widths({0, 0}, 100, 800, 2), (Widths{0, 0}));
}

TEST(Figures, TicksHaveNoNeedlessDigits) {
  EXPECT_EQ(round_figure("2.000 s"), "2 s");
  EXPECT_EQ(round_figure("100.0 ms"), "100 ms");
  EXPECT_EQ(round_figure("0.10 GB/s"), "0.1 GB/s");
  EXPECT_EQ(round_figure("12.5 GiB"), "12.5 GiB");
  EXPECT_EQ(round_figure("$20"), "$20");
  EXPECT_EQ(round_figure("$0.00120000"), "$0.0012");
  EXPECT_EQ(round_figure("0 ns"), "0");
  EXPECT_EQ(round_figure("× 2"), "× 2");
}

TEST(OccupancyModel, MatchesTheChangesOneByOne) {
  const RunPointer run = simulate_run("predicted: on-demand");
  const Occupancy& occupancy = run->occupancy();
  const Recording recording = simulate_recording("predicted: on-demand");
  EXPECT_GT(occupancy.peak(0), 5'000'000u);
  std::mt19937_64 random(1);
  const Nanoseconds end = run->iteration_begin_ns(3);
  for (int i = 0; i < 200; ++i) {
    const auto time = static_cast<Nanoseconds>(random() % static_cast<std::uint64_t>(end));
    RoleBytes expected{};
    for (const OccupancySample& sample : recording.timeline.occupancy) {
      if (sample.tier == 0 && sample.time_ns <= time) expected[static_cast<std::size_t>(sample.role)] += sample.change;
    }
    EXPECT_EQ(occupancy.held(0, time), expected) << time;
    std::int64_t listed = 0;
    for (const Resident& resident : occupancy.residents(0, time)) listed += resident.bytes;
    EXPECT_EQ(listed, std::accumulate(expected.begin(), expected.end(), std::int64_t{0}));
  }
  // A pixel shows the most that was held in it.
  std::vector<OccupancyColumn> columns;
  occupancy.collect(0, 0, static_cast<double>(end), 3, columns);
  ASSERT_EQ(columns.size(), 3u);
  EXPECT_EQ(columns[1].total(), static_cast<std::int64_t>(occupancy.peak(0)));
}

// 300 tensors come and go; what is there at any time is found from a few thousand changes.
TEST(OccupancyModel, ResidentsCostNoMoreLateInALongRun) {
  Timeline timeline;
  std::vector<std::int64_t> held(300, 0);
  std::mt19937_64 random(3);
  Bytes used = 0;
  for (std::uint32_t i = 0; i < 200'000; ++i) {
    const auto tensor = static_cast<TensorId>(random() % held.size());
    const std::int64_t change = held[tensor] > 0 ? -held[tensor] : 1000 + tensor;
    held[tensor] += change;
    used += static_cast<Bytes>(change);
    timeline.occupancy.push_back({i, 0, Role::parameter, tensor, used, change});
  }
  const Occupancy occupancy(timeline, 1);
  for (const Nanoseconds time : {0, 4095, 4096, 100'000, 199'999}) {
    std::vector<std::int64_t> expected(held.size(), 0);
    for (const OccupancySample& sample : timeline.occupancy) {
      if (sample.time_ns <= time) expected[sample.tensor] += sample.change;
    }
    std::size_t visited = 0;
    const std::vector<Resident> residents = occupancy.residents(0, time, &visited);
    EXPECT_LE(visited, 4096u);
    EXPECT_EQ(static_cast<std::ptrdiff_t>(residents.size()),
              std::ranges::count_if(expected, [](auto b) { return b > 0; }));
    for (const Resident& resident : residents) EXPECT_EQ(resident.bytes, expected[resident.tensor]);
    EXPECT_TRUE(std::ranges::is_sorted(residents, std::greater(), &Resident::bytes));
  }
}

// ---- Session --------------------------------------------------------------------------------------------------------

TEST(SessionModel, AlignsPredictedAboveMeasured) {
  Session session;
  session.show({simulate_run("measured: on-demand", slower_machine()), simulate_run("predicted: on-demand")});
  EXPECT_EQ(session.runs()[0]->origin(), Origin::predicted);
  EXPECT_EQ(session.shown().aligned(), 2u);
  EXPECT_LT(session.shown().origin_ns(0), session.shown().origin_ns(1));
  EXPECT_LE(session.window.begin_ns, 0);
  EXPECT_GE(session.window.end_ns, static_cast<double>(session.shown().aligned_length_ns(1)));
  session.align(0);
  EXPECT_EQ(session.shown().origin_ns(0), session.shown().origin_ns(1));
  session.fit_all();
  EXPECT_GE(session.window.end_ns, 3.0 * static_cast<double>(session.shown().aligned_length_ns(0)) * 0.9);
}

TEST(SessionModel, ZoomKeepsTheAnchor) {
  TimeWindow window{0, 1000};
  window.zoom(0.5, 250);
  EXPECT_DOUBLE_EQ(window.length_ns(), 500);
  EXPECT_DOUBLE_EQ((250 - window.begin_ns) / window.length_ns(), 0.25);
  for (int i = 0; i < 200; ++i) window.zoom(0.5, 250);
  EXPECT_GE(window.length_ns(), 1);
}

TEST(SessionModel, ErrorsOfOpsAreThoseOfTheSlowerLinks) {
  Session session;
  session.show({simulate_run("measured: on-demand", slower_machine()), simulate_run("predicted: on-demand")});
  ASSERT_EQ(session.shown().op_errors().size(), 25u);
  double predicted = 0, measured = 0;
  for (const OpError& error : session.shown().op_errors()) {
    EXPECT_LE(error.predicted_ns, error.measured_ns);
    predicted += error.predicted_ns;
    measured += error.measured_ns;
  }
  EXPECT_DOUBLE_EQ(predicted, static_cast<double>(session.shown().aligned_length_ns(0)));
  EXPECT_DOUBLE_EQ(measured, static_cast<double>(session.shown().aligned_length_ns(1)));
  EXPECT_THAT(belief(session, 0), HasSubstr("against the measured"));
  EXPECT_THAT(belief(session, 1), HasSubstr("measured"));
}

// What a pixel of the strip of errors says is what adding up its ops says.
TEST(SessionModel, ErrorsOfAStretchAreThoseOfItsOps) {
  Session session;
  session.show({simulate_run("measured: on-demand", slower_machine()), simulate_run("predicted: on-demand")});
  const std::vector<OpError>& errors = session.shown().op_errors();
  const double whole = errors.back().end_ns;
  for (const double length : {whole, whole / 7, whole / 1000}) {
    for (double begin = -length; begin < whole + length; begin += length) {
      double predicted = 0, measured = 0;
      for (const OpError& error : errors) {
        if (error.end_ns <= begin || error.begin_ns >= begin + length) continue;
        predicted += error.predicted_ns;
        measured += error.measured_ns;
      }
      const std::optional<double> found = error_between(errors, begin, begin + length);
      ASSERT_EQ(found.has_value(), measured > 0) << begin << " of " << length;
      if (found) {
        ASSERT_NEAR(*found, predicted / measured, 1e-9);
      }
    }
  }
  EXPECT_FALSE(error_between({}, 0, 1).has_value());
}

TEST(SessionModel, SearchesNamesAndModulesInAnyCase) {
  Session session;
  session.show({simulate_run("predicted: on-demand")});
  session.look_for("LAYER11");
  EXPECT_THAT(session.search().ops(), ::testing::ElementsAre(11, 13));
  session.look_for("weight1");
  EXPECT_THAT(session.search().tensors(), ::testing::ElementsAre(1, 10, 11));
  session.select_next_match(1);
  EXPECT_EQ(session.selection.kind, Selection::Kind::tensor);
  EXPECT_EQ(session.selection.id, 1u);
  session.select_next_match(1);
  EXPECT_EQ(session.selection.id, 10u);
  session.select_next_match(-1);
  EXPECT_EQ(session.selection.id, 1u);
  session.look_for("weight");  // another search begins with its first
  session.select_next_match(1);
  EXPECT_EQ(session.selection.id, 0u);
  session.look_for("weight1");
  session.select_next_match(1);
  ASSERT_NE(session.selection.span, none);
  EXPECT_EQ(session.runs()[0]->spans()[session.selection.span].tensor, 1u);
}

// The marks of a search, at once where there is little to look through, else a little later.
TEST(SessionModel, MarksAreTheSpansThatMatch) {
  for (const std::uint64_t iterations : {1U, 800U}) {
    Recording recording = simulate_recording("predicted: on-demand");
    const std::vector<Span> once = recording.timeline.spans;
    const Nanoseconds end = once.back().end_ns;
    for (std::uint64_t i = 1; i < iterations; ++i) {
      for (Span span : once) {
        span.start_ns += static_cast<Nanoseconds>(i) * end;
        span.end_ns += static_cast<Nanoseconds>(i) * end;
        recording.timeline.spans.push_back(span);
      }
    }
    Session session;
    session.show({std::make_shared<const gui::Run>(std::move(recording))});
    EXPECT_EQ(session.search().marks(0, 0), nullptr);
    session.look_for("forward1");
    session.look_for("weight3");  // before that one is found
    EXPECT_EQ(session.busy(), iterations > 1);
    session.wait();
    EXPECT_EQ(session.search().marks(0, 0), nullptr);
    const Track* marks = session.search().marks(0, 1);
    ASSERT_NE(marks, nullptr);
    EXPECT_EQ(marks->items().size(), session.runs()[0]->transfers_of(3).size());
    for (const TrackItem& item : marks->items()) EXPECT_EQ(session.runs()[0]->spans()[item.span].tensor, 3u);
    session.look_for("");
    session.wait();
    EXPECT_EQ(session.search().marks(0, 1), nullptr);
  }
}

TEST(SessionModel, SelectionIsFoundInTheOtherRun) {
  Recording other = simulate_recording("measured: on-demand", slower_machine());
  std::swap(other.trace.ops[12].name, other.trace.ops[3].name);  // another order, and one that it lacks
  other.trace.ops[0].name = other.trace.ops[1].name;
  Session session;
  session.show({simulate_run("predicted: on-demand"), std::make_shared<const gui::Run>(std::move(other))});
  session.select_span(0, session.runs()[0]->spans_of_op(12).front());
  EXPECT_EQ(session.selected_in(1), 3u);
  EXPECT_THAT(describe_selection(session).front().second, HasSubstr("loss"));
  session.select_span(0, session.runs()[0]->spans_of_op(0).front());
  EXPECT_EQ(session.selected_in(1), none);
}

TEST(SessionModel, MeasuresAStretchExactly) {
  Session session;
  session.show({simulate_run("predicted: on-demand")});
  const Measurement whole = session.shown().measure(0, 0, static_cast<double>(session.shown().aligned_length_ns(0)));
  EXPECT_EQ(std::accumulate(whole.covered_ns.begin(), whole.covered_ns.end(), Nanoseconds{0}), whole.length_ns);
  ASSERT_EQ(whole.moved.size(), 1u);
  EXPECT_EQ(whole.moved[0].second % 1'000'000, 0u);
  EXPECT_GT(whole.moved[0].second, 10'000'000u);
  const std::string csv = spans_csv(session, 0, 1e12);
  EXPECT_THAT(csv, HasSubstr("\npredicted: on-demand,stall,"));
  EXPECT_GT(std::ranges::count(csv, '\n'), 25 + 12);
  EXPECT_THAT(occupancy_csv(session), HasSubstr("run,tier,time_ns,parameter,gradient"));
}

TEST(SessionModel, OpensInTheBackgroundAndSaysWhatFails) {
  Session session;
  session.open("/nowhere/at/all.json");
  session.wait();
  EXPECT_TRUE(session.messages().last_is_error());
  EXPECT_THAT(session.messages().last(), HasSubstr("/nowhere/at/all.json"));
  EXPECT_TRUE(session.runs().empty());
  // Whatever succeeds beside it, and until something new is asked for.
  session.open("/nowhere/else.json");
  session.open_sample();
  session.wait();
  EXPECT_THAT(session.messages().errors(), ::testing::ElementsAre(HasSubstr("/nowhere/else.json")));
  EXPECT_THAT(session.messages().last(), HasSubstr("/nowhere/else.json"));
  EXPECT_EQ(session.runs().size(), 1u);
  session.rerun();
  session.wait();
  EXPECT_TRUE(session.messages().errors().empty());
  EXPECT_FALSE(session.messages().last_is_error());
}

TEST(SessionModel, TheSampleOpensAndStalls) {
  Session session;
  session.open_sample();
  session.wait();
  ASSERT_EQ(session.runs().size(), 1u) << session.messages().last();
  ASSERT_NE(session.simulated(), nullptr);
  EXPECT_TRUE(session.simulated()->fits) << session.simulated()->reason;
  EXPECT_GT(session.simulated()->bound_seconds, 0);
  EXPECT_THAT(headline(session, 0), HasSubstr("stalls"));
  // Its machine's figures are uncertain.
  const bool quick = session.simulated()->took_seconds * interval_samples <= most_interval_seconds;
  EXPECT_EQ(session.simulated()->samples, quick ? interval_samples : 0u);
  EXPECT_EQ(session.simulated()->low_seconds < session.simulated()->high_seconds, quick);
  session.what_if->policy.name = "no such policy";
  session.rerun();
  session.wait();
  EXPECT_TRUE(session.messages().last_is_error());
  EXPECT_THAT(session.messages().last(), HasSubstr("no such policy"));
  EXPECT_EQ(session.runs().size(), 1u);  // what was there stays
}

}  // namespace
}  // namespace tencache::gui
