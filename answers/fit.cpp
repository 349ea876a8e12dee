#include "answers/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "answers/bound.h"
#include "answers/result.h"
#include "answers/text_table.h"
#include "core/text.h"
#include "studies/bound.h"

namespace tencache {
namespace {

Json bytes_json(const Trace& trace, const BytesAtOp& bytes) {
  Json by_role = Json::object();
  for (std::size_t role = 0; role < role_count; ++role) {
    if (bytes.by_role[role] == 0 && static_cast<Role>(role) > Role::workspace) continue;  // of inference only
    by_role[std::string(to_string(static_cast<Role>(role)))] = bytes.by_role[role];
  }
  Json json = {{"bytes", bytes.bytes}, {"op", nullptr}, {"name", nullptr}, {"by_role", std::move(by_role)}};
  if (bytes.op == none) return json;
  json["op"] = bytes.op;
  json["name"] = trace.name(trace.ops[bytes.op]);
  return json;
}

// A tier and all faster ones together, which is what can be held once it is full.
struct TierRow {
  const Tier* tier;
  Bytes held;                     // of the peak, when faster tiers are filled first
  Bytes left_over;                // of the peak, beyond this tier and all faster ones
  std::optional<BytesAtOp> over;  // alive at the first op that overflows it
};

// Whether what small tensors take in whole pages of GPU memory is worth a word, or decides.
bool padding_counts(const MachineSpec& machine, const Demand& demand, const Demand& rounded) {
  constexpr Bytes share = 100;  // 1 %
  const Bytes gpu = machine.tiers.front().capacity;
  const Bytes bytes = demand.peak.bytes, in_pages = rounded.peak.bytes;
  return in_pages - bytes > bytes / share || (in_pages > gpu && bytes <= gpu);
}

// `rounded`: the demand in whole pages of GPU memory. Of what does not fit there, bytes are left over.
std::vector<TierRow> fill_tiers(const Trace& trace, const MachineSpec& machine, const Demand& demand,
                                const Demand& rounded) {
  std::vector<TierRow> rows;
  Bytes capacity = 0;
  for (const Tier& tier : machine.tiers) {
    if (rows.empty() && padding_counts(machine, demand, rounded)) {
      const Bytes held = std::min(tier.capacity, rounded.peak.bytes);
      capacity = tier.capacity;
      if (rounded.peak.bytes > capacity) {  // as if all were padded alike
        capacity = static_cast<Bytes>(static_cast<double>(demand.peak.bytes) * static_cast<double>(held) /
                                      static_cast<double>(rounded.peak.bytes));
      }
      TierRow row{&tier, held, demand.peak.bytes - std::min(capacity, demand.peak.bytes), std::nullopt};
      if (const OpIndex op = rounded.first_above(tier.capacity); op != none) row.over = alive_at(trace, op);
      rows.push_back(row);
      continue;
    }
    const Bytes before = std::min(capacity, demand.peak.bytes);
    capacity = std::min(unlimited, capacity + tier.capacity);
    const Bytes held = std::min(capacity, demand.peak.bytes) - before;
    TierRow row{&tier, held, demand.peak.bytes - before - held, std::nullopt};
    if (const OpIndex op = demand.first_above(capacity); op != none) row.over = alive_at(trace, op);
    rows.push_back(row);
  }
  return rows;
}

Json demand_json(const Trace& trace, const MachineSpec& machine, const Demand& demand, const Demand& rounded,
                 std::size_t rank) {
  Json tiers = Json::array();
  for (const TierRow& row : fill_tiers(trace, machine, demand, rounded)) {
    Json tier = {{"name", row.tier->name},
                 {"kind", to_string(row.tier->kind)},
                 {"capacity_bytes", row.tier->capacity >= unlimited ? Json(nullptr) : Json(row.tier->capacity)},
                 {"held_bytes", row.held},
                 {"left_over_bytes", row.left_over},
                 {"overflows_first_at", row.over ? bytes_json(trace, *row.over) : Json(nullptr)}};
    tiers.push_back(std::move(tier));
  }
  return {{"rank", rank},
          {"persistent", bytes_json(trace, demand.persistent)},
          {"peak", bytes_json(trace, demand.peak)},
          {"gpu_granularity_bytes", machine.tiers.front().granularity},
          {"peak_bytes_in_gpu_memory", rounded.peak.bytes},
          {"largest_gpu_op", bytes_json(trace, demand.largest_gpu_op)},
          {"largest_gpu_op_fits", rounded.largest_gpu_op.bytes <= machine.tiers.front().capacity},
          {"tiers", std::move(tiers)}};
}

std::string at_op(const Trace& trace, const BytesAtOp& bytes) {
  if (bytes.op == none) return "";
  return fmt::format(" at op {} ({})", bytes.op, printable(trace.name(trace.ops[bytes.op])));
}

std::string roles_text(const BytesAtOp& bytes) {
  std::string text;
  for (std::size_t role = 0; role < role_count; ++role) {
    if (bytes.by_role[role] == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? ": " : ", ", to_string(static_cast<Role>(role)),
                        format_bytes(bytes.by_role[role]));
  }
  return text;
}

std::string demand_text(const Trace& trace, const MachineSpec& machine, const Demand& demand, const Demand& rounded) {
  const auto line = [&](const char* label, const BytesAtOp& bytes) {
    return fmt::format("  {:<16} {}{}{}\n", label, format_bytes(bytes.bytes), at_op(trace, bytes), roles_text(bytes));
  };
  std::string text = line("persistent", demand.persistent) + line("alive at most", demand.peak) +
                     line("largest GPU op", demand.largest_gpu_op);
  const Bytes gpu = machine.tiers.front().capacity;
  if (padding_counts(machine, demand, rounded)) {
    text += fmt::format("  in GPU memory    {}{}: each tensor in whole {}; the GPU's row counts so\n",
                        format_bytes(rounded.peak.bytes), at_op(trace, rounded.peak),
                        format_bytes(machine.tiers.front().granularity));
  }
  if (rounded.largest_gpu_op.bytes > gpu) {
    text += fmt::format("  that op alone is {} more than the GPU's memory: no policy can run it\n",
                        format_bytes(rounded.largest_gpu_op.bytes - gpu));
  }
  text += "\n";
  Table table({"tier, fastest first", "capacity", "holds", "left over", "overflows first"});
  for (const TierRow& row : fill_tiers(trace, machine, demand, rounded)) {
    table.add({row.tier->name, format_bytes(row.tier->capacity), format_bytes(row.held), format_bytes(row.left_over),
               row.over ? at_op(trace, *row.over).substr(1) : std::string("never")});
  }
  return text + table.text();
}

Json staging_json(const MachineSpec& machine) {
  if (machine.staging.count == 0) return nullptr;
  return {{"tier", machine.tiers[machine.staging.tier].name},
          {"count", machine.staging.count},
          {"buffer_bytes", machine.staging.bytes},
          {"bytes", machine.staging.count * machine.staging.bytes}};
}

Json verdict_json(const Workload& workload, const FitVerdict& verdict, const References& references) {
  const Json result = result_json(workload, verdict.outcome, references);
  Json json = {{"policy", result["policy"]},
               {"fits", result["fits"]},
               {"reason", result["reason"]},
               {"op", nullptr},
               {"bytes_missing", nullptr},
               {"minimum_gpu_bytes", nullptr},
               {"minimum_cpu_bytes", nullptr},
               {"minimum_nvme_bytes", nullptr},
               {"pinned_fits", verdict.pinned_fits ? Json(*verdict.pinned_fits) : Json(nullptr)},
               {"deepspeed_cpu_memory", result["deepspeed_cpu_memory"]},
               {"tiers", nullptr},
               {"iteration_seconds", result["iteration_seconds"]},
               {"peak_bytes", result["peak_bytes"]},
               {"manifest", result["manifest"]}};
  if (result.contains("misfit")) {
    json["op"] = result["misfit"]["op"];
    json["bytes_missing"] = result["misfit"]["bytes_missing"];
  }
  const MachineSpec& machine = workload.machine;
  for (const FitVerdict::Minimum& minimum : verdict.minimums) {
    if (!minimum.bytes) continue;
    // Beside staging buffers, which "staging" has.
    json[fmt::format("minimum_{}_bytes", to_string(machine.tiers[minimum.tier].kind))] = *minimum.bytes;
  }
  for (const FitVerdict::Minimum& minimum : verdict.minimums) {
    if (!minimum.joint) continue;
    const JointMinimum& joint = *minimum.joint;
    const bool one = joint.other != no_tier;
    json["minimum_with_more"].push_back({{"tier", machine.tiers[minimum.tier].name},
                                         {"bytes", joint.bytes},
                                         {"more_of", one ? Json(machine.tiers[joint.other].name) : Json(nullptr)},
                                         {"more_bytes", one ? Json(joint.more) : Json(nullptr)}});
  }
  if (!verdict.peaks.empty()) {
    json["tiers"] = Json::array();
    for (std::size_t tier = 0; tier < verdict.peaks.size(); ++tier) {
      const TierPeak& peak = verdict.peaks[tier];
      json["tiers"].push_back({{"name", machine.tiers[tier].name},
                               {"startup_peak_bytes", peak.startup},
                               {"steady_peak_bytes", peak.steady},
                               {"pinned_peak_bytes", peak.pinned == 0 ? Json(nullptr) : Json(peak.pinned)}});
    }
  }
  return json;
}

// "12 GiB", or "none does"; what is missing where it does not fit.
std::string minimum_text(const MachineSpec& machine, const FitVerdict& verdict, const FitVerdict::Minimum& minimum) {
  const Staging& staging = machine.staging;
  const bool buffers = staging.count > 0 && staging.tier == minimum.tier;
  const auto amount = [&](Bytes bytes) {
    return format_bytes(bytes) +
           (buffers ? fmt::format(" + {} of buffers", format_bytes(staging.count * staging.bytes)) : "");
  };
  if (minimum.joint) {
    const JointMinimum& joint = *minimum.joint;
    return amount(joint.bytes) + ", with " +
           (joint.other == no_tier
                ? "more of the others"
                : fmt::format("{} more {}", format_bytes(joint.more), machine.tiers[joint.other].name));
  }
  if (!minimum.bytes) return "none does";
  const Bytes own = machine.tiers[minimum.tier].capacity;
  if (verdict.outcome.result.fits || *minimum.bytes <= own) return amount(*minimum.bytes);
  return fmt::format("{} (+{})", amount(*minimum.bytes), format_bytes(*minimum.bytes - own));
}

std::string verdicts_text(const Workload& workload, const std::vector<FitVerdict>& verdicts) {
  const MachineSpec& machine = workload.machine;
  std::vector<std::string> header = {"policy", "fits"};
  for (const FitVerdict::Minimum& minimum : verdicts.front().minimums) {
    header.push_back("least " + std::string(minimum.tier == 0 ? "GPU" : machine.tiers[minimum.tier].name) + " memory");
  }
  for (const Tier& tier : machine.tiers) header.push_back("peak " + tier.name);
  header.push_back("why not");
  Table table(header);
  std::string reasons;
  for (const FitVerdict& verdict : verdicts) {
    const RunResult& result = verdict.outcome.result;
    std::vector<std::string> row = {verdict.outcome.policy, verdict.fits() ? "yes" : "no"};
    for (const FitVerdict::Minimum& minimum : verdict.minimums) row.push_back(minimum_text(machine, verdict, minimum));
    for (std::size_t i = 0; i < machine.tiers.size(); ++i) {
      row.push_back(result.fits ? format_bytes(result.peak_bytes[i]) : "-");
    }
    row.push_back(!result.fits     ? result.misfit
                  : verdict.fits() ? std::string()
                                   : fmt::format("page-locked {} of {} allowed", format_bytes(verdict.pinned),
                                                 format_bytes(verdict.pinned_limit)));
    table.add(std::move(row));
  }
  return table.text();
}

// Of one policy: when each tier is fullest, and what page-locking makes of it.
std::string peaks_text(const Workload& workload, const FitVerdict& verdict) {
  if (verdict.peaks.empty()) return "";
  const MachineSpec& machine = workload.machine.of_rank(verdict.outcome.rank);
  Table table({"tier", "capacity", "at start-up", "steady", "free at least"});
  std::string text;
  for (std::size_t i = 0; i < verdict.peaks.size(); ++i) {
    const Tier& tier = machine.tiers[i];
    const TierPeak& peak = verdict.peaks[i];
    const Bytes most = verdict.outcome.result.peak_bytes[i];
    table.add({tier.name, format_bytes(tier.capacity), format_bytes(peak.startup), format_bytes(peak.steady),
               format_bytes(tier.capacity - std::min(tier.capacity, most))});
    if (peak.pinned == 0) continue;
    text += fmt::format("\n{} page-locked tensor by tensor, sizes rounded up to powers of two: {}", tier.name,
                        format_bytes(peak.pinned));
    if (peak.pinned > tier.capacity) {
      text += fmt::format(", {} more than there is: lock pooled buffers instead",
                          format_bytes(peak.pinned - tier.capacity));
    }
    if (verdict.pinned_fits) text += *verdict.pinned_fits ? "; within --pinned-limit" : "; above --pinned-limit";
  }
  if (machine.staging.count > 0) {
    const Staging& staging = machine.staging;
    text += fmt::format("\nstaging buffers for storage: {} × {} in {}, {} beside its capacity", staging.count,
                        format_bytes(staging.bytes), machine.tiers[staging.tier].name,
                        format_bytes(staging.count * staging.bytes));
  }
  return "\n" + table.text() + text.substr(text.empty() ? 0 : 1) + (text.empty() ? "" : "\n");
}

// Each group of ranks that are alike, in the order of their first.
std::vector<std::vector<std::size_t>> groups_of(const std::vector<std::size_t>& alike) {
  std::vector<std::vector<std::size_t>> groups(alike.size());
  for (std::size_t rank = 0; rank < alike.size(); ++rank) groups[alike[rank]].push_back(rank);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

// "rank 0", "ranks 0-3, 8, alike".
std::string ranks_title(const std::vector<std::size_t>& group) {
  if (group.size() == 1) return fmt::format("rank {}", group[0]);
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < group.size();) {
    std::size_t end = i + 1;
    while (end < group.size() && group[end] == group[end - 1] + 1) ++end;
    runs.push_back(end - i == 1 ? fmt::format("{}", group[i]) : fmt::format("{}-{}", group[i], group[end - 1]));
    i = end;
  }
  return "ranks " + join(runs) + ", alike";
}

std::vector<std::string> notes_of_fit(const Workload& workload, const BoundTerm& binding, std::size_t rank) {
  std::vector<std::string> notes = notes_of(workload);
  if (const std::string note = storage_bound_note(workload, binding, rank); !note.empty()) notes.push_back(note);
  return notes;
}

// What is to be known where it fits: where DeepSpeed would not, and how fast it can be at best.
std::string remarks_text(const Workload& workload, const std::vector<FitVerdict>& verdicts, bool fits) {
  std::string text;
  for (const FitVerdict& verdict : verdicts) {
    const std::string note = deepspeed_note(workload, verdict.outcome);
    if (!note.empty()) text += fmt::format("{}: {}.\n", verdict.outcome.policy, note);
  }
  Bound bound;
  if (fits) {
    bound = lower_bound_of(*workload.trace, workload.machine);
    text +=
        fmt::format("No policy is faster than {} an iteration, where {} binds: {}.\n", format_seconds(bound.seconds),
                    bound.term, binding_text(term_answer(workload, bound.binding, bound.rank)));
  }
  for (const std::string& note : notes_of_fit(workload, bound.binding, bound.rank)) text += note + "\n";
  return text;
}

// The rank's machine; one machine may stand for all ranks.
const MachineSpec& machine_of(const FitResult& result, std::size_t rank) {
  const MachineSpec& machine = result.workload.machine;
  return machine.of_rank(std::min(rank, machine.rank_count() - 1));
}

}  // namespace

bool FitResult::fits() const {
  return std::any_of(verdicts.begin(), verdicts.end(), [](const FitVerdict& verdict) { return verdict.fits(); });
}

Json fit_json(const FitResult& result) {
  const Workload& workload = result.workload;
  const References references = references_of(workload);
  Json demands = Json::array(), policies = Json::array();
  for (std::size_t rank = 0; rank < result.demands.size(); ++rank) {
    demands.push_back(
        demand_json(*workload.trace, machine_of(result, rank), result.demands[rank], result.rounded[rank], rank));
  }
  for (const FitVerdict& verdict : result.verdicts) policies.push_back(verdict_json(workload, verdict, references));
  return {{"trace", workload.scenario.trace.file},
          {"machine", workload.machine.name},
          {"fits", result.fits()},
          {"bound_seconds", references.bound_seconds},
          {"bound_term", references.bound_term},
          {"notes", notes_of_fit(workload, references.binding, references.bound_rank)},
          {"gpu_time", gpu_time_json(workload)},
          {"staging", staging_json(workload.machine)},
          {"demand", std::move(demands)},
          {"policies", std::move(policies)},
          {"manifest", manifest_json(workload, "", {})}};
}

std::string fit_text(const FitResult& result) {
  const Workload& workload = result.workload;
  std::string text = fmt::format("{} on {}: {}\n", trace_title(workload), machine_title(workload),
                                 result.fits() ? "fits" : "does not fit");
  for (const std::vector<std::size_t>& group : groups_of(alike_ranks(*workload.trace, workload.machine))) {
    const std::size_t rank = group.front();
    if (result.demands.size() > 1) text += fmt::format("\n{}\n", ranks_title(group));
    text += demand_text(*workload.trace, machine_of(result, rank), result.demands[rank], result.rounded[rank]);
  }
  text += "\n" + verdicts_text(workload, result.verdicts);
  if (result.verdicts.size() == 1) text += peaks_text(workload, result.verdicts.front());
  return text + remarks_text(workload, result.verdicts, result.fits());
}

}  // namespace tencache
