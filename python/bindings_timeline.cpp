// Timelines as arrays.
#include "answers/questions.h"
#include "python/bindings.h"

namespace tencache {
namespace {

constexpr std::size_t span_kind_count = 4;

struct SpanRow {
  std::int64_t start_ns, end_ns;
  std::uint64_t bytes, iteration;
  std::uint32_t op, tensor, chunk;
  std::uint8_t kind, cause, lane, from_tier, to_tier;
  bool urgent;
};

struct OccupancyRow {
  std::int64_t time_ns;
  std::uint64_t used;
  std::int64_t change;
  std::uint32_t tensor;
  std::uint8_t tier, role;
};

py::array spans_of(const KeptTimeline& kept) {
  std::vector<SpanRow> rows;
  rows.reserve(kept.timeline.spans.size());
  for (const Span& span : kept.timeline.spans) {
    rows.push_back({span.start_ns, span.end_ns, span.bytes, span.iteration, span.op, span.tensor, span.chunk,
                    static_cast<std::uint8_t>(span.kind), static_cast<std::uint8_t>(span.cause), span.lane, span.from,
                    span.to, span.urgent});
  }
  return to_array(rows);
}

py::array occupancy_of(const KeptTimeline& kept) {
  std::vector<OccupancyRow> rows;
  rows.reserve(kept.timeline.occupancy.size());
  for (const OccupancySample& sample : kept.timeline.occupancy) {
    rows.push_back({sample.time_ns, sample.used, sample.change, sample.tensor, sample.tier,
                    static_cast<std::uint8_t>(sample.role)});
  }
  return to_array(rows);
}

py::list lanes_of(const KeptTimeline& kept) {
  py::list lanes;
  lanes.append("GPU");
  lanes.append("CPU");
  lanes.append("GPU, communication");
  for (const Link& link : kept.machine.links) lanes.append(to_text(link.name));
  return lanes;
}

py::list tiers_of(const KeptTimeline& kept) {
  py::list tiers;
  for (const Tier& tier : kept.machine.tiers) {
    py::dict one;
    one["name"] = to_text(tier.name);
    one["kind"] = std::string(to_string(tier.kind));
    one["capacity"] = tier.capacity;
    tiers.append(one);
  }
  return tiers;
}

}  // namespace

void bind_timeline(py::module_& module) {
  PYBIND11_NUMPY_DTYPE(SpanRow, start_ns, end_ns, bytes, iteration, op, tensor, chunk, kind, cause, lane, from_tier,
                       to_tier, urgent);
  PYBIND11_NUMPY_DTYPE(OccupancyRow, time_ns, used, change, tensor, tier, role);
  py::tuple kinds(span_kind_count);
  kinds[0] = "op", kinds[1] = "gap", kinds[2] = "stall", kinds[3] = "transfer";
  module.attr("SPAN_KINDS") = kinds;
  module.attr("STALL_CAUSES") = names_of<StallCause>(all_causes.size());

  py::class_<KeptTimeline, std::shared_ptr<KeptTimeline>> timeline(
      module, "Timeline", "What happened when in a simulated run, as arrays. Times count from the run's start.");
  timeline.attr("__module__") = "tencache";
  timeline.def_readonly("name", &KeptTimeline::name, "Such as 'predicted: g10'.");
  timeline.def_property_readonly("spans", &spans_of,
                                 "A structured array, in order of the spans' end; a copy. `kind` is an index of "
                                 "SPAN_KINDS, `cause` (of stalls) of STALL_CAUSES, `lane` of `lanes`; ids that do not "
                                 "apply are NONE, tiers that do not 255.");
  timeline.def_property_readonly("occupancy", &occupancy_of,
                                 "A structured array, a row whenever a tier's use changed: `used` is the tier's with "
                                 "this change; `role` is an index of ROLES; a copy.");
  timeline.def_property_readonly("lanes", &lanes_of,
                                 "Names of lanes: GPU, CPU, the GPU's communication stream, then the machine's links.");
  timeline.def_property_readonly("tiers", &tiers_of, "Each tier's name, kind and capacity in bytes.");
  timeline.def_property_readonly(
      "program", [](const KeptTimeline& kept) { return std::make_shared<PythonTrace>(PythonTrace{kept.trace}); },
      "The trace as it ran under the policy, whose ops and tensors the spans name; a copy.");
  timeline.def("__repr__", [](const KeptTimeline& kept) {
    return "<tencache.Timeline '" + kept.name + "', " + std::to_string(kept.timeline.spans.size()) + " spans>";
  });
}

}  // namespace tencache
