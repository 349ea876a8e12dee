// The questions that have a study, each with its options.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answers/question.h"
#include "core/machine_spec.h"
#include "core/timeline.h"
#include "core/trace.h"

namespace tencache {

// A simulated run with all that its spans refer to.
struct KeptTimeline {
  std::string name;  // "predicted: g10"
  Timeline timeline;
  MachineSpec machine;
  Trace trace;  // of the lowered program: names of ops and tensors
};

// `kept`, if not null, receives a timeline a rank.
std::unique_ptr<Question> replay_question(std::vector<KeptTimeline>* kept = nullptr);
std::unique_ptr<Question> compare_question();
std::unique_ptr<Question> bound_question();
std::unique_ptr<Question> endurance_question();
std::unique_ptr<Question> explain_question();
std::unique_ptr<Question> fit_question();
std::unique_ptr<Question> fragment_question();
std::unique_ptr<Question> sensitivity_question();
std::unique_ptr<Question> sweep_question();
std::unique_ptr<Question> sweep_merge_question();
std::unique_ptr<Question> tune_question();
std::unique_ptr<Question> info_question();
// What there is.
std::unique_ptr<Question> policies_question();
std::unique_ptr<Question> machines_question();
std::unique_ptr<Question> models_question();

// By the name of its command; null: there is none.
std::unique_ptr<Question> question_named(const std::string& name);
std::vector<std::string> question_names();

}  // namespace tencache
