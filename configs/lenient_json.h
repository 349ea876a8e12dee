// JSON as people write it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tencache {

// Takes comments (//, /* */, #), trailing commas, Python's True, False and None, and a byte-order mark. Throws Error
// with file and line.
nlohmann::ordered_json parse_lenient_json(const std::string& text, const std::string& file);

}  // namespace tencache
