// `quantization_config` of a config.json, and NVIDIA's hf_quant_config.json beside it: in which format a checkpoint has
// its weights. The keys are those of transformers' quantization_config.py, compressed-tensors and ModelOpt.
#include <algorithm>
#include <string_view>

#include "configs/model_fields.h"
#include "core/text.h"
#include "traces/generate/weight_format.h"

namespace tencache {
namespace {

// "re:.*mlp\\.gate$" as "*mlp.gate": what of a regular expression such lists use.
std::string as_pattern(std::string text) {
  if (!text.starts_with("re:")) return text;
  text.erase(0, 3);
  std::string pattern;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' || text[i] == '^' || text[i] == '$') continue;
    if (text[i] == '.' && i + 1 < text.size() && text[i + 1] == '*' && (i == 0 || text[i - 1] != '\\')) continue;
    pattern += text[i];
  }
  return pattern;
}

// The nearest of those that there are; of other numbers of bits none.
std::string grouped(const std::string& method, std::uint64_t bits, std::uint64_t group) {
  if (bits == 8) return method == "gptq" ? "gptq-8bit" : "int8";
  if (bits != 4) return "";
  return method + (group == 32 ? "-g32" : group == 64 ? "-g64" : "");
}

std::string format_of_number(const std::string& type, std::uint64_t bits, std::uint64_t group) {
  if (type == "float") return bits == 8 ? "fp8" : bits == 4 ? (group == 32 ? "mxfp4" : "nvfp4") : "";
  return grouped("awq", bits, group);
}

std::string format_of(const std::string& method, const ModelFields& fields) {
  if (method == "mxfp4" || method == "nvfp4") return method;
  if (method == "fp8" || method == "fbgemm_fp8" || method == "finegrained_fp8") return "fp8";
  if (method == "awq" || method == "gptq") {
    return grouped(method, fields.count("bits").value_or(fields.count("w_bit").value_or(4)),
                   fields.has("group_size") && fields.text("group_size") != "-1"
                       ? fields.count("group_size").value_or(128)
                       : fields.count("q_group_size").value_or(128));
  }
  if (method == "bitsandbytes") {
    if (fields.flag("load_in_8bit").value_or(fields.flag("_load_in_8bit").value_or(false))) return "int8";
    return fields.flag("load_in_4bit").value_or(fields.flag("_load_in_4bit").value_or(true)) ? "nf4" : "";
  }
  if (method == "modelopt") {
    const std::string algorithm = lower_case(fields.text("quant_algo").value_or(""));
    if (algorithm.starts_with("nvfp4")) return "nvfp4";
    if (algorithm.starts_with("mxfp4")) return "mxfp4";
    if (algorithm.starts_with("fp8")) return "fp8";
    return algorithm.starts_with("w4a16") || algorithm.starts_with("int4") ? "awq" : "";
  }
  if (method == "compressed-tensors") {
    const auto groups = fields.map("config_groups");
    const auto group = groups ? groups->first_map() : std::nullopt;
    const auto weights = group ? group->map("weights") : std::nullopt;
    if (!weights) return "";
    return format_of_number(weights->text("type").value_or("int"), weights->count("num_bits").value_or(8),
                            weights->has("group_size") ? weights->count("group_size").value_or(128) : 128);
  }
  return "";
}

}  // namespace

void read_quantization(ModelDescription& model, const ModelFields& fields) {
  const bool modelopt = fields.has("quant_algo") && !fields.has("quant_method");
  const std::string method = modelopt ? "modelopt" : lower_case(fields.text("quant_method").value_or("bitsandbytes"));
  model.quantisation = method;
  if (const auto algorithm = fields.text("quant_algo")) model.quantisation += " " + *algorithm;
  model.quantised = format_of(method, fields);
  for (const char* key :
       {"modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"}) {
    for (const std::string& pattern : fields.texts(key).value_or(std::vector<std::string>())) {
      model.unquantised.push_back(as_pattern(pattern));
    }
  }
}

}  // namespace tencache
