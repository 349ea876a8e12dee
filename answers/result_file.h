// Results that a command printed with --json, read again: what `diff` and `reproduce` work on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "answers/json.h"

namespace tencache {

// The results in the file: one, or a list of them. Throws Error that names the file if it holds anything else.
std::vector<Json> read_results(const std::string& file);

// The same in two: the document, and the results in it.
Json read_json(const std::string& file);
std::vector<Json> results_of(Json document, const std::string& file);

// The object's member; null where it is not there.
const Json& member(const Json& object, std::string_view key);

// A leaf that differs: a figure, an option, a hash. What one side lacks is null there.
struct Change {
  std::string path;  // "stall_seconds.h2d", "lines.0.points.3.value"
  Json a, b;
  // b ÷ a; null unless both are numbers and a is not 0.
  Json ratio() const;
  // What was asked for (names, options, versions, hashes), not what came out.
  bool of_input() const;
};

// In the order of the document, what was asked for first. The tool's own `timing` is no change, nor is how the command was
// typed (`manifest.command`).
std::vector<Change> changes_between(const Json& a, const Json& b);

Json change_json(const Change& change);

// "on-demand on g10-a100, step.trace.jsonl".
std::string title_of(const Json& result);

// A table of the changes for people, indented; the nanoseconds of `attribution`, which repeat the seconds, are left
// out.
std::string changes_text(const std::vector<Change>& changes, const std::string& name_of_a,
                         const std::string& name_of_b);

}  // namespace tencache
