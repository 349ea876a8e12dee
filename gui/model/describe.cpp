#include "gui/model/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "gui/model/browse.h"
#include "gui/model/results.h"
#include "traces/import/csv_table.h"

namespace tencache::gui {
namespace {

constexpr std::size_t most_tensors_listed = 4;

std::string name_or(std::string_view name, const char* otherwise) {
  return name.empty() ? std::string(otherwise) : std::string(name);
}

std::string list_tensors(const Run& run, std::span<const TensorId> tensors) {
  std::vector<TensorId> sorted(tensors.begin(), tensors.end());
  const auto bytes = [&](TensorId tensor) { return run.trace().tensors[tensor].bytes; };
  std::ranges::stable_sort(sorted, std::ranges::greater(), bytes);
  Bytes sum = 0;
  for (const TensorId tensor : sorted) sum += bytes(tensor);
  std::string text = fmt::format("{} in {} tensors: ", format_bytes(sum), sorted.size());
  if (sorted.empty()) return "nothing";
  for (std::size_t i = 0; i < std::min(sorted.size(), most_tensors_listed); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", name_or(run.tensor_name(sorted[i]), "unnamed"),
                        format_bytes(bytes(sorted[i])));
  }
  if (sorted.size() > most_tensors_listed) text += ", …";
  return text;
}

void describe_op(const Run& run, std::uint32_t index, Facts& facts) {
  const Span& span = run.spans()[index];
  facts.emplace_back("", name_or(run.op_name(span.op), "an op that the recording does not know"));
  facts.emplace_back("takes", duration_text(span.end_ns - span.start_ns));
  if (span.op >= run.trace().ops.size()) return;
  const Op& op = run.trace().ops[span.op];
  facts.emplace_back("part of", fmt::format("{}{}{}{}", to_string(op.phase), run.recomputes(span.op) ? ", again" : "",
                                            run.module_name(span.op).empty() ? "" : ", ", run.module_name(span.op)));
  facts.emplace_back("reads", list_tensors(run, run.trace().reads(op)));
  facts.emplace_back("writes", list_tensors(run, run.trace().writes(op)));
  Bytes bytes = 0;
  const std::vector<std::uint32_t> brought = run.brought_for(index);
  std::size_t urgent = 0;
  for (const std::uint32_t transfer : brought) {
    bytes += run.spans()[transfer].bytes;
    urgent += run.spans()[transfer].urgent;
  }
  if (!brought.empty()) {
    facts.emplace_back("brought for it", fmt::format("{} in {} copies, {} of them asked for too late",
                                                     format_bytes(bytes), brought.size(), urgent));
  }
}

void describe_transfer(const Run& run, std::uint32_t index, Facts& facts) {
  const Span& span = run.spans()[index];
  facts.emplace_back("", name_or(run.tensor_name(span.tensor), "a tensor that the recording does not know"));
  const Nanoseconds duration = span.end_ns - span.start_ns;
  std::string size = format_bytes(span.bytes);
  if (span.tensor < run.trace().tensors.size()) {
    const Tensor& tensor = run.trace().tensors[span.tensor];
    if (tensor.bytes != span.bytes) size += fmt::format(" of {}", format_bytes(tensor.bytes));
    size += fmt::format(", {}", to_string(tensor.role));
  }
  facts.emplace_back("moves", size);
  facts.emplace_back("way", fmt::format("{} to {}", run.tier_name(span.from), run.tier_name(span.to)));
  std::string took = duration_text(duration);
  if (duration > 0) {
    const double reached = static_cast<double>(span.bytes) / static_cast<double>(duration) * 1e9;
    took += fmt::format(", {}", format_bandwidth(static_cast<BytesPerSecond>(reached)));
    const std::size_t link = std::size_t{span.lane} - first_link_lane;
    if (link < run.machine().links.size() && run.machine().links[link].bandwidth > 0) {
      took +=
          fmt::format(" ({} of the link)", percent(reached / static_cast<double>(run.machine().links[link].bandwidth)));
    }
  }
  facts.emplace_back("takes", took);
  facts.emplace_back("asked for", fmt::format("{} {}", span.urgent ? "urgently, by" : "ahead, during",
                                              name_or(run.op_name(span.op), "no op of the program")));
  const std::uint32_t user = run.used_by(index);
  if (user == none) {
    // No op runs where it went.
    const bool saves =
        span.to >= run.machine().tiers.size() || run.machine().tiers[span.to].kind == TierKind::nvme || span.from == 0;
    facts.emplace_back("used by", saves ? "nothing: it makes room or saves" : "nothing before it left again");
  } else {
    const Span& use = run.spans()[user];
    facts.emplace_back("used by", fmt::format("{}, {} after it arrived", name_or(run.op_name(use.op), "an op"),
                                              duration_text(std::max<Nanoseconds>(0, use.start_ns - span.end_ns))));
  }
}

std::string_view kind_name(const Span& span) {
  switch (span.kind) {
    case SpanKind::op:
      return "op";
    case SpanKind::gap:
      return "host time";
    case SpanKind::stall:
      return "stall";
    case SpanKind::transfer:
      return "transfer";
    case SpanKind::move:
      return "move";
  }
  return "";
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

std::string time_text(double time_ns, double step_ns) {
  const double size = std::max(std::abs(time_ns), step_ns);
  const auto [unit, ns] = size >= 1e9   ? std::pair("s", 1e9)
                          : size >= 1e6 ? std::pair("ms", 1e6)
                          : size >= 1e3 ? std::pair("µs", 1e3)
                                        : std::pair("ns", 1.0);
  const int decimals = std::clamp(static_cast<int>(std::ceil(std::log10(ns / step_ns) - 1e-9)), 0, 9);
  const double shown = std::abs(time_ns) < step_ns / 1000 ? 0 : time_ns / ns;  // no "-0"
  return fmt::format("{:.{}f} {}", shown, decimals, unit);
}

Facts describe_span(const Run& run, std::uint32_t index) {
  Facts facts;
  const Span& span = run.spans()[index];
  switch (span.kind) {
    case SpanKind::op:
      describe_op(run, index, facts);
      break;
    case SpanKind::gap:
      facts.emplace_back("", "host time");
      facts.emplace_back("takes", duration_text(span.end_ns - span.start_ns));
      if (!run.op_name(span.op).empty()) facts.emplace_back("before", std::string(run.op_name(span.op)));
      break;
    case SpanKind::stall:
      facts.emplace_back("", std::string("waits for ") + label_of(span.cause));
      facts.emplace_back("takes", duration_text(span.end_ns - span.start_ns));
      facts.emplace_back("waiting op", name_or(run.op_name(span.op), "an op that the recording does not know"));
      break;
    case SpanKind::transfer:
      describe_transfer(run, index, facts);
      break;
    case SpanKind::move:
      facts.emplace_back("", std::string(run.tensor_name(span.tensor)));
      facts.emplace_back("moves within", std::string(run.tier_name(span.to)));
      facts.emplace_back("bytes", format_bytes(span.bytes));
      facts.emplace_back("takes", duration_text(span.end_ns - span.start_ns));
      break;
  }
  return facts;
}

namespace {

// The op in that iteration, or else anywhere in the run.
std::uint32_t span_in(const Run& run, OpIndex op, std::size_t iteration) {
  const std::span<const std::uint32_t> spans = run.spans_of_op(op);
  const auto found = std::ranges::find_if(
      spans, [&](std::uint32_t span) { return run.spans()[span].start_ns >= run.iteration_begin_ns(iteration); });
  return spans.empty() ? none : found == spans.end() ? spans.front() : *found;
}

// Without one of its copies: all of them in an iteration.
Facts describe_tensor(const Run& run, TensorId id, std::size_t iteration) {
  const Tensor& tensor = run.trace().tensors[id];
  Facts facts{{"", std::string(run.tensor_name(id))},
              {"holds", format_bytes(tensor.bytes) + " of " + label_of(tensor.role)}};
  Bytes bytes = 0;
  Nanoseconds time = 0;
  std::size_t waited_for = 0;
  const std::vector<std::uint32_t> copies = copies_of(run, id, iteration);
  for (const std::uint32_t copy : copies) {
    const Span& span = run.spans()[copy];
    bytes += span.bytes;
    time += span.end_ns - span.start_ns;
    waited_for += span.urgent;
  }
  facts.emplace_back("copies", copies.empty()
                                   ? "none in this iteration"
                                   : fmt::format("{} in this iteration: {} in {}; an op waited for {} of them",
                                                 copies.size(), format_bytes(bytes), duration_text(time), waited_for));
  return facts;
}

}  // namespace

Facts describe_selection(const Session& session) {
  const Selection& selection = session.selection;
  if (selection.kind == Selection::Kind::nothing || selection.run >= session.runs().size()) return {};
  const Run& run = *session.runs()[selection.run];
  const std::size_t iteration = std::min(session.shown().aligned(), run.iteration_count() - 1);
  std::uint32_t span = selection.span;
  if (span == none && selection.kind == Selection::Kind::op) span = span_in(run, selection.id, iteration);
  if (span != none) {
    Facts facts = describe_span(run, span);
    if (selection.kind == Selection::Kind::op && run.spans()[span].kind == SpanKind::op) {
      const auto error = std::ranges::find(session.shown().op_errors(), selection.id, &OpError::op);
      if (error != session.shown().op_errors().end()) {
        facts.emplace_back(
            "with its waits",
            fmt::format("predicted {}, measured {} ({:+.1f} %)",
                        duration_text(static_cast<Nanoseconds>(error->predicted_ns)),
                        duration_text(static_cast<Nanoseconds>(error->measured_ns)),
                        error->measured_ns > 0 ? 100 * (error->predicted_ns / error->measured_ns - 1) : 0));
      }
    }
    return facts;
  }
  if (selection.kind == Selection::Kind::tensor) return describe_tensor(run, selection.id, iteration);
  return {{"", std::string(run.op_name(selection.id))}};
}

Facts describe_measurement(const Session& session, std::size_t run, const Measurement& measurement) {
  Facts facts;
  facts.emplace_back("", "where the time goes, " + session.runs()[run]->title());
  const auto add = [&](const std::string& label, Nanoseconds time) {
    if (time == 0 || measurement.length_ns <= 0) return;
    facts.emplace_back(label,
                       fmt::format("{}, {}", duration_text(time),
                                   percent(static_cast<double>(time) / static_cast<double>(measurement.length_ns))));
  };
  facts.emplace_back("length", duration_text(measurement.length_ns));
  Nanoseconds compute = 0;
  for (std::size_t slot = 0; slot < gap_slot; ++slot) compute += measurement.covered_ns[slot];
  add("compute", compute);
  add("of it recomputation", measurement.covered_ns[recompute_slot]);
  add("host time", measurement.covered_ns[gap_slot]);
  for (const StallCause cause : all_causes) {
    add(std::string("waits for ") + label_of(cause), measurement.covered_ns[slot_of(cause)]);
  }
  return facts;
}

Facts describe_moved(const Measurement& measurement) {
  Facts facts{{"", "moved"}};
  for (const auto& [link, bytes] : measurement.moved) {
    if (bytes == 0) continue;
    const double rate = static_cast<double>(bytes) / to_seconds(std::max<Nanoseconds>(1, measurement.length_ns));
    facts.emplace_back(link, format_bytes(bytes) + ", " + format_bandwidth(static_cast<BytesPerSecond>(rate)));
  }
  if (facts.size() == 1) facts.emplace_back("nothing", "");
  return facts;
}

std::string step_name(const StepBegin& step) {
  return step.phase == Phase::prefill ? "prefill" : fmt::format("decode {}", step.step);
}

std::string headline(const Session& session, std::size_t run) {
  const auto length = static_cast<double>(session.shown().aligned_length_ns(run));
  const Measurement whole = session.shown().measure(run, 0, length);
  Nanoseconds stalled = 0;
  for (std::size_t slot = first_stall_slot; slot < slot_count; ++slot) stalled += whole.covered_ns[slot];
  return fmt::format("{} an iteration, {} of it stalls", duration_text(static_cast<Nanoseconds>(length)),
                     percent(length > 0 ? static_cast<double>(stalled) / length : 0));
}

std::string interval_of(const Simulated& simulated) {
  if (simulated.samples == 0) return "";
  if (std::isinf(simulated.high_seconds)) return "may not fit within the machine's uncertainty; ";
  const auto text = [](double seconds) { return duration_text(static_cast<Nanoseconds>(seconds * 1e9)); };
  if (text(simulated.low_seconds) == text(simulated.high_seconds)) return "";
  return fmt::format("{} to {} within the machine's uncertainty; ", text(simulated.low_seconds),
                     text(simulated.high_seconds));
}

std::string validity_of(const Session& session, const Simulated& simulated) {
  if (session.what_if && session.what_if->machine_changed()) return "extrapolated";
  const Workload& workload = simulated.workload;
  const std::string validity = validity_of(session.documents().all(), workload);
  const std::string durations = durations_text(workload);
  std::string text = durations.empty() ? validity : validity + ", " + durations;
  if (const auto& time = workload.gpu_time) {
    text += fmt::format(", GPU times modelled for the {}{} ± {:.0f} %", time->gpu,
                        time->measured ? "" : " (not measured)", 100 * time->error);
  }
  return text;
}

namespace {

// Whether the run is a prediction of what was measured: one file holds both, or it is the same machine as it is and as
// many ops and tensors.
bool predicts(const Session& session, std::size_t run, const Run& measured) {
  const Run& predicted = *session.runs()[run];
  if (predicted.source() == measured.source()) return true;
  const SimulatedPointer simulated = session.simulated();
  const bool is_simulated = simulated != nullptr && simulated->run == session.runs()[run];
  if (is_simulated && session.what_if && session.what_if->machine_changed()) return false;
  const auto same_figures = [](const MachineSpec& a, const MachineSpec& b) {
    return a.name == b.name && std::ranges::equal(a.tiers, b.tiers, {}, &Tier::capacity, &Tier::capacity) &&
           std::ranges::equal(a.links, b.links, {}, &Link::bandwidth, &Link::bandwidth);
  };
  return same_figures(predicted.machine(), measured.machine()) &&
         predicted.trace().ops.size() == measured.trace().ops.size() &&
         predicted.trace().tensors.size() == measured.trace().tensors.size();
}

}  // namespace

std::string belief(const Session& session, std::size_t run) {
  const Run& r = *session.runs()[run];
  if (r.origin() == Origin::measured) return "measured on " + r.machine().name;
  const RunPointer measured = session.shown().of(Origin::measured);
  if (measured == nullptr || !predicts(session, run, *measured)) {
    const SimulatedPointer simulated = session.simulated();
    if (simulated == nullptr || simulated->run != session.runs()[run]) return "extrapolated";
    std::string validity = validity_of(session, *simulated);
    if (simulated->least_seconds() == 0) return validity;
    return fmt::format("{}; {}{:.3f} × ideal, {:.3f} × bound ({})", validity, interval_of(*simulated),
                       simulated->iteration_seconds() / simulated->ideal_seconds,
                       simulated->iteration_seconds() / simulated->least_seconds(),
                       simulated->bound_term + (simulated->bound_choice_seconds ? ", whatever is recomputed" : ""));
  }
  std::size_t other = 0;
  while (session.runs()[other] != measured) ++other;
  const auto predicted_ns = static_cast<double>(session.shown().aligned_length_ns(run));
  const auto measured_ns = static_cast<double>(session.shown().aligned_length_ns(other));
  const double error = predicted_ns / measured_ns - 1;
  return fmt::format("{:+.1f} % against the measured iteration: validated within {}", 100 * error,
                     percent(std::abs(error)));
}

std::string spans_csv(const Session& session, double begin_ns, double end_ns) {
  std::string text = "run,kind,name,lane,iteration,begin_ns,end_ns,cause,bytes,from,to,urgent,op\n";
  for (std::size_t run = 0; run < session.runs().size(); ++run) {
    const Run& r = *session.runs()[run];
    const Nanoseconds origin = session.shown().origin_ns(run);
    for (const Track& track : r.tracks()) {
      for (const TrackItem& item : track.items()) {
        if (static_cast<double>(item.end_ns - origin) <= begin_ns ||
            static_cast<double>(item.begin_ns - origin) >= end_ns)
          continue;
        const Span& span = r.spans()[item.span];
        const bool moves = span.kind == SpanKind::transfer;
        text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_field(r.title()), kind_name(span),
                            csv_field(moves ? r.tensor_name(span.tensor) : r.op_name(span.op)), csv_field(track.name()),
                            span.iteration, item.begin_ns - origin, item.end_ns - origin,
                            span.kind == SpanKind::stall ? to_string(span.cause) : "", moves ? span.bytes : 0,
                            moves ? r.tier_name(span.from) : "", moves ? r.tier_name(span.to) : "",
                            moves && span.urgent ? 1 : 0, csv_field(r.op_name(span.op)));
      }
    }
  }
  return text;
}

std::string occupancy_csv(const Session& session) {
  constexpr int moments = 1000;
  std::string text = "run,tier,time_ns";
  for (int role = 0; role < role_count; ++role) text += fmt::format(",{}", to_string(static_cast<Role>(role)));
  text += "\n";
  for (std::size_t run = 0; run < session.runs().size(); ++run) {
    const Run& r = *session.runs()[run];
    for (TierId tier = 0; tier < r.machine().tiers.size(); ++tier) {
      for (int i = 1; i <= moments && !r.occupancy().empty(tier); ++i) {
        const auto time = static_cast<Nanoseconds>(session.window.begin_ns + session.window.length_ns() * i / moments);
        text += fmt::format("{},{},{}", csv_field(r.title()), csv_field(r.tier_name(tier)), time);
        for (const std::int64_t bytes : r.occupancy().held(tier, session.shown().origin_ns(run) + time)) {
          text += fmt::format(",{}", bytes);
        }
        text += "\n";
      }
    }
  }
  return text;
}

}  // namespace tencache::gui
