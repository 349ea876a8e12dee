// What goes to the user: results on stdout, progress and remarks on stderr (core/remark.h).
#pragma once

#include <string>
#include <string_view>

#include "answers/json.h"
#include "answers/text_table.h"
#include "core/remark.h"
#include "core/text.h"

namespace tencache {

// The document of --json. Throws Error if stdout cannot take it.
void print_json(const Json& document);
// Text on stdout, its lines each as printable() gives it. Throws Error if stdout cannot take it.
void print(std::string_view text);

}  // namespace tencache
