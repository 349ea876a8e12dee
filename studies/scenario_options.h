// Options that several questions share: which fields of a scenario they set.
#pragma once

#include <map>
#include <string>

#include "studies/question_options.h"
#include "studies/scenario.h"

namespace tencache {

// What TRACE says: a file, or one of the asking program's traces.
void choose_trace(TraceChoice& trace, const std::string& word, const GivenTraces& given);

// [--gpu-memory] [--cpu-memory]; those of a machine that is chosen also have [--gpu-allocator]
void add_memory_options(QuestionOptions& options, MachineChoice& machine);
// --limit LINK=BANDWIDTH, any number.
void add_limit_option(QuestionOptions& options, MachineChoice& machine);
// --machine [--gpu-memory] [--cpu-memory] [--limit] [--run-ahead] [--assume-gpu] [--no-rescale]
void add_machine_choice_options(QuestionOptions& options, Scenario& scenario);
// The same options as `tencache generate` (but for --seed, which is that of samples elsewhere) of a question about a
// trace or else a model: what is given is added to `settings`.
void add_model_options(QuestionOptions& options, GenerateSettings& settings);
// TRACE and the two before: what is asked of, without a run.
void add_machine_options(QuestionOptions& options, Scenario& scenario);
// [--iterations]
void add_iterations_option(QuestionOptions& options, Scenario& scenario);
// --policy-library, any number of times; each library is loaded as the options are set.
void add_policy_library_option(QuestionOptions& options);
// The same as add_machine_options and [--iterations] [--policy-library]
void add_workload_options(QuestionOptions& options, Scenario& scenario);
// --prices FILE, --price TYPE=USD any number of times
void add_price_options(QuestionOptions& options, PriceChoice& prices);
inline constexpr const char* settings_help =
    "An option of the policy as KEY=VALUE, any number of times; see `tencache policies`";
// --set key=value, any number
void add_settings_option(QuestionOptions& options, std::map<std::string, std::string>& settings);
// --policy and --set
void add_policy_options(QuestionOptions& options, PolicyChoice& policy);
// --samples, --seed
void add_sample_options(QuestionOptions& options, SampleOptions& sampling);
// --faults PLAN
QuestionOption& add_faults_option(QuestionOptions& options, std::string& plan);

}  // namespace tencache
