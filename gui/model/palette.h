// The colours of the dashboard and of reports, each for light and for dark grounds: Okabe and Ito (2008), and a few
// that go with them. "p0" … are phases and, after them, recomputation, "c0" … causes of stalls, "r0" … roles.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "core/stall_cause.h"
#include "core/trace.h"
#include "gui/model/track.h"

namespace tencache::gui {

struct Colour {
  std::string_view name;
  std::uint32_t light, dark;  // 0xrrggbb
};
inline constexpr std::array colours = {
    Colour{"background", 0xf6f7f9, 0x16191d}, Colour{"panel", 0xffffff, 0x1e2227},  Colour{"lane", 0xebedf0, 0x262b31},
    Colour{"grid", 0xd5d9de, 0x353b43},       Colour{"border", 0xc3c8cf, 0x414850}, Colour{"text", 0x1b1f24, 0xe6e9ed},
    Colour{"faint", 0x5a636e, 0x9aa4b0},      Colour{"accent", 0x0072b2, 0x56b4e9}, Colour{"error", 0xb33a00, 0xff8a4c},
    Colour{"p0", 0x56b4e9, 0x56b4e9},         Colour{"p1", 0x7a55f0, 0x7a55f0},     Colour{"p2", 0x0072b2, 0x0072b2},
    Colour{"p3", 0x009e73, 0x009e73},         Colour{"p4", 0x964b00, 0x964b00},     Colour{"p5", 0xf0c387, 0xf0c387},
    Colour{"p6", 0x1e3c9c, 0x1e3c9c},         Colour{"gap", 0xb9bfc7, 0x59626d},    Colour{"c0", 0xd55e00, 0xd55e00},
    Colour{"c1", 0xe69f00, 0xe69f00},         Colour{"c2", 0xcc79a7, 0xcc79a7},     Colour{"c3", 0x8e4d95, 0x8e4d95},
    Colour{"c4", 0xf0e442, 0xf0e442},         Colour{"c5", 0x30353b, 0xf2f2f2},     Colour{"c6", 0x8a6d3b, 0xb99b6b},
    Colour{"c7", 0x1712fc, 0x1712fc},         Colour{"r0", 0x0072b2, 0x0072b2},     Colour{"r1", 0xe69f00, 0xe69f00},
    Colour{"r2", 0x56b4e9, 0x56b4e9},         Colour{"r3", 0x009e73, 0x009e73},     Colour{"r4", 0x90c856, 0x90c856},
    Colour{"r5", 0xcc79a7, 0xcc79a7},         Colour{"r6", 0xb9bfc7, 0x59626d},     Colour{"r7", 0x7a55f0, 0x7a55f0},
    Colour{"r8", 0xd55e00, 0xd55e00},         Colour{"busy", 0x4c8fc0, 0x4c8fc0},
};

// Of phases, causes or roles.
constexpr std::size_t colours_of(char what) {
  return static_cast<std::size_t>(std::ranges::count_if(
      colours, [what](const Colour& one) { return one.name.size() == 2 && one.name[0] == what; }));
}
static_assert(colours_of('p') == gap_slot && colours_of('c') == all_causes.size() && colours_of('r') == role_count);

// Of a name that is there.
constexpr std::uint32_t colour(std::string_view name, bool light) {
  const auto found = std::ranges::find(colours, name, &Colour::name);
  return light ? found->light : found->dark;
}

}  // namespace tencache::gui
