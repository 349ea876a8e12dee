// What a replayed tensor contains: a function of (tensor, version, position), the same on the host and on a device.
//
// Content is made of pages of 4 KiB. Word i (of 8 bytes) of a page is stamp + i · golden; the last bytes of a tensor
// may be a part of a word. Plain C++ without the standard library's containers: nvcc compiles it for devices.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TENCACHE_HOST_DEVICE __host__ __device__
#else
#define TENCACHE_HOST_DEVICE
#endif

namespace tencache::replay_pattern {

inline constexpr std::uint64_t golden = 0x9e37'79b9'7f4a'7c15;  // odd, without pattern
inline constexpr std::uint64_t page_size = 4096, words_a_page = page_size / 8;

// The mixer of splitmix64.
TENCACHE_HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ value >> 27) * 0x94d0'49bb'1331'11eb;
  return value ^ value >> 31;
}

TENCACHE_HOST_DEVICE constexpr std::uint64_t seed(std::uint32_t tensor, std::uint64_t version) {
  return mix(mix(tensor + golden) + version);
}

// Word 0 of a page.
TENCACHE_HOST_DEVICE constexpr std::uint64_t stamp(std::uint64_t seed, std::uint64_t page) { return mix(seed + page); }

// Word `index` of a tensor.
TENCACHE_HOST_DEVICE constexpr std::uint64_t word(std::uint64_t seed, std::uint64_t index) {
  return stamp(seed, index / words_a_page) + index % words_a_page * golden;
}

// Word `index` of a tensor of so many bytes, the last one possibly cut off. `content` is aligned to 8 bytes.
TENCACHE_HOST_DEVICE inline void write_word(std::uint64_t seed, unsigned char* content, std::uint64_t bytes,
                                            std::uint64_t index) {
  std::uint64_t value = word(seed, index);
  unsigned char* at = content + index * 8;
  if (index * 8 + 8 <= bytes) {
    *reinterpret_cast<std::uint64_t*>(at) = value;
    return;
  }
  for (std::uint64_t i = index * 8; i < bytes; i++, value >>= 8) *at++ = static_cast<unsigned char>(value);
}

TENCACHE_HOST_DEVICE inline bool word_is_right(std::uint64_t seed, const unsigned char* content, std::uint64_t bytes,
                                               std::uint64_t index) {
  std::uint64_t value = word(seed, index);
  const unsigned char* at = content + index * 8;
  if (index * 8 + 8 <= bytes) return *reinterpret_cast<const std::uint64_t*>(at) == value;
  for (std::uint64_t i = index * 8; i < bytes; i++, value >>= 8) {
    if (*at++ != static_cast<unsigned char>(value)) return false;
  }
  return true;
}

}  // namespace tencache::replay_pattern
