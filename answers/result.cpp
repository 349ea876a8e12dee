#include "answers/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/fault_plan.h"
#include "core/text.h"
#include "policies/registry.h"
#include "studies/generation.h"

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

Named<double> phases_of(const RunResult& result) {
  const auto seconds = [&](Phase phase) {
    return per_iteration_seconds(result, result.window.phase_ns[static_cast<std::size_t>(phase)]);
  };
  Named<double> phases = {{"forward", seconds(Phase::forward) + seconds(Phase::loss)},
                          {"backward", seconds(Phase::backward)},
                          {"optimizer", seconds(Phase::optimizer)}};
  for (const Phase of_inference : {Phase::prefill, Phase::decode}) {
    if (result.window.phase_ns[static_cast<std::size_t>(of_inference)] == 0) continue;
    phases.emplace_back(to_string(of_inference), seconds(of_inference));
  }
  return phases;
}

std::optional<double> share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? std::nullopt : std::optional(static_cast<double>(part) / static_cast<double>(whole));
}

Named<std::optional<double>> utilization_of(const MachineSpec& machine, const RunResult& result) {
  Named<std::optional<double>> utilization;
  const auto time_ns = static_cast<double>(result.window.time_ns);
  const auto add = [&](const std::string& name, bool known, double used, double whole) {
    utilization.emplace_back(name, known && time_ns > 0 ? std::optional(used / time_ns / whole) : std::nullopt);
  };
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {  // a share of an unlimited tier says nothing
    const Tier& tier = machine.tiers[i];
    add(tier.name, tier.capacity < unlimited, static_cast<double>(result.window.tiers[i].occupancy_byte_ns),
        static_cast<double>(tier.capacity));
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    add(machine.links[i].name, true, static_cast<double>(result.window.links[i].busy_ns), 1);
  }
  return utilization;
}

// How long each lane and link was at work, an iteration.
Named<double> busy_of(const MachineSpec& machine, const RunResult& result) {
  Named<double> busy = {{"gpu_lane", per_iteration_seconds(result, result.window.compute_ns)},
                        {"cpu_lane", per_iteration_seconds(result, result.window.cpu_compute_ns)}};
  if (result.window.communication_ns > 0) {
    busy.emplace_back("communication_lane", per_iteration_seconds(result, result.window.communication_ns));
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    busy.emplace_back(machine.links[i].name, per_iteration_seconds(result, result.window.links[i].busy_ns));
  }
  return busy;
}

Named<Json> traffic_of(const MachineSpec& machine, const RunResult& result) {
  Named<Json> traffic;
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    const Bytes bytes = result.window.links[i].bytes;
    traffic.emplace_back(machine.links[i].name, bytes % result.period == 0
                                                    ? Json(bytes / result.period)
                                                    : Json(per_iteration(result, static_cast<double>(bytes))));
  }
  return traffic;
}

std::optional<GenerationAnswer> generation_answer(const Workload& workload, const Outcome& outcome) {
  const std::optional<Generation> generation = generation_of(*workload.trace, outcome.rank);
  if (!generation) return std::nullopt;
  const RunResult& result = outcome.result;
  GenerationAnswer answer;
  answer.requests = generation->requests;
  answer.new_tokens = generation->new_tokens;
  answer.time_to_first_token_seconds = time_to_first_token_seconds(*generation, result);
  answer.time_per_output_token_seconds = time_per_output_token_seconds(*generation, result);
  answer.decode_tokens_per_second = decode_tokens_per_second(*generation, result);
  const std::vector<Link>& links = workload.machine.of_rank(outcome.rank).links;
  for (std::size_t i = 0; i < links.size() && generation->tokens > 0; ++i) {
    if (!answer.traffic_bytes_per_token) answer.traffic_bytes_per_token.emplace();
    const double bytes = per_iteration(result, static_cast<double>(result.window.links[i].bytes));
    answer.traffic_bytes_per_token->emplace_back(links[i].name, bytes / static_cast<double>(generation->tokens));
  }
  const auto hit_rate = [&](Role role) -> RoleHitRate {
    const AccessCounters& of_role = result.window.accesses_of(role);
    return {share(of_role.hits, of_role.accesses), share(of_role.hit_bytes, of_role.access_bytes)};
  };
  answer.kv_cache_hit_rate = hit_rate(Role::kv_cache);
  answer.expert_hit_rate = hit_rate(Role::expert);
  return answer;
}

Named<Bytes> peaks_of(const MachineSpec& machine, const RunResult& result) {
  Named<Bytes> peaks;
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    peaks.emplace_back(machine.tiers[i].name, result.peak_bytes[i]);
  }
  return peaks;
}

// Before the first step, of all CPU memory that the run uses; only where the machine says how fast.
std::optional<double> page_locking_seconds(const MachineSpec& machine, const RunResult& result) {
  const TierId cpu = machine.tier_of(Device::cpu);
  if (machine.host.lock_bandwidth == 0 || cpu == no_tier) return std::nullopt;
  const Bytes staging = machine.staging.tier == cpu ? machine.staging.all_bytes() : 0;
  return static_cast<double>(result.peak_bytes[cpu] + staging) / static_cast<double>(machine.host.lock_bandwidth);
}

AllocatorCost allocator_cost(const RunResult& result, std::size_t tier) {
  const auto ratio = [](uint128 part, uint128 whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const TierCounters& window = result.window.tiers[tier];
  AllocatorCost cost{.kind = std::string(to_string(result.allocators[tier])),
                     .fragmentation = ratio(window.scattered_byte_ns, window.free_byte_ns),
                     .padding = ratio(window.padding_byte_ns, window.occupancy_byte_ns),
                     .placeless = per_iteration(result, static_cast<double>(window.placeless)),
                     .holes = {},
                     .moved_bytes = {},
                     .moving_seconds = {}};
  if (result.allocators[tier] == AllocatorKind::movable) {
    cost.holes = per_iteration(result, static_cast<double>(window.holes));
    cost.moved_bytes = per_iteration(result, static_cast<double>(window.moved_bytes));
    cost.moving_seconds = per_iteration_seconds(result, window.moving_ns);
  }
  return cost;
}

// Bound ÷ time. The ideal has memory that the bound does not grant.
std::optional<double> efficiency_of(const Outcome& outcome, const References& references) {
  const double iteration = outcome.result.iteration_seconds();
  if (outcome.policy == "ideal" || iteration <= 0) return std::nullopt;
  return references.bound_of(outcome.result) / iteration;
}

std::optional<double> slowdown_of(double seconds, const References& references) {
  return references.ideal_seconds > 0 ? std::optional(seconds / references.ideal_seconds) : std::nullopt;
}

// What results and their ranks both have.
template <typename Answer>
void add_figures(Answer& answer, const MachineSpec& machine, const RunResult& result) {
  answer.iteration_seconds = result.iteration_seconds();
  answer.first_iteration_seconds = to_seconds(result.first_iteration_ns);
  answer.compute_seconds = per_iteration_seconds(result, result.window.compute_ns);
  answer.gap_seconds = per_iteration_seconds(result, result.window.gap_ns);
  answer.stall_seconds = stalls_of(result);
  answer.phase_seconds = phases_of(result);
  const Counters& window = result.window;
  answer.attribution.emplace(
      Attribution{result.period, window.time_ns, window.compute_ns, window.gap_ns, window.stall_ns});
  answer.traffic_bytes = traffic_of(machine, result);
  answer.mean_utilization = utilization_of(machine, result);
}

void add_run_figures(ResultAnswer& answer, const Workload& workload, const Outcome& outcome,
                     const References& references) {
  const RunResult& result = outcome.result;
  const MachineSpec& machine = workload.machine.of_rank(outcome.rank);
  const double iteration = result.iteration_seconds();
  add_figures(answer, machine, result);
  references.name_bounds(answer, references.bound_of(result));
  answer.slowdown = slowdown_of(iteration, references);
  answer.efficiency = efficiency_of(outcome, references);
  answer.busy_seconds = busy_of(machine, result);
  answer.cpu_optimizer_wait_seconds = cpu_wait(result);
  const AccessCounters accesses = result.window.all_accesses();
  answer.gpu_hit_rate = {share(accesses.hits, accesses.accesses), share(accesses.hit_bytes, accesses.access_bytes),
                         share(result.window.tensors_held, result.window.tensors)};
  answer.peak_bytes = peaks_of(machine, result);
  if (const auto seconds = page_locking_seconds(machine, result)) answer.page_locking_seconds = *seconds;
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    if (!answer.allocators) answer.allocators.emplace();
    answer.allocators->emplace_back(machine.tiers[i].name, allocator_cost(result, i));
  }
  answer.tokens_per_second = tokens_per_second(workload, iteration);
  if (auto generation = generation_answer(workload, outcome)) answer.generation.emplace(std::move(*generation));
  answer.usd_per_million_tokens = usd_per_million_tokens(workload, iteration);
  answer.steady = result.steady;
}

RankResult rank_result(const Workload& workload, const Outcome& outcome, std::size_t rank) {
  const RunResult& result = outcome.ranks[rank].result;
  const MachineSpec& machine = workload.machine.of_rank(rank);
  RankResult answer;
  answer.rank = rank;
  answer.slowest = rank == outcome.rank;
  answer.iterations = result.iterations;
  answer.steady = result.steady;
  answer.peak_bytes = peaks_of(machine, result);
  if (result.fits) add_figures(answer, machine, result);
  return answer;
}

Json bytes_json(Bytes bytes) { return bytes >= unlimited ? Json(nullptr) : Json(bytes); }

// What was injected, by kind.
InjectedFaults injected_faults(const Scenario& scenario, const FaultCounts& injected) {
  InjectedFaults faults{scenario.faults, {}};
  for (std::size_t kind = 0; kind < injected.size(); ++kind) {
    faults.injected.emplace_back(to_string(static_cast<FaultKind>(kind)), injected[kind]);
  }
  return faults;
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

ResultAnswer bound_row_answer(const Workload& workload, const References& references) {
  Outcome row;
  row.policy = bound_row;
  row.result.fits = false;
  ResultAnswer answer = result_answer(workload, row, references);
  answer.fits = true;
  answer.reason.clear();
  answer.iteration_seconds = references.bound_seconds;
  answer.slowdown = slowdown_of(references.bound_seconds, references);
  answer.efficiency = 1;
  answer.binding = term_answer(workload, references.binding, references.bound_rank);
  const std::string note = storage_bound_note(workload, references.binding, references.bound_rank);
  if (!note.empty()) answer.notes.push_back(note);
  return answer;
}

ResultAnswer result_answer(const Workload& workload, const Outcome& outcome, const References& references) {
  const RunResult& result = outcome.result;
  ResultAnswer answer;
  answer.policy = outcome.policy;
  answer.machine = workload.machine.name;
  answer.trace = workload.scenario.trace.file;
  answer.fits = result.fits;
  answer.ideal_seconds = references.ideal_seconds;
  references.name_bounds(answer, references.bound_seconds);
  answer.bound_term = references.bound_term;
  answer.iterations = result.iterations;
  if (result.fits) {
    add_run_figures(answer, workload, outcome, references);
  } else {
    answer.reason = result.misfit;
    if (!result.misfit_op.empty()) answer.misfit = ResultMisfit{result.misfit_op, result.misfit_bytes};
  }
  for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) {
    if (!answer.ranks) answer.ranks.emplace();
    answer.ranks->push_back(rank_result(workload, outcome, rank));
  }
  answer.simulated_events = result.simulated_events;
  answer.changes = outcome.program.changes;
  answer.recompute = recomputation_of(*workload.trace, outcome.levels);
  answer.policy_notes = result.policy_notes;
  answer.deepspeed_cpu_memory = deepspeed_cpu_memory(workload, outcome);
  answer.notes = notes_of(workload);
  if (outcome.runs_with) {
    answer.runs_with = *outcome.runs_with;
    answer.changes_training = counterparts_of(outcome.policy).changes_training;
  }
  answer.rescaled = rescaling_answer(workload);
  answer.gpu_time = gpu_time_answer(workload);
  if (!workload.scenario.faults.empty()) answer.faults = injected_faults(workload.scenario, outcome.faults);
  answer.manifest = manifest_of(workload, outcome.policy, outcome.options);
  answer.timing = {workload.load_seconds, outcome.seconds};
  return answer;
}

Absent<std::vector<LayerRecomputation>> recomputation_of(const Trace& trace, std::span<const RecomputeLevel> levels) {
  Absent<std::vector<LayerRecomputation>> choices;
  for (std::size_t i = 0; i < levels.size() && i < trace.choices.size(); ++i) {
    if (!choices) choices.emplace();
    const RecomputeChoice& choice = trace.choices[i];
    choices->push_back({std::string(trace.names[choice.module]), choice.micro_batch, levels[i]});
  }
  return choices;
}

std::string trace_title(const Workload& workload) {
  const TraceHeader& header = workload.trace->header;
  std::string title =
      header.model.empty() ? std::filesystem::path(workload.scenario.trace.file).filename().string() : header.model;
  if (header.batch != 0) title += fmt::format(", batch {}", header.batch);
  return printable(title);
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
  if (const auto efficiency = efficiency_of(outcome, references); efficiency && references.bound_seconds > 0) {
    const std::string recorded = references.recorded_bound_seconds
                                     ? fmt::format(", whatever is recomputed; as recorded {}",
                                                   format_seconds(*references.recorded_bound_seconds))
                                     : "";
    text += fmt::format("  efficiency     {:.1f} % of the lower bound of {} ({}){}\n", 100 * *efficiency,
                        format_seconds(references.bound_of(outcome.result)), references.bound_term, recorded);
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
  for (const StallCause cause : all_causes) {
    if (result.window.stall_ns[cause] == 0) continue;
    stalls += fmt::format("{}{} {}", stalls.empty() ? "" : ", ", to_string(cause),
                          format_seconds(per_iteration_seconds(result, result.window.stall_ns[cause])));
  }
  text += fmt::format("  stalls         {}\n", stalls.empty() ? "none" : stalls);
  if (const std::string wait = cpu_wait_text(result); !wait.empty()) {
    text += fmt::format("  cpu_optimizer  {}\n", wait);
  }
  std::string phases;
  for (const auto& [phase, seconds] : phases_of(result)) {
    phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", phase, format_seconds(seconds));
  }
  text += fmt::format("  phases         {}\n", phases);
  return text;
}

// Of a text generation; else empty.
std::string generation_text(const Workload& workload, const Outcome& outcome) {
  const std::optional<GenerationAnswer> generation = generation_answer(workload, outcome);
  if (!generation) return "";
  std::vector<std::string> times, rates;
  if (const auto& seconds = generation->time_to_first_token_seconds) {
    times.push_back(fmt::format("first token after {}", format_seconds(*seconds)));
  }
  if (const auto& seconds = generation->time_per_output_token_seconds) {
    times.push_back(fmt::format("then {} per token", format_seconds(*seconds)));
  }
  if (const auto& rate = generation->decode_tokens_per_second) {
    times.push_back(fmt::format("{:.4g} tokens/s while decoding", *rate));
  }
  std::string text = fmt::format("  generation     {}\n", fmt::join(times, ", "));
  const auto add_rate = [&](const char* what, const RoleHitRate& rate) {
    if (rate.bytes) rates.push_back(fmt::format("{} {:.1f} % of bytes", what, 100 * *rate.bytes));
  };
  add_rate("KV cache", generation->kv_cache_hit_rate);
  add_rate("experts", generation->expert_hit_rate);
  if (!rates.empty()) text += fmt::format("  in GPU memory  {}\n", fmt::join(rates, ", "));
  std::vector<std::string> moved;
  for (const auto& [link, bytes] : generation->traffic_bytes_per_token.value_or(Named<double>())) {
    if (bytes > 0) moved.push_back(fmt::format("{} {}", link, format_bytes(static_cast<Bytes>(std::llround(bytes)))));
  }
  if (!moved.empty()) text += fmt::format("  per token      {}\n", fmt::join(moved, ", "));
  return text;
}

// What moves, and how full each tier gets.
std::string traffic_text(const MachineSpec& machine, const RunResult& result, Ran ran) {
  std::string text;
  if (const AccessCounters all = result.window.all_accesses(); all.accesses != 0) {
    text += fmt::format("  GPU hit rate   {:.1f} % of accesses, {:.1f} % of bytes\n",
                        100 * share(all.hits, all.accesses).value_or(0),
                        100 * share(all.hit_bytes, all.access_bytes).value_or(0));
  }
  for (std::size_t i = 0; i < machine.links.size(); ++i) {
    if (result.window.links[i].bytes == 0) continue;
    text += fmt::format("  {:<14} {}, busy {:.0f} %\n", machine.links[i].name,
                        format_bytes(result.window.links[i].bytes / result.period),
                        100.0 * static_cast<double>(result.window.links[i].busy_ns) /
                            static_cast<double>(std::max<Nanoseconds>(1, result.window.time_ns)));
  }
  for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
    text += fmt::format("  {:<14} peak {} of {}\n", machine.tiers[i].name, format_bytes(result.peak_bytes[i]),
                        format_bytes(machine.tiers[i].capacity));
    const auto seconds = page_locking_seconds(machine, result);
    if (seconds && ran == Ran::simulated && i == machine.tier_of(Device::cpu)) {
      text += fmt::format("                 page-locked before the first step, in {}\n", format_seconds(*seconds));
    }
    if (result.allocators[i] == AllocatorKind::exact) continue;
    const AllocatorCost allocator = allocator_cost(result, i);
    text += fmt::format(
        "                 {}: {:.0f} % of what is free is outside the largest hole, buffers hold {:.0f} % "
        "beyond their content; {:.4g} times an iteration there was room but no one place for a chunk\n",
        to_string(result.allocators[i]), 100 * allocator.fragmentation, 100 * allocator.padding, allocator.placeless);
    if (result.allocators[i] != AllocatorKind::movable) continue;
    text += fmt::format("                 {} moved {:.4g} times an iteration to make a hole, which takes {}\n",
                        format_bytes(static_cast<Bytes>(std::llround(*allocator.moved_bytes))), *allocator.holes,
                        format_seconds(*allocator.moving_seconds));
  }
  return text;
}

}  // namespace

std::string result_text(const Workload& workload, const Outcome& outcome, const References& references, Ran ran) {
  const RunResult& result = outcome.result;
  std::string text = fmt::format("{} on {}, {}\n", trace_title(workload), machine_title(workload), outcome.policy);
  text += notes_text(workload, outcome);
  if (!workload.scenario.faults.empty()) text += fmt::format("  injected       {}\n", to_string(outcome.faults));
  if (!result.fits) return text + fmt::format("  does not fit: {}\n", printable(result.misfit));
  text += iteration_text(outcome, references) + attribution_text(result) + generation_text(workload, outcome) +
          traffic_text(workload.machine.of_rank(outcome.rank), result, ran);
  if (const std::optional<double> rate = tokens_per_second(workload, result.iteration_seconds())) {
    const std::optional<double> usd = usd_per_million_tokens(workload, result.iteration_seconds());
    text += fmt::format("  throughput     {:.1f} tokens/s{}\n", *rate,
                        usd ? fmt::format(", {:.4g} $/1M tokens{}", *usd, price_text(workload)) : std::string());
  }
  return text;
}

}  // namespace tencache
