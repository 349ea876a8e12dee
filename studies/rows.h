// `tencache rows`: caches of embedding rows on a file of ids, under several policies and numbers of slots.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/rows/live_run.h"
#include "sim/rows/row_run.h"

namespace tencache {

struct RowsRequest {
  std::vector<const RowPolicy*> policies;
  std::vector<std::string> slots = {"1%"};  // shares of the rows, or counts
  std::optional<std::uint32_t> ahead;       // none: each policy's own
  double warm_up = 0.7;
  RowRates rates;
  // Also on this computer, where the clock is given.
  LiveRows::Clock clock;
  std::string live_folder;
  unsigned live_threads = 2;
};

struct RowsTrial {
  RowRun run;           // of a refused one only policy, options and sizes
  std::string refusal;  // why it cannot run with so few slots; empty: it ran
  std::optional<LiveRowsRun> live;
  double slot_share = 0;  // of all rows
};

// Rounded down as int() does, at least 1 and at most all rows. Throws Error for what is no share and no count.
std::uint32_t parse_row_slots(const std::string& text, std::uint64_t rows);

// Links between the machine's GPU and CPU memory in place of those of `rates`. Throws Error where there are none.
void set_row_links(RowRates& rates, const std::string& machine);

// Each policy with each number of slots, in order. `progress` is called before each trial, and with the share done.
std::vector<RowsTrial> try_rows(const RowIds& ids, const RowsRequest& request,
                                const std::function<void(const std::string& what, double share)>& progress = {});

}  // namespace tencache
