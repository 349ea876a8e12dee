#include "answers/timeline/transfer_uses.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/schedule.h"

namespace tencache {

// Walks arrivals and op starts in order of time; an op consumes the arrivals of its tensors on its own device.
void for_each_first_use(const Timeline& timeline, const MachineSpec& machine, const Trace& trace,
                        const std::function<void(std::uint32_t transfer, std::uint32_t op)>& use) {
  const std::vector<Span>& spans = timeline.spans;
  struct Step {
    Nanoseconds time_ns;
    std::uint32_t span;
    bool op;  // after the arrivals of the same time
  };
  std::vector<Step> steps;
  steps.reserve(spans.size());
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (span.kind == SpanKind::op && span.op < trace.ops.size()) steps.push_back({span.start_ns, i, true});
    if (span.kind == SpanKind::transfer && span.tensor < trace.tensors.size()) steps.push_back({span.end_ns, i, false});
  }
  std::ranges::sort(steps, [](const Step& a, const Step& b) {
    return std::tie(a.time_ns, a.op, a.span) < std::tie(b.time_ns, b.op, b.span);
  });
  const Schedule schedule(trace);
  std::vector<std::vector<std::uint32_t>> arrived(trace.tensors.size());  // and not used yet
  for (const Step& step : steps) {
    const Span& span = spans[step.span];
    if (!step.op) {
      arrived[span.tensor].push_back(step.span);
      continue;
    }
    const TierId tier = machine.tier_of(span.lane == cpu_lane ? Device::cpu : Device::gpu);
    for (const Use& used : schedule.uses(span.op)) {
      std::erase_if(arrived[used.tensor], [&](std::uint32_t transfer) {
        // One that left the op's device has nobody waiting for it here.
        if (spans[transfer].to == tier) use(transfer, step.span);
        return spans[transfer].to == tier || spans[transfer].from == tier;
      });
    }
  }
}

}  // namespace tencache
