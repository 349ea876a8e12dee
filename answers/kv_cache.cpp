#include "answers/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"

namespace tencache {
namespace {

constexpr ByKvTier<const char*> tier_names = {"gpu", "cpu", "ssd"};

double part_of(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

KvRunAnswer run_answer(const KvRun& run, Bytes block_bytes) {
  KvRunAnswer answer;
  answer.policy = run.policy->name;
  answer.oracle = run.policy->oracle;
  answer.token_hit_rate = part_of(run.hit_tokens, run.tokens);
  answer.prefill_saved_s = run.saved_seconds;
  answer.fetch_s = run.fetch_seconds;
  answer.larger_than_gpu = run.larger_than_gpu;
  std::uint64_t hits = 0;
  for (std::size_t tier = 0; tier < kv_tiers; ++tier) {
    hits += run.hits[tier];
    if (run.capacity[tier] == 0) continue;
    KvTierFigures& figures = answer.tiers.emplace_back();
    figures.tier = tier_names[tier];
    figures.capacity_bytes = run.capacity[tier] * block_bytes;
    figures.hits = run.hits[tier];
    figures.stored = run.stored[tier];
    answer.capacity_bytes += figures.capacity_bytes;
    if (tier == 0) continue;
    figures.bytes_in = run.hits[tier] * block_bytes;
    figures.bytes_out = run.stored[tier] * block_bytes;
    answer.bytes_in += figures.bytes_in;
    answer.bytes_out += figures.bytes_out;
  }
  answer.hit_rate = part_of(hits, run.blocks);
  return answer;
}

Cell rate_cell(double part) { return {percent(part), part, FigureUnit::share}; }

Cell capacity_cell(const KvRunAnswer& run, const char* tier) {
  const auto found = std::ranges::find(run.tiers, tier, &KvTierFigures::tier);
  return found == run.tiers.end() ? text_cell("-", "") : bytes_cell(found->capacity_bytes);
}

DocumentTable break_even_table(const KvCacheAnswer& answer) {
  DocumentTable table{"break_even",
                      fmt::format("Keys and values of a prompt: computed on the {}, or fetched", answer.gpu),
                      {"tokens", "computed", "from CPU memory", "from SSD", "even at"}};
  const auto cell = [](std::optional<double> seconds) { return seconds ? seconds_cell(*seconds) : text_cell("-", ""); };
  for (const KvBreakEvenAnswer& at : answer.break_even) {
    table.add({count_cell(at.tokens),
               seconds_cell(at.compute_s),
               cell(at.cpu_fetch_s),
               cell(at.ssd_fetch_s),
               {format_bandwidth(static_cast<BytesPerSecond>(at.break_even_bytes_per_second)),
                at.break_even_bytes_per_second, FigureUnit::bytes_per_second}});
  }
  return table;
}

}  // namespace

KvCacheAnswer kv_cache_answer(const BlockTrace& trace, const KvStudy& study) {
  KvCacheAnswer answer;
  for (const KvRun& run : study.runs) answer.runs.push_back(run_answer(run, study.block_bytes));
  if (!study.runs.empty()) {
    static_cast<KvFigures&>(answer) = answer.runs.front();
    const KvRun& first = study.runs.front();
    answer.requests = first.requests;
    answer.blocks = first.blocks;
    answer.input_tokens = first.tokens;
    answer.prefill_s = first.prefill_seconds;
  }
  answer.trace = trace.file();
  answer.model = study.model;
  answer.gpu = study.gpu;
  answer.machine = study.machine;
  answer.different_blocks = trace.different_blocks();
  answer.block_tokens = trace.block_tokens();
  answer.block_bytes = study.block_bytes;
  answer.endless_hit_rate = part_of(study.endless_hits, trace.blocks().size());
  for (const KvBreakEven& at : study.break_even) {
    KvBreakEvenAnswer& row = answer.break_even.emplace_back();
    row.tokens = at.tokens;
    row.compute_s = at.compute_seconds;
    if (study.bandwidth[1] > 0) row.cpu_fetch_s = at.fetch_seconds[1];
    if (study.bandwidth[2] > 0) row.ssd_fetch_s = at.fetch_seconds[2];
    row.break_even_bytes_per_second = at.bandwidth;
  }
  answer.notes.push_back(
      fmt::format("Prefill times are modelled for the {}, a prompt at a time. Fetches are times of copies alone: "
                  "CPU memory {}, SSD {}.",
                  study.gpu, study.bandwidth[1] > 0 ? format_bandwidth(study.bandwidth[1]) : "none",
                  study.bandwidth[2] > 0 ? format_bandwidth(study.bandwidth[2]) : "none"));
  if (std::ranges::any_of(answer.runs, &KvRunAnswer::oracle)) {
    answer.notes.emplace_back("belady is an oracle: it knows the requests to come, and no cache hits more.");
  }
  std::uint64_t larger = 0;
  for (const KvRunAnswer& run : answer.runs) larger = std::max(larger, run.larger_than_gpu);
  if (larger > 0) {
    answer.notes.push_back(
        fmt::format("{} requests are larger than the smallest cache in GPU memory: no engine could run them there; "
                    "their first blocks are kept.",
                    larger));
  }
  if (study.model_longest != 0 && trace.longest_input() > study.model_longest) {
    answer.notes.push_back(fmt::format("The longest prompt has {} tokens; {} takes {}.", trace.longest_input(),
                                       study.model, study.model_longest));
  }
  answer.manifest = {{"version", TENCACHE_VERSION}};
  return answer;
}

DocumentTable kv_cache_table(const KvCacheAnswer& answer) {
  // Columns of what no run has are for files alone.
  const auto where = [&](std::initializer_list<const char*> tiers) {
    const bool is_used = std::ranges::any_of(answer.runs, [&](const KvRunAnswer& run) {
      return std::ranges::any_of(tiers, [&](const char* tier) {
        return std::ranges::find(run.tiers, tier, &KvTierFigures::tier) != run.tiers.end();
      });
    });
    return is_used ? Shown::everywhere : Shown::in_files;
  };
  const Shown below = where({"cpu", "ssd"});
  DocumentTable table{"runs",
                      "",
                      {"policy",
                       {"GPU", where({"gpu"}), "GPU memory"},
                       {"CPU", where({"cpu"}), "CPU memory"},
                       {"SSD", where({"ssd"})},
                       "hit rate",
                       {"of tokens", Shown::everywhere, "of the tokens"},
                       {"in GPU", below, "hits in GPU memory"},
                       {"fetched", below},
                       {"stored", below, "stored below the GPU"},
                       {"saved", Shown::everywhere, "prefill saved"},
                       {"fetching", below}}};
  for (const KvRunAnswer& run : answer.runs) {
    std::uint64_t gpu_hits = 0;
    for (const KvTierFigures& tier : run.tiers) gpu_hits += tier.tier == "gpu" ? tier.hits : 0;
    table.add({run.policy + (run.oracle ? " (oracle)" : ""), capacity_cell(run, "gpu"), capacity_cell(run, "cpu"),
               capacity_cell(run, "ssd"), rate_cell(run.hit_rate), rate_cell(run.token_hit_rate),
               rate_cell(part_of(gpu_hits, answer.blocks)), bytes_cell(run.bytes_in), bytes_cell(run.bytes_out),
               seconds_cell(run.prefill_saved_s), seconds_cell(run.fetch_s)});
    if (run.oracle) table.rows.back().weight = DocumentTable::Row::Weight::reference;
  }
  return table;
}

LineChart kv_cache_chart(const KvCacheAnswer& answer) {
  LineChart chart;
  chart.title = "Hits against capacity: " + answer.trace;
  chart.subtitle = fmt::format("endless memory: {}", percent(answer.endless_hit_rate));
  chart.x_label = "capacity of all tiers";
  chart.y_label = "hits, share of the blocks";
  chart.x_unit = FigureUnit::bytes;
  chart.y_unit = FigureUnit::share;
  if (std::ranges::any_of(answer.runs, &KvRunAnswer::oracle)) {
    chart.note = "belady is an oracle: it knows the requests to come.";
  }
  ChartPanel& panel = chart.panels.emplace_back();
  std::vector<Bytes> capacities;
  for (const KvRunAnswer& run : answer.runs) {
    if (panel.lines.empty() || panel.lines.back().name != run.policy) {
      panel.lines.emplace_back().name = run.policy;
      panel.lines.back().reference = run.oracle;
    }
    panel.lines.back().points.push_back({static_cast<double>(run.capacity_bytes), run.hit_rate});
    capacities.push_back(run.capacity_bytes);
  }
  for (ChartLine& line : panel.lines) std::ranges::sort(line.points, {}, &LinePoint::x);
  std::ranges::sort(capacities);
  capacities.erase(std::unique(capacities.begin(), capacities.end()), capacities.end());
  for (const Bytes bytes : capacities) chart.ticks.emplace_back(static_cast<double>(bytes), format_bytes(bytes));
  return chart;
}

Document document_of(const KvCacheAnswer& answer) {
  Document document{.kind = "kv-cache", .title = "KV blocks: " + answer.trace, .blocks = {}};
  const std::string head = fmt::format(
      "{} requests, {} blocks of {} tokens; {} different ones, {} of {} each; {} hits with endless memory; {} of "
      "prefill",
      answer.requests, answer.blocks, answer.block_tokens, answer.different_blocks, format_bytes(answer.block_bytes),
      answer.model, percent(answer.endless_hit_rate), format_seconds(answer.prefill_s));
  document.add_text(fmt::format("{}\n  {}\n\n", printable(answer.trace), head));
  document.add_paragraph(head);
  document.add_table(kv_cache_table(answer));
  if (LineChart chart = kv_cache_chart(answer); chart.ticks.size() > 1) document.blocks.emplace_back(std::move(chart));
  DocumentTable table = break_even_table(answer);
  document.add_text("\n" + table.title + "\n\n");
  document.add_table(std::move(table));
  std::string notes = "\n";
  for (const std::string& note : answer.notes) {
    notes += note + "\n";
    document.add_paragraph(note);
  }
  document.add_text(std::move(notes));
  return document;
}

Document document_of(const KvTraceAnswer& answer) {
  Document document{.kind = "kv-cache generate", .title = "Requests: " + answer.trace, .blocks = {}};
  document.add_text(fmt::format("{}: {} requests, {} tokens, {} blocks, {} different ones\n", printable(answer.trace),
                                answer.requests, answer.input_tokens, answer.blocks, answer.different_blocks));
  return document;
}

}  // namespace tencache
