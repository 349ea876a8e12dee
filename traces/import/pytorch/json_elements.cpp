#include "traces/import/pytorch/json_elements.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"

namespace tencache {
namespace {

constexpr std::size_t largest_kept_value = std::size_t{64} << 10;
constexpr std::size_t most_kept_values = 256;

// A set of bytes that mean something; all others are passed over in a loop of three instructions a byte.
class Stops {
 public:
  constexpr explicit Stops(std::string_view bytes) {
    for (const char c : bytes) is_[static_cast<unsigned char>(c)] = true;
  }
  // Where the first of them stands, from `position` on, or the end of the text.
  std::size_t next(std::string_view text, std::size_t position) const {
    while (position < text.size() && !is_[static_cast<unsigned char>(text[position])]) ++position;
    return position;
  }

 private:
  std::array<bool, 256> is_{};
};
constexpr Stops in_strings{"\"\\\n"};
constexpr Stops in_containers{"\"{}[]\n"};

bool is_space(int c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace

JsonElements::JsonElements(ByteStream& stream, std::string array_key, ImportProgress progress)
    : stream_(stream), array_key_(std::move(array_key)), progress_(std::move(progress)) {}

void JsonElements::fail(const std::string& message) const {
  throw Error(stream_.name(), element_line_, "byte " + std::to_string(element_offset_) + ": " + one_line(message));
}

void JsonElements::fail_here(const std::string& message) const {
  throw Error(stream_.name(), line_, "byte " + std::to_string(window_offset_ + position_) + ": " + one_line(message));
}

void JsonElements::cut_short() const {
  fail_here("the JSON ends too early; the file was cut short, or the recording was not stopped before it was copied");
}

void JsonElements::fill() {
  if (ended_) return;
  window_offset_ += window_.size();
  window_.resize(window_bytes);
  window_.resize(stream_.read(window_.data(), window_bytes));
  position_ = 0;
  if (window_.empty()) ended_ = true;
  if (progress_) progress_(stream_.consumed_bytes(), stream_.file_bytes());
}

int JsonElements::peek() {
  if (position_ == window_.size()) fill();
  return ended_ ? -1 : static_cast<unsigned char>(window_[position_]);
}

int JsonElements::take() {
  const int c = peek();
  if (c < 0) return c;
  if (c == '\n') ++line_;
  ++position_;
  return c;
}

void JsonElements::skip_space() {
  while (is_space(peek())) take();
}

// Copies up to the end of the value: strings whole, brackets balanced, anything else up to a separator.
void JsonElements::take_value(bool keep) {
  text_.clear();
  int depth = 0;
  bool in_string = false, escaped = false, ended = false;
  while (!ended) {
    if (peek() < 0) {
      if (depth == 0 && !in_string && !text_.empty()) return;
      cut_short();
    }
    const std::size_t begin = position_;
    bool takes_last = true;  // the character that ends the value is its own
    for (; position_ < window_.size() && !ended; ++position_) {
      if (in_string ? !escaped : depth > 0) {  // nearly all bytes of a file are passed over here
        position_ = (in_string ? in_strings : in_containers).next(window_, position_);
        if (position_ == window_.size()) break;
      }
      const char c = window_[position_];
      if (in_string) {
        if (escaped) {
          escaped = false;
        } else if (c == '\\') {
          escaped = true;
        } else if (c == '"') {
          in_string = false;
          ended = depth == 0;
        } else if (c == '\n') {
          fail_here("a string that does not end; the file is damaged");
        }
        continue;
      }
      switch (c) {
        case '"':
          in_string = true;
          break;
        case '{':
        case '[':
          if (++depth > deepest_nesting) {
            fail_here("nested deeper than " + std::to_string(deepest_nesting) + " levels; no recording of PyTorch is");
          }
          break;
        case '}':
        case ']':
          takes_last = depth > 0;
          ended = --depth <= 0;
          break;
        case '\n':
          if (depth > 0) ++line_;
          [[fallthrough]];
        case ',':
        case ' ':
        case '\t':
        case '\r':
          if (depth == 0) {
            ended = true;
            takes_last = false;
          }
          break;
        default:
          break;
      }
    }
    if (ended && !takes_last) --position_;
    if (keep || text_.size() <= largest_kept_value) text_.append(window_, begin, position_ - begin);
    if (text_.size() > largest_element_bytes) {
      fail("an element of more than 64 MiB; this is no recording of PyTorch's, or it is damaged");
    }
  }
}

std::string JsonElements::take_key() {
  if (peek() != '"') fail_here("not JSON: a key in quotes should stand here; the file is damaged or of another kind");
  take_value(false);
  if (text_.size() < 2 || text_.size() > 1024) fail_here("a key of more than 1024 bytes; the file is damaged");
  return text_.substr(1, text_.size() - 2);
}

// The members of the document up to the array, or to the end. True where the array begins.
bool JsonElements::find_array() {
  while (true) {
    skip_space();
    const int c = take();
    if (c == '}') return false;
    if (c < 0) cut_short();
    if (!first_member_) {
      if (c != ',') fail_here("not JSON: ',' or '}' should stand here; the file is damaged");
      skip_space();
    } else {
      --position_;
    }
    first_member_ = false;
    const std::string key = take_key();
    skip_space();
    if (take() != ':') fail_here("not JSON: ':' should stand here; the file is damaged");
    skip_space();
    if (key == array_key_ && peek() == '[') {
      take();
      return true;
    }
    take_value(false);
    if (text_.empty()) fail_here("not JSON: a value is missing; the file is damaged");
    if (values_.size() < most_kept_values) {
      values_.emplace_back(key, text_.size() > largest_kept_value ? std::string() : text_);
    }
  }
}

void JsonElements::expect_end() {
  skip_space();
  if (peek() >= 0) fail_here("something follows the JSON document; the file is damaged");
  state_ = State::done;
}

std::string JsonElements::what_else_it_is() const {
  const auto has = [&](std::string_view key) {
    return std::ranges::count(values_, key, [](const auto& v) { return v.first; }) > 0;
  };
  if (array_key_ == "nodes") {
    return has("traceEvents") ? "it is a Kineto trace: give it second, after the execution trace, or to 'import kineto'"
                              : "it is no execution trace of PyTorch's (ExecutionTraceObserver)";
  }
  return has("nodes") ? "it is an execution trace: give it first, before the Kineto trace, or to 'import pytorch'"
                      : "it is no Kineto trace (torch.profiler, export_chrome_trace)";
}

bool JsonElements::next_text(std::string_view& text) {
  if (state_ == State::start) {
    skip_space();
    const int c = take();
    if (c == '<') {
      fail_here("this is HTML or XML, not JSON: perhaps the error page of a download");
    } else if (c == '[') {
      bare_array_ = true;
    } else if (c != '{') {
      fail_here("not JSON; a recording of PyTorch begins with '{'");
    } else if (!find_array()) {
      throw Error(stream_.name(), 0, "has no \"" + array_key_ + "\"; " + what_else_it_is());
    }
    state_ = State::in_array;
  }
  if (state_ == State::done) return false;
  skip_space();
  if (peek() == ']') {
    take();
    if (!bare_array_ && find_array()) fail_here("\"" + array_key_ + "\" stands twice; the file is damaged");
    expect_end();
    return false;
  }
  if (!first_element_) {
    const int c = take();
    if (c < 0) cut_short();
    if (c != ',') fail_here("not JSON: ',' or ']' should stand here; the file is damaged");
    skip_space();
  }
  first_element_ = false;
  element_line_ = line_;
  element_offset_ = window_offset_ + position_;
  take_value(true);
  element_size_ = text_.size();
  if (element_size_ == 0) fail_here("not JSON: a value is missing; the file is damaged");
  text_.append(simdjson::SIMDJSON_PADDING, ' ');
  text = std::string_view(text_).substr(0, element_size_);
  return true;
}

dom::element JsonElements::parse() {
  dom::element element;
  const simdjson::error_code error = parser_.parse(text_.data(), element_size_, false).get(element);
  if (error) fail("not valid JSON (" + std::string(simdjson::error_message(error)) + "); the file is damaged");
  return element;
}

bool JsonElements::next(dom::element& element) {
  std::string_view text;
  if (!next_text(text)) return false;
  element = parse();
  return true;
}

std::string_view JsonElements::document_value(std::string_view key) const {
  for (const auto& [name, value] : values_) {
    if (name == key) return value;
  }
  return {};
}

}  // namespace tencache
