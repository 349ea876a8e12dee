#include "answers/schemas.h"

#include "answers/bound.h"

namespace tencache {
namespace {

template <typename Answer>
AnswerSchema schema_named(const char* name, const char* title, const char* description) {
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}, {"description", description}};
  schema.update(schema_of<Answer>());
  return {name, std::move(schema)};
}

}  // namespace

std::vector<AnswerSchema> answer_schemas() {
  return {schema_named<BoundAnswer>(
      "bound", "A TenCache lower bound",
      "What `tencache bound --json` prints. Seconds per iteration. A window runs from its first op to its last, and "
      "around the end of the iteration if the last op comes before the first.")};
}

}  // namespace tencache
