#include "sim/simulate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "sim/rehearse.h"
#include "sim/simulated_rank.h"

namespace tencache {
namespace {

void add_counts(const SimulatedRank& machine, FaultCounts& counts) {
  const FaultCounts more = machine.fault_counts();
  for (std::size_t kind = 0; kind < counts.size(); ++kind) counts[kind] += more[kind];
}

class Ranks {
 public:
  Ranks(std::span<const RankRun> runs, const RunLimits& limits, const FaultPlan* faults)
      : runs_(runs), limits_(limits), world_(specs(runs)) {
    tell_rendezvous();
    for (std::size_t rank = 0; rank < runs.size(); ++rank) {
      machines_.push_back(std::make_unique<SimulatedRank>(world_, rank, faults));
      EngineOptions options = runs[rank].options;
      if (!options.rehearse) options.rehearse = rehearse;
      if (rank == 0 && limits.until_steady) {
        options.on_iteration = [this, inner = std::move(options.on_iteration)](std::uint64_t iteration) {
          if (inner) inner(iteration);
          look_for_recurrence();
        };
      }
      engines_.push_back(std::make_unique<Engine>(*runs[rank].machine, machines_[rank]->port(), *runs[rank].policy,
                                                  runs[rank].program, std::move(options)));
      machines_[rank]->look_at(engines_[rank]->memory());
    }
  }

  RanksResult run() {
    std::size_t rank = 0;  // whose turn it is, for the blame
    try {
      for (rank = 0; rank < engines_.size(); ++rank) {
        engines_[rank]->start(
            {.max_iterations = limits_.max_iterations, .until_steady = false, .ends_as_others = false});
      }
      Completion completion;
      while (!all(&Engine::settled)) {
        if (wait(rank, completion)) {
          engines_[rank]->handle(completion);  // what a finished one leaves behind ends unseen
          if (period_) end_period();
        } else if (all(&Engine::finished)) {
          break;
        } else {
          stand_still(rank);
        }
      }
      for (const auto& engine : engines_) engine->settle();
    } catch (const OutOfMemory& error) {
      return misfit(rank, error);
    }
    RanksResult result;
    for (const auto& engine : engines_) result.ranks.push_back(engine->result());
    for (std::size_t i = 1; i < engines_.size(); ++i) {
      if (result.ranks[i].iteration_seconds() > result.ranks[result.slowest].iteration_seconds()) result.slowest = i;
    }
    return result;
  }

  FaultCounts fault_counts() const {
    FaultCounts counts{};
    for (const auto& machine : machines_) add_counts(*machine, counts);
    return counts;
  }

 private:
  struct Boundary {
    std::uint64_t hash = 0;
    std::vector<std::uint64_t> iterations;  // done by each rank
  };

  static std::vector<const MachineSpec*> specs(std::span<const RankRun> runs) {
    std::vector<const MachineSpec*> result;
    for (const RankRun& run : runs) result.push_back(run.machine);
    return result;
  }
  std::string_view op_name(std::size_t rank, OpIndex op) const {
    const Trace& trace = runs_[rank].program->trace;
    return trace.name(trace.ops[op]);
  }

  // How often each rank has each key; all that have it must have it equally often.
  void tell_rendezvous() {
    struct Op {
      OpIndex first = none;
      std::uint64_t count = 0;
    };
    std::map<NameId, std::map<std::size_t, Op>> keys;
    for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
      const Trace& trace = runs_[rank].program->trace;
      for (OpIndex op = 0; op < trace.ops.size(); ++op) {
        if (trace.ops[op].rendezvous == 0) continue;
        Op& entry = keys[trace.ops[op].rendezvous][rank];
        if (entry.count++ == 0) {
          entry.first = op;
        } else if (trace.ops[op].device != trace.ops[entry.first].device) {
          throw Error("rank " + std::to_string(rank) + " has rendezvous '" + trace.names[trace.ops[op].rendezvous] +
                      "' on both devices (ops '" + op_name(rank, entry.first) + "' and '" + op_name(rank, op) + "')");
        }
      }
    }
    for (const auto& [key, ranks] : keys) {
      for (const auto& [rank, entry] : ranks) {
        const auto& [first_rank, first] = *ranks.begin();
        if (entry.count == first.count) continue;
        throw Error("rendezvous '" + runs_[0].program->trace.names[key] + "' (op '" + op_name(rank, entry.first) +
                    "') occurs " + std::to_string(first.count) + " times in rank " + std::to_string(first_rank) +
                    " and " + std::to_string(entry.count) + " times in rank " + std::to_string(rank) +
                    "; ranks that meet must do so equally often");
      }
      world_.meet(key, ranks.size());
      for (const auto& [rank, entry] : ranks) parties_[key].push_back(rank);
    }
  }

  bool all(bool (Engine::*is)() const) const {
    return std::all_of(engines_.begin(), engines_.end(), [is](const auto& engine) { return (*engine.*is)(); });
  }

  // The next completion for an engine. False when nothing can complete any more.
  bool wait(std::size_t& rank, Completion& completion) {
    while (true) {
      for (rank = 0; rank < machines_.size(); ++rank) {
        OrderedMachine* const ordered = machines_[rank]->ordered();
        if (ordered != nullptr && ordered->next(completion)) return true;
      }
      if (!world_.wait(rank, completion)) return false;
      OrderedMachine* const ordered = machines_[rank]->ordered();
      if (ordered == nullptr) return true;
      ordered->take(completion);
    }
  }

  // Nothing can complete: starts what can be started after all, or says why the run cannot go on. `rank`: the one at
  // which it was noticed.
  void stand_still(std::size_t& rank) {
    bool moves = false;
    for (rank = 0; rank < engines_.size(); ++rank)
      moves |= !engines_[rank]->finished() && engines_[rank]->stand_still();
    if (moves) return;
    for (rank = 0; rank < engines_.size(); ++rank) {
      if (!engines_[rank]->finished() && engines_[rank]->waiting()) engines_[rank]->throw_out_of_memory();
    }
    throw_deadlock();
  }

  [[noreturn]] void throw_deadlock() const {
    const std::vector<SimWorld::Waiting> waiting = world_.waiting();
    TENCACHE_CHECK(!waiting.empty());
    std::string message = "ranks wait for each other for ever:";
    for (const SimWorld::Waiting& one : waiting) {
      message += " rank " + std::to_string(one.rank) + " waits at op '" + op_name(one.rank, one.op) + "' (op " +
                 std::to_string(one.op) + " of the rank) for";
      for (const std::size_t party : parties_.at(one.rendezvous)) {
        const bool there = std::any_of(waiting.begin(), waiting.end(), [&](const SimWorld::Waiting& other) {
          return other.rank == party && other.rendezvous == one.rendezvous;
        });
        if (!there) message += " rank " + std::to_string(party);
      }
      message += ";";
    }
    throw Error(message + " order the ops with a rendezvous alike in all ranks");
  }

  // At an iteration's end of rank 0: has all of this been before? Told to the engines once rank 0 is done with it.
  void look_for_recurrence() {
    Boundary now;
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      const auto mix = [&now](std::uint64_t value) {
        now.hash = (now.hash ^ value) * 1099511628211ull;
        now.hash ^= now.hash >> 29;
      };
      now.iterations.push_back(engines_[rank]->iteration());
      mix(engines_[rank]->state_hash(world_.now()));
      mix(machines_[rank]->port().state());
      mix(now.iterations[rank] - now.iterations[0]);
    }
    // Each rank must have a boundary of its own to count from.
    const bool counts = *std::min_element(now.iterations.begin(), now.iterations.end()) > 0;
    for (const Boundary& earlier : boundaries_) {
      if (counts && earlier.hash == now.hash) period_ = earlier;
    }
    if (counts) boundaries_.push_back(std::move(now));
  }

  void end_period() {
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      engines_[rank]->finish_period(period_->iterations[rank]);
    }
  }

  RanksResult misfit(std::size_t rank, const OutOfMemory& error) {
    const std::string text = "rank " + std::to_string(rank) + ": " + error.what();
    RanksResult result;
    result.slowest = rank;
    for (const auto& engine : engines_) {
      engine->give_up(engines_.size() == 1 ? error : OutOfMemory(text, error.op(), error.bytes_missing()));
      result.ranks.push_back(engine->result());
    }
    return result;
  }

  std::span<const RankRun> runs_;
  RunLimits limits_;
  SimWorld world_;
  std::map<NameId, std::vector<std::size_t>> parties_;  // ranks that have the key
  std::vector<std::unique_ptr<SimulatedRank>> machines_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Boundary> boundaries_;
  std::optional<Boundary> period_;
};

}  // namespace

RunResult simulate(const Program& program, const MachineSpec& machine, Policy& policy, const RunLimits& limits,
                   EngineOptions options, SimulatedFaults* faults) {
  SimulatedRank simulated(machine, faults != nullptr ? faults->plan : nullptr);
  if (!options.rehearse) options.rehearse = rehearse;
  Engine engine(machine, simulated.port(), policy, &program, std::move(options));
  simulated.look_at(engine.memory());
  RunResult result = engine.run(limits);
  if (faults != nullptr) add_counts(simulated, faults->counts);
  return result;
}

RanksResult simulate_ranks(std::span<const RankRun> runs, const RunLimits& limits, SimulatedFaults* faults) {
  Ranks ranks(runs, limits, faults != nullptr ? faults->plan : nullptr);
  RanksResult result = ranks.run();
  if (faults != nullptr) faults->counts = ranks.fault_counts();
  return result;
}

}  // namespace tencache
