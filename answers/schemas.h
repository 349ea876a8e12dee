// The kinds of answers that JSON documents hold: their schemas, made from their descriptions (write_schemas.cpp writes
// them), and what people read of them.
#pragma once

#include <string>
#include <vector>

#include "answers/document.h"
#include "answers/json.h"

namespace tencache {

struct AnswerSchema {
  std::string name;  // of the file: "bound"
  Json schema;       // draft 2020-12
  // What people read of such a JSON document. Throws Error where a member is not of its type. Null: none is made.
  Document (*document)(const Json& answer) = nullptr;
};
const std::vector<AnswerSchema>& answer_schemas();

// The kind whose required members the document has all; of a list, its first. Null: none of them.
const AnswerSchema* schema_of_answer(const Json& document);

}  // namespace tencache
