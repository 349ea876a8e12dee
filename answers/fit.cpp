#include "answers/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>

#include "answers/bound.h"
#include "answers/result.h"
#include "configs/generate_settings.h"
#include "core/text.h"
#include "studies/fragment.h"
#include "studies/minimum.h"
#include "traces/demand.h"
#include "traces/transform/allocations_of.h"

namespace tencache {
namespace {

// ---- The answer -----------------------------------------------------------------------------------------------------

BytesAnswer bytes_answer(const Trace& trace, const BytesAtOp& bytes) {
  BytesAnswer answer;
  answer.bytes = bytes.bytes;
  for (std::size_t role = 0; role < role_count; ++role) {
    if (bytes.by_role[role] == 0 && static_cast<Role>(role) > Role::workspace) continue;  // of inference only
    answer.by_role.emplace_back(to_string(static_cast<Role>(role)), bytes.by_role[role]);
  }
  if (bytes.op == none) return answer;
  answer.op = bytes.op;
  answer.name = trace.name(trace.ops[bytes.op]);
  return answer;
}

// " at op 5 (matmul)"
std::string at_op(const BytesAnswer& bytes) {
  return bytes.op ? fmt::format(" at op {} ({})", *bytes.op, printable(bytes.name.value_or(""))) : "";
}

// Whether what small tensors take in whole pages of GPU memory is worth a word, or decides.
bool padding_counts(const MachineSpec& machine, const Demand& demand, const Demand& rounded) {
  constexpr Bytes share = 100;  // 1 %
  const Bytes gpu = machine.tiers.front().capacity;
  const Bytes bytes = demand.peak.bytes, in_pages = rounded.peak.bytes;
  return in_pages - bytes > bytes / share || (in_pages > gpu && bytes <= gpu);
}

// `rounded`: the demand in whole pages of GPU memory. Of what does not fit there, bytes are left over.
std::vector<TierFill> fill_tiers(const Trace& trace, const MachineSpec& machine, const Demand& demand,
                                 const Demand& rounded) {
  std::vector<TierFill> fills;
  const Bytes peak = demand.peak.bytes;
  Bytes capacity = 0;
  for (const Tier& tier : machine.tiers) {
    TierFill& fill = fills.emplace_back();
    fill.name = tier.name;
    fill.kind = to_string(tier.kind);
    if (tier.capacity < unlimited) fill.capacity_bytes = tier.capacity;
    OpIndex over = none;
    if (fills.size() == 1 && padding_counts(machine, demand, rounded)) {
      fill.held_bytes = std::min(tier.capacity, rounded.peak.bytes);
      capacity = tier.capacity;
      if (rounded.peak.bytes > capacity) {  // as if all were padded alike
        capacity = static_cast<Bytes>(static_cast<double>(peak) * static_cast<double>(fill.held_bytes) /
                                      static_cast<double>(rounded.peak.bytes));
      }
      over = rounded.first_above(tier.capacity);
    } else {
      const Bytes before = std::min(capacity, peak);
      capacity = std::min(unlimited, capacity + tier.capacity);
      fill.held_bytes = std::min(capacity, peak) - before;
      over = demand.first_above(capacity);
    }
    fill.left_over_bytes = peak - std::min(capacity, peak);
    if (over != none) fill.overflows_first_at = bytes_answer(trace, alive_at(trace, over));
  }
  return fills;
}

DemandAnswer demand_answer(const Trace& trace, const MachineSpec& machine, const Demand& demand,
                           const Demand& rounded) {
  const Tier& gpu = machine.tiers.front();
  DemandAnswer answer;
  answer.persistent = bytes_answer(trace, demand.persistent);
  answer.peak = bytes_answer(trace, demand.peak);
  answer.gpu_granularity_bytes = gpu.granularity;
  answer.peak_bytes_in_gpu_memory = rounded.peak.bytes;
  answer.largest_gpu_op = bytes_answer(trace, demand.largest_gpu_op);
  answer.largest_gpu_op_fits = rounded.largest_gpu_op.bytes <= gpu.capacity;
  answer.tiers = fill_tiers(trace, machine, demand, rounded);
  if (padding_counts(machine, demand, rounded)) {
    answer.remarks = fmt::format("  in GPU memory    {}{}: each tensor in whole {}; the GPU's row counts so\n",
                                 format_bytes(rounded.peak.bytes), at_op(bytes_answer(trace, rounded.peak)),
                                 format_bytes(gpu.granularity));
  }
  if (!answer.largest_gpu_op_fits) {
    answer.remarks += fmt::format("  that op alone is {} more than the GPU's memory: no policy can run it\n",
                                  format_bytes(rounded.largest_gpu_op.bytes - gpu.capacity));
  }
  return answer;
}

std::vector<DemandAnswer> demand_answers(const Workload& workload) {
  const Trace& trace = *workload.trace;
  const MachineSpec& machine = workload.machine;
  const std::vector<Demand> demands = demands_of(trace), rounded = demands_of(trace, machine.tiers.front().granularity);
  const std::vector<std::size_t> alike = alike_ranks(trace, machine);
  std::vector<DemandAnswer> answers;
  for (std::size_t rank = 0; rank < demands.size(); ++rank) {
    const MachineSpec& own = machine.of_rank(std::min(rank, machine.rank_count() - 1));  // one may stand for all ranks
    answers.push_back(demand_answer(trace, own, demands[rank], rounded[rank]));
    answers.back().rank = rank;
    answers.back().alike = alike[rank];
  }
  return answers;
}

// ---- What the step needs --------------------------------------------------------------------------------------------

std::string demand_text(const DemandAnswer& demand) {
  const auto line = [&](const char* label, const BytesAnswer& bytes) {
    std::string text = fmt::format("  {:<16} {}{}", label, format_bytes(bytes.bytes), at_op(bytes));
    const char* joint = ": ";
    for (const auto& [role, amount] : bytes.by_role) {
      if (amount == 0) continue;
      text += fmt::format("{}{} {}", joint, role, format_bytes(amount));
      joint = ", ";
    }
    return text + "\n";
  };
  return line("persistent", demand.persistent) + line("alive at most", demand.peak) +
         line("largest GPU op", demand.largest_gpu_op) + demand.remarks + "\n";
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

DocumentTable demand_table(const std::vector<DemandAnswer>& demands) {
  DocumentTable table{
      "demand", "", {"rank", "persistent", "alive at most", "at op", "largest GPU op", "which is"}, Shown::on_page};
  for (const DemandAnswer& demand : demands) {
    table.add({count_cell(demand.rank), bytes_cell(demand.persistent.bytes), bytes_cell(demand.peak.bytes),
               demand.peak.name.value_or(""), bytes_cell(demand.largest_gpu_op.bytes),
               demand.largest_gpu_op.name.value_or("")});
  }
  return table;
}

DocumentTable fills_table(const std::vector<DemandAnswer>& demands, Shown shown) {
  DocumentTable table{"demand.tiers",
                      "",
                      {{"of", Shown::on_page},
                       "tier, fastest first",
                       "capacity",
                       "holds",
                       "left over",
                       {"overflows first", Shown::everywhere, "overflows first at"}},
                      shown};
  for (const DemandAnswer& demand : demands) {
    for (const TierFill& tier : demand.tiers) {
      const auto& over = tier.overflows_first_at;
      table.add({demands.size() > 1 ? fmt::format("rank {}", demand.rank) : std::string(), tier.name,
                 tier.capacity_bytes ? bytes_cell(*tier.capacity_bytes) : text_cell(format_bytes(unlimited), ""),
                 bytes_cell(tier.held_bytes), bytes_cell(tier.left_over_bytes),
                 over ? text_cell(at_op(*over).substr(1), over->name.value_or("")) : text_cell("never", "")});
    }
  }
  return table;
}

// Ranks that are alike as one on a terminal.
void add_demands(Document& document, const std::vector<DemandAnswer>& demands) {
  document.add_table(demand_table(demands));
  const bool several = demands.size() > 1;
  std::map<std::size_t, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < demands.size(); ++i) groups[demands[i].alike.value_or(i)].push_back(i);
  for (const auto& [first, group] : groups) {
    if (several) document.add_text("\n" + ranks_title(group) + "\n");
    document.add_text(demand_text(demands[first]));
    document.add_table(fills_table({demands[first]}, several ? Shown::on_terminal : Shown::everywhere));
  }
  if (several) document.add_table(fills_table(demands, Shown::on_page));
}

// ---- How policies cope ----------------------------------------------------------------------------------------------

const TierFill* tier_named(const FitAnswer& answer, std::size_t rank, const std::string& name) {
  if (rank >= answer.demand.size()) return nullptr;
  const auto& tiers = answer.demand[rank].tiers;
  const auto found = std::ranges::find(tiers, name, &TierFill::name);
  return found == tiers.end() ? nullptr : &*found;
}

// "12 GiB", or "none does"; what is missing where it does not fit.
Cell minimum_cell(const FitAnswer& answer, const FitPolicyAnswer& policy, const TierFill& tier,
                  const std::optional<Bytes>& minimum) {
  const auto amount = [&](Bytes bytes) {
    const bool buffers = answer.staging && answer.staging->tier == tier.name;
    return format_bytes(bytes) + (buffers ? fmt::format(" + {} of buffers", format_bytes(answer.staging->bytes)) : "");
  };
  const auto joint = std::ranges::find(policy.minimum_with_more, tier.name, &MinimumWithMore::tier);
  if (joint != policy.minimum_with_more.end()) {
    const std::string more = joint->more_of ? format_bytes(joint->more_bytes.value_or(0)) + " more " + *joint->more_of
                                            : "more of the others";
    return text_cell(amount(joint->bytes) + ", with " + more, "");
  }
  if (!minimum) return text_cell("none does", "");
  std::string text = amount(*minimum);
  if (!policy.fits && *minimum > tier.capacity()) {
    text += fmt::format(" (+{})", format_bytes(*minimum - tier.capacity()));
  }
  return {text, static_cast<double>(*minimum), FigureUnit::bytes};
}

DocumentTable policies_table(const FitAnswer& answer) {
  DocumentTable table{"policies", "", {"policy", "fits"}};
  for (const FitPolicyAnswer& policy : answer.policies) {
    table.add({policy.policy, text_cell(policy.fits_all() ? "yes" : "no", policy.fits ? "yes" : "no")});
  }
  const std::vector<TierFill> tiers = answer.demand.empty() ? std::vector<TierFill>() : answer.demand.front().tiers;
  const auto add_column = [&](Column column, const auto& cell) {
    table.columns.push_back(std::move(column));
    for (std::size_t i = 0; i < table.rows.size(); ++i) table.rows[i].cells.push_back(cell(answer.policies[i]));
  };
  const auto add_minimum = [&](TierKind kind, const char* name, std::optional<Bytes> FitVerdict::*minimum) {
    const auto tier = std::ranges::find(tiers, to_string(kind), &TierFill::kind);
    const bool known =
        std::ranges::any_of(answer.policies, [&](const FitVerdict& policy) { return (policy.*minimum).has_value(); });
    if (tier == tiers.end() || (!known && std::ranges::find(answer.searched, kind) == answer.searched.end())) return;
    const std::string on_terminal = tier == tiers.begin() ? "GPU" : tier->name;
    add_column({"least " + on_terminal + " memory", Shown::everywhere, fmt::format("least {} memory", name)},
               [&](const FitPolicyAnswer& policy) { return minimum_cell(answer, policy, *tier, policy.*minimum); });
  };
  add_minimum(TierKind::gpu, "GPU", &FitVerdict::minimum_gpu_bytes);
  add_minimum(TierKind::cpu, "CPU", &FitVerdict::minimum_cpu_bytes);
  add_minimum(TierKind::nvme, "NVMe", &FitVerdict::minimum_nvme_bytes);
  for (std::size_t tier = 0; tier < tiers.size(); ++tier) {
    add_column("peak " + tiers[tier].name, [&](const FitPolicyAnswer& policy) {
      return policy.peak_bytes && tier < policy.peak_bytes->size() ? bytes_cell((*policy.peak_bytes)[tier].second)
                                                                   : text_cell("-", "");
    });
  }
  add_column("why not", [&](const FitPolicyAnswer& policy) -> Cell {
    if (!policy.fits || policy.fits_all()) return policy.reason.value_or("");
    return fmt::format("page-locked {} of {} allowed", format_bytes(policy.pinned), format_bytes(policy.pinned_limit));
  });
  return table;
}

// When each tier is fullest; on a terminal of one policy.
DocumentTable peaks_table(const FitAnswer& answer) {
  const bool several = answer.policies.size() > 1;
  DocumentTable table{"policies.tiers",
                      "When each tier is fullest",
                      {{"of", Shown::on_page},
                       "tier",
                       {"capacity", Shown::on_terminal},
                       "at start-up",
                       "steady",
                       {"free at least", Shown::on_terminal}},
                      several ? Shown::on_page : Shown::everywhere};
  for (const FitPolicyAnswer& policy : answer.policies) {
    if (!policy.tiers || !policy.peak_bytes) continue;
    for (std::size_t i = 0; i < std::min(policy.tiers->size(), policy.peak_bytes->size()); ++i) {
      const TierPeak& peak = (*policy.tiers)[i];
      const TierFill* const tier = tier_named(answer, policy.outcome.rank, peak.name);
      const Bytes capacity = tier == nullptr ? unlimited : tier->capacity();
      table.add({several ? policy.policy : std::string(), peak.name, bytes_cell(capacity),
                 bytes_cell(peak.startup_peak_bytes), bytes_cell(peak.steady_peak_bytes),
                 bytes_cell(capacity - std::min(capacity, (*policy.peak_bytes)[i].second))});
    }
  }
  return table;
}

// Below it: what page-locking makes of it, and what is beside it.
std::string pinned_text(const FitAnswer& answer, const FitPolicyAnswer& policy) {
  std::string text;
  for (const TierPeak& peak : policy.tiers.value_or(std::vector<TierPeak>())) {
    if (!peak.pinned_peak_bytes) continue;
    const Bytes pinned = *peak.pinned_peak_bytes;
    const TierFill* const tier = tier_named(answer, policy.outcome.rank, peak.name);
    text += fmt::format("{} page-locked tensor by tensor, sizes rounded up to powers of two: {}", peak.name,
                        format_bytes(pinned));
    if (tier != nullptr && pinned > tier->capacity()) {
      text +=
          fmt::format(", {} more than there is: lock pooled buffers instead", format_bytes(pinned - tier->capacity()));
    }
    if (policy.pinned_fits) text += *policy.pinned_fits ? "; within --pinned-limit" : "; above --pinned-limit";
    text += "\n";
  }
  if (const auto& staging = answer.staging; staging && policy.tiers) {
    text += fmt::format("staging buffers for storage: {} × {} in {}, {} beside its capacity\n", staging->count,
                        format_bytes(staging->buffer_bytes), staging->tier, format_bytes(staging->bytes));
  }
  return text;
}

// ---- The picture ----------------------------------------------------------------------------------------------------

ChartBar demand_bar(const std::string& group, const char* label, const BytesAnswer& bytes) {
  ChartBar bar{.group = group, .label = label, .text = format_bytes(bytes.bytes)};
  for (std::size_t i = 0; i < role_count; ++i) {
    const auto role = static_cast<Role>(i);
    const auto found = std::ranges::find(bytes.by_role, to_string(role), &Named<Bytes>::value_type::first);
    if (found == bytes.by_role.end() || found->second == 0) continue;
    bar.parts.push_back({{Ink::Kind::role, i}, static_cast<double>(found->second), label_of(role)});
  }
  if (!bytes.name.value_or("").empty()) bar.text += " at " + *bytes.name;
  return bar;
}

BarChart chart_of(const FitAnswer& answer) {
  BarChart chart;
  chart.title = fmt::format("{} on {}: {}", std::filesystem::path(answer.trace).filename().string(), answer.machine,
                            answer.without_offloading ? "fits"
                            : answer.fits             ? "fits with offloading"
                                                      : "does not fit");
  chart.mark_label = "capacity";
  const auto add = [&chart](ChartBar bar, const TierFill* tier) {
    if (tier != nullptr && tier->capacity_bytes) {
      const auto capacity = static_cast<double>(*tier->capacity_bytes);
      bar.between = {capacity, capacity};
    }
    chart.bars.push_back(std::move(bar));
  };
  for (const DemandAnswer& demand : answer.demand) {
    const std::string of = answer.demand.size() > 1 ? fmt::format("rank {}: ", demand.rank) : "";
    add(demand_bar(of + "what the step needs", "alive at most", demand.peak), nullptr);
    add(demand_bar(of + "what the step needs", "persistent", demand.persistent), nullptr);
    add(demand_bar(of + "what the step needs", "largest GPU op", demand.largest_gpu_op), nullptr);
    for (const TierFill& tier : demand.tiers) {
      std::string text = fmt::format("{} of {}", format_bytes(tier.held_bytes), format_bytes(tier.capacity()));
      if (tier.left_over_bytes > 0) text += ", " + format_bytes(tier.left_over_bytes) + " left";
      add(plain_bar(of + "tiers filled from the fastest on", tier.name, static_cast<double>(tier.held_bytes),
                    std::move(text)),
          &tier);
    }
  }
  for (const FitPolicyAnswer& policy : answer.policies) {
    for (const TierPeak& peak : policy.tiers.value_or(std::vector<TierPeak>())) {
      const Bytes most = std::max(peak.startup_peak_bytes, peak.steady_peak_bytes);
      ChartBar bar = plain_bar("peaks under " + policy.policy + (policy.fits ? "" : ": does not fit"), peak.name,
                               static_cast<double>(peak.steady_peak_bytes), format_bytes(most));
      bar.parts.push_back({{Ink::Kind::pale}, static_cast<double>(most - peak.steady_peak_bytes), "more at start-up"});
      add(std::move(bar), tier_named(answer, 0, peak.name));
    }
  }
  return chart;
}

}  // namespace

bool has_member(const FitPolicyAnswer& answer, std::string_view name) {
  return name != "minimum_with_more" || !answer.minimum_with_more.empty();
}

// "a desktop with 61.00 GiB of cpu, …": what nobody said of a machine around a card (configs/desktop.h); empty: nothing.
std::string assumed_desktop(const MachineSpec& machine) {
  const auto is_assumed = [&](const std::string& path) {
    const auto fact = std::ranges::find(machine.facts, path, &Fact::path);
    return fact != machine.facts.end() && fact->source.starts_with("assumed");
  };
  std::vector<std::string> parts;
  for (const Tier& tier : machine.tiers) {
    if (!is_assumed("tiers." + tier.name + ".capacity")) continue;
    parts.push_back(fmt::format("{} of {}", format_bytes(tier.capacity), tier.name));
  }
  for (const Link& link : machine.links) {
    if (is_assumed("links." + link.name + ".bandwidth")) {
      parts.push_back(fmt::format("{} at {}", link.name, format_bandwidth(link.bandwidth)));
    }
  }
  if (parts.empty()) return "";
  return fmt::format("a desktop with {}; --cpu-memory, --link, --nvme say otherwise", join(parts));
}

// What the answer rests on that the user did not say.
std::vector<std::string> assumptions(const Workload& workload) {
  std::vector<std::string> assumed;
  if (std::string desktop = assumed_desktop(workload.machine); !desktop.empty()) assumed.push_back(std::move(desktop));
  const GenerateSettings& settings = workload.scenario.trace.generate;
  if (settings.empty()) return assumed;
  const GenerateOptions options = parse_generate_settings(settings);
  const ModelDescription& model = options.model;
  if (!model.read_as.empty()) assumed.push_back(model.read_as);
  if (!model.quantisation.empty()) {
    const bool as_published = options.weights != nullptr && options.weights->name == model.quantised;
    if (as_published) {
      assumed.push_back(
          fmt::format("weights are in {}, as the model's quantisation ({}) says", model.quantised, model.quantisation));
    } else if (options.weights == nullptr) {
      assumed.push_back(
          fmt::format("the model's quantisation ({}) is not used: weights are in {}; --weights says otherwise",
                      model.quantisation, to_string(options.precision)));
    }
  }
  const auto said = [&](const char* name) {
    return std::ranges::find(settings, name, &GenerateSettings::value_type::first) != settings.end();
  };
  if (!said("batch") && !options.generation) {
    assumed.push_back(fmt::format("--batch {}, a sequence of each rank and micro-batch", options.batch));
  }
  if (!options.forward_only && !said("precision"))
    assumed.push_back(fmt::format("{} training with {}, as --precision and --optimizer are by default",
                                  to_string(options.precision), to_string(options.optimizer)));
  assumed.emplace_back("memory is what PyTorch allocates: what it reserves is more (--allocator default)");
  return assumed;
}

FitAnswer fit_answer(const FitRequest& request, std::vector<FitVerdict> verdicts, const Bound& bound,
                     std::optional<double> recorded_seconds) {
  const Workload& workload = *request.workload;
  const Staging& staging = workload.machine.staging;
  FitAnswer answer;
  answer.trace = workload.scenario.trace.file;
  answer.machine = workload.machine.name;
  const Resident all = resident(*workload.trace, workload.machine);
  answer.without_offloading = all.fits;
  answer.without_offloading_peak_bytes = all.peak_bytes;
  answer.missing_bytes = all.missing_bytes;
  answer.fits = (all.fits && !request.pinned_limit) || std::ranges::any_of(verdicts, [](const FitVerdict& verdict) {
                  return verdict.fits_all() && says_what_fits(verdict.policy);
                });
  answer.assumed = assumptions(workload);
  answer.notes = notes_of(workload);
  answer.gpu_time = gpu_time_answer(workload);
  if (staging.count > 0) {
    answer.staging = {workload.machine.tiers[staging.tier].name, staging.count, staging.bytes, staging.all_bytes()};
  }
  answer.demand = demand_answers(workload);
  for (FitVerdict& verdict : verdicts) {
    FitPolicyAnswer& policy = answer.policies.emplace_back();
    static_cast<FitVerdict&>(policy) = std::move(verdict);
    policy.deepspeed_cpu_memory = to_json_of(deepspeed_cpu_memory(workload, policy.outcome));
    policy.manifest = manifest_json(workload, policy.policy, policy.outcome.options);
    const std::string note = deepspeed_note(workload, policy.outcome);
    if (!note.empty()) answer.remarks += fmt::format("{}: {}.\n", policy.policy, note);
  }
  answer.manifest = manifest_json(workload, "", {});
  if (const GenerateSettings& settings = workload.scenario.trace.generate; !settings.empty()) {
    const GenerateOptions options = parse_generate_settings(settings);
    if (!options.forward_only) answer.training_memory.emplace(memory_by_kind(*workload.trace, options));
  }
  answer.title = fmt::format("{} on {}", trace_title(workload), machine_title(workload));
  answer.searched = request.searched;
  answer.bound_seconds = recorded_seconds.value_or(bound.seconds);
  if (recorded_seconds) answer.bound_choice_seconds = bound.seconds;
  answer.bound_term = bound.term;
  const std::string note = storage_bound_note(workload, bound.binding, bound.rank);
  if (!note.empty()) answer.notes.push_back(note);
  if (!answer.fits || bound.seconds <= 0) return answer;
  const std::string recorded =
      recorded_seconds ? fmt::format(", whatever it recomputes (as recorded {})", format_seconds(*recorded_seconds))
                       : "";
  answer.remarks +=
      fmt::format("No policy is faster than {} an iteration{}, where {} binds: {}.\n", format_seconds(bound.seconds),
                  recorded, bound.term, binding_text(term_answer(workload, bound.binding, bound.rank)));
  return answer;
}

std::vector<FitAllocatorAnswer> allocator_answers(const Workload& workload,
                                                  const std::vector<std::string>& allocators) {
  constexpr unsigned iterations = 3;
  std::vector<FitAllocatorAnswer> answers;
  const Allocations allocations = allocations_of({workload.trace.get()}, {iterations, false});
  for (const std::string& name : allocators) {
    const FragmentAllocator allocator = fragment_allocator(name);
    const FragmentRun free = run_fragment(allocations, allocator, no_fragment_limit);
    const FragmentRun bound = run_fragment(allocations, allocator, workload.machine.tiers.front().capacity);
    answers.push_back({name, !bound.out_of_memory, free.requested_peak, free.reserved_peak, bound.at_end.retries});
  }
  return answers;
}

DocumentTable allocators_table(const std::vector<FitAllocatorAnswer>& answers) {
  DocumentTable table{"allocators",
                      "All of it on the GPU, without a policy",
                      {"allocator", "fits", "requested", "reserved", "retries"}};
  for (const FitAllocatorAnswer& answer : answers) {
    table.add({answer.allocator, yes_or_no(answer.fits), bytes_cell(answer.requested_bytes),
               bytes_cell(answer.reserved_bytes), count_cell(answer.retries)});
  }
  return table;
}

DocumentTable largest_table(const std::vector<LargestGeneration>& list) {
  DocumentTable table{
      "largest", "The most that fits, all else as asked", {"policy", "of", "asked", "most", "the next one does not"}};
  for (const LargestGeneration& of : list) {
    const std::string why = of.overflow.value_or(of.limit.value_or(""));
    table.add({of.policy, of.axis, count_cell(of.asked),
               of.largest ? count_cell(*of.largest) : text_cell("not even 1", ""), text_cell(why, why)});
  }
  return table;
}

DocumentTable training_memory_table(const std::vector<KindMemory>& kinds) {
  DocumentTable table{
      "training_memory",
      "What training keeps for parameters, by kind (m × n, m ≤ n, rank r)",
      {"kind", "tensors", "parameters", "gradients", "master copies", "optimizer states", "bytes of states"}};
  for (const KindMemory& kind : kinds) {
    table.add({kind.kind + (kind.frozen > 0 ? fmt::format(", {} frozen", kind.frozen) : ""),
               count_cell(kind.parameters), bytes_cell(kind.parameter_bytes), bytes_cell(kind.gradient_bytes),
               bytes_cell(kind.master_bytes), bytes_cell(kind.state_bytes), kind.states});
  }
  return table;
}

namespace {

// What people ask first.
std::string headline(const FitAnswer& answer) {
  std::string text;
  const auto gpu = answer.demand.empty() || answer.demand.front().tiers.empty()
                       ? unlimited
                       : answer.demand.front().tiers.front().capacity();
  const std::string of = fmt::format("{} of {}", format_bytes(answer.without_offloading_peak_bytes), format_bytes(gpu));
  if (answer.without_offloading) {
    text += fmt::format("  without offloading  yes: {} of GPU memory\n", of);
  } else {
    text += fmt::format(
        "  without offloading  no: {} of GPU memory, {} are missing\n", of,
        format_bytes(answer.without_offloading_peak_bytes - std::min(gpu, answer.without_offloading_peak_bytes)));
  }
  if (answer.with) {
    const SystemVerdict& with = *answer.with;
    text += fmt::format("  with {:<15}{}", with.system, with.fits ? "yes" : "no: " + with.reason.value_or(""));
    for (const TierUse& use : with.tiers) {
      if (!with.fits && use.peak_bytes > use.capacity_bytes) continue;  // the reason says it
      text += fmt::format("; {} {} of {}", use.tier, format_bytes(use.peak_bytes), format_bytes(use.capacity_bytes));
    }
    text += "\n";
  }
  for (const FitChange& change : answer.changes) {
    if (!change.fits) continue;
    text += fmt::format(
        "  fits with           {}{}\n", change.flag,
        change.slowdown ? fmt::format(", × {:.2f} the time of a token if all had room", *change.slowdown) : "");
  }
  for (const std::string& line : answer.assumed) text += fmt::format("  assumed             {}\n", line);
  return text + "\n";
}

}  // namespace

Document document_of(const FitAnswer& answer) {
  Document document{.kind = "fit"};
  const std::string verdict =
      answer.with ? fmt::format("{} with {}", answer.with->fits ? "fits" : "does not fit", answer.with->system)
      : answer.without_offloading ? "fits"
      : answer.fits               ? "fits with offloading"
                                  : "does not fit";
  BarChart chart = chart_of(answer);
  document.title = chart.title;
  document.add_text(
      fmt::format("{}: {}\n", answer.title.empty() ? answer.trace + " on " + answer.machine : answer.title, verdict));
  document.add_text(headline(answer));
  document.add_paragraph(answer.without_offloading ? "It runs without offloading."
                         : answer.fits             ? "It fits with offloading."
                                                   : "It does not fit.");
  document.add_chart(std::move(chart));
  add_demands(document, answer.demand);
  if (answer.training_memory) {
    document.add_text("\nWhat training keeps for parameters, by kind (m × n, m ≤ n, rank r)\n\n");
    document.add_table(training_memory_table(*answer.training_memory));
  }
  if (answer.allocators) {
    document.add_text("\nAll of it on the GPU, without a policy (tencache fragment)\n\n");
    document.add_table(allocators_table(*answer.allocators));
  }
  document.add_text("\n");
  document.add_table(policies_table(answer));
  if (DocumentTable peaks = peaks_table(answer); !peaks.rows.empty()) {
    const bool one = answer.policies.size() == 1;
    if (one) document.add_text("\n");
    document.add_table(std::move(peaks));
    if (one) document.add_text(pinned_text(answer, answer.policies.front()));
  }
  if (answer.largest) {
    document.add_text("\nThe most that fits, all else as asked\n\n");
    document.add_table(largest_table(*answer.largest));
  }
  document.add_text(answer.remarks);
  for (const std::string& note : answer.notes) document.add_text(note + "\n");
  return document;
}

}  // namespace tencache
