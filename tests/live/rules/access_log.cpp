#include "tests/live/rules/access_log.h"

#include <algorithm>

namespace tencache::rules {

// Afterwards no piece reaches across.
void AccessLog::split(std::uint64_t at) {
  auto piece = pieces_.upper_bound(at);
  if (piece == pieces_.begin()) return;
  --piece;
  if (piece->first == at || piece->second.end <= at) return;
  Piece rest = piece->second;
  piece->second.end = at;
  pieces_.emplace(at, std::move(rest));
}

void AccessLog::fill_gaps(const Range& range) {
  const std::uint64_t end = range.begin + range.bytes;
  std::uint64_t at = range.begin;
  for (auto piece = pieces_.lower_bound(at); at < end;) {
    const std::uint64_t next = piece == pieces_.end() ? end : std::min(end, piece->first);
    if (at < next) pieces_.emplace_hint(piece, at, Piece{next, {}, {}});
    if (piece == pieces_.end() || next == end) break;
    at = piece->second.end;
    ++piece;
  }
}

std::string AccessLog::describe(const Record& record) const {
  const Actor& actor = actors_[record.actor];
  return std::string(actor.what) + ", work " + std::to_string(record.moment.number) + " of line " +
         std::to_string(record.moment.line) + "\n" + actor.stack.describe();
}

std::string AccessLog::access(const Access& access, const Actor& actor, const VectorClock& known) {
  if (access.range.bytes == 0) return "";
  const Record record{actor.moment, static_cast<std::uint32_t>(actors_.size()), access.forgettable};
  actors_.push_back(actor);
  any_forgettable_ |= access.forgettable;
  const std::uint64_t begin = access.range.begin, end = begin + access.range.bytes;
  split(begin);
  split(end);
  fill_gaps(access.range);
  std::string found;
  const auto check = [&](const Record& earlier, const char* did) {
    if (!found.empty() || earlier.moment.number == 0 || known.knows(earlier.moment)) return;
    found = std::string(access.write ? "a write" : "a read") + " is not ordered behind a " + did +
            " of the same bytes\n  " + describe(record) + "  " + describe(earlier);
  };
  for (auto piece = pieces_.lower_bound(begin); piece != pieces_.end() && piece->first < end;) {
    Piece& at = piece->second;
    check(at.write, "write");
    if (access.write) {
      for (const Record& read : at.reads) check(read, "read");
      at.reads.clear();
      at.write = record;
      // Written as a whole: one piece again.
      if (piece->first != begin) {
        pieces_.lower_bound(begin)->second.end = at.end;
        piece = pieces_.erase(piece);
        continue;
      }
    } else {
      const auto same =
          std::ranges::find_if(at.reads, [&](const Record& read) { return read.moment.line == record.moment.line; });
      if (same == at.reads.end()) {
        at.reads.push_back(record);
      } else {
        *same = record;
      }
    }
    ++piece;
  }
  return found;
}

void AccessLog::forget(const Range& range) {
  split(range.begin);
  split(range.begin + range.bytes);
  pieces_.erase(pieces_.lower_bound(range.begin), pieces_.lower_bound(range.begin + range.bytes));
}

void AccessLog::forget_known(const VectorClock& known) {
  if (!any_forgettable_) return;
  any_forgettable_ = false;
  const auto over = [&](const Record& record) { return record.forgettable && known.knows(record.moment); };
  for (auto piece = pieces_.begin(); piece != pieces_.end();) {
    Piece& at = piece->second;
    if (over(at.write)) at.write = {};
    std::erase_if(at.reads, over);
    any_forgettable_ |= at.write.forgettable || std::ranges::any_of(at.reads, &Record::forgettable);
    piece = at.write.moment.number == 0 && at.reads.empty() ? pieces_.erase(piece) : std::next(piece);
  }
}

}  // namespace tencache::rules
