#include "answers/schemas.h"

#include "answers/bound.h"
#include "answers/sensitivity.h"

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
  return {
      schema_named<BoundAnswer>("bound", "A TenCache lower bound",
                                "What `tencache bound --json` prints. Seconds per iteration. A window runs from its "
                                "first op to its last, and "
                                "around the end of the iteration if the last op comes before the first."),
      schema_named<SensitivityAnswer>(
          "sensitivity", "Time against figures of a machine",
          "What `tencache sensitivity --json` prints. One or two parameters; a value of null is no limit. A line is a "
          "policy (or `bound`, the lower bound) at one value of the second parameter, in the order of policies, then "
          "of that parameter's values. docs/explain.md explains it."),
  };
}

}  // namespace tencache
