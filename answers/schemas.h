// The JSON Schemas of answers, as their descriptions make them: what docs/schemas holds.
#pragma once

#include <string>
#include <vector>

#include "answers/json.h"

namespace tencache {

struct AnswerSchema {
  std::string name;  // of the file: "bound"
  Json schema;       // draft 2020-12
};
std::vector<AnswerSchema> answer_schemas();

}  // namespace tencache
