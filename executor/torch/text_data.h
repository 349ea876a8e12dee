// Real text as a byte data set: every byte is a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tencache {

// A file, or a folder's *.md and *.txt files (not its sub-folders') in order of name. Throws Error when there is no
// text.
std::string read_text(const std::string& path);

struct TokenBatch {
  std::vector<std::int64_t> tokens;   // batch × context, row by row
  std::vector<std::int64_t> targets;  // the token after each
};

// Sequences of the text for training steps. A batch is a pure function of (text, seed, step).
class TextData {
 public:
  // Throws Error when the text is not longer than a sequence.
  TextData(std::string text, std::int64_t batch, std::int64_t context, std::uint64_t seed);
  TokenBatch batch(std::uint64_t step) const;
  std::size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::int64_t batch_, context_;
  std::uint64_t seed_;
};

}  // namespace tencache
