// PyTorch's caching allocator: sequences whose results are known to the byte, and random ones against an implementation
// that looks at every block.
#include "core/caching_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace tencache {
namespace {

constexpr Bytes mib(double size) { return static_cast<Bytes>(size * static_cast<double>(MiB)); }

struct Step {
  double request;     // MiB
  double reserved;    // after it
  double block;       // that is handed out
  double expandable;  // reserved, with expandable segments
};

TEST(CachingAllocator, AKnownSequence) {
  CachingSettings expandable;
  expandable.expandable_segments = true;
  CachingAllocator plain({}, 80 * GiB), grows(expandable, 80 * GiB);
  std::vector<std::uint64_t> in_plain, in_grows;
  const auto request = [&](Bytes bytes) {
    in_plain.push_back(*plain.allocate(bytes));
    in_grows.push_back(*grows.allocate(bytes));
  };
  const auto check = [&](const Step& step) {
    request(mib(step.request));
    EXPECT_EQ(plain.reserved(), mib(step.reserved)) << step.request;
    EXPECT_EQ(plain.block_bytes(in_plain.back()), mib(step.block)) << step.request;
    EXPECT_EQ(grows.reserved(), mib(step.expandable)) << step.request;
  };
  check({3, 20, 3, 20});
  check({9, 20, 9, 20});
  check({9.5, 40, 9.5, 40});
  check({10, 40, 10.5, 40});  // the rest is too small to be split off
  check({10, 50, 10, 60});
  plain.release(in_plain[1]);
  grows.release(in_grows[1]);
  request(600 * KiB);
  EXPECT_EQ(plain.reserved(), 52 * MiB);
  EXPECT_EQ(grows.reserved(), 62 * MiB);
  check({16, 52, 17, 62});  // 17 are free: a rest of 1 MiB stays
  check({1, 52, 1, 62});
  request(MiB + 1);
  EXPECT_EQ(plain.reserved(), 72 * MiB);
  EXPECT_EQ(grows.reserved(), 62 * MiB);  // in the hole that 9 left
  const AllocatorFigures now = plain.figures();
  EXPECT_EQ(now.requested + now.rounding + now.unsplit + now.in_holes + now.idle, now.reserved);
}

TEST(CachingAllocator, ALargeBlockThatIsCutUpServesNoLargeRequest) {
  CachingAllocator cuts({}, 80 * GiB);
  const auto first = *cuts.allocate(530 * MiB);
  cuts.release(first);
  cuts.allocate(270 * MiB);
  cuts.allocate(270 * MiB);
  EXPECT_EQ(cuts.reserved(), 800 * MiB);
  CachingSettings settings;
  settings.max_split_size = 20 * MiB;
  CachingAllocator keeps(settings, 80 * GiB);
  keeps.release(*keeps.allocate(530 * MiB));
  keeps.allocate(270 * MiB);
  EXPECT_EQ(keeps.reserved(), 800 * MiB);
  EXPECT_EQ(keeps.allocate(530 * MiB), first) << "it is whole";
  EXPECT_EQ(keeps.reserved(), 800 * MiB);
}

// ---- The obvious implementation: all blocks in one list by address, every search looks at all of them.

class Obvious {
 public:
  struct Block {
    std::uint64_t address;
    Bytes bytes;
    std::uint32_t segment, stream;
    bool small, handed_out, mapped;
    std::uint64_t free_since;
  };
  Obvious(CachingSettings settings, Bytes device) : settings_(settings), device_(device) {
    allowed_ =
        settings.memory_fraction ? static_cast<Bytes>(*settings.memory_fraction * static_cast<double>(device)) : device;
  }

  std::optional<std::uint64_t> allocate(Bytes bytes, std::uint32_t stream) {
    const Bytes size = std::max<Bytes>(512, (bytes + 511) / 512 * 512);
    const bool small = size <= MiB;
    ++lookups_[small];
    int found = best(size, small, stream);
    if (found < 0) {
      if (settings_.memory_fraction && settings_.garbage_collection_threshold > 0) collect();
      found = fresh(size, small, stream);
      if (found < 0 && settings_.max_split_size < unlimited && oversized(size, stream))
        found = fresh(size, small, stream);
      if (found < 0) {
        empty();
        ++retries;
        found = fresh(size, small, stream);
      }
    }
    if (found < 0) return std::nullopt;
    const auto at = static_cast<std::size_t>(found);
    const Bytes rest = blocks[at].bytes - size;
    const bool cut =
        small || settings_.expandable_segments ? rest >= 512 : size < settings_.max_split_size && rest > MiB;
    if (cut) {
      Block other = blocks[at];
      other.address += size;
      other.bytes = rest;
      other.free_since = lookups_[small];
      blocks[at].bytes = size;
      blocks.insert(blocks.begin() + found + 1, other);
    }
    blocks[at].handed_out = true;
    return blocks[at].address;
  }

  void release(std::uint64_t address) {
    const auto block = std::ranges::find(blocks, address, &Block::address);
    block->handed_out = false;
    block->free_since = lookups_[block->small];
    join();
  }

  Bytes reserved() const {
    Bytes sum = 0;
    for (const Block& block : blocks) sum += block.mapped ? block.bytes : 0;
    return sum;
  }
  Bytes allocated() const {
    Bytes sum = 0;
    for (const Block& block : blocks) sum += block.handed_out ? block.bytes : 0;
    return sum;
  }
  std::uint64_t retries = 0;
  std::vector<Block> blocks;  // by address

 private:
  bool free(std::size_t i, bool small, std::uint32_t stream) const {
    return !blocks[i].handed_out && blocks[i].mapped && blocks[i].small == small && blocks[i].stream == stream;
  }
  bool neighbours(std::size_t i) const { return i + 1 < blocks.size() && blocks[i].segment == blocks[i + 1].segment; }
  bool whole(std::size_t i) const { return !neighbours(i) && (i == 0 || !neighbours(i - 1)); }
  Bytes page(bool small) const { return small ? 2 * MiB : settings_.large_segment_size; }
  Bytes room(std::size_t i) const {
    return blocks[i].bytes + (neighbours(i) && !blocks[i + 1].mapped ? blocks[i + 1].bytes : 0);
  }

  int best(Bytes size, bool small, std::uint32_t stream) const {
    std::vector<std::size_t> fits;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (free(i, small, stream) && blocks[i].bytes >= size) fits.push_back(i);
    }
    if (fits.empty()) return -1;
    std::ranges::stable_sort(fits, {}, [&](std::size_t i) { return blocks[i].bytes; });
    std::size_t which = 0;
    if (settings_.expandable_segments) {
      while (which + 1 < fits.size() && room(fits[which + 1]) < room(fits[which])) ++which;
    }
    const Bytes have = blocks[fits[which]].bytes;
    if (size < settings_.max_split_size && have >= settings_.max_split_size) return -1;
    if (size >= settings_.max_split_size && have >= size + settings_.max_non_split_rounding) return -1;
    return static_cast<int>(fits[which]);
  }

  int fresh(Bytes size, bool small, std::uint32_t stream) {
    if (settings_.expandable_segments) return grown(size, small, stream);
    const Bytes asked = small             ? 2 * MiB
                        : size < 10 * MiB ? settings_.large_segment_size
                                          : (size + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
    if (reserved() + asked > allowed_) return -1;
    blocks.push_back({next_, asked, segments_++, stream, small, false, true, lookups_[small]});
    next_ += asked;
    return static_cast<int>(blocks.size()) - 1;
  }

  int grown(Bytes size, bool small, std::uint32_t stream) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].small != small || blocks[i].stream != stream || blocks[i].mapped) continue;
        std::size_t first = i;
        if (first > 0 && neighbours(first - 1) && !blocks[first - 1].handed_out) --first;
        Bytes room = 0;
        for (std::size_t at = first;
             at < blocks.size() && blocks[at].segment == blocks[first].segment && !blocks[at].handed_out; ++at) {
          room += blocks[at].bytes;
        }
        if (room < size) continue;
        const std::uint64_t address = blocks[first].address;
        Bytes have = 0;  // from `address` on
        while (have < size) {
          const auto at =
              static_cast<std::size_t>(std::ranges::find(blocks, address + have, &Block::address) - blocks.begin());
          if (blocks[at].mapped) {
            have += blocks[at].bytes;
            continue;
          }
          const Bytes some =
              std::min((std::min(size - have, blocks[at].bytes) + page(small) - 1) / page(small) * page(small),
                       blocks[at].bytes);
          if (reserved() + some > allowed_) return -1;
          if (some < blocks[at].bytes) {
            Block rest = blocks[at];
            rest.address += some;
            rest.bytes -= some;
            blocks[at].bytes = some;
            blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(at) + 1, rest);
          }
          blocks[at].mapped = true;
          blocks[at].free_since = lookups_[small];
          have += some;
        }
        join();
        return static_cast<int>(std::ranges::find(blocks, address, &Block::address) - blocks.begin());
      }
      const Bytes all = (device_ + device_ / 8 + page(small) - 1) / page(small) * page(small);
      blocks.push_back({next_, all, segments_++, stream, small, false, false, 0});
      next_ += all;
    }
    return -1;
  }

  void join() {
    for (std::size_t i = 0; i + 1 < blocks.size();) {
      const Block& next = blocks[i + 1];
      if (neighbours(i) && !blocks[i].handed_out && !next.handed_out && blocks[i].mapped == next.mapped) {
        blocks[i].bytes += next.bytes;
        blocks[i].free_since = lookups_[blocks[i].small];
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      } else {
        ++i;
      }
    }
  }

  void empty() {
    if (settings_.expandable_segments) {
      std::map<std::uint32_t, std::uint64_t> begins;
      for (const Block& block : blocks) begins.try_emplace(block.segment, block.address);
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Block block = blocks[i];
        if (block.handed_out || !block.mapped) continue;
        const Bytes unit = page(block.small), offset = block.address - begins[block.segment];
        const Bytes begin = (offset + unit - 1) / unit * unit, end = (offset + block.bytes) / unit * unit;
        if (begin >= end) continue;
        std::vector<Block> parts;
        const auto part = [&](Bytes from, Bytes to, bool mapped) {
          if (from == to) return;
          Block one = block;
          one.address += from - offset;
          one.bytes = to - from;
          one.mapped = mapped;
          parts.push_back(one);
        };
        part(offset, begin, true);
        part(begin, end, false);
        part(end, offset + block.bytes, true);
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
        blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(i), parts.begin(), parts.end());
        i += parts.size() - 1;
      }
      join();
      return;
    }
    for (std::size_t i = blocks.size(); i-- > 0;) {
      if (!blocks[i].handed_out && whole(i)) blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  bool oversized(Bytes size, std::uint32_t stream) {
    const Bytes wanted = std::max(size, settings_.max_split_size);
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (free(i, false, stream)) order.push_back(i);
    }
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return blocks[i].bytes; });
    if (settings_.expandable_segments) return false;
    for (const std::size_t i : order) {
      if (blocks[i].bytes < wanted) continue;
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    Bytes got = 0;
    std::vector<std::uint64_t> gone;
    for (auto it = order.rbegin(); it != order.rend() && got < wanted && blocks[*it].bytes >= settings_.max_split_size;
         ++it) {
      got += blocks[*it].bytes;
      gone.push_back(blocks[*it].address);
    }
    std::erase_if(blocks, [&](const Block& block) { return std::ranges::find(gone, block.address) != gone.end(); });
    return got >= wanted;
  }

  void collect() {
    const auto limit = static_cast<Bytes>(settings_.garbage_collection_threshold * static_cast<double>(allowed_));
    if (reserved() <= limit) return;
    const Bytes wanted = reserved() - limit;
    Bytes got = 0;
    for (bool any = true; got < wanted && any;) {
      std::vector<std::uint64_t> old;
      double ages = 0;
      std::size_t count = 0;
      const auto candidate = [&](std::size_t i) {
        return !blocks[i].small && !blocks[i].handed_out && whole(i) && !settings_.expandable_segments;
      };
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (!candidate(i)) continue;
        ages += static_cast<double>(lookups_[0] - blocks[i].free_since);
        ++count;
      }
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (candidate(i) &&
            static_cast<double>(lookups_[0] - blocks[i].free_since) >= ages / static_cast<double>(count)) {
          old.push_back(blocks[i].address);
          got += blocks[i].bytes;
        }
      }
      any = !old.empty();
      std::erase_if(blocks, [&](const Block& block) { return std::ranges::find(old, block.address) != old.end(); });
    }
  }

  CachingSettings settings_;
  Bytes device_, allowed_;
  std::uint64_t lookups_[2] = {0, 0};
  std::uint64_t next_ = 2 * MiB;
  std::uint32_t segments_ = 0;
};

std::vector<CachingSettings> all_settings() {
  std::vector<CachingSettings> all(5);
  all[1].expandable_segments = true;
  all[2].max_split_size = 20 * MiB;
  all[3].max_split_size = 64 * MiB;
  all[3].memory_fraction = 0.9;
  all[3].garbage_collection_threshold = 0.6;
  all[4].memory_fraction = 0.7;
  all[4].garbage_collection_threshold = 0.5;
  return all;
}

void compare(const CachingSettings& settings, std::uint64_t seed, int events) {
  std::mt19937_64 random(seed);
  CachingAllocator fast(settings, 600 * MiB);
  Obvious slow(settings, 600 * MiB);
  std::vector<std::uint64_t> live;
  const auto below = [&](std::uint64_t end) { return random() % end; };
  for (int event = 0; event < events; ++event) {
    if (live.size() < 4 || (below(100) < 52 && live.size() < 120)) {
      const Bytes kinds[] = {1 + below(2 * KiB), 1 + below(2 * MiB), MiB + below(12 * MiB), 1 + below(60 * MiB),
                             20 * MiB};
      const Bytes bytes = kinds[below(std::size(kinds))];
      const auto stream = static_cast<std::uint32_t>(below(8) == 0);
      const auto address = fast.allocate(bytes, stream);
      ASSERT_EQ(address, slow.allocate(bytes, stream)) << "seed " << seed << ", event " << event;
      if (address) live.push_back(*address);
    } else {
      const std::size_t which = below(live.size());
      fast.release(live[which]);
      slow.release(live[which]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ASSERT_EQ(fast.reserved(), slow.reserved()) << "seed " << seed << ", event " << event;
    ASSERT_EQ(fast.allocated(), slow.allocated()) << "seed " << seed << ", event " << event;
    const AllocatorFigures now = fast.figures();
    ASSERT_EQ(now.retries, slow.retries) << "seed " << seed << ", event " << event;
    ASSERT_EQ(now.requested + now.rounding + now.unsplit + now.in_holes + now.idle, now.reserved);
  }
}

TEST(CachingAllocator, TheObviousImplementationAgrees) {
  const int events = 25'000;  // of 5 settings and 8 seeds: a million
  for (const CachingSettings& settings : all_settings()) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) compare(settings, seed, events);
  }
}

}  // namespace
}  // namespace tencache
