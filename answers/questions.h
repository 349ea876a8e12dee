// The questions that have a study, each with its options, in answers/questions/NAME.cpp. A new one is a line here: the
// command line, Python, `reproduce` and the schemas know it then.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answers/question.h"
#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

// In the order of --help.
#define TENCACHE_QUESTIONS(QUESTION) \
  QUESTION(info)                     \
  QUESTION(replay)                   \
  QUESTION(compare)                  \
  QUESTION(fit)                      \
  QUESTION(why)                      \
  QUESTION(fragment)                 \
  QUESTION(rows)                     \
  QUESTION(rows_generate)            \
  QUESTION(kv_cache)                 \
  QUESTION(kv_cache_generate)        \
  QUESTION(explain)                  \
  QUESTION(endurance)                \
  QUESTION(bound)                    \
  QUESTION(sensitivity)              \
  QUESTION(sweep)                    \
  QUESTION(sweep_merge)              \
  QUESTION(tune)                     \
  QUESTION(policies)                 \
  QUESTION(machines)                 \
  QUESTION(gpus)                     \
  QUESTION(models)

namespace tencache {

#define TENCACHE_DECLARE_QUESTION(name) std::unique_ptr<Question> name##_question();
TENCACHE_QUESTIONS(TENCACHE_DECLARE_QUESTION)
#undef TENCACHE_DECLARE_QUESTION

// A simulated run with all that its spans refer to.
struct KeptTimeline {
  std::string name;  // "predicted: g10"
  Timeline timeline;
  MachineSpec machine;
  Trace trace;  // of the lowered program: names of ops and tensors
};
// `kept` receives a timeline a rank.
std::unique_ptr<Question> replay_question(std::vector<KeptTimeline>* kept);

// Measured on this computer, so that its answer cannot be had again; in builds with the executor.
std::unique_ptr<Question> run_replay_question();

// By the name of its command ("sweep merge"); null: there is none.
std::unique_ptr<Question> question_named(const std::string& name);
std::vector<std::string> question_names();  // in the order of --help

}  // namespace tencache
