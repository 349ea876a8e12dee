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

// Read "24GiB", "512MB", "1.5e9" (bytes), "unlimited". Throws Error that names the text and the valid units.
Bytes parse_bytes(std::string_view text);
// Read "10us", "1.5ms", "2s", "100ns"; a bare number is seconds.
Nanoseconds parse_duration(std::string_view text);
// Read "12GB/s", "3.2e9" (bytes per second), "unlimited".
BytesPerSecond parse_bandwidth(std::string_view text);

// For people: "1.25 GiB", "3.1 ms", "12.0 GB/s".
std::string format_bytes(Bytes bytes);
std::string format_duration(Nanoseconds duration);
std::string format_bandwidth(BytesPerSecond bandwidth);

inline double to_seconds(Nanoseconds duration) { return static_cast<double>(duration) * 1e-9; }

}  // namespace tencache
