// The lower bound of the iteration time: no policy can be faster, whatever it moves, where it runs the optimizer and in
// which order. A relaxation: each term drops some of the machine's rules, so each is a bound; the largest is the
// result. It holds for the mean over a steady period; without `...+round` and `...+turned` also for the second
// half of a run of any length.
//
// Iterations overlap only in this: the CPU's lane may lag behind the GPU's or run ahead. What follows counts, in each
// iteration, only what lies between its begin and the next one's on the GPU's lane, where nothing overlaps: the end of
// the op before a window of GPU ops to the end of the window's last op. Such windows never share time, also when
// several ops are issued ahead.
//
//  compute       The GPU's lane: durations and gaps of the ops that no policy moves. An optimizer op recorded on the
//                GPU takes its time there, or the CPU's time (traces/transform/lower.h) on the other lane. For any weight
//                w in [0, 1]
//                  T >= (1 - w) x GPU time + w x CPU time,
//                and the least of the right side over all placements is a sum of minima, op by op: (1 - w) x fixed GPU
//                ops + w x fixed CPU ops + sum of min((1 - w) x on the GPU, w x on the CPU). The best of some weights
//                is taken: weak duality makes every one of them a bound.
//                The CPU time is that of the lane, or for any r and n: r - n + what is moved of the ops that wait for a
//                GPU op r into the iteration and that a GPU op n into the next one waits for. The lane runs them one
//                after the other between the two. (An op ready at all waits at least for the least such r, the last of
//                them is needed at the greatest n.)
//  cpu           The CPU's lane alone. An op counts only if it, or one before it on that lane, waits for a GPU op of
//                its iteration: others might run ahead of the window of a run that never becomes steady.
//  dependencies  GPU ops from f to g, then CPU ops from c, which waits for g, to u, for which f of the next iteration
//                waits. With a barrier (a global norm) before the CPU's Adam this is T_backward + Adam + the least
//                forward time from a parameter's first use, over all orders of reorderable groups. Movable ops are left
//                out.
//  fetch, evict  Windows. The tiers inside hold at most M bytes of content, at any moment. Take disjoint windows W that
//                cover the iteration. In W the GPU reads D bytes that W did not make before. They were inside when W
//                began, at most M, or came in over the links since, at most B of them a second: time(W) >= (D - M) / B.
//                What W writes and others read later, P bytes, is inside when W ends, or has gone out: time(W) >= (P -
//                M) / B. And time(W) >= the compute in W. The sum over windows of the greatest of these is a bound; the
//                best cut at some hundred places is found in n log n (studies/bound_windows.h; any cut is a bound).
//                  - What W makes and reads needs no link, nor does what nobody reads again.
//                  - A run of reorderable ops is never cut, and what it writes counts as made before it is read.
//                  - A movable op brings in what only it uses, if it stays on the GPU: weighed against the CPU's time
//                    as above. Whatever else it needs is free, and what it writes is made on the GPU.
//                  - What an op of the CPU has written must come in to be read, what it reads must go out.
//                  - A transfer under way holds room in its destination from its begin, in its source to its end.
//                  - B: links that share a resource count at most that resource. In and out that share one have a term
//                    for both together. A link that falls to a sustained rate has a second one with M + burst.
//  nvme_read, nvme_write  (read, write where a tier outside is no NVMe)
//                The same with the first tiers together inside: M of all of them (and of staging buffers). If the CPU's
//                tier is inside, what its lane writes, at whatever time, is made there, and what it reads need not go
//                out.
//  ...+late      For tiers inside that include the CPU's (all, where no op may run on the CPU): a window from a place
//                in the iteration to the same place an iteration later, in which every op that may run on the CPU's lane
//                runs once, because it waits for a GPU op behind the place and a GPU op before it waits for it. Counted
//                is what these and the GPU ops behind the place read: persistent tensors, and what GPU ops before the
//                place have made; or the persistent tensors that they update. A run's last iteration ends with them.
//                The best place is taken: often the peak between forward and backward pass.
//  ...+round     The same window with all that it reads, or writes and leaves alive, also in the next iteration before
//                the place: what the optimizer has updated must have gone out before the peak, as far as the tiers
//                inside do not hold it beside the activations. A steady period repeats for ever, so any place will do.
//                Of the m iterations of a second half only m - 1 such windows end in it: what the first of them writes
//                out may go before the half begins. So they hold there for (m - 1) / m (least_seconds).
//  ...+turned    The windows of an iteration that begins where another phase does, with what is alive there: they may
//                reach over the end of the recorded one. For a steady period, and else (m - 1) / m, as those of +round.
//  lanes         As compute, with all that is moved to the CPU's lane, also what could run before the iteration has
//                begun: in a steady period each lane runs all of its ops once. Where there is such an op that is not
//                the optimizer's, as in a generation all of which may move. No term of a run that is not steady: the
//                CPU's lane may be ahead.
// docs/bound.md proves them all. A trace of several ranks: the greatest bound of any rank.
//
// Of a trace with choices of recomputation: the bound of the trace without any use of what they can make again, which
// every level's program contains.
//
// `ideal` has unlimited GPU memory: only compute, cpu and dependencies hold for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/machine_spec.h"
#include "core/trace.h"

namespace tencache {

// Ops of the trace, from `first` to `last` (over the iteration's end if `last` comes first), those of one rank, and the
// least time from the end of the op before to the end of the last.
struct BoundWindow {
  OpIndex first = 0, last = 0;
  double seconds = 0;
  double compute_seconds = 0;
  double bytes = 0;       // that must cross, beyond what the tiers inside hold; of a memory term
  std::string term = {};  // whose window it is
};

struct BoundTerm {
  std::string name;
  double seconds = 0;
  // Of a memory term: what is inside, what leads in or out, and how fast.
  std::vector<TierId> inside = {};
  std::vector<LinkId> links = {};
  double bytes_per_second = 0;
  std::vector<BoundWindow> windows = {};  // in which it takes longer than the compute, the longest first
};

struct BoundSeconds {
  double seconds = 0;           // of a steady period
  double any_run_seconds = 0;   // without the terms that hold for a steady period only
  double unsteady_seconds = 0;  // without `lanes`: so many times (m - 1) / m of m iterations that are not steady
};

struct Bound : BoundSeconds {
  std::string term;  // that binds
  // The same with what it takes in the bound: of a memory term its links and, the longest first, those windows of the
  // bound that are its own; compute, cpu and dependencies are of the whole iteration.
  BoundTerm binding;
  double compute_seconds = 0;  // the greatest of compute, cpu and dependencies: holds for `ideal` too
  std::string compute_term;
  std::size_t rank = 0;              // with the greatest bound
  std::vector<BoundTerm> terms;      // of that rank, each alone; memory terms with the compute of their windows
  std::vector<BoundWindow> windows;  // of all terms together: those that are longer than their compute
  std::uint64_t steps = 0;           // windows, and changes of what they need, that were looked at; n log n for n ops
  std::string misfit;                // why no policy but `ideal` can run it at all; empty: nothing speaks against it
};

// The least mean time of a steady period, or of the last `iterations` of a run that did not become steady.
double least_seconds(const BoundSeconds& bound, bool steady, std::uint64_t iterations);

// The trace must be valid. Throws Error if the machine has fewer ranks than the trace. Some seconds for a
// million ops; the same result for the same input.
Bound lower_bound_of(const Trace& trace, const MachineSpec& machine);

// Of a trace with choices of recomputation: the bound of the trace as recorded, with all results kept, which policies
// that recompute may beat. None: it has no choices.
std::optional<double> recorded_bound_seconds(const Trace& trace, const MachineSpec& machine);

}  // namespace tencache
