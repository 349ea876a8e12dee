// What figures of documents are figures of, as their names say, and how people write figures and names on pages and in
// the dashboard.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/trace.h"
#include "core/units.h"

namespace tencache {

enum class FigureUnit : std::uint8_t {
  none,
  seconds,
  nanoseconds,
  hours,
  bytes,
  bytes_per_second,
  parameters_per_second,
  usd,
  share,        // of one, shown in percent
  factor,       // times as much
  ratio,        // of two figures
  rate,         // a second, such as tokens
  drive_bytes,  // as those who sell SSDs count: powers of 1000
  years,
};
// As the names of figures say ("iteration_seconds", "peak_bytes.gpu").
FigureUnit unit_of(std::string_view name);
// The unit that documents name so ("bytes_per_second"); none of others.
FigureUnit unit_named(std::string_view name);
// "bytes per second"; empty where there is no word for it.
std::string words_of(FigureUnit unit);
// Of the metric of a published figure ("seconds", "hit_rate.bytes", "bytes.h2d"); `ratio`: of two of them.
FigureUnit unit_of_metric(std::string_view metric, bool ratio);

const char* label_of(Phase phase);
const char* label_of(Role role);

// Four digits: "131.4 ms", "2.500 µs".
std::string duration_text(Nanoseconds duration);
std::string seconds_text(double seconds);
// For ticks, whose figures are round: "2 s" of "2.000 s", "0.1 GB/s" of "0.10 GB/s", "0" of "0 ns".
std::string round_figure(std::string text);
// "12.3 %".
std::string percent(double share);

// 1, 2 or 5 times a power of ten: four to nine steps to `most`.
double round_step(double most);

// Without a unit, all digits.
std::string number_text(double value);
std::string usd_text(double usd);
// "12.3 GB": what was moved, as `compare` has it.
std::string moved_text(double bytes);
// "3.84 TB": as `endurance` has it.
std::string drive_bytes_text(double bytes);
// For people.
std::string with_unit(double value, FigureUnit unit);
// A number, or a list of them such as an interval, that stands among texts; other texts as they are.
std::string with_units(const std::string& text, FigureUnit unit);
// What is typed to compare with such figures; NaN as long as it is not typed to its end.
double number_with_unit(const std::string& typed, FigureUnit unit);

}  // namespace tencache
