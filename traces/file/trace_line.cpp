#include "traces/file/trace_line.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace tencache {

Provenance provenance_of_sentence(std::string_view recorded_by) {
  const std::string_view command = "tencache generate";
  if (!recorded_by.starts_with(command)) {
    for (const std::string_view recorder : {"tencache record", "tencache_recorder", "tencache run python"}) {
      if (recorded_by.starts_with(recorder)) return {MadeBy::recorded, {}};
    }
    return {recorded_by.starts_with("import") ? MadeBy::imported : MadeBy::unknown, {}};
  }
  Provenance generated{MadeBy::generated, {}};
  const std::vector<std::string> words = shell_words(recorded_by.substr(command.size()));
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) return {MadeBy::generated, {}};
    const bool flag = i + 1 == words.size() || words[i + 1].starts_with("--");
    generated.made_with.emplace_back(words[i].substr(2), flag ? "true" : words[i + 1]);
    if (!flag) ++i;
  }
  return generated;
}

// Messages quote the file, which may hold anything; they stay on one line.
void TraceLine::fail(std::string message) const {
  std::replace_if(
      message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  throw Error(file_, number_in_file, message);
}

void TraceLine::fail_json(simdjson::error_code error) const {
  fail("not valid JSON (" + std::string(simdjson::error_message(error)) + "); the file is damaged or was cut short");
}

void TraceLine::fail_value(Value& value, std::string_view key, const std::string& wanted) const {
  std::string_view token = value.raw_json_token();
  while (!token.empty() && (token.back() == ' ' || token.back() == '\n' || token.back() == '\r'))
    token.remove_suffix(1);
  fail("'" + std::string(key) + "' is " + std::string(token.substr(0, 40)) + "; it takes " + wanted);
}

void TraceLine::fail_version(const std::string& what, int needed) const {
  fail("the " + what + " needs format version " + std::to_string(needed) + ", but the header says version " +
       std::to_string(version) + "; write \"format_version\":" + std::to_string(needed) + " there");
}

std::string_view TraceLine::text(Value& value, std::string_view key) const {
  std::string_view result;
  const simdjson::error_code error = value.get_string().get(result);
  if (error == simdjson::INCORRECT_TYPE) fail_value(value, key, "a text");
  check(error);
  return result;
}

std::uint64_t TraceLine::number(Value& value, std::string_view key, std::uint64_t smallest,
                                std::uint64_t largest) const {
  std::uint64_t result = 0;
  if (value.get_uint64().get(result) || result < smallest || result > largest) {
    fail_value(value, key, "a whole number from " + std::to_string(smallest) + " to " + std::to_string(largest));
  }
  return result;
}

bool TraceLine::truth(Value& value, std::string_view key) const {
  bool result = false;
  if (value.get_bool().get(result)) fail_value(value, key, "true or false");
  return result;
}

}  // namespace tencache
