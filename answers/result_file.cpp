#include "answers/result_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "answers/result.h"
#include "answers/text_table.h"
#include "core/error.h"
#include "core/text.h"
#include "traces/file/file_io.h"

namespace tencache {
namespace {

bool is_result(const Json& json) {
  return json.is_object() && json.contains("policy") && json["policy"].is_string() && json.contains("manifest") &&
         json["manifest"].is_object() && json.contains("iteration_seconds");
}

std::string text_of(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string("?");
}

// The tool's own time; and the command as it was typed, which manifest.run and manifest.options have resolved.
bool is_no_figure(const std::string& path, const std::string& key) {
  return (path.empty() && key == "timing") || (path == "manifest" && key == "command");
}

// Null against an object or a list is null against each of its members.
void collect(const std::string& path, const Json& a, const Json& b, std::vector<Change>& changes) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  const bool objects =
      (a.is_object() || a.is_null()) && (b.is_object() || b.is_null()) && !(a.is_null() && b.is_null());
  if (objects) {
    for (const auto& [key, value] : a.items()) {
      if (is_no_figure(path, key)) continue;
      collect(below(key), value, member(b, key), changes);
    }
    for (const auto& [key, value] : b.items()) {
      if (is_no_figure(path, key)) continue;
      if (!a.is_object() || !a.contains(key)) collect(below(key), nullptr, value, changes);
    }
    return;
  }
  const bool arrays = (a.is_array() || a.is_null()) && (b.is_array() || b.is_null()) && !(a.is_null() && b.is_null());
  if (arrays) {
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      collect(below(std::to_string(i)), i < a.size() ? a[i] : Json(), i < b.size() ? b[i] : Json(), changes);
    }
    return;
  }
  if (a.dump() != b.dump()) changes.push_back({path, a, b});
}

std::string plain(const Json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// With units where the name of the figure says which.
std::string with_unit(const std::string& path, const Json& value) {
  if (value.is_number() && path.find("_seconds") != std::string::npos) return format_seconds(value.get<double>());
  const bool bytes = path.find("_bytes") != std::string::npos || path == "misfit.bytes_missing";
  if (value.is_number_unsigned() && bytes) return format_bytes(value.get<Bytes>());
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return plain(value);
}

// Hashes and reasons would make the table unreadable.
std::string shortened(std::string text) {
  constexpr std::size_t width = 48;
  if (text.size() <= width) return text;
  std::size_t end = width - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

}  // namespace

const Json& member(const Json& object, std::string_view key) {
  static const Json absent;
  return object.is_object() && object.contains(key) ? object[key] : absent;
}

Json read_json(const std::string& file) {
  constexpr Bytes maximum_result_file_bytes = 1 * GiB;
  const std::string text = read_file(file, maximum_result_file_bytes);
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const std::size_t read = std::min(error.byte, text.size());
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(read), '\n') + 1;
    throw Error(file, static_cast<std::uint64_t>(line),
                "not valid JSON; give what replay or compare printed with --json");
  }
}

std::vector<Json> read_results(const std::string& file) { return results_of(read_json(file), file); }

std::vector<Json> results_of(Json json, const std::string& file) {
  std::vector<Json> results;
  if (json.is_array()) {
    results.assign(json.begin(), json.end());
  } else {
    results.push_back(std::move(json));
  }
  if (results.empty()) throw Error(file, 0, "an empty list of results");
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (is_result(results[i])) continue;
    const std::string which = results.size() > 1 ? fmt::format("element {} is", i) : "is";
    throw Error(file, 0,
                which +
                    " no result; give what replay, compare or run printed with --json (to reproduce also what bound, "
                    "fit, explain, endurance, sensitivity, sweep or tune printed)");
  }
  return results;
}

Json Change::ratio() const {
  if (!a.is_number() || !b.is_number() || a.get<double>() == 0) return nullptr;
  return b.get<double>() / a.get<double>();
}

bool Change::of_input() const {
  return path == "policy" || path == "machine" || path == "trace" || path.starts_with("manifest.");
}

std::vector<Change> changes_between(const Json& a, const Json& b) {
  std::vector<Change> changes;
  collect("", a, b, changes);
  std::stable_partition(changes.begin(), changes.end(), [](const Change& change) { return change.of_input(); });
  return changes;
}

Json change_json(const Change& change) {
  return {{"path", change.path}, {"a", change.a}, {"b", change.b}, {"ratio", change.ratio()}};
}

std::string title_of(const Json& result) {
  return printable(
      fmt::format("{} on {}, {}", text_of(result, "policy"), text_of(result, "machine"), text_of(result, "trace")));
}

std::string changes_text(const std::vector<Change>& changes, const std::string& name_of_a,
                         const std::string& name_of_b) {
  Table table({"  ", name_of_a, name_of_b, name_of_b + " ÷ " + name_of_a});
  for (const Change& change : changes) {
    if (change.path.starts_with("attribution.")) continue;
    std::string a = with_unit(change.path, change.a), b = with_unit(change.path, change.b);
    if (a == b) {  // the difference is below what people are shown
      a = plain(change.a);
      b = plain(change.b);
    }
    const Json ratio = change.of_input() ? Json(nullptr) : change.ratio();
    table.add({"  " + change.path, shortened(a), shortened(b),
               ratio.is_null() ? std::string() : fmt::format("{:.4f}", ratio.get<double>())});
  }
  return table.text();
}

}  // namespace tencache
