// How the engine recognises its own completions: the kind in the top byte of the tag, the rest is the kind's.
#pragma once

#include "core/machine.h"

namespace tencache {

enum class TagKind : std::uint8_t { transfer, op, gap };
inline constexpr int tag_kind_shift = 56;

inline Tag make_tag(TagKind kind, std::uint64_t value) {
  return (static_cast<std::uint64_t>(kind) << tag_kind_shift) | value;
}
inline TagKind tag_kind(Tag tag) { return static_cast<TagKind>(tag >> tag_kind_shift); }
inline std::uint64_t tag_value(Tag tag) { return tag & ((std::uint64_t{1} << tag_kind_shift) - 1); }

}  // namespace tencache
