#include "traces/file/trace_line.h"

#include <algorithm>

#include "core/error.h"

namespace tencache {

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

void TraceLine::fail_version(const std::string& what) const {
  fail("the " + what + " needs format version 2, but the header says version 1; write \"format_version\":2 there");
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
