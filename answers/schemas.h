// The kinds of answers that JSON documents hold: their schemas, made from their descriptions (write_schemas.cpp writes
// them), and what people read of them.
#pragma once

#include <string>
#include <vector>

#include "answers/described.h"
#include "answers/document.h"
#include "answers/json.h"

namespace tencache {

struct AnswerSchema {
  std::string name;  // of the file: "bound"
  Json schema;       // draft 2020-12
  // What people read of such a JSON document. Throws Error where a member is not of its type. Null: none is made.
  Document (*document)(const Json& answer) = nullptr;
};
// Of all questions (Question::schemas), and of `validate`.
const std::vector<AnswerSchema>& answer_schemas();

// The kind whose required members the document has all, of several that with the most; of a list, its first. Null: none
// of them.
const AnswerSchema* schema_of_answer(const Json& document);

template <typename Answer>
AnswerSchema schema_named(const char* name, const char* title, const char* description) {
  AnswerSchema kind{
      .name = name,
      .schema = {
          {"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}, {"description", description}}};
  kind.schema.update(schema_of<Answer>());
  if constexpr (requires(const Answer& answer) { document_of(answer); }) {
    kind.document = [](const Json& json) {
      Answer answer;
      read_answer(json, answer);
      return document_of(answer);
    };
  }
  return kind;
}

}  // namespace tencache
