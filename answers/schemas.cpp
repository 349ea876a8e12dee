#include "answers/schemas.h"

#include <algorithm>

#include "answers/bound.h"
#include "answers/endurance.h"
#include "answers/explain.h"
#include "answers/fit.h"
#include "answers/fragment.h"
#include "answers/result.h"
#include "answers/sensitivity.h"
#include "answers/sweep.h"
#include "answers/tune.h"
#include "answers/validation.h"

namespace tencache {
namespace {

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

// Of a document to which commands add keys.
AnswerSchema open_ended(AnswerSchema kind) {
  kind.schema.erase("additionalProperties");
  return kind;
}

}  // namespace

const std::vector<AnswerSchema>& answer_schemas() {
  static const std::vector<AnswerSchema> schemas = {
      schema_named<BoundAnswer>(
          "bound", "A TenCache lower bound",
          "What `tencache bound --json` prints. Seconds per iteration. A window runs from its first op to its last, "
          "and around the end of the iteration if the last op comes before the first."),
      schema_named<ExplainAnswer>(
          "explain", "Where an iteration's time goes",
          "What `tencache explain --json` prints. docs/explain.md explains it. Of a run: iteration = compute + gap + "
          "stalls. Causes are those with a stall, the longest first: attributed = confirmed + still + moved. Taken "
          "away "
          "one after the other: confirmed + remainder = attributed. Where the trace does not fit, `run.fits` is false "
          "and the lists are empty."),
      schema_named<FitAnswer>("fit", "Whether a training step fits",
                              "What `tencache fit --json` prints. docs/explain.md explains it. `demand` is what the "
                              "step needs, by rank: what "
                              "is alive at once fills the tiers, the fastest first. `policies`: the most that each "
                              "tier holds under a policy, "
                              "and the least memory where it was searched."),
      schema_named<FragmentAnswer>(
          "fragment", "What allocators reserve for a program",
          "What `tencache fragment --json` prints; docs/fragment.md explains it. Bytes are the most over all events; "
          "rounding, remainders, holes and idle segments are those when most was reserved, or when memory ran out. "
          "Iteration 0 is what comes before the first."),
      schema_named<OomAnswer>("fragment-message", "A message of PyTorch's, explained",
                              "What `tencache fragment --message … --json` prints. Figures that the message does not "
                              "have are null."),
      schema_named<TuneAnswer>("tune", "The best knobs of a policy",
                               "What `tencache tune --json` prints. docs/tune.md says what the figures mean."),
      schema_named<EnduranceAnswer>("endurance", "What is written to each SSD",
                                    "What `tencache endurance --json` prints. docs/explain.md explains it."),
      open_ended(schema_named<ResultAnswer>(
          "result", "A TenCache result",
          "What `tencache replay --json` prints, and each element of the list of `tencache compare --json`. Figures of "
          "the run are null where the trace does not fit. Commands may add keys. docs/results.md says what the figures "
          "mean.")),
      schema_named<SensitivityAnswer>(
          "sensitivity", "Time against figures of a machine",
          "What `tencache sensitivity --json` prints. One or two parameters; a value of null is no limit. A line is a "
          "policy (or `bound`, the lower bound) at one value of the second parameter, in the order of policies, then "
          "of that parameter's values. docs/explain.md explains it."),
      schema_named<SweepAnswer>(
          "sweep", "TenCache sweep results",
          "What `tencache sweep --json` and `tencache sweep merge --json` print; docs/sweep.md says what each field "
          "means. The rows' fields are the columns of the results file and of the CSV; advice names rows by position."),
      schema_named<ValidationAnswer>(
          "validation", "TenCache's report on published results",
          "What `tencache validate --json` prints. An error is simulated / published - 1; rows of verdict listed and "
          "skipped do not count in summaries. `summary` is of offloading systems, `gpu_summary` of files of kind gpu, "
          "`memory_summary` of files of kind memory."),
  };
  return schemas;
}

const AnswerSchema* schema_of_answer(const Json& document) {
  const Json& object = document.is_array() && !document.empty() ? document.front() : document;
  if (!object.is_object()) return nullptr;
  const auto& schemas = answer_schemas();
  const auto found = std::ranges::find_if(schemas, [&](const AnswerSchema& kind) {
    return std::ranges::all_of(kind.schema["required"],
                               [&](const Json& name) { return object.contains(name.get_ref<const std::string&>()); });
  });
  return found == schemas.end() ? nullptr : &*found;
}

}  // namespace tencache
