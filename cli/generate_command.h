// What `tencache generate` makes, for commands that need the trace and no file.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"
#include "traces/model.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tencache {

// Options of the command and their texts, the names without dashes: {"batch", "16"}.
using GenerateSettings = std::vector<std::pair<std::string, std::string>>;

// "model", "batch", …
std::vector<std::string> generate_option_names();

// Throws Error where the command would refuse the options. `model`: in place of the one that they name.
Trace generate_trace(const GenerateSettings& settings, const ModelDescription* model = nullptr);
void check_generate_settings(const GenerateSettings& settings);

// How a trace was generated, of what its header says (TraceHeader::recorded_by); none: it was made otherwise.
std::optional<GenerateSettings> generate_settings_of(const std::string& recorded_by);

// The same options (but for --seed, which is that of samples elsewhere) for a command that takes a trace or else a
// model: what is given is added to `settings`.
void add_model_options(CLI::App& command, GenerateSettings& settings);

}  // namespace tencache
