// What is said about spans, runs and stretches of time: words and figures, no drawing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "answers/document.h"
#include "answers/figure_unit.h"
#include "gui/model/session.h"

namespace tencache::gui {

// The first line is the title, with an empty label.
Facts describe_span(const Run& run, std::uint32_t span);
// An op or a tensor of the run; of the iteration that begins at `origin_ns`.
Facts describe_selection(const Session& session);
Facts describe_measurement(const Session& session, std::size_t run, const Measurement& measurement);
// By link, with the mean bandwidth.
Facts describe_moved(const Measurement& measurement);

// "prefill", "decode 12".
std::string step_name(const StepBegin& step);

// "132.0 ms an iteration, 31 % of it stalls" of the aligned iteration.
std::string headline(const Session& session, std::size_t run);
// "131 ms to 140 ms within the machine's uncertainty; ", empty where no interval is known.
std::string interval_of(const Simulated& simulated);
// Of a simulation (results.h); of a machine that a slider changed: "extrapolated".
std::string validity_of(const Session& session, const Simulated& simulated);
// How far the figures of a run may be believed (interval, validated or extrapolated), one line; empty: nothing to add.
std::string belief(const Session& session, std::size_t run);

// The spans of all runs between two times (relative to the aligned iteration), a line each; RFC 4180.
std::string spans_csv(const Session& session, double begin_ns, double end_ns);

// What every tier holds of each role, at the end of a thousandth part of the window each; a line a moment and tier.
std::string occupancy_csv(const Session& session);

// ASCII letters only.
std::string lower_case(std::string_view text);
// With enough digits for differences of `step_ns` to show: "12.34 ms".
std::string time_text(double time_ns, double step_ns);

}  // namespace tencache::gui
