// The options of `tencache generate` as names and texts: what a command line, a sweep, a validation file or a trace's
// header says of how a trace is generated.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "traces/generate/model.h"

namespace tencache {

struct GenerateOptions;  // traces/generate/generate.h

// Names without dashes and their texts: {"batch", "16"}. A flag's text is "true".
using GenerateSettings = std::vector<std::pair<std::string, std::string>>;

struct GenerateOption {
  enum class Type { text, whole, real, flag };
  const char* name;
  Type type = Type::text;
  std::string help;
  const char* standard = "";  // empty: none, or what the help says
  bool required = false;
};
// In the order of --help.
const std::vector<GenerateOption>& generate_options();
// "model", "batch", …
std::vector<std::string> generate_option_names();
// Why a text is none of the option's type, after the option's name; empty: it is.
std::string refused_text(const GenerateOption& option, const std::string& text);

// What the settings ask for; their files are read. `model`: in place of the one that they name. Throws Error that names
// the option.
GenerateOptions parse_generate_settings(const GenerateSettings& settings, const ModelDescription* model = nullptr);
Trace generate_trace(const GenerateSettings& settings, const ModelDescription* model = nullptr);
void check_generate_settings(const GenerateSettings& settings);

// What generates the trace again; null: it was made otherwise, or its settings are not known. The header's own.
const GenerateSettings* generate_settings_of(const TraceHeader& header);

}  // namespace tencache
