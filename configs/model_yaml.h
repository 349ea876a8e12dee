// Model files: the description of traces/generate/model.h as our own YAML (docs/model-format.md), or as the
// `config.json` that Hugging Face publishes beside a checkpoint. Which of the two a file is shows in its content.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "traces/generate/model.h"

namespace tencache {

// Reads a shipped model by its name or alias, or a file by its path. What contains a slash or ends in ".yaml", ".yml"
// or ".json" is a path; a name is looked for in config_folders("models"). Throws Error with file and line, and with the
// valid names where one was not known.
ModelDescription read_model(const std::string& name_or_file);
// The file that read_model reads. Throws Error for an unknown name.
std::string find_model_file(const std::string& name_or_file);

// The same from text; `file` is for messages, and names a model whose config.json has no name: "opt-6.7b/config.json"
// and "opt-6.7b.json" are both opt-6.7b.
ModelDescription parse_model(std::string_view text, const std::string& file);

// The shipped models, by name. Throws Error if one of the files is broken.
std::vector<ModelDescription> list_models();

}  // namespace tencache
