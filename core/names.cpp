#include "core/names.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/text.h"

namespace tencache {
namespace {

constexpr std::size_t few = 12;  // names that are listed in full
constexpr std::size_t nearest = 3;
constexpr std::size_t longest_compared = 64;

// Insertions, deletions, replacements, and neighbours that changed places (optimal string alignment).
std::size_t slips_between(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> slips(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) slips[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) slips[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      slips[i][j] = std::min({slips[i - 1][j] + 1, slips[i][j - 1] + 1, slips[i - 1][j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        slips[i][j] = std::min(slips[i][j], slips[i - 2][j - 2] + 1);
      }
    }
  }
  return slips[a.size()][b.size()];
}

}  // namespace

std::string plain_name(std::string_view name) {
  if (const std::size_t slash = name.rfind('/'); slash != name.npos) name.remove_prefix(slash + 1);
  std::string plain;
  for (const char letter : name) {
    const auto c = static_cast<unsigned char>(letter);
    if (c < 0x80 && std::isalnum(c) != 0) plain += static_cast<char>(std::tolower(c));
  }
  return plain;
}

std::optional<std::string> match_name(std::string_view name, const std::vector<std::string>& valid) {
  if (std::ranges::find(valid, name) != valid.end()) return std::string(name);
  const std::string plain = plain_name(name);
  std::optional<std::string> found;
  for (const std::string& one : valid) {
    if (plain.empty() || plain_name(one) != plain) continue;
    if (found) return std::nullopt;
    found = one;
  }
  return found;
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& valid) {
  const std::string wanted = plain_name(name).substr(0, longest_compared);
  if (wanted.empty()) return {};
  std::vector<std::pair<std::size_t, std::string>> ranked;  // by slips
  for (const std::string& one : valid) {
    const std::string plain = plain_name(one).substr(0, longest_compared);
    const std::size_t shorter = std::min(plain.size(), wanted.size());
    const bool within = shorter >= 3 && (plain.find(wanted) != plain.npos || wanted.find(plain) != wanted.npos);
    const std::size_t slips = slips_between(wanted, plain);
    if (within || slips <= std::max(wanted.size() / 3, std::size_t{1})) ranked.emplace_back(slips, one);
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& one) { return one.first; });
  std::vector<std::string> names;
  for (auto& [slips, one] : ranked) {
    if (names.size() < nearest) names.push_back(std::move(one));
  }
  return names;
}

std::string valid_names(std::string_view name, const std::vector<std::string>& valid, std::string_view listed_by) {
  if (valid.size() <= few) return "valid names are " + join(valid);
  const std::vector<std::string> near = nearest_names(name, valid);
  const std::string all =
      listed_by.empty() ? std::string() : std::string(listed_by) + " lists all " + std::to_string(valid.size());
  if (near.empty()) return all.empty() ? "valid names are " + join(valid) : all;
  return (near.size() == 1 ? "the nearest is " : "the nearest are ") + join(near) + (all.empty() ? "" : "; " + all);
}

}  // namespace tencache
