#include "answers/schemas.h"

#include <algorithm>
#include <memory>

#include "answers/measured.h"
#include "answers/questions.h"
#include "answers/validation.h"

namespace tencache {

const std::vector<AnswerSchema>& answer_schemas() {
  static const std::vector<AnswerSchema> schemas = [] {
    std::vector<AnswerSchema> all;
    for (const std::string& name : question_names()) {
      const std::unique_ptr<Question> question = question_named(name);
      if (question->schemas == nullptr) continue;
      for (AnswerSchema& schema : question->schemas()) all.push_back(std::move(schema));
    }
    all.push_back(schema_named<ValidationAnswer>(
        "validation", "TenCache's report on published results",
        "What `tencache validate --json` prints. An error is simulated / published - 1; rows of verdict "
        "listed and skipped do not count in summaries. `summary` is of offloading systems, `gpu_summary` of "
        "files of kind gpu, `memory_summary` of files of kind memory."));
    all.push_back(schema_named<ReplayedAnswer>(
        "replayed", "A replay on this computer, measured",
        "What `tencache run replay --json` prints: a result with what only a measurement has. docs/results.md says "
        "what the figures mean."));
    all.push_back(schema_named<LiveAnswer>(
        "live", "A PyTorch program on this computer, measured",
        "What `tencache run python --json F` writes once a step is over: a result with what only a measurement has. "
        "docs/results.md says what the figures mean."));
    return all;
  }();
  return schemas;
}

const AnswerSchema* schema_of_answer(const Json& document) {
  const Json& object = document.is_array() && !document.empty() ? document.front() : document;
  const AnswerSchema* found = nullptr;
  for (const AnswerSchema& kind : answer_schemas()) {
    const Json& required = kind.schema["required"];
    const bool has_all = object.is_object() && std::ranges::all_of(required, [&](const Json& name) {
                           return object.contains(name.get_ref<const std::string&>());
                         });
    if (has_all && (found == nullptr || required.size() > found->schema["required"].size())) found = &kind;
  }
  return found;
}

}  // namespace tencache
