// `tencache models`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command_line.h"
#include "cli/console.h"
#include "configs/model_yaml.h"

namespace tencache {
namespace {

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
  if (model.published_parameters != 0) json["published_parameters"] = model.published_parameters;
  return json;
}

ExitCode list_all_models(bool json) {
  Json list = Json::array();
  Table table({"model", "parameters", "layers", "hidden", "heads", "key/value heads", "vocabulary", "family"});
  for (const ModelDescription& model : list_models()) {
    if (json) {
      list.push_back(model_json(model));
      continue;
    }
    table.add({model.name, with_commas(parameter_count(model, usual_head(model))), std::to_string(model.layers),
               std::to_string(model.hidden), std::to_string(model.heads), std::to_string(model.key_value_heads),
               model.vocabulary == 0 ? "-" : std::to_string(model.vocabulary), to_string(model.family)});
  }
  json ? print_json(list) : print(table.text());
  return ExitCode::done;
}

// "4096 × 11008".
std::string shape_text(const ParameterShape& parameter) { return fmt::format("{}", fmt::join(parameter.shape, " × ")); }

ExitCode show_model(const std::string& name_or_file, bool json) {
  const ModelDescription model = read_model(name_or_file);
  const auto parameters = parameters_of(model, usual_head(model));
  if (json) {
    Json document = model_json(model);
    Json tensors = Json::array();
    for (const ParameterShape& parameter : parameters) {
      tensors.push_back({{"name", parameter.name}, {"module", parameter.module}, {"shape", parameter.shape}});
    }
    document["tensors"] = tensors;
    print_json(document);
    return ExitCode::done;
  }
  std::string text = fmt::format("{}, {} parameters in {} tensors{}\nsource: {}\n\n", model.name,
                                 with_commas(parameter_count(model, usual_head(model))), parameters.size(),
                                 model.published_parameters != 0 ? ", as published" : "", model.source);
  Table table({"parameter", "elements", "shape"});
  std::size_t more = 0;
  for (const ParameterShape& parameter : parameters) {
    parameter.layer > 0 ? void(++more)
                        : table.add({parameter.name, with_commas(parameter.elements()), shape_text(parameter)});
  }
  text += table.text();
  if (more != 0) text += fmt::format("and {} more in layers 1 to {}, like layer 0's\n", more, model.layers - 1);
  print(text);
  return ExitCode::done;
}

}  // namespace

void add_models_command(CLI::App& app, Command& chosen) {
  struct Given {
    std::string model;
    bool json = false;
  };
  CLI::App* command = app.add_subcommand("models", "List the models that ship with TenCache, or show one");
  auto given = std::make_shared<Given>();
  command->add_option("--model", given->model, "Show this one: a name, a YAML file or a Hugging Face config.json");
  command->add_flag("--json", given->json, "The list, or the one model with its tensors, as JSON");
  command->footer(
      "Your own model is a YAML file or the config.json of its Hugging Face page.\n\n"
      "Examples:\n  tencache models\n  tencache models --model opt-6.7b\n  tencache models --model ./config.json "
      "--json");
  command->callback([given, &chosen] {
    chosen = [given] {
      return given->model.empty() ? list_all_models(given->json) : show_model(given->model, given->json);
    };
  });
}

}  // namespace tencache
