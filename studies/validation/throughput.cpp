#include "studies/validation/throughput.h"

#include <fmt/format.h>

#include <algorithm>

#include "configs/gpu_yaml.h"
#include "configs/model_yaml.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/split.h"

namespace tencache {
namespace {

constexpr const char* row_columns =
    "gpu, model, sequence, GPUs, micro-batch, accumulation, recompute, sharding, precision, tokens/s/GPU, use";
constexpr std::size_t column_count = 11;

// What the columns decide.
constexpr const char* row_options[] = {"model",     "gpu",           "seq",  "batch",     "micro-batches",
                                       "recompute", "data-parallel", "zero", "precision", "gradient-precision"};

std::string without_spaces(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> fields_of(const YamlValue& item, const std::string& text) {
  std::vector<std::string> fields = split(text);
  for (std::string& field : fields) field = without_spaces(field);
  if (fields.size() != column_count) {
    fail_at(item,
            fmt::format("a row of throughput has {} columns, found {}: {}", column_count, fields.size(), row_columns));
  }
  return fields;
}

std::uint64_t count_of(const YamlValue& item, const char* column, const std::string& text) {
  const std::uint64_t value = parse_number<std::uint64_t>(text).value_or(0);
  if (value == 0 || value > (1u << 30)) {
    fail_at(item, fmt::format("{}: '{}' is not a whole number from 1", column, text));
  }
  return value;
}

std::size_t choice_of(const YamlValue& item, const char* column, const std::string& text,
                      const std::vector<std::string>& valid) {
  const auto found = std::ranges::find(valid, text);
  if (found == valid.end()) {
    fail_at(item, fmt::format("{}: unknown '{}'; valid are {}", column, text, join_names(valid)));
  }
  return static_cast<std::size_t>(found - valid.begin());
}

// "163750", "580*128", "1024*4/1.6357": from left to right.
double product_of(const YamlValue& item, const std::string& text) {
  double result = 1;
  char sign = '*';
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find_first_of("*/", begin);
    const std::optional<double> number = parse_number(text.substr(begin, end == text.npos ? end : end - begin));
    if (!number || *number <= 0) {
      fail_at(item, "tokens/s/GPU: '" + text + "' is not a number above 0; write 163750, 580*128 or 1024/0.2132");
    }
    result = sign == '*' ? result * *number : result / *number;
    if (end == text.npos) return result;
    sign = text[end];
    begin = end + 1;
  }
}

// Everything in GPU memory, which the policy `ideal` takes as unlimited. Ranks share nothing.
MachineSpec unlimited_machine(const std::string& gpu) {
  constexpr Bytes any = Bytes{1} << 50;
  constexpr BytesPerSecond fast = BytesPerSecond{1} << 40;
  MachineSpec machine;
  machine.name = "unlimited " + gpu;
  machine.gpu = gpu;
  machine.tiers.resize(2);
  machine.tiers[0].name = "gpu";
  machine.tiers[0].kind = TierKind::gpu;
  machine.tiers[1].name = "cpu";
  for (Tier& tier : machine.tiers) tier.capacity = any;
  for (const auto& [name, from] : {std::pair{"h2d", TierId{1}}, {"d2h", TierId{0}}}) {
    Link& link = machine.links.emplace_back();
    link.name = name;
    link.from = from;
    link.to = static_cast<TierId>(1 - from);
    link.bandwidth = fast;
  }
  machine.initial_tier = 1;
  machine.other_ranks.assign(simulated_ranks - 1, machine);
  machine.validate();
  return machine;
}

}  // namespace

struct ThroughputReader::Line {
  std::string gpu, model, recompute, sharding, precision;
  std::uint64_t sequence = 0, gpus = 0, micro_batch = 0, accumulation = 0;
};

struct ThroughputReader::Section {
  std::string name, not_judged;
  GenerateSettings options;
  std::string metric = "tokens_per_second";
  std::vector<std::string> slow;  // models
};

void ThroughputReader::read_model_entry(const YamlValue& item) {
  if (!item.node.IsMap()) fail_at(item, "models: expected a description, found " + describe(item.node));
  const YAML::Node& node = item.node;
  const std::string name = node["name"] ? figures_.text({node["name"], &file_}, "models.name") : "";
  if (!models_.emplace(name, node).second) fail_at(item, "models: '" + name + "' stands twice");
  inline_model(item, name, 128);
}

ModelDescription ThroughputReader::inline_model(const YamlValue& where, const std::string& name,
                                                std::uint64_t sequence) const {
  YAML::Node node = YAML::Clone(models_.at(name));
  if (!node["max_sequence"]) node["max_sequence"] = sequence;
  try {
    return parse_model(YAML::Dump(node), "model '" + name + "'");
  } catch (const Error& error) {
    fail_at(where, std::string("models: ") + error.what());
  }
}

void ThroughputReader::read_section(const YamlValue& item) {
  const YamlMap keys({item}, "a table of throughput",
                     {"name", "source", "generate", "time", "slow", "not_judged", "rows"});
  Section section;
  section.name = figures_.text(keys.require("name"), "throughput.name");
  for (const ValidationExperiment& other : result_.experiments) {
    if (other.name == section.name) fail_at(keys.require("name"), "'" + section.name + "' stands twice");
  }
  ValidationExperiment experiment;
  experiment.name = section.name;
  if (const auto value = keys.get("source")) experiment.source = figures_.text(*value, "throughput.source");
  if (const auto value = keys.get("not_judged")) section.not_judged = figures_.text(*value, "throughput.not_judged");
  if (const auto value = keys.get("time")) take_times(*value, section);
  if (const auto value = keys.get("generate")) take_options(*value, section);
  if (const auto value = keys.get("slow")) {
    each_item(*value, "throughput.slow",
              [&](const YamlValue& v) { section.slow.push_back(figures_.text(v, "throughput.slow")); });
  }
  each_item(keys.require("rows"), "throughput.rows",
            [&](const YamlValue& row) { experiment.rows.push_back(read_row(row, section)); });
  result_.experiments.push_back(std::move(experiment));
}

void ThroughputReader::take_times(const YamlValue& value, Section& section) const {
  const std::vector<std::string> valid{"iteration", "forward_backward", "forward"};
  const std::size_t chosen = figures_.choice(value, "throughput.time", valid);
  if (chosen != 0) section.metric = valid[chosen] + "_" + section.metric;
}

// Each option with its reason: none of them may be chosen for what it does to the error.
void ThroughputReader::take_options(const YamlValue& value, Section& section) {
  const YamlMap options({value}, "throughput.generate", generate_option_names());
  for (const auto& entry : value.node) {
    const std::string& option = entry.first.Scalar();
    const YamlValue own{entry.second, &file_};
    if (std::find(std::begin(row_options), std::end(row_options), option) != std::end(row_options)) {
      fail_at({entry.first, &file_}, "throughput.generate: '" + option + "' follows from a row's columns");
    }
    const YamlMap keys({own}, "throughput.generate." + option, {"value", "source"});
    const std::string text = figures_.text(keys.require("value"), "throughput.generate." + option);
    section.options.emplace_back(option, text);
    result_.options.push_back({.section = section.name,
                               .option = option,
                               .value = text,
                               .source = figures_.text(keys.require("source"), "throughput.generate." + option)});
  }
}

ValidationRow ThroughputReader::read_row(const YamlValue& item, const Section& section) {
  const std::vector<std::string> fields = fields_of(item, figures_.text(item, "throughput.rows"));
  Line line;
  line.gpu = fields[0];
  line.model = fields[1];
  line.sharding = fields[7];
  line.precision = fields[8];
  line.sequence = count_of(item, "sequence", fields[2]);
  line.gpus = count_of(item, "GPUs", fields[3]);
  line.micro_batch = count_of(item, "micro-batch", fields[4]);
  line.accumulation = count_of(item, "accumulation", fields[5]);
  line.recompute = std::array{"none", "block", "selective",
                              "ops"}[choice_of(item, "recompute", fields[6], {"n", "y", "selective", "ops"})];
  choice_of(item, "sharding", line.sharding, {"full", "grad", "none"});
  choice_of(item, "precision", line.precision, {"pure", "amp", "fp16", "fp32", "fp8"});
  const std::size_t use = choice_of(item, "use", fields[10], {"fit", "judge", "list"});
  add_system(item, line.gpu);

  ValidationRow row;
  row.name = fmt::format("{}, {} tokens, {} GPU{}", line.model, line.sequence, line.gpus, line.gpus == 1 ? "" : "s");
  row.of = line.gpu;
  row.metric = section.metric;
  row.published.text = fields[9];
  row.published.from = row.published.to = product_of(item, fields[9]);
  row.fitted = use == 0;
  if (use == 2) row.not_judged = section.not_judged;
  if (use == 2 && row.not_judged.empty()) fail_at(item, "rows of use list need the table's 'not_judged': a reason");
  const std::uint64_t micro_batches = std::min(line.accumulation, simulated_micro_batches);
  row.training = {.gpu = line.gpu,
                  .model = line.model,
                  .sequence = line.sequence,
                  .gpus = line.gpus,
                  .recomputed = line.recompute != "none",
                  .tokens = static_cast<double>(line.sequence * line.micro_batch * micro_batches)};
  row.workloads = {add_workload(workload_of(item, line, section), line.gpu)};
  return row;
}

ValidationWorkload ThroughputReader::workload_of(const YamlValue& item, const Line& line,
                                                 const Section& section) const {
  const std::uint64_t ranks = std::min(line.gpus, simulated_ranks);
  const std::uint64_t micro_batches = std::min(line.accumulation, simulated_micro_batches);
  ValidationWorkload workload;
  workload.one_rank = true;
  workload.slow = std::ranges::find(section.slow, line.model) != section.slow.end();
  workload.title = fmt::format("{} {} on {} {}: {} x {}", line.model, line.sequence, ranks, line.gpu, line.micro_batch,
                               micro_batches);
  if (models_.contains(line.model)) {
    workload.model = inline_model(item, line.model, line.sequence);
  } else {
    try {
      read_model(line.model);
    } catch (const Error& error) {
      std::vector<std::string> own;
      for (const auto& [name, node] : models_) own.push_back(name);
      fail_at(item, "model: " + std::string(error.what()) + "; models of this file: " + join_names(own));
    }
  }
  GenerateSettings& options = workload.generate;
  options = {{"model", line.model},
             {"gpu", line.gpu},
             {"seq", std::to_string(line.sequence)},
             {"batch", std::to_string(ranks * micro_batches * line.micro_batch)},
             {"micro-batches", std::to_string(micro_batches)},
             {"precision", line.precision == "pure" || line.precision == "amp" ? "bf16" : line.precision},
             {"recompute", line.recompute},
             {"data-parallel", std::to_string(ranks)}};
  if (line.precision == "amp" || line.precision == "fp8") options.emplace_back("gradient-precision", "fp32");
  if (line.sharding != "none" && ranks > 1) options.emplace_back("zero", line.sharding == "full" ? "3" : "2");
  options.insert(options.end(), section.options.begin(), section.options.end());
  return workload;
}

std::string ThroughputReader::add_workload(ValidationWorkload workload, const std::string& gpu) {
  const auto [found, is_new] = workloads_.emplace(std::pair(workload.generate, gpu), "");
  if (!is_new) return found->second;
  workload.name = fmt::format("{}. {}", workloads_.size(), workload.title);
  found->second = workload.name;
  result_.workloads.push_back(std::move(workload));
  return found->second;
}

void ThroughputReader::add_system(const YamlValue& where, const std::string& gpu) {
  const auto same = [&gpu](const ValidationSystem& system) { return system.name == gpu; };
  if (std::ranges::any_of(result_.systems, same)) return;
  try {
    read_gpu(gpu);
  } catch (const Error& error) {
    fail_at(where, std::string("gpu: ") + error.what());
  }
  ValidationSystem system;
  system.name = gpu;
  system.scenario.policy.name = ideal_system;
  system.scenario.machine.loaded = std::make_shared<const MachineSpec>(unlimited_machine(gpu));
  result_.systems.push_back(std::move(system));
}

}  // namespace tencache
