// Names as people write them: found where only the spelling differs, and the nearest ones for messages about others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tencache {

// Small letters and digits only, of what follows the last slash: "RTX 4090", "rtx4090" and "nvidia/RTX-4090" are alike.
std::string plain_name(std::string_view name);

// The one of `valid` that is the name, or that differs from it in nothing but case, separators and what stands before a
// slash; none where several do.
std::optional<std::string> match_name(std::string_view name, const std::vector<std::string>& valid);

// The nearest first, three at most: those that contain the name or are contained in it, and those that a slip or two of
// the keyboard make of it.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& valid);

// What stands behind "unknown machine 'g5.xlage'; ": the names, where they are few; else the nearest, and how all are
// listed ("`tencache machines`"; may be empty).
std::string valid_names(std::string_view name, const std::vector<std::string>& valid, std::string_view listed_by);

}  // namespace tencache
