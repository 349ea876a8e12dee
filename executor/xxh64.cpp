#include "executor/xxh64.h"

#include <bit>
#include <cstring>

namespace tencache {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t prime1 = 0x9e37'79b1'85eb'ca87, prime2 = 0xc2b2'ae3d'27d4'eb4f, prime3 = 0x1656'67b1'9e37'79f9,
                        prime4 = 0x85eb'ca77'c2b2'ae63, prime5 = 0x27d4'eb2f'1656'67c5;

template <typename Word>
std::uint64_t load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * prime2, 31) * prime1; }

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) { return (hash ^ round(0, lane)) * prime1 + prime4; }

}  // namespace

std::uint64_t xxh64(std::span<const std::byte> content) {
  const std::byte* at = content.data();
  const std::byte* const end = at + content.size();
  std::uint64_t hash = prime5;
  if (content.size() >= 32) {
    std::uint64_t a = prime1 + prime2, b = prime2, c = 0, d = 0 - prime1;
    for (; end - at >= 32; at += 32) {
      a = round(a, load<std::uint64_t>(at));
      b = round(b, load<std::uint64_t>(at + 8));
      c = round(c, load<std::uint64_t>(at + 16));
      d = round(d, load<std::uint64_t>(at + 24));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const std::uint64_t lane : {a, b, c, d}) hash = merge(hash, lane);
  }
  hash += content.size();
  for (; end - at >= 8; at += 8) hash = std::rotl(hash ^ round(0, load<std::uint64_t>(at)), 27) * prime1 + prime4;
  if (end - at >= 4) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at) * prime1, 23) * prime2 + prime3;
    at += 4;
  }
  for (; at != end; ++at) hash = std::rotl(hash ^ load<std::uint8_t>(at) * prime5, 11) * prime1;
  hash = (hash ^ (hash >> 33)) * prime2;
  hash = (hash ^ (hash >> 29)) * prime3;
  return hash ^ (hash >> 32);
}

}  // namespace tencache
