// A sweep's combinations, filtered, in units that are simulated together: one trace on one machine.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "configs/price_table.h"
#include "core/machine_spec.h"
#include "studies/sweep/sweep_file.h"

namespace tencache {

struct PlannedTrace {
  std::size_t workload = 0;
  std::size_t machine = 0;  // any of those whose GPU the durations are of
  TraceChoice trace;        // filled in by the machine
  std::string sha256;       // of its file, or of what it is generated from
};

struct PlannedMachine {
  SweepMachine asked;
  MachineSpec spec;    // changed as is asked
  std::string sha256;  // of its files
  PriceUsed price;
  bool what_if;         // it has more memory than it is sold with: without a price
  std::string refusal;  // why the variant is not possible; empty: it is
};

struct PlannedRow {
  std::string key;
  std::uint64_t position = 0;
  std::size_t policy = 0;
};

struct SweepUnit {
  std::size_t trace = 0, machine = 0;
  std::vector<PlannedRow> rows;
};

struct SweepPlan {
  SweepFile file;
  std::vector<PlannedTrace> traces;
  std::vector<PlannedMachine> machines;
  std::vector<std::string> builds;    // SweepRow::build of each of the file's policies
  std::vector<SweepUnit> units;       // those of a trace follow one another
  std::uint64_t combinations = 0;     // rows of the whole sweep
  std::uint64_t ideals = 0;           // those of them that are of the policy `ideal`
  std::string sha256;                 // of the keys
  std::string build;                  // of the program: what changes results without another input
  std::string prices_sha256;          // of what the machines cost, and the sweep's own cost settings
  bool part = false;                  // a shard
  bool any_policy = false;            // fronts and advice have what no system runs, too; the caller's to fill in
  std::string file_sha256;            // of the sweep's file
  std::string command;                // what was asked for, as JSON, but which part; the caller's to fill in
  std::vector<std::string> warnings;  // each with file and line: filters that match nothing
};

// Of its units.
std::uint64_t row_count(const SweepPlan& plan);
// The same but for rows of the policy `ideal`, which tables count nowhere; if not null, of these keys only.
std::uint64_t combination_count(const SweepPlan& plan, const std::set<std::string>* keys = nullptr);

// Deterministic. Throws Error, with the file's line, where a machine, a trace file or a model is not to be found, a
// setting is one that no trace can be generated with, a variant is possible on none of its machines, a filter asks for
// what the sweep does not have; and where nothing is left by the filters, or the combinations are too many.
SweepPlan plan_sweep(SweepFile file, const PriceChoice& prices);

// Every n-th unit, from the i-th (counted from 1).
void take_shard(SweepPlan& plan, std::size_t i, std::size_t n);

}  // namespace tencache
