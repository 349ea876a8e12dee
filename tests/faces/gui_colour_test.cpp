// What must be told apart can be, by people with any of the common colour-vision deficiencies too.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "gui/views/theme.h"

namespace tencache::gui {
namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

// Machado, Oliveira and Fernandes (2009), severity 1, of linear RGB.
struct Vision {
  const char* name;
  Matrix matrix;
};
constexpr Vision visions[] = {
    {"full", {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}},
    {"protanopia",
     {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}}},
    {"deuteranopia",
     {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}}},
    {"tritanopia",
     {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}}};

Vector product(const Matrix& matrix, const Vector& vector) {
  Vector result{};
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t i = 0; i < 3; ++i) result[row] += matrix[row][i] * vector[i];
  }
  return result;
}

// CIE 1976 L*a*b* of an sRGB colour as it is seen; D65.
Vector lab(ImU32 color, const Vision& vision) {
  Vector linear{};
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = static_cast<double>((color >> (8 * i)) & 255) / 255;
    linear[i] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  const Matrix to_xyz{{{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}};
  const Vector xyz = product(to_xyz, product(vision.matrix, linear));
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f(std::max(0.0, xyz[0]) / 0.95047), y = f(std::max(0.0, xyz[1])),
               z = f(std::max(0.0, xyz[2]) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

double distance(ImU32 a, ImU32 b, const Vision& vision) {
  const Vector from = lab(a, vision), to = lab(b, vision);
  return std::hypot(from[0] - to[0], from[1] - to[1], from[2] - to[2]);
}

struct Named {
  std::string name;
  ImU32 color;
};

template <typename Colors>
std::vector<Named> named(const char* what, const Colors& colors) {
  std::vector<Named> list;
  for (std::size_t i = 0; i < colors.size(); ++i) list.push_back({what + std::to_string(i), colors[i]});
  return list;
}

// A difference of about 2 is just seen; areas beside each other want several times that.
void expect_apart(const std::vector<Named>& colors, double least, const char* theme) {
  for (const Vision& vision : visions) {
    for (std::size_t i = 0; i < colors.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        EXPECT_GT(distance(colors[i].color, colors[j].color, vision), least)
            << colors[i].name << " and " << colors[j].name << ", " << theme << ", " << vision.name;
      }
    }
  }
}

class Colours : public testing::TestWithParam<bool> {
 protected:
  Theme theme_ = make_theme(GetParam(), 1);
  const char* name_ = GetParam() ? "light" : "dark";
};

TEST_P(Colours, OfTheSameKindAreToldApart) {
  constexpr double least = 12;
  const Named lane{"lane", theme_.lane};
  std::vector<Named> phases = named("phase ", theme_.palette.phases), causes = named("cause ", theme_.palette.causes),
                     roles = named("role ", theme_.palette.roles), series = named("series ", theme_.palette.series);
  phases.push_back({"host time", theme_.gap});
  for (std::vector<Named>* list : {&phases, &causes, &roles, &series}) {
    list->push_back(lane);
    expect_apart(*list, least, name_);
  }
}

// Stalls are hatched besides, so that a smaller difference from ops does.
TEST_P(Colours, NoneMeansTwoThingsOnTheTimeline) {
  std::vector<Named> colors = named("phase ", theme_.palette.phases);
  for (const Named& cause : named("cause ", theme_.palette.causes)) colors.push_back(cause);
  colors.push_back({"host time", theme_.gap});
  colors.push_back({"match", theme_.match});
  colors.push_back({"lane", theme_.lane});
  expect_apart(colors, 6, name_);
}

TEST_P(Colours, ThoseOfUseAreNotThoseOfTime) {
  std::vector<Named> colors = named("cause ", theme_.palette.causes);
  colors.push_back({"compute", theme_.palette.compute()});
  colors.push_back({"host time", theme_.gap});
  colors.push_back({"memory in use", theme_.palette.series[2]});
  colors.push_back({"links in use", theme_.palette.series[1]});
  expect_apart(colors, 6, name_);
}

TEST_P(Colours, TextCanBeRead) {
  const auto luminance = [](ImU32 color) { return lab(color, visions[0])[0]; };
  for (const ImU32 ground : {theme_.background, theme_.panel, theme_.lane}) {
    for (const ImU32 text : {theme_.text, theme_.faint_text, theme_.error}) {
      EXPECT_GT(std::abs(luminance(text) - luminance(ground)), 35) << name_;
    }
  }
  for (const ImU32 color : theme_.palette.phases) {
    EXPECT_GT(std::abs(luminance(readable_on(color)) - luminance(color)), 40) << name_;
  }
}

INSTANTIATE_TEST_SUITE_P(BothThemes, Colours, testing::Bool());

}  // namespace
}  // namespace tencache::gui
