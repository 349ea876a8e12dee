#include "answers/fragment.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace tencache {
namespace {

constexpr const char* conf = "PYTORCH_CUDA_ALLOC_CONF";
constexpr std::size_t iterations_shown = 8;
constexpr double as_recorded = 1.02;  // reserved by the recording, beyond what its events explain

FragmentRow row_of(const FragmentRun& run) {
  FragmentRow row;
  row.allocator = run.allocator.name;
  if (const std::string setting = run.allocator.setting(); !setting.empty()) row.setting = setting;
  row.requested_bytes = run.requested_peak;
  row.allocated_bytes = run.allocated_peak;
  row.reserved_bytes = run.reserved_peak;
  row.utilisation = run.utilisation();
  row.device_allocations = run.at_end.device_allocations;
  row.device_frees = run.at_end.device_frees;
  row.retries = run.at_end.retries;
  row.rounding_bytes = run.at_peak.rounding;
  row.unsplit_bytes = run.at_peak.unsplit;
  row.hole_bytes = run.at_peak.in_holes;
  row.idle_bytes = run.at_peak.idle;
  row.at_peak_bytes = run.at_peak.requested;
  row.iterations = run.iterations;
  if (const auto& oom = run.out_of_memory) {
    row.out_of_memory = {oom->event,     oom->iteration,      oom->wanted,
                         oom->asked_for, oom->then.allocated, oom->then.reserved};
  }
  return row;
}

FragmentAdviceAnswer advice_answer(const FragmentAdvice& advice, std::optional<Bytes> limit) {
  FragmentAdviceAnswer answer;
  answer.verdict = advice.verdict;
  const FragmentRun& plain = advice.standard;
  if (advice.best) {
    answer.reserved_bytes = advice.best->reserved_peak;
    if (const std::string setting = advice.best->allocator.setting(); !setting.empty()) answer.setting = setting;
    if (plain.reserved_peak > advice.best->reserved_peak) {
      answer.saved_bytes = plain.reserved_peak - advice.best->reserved_peak;
    }
  }
  const std::string set = answer.setting ? fmt::format("{}={}", conf, *answer.setting) : "";
  // Each time that all that is free goes back to the device, the GPU is waited for.
  const auto retries = [&] {
    const std::uint64_t with = advice.best->at_end.retries, without = plain.out_of_memory ? 0 : plain.at_end.retries;
    const auto times = [](std::uint64_t count) {
      return fmt::format("{} {}", count, count == 1 ? "retry" : "retries");
    };
    if (with > 0) return fmt::format(", with {}, which waits for the GPU", times(with));
    return without == 0 ? std::string() : fmt::format(", without {}", times(without));
  };
  switch (advice.verdict) {
    case FragmentVerdict::fits_gains:
      answer.text =
          fmt::format("{} reserves {} instead of {}: {} less{}.", set, format_bytes(*answer.reserved_bytes),
                      format_bytes(plain.reserved_peak), format_bytes(answer.saved_bytes.value_or(0)), retries());
      break;
    case FragmentVerdict::fits_no_gain:
      answer.text = "No setting gains a hundredth: leave it at the default.";
      break;
    case FragmentVerdict::cured:
      answer.text = fmt::format(
          "Out of memory by fragmentation: with {} allocated the default allocator finds no room for "
          "{}. {} runs{}.",
          format_bytes(plain.at_peak.allocated), format_bytes(plain.out_of_memory->wanted), set, retries());
      break;
    case FragmentVerdict::needs_memory:
      answer.text = fmt::format(
          "A real need: more than {} are asked for at once, and no setting changes that. A smaller "
          "batch, recomputation, or memory beside the GPU: tencache fit.",
          format_bytes(limit.value_or(0)));
      break;
    case FragmentVerdict::needs_another:
      answer.text =
          advice.best
              ? fmt::format("No setting of PyTorch's allocator is enough; {} would be, with {} reserved.",
                            advice.best->allocator.name, format_bytes(*answer.reserved_bytes))
              : "No setting of PyTorch's allocator is enough, nor is a plan: what is asked for nearly fills the "
                "memory.";
      break;
  }
  return answer;
}

std::string map_column(const AddressMap& map, std::uint32_t column) {
  const auto begin = map.cells.begin() + std::ptrdiff_t{column} * map.rows;
  std::string cells;
  for (auto cell = begin; cell != begin + map.rows; ++cell) {
    cells += *cell == AddressMap::Cell::in_use ? '0' : *cell == AddressMap::Cell::free ? '1' : ' ';
  }
  return cells;
}

std::string oom_text(const FragmentOomAnswer& oom) {
  return fmt::format("{} with {} allocated{}", format_bytes(oom.wanted_bytes), format_bytes(oom.allocated_bytes),
                     oom.iteration == 0 ? "" : fmt::format(", in iteration {}", oom.iteration));
}

DocumentTable allocators_table(const FragmentAnswer& answer) {
  DocumentTable table{"allocators",
                      "",
                      {"allocator", "requested", "allocated", "reserved", "utilisation", "device calls", "retries",
                       "out of memory at"}};
  for (const FragmentRow& row : answer.allocators) {
    table.add({row.allocator, bytes_cell(row.requested_bytes), bytes_cell(row.allocated_bytes),
               bytes_cell(row.reserved_bytes), Cell(fmt::format("{:.1f} %", 100 * row.utilisation), row.utilisation),
               count_cell(row.device_allocations + row.device_frees), count_cell(row.retries),
               row.out_of_memory ? Cell(oom_text(*row.out_of_memory)) : text_cell("-", "")});
  }
  return table;
}

DocumentTable split_table(const FragmentAnswer& answer) {
  DocumentTable table{"split",
                      "Of what is reserved when most is, or when memory runs out: not asked for",
                      {"allocator", "rounding", "unsplit remainders", "holes", "idle segments", "in all"}};
  for (const FragmentRow& row : answer.allocators) {
    table.add({row.allocator, bytes_cell(row.rounding_bytes), bytes_cell(row.unsplit_bytes), bytes_cell(row.hole_bytes),
               bytes_cell(row.idle_bytes),
               bytes_cell(row.rounding_bytes + row.unsplit_bytes + row.hole_bytes + row.idle_bytes)});
  }
  return table;
}

// Of the first allocator: what grows from iteration to iteration.
DocumentTable iterations_table(const FragmentRow& row) {
  DocumentTable table{"iterations",
                      fmt::format("Iterations under {}", row.allocator),
                      {"iteration", "allocated", "reserved", "device calls", "retries"}};
  for (std::size_t i = 0; i < row.iterations.size(); ++i) {
    const FragmentIteration& iteration = row.iterations[i];
    if (i == 0 && iteration.reserved_bytes == 0) continue;
    table.add({i == 0 ? std::string("before") : std::to_string(i), bytes_cell(iteration.allocated_bytes),
               bytes_cell(iteration.reserved_bytes), count_cell(iteration.device_calls),
               count_cell(iteration.retries)});
  }
  if (table.rows.size() > iterations_shown) {
    table.shown = Shown::on_page;
  }
  return table;
}

BarChart chart_of(const FragmentAnswer& answer) {
  BarChart chart;
  chart.title = "Memory that is reserved, and what of it nobody asked for";
  if (answer.limit_bytes) chart.mark_label = "limit";
  for (const FragmentRow& row : answer.allocators) {
    ChartBar bar;
    bar.label = row.allocator;
    const Bytes waste = row.rounding_bytes + row.unsplit_bytes + row.hole_bytes + row.idle_bytes;
    const Bytes used = row.reserved_bytes - std::min(row.reserved_bytes, waste);
    const auto part = [&](Ink ink, Bytes bytes, const char* label) {
      bar.parts.push_back({ink, static_cast<double>(bytes), label});
    };
    part({Ink::Kind::compute}, used, "requested");
    part({Ink::Kind::role, 1}, row.rounding_bytes, "rounding");
    part({Ink::Kind::role, 2}, row.unsplit_bytes, "unsplit remainders");
    part({Ink::Kind::role, 3}, row.hole_bytes, "holes");
    part({Ink::Kind::role, 6}, row.idle_bytes, "idle segments");
    bar.text = format_bytes(row.reserved_bytes) + (row.out_of_memory ? ", out of memory" : "");
    bar.facts = {{"", row.allocator},
                 {"requested", format_bytes(row.requested_bytes)},
                 {"reserved", format_bytes(row.reserved_bytes)},
                 {"nobody asked for", format_bytes(waste)}};
    if (answer.limit_bytes) {
      const auto limit = static_cast<double>(*answer.limit_bytes);
      bar.between = {limit, limit};
    }
    chart.bars.push_back(std::move(bar));
  }
  return chart;
}

CellMap map_of(const FragmentMapAnswer& answer) {
  CellMap map;
  map.title = fmt::format("Addresses over time, under {}", answer.allocator);
  map.x_label = "events; lines: an iteration begins";
  map.y_label = "addresses";
  map.columns = answer.columns;
  map.kinds = {{{Ink::Kind::compute}, 0, "in use"}, {{Ink::Kind::role, 6}, 0, "reserved and free"}};
  map.marks = answer.iterations;
  map.y_most = format_bytes(answer.bytes_per_row * map.rows());
  return map;
}

}  // namespace

FragmentAnswer fragment_answer(const LoadedAllocations& loaded, const std::vector<FragmentRun>& runs,
                               const std::optional<FragmentAdvice>& advice, std::optional<Bytes> limit,
                               const AddressMap& map) {
  const Allocations& allocations = loaded.allocations;
  FragmentAnswer answer;
  answer.allocations = allocations.name;
  answer.events = allocations.events.size();
  answer.blocks = allocations.blocks;
  answer.iterations = loaded.iterations;
  answer.limit_bytes = limit;
  answer.fits = !runs.front().out_of_memory;
  answer.recorded_allocated_bytes = allocations.recorded_allocated;
  answer.recorded_reserved_bytes = allocations.recorded_reserved;
  for (const FragmentRun& run : runs) answer.allocators.push_back(row_of(run));
  if (advice) answer.advice = advice_answer(*advice, limit);
  if (map.columns > 0 && !map.cells.empty()) {
    FragmentMapAnswer& made = answer.map.emplace();
    made.allocator = runs.front().allocator.name;
    made.bytes_per_row = map.bytes_per_row;
    made.iterations = map.iterations;
    for (std::uint32_t column = 0; column < map.columns; ++column) made.columns.push_back(map_column(map, column));
  }
  answer.notes = allocations.notes;
  const Bytes reserved = runs.front().reserved_peak;
  if (allocations.recorded_reserved &&
      static_cast<double>(*allocations.recorded_reserved) > as_recorded * static_cast<double>(reserved)) {
    answer.notes.push_back(fmt::format(
        "The recording's own allocator had {} reserved. What explains that came before the recording (trials "
        "of cuDNN, other lengths, the start of the program): from an empty cache these events need {}.",
        format_bytes(*allocations.recorded_reserved), format_bytes(reserved)));
  } else {
    answer.notes.push_back("From an empty cache: what a process reserved before these events is not in it.");
  }
  if (loaded.generated) {
    answer.notes.push_back("Memory that kernels take for themselves (cuBLAS, cuDNN, NCCL) is in no trace.");
  }
  answer.manifest = {{"version", TENCACHE_VERSION}};
  return answer;
}

Document document_of(const FragmentAnswer& answer) {
  Document document{.kind = "fragment", .title = {}, .blocks = {}};
  document.title = fmt::format("Fragmentation: {}", answer.allocations);
  std::string text = fmt::format("{}\n  {} allocations, {} iterations{}\n", printable(answer.allocations),
                                 answer.blocks, answer.iterations,
                                 answer.limit_bytes ? fmt::format(", in {}", format_bytes(*answer.limit_bytes)) : "");
  if (answer.advice) text += "\n" + answer.advice->text + "\n";
  document.add_text(text + "\n");
  if (answer.advice) document.add_paragraph(answer.advice->text);
  document.add_chart(chart_of(answer));
  document.add_table(allocators_table(answer));
  if (answer.map) document.add_map(map_of(*answer.map));
  document.add_text("\nOf what is reserved when most is, or when memory runs out: not asked for\n\n");
  document.add_table(split_table(answer));
  if (!answer.allocators.empty()) {
    DocumentTable iterations = iterations_table(answer.allocators.front());
    if (iterations.shown == Shown::everywhere && iterations.rows.size() > 1) {
      document.add_text("\n" + iterations.title + "\n\n");
    }
    if (iterations.rows.size() > 1) document.add_table(std::move(iterations));
  }
  std::string notes = "\n";
  for (const std::string& note : answer.notes) {
    notes += printable(note) + "\n";
    document.add_paragraph(note);
  }
  document.add_text(std::move(notes));
  return document;
}

}  // namespace tencache
