// Words of a command line as a shell reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tencache {

// Quoted where a shell would take a space, a `$` and the like for its own.
std::string quoted_word(std::string_view word);

// The words of a line that quoted_word() wrote, with spaces between them.
std::vector<std::string> shell_words(std::string_view line);

}  // namespace tencache
