// XXH64, a fast checksum (not a signature): Yann Collet, xxHash fast digest algorithm, version 0.1.1,
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tencache {

// With seed 0. The same on every little-endian computer.
std::uint64_t xxh64(std::span<const std::byte> content);

}  // namespace tencache
