// A large JSON document read element by element: the values of its one big array (an execution trace's "nodes", a
// Kineto trace's "traceEvents") one after the other, each parsed by itself, so that memory is bounded by the largest
// element and not by the document.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/import/pytorch/byte_stream.h"

namespace tencache {

namespace dom = simdjson::dom;

class JsonElements {
 public:
  // What an element may take at most, and how deep it may be nested: beyond, the file is not what it claims to be.
  static constexpr std::size_t largest_element_bytes = std::size_t{64} << 20;
  static constexpr int deepest_nesting = 64;

  // `stream` outlives this. The document is an object, of which `array_key` is the array in question, or an array
  // itself. `progress` may be empty.
  JsonElements(ByteStream& stream, std::string array_key, ImportProgress progress);

  // The next element, valid until the next call; false at the end of the document, after which the scalars are
  // complete. Throws Error for damaged JSON, and where the document has no such array.
  bool next(dom::element& element);
  // The same as text, not parsed: padded, valid until the next call.
  bool next_text(std::string_view& text);
  dom::element parse();  // of the last text

  // A key of the document beside the array, as JSON text ("\"1.0.1\"", "3"); objects and arrays up to 64 KiB, else
  // "". Known once it was read past.
  std::string_view document_value(std::string_view key) const;

  // Where the last element begins.
  std::uint64_t line() const { return element_line_; }
  std::uint64_t offset() const { return element_offset_; }
  const std::string& file() const { return stream_.name(); }

  // Throws Error that places the message at the last element.
  [[noreturn]] void fail(const std::string& message) const;

 private:
  static constexpr std::size_t window_bytes = std::size_t{1} << 20;

  int peek();  // the next character; -1 at the end
  int take();
  void skip_space();
  // Takes one value; with `keep`, its text is in text_ (padded for the parser).
  void take_value(bool keep);
  std::string take_key();
  void fill();
  bool find_array();
  void expect_end();
  std::string what_else_it_is() const;
  [[noreturn]] void fail_here(const std::string& message) const;
  [[noreturn]] void cut_short() const;

  ByteStream& stream_;
  std::string array_key_;
  ImportProgress progress_;
  std::string window_;
  std::size_t position_ = 0;         // in window_
  std::uint64_t window_offset_ = 0;  // of window_[0] in the document
  std::uint64_t line_ = 1;
  std::uint64_t element_line_ = 1, element_offset_ = 0;
  bool ended_ = false;
  enum class State { start, in_array, done } state_ = State::start;
  bool bare_array_ = false, first_element_ = true, first_member_ = true;
  std::string text_;
  std::size_t element_size_ = 0;
  std::vector<std::pair<std::string, std::string>> values_;
  dom::parser parser_;
};

}  // namespace tencache
