// Where an iteration begins and ends in a recording, and what belongs to its forward pass, its backward pass and its
// optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "traces/import/pytorch/execution_trace.h"

namespace tencache {

struct Iteration {
  std::uint32_t begin = 0, end = 0;  // nodes
  std::int64_t number = 0;           // of ProfilerStep#, else counted from 0
  bool complete = false;             // has an optimizer's step
};

enum class IterationMark { profiler_step, optimizer_step, none };

struct Iterations {
  IterationMark mark = IterationMark::none;
  std::vector<Iteration> all;
  std::size_t chosen = 0;
  std::string evidence;  // "ProfilerStep#7, the last complete of 3"
};

struct IterationChoice {
  std::optional<std::int64_t> number;  // empty: the last complete one
  // Ids of the first and the last node, instead; 0: not given.
  std::uint64_t first_node = 0, last_node = 0;
};

// By the profiler's annotations ProfilerStep#N where there are any; else an iteration ends with the optimizer's step
// ("Optimizer.step#…"); else the whole recording is one. Throws Error where there is no such iteration.
Iterations find_iterations(const ExecutionTrace& trace, const IterationChoice& choice);

// The part of an iteration that a call belongs to.
struct Part {
  Phase phase = Phase::forward;
  bool in_step = false;          // within the optimizer's step()
  bool in_accumulation = false;  // within autograd's AccumulateGrad
};

// By node. Backward: within autograd's functions, or on a thread of theirs. Optimizer: within its step(), and what
// follows the last of the backward pass (clipping). Loss: within a forward call that is named after a loss.
std::vector<Part> find_parts(const ExecutionTrace& trace, const Iterations& iterations);

bool is_profiler_step(std::string_view name);
bool is_optimizer_step(std::string_view name);
bool is_accumulation(std::string_view name);
bool is_loss(std::string_view name);

}  // namespace tencache
