// core/ordering.h against happens-before as it is defined: a list of all accesses of each byte, and for each work the
// set of all works before it. The happens-before judge of tests/live/rules (access_log.h, vector_clock.h) is a third
// implementation and stays one: it judges the calls of a driver that this table leads to, and a judge shares no code
// with what it judges.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "core/ordering.h"
#include "tests/property/random_case.h"

namespace tencache {
namespace {

constexpr std::size_t most_works = 64;
constexpr std::uint64_t most_bytes = 48;

using Works = std::uint64_t;  // a set: bit n is the n-th work that was submitted

struct Touch {
  ByteRange extent;
  bool write = false;
};

// Everything is found by looking at everything.
class NaiveOrder {
 public:
  void open() { ready_.push_back(0); }
  // What the line's next work must wait for: conflicting works that are not before it, without those that are before
  // another one of them.
  std::vector<Ticket> waits(Line line, const std::vector<Touch>& touches) const {
    const Works missing = conflicts(touches) & ~before_next(line);
    std::vector<Ticket> result;
    for_each(missing, [&](std::size_t work) {
      bool implied = false;
      for_each(missing, [&](std::size_t other) { implied |= contains(works_[other].before, work); });
      if (!implied) result.push_back(works_[work].ticket);
    });
    return result;
  }
  void waited(Line line, Ticket ticket) {
    for (std::size_t work = 0; work < works_.size(); ++work) {
      if (works_[work].ticket == ticket) ready_[line] |= works_[work].before | bit(work);
    }
  }
  void submit(Ticket ticket, const std::vector<Touch>& touches) {
    const std::size_t work = works_.size();
    works_.push_back({ticket, before_next(ticket.line)});
    ready_[ticket.line] = works_[work].before | bit(work);
    for (const Touch& touch : touches) {
      for (std::uint64_t byte = touch.extent.begin; byte < touch.extent.end(); ++byte) {
        accesses_[byte].push_back({work, touch.write});
      }
    }
  }
  // Works with a conflicting access that are not before the last one submitted.
  Works unordered(const std::vector<Touch>& touches) const {
    return conflicts(touches) & ~works_.back().before & ~bit(works_.size() - 1);
  }
  std::size_t size() const { return works_.size(); }
  // The work, and all before it, are over; of any work.
  Ticket pass(std::size_t work) {
    over_ |= works_[work].before | bit(work);
    return works_[work].ticket;
  }

 private:
  struct Work {
    Ticket ticket;
    Works before = 0;
  };
  struct Access {
    std::size_t work = 0;
    bool write = false;
  };

  static Works bit(std::size_t work) { return Works{1} << work; }
  static bool contains(Works works, std::size_t work) { return (works & bit(work)) != 0; }
  template <typename Do>
  static void for_each(Works works, Do&& what) {
    for (; works != 0; works &= works - 1) what(static_cast<std::size_t>(std::countr_zero(works)));
  }
  Works before_next(Line line) const { return ready_[line] | over_; }
  Works conflicts(const std::vector<Touch>& touches) const {
    Works result = 0;
    for (const Touch& touch : touches) {
      for (std::uint64_t byte = touch.extent.begin; byte < touch.extent.end(); ++byte) {
        for (const Access& access : accesses_[byte]) {
          if (access.write || touch.write) result |= bit(access.work);
        }
      }
    }
    return result;
  }

  std::vector<Work> works_;
  std::vector<Works> ready_;  // by line: before its next work
  Works over_ = 0;
  std::vector<Access> accesses_[most_bytes];
};

class Seed {
 public:
  explicit Seed(std::uint64_t seed) : random_(seed), bytes_(random_.between(1, most_bytes)) {
    // Tensors of fixed places, as most accesses have them, beside any extents.
    for (std::uint64_t count = random_.between(1, 8); count > 0; --count) tensors_.push_back(extent());
    ordered_ = random_.between(1, 4);
    passes_ = random_.between(1, 12);
  }

  // Empty, or what is wrong.
  std::string run() {
    for (std::uint64_t lines = random_.between(1, 5); lines > 0; --lines) open();
    for (std::uint64_t count = random_.between(2, most_works); count > 0; --count) {
      if (random_.one_in(40)) open();
      if (random_.one_in(10)) wait_for_all_of_a_line();
      if (const std::string wrong = submit(); !wrong.empty()) return text_.str() + wrong;
      if (random_.one_in(passes_)) pass();
      if (random_.one_in(4)) regions_.forget(clocks_);
    }
    return "";
  }
  std::uint64_t waits() const { return waits_; }

 private:
  ByteRange extent() {
    const std::uint64_t begin = random_.below(bytes_);
    return {begin, random_.between(random_.one_in(20) ? 0 : 1, std::min<std::uint64_t>(bytes_ - begin, 12))};
  }
  void open() {
    clocks_.open();
    naive_.open();
  }
  Line any_line() { return static_cast<Line>(random_.below(clocks_.size())); }

  void wait_for_all_of_a_line() {
    const Line line = any_line();
    const Ticket ticket = clocks_.last(any_line());
    text_ << "line " << line << " waits for " << text(ticket) << "\n";
    clocks_.waited(line, ticket);
    naive_.waited(line, ticket);
  }

  void pass() {
    const Ticket ticket = naive_.pass(random_.below(naive_.size()));
    text_ << text(ticket) << " has passed\n";
    clocks_.passed(ticket);
  }

  std::string submit() {
    const Line line = any_line();
    std::vector<Touch> touches;
    for (std::uint64_t count = random_.between(1, 3); count > 0; --count) {
      touches.push_back(
          {random_.one_in(ordered_) ? extent() : tensors_[random_.below(tensors_.size())], random_.one_in(3)});
    }
    waits_now_.clear();
    for (const Touch& touch : touches) regions_.before(touch.extent, touch.write, line, waits_now_);
    clocks_.reduce(line, waits_now_);
    std::vector<Ticket> waits(waits_now_.begin(), waits_now_.end()), least = naive_.waits(line, touches);
    const auto by_line = [](Ticket a, Ticket b) { return a.line < b.line; };
    std::ranges::sort(waits, by_line);
    std::ranges::sort(least, by_line);
    for (const Ticket ticket : waits) {
      clocks_.waited(line, ticket);
      naive_.waited(line, ticket);
    }
    const Ticket mine = clocks_.next(line);
    for (const Touch& touch : touches) regions_.after(touch.extent, touch.write, mine);
    naive_.submit(mine, touches);
    waits_ += waits.size();
    text_ << text(mine) << " touches";
    for (const Touch& touch : touches) {
      text_ << (touch.write ? " w" : " r") << touch.extent.begin << ".." << touch.extent.end();
    }
    text_ << ", waits for";
    for (const Ticket ticket : waits) text_ << " " << text(ticket);
    text_ << "\n";
    if (naive_.unordered(touches) != 0) return "a conflicting access is not before it\n";
    if (waits == least) return "";
    std::string wrong = "necessary are";
    for (const Ticket ticket : least) wrong += " " + text(ticket);
    return wrong + "\n";
  }

  static std::string text(Ticket ticket) { return std::to_string(ticket.line) + "." + std::to_string(ticket.number); }

  Random random_;
  std::uint64_t bytes_;
  std::vector<ByteRange> tensors_;
  std::uint64_t ordered_ = 1, passes_ = 1;
  LineClocks clocks_;
  RegionTickets regions_;
  Waits waits_now_;
  NaiveOrder naive_;
  std::uint64_t waits_ = 0;
  std::ostringstream text_;
};

// Never an order too few, and never a wait that something else implies.
TEST(OrderingSeeds, WaitsAreTheNecessaryOnes) {
  const std::uint64_t count = case_count(40'000);
  std::uint64_t waits = 0;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    const SeedOnAbort at_abort(seed);
    Seed one(seed);
    ASSERT_EQ(one.run(), "") << "seed " << seed;
    waits += one.waits();
  }
  EXPECT_GT(waits, 5 * count);
}

}  // namespace
}  // namespace tencache
