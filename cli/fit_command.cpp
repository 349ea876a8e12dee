// `tencache fit`: does it fit, what overflows first, and how much GPU memory would do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/command_line.h"
#include "cli/report.h"
#include "traces/demand.h"

namespace tencache {
namespace {

struct FitArguments {
  WorkloadOptions workload;
  std::string policies = "all";
  std::vector<std::string> settings;
  bool no_minimum = false;
  bool json = false;
};

struct Verdict {
  Outcome outcome;
  std::optional<Bytes> minimum_gpu_bytes;  // none: not asked for, or no GPU memory suffices
};

void set_gpu_memory(MachineSpec& machine, Bytes bytes) {
  machine.tiers.front().capacity = bytes;
  for (MachineSpec& rank : machine.other_ranks) rank.tiers.front().capacity = bytes;
}

// The least GPU memory, in whole MiB, with which the policy's simulation fits, by bisection from 1 MiB on: it takes for
// granted that more never hurts. `fits_machine`: it fits with the machine's own, which is the answer where no whole
// MiB below does.
std::optional<Bytes> minimum_gpu_bytes(const Workload& workload, const std::string& policy,
                                       const std::map<std::string, std::string>& settings, bool fits_machine) {
  Workload trial = workload;
  const auto fits = [&](std::uint64_t mebibytes) {
    set_gpu_memory(trial.machine, mebibytes * MiB);
    return simulate_or_refuse(trial, policy, settings).result.fits;
  };
  // With room for every tensor twice over, more GPU memory is not what is missing.
  std::uint64_t too_little = 0, enough = 1;
  for (const Tensor& tensor : workload.trace.tensors) enough += (tensor.bytes + MiB - 1) / MiB * 2;
  if (fits_machine) {
    Bytes capacity = 0;
    for (std::size_t rank = 0; rank < workload.machine.rank_count(); ++rank) {
      capacity = std::max(capacity, workload.machine.of_rank(rank).tiers.front().capacity);
    }
    if (capacity / MiB > enough && !fits(enough)) {
      too_little = enough;
      enough = capacity / MiB;
    }
    enough = std::min(enough, capacity / MiB);
    if (enough == 0 || !fits(enough)) return capacity;
  } else if (!fits(enough)) {
    return std::nullopt;
  }
  while (enough - too_little > 1) {
    const std::uint64_t middle = too_little + (enough - too_little) / 2;
    (fits(middle) ? enough : too_little) = middle;
  }
  return enough * MiB;
}

Json bytes_json(const Trace& trace, const BytesAtOp& bytes) {
  Json by_role = Json::object();
  for (std::size_t role = 0; role < role_count; ++role) {
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

std::vector<TierRow> fill_tiers(const Trace& trace, const MachineSpec& machine, const Demand& demand) {
  std::vector<TierRow> rows;
  Bytes capacity = 0;
  for (const Tier& tier : machine.tiers) {
    const Bytes before = std::min(capacity, demand.peak.bytes);
    capacity = std::min(unlimited, capacity + tier.capacity);
    const Bytes held = std::min(capacity, demand.peak.bytes) - before;
    TierRow row{&tier, held, demand.peak.bytes - before - held, std::nullopt};
    if (const OpIndex op = demand.first_above(capacity); op != none) row.over = alive_at(trace, op);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json demand_json(const Trace& trace, const MachineSpec& machine, const Demand& demand, std::size_t rank) {
  Json tiers = Json::array();
  for (const TierRow& row : fill_tiers(trace, machine, demand)) {
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
          {"largest_gpu_op", bytes_json(trace, demand.largest_gpu_op)},
          {"largest_gpu_op_fits", demand.largest_gpu_op.bytes <= machine.tiers.front().capacity},
          {"tiers", std::move(tiers)}};
}

std::string at_op(const Trace& trace, const BytesAtOp& bytes) {
  if (bytes.op == none) return "";
  return fmt::format(" at op {} ({})", bytes.op, trace.name(trace.ops[bytes.op]));
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

std::string demand_text(const Trace& trace, const MachineSpec& machine, const Demand& demand) {
  const auto line = [&](const char* label, const BytesAtOp& bytes) {
    return fmt::format("  {:<16} {}{}{}\n", label, format_bytes(bytes.bytes), at_op(trace, bytes), roles_text(bytes));
  };
  std::string text = line("persistent", demand.persistent) + line("alive at most", demand.peak) +
                     line("largest GPU op", demand.largest_gpu_op);
  const Bytes gpu = machine.tiers.front().capacity;
  if (demand.largest_gpu_op.bytes > gpu) {
    text += fmt::format("  that op alone is {} more than the GPU's memory: no policy can run it\n",
                        format_bytes(demand.largest_gpu_op.bytes - gpu));
  }
  text += "\n";
  Table table({"tier, fastest first", "capacity", "holds", "left over", "overflows first"});
  for (const TierRow& row : fill_tiers(trace, machine, demand)) {
    table.add({row.tier->name, format_bytes(row.tier->capacity), format_bytes(row.held), format_bytes(row.left_over),
               row.over ? at_op(trace, *row.over).substr(1) : std::string("never")});
  }
  return text + table.text();
}

Json verdict_json(const Workload& workload, const Verdict& verdict, const References& references) {
  const Json result = result_json(workload, verdict.outcome, references);
  Json json = {{"policy", result["policy"]},
               {"fits", result["fits"]},
               {"reason", result["reason"]},
               {"op", nullptr},
               {"bytes_missing", nullptr},
               {"minimum_gpu_bytes", nullptr},
               {"iteration_seconds", result["iteration_seconds"]},
               {"peak_bytes", result["peak_bytes"]},
               {"manifest", result["manifest"]}};
  if (result.contains("misfit")) {
    json["op"] = result["misfit"]["op"];
    json["bytes_missing"] = result["misfit"]["bytes_missing"];
  }
  if (verdict.minimum_gpu_bytes) json["minimum_gpu_bytes"] = *verdict.minimum_gpu_bytes;
  return json;
}

std::string verdicts_text(const Workload& workload, const std::vector<Verdict>& verdicts, bool minimum) {
  std::vector<std::string> header = {"policy", "fits"};
  if (minimum) header.push_back("least GPU memory");
  for (const Tier& tier : workload.machine.tiers) header.push_back("peak " + tier.name);
  header.push_back("why not");
  Table table(header);
  for (const Verdict& verdict : verdicts) {
    const RunResult& result = verdict.outcome.result;
    std::vector<std::string> row = {verdict.outcome.policy, result.fits ? "yes" : "no"};
    if (minimum) row.push_back(verdict.minimum_gpu_bytes ? format_bytes(*verdict.minimum_gpu_bytes) : "none does");
    for (std::size_t i = 0; i < workload.machine.tiers.size(); ++i) {
      row.push_back(result.fits ? format_bytes(result.peak_bytes[i]) : "-");
    }
    row.push_back(result.fits ? "" : result.misfit);
    table.add(std::move(row));
  }
  return table.text();
}

ExitCode fit(const FitArguments& arguments) {
  std::vector<std::string> names = policies_named(arguments.policies);
  // That the ideal fits says nothing, unless nothing else was asked.
  if (names.size() > 1) std::erase(names, "ideal");
  const auto settings = parse_settings(arguments.settings);
  if (!settings.empty() && names.size() > 1) throw Error("--set goes with one policy; name it with --policy");
  const Workload workload = load_workload(arguments.workload);
  const std::vector<Demand> demands = demands_of(workload.trace);

  std::vector<Verdict> verdicts;
  {
    ProgressLine progress;
    for (const std::string& name : names) {
      progress.show(fmt::format("{} of {}: {}", verdicts.size() + 1, names.size(), name));
      Verdict verdict;
      // Of one policy a wrong option is bad usage; of all, one that the machine cannot serve is a row.
      verdict.outcome =
          names.size() == 1 ? simulate_policy(workload, name, settings) : simulate_or_refuse(workload, name, settings);
      verdict.outcome.program.trace = Trace();
      if (!arguments.no_minimum) {
        verdict.minimum_gpu_bytes = minimum_gpu_bytes(workload, name, settings, verdict.outcome.result.fits);
      }
      verdicts.push_back(std::move(verdict));
    }
  }
  const bool fits =
      std::any_of(verdicts.begin(), verdicts.end(), [](const Verdict& verdict) { return verdict.outcome.result.fits; });
  if (arguments.json) {
    const References references = references_of(workload);
    Json demand_list = Json::array(), policies = Json::array();
    for (std::size_t rank = 0; rank < demands.size(); ++rank) {
      const MachineSpec& machine = workload.machine.of_rank(std::min(rank, workload.machine.rank_count() - 1));
      demand_list.push_back(demand_json(workload.trace, machine, demands[rank], rank));
    }
    for (const Verdict& verdict : verdicts) policies.push_back(verdict_json(workload, verdict, references));
    print_json({{"trace", workload.options.trace},
                {"machine", workload.machine.name},
                {"fits", fits},
                {"demand", std::move(demand_list)},
                {"policies", std::move(policies)}});
  } else {
    std::string text =
        fmt::format("{} on {}: {}\n", trace_title(workload), workload.machine.name, fits ? "fits" : "does not fit");
    for (std::size_t rank = 0; rank < demands.size(); ++rank) {
      const MachineSpec& machine = workload.machine.of_rank(std::min(rank, workload.machine.rank_count() - 1));
      if (demands.size() > 1) text += fmt::format("\nrank {}\n", rank);
      text += demand_text(workload.trace, machine, demands[rank]);
    }
    print(text + "\n" + verdicts_text(workload, verdicts, !arguments.no_minimum));
  }
  return fits ? ExitCode::done : ExitCode::answer_is_no;
}

}  // namespace

void add_fit_command(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("fit", "Does a trace fit on a machine, and what overflows first");
  auto arguments = std::make_shared<FitArguments>();
  add_workload_options(*command, arguments->workload);
  command->add_option("--policy,-p,--policies", arguments->policies, "Names separated by commas, or all")
      ->capture_default_str();
  add_settings_option(*command, arguments->settings);
  command->add_flag("--no-minimum", arguments->no_minimum,
                    "Leave out the search for the least GPU memory, which simulates many times");
  command->add_flag("--json", arguments->json, "The same as JSON");
  command->footer(
      "The first table fills the tiers, the fastest first, with all that is alive at once; the second simulates each "
      "policy.\nThe least GPU memory is found by bisection, in whole MiB. Exit code 1: it fits under none of the "
      "policies.\n\n"
      "Examples:\n"
      "  tencache fit step.trace.jsonl.zst --machine g10-a100\n"
      "  tencache fit step.trace.jsonl.zst -m my-computer.yaml -p zero-offload --gpu-memory 8GiB --json");
  command->callback([arguments, &chosen] { chosen = [arguments] { return fit(*arguments); }; });
}

}  // namespace tencache
