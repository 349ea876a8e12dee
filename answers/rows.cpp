#include "answers/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace tencache {
namespace {

constexpr std::size_t tables_shown = 16;

Named<Nanoseconds> stages_of(const RowStageTimes& times) {
  Named<Nanoseconds> stages;
  described::for_each_value<RowStage>([&](RowStage stage, const std::string& name) {
    stages.emplace_back(name, times[static_cast<std::size_t>(stage)]);
  });
  return stages;
}

RowsLiveAnswer live_answer(const LiveRowsRun& run) {
  RowsLiveAnswer answer;
  answer.identical = run.identical;
  answer.rows_in = run.rows_in;
  answer.rows_out = run.rows_out;
  answer.direct_rows = run.direct_rows;
  answer.predicted_batch_ns = run.predicted_batch_ns;
  answer.measured_batch_ns = run.measured_batch_ns;
  answer.planning_ns = run.measured_ns[static_cast<std::size_t>(RowStage::fixed)];
  answer.predicted_stages_ns = stages_of(run.predicted_ns);
  answer.measured_stages_ns = stages_of(run.measured_ns);
  return answer;
}

RowsRunAnswer run_answer(const RowsTrial& trial) {
  const RowRun& run = trial.run;
  RowsRunAnswer answer;
  answer.policy = run.policy->name;
  answer.slots = run.options.slots;
  answer.slot_share = trial.slot_share;
  answer.ahead = run.options.ahead;
  if (!trial.refusal.empty()) answer.refused = trial.refusal;
  if (run.enough_slots > 0) answer.enough_slots = run.enough_slots;
  answer.hits = run.all.hits;
  answer.misses = run.all.misses;
  const auto share = [](std::uint64_t part, std::uint64_t all) {
    return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
  };
  answer.hit_rate = share(run.all.hits, run.all.hits + run.all.misses);
  answer.lookup_hit_rate = share(run.lookup_hits, run.lookups);
  answer.rows_in = run.all.rows_in;
  answer.rows_out = run.all.rows_out;
  answer.direct_rows = run.direct_rows;
  answer.warm_rows = run.warm_rows;
  answer.bytes_in = run.bytes_in;
  answer.bytes_out = run.bytes_out;
  answer.direct_bytes = run.direct_bytes;
  answer.gpu_bytes = run.gpu_bytes;
  answer.map_bytes = run.map_bytes;
  answer.batch_ns = run.batch_ns;
  answer.stages_ns = stages_of(run.stage_ns);
  answer.tables = run.tables;
  if (trial.live) answer.live = live_answer(*trial.live);
  return answer;
}

std::vector<RowsTableAnswer> tables_answer(const std::vector<RowTable>& tables) {
  std::vector<RowsTableAnswer> answer;
  for (const RowTable& table : tables) {
    answer.push_back({table.name, table.rows, table.row_bytes, table.optimizer_bytes});
  }
  return answer;
}

Cell share_cell(double share) { return {percent(share), share, FigureUnit::share}; }
Cell time_cell(Nanoseconds time) { return seconds_cell(to_seconds(time)); }

DocumentTable stages_table(const RowsAnswer& answer) {
  DocumentTable table{
      "stages", "Time of a batch by stages: the mean of each, also where they overlap", {"policy", "slots"}};
  if (answer.runs.empty()) return table;
  for (const auto& [name, time] : answer.runs.front().stages_ns) {
    std::string heading = name;
    std::ranges::replace(heading, '_', ' ');
    table.columns.emplace_back(heading);
  }
  table.columns.emplace_back("a batch");
  for (const RowsRunAnswer& run : answer.runs) {
    if (run.refused) continue;
    std::vector<Cell> cells = {run.policy, count_cell(run.slots)};
    for (const auto& [name, time] : run.stages_ns) cells.push_back(time_cell(time));
    cells.push_back(time_cell(run.batch_ns));
    table.add(std::move(cells));
  }
  return table;
}

DocumentTable live_table(const RowsAnswer& answer) {
  DocumentTable table{"live",
                      "On this computer: transfers per batch, predicted / measured",
                      {"policy", "slots", "gather", "link in", "link out", "scatter", "direct", "predicted", "measured",
                       "error", "identical"}};
  for (const RowsRunAnswer& run : answer.runs) {
    if (!run.live) continue;
    const RowsLiveAnswer& live = *run.live;
    std::vector<Cell> cells = {run.policy, count_cell(run.slots)};
    for (const RowStage stage :
         {RowStage::gather, RowStage::link_in, RowStage::link_out, RowStage::scatter, RowStage::direct}) {
      const auto at = static_cast<std::size_t>(stage);
      cells.emplace_back(fmt::format("{} / {}", format_seconds(to_seconds(live.predicted_stages_ns[at].second)),
                                     format_seconds(to_seconds(live.measured_stages_ns[at].second))));
    }
    const auto predicted = static_cast<double>(live.predicted_batch_ns);
    const auto measured = static_cast<double>(live.measured_batch_ns);
    const double error = measured > 0 ? predicted / measured - 1 : 0;
    cells.push_back(time_cell(live.predicted_batch_ns));
    cells.push_back(time_cell(live.measured_batch_ns));
    cells.emplace_back(fmt::format("{:+.1f} %", 100 * error), error, FigureUnit::share);
    cells.push_back(yes_or_no(live.identical));
    table.add(std::move(cells));
  }
  return table;
}

DocumentTable per_table(const RowsAnswer& answer) {
  DocumentTable table{
      "tables", "By table, in the first run", {"table", "rows", "hits", "misses", "hit rate", "rows in", "rows out"}};
  if (answer.runs.empty() || answer.runs.front().tables.empty()) return table;
  for (std::size_t i = 0; i < answer.row_tables.size(); ++i) {
    const RowTableCounts& counts = answer.runs.front().tables[i];
    const auto all = static_cast<double>(counts.hits + counts.misses);
    table.add({printable(answer.row_tables[i].name), count_cell(answer.row_tables[i].rows), count_cell(counts.hits),
               count_cell(counts.misses), share_cell(all == 0 ? 0 : static_cast<double>(counts.hits) / all),
               count_cell(counts.rows_in), count_cell(counts.rows_out)});
  }
  if (answer.row_tables.size() > tables_shown) table.shown = Shown::on_page;
  return table;
}

BarChart memory_chart(const RowsAnswer& answer) {
  BarChart chart;
  chart.title = "GPU memory: index maps and rows";
  chart.axis.unit = FigureUnit::bytes;
  for (const RowsRunAnswer& run : answer.runs) {
    ChartBar bar;
    bar.label = fmt::format("{}, {}", run.policy, percent(run.slot_share));
    bar.parts = {{{.kind = Ink::Kind::marked}, static_cast<double>(run.map_bytes), "maps"},
                 {{.kind = Ink::Kind::plain}, static_cast<double>(run.gpu_bytes - run.map_bytes), "rows"}};
    bar.text = format_bytes(run.gpu_bytes);
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

}  // namespace

RowsAnswer rows_answer(const RowIds& ids, const std::vector<RowsTrial>& trials, const RowRates& rates) {
  RowsAnswer answer;
  for (const RowsTrial& trial : trials) answer.runs.push_back(run_answer(trial));
  if (!answer.runs.empty()) static_cast<RowsFigures&>(answer) = answer.runs.front();
  answer.ids = ids.file();
  answer.batches = ids.batches();
  answer.lookups = ids.lookups();
  answer.different_rows = ids.size();
  answer.rows = ids.rows();
  for (const RowTable& table : ids.tables()) answer.table_bytes += table.rows * table.bytes();
  answer.row_tables = tables_answer(ids.tables());
  answer.notes.push_back(fmt::format(
      "Rates: gather {}, scatter {}, link in {}, out {} (pageable {}). Times are sums of transfers, not measured.",
      format_bandwidth(rates.gather), format_bandwidth(rates.scatter), format_bandwidth(rates.link_in),
      format_bandwidth(rates.link_out), format_bandwidth(rates.link_out_pageable)));
  if (std::ranges::any_of(answer.runs, [](const RowsRunAnswer& run) { return run.policy == "scratchpipe"; })) {
    answer.notes.emplace_back("ScratchPipe has no public code: its maps are assumed, its published times not judged.");
  }
  answer.manifest = {{"version", TENCACHE_VERSION}};
  return answer;
}

DocumentTable rows_table(const RowsAnswer& answer) {
  DocumentTable table{"runs",
                      "",
                      {"policy",
                       "slots",
                       {"of the rows", Shown::on_page},
                       "hit rate",
                       "of lookups",
                       {"misses", Shown::on_page},
                       "rows in",
                       "rows out",
                       {"direct", Shown::everywhere, "read over the bus"},
                       "GPU memory",
                       "maps",
                       "a batch",
                       {"enough", Shown::everywhere, "enough slots"}}};
  for (const RowsRunAnswer& run : answer.runs) {
    const Cell enough = run.enough_slots ? count_cell(*run.enough_slots) : text_cell("any", "");
    if (run.refused) {
      table.add({run.policy, count_cell(run.slots), share_cell(run.slot_share), text_cell("too few", "too few slots"),
                 text_cell("-", ""), text_cell("-", ""), text_cell("-", ""), text_cell("-", ""), text_cell("-", ""),
                 bytes_cell(run.gpu_bytes), bytes_cell(run.map_bytes), text_cell("-", ""), enough});
      continue;
    }
    table.add({run.policy, count_cell(run.slots), share_cell(run.slot_share), share_cell(run.hit_rate),
               share_cell(run.lookup_hit_rate), count_cell(run.misses), count_cell(run.rows_in),
               count_cell(run.rows_out), count_cell(run.direct_rows), bytes_cell(run.gpu_bytes),
               bytes_cell(run.map_bytes), time_cell(run.batch_ns), enough});
  }
  return table;
}

LineChart rows_chart(const RowsAnswer& answer) {
  LineChart chart;
  chart.title = "Misses against slots: " + answer.ids;
  chart.x_label = "slots, share of the rows";
  chart.y_label = "misses, share of the different rows of a batch";
  chart.x_unit = chart.y_unit = FigureUnit::share;
  chart.note = "Gap: too few slots for the policy.";
  ChartPanel& panel = chart.panels.emplace_back();
  std::vector<double> shares;
  for (const RowsRunAnswer& run : answer.runs) {
    if (panel.lines.empty() || panel.lines.back().name != run.policy) {
      panel.lines.emplace_back().name = run.policy;
      panel.lines.back().reference = run.policy == "belady";
    }
    panel.lines.back().points.push_back({run.slot_share, run.refused ? std::nan("") : 1 - run.hit_rate});
    shares.push_back(run.slot_share);
  }
  for (ChartLine& line : panel.lines) std::ranges::sort(line.points, {}, &LinePoint::x);
  std::ranges::sort(shares);
  shares.erase(std::unique(shares.begin(), shares.end()), shares.end());
  for (const double share : shares) chart.ticks.emplace_back(share, percent(share));
  return chart;
}

Document document_of(const RowsAnswer& answer) {
  Document document{.kind = "rows", .title = "Embedding rows: " + answer.ids, .blocks = {}};
  document.add_text(
      fmt::format("{}\n  {} tables of {} rows, {}; {} batches, {} lookups, {} different rows per batch\n\n",
                  printable(answer.ids), answer.row_tables.size(), answer.rows, format_bytes(answer.table_bytes),
                  answer.batches, answer.lookups, answer.batches == 0 ? 0 : answer.different_rows / answer.batches));
  document.add_table(rows_table(answer));
  document.add_chart(memory_chart(answer));
  if (LineChart chart = rows_chart(answer); chart.ticks.size() > 1) document.blocks.emplace_back(std::move(chart));
  DocumentTable stages = stages_table(answer);
  if (!stages.rows.empty()) document.add_text("\n" + stages.title + "\n\n");
  document.add_table(std::move(stages));
  DocumentTable live = live_table(answer);
  if (!live.rows.empty()) document.add_text("\n" + live.title + "\n\n");
  document.add_table(std::move(live));
  DocumentTable tables = per_table(answer);
  if (tables.rows.size() > 1 && tables.shown == Shown::everywhere) document.add_text("\n" + tables.title + "\n\n");
  if (tables.rows.size() > 1) document.add_table(std::move(tables));
  std::string notes = "\n";
  for (const RowsRunAnswer& run : answer.runs) {
    if (!run.refused) continue;
    notes += printable(*run.refused) + "\n";
    document.add_paragraph(*run.refused);
  }
  for (const std::string& note : answer.notes) {
    notes += note + "\n";
    document.add_paragraph(note);
  }
  document.add_text(std::move(notes));
  return document;
}

Document document_of(const RowsFileAnswer& answer) {
  Document document{.kind = "rows generate", .title = "Ids: " + answer.ids, .blocks = {}};
  document.add_text(fmt::format("{}: {} batches of {} lookups, {} rows\n\n", printable(answer.ids), answer.batches,
                                answer.lookups_per_batch, answer.rows));
  DocumentTable table{"row_tables", "", {"table", "rows", "bytes per row", "optimizer bytes per row"}};
  for (const RowsTableAnswer& one : answer.row_tables) {
    table.add({printable(one.name), count_cell(one.rows), count_cell(one.row_bytes), count_cell(one.optimizer_bytes)});
  }
  document.add_table(std::move(table));
  return document;
}

}  // namespace tencache
