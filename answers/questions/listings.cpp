// What there is: policies, machines, models.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "answers/questions.h"
#include "answers/result.h"
#include "answers/text_table.h"
#include "configs/gpu_yaml.h"
#include "configs/load_policy_library.h"
#include "configs/machine_yaml.h"
#include "configs/model_yaml.h"
#include "configs/price_table.h"
#include "policies/knobs.h"
#include "studies/scenario_options.h"

namespace tencache {
namespace {

Answered list_answer(Json list, std::string text) {
  return {.json = [list = std::move(list)] { return list; }, .text = [text = std::move(text)] { return text; }};
}

Json option_json(const Options::Info& option) {
  Json json = {{"name", option.name},
               {"type", option.type},
               {"default", option.default_value},
               {"unit", option.unit},
               {"help", option.help}};
  if (!option.choices.empty()) json["choices"] = option.choices;
  const bool tuned = option.why_fixed.empty();
  json["tuned"] = tuned;
  json["tune_values"] = tuned ? Json(knob_of(option).values) : Json::array();
  return json;
}

Answered list_all_policies() {
  Json list = Json::array();
  std::string text;
  for (const PolicyInfo& policy : list_policies()) {
    Json options = Json::array();
    text += fmt::format("{}{}\n    {}\n", text.empty() ? "" : "\n", policy.name, policy.summary);
    if (!policy.source.empty()) text += fmt::format("    source: {}\n", policy.source);
    const std::string system(to_string(runs_with(policy.counterparts)));
    text += fmt::format("    runs with: {}; changes training: {}\n", system, policy.counterparts.changes_training);
    for (const Options::Info& option : policy.options) {
      options.push_back(option_json(option));
      const std::string values =
          option.choices.empty() ? option.type : fmt::format("{}", fmt::join(option.choices, "|"));
      text += fmt::format("    --set {}=<{}>  {} (default {}{}{})\n", option.name, values, option.help,
                          option.default_value, option.unit.empty() ? "" : " ", option.unit);
    }
    list.push_back({{"name", policy.name},
                    {"summary", policy.summary},
                    {"source", policy.source},
                    {"runs_with", system},
                    {"changes_training", policy.counterparts.changes_training},
                    {"options", options}});
  }
  return list_answer(std::move(list), std::move(text));
}

Answered list_all_machines() {
  Json list = Json::array();
  Table table({"machine", "GPU", "GPU memory", "CPU memory", "storage", "price/h", "links, GB/s"});
  Prices prices({});
  for (MachineSpec& machine : list_machines()) {
    prices.apply(machine);
    list.push_back(machine_json(machine));
    std::string storage, links;
    for (const Tier& tier : machine.tiers) {
      if (tier.kind == TierKind::nvme) storage += (storage.empty() ? "" : " + ") + format_bytes(tier.capacity);
    }
    for (const Link& link : machine.links) {
      links +=
          fmt::format("{}{} {:.3g}", links.empty() ? "" : ", ", link.name, static_cast<double>(link.bandwidth) * 1e-9);
    }
    const TierId cpu = machine.tier_of(Device::cpu);
    const std::string gpu = machine.gpu.empty() ? "-" : machine.gpu;
    const Price& price = machine.price;
    table.add({machine.name, machine.rank_count() == 1 ? gpu : fmt::format("{} × {}", machine.rank_count(), gpu),
               format_bytes(machine.tiers.front().capacity),
               cpu == no_tier ? "-" : format_bytes(machine.tiers[cpu].capacity), storage.empty() ? "-" : storage,
               price.on_demand > 0 ? fmt::format("{:.2f} {}", price.on_demand, price.currency) : "-", links});
  }
  return list_answer(std::move(list), table.text() +
                                          "\nMemory, storage and links are those of one GPU; prices those of "
                                          "the whole machine.\n");
}

// "published", "estimated", "estimated: fp16, fp8": how well the figures that the table shows are known.
std::string confidence_text(const GpuSpec& gpu) {
  constexpr std::array shown = {"memory",      "memory_bandwidth", "bf16_tflops",
                                "fp16_tflops", "fp32_tflops",      "fp8_tflops"};
  std::vector<std::string> estimated;
  std::size_t all = 0;
  for (const std::string figure : shown) {
    const auto fact = std::ranges::find(gpu.facts, figure, &Fact::path);
    if (fact == gpu.facts.end()) continue;
    ++all;
    if (fact->confidence == "estimated") estimated.push_back(figure.substr(0, figure.find("_tflops")));
  }
  if (estimated.empty()) return "published";
  return estimated.size() == all ? "estimated" : fmt::format("estimated: {}", fmt::join(estimated, ", "));
}

std::string tflops_text(double flops) { return flops > 0 ? fmt::format("{:.4g}", flops * 1e-12) : "-"; }

Answered list_all_gpus() {
  Json list = Json::array();
  Table table({"GPU", "memory", "GB/s", "bf16", "fp16", "fp32", "fp8", "figures", "kernels", "desktop"});
  const auto rate = [](double flops) { return flops > 0 ? Json(flops) : Json(nullptr); };
  const std::vector<HostedGpu> hosted = list_hosted_gpus();
  const std::vector<GpuSpec> gpus = list_gpus();  // in the same order
  for (std::size_t index = 0; index < gpus.size(); ++index) {
    const GpuSpec& gpu = gpus[index];
    const std::string& host = hosted[index].host;
    Json figures = Json::object();
    for (const Fact& fact : gpu.facts) figures[fact.path] = {{"source", fact.source}, {"confidence", fact.confidence}};
    list.push_back({{"name", gpu.name},
                    {"memory_bytes", gpu.memory},
                    {"memory_bytes_per_second", gpu.memory_bandwidth},
                    {"bf16_flops", rate(gpu.bf16_flops)},
                    {"fp16_flops", rate(gpu.fp16_flops)},
                    {"fp32_flops", rate(gpu.fp32_flops)},
                    {"tf32_flops", rate(gpu.tf32_flops)},
                    {"fp8_flops", rate(gpu.fp8_flops)},
                    {"measured", gpu.kernels.measured},
                    {"desktop", host.empty() ? Json(nullptr) : Json(host)},
                    {"figures", std::move(figures)}});
    table.add({gpu.name, format_bytes(gpu.memory),
               fmt::format("{:.4g}", static_cast<double>(gpu.memory_bandwidth) * 1e-9), tflops_text(gpu.bf16_flops),
               tflops_text(gpu.fp16_flops), tflops_text(gpu.fp32_flops), tflops_text(gpu.fp8_flops),
               confidence_text(gpu), gpu.kernels.measured ? "measured" : "means of others", host.empty() ? "-" : host});
  }
  return list_answer(
      std::move(list),
      table.text() +
          "\nRates are peaks of dense products, TFLOP/s, with sums in fp32. Figures: published, or which are estimated "
          "(--json has the\nsource of each). Kernels: whether times on this chip were measured, or follow from its "
          "peaks and from what others reach.\nDesktop: --machine NAME is a desktop around the card, on that link.\n");
}

// "124,439,808".
std::string with_commas(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

Json model_json(const ModelDescription& model) {
  Json json = {{"name", model.name},
               {"aliases", model.aliases},
               {"family", to_string(model.family)},
               {"parameters", parameter_count(model, usual_head(model))},
               {"parameter_tensors", parameters_of(model, usual_head(model)).size()},
               {"published_parameters", nullptr},
               {"head", to_string(usual_head(model))},
               {"layers", model.layers},
               {"hidden", model.hidden},
               {"heads", model.heads},
               {"key_value_heads", model.key_value_heads},
               {"head_dimension", model.head_dimension},
               {"intermediate", model.intermediate},
               {"vocabulary", model.vocabulary},
               {"max_sequence", model.max_sequence},
               {"experts", model.experts},
               {"experts_per_token", model.experts_per_token},
               {"tied_embeddings", model.tied_embeddings},
               {"source", model.source}};
  if (!model.read_as.empty()) json["read_as"] = model.read_as;
  if (model.published_parameters != 0) json["published_parameters"] = model.published_parameters;
  return json;
}

Answered list_all_models() {
  Json list = Json::array();
  Table table({"model", "parameters", "layers", "hidden", "heads", "key/value heads", "vocabulary", "family"});
  for (const ModelDescription& model : list_models()) {
    list.push_back(model_json(model));
    table.add({model.name, with_commas(parameter_count(model, usual_head(model))), std::to_string(model.layers),
               std::to_string(model.hidden), std::to_string(model.heads), std::to_string(model.key_value_heads),
               model.vocabulary == 0 ? "-" : std::to_string(model.vocabulary), to_string(model.family)});
  }
  return list_answer(std::move(list), table.text());
}

// "4096 × 11008".
std::string shape_text(const ParameterShape& parameter) { return fmt::format("{}", fmt::join(parameter.shape, " × ")); }

Answered show_model(const std::string& name_or_file) {
  const ModelDescription model = read_model(name_or_file);
  const auto parameters = parameters_of(model, usual_head(model));
  Json document = model_json(model);
  Json tensors = Json::array();
  for (const ParameterShape& parameter : parameters) {
    tensors.push_back({{"name", parameter.name}, {"module", parameter.module}, {"shape", parameter.shape}});
  }
  document["tensors"] = tensors;
  std::string text = fmt::format("{}, {} parameters in {} tensors{}\nsource: {}\n\n", model.name,
                                 with_commas(parameter_count(model, usual_head(model))), parameters.size(),
                                 model.published_parameters != 0 ? ", as published" : "", model.source);
  if (!model.read_as.empty()) text += fmt::format("read as: {}\n\n", model.read_as);
  Table table({"parameter", "elements", "shape"});
  std::size_t more = 0;
  for (const ParameterShape& parameter : parameters) {
    parameter.layer > 0 ? void(++more)
                        : table.add({parameter.name, with_commas(parameter.elements()), shape_text(parameter)});
  }
  text += table.text();
  if (more != 0) text += fmt::format("and {} more in layers 1 to {}, like layer 0's\n", more, model.layers - 1);
  return list_answer(std::move(document), std::move(text));
}

}  // namespace

std::unique_ptr<Question> policies_question() {
  auto question = std::make_unique<Question>("policies");
  question->is_listing = true;
  question->help = {.summary = "List the policies with their options, sources, and the system that runs each today",
                    .json = "The list as JSON",
                    .footer =
                        "Examples:\n"
                        "  tencache policies\n"
                        "  tencache policies --json\n"
                        "  tencache policies --policy-library my_policy.so"};
  add_policy_library_option(question->options);
  question->ask = list_all_policies;
  return question;
}

std::unique_ptr<Question> machines_question() {
  auto question = std::make_unique<Question>("machines");
  question->is_listing = true;
  question->help = {
      .summary = "List the machines that ship with TenCache",
      .json = "The list as JSON, with the source of each figure",
      .footer =
          "Your own machine is a YAML file; `tencache calibrate` writes one. $TENCACHE_CONFIGS names another folder "
          "whose\n"
          "sub-folder `machines` is listed instead.\n\n"
          "Examples:\n"
          "  tencache machines\n"
          "  tencache machines --json"};
  question->ask = list_all_machines;
  return question;
}

std::unique_ptr<Question> gpus_question() {
  auto question = std::make_unique<Question>("gpus");
  question->is_listing = true;
  question->help = {
      .summary = "List the GPUs that are known, with memory, bandwidth and rates",
      .json = "The list as JSON, with the source of each figure",
      .footer =
          "The names are those of --gpu and --assume-gpu, and of --machine for a desktop around the card: "
          "64 GB, one SSD, all\n"
          "assumed. --gpus, --cpu-memory, --link and --nvme change it.\n\n"
          "Examples:\n"
          "  tencache gpus\n"
          "  tencache fit --model qwen3-8b --batch 1 --seq 2048 --machine rtx-4090 --cpu-memory 128GiB --link "
          "pcie4x8"};
  question->ask = list_all_gpus;
  return question;
}

std::unique_ptr<Question> models_question() {
  auto question = std::make_unique<Question>("models");
  question->is_listing = true;
  question->help = {.summary = "List the models that ship with TenCache, or show one",
                    .json = "The list, or the one model with its tensors, as JSON",
                    .footer =
                        "Your own model is a YAML file or the config.json of its Hugging Face page.\n\n"
                        "Examples:\n"
                        "  tencache models\n"
                        "  tencache models --model opt-6.7b\n"
                        "  tencache models --model ./config.json --json"};
  auto model = std::make_shared<std::string>();
  question->options.text("--model", *model, "Show this one: a name, a YAML file or a Hugging Face config.json");
  question->ask = [model] { return model->empty() ? list_all_models() : show_model(*model); };
  return question;
}

}  // namespace tencache
