#include "answers/bound.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace tencache {
namespace {

std::string links_text(const MachineSpec& machine, const BoundTerm& term) {
  std::vector<std::string> names;
  for (const LinkId link : term.links) names.push_back(machine.links[link].name);
  return join(names);
}

std::string rate_text(const BoundTerm& term) {
  return format_bandwidth(static_cast<BytesPerSecond>(term.bytes_per_second));
}

Json window_op_json(const Trace& trace, OpIndex op) { return {{"op", op}, {"name", trace.name(trace.ops[op])}}; }

}  // namespace

std::string crossing_text(const BoundWindow& window) {
  if (window.bytes < 1) return "what must cross depends on the updates that the CPU runs";
  return format_bytes(static_cast<Bytes>(window.bytes)) + " must cross";
}

std::string binding_text(const Workload& workload, const BoundTerm& binding, std::size_t rank) {
  if (binding.name == "cpu") return "the CPU's lane, which runs the optimizer, over the whole iteration";
  if (binding.name == "dependencies") {
    return "GPU ops and the CPU's updates that wait for each other, round the iteration";
  }
  if (binding.links.empty()) return "computing, over the whole iteration";
  std::string text = fmt::format("{} at {}", links_text(workload.machine.of_rank(rank), binding), rate_text(binding));
  if (binding.windows.empty()) return text;
  const Trace& trace = workload.trace;
  const BoundWindow& window = binding.windows.front();
  text += fmt::format(", from op {} ({}) to {} ({}): {}", window.first, printable(trace.name(trace.ops[window.first])),
                      window.last, printable(trace.name(trace.ops[window.last])), crossing_text(window));
  if (binding.windows.size() > 1) text += fmt::format("; and {} more such windows", binding.windows.size() - 1);
  return text;
}

Json bound_windows_json(const Trace& trace, const std::vector<BoundWindow>& windows) {
  Json list = Json::array();
  for (const BoundWindow& window : windows) {
    list.push_back({{"term", window.term},
                    {"first", window_op_json(trace, window.first)},
                    {"last", window_op_json(trace, window.last)},
                    {"seconds", window.seconds},
                    {"compute_seconds", window.compute_seconds},
                    {"bytes", window.bytes}});
  }
  return list;
}

Json bound_term_json(const Workload& workload, const BoundTerm& term, std::size_t rank) {
  const MachineSpec& machine = workload.machine.of_rank(rank);
  Json inside = Json::array(), links = Json::array();
  for (const TierId tier : term.inside) inside.push_back(machine.tiers[tier].name);
  for (const LinkId link : term.links) links.push_back(machine.links[link].name);
  return {{"name", term.name},
          {"seconds", term.seconds},
          {"inside", std::move(inside)},
          {"links", std::move(links)},
          {"bandwidth_bytes_per_second", term.bytes_per_second > 0 ? Json(term.bytes_per_second) : Json(nullptr)},
          {"windows", bound_windows_json(workload.trace, term.windows)}};
}

std::string storage_bound_note(const Workload& workload, const BoundTerm& binding, std::size_t rank) {
  const MachineSpec& machine = workload.machine.of_rank(rank);
  const auto any = [&](auto end) {
    return std::ranges::any_of(
        binding.links, [&](LinkId link) { return machine.tiers[machine.links[link].*end].kind == TierKind::nvme; });
  };
  const bool reads = any(&Link::from), writes = any(&Link::to);
  if (!reads && !writes) return "";
  return fmt::format("The lower bound has {} always at {}{}: a limit, no prediction.", links_text(machine, binding),
                     rate_text(binding), reads && writes ? " together" : ", reads and writes overlapping");
}

}  // namespace tencache
