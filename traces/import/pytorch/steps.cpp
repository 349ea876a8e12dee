#include "traces/import/pytorch/steps.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::string_view profiler_step = "ProfilerStep#";

Iterations by_profiler(const ExecutionTrace& trace) {
  Iterations found;
  found.mark = IterationMark::profiler_step;
  for (std::uint32_t i = 0; i < trace.nodes.size(); ++i) {
    const std::string_view name = trace.name(trace.nodes[i]);
    if (is_profiler_step(name)) {
      if (!found.all.empty()) found.all.back().end = i;
      Iteration iteration{i, static_cast<std::uint32_t>(trace.nodes.size()), 0, false};
      const std::string_view number = name.substr(profiler_step.size());
      std::from_chars(number.data(), number.data() + number.size(), iteration.number);
      found.all.push_back(iteration);
    } else if (is_optimizer_step(name) && !found.all.empty()) {
      found.all.back().complete = true;
    }
  }
  return found;
}

Iterations by_optimizer(const ExecutionTrace& trace) {
  Iterations found;
  found.mark = IterationMark::optimizer_step;
  std::uint32_t begin = 0;
  for (std::uint32_t i = 0; i < trace.nodes.size(); ++i) {
    if (!is_optimizer_step(trace.name(trace.nodes[i]))) continue;
    const std::uint32_t end = trace.nodes[i].last + 1;
    found.all.push_back({begin, end, static_cast<std::int64_t>(found.all.size()), true});
    begin = end;
  }
  return found;
}

Iteration by_nodes(const ExecutionTrace& trace, const IterationChoice& choice) {
  const auto at = [&](std::uint64_t id) {
    return static_cast<std::uint32_t>(std::ranges::lower_bound(trace.nodes, id, {}, &CallNode::id) -
                                      trace.nodes.begin());
  };
  const Iteration iteration{
      at(choice.first_node),
      choice.last_node == 0 ? static_cast<std::uint32_t>(trace.nodes.size()) : at(choice.last_node + 1), 0, true};
  if (iteration.begin >= iteration.end) {
    throw Error(trace.file, 0,
                "has no nodes from " + std::to_string(choice.first_node) + " to " + std::to_string(choice.last_node) +
                    "; its ids run from " + std::to_string(trace.nodes.front().id) + " to " +
                    std::to_string(trace.nodes.back().id));
  }
  return iteration;
}

std::string listed(const Iterations& iterations) {
  std::string text;
  for (std::size_t i = 0; i < iterations.all.size() && i < 20; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(iterations.all[i].number) +
            (iterations.all[i].complete ? "" : " (without an optimizer's step)");
  }
  return text + (iterations.all.size() > 20 ? ", …" : "");
}

}  // namespace

bool is_profiler_step(std::string_view name) { return name.starts_with(profiler_step); }
bool is_optimizer_step(std::string_view name) { return name.starts_with("Optimizer.step#"); }
bool is_accumulation(std::string_view name) {
  return name == "torch::autograd::AccumulateGrad" ||
         name.starts_with("torch.distributed.ddp.reducer::copy_bucket_to_grad");
}
bool is_loss(std::string_view name) {
  return name.find("loss") != std::string_view::npos || name.find("cross_entropy") != std::string_view::npos;
}

Iterations find_iterations(const ExecutionTrace& trace, const IterationChoice& choice) {
  if (choice.first_node != 0 || choice.last_node != 0) {
    Iterations given;
    given.all.push_back(by_nodes(trace, choice));
    given.evidence = "nodes " + std::to_string(trace.nodes[given.all[0].begin].id) + " to " +
                     std::to_string(trace.nodes[given.all[0].end - 1].id) + ", as given";
    return given;
  }
  Iterations found = by_profiler(trace);
  if (found.all.empty()) found = by_optimizer(trace);
  if (found.all.empty()) {
    found.mark = IterationMark::none;
    found.all.push_back({0, static_cast<std::uint32_t>(trace.nodes.size()), 0, false});
  }
  const std::string mark = found.mark == IterationMark::profiler_step    ? "ProfilerStep#"
                           : found.mark == IterationMark::optimizer_step ? "the part up to Optimizer.step number "
                                                                         : "";
  if (choice.number) {
    const auto chosen = std::ranges::find(found.all, *choice.number, &Iteration::number);
    if (chosen == found.all.end()) {
      throw Error(trace.file, 0, "has no iteration " + std::to_string(*choice.number) + "; it has " + listed(found));
    }
    found.chosen = static_cast<std::size_t>(chosen - found.all.begin());
    found.evidence = mark + std::to_string(chosen->number) + ", as given";
    return found;
  }
  const auto last_complete =
      std::find_if(found.all.rbegin(), found.all.rend(), [](const Iteration& i) { return i.complete; });
  if (last_complete == found.all.rend()) {
    found.chosen = found.all.size() - 1;
    found.evidence = found.mark == IterationMark::none
                         ? "the whole recording: it has neither ProfilerStep annotations nor an optimizer's step"
                         : mark + std::to_string(found.all.back().number) + ": none has an optimizer's step";
    return found;
  }
  found.chosen = static_cast<std::size_t>(found.all.rend() - last_complete) - 1;
  const auto complete = std::ranges::count_if(found.all, [](const Iteration& i) { return i.complete; });
  found.evidence = mark + std::to_string(last_complete->number) +
                   (complete == 1 ? ", the only complete one" : ", the last complete of " + std::to_string(complete));
  return found;
}

std::vector<Part> find_parts(const ExecutionTrace& trace, const Iterations& iterations) {
  std::vector<Part> parts(trace.nodes.size());
  std::set<std::uint32_t> backward_threads, forward_threads;
  for (const CallNode& node : trace.nodes) {
    const std::string_view name = trace.name(node);
    if (name.starts_with("autograd::engine::")) backward_threads.insert(node.thread);
    if (is_optimizer_step(name) || is_profiler_step(name)) forward_threads.insert(node.thread);
    if (node.scope == 0 && node.sequence >= 0 && node.schema != 0) forward_threads.insert(node.thread);
  }
  for (std::uint32_t i = 0; i < trace.nodes.size(); ++i) {
    const CallNode& node = trace.nodes[i];
    const std::string_view name = trace.name(node);
    Part& part = parts[i];
    if (node.parent != none) part = parts[node.parent];
    part.in_step = part.in_step || is_optimizer_step(name);
    part.in_accumulation = part.in_accumulation || is_accumulation(name);
    if (part.in_step) {
      part.phase = Phase::optimizer;
    } else if (name.starts_with("autograd::engine::") || node.scope == 1 ||
               (backward_threads.contains(node.thread) && !forward_threads.contains(node.thread))) {
      part.phase = Phase::backward;
    } else if (part.phase == Phase::forward && is_loss(name)) {
      part.phase = Phase::loss;
    }
  }
  // What follows the backward pass.
  for (const Iteration& iteration : iterations.all) {
    std::uint32_t backward_end = none;
    bool step = false;
    for (std::uint32_t i = iteration.begin; i < iteration.end; ++i) {
      if (parts[i].phase == Phase::backward) backward_end = i;
      step = step || parts[i].in_step;
    }
    if (backward_end == none || !step) continue;
    for (std::uint32_t i = backward_end + 1; i < iteration.end; ++i) parts[i].phase = Phase::optimizer;
  }
  return parts;
}

}  // namespace tencache
