// Quantities and how people write them. Everything inside is an integer: bytes, nanoseconds, bytes per second.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tencache {

using Bytes = std::uint64_t;
using Nanoseconds = std::int64_t;
using BytesPerSecond = std::uint64_t;

inline constexpr Bytes unlimited = std::numeric_limits<Bytes>::max() / 4;  // sums of a few never overflow
inline constexpr Bytes KiB = 1024, MiB = 1024 * KiB, GiB = 1024 * MiB;
inline constexpr Nanoseconds second_ns = 1'000'000'000;
// A hundred years: no simulated clock goes further, so that the sum of two times never overflows.
inline constexpr Nanoseconds longest_clock_ns = 100ll * 31'557'600 * second_ns;

// Read "24GiB", "512MB", "1.5e9" (bytes), "unlimited". Throws Error that names the text and the valid units.
Bytes parse_bytes(std::string_view text);
// The same of a memory or an SSD: a bare number below a million is a forgotten unit, not so few bytes. `unit`: what the
// message shows.
Bytes parse_capacity(std::string_view text, std::string_view unit = "GiB");
// Read "10us", "1.5ms", "2s", "100ns". A bare number, but for 0, is refused: nobody knows whether it is of seconds.
Nanoseconds parse_duration(std::string_view text);
// Read "12GB/s", "800MB/s", "unlimited". A bare number is refused: 12 is hardly ever 12 bytes a second.
BytesPerSecond parse_bandwidth(std::string_view text);

// For people: "1.25 GiB", "3.100 ms", "12.00 GB/s", "12.00 MB/s".
std::string format_bytes(Bytes bytes);
std::string format_duration(Nanoseconds duration);
std::string format_bandwidth(BytesPerSecond bandwidth);
// Four digits: "7.285 s", "132.0 ms".
std::string format_seconds(double seconds);

// To the next multiple.
constexpr Bytes round_up(Bytes bytes, Bytes multiple) { return (bytes + multiple - 1) / multiple * multiple; }

inline double to_seconds(Nanoseconds duration) { return static_cast<double>(duration) * 1e-9; }

}  // namespace tencache
