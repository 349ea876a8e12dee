// The options of a question by names and texts. The command line, Python and `reproduce` all set them here, so that
// each is declared, read and checked once; what was given is kept for the manifest of the answer.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/trace.h"

namespace tencache {

struct QuestionOption {
  enum class Kind : std::uint8_t { text, flag, list };

  std::string names;  // "--machine,-m", the name first; "TRACE" of what needs no name on a command line
  std::string help;
  Kind kind = Kind::text;
  // Sets what is asked for; several texts only of a list, of a flag "true". Throws Error.
  std::function<void(const std::vector<std::string>& texts)> take = {};
  // Why a text is none of the option's, after its name; empty: it is.
  std::function<std::string(const std::string& text)> refusal = {};
  std::string type = "TEXT", standard = {}, group = {};  // for --help; an empty standard: none, or what the help says
  std::string needs = {}, excludes = {};                 // names of another option: "--samples"
  bool required = false;
  bool recorded = true;  // in the manifest: the answer depends on it
  bool listed = true;    // in --help
  std::size_t most = 0;  // texts of a list; 0: any number
  std::vector<std::string> given = {};

  std::string name() const { return names.substr(0, names.find(',')); }
  bool is_named() const { return names.starts_with("-"); }

  QuestionOption& with_type(std::string text) { return type = std::move(text), *this; }
  QuestionOption& one_of(std::vector<std::string> values);
  QuestionOption& needed() { return required = true, *this; }
  QuestionOption& needing(std::string other) { return needs = std::move(other), *this; }
  QuestionOption& without(std::string other) { return excludes = std::move(other), *this; }
  QuestionOption& unrecorded() { return recorded = false, *this; }
  QuestionOption& unlisted() { return recorded = listed = false, *this; }
};

// A trace of the asking program, in place of a file.
struct GivenTrace {
  std::shared_ptr<const Trace> trace;
  std::string sha256;  // of its file, if it had one
};
using GivenTraces = std::map<std::string, GivenTrace>;  // by the words that stand for them

// Names and texts, as GenerateSettings: {"gpu-memory", "24GiB"}, {"no-rescale", "true"}; {"", TRACE} for what needs no
// name. A list's option comes as often as it has texts.
using QuestionSettings = std::vector<std::pair<std::string, std::string>>;

// Each function adds an option that sets `field`, which outlives this; what `field` holds then is the default.
class QuestionOptions {
 public:
  QuestionOption& text(std::string names, std::string& field, std::string help);
  QuestionOption& word(std::string names, std::string& field, std::string help);    // a text that is not empty
  QuestionOption& output(std::string names, std::string& field, std::string help);  // a file that is written
  QuestionOption& flag(std::string names, bool& field, std::string help);
  QuestionOption& list(std::string names, std::vector<std::string>& field, std::string help);
  // A whole number in a range; any from 0.
  QuestionOption& whole(std::string names, std::uint64_t& field, std::uint64_t least, std::uint64_t most,
                        std::string help);
  QuestionOption& seed(std::string names, std::uint64_t& field, std::string help);
  QuestionOption& real(std::string names, double& field, double least, double most, std::string help);
  QuestionOption& real(std::string names, std::optional<double>& field, double least, double most, std::string help);
  QuestionOption& add(QuestionOption option) { return options_.emplace_back(std::move(option)); }

  // All of a question at once, in any order. Throws Error as a command line with a mistake does; `question` is for its
  // message.
  void set(const QuestionSettings& settings, const std::string& question);

  std::deque<QuestionOption>& all() { return options_; }
  const std::deque<QuestionOption>& all() const { return options_; }
  // Which words stand for traces of the asking program, before they are set.
  const std::shared_ptr<GivenTraces>& traces() const { return traces_; }
  // By any of its names, with or without dashes; "": what needs no name. Null: there is none.
  QuestionOption* find(const std::string& name);

 private:
  std::deque<QuestionOption> options_;  // what refers to one stays valid
  std::shared_ptr<GivenTraces> traces_ = std::make_shared<GivenTraces>();
};

}  // namespace tencache
