// Everything that reads bytes from elsewhere, as functions of bytes: what fuzzers call, and what the corpus is played
// through in the tests (tests/fuzz/corpus_test.cpp).
//
// The contract of each: any bytes are read, or refused with an Error. Whatever else happens (another exception, a
// broken check, a sanitizer's report, seconds of work or gigabytes of memory for a small file) is a bug.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tencache::fuzz {

struct Reader {
  const char* name;                      // also the folder of its corpus
  void (*read)(std::string_view bytes);  // may throw Error
};

std::span<const Reader> readers();

// Reads with the reader of that name, which there must be. Empty, or why it refused: an Error is the reader's good
// right.
std::string read_or_refuse(std::string_view reader, std::string_view bytes);

}  // namespace tencache::fuzz
