#include "tests/live/seed_run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "executor/order_site.h"

namespace tencache::rules {
namespace {

// A tenth of the waits of so many seeds may tell the waiter nothing new.
constexpr std::uint64_t most_implied = 10, fewest_seeds = 1000;

struct Options {
  std::uint64_t first = 0, end = 1000;
  bool json = false;
};

[[noreturn]] void usage(const char* program) {
  std::fprintf(stderr, "usage: %s --seeds A..B [--json] [--change N]\n",
               std::filesystem::path(program).filename().c_str());
  std::exit(2);
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--change" && i + 1 < count) {
      const std::size_t number = std::strtoull(arguments[++i], nullptr, 10);
      if (number >= order_sites().size()) usage(arguments[0]);
      changed_order_site = &order_sites()[number];
    } else if (argument == "--seeds" && i + 1 < count) {
      const std::string range = arguments[++i];
      const std::size_t dots = range.find("..");
      if (dots == std::string::npos) usage(arguments[0]);
      options.first = std::strtoull(range.c_str(), nullptr, 10);
      options.end = std::strtoull(range.c_str() + dots + 2, nullptr, 10) + 1;
    } else {
      usage(arguments[0]);
    }
  }
  return options;
}

std::string place_of(const OrderSite& site) {
  return std::filesystem::path(site.file).filename().string() + ":" + std::to_string(site.line);
}

// How often each place was reached.
nlohmann::ordered_json visits() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OrderSite& site : order_sites()) {
    list.push_back({{"site", place_of(site)}, {"kind", site.kind}, {"pair", site.pair}, {"visits", *site.visits}});
  }
  return list;
}

Finding judge_waits(const SeedTotals& totals) {
  const RulesCounts& counts = totals.counts;
  if (totals.seeds < fewest_seeds || counts.implied_waits * most_implied <= counts.waits) return {};
  return {"bounds", std::to_string(counts.implied_waits) + " of " + std::to_string(counts.waits) +
                        " waits told the waiter nothing new"};
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

nlohmann::ordered_json figures_of(const SeedTotals& totals) {
  return {{"seeds", totals.seeds},
          {"ended_by_failure", totals.ended_by_failure},
          {"calls", totals.counts.calls},
          {"copies", totals.counts.uploads + totals.counts.downloads},
          {"copies_not_page_locked", totals.counts.unpinned_copies},
          {"kernels", totals.counts.kernels},
          {"moves", totals.counts.moves},
          {"waits", totals.counts.waits},
          {"implied_waits", totals.counts.implied_waits},
          {"stream_waits", totals.counts.stream_waits},
          {"implied_stream_waits", totals.counts.implied_stream_waits},
          {"turns", totals.switches},
          {"policies", totals.policies},
          {"strategies", totals.strategies},
          {"cpu_ms_per_seed", cpu_seconds() * 1e3 / static_cast<double>(std::max<std::uint64_t>(totals.seeds, 1))},
          {"sites", visits()}};
}

}  // namespace

void SeedTotals::add(const RulesCounts& more) {
  counts.calls += more.calls;
  counts.uploads += more.uploads;
  counts.downloads += more.downloads;
  counts.kernels += more.kernels;
  counts.moves += more.moves;
  counts.unpinned_copies += more.unpinned_copies;
  counts.creations += more.creations;
  counts.waits += more.waits;
  counts.implied_waits += more.implied_waits;
  counts.stream_waits += more.stream_waits;
  counts.implied_stream_waits += more.implied_stream_waits;
}

Finding finding_of(const RulesDriver& driver) {
  const std::string violation = driver.violation();
  if (violation.empty()) return {};
  return {violation.starts_with("a ")      ? "happens-before"
          : violation.starts_with("late ") ? "values"
                                           : "rules",
          violation};
}

int run_seeds(int count, char** arguments, const SeedTotals& totals, const SeedJudges& judges) {
  std::signal(SIGSEGV, [](int) { std::abort(); });  // which says the seed
  const Options options = parse(count, arguments);
  Finding finding;
  std::uint64_t seed = options.first;
  for (; seed < options.end; ++seed) {
    finding = judges.seed(seed);
    if (!finding.judge.empty()) break;
  }
  if (finding.judge.empty()) finding = judge_waits(totals);
  const bool found = !finding.judge.empty();
  if (options.json) {
    nlohmann::ordered_json result = figures_of(totals);
    if (judges.more) judges.more(result);
    result["failure"] = nullptr;
    if (found) result["failure"] = {{"seed", seed}, {"judge", finding.judge}, {"what", finding.what}};
    std::printf("%s\n", result.dump(2).c_str());
  } else if (found) {
    std::printf("seed %llu, %s: %s\n", static_cast<unsigned long long>(seed), finding.judge.c_str(),
                finding.what.c_str());
  } else {
    std::printf("%llu seeds: nothing found\n", static_cast<unsigned long long>(totals.seeds));
  }
  return found ? 1 : 0;
}

}  // namespace tencache::rules
