// JSON as answers use it: keys in the order of writing.
#pragma once

#include <nlohmann/json.hpp>

namespace tencache {

using Json = nlohmann::ordered_json;

}  // namespace tencache
