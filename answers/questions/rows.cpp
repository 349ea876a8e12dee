#include "answers/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "answers/line_chart.h"
#include "answers/questions.h"
#include "configs/shipped_files.h"
#include "configs/tool_clock.h"
#include "core/parse_number.h"
#include "core/remark.h"
#include "core/split.h"
#include "sim/rows/row_file.h"
#include "sim/rows/row_generator.h"
#include "traces/file/file_io.h"
#include "traces/file/output_files.h"

namespace tencache {
namespace {

constexpr std::uint64_t most_ahead = 1'000'000;

struct RowsQuestion {
  std::string file, ahead, machine, gather, scatter, train, overhead, csv, svg;
  std::vector<std::string> policies, slots;
  double warm_up = 0.7;
  bool live = false;
  std::string directory;
  std::uint64_t threads = 2;
};

Answered rows(const RowsQuestion& asked, const Json& command) {
  if (asked.file.empty()) throw Error("a file of ids is missing, or `generate`; see tencache rows --help");
  check_output("--csv", asked.csv, {asked.file});
  check_output("--svg", asked.svg, {asked.file, asked.csv});
  RowsRequest request;
  for (const std::string& name : asked.policies) request.policies.push_back(&row_policy(name));
  if (request.policies.empty()) {
    for (const RowPolicy& policy : row_policies()) request.policies.push_back(&policy);
  }
  if (!asked.slots.empty()) request.slots = asked.slots;
  for (const std::string& slots : request.slots) parse_row_slots(slots, most_rows);
  if (!asked.ahead.empty()) request.ahead = parse_number<std::uint32_t>(asked.ahead).value_or(0);
  request.warm_up = asked.warm_up;
  if (!asked.machine.empty()) set_row_links(request.rates, asked.machine);
  if (!asked.gather.empty()) request.rates.gather = parse_bandwidth(asked.gather);
  if (!asked.scatter.empty()) request.rates.scatter = parse_bandwidth(asked.scatter);
  if (!asked.train.empty()) request.rates.train_ns = parse_duration(asked.train);
  if (!asked.overhead.empty()) request.rates.fixed_ns = parse_duration(asked.overhead);

  if (asked.live) {
    request.clock = [] { return tool_clock_ns(); };
    request.live_folder = asked.directory;
    request.live_threads = static_cast<unsigned>(asked.threads);
  }

  ProgressLine progress;
  const RowIds ids =
      read_row_ids(asked.file, [&](double share) { progress.show(fmt::format("reading, {:.0f} %", 100 * share)); });
  const std::vector<RowsTrial> trials = try_rows(ids, request, [&](const std::string& what, double share) {
    progress.show(fmt::format("{}, {:.0f} %", what, 100 * share));
  });
  // What is asked for by name is an error where it cannot run; in a table of all it is a row that says so.
  if (const auto refused = std::ranges::find_if(trials, [](const RowsTrial& one) { return !one.refusal.empty(); });
      refused != trials.end() && trials.size() == 1) {
    throw Error(refused->refusal);
  }
  RowsAnswer answer = rows_answer(ids, trials, request.rates);
  if (!asked.csv.empty()) write_file(asked.csv, table_csv(rows_table(answer)));
  if (!asked.svg.empty()) write_file(asked.svg, draw_svg(rows_chart(answer)));
  const bool identical =
      std::ranges::all_of(answer.runs, [](const RowsRunAnswer& run) { return !run.live || run.live->identical; });
  return answered(std::move(answer), identical, command);
}

struct GenerateQuestion {
  std::string output, rows = "1000000", histogram, row_bytes = "512", optimizer_bytes = "4";
  std::uint64_t tables = 1, batches = 100, samples = 2048, pooling = 1, seed = 1;
  double zipf = 1.05;
};

Answered generate_rows(const GenerateQuestion& asked) {
  RowGeneration request;
  std::vector<std::string> rows = split(asked.rows);
  if (rows.size() != 1 && rows.size() != asked.tables && asked.tables != 1) {
    throw Error(
        fmt::format("--rows has {} figures for {} tables: one for all, or one each", rows.size(), asked.tables));
  }
  const std::size_t count = std::max<std::size_t>(rows.size(), asked.tables);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& text = rows.size() == 1 ? rows.front() : rows[i];
    const auto number = parse_number<std::uint64_t>(text);
    if (!number) throw Error("--rows: '" + text + "' is no whole number of rows");
    request.tables.push_back(
        {fmt::format("table{}", i + 1), *number, parse_bytes(asked.row_bytes), parse_bytes(asked.optimizer_bytes)});
  }
  request.batches = asked.batches;
  request.samples = asked.samples;
  request.pooling = asked.pooling;
  request.zipf = asked.zipf;
  request.seed = asked.seed;
  if (!asked.histogram.empty()) {
    const bool is_path = asked.histogram.find('/') != std::string::npos || asked.histogram.ends_with(".txt");
    if (!is_path && asked.histogram != "dlrm-2021" && asked.histogram != "dlrm-2022") {
      throw Error("unknown histogram '" + asked.histogram + "'; there are dlrm-2021, dlrm-2022, or a file NAME.txt");
    }
    request.histogram =
        read_reuse_histogram(is_path ? asked.histogram : config_file("rows/" + asked.histogram + ".txt"));
  }
  check_output("-o", asked.output, {asked.histogram});
  {
    ProgressLine progress;
    generate_row_ids(request, asked.output,
                     [&](double share) { progress.show(fmt::format("generating, {:.0f} %", 100 * share)); });
  }
  RowsFileAnswer answer{
      asked.output, sha256_of_file(asked.output), asked.batches, asked.samples * asked.pooling * count, 0, {}};
  for (const RowTable& table : request.tables) {
    answer.rows += table.rows;
    answer.row_tables.push_back({table.name, table.rows, table.row_bytes, table.optimizer_bytes});
  }
  return answered(std::move(answer), true, Json());
}

}  // namespace

std::unique_ptr<Question> rows_question() {
  auto question = std::make_unique<Question>("rows");
  question->help = {
      .summary = "Caches of embedding rows: hits, rows moved, memory with index maps, time of a batch",
      .json = "The same as JSON (schemas/rows.schema.json)",
      .footer =
          "A simulator of its own, without the engine: docs/rows.md has the policies, the format of the file and what "
          "each column means.\n\n"
          "Examples:\n"
          "  tencache rows generate --tables 15 --rows 3500000 --pooling 16 --histogram dlrm-2021 -o ids.zst\n"
          "  tencache rows ids.zst\n"
          "  tencache rows ids.zst --slots 0.5% --slots 1% --slots 5% --svg misses.svg\n"
          "  tencache rows ids.zst -p cached-embedding --ahead 4 -m g10-a100 --json\n"
          "  tencache rows ids.zst -p uvm-lru --live"};
  question->repeatable = true;
  question->schemas = [] {
    return std::vector{
        schema_named<RowsAnswer>(
            "rows", "Caches of embedding rows",
            "What `tencache rows --json` prints; docs/rows.md explains it. Figures beside `ids` are those "
            "of the first run. Rows are counted once per batch. Times are means per batch."),
        schema_named<RowsFileAnswer>("rows-generate", "A generated file of ids",
                                     "What `tencache rows generate --json` prints.")};
  };
  auto request = std::make_shared<RowsQuestion>();
  QuestionOptions& options = question->options;
  options.text("IDS", request->file, "A file of ids (docs/rows.md has the format), or `generate`");
  std::string names;
  for (const RowPolicy& policy : row_policies()) names += (names.empty() ? "" : ", ") + std::string(policy.name);
  options
      .list("--rows-policy,--policy,-p", request->policies, names + "; any number of times (default: a table of all)")
      .with_type("NAME");
  options
      .list("--slots", request->slots,
            "Rows that the GPU has room for: a share such as 1%, or a count; any number of times (default: 1%)")
      .with_type("SHARE");
  QuestionOption& ahead = options.text("--ahead", request->ahead,
                                       "Batches to look ahead: united by cached-embedding (default 1), prefetched by "
                                       "uvm-… (0), planned by scratchpipe (2)");
  ahead.with_type("BATCHES");
  ahead.refusal = [](const std::string& text) {
    const auto number = parse_number<std::uint32_t>(text);
    return number && *number <= most_ahead ? std::string()
                                           : fmt::format("'{}' is no whole number from 0 to {}", text, most_ahead);
  };
  options.real("--warm-up", request->warm_up, 0, 1, "Share of the slots that cached-embedding fills beforehand");
  options
      .word("--machine,-m", request->machine,
            "Machine whose links between GPU and CPU memory are used (default: 18.5 GB/s, 6.4 GB/s out of pageable "
            "copies, as CachedEmbedding's logs have)")
      .with_type("MACHINE");
  options.word("--gather", request->gather, "Bandwidth of gathering rows in CPU memory (default: 11GB/s)")
      .with_type("BANDWIDTH");
  options.word("--scatter", request->scatter, "Bandwidth of scattering rows in CPU memory (default: 6.6GB/s)")
      .with_type("BANDWIDTH");
  options.word("--train", request->train, "Time of a batch without the cache (default: 0)").with_type("TIME");
  options.word("--overhead", request->overhead, "Time per batch to look rows up and start copies (default: 0)")
      .with_type("TIME");
  options
      .flag("--live", request->live,
            "Also on this computer: tables in memory, an arena, threads that move rows; against a run without a cache")
      .unrecorded();
  options.word("--directory", request->directory, "Of --live: keep the tables in a file of this folder")
      .with_type("DIR")
      .needing("--live")
      .unrecorded();
  options.whole("--threads", request->threads, 1, 256, "Of --live: threads that move rows").unrecorded();
  options.output("--csv", request->csv, "The table as CSV");
  options.output("--svg", request->svg, "Misses against slots as a picture");
  question->ask = [request, question = question.get()] { return rows(*request, command_json(*question)); };
  return question;
}

std::unique_ptr<Question> rows_generate_question() {
  auto question = std::make_unique<Question>("rows generate");
  question->help = {
      .summary = "Make a file of ids from Zipf's distribution or a published reuse histogram",
      .json = "The same as JSON (schemas/rows-generate.schema.json)",
      .footer =
          "A histogram holds for each table: in a period, its rows are used as often as published, in random order; "
          "the next period uses the same rows.\n"
          "dlrm-2021 (65,536 samples) and dlrm-2022 (131,072) are of Meta's dlrm_datasets, MIT License.\n\n"
          "Examples:\n"
          "  tencache rows generate --tables 15 --rows 3500000 --samples 4096 --pooling 16 --histogram dlrm-2021 -o "
          "ids.zst\n"
          "  tencache rows generate --rows 40000000,30000000,2000 --zipf 1.05 --batches 1000 -o zipf.ids.zst"};
  auto request = std::make_shared<GenerateQuestion>();
  QuestionOptions& options = question->options;
  options.output("--output,-o", request->output, "File to write (.ids, .ids.zst)").needed();
  options.whole("--tables", request->tables, 1, most_row_tables, "Tables");
  options.text("--rows", request->rows, "Rows of each table; or a list, one figure per table").with_type("COUNTS");
  options.text("--row-bytes", request->row_bytes, "Bytes per row").with_type("SIZE");
  options
      .text("--optimizer-bytes", request->optimizer_bytes,
            "Bytes of the optimizer's states per row (row-wise Adagrad: 4)")
      .with_type("SIZE");
  options.whole("--batches", request->batches, 1, 10'000'000, "Batches");
  options.whole("--samples", request->samples, 1, 10'000'000, "Samples per batch");
  options.whole("--pooling", request->pooling, 1, 10'000, "Lookups per sample and table");
  options
      .text("--histogram", request->histogram,
            "dlrm-2021, dlrm-2022, or a file as the locality_stats.txt of dlrm_datasets (default: none, see --zipf)")
      .with_type("NAME");
  options.real("--zipf", request->zipf, 0, 10,
               "Exponent: the row of rank k is looked up in proportion to 1/k^Z; 0: all alike");
  options.seed("--seed", request->seed, "Seed");
  question->ask = [request] { return generate_rows(*request); };
  return question;
}

}  // namespace tencache
