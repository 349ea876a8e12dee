#include "traces/import/request_file.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/parse_number.h"
#include "traces/file/file_io.h"
#include "traces/import/csv_table.h"

namespace tencache {
namespace {

constexpr Bytes maximum_bytes = GiB;

std::string range() { return "a whole number of tokens from 1 to " + std::to_string(longest_request); }

std::vector<RequestLengths> read_csv(const std::string& file) {
  CsvTable table(file, maximum_bytes);
  const auto column = [&](const char* name) {
    const std::size_t found = table.find(name);
    if (found == CsvTable::no_column) {
      throw Error(file, 1,
                  std::string("column '") + name + "' is missing; the file has " + table.column_list() +
                      ". Requests are a table with ContextTokens and GeneratedTokens, or JSON lines with "
                      "input_length and output_length");
    }
    return found;
  };
  const std::size_t prompt = column("ContextTokens"), output = column("GeneratedTokens");
  std::vector<RequestLengths> requests;
  while (table.next_row()) {
    const auto number = [&](std::size_t index) {
      const auto value = parse_number<std::uint64_t>(table.field(index));
      if (value && *value >= 1 && *value <= longest_request) return *value;
      table.fail(table.column(index) + ": '" + std::string(table.field(index)) + "' is not " + range());
    };
    const std::uint64_t tokens = number(prompt);
    requests.push_back({tokens, number(output)});
  }
  return requests;
}

std::vector<RequestLengths> read_json_lines(const std::string& file, std::string_view text) {
  std::vector<RequestLengths> requests;
  std::uint64_t line_number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) throw Error(file, line_number, "the line is no JSON object; the file may be cut short");
    const auto number = [&](const char* key) {
      const auto found = json.find(key);
      if (found == json.end()) throw Error(file, line_number, std::string("key '") + key + "' is missing in a request");
      if (found->is_number_unsigned()) {
        const auto value = found->get<std::uint64_t>();
        if (value >= 1 && value <= longest_request) return value;
      }
      throw Error(file, line_number, std::string(key) + ": '" + found->dump() + "' is not " + range());
    };
    const std::uint64_t tokens = number("input_length");
    requests.push_back({tokens, number("output_length")});
  }
  return requests;
}

}  // namespace

std::vector<RequestLengths> read_requests(const std::string& file) {
  const std::string text = read_file(file, maximum_bytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string::npos && text[first] == '{';
  std::vector<RequestLengths> requests = json ? read_json_lines(file, text) : read_csv(file);
  if (requests.empty()) throw Error(file, 0, "there are no requests in the file");
  return requests;
}

}  // namespace tencache
