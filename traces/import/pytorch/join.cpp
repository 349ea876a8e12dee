#include "traces/import/pytorch/join.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/error.h"

namespace tencache {
namespace {

constexpr double smallest_share = 0.8;
constexpr std::size_t most_edits = 4000;

bool takes_part(const ExecutionTrace& trace, const CallNode& node) {
  const std::string_view name = trace.name(node);
  return !name.starts_with("[pytorch|profiler") && !is_profiler_step(name);
}

using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;  // node, call

Pairs by_id(const ExecutionTrace& trace, const Iteration& iteration, const KinetoWindow& window) {
  std::unordered_map<std::uint64_t, std::uint32_t> call_of;
  for (std::uint32_t i = 0; i < window.calls.size(); ++i) {
    if (window.calls[i].rf_id != 0) call_of.emplace(window.calls[i].rf_id, i);
  }
  Pairs pairs;
  for (std::uint32_t node = iteration.begin; node < iteration.end; ++node) {
    const auto found = call_of.find(trace.nodes[node].rf_id);
    if (trace.nodes[node].rf_id == 0 || found == call_of.end()) continue;
    if (window.names[window.calls[found->second].name] != trace.name(trace.nodes[node])) continue;
    pairs.emplace_back(node, found->second);
  }
  return pairs;
}

Pairs by_name(const ExecutionTrace& trace, const std::vector<std::uint32_t>& nodes, const KinetoWindow& window) {
  NamePool names;
  std::vector<std::uint32_t> a, b;
  for (const std::uint32_t node : nodes) a.push_back(names.intern(trace.name(trace.nodes[node])));
  for (const KinetoCall& call : window.calls) b.push_back(names.intern(window.names[call.name]));
  Pairs pairs = align(a, b, most_edits);
  for (auto& [node, call] : pairs) node = nodes[node];
  return pairs;
}

// The op whose number differs most, for the message.
std::string largest_difference(const ExecutionTrace& trace, const std::vector<std::uint32_t>& nodes,
                               const KinetoWindow& window) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> counts;
  for (const std::uint32_t node : nodes) ++counts[std::string(trace.name(trace.nodes[node]))].first;
  for (const KinetoCall& call : window.calls) ++counts[std::string(window.names[call.name])].second;
  const auto largest = std::ranges::max_element(counts, {}, [](const auto& entry) {
    const bool op = entry.first.starts_with("aten::");
    return op ? std::abs(entry.second.first - entry.second.second) : -1;
  });
  if (largest == counts.end()) return "";
  return std::to_string(largest->second.first) + " × " + largest->first + " in the one, " +
         std::to_string(largest->second.second) + " in the other";
}

// The Kineto trace's iteration that is the execution trace's.
const KinetoIteration& same_iteration(const ExecutionTrace& trace, const Iterations& iterations,
                                      const KinetoIterations& found, const std::optional<std::int64_t>& number,
                                      const std::string& file, std::string& evidence) {
  if (number) return choose_iteration(found, number, file, evidence);
  const Iteration& iteration = iterations.all[iterations.chosen];
  for (std::uint32_t i = iteration.begin; i < iteration.end; ++i) {
    const CallNode& node = trace.nodes[i];
    for (const KinetoMark& mark : found.marks) {
      if (mark.rf_id == 0 || mark.rf_id != node.rf_id || mark.name != trace.name(node)) continue;
      for (const KinetoIteration& candidate : found.all) {
        if (mark.begin_ns < candidate.begin_ns || mark.begin_ns >= candidate.end_ns) continue;
        evidence = "the one with " + mark.name + " of the same record-function id";
        return candidate;
      }
    }
  }
  if (iterations.mark == IterationMark::profiler_step) {
    const auto same = std::ranges::find_if(found.all, [&](const KinetoIteration& candidate) {
      return candidate.numbered && candidate.number == iteration.number;
    });
    if (same != found.all.end()) {
      evidence = "ProfilerStep#" + std::to_string(same->number) + ", as in the execution trace";
      return *same;
    }
  }
  return choose_iteration(found, {}, file, evidence);
}

}  // namespace

Pairs align(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b, std::size_t most) {
  const auto n = static_cast<std::int64_t>(a.size()), m = static_cast<std::int64_t>(b.size());
  const std::int64_t limit = std::min<std::int64_t>(n + m, static_cast<std::int64_t>(most));
  std::vector<std::vector<std::int32_t>> history;  // by number of edits: how far each diagonal got
  std::vector<std::int32_t> far(static_cast<std::size_t>(2 * limit + 3), 0);
  const auto at = [&](std::int64_t diagonal) -> std::int32_t& {
    return far[static_cast<std::size_t>(diagonal + limit + 1)];
  };
  std::int64_t edits = 0;
  bool found = false;
  for (; edits <= limit && !found; ++edits) {
    for (std::int64_t k = -edits; k <= edits; k += 2) {
      const bool down = k == -edits || (k != edits && at(k - 1) < at(k + 1));
      std::int64_t x = down ? at(k + 1) : at(k - 1) + 1;
      while (x < n && x - k < m && x - k >= 0 && a[static_cast<std::size_t>(x)] == b[static_cast<std::size_t>(x - k)])
        ++x;
      at(k) = static_cast<std::int32_t>(x);
      if (x >= n && x - k >= m) found = true;
    }
    history.emplace_back(far.begin() + static_cast<std::ptrdiff_t>(limit + 1 - edits),
                         far.begin() + static_cast<std::ptrdiff_t>(limit + 2 + edits));
  }
  Pairs pairs;
  if (!found) return pairs;
  std::int64_t x = n, y = m;
  for (std::int64_t d = edits - 1; d >= 0; --d) {
    std::int64_t previous_x = 0, previous_y = 0;
    if (d > 0) {
      const std::vector<std::int32_t>& before = history[static_cast<std::size_t>(d - 1)];  // diagonals 1-d … d-1
      const auto reach = [&](std::int64_t diagonal) {
        const std::int64_t i = diagonal + d - 1;
        return i < 0 || i >= static_cast<std::int64_t>(before.size()) ? -1 : before[static_cast<std::size_t>(i)];
      };
      const std::int64_t k = x - y;
      const bool down = k == -d || (k != d && reach(k - 1) < reach(k + 1));
      const std::int64_t diagonal = down ? k + 1 : k - 1;
      previous_x = reach(diagonal);
      previous_y = previous_x - diagonal;
    }
    while (x > previous_x && y > previous_y &&
           a[static_cast<std::size_t>(x - 1)] == b[static_cast<std::size_t>(y - 1)]) {
      pairs.emplace_back(static_cast<std::uint32_t>(--x), static_cast<std::uint32_t>(--y));
    }
    x = previous_x;
    y = previous_y;
  }
  std::ranges::reverse(pairs);
  return pairs;
}

std::vector<Activity> activities_of(const KinetoWindow& window, const std::vector<std::uint32_t>& node_of) {
  // Of a call that is no node's, the call around it.
  const auto node_at = [&](std::uint32_t call) {
    while (call != none && node_of[call] == none) call = window.calls[call].parent;
    return call == none ? none : node_of[call];
  };
  std::vector<Activity> activities;
  if (!window.work.empty()) {
    for (const KinetoWork& work : window.work) activities.push_back({work.begin_ns, work.end_ns, node_at(work.call)});
    return activities;
  }
  // Each call's own time: from its beginning to that of the first call within it, and so on.
  std::vector<Nanoseconds> until(window.calls.size());
  std::vector<std::uint32_t> open;
  const auto own = [&](std::uint32_t call, Nanoseconds end) {
    if (end > until[call] && node_at(call) != none) activities.push_back({until[call], end, node_at(call)});
    until[call] = std::max(until[call], end);
  };
  const auto close = [&](std::uint32_t call) {
    own(call, window.calls[call].end_ns);
    const std::uint32_t parent = window.calls[call].parent;
    if (parent != none) until[parent] = std::max(until[parent], window.calls[call].end_ns);
  };
  std::map<std::uint64_t, std::vector<std::uint32_t>> stacks;  // by thread
  for (std::uint32_t i = 0; i < window.calls.size(); ++i) {
    std::vector<std::uint32_t>& stack = stacks[window.calls[i].thread];
    while (!stack.empty() && stack.back() != window.calls[i].parent) {
      close(stack.back());
      stack.pop_back();
    }
    if (!stack.empty()) own(stack.back(), window.calls[i].begin_ns);
    until[i] = window.calls[i].begin_ns;
    stack.push_back(i);
  }
  for (auto& [thread, stack] : stacks) {
    for (; !stack.empty(); stack.pop_back()) close(stack.back());
  }
  std::ranges::stable_sort(activities, {}, &Activity::begin_ns);
  return activities;
}

Joined join_kineto(const ExecutionTrace& trace, const Iterations& iterations, const std::string& kineto_file,
                   const std::optional<std::int64_t>& kineto_iteration, const ImportProgress& progress) {
  const KinetoIterations found = find_kineto_iterations(kineto_file, progress);
  std::string evidence;
  const KinetoIteration& same = same_iteration(trace, iterations, found, kineto_iteration, kineto_file, evidence);
  const KinetoWindow window = read_kineto_window(kineto_file, same, progress);

  const Iteration& iteration = iterations.all[iterations.chosen];
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t i = iteration.begin; i < iteration.end; ++i) {
    if (takes_part(trace, trace.nodes[i])) nodes.push_back(i);
  }
  Pairs pairs = by_id(trace, iteration, window);
  const auto share = [&] {
    return static_cast<double>(pairs.size()) / static_cast<double>(std::max<std::size_t>(nodes.size(), 1));
  };
  const bool ids = share() >= smallest_share;
  if (!ids) pairs = by_name(trace, nodes, window);
  if (share() < smallest_share) {
    throw Error(kineto_file, 0,
                "is not of the same program as " + trace.file + ": of " + std::to_string(nodes.size()) + " calls " +
                    (pairs.empty() ? "too few" : "only " + std::to_string(pairs.size())) + " can be aligned by name (" +
                    largest_difference(trace, nodes, window) +
                    "); import the execution trace alone, with --assume-gpu NAME");
  }

  Joined joined;
  joined.measured.matched.assign(trace.nodes.size(), false);
  std::vector<std::uint32_t> node_of(window.calls.size(), none);
  for (const auto& [node, call] : pairs) {
    joined.measured.matched[node] = true;
    node_of[call] = node;
  }
  joined.measured.activities = activities_of(window, node_of);
  joined.measured.duration_ns = window.end_ns - window.begin_ns;
  joined.measured.hardware = window.hardware;
  joined.notes.push_back("times: " + evidence + " of the Kineto trace, " +
                         format_duration(joined.measured.duration_ns) + "; " + std::to_string(pairs.size()) + " of " +
                         std::to_string(nodes.size()) + " calls matched by " +
                         (ids ? "record-function id" : "aligning their names"));
  joined.notes.push_back(window.work.empty() ? std::string("nothing ran on a GPU: an op's time is its own on the host")
                                             : std::to_string(window.work.size()) +
                                                   " kernels, copies and fills of the GPU give the times");
  if (window.unlinked_work != 0) {
    joined.notes.push_back("kernels within the iteration that were launched before it or by no recorded call: " +
                           std::to_string(window.unlinked_work));
  }
  return joined;
}

}  // namespace tencache
