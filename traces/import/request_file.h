// Recorded requests of a service that generates text, as far as a block of them needs: how long each is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tencache {

struct RequestLengths {
  std::uint64_t prompt_tokens = 0, new_tokens = 0;
};
inline constexpr std::uint64_t longest_request = 1u << 24;

// Of a CSV file with the columns ContextTokens and GeneratedTokens (Azure's LLM inference traces), or JSON lines with
// input_length and output_length (Mooncake's); plain, gzip or zstd. Other columns and keys are passed over. Throws Error
// with file and line for what is missing, no whole number, or not from 1 to `longest_request`.
std::vector<RequestLengths> read_requests(const std::string& file);

}  // namespace tencache
