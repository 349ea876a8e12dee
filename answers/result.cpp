#include "answers/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "answers/bound.h"
#include "core/fault_plan.h"
#include "core/text.h"

namespace tencache {
namespace {

double per_iteration(const RunResult& result, double window) { return window / static_cast<double>(result.period); }

// Of all ranks together; none: the trace does not say how many tokens an iteration has.
std::optional<double> tokens_per_second(const Workload& workload, double iteration_seconds) {
  const std::uint64_t tokens = workload.trace->header.tokens_per_iteration();
  if (tokens == 0 || iteration_seconds <= 0) return std::nullopt;
  return static_cast<double>(tokens) / iteration_seconds;
}

// At the price on demand of the whole machine, also where the trace leaves some of its GPUs idle; none: unknown, or in
// another currency.
std::optional<double> usd_per_million_tokens(const Workload& workload, double iteration_seconds) {
  const Price& price = workload.machine.price;
  const std::optional<double> rate = tokens_per_second(workload, iteration_seconds);
  if (!rate || !price.in_usd()) return std::nullopt;
  return price.on_demand / 3600 / *rate * 1e6;
}

// " at 1.006 $/h of 2026-07".
std::string price_text(const Workload& workload) {
  const PriceFigure& price = workload.price.on_demand;
  return fmt::format(" at {:.4g} $/h{}", price.value, price.retrieved.empty() ? "" : " of " + price.retrieved);
}

Json stalls_json(const RunResult& result, bool nanoseconds) {
  Json stalls = Json::object();
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    const std::string cause(to_string(static_cast<StallCause>(i)));
    if (nanoseconds) {
      stalls[cause] = result.window.stall_ns[i];
    } else {
      stalls[cause] = per_iteration_seconds(result, result.window.stall_ns[i]);
    }
  }
  return stalls;
}

Json phases_json(const RunResult& result) {
  const auto seconds = [&](Phase phase) {
    return per_iteration_seconds(result, result.window.phase_ns[static_cast<std::size_t>(phase)]);
  };
  Json json = {{"forward", seconds(Phase::forward) + seconds(Phase::loss)},
               {"backward", seconds(Phase::backward)},
               {"optimizer", seconds(Phase::optimizer)}};
  for (const Phase of_inference : {Phase::prefill, Phase::decode}) {
    if (result.window.phase_ns[static_cast<std::size_t>(of_inference)] == 0) continue;
    json[std::string(to_string(of_inference))] = seconds(of_inference);
  }
  return json;
}

// Exact: compute + gaps + stalls = time, in nanoseconds over the whole window.
Json attribution_json(const RunResult& result) {
  const Counters& window = result.window;
  return {{"iterations", result.period},
          {"time_ns", window.time_ns},
          {"compute_ns", window.compute_ns},
          {"gap_ns", window.gap_ns},
          {"stall_ns", stalls_json(result, true)}};
}

Json share(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return nullptr;
  return static_cast<double>(part) / static_cast<double>(whole);
}

Json utilization_json(const MachineSpec& machine, const RunResult& result) {
  Json utilization = Json::object();
  const auto time_ns = static_cast<double>(result.window.time_ns);
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    const Tier& tier = machine.tiers[i];
    if (tier.capacity >= unlimited || time_ns <= 0) {
      utilization[tier.name] = nullptr;  // a share of an unlimited tier says nothing
    } else {
      utilization[tier.name] =
          static_cast<double>(result.window.occupancy_byte_ns[i]) / time_ns / static_cast<double>(tier.capacity);
    }
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    utilization[machine.links[i].name] =
        time_ns <= 0 ? Json(nullptr) : Json(static_cast<double>(result.window.link_busy_ns[i]) / time_ns);
  }
  return utilization;
}

// How long each lane and link was at work, an iteration.
Json busy_json(const MachineSpec& machine, const RunResult& result) {
  Json busy = {{"gpu_lane", per_iteration_seconds(result, result.window.compute_ns)},
               {"cpu_lane", per_iteration_seconds(result, result.window.cpu_compute_ns)}};
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    busy[machine.links[i].name] = per_iteration_seconds(result, result.window.link_busy_ns[i]);
  }
  return busy;
}

Json traffic_json(const MachineSpec& machine, const RunResult& result) {
  Json traffic = Json::object();
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const Bytes bytes = result.window.link_bytes[i];
    // Whole bytes where the period is one iteration, as nearly always.
    if (bytes % result.period == 0) {
      traffic[machine.links[i].name] = bytes / result.period;
    } else {
      traffic[machine.links[i].name] = per_iteration(result, static_cast<double>(bytes));
    }
  }
  return traffic;
}

// Over the whole window: what a tier's allocator cost.
Json allocators_json(const MachineSpec& machine, const RunResult& result) {
  const auto ratio = [](uint128 part, uint128 whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  Json allocators = Json::object();
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    const Counters& window = result.window;
    allocators[machine.tiers[i].name] = {
        {"kind", to_string(result.allocators[i])},
        {"fragmentation", ratio(window.scattered_byte_ns[i], window.free_byte_ns[i])},
        {"padding", ratio(window.padding_byte_ns[i], window.occupancy_byte_ns[i])},
        {"placeless", per_iteration(result, static_cast<double>(window.placeless[i]))}};
  }
  return allocators;
}

// Bound ÷ time. The ideal has memory that the bound does not grant.
Json efficiency_of(const Outcome& outcome, const References& references) {
  const double iteration = outcome.result.iteration_seconds();
  if (outcome.policy == "ideal" || iteration <= 0) return nullptr;
  return references.bound_of(outcome.result) / iteration;
}

void add_run_figures(Json& json, const Workload& workload, const Outcome& outcome, const References& references) {
  const RunResult& result = outcome.result;
  const MachineSpec& machine = workload.machine.of_rank(outcome.rank);
  const double iteration = result.iteration_seconds();
  json["iteration_seconds"] = iteration;
  json["first_iteration_seconds"] = to_seconds(result.first_iteration_ns);
  json["ideal_seconds"] = references.ideal_seconds;
  json["bound_seconds"] = references.bound_of(result);
  json["bound_term"] = references.bound_term;
  json["slowdown"] = references.ideal_seconds > 0 ? Json(iteration / references.ideal_seconds) : Json(nullptr);
  json["efficiency"] = efficiency_of(outcome, references);
  json["compute_seconds"] = per_iteration_seconds(result, result.window.compute_ns);
  json["gap_seconds"] = per_iteration_seconds(result, result.window.gap_ns);
  json["stall_seconds"] = stalls_json(result, false);
  json["busy_seconds"] = busy_json(machine, result);
  json["cpu_optimizer_wait_seconds"] = cpu_wait_json(result);
  json["phase_seconds"] = phases_json(result);
  json["attribution"] = attribution_json(result);
  json["gpu_hit_rate"] = {{"accesses", share(result.window.hits, result.window.accesses)},
                          {"bytes", share(result.window.hit_bytes, result.window.access_bytes)},
                          {"tensors", share(result.window.tensors_held, result.window.tensors)}};
  json["traffic_bytes"] = traffic_json(machine, result);
  Json peak = Json::object();
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) peak[machine.tiers[i].name] = result.peak_bytes[i];
  json["peak_bytes"] = std::move(peak);
  json["mean_utilization"] = utilization_json(machine, result);
  json["allocators"] = allocators_json(machine, result);
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  json["tokens_per_second"] = or_null(tokens_per_second(workload, iteration));
  json["usd_per_million_tokens"] = or_null(usd_per_million_tokens(workload, iteration));
  json["iterations"] = result.iterations;
  json["steady"] = result.steady;
}

// The same keys, so that scripts need not look which are there.
void add_misfit_figures(Json& json, const RunResult& result, const References& references) {
  for (const char* key : {"iteration_seconds", "first_iteration_seconds"}) json[key] = nullptr;
  json["ideal_seconds"] = references.ideal_seconds;
  json["bound_seconds"] = references.bound_seconds;
  json["bound_term"] = references.bound_term;
  for (const char* key :
       {"slowdown", "efficiency", "compute_seconds", "gap_seconds", "stall_seconds", "busy_seconds",
        "cpu_optimizer_wait_seconds", "phase_seconds", "attribution", "gpu_hit_rate", "traffic_bytes", "peak_bytes",
        "mean_utilization", "allocators", "tokens_per_second", "usd_per_million_tokens"}) {
    json[key] = nullptr;
  }
  json["iterations"] = result.iterations;
  json["steady"] = false;
}

// Of several ranks, each; the figures of the slowest are the result's own.
Json ranks_json(const Workload& workload, const Outcome& outcome) {
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    const RunResult& result = outcome.ranks[rank].result;
    const MachineSpec& machine = workload.machine.of_rank(rank);
    Json json = {{"rank", rank},
                 {"slowest", rank == outcome.rank},
                 {"iterations", result.iterations},
                 {"steady", result.steady},
                 {"iteration_seconds", nullptr}};
    if (result.fits) {
      json["iteration_seconds"] = result.iteration_seconds();
      json["first_iteration_seconds"] = to_seconds(result.first_iteration_ns);
      json["compute_seconds"] = per_iteration_seconds(result, result.window.compute_ns);
      json["gap_seconds"] = per_iteration_seconds(result, result.window.gap_ns);
      json["stall_seconds"] = stalls_json(result, false);
      json["phase_seconds"] = phases_json(result);
      json["attribution"] = attribution_json(result);
      json["traffic_bytes"] = traffic_json(machine, result);
      json["mean_utilization"] = utilization_json(machine, result);
    }
    Json peak = Json::object();
    for (std::size_t i = 0; i < machine.tiers.size(); ++i) peak[machine.tiers[i].name] = result.peak_bytes[i];
    json["peak_bytes"] = std::move(peak);
    ranks.push_back(std::move(json));
  }
  return ranks;
}

Json bytes_json(Bytes bytes) { return bytes >= unlimited ? Json(nullptr) : Json(bytes); }

// What was injected, by kind.
Json faults_json(const Scenario& scenario, const FaultCounts& injected) {
  Json counts = Json::object();
  for (std::size_t kind = 0; kind < injected.size(); ++kind) {
    counts[std::string(to_string(static_cast<FaultKind>(kind)))] = injected[kind];
  }
  return {{"plan", scenario.faults}, {"injected", std::move(counts)}};
}

}  // namespace

Json machine_json(const MachineSpec& machine) {
  Json tiers = Json::array(), links = Json::array(), facts = Json::array();
  for (const Tier& tier : machine.tiers) {
    tiers.push_back(
        {{"name", tier.name}, {"kind", to_string(tier.kind)}, {"capacity_bytes", bytes_json(tier.capacity)}});
  }
  for (const Link& link : machine.links) {
    links.push_back({{"name", link.name},
                     {"from", machine.tiers[link.from].name},
                     {"to", machine.tiers[link.to].name},
                     {"bandwidth_bytes_per_second", bytes_json(link.bandwidth)},
                     {"latency_seconds", to_seconds(link.latency_ns)}});
  }
  for (const Fact& fact : machine.facts) {
    facts.push_back(
        {{"path", fact.path}, {"source", fact.source}, {"retrieved", fact.retrieved}, {"confidence", fact.confidence}});
    if (fact.spread > 0) facts.back()["spread"] = fact.spread;
  }
  const auto hourly = [](double price) { return price > 0 ? Json(price) : Json(nullptr); };
  return {{"name", machine.name},
          {"description", machine.description},
          {"gpu", machine.gpu},
          {"ranks", machine.rank_count()},
          {"tiers", std::move(tiers)},
          {"links", std::move(links)},
          {"price_per_hour",
           {{"on_demand", hourly(machine.price.on_demand)},
            {"spot", hourly(machine.price.spot)},
            {"currency", machine.price.currency}}},
          {"facts", std::move(facts)}};
}

Json bound_row_json(const Workload& workload, const References& references) {
  Outcome row;
  row.policy = bound_row;
  row.result.fits = false;
  Json json = result_json(workload, row, references);
  json["fits"] = true;
  json["reason"] = nullptr;
  json["iteration_seconds"] = references.bound_seconds;
  json["slowdown"] =
      references.ideal_seconds > 0 ? Json(references.bound_seconds / references.ideal_seconds) : Json(nullptr);
  json["efficiency"] = 1.0;
  json["binding"] = to_json_of(term_answer(workload, references.binding, references.bound_rank));
  const std::string note = storage_bound_note(workload, references.binding, references.bound_rank);
  if (!note.empty()) json["notes"].push_back(note);
  return json;
}

Json result_json(const Workload& workload, const Outcome& outcome, const References& references) {
  const RunResult& result = outcome.result;
  Json json;
  json["policy"] = outcome.policy;
  json["machine"] = workload.machine.name;
  json["trace"] = workload.scenario.trace.file;
  json["fits"] = result.fits;
  json["reason"] = result.fits ? Json(nullptr) : Json(result.misfit);
  if (!result.fits && !result.misfit_op.empty()) {
    json["misfit"] = {{"op", result.misfit_op}, {"bytes_missing", result.misfit_bytes}};
  }
  if (result.fits) {
    add_run_figures(json, workload, outcome, references);
  } else {
    add_misfit_figures(json, result, references);
  }
  // What add_interval knows.
  for (const char* key :
       {"interval_seconds", "samples", "misfit_samples", "fastest_samples", "ties_with_best", "depends_on"}) {
    json[key] = nullptr;
  }
  if (!outcome.ranks.empty()) json["ranks"] = ranks_json(workload, outcome);
  json["simulated_events"] = result.simulated_events;
  json["changes"] = outcome.program.changes;
  json["policy_notes"] = outcome.result.policy_notes;
  json["deepspeed_cpu_memory"] = deepspeed_memory_json(workload, outcome);
  json["notes"] = notes_of(workload);
  json["rescaled"] = rescaling_json(workload);
  json["gpu_time"] = gpu_time_json(workload);
  if (!workload.scenario.faults.empty()) json["faults"] = faults_json(workload.scenario, outcome.faults);
  json["manifest"] = manifest_json(workload, outcome.policy, outcome.options);
  json["timing"] = {{"load_seconds", workload.load_seconds}, {"run_seconds", outcome.seconds}};
  return json;
}

std::string trace_title(const Workload& workload) {
  const TraceHeader& header = workload.trace->header;
  std::string title =
      header.model.empty() ? std::filesystem::path(workload.scenario.trace.file).filename().string() : header.model;
  if (header.batch != 0) title += fmt::format(", batch {}", header.batch);
  return printable(title);
}

std::string time_bar(const RunResult& result, double longest_seconds, std::size_t width) {
  if (longest_seconds <= 0) return "";
  const double columns = static_cast<double>(width) / longest_seconds;
  const auto columns_of = [&](double seconds) { return static_cast<std::size_t>(std::lround(seconds * columns)); };
  const auto worst = std::max_element(result.window.stall_ns.begin(), result.window.stall_ns.end());
  const double busy = per_iteration_seconds(result, result.window.compute_ns + result.window.gap_ns);
  const std::size_t all = columns_of(result.iteration_seconds());
  const std::size_t full = std::min(all, columns_of(busy));
  const std::size_t main = std::min(all, columns_of(busy + per_iteration_seconds(result, *worst)));
  std::string bar;
  for (std::size_t i = 0; i < std::min(all, width); ++i) bar += i < full ? "█" : i < main ? "▒" : "░";
  if (all > width) bar += "▸";
  return bar.empty() ? "▏" : bar;
}

namespace {

std::string notes_text(const Workload& workload, const Outcome& outcome) {
  std::string text;
  for (const std::string& change : outcome.program.changes) text += fmt::format("  lowered: {}\n", change);
  for (const std::string& note : outcome.result.policy_notes) text += fmt::format("  plan: {}\n", note);
  for (const std::string& note : notes_of(workload)) text += fmt::format("  note: {}\n", note);
  if (const std::string note = deepspeed_note(workload, outcome); !note.empty()) {
    text += fmt::format("  note: {}\n", note);
  }
  return text;
}

// How long an iteration takes, against the ideal, the bound and, of several ranks, the others'.
std::string iteration_text(const Outcome& outcome, const References& references) {
  const RunResult& result = outcome.result;
  const double iteration = result.iteration_seconds();
  std::string text = fmt::format("  iteration      {}", format_seconds(iteration));
  if (references.ideal_seconds > 0) {
    text += fmt::format(", {:.3f} × ideal ({})", iteration / references.ideal_seconds,
                        format_seconds(references.ideal_seconds));
  }
  text += fmt::format("; the first one {}\n", format_seconds(to_seconds(result.first_iteration_ns)));
  if (const Json efficiency = efficiency_of(outcome, references);
      !efficiency.is_null() && references.bound_seconds > 0) {
    text += fmt::format("  efficiency     {:.1f} % of the lower bound of {} ({})\n", 100 * efficiency.get<double>(),
                        format_seconds(references.bound_of(outcome.result)), references.bound_term);
  }
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    const RunResult& of_rank = outcome.ranks[rank].result;
    const std::string stall = main_stall(of_rank);
    text += fmt::format("  rank {:<9} {}{}{}\n", rank, format_seconds(of_rank.iteration_seconds()),
                        stall.empty() ? "" : ", waits most for " + stall,
                        rank == outcome.rank ? "; the slowest: what follows is its" : "");
  }
  text +=
      result.steady
          ? fmt::format("  steady         after {} iterations, repeating every {}\n", result.iterations, result.period)
          : fmt::format("  not steady     mean of the last {} of {} iterations\n", result.period, result.iterations);
  return text;
}

// What an iteration consists of: computing, waiting for each cause, phases.
std::string attribution_text(const RunResult& result) {
  std::string text = fmt::format("  compute        {}, gaps {}\n",
                                 format_seconds(per_iteration_seconds(result, result.window.compute_ns)),
                                 format_seconds(per_iteration_seconds(result, result.window.gap_ns)));
  std::string stalls;
  for (std::size_t i = 0; i < stall_cause_count; ++i) {
    if (result.window.stall_ns[i] == 0) continue;
    stalls += fmt::format("{}{} {}", stalls.empty() ? "" : ", ", to_string(static_cast<StallCause>(i)),
                          format_seconds(per_iteration_seconds(result, result.window.stall_ns[i])));
  }
  text += fmt::format("  stalls         {}\n", stalls.empty() ? "none" : stalls);
  if (const std::string wait = cpu_wait_text(result); !wait.empty()) {
    text += fmt::format("  cpu_optimizer  {}\n", wait);
  }
  const Json seconds_of = phases_json(result);
  std::string phases;
  for (const auto& [phase, seconds] : seconds_of.items()) {
    phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", phase, format_seconds(seconds.get<double>()));
  }
  text += fmt::format("  phases         {}\n", phases);
  return text;
}

// What moves, and how full each tier gets.
std::string traffic_text(const MachineSpec& machine, const RunResult& result) {
  std::string text;
  if (result.window.accesses != 0) {
    text += fmt::format("  GPU hit rate   {:.1f} % of accesses, {:.1f} % of bytes\n",
                        100.0 * static_cast<double>(result.window.hits) / static_cast<double>(result.window.accesses),
                        100.0 * static_cast<double>(result.window.hit_bytes) /
                            static_cast<double>(std::max<Bytes>(1, result.window.access_bytes)));
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    if (result.window.link_bytes[i] == 0) continue;
    text += fmt::format("  {:<14} {}, busy {:.0f} %\n", machine.links[i].name,
                        format_bytes(result.window.link_bytes[i] / result.period),
                        100.0 * static_cast<double>(result.window.link_busy_ns[i]) /
                            static_cast<double>(std::max<Nanoseconds>(1, result.window.time_ns)));
  }
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    text += fmt::format("  {:<14} peak {} of {}\n", machine.tiers[i].name, format_bytes(result.peak_bytes[i]),
                        format_bytes(machine.tiers[i].capacity));
    if (result.allocators[i] == AllocatorKind::exact) continue;
    const Json allocator = allocators_json(machine, result)[machine.tiers[i].name];
    text += fmt::format(
        "                 {}: {:.0f} % of what is free is outside the largest hole, buffers hold {:.0f} % "
        "beyond their content; {:.4g} times an iteration there was room but no one place for a chunk\n",
        to_string(result.allocators[i]), 100 * allocator["fragmentation"].get<double>(),
        100 * allocator["padding"].get<double>(), allocator["placeless"].get<double>());
  }
  return text;
}

}  // namespace

std::string result_text(const Workload& workload, const Outcome& outcome, const References& references) {
  const RunResult& result = outcome.result;
  std::string text = fmt::format("{} on {}, {}\n", trace_title(workload), machine_title(workload), outcome.policy);
  text += notes_text(workload, outcome);
  if (!workload.scenario.faults.empty()) text += fmt::format("  injected       {}\n", to_string(outcome.faults));
  if (!result.fits) return text + fmt::format("  does not fit: {}\n", printable(result.misfit));
  text += iteration_text(outcome, references) + attribution_text(result) +
          traffic_text(workload.machine.of_rank(outcome.rank), result);
  if (const std::optional<double> rate = tokens_per_second(workload, result.iteration_seconds())) {
    const std::optional<double> usd = usd_per_million_tokens(workload, result.iteration_seconds());
    text += fmt::format("  throughput     {:.1f} tokens/s{}\n", *rate,
                        usd ? fmt::format(", {:.4g} $/1M tokens{}", *usd, price_text(workload)) : std::string());
  }
  return text;
}

}  // namespace tencache
