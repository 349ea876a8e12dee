#include "configs/caching_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "core/error.h"
#include "core/parse_number.h"

namespace tencache {
namespace {

constexpr std::uint64_t least_max_split_mb = 20;

// Keys that change nothing of what a GPU's memory is.
constexpr std::array<std::string_view, 7> without_effect = {"backend",
                                                            "release_lock_on_cudamalloc",
                                                            "pinned_use_cuda_host_register",
                                                            "pinned_num_register_threads",
                                                            "pinned_use_background_threads",
                                                            "graph_capture_record_stream_reuse",
                                                            "throw_on_cudamalloc_oom"};

class SettingsReader {
 public:
  explicit SettingsReader(std::string_view text) : text_(text), rest_(text) {}

  CachingSettings read() {
    while (!rest_.empty()) {
      const std::string_view key = until(":");
      if (rest_.empty()) fail(fmt::format("'{}' has no value", key));
      const std::string_view value = rest_.starts_with('[') ? until("]") : until(",");
      if (rest_.starts_with(',')) rest_.remove_prefix(1);
      set(trim(key), trim(value));
    }
    return settings_;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(fmt::format("the allocator's settings '{}': {}", text_, message));
  }
  static std::string_view trim(std::string_view text) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
    return text;
  }
  std::string_view until(std::string_view end) {
    const std::size_t at = rest_.find(end);
    const std::string_view found = rest_.substr(0, at);
    rest_.remove_prefix(at == std::string_view::npos ? rest_.size() : at + 1);
    return found;
  }
  std::uint64_t number(std::string_view key, std::string_view value) const {
    const auto result = parse_number<std::uint64_t>(value);
    if (!result || *result > (1u << 30)) fail(fmt::format("'{}' is no whole number for {}", value, key));
    return *result;
  }
  double share(std::string_view key, std::string_view value) const {
    const auto result = parse_number(value);
    if (!result || !(*result > 0 && *result <= 1)) {
      fail(fmt::format("{} is above 0 and at most 1, not '{}'", key, value));
    }
    return *result;
  }

  void set(std::string_view key, std::string_view value) {
    if (key == "expandable_segments") {
      if (value != "True" && value != "False") fail("expandable_segments is True or False");
      settings_.expandable_segments = value == "True";
    } else if (key == "max_split_size_mb") {
      const std::uint64_t megabytes = number(key, value);
      if (megabytes < least_max_split_mb) fail("max_split_size_mb is 20 or more: PyTorch refuses less");
      settings_.max_split_size = megabytes * MiB;
    } else if (key == "max_non_split_rounding_mb") {
      settings_.max_non_split_rounding = number(key, value) * MiB;
    } else if (key == "large_segment_size_mb") {
      settings_.large_segment_size = number(key, value) * MiB;
      if (settings_.large_segment_size < 2 * MiB) fail("large_segment_size_mb is 2 or more");
    } else if (key == "garbage_collection_threshold") {
      settings_.garbage_collection_threshold = share(key, value);
    } else if (key == "memory_fraction") {
      settings_.memory_fraction = share(key, value);
    } else if (key == "roundup_power2_divisions") {
      set_divisions(value);
    } else if (std::ranges::find(without_effect, key) == without_effect.end()) {
      fail(
          fmt::format("unknown key '{}'; known are expandable_segments, max_split_size_mb, max_non_split_rounding_mb, "
                      "large_segment_size_mb, garbage_collection_threshold, roundup_power2_divisions, memory_fraction",
                      key));
    } else if (key == "backend" && value != "native") {
      fail(fmt::format("the backend '{}' is not PyTorch's own allocator, and is not modelled", value));
    }
  }

  // "4", or "[256:1,512:2,1024:4,>:8]": by size in MiB, up to the next one.
  void set_divisions(std::string_view value) {
    constexpr std::string_view key = "roundup_power2_divisions";
    std::array<std::uint64_t, 16>& divisions = settings_.power2_divisions;
    const auto checked = [&](std::string_view text) {
      const std::uint64_t result = number(key, text);
      if (!std::has_single_bit(result)) fail("roundup_power2_divisions are powers of two");
      return result;
    };
    if (!value.starts_with('[')) {
      divisions.fill(checked(value));
      return;
    }
    value.remove_prefix(1);
    std::size_t from = 0;
    std::uint64_t last = 0;
    while (!value.empty()) {
      const std::string_view pair = trim(value.substr(0, value.find(',')));
      value.remove_prefix(
          std::min(value.size(), value.find(',') == std::string_view::npos ? value.size() : value.find(',') + 1));
      const std::size_t colon = pair.find(':');
      if (colon == std::string_view::npos) fail(fmt::format("'{}' is no SIZE:DIVISIONS", pair));
      last = checked(trim(pair.substr(colon + 1)));
      const std::string_view size = trim(pair.substr(0, colon));
      std::size_t index = divisions.size();
      if (size != ">") {
        const std::uint64_t megabytes = number(key, size);
        if (!std::has_single_bit(megabytes)) fail("roundup_power2_divisions has sizes that are powers of two, and '>'");
        index =
            std::min<std::size_t>(divisions.size() - 1, static_cast<std::size_t>(std::bit_width(megabytes)) - 1) + 1;
      }
      for (; from < index; ++from) divisions[from] = last;
    }
  }

  std::string_view text_, rest_;
  CachingSettings settings_;
};

}  // namespace

CachingSettings parse_caching_settings(std::string_view text) { return SettingsReader(text).read(); }

}  // namespace tencache
